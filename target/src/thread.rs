//! A worker's thread: the clock, the spinning and the sleeping around [`Worker::turn`].

use crate::mail::WorkerId;
use crate::office::{Office, Order};
use crate::patience::Patience;
use crate::worker::Worker;
use core::time::Duration;
use nvmf_backend::Floor;
use nvmf_config::Poll;
use nvmf_rdma::Provider;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// The longest sleep: a worker shows that it is alive at least this often.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// How a worker waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Which way.
    pub poll: Poll,
    /// How long an adaptive worker spins.
    pub spin: Duration,
    /// Whether others want the core that it spins on.
    pub crowded: bool,
}

/// The one clock of all workers.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Begins at one second, so that no time is zero.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.elapsed() + Duration::from_secs(1)
    }
}

/// Turns the worker until it is told to finish and has no queue left.
pub fn run<P: Provider>(
    mut worker: Worker<P, Floor>,
    id: WorkerId,
    office: &Arc<Office<P::Detached>>,
    clock: Clock,
    waiting: Waiting,
) {
    let provider_fd = worker.provider().fd().map(|fd| fd.as_raw_fd());
    let watch_road = provider_fd.and_then(|fd| worker.backend().watch(fd));
    let watch_bell = worker.backend().watch(office.bell(id));
    let mut idle_since = None;
    let mut patience = Patience::new(waiting.spin);
    let mut finishing = false;
    loop {
        finishing |= take_orders(&mut worker, id, office);
        let now = clock.now();
        office.beat(id, now);
        let progress = worker.turn(now);
        while let Some((to, mail)) = worker.poll_mail() {
            office.post(id, to, mail);
        }
        if progress.worked {
            if let Some(since) = idle_since.take() {
                patience.on_work(now - since);
            }
            continue;
        }
        if finishing && worker.queues() == 0 {
            return;
        }
        let waited = now - *idle_since.get_or_insert(now);
        let spins = match waiting.poll {
            Poll::Busy => true,
            Poll::Adaptive => waited < patience.spin(),
            Poll::Interrupt => false,
        };
        if spins {
            if waiting.crowded && waiting.poll != Poll::Busy {
                std::thread::yield_now()
            } else {
                core::hint::spin_loop()
            }
            continue;
        }
        if !worker.provider().arm() {
            continue;
        }
        let until = progress.timeout.map_or(SLEEP_MAX, |due| due.saturating_sub(now).min(SLEEP_MAX));
        worker.backend().wait(Some(until));
        if let Some(watch) = watch_road {
            worker.backend().take_fired(watch);
        }
        if watch_bell.is_some_and(|watch| worker.backend().take_fired(watch)) {
            office.answer_bell(id);
        }
    }
}

fn take_orders<P: Provider>(
    worker: &mut Worker<P, Floor>,
    id: WorkerId,
    office: &Office<P::Detached>,
) -> bool {
    let mut finish = false;
    while let Some(order) = office.take(id) {
        match order {
            Order::Mail(mail) => worker.deliver(mail),
            Order::Attach(device, disk, done) => {
                // Nobody waits for the answer any more only when the daemon is ending.
                let _ = done.send(worker.backend().attach(device, &disk));
            }
            Order::Detach(device) => worker.backend().detach(device),
            Order::Finish => finish = true,
        }
    }
    finish
}
