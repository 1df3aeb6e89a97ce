//! Header and data digests, right and wrong.

use crate::host::{Ask, Host, Pdu, R2t, pattern, write};
use crate::world::{World, settings};
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::settings::Settings;

#[test]
fn digests_none_header_data_and_both_carry_data() {
    let mut world = World::new();
    for (round, ask) in Ask::DIGESTS.into_iter().enumerate() {
        let (mut admin, cntlid) = Host::admin(&mut world, 1, ask);
        let mut io = Host::io(&mut world, 1, ask, 1, cntlid);
        for (at, len) in [512, 4096, 16384, 131_072, 524_288, 1 << 20].into_iter().enumerate() {
            let data = pattern((round * 8 + at) as u32, len);
            let status = match len {
                0..=16384 => io.write(&mut world, 8, &data),
                _ => io.write_r2t(&mut world, 8, &data),
            };
            assert_eq!(status, Status::SUCCESS, "{ask:?}, {len} bytes");
            assert!(world.on_disk(8, len) == data, "{ask:?}: {len} bytes were written different");
            assert!(io.read(&mut world, 8, len) == data, "{ask:?}: {len} bytes were read different");
            assert_eq!(io.write_r2t(&mut world, 8, &data), Status::SUCCESS);
        }
        let mut identify = Sqe { sgl: SglDescriptor::transport(4096), ..Sqe::new(6) };
        identify.cdw10 = 1.into();
        let (status, data) = admin.run(&mut world, &identify, &[]);
        assert_eq!((status, data.len()), (Status::SUCCESS, 4096));
        drop((admin, io));
        world.until_clean();
    }
}

/// Row 18: in pieces of 4 KiB, each with its digest.
#[test]
fn row_18_each_piece_has_its_digest() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::BOTH);
    let mut io = Host::io(&mut world, 1, Ask::BOTH, 1, cntlid);
    io.maxh2cdata = 4096;
    let data = pattern(3, 300 * 512);
    assert_eq!(io.write_r2t(&mut world, 0, &data), Status::SUCCESS);
    assert!(world.on_disk(0, data.len()) == data);
}

#[test]
fn wrong_header_digest_ends_the_connection_and_no_other() {
    let mut world = World::new();
    let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::BOTH);
    let mut good = Host::io(&mut world, 1, Ask::BOTH, 1, cntlid);
    let data = pattern(1, 4096);
    let sqe = write(0, SglDescriptor::in_capsule(0, 4096), 4096);
    for (at, bit) in [(1, 3), (3, 0), (4, 0), (7, 7), (8, 0), (40, 1), (71, 7), (72, 0), (75, 7)] {
        let mut io = Host::io(&mut world, 1, Ask::BOTH, 2, cntlid);
        let mut capsule = io.capsule(&sqe, &data);
        capsule[at] ^= 1 << bit;
        io.send(&mut world, &capsule);
        let received = u32::from_le_bytes(capsule[72..76].try_into().unwrap());
        assert_eq!(io.pdu(&mut world).fatal(), (3, received), "byte {at}, bit {bit}");
        assert_eq!(io.pdu(&mut world), Pdu::End);
        world.until_queues(2);
        good.check(&mut world, at as u32);
    }
    // Of H2CData.
    let mut io = Host::io(&mut world, 1, Ask::BOTH, 2, cntlid);
    io.start(&mut world, &write(0, SglDescriptor::transport(65536), 65536), &[]);
    let r2t = io.r2t(&mut world);
    let mut answer = io.answer(r2t, &pattern(2, 65536), 65536);
    answer[12] ^= 4;
    io.send(&mut world, &answer);
    assert_eq!(io.pdu(&mut world).fatal().0, 3);
    world.until_queues(2);
    assert_eq!(world.buffers_out(), 0);
    assert!(world.on_disk(0, 65536).iter().all(|&byte| byte == 0), "nothing was written");
    assert_eq!(world.count("violations"), 10);
    good.check(&mut world, 99);
    assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
}

/// Row 8: a wrong data digest fails one command, once.
#[test]
fn row_08_wrong_data_digest_fails_its_command_and_nothing_else() {
    let mut world = World::new();
    for ask in [Ask::DIGESTS[2], Ask::BOTH] {
        let (mut admin, cntlid) = Host::admin(&mut world, 1, ask);
        let mut io = Host::io(&mut world, 1, ask, 1, cntlid);
        let zeroes = vec![0; 1 << 20];
        assert_eq!(io.write_r2t(&mut world, 0, &zeroes), Status::SUCCESS);
        // In the capsule.
        let data = pattern(1, 4096);
        let sqe = write(0, SglDescriptor::in_capsule(0, 4096), 4096);
        for at in [72, 80, 4100] {
            let cid = io.cid();
            let mut capsule = io.capsule(&Sqe { cid: cid.into(), ..sqe }, &data);
            let at = if at == 72 { capsule.len() - 1 } else { at };
            capsule[at] ^= 0x10;
            io.send(&mut world, &capsule);
            let (cqe, _) = io.finish(&mut world, cid, &[]);
            assert_eq!(cqe.unwrap().status(), Status::TRANSIENT_TRANSPORT_ERROR, "byte {at}");
            assert!(world.on_disk(0, 4096) == zeroes[..4096], "damaged data were written");
            io.check(&mut world, at as u32);
        }
        // The first, a middle, the last, and every H2CData.
        for len in [16384usize, 65536, 131_072] {
            let data = pattern(2, len);
            let sqe = write(0, SglDescriptor::transport(len as u32), len);
            for damaged in [Some(0), Some(1), Some(len / 4096 - 1), None] {
                let cid = io.start(&mut world, &sqe, &[]);
                let r2t = io.r2t(&mut world);
                assert_eq!(r2t.len as usize, len);
                for (piece, bytes) in data.chunks(4096).enumerate() {
                    let end = (piece + 1) * 4096;
                    let mut pdu = io.h2c_data(r2t, (piece * 4096) as u32, bytes, end == len);
                    if damaged.is_none_or(|damaged| damaged == piece) {
                        let at = pdu.len() - 1 - piece % 8;
                        pdu[at] ^= 1;
                    }
                    io.send(&mut world, &pdu);
                }
                let (cqe, _) = io.finish(&mut world, cid, &[]);
                assert_eq!(cqe.unwrap().status(), Status::TRANSIENT_TRANSPORT_ERROR, "{damaged:?} of {len}");
                assert!(world.on_disk(0, len) == zeroes[..len], "damaged data were written");
                io.check(&mut world, len as u32);
            }
        }
        // The capsule of a command that is refused anyway: its own status, whatever the data were.
        for (sqe, status) in [
            (Sqe { opcode: 0x7e, ..sqe }, Status::INVALID_OPCODE),
            (Sqe { nsid: Nsid(9).0.into(), ..sqe }, Status::INVALID_NAMESPACE),
        ] {
            let cid = io.cid();
            let mut capsule = io.capsule(&Sqe { cid: cid.into(), ..sqe }, &data);
            *capsule.last_mut().unwrap() ^= 1;
            io.send(&mut world, &capsule);
            let (cqe, _) = io.finish(&mut world, cid, &[]);
            assert!(cqe.unwrap().status().is(status), "{status}");
            io.check(&mut world, 5);
        }
        // Then the connection ends in the middle of all this.
        let cid = io.start(&mut world, &write(0, SglDescriptor::transport(65536), 65536), &[]);
        let r2t = io.r2t(&mut world);
        assert_eq!(r2t.cid, cid);
        let mut pdu = io.h2c_data(r2t, 0, &pattern(4, 4096), false);
        *pdu.last_mut().unwrap() ^= 1;
        io.send(&mut world, &pdu);
        io.reset();
        world.until_queues(1);
        assert_eq!(world.buffers_out(), 0);
        assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
        drop(admin);
        world.until_clean();
        world.disk.borrow_mut().crash();
    }
    assert_eq!(world.count("violations"), 0);
}

/// A Connect whose data are damaged may be tried again on the same connection.
#[test]
fn connect_with_a_wrong_data_digest_may_be_tried_again() {
    use crate::host::Queue;
    use zerocopy::IntoBytes;
    let mut world = World::new();
    let mut host = Host::open(&mut world, 1, Ask::BOTH);
    let cid = host.cid();
    let sqe = Sqe { cid: cid.into(), ..Queue::ADMIN.command(SglDescriptor::in_capsule(0, 1024)) };
    let mut capsule = host.capsule(&sqe, Queue::ADMIN.data(1).as_bytes());
    *capsule.last_mut().unwrap() ^= 1;
    host.send(&mut world, &capsule);
    let (cqe, _) = host.finish(&mut world, cid, &[]);
    assert_eq!(cqe.unwrap().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    // By R2T, too.
    let cid = host.start(&mut world, &Queue::ADMIN.command(SglDescriptor::transport(1024)), &[]);
    let r2t = host.r2t(&mut world);
    let mut answer = host.answer(r2t, Queue::ADMIN.data(1).as_bytes(), 1024);
    *answer.last_mut().unwrap() ^= 1;
    host.send(&mut world, &answer);
    let (cqe, _) = host.finish(&mut world, cid, &[]);
    assert_eq!(cqe.unwrap().status(), Status::TRANSIENT_TRANSPORT_ERROR);
    assert!(host.connect(&mut world, 1, &Queue::ADMIN).is_ok());
}

/// The rest of a write whose data were damaged needs no buffer, so it waits for none.
#[test]
fn write_with_a_wrong_digest_is_answered_though_another_has_the_last_buffer() {
    let buffers = BufferPlan { classes: [(16, 4096), (16, 16384), (1, 131_072)] };
    let mut world = World::with(1, &Settings { buffers, ..settings() }, &Default::default());
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::BOTH);
    let mut io = Host::io(&mut world, 1, Ask::BOTH, 1, cntlid);
    let data = pattern(1, 3 << 17);
    let long = io.start(&mut world, &write(0, SglDescriptor::transport(3 << 17), 3 << 17), &[]);
    let first = io.r2t(&mut world);
    let short = io.start(&mut world, &write(2048, SglDescriptor::transport(1 << 17), 1 << 17), &[]);
    world.ticks(50);
    // The one buffer goes to the next chunk of the long one, and from there to the short one.
    let answer = io.answer(first, &data, 1 << 17);
    io.send(&mut world, &answer);
    let second = io.r2t(&mut world);
    assert_eq!((second.cid, second.offset, second.len), (long, 1 << 17, 1 << 17));
    let mut answer = io.answer(second, &data, 1 << 17);
    *answer.last_mut().unwrap() ^= 1;
    io.send(&mut world, &answer);
    let (mut r2t, mut status) = (None, None);
    while r2t.is_none() || status.is_none() {
        match io.pdu(&mut world) {
            Pdu::R2t { cid, ttag, offset, len } => r2t = Some(R2t { cid, ttag, offset, len }),
            Pdu::Response(cqe) => status = Some((cqe.cid().0, cqe.status())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(status, Some((long, Status::TRANSIENT_TRANSPORT_ERROR)));
    let answer = io.answer(r2t.unwrap(), &data[..1 << 17], 1 << 17);
    io.send(&mut world, &answer);
    assert!(
        matches!(io.pdu(&mut world), Pdu::Response(cqe) if (cqe.cid().0, cqe.status()) == (short, Status::SUCCESS))
    );
}
