//! SIGINT and SIGTERM: the run ends, and what there is is printed.

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io;

/// Hears the signals that end a run. Made before any thread, so that no thread is ended by one.
pub struct Interrupt(SignalFd);

impl Interrupt {
    /// From now on the signals are told here, and end nothing by themselves.
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

    /// Whether one came since this was last asked.
    #[must_use]
    pub fn came(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}
