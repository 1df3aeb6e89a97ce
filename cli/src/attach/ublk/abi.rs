//! What ublk's driver and its server say to each other (linux/ublk_cmd.h). Integers are the machine's own.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Where devices are made and deleted.
pub(super) const CONTROL: &str = "/dev/ublk-control";
/// Requests that a queue may hold.
pub(super) const QUEUE_DEPTH_MAX: u32 = 4096;
/// "Not for a queue", "any number".
pub(super) const NO_QUEUE: u16 = u16::MAX;
pub(super) const ANY_DEVICE: u32 = u32::MAX;

/// A control command: the first bytes of its submission queue entry.
#[derive(IntoBytes, Immutable, Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) len: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_len: u16,
    pub(super) pad: u16,
    pub(super) reserved: u32,
}

/// What a control command is about: ioctl numbers of type `u`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    GetDeviceInfo,
    AddDevice,
    /// Ends when nothing refers to the device any more.
    DeleteDevice,
    /// Does not wait for that.
    DeleteDeviceLater,
    StartDevice,
    StopDevice,
    SetParameters,
    GetFeatures,
    /// A server takes a device over whose server is gone: before it opens the device's queues, and after.
    StartRecovery,
    EndRecovery,
    /// The disk has another size: sectors.
    UpdateSize,
}

impl Control {
    pub(super) fn code(self) -> u32 {
        const LEN: usize = size_of::<ControlCommand>();
        let code = match self {
            Self::GetDeviceInfo => nix::request_code_read!(b'u', 0x02, LEN),
            Self::AddDevice => nix::request_code_readwrite!(b'u', 0x04, LEN),
            Self::DeleteDevice => nix::request_code_readwrite!(b'u', 0x05, LEN),
            Self::StartDevice => nix::request_code_readwrite!(b'u', 0x06, LEN),
            Self::StopDevice => nix::request_code_readwrite!(b'u', 0x07, LEN),
            Self::SetParameters => nix::request_code_readwrite!(b'u', 0x08, LEN),
            Self::StartRecovery => nix::request_code_readwrite!(b'u', 0x10, LEN),
            Self::EndRecovery => nix::request_code_readwrite!(b'u', 0x11, LEN),
            Self::UpdateSize => nix::request_code_readwrite!(b'u', 0x15, LEN),
            Self::DeleteDeviceLater => nix::request_code_read!(b'u', 0x14, LEN),
            Self::GetFeatures => nix::request_code_read!(b'u', 0x13, LEN),
        };
        u32::try_from(code).expect("an ioctl number has 32 bits")
    }
}

/// A device, as it is added and as the driver knows it.
#[derive(IntoBytes, FromBytes, Immutable, Debug, Clone, Copy, Default)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) queues: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) pad0: u16,
    pub(super) io_bytes_max: u32,
    pub(super) device: u32,
    pub(super) server_pid: i32,
    pub(super) pad1: u32,
    pub(super) flags: u64,
    pub(super) server_flags: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved: [u64; 2],
}

/// [`DeviceInfo::state`]: it has no disk, and nobody serves it.
pub(super) const STATE_DEAD: u16 = 0;
/// It has a disk, and nobody serves it: requests wait.
pub(super) const STATE_QUIESCED: u16 = 2;

/// [`DeviceInfo::flags`]: without a server its requests wait for another, also those that the last one had.
pub(super) const USER_RECOVERY: u64 = 1 << 3;
pub(super) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// Of the driver: a disk's size can change.
pub(super) const UPDATE_SIZE: u64 = 1 << 10;

/// What the disk is.
#[derive(IntoBytes, FromBytes, Immutable, Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Parameters {
    /// Bytes in these parameters.
    pub(super) len: u32,
    /// Which of them hold.
    pub(super) types: u32,
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) io_optimal_shift: u8,
    pub(super) io_minimum_shift: u8,
    pub(super) sectors_max: u32,
    pub(super) chunk_sectors: u32,
    pub(super) device_sectors: u64,
    pub(super) virtual_boundary_mask: u64,
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) discard_sectors_max: u32,
    pub(super) write_zeroes_sectors_max: u32,
    pub(super) discard_segments_max: u16,
    pub(super) reserved: [u16; 3],
}

impl Parameters {
    /// Bytes of the driver's own structure up to the end of the last of ours.
    pub(super) const LEN: u32 = 60;
    /// [`Parameters::types`].
    pub(super) const BASIC: u32 = 1 << 0;
    pub(super) const DISCARD: u32 = 1 << 1;
    /// [`Parameters::attributes`].
    pub(super) const READ_ONLY: u32 = 1 << 0;
    pub(super) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(super) const FUA: u32 = 1 << 3;
}

/// Says that a queue's slot is free for a request, with the result of the one before: the bytes of a submission queue
/// entry's command.
#[derive(IntoBytes, Immutable, Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    pub(super) address: u64,
}

/// The first fetch of a slot.
pub(super) fn fetch() -> u32 {
    u32::try_from(nix::request_code_readwrite!(b'u', 0x20, size_of::<IoCommand>())).expect("32 bits")
}

/// The result of a request, and a fetch of the next.
pub(super) fn commit_and_fetch() -> u32 {
    u32::try_from(nix::request_code_readwrite!(b'u', 0x21, size_of::<IoCommand>())).expect("32 bits")
}

/// A request, in memory that the driver shares.
#[derive(FromBytes, Immutable, Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct IoDescriptor {
    pub(super) op_flags: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
    pub(super) address: u64,
}

/// The operation in [`IoDescriptor::op_flags`].
pub(super) const OP_MASK: u32 = 0xff;
pub(super) const OP_READ: u32 = 0;
pub(super) const OP_WRITE: u32 = 1;
pub(super) const OP_FLUSH: u32 = 2;
pub(super) const OP_DISCARD: u32 = 3;
pub(super) const OP_WRITE_ZEROES: u32 = 5;
/// The flags beside it.
pub(super) const FUA: u32 = 1 << 13;
pub(super) const NO_UNMAP: u32 = 1 << 15;

const _: () = {
    assert!(size_of::<ControlCommand>() == 32);
    assert!(size_of::<DeviceInfo>() == 64);
    assert!(size_of::<Parameters>() == 64 && core::mem::offset_of!(Parameters, discard_alignment) == 40);
    assert!(size_of::<IoCommand>() == 16);
    assert!(size_of::<IoDescriptor>() == 24);
};
