//! Commands that are refused or strange, by row in docs/COMPLIANCE.md: the queue lives.

use crate::beside::Beside;
use crate::host::{Ask, Host, Pdu, Queue, R2t, pattern, read, write};
use crate::world::{BLOCK, BLOCKS, World};
use nvme_proto::fabrics::{self, auth};
use nvme_proto::nvm::rw::{ReadWrite, flush};
use nvme_proto::nvm::{DatasetManagement, DsmRange};
use nvme_proto::opcode::{FabricsType, NvmOpcode};
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use nvmf_auth::{Group, Hash, Terms};
use nvmf_subsystem::Authentication;
use zerocopy::IntoBytes;

#[test]
fn row_07_sgl_of_4_gib_costs_nothing() {
    let mut beside = Beside::new(Ask::default());
    let zeroes = vec![0; 1 << 20];
    for admin in [true, false] {
        for opcode in 0..=255 {
            // Asynchronous Event Request is held.
            if admin && opcode == 0x0c {
                continue;
            }
            let (mut host, cntlid) = (None, beside.cntlid);
            let world = &mut beside.world;
            let queue = match admin {
                true => &mut beside.admin,
                false => host.insert(Host::io(world, 1, Ask::default(), 2, cntlid)),
            };
            let mut sqe = Sqe { sgl: SglDescriptor::transport(u32::MAX), ..Sqe::new(opcode) };
            (sqe.nsid, sqe.cdw10, sqe.cdw12) = (1.into(), 1.into(), u32::MAX.into());
            let cid = queue.start(world, &sqe, &[]);
            let mut most = 0;
            world.until("an answer", |world| {
                most = most.max(world.buffers_out());
                (queue.waiting() > 0).then_some(())
            });
            let (_, data) = queue.finish(world, cid, &zeroes);
            assert!(most <= 4 && data.len() <= 1 << 20, "opcode {opcode:#x}: {most} buffers");
            drop(host);
            world.until_queues(2);
        }
        beside.alone("4 GiB");
    }
    beside.end();
}

#[test]
fn row_13_reserved_bytes_are_zero() {
    // Those of each PDU are checked where it is read.
    for ask in Ask::DIGESTS {
        let mut beside = Beside::new(ask);
        let (world, admin) = (&mut beside.world, &mut beside.admin);
        for opcode in 0..=255 {
            if opcode == 0x0c {
                continue;
            }
            let mut sqe = Sqe { sgl: SglDescriptor::transport(4096), ..Sqe::new(opcode) };
            (sqe.cdw10, sqe.nsid) = (1.into(), 1.into());
            let cid = admin.start(world, &sqe, &[]);
            let (cqe, _) = admin.finish(world, cid, &[0; 4096]);
            let Some(cqe) = cqe else { continue };
            assert_eq!(cqe.dw1.get(), 0, "DW1 for opcode {opcode:#x}");
            if !cqe.status().is_success() && opcode != 0x7f {
                assert_eq!(cqe.dw0.get(), 0, "DW0 for opcode {opcode:#x}: {}", cqe.status());
            }
        }
        beside.end();
    }
}

#[test]
fn row_20_data_of_refused_commands_are_read_off() {
    for ask in [Ask::default(), Ask::BOTH] {
        let mut beside = Beside::new(ask);
        let in_capsule = |len: u32| SglDescriptor::in_capsule(0, len);
        // Bytes that would be a PDU themselves.
        let poison: Vec<u8> = (0..8192).map(|at| [2, 0, 24, 0, 24, 0, 0, 0][at % 8]).collect();
        for len in [0usize, 1, 4, 8192] {
            let good = write(0, in_capsule(8192), 8192);
            let refused = [
                ("opcode", Sqe { opcode: 0x7d, ..good }),
                ("NSID 0", Sqe { nsid: 0.into(), ..good }),
                ("NSID", Sqe { nsid: 77.into(), ..good }),
                ("broadcast", Sqe { nsid: u32::MAX.into(), ..good }),
                ("fused", Sqe { flags: good.flags | 1, ..good }),
                ("PSDT", Sqe { flags: 0, ..good }),
                ("LBA", Sqe { cdw11: 1.into(), ..good }),
                ("blocks", Sqe { cdw12: 0xffff.into(), ..good }),
                ("protection", Sqe { cdw12: (15 | 1 << 26).into(), cdw3: 1.into(), nsid: 3.into(), ..good }),
                ("data pointer", Sqe { sgl: SglDescriptor::keyed(0, 8192, 1, true), ..good }),
                ("list", Sqe { sgl: SglDescriptor::in_capsule_list(0, 16), ..good }),
                ("offset", Sqe { sgl: SglDescriptor::in_capsule(8192, 8192), ..good }),
                ("length", Sqe { sgl: in_capsule(8196), ..good }),
                ("4 GiB", Sqe { sgl: in_capsule(u32::MAX), ..good }),
                ("a read in the capsule", Sqe { opcode: 2, ..good }),
                ("Fabrics", Sqe { opcode: 0x7f, nsid: 0x77.into(), ..good }),
                ("Connect again", Sqe { opcode: 0x7f, nsid: 1.into(), ..good }),
            ];
            for (what, sqe) in refused {
                let world = &mut beside.world;
                let (status, data) = beside.good.run(world, &sqe, &poison[..len]);
                assert!(!status.is_success() && data.is_empty(), "{what} with {len} bytes: {status}");
                if what != "a read in the capsule" {
                    let sqe = Sqe { cdw10: 1.into(), ..sqe };
                    let (status, _) = beside.admin.run(world, &sqe, &poison[..len]);
                    assert!(!status.is_success(), "{what} on the Admin queue with {len} bytes: {status}");
                }
                let mut early = Host::open(world, 1, ask);
                let (status, _) = early.run(world, &sqe, &poison[..len]);
                assert!(!status.is_success(), "{what} before Connect with {len} bytes: {status}");
                assert!(early.connect(world, 3, &Queue::ADMIN).is_ok(), "then a good one");
                drop(early);
                beside.alone(what);
            }
            // Commands without data that come with some.
            assert_eq!(
                beside.good.run(&mut beside.world, &flush(Nsid(1)), &poison[..len]).0,
                Status::SUCCESS
            );
            let keep_alive = Sqe::new(0x18);
            assert_eq!(beside.admin.run(&mut beside.world, &keep_alive, &poison[..len]).0, Status::SUCCESS);
            beside.alone("flush");
        }
        beside.end();
    }
}

#[test]
fn ranges_of_hints_are_asked_for_before_success() {
    let mut beside = Beside::new(Ask::default());
    let (world, io) = (&mut beside.world, &mut beside.good);
    let before = world.on_disk(0, 4096);
    let mut sqe = DatasetManagement { ranges: 1, deallocate: false, hints: 3 }.emit(Nsid(1));
    for (start, status) in [(0, Status::SUCCESS), (u64::MAX, Status::LBA_OUT_OF_RANGE)] {
        let range = DsmRange::new(start, 8);
        sqe.sgl = SglDescriptor::transport(16);
        let cid = io.start(world, &sqe, &[]);
        let r2t = io.r2t(world);
        assert_eq!((r2t.cid, r2t.offset, r2t.len), (cid, 0, 16));
        let answer = io.answer(r2t, range.as_bytes(), 16);
        io.send(world, &answer);
        let (cqe, _) = io.finish(world, cid, &[]);
        let by_r2t = cqe.expect("a response").status();
        sqe.sgl = SglDescriptor::in_capsule(0, 16);
        let in_capsule = io.run(world, &sqe, range.as_bytes()).0;
        assert!(by_r2t.is(status) && in_capsule.is(status), "{by_r2t} and {in_capsule} for block {start}");
    }
    assert!(world.on_disk(0, 4096) == before, "hints change nothing");
    beside.alone("hints");
    beside.end();
}

/// Of all commands, those of an authentication have a length in bytes. Who sends them has shown no secret yet.
#[test]
fn message_of_an_authentication_that_is_not_of_dwords_is_refused() {
    let mut beside = Beside::new(Ask::default());
    let host = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000002";
    let terms = Terms::new(&[Hash::Sha256], &[Group::Null]).unwrap();
    let authentication =
        Authentication { hosts: [(host.parse().unwrap(), terms)].into(), ..Authentication::default() };
    beside.world.registry.lock().unwrap().set_authentication(authentication);
    for (fctype, len) in [(FabricsType::AUTHENTICATION_SEND, 3), (FabricsType::AUTHENTICATION_RECEIVE, 4095)]
    {
        let world = &mut beside.world;
        let mut host = Host::open(world, 2, Ask::default());
        host.connect(world, 2, &Queue::ADMIN).unwrap();
        let command = auth::Authentication::new(len);
        let mut sqe = Sqe { sgl: SglDescriptor::transport(len), ..fabrics::command(fctype) };
        (sqe.cdw10, sqe.cdw11) = (command.cdw10().into(), command.cdw11().into());
        for _ in 0..2 {
            let (status, data) = host.run(world, &sqe, &[]);
            assert!(status.is(Status::INVALID_FIELD) && status.dnr() && data.is_empty(), "{len}: {status}");
        }
        drop(host);
        beside.alone("a message that is not of dwords");
    }
    beside.end();
}

#[test]
fn row_21_in_capsule_offsets() {
    let mut beside = Beside::new(Ask::default());
    let (world, io) = (&mut beside.world, &mut beside.good);
    let data = pattern(9, 512);
    for offset in [1usize, 4, 511, 4095, 4096, 4097, 16384 - 512] {
        let mut capsule = vec![0xee; offset];
        capsule.extend(&data);
        let sqe = write(offset as u64 / 2, SglDescriptor::in_capsule(offset as u64, 512), 512);
        assert_eq!(io.run(world, &sqe, &capsule).0, Status::SUCCESS, "offset {offset}");
        assert!(world.on_disk(offset as u64 / 2, 512) == data, "offset {offset}");
    }
    for offset in [16384 - 511, 16384, 1 << 20, u64::from(u32::MAX), u64::MAX] {
        let sqe = write(0, SglDescriptor::in_capsule(offset, 512), 512);
        let (status, _) = io.run(world, &sqe, &vec![0xee; 16384]);
        assert!(status.is(Status::SGL_OFFSET_INVALID), "offset {offset}: {status}");
    }
    beside.alone("offsets");
    beside.end();
}

#[test]
fn row_35_more_commands_than_the_queue_has_entries() {
    let mut beside = Beside::new(Ask::default());
    for (entries, sgl) in [(2, false), (32, false), (4, true)] {
        let queue = Queue { qid: 2, entries, cntlid: beside.cntlid, ..Queue::ADMIN };
        let mut io = Host::io_with(&mut beside.world, 1, Ask::default(), &queue);
        let sqe = if sgl { write(0, SglDescriptor::transport(4096), 4096) } else { flush(Nsid(1)) };
        // As many as there are entries are taken.
        beside.world.disk.borrow_mut().set_hanging(true);
        let mut started: Vec<u16> = (0..entries).map(|_| io.start(&mut beside.world, &sqe, &[])).collect();
        beside.world.ticks(50);
        let r2ts: Vec<R2t> = (0..if sgl { entries } else { 0 }).map(|_| io.r2t(&mut beside.world)).collect();
        for r2t in r2ts {
            let answer = io.answer(r2t, &[7; 4096], 4096);
            io.send(&mut beside.world, &answer);
        }
        beside.world.ticks(50);
        assert_eq!(io.waiting(), 0);
        beside.world.disk.borrow_mut().set_hanging(false);
        while !started.is_empty() {
            let Pdu::Response(cqe) = io.pdu(&mut beside.world) else { panic!("{entries} entries") };
            started.retain(|&cid| cid != cqe.cid().0);
        }
        // One more is not.
        let before = beside.world.count("violations");
        beside.world.disk.borrow_mut().set_hanging(true);
        for _ in 0..=entries {
            io.start(&mut beside.world, &sqe, &[]);
        }
        beside.world.until("it is counted", |world| (world.count("violations") > before).then_some(()));
        beside.world.disk.borrow_mut().set_hanging(false);
        assert_eq!(beside.world.count("violations"), before + 1);
        loop {
            match io.pdu(&mut beside.world) {
                Pdu::End => break,
                Pdu::R2t { .. } | Pdu::Response(_) => {}
                other => panic!("{other:?}"),
            }
        }
        beside.alone("too many commands");
    }
    beside.end();
}

/// Commands that are answered make room, events that are held keep theirs.
#[test]
fn held_events_count_as_commands_and_answered_ones_do_not() {
    let mut world = World::new();
    for flow_control in [true, false] {
        let queue = Queue { entries: 8, flow_control, ..Queue::ADMIN };
        let (mut admin, _) = Host::admin_with(&mut world, 1, Ask::default(), &queue);
        let events: Vec<u16> = (0..2).map(|_| admin.start(&mut world, &Sqe::new(0x0c), &[])).collect();
        for _ in 0..50 {
            assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS);
            let identify = Sqe { sgl: SglDescriptor::transport(4096), cdw10: 1.into(), ..Sqe::new(6) };
            assert_eq!(admin.run(&mut world, &identify, &[]).1.len(), 4096);
            assert!(!admin.run(&mut world, &Sqe::new(0xff), &[]).0.is_success());
        }
        // Six at once beside the two.
        let cids: Vec<u16> = (0..6).map(|_| admin.cid()).collect();
        let commands: Vec<Vec<u8>> =
            cids.iter().map(|&cid| admin.capsule(&Sqe { cid: cid.into(), ..Sqe::new(0x18) }, &[])).collect();
        admin.send(&mut world, &commands.concat());
        for _ in &cids {
            assert!(matches!(admin.pdu(&mut world), Pdu::Response(cqe) if !events.contains(&cqe.cid().0)));
        }
        drop(admin);
        world.until_clean();
    }
    assert_eq!(world.count("violations"), 0);
}

/// LBAs behind the end, to be sure that errors of the disk come back by every way.
#[test]
fn errors_of_the_disk_are_the_commands_status() {
    let mut beside = Beside::new(Ask::default());
    let (world, io) = (&mut beside.world, &mut beside.good);
    let (data, missing) = (pattern(1, 16384), BLOCKS + 8);
    assert!(!io.write(world, missing, &data).is_success());
    assert!(!io.write_r2t(world, missing, &data).is_success());
    let (status, found) = io.run(world, &read(missing, 4096), &[]);
    assert!(!status.is_success() && found.is_empty());
    beside.alone("errors");
    beside.end();
}

#[test]
fn writes_and_zeroes_with_fua_survive_a_power_cut() {
    for ask in [Ask::default(), Ask::BOTH] {
        let mut world = World::new();
        let (admin, cntlid) = Host::admin(&mut world, 1, ask);
        let mut io = Host::io(&mut world, 1, ask, 1, cntlid);
        let with_fua = |opcode, lba, len: usize, sgl| {
            let rw = ReadWrite { fua: true, ..ReadWrite::new(lba, len as u32 / BLOCK) };
            Sqe { sgl, ..rw.emit(opcode, Nsid(1)) }
        };
        for len in [8192usize, 131_072, 1 << 20] {
            let data = pattern(len as u32, len);
            let sgl = SglDescriptor::transport(len as u32);
            let cid = io.start(&mut world, &with_fua(NvmOpcode::WRITE, 0, len, sgl), &[]);
            assert!(io.finish(&mut world, cid, &data).0.unwrap().status().is_success());
            world.disk.borrow_mut().crash();
            assert!(world.on_disk(0, len) == data, "{len} bytes by R2T were not all durable");
        }
        let data = pattern(1, 8192);
        let sgl = SglDescriptor::in_capsule(0, 8192);
        let write = with_fua(NvmOpcode::WRITE, 4096, 8192, sgl);
        assert!(io.run(&mut world, &write, &data).0.is_success());
        world.disk.borrow_mut().crash();
        assert!(world.on_disk(4096, 8192) == data, "data in the capsule were not all durable");
        let zeroes = with_fua(NvmOpcode::WRITE_ZEROES, 4096, 8192, SglDescriptor::transport(0));
        assert!(io.run(&mut world, &zeroes, &[]).0.is_success());
        world.disk.borrow_mut().crash();
        assert!(world.on_disk(4096, 8192) == [0; 8192], "zeroes were not all durable");
        drop((admin, io));
        world.until_clean();
    }
}
