//! I/O commands.

/// An I/O command on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoKind {
    /// Flush.
    Flush,
}
