//! The shared driver around an engine that ends operations when it is told to, without a connection.

use super::SharedDriver;
use crate::engine::{Descriptor, Turn};
use crate::mailbox::{Mailbox, Message, Request};
use crate::slot::{Reply, Waiting};
use crate::wakes::Wakes;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::BlockOp;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::time::Instant;

/// What an engine was given, and whether it ends what it has.
#[derive(Default)]
struct Record {
    /// Operations that came together.
    batches: Mutex<Vec<usize>>,
    holds: AtomicBool,
}

struct Script {
    record: Arc<Record>,
    replies: Vec<Reply>,
    over: bool,
}

impl Turn for Script {
    fn read(&mut self, _: Duration, mailbox: &Mailbox) {
        let (mut messages, before) = (VecDeque::new(), self.replies.len());
        mailbox.take(&mut messages);
        for message in messages {
            match message {
                Message::Submit(request) => self.replies.push(request.reply),
                _ => self.over = true,
            }
        }
        if self.replies.len() > before {
            self.record.batches.lock().unwrap().push(self.replies.len() - before);
        }
    }

    fn submit(&mut self, _: Duration, request: Request) {
        self.replies.push(request.reply);
        self.record.batches.lock().unwrap().push(1);
    }

    fn turn(&mut self, _: Duration, wakes: &Wakes) -> bool {
        if self.replies.is_empty() || self.record.holds.load(SeqCst) {
            return false;
        }
        self.replies
            .drain(..)
            .filter_map(|reply| reply.send(Ok(()), None))
            .for_each(|waker| wakes.add(waker));
        true
    }

    fn under_way(&self) -> usize {
        self.replies.len()
    }

    fn rest(&mut self, now: Duration) -> Option<Duration> {
        (self.replies.is_empty() || self.record.holds.load(SeqCst)).then(|| now + Duration::from_secs(3600))
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn descriptor(&self, known: Option<u32>) -> Option<Descriptor> {
        known.is_none().then_some(Descriptor { transport: 1, fd: None })
    }
}

struct Site {
    driver: Arc<SharedDriver>,
    record: Arc<Record>,
}

impl Site {
    fn new() -> Self {
        let driver = SharedDriver::new(64, Duration::ZERO).unwrap();
        let record = Arc::<Record>::default();
        driver.start(Box::new(Script { record: Arc::clone(&record), replies: Vec::new(), over: false }));
        Self { driver, record }
    }

    fn submit(&self, drives: bool) -> Waiting {
        let (reply, waiting) = self.driver.slots().take();
        let op = BlockOp::Flush.into();
        self.driver.submit(Request { nsid: Nsid(1), op, buffer: None, reply, until: None }, drives);
        waiting
    }

    fn ends(&self, waiting: &mut Waiting, waker: &Waker) -> bool {
        matches!(waiting.poll(&mut Context::from_waker(waker), self.driver.slots()), Poll::Ready(Ok(_)))
    }

    fn batches(&self) -> Vec<usize> {
        self.record.batches.lock().unwrap().clone()
    }
}

#[test]
fn operations_submitted_while_the_thread_runs_are_taken_together() {
    let site = Site::new();
    let all: Vec<_> = (0..8).map(|_| site.submit(false)).collect();
    assert_eq!(site.batches(), [], "the thread takes them");
    site.driver.drive(Instant::now());
    assert_eq!(site.batches(), [8]);
    for mut waiting in all {
        assert!(site.ends(&mut waiting, Waker::noop()));
    }
}

#[test]
fn caller_that_drives_sends_the_first_operation_at_once_and_the_others_together() {
    let site = Site::new();
    site.driver.join();
    let all: Vec<_> = (0..8).map(|_| site.submit(true)).collect();
    assert_eq!(site.batches(), [1]);
    site.driver.drive(Instant::now());
    assert_eq!(site.batches(), [1, 7]);
    drop(all);
}

#[test]
fn caller_that_leaves_without_driving_leaves_nothing_lying() {
    let site = Site::new();
    site.record.holds.store(true, SeqCst);
    site.driver.join();
    let _all = [site.submit(true), site.submit(true)];
    assert_eq!(site.batches(), [1]);
    site.driver.leave();
    assert_eq!(site.batches(), [1, 1]);
}

/// Takes the engine when it is woken, and counts how often it could.
struct Looks(Arc<SharedDriver>, AtomicUsize);

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(usize::from(self.0.drive(Instant::now()).is_some()), SeqCst);
    }
}

#[test]
fn wakers_run_after_the_engine_is_released() {
    let site = Site::new();
    let looks = Arc::new(Looks(Arc::clone(&site.driver), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&looks));
    let mut all = [site.submit(false), site.submit(false)];
    assert!(all.iter_mut().all(|waiting| !site.ends(waiting, &waker)));
    site.driver.drive(Instant::now());
    assert_eq!(looks.1.load(SeqCst), 2);
}

/// Runs in its waker's place, as a task may that has the same processor.
struct RunsAtOnce {
    driver: Arc<SharedDriver>,
    number: u32,
    order: Arc<Mutex<Vec<u32>>>,
}

impl Wake for RunsAtOnce {
    fn wake(self: Arc<Self>) {
        self.driver.wakes().wake_all();
        self.order.lock().unwrap().push(self.number);
    }
}

#[test]
fn task_that_runs_at_once_wakes_those_that_ended_with_it() {
    let site = Site::new();
    let order = Arc::<Mutex<Vec<u32>>>::default();
    let mut all = [0, 1, 2].map(|number| {
        let (driver, order) = (Arc::clone(&site.driver), Arc::clone(&order));
        (site.submit(false), Waker::from(Arc::new(RunsAtOnce { driver, number, order })))
    });
    assert!(all.iter_mut().all(|(waiting, waker)| !site.ends(waiting, waker)));
    site.driver.drive(Instant::now());
    assert_eq!(*order.lock().unwrap(), [2, 1, 0], "each of the others before the one that woke it goes on");
}

/// However submissions and the thread's parking fall together.
#[test]
fn operation_submitted_while_the_thread_parks_ends() {
    let site = Site::new();
    let driver = Arc::clone(&site.driver);
    let thread = std::thread::spawn(move || {
        driver.drive_until_over();
        driver.end();
    });
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let mut waiting = site.submit(false);
                    crate::block_on(core::future::poll_fn(|context| {
                        waiting.poll(context, site.driver.slots()).map(|ended| assert!(ended.is_ok()))
                    }));
                }
            });
        }
    });
    site.driver.send(Message::Close { reply: None });
    thread.join().unwrap();
}
