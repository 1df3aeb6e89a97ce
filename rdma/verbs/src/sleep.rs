//! Sleeping, and what ends it: completions, events of the connection manager, events of the device.
//!
//! On the data path a sleep costs three system calls: one to request an event of the completion queue, one to sleep,
//! and one to take the event. Descriptors that have nothing to say are not asked: either epoll names those that do, or
//! the completion that ended the sleep explains it.

use crate::completion::Queue;
use crate::provider::VerbsProvider;
use core::time::Duration;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nvmf_rdma::{CompletionQueueId, WakeOn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// How often events are asked for while the provider is busy: a system call that the data path saves.
const EVENT_INTERVAL: Duration = Duration::from_millis(2);
/// The same while a connection is being set up or torn down.
const SET_UP_INTERVAL: Duration = Duration::from_micros(500);

/// What a descriptor tells of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Completions.
    Completions,
    /// Events of the connection manager.
    Connections,
    /// Events of the device.
    Device,
}

/// The descriptors that end a sleep, as one.
pub(crate) struct Watched(Epoll);

impl Watched {
    pub(crate) fn new<'a>(
        descriptors: impl IntoIterator<Item = (Source, BorrowedFd<'a>)>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (source, fd) in descriptors {
            epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, source as u64))?;
        }
        Ok(Self(epoll))
    }

    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.0.delete(fd);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }

    /// Which of the two sources of events have something to say.
    fn events(&self) -> [bool; 2] {
        let mut ready = [EpollEvent::empty(); 3];
        let count = self.0.wait(&mut ready, EpollTimeout::ZERO).unwrap_or(0);
        let is_ready = |source| ready[..count].iter().any(|event| event.data() == source as u64);
        [is_ready(Source::Device), is_ready(Source::Connections)]
    }
}

impl VerbsProvider {
    /// Handles the events of the connection manager and of the device.
    pub(crate) fn poll_events(&mut self) {
        if self.is_lost() {
            return;
        }
        let [device, connections] = self.watched.events();
        while device
            && !self.is_lost()
            && let Some(notice) = self.device.async_notice()
        {
            self.on_device_notice(notice);
        }
        while connections
            && !self.is_lost()
            && let Some(notice) = self.channel.notice()
        {
            self.on_notice(notice);
        }
    }

    /// The same, but not at every turn.
    pub(crate) fn poll_events_in_time(&mut self) {
        // A completion that ended the sleep says nothing about events.
        let is_armed = self.completion_queues.iter().any(Queue::is_armed);
        let woken_by_event = core::mem::take(&mut self.slept) && !(is_armed && self.take_completion_event());
        let interval = if self.attended.is_empty() { EVENT_INTERVAL } else { SET_UP_INTERVAL };
        let is_due = |polled| self.now.saturating_sub(polled) >= interval;
        if woken_by_event || self.events_polled.is_none_or(is_due) {
            self.events_polled = Some(self.now);
            self.poll_events();
        }
    }

    /// Takes an event that a completion queue was armed for; whether there was one.
    fn take_completion_event(&mut self) -> bool {
        let Some(key) = self.completion_channel.event() else { return false };
        self.completion_queues.iter_mut().for_each(|queue| queue.on_event(key));
        true
    }

    /// Makes the descriptor readable at what comes next; whether nothing is known to be there already.
    pub(crate) fn prepare_sleep(&mut self, wake_on: WakeOn) -> bool {
        self.ring_all();
        // Connections that end wait for what they have sent.
        let sends = wake_on == WakeOn::Completions || !self.attended.is_empty();
        if !self.is_lost() {
            // One that is not there yet ends the sleep.
            while self.completion_queues.iter().any(Queue::has_event) && self.take_completion_event() {}
            // A queue that cannot be armed must be polled.
            if self.completion_queues.iter_mut().any(|queue| queue.arm(sends).is_err()) {
                return false;
            }
        }
        for at in 0..self.completion_queues.len() {
            self.take_all(CompletionQueueId(at as u32));
        }
        self.end_failed();
        // What was sent and flushed by now lets connections go on with their end; nothing else would wake us for that.
        self.look_after();
        self.report_loss();
        let is_armed = sends || self.attended.is_empty();
        let nothing = self.failed.is_empty() && self.events.is_empty();
        self.slept =
            is_armed && nothing && self.completion_queues.iter().all(|queue| !queue.has_ready(wake_on));
        self.slept
    }
}
