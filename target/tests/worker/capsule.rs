//! Data in the capsule: they stay where they landed until the response, however many steps the command takes.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::nvm::dsm::DsmRange;
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use std::collections::VecDeque;

/// A command on `len` bytes of its capsule, with force unit access.
fn with_fua(opcode: NvmOpcode, lba: u64, offset: u64, len: u32) -> Sqe {
    let mut sqe = ReadWrite { fua: true, ..ReadWrite::new(lba, len / BLOCK) }.emit(opcode, Nsid(1));
    sqe.sgl = SglDescriptor::in_capsule(offset, len);
    sqe
}

/// Force unit access makes the flush the first step, and the comparison with the capsule's data the second.
#[test]
fn compare_with_fua_uses_its_own_capsule() {
    // The second offset is one that the device cannot take data from: they are copied to a buffer first.
    for offset in [0, 16] {
        let mut world = World::new(1, &settings());
        let (_admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        let blocks: Vec<Vec<u8>> = (0..28).map(|at| pattern(at, 512)).collect();
        for (lba, block) in blocks.iter().enumerate() {
            let write = read_write(NvmOpcode::WRITE, lba as u64, 512, SglDescriptor::in_capsule(0, 512));
            io.run(&mut world, &write, block);
        }
        let mut sent = VecDeque::new();
        for at in 0..200usize {
            let (lba, equal) = (at % 28, at % 3 != 0);
            let mut capsule = vec![0xee; offset];
            capsule.extend(&blocks[if equal { lba } else { (lba + 1) % 28 }]);
            let compare = with_fua(NvmOpcode::COMPARE, lba as u64, offset as u64, 512);
            sent.push_back((io.send(&compare, &capsule), equal));
            // Many at once, so that receives are used again while other commands wait for their flush.
            if sent.len() == 30 || at == 199 {
                for (cid, equal) in sent.drain(..if at == 199 { sent.len() } else { 1 }) {
                    let (cqe, _) = io.response(&mut world, cid);
                    let expected = if equal { Status::SUCCESS } else { Status::COMPARE_FAILURE };
                    assert!(cqe.status().is(expected), "command {cid}, offset {offset}: {}", cqe.status());
                }
            }
        }
    }
}

/// The disk takes the data of a write when it carries it out: long after the queue's other receives were used again.
#[test]
fn capsule_of_a_write_on_a_hung_disk_is_not_overwritten() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let write = |nsid: u32, lba| {
        let sqe = read_write(NvmOpcode::WRITE, lba, 4096, SglDescriptor::in_capsule(0, 4096));
        Sqe { nsid: nsid.into(), ..sqe }
    };
    world.other_disk.borrow_mut().set_hanging(true);
    let slow: Vec<_> = (0..4).map(|at| io.send(&write(2, u64::from(at) * 8), &pattern(at, 4096))).collect();
    for at in 0..100 {
        io.run(&mut world, &write(1, 0), &pattern(100 + at, 4096));
    }
    world.other_disk.borrow_mut().set_hanging(false);
    for cid in slow {
        assert!(io.response(&mut world, cid).0.status().is_success());
    }
    for at in 0..4u32 {
        let disk = world.other_disk.borrow();
        let written = (0..8).flat_map(|block| disk.block(u64::from(at) * 8 + block).to_vec());
        assert!(written.eq(pattern(at, 4096)), "write {at}");
    }
}

/// The command that needs no data of the capsule it brings is answered like any other.
#[test]
fn every_opcode_with_fua_and_in_capsule_data_is_answered() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let ranges = [DsmRange::new(0, 8)].map(|range| zerocopy::IntoBytes::as_bytes(&range).to_vec()).concat();
    for opcode in 0..=0x7e {
        for offset in [0, 16] {
            let mut sqe = with_fua(NvmOpcode(opcode), 3, offset, 512);
            if opcode == NvmOpcode::DATASET_MANAGEMENT.0 {
                sqe = sqe.with_dwords([0, 1 << 30 | 4, 0, 0, 0, 0]);
                sqe.sgl = SglDescriptor::in_capsule(offset, 16);
            }
            let mut capsule = vec![0; offset as usize];
            capsule.extend(ranges.iter().cycle().take(512));
            let cid = io.send(&sqe, &capsule);
            io.response(&mut world, cid);
        }
    }
}
