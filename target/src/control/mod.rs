//! The control plane: what the operator asks for, and what other threads report. The only place with an async runtime.

use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::timeout;

/// What the control loop is woken by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT: drain, then end.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: log the counters.
    Report,
    /// A thread has something to report ([`Waker`]).
    Wake,
    /// Nothing, within the time.
    Nothing,
}

/// Wakes the control loop, from any thread.
#[derive(Debug, Clone, Default)]
pub struct Waker(Arc<Notify>);

impl Waker {
    /// The control loop looks around at once, or as soon as it waits again.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// The signals of this process, from now on.
pub struct Control {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
    /// A file that may not grow as far fails the write; its default ends the process.
    _file_size: Signal,
    waker: Waker,
}

impl Control {
    /// Takes over the signals.
    ///
    /// # Errors
    /// What the system said.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let [terminate, interrupt, hangup, user, _file_size] = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined1())?,
            signal(SignalKind::from_raw(nix::libc::SIGXFSZ))?,
        ];
        drop(inside);
        Ok(Self { runtime, terminate, interrupt, hangup, user, _file_size, waker: Waker::default() })
    }

    /// What wakes [`Control::next`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The next thing asked for, if it comes within `wait`.
    pub fn next(&mut self, wait: Duration) -> Event {
        let Self { runtime, terminate, interrupt, hangup, user, waker, .. } = self;
        runtime.block_on(async {
            let event = async {
                tokio::select! {
                    _ = terminate.recv() => Event::Stop,
                    _ = interrupt.recv() => Event::Stop,
                    _ = hangup.recv() => Event::Reload,
                    _ = user.recv() => Event::Report,
                    () = waker.0.notified() => Event::Wake,
                }
            };
            timeout(wait, event).await.unwrap_or(Event::Nothing)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ends_the_wait() {
        let mut control = Control::new().unwrap();
        let waker = control.waker();
        waker.wake();
        assert_eq!(control.next(Duration::from_secs(60)), Event::Wake);
        let thread = std::thread::spawn(move || waker.wake());
        assert_eq!(control.next(Duration::from_secs(60)), Event::Wake);
        thread.join().unwrap();
        assert_eq!(control.next(Duration::from_millis(1)), Event::Nothing);
    }
}
