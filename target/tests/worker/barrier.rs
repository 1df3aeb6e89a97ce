//! Barriers: what was taken up before is over, whatever became of its connection; what comes later is not waited for.

use crate::host::*;
use crate::read_write;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{HostId, SglDescriptor};
use nvmf_block::DeviceId;
use nvmf_target::barrier::{Barrier, Scope};
use nvmf_target::message::WorkerMessage;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The device of namespace 1.
const DISK: DeviceId = DeviceId(0);
const OTHER: DeviceId = DeviceId(1);

fn post(world: &mut World, scope: Scope) -> Arc<Barrier> {
    let barrier = Barrier::new(world.workers.len(), scope);
    for worker in &mut world.workers {
        worker.deliver(WorkerMessage::Barrier(Arc::clone(&barrier)));
    }
    barrier
}

/// Whether it is reached within a time in which nothing else ends.
fn is_reached(world: &mut World, barrier: &Barrier) -> bool {
    for _ in 0..200 {
        world.tick();
    }
    barrier.is_reached()
}

/// A world whose disk hangs, with so many writes on it.
fn with_writes_on_disk(world: &mut World, io: &mut HostQueue, writes: u64) {
    world.disk.borrow_mut().set_hanging(true);
    for at in 0..writes {
        let sgl = SglDescriptor::in_capsule(0, 4096);
        io.send(&read_write(NvmOpcode::WRITE, 8 * at, 4096, sgl), &[1; 4096]);
    }
    let mut on_disk = 0;
    world.until("the writes are on the disk", |world| {
        io.poll(world.now);
        on_disk = world.workers.iter_mut().map(|worker| worker.backend().in_flight(DISK)).sum();
        (on_disk as u64 == writes).then_some(())
    });
}

#[test]
fn barrier_waits_for_older_operations_on_its_device_only() {
    let mut world = World::new(2, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    with_writes_on_disk(&mut world, &mut io, 3);
    let [notices, other, disk] = [Scope::notices(), Scope::devices([OTHER]), Scope::devices([DISK])]
        .map(|scope| post(&mut world, scope));
    assert!(!is_reached(&mut world, &disk));
    assert!(notices.is_reached() && other.is_reached());
    world.disk.borrow_mut().set_hanging(false);
    world.until("the writes are over", |_| disk.is_reached().then_some(()));
}

#[test]
fn barrier_waits_for_no_later_operation() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let barrier = post(&mut world, Scope::devices([DISK]));
    world.tick();
    with_writes_on_disk(&mut world, &mut io, 3);
    assert!(is_reached(&mut world, &barrier));
}

#[test]
fn barrier_waits_for_operations_whose_connection_is_gone() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    with_writes_on_disk(&mut world, &mut io, 3);
    io.drop_connection();
    admin.drop_connection();
    let barrier = post(&mut world, Scope::devices([DISK]));
    assert!(!is_reached(&mut world, &barrier));
    world.disk.borrow_mut().set_hanging(false);
    world.until("the orphaned writes are over", |_| barrier.is_reached().then_some(()));
}

#[test]
fn barrier_waits_for_the_hosts_and_associations_that_it_names() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    with_writes_on_disk(&mut world, &mut io, 3);
    let (key, host) = {
        let registry = world.registry.lock().unwrap();
        let association = registry.associations().next().unwrap();
        (association.key(), association.host_id())
    };
    let of = |hosts| Scope { hosts: Some(BTreeSet::from(hosts)), ..Scope::devices([DISK]) };
    let stranger = post(&mut world, of([HostId([0x77; 16])]));
    let its = post(&mut world, of([host]));
    let association = post(&mut world, Scope { associations: BTreeSet::from([key]), ..Scope::default() });
    assert!(!is_reached(&mut world, &its));
    assert!(stranger.is_reached() && !association.is_reached());
    world.disk.borrow_mut().set_hanging(false);
    world.until("the writes are over", |_| (its.is_reached() && association.is_reached()).then_some(()));
}

/// A command with data on their way from the host may yet write.
#[test]
fn barrier_waits_for_a_write_whose_data_are_on_their_way() {
    let mut world = World::with_latency(1, &settings(), 64, Duration::from_millis(5));
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let commands = world.count("commands");
    let sgl = io.expose(0, 131_072);
    let cid = io.send(&read_write(NvmOpcode::WRITE, 0, 131_072, sgl), &[]);
    world.until("the command is taken up", |world| (world.count("commands") == commands + 1).then_some(()));
    let barrier = post(&mut world, Scope::devices([DISK]));
    world.tick();
    assert!(!barrier.is_reached());
    assert!(io.response(&mut world, cid).0.status().is_success());
    world.until("it is over", |_| barrier.is_reached().then_some(()));
}
