//! Conversion of block errors to `errno` values.

use nix::errno::Errno;
use nvmf_block::BlockError;

/// The `errno` value closest to this error.
pub(crate) fn errno(error: BlockError) -> i32 {
    match error {
        BlockError::OutOfRange | BlockError::BadBuffer => Errno::EINVAL as i32,
        BlockError::ReadOnly => Errno::EROFS as i32,
        BlockError::NoSpace => Errno::ENOSPC as i32,
        BlockError::Medium | BlockError::NotCompared | BlockError::CacheLost | BlockError::Device(_) => {
            Errno::EIO as i32
        }
        BlockError::CompareFailed => Errno::EILSEQ as i32,
        BlockError::Unsupported => Errno::EOPNOTSUPP as i32,
        BlockError::Gone => Errno::ENODEV as i32,
        BlockError::Path => Errno::ENOLINK as i32,
        BlockError::Aborted => Errno::ETIMEDOUT as i32,
        BlockError::ReservationConflict => Errno::EBADE as i32,
        BlockError::Os(errno) => errno,
    }
}
