//! Errors of setting up a ring, with the limit to raise.

use super::ring::FILE_TABLE;
use nix::sys::resource::{Resource, getrlimit};
use std::fmt;
use std::io;
use thiserror::Error;

/// The ring could not be made.
#[derive(Debug, Error)]
pub enum RingError {
    /// io_uring is not permitted.
    #[error(
        "io_uring is not allowed here; check `sysctl kernel.io_uring_disabled` (0 allows it) and the seccomp filter of the \
         container or unit (SystemCallFilter= must allow io_uring_setup, io_uring_enter, io_uring_register)"
    )]
    NotAllowed(#[source] io::Error),
    /// The kernel has no io_uring, or one that is too old.
    #[error("this kernel has no usable io_uring; Linux 5.19 or later is needed")]
    NotThere(#[source] io::Error),
    /// The memlock limit leaves no room for the ring itself.
    #[error(
        "no memory for an io_uring with {entries} entries: the memlock limit (RLIMIT_MEMLOCK) is {limit} bytes, which all workers share; \
         raise it (LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited)"
    )]
    Memlock {
        /// Entries asked for.
        entries: u32,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The limit of open files is lower than the ring's table of files.
    #[error(
        "the limit of open files (RLIMIT_NOFILE) is {limit}, and {FILE_TABLE} are needed: raise it (LimitNOFILE={FILE_TABLE} in the unit, \
         or ulimit -n {FILE_TABLE})"
    )]
    Files {
        /// The limit now.
        limit: u64,
    },
    /// Another error.
    #[error("cannot make an io_uring with {entries} entries")]
    Os {
        /// Entries asked for.
        entries: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Memory that could not be pinned in advance because the memlock limit is too low. I/O works, slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpinned {
    /// Bytes that could not be pinned.
    pub bytes: u64,
    /// Bytes that this worker's devices need pinned.
    pub needed: u64,
    /// The limit, in bytes. All workers of one user share it.
    pub limit: u64,
}

impl fmt::Display for Unpinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, needed, limit } = self;
        write!(
            f,
            "{bytes} bytes of buffers could not be pinned for io_uring: the memlock limit (RLIMIT_MEMLOCK) is {limit} bytes, and each \
             worker needs {needed}; I/O works, slower; set LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited"
        )
    }
}

/// Translates the kernel's error for a ring of `entries` entries.
pub(super) fn classify(source: io::Error, entries: u32) -> RingError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RingError::NotAllowed(source),
        Some(libc::ENOSYS | libc::EINVAL) => RingError::NotThere(source),
        Some(libc::ENOMEM) => RingError::Memlock {
            entries,
            limit: getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft),
        },
        Some(libc::EMFILE) => {
            RingError::Files { limit: getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft) }
        }
        _ => RingError::Os { entries, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_errors_say_what_to_do() {
        let text = |errno| {
            let error = classify(io::Error::from_raw_os_error(errno), 8);
            // Whoever prints it prints its cause behind it.
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            assert!(cause.is_none_or(|cause| !error.to_string().contains(&cause)), "{error}");
            error.to_string()
        };
        assert_eq!(text(libc::EIO), "cannot make an io_uring with 8 entries");
        assert!(text(libc::EPERM).contains("kernel.io_uring_disabled"));
        assert!(text(libc::ENOSYS).contains("Linux 5.19"));
        assert!(text(libc::ENOMEM).contains("LimitMEMLOCK="));
        assert!(text(libc::EMFILE).contains("LimitNOFILE=8192"));
        let unpinned = Unpinned { bytes: 1 << 20, needed: 2 << 20, limit: 65536 }.to_string();
        for word in ["RLIMIT_MEMLOCK", "65536", "2097152", "LimitMEMLOCK="] {
            assert!(unpinned.contains(word), "{unpinned}");
        }
    }
}
