//! The control plane: what the operator asks for. The only place with an async runtime.

use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// What the operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT: drain, then end.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: log the counters.
    Report,
    /// Nothing, within the time.
    Nothing,
}

/// The signals of this process, from now on.
pub struct Control {
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
}

impl Control {
    /// Takes over the signals.
    ///
    /// # Errors
    /// What the system said.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let [terminate, interrupt, hangup, user] = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::user_defined1())?,
        ];
        drop(inside);
        Ok(Self { runtime, terminate, interrupt, hangup, user })
    }

    /// The next thing asked for, if it comes within `wait`.
    pub fn next(&mut self, wait: Duration) -> Event {
        let Self { runtime, terminate, interrupt, hangup, user } = self;
        runtime.block_on(async {
            let event = async {
                tokio::select! {
                    _ = terminate.recv() => Event::Stop,
                    _ = interrupt.recv() => Event::Stop,
                    _ = hangup.recv() => Event::Reload,
                    _ = user.recv() => Event::Report,
                }
            };
            timeout(wait, event).await.unwrap_or(Event::Nothing)
        })
    }
}
