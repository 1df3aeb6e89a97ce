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

    /// The signal that has arrived since the last call, if one has.
    #[must_use]
    pub fn came(&self) -> Option<i32> {
        let signal = self.0.read_signal().ok().flatten()?;
        i32::try_from(signal.ssi_signo).ok()
    }
}
