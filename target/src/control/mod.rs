//! The control plane: what the operator asks for, and what other threads report. The only place with an async runtime.
//!
//! | module | what it holds |
//! |---|---|
//! | [`request`] | every request of the control socket, with its answer |
//! | [`protocol`] | how they go over the socket |
//! | [`socket`], [`client`] | its two ends |

pub mod client;
pub mod protocol;
pub mod request;
pub mod socket;

use protocol::Answer;
use request::Request;
use socket::{CLIENTS_MAX, Socket};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

/// A request that came over the control socket.
#[derive(Debug)]
pub struct Call {
    /// What is asked.
    pub request: Request,
    /// The user who asks.
    pub uid: u32,
    /// The process that asks, if the system knows.
    pub pid: Option<i32>,
    /// Whom to answer; gone if the client is.
    pub reply: oneshot::Sender<Answer>,
}

/// What the control loop is woken by.
#[derive(Debug)]
pub enum Event {
    /// SIGTERM or SIGINT: drain, then end.
    Stop,
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR1: log the counters.
    Report,
    /// The control socket has a request.
    Call(Call),
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

    /// What a thread has for as long as it runs, and what shows that it has ended.
    #[must_use]
    pub fn on_end(&self) -> (End, Ended) {
        let ended = Ended::default();
        (End { ended: ended.clone(), waker: self.clone() }, ended)
    }
}

/// Tells the control loop that a thread ends, a panic included: hosts wait for nothing until it is started again.
#[derive(Debug)]
pub struct End {
    ended: Ended,
    waker: Waker,
}

impl Drop for End {
    fn drop(&mut self) {
        self.ended.0.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Whether a thread has ended.
#[derive(Debug, Clone, Default)]
pub struct Ended(Arc<AtomicBool>);

impl Ended {
    /// Whether it has: on its own, if it was not told to.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The signals of this process, from now on.
pub struct Control {
    /// Removed before its listener is closed with the runtime: another target that starts may make it anew at once.
    socket: Option<Socket>,
    runtime: Runtime,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user: Signal,
    /// A file that may not grow as far fails the write; its default ends the process.
    _file_size: Signal,
    waker: Waker,
    /// What comes over the control socket; nothing without one.
    calls: (mpsc::Sender<Call>, mpsc::Receiver<Call>),
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
        let (waker, calls) = (Waker::default(), mpsc::channel(CLIENTS_MAX));
        Ok(Self { runtime, terminate, interrupt, hangup, user, _file_size, waker, calls, socket: None })
    }

    /// Answers on this socket from now on, while [`Control::next`] is called.
    ///
    /// # Errors
    /// What the system said.
    pub fn serve(&mut self, mut socket: Socket) -> io::Result<()> {
        let _inside = self.runtime.enter();
        socket.serve(self.calls.0.clone())?;
        tracing::info!("control socket {}", socket.path().display());
        self.socket = Some(socket);
        Ok(())
    }

    /// What wakes [`Control::next`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The next thing asked for, if it comes within `wait`.
    pub fn next(&mut self, wait: Duration) -> Event {
        let Self { runtime, terminate, interrupt, hangup, user, waker, calls, .. } = self;
        runtime.block_on(async {
            let event = async {
                tokio::select! {
                    _ = terminate.recv() => Event::Stop,
                    _ = interrupt.recv() => Event::Stop,
                    _ = hangup.recv() => Event::Reload,
                    _ = user.recv() => Event::Report,
                    () = waker.0.notified() => Event::Wake,
                    Some(call) = calls.1.recv() => Event::Call(call),
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
        assert!(matches!(control.next(Duration::from_secs(60)), Event::Wake));
        let thread = std::thread::spawn(move || waker.wake());
        assert!(matches!(control.next(Duration::from_secs(60)), Event::Wake));
        thread.join().unwrap();
        assert!(matches!(control.next(Duration::from_millis(1)), Event::Nothing));
    }

    #[test]
    fn panic_of_a_thread_is_noticed() {
        let mut control = Control::new().unwrap();
        let (end, ended) = control.waker().on_end();
        let thread = std::thread::spawn(move || {
            let _end = end;
            panic!("what a thread should never do");
        });
        assert!(matches!(control.next(Duration::from_secs(60)), Event::Wake));
        assert!(ended.get() && thread.join().is_err());
    }
}
