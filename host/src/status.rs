//! What a completion's status means to whoever reads and writes blocks: the only place.

use core::fmt;
use nvmf_block::BlockError;

/// A completion's status: type, code, more, do not retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

impl Status {
    /// From bytes 14 and 15 of a CQE; the phase tag is dropped.
    #[must_use]
    pub fn from_cqe(word: u16) -> Self {
        Self(word >> 1)
    }

    /// Success.
    #[must_use]
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Status code type.
    #[must_use]
    pub fn code_type(self) -> u8 {
        (self.0 >> 8 & 0x7) as u8
    }

    /// Status code.
    #[must_use]
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// The same command will fail again.
    #[must_use]
    pub fn do_not_retry(self) -> bool {
        self.0 & 0x4000 != 0
    }

    /// What it means to a block device's user.
    #[must_use]
    pub fn block_error(self) -> BlockError {
        BlockError::Os(5)
    }

    /// The path failed, or the controller asks for patience: the same command may succeed later or elsewhere.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        !self.do_not_retry()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05x}", self.0 & 0x7ff)
    }
}
