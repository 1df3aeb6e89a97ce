//! The slots of in-capsule data: who gets one, who waits, and who gives them back.

use crate::host::{Ask, Host, Pdu, Queue, pattern, write};
use crate::world::{World, settings};
use nvme_proto::{Cntlid, SglDescriptor, Sqe, Status};
use nvmf_target::settings::Settings;
use std::time::Duration;

/// A worker with so many slots for I/O queues.
fn world(slots: usize) -> World {
    World::with(1, &Settings { io_receives: slots, ..settings() }, &Default::default())
}

fn in_capsule(nsid: u32, lba: u64, len: usize) -> Sqe {
    Sqe { nsid: nsid.into(), ..write(lba, SglDescriptor::in_capsule(0, len as u32), len) }
}

/// Queues of one host that have in-capsule writes on the way to namespace 2, whose disk hangs.
fn hanging(world: &mut World, host: u8, queues: u16, writes: usize) -> (Host, Cntlid, Vec<Host>) {
    let (admin, cntlid) = Host::admin(world, host, Ask::default());
    let ios = (1..=queues).map(|qid| Host::io(world, host, Ask::default(), qid, cntlid));
    let mut ios: Vec<Host> = ios.collect::<Vec<_>>();
    world.other_disk.borrow_mut().set_hanging(true);
    for io in &mut ios {
        for _ in 0..writes {
            io.start(world, &in_capsule(2, 0, 4096), &[7; 4096]);
        }
        // The first takes the first slot.
        world.ticks(50);
    }
    (admin, cntlid, ios)
}

#[test]
fn hung_disk_of_one_host_leaves_slots_for_others() {
    for slots in [8, 32] {
        let mut world = world(slots);
        let (mut admin, cntlid, mut stuck) = hanging(&mut world, 1, 7, 16);
        assert!(world.slots_out() >= slots / 4, "it may have some: {}", world.slots_out());
        // Another host, and the Admin queue of the same.
        let (_other, other) = Host::admin(&mut world, 2, Ask::default());
        let mut io = Host::io(&mut world, 2, Ask::default(), 1, other);
        for round in 0..20 {
            io.check(&mut world, round);
        }
        assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
        assert!(world.comes_to_rest(), "nobody turns while capsules wait: {:?}", world.last);
        assert!(!world.is_woken());
        // The disk answers again: every write succeeds.
        world.other_disk.borrow_mut().set_hanging(false);
        for io in &mut stuck {
            for _ in 0..16 {
                assert!(matches!(io.pdu(&mut world), Pdu::Response(cqe) if cqe.status() == Status::SUCCESS));
            }
        }
        assert_eq!(world.slots_out(), 0);
        let _ = cntlid;
        drop((admin, stuck, io, _other));
        world.until_clean();
    }
}

/// One queue does not take all that its machine may have.
#[test]
fn queue_on_a_hung_disk_leaves_slots_for_its_hosts_other_queues() {
    let mut world = world(32);
    let (admin, cntlid, stuck) = hanging(&mut world, 1, 1, 31);
    let mut io = Host::io(&mut world, 1, Ask::default(), 2, cntlid);
    for round in 0..20 {
        io.check(&mut world, round);
    }
    // They are lost to the disk, and come back with it.
    drop((admin, stuck, io));
    world.ticks(100);
    assert!(world.slots_out() > 0);
    world.other_disk.borrow_mut().set_hanging(false);
    world.until_clean();
}

#[test]
fn who_waits_for_a_slot_is_served_in_turn() {
    let mut world = world(2);
    let (_admin, _, mut ios) = hanging(&mut world, 1, 6, 8);
    world.other_disk.borrow_mut().set_hanging(false);
    let mut done = [0; 6];
    world.until("all writes are done", |_| {
        for (at, io) in ios.iter_mut().enumerate() {
            done[at] = io.waiting() / 24;
        }
        let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
        assert!(most - least <= 3, "one is served much more than another: {done:?}");
        (*least == 8).then_some(())
    });
    assert_eq!(world.slots_out(), 0);
}

/// A queue without slots waits; what needs none on other queues goes on, its own host's too.
#[test]
fn only_who_needs_a_slot_waits() {
    let mut world = world(1);
    let (mut admin, cntlid, mut ios) = hanging(&mut world, 1, 2, 2);
    assert_eq!(world.slots_out(), 1);
    let mut third = Host::io(&mut world, 1, Ask::default(), 3, cntlid);
    let data = pattern(3, 65536);
    assert_eq!(third.write_r2t(&mut world, 0, &data), Status::SUCCESS);
    assert!(third.read(&mut world, 0, 65536) == data);
    assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
    // One that waits breaks: seen, although nothing is read.
    let waiting = ios.remove(1);
    waiting.reset();
    world.until_queues(3);
    world.other_disk.borrow_mut().set_hanging(false);
    assert!(matches!(ios[0].pdu(&mut world), Pdu::Response(_)));
    assert!(matches!(ios[0].pdu(&mut world), Pdu::Response(_)));
    assert_eq!(world.slots_out(), 0);
    drop((admin, ios, third));
    world.until_clean();
}

/// A host that sends while its queue waits is held back by TCP: the target keeps no more than it has read at once.
#[test]
fn queue_that_waits_for_a_slot_reads_no_more() {
    use std::io::Write;
    let mut world = world(1);
    let (_admin, _cntlid, mut ios) = hanging(&mut world, 1, 2, 2);
    let junk = [0xff; 65536];
    let mut sent = 0;
    // What the kernel's buffers take, and no more: a violation would be seen if it were read.
    for _ in 0..2000 {
        sent += ios[1].socket.write(&junk).unwrap_or(0);
        world.tick();
    }
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    assert_eq!((world.count("violations"), world.queues()), (0, 3));
    assert!(world.comes_to_rest() && !world.is_woken(), "bytes that nobody reads wake nobody");
    world.other_disk.borrow_mut().set_hanging(false);
    world.until_queues(2);
    assert_eq!(world.count("violations"), 1, "now it is read");
    assert_eq!(world.slots_out(), 0);
}

/// An R2T that falls due while bytes are looked at that were held back is sent.
#[test]
fn r2t_that_falls_due_in_held_bytes_is_sent() {
    let mut world = world(1);
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    let (_other, _, mut stuck) = hanging(&mut world, 2, 1, 1);
    assert_eq!(world.slots_out(), 1);
    // 640 KiB: four chunks are asked for at once, the fifth has its buffer when the first is on the disk.
    let len = 640 << 10;
    let data = pattern(1, len);
    let cid = io.start(&mut world, &write(0, SglDescriptor::transport(len as u32), len), &[]);
    let r2t = io.r2t(&mut world);
    assert_eq!(r2t.len, 512 << 10);
    let answer = io.answer(r2t, &data, 4096);
    let last = answer.len() - 4096 - 24;
    io.send(&mut world, &answer[..last]);
    world.ticks(500);
    // The last piece comes behind a capsule that waits for a slot.
    let capsule = io.capsule(&Sqe { cid: 999.into(), ..in_capsule(2, 8, 512) }, &[9; 512]);
    let bytes = [&capsule[..], &answer[last..]].concat();
    io.send(&mut world, &bytes);
    world.ticks(100);
    assert_eq!(io.waiting(), 0);
    // The one slot comes back, and goes to that capsule, whose disk hangs again.
    world.other_disk.borrow_mut().set_hanging(false);
    assert!(matches!(stuck[0].pdu(&mut world), Pdu::Response(_)));
    world.other_disk.borrow_mut().set_hanging(true);
    let r2t = io.r2t(&mut world);
    assert_eq!((r2t.cid, r2t.offset, r2t.len), (cid, 512 << 10, 128 << 10));
    let answer = io.answer(r2t, &data, 65536);
    io.send(&mut world, &answer);
    loop {
        match io.pdu(&mut world) {
            Pdu::Response(cqe) if cqe.cid().0 == cid => break assert_eq!(cqe.status(), Status::SUCCESS),
            Pdu::Response(cqe) => assert_eq!(cqe.cid().0, 999),
            other => panic!("{other:?}"),
        }
    }
    assert!(world.on_disk(0, len) == data);
    world.other_disk.borrow_mut().set_hanging(false);
}

/// The header of a capsule came and found no slot; none of its data did. The slot that it gets then is enough to go on.
#[test]
fn capsule_of_which_only_the_header_came_gets_its_slot() {
    let mut world = world(1);
    let (_admin, _cntlid, mut ios) = hanging(&mut world, 1, 2, 1);
    // The first has the slot.
    let waiting = &mut ios[1];
    let capsule = waiting.capsule(&Sqe { cid: 998.into(), ..in_capsule(1, 8, 4096) }, &[9; 4096]);
    world.other_disk.borrow_mut().set_hanging(false);
    assert!(matches!(waiting.pdu(&mut world), Pdu::Response(_)));
    world.other_disk.borrow_mut().set_hanging(true);
    ios[0].start(&mut world, &in_capsule(2, 0, 4096), &[7; 4096]);
    world.ticks(50);
    assert_eq!(world.slots_out(), 1);
    ios[1].send(&mut world, &capsule[..72]);
    world.ticks(50);
    world.other_disk.borrow_mut().set_hanging(false);
    world.ticks(100);
    assert_eq!(world.slots_out(), 1, "it has the slot, and waits for its data");
    ios[1].send(&mut world, &capsule[72..]);
    assert!(matches!(ios[1].pdu(&mut world), Pdu::Response(cqe) if cqe.status() == Status::SUCCESS));
    assert!(world.on_disk(8, 4096) == [9; 4096]);
    assert_eq!(world.slots_out(), 0);
}

/// Row 34: half a capsule's data, then a byte a second, then nothing: it holds a slot for a bounded time.
#[test]
fn capsule_that_does_not_end_gives_its_slot_back_in_time() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut good = Host::io(&mut world, 1, Ask::default(), 3, cntlid);
    for a_byte_a_second in [false, true] {
        let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
        let capsule = io.capsule(&in_capsule(1, 0, 16384), &[5; 16384]);
        io.send(&mut world, &capsule[..8192]);
        world.ticks(20);
        assert_eq!(world.slots_out(), 1);
        for at in 8192..8192 + 50 {
            if a_byte_a_second {
                io.send(&mut world, &capsule[at..=at]);
            }
            world.pass(Duration::from_secs(1));
        }
        assert_eq!((world.slots_out(), world.queues()), (0, 2), "50 s have passed");
        assert_eq!(io.pdu(&mut world), Pdu::End);
        good.check(&mut world, 1);
    }
    assert_eq!(world.count("transfer_timeouts"), 2, "each is counted");
}

/// A host that is within a capsule whenever it is looked at, but each time within another.
#[test]
fn capsules_that_end_in_time_may_follow_each_other() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    let capsule = io.capsule(&in_capsule(1, 0, 16384), &[5; 16384]);
    io.send(&mut world, &capsule[..8192]);
    for _ in 0..90 {
        world.pass(Duration::from_secs(1));
        io.send(&mut world, &[&capsule[8192..], &capsule[..8192]].concat());
        assert!(matches!(io.pdu(&mut world), Pdu::Response(_)));
    }
}

/// Row 34, of H2CData.
#[test]
fn h2c_data_that_do_not_end_give_their_buffers_back_in_time() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut good = Host::io(&mut world, 1, Ask::default(), 3, cntlid);
    for (cut, a_byte_a_second) in [(0, false), (7, false), (24, true), (30_000, false), (30_000, true)] {
        let mut io = Host::io_with(&mut world, 1, Ask::default(), &Queue { qid: 1, cntlid, ..Queue::ADMIN });
        io.start(&mut world, &write(0, SglDescriptor::transport(65536), 65536), &[]);
        let r2t = io.r2t(&mut world);
        let answer = io.answer(r2t, &pattern(1, 65536), 65536);
        io.send(&mut world, &answer[..cut]);
        for at in cut..cut + 50 {
            if a_byte_a_second {
                io.send(&mut world, &answer[at..=at]);
            }
            world.pass(Duration::from_secs(1));
        }
        assert_eq!((world.buffers_out(), world.queues()), (0, 2), "50 s have passed after {cut} bytes");
        assert_eq!(io.pdu(&mut world), Pdu::End);
        good.check(&mut world, 1);
    }
    assert_eq!(world.count("transfer_timeouts"), 5, "each is counted");
}

/// What the host has sent is not read before there is a slot: that is no fault of the host's.
#[test]
fn queue_that_waits_for_a_slot_makes_its_host_no_stalled_one() {
    let mut world = world(1);
    let (_stuck_admin, _, mut stuck) = hanging(&mut world, 1, 1, 1);
    assert_eq!(world.slots_out(), 1);
    let (_admin, cntlid) = Host::admin(&mut world, 2, Ask::default());
    let mut io = Host::io(&mut world, 2, Ask::default(), 1, cntlid);
    let data = pattern(1, 65536);
    let cid = io.start(&mut world, &write(0, SglDescriptor::transport(65536), 65536), &[]);
    let r2t = io.r2t(&mut world);
    // The answer comes behind a capsule that waits for the slot.
    io.start(&mut world, &in_capsule(1, 1024, 512), &[9; 512]);
    let answer = io.answer(r2t, &data, 65536);
    io.send(&mut world, &answer);
    world.pass(Duration::from_secs(50));
    assert_eq!((world.count("transfer_timeouts"), world.queues()), (0, 4));
    world.other_disk.borrow_mut().set_hanging(false);
    for _ in 0..2 {
        assert!(matches!(io.pdu(&mut world), Pdu::Response(cqe) if cqe.status() == Status::SUCCESS));
    }
    assert!(matches!(stuck[0].pdu(&mut world), Pdu::Response(_)));
    assert!(world.on_disk(0, 65536) == data, "write {cid}");
}

/// The disk takes the data of a write when it carries it out: long after other capsules came and went.
#[test]
fn capsule_of_a_write_on_a_hung_disk_is_not_overwritten() {
    let mut world = World::new();
    let (_admin, _, mut stuck) = hanging(&mut world, 1, 1, 4);
    let (_other, other) = Host::admin(&mut world, 2, Ask::default());
    let mut io = Host::io(&mut world, 2, Ask::default(), 1, other);
    for at in 0..100 {
        assert_eq!(io.write(&mut world, 0, &pattern(at, 4096)), Status::SUCCESS);
    }
    world.other_disk.borrow_mut().set_hanging(false);
    for _ in 0..4 {
        assert!(matches!(stuck[0].pdu(&mut world), Pdu::Response(cqe) if cqe.status() == Status::SUCCESS));
    }
    for lba in 0..8 {
        assert_eq!(*world.other_disk.borrow().block(lba), [7; 512], "block {lba}");
    }
}
