//! What the threads that serve a disk are told by others.

use super::counted::Counters;
use crate::print::chain;
use anyhow::{Result, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_initiator::PathOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, oneshot};

/// How the threads that serve a disk are to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Not yet.
    NotYet = 0,
    /// After what is under way at the target: another server goes on, with what has not begun.
    HandOver = 1,
    /// After what is under way, and a flush.
    InOrder = 2,
    /// At once: every request fails, those that wait and those that come.
    AtOnce = 3,
}

/// What the threads are told: how to end, to connect again, and over which other paths.
#[derive(Debug, Default)]
pub(super) struct Control {
    end: AtomicU8,
    /// What became of the disk's further paths, as they were named.
    path_news: Mutex<Vec<PathNews>>,
    /// There is one more of these.
    has_news: Notify,
    counters: Arc<Counters>,
    lines: Mutex<Vec<Arc<Line>>>,
}

/// A path that a thread is to make.
#[derive(Debug)]
pub(super) struct NewPath {
    pub(super) options: PathOptions,
    /// Told when it is made, or why it cannot be. `None`: nobody waits, and it is tried until it can be.
    pub(super) made: Option<oneshot::Sender<Result<()>>>,
}

/// What becomes of a path that is named, for what is written down of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathNews {
    /// It was added: whoever takes the disk over has it.
    Added(String),
    /// The server before had it, and this one cannot: it is none of the disk's any more.
    Dropped(String),
}

/// How one of the threads is reached.
#[derive(Debug)]
pub(super) struct Line {
    reconnect: AtomicBool,
    rescan: AtomicBool,
    reset: AtomicBool,
    /// There are some in `paths`.
    add_paths: AtomicBool,
    paths: Mutex<Vec<NewPath>>,
    /// The thread was woken; set after that.
    rung: AtomicBool,
    wakeup: EventFd,
}

impl Control {
    /// What the threads have done.
    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// A line for one more thread. It has rung: what was said before is looked at before the thread sleeps.
    pub(super) fn line(&self) -> Result<Arc<Line>> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let off = || AtomicBool::new(false);
        let line = Arc::new(Line {
            reconnect: off(),
            rescan: off(),
            reset: off(),
            add_paths: off(),
            paths: Mutex::default(),
            rung: off(),
            wakeup,
        });
        line.wake();
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&line));
        Ok(line)
    }

    fn each(&self, tell: impl Fn(&Line)) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|line| tell(line));
    }

    /// Has the threads ask the target again which namespaces there are.
    pub(super) fn rescan(&self) {
        self.each(|line| line.set(&line.rescan));
    }

    /// Has the threads end their connections and connect again.
    pub(super) fn reset(&self) {
        self.each(|line| line.set(&line.reset));
    }

    /// Has the threads connect again, also to a target that they gave up.
    pub(super) fn reconnect(&self) {
        self.each(|line| line.set(&line.reconnect));
    }

    /// Has each thread make one more path, and has its name written down if any has: what is used is used by the next
    /// server, too.
    ///
    /// # Errors
    /// Why one of them cannot. Those that could keep it, and say that they have it when they are asked again.
    pub(super) async fn add_path(&self, name: String, path: &PathOptions) -> Result<()> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let asked: Vec<_> = lines.iter().map(|line| line.add_path(path.clone())).collect();
        let (threads, mut having, mut refused) = (asked.len(), 0, None);
        for made in asked {
            match made.await.unwrap_or_else(|_| Err(anyhow!("its server is ending"))) {
                Ok(()) => having += 1,
                Err(reason) => refused = refused.or(Some(reason)),
            }
        }
        if having > 0 {
            self.tell_of_path(PathNews::Added(name));
        }
        match refused {
            None => Ok(()),
            Some(reason) if having == 0 => Err(reason),
            Some(reason) => Err(anyhow!(
                "{having} of the disk's {threads} queues have the path and use it, the others cannot ({}): when they can, add it again",
                chain(&reason)
            )),
        }
    }

    /// Has each thread make one more path that it does not have. Nobody waits for it.
    pub(super) fn offer_path(&self, path: &PathOptions) {
        self.each(|line| line.take_path(NewPath { options: path.clone(), made: None }));
    }

    /// Has it written down what became of a path.
    pub(super) fn tell_of_path(&self, news: PathNews) {
        self.path_news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.has_news.notify_one();
    }

    /// What became of the disk's further paths since this was asked last, as soon as there is something.
    pub(super) async fn path_news(&self) -> Vec<PathNews> {
        self.has_news.notified().await;
        core::mem::take(&mut *self.path_news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the threads end. What was asked for before is not taken back.
    pub(super) fn end(&self, how: End) {
        self.end.fetch_max(how as u8, Ordering::Release);
        self.wake();
    }

    /// Has the threads look at what they are told.
    pub(super) fn wake(&self) {
        self.each(Line::wake);
    }

    /// How the threads are to end, as far as they were told.
    pub(super) fn asked(&self) -> End {
        match self.end.load(Ordering::Acquire) {
            0 => End::NotYet,
            1 => End::HandOver,
            2 => End::InOrder,
            _ => End::AtOnce,
        }
    }
}

impl Line {
    fn set(&self, what: &AtomicBool) {
        what.store(true, Ordering::Release);
        self.wake();
    }

    /// What hears when the thread has made this path.
    fn add_path(&self, options: PathOptions) -> oneshot::Receiver<Result<()>> {
        let (made, is_made) = oneshot::channel();
        self.take_path(NewPath { options, made: Some(made) });
        is_made
    }

    fn take_path(&self, path: NewPath) {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).push(path);
        self.set(&self.add_paths);
    }

    fn wake(&self) {
        // A full counter has rung already.
        let _ = self.wakeup.write(1);
        self.rung.store(true, Ordering::Release);
    }

    /// Whether the thread is to connect again; that was asked once.
    pub(super) fn takes_reconnect(&self) -> bool {
        take(&self.reconnect)
    }

    /// The same of a rescan.
    pub(super) fn takes_rescan(&self) -> bool {
        take(&self.rescan)
    }

    /// The same of a reset.
    pub(super) fn takes_reset(&self) -> bool {
        take(&self.reset)
    }

    /// The paths to add; each once.
    pub(super) fn takes_paths(&self) -> Vec<NewPath> {
        match take(&self.add_paths) {
            true => core::mem::take(&mut *self.paths.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Vec::new(),
        }
    }

    /// Takes back what woke the thread.
    pub(super) fn heard(&self) {
        if self.rung.swap(false, Ordering::AcqRel) {
            let _ = self.wakeup.read();
        }
    }

    /// Readable when the thread is woken.
    pub(super) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

fn take(what: &AtomicBool) -> bool {
    what.load(Ordering::Relaxed) && what.swap(false, Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_initiator::TransportOptions;

    /// What is said of a path that the threads of a disk make, or not; and what is written down.
    fn added(threads: &[Result<(), &str>]) -> (Result<(), String>, Vec<PathNews>) {
        let control = Arc::new(Control::default());
        let lines: Vec<_> = threads.iter().map(|_| control.line().unwrap()).collect();
        let path = PathOptions::new("192.0.2.1:4420".parse().unwrap(), TransportOptions::Rdma);
        let said = crate::runtime::run(async {
            let asked = control.add_path("storage-b".to_owned(), &path);
            let make = async {
                for (line, made) in lines.iter().zip(threads) {
                    let [path] = <[NewPath; 1]>::try_from(line.takes_paths()).unwrap();
                    path.made.unwrap().send(made.map_err(|reason| anyhow!("{reason}"))).unwrap();
                }
            };
            Ok(tokio::join!(asked, make).0)
        });
        let written = control.path_news.lock().unwrap().clone();
        (said.unwrap().map_err(|reason| reason.to_string()), written)
    }

    #[test]
    fn path_that_some_threads_use_is_written_down_and_said_to_be() {
        let written = vec![PathNews::Added("storage-b".to_owned())];
        assert_eq!(added(&[Ok(()), Ok(())]), (Ok(()), written.clone()));
        let none = "no descriptor is left";
        assert_eq!(added(&[Err(none), Err(none)]), (Err(none.to_owned()), Vec::new()));
        let (said, now_written) = added(&[Ok(()), Err(none), Ok(())]);
        let said = said.unwrap_err();
        assert!(said.contains("2 of the disk's 3 queues have the path") && said.contains(none), "{said}");
        assert_eq!(now_written, written);
    }
}
