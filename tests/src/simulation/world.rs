//! The simulated target, hosts and clock, and the injected faults.

use super::Outcome;
use super::host::{BLOCK, BLOCKS, Host, STRIDE};
use super::rng::Rng;
use nvme_proto::{Nqn, Nsid};
use nvmf_backend::simulated::{SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::{DeviceId, Geometry};
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::{Fabric, FabricOptions, Loopback};
use nvmf_subsystem::{
    HostAccess, NamespaceDefinition, Options, Port, RdmaProviderType, Registry, SubsystemDefinition,
};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::message::{Recipient, WorkerId};
use nvmf_target::settings::{Load, Settings};
use nvmf_target::transport::rdma::Rdma;
use nvmf_target::worker::Worker;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Turns after which the simulation counts as hung.
const TURNS_MAX: u64 = 2_000_000;
/// Virtual time after which the simulation counts as hung.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// The UUID of the hosts' disk.
const UUID: [u8; 16] = [1; 16];
/// Contents of the unused blocks between the hosts' blocks.
const UNUSED: u8 = 0x4e;

/// The blocks that no host writes to.
fn unused_blocks(hosts: u64) -> impl Iterator<Item = u64> {
    (0..hosts).map(|host| host * STRIDE + BLOCKS)
}

/// What befalls the target's disk, beside power cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// It answers nothing.
    Hang,
    /// A flush fails, and all flushes after it until the disk is opened anew.
    FailedFlush,
    /// The target comes back with another disk under the NSID.
    Other(Mask),
}

/// In what another disk differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mask {
    Uuid,
    BlockSize,
    Shorter,
}

type SimulatedWorker = Worker<Rdma<Faulty<Loopback>>, SimulatedDevices>;

/// The state of a simulation.
pub(super) struct World {
    seed: u64,
    rng: Rng,
    fabric: Fabric,
    disk: SharedDisk,
    workers: Vec<SimulatedWorker>,
    worker_count: usize,
    registry: Arc<Mutex<Registry>>,
    address: SocketAddr,
    hosts: Vec<Host>,
    now: Duration,
    turns: u64,
    crashes: u32,
    crashes_left: u32,
    /// What else befalls the target's disk, and when it ends.
    trouble: Option<(Trouble, Duration)>,
    troubles_left: u32,
    /// Another disk, which must not change.
    other: SharedDisk,
    faults: FaultOptions,
    /// Size of the largest data buffers, bytes.
    large: usize,
    /// MDTS, in bytes.
    transfer_len_max: u32,
    trace: u64,
}

fn subsystem() -> Nqn {
    "nqn.2026-11.com.example:simulated".parse().expect("a valid NQN")
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let latency = Duration::ZERO..=Duration::from_micros(1 + rng.below(300));
        let fabric = Fabric::with_options(FabricOptions {
            latency,
            seed: rng.next(),
            descriptor: false,
            ..FabricOptions::default()
        });
        let host_count = 1 + rng.below(4);
        // A quarter of the disks are slower than a reconnect: a write of a lost connection must not overwrite a later
        // one.
        let slowest = if rng.percent(25) { 80_000 } else { 2_000 };
        let options = SimulatedOptions {
            block_size: BLOCK as u32,
            blocks: host_count * STRIDE,
            latency_min: Duration::from_micros(5),
            latency_max: Duration::from_micros(10 + rng.below(slowest)),
        };
        let disk = SimulatedDisk::new(options, rng.next());
        for lba in unused_blocks(host_count) {
            disk.borrow_mut().preset(lba, [UNUSED; BLOCK].into());
        }
        let other = SimulatedDisk::new(options, rng.next());
        for lba in 0..options.blocks {
            other.borrow_mut().preset(lba, [UNUSED; BLOCK].into());
        }
        // A third of the seeds run without faults and power cuts.
        let calm = rng.percent(33);
        let chance = |rng: &mut Rng, most: u64| if calm { 0 } else { rng.below(most) as u32 };
        // Small limits, so that the target cuts commands into chunks and the host cuts operations into commands.
        let large = [4096, 8192, 16384, 131_072][rng.below(4) as usize];
        let transfer_len_max = [8192, 16384, 1 << 20][rng.below(3) as usize];
        let faults = FaultOptions {
            seed: 0,
            drop_connection: chance(&mut rng, 1500),
            hold_completions: chance(&mut rng, 50_000),
            hold_event: chance(&mut rng, 50_000),
            hold_polls_max: 8,
            refuse_connect: chance(&mut rng, 50_000),
            refuse_register: chance(&mut rng, 10_000),
            refuse_post: chance(&mut rng, 20_000),
        };
        let mut world = Self {
            seed,
            worker_count: 1 + rng.below(3) as usize,
            crashes_left: if calm { 0 } else { rng.below(4) as u32 },
            trouble: None,
            troubles_left: if calm { 0 } else { rng.below(3) as u32 },
            other,
            fabric,
            disk,
            workers: Vec::new(),
            registry: Arc::new(Mutex::new(registry(
                namespace(UUID, Geometry::new(BLOCK as u32, host_count * STRIDE)),
                transfer_len_max,
            ))),
            large,
            transfer_len_max,
            address: "127.0.0.1:4420".parse().expect("an address"),
            hosts: Vec::new(),
            now: Duration::from_secs(1),
            turns: 0,
            crashes: 0,
            faults,
            trace: seed,
            rng,
        };
        world.start_target();
        for number in 0..host_count {
            let provider = world.provider();
            let rng = Rng::new(world.rng.next());
            world.hosts.push(Host::new(number, world.address, subsystem(), provider, world.now, rng));
        }
        world
    }

    fn provider(&mut self) -> Faulty<Loopback> {
        Faulty::new(self.fabric.provider(), FaultOptions { seed: self.rng.next(), ..FaultOptions::default() })
    }

    fn start_target(&mut self) {
        let settings = Settings {
            connections: 16,
            queue_entries: 16,
            io_queues: 4,
            in_capsule_data: 4096,
            admin_receives: 4 * 36,
            io_receives: 13 * 20,
            // Enough for two chunks of a command at once, and few enough to wait for.
            buffers: BufferPlan { classes: [(4, 4096), (4, self.large.min(16384)), (4, self.large)] },
            transfer_timeout: nvmf_target::limits::TRANSFER_TIMEOUT,
        };
        let load = Load::new(WorkerId(0), self.worker_count);
        for id in 0..self.worker_count {
            let provider = self.provider();
            let disk = if let Some((Trouble::Other(_), _)) = self.trouble { &self.other } else { &self.disk };
            let mut devices = SimulatedDevices::new(vec![disk.clone()], 64, self.rng.next());
            let registry = Arc::clone(&self.registry);
            let transport = Rdma::new(provider, &mut devices, &settings).expect("a transport");
            let worker =
                Worker::new(WorkerId(id), Arc::clone(&load), settings.clone(), registry, transport, devices);
            let worker = worker.expect("a worker");
            self.workers.push(worker);
        }
        self.address = self.workers[0].listen(self.address, 1).expect("a listener");
    }

    /// Sets the faults to inject from now on, on both sides.
    fn set_faults(&mut self, faults: FaultOptions) {
        for worker in &mut self.workers {
            worker.transport().provider.set_options(faults);
        }
        for host in &mut self.hosts {
            host.set_faults(faults);
        }
    }

    /// Cuts the power of the target's machine and restarts it. Its disk is opened anew, and answers.
    fn crash(&mut self) {
        self.crashes += 1;
        if super::prints_events() {
            println!("{:?}: power cut", self.now);
        }
        for host in &mut self.hosts {
            host.oracle.crash();
        }
        self.disk.borrow_mut().set_hanging(false);
        self.stop_target();
        self.disk.borrow_mut().reopen();
        self.restart_target();
    }

    fn stop_target(&mut self) {
        for mut worker in self.workers.drain(..) {
            let devices = core::mem::replace(worker.backend(), SimulatedDevices::new(Vec::new(), 0, 0));
            devices.crash();
        }
    }

    fn restart_target(&mut self) {
        let mut blocks = self.hosts.len() as u64 * STRIDE;
        let (mut uuid, mut block_size) = (UUID, BLOCK as u32);
        match self.trouble {
            Some((Trouble::Other(Mask::Uuid), _)) => uuid = [2; 16],
            Some((Trouble::Other(Mask::BlockSize), _)) => (block_size, blocks) = (4096, blocks / 8),
            Some((Trouble::Other(Mask::Shorter), _)) => blocks -= 1,
            _ => {}
        }
        let definition = namespace(uuid, Geometry::new(block_size, blocks));
        self.registry = Arc::new(Mutex::new(registry(definition, self.transfer_len_max)));
        self.start_target();
        self.set_faults(self.faults);
    }

    /// Begins and ends the disk's troubles.
    fn trouble(&mut self) {
        match self.trouble {
            Some((trouble, until)) if self.now >= until => {
                self.trouble = None;
                match trouble {
                    Trouble::Hang => self.disk.borrow_mut().set_hanging(false),
                    // The operator opens the disk anew.
                    Trouble::FailedFlush => self.crash(),
                    Trouble::Other(_) => {
                        self.stop_target();
                        self.restart_target();
                    }
                }
            }
            None if self.troubles_left > 0 && self.rng.below(500) == 0 => {
                self.troubles_left -= 1;
                let until = self.now + Duration::from_millis(1 + self.rng.below(9000));
                let mask = [Mask::Uuid, Mask::BlockSize, Mask::Shorter][self.rng.below(3) as usize];
                let trouble =
                    [Trouble::Hang, Trouble::FailedFlush, Trouble::Other(mask)][self.rng.below(3) as usize];
                if super::prints_events() {
                    println!("{:?}: {trouble:?} until {until:?}", self.now);
                }
                match trouble {
                    Trouble::Hang => self.disk.borrow_mut().set_hanging(true),
                    Trouble::FailedFlush => {
                        self.disk.borrow_mut().fail_next_flush();
                        for host in &mut self.hosts {
                            host.flushes_may_fail = Some(host.oracle.crashes());
                        }
                    }
                    Trouble::Other(_) => {
                        // The machine with the disk loses its power; another takes its address.
                        self.crash();
                        self.trouble = Some((trouble, until));
                        self.stop_target();
                        self.restart_target();
                    }
                }
                self.trouble = Some((trouble, until));
            }
            _ => {}
        }
    }

    /// Runs one turn of each part and advances the clock to the next deadline.
    fn turn(&mut self) {
        self.turns += 1;
        assert!(
            self.turns < TURNS_MAX && self.now < TIME_MAX,
            "seed {}: no progress at {:?}",
            self.seed,
            self.now
        );
        let mut worked = false;
        let mut due: Option<Duration> = None;
        let mut sooner = |at: Option<Duration>| due = [due, at].into_iter().flatten().min();
        let mut messages = VecDeque::new();
        for (from, worker) in self.workers.iter_mut().enumerate() {
            worker.backend().advance(self.now);
            let progress = worker.turn(self.now);
            worked |= progress.worked;
            sooner(progress.timeout);
            sooner(worker.backend().next_due());
            while let Some((to, message)) = worker.poll_message() {
                worked = true;
                messages.push_back((from, to, message));
            }
        }
        for (from, to, message) in messages {
            match to {
                Recipient::Worker(to) => self.workers[to.0].deliver(message),
                Recipient::Others => {
                    for to in (0..self.workers.len()).filter(|&to| to != from) {
                        self.workers[to].deliver(message.copy().expect("a broadcast message can be copied"));
                    }
                }
            }
        }
        for host in &mut self.hosts {
            let ended = host.ended;
            worked |= host.turn(self.now);
            sooner(host.driver.poll_timeout());
            self.trace = (self.trace ^ (host.ended - ended) ^ self.now.as_nanos() as u64)
                .wrapping_mul(0x100_0000_01b3)
                .rotate_left(5);
        }
        sooner(self.fabric.next_due());
        // Delayed polls are counted in turns, not in time, so a turn without work also advances the clock a little.
        let step = Duration::from_micros(if worked { 1 } else { 20 });
        let least = self.now + step;
        self.now = if worked {
            least
        } else {
            due.map_or(least, |due| due.clamp(least, self.now + Duration::from_millis(5)))
        };
    }

    /// Runs until every host has done its operations.
    pub(super) fn run(&mut self) {
        // The driver reports a failed first connect instead of repeating it, so faults start after it.
        while self.hosts.iter().any(|host| !host.ready) {
            self.turn();
        }
        self.set_faults(self.faults);
        while self.hosts.iter().any(|host| host.left > 0 || !host.idle()) || self.trouble.is_some() {
            self.turn();
            self.trouble();
            if self.trouble.is_none() && self.crashes_left > 0 && self.rng.below(3000) == 0 {
                self.crashes_left -= 1;
                self.crash();
            }
        }
    }

    /// Ends the simulation without faults: reads every block, disconnects all hosts, and checks for leaks.
    pub(super) fn finish(mut self) -> Outcome {
        self.set_faults(FaultOptions::default());
        self.hosts.iter_mut().for_each(Host::read_all);
        while self.hosts.iter().any(|host| !host.idle()) {
            self.turn();
        }
        for host in &mut self.hosts {
            host.driver.shutdown(self.now);
        }
        while self.hosts.iter().any(|host| !host.closed) {
            self.turn();
        }
        while self.workers.iter().any(|worker| worker.queues() > 0) {
            self.turn();
        }
        assert!(
            self.workers.iter().all(|worker| worker.buffers_out() == 0),
            "seed {}: a buffer was leaked",
            self.seed
        );
        for lba in unused_blocks(self.hosts.len() as u64) {
            let whole = self.disk.borrow().block(lba).iter().all(|&byte| byte == UNUSED);
            assert!(whole, "seed {}: unused block {lba} changed", self.seed);
        }
        let other = self.other.borrow();
        for lba in 0..self.hosts.len() as u64 * STRIDE {
            let is_unchanged = other.block(lba).iter().all(|&byte| byte == UNUSED);
            assert!(is_unchanged, "seed {}: block {lba} of another disk changed", self.seed);
        }
        drop(other);
        let registry = self.registry.lock().expect("no panic before");
        assert_eq!(registry.associations().count(), 0, "seed {}: an association was leaked", self.seed);
        Outcome {
            operations: self.hosts.iter().map(|host| host.ended).sum(),
            crashes: self.crashes,
            losses: self.hosts.iter().map(|host| host.losses).sum(),
            trace: self.trace,
        }
    }
}

/// Namespace 1, with this geometry and a cache.
fn namespace(uuid: [u8; 16], geometry: Geometry) -> NamespaceDefinition {
    let geometry =
        Geometry { volatile_write_cache: true, deallocate: true, zero_after_deallocate: true, ..geometry };
    NamespaceDefinition {
        nsid: Nsid(1),
        device: DeviceId(0),
        geometry,
        uuid,
        nguid: [0; 16],
        eui64: [0; 8],
        read_only: false,
    }
}

fn registry(namespace: NamespaceDefinition, transfer_len_max: u32) -> Registry {
    let options = Options { io_queues_max: 4, queue_entries_max: 16, transfer_len_max, ..Options::default() };
    let mut registry = Registry::new(options).expect("valid options");
    let definition = SubsystemDefinition {
        nqn: subsystem(),
        serial: "SIMULATED".into(),
        model: "simulated".into(),
        hosts: HostAccess::Any,
        namespaces: vec![namespace],
    };
    registry.add_subsystem(definition).expect("a valid definition");
    let port = Port::rdma(1, SocketAddr::from(([127, 0, 0, 1], 4420)), RdmaProviderType::IWARP);
    registry.set_ports(vec![port]).expect("a valid port");
    registry.take_notices();
    registry
}
