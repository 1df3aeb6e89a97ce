//! Images of a real Ceph cluster, whose configuration file `NVMF_TEST_CEPH` names. `cargo xtask ceph` starts one and runs
//! these. Each makes images of its own in the pool `rbd`, and removes them.

use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec, ImageSource, Presence};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, Tag, conformance};
use nvmf_memory::Memory;
use nvmf_rados::{Cluster, ClusterSpec, Encryption};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(0);
const MIB: u64 = 1 << 20;

fn conf() -> PathBuf {
    std::env::var_os("NVMF_TEST_CEPH").expect("NVMF_TEST_CEPH names a configuration file").into()
}

/// Runs one of Ceph's commands.
fn ceph(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).arg("--conf").arg(conf()).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

fn cluster() -> ClusterSpec {
    ClusterSpec { conf: Some(conf()), user: "admin".into(), keyring: None }
}

/// An image of a test's own, removed when this is dropped.
struct Image {
    name: String,
}

impl Image {
    fn new(name: &str, mib: u64) -> Self {
        let name = format!("{name}-{}", std::process::id());
        ceph("rbd", &["create", "--size", &format!("{mib}M"), &name]);
        Self { name }
    }

    fn source(&self) -> ImageSource {
        ImageSource {
            cluster: cluster(),
            pool: "rbd".into(),
            namespace: None,
            image: self.name.clone(),
            snapshot: None,
            encryption: None,
        }
    }

    fn open(&self, block_size: Option<u32>) -> Disk {
        Disk::open(&DiskSpec::Rbd(self.source()), block_size, false).unwrap()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let remove = |arguments: &[&str]| {
            let _ = Command::new("rbd").arg("--conf").arg(conf()).args(arguments).output();
        };
        remove(&["snap", "purge", &self.name]);
        remove(&["rm", &self.name]);
    }
}

fn devices(disk: &Disk) -> Devices {
    let mut devices = Devices::new(DevicesOptions { depth: 64 }).unwrap();
    devices.attach(DEVICE, disk).unwrap();
    devices
}

fn waiting() -> impl FnMut(&mut Devices) {
    let deadline = Instant::now() + Duration::from_secs(120);
    move |devices| {
        assert!(Instant::now() < deadline, "an operation did not complete");
        devices.wait(Some(Duration::from_millis(100)));
    }
}

/// Runs one operation on the first device.
fn run(devices: &mut Devices, op: BlockOp) -> Result<(), BlockError> {
    devices.submit(Tag(7), DEVICE, op).unwrap();
    let (mut completions, mut wait) = (Vec::<Completion>::with_capacity(1), waiting());
    loop {
        devices.poll(&mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result;
        }
        wait(devices);
    }
}

fn buffer(devices: &mut Devices, len: usize) -> (Memory, Buffer) {
    let memory = Memory::alloc(len).unwrap();
    let region = devices.register(&memory).unwrap();
    (memory, Buffer { region, offset: 0, len })
}

#[test]
#[ignore = "needs a Ceph cluster, named by NVMF_TEST_CEPH"]
fn image_conforms() {
    let image = Image::new("conforms", 16);
    for block_size in [None, Some(512)] {
        let disk = image.open(block_size);
        assert!(!disk.geometry().volatile_write_cache && disk.geometry().deallocate);
        conformance::check(&mut devices(&disk), DEVICE, &mut waiting());
        assert_eq!(disk.health(), nvmf_backend::Health::default());
    }
    let read_only = Disk::open(&DiskSpec::Rbd(image.source()), None, true).unwrap();
    conformance::check(&mut devices(&read_only), DEVICE, &mut waiting());
    let other = Image::new("conforms-beside", 16);
    let mut devices = devices(&image.open(None));
    devices.attach(DeviceId(1), &other.open(None)).unwrap();
    conformance::check_room_for_others(&mut devices, [DEVICE, DeviceId(1)], &mut waiting());
}
