//! Copy through a worker: what is at the destination afterwards.

use super::host::*;
use super::pattern;
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::{DescriptorFormat, SourceRange};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use nvmf_backend::simulated::SharedDisk;
use zerocopy::IntoBytes;

fn preset(disk: &SharedDisk, seed: u32) {
    for lba in 0..4096 {
        disk.borrow_mut().preset(lba, pattern(seed + lba as u32, BLOCK as usize).into());
    }
}

fn content(disk: &SharedDisk, start: u64, blocks: u32) -> Vec<u8> {
    let disk = disk.borrow();
    (start..start + u64::from(blocks)).flat_map(|lba| disk.block(lba).to_vec()).collect()
}

fn send(world: &mut World, io: &mut HostQueue, command: CopyCommand, ranges: &[SourceRange]) -> Status {
    let data: Vec<u8> = ranges.iter().flat_map(|range| range.emit_format_0().as_bytes().to_vec()).collect();
    let command = CopyCommand { ranges: ranges.len() as u16, ..command };
    let mut sqe = Sqe::new(NvmOpcode::COPY.0);
    sqe.nsid = 1.into();
    sqe = sqe.with_dwords([command.cdw10(), command.cdw11(), command.cdw12(), 0, 0, 0]);
    io.data.write(0, &data);
    sqe.sgl = io.expose(0, data.len() as u32);
    let cid = io.send(&sqe, &[]);
    io.response(world, cid).0.status()
}

#[test]
fn copy_writes_what_its_sources_hold() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    preset(&world.disk, 1);
    preset(&world.other_disk, 50_000);
    // Longer than a chunk, with ends in the middle of one.
    let ranges = [SourceRange::new(5, 700), SourceRange::new(3000, 1), SourceRange::new(1, 333)];
    let command = CopyCommand { fua: true, ..CopyCommand::new(9001, 1) };
    assert!(send(&mut world, &mut io, command, &ranges).is_success());
    world.disk.borrow_mut().crash();
    let expected: Vec<u8> =
        ranges.iter().flat_map(|range| content(&world.disk, range.slba, range.blocks)).collect();
    assert!(content(&world.disk, 9001, 1034) == expected);

    let mut behavior = [0; 512];
    behavior[4] = 1 << 2;
    admin.data.write(0, &behavior);
    let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.0).with_dwords([0x16, 0, 0, 0, 0, 0]);
    sqe.sgl = admin.expose(0, 512);
    admin.run(&mut world, &sqe, &[]);
    let across = CopyCommand { format: DescriptorFormat::FORMAT_2, ..CopyCommand::new(40, 1) };
    let range = SourceRange { nsid: Some(Nsid(2)), ..SourceRange::new(7, 600) };
    assert!(send(&mut world, &mut io, across, &[range]).is_success());
    assert!(content(&world.disk, 40, 600) == content(&world.other_disk, 7, 600));
    world.check_credits();
}

#[test]
fn copy_that_cannot_be_read_fails_and_others_go_on() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    preset(&world.disk, 1);
    world.disk.borrow_mut().set_unreadable(Some(600));
    let status = send(&mut world, &mut io, CopyCommand::new(9000, 1), &[SourceRange::new(0, 2000)]);
    assert!(!status.is_success() && !status.dnr(), "{status}");
    world.disk.borrow_mut().set_unreadable(None);
    assert!(send(&mut world, &mut io, CopyCommand::new(9000, 1), &[SourceRange::new(0, 2000)]).is_success());
    assert!(content(&world.disk, 9000, 2000) == content(&world.disk, 0, 2000));
}

#[test]
fn copy_ends_with_its_connection() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let range = SourceRange::new(0, 2000).emit_format_0();
    let command = CopyCommand::new(9000, 1);
    let mut sqe = Sqe::new(NvmOpcode::COPY.0);
    sqe.nsid = 1.into();
    sqe = sqe.with_dwords([command.cdw10(), command.cdw11(), command.cdw12(), 0, 0, 0]);
    sqe.sgl = SglDescriptor::in_capsule(0, 32);
    io.send(&sqe, range.as_bytes());
    for _ in 0..100 {
        world.tick();
    }
    io.drop_connection();
    admin.drop_connection();
    for _ in 0..100 {
        world.tick();
    }
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
}
