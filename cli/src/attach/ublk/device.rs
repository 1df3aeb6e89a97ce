//! A device's life: added, started, stopped, deleted.

use super::abi::{self, Control, DeviceInfo, Parameters};
use super::ring::ControlRing;
use anyhow::{Context, Result, ensure};
use nvmf_host::Namespace;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes of all slots' buffers. They are memory that is registered with the connection.
const BUFFERS_BYTES_MAX: u32 = 64 << 20;
/// The most that one request moves: what kernel disks of this kind take. Half of it where several queues share the buffers.
const IO_BYTES_MAX: u32 = 1 << 20;
const FEW_QUEUES: u16 = 2;
/// The least slots that a queue has: one of several as many as a program that has one processor keeps busy.
const DEPTH_MIN: u32 = 16;
const DEPTH_MIN_OF_SEVERAL: u32 = 32;
/// Queues that a device may have.
pub(crate) const QUEUES_MAX: u16 = 64;
/// The kernel's blocks are no longer than a page.
pub(crate) const BLOCK_SIZE_MAX: u32 = 4096;
const SECTOR: u32 = 512;
/// How long the driver may take to see that a server is gone: one that looks, does so every five seconds.
const QUIESCE_TIME_MAX: Duration = Duration::from_secs(30);
const QUIESCE_POLL: Duration = Duration::from_millis(10);

/// How many queues a device has, how many requests each takes at once, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) io_bytes_max: u32,
}

impl Shape {
    /// In each queue as many requests as its connection takes commands, each as long as one command, within bounds.
    pub(super) fn of(namespace: &Namespace, queues: u16, commands: u32) -> Self {
        let one = namespace.limits.transfer_blocks.saturating_mul(namespace.geometry.block_size);
        let longest = if queues > FEW_QUEUES { IO_BYTES_MAX / 2 } else { IO_BYTES_MAX };
        let io_bytes_max = (one.clamp(BLOCK_SIZE_MAX, longest) / BLOCK_SIZE_MAX) * BLOCK_SIZE_MAX;
        let least = if queues > 1 { DEPTH_MIN_OF_SEVERAL } else { DEPTH_MIN };
        let room = (BUFFERS_BYTES_MAX / io_bytes_max / u32::from(queues.max(1))).max(least);
        let depth = commands.clamp(DEPTH_MIN, room.min(abi::QUEUE_DEPTH_MAX));
        Self { queues, depth: u16::try_from(depth).expect("at most 4096"), io_bytes_max }
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
    features(&mut ring).map(drop)
}

/// What the kernel's driver can do ([`abi::DeviceInfo::flags`] names some of it).
fn features(ring: &mut ControlRing) -> Result<u64> {
    let mut features = 0_u64;
    ring.run(Control::GetFeatures, abi::ANY_DEVICE, 0, &mut features)
        .context("this kernel's ublk does not answer; Linux 6.5 or later is needed")?;
    Ok(features)
}

/// Adds a device: its number. Its disk appears once it is started. The kernel keeps the mark on record for it.
pub(super) fn add(namespace: &Namespace, shape: Shape, mark: u64) -> Result<u32> {
    let geometry = namespace.geometry;
    ensure!(
        geometry.block_size <= BLOCK_SIZE_MAX,
        "the namespace has blocks of {} bytes, and the kernel's block devices at most {BLOCK_SIZE_MAX}: use --as socket",
        geometry.block_size
    );
    let mut ring = ControlRing::open().with_context(|| format!("cannot open {}", abi::CONTROL))?;
    let mut info = DeviceInfo {
        flags: abi::USER_RECOVERY | abi::USER_RECOVERY_REISSUE,
        server_flags: mark,
        queues: shape.queues,
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

/// Makes the disk. Ends once the kernel has looked for partitions on it, which the queues must serve meanwhile.
pub(super) fn start(device: u32) -> Result<()> {
    let pid = u64::from(std::process::id());
    ControlRing::open()?
        .run(Control::StartDevice, device, pid, &mut 0_u64)
        .with_context(|| format!("cannot start {}", node(device).display()))
}

/// Takes the disk away, after writing back what the kernel still holds of it; the queues must serve meanwhile, and are
/// aborted then.
pub(super) fn stop(device: u32) -> Result<()> {
    ControlRing::open()?
        .run(Control::StopDevice, device, 0, &mut 0_u64)
        .with_context(|| format!("cannot stop {}", node(device).display()))
}

/// Deletes a device whose queues are closed, or closes them. A file system that is still mounted on it keeps a dead one until it is
/// unmounted.
pub(super) fn delete(device: u32) -> Result<()> {
    let mut ring = ControlRing::open()?;
    ring.run(Control::DeleteDeviceLater, device, 0, &mut 0_u64)
        // Before Linux 6.9 it can only be waited for.
        .or_else(|_| ring.run(Control::DeleteDevice, device, 0, &mut 0_u64))
        .with_context(|| format!("cannot delete the ublk device {device}"))
}

/// The device with this mark, if there is one.
fn marked(ring: &mut ControlRing, mark: u64) -> Option<DeviceInfo> {
    let devices = std::fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let numbers = devices.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok());
    numbers
        .filter_map(|number: u32| {
            let mut info = DeviceInfo::default();
            ring.run(Control::GetDeviceInfo, number, 0, &mut info).ok().map(|()| info)
        })
        .find(|info| mark != 0 && info.server_flags == mark)
}

/// Whether there is a disk with this mark, served or not.
pub(crate) fn is_left(mark: u64) -> bool {
    let info = ControlRing::open().ok().and_then(|mut ring| marked(&mut ring, mark));
    info.is_some_and(|info| info.state != abi::STATE_DEAD)
}

/// Begins to take over the device of a server that was killed: its number, and its shape. Its queues are opened next, and
/// then comes [`recovered`].
pub(super) fn recover(mark: u64) -> Result<(u32, Shape)> {
    let mut ring = ControlRing::open().with_context(|| format!("cannot open {}", abi::CONTROL))?;
    let deadline = Instant::now() + QUIESCE_TIME_MAX;
    loop {
        let info = marked(&mut ring, mark).context("the ublk device is gone")?;
        ensure!(info.state != abi::STATE_DEAD, "the ublk device is dead");
        let shape = Shape { queues: info.queues, depth: info.queue_depth, io_bytes_max: info.io_bytes_max };
        // The driver takes its time to see that the old server is gone.
        let begun = match info.state {
            abi::STATE_QUIESCED => ring.run(Control::StartRecovery, info.device, 0, &mut 0_u64),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        };
        match begun {
            Ok(()) => return Ok((info.device, shape)),
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() > deadline => {
                return Err(error)
                    .with_context(|| format!("cannot take over {}", node(info.device).display()));
            }
            Err(_) => std::thread::sleep(QUIESCE_POLL),
        }
    }
}

/// The queues of a device that is taken over are open: its requests come.
pub(super) fn recovered(device: u32) -> Result<()> {
    let pid = u64::from(std::process::id());
    ControlRing::open()?
        .run(Control::EndRecovery, device, pid, &mut 0_u64)
        .with_context(|| format!("cannot take over {}", node(device).display()))
}

/// Tells the kernel the disk's new size.
pub(super) fn resize(device: u32, bytes: u64) -> Result<()> {
    let mut ring = ControlRing::open()?;
    ensure!(
        features(&mut ring)? & abi::UPDATE_SIZE != 0,
        "this kernel's ublk cannot change the size of a disk (Linux 6.16 can): unmount it, detach it and attach it again"
    );
    ring.run(Control::UpdateSize, device, bytes / u64::from(SECTOR), &mut 0_u64)
        .with_context(|| format!("cannot resize {}", node(device).display()))
}

/// Deletes what a server that was killed left behind, by its mark.
pub(crate) fn clear_away(mark: u64) {
    let Ok(mut ring) = ControlRing::open() else { return };
    if let Some(info) = marked(&mut ring, mark) {
        if info.state != abi::STATE_DEAD {
            // What waits fails.
            let _ = ring.run(Control::StopDevice, info.device, 0, &mut 0_u64);
        }
        let _ = ring.run(Control::DeleteDeviceLater, info.device, 0, &mut 0_u64);
    }
}

/// The disk's node.
pub(crate) fn node(device: u32) -> PathBuf {
    format!("/dev/ublkb{device}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme_proto::Nsid;
    use nvmf_block::{Geometry, Preferred};
    use nvmf_host::CommandLimits;

    #[test]
    fn buffers_of_all_queues_together_are_bounded() {
        let geometry = Geometry {
            block_size: 512,
            blocks: 1 << 20,
            preferred: Preferred::blocks(8),
            volatile_write_cache: true,
            deallocate: false,
            zero_after_deallocate: false,
            read_only: false,
        };
        let limits = CommandLimits {
            transfer_blocks: 1 << 20,
            write_zeroes_blocks: 0,
            write_zeroes_deallocate: false,
            verify_blocks: 0,
            deallocate_blocks: 0,
            deallocate_command_blocks: 0,
            deallocate_ranges: 0,
            compare: false,
            compare_and_write_blocks: 0,
            copy_blocks: 0,
            in_capsule_bytes: 0,
        };
        let namespace = Namespace::new(Nsid(1), geometry, limits);
        let of = |queues, commands| {
            let Shape { depth, io_bytes_max, .. } = Shape::of(&namespace, queues, commands);
            (depth, io_bytes_max >> 10)
        };
        assert_eq!((of(1, 128), of(2, 128), of(4, 128)), ((64, 1024), (32, 1024), (32, 512)));
        // A queue of many is worth having only if it takes a few requests.
        assert_eq!(of(QUEUES_MAX, 128), (32, 512));
        assert_eq!((of(1, 8), of(4, 8)), ((16, 1024), (16, 512)));
    }
}
