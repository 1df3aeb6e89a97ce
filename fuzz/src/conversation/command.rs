//! Commands made of the input.

use crate::disk::{self, BLOCK_SIZE};
use crate::input::Input;
use core::time::Duration;
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::fabrics::property::{Configuration, Property, PropertyGet, PropertySet};
use nvme_proto::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme_proto::{Cntlid, Nsid, Qid, Sqe};
use nvmf_subsystem::Nqn;
use zerocopy::IntoBytes;

/// Opcodes of Admin and I/O commands, some of which nobody has.
const OPCODES: [u8; 28] = [
    0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x0e, 0x10, 0x11, 0x12, 0x14, 0x15,
    0x18, 0x19, 0x1a, 0x38, 0x7d, 0x7f, 0x80, 0x81, 0x82, 0x84, 0xff,
];
const NSIDS: [u32; 8] = [1, 1, 3, 2, 0, 4, 0xffff_fffe, 0xffff_ffff];
const LENGTHS: [u32; 16] =
    [0, 1, 4, 16, 48, 512, 1024, 4095, 4096, 8192, 16384, 65536, 65540, 131_072, 1 << 20, 0x00ff_ffff];
const PROPERTIES: [Property; 8] = [
    Property::CC,
    Property::CSTS,
    Property::CAP,
    Property::VS,
    Property::NSSR,
    Property::NSSD,
    Property::CRTO,
    Property(0x18),
];

/// A command without its data pointer, and how many bytes it moves.
#[derive(Clone, Copy)]
pub(super) struct Made {
    pub(super) sqe: Sqe,
    pub(super) len: u32,
}

pub(super) fn length(input: &mut Input<'_>) -> u32 {
    let choice = input.u8();
    if choice & 0x80 != 0 { input.u16().into() } else { LENGTHS[usize::from(choice & 15)] }
}

/// How much time passes: milliseconds or seconds.
pub(super) fn time(input: &mut Input<'_>) -> Duration {
    let [low, high] = input.array();
    let unit = if high & 0x80 == 0 { Duration::from_millis(1) } else { Duration::from_secs(1) };
    unit * u16::from_le_bytes([low, high & 0x3f]).into()
}

/// Any command.
pub(super) fn strange(input: &mut Input<'_>) -> Made {
    let choice = input.u8();
    let mut sqe = Sqe::new(OPCODES[usize::from(input.u8()) % OPCODES.len()]);
    sqe = sqe.with_nsid(Nsid(NSIDS[usize::from(choice & 7)]));
    if sqe.opcode == AdminOpcode::FABRICS.0 {
        sqe = sqe.with_nsid(Nsid(u32::from(choice & 15)));
    }
    if choice & 0x10 != 0 {
        sqe.flags = input.u8();
    }
    let present = input.u8();
    let mut dwords = [0; 6];
    for (at, dword) in dwords.iter_mut().enumerate().filter(|(at, _)| present >> at & 1 != 0) {
        *dword = match at {
            _ if present & 0x80 != 0 => u32::from_le_bytes(input.array()),
            _ => input.u16().into(),
        };
    }
    Made { sqe: sqe.with_dwords(dwords), len: length(input) }
}

/// A command of an I/O queue with a range of the disk and its right length.
pub(super) fn fitting(input: &mut Input<'_>) -> Made {
    let [choice, lba, more] = input.array();
    let opcode = match choice & 7 {
        0 | 1 => NvmOpcode::WRITE,
        2 | 3 => NvmOpcode::READ,
        4 => NvmOpcode::COMPARE,
        5 => NvmOpcode::WRITE_ZEROES,
        6 => NvmOpcode::VERIFY,
        _ => NvmOpcode::FLUSH,
    };
    let blocks = if choice & 0x40 == 0 { u32::from(more & 15) + 1 } else { u32::from(more).div_ceil(2) + 1 };
    let fua = u32::from(choice >> 5 & 1) << 30;
    let mut sqe = Sqe::new(opcode.0).with_nsid(Nsid(NSIDS[usize::from(choice >> 3 & 3)]));
    // Every fourth LBA, so that the last of them are behind the end.
    sqe = sqe.with_dwords([u32::from(lba) * 4, 0, (blocks - 1) | fua, 0, 0, 0]);
    // The first or the second of a fused pair.
    sqe.flags |= if choice & 0x80 == 0 { 0 } else { 1 + (more >> 7) };
    let moves = matches!(opcode, NvmOpcode::WRITE | NvmOpcode::READ | NvmOpcode::COMPARE);
    Made { sqe, len: if moves { blocks * BLOCK_SIZE } else { 0 } }
}

/// A command of an Admin queue that succeeds where there is a controller.
pub(super) fn admin(input: &mut Input<'_>, outstanding: impl Fn(usize) -> Option<u16>) -> Made {
    let [choice, value] = input.array();
    let (low, nsid) = (u32::from(value), Nsid(NSIDS[usize::from(choice >> 4 & 7)]));
    let new = |opcode: AdminOpcode, dwords| Sqe::new(opcode.0).with_dwords(dwords);
    let (sqe, len) = match choice & 15 {
        0 => (new(AdminOpcode::KEEP_ALIVE, [0; 6]), 0),
        1 | 2 => (new(AdminOpcode::ASYNC_EVENT_REQUEST, [0; 6]), 0),
        3 | 4 => {
            let cid = outstanding(usize::from(value >> 2)).unwrap_or(value.into());
            (new(AdminOpcode::ABORT, [u32::from(cid) << 16 | u32::from(value & 3), 0, 0, 0, 0, 0]), 0)
        }
        5 | 6 => (new(AdminOpcode::IDENTIFY, [low & 31, 0, 0, 0, 0, 0]).with_nsid(nsid), 4096),
        7 | 8 => {
            let len = 4096;
            (new(AdminOpcode::GET_LOG_PAGE, [low | (len / 4 - 1) << 16, 0, 0, 0, 0, 0]).with_nsid(nsid), len)
        }
        9 => (new(AdminOpcode::GET_FEATURES, [low, 0, 0, 0, 0, 0]).with_nsid(nsid), 0),
        10 => (new(AdminOpcode::SET_FEATURES, [low, 0xffff, 0, 0, 0, 0]).with_nsid(nsid), 0),
        11 => (enable(), 0),
        _ => (property(choice >> 4, value), 0),
    };
    Made { sqe, len }
}

pub(super) fn enable() -> Sqe {
    PropertySet { size: 0, property: Property::CC, value: Configuration::ENABLE.0.into() }.emit()
}

fn property(choice: u8, value: u8) -> Sqe {
    let (size, property) = (choice >> 3 & 1, PROPERTIES[usize::from(value & 7)]);
    if choice & 1 == 0 {
        return PropertyGet { size, property }.emit();
    }
    // EN and SHN, or more.
    let value = u64::from(value >> 3 & 1) | u64::from(value >> 4 & 3) << 14 | u64::from(value >> 6) << 4;
    PropertySet { size, property, value: u64::from(Configuration::ENABLE.0) ^ value }.emit()
}

/// A Connect and its data.
pub(super) struct Connecting {
    pub(super) sqe: Sqe,
    pub(super) data: ConnectData,
}

impl Connecting {
    pub(super) fn is_admin(&self) -> bool {
        Connect::parse(&self.sqe).qid.0 == 0
    }
}

/// The Connect of an honest host.
pub(super) fn connect(host: &Nqn, subsystem: &Nqn, qid: u16, cntlid: Cntlid) -> Connecting {
    let kato_ms = if qid == 0 { 600_000 } else { 0 };
    let attributes = ConnectAttributes::default();
    let sqe = Connect { recfmt: 0, qid: Qid(qid), sqsize_z: 31, attributes, kato_ms }.emit();
    Connecting { sqe, data: ConnectData::new(disk::HOST_ID, cntlid, subsystem, host) }
}

/// That of a hostile one.
pub(super) fn strange_connect(input: &mut Input<'_>, qid: u16, cntlid: Cntlid) -> Connecting {
    let choice = input.u8();
    let discovery = "nqn.2014-08.org.nvmexpress.discovery".parse().expect("a valid NQN");
    let subsystem = if choice & 1 == 0 { disk::subsystem_nqn() } else { discovery };
    let mut made = connect(&disk::host_nqn(), &subsystem, qid, cntlid);
    let mut parsed = Connect::parse(&made.sqe);
    if choice & 2 != 0 {
        parsed.qid = Qid(input.u8().into());
    }
    if choice & 4 != 0 {
        parsed.sqsize_z = input.u16();
    }
    if choice & 8 != 0 {
        parsed.attributes = ConnectAttributes(input.u8());
    }
    if choice & 16 != 0 {
        parsed.kato_ms = input.u16().into();
    }
    if choice & 32 != 0 {
        parsed.recfmt = input.u8().into();
    }
    made.sqe = parsed.emit();
    if choice & 64 != 0 {
        made.data.cntlid = input.u16().into();
    }
    if choice & 128 != 0 {
        let [at, high, flip] = input.array();
        made.data.as_mut_bytes()[usize::from(at) | usize::from(high & 3) << 8] ^= flip;
    }
    made
}

pub(super) fn is_connect(sqe: &Sqe) -> bool {
    sqe.opcode == AdminOpcode::FABRICS.0 && sqe.nsid.get() as u8 == FabricsType::CONNECT.0
}
