//! ICReq and ICResp.

use crate::host::{Ask, Host, Pdu, Queue, pattern};
use crate::world::World;
use nvme_proto::{SglDescriptor, Status};
use nvmf_target::limits::H2C_DATA_MAX;
use std::time::Duration;
use zerocopy::IntoBytes;

/// What the target answers to these bytes on a new connection.
fn answer(world: &mut World, bytes: &[u8]) -> Pdu {
    let mut host = Host::tcp(world, 1);
    host.send(world, bytes);
    let pdu = host.pdu(world);
    if pdu != Pdu::End {
        assert_eq!(host.pdu(world), Pdu::End, "nothing comes behind a termination request");
    }
    pdu
}

#[test]
fn every_refusal_of_icreq_names_its_field() {
    let mut world = World::new();
    let good = Ask::default().ic_req();
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        bytes
    };
    let cases = [
        ("flags", with(1, 1), (1, 1)),
        ("HLEN", with(2, 127), (1, 2)),
        ("HLEN", with(2, 0), (1, 2)),
        ("HLEN", with(2, 255), (1, 2)),
        ("PLEN", with(4, 127), (1, 4)),
        ("PLEN", with(4, 129), (1, 4)),
        ("PLEN", with(7, 255), (1, 4)),
        ("PFV", with(8, 1), (1, 8)),
        ("PFV", with(9, 1), (1, 8)),
        ("HPDA", with(10, 32), (1, 10)),
        ("HPDA", with(10, 255), (1, 10)),
        // The lowest field is reported, and digest bits change nothing (row 1).
        (
            "all",
            {
                let mut all = with(1, 8);
                all[11] = 3;
                (all[4], all[8], all[10]) = (1, 1, 99);
                all
            },
            (1, 1),
        ),
        (
            "PFV with digests",
            {
                let mut all = with(8, 1);
                all[11] = 3;
                all
            },
            (1, 8),
        ),
    ];
    for (at, (what, bytes, fatal)) in cases.iter().enumerate() {
        let pdu = answer(&mut world, bytes);
        assert_eq!(pdu.fatal(), *fatal, "{what}");
        let Pdu::Term { header, .. } = pdu else { unreachable!() };
        assert!(
            header.len() >= 8 && header == bytes[..header.len()],
            "{what}: the header that is complained of"
        );
        world.until_counted("rejected_parameters", at as u64 + 1);
    }
    world.until_clean();
}

#[test]
fn no_other_pdu_comes_before_icreq_or_a_second_icreq() {
    let mut world = World::new();
    for kind in [4, 6] {
        let mut bytes = Ask::default().ic_req();
        (bytes[0], bytes[2], bytes[4]) = (kind, if kind == 4 { 72 } else { 24 }, 72);
        assert_eq!(answer(&mut world, &bytes).fatal(), (2, 0), "PDU type {kind} first");
    }
    // A termination request (3) is never answered with one.
    for kind in [1, 5, 7, 8, 9, 10, 255] {
        let mut bytes = Ask::default().ic_req();
        bytes[0] = kind;
        assert_eq!(answer(&mut world, &bytes).fatal(), (1, 0), "PDU type {kind} is none for a controller");
    }
    let mut host = Host::open(&mut world, 1, Ask::BOTH);
    host.send(&mut world, &Ask::BOTH.ic_req());
    assert_eq!(host.pdu(&mut world).fatal(), (2, 0), "a second ICReq");
    let (mut admin, _) = Host::admin(&mut world, 1, Ask::default());
    admin.send(&mut world, &Ask::default().ic_req());
    assert_eq!(admin.pdu(&mut world).fatal(), (2, 0), "a second ICReq on a connected queue");
    world.until_clean();
}

#[test]
fn host_that_terminates_at_once_gets_no_answer() {
    let mut world = World::new();
    for plen in [24, 8, 200] {
        let mut bytes = [0; 200];
        (bytes[0], bytes[2], bytes[4], bytes[8]) = (2, 24, plen, 1);
        assert_eq!(answer(&mut world, &bytes[..usize::from(plen)]), Pdu::End, "PLEN {plen}");
    }
    // On a queue, too.
    for plen in [24, 152, 8, 153] {
        let (mut admin, _) = Host::admin(&mut world, 1, Ask::BOTH);
        let mut bytes = [0; 200];
        (bytes[0], bytes[2], bytes[4], bytes[8]) = (2, 24, plen, 1);
        admin.send(&mut world, &bytes[..usize::from(plen)]);
        assert_eq!(admin.pdu(&mut world), Pdu::End, "PLEN {plen}");
        world.until_clean();
    }
    assert_eq!(world.count("violations"), 2, "an invalid termination request is a violation");
}

#[test]
fn every_hpda_is_obeyed() {
    let mut world = World::new();
    let data = pattern(1, 16384);
    for hpda in 0..32 {
        for digests in [Ask::default(), Ask::BOTH] {
            // PDO and the padding are checked where PDUs are read.
            let ask = Ask { hpda, ..digests };
            let (_admin, cntlid) = Host::admin(&mut world, 1, ask);
            let mut io = Host::io(&mut world, 1, ask, 1, cntlid);
            assert_eq!(io.write(&mut world, 0, &data), Status::SUCCESS);
            assert!(io.read(&mut world, 0, 16384) == data, "HPDA {hpda}");
        }
        world.until_clean();
    }
}

#[test]
fn maxr2t_of_any_size_means_one_r2t_a_command() {
    let mut world = World::new();
    for maxr2t in [0, 1, u32::MAX] {
        let ask = Ask { maxr2t, ..Ask::default() };
        let (_admin, cntlid) = Host::admin(&mut world, 1, ask);
        let mut io = Host::io(&mut world, 1, ask, 1, cntlid);
        assert_eq!(io.maxh2cdata, H2C_DATA_MAX);
        let data = pattern(maxr2t, 1 << 20);
        let sqe = crate::host::write(0, SglDescriptor::transport(1 << 20), 1 << 20);
        let cid = io.start(&mut world, &sqe, &[]);
        let mut asked = 0;
        while asked < 1 << 20 {
            let r2t = io.r2t(&mut world);
            assert_eq!((r2t.cid, r2t.offset), (cid, asked), "R2Ts follow each other");
            world.ticks(50);
            assert_eq!(io.waiting(), 0, "a second R2T before the first is answered");
            asked += r2t.len;
            let answer = io.answer(r2t, &data, io.maxh2cdata);
            io.send(&mut world, &answer);
        }
        let (cqe, _) = io.finish(&mut world, cid, &[]);
        assert_eq!(cqe.unwrap().status(), Status::SUCCESS);
        assert!(world.on_disk(0, 1 << 20) == data);
        drop((_admin, io));
        world.until_clean();
    }
}

#[test]
fn bytes_behind_a_split_icreq_belong_to_the_queue() {
    let mut world = World::new();
    for split in [1, 7, 8, 9, 64, 127, 128] {
        let mut host = Host::tcp(&world, 1);
        let connect = Queue::ADMIN.command(SglDescriptor::in_capsule(0, 1024));
        let capsule = host.capsule(&connect, Queue::ADMIN.data(1).as_bytes());
        let bytes = [&Ask::default().ic_req()[..], &capsule].concat();
        host.send(&mut world, &bytes[..split]);
        world.ticks(20);
        host.send(&mut world, &bytes[split..]);
        assert_eq!(host.take(&mut world, 128).expect("ICResp")[0], 1);
        let Pdu::Response(cqe) = host.pdu(&mut world) else { panic!("split at {split}") };
        assert_eq!(cqe.status(), Status::SUCCESS, "split at {split}");
        drop(host);
        world.until_clean();
    }
}

#[test]
fn icreq_that_does_not_come_ends_its_connection_and_is_said() {
    let mut world = World::new();
    let mut silent = Host::tcp(&world, 1);
    let mut slow = Host::tcp(&world, 2);
    world.ticks(20);
    for at in 0..9 {
        slow.send(&mut world, &Ask::default().ic_req()[at..=at]);
        world.pass(Duration::from_secs(1));
    }
    assert_eq!((silent.waiting(), slow.waiting()), (0, 0));
    world.pass(Duration::from_secs(2));
    assert_eq!((silent.pdu(&mut world), slow.pdu(&mut world)), (Pdu::End, Pdu::End), "10 s have passed");
    world.until_counted("rejected_parameters", 2);
    world.until_clean();
}
