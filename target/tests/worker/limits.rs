//! Limits of namespaces and hosts: what each gets in a second of the virtual clock.

use super::host::*;
use super::read_write;
use nvme_proto::nvm::rw::flush;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, SglDescriptor, Sqe};
use nvmf_block::DeviceId;
use nvmf_target::barrier::{Barrier, Scope};
use nvmf_target::message::WorkerMessage;
use nvmf_target::qos::{Limit, LimitTable, Rates};
use std::sync::Arc;
use std::time::Duration;

const DISK: DeviceId = DeviceId(0);
const SECOND: Duration = Duration::from_secs(1);
/// Commands that each queue has outstanding.
const DEPTH: usize = 16;

fn limit(iops: Option<u64>, bytes_per_second: Option<u64>, burst: Duration) -> Arc<Limit> {
    Arc::new(Limit::new(Rates { iops, bytes_per_second, burst }))
}

/// A few commands of burst only.
fn iops(iops: u64) -> Arc<Limit> {
    limit(Some(iops), None, SECOND / 100)
}

fn of_disk(limit: Arc<Limit>) -> LimitTable {
    let mut table = LimitTable::new();
    table.limit_device(DISK, limit);
    table
}

fn set(world: &mut World, table: LimitTable) {
    let table = Arc::new(table);
    for worker in &mut world.workers {
        worker.deliver(WorkerMessage::Limits(Arc::clone(&table)));
    }
    world.tick();
}

/// A queue whose host issues a command for every one that is answered.
struct Load {
    queue: HostQueue,
    command: Sqe,
    data: Vec<u8>,
    answered: usize,
}

impl Load {
    fn new(queue: HostQueue, command: Sqe, data: &[u8]) -> Self {
        let mut load = Self { queue, command, data: data.to_vec(), answered: 0 };
        (0..DEPTH).for_each(|_| load.send());
        load
    }

    fn reads(queue: HostQueue, nsid: u32) -> Self {
        let command = read_write(NvmOpcode::VERIFY, 0, 4096, SglDescriptor::keyed(0, 0, 0, false));
        Self::new(queue, Sqe { nsid: nsid.into(), ..command }, &[])
    }

    fn writes(queue: HostQueue) -> Self {
        let command = read_write(NvmOpcode::WRITE, 0, 4096, SglDescriptor::in_capsule(0, 4096));
        Self::new(queue, command, &[7; 4096])
    }

    fn send(&mut self) {
        self.queue.send(&self.command, &self.data);
    }

    fn poll(&mut self, now: Duration) {
        self.queue.poll(now);
        while let Some((cqe, _)) = self.queue.responses.pop_front() {
            assert!(cqe.status().is_success(), "{}", cqe.status());
            self.answered += 1;
            self.send();
        }
    }
}

/// How many commands of each are answered in this time.
fn answered(world: &mut World, loads: &mut [Load], time: Duration) -> Vec<usize> {
    loads.iter_mut().for_each(|load| load.answered = 0);
    let until = world.now + time;
    while world.now < until {
        world.tick();
        loads.iter_mut().for_each(|load| load.poll(world.now));
    }
    loads.iter().map(|load| load.answered).collect()
}

fn is_about(count: usize, expected: usize) -> bool {
    count.abs_diff(expected) * 100 <= expected * 3 + 100
}

#[test]
fn namespace_gets_its_rate_and_its_burst() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let queue = io(&mut world, 1, cntlid);
    set(&mut world, of_disk(limit(Some(2000), None, SECOND / 4)));
    let mut loads = [Load::reads(queue, 1)];
    let first = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(first[0], 2000 + 500), "the burst goes on top: {first:?}");
    let second = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(second[0], 2000), "{second:?}");
    assert!(world.count("waits_limit") > 1000);
    // Without limits at once.
    set(&mut world, LimitTable::new());
    let free = answered(&mut world, &mut loads, SECOND / 4);
    assert!(free[0] > 3000, "{free:?}");
}

#[test]
fn bytes_are_limited_as_commands_are() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let queue = io(&mut world, 1, cntlid);
    set(&mut world, of_disk(limit(None, Some(4096 * 1000), SECOND / 100)));
    let mut loads = [Load::writes(queue)];
    let _ = answered(&mut world, &mut loads, SECOND / 4);
    let rate = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(rate[0], 1000), "{rate:?}");
    assert!(world.workers[0].buffers_out() <= 1, "what waits holds no buffer");
}

#[test]
fn hosts_share_a_namespace_over_workers_and_take_turns() {
    let mut world = World::new(2, &settings());
    let hosts = [1, 2].map(|host| (host, admin_of(&mut world, host)));
    set(&mut world, of_disk(iops(2000)));
    let mut loads = Vec::new();
    for &(host, (_, cntlid)) in &hosts {
        for qid in 1..=2 {
            let queue = io_of(&mut world, host, qid, cntlid, 32);
            loads.push(Load::reads(queue, 1));
        }
    }
    let _ = answered(&mut world, &mut loads, SECOND / 4);
    let rates = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(rates.iter().sum(), 2000), "all together: {rates:?}");
    for host in rates.chunks(2) {
        let sum: usize = host.iter().sum();
        assert!((800..=1200).contains(&sum), "{rates:?}");
    }
}

#[test]
fn host_is_limited_and_others_are_not() {
    let mut world = World::new(1, &settings());
    let hosts = [1, 2].map(|host| (host, admin_of(&mut world, host)));
    let mut loads: Vec<_> = hosts
        .iter()
        .map(|&(host, (_, cntlid))| Load::reads(io_of(&mut world, host, 1, cntlid, 32), 1))
        .collect();
    let mut table = of_disk(iops(3000));
    let host = connect_data_of(1, nvme_proto::Cntlid::DYNAMIC, SUBSYSTEM).hostnqn;
    let host = nvme_proto::Nqn::from_field(&host).unwrap();
    table.limit_host(SUBSYSTEM.parse().unwrap(), host, iops(500));
    set(&mut world, table);
    let _ = answered(&mut world, &mut loads, SECOND / 4);
    let rates = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(rates[0], 500) && is_about(rates[1], 2500), "{rates:?}");
}

#[test]
fn limited_namespace_holds_up_neither_another_nor_flushes_nor_admin_commands() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut queue = io(&mut world, 1, cntlid);
    let other = io(&mut world, 2, cntlid);
    set(&mut world, of_disk(iops(10)));
    let slow = read_write(NvmOpcode::VERIFY, 0, 4096, SglDescriptor::keyed(0, 0, 0, false));
    (0..DEPTH).for_each(|_| _ = queue.send(&slow, &[]));
    let mut loads = [Load::reads(other, 2)];
    let free = answered(&mut world, &mut loads, SECOND / 10);
    assert!(free[0] > 1000, "another namespace: {free:?}");
    let before = world.now;
    // On the same queue, too.
    queue.run(&mut world, &Sqe { nsid: 2.into(), ..slow }, &[]);
    queue.run(&mut world, &flush(Nsid(1)), &[]);
    admin.run(&mut world, &Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]);
    assert!(world.now - before < SECOND / 20, "{:?}", world.now - before);
}

#[test]
fn changed_limit_counts_for_what_waits() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let queue = io(&mut world, 1, cntlid);
    set(&mut world, of_disk(iops(1)));
    let mut loads = [Load::reads(queue, 1)];
    let slow = answered(&mut world, &mut loads, SECOND / 2);
    assert!(slow[0] <= 2, "{slow:?}");
    set(&mut world, of_disk(iops(1000)));
    let _ = answered(&mut world, &mut loads, SECOND / 10);
    let rate = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(rate[0], 1000), "{rate:?}");
}

#[test]
fn drain_answers_what_waits_for_a_limit_at_once() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let queue = io(&mut world, 1, cntlid);
    set(&mut world, of_disk(iops(1)));
    let mut loads = [Load::reads(queue, 1)];
    world.until("they wait", |world| (world.count("waits_limit") > 10).then_some(()));
    let before = world.now;
    world.tell(WorkerMessage::Drain);
    let [Load { queue, .. }] = &mut loads;
    queue.until_disconnected(&mut world);
    assert!(queue.responses.len() >= DEPTH - 2, "{} were answered", queue.responses.len());
    assert!(world.now - before < SECOND / 2);
    admin.until_disconnected(&mut world);
    world.until_clean();
}

#[test]
fn disconnected_host_leaves_nothing_at_a_limit() {
    let mut world = World::new(1, &settings());
    let (mut gone, cntlid) = admin_of(&mut world, 1);
    let queue = io_of(&mut world, 1, 1, cntlid, 32);
    set(&mut world, of_disk(iops(100)));
    let mut waiting = Load::writes(queue);
    world.until("they wait", |world| (world.count("waits_limit") >= 10).then_some(()));
    waiting.queue.drop_connection();
    gone.drop_connection();
    world.until_clean();
    // Whoever has its place in the worker gets what the limit gives.
    let (_admin, cntlid) = admin_of(&mut world, 2);
    let mut loads = [Load::reads(io_of(&mut world, 2, 1, cntlid, 32), 1)];
    let _ = answered(&mut world, &mut loads, SECOND / 4);
    let rate = answered(&mut world, &mut loads, SECOND);
    assert!(is_about(rate[0], 100), "{rate:?}");
}

#[test]
fn barrier_does_not_wait_for_a_slow_limit() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut queue = io(&mut world, 1, cntlid);
    set(&mut world, of_disk(iops(1)));
    let slow = read_write(NvmOpcode::VERIFY, 0, 4096, SglDescriptor::keyed(0, 0, 0, false));
    (0..DEPTH).for_each(|_| _ = queue.send(&slow, &[]));
    world.until("they wait", |world| (world.count("waits_limit") > 10).then_some(()));
    let barrier = Barrier::new(1, Scope::devices([DISK]));
    let before = world.now;
    world.tell(WorkerMessage::Barrier(Arc::clone(&barrier)));
    world.until("the barrier is reached", |_| barrier.is_reached().then_some(()));
    assert!(world.now - before < SECOND / 10, "{:?}", world.now - before);
}
