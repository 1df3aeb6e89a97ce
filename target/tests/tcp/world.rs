//! The target's side: workers over real sockets, turned by the test's own thread under a virtual clock.

use nvme_proto::{Nsid, Status};
use nvmf_backend::simulated::{SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::{DeviceId, Geometry};
use nvmf_stream::StreamConfig;
use nvmf_subsystem::{
    Answer, HostAccess, NamespaceDefinition, Options, Port, Question, Registry, SubsystemDefinition,
};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::exec::transport::Transport;
use nvmf_target::message::{Answered, WorkerId, WorkerMessage};
use nvmf_target::settings::{Load, Settings};
use nvmf_target::transport::tcp::{Tcp, TcpOptions};
use nvmf_target::worker::{Progress, Worker};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) const BLOCK: u32 = 512;
pub(crate) const BLOCKS: u64 = 16 * 1024;
/// Blocks that the disk should have behind those, and does not: they fail.
pub(crate) const MISSING: u64 = 4096;
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.com.example:disk";
/// Slots for the in-capsule data of I/O queues.
pub(crate) const SLOTS: usize = 32;
/// How far the clock moves with each turn.
const TICK: Duration = Duration::from_micros(10);
/// How long anything may take that must happen, by the machine's clock.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) type TcpWorker = Worker<Tcp, SimulatedDevices>;

pub(crate) struct World {
    pub(crate) workers: Vec<TcpWorker>,
    pub(crate) registry: Arc<Mutex<Registry>>,
    /// Of namespace 1, and of namespace 2.
    pub(crate) disk: SharedDisk,
    pub(crate) other_disk: SharedDisk,
    pub(crate) address: SocketAddr,
    pub(crate) now: Duration,
    pub(crate) last: Vec<Progress>,
}

pub(crate) fn settings() -> Settings {
    Settings {
        connections: 16,
        queue_entries: 32,
        io_queues: 8,
        in_capsule_data: 16 * 1024,
        admin_receives: 0,
        io_receives: SLOTS,
        own_receives: u16::MAX,
        lent_receives: 0,
        buffers: BufferPlan { classes: [(16, 4096), (16, 16384), (16, 131_072)] },
        transfer_timeout: Duration::from_secs(30),
    }
}

/// Sockets that take little at once.
pub(crate) fn narrow() -> TcpOptions {
    let stream = StreamConfig { send_buffer: Some(4096), ..StreamConfig::default() };
    TcpOptions { stream, ..TcpOptions::default() }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(1, &settings(), &TcpOptions::default())
    }

    pub(crate) fn with(workers: usize, settings: &Settings, tcp: &TcpOptions) -> Self {
        let options = SimulatedOptions {
            block_size: BLOCK,
            blocks: BLOCKS,
            latency_min: Duration::from_micros(20),
            latency_max: Duration::from_micros(300),
        };
        let disk = SimulatedDisk::new(options, 7);
        let other_disk = SimulatedDisk::new(options, 8);
        let registry = Arc::new(Mutex::new(registry()));
        let load = Load::new(WorkerId(0), workers);
        let mut workers: Vec<_> = (0..workers)
            .map(|id| {
                let disks = vec![disk.clone(), other_disk.clone()];
                let mut backend = SimulatedDevices::new(disks, 64, id as u64);
                let (load, registry) = (load.clone(), registry.clone());
                let transport = Tcp::new(&mut backend, settings, tcp.clone()).unwrap();
                Worker::new(WorkerId(id), load, settings.clone(), registry, transport, backend).unwrap()
            })
            .collect();
        let address = workers[0].listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let now = Duration::from_secs(1);
        Self { workers, registry, disk, other_disk, address, now, last: Vec::new() }
    }

    /// Turns every worker once and moves the clock.
    pub(crate) fn tick(&mut self) {
        self.now += TICK;
        self.last.clear();
        for worker in &mut self.workers {
            worker.backend().advance(self.now);
            self.last.push(worker.turn(self.now));
            // There is no control plane, and nobody is here to authenticate.
            while let Some(asked) = worker.poll_question() {
                let answer = match *asked.question {
                    Question::Reset(_) => Answer::Reset(Err(Status::INTERNAL_ERROR)),
                    _ => Answer::Reservation(Err(Status::INTERNAL_ERROR)),
                };
                let answered = Answered { place: asked.place, serial: asked.serial, answer };
                worker.deliver(WorkerMessage::Answer(Box::new(answered)));
            }
        }
        Worker::exchange_messages(&mut self.workers);
    }

    pub(crate) fn ticks(&mut self, count: usize) {
        (0..count).for_each(|_| self.tick());
    }

    /// The clock moves on by so much, second by second.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_secs(1)).min(end);
            self.ticks(2);
        }
    }

    /// Ticks until `done`, which must come.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            assert!(begun.elapsed() < BOUND, "never happened: {what}; {}", self.counters());
            self.tick();
        }
    }

    /// Ticks until the workers would sleep for ever or until a timer: true. False if they never do.
    pub(crate) fn comes_to_rest(&mut self) -> bool {
        (0..2000).any(|_| {
            self.tick();
            let idle = self.last.iter().all(|progress| !progress.worked);
            let due = self.last.iter().filter_map(|progress| progress.timeout).any(|due| due <= self.now);
            idle && !due && self.workers.iter_mut().all(|worker| worker.arm())
        })
    }

    /// Whether a sleeping worker would be woken at once.
    pub(crate) fn is_woken(&mut self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        self.workers.iter_mut().any(|worker| {
            let fd = worker.transport().fd().expect("sockets have a descriptor");
            poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() > 0
        })
    }

    pub(crate) fn queues(&self) -> usize {
        self.workers.iter().map(Worker::queues).sum()
    }

    pub(crate) fn buffers_out(&self) -> usize {
        self.workers.iter().map(Worker::buffers_out).sum()
    }

    pub(crate) fn controllers(&self) -> usize {
        self.registry.lock().unwrap().associations().count()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let of = |worker: &TcpWorker| worker.counters().iter().find(|(n, _)| *n == name).unwrap().1;
        self.workers.iter().map(of).sum()
    }

    pub(crate) fn until_counted(&mut self, name: &str, count: u64) {
        self.until(&format!("{name} is {count}"), |world| (world.count(name) >= count).then_some(()));
        assert_eq!(self.count(name), count, "{name}");
    }

    fn counters(&self) -> String {
        self.workers.iter().map(|worker| worker.counters().to_string()).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn until_queues(&mut self, queues: usize) {
        self.until(&format!("{queues} queues"), |world| (world.queues() == queues).then_some(()));
    }

    /// Nothing of any host is left.
    pub(crate) fn until_clean(&mut self) {
        self.until_queues(0);
        assert_eq!(self.buffers_out(), 0, "a buffer was lost");
        assert_eq!(self.controllers(), 0, "a controller was left behind");
        assert!(self.comes_to_rest(), "a target without hosts sleeps: {:?}", self.last);
        assert!(!self.is_woken(), "a target without hosts is not woken");
        assert_eq!(self.slots_out(), 0, "a capsule's slot was lost");
    }

    /// Slots with in-capsule data.
    pub(crate) fn slots_out(&mut self) -> usize {
        self.workers.iter_mut().map(|worker| worker.transport().slots_out()).sum()
    }

    /// What namespace 1 holds.
    pub(crate) fn on_disk(&self, lba: u64, len: usize) -> Vec<u8> {
        (lba..lba + len as u64 / u64::from(BLOCK))
            .flat_map(|lba| self.disk.borrow().block(lba).to_vec())
            .collect()
    }
}

impl Drop for World {
    /// Whatever a test was about.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let without: usize = self.workers.iter().map(Worker::queues_without_credits).sum();
            assert_eq!(without, 0, "credits of an idle queue were lost");
        }
    }
}

fn registry() -> Registry {
    let options = Options { io_queues_max: 8, queue_entries_max: 256, ..Options::default() };
    let mut registry = Registry::new(options).unwrap();
    registry
        .add_subsystem(SubsystemDefinition {
            nqn: SUBSYSTEM.parse().unwrap(),
            serial: "S1".into(),
            model: "M".into(),
            hosts: HostAccess::Any,
            namespaces: vec![namespace(1, BLOCKS + MISSING), namespace(2, BLOCKS)],
        })
        .unwrap();
    registry.set_ports(vec![Port::tcp(1, "127.0.0.1:4420".parse().unwrap())]).unwrap();
    registry.take_notices();
    registry
}

fn namespace(nsid: u32, blocks: u64) -> NamespaceDefinition {
    NamespaceDefinition {
        nsid: Nsid(nsid),
        device: DeviceId(nsid - 1),
        geometry: Geometry { volatile_write_cache: true, deallocate: true, ..Geometry::new(BLOCK, blocks) },
        uuid: [nsid as u8; 16],
        nguid: [nsid as u8; 16],
        eui64: [0; 8],
        read_only: false,
        access: Default::default(),
    }
}
