//! Block devices: a loop device where the system permits one (root, and the loop driver), and a device named in the
//! environment.

use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec, IdentitySource};
use nvmf_block::{Backend, BlockOp, BlockRange, Buffer, DeviceId, Tag, conformance};
use nvmf_memory::Memory;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);

/// A loop device. The kernel detaches it when this is dropped or the process ends.
struct Loop {
    path: PathBuf,
    open: File,
}

impl Loop {
    /// A loop device on `file`; `None`, with a message, where that is not possible.
    fn new(file: &Path) -> Option<Self> {
        let losetup = |arguments: &[&str], path: &Path| {
            let output = Command::new("losetup").args(arguments).arg(path).output();
            let output = output.inspect_err(|error| eprintln!("not checked: losetup: {error}")).ok()?;
            let (said, wrong) =
                (String::from_utf8(output.stdout).ok()?, String::from_utf8_lossy(&output.stderr));
            output.status.success().then_some(said).or_else(|| {
                eprintln!("not checked: {wrong}");
                None
            })
        };
        let path = PathBuf::from(losetup(&["--find", "--show"], file)?.trim());
        let open = File::open(&path).expect("it was just made");
        // It is open, so the kernel detaches it at the last close.
        losetup(&["--detach"], &path)?;
        Some(Self { path, open })
    }

    fn disk(&self, block_size: Option<u32>, read_only: bool) -> Disk {
        Disk::open(&DiskSpec::Path { path: self.path.clone(), create: None }, block_size, read_only).unwrap()
    }

    /// The kernel's count of completed flushes of the device.
    fn flushes(&self) -> u64 {
        let number = self.open.metadata().unwrap().rdev();
        let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
        let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
        stat.split_ascii_whitespace().nth(15).expect("Linux 5.5 counts them").parse().unwrap()
    }
}

fn devices(disk: &Disk) -> Devices {
    let mut devices = Devices::new(DevicesOptions { depth: 64 }).unwrap();
    devices.attach(DEVICE, disk).unwrap();
    devices
}

fn waiting() -> impl FnMut(&mut Devices) {
    let deadline = Instant::now() + Duration::from_secs(60);
    move |devices| {
        assert!(Instant::now() < deadline, "an operation did not complete");
        devices.wait(Some(Duration::from_millis(100)));
    }
}

#[test]
fn a_loop_device_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk.img");
    std::fs::write(&file, vec![0; 4 << 20]).unwrap();
    let Some(device) = Loop::new(&file) else { return };
    for (block_size, read_only) in [(None, false), (Some(4096), false), (None, true)] {
        let disk = device.disk(block_size, read_only);
        assert!(disk.direct());
        conformance::check(&mut devices(&disk), DEVICE, &mut waiting());
        assert_eq!(disk.health(), nvmf_backend::Health::default());
    }
    let first = device.disk(None, false);
    let again = DiskSpec::Path { path: device.path, create: None };
    let error = Disk::open(&again, None, false).unwrap_err().to_string();
    assert!(error.contains("is in use"), "{error}");
    drop(first);
}

#[test]
fn flush_and_fua_reach_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk.img");
    std::fs::write(&file, vec![0; 4 << 20]).unwrap();
    let Some(device) = Loop::new(&file) else { return };
    let disk = device.disk(Some(4096), false);
    assert!(disk.geometry().volatile_write_cache && disk.volatile_write_cache());
    let mut devices = devices(&disk);
    let memory = Memory::alloc(4096).unwrap();
    let from = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 4096 };
    let range = BlockRange::new(0, 1);
    let (mut completions, mut wait) = (Vec::with_capacity(1), waiting());
    let write = |fua| BlockOp::Write { range, from, fua };
    let zeroes = |fua| BlockOp::WriteZeroes { range, deallocate: false, fua };
    for (op, flushes) in
        [(write(false), 0), (BlockOp::Flush, 1), (write(true), 1), (zeroes(false), 0), (zeroes(true), 1)]
    {
        let before = device.flushes();
        devices.submit(Tag(1), DEVICE, op).unwrap();
        while completions.is_empty() {
            wait(&mut devices);
            devices.poll(&mut completions);
        }
        assert_eq!(completions.pop().unwrap().result, Ok(()));
        assert_eq!(device.flushes() - before, flushes, "{op:?}");
    }
}

#[test]
fn a_loop_device_has_the_uuid_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::write(&path, vec![0; 4 << 20]).unwrap();
    let Some(device) = Loop::new(&path) else { return };
    let identity = device.disk(None, false).identity().unwrap().expect("that of the file");
    assert!(matches!(
        identity.source,
        IdentitySource::Attribute | IdentitySource::Birth | IdentitySource::Inode
    ));
    drop(device);
    let file = Disk::open(&DiskSpec::Path { path, create: None }, None, true).unwrap();
    assert_eq!(file.identity().unwrap(), Some(identity));
}

/// Also on an NVMe drive's generic device. `NVMF_TEST_BLOCK_DEVICE=/dev/sdx cargo test -p nvmf-backend -- --ignored`. The device is overwritten.
#[test]
#[ignore = "needs a block device to overwrite, named by NVMF_TEST_BLOCK_DEVICE"]
fn a_block_device_conforms() {
    let path = std::env::var_os("NVMF_TEST_BLOCK_DEVICE").expect("NVMF_TEST_BLOCK_DEVICE names a device");
    let spec = DiskSpec::Path { path: path.into(), create: None };
    for (block_size, read_only) in [(None, false), (Some(4096), false), (None, true)] {
        let disk = Disk::open(&spec, block_size, read_only).unwrap();
        conformance::check(&mut devices(&disk), DEVICE, &mut waiting());
    }
}
