//! Buffers are shared out by owner: a peer that stops, or a disk that hangs, holds a part of them for a bounded time.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nqn, SglDescriptor, Sqe};
use nvmf_target::settings::Settings;
use std::time::Duration;

const LARGE: u32 = 131_072;

fn on(nsid: u32, sqe: Sqe) -> Sqe {
    Sqe { nsid: nsid.into(), ..sqe }
}

/// As many connections as hosts want, and still few buffers.
fn roomy() -> Settings {
    Settings { connections: 64, admin_receives: 64 * 36, io_receives: 32 * 36, ..settings() }
}

/// A host whose queues have asked for more than all buffers of a class, and take nothing any more.
fn stopped_host(world: &mut World, host: u8, queues: u16, opcode: NvmOpcode, len: u32) -> Vec<HostQueue> {
    let (admin, cntlid) = admin_of(world, host);
    let mut all = vec![admin];
    for qid in 1..=queues {
        let mut queue = io_of(world, host, qid, cntlid, 32);
        world.fabric.stop_taking(queue.qp);
        for _ in 0..16 {
            let sgl = queue.expose(0, len);
            queue.send(&read_write(opcode, 0, len, sgl), &[]);
        }
        all.push(queue);
    }
    (0..200).for_each(|_| world.tick());
    all
}

/// A host with an I/O queue.
fn connected(world: &mut World) -> (HostQueue, HostQueue) {
    let (admin, cntlid) = admin(world);
    let io = io(world, 1, cntlid);
    (admin, io)
}

fn works(world: &mut World, io: &mut HostQueue, nsid: u32) {
    for (round, len) in [512, 16_384, LARGE, 1 << 20].into_iter().enumerate() {
        let data = pattern(round as u32, len as usize);
        io.data.write(0, &data);
        for opcode in [NvmOpcode::WRITE, NvmOpcode::COMPARE, NvmOpcode::READ] {
            let sgl = io.expose(0, len);
            io.run(world, &on(nsid, read_write(opcode, 64, len, sgl)), &[]);
        }
    }
}

#[test]
fn queues_that_stop_taking_leave_buffers_for_other_hosts() {
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
        for len in [4096, LARGE] {
            let mut world = World::new(1, &roomy());
            let _stopped = stopped_host(&mut world, 2, 4, opcode, len);
            let (_admin, mut io) = connected(&mut world);
            works(&mut world, &mut io, 1);
        }
    }
}

#[test]
fn many_stopped_hosts_leave_buffers_for_another() {
    let mut settings = roomy();
    settings.buffers.classes = [(32, 4096), (32, 16_384), (32, LARGE as usize)];
    let mut world = World::new(1, &settings);
    let _stopped: Vec<_> =
        (2..9).map(|host| stopped_host(&mut world, host, 2, NvmOpcode::WRITE, LARGE)).collect();
    let (_admin, mut io) = connected(&mut world);
    works(&mut world, &mut io, 1);
}

/// Names cost nothing: what a machine may hold does not grow with the names that it gives itself.
#[test]
fn many_stopped_hosts_of_one_machine_leave_buffers_for_another() {
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
        let mut settings =
            Settings { connections: 128, admin_receives: 128 * 36, io_receives: 64 * 36, ..roomy() };
        settings.buffers.classes = [(64, 4096), (32, 16_384), (32, LARGE as usize)];
        let mut world = World::new(1, &settings);
        world.machine = Some(9);
        let _stopped: Vec<_> =
            (20..44).map(|host| stopped_host(&mut world, host, 1, opcode, LARGE)).collect();
        let out = world.workers[0].buffers_out();
        assert!(out <= 20, "one machine holds {out} of 32 buffers");
        world.machine = None;
        let (_admin, mut io) = connected(&mut world);
        works(&mut world, &mut io, 1);
    }
}

/// Behind one address there may be many hosts.
#[test]
fn stopped_hosts_leave_buffers_for_another_of_their_machine() {
    let mut settings = roomy();
    settings.buffers.classes = [(64, 4096), (32, 16_384), (32, LARGE as usize)];
    let mut world = World::new(1, &settings);
    world.machine = Some(9);
    let _stopped: Vec<_> =
        (20..24).map(|host| stopped_host(&mut world, host, 2, NvmOpcode::WRITE, LARGE)).collect();
    let (_admin, mut io) = connected(&mut world);
    works(&mut world, &mut io, 1);
}

/// Otherwise they take the buffers that come back, and stop in their turn.
#[test]
fn queues_that_wait_end_with_the_one_that_stopped() {
    let mut world = World::new(1, &roomy());
    let mut stopped = stopped_host(&mut world, 2, 3, NvmOpcode::WRITE, LARGE);
    assert!(world.workers[0].buffers_out() < 3, "a queue has no buffer");
    let begun = world.now;
    while !stopped[1..].iter().all(|queue| queue.disconnected) {
        assert!(world.now - begun < Duration::from_secs(45), "a queue is still there");
        world.now += Duration::from_secs(1);
        let (admin, queues) = stopped.split_first_mut().unwrap();
        admin.run(&mut world, &Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]);
        queues.iter_mut().for_each(|queue| queue.poll(world.now));
    }
    world.until("the buffers are back", |world| (world.workers[0].buffers_out() == 0).then_some(()));
}

/// It would take more for nothing.
#[test]
fn queue_that_takes_nothing_is_given_no_more_buffers() {
    let mut settings = roomy();
    settings.buffers.classes = [(64, 4096), (32, 16_384), (32, LARGE as usize)];
    let mut world = World::new(1, &settings);
    let mut others: Vec<_> =
        (4..9).map(|host| stopped_host(&mut world, host, 1, NvmOpcode::WRITE, LARGE)).collect();
    let _stopped: Vec<_> =
        (2..4).map(|host| stopped_host(&mut world, host, 1, NvmOpcode::WRITE, LARGE)).collect();
    world.now += Duration::from_secs(2);
    others.iter_mut().flatten().for_each(HostQueue::drop_connection);
    world.until("they are gone", |world| (world.queues() == 4).then_some(()));
    (0..200).for_each(|_| world.tick());
    let left = world.workers[0].buffers_out();
    assert!(left <= 6, "{left} of 32 buffers are out");
}

#[test]
fn associations_of_one_host_share_what_a_host_may_hold() {
    let mut settings = roomy();
    settings.buffers.classes = [(64, 4096), (32, 16_384), (32, LARGE as usize)];
    let mut world = World::new(1, &settings);
    let _stopped: Vec<_> = (0..10).map(|_| stopped_host(&mut world, 2, 1, NvmOpcode::WRITE, LARGE)).collect();
    let out = world.workers[0].buffers_out();
    assert!(out <= 12, "one host holds {out} of 32 buffers");
}

/// Its RDMA READ credits are all used by large writes: the small one must get the first that comes back.
#[test]
fn a_small_write_gets_the_credit_of_a_large_one() {
    let mut settings = roomy();
    settings.buffers.classes = [(8, 4096), (32, 16_384), (64, LARGE as usize)];
    let mut world = World::new(1, &settings);
    let (_admin, mut io) = connected(&mut world);
    let sgl = io.expose(0, 4 * LARGE);
    let large = io.send(&read_write(NvmOpcode::WRITE, 0, 4 * LARGE, sgl), &[]);
    let sgl = io.expose(1 << 20, 4096);
    let small = io.send(&read_write(NvmOpcode::WRITE, 4096, 4096, sgl), &[]);
    for cid in [large, small] {
        assert!(io.response(&mut world, cid).0.status().is_success());
    }
    assert!(world.count("waits_read") > 0);
}

/// The Admin queue lives, so that no Keep Alive timer helps.
#[test]
fn a_transfer_without_progress_ends_its_queue() {
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
        let mut world = World::new(1, &roomy());
        let mut stopped = stopped_host(&mut world, 2, 1, opcode, LARGE);
        let mut io = stopped.pop().unwrap();
        let mut admin = stopped.pop().unwrap();
        let begun = world.now;
        while !io.disconnected {
            assert!(world.now - begun < Duration::from_secs(45), "the queue is still there");
            world.now += Duration::from_secs(1);
            admin.run(&mut world, &Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]);
            io.poll(world.now);
        }
        assert!(world.now - begun >= Duration::from_secs(30), "a slow host has this long");
        assert_eq!(world.count("transfer_timeouts"), 1);
        world.until("its buffers are back", |world| (world.workers[0].buffers_out() == 0).then_some(()));
    }
}

/// A host that takes little by little keeps its queue.
#[test]
fn a_transfer_that_goes_on_keeps_its_queue() {
    let mut world = World::new(1, &roomy());
    let (mut admin, mut io) = connected(&mut world);
    for _ in 0..20 {
        world.now += Duration::from_secs(4);
        admin.run(&mut world, &Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]);
        let sgl = io.expose(0, LARGE);
        io.run(&mut world, &read_write(NvmOpcode::WRITE, 0, LARGE, sgl), &[]);
    }
    assert!(!io.disconnected);
}

#[test]
fn connects_whose_data_do_not_come_keep_nobody_out() {
    let mut world = World::new(1, &roomy());
    let _silent: Vec<_> = (0..16)
        .map(|_| {
            let mut queue = HostQueue::connect_from(&mut world, 9, HostQueue::offer(0, 32, 0)).unwrap();
            world.fabric.stop_taking(queue.qp);
            let mut sqe = connect_command(0, 32, 10_000);
            sqe.sgl = queue.expose(0, 1024);
            queue.send(&sqe, &[]);
            (0..20).for_each(|_| world.tick());
            queue
        })
        .collect();
    let (mut admin, cntlid) = admin(&mut world);
    identify(&mut world, &mut admin);
    io(&mut world, 1, cntlid);
    // Nor do they stay for long.
    let begun = world.now;
    while world.queues() > 2 {
        world.now += Duration::from_millis(100);
        world.tick();
        assert!(world.now - begun < Duration::from_secs(6), "{} queues are left", world.queues());
    }
}

fn identify(world: &mut World, admin: &mut HostQueue) {
    let mut identify = Sqe::new(AdminOpcode::IDENTIFY.0).with_dwords([1, 0, 0, 0, 0, 0]);
    identify.sgl = admin.expose(0, 4096);
    admin.run(world, &identify, &[]);
}

#[test]
fn discovery_controllers_leave_buffers_for_connects_and_identify() {
    let mut world = World::new(1, &roomy());
    let _stopped: Vec<_> = (0..8)
        .map(|_| {
            let nqn = Nqn::DISCOVERY.to_string();
            let (mut queue, _) = admin_in(&mut world, 9, &nqn, 0);
            world.fabric.stop_taking(queue.qp);
            for _ in 0..8 {
                // Get Log Page of the discovery log, 4096 bytes.
                let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_dwords([0x03ff_0070, 0, 0, 0, 0, 0]);
                sqe.sgl = queue.expose(0, 4096);
                queue.send(&sqe, &[]);
            }
            (0..20).for_each(|_| world.tick());
            queue
        })
        .collect();
    let (mut admin, cntlid) = admin(&mut world);
    identify(&mut world, &mut admin);
    io(&mut world, 1, cntlid);
}

#[test]
fn a_disk_that_hangs_does_not_stop_the_others() {
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
        for len in [4096, LARGE] {
            let mut world = World::with_backend_depth(1, &roomy(), 8);
            let (_admin, cntlid) = admin(&mut world);
            let mut queues: Vec<_> = (1..=3).map(|qid| io(&mut world, qid, cntlid)).collect();
            world.other_disk.borrow_mut().set_hanging(true);
            let mut hanging = Vec::new();
            for queue in &mut queues {
                for at in 0..16 {
                    let sgl = queue.expose(0, len);
                    let sqe = on(2, read_write(opcode, at * 256, len, sgl));
                    hanging.push((queue.qp, queue.send(&sqe, &[])));
                }
                let capsule = SglDescriptor::in_capsule(0, 512);
                queue.send(&on(2, read_write(NvmOpcode::WRITE, 0, 512, capsule)), &[7; 512]);
            }
            (0..200).for_each(|_| world.tick());
            // The same host, on queues with commands for the disk that hangs.
            for queue in &mut queues {
                works(&mut world, queue, 1);
            }
            world.other_disk.borrow_mut().set_hanging(false);
            for queue in &mut queues {
                for &(qp, cid) in &hanging {
                    if qp == queue.qp {
                        assert!(queue.response(&mut world, cid).0.status().is_success());
                    }
                }
            }
        }
    }
}

/// Only what the device has already may still take effect.
#[test]
fn operations_that_wait_for_the_device_end_with_their_connection() {
    let mut world = World::with_backend_depth(1, &roomy(), 2);
    let (mut admin, mut io) = connected(&mut world);
    world.disk.borrow_mut().set_hanging(true);
    for at in 0..12u64 {
        let capsule = SglDescriptor::in_capsule(0, 512);
        io.send(&read_write(NvmOpcode::WRITE, at, 512, capsule), &[7; 512]);
        let sgl = io.expose(0, 16_384);
        io.send(&read_write(NvmOpcode::WRITE, 100 + 32 * at, 16_384, sgl), &[]);
    }
    world.until("operations wait for the disk", |world| (world.count("waits_backend") > 8).then_some(()));
    io.drop_connection();
    admin.drop_connection();
    (0..200).for_each(|_| world.tick());
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
    let written =
        (0..1000).filter(|&lba| world.disk.borrow().block(lba).iter().any(|&byte| byte != 0)).count();
    assert!(written <= 2, "{written} blocks were written, and the disk took two operations at a time");
}
