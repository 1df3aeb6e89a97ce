//! SIGINT and SIGTERM of a call that waits more than once: counted from [`watch`] on, so that none is lost between two of its waits.

use crate::attach::Stopped;
use anyhow::{Context, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How many came; `None`: they end this process, as they do any.
static SIGNALS: Mutex<Option<watch::Receiver<u32>>> = Mutex::new(None);
/// Waits that end at a second signal by themselves, and have something to clear away then.
static CAREFUL: AtomicUsize = AtomicUsize::new(0);

fn signals() -> Option<watch::Receiver<u32>> {
    SIGNALS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
}

/// From now on the first of these signals is for the waits of this process, which look for it. A second one ends it at once.
pub(crate) fn watch() -> Result<()> {
    let mut signals = SIGNALS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if signals.is_some() {
        return Ok(());
    }
    let (tell, count) = watch::channel(0);
    let (ready, is_ready) = sync_channel(1);
    let listen = move || {
        if let Err(error) = crate::runtime::run(listen(&tell, &ready)) {
            let _ = ready.send(Err(error));
        }
    };
    std::thread::Builder::new().name("nvmf-signals".to_owned()).spawn(listen)?;
    is_ready.recv().context("the thread that listens for signals has ended")??;
    *signals = Some(count);
    Ok(())
}

async fn listen(tell: &watch::Sender<u32>, ready: &SyncSender<Result<()>>) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let _ = ready.send(Ok(()));
    loop {
        let number = tokio::select! {
            _ = terminate.recv() => nix::libc::SIGTERM,
            _ = interrupt.recv() => nix::libc::SIGINT,
        };
        tell.send_modify(|count| *count += 1);
        if *tell.borrow() > 1 && CAREFUL.load(Ordering::SeqCst) == 0 {
            // As a shell has it of a process that a signal has ended.
            std::process::exit(128 + number);
        }
    }
}

/// Whether this process was asked to end.
pub(crate) fn was_asked() -> bool {
    signals().is_some_and(|count| *count.borrow() > 0)
}

/// Fails where this process was asked to end.
pub(crate) fn check() -> Result<()> {
    if was_asked() { Err(Stopped::Waiting.into()) } else { Ok(()) }
}

/// Ends when this process is asked to end, or was before.
pub(crate) async fn asked() {
    reached(signals(), 1).await;
}

async fn reached(signals: Option<watch::Receiver<u32>>, least: u32) {
    if let Some(mut signals) = signals
        && signals.wait_for(|count| *count >= least).await.is_ok()
    {
        return;
    }
    core::future::pending().await
}

/// A wait that ends at a second signal by itself.
pub(crate) struct Careful(Option<watch::Receiver<u32>>);

impl Careful {
    pub(crate) fn new() -> Result<Self> {
        watch()?;
        CAREFUL.fetch_add(1, Ordering::SeqCst);
        Ok(Self(signals()))
    }

    /// Ends when so many signals have come.
    pub(crate) async fn asked(&self, times: u32) {
        reached(self.0.clone(), times).await;
    }
}

impl Drop for Careful {
    fn drop(&mut self) {
        CAREFUL.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc::{SIGINT, SIGTERM};
    use nix::sys::signal::{Signal, raise};
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn waits(wait: impl Future<Output = ()>) {
        let outcome = crate::runtime::run(async {
            wait.await;
            Ok(())
        });
        outcome.unwrap();
    }

    /// Set in the process that a test starts.
    const CHILD: &str = "NVMF_TEST_CHILD";

    fn until(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < deadline, "it is not so");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// In a process of its own, which the signals are for.
    #[test]
    fn first_signal_is_kept_for_the_next_wait_and_the_second_ends_the_process() {
        let name = "interrupt::tests::first_signal_is_kept_for_the_next_wait_and_the_second_ends_the_process";
        let Some(ends) = std::env::var_os(CHILD) else {
            for (ends, status) in [("at once", 128 + SIGTERM), ("with care", 0)] {
                let mut child = Command::new(std::env::current_exe().unwrap());
                let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, ends).output().unwrap();
                assert_eq!(output.status.code(), Some(status), "{ends}: {output:?}");
            }
            return;
        };
        assert!(!was_asked() && check().is_ok());
        watch().unwrap();
        raise(Signal::try_from(SIGINT).unwrap()).unwrap();
        until(was_asked);
        // Nobody waited then.
        assert!(check().unwrap_err().is::<Stopped>());
        waits(asked());
        let careful = (ends == "with care").then(|| Careful::new().unwrap());
        raise(Signal::try_from(SIGTERM).unwrap()).unwrap();
        match careful {
            Some(careful) => waits(careful.asked(2)),
            None => until(|| false),
        }
    }
}
