//! The post office between the threads: the edge around [`crate::mail`].

use crate::mail::{Mail, Recipient, WorkerId};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_backend::{Disk, FloorError};
use nvmf_block::DeviceId;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a worker's thread is asked to do.
#[derive(Debug)]
pub enum Order<D> {
    /// To be read by the worker.
    Mail(Mail<D>),
    /// Makes a disk the device of that number, and says when it is.
    Attach(DeviceId, Disk, Sender<Result<(), FloorError>>),
    /// Lets a device go.
    Detach(DeviceId),
    /// Ends the thread when no queue is left.
    Finish,
}

/// Where one worker's orders lie.
#[derive(Debug)]
struct Pigeonhole<D> {
    orders: Mutex<VecDeque<Order<D>>>,
    /// Looked at in every turn, so that the lock is not.
    full: AtomicBool,
    bell: EventFd,
    /// Milliseconds of the clock at the worker's last turn.
    turned_ms: AtomicU64,
}

/// The boxes of all workers.
#[derive(Debug)]
pub struct Office<D> {
    boxes: Box<[Pigeonhole<D>]>,
}

impl<D> Office<D> {
    /// Boxes for so many workers.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(workers: usize) -> io::Result<Arc<Self>> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let make = |_| {
            Ok(Pigeonhole {
                orders: Mutex::default(),
                full: AtomicBool::new(false),
                bell: EventFd::from_flags(flags)?,
                turned_ms: AtomicU64::new(0),
            })
        };
        Ok(Arc::new(Self { boxes: (0..workers).map(make).collect::<io::Result<_>>()? }))
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.boxes.len()
    }

    /// Leaves an order for a worker and wakes it.
    pub fn send(&self, to: WorkerId, order: Order<D>) {
        let Pigeonhole { orders, full, bell, .. } = &self.boxes[to.0];
        orders.lock().expect("no panic happened at the box").push_back(order);
        full.store(true, Ordering::Release);
        // Fails only when it rings already.
        let _ = bell.write(1);
    }

    /// Leaves a mail for whom it is for.
    pub fn post(&self, from: WorkerId, to: Recipient, mail: Mail<D>) {
        match to {
            Recipient::Worker(to) => self.send(to, Order::Mail(mail)),
            Recipient::Others => {
                for to in (0..self.boxes.len()).filter(|&to| to != from.0) {
                    if let Some(mail) = mail.copy() {
                        self.send(WorkerId(to), Order::Mail(mail));
                    }
                }
            }
        }
    }

    /// Leaves a mail for every worker.
    pub fn post_all(&self, mail: &Mail<D>) {
        for to in 0..self.boxes.len() {
            if let Some(mail) = mail.copy() {
                self.send(WorkerId(to), Order::Mail(mail));
            }
        }
    }

    /// The next order of a worker.
    #[must_use]
    pub fn take(&self, worker: WorkerId) -> Option<Order<D>> {
        let Pigeonhole { orders, full, .. } = &self.boxes[worker.0];
        if !full.load(Ordering::Acquire) {
            return None;
        }
        let mut orders = orders.lock().expect("no panic happened at the box");
        let order = orders.pop_front();
        full.store(!orders.is_empty(), Ordering::Release);
        order
    }

    /// The descriptor that is readable when there is something for the worker.
    #[must_use]
    pub fn bell(&self, worker: WorkerId) -> RawFd {
        self.boxes[worker.0].bell.as_fd().as_raw_fd()
    }

    /// Silences the bell: call it before [`Office::take`], never after.
    pub fn answer_bell(&self, worker: WorkerId) {
        // Fails only when it does not ring.
        let _ = self.boxes[worker.0].bell.read();
    }

    /// The worker turns.
    pub fn beat(&self, worker: WorkerId, now: Duration) {
        self.boxes[worker.0]
            .turned_ms
            .store(now.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When the worker that did so longest ago turned last.
    #[must_use]
    pub fn oldest_beat(&self) -> Duration {
        let beats = self.boxes.iter().map(|this| this.turned_ms.load(Ordering::Relaxed));
        Duration::from_millis(beats.min().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mails_reach_whom_they_are_for() {
        let office = Office::<()>::new(3).unwrap();
        office.post(WorkerId(1), Recipient::Others, Mail::Drain);
        office.post(WorkerId(1), Recipient::Worker(WorkerId(0)), Mail::Close);
        assert!(matches!(office.take(WorkerId(0)), Some(Order::Mail(Mail::Drain))));
        assert!(matches!(office.take(WorkerId(0)), Some(Order::Mail(Mail::Close))));
        assert!(office.take(WorkerId(0)).is_none() && office.take(WorkerId(1)).is_none());
        assert!(matches!(office.take(WorkerId(2)), Some(Order::Mail(Mail::Drain))));
    }
}
