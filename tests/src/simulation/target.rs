//! A simulated target: its workers, its control plane, the disks of its two namespaces, and another disk that may take
//! the place of the first. Two targets may have one disk.

use super::area::Area;
use super::contest::CONTESTED;
use super::host::BLOCK;
use super::network::Network;
use super::operator::{self, Change};
use super::plane::{Kept, Owners, Plane, TargetWorker};
use super::reservation::Host;
use super::resets::{ResetMode, Resets};
use crate::rng::Rng;
use crate::worker_setup::{PORT, WorkerSetup};
use core::time::Duration;
use nvmf_backend::simulated::{Given, SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::{DeviceId, Geometry};
use nvmf_subsystem::{AnaState, NamespaceDefinition};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::settings::Settings;
use nvmf_target::worker::Worker;

/// How often the control plane looks at its barriers.
const GLANCE: Duration = Duration::from_millis(1);
/// An operation that is at the disk for longer than most are.
const STRAGGLES: Duration = Duration::from_millis(90);
/// Contents of the blocks that no host may write to.
const UNUSED: u8 = 0x4e;

/// Which disk the target serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    /// The hosts' disk.
    Disk,
    /// Another one, which differs in this.
    Other(Mask),
}

/// In what another disk differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mask {
    Uuid,
    BlockSize,
    Shorter,
}

/// The disks of the namespaces, which targets may share.
#[derive(Clone)]
pub(super) struct Disks {
    options: SimulatedOptions,
    /// Of namespace 1.
    pub(super) main: SharedDisk,
    /// Of namespace 2, which has no troubles of its own.
    second: SharedDisk,
    /// Another disk, which must not change.
    other: SharedDisk,
    hosts: u64,
}

impl Disks {
    /// For so many hosts.
    pub(super) fn new(hosts: u64, rng: &mut Rng) -> Self {
        let blocks = hosts * Area::Main.stride() + CONTESTED;
        // A quarter of the disks are slower than a reconnect: a write of a lost connection must not overwrite a later
        // one.
        let slowest = if rng.percent(25) { 80_000 } else { 2_000 };
        let options = SimulatedOptions {
            block_size: BLOCK as u32,
            blocks,
            latency_min: Duration::from_micros(5),
            latency_max: Duration::from_micros(10 + rng.below(slowest)),
        };
        let main = SimulatedDisk::new(options, rng.next());
        let others = SimulatedOptions { blocks: hosts * Area::Other.stride(), ..options };
        let second = SimulatedDisk::new(others, rng.next());
        for (disk, area) in [(&main, Area::Main), (&second, Area::Other)] {
            area.unused(hosts).for_each(|lba| disk.borrow_mut().preset(lba, [UNUSED; BLOCK].into()));
            let _ = disk.borrow_mut().take_given();
        }
        let other = SimulatedDisk::new(options, rng.next());
        (0..blocks).for_each(|lba| other.borrow_mut().preset(lba, [UNUSED; BLOCK].into()));
        Self { options, main, second, other, hosts }
    }

    /// Has some operations take so long.
    pub(super) fn set_straggling(&self, percent: u64, longest: Duration) {
        for disk in [&self.main, &self.second] {
            disk.borrow_mut().set_straggling(percent, longest);
        }
    }

    /// Checks that no block changed that no host writes to.
    pub(super) fn check(&self) {
        let is_unchanged =
            |disk: &SharedDisk, lba| disk.borrow().block(lba).iter().all(|&byte| byte == UNUSED);
        for (disk, area) in [(&self.main, Area::Main), (&self.second, Area::Other)] {
            for lba in area.unused(self.hosts) {
                assert!(is_unchanged(disk, lba), "unused block {lba} of {area:?} changed");
            }
        }
        for lba in 0..self.options.blocks {
            assert!(is_unchanged(&self.other, lba), "block {lba} of another disk changed");
        }
    }
}

/// How a target differs from others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site {
    /// Its number.
    pub(super) number: usize,
    /// Another target has the disks, too: the two know nothing of each other.
    pub(super) shared: bool,
    /// The ANA state of its namespaces while nothing is taken away.
    pub(super) ana: AnaState,
    pub(super) resets: ResetMode,
}

/// A target.
pub(super) struct Target<N: Network> {
    site: Site,
    setup: WorkerSetup,
    pub(super) workers: Vec<TargetWorker<N>>,
    worker_count: usize,
    /// How often it was started, on a count that no other target has.
    starts: u64,
    plane: Plane<N>,
    pub(super) kept: Kept,
    /// What the operator has taken away.
    taken: Option<operator::Taken>,
    now: Duration,
    disks: Disks,
    served: Served,
    resets: Resets,
    rng: Rng,
}

impl<N: Network> Target<N> {
    /// A target that runs.
    pub(super) fn new(network: &mut N, site: Site, disks: Disks, mut rng: Rng) -> Self {
        let mut setup = setup(&mut rng);
        // Targets of one subsystem have ranges of their own.
        let cntlids = 0x1000 * (1 + site.number as u16);
        setup.options.cntlids = cntlids..=cntlids + 0xfff;
        setup.others = vec![NamespaceDefinition {
            nsid: Area::Other.nsid(),
            device: DeviceId(1),
            geometry: geometry(BLOCK as u32, disks.hosts * Area::Other.stride()),
            uuid: [3; 16],
            ..setup.namespace.clone()
        }];
        network.set_up(&mut setup.settings, &mut setup.port);
        let kept = Kept::new(disks.options.blocks, Rng::new(rng.next()));
        let mut target = Self {
            plane: Plane::new(&setup.registry(), 0, &kept.files),
            kept,
            taken: None,
            now: Duration::ZERO,
            setup,
            workers: Vec::new(),
            worker_count: 1 + rng.below(3) as usize,
            starts: (site.number as u64) << 32,
            disks,
            served: Served::Disk,
            resets: Resets::new(site.resets),
            rng,
            site,
        };
        target.start(network, Served::Disk);
        target
    }

    /// Starts its process.
    fn start(&mut self, network: &mut N, served: Served) {
        let (mut uuid, mut block_size, mut blocks) = ([1; 16], BLOCK as u32, self.disks.options.blocks);
        match served {
            Served::Disk => {}
            Served::Other(Mask::Uuid) => uuid = [2; 16],
            Served::Other(Mask::BlockSize) => (block_size, blocks) = (4096, blocks / 8),
            Served::Other(Mask::Shorter) => blocks -= 1,
        }
        self.setup.namespace.uuid = uuid;
        self.setup.namespace.access.reservation_persists = true;
        self.setup.namespace.geometry = geometry(block_size, blocks);
        let protection = self.kept.restored_protection(uuid);
        self.setup.namespace.access.write_protection = protection;
        self.served = served;
        // Nobody has seen it before: it tells the lives of the target apart.
        self.setup.options.instance_secret[..8].copy_from_slice(&self.starts.to_le_bytes());
        self.starts += 1;
        let registry = self.setup.registry();
        if self.site.ana != AnaState::OPTIMIZED {
            let mut registry = registry.lock().expect("no panic before");
            registry.set_ana_state(PORT, 1, self.site.ana).expect("a valid state");
        }
        self.plane = Plane::new(&registry, self.worker_count, &self.kept.files);
        self.taken = None;
        let reservation = self.plane.restore(&mut self.kept, uuid);
        let _ = registry.lock().expect("no panic before").take_notices();
        let reservation = reservation.unwrap_or_default();
        self.kept.rights.restart(self.now, served == Served::Disk, protection, reservation);
        let disk = if served == Served::Disk { &self.disks.main } else { &self.disks.other };
        let parts = (0..self.worker_count).map(|_| {
            let seed = self.rng.next();
            let mut devices =
                SimulatedDevices::new(vec![disk.clone(), self.disks.second.clone()], 64, self.rng.next());
            (network.target(seed, &self.setup.settings, &mut devices), devices)
        });
        self.workers = self.setup.workers_over(&registry, parts.collect());
        let address = network.listen_address(self.site.number);
        network.on_listening(self.site.number, self.workers[0].listen(address, PORT).expect("a listener"));
    }

    /// Stops its process, with its machine or alone. Some operations in flight are carried out, none is answered.
    pub(super) fn stop(&mut self, power: bool) {
        self.resets = Resets::new(self.site.resets);
        for mut worker in self.workers.drain(..) {
            let devices = core::mem::replace(worker.backend(), SimulatedDevices::new(Vec::new(), 0, 0));
            if power { devices.crash() } else { devices.kill() }
        }
    }

    /// Kills its process and starts it again. What its disk and its state directory have, they keep.
    pub(super) fn kill(&mut self, network: &mut N) {
        self.kill_and_serve(network, self.served);
    }

    /// The same, with another disk from then on.
    pub(super) fn kill_and_serve(&mut self, network: &mut N, served: Served) {
        self.stop(false);
        self.disks.main.borrow_mut().reopen();
        self.start(network, served);
        self.set_faulty(network, true);
    }

    /// Takes the namespace from hosts until then, if it is the hosts' own and nothing is taken away yet.
    pub(super) fn take_away(
        &mut self,
        now: Duration,
        rng: &mut Rng,
        hosts: &[Host],
        until: Duration,
    ) -> Option<Change> {
        if self.taken.is_some() || self.served != Served::Disk {
            return None;
        }
        let change = match self.site.shared {
            true => Change::Inaccessible,
            false => Change::random(rng, hosts, self.disks.options.blocks),
        };
        self.taken = Some(operator::take(&self.plane, &mut self.kept, now, change, hosts, until));
        Some(change)
    }

    /// Whether the operator has taken something away.
    pub(super) fn has_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Cuts the power of its machine. The disk answers, once it is opened anew.
    pub(super) fn cut_power(&mut self) {
        self.disks.main.borrow_mut().set_hanging(false);
        self.stop(true);
    }

    /// Starts it again, or one with another disk at its address.
    pub(super) fn power_up(&mut self, network: &mut N, then: Served) {
        self.kept.files.crash();
        self.disks.main.borrow_mut().reopen();
        self.start(network, then);
        self.set_faulty(network, true);
    }

    /// Injects faults from now on, or no more.
    pub(super) fn set_faulty(&mut self, network: &mut N, faulty: bool) {
        self.workers.iter_mut().for_each(|worker| network.set_target_faulty(worker.transport(), faulty));
    }

    /// Runs one turn of each worker. Returns whether something happened, and when the next turn is due.
    pub(super) fn turn(&mut self, now: Duration, owners: Owners<'_>) -> (bool, Option<Duration>) {
        self.now = now;
        let mut worked = false;
        let mut due: Option<Duration> = None;
        for worker in &mut self.workers {
            worker.backend().advance(now);
            let progress = worker.turn(now);
            worked |= progress.worked;
            due = [due, progress.timeout, worker.backend().next_due()].into_iter().flatten().min();
        }
        worked |= Worker::exchange_messages(&mut self.workers);
        self.check_given(owners);
        self.plane.turn(now, &mut self.workers, &mut self.kept, owners);
        let asked = self.plane.take_resets();
        worked |= self.resets.turn::<N>(now, asked, &mut self.workers, &self.plane.registry);
        if let Some(taken) = &mut self.taken {
            taken.turn(now, (&self.plane, &mut self.workers), &mut self.kept, owners);
        }
        if let Some(taken) = self.taken.take_if(|taken| taken.is_over(now)) {
            taken.undo(&self.plane, &mut self.kept, &self.setup.namespace, self.site.ana);
        }
        let waits = self.plane.is_waiting() || self.taken.is_some() || self.resets.is_waiting();
        due = [due, waits.then_some(now + GLANCE)].into_iter().flatten().min();
        (worked || self.plane.is_busy(), due)
    }

    /// Checks that the disks were given only what its owner has a right to, where nobody else may give them anything.
    fn check_given(&self, owners: Owners<'_>) {
        let rights = &self.kept.rights;
        let Disks { main, second, .. } = &self.disks;
        let (main, second) = (main.borrow_mut().take_given(), second.borrow_mut().take_given());
        if self.site.shared {
            return;
        }
        for given in main {
            let owners = owners(given.range.start);
            assert!(
                owners.is_empty() || owners.iter().any(|&host| rights.allows(host, &given)),
                "{given:?} of one of {owners:?} was given to the disk, which has no right to it: {:?}",
                rights.now()
            );
        }
        for given in second {
            assert!(rights.allows_other(), "{given:?} was given to the second disk: {:?}", rights.now());
        }
    }

    /// Whether it has connections.
    pub(super) fn has_queues(&self) -> bool {
        self.workers.iter().any(|worker| worker.queues() > 0)
    }

    /// Whether a change of the main disk takes its time there.
    pub(super) fn straggles(&mut self, now: Duration) -> bool {
        let is_late = |given: Given| given.writes && now > given.at + STRAGGLES;
        self.workers.iter_mut().any(|worker| worker.backend().pending(DeviceId(0)).any(is_late))
    }

    /// Whether anything is at its disks.
    pub(super) fn is_at_disk(&mut self) -> bool {
        let mut devices = self.workers.iter_mut().map(Worker::backend);
        devices.any(|devices| [0, 1].into_iter().any(|device| devices.in_flight(DeviceId(device)) > 0))
    }

    /// Checks that nothing is leaked.
    pub(super) fn check(&mut self) {
        assert!(self.workers.iter().all(|worker| worker.buffers_out() == 0), "a buffer was leaked");
        self.workers.iter_mut().for_each(|worker| N::check_target(worker.transport()));
        let registry = self.plane.registry.lock().expect("no panic before");
        assert_eq!(registry.associations().count(), 0, "an association was leaked");
    }
}

fn geometry(block_size: u32, blocks: u64) -> Geometry {
    Geometry {
        volatile_write_cache: true,
        deallocate: true,
        zero_after_deallocate: true,
        ..Geometry::new(block_size, blocks)
    }
}

/// Small limits, so that the target cuts commands into chunks and the host cuts operations into commands.
fn setup(rng: &mut Rng) -> WorkerSetup {
    let large = [4096, 8192, 16384, 131_072][rng.below(4) as usize];
    let mut setup = WorkerSetup::new(Geometry::new(BLOCK as u32, 1));
    setup.options.write_protection = true;
    setup.options.io_queues_max = 4;
    setup.options.queue_entries_max = 16;
    setup.options.transfer_len_max = [8192, 16384, 1 << 20][rng.below(3) as usize];
    setup.settings = Settings {
        // What three hosts with two paths each need, and no more.
        connections: 24,
        queue_entries: 16,
        io_queues: 4,
        admin_receives: 6 * 36,
        io_receives: 19 * 20,
        own_receives: 1 + rng.below(20) as u16,
        lent_receives: rng.below(40) as usize,
        // Enough for two chunks of a command at once, and few enough to wait for.
        buffers: BufferPlan { classes: [(4, 4096), (4, large.min(16384)), (4, large)] },
        ..setup.settings
    };
    setup
}
