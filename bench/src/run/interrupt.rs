//! SIGINT and SIGTERM: they end the run, and the results so far are printed.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;

/// Receives the signals that end a run. It must be created before any thread, so that all threads block the signals.
pub struct Interrupt(SignalFd);

impl Interrupt {
    /// Blocks the signals and receives them through a descriptor.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn listen() -> io::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Whether a signal has arrived since the last call.
    #[must_use]
    pub fn came(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}
