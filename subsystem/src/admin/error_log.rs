//! The Error Information log: what failed on the queues of a controller, newest first.

use crate::limits::ERROR_LOG_ENTRIES;
use crate::ticket::Subject;
use crate::{Cid, Qid};
use core::sync::atomic::{AtomicU64, Ordering};
use nvme_proto::Status;
use nvme_proto::admin::log_page::ErrorEntry;
use zerocopy::{FromZeros, IntoBytes};

/// PARAMETER ERROR LOCATION that names no parameter.
const NO_LOCATION: u16 = 0xffff;

/// LPVER of an entry whose opcode and CSI are valid.
const LPVER_OPCODE: u8 = 1;

/// The last [`ERROR_LOG_ENTRIES`] errors. The queues of a controller are on several workers, and none waits for another: two
/// that write one entry at the same moment leave one of their errors.
#[derive(Debug, Default)]
pub(crate) struct ErrorLog {
    count: AtomicU64,
    /// The newest is at `count % ERROR_LOG_ENTRIES`.
    ring: [Slot; ERROR_LOG_ENTRIES],
}

/// An entry.
#[derive(Debug, Default)]
struct Slot {
    /// Its number; 0 is none, [`WRITING`] is one that is being written.
    number: AtomicU64,
    /// Queue, command and status; opcode and namespace; first block.
    words: [AtomicU64; 3],
}

const WRITING: u64 = u64::MAX;

/// Whether a command with this status is an error of the command, the data or the device: not one that a host is to try
/// elsewhere or later, was told to expect, or asked for.
pub(crate) fn is_error(status: Status) -> bool {
    const PATH_RELATED: u8 = 3;
    let expected = [
        Status::ABORTED_BY_REQUEST,
        Status::ABORTED_SQ_DELETION,
        Status::ABORTED_FAILED_FUSED,
        Status::ABORTED_MISSING_FUSED,
        Status::NAMESPACE_NOT_READY,
        Status::RESERVATION_CONFLICT,
        Status::COMPARE_FAILURE,
    ];
    status.sct() != PATH_RELATED && !expected.into_iter().any(|it| status.is(it))
}

impl ErrorLog {
    /// Bytes of the log page.
    pub(crate) const LEN: usize = size_of::<ErrorEntry>() * ERROR_LOG_ENTRIES;

    pub(crate) fn record(&self, qid: Qid, cid: Cid, subject: Subject, status: Status) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let Slot { number: holder, words } = &self.ring[slot(number)];
        let before = holder.load(Ordering::Relaxed);
        let is_older = before < number;
        if !is_older
            || holder.compare_exchange(before, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        let command = u64::from(qid.0) | u64::from(cid.0) << 16 | u64::from(status.to_field()) << 32;
        let of = u64::from(subject.nsid.0) | u64::from(subject.opcode) << 32;
        for (word, value) in words.iter().zip([command, of, subject.slba]) {
            word.store(value, Ordering::Release);
        }
        holder.store(number, Ordering::Release);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self, out: &mut [u8]) {
        let newest = self.count();
        let newest_first = (0..ERROR_LOG_ENTRIES as u64).map_while(|age| newest.checked_sub(age));
        let entries = newest_first.filter_map(|number| self.ring[slot(number)].read(number));
        for (bytes, entry) in out.chunks_exact_mut(size_of::<ErrorEntry>()).zip(entries) {
            bytes.copy_from_slice(entry.as_bytes());
        }
    }
}

impl Slot {
    /// The entry of that number, unless it is being written, or another is there already.
    fn read(&self, number: u64) -> Option<ErrorEntry> {
        let is_there = || number > 0 && self.number.load(Ordering::Acquire) == number;
        if !is_there() {
            return None;
        }
        let [command, of, slba] = [0, 1, 2].map(|at: usize| self.words[at].load(Ordering::Acquire));
        let mut entry = ErrorEntry::new_zeroed();
        entry.error_count = number.into();
        entry.sqid = (command as u16).into();
        entry.cid = ((command >> 16) as u16).into();
        entry.status = ((command >> 32) as u16).into();
        entry.parameter_error_location = NO_LOCATION.into();
        entry.nsid = (of as u32).into();
        entry.opcode = (of >> 32) as u8;
        entry.lba = slba.into();
        entry.lpver = LPVER_OPCODE;
        is_there().then_some(entry)
    }
}

fn slot(number: u64) -> usize {
    (number % ERROR_LOG_ENTRIES as u64) as usize
}
