//! A small NVMe/RDMA host, written by hand, and a worker to talk to, under one virtual clock.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData, Connected};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::rdma::{AcceptData, Request};
use nvme_proto::{Cntlid, Cqe, HostId, Nqn, Nsid, Qid, SglDescriptor, Sqe, Status};
use nvmf_backend::simulated::{SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::{DeviceId, Geometry};
use nvmf_memory::Memory;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::{DetachedRequest, Fabric, FabricOptions, Loopback};
use nvmf_rdma::{
    Access, CmEvent, Completion, CompletionQueueId, ConnectFailure, ConnectParameters, MemoryRegion, Opcode,
    Payload, PrivateData, Provider, QueuePairAttributes, QueuePairId, ReceiveRequest, RemoteKey,
    SendOperation, SendRequest, Sge, WorkRequestId,
};
use nvmf_subsystem::{
    HostAccess, NamespaceDefinition, Options, Port, RdmaProviderType, Registry, SubsystemDefinition,
};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::exec::transport::Transport;
use nvmf_target::message::{WorkerId, WorkerMessage};
use nvmf_target::settings::{Load, Settings};
use nvmf_target::transport::rdma::{Detached, Rdma};
use nvmf_target::worker::Worker;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const BLOCK: u32 = 512;
pub(crate) const BLOCKS: u64 = 16 * 1024;
/// Blocks that the disk should have behind those, and does not: they fail.
pub(crate) const MISSING: u64 = 4096;
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.com.example:disk";
pub(crate) const TICK: Duration = Duration::from_micros(50);

/// The target's side and the time.
pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) workers: Vec<Worker<Rdma<Faulty<Loopback>>, SimulatedDevices>>,
    /// The worker that does not turn.
    pub(crate) occupied: Option<usize>,
    /// Workers turn only when something wakes them.
    pub(crate) sleepy: bool,
    /// Which workers sleep. No deadline wakes them: the fabric's are those of messages, too.
    asleep: Vec<bool>,
    pub(crate) registry: Arc<Mutex<Registry>>,
    /// Of namespace 1, and of namespace 2.
    pub(crate) disk: SharedDisk,
    pub(crate) other_disk: SharedDisk,
    pub(crate) address: SocketAddr,
    /// The machine that all hosts are on; `None`: each on the machine of its number.
    pub(crate) machine: Option<u8>,
    pub(crate) now: Duration,
    /// Whether a worker found work in the last tick.
    pub(crate) worked: bool,
}

/// Few buffers, so that commands wait for them.
pub(crate) fn settings() -> Settings {
    Settings {
        connections: 8,
        queue_entries: 32,
        io_queues: 4,
        in_capsule_data: 4096,
        admin_receives: 4 * 36,
        io_receives: 6 * 36,
        own_receives: u16::MAX,
        lent_receives: 0,
        buffers: BufferPlan { classes: [(8, 4096), (4, 16384), (4, 131_072)] },
        transfer_timeout: Duration::from_secs(30),
    }
}

impl World {
    pub(crate) fn new(workers: usize, settings: &Settings) -> Self {
        Self::with_backend_depth(workers, settings, 64)
    }

    pub(crate) fn with_backend_depth(workers: usize, settings: &Settings, depth: usize) -> Self {
        Self::with_latency(workers, settings, depth, Duration::from_micros(100))
    }

    /// Over a provider on which a message is under way for up to so long.
    pub(crate) fn with_latency(
        workers: usize,
        settings: &Settings,
        depth: usize,
        latency_max: Duration,
    ) -> Self {
        let options = Options { io_queues_max: 4, queue_entries_max: 256, ..Options::default() };
        Self::with_options(workers, settings, depth, latency_max, options)
    }

    /// The same with these limits of the registry.
    pub(crate) fn with_options(
        workers: usize,
        settings: &Settings,
        depth: usize,
        latency_max: Duration,
        options: Options,
    ) -> Self {
        let registry = Arc::new(Mutex::new(registry(options)));
        let latency = Duration::ZERO..=latency_max;
        let spill = (settings.lent_receives == 0 && settings.own_receives == u16::MAX).then_some(64);
        let fabric = Fabric::with_options(FabricOptions { latency, seed: 1, spill, ..Default::default() });
        let options = SimulatedOptions {
            block_size: BLOCK,
            blocks: BLOCKS,
            latency_min: Duration::from_micros(20),
            latency_max: Duration::from_micros(500),
        };
        let disk = SimulatedDisk::new(options, 7);
        let other_disk = SimulatedDisk::new(options, 8);
        let load = Load::new(WorkerId(0), workers);
        let mut workers: Vec<_> = (0..workers)
            .map(|id| {
                let mut backend =
                    SimulatedDevices::new(vec![disk.clone(), other_disk.clone()], depth, id as u64);
                let (load, registry) = (load.clone(), registry.clone());
                let provider = Faulty::new(fabric.provider(), FaultOptions::default());
                let transport = Rdma::new(provider, &mut backend, settings).unwrap();
                Worker::new(WorkerId(id), load, settings.clone(), registry, transport, backend).unwrap()
            })
            .collect();
        let address = workers[0].listen("127.0.0.1:4420".parse().unwrap(), 1).unwrap();
        Self {
            fabric,
            asleep: workers.iter().map(|_| false).collect(),
            workers,
            occupied: None,
            sleepy: false,
            registry,
            disk,
            other_disk,
            address,
            machine: None,
            now: Duration::from_secs(1),
            worked: false,
        }
    }

    /// Turns every worker once and moves the clock.
    pub(crate) fn tick(&mut self) {
        self.now += TICK;
        self.worked = false;
        for (from, worker) in self.workers.iter_mut().enumerate() {
            if self.occupied == Some(from) {
                continue;
            }
            worker.backend().advance(self.now);
            if self.asleep[from] && !is_woken(worker, self.now) {
                continue;
            }
            let progress = worker.turn(self.now);
            self.worked |= progress.worked;
            self.asleep[from] = self.sleepy && !progress.worked && worker.arm();
        }
        if Worker::exchange_messages(&mut self.workers) {
            self.asleep.fill(false);
        }
    }

    /// Ticks until `done`, which must come.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        for _ in 0..100_000 {
            self.tick();
            if let Some(value) = done(self) {
                return value;
            }
        }
        panic!("never happened: {what}");
    }

    /// Gives the workers what the registry has to tell them.
    pub(crate) fn publish(&mut self) {
        let notices = self.registry.lock().unwrap().take_notices();
        for worker in &mut self.workers {
            notices.iter().for_each(|notice| worker.deliver(WorkerMessage::Notice(notice.clone())));
        }
    }

    /// Gives the first worker a message, which wakes it.
    pub(crate) fn tell(&mut self, message: WorkerMessage<Detached<DetachedRequest>>) {
        self.workers[0].deliver(message);
        self.asleep[0] = false;
    }

    pub(crate) fn queues(&self) -> usize {
        self.workers.iter().map(Worker::queues).sum()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let of = |worker: &Worker<_, _>| worker.counters().iter().find(|(n, _)| *n == name).unwrap().1;
        self.workers.iter().map(of).sum()
    }

    /// Queues without a command have all their credits.
    pub(crate) fn check_credits(&self) {
        let without: usize = self.workers.iter().map(Worker::queues_without_credits).sum();
        assert_eq!(without, 0, "credits of an idle queue were lost");
    }

    /// Nothing of any host is left.
    pub(crate) fn until_clean(&mut self) {
        self.until("all queues are gone", |world| (world.queues() == 0).then_some(()));
        assert!(self.workers.iter().all(|worker| worker.buffers_out() == 0), "a buffer was lost");
        assert_eq!(self.registry.lock().unwrap().associations().count(), 0, "an association was left behind");
    }
}

/// Whether a worker that sleeps has a reason to turn.
fn is_woken(worker: &mut Worker<Rdma<Faulty<Loopback>>, SimulatedDevices>, now: Duration) -> bool {
    let executed = worker.backend().next_due().is_some_and(|due| due <= now);
    let fd = worker.transport().fd().expect("a descriptor");
    executed || poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).expect("poll works") > 0
}

fn registry(options: Options) -> Registry {
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
    let port = Port::rdma(1, "127.0.0.1:4420".parse().unwrap(), RdmaProviderType::IWARP);
    registry.set_ports(vec![port]).unwrap();
    registry.take_notices();
    registry
}

impl Drop for World {
    /// Whatever a test was about.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check_credits();
        }
    }
}

pub(crate) fn namespace(nsid: u32, blocks: u64) -> NamespaceDefinition {
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

/// One queue of a host: a queue pair, its capsules, and memory that it exposes.
pub(crate) struct HostQueue {
    pub(crate) provider: Loopback,
    pub(crate) qp: QueuePairId,
    cq: CompletionQueueId,
    memory: Memory,
    region: MemoryRegion,
    pub(crate) data: Memory,
    data_region: MemoryRegion,
    pub(crate) responses: VecDeque<(Cqe, Option<RemoteKey>)>,
    pub(crate) entries: u16,
    pub(crate) disconnected: bool,
    next_cid: u16,
}

const CAPSULE: usize = 8192;
/// Commands that a queue may have under way: places for their capsules, and for their responses.
const SLOTS: usize = 128;
pub(crate) const DATA: usize = 8 << 20;

impl HostQueue {
    pub(crate) fn offer(qid: u16, entries: u16, cntlid: u16) -> PrivateData {
        let request =
            Request { qid: Qid(qid), hrqsize: entries, hsqsize: entries.into(), cntlid: Cntlid(cntlid) };
        PrivateData::new(request.emit().as_bytes()).unwrap()
    }

    /// Connects the queue pair.
    pub(crate) fn connect(world: &mut World, private_data: PrivateData) -> Result<Self, Box<ConnectFailure>> {
        Self::connect_from(world, 1, private_data)
    }

    /// The same from the address of a machine with this number.
    pub(crate) fn connect_from(
        world: &mut World,
        machine: u8,
        private_data: PrivateData,
    ) -> Result<Self, Box<ConnectFailure>> {
        let mut provider = world.fabric.provider();
        let cq = provider.create_completion_queue(1024).unwrap();
        let qp = provider
            .create_queue_pair(&QueuePairAttributes {
                send_cq: cq,
                receive_cq: cq,
                shared_receive_queue: None,
                max_send: 256,
                max_receive: SLOTS as u32,
                max_exposed: SLOTS as u32,
            })
            .unwrap();
        let memory = Memory::alloc(SLOTS * (CAPSULE + 16)).unwrap();
        let region = provider.register(&memory, Access::LOCAL_WRITE).unwrap();
        let data = Memory::alloc(DATA).unwrap();
        let remote = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let data_region = provider.register(&data, remote).unwrap();
        let mut this = Self {
            provider,
            qp,
            cq,
            memory,
            region,
            data,
            data_region,
            responses: VecDeque::new(),
            entries: 0,
            disconnected: false,
            next_cid: 0,
        };
        (0..SLOTS).for_each(|slot| this.post_receive(slot));
        let parameters = ConnectParameters {
            private_data,
            responder_resources: 4,
            initiator_depth: 1,
            timeout: Duration::from_secs(5),
        };
        let source = SocketAddr::from(([192, 0, 2, machine], 0));
        this.provider.connect(world.now, qp, world.address, Some(source), &parameters).unwrap();
        world.until("an answer to the connection request", |world| {
            match this.provider.poll_cm(world.now)? {
                CmEvent::Established { private_data, .. } => {
                    this.entries = AcceptData::parse(private_data.as_bytes()).unwrap();
                    Some(Ok(()))
                }
                CmEvent::ConnectFailed { failure, .. } => Some(Err(Box::new(failure))),
                other => panic!("{other:?}"),
            }
        })?;
        Ok(this)
    }

    /// Connects, and nothing else will do.
    pub(crate) fn connected(world: &mut World, private_data: PrivateData) -> Self {
        Self::connect(world, private_data).unwrap_or_else(|failure| panic!("{failure}"))
    }

    fn post_receive(&mut self, slot: usize) {
        let buffer = Sge { local_key: self.region.local_key, offset: SLOTS * CAPSULE + slot * 16, len: 16 };
        let request = ReceiveRequest { id: WorkRequestId(slot as u64), buffer };
        // As in `send_bytes`.
        let _ = self.provider.post_receive(self.qp, request);
    }

    /// A key for bytes of [`HostQueue::data`], for one command.
    pub(crate) fn expose(&mut self, offset: usize, len: u32) -> SglDescriptor {
        let range = Sge { local_key: self.data_region.local_key, offset, len };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let remote = self.provider.expose(self.qp, range, access).unwrap();
        SglDescriptor::keyed(remote.address, len, remote.key.0, true)
    }

    /// Sends a command, with data in its capsule. Returns its CID.
    pub(crate) fn send(&mut self, sqe: &Sqe, in_capsule: &[u8]) -> u16 {
        let cid = self.next_cid;
        self.next_cid += 1;
        let mut sqe = *sqe;
        sqe.cid = cid.into();
        self.send_bytes(cid, &[sqe.as_bytes(), in_capsule].concat());
        cid
    }

    pub(crate) fn send_bytes(&mut self, slot: u16, bytes: &[u8]) {
        let offset = usize::from(slot) % SLOTS * CAPSULE;
        self.memory.write(offset, bytes);
        let sge = [Sge { local_key: self.region.local_key, offset, len: bytes.len() as u32 }];
        let operation =
            SendOperation::Send { payload: Payload::Gather(&sge), invalidate: None, solicited: true };
        let request = SendRequest { id: WorkRequestId(1 << 32), operation, signaled: true };
        // The target may have hung up already: the test will see that in its own way.
        let _ = self.provider.post_send(self.qp, request);
        self.provider.flush();
    }

    pub(crate) fn poll(&mut self, now: Duration) {
        let mut completions: Vec<Completion> = Vec::with_capacity(64);
        self.provider.poll_cq(self.cq, &mut completions);
        for completion in completions {
            if completion.opcode == Opcode::Receive && completion.status.is_success() {
                assert_eq!(completion.byte_len, 16, "a response is 16 bytes");
                let slot = completion.id.0 as usize;
                let mut cqe = [0; 16];
                self.memory.read(SLOTS * CAPSULE + slot * 16, &mut cqe);
                self.responses.push_back((Cqe::read_from_bytes(&cqe).unwrap(), completion.invalidated));
                self.post_receive(slot);
            }
        }
        while let Some(event) = self.provider.poll_cm(now) {
            self.disconnected |= matches!(event, CmEvent::Disconnected { .. });
        }
        self.provider.flush();
    }

    /// The response to a command, whatever else comes before it.
    pub(crate) fn response(&mut self, world: &mut World, cid: u16) -> (Cqe, Option<RemoteKey>) {
        world.until("a response", |world| {
            self.poll(world.now);
            let at = self.responses.iter().position(|(cqe, _)| cqe.cid.get() == cid)?;
            self.responses.remove(at)
        })
    }

    /// Sends a command and waits for its response, which must be a success.
    pub(crate) fn run(
        &mut self,
        world: &mut World,
        sqe: &Sqe,
        in_capsule: &[u8],
    ) -> (Cqe, Option<RemoteKey>) {
        let cid = self.send(sqe, in_capsule);
        let response = self.response(world, cid);
        assert!(response.0.status().is_success(), "{}", response.0.status());
        response
    }

    pub(crate) fn until_disconnected(&mut self, world: &mut World) {
        world.until("the queue is disconnected", |world| {
            self.poll(world.now);
            self.disconnected.then_some(())
        });
    }

    /// The clock moves on for as long as no Keep Alive Timeout of a test lasts.
    pub(crate) fn until_silence_ends_it(&mut self, world: &mut World) {
        for _ in 0..60 {
            world.now += Duration::from_secs(1);
            world.tick();
            self.poll(world.now);
        }
        assert!(self.disconnected, "the host has been silent for a minute");
    }

    pub(crate) fn drop_connection(&mut self) {
        self.provider.destroy_queue_pair(self.qp);
        self.provider.flush();
    }
}

pub(crate) fn connect_data(cntlid: Cntlid, subsystem: &str) -> ConnectData {
    connect_data_of(1, cntlid, subsystem)
}

/// Connect data of the host with this number.
pub(crate) fn connect_data_of(host: u8, cntlid: Cntlid, subsystem: &str) -> ConnectData {
    let hostnqn: Nqn =
        format!("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-0000000000{host:02x}")
            .parse()
            .unwrap();
    ConnectData::new(HostId([host; 16]), cntlid, &subsystem.parse().unwrap(), &hostnqn)
}

pub(crate) fn connect_command(qid: u16, entries: u16, kato_ms: u32) -> Sqe {
    let attributes = ConnectAttributes::default();
    Connect { recfmt: 0, qid: Qid(qid), sqsize_z: entries - 1, attributes, kato_ms }.emit()
}

/// Connects and enables a controller: its Admin queue and its ID.
pub(crate) fn admin(world: &mut World) -> (HostQueue, Cntlid) {
    admin_of(world, 1)
}

/// The same for the host with this number, from its own machine.
pub(crate) fn admin_of(world: &mut World, host: u8) -> (HostQueue, Cntlid) {
    admin_in(world, host, SUBSYSTEM, 10_000)
}

/// The same in any subsystem, with a Keep Alive Timeout.
pub(crate) fn admin_in(world: &mut World, host: u8, subsystem: &str, kato_ms: u32) -> (HostQueue, Cntlid) {
    let machine = world.machine.unwrap_or(host);
    let mut queue = HostQueue::connect_from(world, machine, HostQueue::offer(0, 32, 0)).unwrap();
    assert_eq!(queue.entries, 32);
    queue.data.write(0, connect_data_of(host, Cntlid::DYNAMIC, subsystem).as_bytes());
    let mut sqe = connect_command(0, 32, kato_ms);
    sqe.sgl = queue.expose(0, 1024);
    let (cqe, invalidated) = queue.run(world, &sqe, &[]);
    assert!(invalidated.is_some(), "the key of the Connect data is to be invalidated");
    let cntlid = Connected::parse(cqe.dw0.get()).cntlid;
    let enable = PropertySet { property: Property::CC, size: 0, value: Configuration::ENABLE.0.into() };
    queue.run(world, &enable.emit(), &[]);
    (queue, cntlid)
}

/// Asks for a controller once: the queue, and what the target says.
pub(crate) fn ask_for_controller(world: &mut World) -> (HostQueue, Status) {
    let (mut queue, cid) = send_connect(world);
    let (cqe, _) = queue.response(world, cid);
    (queue, cqe.status())
}

/// The same without its answer: the Connect's Command ID.
pub(crate) fn send_connect(world: &mut World) -> (HostQueue, u16) {
    let mut queue = HostQueue::connected(world, HostQueue::offer(0, 32, 0));
    queue.data.write(0, connect_data(Cntlid::DYNAMIC, SUBSYSTEM).as_bytes());
    let mut sqe = connect_command(0, 32, 10_000);
    sqe.sgl = queue.expose(0, 1024);
    let cid = queue.send(&sqe, &[]);
    (queue, cid)
}

/// An I/O queue of it.
pub(crate) fn io(world: &mut World, qid: u16, cntlid: Cntlid) -> HostQueue {
    io_of(world, 1, qid, cntlid, 32)
}

/// The same of the host with this number, with so many entries. Its Connect data are in the capsule, as Linux sends
/// them.
pub(crate) fn io_of(world: &mut World, host: u8, qid: u16, cntlid: Cntlid, entries: u16) -> HostQueue {
    let offer = HostQueue::offer(qid, entries, cntlid.0);
    let machine = world.machine.unwrap_or(host);
    let mut queue =
        HostQueue::connect_from(world, machine, offer).unwrap_or_else(|failure| panic!("{failure}"));
    let data = connect_data_of(host, cntlid, SUBSYSTEM);
    let mut sqe = connect_command(qid, entries, 0);
    sqe.sgl = SglDescriptor::in_capsule(0, 1024);
    queue.run(world, &sqe, data.as_bytes());
    queue
}
