//! What the threads that serve a disk are told by others.

use super::counted::Counters;
use anyhow::Result;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_initiator::PathOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    /// The paths that were added, as they were named.
    added: Mutex<Vec<String>>,
    counters: Arc<Counters>,
    lines: Mutex<Vec<Arc<Line>>>,
}

/// How one of the threads is reached.
#[derive(Debug)]
pub(super) struct Line {
    reconnect: AtomicBool,
    rescan: AtomicBool,
    reset: AtomicBool,
    /// There are some in `paths`.
    add_paths: AtomicBool,
    paths: Mutex<Vec<PathOptions>>,
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

    /// Has the threads connect over one more path, which has this name.
    pub(super) fn add_path(&self, name: String, path: &PathOptions) {
        self.added.lock().unwrap_or_else(PoisonError::into_inner).push(name);
        self.each(|line| {
            line.paths.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
            line.set(&line.add_paths);
        });
    }

    /// The paths that were added, as they were named.
    pub(super) fn added(&self) -> Vec<String> {
        self.added.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    pub(super) fn takes_paths(&self) -> Vec<PathOptions> {
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
