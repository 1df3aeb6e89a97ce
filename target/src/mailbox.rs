//! The mailboxes between the threads, which carry [`crate::message`]s.

use crate::barrier::{Barrier, Scope};
use crate::exec::transport::ListenAt;
use crate::message::{Answered, Asked, Recipient, WorkerId, WorkerMessage};
use crate::metrics::namespaces::Device;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_backend::{DevicesError, Disk, OpenedDisk};
use nvmf_block::DeviceId;
use nvmf_config::AddressList;
use nvmf_rdma::ListenError;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Whom a worker tells what became of a disk that it is given.
pub type Told = Sender<(WorkerId, Result<(), DevicesError>)>;

/// What a worker's thread is asked to do.
#[derive(Debug)]
pub enum ThreadMessage<D> {
    /// To be read by the worker.
    Worker(WorkerMessage<D>),
    /// Devices of these numbers come later: until then, commands for them may be tried again.
    Expect(Arc<[DeviceId]>),
    /// Makes a disk the device of that number, counted there, and says when it is.
    Attach(DeviceId, OpenedDisk, Arc<Device>, Told),
    /// Gives a device the new length of its disk, and says when it has it.
    Resize(DeviceId, Disk, Told),
    /// Lets a device go.
    Detach(DeviceId),
    /// Listens, and says on which address.
    Listen {
        /// Where.
        at: ListenAt,
        /// The port that connections come in through.
        port: u16,
        /// Whom to tell.
        done: Sender<Result<SocketAddr, ListenError>>,
    },
    /// Takes connections of a port from these addresses only, from now on; `None`: from all.
    Allow {
        /// The port's number.
        port: u16,
        /// Which addresses.
        allow: Option<AddressList>,
    },
    /// Takes no further connection through a port.
    StopListening {
        /// The port's number.
        port: u16,
    },
    /// Ends the thread when no queue is left.
    Finish,
}

/// Where one worker's messages lie.
#[derive(Debug)]
struct Mailbox<D> {
    messages: Mutex<VecDeque<ThreadMessage<D>>>,
    /// Looked at in every turn, so that the lock is not.
    full: AtomicBool,
    wakeup: EventFd,
    /// Milliseconds of the clock at the worker's last turn.
    turned_ms: AtomicU64,
}

/// The mailboxes of all workers. Workers may be added while others run.
#[derive(Debug)]
pub struct Mailboxes<D> {
    boxes: Box<[Mailbox<D>]>,
    /// So many, the first, have a worker.
    workers: AtomicUsize,
    /// What commands ask the control plane.
    questions: Sender<Asked>,
}

impl<D> Mailboxes<D> {
    /// Mailboxes for up to so many workers; see [`Mailboxes::set_workers`]. Questions of commands go to `questions`.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(workers_max: usize, questions: Sender<Asked>) -> io::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let make = |_| {
            Ok(Mailbox {
                messages: Mutex::default(),
                full: AtomicBool::new(false),
                wakeup: EventFd::from_flags(flags)?,
                turned_ms: AtomicU64::new(0),
            })
        };
        let boxes = (0..workers_max).map(make).collect::<io::Result<_>>()?;
        Ok(Arc::new(Self { boxes, workers: AtomicUsize::new(0), questions }))
    }

    /// So many workers, the first, run from now on and are sent what is for all.
    pub fn set_workers(&self, workers: usize, now: Duration) {
        for id in self.workers()..workers {
            self.record_turn(WorkerId(id), now);
        }
        self.workers.store(workers, Ordering::Release);
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.load(Ordering::Acquire)
    }

    /// When a worker turned last.
    #[must_use]
    pub fn last_turn(&self, worker: WorkerId) -> Duration {
        Duration::from_millis(self.boxes[worker.0].turned_ms.load(Ordering::Relaxed))
    }

    /// Leaves an message for a worker and wakes it.
    pub fn send(&self, to: WorkerId, message: ThreadMessage<D>) {
        let Mailbox { messages, full, wakeup, .. } = &self.boxes[to.0];
        messages.lock().expect("no panic happened at the box").push_back(message);
        full.store(true, Ordering::Release);
        // Fails only when it rings already.
        let _ = wakeup.write(1);
    }

    /// Leaves a message for whom it is for.
    pub fn post(&self, from: WorkerId, to: Recipient, message: WorkerMessage<D>) {
        match to {
            Recipient::Worker(to) => self.send(to, ThreadMessage::Worker(message)),
            Recipient::Others => {
                for to in (0..self.workers()).filter(|&to| to != from.0) {
                    if let Some(message) = message.copy() {
                        self.send(WorkerId(to), ThreadMessage::Worker(message));
                    }
                }
            }
        }
    }

    /// Leaves a message for every worker: none of them can have taken it before it lies there for all. What a host learns of it
    /// from one worker, every other one knows when it looks here next.
    pub fn post_all(&self, message: &WorkerMessage<D>) {
        let boxes = &self.boxes[..self.workers()];
        // Everybody who takes several of these locks takes them in this order.
        let mut open: Vec<_> =
            boxes.iter().map(|to| to.messages.lock().expect("no panic happened at the box")).collect();
        for (to, messages) in boxes.iter().zip(&mut open) {
            messages.extend(message.copy().map(ThreadMessage::Worker));
            to.full.store(true, Ordering::Release);
        }
        drop(open);
        for to in boxes {
            // Fails only when it rings already.
            let _ = to.wakeup.write(1);
        }
    }

    /// Posts a barrier to every worker, behind what was posted before.
    #[must_use]
    pub fn barrier(&self, scope: Scope) -> Arc<Barrier> {
        let workers = self.workers();
        let barrier = Barrier::new(workers, scope);
        for to in 0..workers {
            let message = WorkerMessage::Barrier(Arc::clone(&barrier));
            self.send(WorkerId(to), ThreadMessage::Worker(message));
        }
        barrier
    }

    /// Passes a command's question on to the control plane.
    pub fn ask(&self, asked: Asked) {
        // Nobody answers any more only when the daemon is ending.
        let _ = self.questions.send(asked);
    }

    /// Answers a command.
    pub fn answer(&self, worker: WorkerId, answered: Answered) {
        self.send(worker, ThreadMessage::Worker(WorkerMessage::Answer(Box::new(answered))));
    }

    /// The next message of a worker.
    #[must_use]
    pub fn take(&self, worker: WorkerId) -> Option<ThreadMessage<D>> {
        let Mailbox { messages, full, .. } = &self.boxes[worker.0];
        if !full.load(Ordering::Acquire) {
            return None;
        }
        let mut messages = messages.lock().expect("no panic happened at the box");
        let message = messages.pop_front();
        full.store(!messages.is_empty(), Ordering::Release);
        message
    }

    /// The descriptor that is readable when there is something for the worker.
    #[must_use]
    pub fn wakeup(&self, worker: WorkerId) -> RawFd {
        self.boxes[worker.0].wakeup.as_fd().as_raw_fd()
    }

    /// Silences the wakeup: call it before [`Mailboxes::take`], never after.
    pub fn clear_wakeup(&self, worker: WorkerId) {
        // Fails only when it does not ring.
        let _ = self.boxes[worker.0].wakeup.read();
    }

    /// The worker turns.
    pub fn record_turn(&self, worker: WorkerId, now: Duration) {
        self.boxes[worker.0]
            .turned_ms
            .store(now.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When the worker that did so longest ago turned last; the end of time when there is none.
    #[must_use]
    pub fn oldest_turn(&self) -> Duration {
        let workers = &self.boxes[..self.workers()];
        let turns = workers.iter().map(|this| this.turned_ms.load(Ordering::Relaxed));
        Duration::from_millis(turns.min().unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_message_reaches_its_recipients() {
        let mailboxes = Mailboxes::<()>::new(4, channel().0).unwrap();
        mailboxes.set_workers(3, Duration::ZERO);
        mailboxes.post(WorkerId(1), Recipient::Others, WorkerMessage::Drain);
        mailboxes.post(WorkerId(1), Recipient::Worker(WorkerId(0)), WorkerMessage::Close);
        assert!(matches!(mailboxes.take(WorkerId(0)), Some(ThreadMessage::Worker(WorkerMessage::Drain))));
        assert!(matches!(mailboxes.take(WorkerId(0)), Some(ThreadMessage::Worker(WorkerMessage::Close))));
        assert!(mailboxes.take(WorkerId(0)).is_none() && mailboxes.take(WorkerId(1)).is_none());
        assert!(matches!(mailboxes.take(WorkerId(2)), Some(ThreadMessage::Worker(WorkerMessage::Drain))));
    }
}
