//! Counts the records in the bytes that come, by their headers (RFC 8446, 5.1).

/// Bytes of a header: type, version, length.
const HEADER_LEN: usize = 5;

/// How many bytes and records have come.
#[derive(Debug, Default)]
pub(super) struct RecordCount {
    bytes: usize,
    records: usize,
    header: [u8; HEADER_LEN],
    /// How much of `header` has come.
    header_len: usize,
    /// Bytes that belong to the record behind its header and are still to come.
    left: usize,
}

impl RecordCount {
    /// Bytes that have come.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that have come, or begun to.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// The next bytes, in any portions.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.left == 0 && self.header_len == 0 {
                self.records += 1;
            }
            let len = if self.left > 0 { self.left } else { HEADER_LEN - self.header_len }.min(bytes.len());
            let (part, rest) = bytes.split_at(len);
            bytes = rest;
            if self.left > 0 {
                self.left -= len;
                continue;
            }
            self.header[self.header_len..self.header_len + len].copy_from_slice(part);
            self.header_len += len;
            if self.header_len == HEADER_LEN {
                self.header_len = 0;
                self.left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_in_any_portions() {
        let record = |len: u8| [&[23, 3, 3, 0, len][..], &vec![22; usize::from(len)]].concat();
        let bytes = [record(1), record(0), record(200), record(5), vec![23, 3]].concat();
        for portion in 1..=bytes.len() {
            let mut count = RecordCount::default();
            bytes.chunks(portion).for_each(|part| count.add(part));
            assert_eq!((count.records(), count.bytes()), (5, bytes.len()), "in portions of {portion}");
        }
    }
}
