//! Counts the records in the bytes that come, by their headers (RFC 8446, 5.1), and bounds those without data.

/// Bytes of a header: type, version, length.
const HEADER_LEN: usize = 5;

/// Bytes of data that take as long to decrypt as a record without any takes beside them.
const RECORD_COST: usize = 2 * 1024;
/// Records without data (KeyUpdate, tickets, empty ones) that may come, if all data so far allow for no more.
pub(super) const WITHOUT_DATA_MAX: usize = 32;
/// Bytes of such a record that count as a record of their own: the library takes one that is full of KeyUpdates.
const LEN_PER_RECORD: usize = 128;
/// Bytes of data that allow for another one.
const DATA_PER_RECORD: usize = 4 * 1024;

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

    /// Whether the next byte is the first of a record.
    pub(super) fn is_between_records(&self) -> bool {
        self.left == 0 && self.header_len == 0
    }

    /// Bytes of the last record whose header has come, without the header.
    pub(super) fn last_len(&self) -> usize {
        u16::from_be_bytes([self.header[3], self.header[4]]).into()
    }

    /// What a budget is charged for all of this.
    pub(super) fn cost(&self) -> usize {
        self.bytes + self.records * RECORD_COST
    }

    /// The next bytes, in any portions.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len();
        while !bytes.is_empty() {
            if self.is_between_records() {
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
                self.left = self.last_len();
            }
        }
    }
}

/// How many records without data may still come. Each costs as much as many with data, a KeyUpdate most of all.
#[derive(Debug)]
pub(super) struct Allowance(usize);

impl Default for Allowance {
    fn default() -> Self {
        Self(WITHOUT_DATA_MAX * DATA_PER_RECORD)
    }
}

impl Allowance {
    /// A record without data has come, of `len` bytes; whether it may.
    pub(super) fn on_empty(&mut self, len: usize) -> bool {
        let left = self.0.checked_sub((1 + len / LEN_PER_RECORD) * DATA_PER_RECORD);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// Data have come.
    #[inline]
    pub(super) fn on_data(&mut self, len: usize) {
        self.0 = (self.0 + len).min(WITHOUT_DATA_MAX * DATA_PER_RECORD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_without_data_are_allowed_for_by_data() {
        let mut allowance = Allowance::default();
        assert!((0..WITHOUT_DATA_MAX).all(|_| allowance.on_empty(27)));
        allowance.on_data(DATA_PER_RECORD - 1);
        assert!(!allowance.on_empty(27));
        allowance.on_data(usize::MAX / 2);
        assert!((0..WITHOUT_DATA_MAX).all(|_| allowance.on_empty(27)));
        assert!(!allowance.on_empty(27));
        allowance.on_data(1 << 20);
        assert!(
            allowance.on_empty(300) && !allowance.on_empty(16 * 1024),
            "a ticket, but not a record full of them"
        );
    }

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
