//! Receives that queues borrow beyond their own, over a provider where messages wait for a receive.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{SglDescriptor, Sqe};
use nvmf_target::settings::Settings;
use std::time::Duration;

/// Of each queue.
const OWN: u16 = 8;
/// Commands that a host has under way.
const DEPTH: usize = 31;

/// Queues of 32 entries, which have a quarter of their receives for themselves.
fn lending(lent: usize) -> Settings {
    Settings {
        connections: 32,
        admin_receives: 16 * 36,
        io_receives: 16 * usize::from(OWN),
        own_receives: OWN,
        lent_receives: lent,
        transfer_timeout: Duration::from_secs(5),
        ..settings()
    }
}

fn write_in_capsule(nsid: u32, lba: usize) -> Sqe {
    let sqe = read_write(NvmOpcode::WRITE, lba as u64 * 8, 4096, SglDescriptor::in_capsule(0, 4096));
    Sqe { nsid: nsid.into(), ..sqe }
}

/// Sends as many writes in capsules as a queue takes; their CIDs.
fn fill(queue: &mut HostQueue, nsid: u32) -> Vec<u16> {
    (0..DEPTH).map(|at| queue.send(&write_in_capsule(nsid, at), &pattern(at as u32, 4096))).collect()
}

fn lent(world: &mut World) -> u32 {
    world.workers[0].transport().receives_lent()
}

fn ticks(world: &mut World, count: usize) {
    (0..count).for_each(|_| world.tick());
}

fn answered(world: &mut World, queue: &mut HostQueue, cids: &[u16]) {
    for &cid in cids {
        assert!(queue.response(world, cid).0.status().is_success());
    }
}

/// Full of writes, again and again.
fn works(world: &mut World, queue: &mut HostQueue) {
    for _ in 0..3 {
        let cids = fill(queue, 1);
        answered(world, queue, &cids);
    }
}

#[test]
fn queue_borrows_up_to_its_depth_and_gives_back_what_it_borrowed() {
    let mut world = World::new(1, &lending(256));
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    // More often than there are receives.
    for _ in 0..8 {
        world.other_disk.borrow_mut().set_hanging(true);
        let before = world.count("commands");
        let slow = fill(&mut io, 2);
        ticks(&mut world, 200);
        assert_eq!(world.count("commands") - before, DEPTH as u64, "all were taken up");
        assert!(lent(&mut world) > 0);
        world.other_disk.borrow_mut().set_hanging(false);
        answered(&mut world, &mut io, &slow);
        assert_eq!(lent(&mut world), 0);
        works(&mut world, &mut io);
        assert_eq!(lent(&mut world), 0);
    }
}

#[test]
fn queue_without_anything_to_borrow_goes_on_with_its_own() {
    let mut world = World::new(1, &lending(0));
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    works(&mut world, &mut io);
    let data = pattern(9, 131_072);
    // The answers to the target's RDMA READs come behind capsules that wait for a receive.
    for _ in 0..3 {
        let mut cids = Vec::new();
        for at in 0..DEPTH {
            cids.push(if at % 3 == 0 {
                io.data.write(0, &data);
                let sgl = io.expose(0, 131_072);
                io.send(&read_write(NvmOpcode::WRITE, 2048, 131_072, sgl), &[])
            } else {
                io.send(&write_in_capsule(1, at), &pattern(at as u32, 4096))
            });
        }
        answered(&mut world, &mut io, &cids);
    }
}

/// They are behind RDMA READs whose answers come behind those that wait for a receive: none may wait for such a buffer.
#[test]
fn data_at_any_offset_of_a_capsule_wait_for_no_buffer() {
    let mut world = World::new(1, &lending(0));
    let (_admin, cntlid) = admin(&mut world);
    let mut queues: Vec<_> = (1..=4).map(|qid| io(&mut world, qid, cntlid)).collect();
    for _ in 0..3 {
        let mut cids = Vec::new();
        for io in &mut queues {
            io.data.write(0, &pattern(9, 4096));
            let mut of_queue = Vec::new();
            for at in 0..DEPTH {
                of_queue.push(if at < DEPTH / 2 {
                    let sgl = io.expose(0, 4096);
                    io.send(&read_write(NvmOpcode::WRITE, 2048, 4096, sgl), &[])
                } else {
                    let sgl = SglDescriptor::in_capsule(4, 512);
                    let data = [&[0; 4][..], &pattern(at as u32, 512)].concat();
                    io.send(&read_write(NvmOpcode::WRITE, 4096 + at as u64, 512, sgl), &data)
                });
            }
            cids.push(of_queue);
        }
        for (io, cids) in queues.iter_mut().zip(&cids) {
            answered(&mut world, io, cids);
        }
    }
}

#[test]
fn hosts_of_a_hung_disk_leave_other_queues_their_receives() {
    let mut world = World::new(1, &lending(40));
    let (_admin, cntlid) = admin(&mut world);
    let mut early = io(&mut world, 1, cntlid);
    world.other_disk.borrow_mut().set_hanging(true);
    let mut stuck = Vec::new();
    for host in 2..6 {
        let (admin, cntlid) = admin_of(&mut world, host);
        for qid in 1..=2 {
            let mut queue = io_of(&mut world, host, qid, cntlid, 32);
            let cids = fill(&mut queue, 2);
            ticks(&mut world, 100);
            stuck.push((queue, cids));
        }
        stuck.push((admin, Vec::new()));
    }
    assert!(lent(&mut world) > 20, "they borrowed what they could");
    works(&mut world, &mut early);
    let mut late = io(&mut world, 2, cntlid);
    works(&mut world, &mut late);
    world.other_disk.borrow_mut().set_hanging(false);
    for (queue, cids) in &mut stuck {
        answered(&mut world, queue, cids);
    }
    assert_eq!((lent(&mut world), world.count("rejected_resources")), (0, 0));
}

/// What a queue could not borrow once, it borrows when it comes back.
#[test]
fn queue_that_was_refused_borrows_when_others_give_back() {
    let mut world = World::new(1, &lending(16));
    let (_admin, cntlid) = admin(&mut world);
    let mut queues: Vec<_> = (1..=3).map(|qid| io(&mut world, qid, cntlid)).collect();
    world.other_disk.borrow_mut().set_hanging(true);
    for queue in &mut queues[..2] {
        fill(queue, 2);
    }
    ticks(&mut world, 100);
    let before = world.count("commands");
    world.disk.borrow_mut().set_hanging(true);
    let slow = fill(&mut queues[2], 1);
    ticks(&mut world, 100);
    let refused = world.count("commands") - before;
    assert!(refused < DEPTH as u64, "it has what it has for itself, and its share");
    queues[..2].iter_mut().for_each(HostQueue::drop_connection);
    world.other_disk.borrow_mut().set_hanging(false);
    world.until("it has more", |world| (world.count("commands") - before > refused).then_some(()));
    world.disk.borrow_mut().set_hanging(false);
    answered(&mut world, &mut queues[2], &slow);
    assert_eq!(lent(&mut world), 0);
}

#[test]
fn queue_that_waits_for_its_disk_is_not_taken_for_a_stopped_host() {
    let mut world = World::new(1, &lending(0));
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.other_disk.borrow_mut().set_hanging(true);
    let sgl = io.expose(0, 131_072);
    let mut cids = vec![io.send(&read_write(NvmOpcode::WRITE, 2048, 131_072, sgl), &[])];
    cids.extend(fill(&mut io, 2).drain(..DEPTH - 1));
    for _ in 0..20 {
        world.now += Duration::from_secs(1);
        ticks(&mut world, 5);
        admin.run(&mut world, &Sqe::new(nvme_proto::opcode::AdminOpcode::KEEP_ALIVE.0), &[]);
    }
    assert_eq!(world.count("transfer_timeouts"), 0);
    world.other_disk.borrow_mut().set_hanging(false);
    answered(&mut world, &mut io, &cids);
}

/// More commands than the queue has entries, and no response is taken: it ends in time, and leaves nothing lent.
#[test]
fn host_that_sends_more_than_its_queue_takes_ends_in_time() {
    let mut world = World::new(1, &lending(256));
    let (_admin, cntlid) = admin_of(&mut world, 2);
    let mut flooding = io_of(&mut world, 2, 1, cntlid, 32);
    world.fabric.stop_taking(flooding.qp);
    for at in 0..120 {
        flooding.send(&write_in_capsule(1, at % 64), &pattern(0, 4096));
    }
    ticks(&mut world, 200);
    let (_own_admin, own) = admin(&mut world);
    let mut other = io(&mut world, 1, own);
    works(&mut world, &mut other);
    for _ in 0..8 {
        world.now += Duration::from_secs(1);
        ticks(&mut world, 5);
    }
    assert_eq!(world.count("transfer_timeouts"), 1);
    world.until("nothing is lent", |world| (lent(world) == 0).then_some(()));
}
