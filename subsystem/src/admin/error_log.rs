//! The Error Information log: what failed on the Admin queue, newest first.

use crate::limits::ERROR_LOG_ENTRIES;
use nvme_proto::admin::log_page::ErrorEntry;
use nvme_proto::{Sqe, Status};
use zerocopy::{FromZeros, IntoBytes};

/// PARAMETER ERROR LOCATION that names no parameter.
const NO_LOCATION: u16 = 0xffff;

/// LPVER of an entry whose opcode and CSI are valid.
const LPVER_OPCODE: u8 = 1;

/// The last [`ERROR_LOG_ENTRIES`] errors.
#[derive(Debug)]
pub(crate) struct ErrorLog {
    count: u64,
    /// The newest is at `count % ERROR_LOG_ENTRIES`.
    ring: [ErrorEntry; ERROR_LOG_ENTRIES],
}

impl Default for ErrorLog {
    fn default() -> Self {
        Self { count: 0, ring: [ErrorEntry::new_zeroed(); ERROR_LOG_ENTRIES] }
    }
}

impl ErrorLog {
    /// Bytes of the log page.
    pub(crate) const LEN: usize = size_of::<ErrorEntry>() * ERROR_LOG_ENTRIES;

    pub(crate) fn record(&mut self, sqe: &Sqe, status: Status) {
        self.count += 1;
        let entry = &mut self.ring[slot(self.count)];
        *entry = ErrorEntry::new_zeroed();
        entry.error_count = self.count.into();
        entry.cid = sqe.cid;
        entry.status = status.to_field().into();
        entry.parameter_error_location = NO_LOCATION.into();
        entry.nsid = sqe.nsid;
        entry.opcode = sqe.opcode;
        entry.lpver = LPVER_OPCODE;
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn write(&self, out: &mut [u8]) {
        let newest_first = (0..ERROR_LOG_ENTRIES as u64).map_while(|age| self.count.checked_sub(age));
        for (bytes, count) in out.chunks_exact_mut(size_of::<ErrorEntry>()).zip(newest_first) {
            if count > 0 {
                bytes.copy_from_slice(self.ring[slot(count)].as_bytes());
            }
        }
    }
}

fn slot(count: u64) -> usize {
    (count % ERROR_LOG_ENTRIES as u64) as usize
}
