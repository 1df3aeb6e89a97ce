//! A device's life: added, started, stopped, deleted.

use super::abi::{self, Control, DeviceInfo, Parameters};
use super::ring::ControlRing;
use anyhow::{Context, Result, ensure};
use nvmf_host::Namespace;
use std::path::PathBuf;

/// Bytes of all slots' buffers. They are memory that is registered with the connection.
const BUFFERS_BYTES_MAX: u32 = 64 << 20;
/// The most that one request moves: what kernel disks of this kind take.
const IO_BYTES_MAX: u32 = 1 << 20;
/// The least slots that a device has.
const DEPTH_MIN: u32 = 16;
/// The kernel's blocks are no longer than a page.
pub(crate) const BLOCK_SIZE_MAX: u32 = 4096;
const SECTOR: u32 = 512;

/// How many requests a device takes at once, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) depth: u16,
    pub(super) io_bytes_max: u32,
}

impl Shape {
    /// As many requests as the connection's queues take commands, each as long as one command, within bounds.
    pub(super) fn of(namespace: &Namespace, commands: u32) -> Self {
        let one = namespace.limits.transfer_blocks.saturating_mul(namespace.geometry.block_size);
        let io_bytes_max = (one.clamp(BLOCK_SIZE_MAX, IO_BYTES_MAX) / BLOCK_SIZE_MAX) * BLOCK_SIZE_MAX;
        let room = (BUFFERS_BYTES_MAX / io_bytes_max).max(DEPTH_MIN);
        let depth = commands.clamp(DEPTH_MIN, room.min(abi::QUEUE_DEPTH_MAX));
        Self { depth: u16::try_from(depth).expect("at most 4096"), io_bytes_max }
    }
}

/// What the kernel is told of a namespace.
pub(super) fn parameters(namespace: &Namespace, shape: Shape) -> Parameters {
    let (geometry, limits) = (namespace.geometry, namespace.limits);
    let shift = |bytes: u32| u8::try_from(bytes.ilog2()).expect("at most 31");
    let sectors = |blocks: u32| blocks.saturating_mul(geometry.block_size / SECTOR);
    let optimal = geometry.block_size.saturating_mul(geometry.preferred.write).max(geometry.block_size);
    let physical = optimal.clamp(geometry.block_size, BLOCK_SIZE_MAX);
    // A cache whatever the namespace has now: the kernel is told once, and sends no flush if there is none, and the
    // target may come back with one. Where there is none a flush costs a round trip.
    let mut attributes = Parameters::VOLATILE_CACHE | Parameters::FUA;
    if geometry.read_only {
        attributes |= Parameters::READ_ONLY;
    }
    let discards = geometry.deallocate && limits.deallocate_blocks > 0;
    let zeroes = limits.write_zeroes_blocks > 0;
    Parameters {
        len: Parameters::LEN,
        types: Parameters::BASIC | if discards || zeroes { Parameters::DISCARD } else { 0 },
        attributes,
        logical_block_shift: shift(geometry.block_size),
        physical_block_shift: shift(physical),
        io_optimal_shift: shift(optimal),
        io_minimum_shift: shift(physical),
        sectors_max: shape.io_bytes_max / SECTOR,
        device_sectors: geometry.bytes() / u64::from(SECTOR),
        discard_granularity: physical,
        // Longer than one command may be, they are split here: the kernel need not do it.
        discard_sectors_max: if discards { u32::MAX / physical * (physical / SECTOR) } else { 0 },
        write_zeroes_sectors_max: if zeroes { sectors(limits.write_zeroes_blocks) } else { 0 },
        discard_segments_max: u16::from(discards || zeroes),
        ..Parameters::default()
    }
}

/// Whether this process may make devices.
pub(crate) fn available() -> Result<()> {
    let mut ring = ControlRing::open().with_context(|| format!("cannot open {}", abi::CONTROL))?;
    let mut features = 0_u64;
    ring.run(Control::GetFeatures, abi::ANY_DEVICE, 0, &mut features)
        .context("this kernel's ublk does not answer; Linux 6.5 or later is needed")
}

/// Adds a device: its number. Its disk appears once it is started.
pub(super) fn add(namespace: &Namespace, shape: Shape) -> Result<u32> {
    let geometry = namespace.geometry;
    ensure!(
        geometry.block_size <= BLOCK_SIZE_MAX,
        "the namespace has blocks of {} bytes, and the kernel's block devices at most {BLOCK_SIZE_MAX}: use --as socket",
        geometry.block_size
    );
    let mut ring = ControlRing::open().with_context(|| format!("cannot open {}", abi::CONTROL))?;
    let mut info = DeviceInfo {
        queues: 1,
        queue_depth: shape.depth,
        io_bytes_max: shape.io_bytes_max,
        device: abi::ANY_DEVICE,
        ..DeviceInfo::default()
    };
    ring.run(Control::AddDevice, abi::ANY_DEVICE, 0, &mut info).context("cannot add a ublk device")?;
    let mut parameters = parameters(namespace, shape);
    if let Err(error) = ring.run(Control::SetParameters, info.device, 0, &mut parameters) {
        let _ = ring.run(Control::DeleteDevice, info.device, 0, &mut 0_u64);
        return Err(error).context("the kernel refused the disk's parameters");
    }
    Ok(info.device)
}

/// Makes the disk. Ends once the kernel has looked for partitions on it, which the queue must serve meanwhile.
pub(super) fn start(device: u32) -> Result<()> {
    let pid = u64::from(std::process::id());
    ControlRing::open()?
        .run(Control::StartDevice, device, pid, &mut 0_u64)
        .with_context(|| format!("cannot start {}", node(device).display()))
}

/// Takes the disk away, after writing back what the kernel still holds of it; the queue must serve meanwhile, and is
/// aborted then.
pub(super) fn stop(device: u32) -> Result<()> {
    ControlRing::open()?
        .run(Control::StopDevice, device, 0, &mut 0_u64)
        .with_context(|| format!("cannot stop {}", node(device).display()))
}

/// Deletes a device whose queue is closed. A file system that is still mounted on it keeps a dead one until it is
/// unmounted.
pub(super) fn delete(device: u32) -> Result<()> {
    let mut ring = ControlRing::open()?;
    ring.run(Control::DeleteDeviceLater, device, 0, &mut 0_u64)
        // Before Linux 6.9 it can only be waited for.
        .or_else(|_| ring.run(Control::DeleteDevice, device, 0, &mut 0_u64))
        .with_context(|| format!("cannot delete the ublk device {device}"))
}

/// Deletes what a server that was killed left behind. A device that someone serves is not touched.
pub(crate) fn clear_away(device: u32) {
    let mut info = DeviceInfo::default();
    let Ok(mut ring) = ControlRing::open() else { return };
    if ring.run(Control::GetDeviceInfo, device, 0, &mut info).is_ok() && info.state == abi::STATE_DEAD {
        let _ = ring.run(Control::DeleteDeviceLater, device, 0, &mut 0_u64);
    }
}

/// The disk's node.
pub(crate) fn node(device: u32) -> PathBuf {
    format!("/dev/ublkb{device}").into()
}
