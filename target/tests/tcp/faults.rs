//! PDUs that are wrong, by the row in docs/COMPLIANCE.md of who got them wrong: each ends its queue and no other.

use crate::beside::Beside;
use crate::host::{Ask, Host, Pdu, R2t, pattern, read, write};
use crate::world::World;
use nvme_proto::nvm::rw::flush;
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};

/// A write of so many bytes, which waits for its data.
fn asked(world: &mut World, io: &mut Host, len: usize) -> R2t {
    io.start(world, &write(0, SglDescriptor::transport(len as u32), len), &[]);
    let r2t = io.r2t(world);
    assert_eq!((r2t.offset, r2t.len as usize), (0, len));
    r2t
}

fn put32(pdu: &mut [u8], at: usize, value: u32) {
    pdu[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn row_02_h2c_data_that_do_not_fit() {
    let mut beside = Beside::new(Ask::default());
    let data = pattern(1, 128 << 10);
    let sequence = (2, 0);
    let range = (4, 0);
    let ttag = (1, 10);
    beside.ends("a TTAG that was never used", ttag, |world, io| {
        let r2t = asked(world, io, 8192);
        let other = R2t { ttag: r2t.ttag ^ 1, ..r2t };
        let pdu = io.h2c_data(other, 0, &data[..8192], true);
        io.send(world, &pdu);
    });
    beside.ends("another CID", (1, 8), |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(R2t { cid: r2t.cid + 1, ..r2t }, 0, &data[..8192], true);
        io.send(world, &pdu);
    });
    beside.ends("a finished R2T, once more", ttag, |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(r2t, 0, &data[..8192], true);
        io.send(world, &[&pdu[..], &pdu].concat());
    });
    beside.ends("the same piece twice", sequence, |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(r2t, 0, &data[..4096], false);
        io.send(world, &[&pdu[..], &pdu].concat());
    });
    beside.ends("a gap", sequence, |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(r2t, 4096, &data[..4096], true);
        io.send(world, &pdu);
    });
    beside.ends("DATAL 0", (1, 16), |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(r2t, 0, &[], true);
        io.send(world, &pdu);
    });
    beside.ends("more than was asked for", range, |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(r2t, 0, &data[..8196], true);
        io.send(world, &pdu);
    });
    beside.ends("behind what was asked for", range, |world, io| {
        let r2t = asked(world, io, 8192);
        let pdu = io.h2c_data(r2t, 8192, &data[..4], true);
        io.send(world, &pdu);
    });
    beside.ends("more than MAXH2CDATA", (5, 0), |world, io| {
        let r2t = asked(world, io, 256 << 10);
        let pdu = io.h2c_data(r2t, 0, &[0; (128 << 10) + 4], false);
        io.send(world, &pdu);
    });
    for (what, last, len) in [("LAST_PDU too early", true, 4096), ("LAST_PDU missing", false, 8192)] {
        beside.ends(what, sequence, |world, io| {
            let r2t = asked(world, io, 8192);
            let pdu = io.h2c_data(r2t, 0, &data[..len], last);
            io.send(world, &pdu);
        });
    }
    for difference in [-4i32, -1, 1, 4] {
        beside.ends(&format!("DATAL {difference:+}"), (1, 16), |world, io| {
            let r2t = asked(world, io, 8192);
            let mut pdu = io.h2c_data(r2t, 0, &data[..4096], false);
            put32(&mut pdu, 16, (4096 + difference) as u32);
            io.send(world, &pdu);
        });
    }
    beside.end();
}

#[test]
fn row_02_h2c_data_for_a_read() {
    let mut beside = Beside::new(Ask::default());
    let mut io = beside.io();
    let world = &mut beside.world;
    world.disk.borrow_mut().set_hanging(true);
    // A write first, to learn what TTAGs look like: a read takes the next slot.
    let r2t = asked(world, &mut io, 8192);
    let reads = (0..4).map(|_| io.start(world, &read(0, 4096), &[])).collect::<Vec<_>>();
    world.ticks(20);
    let pdu = io.h2c_data(R2t { ttag: r2t.ttag - 1, cid: reads[0], ..r2t }, 0, &[0; 4096], true);
    io.send(world, &pdu);
    world.until_queues(3);
    world.until("the connection ends", |_| {
        io.receive();
        io.waiting();
        Some(())
    });
    world.disk.borrow_mut().set_hanging(false);
    world.until_queues(2);
    beside.alone("a read");
    beside.end();
}

#[test]
fn row_04_ttags_on_an_idle_and_a_busy_queue() {
    let mut beside = Beside::new(Ask::default());
    let edges = (0..16).flat_map(|bit| [(1u16 << bit) - 1, 1 << bit]).chain([0x7fff, 0xfffe, 0xffff]);
    for ttag in edges.chain(17..40) {
        beside.ends(&format!("TTAG {ttag:#x}, idle"), (1, 10), |world, io| {
            let pdu = io.h2c_data(R2t { cid: 1, ttag, offset: 0, len: 4096 }, 0, &[0; 4096], true);
            io.send(world, &pdu);
        });
        beside.ends(&format!("TTAG {ttag:#x}, busy"), (1, 10), |world, io| {
            let busy: Vec<_> = (0..4).map(|_| asked(world, io, 4096)).collect();
            let ttag = (0..)
                .map(|more| ttag.wrapping_add(more))
                .find(|ttag| busy.iter().all(|r2t| r2t.ttag != *ttag));
            let pdu = io.h2c_data(R2t { ttag: ttag.unwrap(), ..busy[0] }, 0, &[0; 4096], true);
            io.send(world, &pdu);
        });
    }
    beside.end();
}

#[test]
fn row_05_h2c_data_that_nobody_asked_for() {
    let mut beside = Beside::new(Ask::default());
    let r2t = R2t { cid: 1, ttag: 0, offset: 0, len: 4096 };
    let mut host = Host::open(&mut beside.world, 1, Ask::default());
    let pdu = host.h2c_data(r2t, 0, &[0; 4096], true);
    host.send(&mut beside.world, &pdu);
    assert_eq!(host.pdu(&mut beside.world).fatal(), (1, 10), "the first PDU behind ICResp");
    beside.alone("the first PDU");
    beside.ends("right behind Connect", (1, 10), |world, io| io.send(world, &pdu));
    beside.world.disk.borrow_mut().set_hanging(true);
    for ttag in 0..36 {
        let mut io = beside.io();
        let cid = io.start(&mut beside.world, &flush(Nsid(1)), &[]);
        beside.world.ticks(10);
        let pdu = io.h2c_data(R2t { cid, ttag, ..r2t }, 0, &[0; 4096], true);
        io.send(&mut beside.world, &pdu);
        assert_eq!(io.pdu(&mut beside.world).fatal(), (1, 10), "a flush that is under way");
        beside.world.disk.borrow_mut().set_hanging(false);
        beside.world.until_queues(2);
        beside.world.disk.borrow_mut().set_hanging(true);
    }
    beside.world.disk.borrow_mut().set_hanging(false);
    beside.alone("a flush");
    beside.end();
}

#[test]
fn row_06_small_h2c_data_beyond_the_transfer() {
    let mut beside = Beside::new(Ask::BOTH);
    for piece in [4usize, 512, 1000, 1024] {
        beside.ends(&format!("pieces of {piece}"), (1, 10), |world, io| {
            let r2t = asked(world, io, 4096);
            // In one go: what comes behind the error is not looked at.
            let mut bytes = Vec::new();
            let mut at = 0;
            while at < 4096 {
                let len = piece.min(4096 - at);
                bytes.extend(io.h2c_data(r2t, at as u32, &vec![1; len], at + len == 4096));
                at += len;
            }
            bytes.extend(io.h2c_data(r2t, 4096, &[2; 4], true));
            bytes.extend(io.h2c_data(r2t, 0, &[3; 4096], true));
            io.send(world, &bytes);
        });
    }
    beside.end();
}

#[test]
fn row_17_and_28_maxh2cdata_is_taken_and_no_more() {
    let mut beside = Beside::new(Ask::default());
    let most = beside.good.maxh2cdata;
    assert!(most >= 4096 && most.is_multiple_of(4));
    // Its whole use is in every write; beyond it: row 2.
    let data = pattern(5, most as usize);
    assert_eq!(beside.good.write_r2t(&mut beside.world, 0, &data), Status::SUCCESS);
    assert!(beside.world.on_disk(0, most as usize) == data);
    beside.ends("4 bytes more", (5, 0), |world, io| {
        let r2t = asked(world, io, most as usize);
        let mut pdu = io.h2c_data(r2t, 0, &data, true);
        put32(&mut pdu, 4, 24 + most + 4);
        put32(&mut pdu, 16, most + 4);
        io.send(world, &pdu);
    });
    beside.end();
}

#[test]
fn row_29_ttag_0_and_a_sum_that_wraps() {
    let mut beside = Beside::new(Ask::default());
    for (what, offset, len, fatal) in [
        ("DATAL FFFFFFF0h", 16, 0xffff_fff0, (1, 4)),
        ("DATAO FFFFFFF0h", 0xffff_fff0, 4096, (4, 0)),
        ("DATAL and DATAO", 0xffff_f000, 4096, (4, 0)),
    ] {
        beside.ends(what, fatal, |world, io| {
            let r2t = asked(world, io, 8192);
            let mut pdu = io.h2c_data(r2t, offset, &[0; 4096], true);
            if len != 4096 {
                put32(&mut pdu, 4, 24u32.wrapping_add(len));
                put32(&mut pdu, 16, len);
            }
            io.send(world, &pdu);
        });
        beside.ends(&format!("{what}, TTAG 0"), fatal, |world, io| {
            let mut pdu =
                io.h2c_data(R2t { cid: 1, ttag: 0, offset: 0, len: 4096 }, offset, &[0; 4096], true);
            if len != 4096 {
                put32(&mut pdu, 4, 24u32.wrapping_add(len));
                put32(&mut pdu, 16, len);
            }
            io.send(world, &pdu);
        });
    }
    beside.end();
}

#[test]
fn row_32_r2t_is_answered_at_once_and_never_before() {
    let mut beside = Beside::new(Ask::default());
    let mut io = beside.io();
    let world = &mut beside.world;
    let data = pattern(7, 8192);
    let mut ttags = Vec::new();
    for round in 0..8 {
        let cid = io.start(world, &write(0, SglDescriptor::transport(8192), 8192), &[]);
        let r2t = io.r2t(world);
        assert!(!ttags.contains(&r2t.ttag), "a TTAG does not come back at once");
        ttags.push(r2t.ttag);
        // With the next command behind it, in one segment.
        let next = io.cid();
        let capsule = io.capsule(&Sqe { cid: next.into(), ..flush(Nsid(1)) }, &[]);
        let answer = [io.answer(r2t, &data, 4096), capsule].concat();
        io.send(world, &answer);
        let mut left = vec![cid, next];
        while !left.is_empty() {
            let Pdu::Response(cqe) = io.pdu(world) else { panic!("round {round}") };
            assert_eq!(cqe.status(), Status::SUCCESS);
            left.retain(|&cid| cid != cqe.cid().0);
        }
        assert!(world.on_disk(0, 8192) == data);
    }
    // A host that knows which TTAG comes next, and does not wait for it.
    let step = ttags[1].wrapping_sub(ttags[0]);
    let cid = io.cid();
    let sqe = Sqe { cid: cid.into(), ..write(0, SglDescriptor::transport(8192), 8192) };
    let r2t = R2t { cid, ttag: ttags[7].wrapping_add(step), offset: 0, len: 8192 };
    let bytes = [io.capsule(&sqe, &[]), io.answer(r2t, &data, 8192)].concat();
    io.send(world, &bytes);
    assert_eq!(io.pdu(world).fatal(), (1, 10));
    beside.alone("a guess");
    beside.end();
}

#[test]
fn row_36_flags() {
    let flags = (1, 1);
    for ask in Ask::DIGESTS {
        let mut beside = Beside::new(ask);
        let data = pattern(1, 4096);
        let sqe = write(0, SglDescriptor::in_capsule(0, 4096), 4096);
        let with = |mut pdu: Vec<u8>, bit: u8, hlen: usize| {
            pdu[1] ^= 1 << bit;
            if ask.header {
                let digest = nvmf_memory::Crc32c::of(&pdu[..hlen]);
                put32(&mut pdu, hlen, digest);
            }
            pdu
        };
        for bit in 0..8 {
            beside.ends(&format!("bit {bit} of a capsule, {ask:?}"), flags, |world, io| {
                let pdu = with(io.capsule(&sqe, &data), bit, 72);
                io.send(world, &pdu);
            });
            beside.ends(&format!("bit {bit} of a capsule without data, {ask:?}"), flags, |world, io| {
                let pdu = with(io.capsule(&flush(Nsid(1)), &[]), bit, 72);
                io.send(world, &pdu);
            });
            // Bit 2 is LAST_PDU.
            let expected = if bit == 2 { (2, 0) } else { flags };
            beside.ends(&format!("bit {bit} of H2CData, {ask:?}"), expected, |world, io| {
                let r2t = asked(world, io, 4096);
                let pdu = with(io.h2c_data(r2t, 0, &data, true), bit, 24);
                io.send(world, &pdu);
            });
        }
        beside.end();
    }
}

#[test]
fn headers_of_any_hlen_pdo_and_plen_end_their_connection() {
    let mut beside = Beside::new(Ask::default());
    let data = pattern(1, 4096);
    let sqe = write(0, SglDescriptor::in_capsule(0, 4096), 4096);
    for hlen in [0, 1, 8, 24, 71, 73, 128, 255] {
        beside.ends(&format!("HLEN {hlen}"), (1, 2), |world, io| {
            let mut pdu = io.capsule(&sqe, &data);
            pdu[2] = hlen;
            io.send(world, &pdu);
        });
    }
    for pdo in [0, 1, 8, 71, 73, 74] {
        beside.ends(&format!("PDO {pdo}"), (1, 3), |world, io| {
            let mut pdu = io.capsule(&sqe, &data);
            pdu[3] = pdo;
            io.send(world, &pdu);
        });
    }
    for (plen, fatal) in [(0, (1, 4)), (8, (1, 4)), (71, (1, 4)), (73 + 16384, (5, 0)), (u32::MAX, (5, 0))] {
        beside.ends(&format!("PLEN {plen}"), fatal, |world, io| {
            let mut pdu = io.capsule(&sqe, &data);
            put32(&mut pdu, 4, plen);
            io.send(world, &pdu);
        });
    }
    beside.end();
}

/// A byte of a host's stream changes on its way, wherever: its connection may end, and nobody else's.
#[test]
fn damaged_bytes_harm_their_own_connection_only() {
    for ask in [Ask::BOTH, Ask::DIGESTS[1]] {
        let mut beside = Beside::new(ask);
        let mut random = 1u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for round in 0..300 {
            let mut io = beside.io();
            let world = &mut beside.world;
            let r2ts = [asked(world, &mut io, 8192), asked(world, &mut io, 8192)];
            let small = Sqe { cid: 700.into(), ..write(16, SglDescriptor::in_capsule(0, 4096), 4096) };
            let reads = Sqe { cid: 701.into(), ..read(0, 16384) };
            let mut bytes = [
                io.capsule(&small, &[1; 4096]),
                io.h2c_data(r2ts[0], 0, &[2; 4096], false),
                io.capsule(&reads, &[]),
                io.h2c_data(r2ts[1], 0, &[3; 8192], true),
                io.h2c_data(r2ts[0], 4096, &[2; 4096], true),
            ]
            .concat();
            // Mostly in a header.
            let headers = [0, 4180, 8312, 8388, 16612];
            let at = if round % 4 == 0 { next(bytes.len()) } else { headers[next(5)] + next(28) };
            bytes[at] ^= 1 << next(8);
            let cut = next(bytes.len());
            io.send(world, &bytes[..cut]);
            world.ticks(next(3));
            io.send(world, &bytes[cut..]);
            world.ticks(next(40));
            if next(2) == 0 {
                io.reset()
            } else {
                drop(io)
            }
            beside.alone(&format!("round {round}, byte {at}"));
        }
        beside.end();
    }
}
