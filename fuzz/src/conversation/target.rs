//! A worker as hosts talk to it, turned under a virtual clock.

use super::neighbour;
use crate::disk::{self, START};
use core::time::Duration;
use nvme_proto::Status;
use nvmf_backend::simulated::{SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_subsystem::{Answer, Nsid, Port, Question, Registry};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::exec::transport::Transport;
use nvmf_target::message::{Answered, WorkerId, WorkerMessage};
use nvmf_target::settings::{Load, Settings};
use nvmf_target::worker::Worker;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// How far the clock moves with each turn.
const TICK: Duration = Duration::from_micros(10);
/// How far at once: less than what a worker takes for a standstill of its own.
const STEP: Duration = Duration::from_secs(1);
/// How much time an input may let pass: the neighbour's Keep Alive Timeout is longer.
const TIME_MAX: Duration = Duration::from_secs(200);
/// When all hosts are gone, what they left is gone this much later: more than any timeout of the target.
const CLEAN_UP: Duration = Duration::from_secs(60);
/// Turns that anything takes that waits for no host.
pub(super) const TURNS_MAX: usize = 20_000;
/// Namespaces 1 to 3 of the hostile host and the neighbour's.
const DISKS: usize = 4;
const BLOCKS: u64 = 1000;

pub(super) fn settings() -> Settings {
    Settings {
        connections: 12,
        queue_entries: 32,
        io_queues: 4,
        in_capsule_data: 8192,
        admin_receives: 6 * 36,
        io_receives: 8 * 36,
        own_receives: u16::MAX,
        lent_receives: 0,
        buffers: BufferPlan { classes: [(16, 4096), (16, 4096), (16, 16384)] },
        transfer_timeout: Duration::from_secs(30),
    }
}

/// One worker, and what it serves: [`disk::registry`], and a subsystem of the neighbour's.
pub(super) struct Target<T: Transport> {
    worker: Worker<T, SimulatedDevices>,
    registry: Arc<Mutex<Registry>>,
    pub(super) address: SocketAddr,
    pub(super) now: Duration,
    /// How much time may still pass.
    time_left: Duration,
    /// The last turn found nothing to do.
    idle: bool,
}

impl<T: Transport> Target<T> {
    /// A worker that listens at `address`, which is the port of that kind.
    pub(super) fn new(
        transport: impl FnOnce(&mut SimulatedDevices, &Settings) -> T,
        settings: &Settings,
        address: SocketAddr,
        port: Port,
    ) -> Self {
        let options = SimulatedOptions {
            block_size: disk::BLOCK_SIZE,
            blocks: BLOCKS,
            latency_min: Duration::from_micros(5),
            latency_max: Duration::from_micros(100),
        };
        let disks = (0..DISKS as u64).map(|seed| SimulatedDisk::new(options, seed)).collect();
        let mut backend = SimulatedDevices::new(disks, 64, 1);
        let mut registry = disk::registry();
        registry.add_subsystem(neighbour::subsystem(BLOCKS)).expect("a valid subsystem");
        registry.set_ports(vec![port]).expect("a valid port");
        let _ = registry.take_notices();
        let registry = Arc::new(Mutex::new(registry));
        let transport = transport(&mut backend, settings);
        let load = Load::new(WorkerId(0), 1);
        let worker = Worker::new(WorkerId(0), load, settings.clone(), registry.clone(), transport, backend);
        let mut worker = worker.expect("memory");
        let address = worker.listen(address, disk::LINK.port).expect("a free address");
        Self { worker, registry, address, now: START, time_left: TIME_MAX, idle: false }
    }

    /// Turns the worker once and moves the clock.
    pub(super) fn tick(&mut self) {
        self.now += TICK;
        self.worker.backend().advance(self.now);
        let progress = self.worker.turn(self.now);
        let due = progress.timeout.is_some_and(|due| due <= self.now);
        self.idle = !progress.worked && !due;
        // There is no control plane: it refuses whatever it is asked.
        while let Some(asked) = self.worker.poll_question() {
            let answer = match *asked.question {
                Question::Reset(_) => Answer::Reset(Err(Status::INTERNAL_ERROR)),
                _ => Answer::Reservation(Err(Status::INTERNAL_ERROR)),
            };
            let answered = Answered { place: asked.place, serial: asked.serial, answer };
            self.worker.deliver(WorkerMessage::Answer(Box::new(answered)));
            self.idle = false;
        }
        // Nor another worker.
        while self.worker.poll_message().is_some() {}
        self.idle &= self.worker.backend().next_due().is_none();
    }

    /// Turns the worker until it has nothing to do, up to so many times.
    pub(super) fn ticks(&mut self, turns: usize) {
        for _ in 0..turns {
            self.tick();
            if self.idle {
                break;
            }
        }
    }

    /// Ticks until `done`, for as long as anything may take. `None` when it never comes.
    pub(super) fn wait<R>(&mut self, mut done: impl FnMut(&mut Self) -> Option<R>) -> Option<R> {
        (0..TURNS_MAX).find_map(|_| {
            self.tick();
            done(self)
        })
    }

    /// Time passes, unless too much has already.
    pub(super) fn pass(&mut self, time: Duration) {
        let time = time.min(self.time_left);
        self.time_left -= time;
        self.pass_all(time);
    }

    /// Time passes.
    pub(super) fn pass_all(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + STEP).min(end);
            self.ticks(4);
        }
    }

    /// Adds, removes or resizes namespace 2.
    pub(super) fn change_namespace(&mut self, blocks: u64) {
        let mut registry = self.registry.lock().expect("no panic before");
        let _ = registry.remove_namespace(&disk::subsystem_nqn(), Nsid(2));
        if blocks > 0 {
            let definition = disk::namespace(2, blocks, blocks & 1 == 0);
            let _ = registry.add_namespace(&disk::subsystem_nqn(), definition);
        }
        for notice in registry.take_notices() {
            self.worker.deliver(WorkerMessage::Notice(notice));
        }
    }

    pub(super) fn transport(&mut self) -> &mut T {
        self.worker.transport()
    }

    /// Nothing is left of hosts that are gone.
    pub(super) fn check_clean(&mut self) {
        let end = self.now + CLEAN_UP;
        self.ticks(100);
        while self.worker.queues() > 0 && self.now < end {
            self.pass_all(STEP);
        }
        assert_eq!(self.worker.queues(), 0, "queues of hosts that are gone; {}", self.worker.counters());
        assert_eq!(self.worker.buffers_out(), 0, "a buffer was lost");
        assert_eq!(self.worker.queues_without_credits(), 0, "credits were lost");
        let associations = self.registry.lock().expect("no panic before").associations().count();
        assert_eq!(associations, 0, "an association was left behind");
        // What lingers, and connections that said nothing, have deadlines of their own.
        self.pass_all(CLEAN_UP);
        let rests = self.wait(|target| (target.idle && target.worker.arm()).then_some(()));
        assert!(rests.is_some(), "a target without hosts does not come to rest");
    }
}
