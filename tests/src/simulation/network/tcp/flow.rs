//! One direction of a connection: the bytes that are under way.

use super::framing::{Framing, Kind, Part};
use crate::rng::Rng;
use core::time::Duration;
use std::collections::VecDeque;

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// In order.
    Fin,
    Reset,
}

/// What befalls bytes under way. Chances are in a million for all bytes that were sent at once.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// The connection is cut.
    pub(super) cut: u64,
    /// They are held up.
    pub(super) hold: u64,
    /// Nothing more is taken for a while.
    pub(super) stall: u64,
    /// A bit that a digest covers is flipped.
    pub(super) flip: u64,
}

/// How bytes travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Travel {
    /// Most microseconds.
    pub(super) farthest: u64,
    /// Chance in percent that what was sent at once is cut in two, and again.
    pub(super) split: u64,
    /// Chance in percent that the first bytes of a PDU come one by one.
    pub(super) drip: u64,
}

/// Bytes that arrive together.
#[derive(Debug)]
struct Piece {
    due: Duration,
    bytes: Vec<u8>,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Flow {
    framing: Framing,
    pieces: VecDeque<Piece>,
    /// Bytes in them.
    len: usize,
    /// When the last of them is due.
    last_due: Duration,
    /// What follows them.
    end: Option<(Duration, End)>,
    /// More bytes get lost.
    closed: bool,
    /// Whether its end has arrived.
    pub(super) done: bool,
    /// The socket took less than all that was due.
    pub(super) blocked: bool,
}

/// Bits that were flipped.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flips {
    pub(super) all: u32,
    /// Those of data: the command fails, and not the connection.
    pub(super) of_data: u32,
}

impl Flips {
    pub(super) fn add(&mut self, flipped: Option<Kind>) {
        self.all += u32::from(flipped.is_some());
        self.of_data += u32::from(flipped == Some(Kind::Data));
    }
}

impl Flow {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes bytes that were sent; where a bit of them was flipped.
    pub(super) fn push(
        &mut self,
        now: Duration,
        bytes: &mut [u8],
        travel: &Travel,
        faults: &Faults,
        rng: &mut Rng,
    ) -> Option<Kind> {
        let parts = self.framing.pass(bytes);
        if self.closed {
            return None;
        }
        let flips = rng.below(1_000_000) < faults.flip;
        let flipped = if flips { flip(&parts, bytes, rng) } else { None };
        let mut due = self.last_due.max(now + Duration::from_micros(rng.below(travel.farthest)));
        if rng.below(1_000_000) < faults.hold {
            due += Duration::from_micros(rng.below(50_000));
        }
        let mut at = 0;
        for cut in cuts(&parts, bytes.len(), travel, rng) {
            self.pieces.push_back(Piece { due, bytes: bytes[at..cut].to_vec() });
            due += Duration::from_micros(rng.below(20));
            at = cut;
        }
        self.pieces.push_back(Piece { due, bytes: bytes[at..].to_vec() });
        self.len += bytes.len();
        self.last_due = due;
        flipped
    }

    /// No more bytes come. The end follows those that are under way, at this time or later.
    pub(super) fn end(&mut self, at: Duration, end: End) {
        if !self.closed {
            self.closed = true;
            self.end = Some((at.max(self.last_due), end));
        }
    }

    /// Loses all but so many of the bytes under way, and all that come. Nothing follows them.
    pub(super) fn cut(&mut self, keep: usize) {
        while self.len > keep
            && let Some(last) = self.pieces.back_mut()
        {
            let lost = (self.len - keep).min(last.bytes.len());
            last.bytes.truncate(last.bytes.len() - lost);
            self.len -= lost;
            if last.bytes.is_empty() {
                self.pieces.pop_back();
            }
        }
        (self.closed, self.end) = (true, None);
    }

    /// Loses what comes. What is under way arrives at this time, and the end at that.
    pub(super) fn hold(&mut self, late: Duration, notice: Duration) {
        self.pieces.iter_mut().for_each(|piece| piece.due = late);
        self.closed = true;
        self.end = Some((notice.max(late), End::Reset));
        self.last_due = late;
    }

    /// Lets its end follow after `cut`.
    pub(super) fn end_cut(&mut self, at: Duration, end: End) {
        self.end = Some((at.max(self.last_due), end));
    }

    /// Bytes under way.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// When something arrives next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        match self.pieces.front() {
            Some(piece) => Some(piece.due).filter(|_| !self.blocked),
            None => self.end.filter(|_| !self.done).map(|(due, _)| due),
        }
    }

    /// Adds what has arrived to `bytes`.
    pub(super) fn arrived(&self, now: Duration, bytes: &mut Vec<u8>) {
        for piece in self.pieces.iter().take_while(|piece| piece.due <= now) {
            bytes.extend_from_slice(&piece.bytes);
        }
    }

    /// So many of the bytes that have arrived were taken.
    pub(super) fn taken(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(first) = self.pieces.front_mut()
            && count > 0
        {
            let here = count.min(first.bytes.len());
            first.bytes.drain(..here);
            count -= here;
            if first.bytes.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// The end, if it has arrived.
    pub(super) fn arrived_end(&self, now: Duration) -> Option<End> {
        let (due, end) = self.end?;
        (self.pieces.is_empty() && due <= now && !self.done).then_some(end)
    }
}

/// Flips a bit of the header or of the data, where a digest tells: of which, if there was any.
fn flip(parts: &[Part], bytes: &mut [u8], rng: &mut Rng) -> Option<Kind> {
    let kind = if rng.percent(80) { Kind::Data } else { Kind::Header };
    let is_meant = |part: &&Part| part.digest && (part.kind == Kind::Data) == (kind == Kind::Data);
    let meant: Vec<_> = parts.iter().filter(is_meant).collect();
    if meant.is_empty() {
        return None;
    }
    let part = meant[rng.below(meant.len() as u64) as usize];
    let at = part.range.start + rng.below(part.range.len() as u64) as usize;
    bytes[at] ^= 1 << rng.below(8);
    Some(kind)
}

/// Where bytes that were sent at once are cut: at any byte, and near the starts of PDUs.
fn cuts(parts: &[Part], len: usize, travel: &Travel, rng: &mut Rng) -> Vec<usize> {
    let mut cuts = Vec::new();
    while rng.percent(travel.split) {
        cuts.push(rng.below(len as u64) as usize);
    }
    for part in parts.iter().filter(|part| part.kind == Kind::Start) {
        if rng.percent(travel.drip) {
            let start = part.range.start;
            cuts.extend(start..start + 1 + rng.below(12) as usize);
        }
    }
    cuts.retain(|&cut| 0 < cut && cut < len);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
