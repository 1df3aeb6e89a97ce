//! The simulated target: its workers, its control plane, its disk, and another disk that may take its place.

use super::host::BLOCK;
use super::network::Network;
use super::operator::{self, Change};
use super::plane::{Kept, Owner, Plane, TargetWorker};
use super::reservation::Host;
use super::resets::Resets;
use super::rng::Rng;
use crate::worker_setup::{PORT, WorkerSetup};
use core::time::Duration;
use nvmf_backend::simulated::{SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::Geometry;
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
    blocks: u64,
    pub(super) disk: SharedDisk,
    /// Another disk, which must not change.
    other: SharedDisk,
    served: Served,
    resets: Resets,
    rng: Rng,
}

impl<N: Network> Target<N> {
    /// A target that runs. The hosts use all blocks of its disk but `unused`.
    pub(super) fn new(network: &mut N, blocks: u64, unused: impl Iterator<Item = u64>, mut rng: Rng) -> Self {
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
        unused.for_each(|lba| disk.borrow_mut().preset(lba, [UNUSED; BLOCK].into()));
        let other = SimulatedDisk::new(options, rng.next());
        (0..blocks).for_each(|lba| other.borrow_mut().preset(lba, [UNUSED; BLOCK].into()));
        let mut setup = setup(&mut rng);
        network.set_up(&mut setup.settings, &mut setup.port);
        let kept = Kept::new(blocks, Rng::new(rng.next()));
        let _ = disk.borrow_mut().take_given();
        let mut target = Self {
            plane: Plane::new(&setup.registry(), 0, &kept.files),
            kept,
            taken: None,
            now: Duration::ZERO,
            setup,
            workers: Vec::new(),
            worker_count: 1 + rng.below(3) as usize,
            blocks,
            disk,
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
        self.setup.namespace.geometry = Geometry {
            volatile_write_cache: true,
            deallocate: true,
            zero_after_deallocate: true,
            ..Geometry::new(block_size, blocks)
        };
        self.served = served;
        let registry = self.setup.registry();
        self.plane = Plane::new(&registry, self.worker_count, &self.kept.files);
        self.taken = None;
        let reservation = self.plane.restore(&mut self.kept, uuid);
        let _ = registry.lock().expect("no panic before").take_notices();
        self.kept.rights.restart(self.now, served == Served::Disk, reservation.unwrap_or_default());
        let disk = if served == Served::Disk { &self.disk } else { &self.other };
        let parts = (0..self.worker_count).map(|_| {
            let seed = self.rng.next();
            let mut devices = SimulatedDevices::new(vec![disk.clone()], 64, self.rng.next());
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
    pub(super) fn turn(&mut self, now: Duration, owner: Owner<'_>) -> (bool, Option<Duration>) {
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
        self.check_given(owner);
        self.plane.turn(now, &mut self.workers, &mut self.kept, owner);
        let asked = self.plane.take_resets();
        worked |= self.resets.turn::<N>(asked, &mut self.workers, &self.plane.registry);
        if let Some(taken) = &mut self.taken {
            taken.turn(now, (&self.plane, &mut self.workers), &mut self.kept, owner);
        }
        if let Some(taken) = self.taken.take_if(|taken| taken.is_over(now)) {
            taken.undo(&self.plane, &mut self.kept, &self.setup.namespace);
        }
        let waits = self.plane.is_waiting() || self.taken.is_some();
        due = [due, waits.then_some(now + GLANCE)].into_iter().flatten().min();
        (worked || self.plane.is_busy(), due)
    }

    /// Checks that the disk was given only what its owner has a right to.
    fn check_given(&self, owner: Owner<'_>) {
        for given in self.disk.borrow_mut().take_given() {
            let Some(host) = owner(given.range.start) else { continue };
            assert!(
                self.kept.rights.allows(host, &given),
                "{given:?} of host {} was given to the disk, which has no right to it: {:?}",
                host[0],
                self.kept.rights.now()
            );
        }
    }

    /// Whether it has connections.
    pub(super) fn has_queues(&self) -> bool {
        self.workers.iter().any(|worker| worker.queues() > 0)
    }

    /// Checks that nothing is leaked, and no block changed that no host writes to.
    pub(super) fn check(&mut self, unused: impl Iterator<Item = u64>) {
        assert!(self.workers.iter().all(|worker| worker.buffers_out() == 0), "a buffer was leaked");
        self.workers.iter_mut().for_each(|worker| N::check_target(worker.transport()));
        let is_unchanged =
            |disk: &SharedDisk, lba| disk.borrow().block(lba).iter().all(|&byte| byte == UNUSED);
        for lba in unused {
            assert!(is_unchanged(&self.disk, lba), "unused block {lba} changed");
        }
        for lba in 0..self.blocks {
            assert!(is_unchanged(&self.other, lba), "block {lba} of another disk changed");
        }
        let registry = self.plane.registry.lock().expect("no panic before");
        assert_eq!(registry.associations().count(), 0, "an association was leaked");
    }
}

/// Small limits, so that the target cuts commands into chunks and the host cuts operations into commands.
fn setup(rng: &mut Rng) -> WorkerSetup {
    let large = [4096, 8192, 16384, 131_072][rng.below(4) as usize];
    let mut setup = WorkerSetup::new(Geometry::new(BLOCK as u32, 1));
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
