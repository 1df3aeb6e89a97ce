//! The errno of a failed operation, for file systems.

use nix::errno::Errno;
use nvmf_block::BlockError;

/// The errno that the kernel's block layer takes for what happened.
pub(super) fn errno(error: BlockError) -> Errno {
    match error {
        // ENODATA would name the medium more exactly, but file systems take it for "no such attribute".
        BlockError::Medium | BlockError::NotCompared | BlockError::CacheLost | BlockError::Device(_) => {
            Errno::EIO
        }
        BlockError::OutOfRange | BlockError::BadBuffer => Errno::EINVAL,
        BlockError::ReadOnly => Errno::EROFS,
        BlockError::NoSpace => Errno::ENOSPC,
        BlockError::Unsupported => Errno::EOPNOTSUPP,
        // The way to the disk failed, not the disk: what is above may have another.
        BlockError::Gone | BlockError::Path => Errno::ENOLINK,
        BlockError::Aborted => Errno::ETIMEDOUT,
        BlockError::CompareFailed => Errno::EILSEQ,
        BlockError::Os(nix::libc::ENOMEM) => Errno::ENOMEM,
        BlockError::ReservationConflict => Errno::EBADE,
        // The target's own trouble.
        BlockError::Os(_) => Errno::EREMOTEIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_conflict_is_the_kernels_errno_for_it() {
        assert_eq!(errno(BlockError::ReservationConflict), Errno::EBADE);
        assert_eq!(errno(BlockError::Os(nix::libc::EIO)), Errno::EREMOTEIO);
    }
}
