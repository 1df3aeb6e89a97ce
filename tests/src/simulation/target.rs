//! The simulated target: its workers, its control plane, the disks of its two namespaces, and another disk that may take
//! the place of the first.

use super::area::Area;
use super::contest::CONTESTED;
use super::host::BLOCK;
use super::network::Network;
use super::operator::{self, Change};
use super::plane::{Kept, Owners, Plane, TargetWorker};
use super::reservation::Host;
use super::resets::Resets;
use super::rng::Rng;
use crate::worker_setup::{PORT, WorkerSetup};
use core::time::Duration;
use nvmf_backend::simulated::{SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::{DeviceId, Geometry};
use nvmf_subsystem::NamespaceDefinition;
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::settings::Settings;
use nvmf_target::worker::Worker;

/// How often the control plane looks at its barriers.
const GLANCE: Duration = Duration::from_millis(1);
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

/// The target.
pub(super) struct Target<N: Network> {
    setup: WorkerSetup,
    pub(super) workers: Vec<TargetWorker<N>>,
    worker_count: usize,
    plane: Plane<N>,
    pub(super) kept: Kept,
    /// What the operator has taken away.
    taken: Option<operator::Taken>,
    now: Duration,
    hosts: u64,
    /// Of namespace 1.
    blocks: u64,
    pub(super) disk: SharedDisk,
    /// The disk of namespace 2, which has no troubles of its own.
    second: SharedDisk,
    /// Another disk, which must not change.
    other: SharedDisk,
    served: Served,
    resets: Resets,
    rng: Rng,
}

impl<N: Network> Target<N> {
    /// A target that runs, for so many hosts.
    pub(super) fn new(network: &mut N, hosts: u64, mut rng: Rng) -> Self {
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
        let disk = SimulatedDisk::new(options, rng.next());
        let others = SimulatedOptions { blocks: hosts * Area::Other.stride(), ..options };
        let second = SimulatedDisk::new(others, rng.next());
        for (disk, area) in [(&disk, Area::Main), (&second, Area::Other)] {
            area.unused(hosts).for_each(|lba| disk.borrow_mut().preset(lba, [UNUSED; BLOCK].into()));
            let _ = disk.borrow_mut().take_given();
        }
        let other = SimulatedDisk::new(options, rng.next());
        (0..blocks).for_each(|lba| other.borrow_mut().preset(lba, [UNUSED; BLOCK].into()));
        let mut setup = setup(&mut rng);
        setup.others = vec![NamespaceDefinition {
            nsid: Area::Other.nsid(),
            device: DeviceId(1),
            geometry: geometry(BLOCK as u32, others.blocks),
            uuid: [3; 16],
            ..setup.namespace.clone()
        }];
        network.set_up(&mut setup.settings, &mut setup.port);
        let kept = Kept::new(blocks, Rng::new(rng.next()));
        let mut target = Self {
            plane: Plane::new(&setup.registry(), 0, &kept.files),
            kept,
            taken: None,
            now: Duration::ZERO,
            setup,
            workers: Vec::new(),
            worker_count: 1 + rng.below(3) as usize,
            hosts,
            blocks,
            disk,
            second,
            other,
            served: Served::Disk,
            resets: Resets::default(),
            rng,
        };
        target.start(network, Served::Disk);
        target
    }

    /// Starts its process.
    fn start(&mut self, network: &mut N, served: Served) {
        let (mut uuid, mut block_size, mut blocks) = ([1; 16], BLOCK as u32, self.blocks);
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
        let registry = self.setup.registry();
        self.plane = Plane::new(&registry, self.worker_count, &self.kept.files);
        self.taken = None;
        let reservation = self.plane.restore(&mut self.kept, uuid);
        let _ = registry.lock().expect("no panic before").take_notices();
        let reservation = reservation.unwrap_or_default();
        self.kept.rights.restart(self.now, served == Served::Disk, protection, reservation);
        let disk = if served == Served::Disk { &self.disk } else { &self.other };
        let parts = (0..self.worker_count).map(|_| {
            let seed = self.rng.next();
            let mut devices =
                SimulatedDevices::new(vec![disk.clone(), self.second.clone()], 64, self.rng.next());
            (network.target(seed, &self.setup.settings, &mut devices), devices)
        });
        self.workers = self.setup.workers_over(&registry, parts.collect());
        network.on_listening(self.workers[0].listen(network.listen_address(), PORT).expect("a listener"));
    }

    /// Stops its process, with its machine or alone. Some operations in flight are carried out, none is answered.
    fn stop(&mut self, power: bool) {
        self.resets = Resets::default();
        for mut worker in self.workers.drain(..) {
            let devices = core::mem::replace(worker.backend(), SimulatedDevices::new(Vec::new(), 0, 0));
            if power { devices.crash() } else { devices.kill() }
        }
    }

    /// Kills its process and starts it again. What its disk and its state directory have, they keep.
    pub(super) fn kill(&mut self, network: &mut N) {
        let served = self.served;
        self.stop(false);
        self.disk.borrow_mut().reopen();
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
        let change = Change::random(rng, hosts, self.blocks);
        self.taken = Some(operator::take(&self.plane, &mut self.kept, now, change, hosts, until));
        Some(change)
    }

    /// Whether the operator has taken something away.
    pub(super) fn has_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// Cuts the power of its machine and starts it again, or one with another disk at its address. The disk is opened
    /// anew, and answers.
    pub(super) fn cut_power(&mut self, network: &mut N, then: Served) {
        self.disk.borrow_mut().set_hanging(false);
        self.stop(true);
        self.kept.files.crash();
        self.disk.borrow_mut().reopen();
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
        worked |= self.resets.turn::<N>(asked, &mut self.workers, &self.plane.registry);
        if let Some(taken) = &mut self.taken {
            taken.turn(now, (&self.plane, &mut self.workers), &mut self.kept, owners);
        }
        if let Some(taken) = self.taken.take_if(|taken| taken.is_over(now)) {
            taken.undo(&self.plane, &mut self.kept, &self.setup.namespace);
        }
        let waits = self.plane.is_waiting() || self.taken.is_some();
        due = [due, waits.then_some(now + GLANCE)].into_iter().flatten().min();
        (worked || self.plane.is_busy(), due)
    }

    /// Checks that the disks were given only what its owner has a right to.
    fn check_given(&self, owners: Owners<'_>) {
        let rights = &self.kept.rights;
        for given in self.disk.borrow_mut().take_given() {
            let owners = owners(given.range.start);
            assert!(
                owners.is_empty() || owners.iter().any(|&host| rights.allows(host, &given)),
                "{given:?} of one of {owners:?} was given to the disk, which has no right to it: {:?}",
                rights.now()
            );
        }
        for given in self.second.borrow_mut().take_given() {
            assert!(rights.allows_other(), "{given:?} was given to the second disk: {:?}", rights.now());
        }
    }

    /// Whether it has connections.
    pub(super) fn has_queues(&self) -> bool {
        self.workers.iter().any(|worker| worker.queues() > 0)
    }

    /// Checks that nothing is leaked, and no block changed that no host writes to.
    pub(super) fn check(&mut self) {
        assert!(self.workers.iter().all(|worker| worker.buffers_out() == 0), "a buffer was leaked");
        self.workers.iter_mut().for_each(|worker| N::check_target(worker.transport()));
        let is_unchanged =
            |disk: &SharedDisk, lba| disk.borrow().block(lba).iter().all(|&byte| byte == UNUSED);
        for (disk, area) in [(&self.disk, Area::Main), (&self.second, Area::Other)] {
            for lba in area.unused(self.hosts) {
                assert!(is_unchanged(disk, lba), "unused block {lba} of {area:?} changed");
            }
        }
        for lba in 0..self.blocks {
            assert!(is_unchanged(&self.other, lba), "block {lba} of another disk changed");
        }
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
