//! Copy through a worker: what is at the destination afterwards.

use super::host::*;
use super::pattern;
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::{DescriptorFormat, SourceRange};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use nvmf_backend::simulated::SharedDisk;
use nvmf_block::DeviceId;
use zerocopy::IntoBytes;

fn preset(disk: &SharedDisk, seed: u32) {
    for lba in 0..4096 {
        disk.borrow_mut().preset(lba, pattern(seed + lba as u32, BLOCK as usize).into());
    }
}

pub(crate) fn content(disk: &SharedDisk, start: u64, blocks: u32) -> Vec<u8> {
    let disk = disk.borrow();
    (start..start + u64::from(blocks)).flat_map(|lba| disk.block(lba).to_vec()).collect()
}

fn send(world: &mut World, io: &mut HostQueue, command: CopyCommand, ranges: &[SourceRange]) -> Status {
    let cid = send_copy(io, command, ranges);
    io.response(world, cid).0.status()
}

pub(crate) fn send_copy(io: &mut HostQueue, command: CopyCommand, ranges: &[SourceRange]) -> u16 {
    let data: Vec<u8> = ranges.iter().flat_map(|range| range.emit_format_0().as_bytes().to_vec()).collect();
    let command = CopyCommand { ranges: ranges.len() as u16, ..command };
    let mut sqe = Sqe::new(NvmOpcode::COPY.0);
    sqe.nsid = 1.into();
    sqe = sqe.with_dwords([command.cdw10(), command.cdw11(), command.cdw12(), 0, 0, 0]);
    io.data.write(0, &data);
    sqe.sgl = io.expose(0, data.len() as u32);
    io.send(&sqe, &[])
}

/// Host Behavior Support: descriptor format 2.
pub(crate) fn allow_copies_across(world: &mut World, admin: &mut HostQueue) {
    let mut behavior = [0; 512];
    behavior[4] = 1 << 2;
    admin.data.write(0, &behavior);
    let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.0).with_dwords([0x16, 0, 0, 0, 0, 0]);
    sqe.sgl = admin.expose(0, 512);
    admin.run(world, &sqe, &[]);
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

    allow_copies_across(&mut world, &mut admin);
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

pub(crate) fn cloneable(world: &World, unit: u32, blocks: u64) {
    world.disk.borrow_mut().set_sharing(Some(unit), blocks);
    preset(&world.disk, 1);
    preset(&world.other_disk, 50_000);
}

#[test]
fn copy_shares_whole_units_and_reads_the_rest() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    allow_copies_across(&mut world, &mut admin);
    cloneable(&world, 8, 4000);
    // Of the first range 696 blocks; the second is not aligned like its place, the third is short.
    let ranges = [SourceRange::new(5, 700), SourceRange::new(3000, 300), SourceRange::new(1, 33)];
    let command = CopyCommand { fua: true, ..CopyCommand::new(9005, 1) };
    assert!(send(&mut world, &mut io, command, &ranges).is_success());
    world.disk.borrow_mut().crash();
    let expected: Vec<u8> =
        ranges.iter().flat_map(|range| content(&world.disk, range.slba, range.blocks)).collect();
    assert!(content(&world.disk, 9005, 1033) == expected);
    assert_eq!(world.disk.borrow().shares_left(), 4000 - 696);

    let across = CopyCommand { format: DescriptorFormat::FORMAT_2, ..CopyCommand::new(40, 1) };
    let range = SourceRange { nsid: Some(Nsid(2)), ..SourceRange::new(0, 2000) };
    assert!(send(&mut world, &mut io, across, &[range]).is_success());
    assert!(content(&world.disk, 40, 2000) == content(&world.other_disk, 0, 2000));
    assert_eq!(world.disk.borrow().shares_left(), 4000 - 696 - 2000);
    world.check_credits();
}

#[test]
fn copy_that_cannot_be_shared_any_more_is_read_and_written() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    cloneable(&world, 8, 0);
    // At once, within the first piece, within the second, never.
    for (round, blocks) in [0, 300, 1000, 2000].into_iter().enumerate() {
        world.disk.borrow_mut().set_sharing(Some(8), blocks);
        let to = 5003 + 1600 * round as u64;
        let ranges = [SourceRange::new(3, 700), SourceRange::new(1007, 900)];
        assert!(send(&mut world, &mut io, CopyCommand::new(to, 1), &ranges).is_success());
        assert!(content(&world.disk, to, 700) == content(&world.disk, 3, 700));
        assert!(content(&world.disk, to + 700, 900) == content(&world.disk, 1007, 900));
        assert_eq!(world.disk.borrow().shares_left(), if blocks == 2000 { 2000 - 688 - 896 } else { 0 });
    }
    // What cannot be read fails, however it is copied.
    world.disk.borrow_mut().set_sharing(Some(1), 4000);
    world.disk.borrow_mut().set_unreadable(Some(600));
    let status = send(&mut world, &mut io, CopyCommand::new(9000, 1), &[SourceRange::new(0, 2000)]);
    assert!(!status.is_success() && !status.dnr(), "{status}");
    world.disk.borrow_mut().set_unreadable(None);
    // Durable in the end, or it fails.
    world.disk.borrow_mut().fail_next_flush();
    let command = CopyCommand { fua: true, ..CopyCommand::new(9000, 1) };
    assert!(!send(&mut world, &mut io, command, &[SourceRange::new(0, 2000)]).is_success());
    world.check_credits();
}

#[test]
fn copy_that_is_being_shared_ends_with_its_connection() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    cloneable(&world, 8, 4000);
    world.disk.borrow_mut().set_hanging(true);
    send_copy(&mut io, CopyCommand::new(9000, 1), &[SourceRange::new(0, 2000)]);
    world.until("a piece is being shared", |world| {
        (world.workers[0].backend().in_flight(DeviceId(0)) == 1).then_some(())
    });
    io.drop_connection();
    admin.drop_connection();
    for _ in 0..100 {
        world.tick();
    }
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
    assert_eq!(world.disk.borrow().shares_left(), 2000);
}
