//! Connections that end in the middle: at every step of the set-up, at every kind of byte of a write and a read.

use crate::host::{Ask, Host, Pdu, Queue, pattern, read, write};
use crate::world::{World, narrow, settings};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::nvm::rw::flush;
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use std::net::Shutdown;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How a host leaves.
#[derive(Debug, Clone, Copy)]
enum Leave {
    /// RST.
    Reset,
    /// FIN in both directions.
    Close,
    /// FIN, and goes on reading.
    HalfClose,
}

const LEAVES: [Leave; 3] = [Leave::Reset, Leave::Close, Leave::HalfClose];

fn leave(world: &mut World, host: Host, how: Leave) {
    match how {
        Leave::Reset => host.reset(),
        Leave::Close => drop(host),
        Leave::HalfClose => {
            let mut host = host;
            host.socket.shutdown(Shutdown::Write).unwrap();
            world.until("the target closes, too", |_| {
                host.receive();
                host.has_ended().then_some(())
            });
        }
    }
}

/// Rows 1, 9 and 10: the end comes between accept and the first read, within ICReq, behind it, before ICResp is read.
#[test]
fn rows_01_09_10_end_in_each_step_of_the_set_up() {
    let mut world = World::with(2, &settings(), &Default::default());
    let (_admin, cntlid) = Host::admin(&mut world, 9, Ask::BOTH);
    let mut good = Host::io(&mut world, 9, Ask::BOTH, 1, cntlid);
    let mut bad = Ask::BOTH.ic_req();
    bad[8] = 1;
    for how in LEAVES {
        for icreq in [Ask::BOTH.ic_req(), bad] {
            for len in [0, 1, 7, 8, 9, 12, 127, 128] {
                for ticks in [0, 1, 2, 3, 20] {
                    let mut host = Host::tcp(&world, 1);
                    host.send(&mut world, &icreq[..len]);
                    world.ticks(ticks);
                    leave(&mut world, host, how);
                    world.ticks(ticks);
                }
            }
        }
        world.until_queues(2);
        assert_eq!(world.controllers(), 1);
        good.check(&mut world, 1);
    }
}

/// Row 12: the end comes during Connect, of either queue, in the capsule and by R2T.
#[test]
fn row_12_end_at_each_step_of_connect() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 9, Ask::default());
    let mut good = Host::io(&mut world, 9, Ask::default(), 1, cntlid);
    for how in LEAVES {
        for queue in [Queue::ADMIN, Queue { qid: 2, cntlid, ..Queue::ADMIN }] {
            let owner = if queue.qid == 0 { 1 } else { 9 };
            let data = queue.data(owner);
            for cut in [1, 8, 71, 72, 73, 80, 1095, 1096] {
                for ticks in [0, 1, 2, 20] {
                    let mut host = Host::open(&mut world, owner, Ask::default());
                    let capsule =
                        host.capsule(&queue.command(SglDescriptor::in_capsule(0, 1024)), data.as_bytes());
                    host.send(&mut world, &capsule[..cut]);
                    world.ticks(ticks);
                    leave(&mut world, host, how);
                    world.until_queues(2);
                    assert_eq!(
                        (world.controllers(), world.buffers_out()),
                        (1, 0),
                        "{how:?} after {cut} bytes"
                    );
                }
            }
            for cut in [0, 1, 24, 25, 1047, 1048] {
                let mut host = Host::open(&mut world, owner, Ask::default());
                host.start(&mut world, &queue.command(SglDescriptor::transport(1024)), &[]);
                let r2t = host.r2t(&mut world);
                let answer = host.answer(r2t, data.as_bytes(), 1024);
                host.send(&mut world, &answer[..cut]);
                world.ticks(cut % 3);
                leave(&mut world, host, how);
                world.until_queues(2);
                assert_eq!((world.controllers(), world.buffers_out()), (1, 0), "{how:?} after {cut} bytes");
            }
        }
        good.check(&mut world, 2);
        assert_eq!(world.slots_out(), 0);
    }
}

/// Row 19: RST at each byte of a 64 KiB write that matters: in and around every header, digest and chunk.
#[test]
fn row_19_reset_at_each_byte_of_a_write() {
    let mut world = World::new();
    let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::BOTH);
    let mut good = Host::io(&mut world, 1, Ask::BOTH, 1, cntlid);
    let data = pattern(1, 65536);
    let mut round = 0;
    for piece in [65536usize, 16384, 4096] {
        // Of each PDU: its header, digests, and the first and last bytes of its data.
        let len = 28 + piece + 4;
        let pdus = if piece == 4096 { vec![0, 1, 15] } else { (0..65536 / piece).collect() };
        let in_pdu = (0..34).chain([len / 2, len / 2 + 1]).chain(len - 6..len);
        let cuts: Vec<usize> =
            pdus.iter().flat_map(|pdu| in_pdu.clone().map(move |at| pdu * len + at)).collect();
        for cut in cuts.into_iter().chain([65536 / piece * len]) {
            let mut io = Host::io(&mut world, 1, Ask::BOTH, 2, cntlid);
            io.start(&mut world, &write(0, SglDescriptor::transport(65536), 65536), &[]);
            let r2t = io.r2t(&mut world);
            let answer = io.answer(r2t, &data, piece as u32);
            io.send(&mut world, &answer[..cut]);
            world.ticks(round % 4);
            round += 1;
            io.reset();
            world.until_queues(2);
            assert_eq!(world.buffers_out(), 0, "{cut} bytes in pieces of {piece}");
        }
        good.check(&mut world, 3);
    }
    assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
    assert_eq!(world.controllers(), 1);
}

/// The same in a capsule, and with the disk at work.
#[test]
fn row_19_end_within_in_capsule_writes_and_while_the_disk_works() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::BOTH);
    let mut good = Host::io(&mut world, 1, Ask::BOTH, 1, cntlid);
    let data = pattern(1, 16384);
    let sqe = write(0, SglDescriptor::in_capsule(0, 16384), 16384);
    for how in LEAVES {
        for cut in [1, 8, 40, 72, 75, 76, 77, 4172, 8192, 16459, 16460, 16463, 16464] {
            for ticks in [0, 1, 3] {
                let mut io = Host::io(&mut world, 1, Ask::BOTH, 2, cntlid);
                let whole = io.capsule(&sqe, &data);
                let bytes = [&whole[..], &whole[..cut]].concat();
                io.send(&mut world, &bytes);
                world.ticks(ticks);
                leave(&mut world, io, how);
                world.until_queues(2);
                assert_eq!((world.buffers_out(), world.slots_out()), (0, 0), "{how:?} after {cut} bytes");
            }
        }
        good.check(&mut world, 4);
    }
}

/// Reads and writes that the device has when their connection ends: its buffers and slots come back when it is done.
#[test]
fn end_while_a_hung_disk_has_the_data() {
    let mut world = World::new();
    let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut other = Host::admin(&mut world, 2, Ask::default());
    for how in LEAVES {
        let mut io = Host::io(&mut world, 1, Ask::default(), 2, cntlid);
        world.disk.borrow_mut().set_hanging(true);
        io.start(&mut world, &read(0, 131_072 * 2), &[]);
        io.start(&mut world, &write(64, SglDescriptor::in_capsule(0, 8192), 8192), &[1; 8192]);
        io.start(&mut world, &write(128, SglDescriptor::in_capsule(512, 512), 512), &[1; 1024]);
        io.start(&mut world, &flush(Nsid(1)), &[]);
        io.start(&mut world, &write(256, SglDescriptor::transport(65536), 65536), &[]);
        world.ticks(100);
        leave(&mut world, io, how);
        world.ticks(100);
        assert_eq!(world.queues(), 3, "operations in flight hold their queue");
        assert!(world.slots_out() >= 1, "the disk still reads the capsule");
        assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
        world.disk.borrow_mut().set_hanging(false);
        world.until_queues(2);
        assert_eq!((world.buffers_out(), world.slots_out()), (0, 0));
    }
    assert_eq!(other.0.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
    drop((admin, other));
    world.until_clean();
}

/// A violation while data of a read are half sent: nothing can be said within a PDU, and nothing wrong is.
#[test]
fn violation_within_a_half_sent_pdu_closes_without_a_word() {
    let mut world = World::with(1, &settings(), &narrow());
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    for bytes in [&[0xff; 8][..], &[2, 0, 24, 0, 8, 0, 0, 0], &Ask::default().ic_req()] {
        let queue = Queue { qid: 1, cntlid, ..Queue::ADMIN };
        let mut io = Host::tcp_with(&world, 1, Some(2048));
        io.initialize(&mut world, Ask::default());
        io.connect(&mut world, 1, &queue).unwrap();
        for _ in 0..8 {
            io.start(&mut world, &read(0, 131_072), &[]);
        }
        world.ticks(300);
        io.send(&mut world, bytes);
        world.ticks(300);
        // What arrives are whole PDUs, then the end within one.
        let mut whole = 0;
        while io.pdu_or_end(&mut world) != Pdu::End {
            whole += 1;
        }
        assert!(
            whole < 16 && io.rest.len() > 24,
            "{whole} whole PDUs, {} bytes of another, {bytes:?}",
            io.rest.len()
        );
        assert!(io.rest[24..].iter().all(|&byte| byte == 0), "nothing but what the disk holds");
        world.until_queues(1);
        assert_eq!(world.buffers_out(), 0);
    }
    drop(_admin);
    world.until_clean();
}

/// A host that says that we broke the protocol ends its connection only, in the middle of whatever we send.
#[test]
fn termination_by_the_host_ends_its_queue() {
    let mut world = World::with(1, &settings(), &narrow());
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut good = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    for busy in [false, true] {
        let mut io = Host::io(&mut world, 1, Ask::default(), 2, cntlid);
        if busy {
            for _ in 0..8 {
                io.start(&mut world, &read(0, 131_072), &[]);
            }
            io.start(&mut world, &write(0, SglDescriptor::transport(65536), 65536), &[]);
            world.ticks(100);
        }
        let mut term = vec![2, 0, 24, 0, 32, 0, 0, 0, 1, 0, 3, 0, 0, 0];
        term.resize(32, 0);
        io.send(&mut world, &term);
        world.until_queues(2);
        assert_eq!(world.buffers_out(), 0);
        good.check(&mut world, 5);
    }
    assert_eq!(world.count("violations"), 0, "it was not the host that broke it");
}

/// A host that takes nothing of what it asked for is closed in time; others never wait for it.
#[test]
fn host_that_reads_nothing_is_closed_in_time() {
    let mut world = World::with(1, &settings(), &narrow());
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let (_other, other) = Host::admin(&mut world, 2, Ask::default());
    let mut good = Host::io(&mut world, 2, Ask::default(), 1, other);
    let mut io = Host::tcp_with(&world, 1, Some(2048));
    io.initialize(&mut world, Ask::default());
    io.connect(&mut world, 1, &Queue { qid: 1, cntlid, ..Queue::ADMIN }).unwrap();
    for _ in 0..31 {
        io.start(&mut world, &read(0, 131_072), &[]);
    }
    for round in 0..20 {
        good.check(&mut world, round);
        let data = pattern(round, 131_072);
        assert_eq!(good.write_r2t(&mut world, 0, &data), Status::SUCCESS);
        assert!(good.read(&mut world, 0, 131_072) == data);
    }
    assert!(world.comes_to_rest(), "a full socket does not keep the worker awake: {:?}", world.last);
    assert!(!world.is_woken());
    world.pass(Duration::from_secs(45));
    assert_eq!(world.count("transfer_timeouts"), 1);
    world.until_queues(3);
    assert_eq!(world.buffers_out(), 0);
    good.check(&mut world, 77);
}

/// An orderly end by the target: Disconnect is answered, then the connection closes without a reset.
#[test]
fn disconnect_is_answered_before_the_end() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    for _ in 0..20 {
        let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
        io.check(&mut world, 1);
        let sqe = Sqe { nsid: 8.into(), ..Sqe::new(0x7f) };
        assert_eq!(io.run(&mut world, &sqe, &[]).0, Status::SUCCESS);
        assert_eq!(io.pdu(&mut world), Pdu::End);
        world.until_queues(1);
    }
    assert_eq!(world.count("violations"), 0);
}

#[test]
fn silent_host_is_cut_off_though_its_disk_hangs() {
    let mut world = World::new();
    let queue = Queue { kato_ms: 5000, ..Queue::ADMIN };
    let (mut admin, cntlid) = Host::admin_with(&mut world, 1, Ask::default(), &queue);
    let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    io.start(&mut world, &write(0, SglDescriptor::in_capsule(0, 4096), 4096), &[1; 4096]);
    io.start(&mut world, &write(8, SglDescriptor::transport(65536), 65536), &[]);
    io.r2t(&mut world);
    world.pass(Duration::from_secs(20));
    assert_eq!(admin.pdu(&mut world), Pdu::End);
    assert_eq!(io.pdu(&mut world), Pdu::End);
    assert_eq!((world.count("keep_alive_expired"), world.queues()), (1, 1), "the disk has a write of it");
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
}

/// A shutdown flushes the disk on behalf of the Admin queue.
#[test]
fn io_queues_end_with_their_admin_queue_though_a_disk_has_something_of_it() {
    let mut world = World::new();
    let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let normal = Configuration::ENABLE.with_normal_shutdown().0;
    let shutdown = PropertySet { property: Property::CC, size: 0, value: normal.into() };
    admin.start(&mut world, &shutdown.emit(), &[]);
    world.ticks(50);
    admin.reset();
    assert_eq!(io.pdu(&mut world), Pdu::End);
    world.until_queues(1);
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
}
