//! What went wrong with a disk since it was opened. Workers record it, and whoever logs asks for it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What a device was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedOperation {
    /// Reading, also to compare or verify.
    Read,
    /// Writing, also of zeroes.
    Write,
    /// Zeroing or deallocating a range.
    Allocate,
    /// Making durable what was written before.
    Flush,
}

/// One failure of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What failed.
    pub operation: FailedOperation,
    /// Where on the device, in bytes.
    pub byte: u64,
    /// The system's error number; 0 where the device ended before its time.
    pub errno: i32,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { byte, .. } = self;
        match self.operation {
            FailedOperation::Read => write!(f, "a read at byte {byte}")?,
            FailedOperation::Write => write!(f, "a write at byte {byte}")?,
            FailedOperation::Allocate => write!(f, "zeroing or deallocating at byte {byte}")?,
            FailedOperation::Flush => write!(f, "a flush")?,
        }
        match self.errno {
            0 => write!(f, " failed: the device is shorter than it was when it was opened"),
            errno => write!(f, " failed: {}", io::Error::from_raw_os_error(errno)),
        }
    }
}

/// How a disk is, over all workers, since it was opened. What hosts ask in vain (beyond the end, write-protected) is no failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    /// Operations that the device failed.
    pub failures: u64,
    /// The last of them.
    pub last: Option<Failure>,
    /// The failure after which acknowledged writes may be lost. While this is there, every flush and every write with FUA fails with
    /// [`BlockError::CacheLost`](nvmf_block::BlockError::CacheLost). It goes only when the disk is opened anew.
    pub cache_lost: Option<Failure>,
}

/// The record behind a [`Health`]. Only failures write to it; whether the cache is lost costs a flush one load.
#[derive(Debug, Default)]
pub(crate) struct Record {
    failures: AtomicU64,
    last: Mutex<Option<Failure>>,
    cache_lost: OnceLock<Failure>,
}

impl Record {
    pub(crate) fn on_failure(&self, failure: Failure) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// The first failure counts; later ones change nothing.
    pub(crate) fn on_cache_lost(&self, failure: Failure) {
        let _ = self.cache_lost.set(failure);
    }

    pub(crate) fn is_cache_lost(&self) -> bool {
        self.cache_lost.get().is_some()
    }

    pub(super) fn health(&self) -> Health {
        Health {
            failures: self.failures.load(Ordering::Relaxed),
            last: *self.last.lock().unwrap_or_else(PoisonError::into_inner),
            cache_lost: self.cache_lost.get().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_where_and_why() {
        let failure = |operation, errno| Failure { operation, byte: 8192, errno }.to_string();
        assert!(
            failure(FailedOperation::Write, libc::ENOSPC)
                .starts_with("a write at byte 8192 failed: No space left")
        );
        assert!(failure(FailedOperation::Flush, libc::EIO).starts_with("a flush failed: Input/output error"));
        assert!(failure(FailedOperation::Read, 0).contains("shorter than it was"));
    }

    #[test]
    fn the_first_loss_of_the_cache_stays() {
        let record = Record::default();
        let failure = |byte| Failure { operation: FailedOperation::Flush, byte, errno: libc::EIO };
        assert_eq!(record.health(), Health::default());
        for byte in [1, 2] {
            record.on_failure(failure(byte));
            record.on_cache_lost(failure(byte));
        }
        let health = Health { failures: 2, last: Some(failure(2)), cache_lost: Some(failure(1)) };
        assert_eq!(record.health(), health);
    }
}
