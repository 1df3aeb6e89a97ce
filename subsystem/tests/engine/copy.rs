//! Copy: what is copied, and what is refused.

use crate::host::*;
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::{DescriptorFormat, SourceRange};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{SglDescriptor, Sqe};
use nvmf_block::{BlockRange, DeviceId, Geometry};
use nvmf_subsystem::limits::{COPY_LEN_MAX, COPY_RANGES_MAX};
use nvmf_subsystem::*;
use zerocopy::IntoBytes;

type Code = (u8, u8);
const FORMAT_2: DescriptorFormat = DescriptorFormat::FORMAT_2;

fn sqe(nsid: u32, command: &CopyCommand, len: usize) -> Sqe {
    let mut sqe = Sqe::new(NvmOpcode::COPY.0);
    sqe.nsid = nsid.into();
    let sqe = sqe.with_dwords([command.cdw10(), command.cdw11(), command.cdw12(), 0, 0, 0]);
    keyed(sqe, len as u32)
}

/// Sends a Copy to namespace 1: what the device is to do, or the status.
fn copy(fixture: &mut Fixture, command: CopyCommand, ranges: &[SourceRange]) -> Result<BlockWork, Code> {
    let data: Vec<u8> = ranges.iter().flat_map(|range| range.emit_format_0().as_bytes().to_vec()).collect();
    let command = CopyCommand { ranges: ranges.len() as u16, ..command };
    let step = match capsule(&mut fixture.io, &sqe(1, &command, data.len()), 0) {
        Step::Execute { ticket, work: Work::Parameters, transfer } => {
            assert!(matches!(transfer, Transfer::FromHost { len, .. } if len as usize == data.len()));
            fixture.io.on_parameters(NOW, ticket, &data)
        }
        step => step,
    };
    match step {
        Step::Execute {
            ticket,
            work: Work::Block { device: DeviceId(101), op },
            transfer: Transfer::None,
        } => {
            assert_eq!(code(&responded(fixture.io.on_done(NOW, ticket, Ok(())))), (0, 0));
            Ok(op)
        }
        step => Err(code(&responded(step))),
    }
}

fn at(nsid: u32, slba: u64, blocks: u32) -> SourceRange {
    SourceRange { nsid: Some(Nsid(nsid)), ..SourceRange::new(slba, blocks) }
}

/// The host says that it knows format 2.
fn enable_format_2(fixture: &mut Fixture) {
    let mut data = [0; 512];
    data[4] = 1 << 2;
    let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.0).with_dwords([0x16, 0, 0, 0, 0, 0]);
    sqe.sgl = SglDescriptor::keyed(ADDRESS, 512, KEY, false);
    let (ticket, _) = parameters(capsule(&mut fixture.admin, &sqe, 0));
    assert_eq!(code(&responded(fixture.admin.on_parameters(NOW, ticket, &data))), (0, 0));
}

#[test]
fn ranges_are_copied_one_behind_the_other() {
    let mut fixture = Fixture::new();
    let source = |device, start, blocks| CopySource {
        // Device 101 is that of namespace 1, and so on.
        nsid: Nsid(device - 100),
        device: DeviceId(device),
        range: BlockRange::new(start, blocks),
    };
    let op = |sources: Vec<CopySource>, to, fua| {
        BlockWork::Copy(Box::new(CopyWork { sources: sources.into(), to, block_size: 512, fua }))
    };
    let command = CopyCommand { fua: true, ..CopyCommand::new(500, 1) };
    let ranges = [SourceRange::new(10, 3), SourceRange::new(0, 1)];
    let sources = vec![source(101, 10, 3), source(101, 0, 1)];
    assert_eq!(copy(&mut fixture, command, &ranges), Ok(op(sources, BlockRange::new(500, 4), true)));
    let across = CopyCommand { format: FORMAT_2, ..CopyCommand::new(500, 1) };
    assert_eq!(copy(&mut fixture, across, &[at(3, 500, 8)]), Err((0, 0x02)), "not enabled");
    enable_format_2(&mut fixture);
    let sources = vec![source(103, 500, 8), source(101, 7, 1)];
    let ranges = [at(3, 500, 8), at(1, 7, 1)];
    assert_eq!(copy(&mut fixture, across, &ranges), Ok(op(sources, BlockRange::new(500, 9), false)));
}

#[test]
fn copy_that_is_refused_has_its_status() {
    let other = NamespaceDefinition { device: DeviceId(104), ..namespace(4, Geometry::new(4096, 1000)) };
    let large = Geometry::new(512, 1 << 20);
    let mut fixture = Fixture::new();
    let namespaces = vec![namespace(1, large), namespace(3, large), other];
    let change = SubsystemChange { namespaces: Some(namespaces), ..SubsystemChange::default() };
    fixture.registry.change_subsystem(&nqn(SUBSYSTEM), change).unwrap();
    fixture.deliver();
    enable_format_2(&mut fixture);
    let to = |sdlba| CopyCommand::new(sdlba, 1);
    let across = CopyCommand { format: FORMAT_2, ..to(0) };
    let most = COPY_LEN_MAX / 512;
    let many = vec![SourceRange::new(0, 1); COPY_RANGES_MAX];
    assert!(copy(&mut fixture, to(5000), &many).is_ok());
    let too_many = vec![SourceRange::new(0, 1); COPY_RANGES_MAX + 1];
    let fast = SourceRange { fast_copy_only: true, ..at(3, 0, 1) };
    for (name, command, ranges, status) in [
        ("too many ranges", to(5000), too_many, (1, 0x83)),
        (
            "too long in all",
            to(500_000),
            vec![SourceRange::new(0, most - 1), SourceRange::new(0, 2)],
            (1, 0x83),
        ),
        ("source beyond the end", to(0), vec![SourceRange::new((1 << 20) - 1, 2)], (0, 0x80)),
        ("source beyond 64 bits", to(0), vec![SourceRange::new(u64::MAX, 2)], (0, 0x80)),
        ("destination beyond the end", to((1 << 20) - 1), vec![SourceRange::new(0, 2)], (0, 0x80)),
        ("overlap", to(9), vec![SourceRange::new(100, 1), SourceRange::new(10, 1)], (1, 0x87)),
        ("onto itself", to(9), vec![SourceRange::new(9, 1)], (1, 0x87)),
        ("overlap by its namespace", CopyCommand { sdlba: 9, ..across }, vec![at(1, 8, 2)], (1, 0x87)),
        ("no such namespace", across, vec![at(2, 0, 1)], (0, 0x0b)),
        ("another block size", across, vec![at(4, 0, 1)], (1, 0x85)),
        ("fast copy only", across, vec![fast], (1, 0x86)),
        (
            "format 1",
            CopyCommand { format: DescriptorFormat::FORMAT_1, ..to(0) },
            vec![at(3, 0, 1)],
            (0, 0x02),
        ),
        ("directive", CopyCommand { directive: 1, ..to(0) }, vec![SourceRange::new(9, 1)], (0, 0x02)),
    ] {
        assert_eq!(copy(&mut fixture, command, &ranges), Err(status), "{name}");
    }
    let cqe = ask(&mut fixture.io, &sqe(1, &to(0), 31));
    assert_eq!(code(&cqe), (0, 0x0f), "shorter than its ranges");
    assert_eq!(fixture.io.in_flight(), 0);
}

#[test]
fn copy_to_a_protected_namespace_is_refused_and_from_one_is_not() {
    let mut fixture = Fixture::new();
    let cqe = ask(&mut fixture.io, &sqe(3, &CopyCommand::new(0, 1), 32));
    assert_eq!(code(&cqe), (0, 0x20));
    enable_format_2(&mut fixture);
    let across = CopyCommand { format: FORMAT_2, ..CopyCommand::new(0, 1) };
    assert!(copy(&mut fixture, across, &[at(3, 0, 1)]).is_ok());
}
