//! How the data of a request go to and from the disk: straight, or by a copy.
//!
//! A command has one piece of memory. Data that lie in one, or in long ones, go straight from and to the guest's memory.
//! Many short ones (the pages of a file) are gathered: one copy costs less than a command for each of them.

use super::guest::Piece;

/// A piece of at least this length is a command of its own.
pub(super) const DIRECT_MIN: usize = 32 << 10;
/// The most that is gathered: the length of a buffer.
pub(super) const GATHER_MAX: usize = 128 << 10;

/// How far the data of a request have been given to commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// The piece, and how much of it is done.
    pub(super) index: usize,
    pub(super) offset: usize,
}

/// The data of the next command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// They lie here.
    Straight(Piece),
    /// So many bytes in several pieces.
    Gathered(usize),
}

impl Part {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Straight(piece) => piece.len,
            Self::Gathered(len) => *len,
        }
    }
}

impl Cursor {
    /// The next command's data; `None` when there are no more. The pieces are whole blocks together.
    pub(super) fn part(&self, pieces: &[Piece], block: usize) -> Option<Part> {
        let piece = self.rest(pieces)?;
        let whole = piece.len - piece.len % block;
        let is_last = self.index + 1 == pieces.len();
        if whole > 0 && (whole >= DIRECT_MIN || is_last) {
            return Some(Part::Straight(Piece { len: whole, ..piece }));
        }
        let mut len = piece.len;
        for next in &pieces[self.index + 1..] {
            // What comes can go straight, if it begins with a block.
            if len >= GATHER_MAX || next.len >= DIRECT_MIN + block && len.is_multiple_of(block) {
                break;
            }
            if next.len >= DIRECT_MIN + block {
                // Of a long one only so much that the rest begins with a block.
                len += block - len % block;
                break;
            }
            len += next.len;
        }
        let len = len.min(GATHER_MAX);
        Some(Part::Gathered(len - len % block))
    }

    /// What is left of the present piece.
    fn rest(&self, pieces: &[Piece]) -> Option<Piece> {
        let piece = pieces.get(self.index)?;
        Some(Piece { offset: piece.offset + self.offset, len: piece.len - self.offset, ..*piece })
    }

    /// Calls for each piece of the next `len` bytes, and goes on behind them.
    pub(super) fn advance(&mut self, pieces: &[Piece], mut len: usize, mut each: impl FnMut(Piece)) {
        while len > 0 {
            let Some(piece) = self.rest(pieces) else { return };
            let now = piece.len.min(len);
            each(Piece { len: now, ..piece });
            len -= now;
            if now == piece.len {
                *self = Self { index: self.index + 1, offset: 0 };
            } else {
                self.offset += now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(lens: &[usize]) -> Vec<Piece> {
        lens.iter().enumerate().map(|(index, &len)| Piece { region: 0, offset: index << 20, len }).collect()
    }

    fn parts(pieces: &[Piece], block: usize) -> Vec<Part> {
        let (mut cursor, mut parts) = (Cursor::default(), Vec::new());
        while let Some(part) = cursor.part(pieces, block) {
            assert!(part.len() > 0 && part.len().is_multiple_of(block), "{part:?}");
            cursor.advance(pieces, part.len(), |_| ());
            parts.push(part);
        }
        parts
    }

    #[test]
    fn one_piece_or_long_ones_go_straight_and_short_ones_together() {
        let one = pieces(&[1 << 20]);
        assert_eq!(parts(&one, 512), [Part::Straight(one[0])]);
        let small = pieces(&[4096]);
        assert_eq!(parts(&small, 4096), [Part::Straight(small[0])]);
        let pages = pieces(&[4096; 40]);
        assert_eq!(parts(&pages, 4096), [Part::Gathered(128 << 10), Part::Gathered(32 << 10)]);
        let mixed = pieces(&[4096, 4096, 65536, 4096]);
        assert_eq!(
            parts(&mixed, 4096),
            [Part::Gathered(8192), Part::Straight(mixed[2]), Part::Straight(mixed[3])]
        );
    }

    proptest! {
        #[test]
        fn every_byte_is_moved_once_whatever_the_pieces(
            mut lens in prop::collection::vec(prop_oneof![1..5000_usize, 30_000..200_000_usize], 1..40),
            shift in 9..13_u32,
        ) {
            let block = 1 << shift;
            let total: usize = lens.iter().sum();
            lens.push(block - total % block);
            let pieces = pieces(&lens);
            let (mut cursor, mut seen) = (Cursor::default(), Vec::new());
            while let Some(part) = cursor.part(&pieces, block) {
                prop_assert!(part.len() > 0 && part.len().is_multiple_of(block));
                let mut moved = Vec::new();
                cursor.advance(&pieces, part.len(), |piece| moved.push(piece));
                match part {
                    Part::Straight(piece) => prop_assert_eq!(&moved, &[piece]),
                    Part::Gathered(len) => prop_assert!(len <= GATHER_MAX),
                }
                seen.extend(moved);
            }
            let bytes = |pieces: &[Piece]| pieces.iter().map(|it| it.len).sum::<usize>();
            prop_assert_eq!(bytes(&seen), bytes(&pieces));
            prop_assert!(cursor.index == pieces.len());
        }
    }
}
