//! The discovery log page, read under the GENCTR rule: header, entries, header again; anew when it moved.

use crate::admin::{self, AdminCommand};
use crate::{AssociationError, Nsid, limits};
use alloc::vec::Vec;
use core::mem;
use nvme_proto::admin::log_page::LogPageId;
use nvme_proto::fabrics::discovery::{DiscoveryEntry, DiscoveryHeader};
use zerocopy::FromBytes;

const ENTRIES_PER_COMMAND: usize = limits::ADMIN_DATA_MAX as usize / DiscoveryEntry::LEN;

/// The discovery log page, as it was at one generation.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct DiscoveryLog {
    /// GENCTR.
    pub generation: u64,
    /// Its entries, in the controller's order.
    pub entries: Vec<DiscoveryEntry>,
}

impl core::fmt::Debug for DiscoveryLog {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "DiscoveryLog {{ generation: {}, entries: {} }}", self.generation, self.entries.len())
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Reading {
    #[default]
    Header,
    Entries,
    HeaderAgain,
}

/// Reads the log, one command after the other.
#[derive(Debug, Default)]
pub(crate) struct LogReader {
    reading: Reading,
    attempts: u32,
    count: usize,
    log: DiscoveryLog,
}

impl LogReader {
    /// The next command.
    pub(crate) fn command(&self) -> AdminCommand {
        let (offset, len) = match self.reading {
            Reading::Header | Reading::HeaderAgain => (0, DiscoveryHeader::LEN),
            Reading::Entries => {
                let done = self.log.entries.len();
                let entries = (self.count - done).min(ENTRIES_PER_COMMAND);
                (DiscoveryHeader::LEN + done * DiscoveryEntry::LEN, entries * DiscoveryEntry::LEN)
            }
        };
        admin::get_log_page(LogPageId::DISCOVERY, Nsid(0), offset as u64, len as u32)
    }

    /// Its data. Gives the log when it is complete; then the reader is new again.
    pub(crate) fn on_data(&mut self, data: &[u8]) -> Result<Option<DiscoveryLog>, AssociationError> {
        if self.reading == Reading::Entries {
            self.on_entries(data)?;
            return Ok(None);
        }
        let (header, _) =
            DiscoveryHeader::read_from_prefix(data).map_err(|_| malformed("its header is short"))?;
        if header.recfmt.get() != 0 {
            return Err(malformed("its record format is not 0"));
        }
        let generation = header.genctr.get();
        let settled = self.reading == Reading::HeaderAgain && generation == self.log.generation;
        if settled {
            return Ok(Some(mem::take(self).log));
        }
        self.begin(generation, header.numrec.get())?;
        // Nothing to read, nothing to hold together: the header is the whole log.
        Ok((self.count == 0).then(|| mem::take(self).log))
    }

    fn begin(&mut self, generation: u64, entries: u64) -> Result<(), AssociationError> {
        if self.attempts > limits::DISCOVERY_RESTARTS_MAX {
            return Err(AssociationError::DiscoveryUnsettled { attempts: self.attempts });
        }
        self.attempts += 1;
        self.count = usize::try_from(entries)
            .ok()
            .filter(|&count| count <= limits::DISCOVERY_ENTRIES_MAX)
            .ok_or(malformed("it has more entries than we read (4096)"))?;
        self.reading = Reading::Entries;
        self.log = DiscoveryLog { generation, entries: Vec::new() };
        Ok(())
    }

    fn on_entries(&mut self, data: &[u8]) -> Result<(), AssociationError> {
        let expected = (self.count - self.log.entries.len()).min(ENTRIES_PER_COMMAND);
        for entry in data.chunks_exact(DiscoveryEntry::LEN).take(expected) {
            let entry = DiscoveryEntry::read_from_bytes(entry).map_err(|_| malformed("an entry is short"))?;
            self.log.entries.push(entry);
        }
        if data.len() < expected * DiscoveryEntry::LEN {
            return Err(malformed("its entries are short"));
        }
        if self.log.entries.len() == self.count {
            self.reading = Reading::HeaderAgain;
        }
        Ok(())
    }
}

fn malformed(problem: &'static str) -> AssociationError {
    AssociationError::Malformed { what: "the discovery log page", problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use zerocopy::IntoBytes;

    fn header(generation: u64, entries: u64) -> Vec<u8> {
        DiscoveryHeader::new(generation, entries).as_bytes().to_vec()
    }

    #[test]
    fn log_changed_while_read_is_read_again() {
        let mut reader = LogReader::default();
        assert!(reader.on_data(&header(1, 5)).unwrap().is_none());
        assert!(reader.on_data(&vec![0; 4096]).unwrap().is_none());
        assert!(reader.on_data(&vec![0; 1024]).unwrap().is_none());
        assert!(reader.on_data(&header(2, 1)).unwrap().is_none(), "it moved");
        assert!(reader.on_data(&vec![7; 1024]).unwrap().is_none());
        let log = reader.on_data(&header(2, 1)).unwrap().unwrap();
        assert_eq!((log.generation, log.entries.len()), (2, 1));
    }

    #[test]
    fn log_that_keeps_changing_is_refused() {
        let mut reader = LogReader::default();
        let error = (0..100).find_map(|generation| {
            let failed = reader.on_data(&header(generation, 1)).err();
            failed.or_else(|| reader.on_data(&vec![0; 1024]).err())
        });
        assert!(matches!(error, Some(AssociationError::DiscoveryUnsettled { .. })));
    }

    #[test]
    fn huge_entry_count_allocates_nothing() {
        assert!(LogReader::default().on_data(&header(1, u64::MAX)).is_err());
        assert!(LogReader::default().on_data(&[]).is_err());
    }

    #[test]
    fn empty_log_is_valid() {
        assert_eq!(LogReader::default().on_data(&header(9, 0)).unwrap().unwrap().generation, 9);
    }
}
