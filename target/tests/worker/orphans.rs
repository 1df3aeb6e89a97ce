//! Operations that are on a disk while their connection is gone.

use crate::host::*;
use crate::read_write;
use nvme_proto::admin::keep_alive::keep_alive;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{SglDescriptor, Status};
use std::time::Duration;

/// A disk that hangs keeps its operations for ever. Its host is refused for some seconds; then it has a controller again, and only the
/// namespace of that disk is not ready, until the disk answers.
#[test]
fn host_of_a_hung_disk_connects_again_and_its_namespace_is_not_ready() {
    let mut world = World::with_latency(1, &settings(), 64, Duration::ZERO);
    let (mut first_admin, cntlid) = admin(&mut world);
    let mut first = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let commands = world.count("commands");
    for at in 0..4u64 {
        let sgl = SglDescriptor::in_capsule(0, 4096);
        first.send(&read_write(NvmOpcode::WRITE, 8 * at, 4096, sgl), &[1; 4096]);
    }
    world.until("the writes are on the disk", |world| {
        first.poll(world.now);
        (world.count("commands") == commands + 4).then_some(())
    });
    first.drop_connection();
    first_admin.drop_connection();

    let began = world.now;
    let mut refused = 0;
    loop {
        let (mut queue, status) = ask_for_controller(&mut world);
        queue.drop_connection();
        if status.is_success() {
            break;
        }
        assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && !status.dnr(), "{status}");
        refused += 1;
        world.now += Duration::from_millis(250);
        assert!(world.now - began < Duration::from_secs(8), "the host is shut out");
    }
    assert!(refused > 0, "the host found a controller at once");

    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let write = read_write(NvmOpcode::WRITE, 0, 4096, SglDescriptor::in_capsule(0, 4096));
    let write_again = |world: &mut World, io: &mut HostQueue| {
        let cid = io.send(&write, &[2; 4096]);
        io.response(world, cid).0.status()
    };
    let status = write_again(&mut world, &mut io);
    assert!(status.is(Status::NAMESPACE_NOT_READY) && !status.dnr(), "{status}");
    admin.run(&mut world, &keep_alive(), &[]);
    world.disk.borrow_mut().set_hanging(false);
    world.until("the orphaned writes are over", |world| {
        world.workers[0].backend().next_due().is_none().then_some(())
    });
    assert!(write_again(&mut world, &mut io).is_success());
}

fn block(world: &World, lba: u64) -> u8 {
    world.disk.borrow().block(lba)[0]
}

/// The host knows that its connection is lost, the target does not: a write that was on its way all the time must not
/// land on what the host has written since.
#[test]
fn write_of_a_half_open_connection_does_not_overwrite_a_newer_one() {
    for workers in 1..=3 {
        let mut world = World::new(workers, &settings());
        let (mut old_admin, cntlid) = admin(&mut world);
        let mut old: Vec<_> = (1..=3).map(|qid| io(&mut world, qid, cntlid)).collect();
        let write = read_write(NvmOpcode::WRITE, 8, 4096, SglDescriptor::in_capsule(0, 4096));
        // Its Keep Alive Timeout, in which nothing comes.
        for _ in 0..10 {
            world.now += Duration::from_secs(1);
            world.tick();
        }
        let (mut admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        io.run(&mut world, &write, &[2; 4096]);
        for old in &mut old {
            old.send(&write, &[1; 4096]);
        }
        old_admin.send(&keep_alive(), &[]);
        for _ in 0..1000 {
            world.tick();
        }
        assert_eq!(block(&world, 8), 2, "{workers} workers: the old write overwrote the newer one");
        assert_eq!(world.count("lost_closed"), 1, "{workers} workers");
        assert_eq!(world.count("connects_refused"), 0, "{workers} workers");
        admin.run(&mut world, &keep_alive(), &[]);
    }
}

/// As one command after another: the worker of an I/O queue hears later that the host is gone than the worker of the
/// Admin queue.
#[test]
fn host_that_connects_again_at_once_is_not_refused() {
    let mut world = World::new(2, &settings());
    let (mut first_admin, cntlid) = admin(&mut world);
    let of_admin = world.workers.iter().position(|worker| worker.queues() == 1).unwrap();
    let of_io = 1 - of_admin;
    let mut first = io(&mut world, 1, cntlid);
    assert_eq!(world.workers[of_io].queues(), 1);
    world.occupied = Some(of_io);
    first_admin.drop_connection();
    first.drop_connection();
    world.until("the Admin queue is gone", |world| (world.workers[of_admin].queues() == 0).then_some(()));
    let (mut second, cid) = send_connect(&mut world);
    for _ in 0..100 {
        world.tick();
        second.poll(world.now);
    }
    world.occupied = None;
    let status = second.response(&mut world, cid).0.status();
    assert!(status.is_success(), "{status}");
    assert_eq!(world.count("connects_refused"), 0);
}

/// Nobody read what hosts sent while the target stood still: they are not silent.
#[test]
fn target_that_stood_still_ends_no_other_path_of_a_host_that_connects() {
    let mut world = World::new(2, &settings());
    let (mut first_admin, cntlid) = admin(&mut world);
    let mut first = io(&mut world, 1, cntlid);
    let write = read_write(NvmOpcode::WRITE, 8, 4096, SglDescriptor::in_capsule(0, 4096));
    for _ in 0..5 {
        world.now += Duration::from_secs(1);
        world.tick();
    }
    // Less than a Keep Alive Timeout, which a host waits for.
    world.now += Duration::from_secs(9);
    let (mut second, cid) = send_connect(&mut world);
    for _ in 0..20 {
        world.tick();
    }
    first_admin.run(&mut world, &keep_alive(), &[]);
    let status = second.response(&mut world, cid).0.status();
    assert!(status.is_success(), "{status}");
    first.run(&mut world, &write, &[1; 4096]);
    assert_eq!(world.count("lost_closed"), 0);
}

/// Multipath: the same host, twice.
#[test]
fn second_path_of_a_host_leaves_its_first_alone() {
    let mut world = World::new(2, &settings());
    let (mut first_admin, cntlid) = admin(&mut world);
    let mut first = io(&mut world, 1, cntlid);
    let write = read_write(NvmOpcode::WRITE, 8, 4096, SglDescriptor::in_capsule(0, 4096));
    // Keep Alive comes at half of the timeout, and late.
    for _ in 0..4 {
        world.now += Duration::from_secs(6);
        let (mut second, status) = ask_for_controller(&mut world);
        assert!(status.is_success(), "{status}");
        second.drop_connection();
        first_admin.run(&mut world, &keep_alive(), &[]);
        first.run(&mut world, &write, &[1; 4096]);
    }
    assert_eq!(world.count("lost_closed"), 0);
}
