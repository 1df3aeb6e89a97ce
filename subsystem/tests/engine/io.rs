//! I/O commands: what runs, what is refused, and with which status.

use crate::host::*;
use nvme_proto::fabrics::disconnect;
use nvme_proto::nvm::rw::flush;
use nvme_proto::nvm::{DatasetManagement, DsmRange, ReadWrite};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{SglDescriptor, Sqe};
use nvmf_block::{BlockError, BlockRange, DeviceId, Geometry};
use nvmf_subsystem::*;
use zerocopy::IntoBytes;

const OK: (u8, u8) = (0, 0);
const INVALID_FIELD: (u8, u8) = (0, 0x02);
const LENGTH: (u8, u8) = (0, 0x0f);
const DEVICE: DeviceId = DeviceId(101);

/// A command for namespace 1 with a keyed SGL for all of its blocks.
fn rw(opcode: NvmOpcode, command: ReadWrite) -> Sqe {
    keyed(command.emit(opcode, Nsid(1)), command.blocks.saturating_mul(512).min(0xff_ffff))
}

fn range(start: u64, blocks: u64) -> BlockRange {
    BlockRange::new(start, blocks)
}

/// What the engine asks the device for; completes it, and returns the status as well.
fn run(fixture: &mut Fixture, sqe: &Sqe) -> (BlockWork, Transfer, (u8, u8)) {
    let Step::Execute { ticket, work: Work::Block { device, op }, transfer } =
        capsule(&mut fixture.io, sqe, 0)
    else {
        panic!("{sqe:?} goes to the device");
    };
    assert_eq!(device, DEVICE);
    assert_eq!(fixture.io.in_flight(), 1);
    let status = code(&responded(fixture.io.on_done(NOW, ticket, Ok(()))));
    assert_eq!(fixture.io.in_flight(), 0);
    (op, transfer, status)
}

#[test]
fn io_commands_become_device_operations() {
    let mut fixture = Fixture::new();
    let fua = ReadWrite { fua: true, ..ReadWrite::new(8, 2) };
    let to_host = Transfer::ToHost { len: 1024, sink: SINK };
    let from_host = Transfer::FromHost { len: 1024, source: Source::Remote(SINK) };
    let plain = ReadWrite::new(8, 2);
    let zeroes = |fua, deallocate| BlockWork::WriteZeroes { range: range(8, 2), deallocate, fua };
    for (sqe, op, transfer) in [
        (rw(NvmOpcode::READ, plain), BlockWork::Read { range: range(8, 2) }, to_host),
        (rw(NvmOpcode::WRITE, plain), BlockWork::Write { range: range(8, 2), fua: false }, from_host),
        (rw(NvmOpcode::WRITE, fua), BlockWork::Write { range: range(8, 2), fua: true }, from_host),
        (rw(NvmOpcode::COMPARE, plain), BlockWork::Compare { range: range(8, 2) }, from_host),
        (
            keyed(plain.emit(NvmOpcode::VERIFY, Nsid(1)), 0),
            BlockWork::Verify { range: range(8, 2) },
            Transfer::None,
        ),
        (keyed(fua.emit(NvmOpcode::WRITE_ZEROES, Nsid(1)), 0), zeroes(true, false), Transfer::None),
        (
            keyed(ReadWrite { deallocate: true, ..plain }.emit(NvmOpcode::WRITE_ZEROES, Nsid(1)), 0),
            zeroes(false, true),
            Transfer::None,
        ),
        (keyed(flush(Nsid(1)), 0), BlockWork::Flush, Transfer::None),
    ] {
        assert_eq!(run(&mut fixture, &sqe), (op, transfer, OK), "{sqe:?}");
    }
}

#[test]
fn invalid_io_commands_have_their_status() {
    let mut fixture = Fixture::new();
    let good = ReadWrite::new(0, 1);
    let on = |nsid, opcode| keyed(good.emit(opcode, Nsid(nsid)), 512);
    let flags = |flags| Sqe { flags, ..on(1, NvmOpcode::READ) };
    let command = |command: ReadWrite| rw(NvmOpcode::WRITE, command);
    for (name, sqe, status) in [
        ("opcode", Sqe::new(0x04), (0, 0x01)),
        ("NSID 0", on(0, NvmOpcode::READ), (0, 0x0b)),
        ("NSID inactive", on(2, NvmOpcode::READ), (0, 0x0b)),
        ("NSID of all", on(u32::MAX, NvmOpcode::WRITE), (0, 0x0b)),
        ("flush of all", flush(Nsid::ALL), (0, 0x0b)),
        ("first block beyond the end", rw(NvmOpcode::READ, ReadWrite::new(1000, 1)), (0, 0x80)),
        ("last block beyond the end", rw(NvmOpcode::READ, ReadWrite::new(999, 2)), (0, 0x80)),
        ("end beyond 64 bits", rw(NvmOpcode::READ, ReadWrite::new(u64::MAX, 2)), (0, 0x80)),
        ("directive", command(ReadWrite { directive: 1, ..good }), INVALID_FIELD),
        ("write to read-only", on(3, NvmOpcode::WRITE), (0, 0x20)),
        ("write zeroes to read-only", on(3, NvmOpcode::WRITE_ZEROES), (0, 0x20)),
        ("SGL too short", keyed(good.emit(NvmOpcode::READ, Nsid(1)), 511), LENGTH),
        ("SGL too long", keyed(good.emit(NvmOpcode::READ, Nsid(1)), 513), LENGTH),
        ("no SGL length", keyed(good.emit(NvmOpcode::WRITE, Nsid(1)), 0), LENGTH),
        ("PRPs", flags(0x00), INVALID_FIELD),
        ("reserved FUSE", flags(0x43), INVALID_FIELD),
        ("metadata SGL", flags(0x80), INVALID_FIELD),
        ("connect again", Hello::io(1, 1).command(), (0, 0x0c)),
        (
            "property",
            nvme_proto::fabrics::property::PropertyGet {
                size: 0,
                property: nvme_proto::fabrics::property::Property::VS,
            }
            .emit(),
            (0, 0x01),
        ),
    ] {
        let cqe = ask(&mut fixture.io, &sqe);
        assert_eq!((code(&cqe), cqe.status().dnr()), (status, true), "{name}");
    }
    assert_eq!(fixture.io.in_flight(), 0);
}

#[test]
fn protection_information_fields_are_ignored() {
    let mut fixture = Fixture::new();
    let good = ReadWrite::new(0, 1);
    for command in [
        ReadWrite { prinfo: 0b1000, ..good },
        ReadWrite { prinfo: 0b0111, ..good },
        ReadWrite { storage_tag_check: true, ..good },
    ] {
        assert_eq!(run(&mut fixture, &rw(NvmOpcode::WRITE, command)).2, OK, "{command:?}");
        assert_eq!(run(&mut fixture, &rw(NvmOpcode::READ, command)).2, OK, "{command:?}");
    }
}

#[test]
fn reads_of_a_read_only_namespace_run() {
    let mut fixture = Fixture::new();
    let sqe = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(3)), 512);
    let Step::Execute { ticket, work: Work::Block { device: DeviceId(103), .. }, .. } =
        capsule(&mut fixture.io, &sqe, 0)
    else {
        panic!("a read of namespace 3");
    };
    ticket.abandon();
}

#[test]
fn transfer_beyond_mdts_is_invalid_field() {
    let options = Options { transfer_len_max: 8192, ..Options::default() };
    let mut fixture = Fixture::with(options);
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
        assert_eq!(run(&mut fixture, &rw(opcode, ReadWrite::new(0, 16))).2, OK);
        assert_eq!(code(&ask(&mut fixture.io, &rw(opcode, ReadWrite::new(0, 17)))), INVALID_FIELD);
    }
    // What moves no data knows no limit.
    let whole = ReadWrite::new(0, 1000);
    assert_eq!(run(&mut fixture, &keyed(whole.emit(NvmOpcode::WRITE_ZEROES, Nsid(1)), 0)).2, OK);
    assert_eq!(run(&mut fixture, &keyed(whole.emit(NvmOpcode::VERIFY, Nsid(1)), 0)).2, OK);
}

#[test]
fn in_capsule_data_begin_at_their_offset() {
    let mut fixture = Fixture::new();
    let mut sqe = ReadWrite::new(0, 2).emit(NvmOpcode::WRITE, Nsid(1));
    for (offset, len, capsule_len, expected) in [
        (0, 1024, 1024, Ok(0)),
        (16, 1024, 4096, Ok(16)),
        (16, 1024, 1024, Err((0, 0x16))),
        (u64::MAX, 1024, 4096, Err((0, 0x16))),
        (0, 512, 4096, Err(LENGTH)),
    ] {
        sqe.sgl = SglDescriptor::in_capsule(offset, len);
        match (capsule(&mut fixture.io, &sqe, capsule_len), expected) {
            (Step::Execute { ticket, transfer, .. }, Ok(offset)) => {
                let source = Source::InCapsule { offset };
                assert_eq!(transfer, Transfer::FromHost { len: 1024, source });
                assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Ok(())))), OK);
            }
            (step, Err(status)) => assert_eq!(code(&responded(step)), status),
            (step, Ok(_)) => panic!("{step:?}"),
        }
    }
    let mut read = ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1));
    read.sgl = SglDescriptor::in_capsule(0, 512);
    assert_eq!(
        code(&responded(capsule(&mut fixture.io, &read, 4096))),
        (0, 0x11),
        "a response carries no data"
    );
}

#[test]
fn the_key_of_the_command_is_invalidated_with_every_response() {
    let mut fixture = Fixture::new();
    let invalidate = |mut sqe: Sqe| {
        sqe.sgl = SglDescriptor::keyed(0, 512, 9, true);
        sqe
    };
    let good = invalidate(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)));
    let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &good, 0) else { panic!("a read") };
    assert_eq!(response(fixture.io.on_done(NOW, ticket, Ok(()))).invalidate, Some(9));
    let bad = invalidate(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(2)));
    assert_eq!(response(capsule(&mut fixture.io, &bad, 0)).invalidate, Some(9));
    let plain = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(2)), 512);
    assert_eq!(response(capsule(&mut fixture.io, &plain, 0)).invalidate, None);
}

#[test]
fn device_errors_reach_the_host() {
    let mut fixture = Fixture::new();
    let zeroes = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::WRITE_ZEROES, Nsid(1)), 0);
    for (sqe, error, status) in [
        (rw(NvmOpcode::READ, ReadWrite::new(0, 1)), BlockError::Medium, (2, 0x81)),
        (rw(NvmOpcode::WRITE, ReadWrite::new(0, 1)), BlockError::Medium, (2, 0x80)),
        (zeroes, BlockError::Medium, (2, 0x80)),
        (rw(NvmOpcode::COMPARE, ReadWrite::new(0, 1)), BlockError::CompareFailed, (2, 0x85)),
        (rw(NvmOpcode::WRITE, ReadWrite::new(0, 1)), BlockError::NoSpace, (0, 0x81)),
        (rw(NvmOpcode::READ, ReadWrite::new(0, 1)), BlockError::Gone, (0, 0x0b)),
    ] {
        let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &sqe, 0) else { panic!("{sqe:?}") };
        assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Err(error)))), status, "{error:?}");
    }
}

#[test]
fn a_read_with_fua_flushes_the_cache_first() {
    let mut fixture = Fixture::new();
    for opcode in [NvmOpcode::READ, NvmOpcode::COMPARE, NvmOpcode::VERIFY] {
        let sqe = rw(opcode, ReadWrite { fua: true, ..ReadWrite::new(4, 1) });
        let Step::Execute { ticket, work, transfer: Transfer::None } = capsule(&mut fixture.io, &sqe, 0)
        else {
            panic!("a flush without data");
        };
        assert_eq!(work, Work::Block { device: DEVICE, op: BlockWork::Flush });
        let Step::Execute { ticket, work, .. } = fixture.io.on_done(NOW, ticket, Ok(())) else {
            panic!("the read")
        };
        let op = match opcode {
            NvmOpcode::READ => BlockWork::Read { range: range(4, 1) },
            NvmOpcode::COMPARE => BlockWork::Compare { range: range(4, 1) },
            _ => BlockWork::Verify { range: range(4, 1) },
        };
        assert_eq!(work, Work::Block { device: DEVICE, op });
        assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Ok(())))), OK);
        // When the flush fails there is no read.
        let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &sqe, 0) else { panic!("a flush") };
        assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Err(BlockError::Medium)))), (2, 0x81));
    }
}

#[test]
fn a_flush_without_a_volatile_cache_is_done_at_once() {
    let mut fixture = Fixture::new();
    let plain = namespace(1, Geometry::new(512, 10));
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![plain]).unwrap();
    fixture.deliver();
    assert_eq!(code(&ask(&mut fixture.io, &flush(Nsid(1)))), OK);
}

fn deallocate(ranges: u16) -> Sqe {
    let command = DatasetManagement { ranges, deallocate: true, hints: 0 };
    // Linux gives a whole page, however few ranges there are.
    keyed(command.emit(Nsid(1)), 4096)
}

fn bytes(ranges: &[(u64, u32)]) -> Vec<u8> {
    ranges.iter().flat_map(|&(slba, blocks)| DsmRange::new(slba, blocks).as_bytes().to_vec()).collect()
}

#[test]
fn dataset_management_deallocates_what_its_ranges_say() {
    let mut fixture = Fixture::new();
    let (ticket, transfer) = parameters(capsule(&mut fixture.io, &deallocate(3), 0));
    assert_eq!(transfer, Transfer::FromHost { len: 48, source: Source::Remote(SINK) });
    let data = bytes(&[(0, 8), (100, 0), (992, 8)]);
    let Step::Execute { ticket, work, transfer: Transfer::None } =
        fixture.io.on_parameters(NOW, ticket, &data)
    else {
        panic!("a deallocation");
    };
    let op = BlockWork::Deallocate(vec![range(0, 8), range(992, 8)].into());
    assert_eq!(work, Work::Block { device: DEVICE, op });
    assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Ok(())))), OK);
}

#[test]
fn dataset_management_checks_every_range() {
    let mut fixture = Fixture::new();
    for (ranges, status) in [
        (vec![(0, 8), (1000, 1)], (0, 0x80)),
        (vec![(u64::MAX, 8)], (0, 0x80)),
        (vec![(0, 1001)], (0, 0x80)),
        (vec![(0, 0), (10, 0)], OK),
    ] {
        let count = u16::try_from(ranges.len()).unwrap();
        let (ticket, _) = parameters(capsule(&mut fixture.io, &deallocate(count), 0));
        assert_eq!(
            code(&responded(fixture.io.on_parameters(NOW, ticket, &bytes(&ranges)))),
            status,
            "{ranges:?}"
        );
    }
    let (ticket, transfer) = parameters(capsule(&mut fixture.io, &deallocate(256), 0));
    assert!(matches!(transfer, Transfer::FromHost { len: 4096, .. }));
    ticket.abandon();
    let short = keyed(deallocate(256), 4095);
    assert_eq!(code(&ask(&mut fixture.io, &with_cid(short, 1))), LENGTH);
}

#[test]
fn dataset_management_without_deallocate_is_only_a_hint() {
    let mut fixture = Fixture::new();
    let hint =
        |nsid| keyed(DatasetManagement { ranges: 2, deallocate: false, hints: 3 }.emit(Nsid(nsid)), 32);
    // The ranges are fetched and checked, as a host expects whose data they are. A namespace that nobody may write
    // takes hints.
    for (nsid, ranges, status) in
        [(1, [(0, 8), (992, 8)], OK), (3, [(0, 8), (8, 8)], OK), (1, [(0, 8), (1000, 1)], (0, 0x80))]
    {
        let (ticket, transfer) = parameters(capsule(&mut fixture.io, &hint(nsid), 0));
        assert_eq!(transfer, Transfer::FromHost { len: 32, source: Source::Remote(SINK) });
        let step = fixture.io.on_parameters(NOW, ticket, &bytes(&ranges));
        assert_eq!(code(&responded(step)), status, "{ranges:?} of namespace {nsid}");
    }
    let read_only = DatasetManagement { ranges: 4, deallocate: true, hints: 0 };
    assert_eq!(code(&ask(&mut fixture.io, &keyed(read_only.emit(Nsid(3)), 64))), (0, 0x20));
}

#[test]
fn deallocation_of_a_removed_namespace_is_invalid_namespace() {
    let mut fixture = Fixture::new();
    let (ticket, _) = parameters(capsule(&mut fixture.io, &deallocate(1), 0));
    fixture.registry.remove_namespace(&nqn(SUBSYSTEM), Nsid(1)).unwrap();
    fixture.deliver();
    let step = fixture.io.on_parameters(NOW, ticket, &bytes(&[(0, 1)]));
    assert_eq!(code(&responded(step)), (0, 0x0b));
    assert_eq!(code(&ask(&mut fixture.io, &rw(NvmOpcode::READ, ReadWrite::new(0, 1)))), (0, 0x0b));
}

/// Another disk behind the NSID: what was meant for the old one must not reach it.
#[test]
fn deallocation_of_a_replaced_namespace_does_not_reach_its_successor() {
    let mut fixture = Fixture::new();
    let (ticket, _) = parameters(capsule(&mut fixture.io, &deallocate(1), 0));
    let successor = NamespaceDefinition { device: DeviceId(500), uuid: [9; 16], ..namespace(1, disk()) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![successor]).unwrap();
    fixture.deliver();
    let cqe = responded(fixture.io.on_parameters(NOW, ticket, &bytes(&[(0, 1)])));
    assert_eq!((code(&cqe), cqe.status().dnr()), ((0, 0x0b), true));
}

#[test]
fn command_of_a_namespace_that_went_is_not_retried() {
    let mut fixture = Fixture::new();
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE] {
        let step = capsule(&mut fixture.io, &rw(opcode, ReadWrite::new(0, 1)), 0);
        let Step::Execute { ticket, .. } = step else { panic!("{opcode:?}") };
        let cqe = responded(fixture.io.on_done(NOW, ticket, Err(BlockError::Gone)));
        assert_eq!((code(&cqe), cqe.status().dnr()), ((0, 0x0b), true), "{opcode:?}");
    }
}

#[test]
fn failed_flush_before_a_fua_read_is_a_read_error() {
    let mut fixture = Fixture::new();
    let fua = ReadWrite { fua: true, ..ReadWrite::new(0, 1) };
    for (error, status) in [(BlockError::Medium, (2, 0x81)), (BlockError::Os(5), (0, 0x06))] {
        let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &rw(NvmOpcode::READ, fua), 0) else {
            panic!("a flush")
        };
        assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Err(error)))), status);
    }
}

#[test]
fn disconnect_is_answered_after_every_other_command() {
    let mut fixture = Fixture::new();
    let mut tickets = Vec::new();
    for cid in 1..=2 {
        let sqe = with_cid(rw(NvmOpcode::WRITE, ReadWrite::new(0, 1)), cid);
        let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &sqe, 0) else { panic!("a write") };
        tickets.push(ticket);
    }
    assert!(matches!(capsule(&mut fixture.io, &with_cid(disconnect(), 9), 0), Step::Held));
    assert!(fixture.io.poll_step(NOW).is_none());
    let late = ask(&mut fixture.io, &with_cid(rw(NvmOpcode::READ, ReadWrite::new(0, 1)), 3));
    assert_eq!((code(&late), late.status().dnr()), ((0, 0x08), false), "nothing begins after a Disconnect");
    for ticket in tickets {
        assert!(fixture.io.poll_step(NOW).is_none());
        assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Ok(())))), OK);
    }
    let cqe = responded(fixture.io.poll_step(NOW).unwrap());
    assert_eq!((code(&cqe), cqe.cid.get()), (OK, 9));
    assert!(matches!(fixture.io.poll_step(NOW), Some(Step::CloseQueue)));
    assert!(fixture.io.poll_step(NOW).is_none());
}

#[test]
fn write_zeroes_and_verify_are_bounded() {
    let mut fixture = Fixture::new();
    let disk = namespace(1, Geometry::new(4096, 1 << 20));
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![disk]).unwrap();
    fixture.deliver();
    let max = limits::BLOCKS_LEN_MAX / 4096;
    for opcode in [NvmOpcode::WRITE_ZEROES, NvmOpcode::VERIFY] {
        let sqe = |blocks| keyed(ReadWrite::new(0, blocks).emit(opcode, Nsid(1)), 0);
        assert_eq!(run(&mut fixture, &sqe(max)).2, OK, "{opcode:?}");
        assert_eq!(code(&ask(&mut fixture.io, &sqe(max + 1))), INVALID_FIELD, "{opcode:?}");
    }
}

/// What lies beyond DMRL, DMRSL and DMSL is not processed, and that is no error.
#[test]
fn dataset_management_beyond_its_limits_is_left_out() {
    let mut fixture = Fixture::new();
    let disk = namespace(1, Geometry { deallocate: true, ..Geometry::new(512, 1 << 40) });
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![disk]).unwrap();
    fixture.deliver();
    let max = limits::DSM_BLOCKS_MAX;
    let blocks = |n: u32| u64::from(n);
    let mut run = |ranges: &[(u64, u32)]| {
        let (ticket, _) =
            parameters(capsule(&mut fixture.io, &deallocate(u16::try_from(ranges.len()).unwrap()), 0));
        match fixture.io.on_parameters(NOW, ticket, &bytes(ranges)) {
            Step::Execute { ticket, work: Work::Block { op: BlockWork::Deallocate(ranges), .. }, .. } => {
                let _ = responded(fixture.io.on_done(NOW, ticket, Ok(())));
                ranges.to_vec()
            }
            step => panic!("a deallocation, not {step:?}"),
        }
    };
    assert_eq!(run(&[(0, max)]), [range(0, blocks(max))]);
    assert_eq!(run(&[(0, max + 1)]), [range(0, blocks(max))]);
    assert_eq!(
        run(&[(0, max - 8), (1 << 30, 100), (1 << 31, 100)]),
        [range(0, blocks(max - 8)), range(1 << 30, 8)]
    );
    let many: Vec<_> = (0..256).map(|at| (at * 10, 1)).collect();
    assert_eq!(run(&many).len(), limits::DSM_RANGES_MAX - 1);
}

#[test]
fn a_resized_namespace_has_its_new_end_at_once() {
    let mut fixture = Fixture::new();
    let beyond = rw(NvmOpcode::READ, ReadWrite::new(1000, 1));
    assert_eq!(code(&ask(&mut fixture.io, &beyond)), (0, 0x80));
    let larger = namespace(1, Geometry { blocks: 2000, ..disk() });
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![larger]).unwrap();
    fixture.deliver();
    assert_eq!(run(&mut fixture, &beyond).2, OK);
}

#[test]
fn late_notice_does_not_restore_a_removed_namespace() {
    let mut fixture = Fixture::new();
    let with_two = namespace(2, disk());
    fixture.registry.add_namespace(&nqn(SUBSYSTEM), with_two).unwrap();
    let late = fixture.registry.take_notices();
    fixture.registry.remove_namespace(&nqn(SUBSYSTEM), Nsid(2)).unwrap();
    let (mut io, ..) = Hello::io(2, 1).connect(&mut fixture.registry);
    for notice in &late {
        io.on_notice(NOW, notice);
    }
    let read = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(2)), 512);
    assert_eq!(code(&ask(&mut io, &read)), (0, 0x0b));
}

#[test]
fn a_command_id_in_flight_conflicts() {
    let mut fixture = Fixture::new();
    let read = with_cid(rw(NvmOpcode::READ, ReadWrite::new(0, 1)), 5);
    let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &read, 0) else { panic!("a read") };
    let cqe = ask(&mut fixture.io, &read);
    assert_eq!((code(&cqe), cqe.cid.get()), ((0, 0x03), 5));
    let cqe = responded(fixture.io.on_done(NOW, ticket, Ok(())));
    assert_eq!((code(&cqe), cqe.cid.get()), (OK, 5));
}

#[test]
fn more_commands_than_the_queue_has_entries_end_the_association() {
    let mut registry = registry(Options::default());
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    enable(&mut admin);
    let (mut io, ..) = Hello { sqsize_z: 3, ..Hello::io(1, 1) }.connect(&mut registry);
    let mut tickets = Vec::new();
    for cid in 0..4 {
        let read = with_cid(rw(NvmOpcode::READ, ReadWrite::new(0, 1)), cid);
        let Step::Execute { ticket, .. } = capsule(&mut io, &read, 0) else { panic!("a read") };
        tickets.push(ticket);
    }
    let one_more = with_cid(rw(NvmOpcode::READ, ReadWrite::new(0, 1)), 9);
    let Step::CloseAssociation(violation) = capsule(&mut io, &one_more, 0) else { panic!("a violation") };
    assert_eq!(violation, Violation::QueueOverrun { qid: 1, entries: 4 });
    tickets.into_iter().for_each(Ticket::abandon);
}

#[test]
fn disconnect_ends_one_io_queue_after_its_response() {
    let mut fixture = Fixture::new();
    assert!(fixture.io.poll_step(NOW).is_none());
    assert_eq!(code(&ask(&mut fixture.io, &disconnect())), OK);
    assert!(matches!(fixture.io.poll_step(NOW), Some(Step::CloseQueue)));
    assert!(fixture.io.poll_step(NOW).is_none());
    assert!(fixture.registry.close_queue(&fixture.association(), Qid(1)).is_empty());
    assert_eq!(code(&Hello::io(1, 1).connect(&mut fixture.registry).1), OK, "the queue ID is free again");
    assert_eq!(code(&ask(&mut fixture.admin, &disconnect())), (1, 0x85));
}
