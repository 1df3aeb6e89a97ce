//! A worker's thread: the clock, the spinning and the sleeping around [`Worker::turn`].

use crate::exec::transport::Transport;
use crate::mailbox::{Mailboxes, ThreadMessage};
use crate::message::WorkerId;
use crate::worker::Worker;
use core::time::Duration;
use nvmf_backend::Devices;
use nvmf_config::Poll;
use nvmf_rados::boottime;
use nvmf_spin::Spin;
use std::os::fd::AsRawFd;
use std::sync::Arc;

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

impl Waiting {
    /// Whether the next wait is a sleep for sure.
    fn sleeps<T: Transport>(self, worker: &mut Worker<T, Devices>) -> bool {
        match self.poll {
            Poll::Busy => false,
            // Who waits for another machine's disks alone, sleeps: its processor is better given to the threads that talk to them.
            Poll::Adaptive => worker.backend().is_far(),
            Poll::Interrupt => true,
        }
    }
}

/// The one clock of all workers. It goes on while the machine sleeps: so do the hosts that wait for it, the leases of a group
/// of gateways, and whoever takes over.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Duration);

impl Clock {
    /// Begins at one second, so that no time is zero.
    #[must_use]
    pub fn start() -> Self {
        Self(boottime())
    }

    /// What it shows.
    #[must_use]
    pub fn now(&self) -> Duration {
        boottime().saturating_sub(self.0) + Duration::from_secs(1)
    }
}

/// Turns the worker until it is told to finish and has no queue left.
pub fn run<T: Transport, D>(
    mut worker: Worker<T, Devices>,
    id: WorkerId,
    mailboxes: &Arc<Mailboxes<D>>,
    clock: Clock,
    waiting: Waiting,
) where
    T::Detached: Into<D> + TryFrom<D>,
{
    let transport_fd = worker.transport().fd().map(|fd| fd.as_raw_fd());
    let watch_transport = transport_fd.and_then(|fd| worker.backend().watch(fd));
    let watch_wakeup = worker.backend().watch(mailboxes.wakeup(id));
    let mut spin = Spin::new();
    let mut finishing = false;
    // Whether the transport may have something that it was not asked for: not, where the thread sleeps on its descriptor.
    let mut looks = true;
    loop {
        let now = clock.now();
        if !looks {
            worker.transport().expect_nothing();
        }
        let gathered = worker.gather(now);
        finishing |= take_messages(&mut worker, id, mailboxes, now);
        mailboxes.record_turn(id, now);
        let progress = worker.act(now, gathered);
        while let Some((to, message)) = worker.poll_message() {
            if let Some(message) = message.convert(|detached| Some(detached.into())) {
                mailboxes.post(id, to, message);
            }
        }
        while let Some(asked) = worker.poll_question() {
            mailboxes.ask(asked);
        }
        if progress.worked {
            spin.on_work(now);
            looks = !(looks && waiting.sleeps(&mut worker));
            continue;
        }
        if finishing && worker.queues() == 0 {
            return;
        }
        if progress.device_removed {
            tracing::error!(
                worker = id.0,
                "the RDMA device is gone, or no longer does what it must: this worker ends, and the daemon with it, to be started anew"
            );
            return;
        }
        if waiting.poll == Poll::Busy || (!waiting.sleeps(&mut worker) && spin.goes_on(now, waiting.spin)) {
            looks = true;
            match waiting.poll {
                Poll::Busy => core::hint::spin_loop(),
                _ if waiting.crowded => spin.give_way(),
                _ => spin.pause(now),
            }
            continue;
        }
        if !worker.arm() {
            looks = true;
            continue;
        }
        let until = progress.timeout.map_or(SLEEP_MAX, |due| due.saturating_sub(now).min(SLEEP_MAX));
        worker.backend().wait(Some(until));
        looks = watch_transport.is_none_or(|watch| worker.backend().take_fired(watch));
        if watch_wakeup.is_some_and(|watch| worker.backend().take_fired(watch)) {
            mailboxes.clear_wakeup(id);
        }
    }
}

/// Does what is asked of the thread, in the order in which it was asked. Says whether it is to end.
pub fn take_messages<T: Transport, D>(
    worker: &mut Worker<T, Devices>,
    id: WorkerId,
    mailboxes: &Mailboxes<D>,
    now: Duration,
) -> bool
where
    T::Detached: TryFrom<D>,
{
    let mut finish = false;
    while let Some(order) = mailboxes.take(id) {
        match order {
            ThreadMessage::Worker(message) => {
                // Only workers of one transport hand connections to each other.
                if let Some(message) = message.convert(|detached| detached.try_into().ok()) {
                    worker.deliver(message);
                }
            }
            ThreadMessage::Expect(devices) => {
                devices.iter().for_each(|device| worker.backend().expect(*device));
            }
            ThreadMessage::Attach(device, disk, counted, done) => {
                let attached = worker.backend().attach_opened(device, disk);
                if attached.is_ok() {
                    worker.count_device(device, counted);
                }
                // Nobody waits for the answer any more only when the daemon is ending.
                let _ = done.send((id, attached));
            }
            ThreadMessage::Resize(device, disk, done) => {
                worker.backend().resize(device, &disk);
                let _ = done.send((id, Ok(())));
            }
            ThreadMessage::Detach(device) => {
                // The notice that removes its namespace was sent before. It is applied first, so that later commands
                // fail with Invalid Namespace, which is final, and not with the status of a device that is missing.
                worker.read_delivered(now);
                worker.backend().detach(device);
            }
            ThreadMessage::Listen { at, port, done } => {
                let _ = done.send(worker.listen_at(at, port));
            }
            ThreadMessage::Allow { port, allow } => worker.transport().allow(port, allow),
            ThreadMessage::StopListening { port } => worker.transport().stop_listening_on(port),
            ThreadMessage::Finish => finish = true,
        }
    }
    finish
}
