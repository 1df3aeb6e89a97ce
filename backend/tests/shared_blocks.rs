//! Files that share blocks, on file systems that can: XFS and Btrfs, each on a file of its own, where the system permits
//! that (root, the loop driver, mkfs).

use nvmf_backend::disk::image::{self, Cloned, Space};
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, DeviceId, Tag};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PIECE: usize = 1 << 20;

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs `test` in a folder on each of these file systems. They are mounted for its thread only, and gone with it.
fn on_file_systems(test: fn(&Path)) {
    for kind in ["xfs", "btrfs"] {
        let thread = std::thread::spawn(move || {
            let folder = tempfile::tempdir().unwrap();
            let (file, mounted) = (folder.path().join("image"), folder.path().join("mounted"));
            std::fs::create_dir(&mounted).unwrap();
            std::fs::File::create(&file).unwrap().set_len(512 << 20).unwrap();
            let (file, at) = (file.to_str().unwrap(), mounted.to_str().unwrap());
            let mount = || {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).map_err(|e| e.to_string())?;
                run("mount", &["--make-rprivate", "/"])?;
                run(&format!("mkfs.{kind}"), &["-q", file])?;
                run("mount", &["-t", kind, "-o", "loop", file, at])
            };
            if let Err(error) = mount() {
                return eprintln!("not checked: {error}");
            }
            test(&mounted);
            run("umount", &[at]).unwrap();
        });
        thread.join().unwrap();
    }
}

/// Whether all blocks with data are shared with another file.
fn is_shared(path: &Path) -> bool {
    let extents = run("filefrag", &["-v", path.to_str().unwrap()]).unwrap();
    let mut extents = extents.lines().filter(|line| line.contains("..")).peekable();
    extents.peek().is_some() && extents.all(|extent| extent.contains("shared"))
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..PIECE).map(|at| (at % 251) as u8 ^ seed).collect()
}

#[test]
fn clone_of_a_disk_in_use_shares_its_blocks_and_keeps_its_moment() {
    on_file_systems(|folder| {
        let (source, clone) = (folder.join("disk.img"), folder.join("clone.img"));
        image::create(&source, 64 << 20, Space::Sparse).unwrap();
        let spec = DiskSpec::Path { path: source.clone(), create: None };
        let _served = Disk::open(&spec, None, false).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&source).unwrap();
        file.write_all_at(&bytes(1), 8 << 20).unwrap();
        assert_eq!(image::clone(&source, &clone, false, || true).unwrap(), Cloned::Shared);
        assert!(is_shared(&clone));
        let content = |path: &Path| {
            let (file, mut content) = (std::fs::File::open(path).unwrap(), vec![0; PIECE]);
            file.read_exact_at(&mut content, 8 << 20).unwrap();
            content
        };
        file.write_all_at(&bytes(2), 8 << 20).unwrap();
        assert!(content(&clone) == bytes(1), "what is written later is not in it");
        OpenOptions::new().write(true).open(&clone).unwrap().write_all_at(&bytes(3), 8 << 20).unwrap();
        assert!(content(&source) == bytes(2) && content(&clone) == bytes(3));
        assert_eq!(std::fs::metadata(&clone).unwrap().len(), 64 << 20);
    });
}

const SOURCE: DeviceId = DeviceId(1);
const OTHER: DeviceId = DeviceId(2);
/// Bytes in a block: less than the file systems have.
const BLOCK: u64 = 512;

fn disk(folder: &Path, name: &str) -> (Disk, std::fs::File) {
    let path = folder.join(name);
    image::create(&path, 64 << 20, Space::Sparse).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // Direct I/O may need larger blocks.
    (Disk::open_buffered(&path, Some(BLOCK as u32), false).unwrap(), file)
}

fn two_disks(folder: &Path) -> (Devices, [std::fs::File; 2]) {
    let ((source, written), (other, shared)) = (disk(folder, "source.img"), disk(folder, "other.img"));
    let mut devices = Devices::new(DevicesOptions { depth: 16 }).unwrap();
    devices.attach(SOURCE, &source).unwrap();
    devices.attach(OTHER, &other).unwrap();
    (devices, [written, shared])
}

fn share(at: u64, source: DeviceId, from: u64, blocks: u64, fua: bool) -> BlockOp {
    BlockOp::Share { range: BlockRange::new(at, blocks), source, from, fua }
}

/// Nothing but completions ends its sleep.
fn execute(devices: &mut Devices, device: DeviceId, op: BlockOp) -> Result<(), BlockError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    devices.submit(Tag(1), device, op).unwrap();
    let mut done = Vec::with_capacity(1);
    while done.is_empty() {
        assert!(Instant::now() < deadline, "{op:?} does not end");
        devices.flush();
        devices.poll(&mut done);
        if done.is_empty() {
            devices.wait(Some(Duration::from_secs(60)));
        }
    }
    done[0].result
}

fn read(file: &std::fs::File, at: u64) -> Vec<u8> {
    let mut content = vec![0; PIECE];
    file.read_exact_at(&mut content, at).unwrap();
    content
}

#[test]
fn blocks_of_one_disk_are_shared_with_another_and_with_itself() {
    on_file_systems(|folder| {
        let (mut devices, [written, shared]) = two_disks(folder);
        written.write_all_at(&bytes(1), 8 << 20).unwrap();
        let piece = PIECE as u64 / BLOCK;
        let unit = u64::from(devices.sharing_unit(SOURCE, OTHER).unwrap());
        assert_eq!(unit, 4096 / BLOCK);
        for fua in [false, true] {
            let at = if fua { 2 * piece } else { 0 };
            assert_eq!(execute(&mut devices, OTHER, share(at, SOURCE, 8 * piece, piece, fua)), Ok(()));
            assert!(read(&shared, at * BLOCK) == bytes(1));
        }
        assert!(is_shared(&folder.join("other.img")));
        assert_eq!(execute(&mut devices, SOURCE, share(20 * piece, SOURCE, 8 * piece, piece, false)), Ok(()));
        assert!(read(&written, 20 << 20) == bytes(1));
        // One is written: the others stay as they were.
        written.write_all_at(&bytes(2), 8 << 20).unwrap();
        assert!(read(&shared, 0) == bytes(1) && read(&written, 20 << 20) == bytes(1));

        let beyond = (64 << 20) / BLOCK - 1;
        assert_eq!(
            execute(&mut devices, OTHER, share(beyond, SOURCE, 0, 8, false)),
            Err(BlockError::OutOfRange)
        );
        assert_eq!(
            execute(&mut devices, OTHER, share(0, SOURCE, beyond, 8, false)),
            Err(BlockError::Unsupported)
        );
        assert_eq!(
            execute(&mut devices, OTHER, share(0, DeviceId(9), 0, 8, false)),
            Err(BlockError::Unsupported)
        );
        assert!(devices.sharing_unit(SOURCE, OTHER).is_some(), "the kernel was not asked");
        // A part of a block of the file system: the kernel refuses, and is not asked again.
        assert_eq!(execute(&mut devices, OTHER, share(1, SOURCE, 0, 8, false)), Err(BlockError::Unsupported));
        assert_eq!(devices.sharing_unit(SOURCE, OTHER), None);
        assert!(
            devices.sharing_unit(OTHER, SOURCE).is_some() && devices.sharing_unit(OTHER, OTHER).is_some()
        );
        devices.detach(OTHER);
        assert_eq!(devices.sharing_unit(OTHER, SOURCE), None);
        devices.close(Duration::from_secs(60)).unwrap();
    });
}

#[test]
fn devices_close_when_shares_under_way_are_over() {
    on_file_systems(|folder| {
        let (mut devices, [written, shared]) = two_disks(folder);
        written.write_all_at(&bytes(1), 0).unwrap();
        let piece = PIECE as u64 / BLOCK;
        for at in 0..6 {
            devices.submit(Tag(at), OTHER, share(at * piece, SOURCE, 0, piece, at % 2 == 0)).unwrap();
        }
        devices.flush();
        // It has operations in flight, and goes only then.
        devices.detach(SOURCE);
        devices.close(Duration::from_secs(60)).unwrap();
        assert!((0..6).all(|at| read(&shared, at << 20) == bytes(1)));
    });
}

#[test]
fn file_system_that_cannot_share_is_asked_once() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (mut devices, _files) = two_disks(folder.path());
    assert!(devices.sharing_unit(SOURCE, OTHER).is_some(), "it may");
    assert_eq!(execute(&mut devices, OTHER, share(0, SOURCE, 0, 8, true)), Err(BlockError::Unsupported));
    assert_eq!(devices.sharing_unit(SOURCE, OTHER), None);
    // What took its name may be another file.
    devices.detach(SOURCE);
    let (again, _file) = disk(folder.path(), "again.img");
    devices.attach(SOURCE, &again).unwrap();
    assert!(devices.sharing_unit(SOURCE, OTHER).is_some());
    let memory = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, Some(BLOCK as u32), false).unwrap();
    devices.attach(DeviceId(3), &memory).unwrap();
    assert_eq!(devices.sharing_unit(SOURCE, DeviceId(3)), None);
    assert_eq!(
        execute(&mut devices, DeviceId(3), share(0, SOURCE, 0, 8, false)),
        Err(BlockError::Unsupported)
    );
}
