//! Every kind of disk passes the conformance suite; and what goes beyond it.

use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec, OpenError};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, Tag, conformance};
use nvmf_memory::Memory;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(3);

fn devices(spec: &DiskSpec, block_size: Option<u32>, read_only: bool) -> Devices {
    let disk = Disk::open(spec, block_size, read_only).expect("the disk opens");
    let mut devices = Devices::new(DevicesOptions { depth: 64 }).expect("a ring");
    devices.attach(DEVICE, &disk).expect("the disk attaches");
    devices
}

/// Waits briefly each time, and panics after a minute, so that a lost completion fails the test.
fn waiting() -> impl FnMut(&mut Devices) {
    let deadline = Instant::now() + Duration::from_secs(60);
    move |devices| {
        assert!(Instant::now() < deadline, "an operation did not complete");
        devices.wait(Some(Duration::from_millis(100)));
    }
}

const OTHER: DeviceId = DeviceId(4);

/// This disk and a memory disk.
fn two_devices(spec: &DiskSpec) -> Devices {
    let mut devices = devices(spec, None, false);
    let memory = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, None, false).unwrap();
    devices.attach(OTHER, &memory).unwrap();
    devices
}

fn file(path: &Path) -> DiskSpec {
    DiskSpec::Path { path: path.to_owned(), create: Some(4 << 20) }
}

#[test]
fn a_file_conforms() {
    let folder = tempfile::tempdir().unwrap();
    for block_size in [512, 4096] {
        let mut devices =
            devices(&file(&folder.path().join(format!("{block_size}.img"))), Some(block_size), false);
        conformance::check(&mut devices, DEVICE, &mut waiting());
    }
}

#[test]
fn a_file_without_direct_io_conforms() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    conformance::check(
        &mut devices(&file(&folder.path().join("disk.img")), None, false),
        DEVICE,
        &mut waiting(),
    );
}

#[test]
fn a_memory_disk_conforms() {
    conformance::check(
        &mut devices(&DiskSpec::Memory { size: 1 << 20 }, None, false),
        DEVICE,
        &mut waiting(),
    );
}

#[test]
fn a_null_disk_conforms_except_for_content() {
    conformance::check_forgetful(
        &mut devices(&DiskSpec::Null { size: 1 << 40 }, None, false),
        DEVICE,
        &mut waiting(),
    );
}

#[test]
fn a_read_only_file_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    conformance::check(
        &mut devices(&DiskSpec::Path { path, create: None }, None, true),
        DEVICE,
        &mut waiting(),
    );
}

#[test]
fn workers_share_a_disk() {
    let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, None, false).unwrap();
    let range = BlockRange::new(9, 1);
    let mut seen = [0; 4096];
    for (at, write) in [true, false].into_iter().enumerate() {
        let mut devices = Devices::new(DevicesOptions::default()).unwrap();
        devices.attach(DEVICE, &disk).unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let buffer = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 4096 };
        if write {
            memory.fill(0, 4096, 0x5a);
        }
        let op = if write {
            BlockOp::Write { range, from: buffer, fua: true }
        } else {
            BlockOp::Read { range, into: buffer }
        };
        assert_eq!(run(&mut devices, op), Ok(()), "worker {at}");
        memory.read(0, &mut seen);
    }
    assert_eq!(seen, [0x5a; 4096]);
}

fn run(devices: &mut Devices, op: BlockOp) -> Result<(), BlockError> {
    devices.submit(Tag(1), DEVICE, op).unwrap();
    devices.flush();
    let mut completions: Vec<Completion> = Vec::with_capacity(1);
    let mut wait = waiting();
    loop {
        devices.poll(&mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result;
        }
        wait(devices);
    }
}

#[test]
fn blocks_are_freed_only_when_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut devices = devices(&file(&path), None, false);
    let memory = Memory::alloc(1 << 20).unwrap();
    memory.fill(0, 1 << 20, 1);
    let from = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 1 << 20 };
    let range = BlockRange::new(0, 256);
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let zeroes = |deallocate| BlockOp::WriteZeroes { range, deallocate, fua: false };
    for (op, frees) in [(BlockOp::Deallocate { range }, true), (zeroes(true), true), (zeroes(false), false)] {
        assert_eq!(run(&mut devices, BlockOp::Write { range, from, fua: true }), Ok(()));
        assert!(blocks() >= 2048, "written");
        assert_eq!(run(&mut devices, op), Ok(()));
        assert_eq!(blocks() < 2048, frees, "{op:?}");
    }
}

#[test]
fn a_detached_device_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut devices = devices(&file(&path), None, false);
    devices.detach(DEVICE);
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Gone));
    assert_eq!(devices.geometry(DEVICE), None);
    assert!(Disk::open(&file(&path), None, false).is_ok(), "its file can be exported again");
}

#[test]
fn an_operation_for_a_detached_device_does_not_reach_its_successor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let disk = Disk::open(&file(&path), None, false).unwrap();
    let mut devices = devices(&file(&folder.path().join("first.img")), None, false);
    let next = DeviceId(DEVICE.0 + nvmf_backend::DEVICES_MAX);
    assert!(devices.attach(next, &disk).is_err(), "the slot is taken");
    devices.detach(next);
    assert_eq!(run(&mut devices, BlockOp::Flush), Ok(()), "nobody let go of the first");
    devices.detach(DEVICE);
    devices.attach(next, &disk).unwrap();
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Gone));
    assert!(devices.geometry(next).is_some() && devices.geometry(DEVICE).is_none());
    devices.detach(DEVICE);
    assert!(devices.geometry(next).is_some(), "nor of the second");
    devices.submit(Tag(1), next, BlockOp::Flush).unwrap();
    devices.flush();
    let (mut completions, mut wait) = (Vec::with_capacity(1), waiting());
    while completions.is_empty() {
        devices.poll(&mut completions);
        wait(&mut devices);
    }
    assert_eq!(completions[0].result, Ok(()), "which works");
}

/// Devices with one file, with that many bytes registered.
fn file_devices(path: &Path, bytes: usize) -> (Devices, Memory, Buffer) {
    let mut devices = devices(&file(path), Some(4096), false);
    let memory = Memory::alloc(bytes).unwrap();
    let region = devices.register(&memory).unwrap();
    (devices, memory, Buffer { region, offset: 0, len: bytes })
}

#[test]
fn polling_alone_brings_completions() {
    let folder = tempfile::tempdir().unwrap();
    let (mut devices, _memory, from) = file_devices(&folder.path().join("disk.img"), 4096);
    let mut completions = Vec::with_capacity(1);
    let deadline = Instant::now() + Duration::from_secs(60);
    for tag in 0..32 {
        let op = BlockOp::Write { range: BlockRange::new(tag, 1), from, fua: true };
        devices.submit(Tag(tag), DEVICE, op).unwrap();
        devices.flush();
        while completions.is_empty() {
            devices.poll(&mut completions);
            assert!(Instant::now() < deadline, "polling alone brings no completion");
        }
        assert_eq!(completions.pop(), Some(Completion { tag: Tag(tag), result: Ok(()) }));
    }
}

#[test]
fn wait_returns_while_completions_are_unpolled() {
    let folder = tempfile::tempdir().unwrap();
    let (mut devices, _memory, from) = file_devices(&folder.path().join("disk.img"), 4096);
    for tag in 0..8 {
        let op = BlockOp::Write { range: BlockRange::new(tag, 1), from, fua: false };
        devices.submit(Tag(tag), DEVICE, op).unwrap();
    }
    let (mut one, mut wait) = (Vec::with_capacity(1), waiting());
    for _ in 0..8 {
        while one.is_empty() {
            wait(&mut devices);
            devices.poll(&mut one);
        }
        one.clear();
    }
    assert_eq!(devices.in_flight(), 0);
}

#[test]
fn drop_waits_for_operations_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let (mut devices, memory, all) = file_devices(&path, 4 << 20);
    memory.fill(0, memory.len(), 0xc3);
    for at in 0..16_usize {
        let from = Buffer { offset: at << 18, len: 1 << 18, ..all };
        let op = BlockOp::Write { range: BlockRange::new(64 * at as u64, 64), from, fua: true };
        devices.submit(Tag(0), DEVICE, op).unwrap();
    }
    devices.flush();
    // The ring keeps the memory allocated while the kernel reads it.
    drop(memory);
    drop(devices);
    // The file is no longer in use. The kernel is asked directly because `Disk::open` retries.
    let again = std::fs::File::open(&path).unwrap();
    again.try_lock().expect("the file is unlocked");
    assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0xc3));
}

#[test]
fn long_compares_share_bounce_buffers() {
    let folder = tempfile::tempdir().unwrap();
    let (mut devices, memory, all) = file_devices(&folder.path().join("disk.img"), 4 << 20);
    memory.fill(0, 4 << 20, 0x11);
    let range = BlockRange::new(0, 1024);
    assert_eq!(run(&mut devices, BlockOp::Write { range, from: all, fua: false }), Ok(()));
    for tag in 0..40 {
        let op = if tag % 2 == 0 { BlockOp::Compare { range, with: all } } else { BlockOp::Verify { range } };
        devices.submit(Tag(tag), DEVICE, op).unwrap();
    }
    let (mut completions, mut wait) = (Vec::with_capacity(64), waiting());
    while completions.len() < 40 {
        wait(&mut devices);
        devices.poll(&mut completions);
    }
    completions.sort_by_key(|c| c.tag.0);
    assert!(completions.iter().map(|c| c.tag.0).eq(0..40), "each once");
    assert!(completions.iter().all(|c| c.result == Ok(())));
    memory.write((4 << 20) - 1, &[0]);
    assert_eq!(run(&mut devices, BlockOp::Compare { range, with: all }), Err(BlockError::CompareFailed));
}

#[test]
fn a_file_that_shrank_is_a_medium_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let (mut devices, _memory, into) = file_devices(&path, 8192);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    let (inside, across) = (BlockRange::new(254, 2), BlockRange::new(255, 2));
    assert_eq!(run(&mut devices, BlockOp::Read { range: inside, into }), Ok(()));
    assert_eq!(run(&mut devices, BlockOp::Read { range: across, into }), Err(BlockError::Medium));
    assert_eq!(run(&mut devices, BlockOp::Verify { range: across }), Err(BlockError::Medium));
}

#[test]
fn a_buffer_at_any_address_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (mut devices, memory, all) = file_devices(&folder.path().join("disk.img"), 1 << 20);
    let len = 65 * 4096;
    let pattern: Vec<u8> = (0..len).map(|at| (at / 7) as u8 ^ at as u8).collect();
    let range = BlockRange::new(3, 65);
    for (fua, offset) in [(false, 1), (true, 512), (false, 4096), (true, 8191)] {
        memory.fill(0, memory.len(), 0xee);
        memory.write(offset, &pattern);
        let [from, into] = [offset, (1 << 19) + 3].map(|offset| Buffer { offset, len, ..all });
        assert_eq!(run(&mut devices, BlockOp::Write { range, from, fua }), Ok(()));
        assert_eq!(run(&mut devices, BlockOp::Read { range, into }), Ok(()));
        assert!(memory.equals(offset, &memory, into.offset, len), "at offset {offset}");
        for guard in [into.offset - 1, into.offset + len] {
            let mut byte = [0];
            memory.read(guard, &mut byte);
            assert_eq!(byte, [0xee], "byte {guard} beside the buffer");
        }
        assert_eq!(run(&mut devices, BlockOp::Compare { range, with: into }), Ok(()));
    }
}

#[test]
fn two_devices_leave_each_other_room() {
    let folder = tempfile::tempdir().unwrap();
    let mut devices = two_devices(&file(&folder.path().join("disk.img")));
    conformance::check_room_for_others(&mut devices, [DEVICE, OTHER], &mut waiting());
}

#[test]
fn memory_gives_borrowed_reads() {
    let mut devices = devices(&DiskSpec::Memory { size: 1 << 20 }, None, false);
    for (start, blocks, borrowed) in [(0, 1, true), (254, 2, true), (0, 3, false), (255, 2, false)] {
        let read = devices.borrow_read(DEVICE, BlockRange::new(start, blocks));
        assert_eq!(read.is_some(), borrowed, "{blocks} blocks at {start}");
    }
    devices.detach(DEVICE);
    assert!(devices.borrow_read(DEVICE, BlockRange::new(0, 1)).is_none());
}

#[test]
fn a_watched_descriptor_ends_the_wait() {
    let mut devices = devices(&DiskSpec::Null { size: 4096 }, None, false);
    let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let watch = devices.watch(reader.as_fd()).unwrap();
    devices.wait(Some(Duration::from_millis(1)));
    devices.poll(&mut Vec::with_capacity(1));
    assert!(!devices.take_fired(watch));
    let thread = std::thread::spawn(move || std::io::Write::write_all(&mut &writer, b"x").map(|()| writer));
    // Returns as soon as the byte is there.
    devices.wait(Some(Duration::from_secs(60)));
    assert!(devices.take_fired(watch) && !devices.take_fired(watch));
    // The descriptor is still readable, so the next wait returns too.
    devices.wait(Some(Duration::from_secs(60)));
    assert!(devices.take_fired(watch));
    drop(thread.join().unwrap());
}

/// Tells the child process which file to open.
const OWNED: &str = "NVMF_TEST_OWNED_FILE";

/// Runs in the child, too, which opens the file and is killed.
#[test]
fn a_killed_process_releases_its_file() {
    if let Some(path) = std::env::var_os(OWNED) {
        let _devices = devices(&file(Path::new(&path)), None, false);
        println!("{OWNED}");
        // Until the parent kills this process, or ends itself.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_releases_its_file", "--nocapture"])
        .env(OWNED, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.into_iter().any(|line| line.contains(OWNED)), "the child opens the file");
    assert!(matches!(Disk::open(&file(&path), None, false), Err(OpenError::InUse { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel closes the files of its ring when it gets to it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = Disk::open(&file(&path), None, false) {
        assert!(matches!(error, OpenError::InUse { .. }) && Instant::now() < deadline, "{error}");
    }
}
