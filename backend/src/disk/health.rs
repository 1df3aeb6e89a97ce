//! Failures of a disk since it was opened: workers record them, for a control plane that polls and logs them.

use crate::uring::nvme::STATUS;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedOperation {
    /// Reading, also to compare or verify.
    Read,
    /// Writing, also of zeroes.
    Write,
    /// Zeroing or deallocating a range.
    Allocate,
    /// A flush of the write cache.
    Flush,
}

/// One failure of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What failed.
    pub operation: FailedOperation,
    /// The position on the device, in bytes.
    pub byte: u64,
    /// The system's error number, or 65536 and the status of an NVMe drive; 0 when the device turned out to be shorter than its size.
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
            STATUS.. => write!(f, " failed: NVMe status {:#x} of the drive", self.errno - STATUS),
            libc::ESHUTDOWN => {
                write!(f, " failed: this machine was fenced, or its connection to the device was shut down")
            }
            libc::ENOTCONN => {
                write!(
                    f,
                    " failed: this gateway had not renewed its lease in time, and another may have the device"
                )
            }
            libc::EROFS => write!(
                f,
                " failed: {}; of an image of Ceph: it is not the primary one of its mirror (rbd mirror image status), or another \
                 client keeps its lock (rbd lock ls)",
                io::Error::from_raw_os_error(libc::EROFS)
            ),
            errno @ (libc::EPERM | libc::EACCES) => write!(
                f,
                " failed: {}; of an image of Ceph: the capabilities of its user do not allow it, and to take the lock of a client \
                 that died (rbd lock ls) it needs mon 'profile rbd'",
                io::Error::from_raw_os_error(errno)
            ),
            0 => write!(f, " failed: the device is shorter than it was when it was opened"),
            errno => write!(f, " failed: {}", io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Failures of a disk over all workers since it was opened. Refused requests (out of range, write-protected) do not
/// count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health {
    /// Operations that the device failed.
    pub failures: u64,
    /// The last of them.
    pub last: Option<Failure>,
    /// The failure after which acknowledged writes may be lost. Every flush and every operation with FUA fails since
    /// then, with [`BlockError::CacheLost`](nvmf_block::BlockError::CacheLost), until the disk is reopened.
    pub cache_lost: Option<Failure>,
}

/// The record behind [`Health`]. It is written only on a failure; a flush reads one atomic.
#[derive(Debug, Default)]
pub(crate) struct Record {
    failures: AtomicU64,
    last: Mutex<Option<(Failure, Instant)>>,
    cache_lost: OnceLock<Failure>,
}

impl Record {
    pub(crate) fn on_failure(&self, failure: Failure) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((failure, Instant::now()));
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps the first failure.
    pub(crate) fn on_cache_lost(&self, failure: Failure) {
        let _ = self.cache_lost.set(failure);
    }

    pub(crate) fn is_cache_lost(&self) -> bool {
        self.cache_lost.get().is_some()
    }

    /// The last failure, and when it was.
    pub(super) fn last(&self) -> Option<(Failure, Instant)> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn health(&self) -> Health {
        Health {
            failures: self.failures.load(Ordering::Relaxed),
            last: self.last().map(|(failure, _)| failure),
            cache_lost: self.cache_lost.get().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_displayed_with_operation_byte_and_errno() {
        let failure = |operation, errno| Failure { operation, byte: 8192, errno }.to_string();
        assert!(
            failure(FailedOperation::Write, libc::ENOSPC)
                .starts_with("a write at byte 8192 failed: No space left")
        );
        assert!(failure(FailedOperation::Flush, libc::EIO).starts_with("a flush failed: Input/output error"));
        let of_image = failure(FailedOperation::Write, libc::EROFS);
        assert!(of_image.contains("Read-only file system") && of_image.contains("mirror"), "{of_image}");
        let of_user = failure(FailedOperation::Write, libc::EACCES);
        assert!(of_user.contains("Permission denied") && of_user.contains("mon 'profile rbd'"), "{of_user}");
        assert!(failure(FailedOperation::Read, 0).contains("shorter than it was"));
    }

    #[test]
    fn the_first_cache_loss_is_kept() {
        let record = Record::default();
        let failure = |byte| Failure { operation: FailedOperation::Flush, byte, errno: libc::EIO };
        assert_eq!(record.health(), Health::default());
        for byte in [1, 2] {
            record.on_failure(failure(byte));
            record.on_cache_lost(failure(byte));
        }
        let health = Health { failures: 2, last: Some(failure(2)), cache_lost: Some(failure(1)) };
        assert_eq!(record.health(), health);
        assert_eq!(record.last().map(|(last, _)| last), Some(failure(2)));
    }
}
