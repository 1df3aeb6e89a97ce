use super::*;
use crate::disk::{DiskSpec, FailedOperation};
use crate::uring::file::Command;
use nvmf_block::Buffer;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Instant;

const MIB: usize = 1 << 20;
const HUNG: DeviceId = DeviceId(0);
const DEVICE: DeviceId = DeviceId(1);

fn devices(depth: u32) -> Devices {
    Devices::new(DevicesOptions { depth }).unwrap()
}

fn file(path: &Path) -> Disk {
    Disk::open(&DiskSpec::Path { path: path.to_owned(), create: Some(4 << 20) }, None, false).unwrap()
}

fn memory(bytes: usize) -> Disk {
    Disk::open(&DiskSpec::Memory { size: bytes as u64 }, None, false).unwrap()
}

fn register(devices: &mut Devices, len: usize) -> (Memory, Buffer) {
    let memory = Memory::alloc(len).unwrap();
    let region = devices.register(&memory).unwrap();
    (memory, Buffer { region, offset: 0, len })
}

/// The tags of the next completions, all of which succeed, in the order in which they come.
fn collect(devices: &mut Devices, count: usize) -> Vec<u64> {
    results(devices, count).into_iter().map(|(tag, result)| result.map(|()| tag).unwrap()).collect()
}

fn results(devices: &mut Devices, count: usize) -> Vec<(u64, Result<(), BlockError>)> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut all, mut some) = (Vec::new(), Vec::with_capacity(4));
    while all.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} operations completed", all.len());
        devices.poll(&mut some);
        if some.is_empty() {
            devices.wait(Some(Duration::from_millis(100)));
        }
        all.extend(some.drain(..).map(|completion| (completion.tag.0, completion.result)));
    }
    assert_eq!(all.len(), count);
    all
}

fn run(devices: &mut Devices, op: BlockOp) -> Result<(), BlockError> {
    devices.submit(Tag(1), DEVICE, op).unwrap();
    results(devices, 1)[0].1
}

/// Submits to a hanging device until it is full.
fn fill_up(devices: &mut Devices, op: BlockOp) -> usize {
    let taken = (0..10_000).take_while(|&tag| devices.submit(Tag(tag), HUNG, op).is_ok()).count();
    devices.flush();
    taken
}

/// Closes without waiting for the device that hangs.
fn leave(devices: Devices) {
    assert!(devices.close(Duration::ZERO).is_err(), "a device hangs");
}

/// Checks that a device does all that a backend promises.
pub(crate) fn conforms(devices: &mut Devices, device: DeviceId) {
    let deadline = Instant::now() + Duration::from_secs(60);
    nvmf_block::conformance::check(devices, device, &mut |devices| {
        assert!(Instant::now() < deadline, "an operation did not complete");
        devices.wait(Some(Duration::from_millis(100)));
    });
}

#[test]
fn a_file_through_the_page_cache_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::write(&path, vec![0; MIB]).unwrap();
    let disk = Disk::open_buffered(&path, None, false).unwrap();
    assert!(!disk.direct());
    let mut devices = devices(64);
    devices.attach(DEVICE, &disk).unwrap();
    conforms(&mut devices, DEVICE);
}

#[test]
fn a_failed_flush_fails_every_later_one_until_the_disk_is_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let disk = file(&path);
    let (pipe, _writer) = std::io::pipe().unwrap();
    let mut workers = [devices(8), devices(8)];
    let buffers = workers.each_mut().map(|devices| {
        devices.attach(DEVICE, &disk).unwrap();
        register(devices, 4096).1
    });
    let write = |from, fua| BlockOp::Write { range: BlockRange::new(0, 1), from, fua };
    assert_eq!(run(&mut workers[0], BlockOp::Flush), Ok(()));
    assert_eq!(disk.health(), crate::Health::default());

    // A pipe cannot be synced, so this flush fails; later ones would succeed.
    workers[0].ring.set_file(slot(DEVICE), pipe.as_raw_fd()).unwrap();
    assert_eq!(run(&mut workers[0], BlockOp::Flush), Err(BlockError::CacheLost));
    let Kind::File(backing) = &disk.0.kind else { unreachable!("it is a file") };
    workers[0].ring.set_file(slot(DEVICE), backing.file.as_raw_fd()).unwrap();
    for (worker, from) in workers.iter_mut().zip(buffers) {
        let zeroes = BlockOp::WriteZeroes { range: BlockRange::new(0, 1), deallocate: true, fua: true };
        for op in [BlockOp::Flush, write(from, true), zeroes] {
            assert_eq!(run(worker, op), Err(BlockError::CacheLost), "{op:?}");
        }
        assert_eq!(run(worker, write(from, false)), Ok(()));
        assert_eq!(run(worker, BlockOp::Read { range: BlockRange::new(0, 1), into: from }), Ok(()));
    }
    let health = disk.health();
    assert_eq!(health.failures, 1);
    assert_eq!(health.cache_lost, health.last);
    let failure = health.cache_lost.unwrap();
    assert_eq!((failure.operation, failure.errno), (FailedOperation::Flush, libc::EINVAL));

    drop((workers, disk));
    let disk = file(&path);
    let mut reopened = devices(8);
    reopened.attach(DEVICE, &disk).unwrap();
    assert_eq!(run(&mut reopened, BlockOp::Flush), Ok(()));
}

fn buffered(path: &Path) -> Disk {
    std::fs::write(path, vec![0; MIB]).unwrap();
    Disk::open_buffered(path, None, false).unwrap()
}

/// Everything that is to be durable, as often as `count` says.
fn submit_syncs(devices: &mut Devices, from: Buffer, count: u64) {
    for at in 0..count {
        let range = BlockRange::new(at, 1);
        for (kind, op) in [
            BlockOp::Flush,
            BlockOp::Write { range, from, fua: true },
            BlockOp::WriteZeroes { range, deallocate: true, fua: true },
        ]
        .into_iter()
        .enumerate()
        {
            devices.submit(Tag(3 * at + kind as u64), DEVICE, op).unwrap();
        }
    }
    devices.flush();
}

/// The kernel tells one of several overlapping syncs of a file that data are lost, and the others of success.
#[test]
fn device_has_one_sync_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let disk = buffered(&folder.path().join("disk.img"));
    let mut devices = devices(64);
    devices.attach(DEVICE, &disk).unwrap();
    let (_memory, from) = register(&mut devices, 4096);
    submit_syncs(&mut devices, from, 8);
    let syncing = |devices: &Devices| {
        let unpushed: Vec<_> = devices.devices.iter().flatten().flat_map(|it| it.syncs.unpushed()).collect();
        let syncs =
            (0..64).filter(|at| devices.operations[*at].as_ref().is_some_and(|it| it.file.is_syncing()));
        syncs.filter(|at| !unpushed.contains(at)).count()
    };
    assert_eq!(syncing(&devices), 1);
    let (mut left, mut some) = (24, Vec::with_capacity(1));
    let deadline = Instant::now() + Duration::from_secs(60);
    while left > 0 {
        assert!(Instant::now() < deadline, "{left} operations are left");
        devices.poll(&mut some);
        assert!(syncing(&devices) <= 1);
        left -= some.len();
        assert!(some.drain(..).all(|completion| completion.result == Ok(())));
        if devices.ready.is_empty() {
            devices.wait(Some(Duration::from_millis(100)));
        }
    }
    assert_eq!(devices.in_flight(), 0);
}

#[test]
fn failed_sync_fails_all_that_share_it_and_all_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = buffered(&folder.path().join("disk.img"));
    let (pipe, _writer) = std::io::pipe().unwrap();
    let mut devices = devices(64);
    devices.attach(DEVICE, &disk).unwrap();
    // A pipe cannot be synced.
    devices.ring.set_file(slot(DEVICE), pipe.as_raw_fd()).unwrap();
    for tag in 0..8 {
        devices.submit(Tag(tag), DEVICE, BlockOp::Flush).unwrap();
    }
    let results = results(&mut devices, 8);
    assert!(results.iter().all(|(_, result)| *result == Err(BlockError::CacheLost)), "{results:?}");
}

/// The sync that failed is the one that the kernel was asked for again.
#[test]
fn interrupted_sync_is_issued_again_for_all_that_share_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = buffered(&folder.path().join("disk.img"));
    let (pipe, _writer) = std::io::pipe().unwrap();
    let mut devices = devices(8);
    devices.attach(DEVICE, &disk).unwrap();
    for tag in 0..3 {
        devices.submit(Tag(tag), DEVICE, BlockOp::Flush).unwrap();
    }
    devices.flush();
    let deadline = Instant::now() + Duration::from_secs(60);
    let event = loop {
        assert!(Instant::now() < deadline, "the sync did not complete");
        devices.ring.wait(Some(Duration::from_millis(100)));
        if let Some(event) = devices.ring.pop() {
            break event;
        }
    };
    // A pipe cannot be synced.
    devices.ring.set_file(slot(DEVICE), pipe.as_raw_fd()).unwrap();
    let interrupted = crate::uring::Event { result: -libc::EINTR, ..event };
    assert_eq!(devices.on_event(interrupted), None, "nothing is durable yet");
    let results = results(&mut devices, 3);
    assert!(results.iter().all(|(_, result)| *result == Err(BlockError::CacheLost)), "{results:?}");
}

/// A file system may have other writes of the file in the page cache. A write that is durable by itself would take the
/// error that a flush was to be told of.
#[test]
fn write_with_fua_of_a_file_is_a_write_and_a_flush() {
    let folder = tempfile::tempdir().unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for open in [buffered, file] {
        let disk = open(&folder.path().join("disk.img"));
        let mut devices = devices(8);
        devices.attach(DEVICE, &disk).unwrap();
        let (_memory, from) = register(&mut devices, 4096);
        let write = BlockOp::Write { range: BlockRange::new(0, 1), from, fua: true };
        devices.submit(Tag(1), DEVICE, write).unwrap();
        let commands: Vec<_> = devices.operations.iter().flatten().map(|it| it.file.command()).collect();
        assert!(matches!(commands[..], [Command::Write { dsync: false, .. }]), "{commands:?}");
        assert_eq!(collect(&mut devices, 1), [1]);
        // What fails then is the write itself.
        devices.ring.set_file(slot(DEVICE), full.as_raw_fd()).unwrap();
        assert_eq!(run(&mut devices, write), Err(BlockError::NoSpace));
        assert_eq!(disk.health().cache_lost, None);
        let Kind::File(backing) = &disk.0.kind else { unreachable!("it is a file") };
        devices.ring.set_file(slot(DEVICE), backing.file.as_raw_fd()).unwrap();
        assert_eq!(run(&mut devices, write), Ok(()));
    }
}

/// Each worker must be told of lost data itself.
#[test]
fn workers_have_an_open_file_each() {
    use std::io::{Seek, SeekFrom};
    let folder = tempfile::tempdir().unwrap();
    let position = |mut file: &std::fs::File| file.stream_position().unwrap();
    for open in [buffered, file] {
        let path = folder.path().join("disk.img");
        let disk = open(&path);
        let Kind::File(backing) = &disk.0.kind else { unreachable!("it is a file") };
        let own = backing.for_worker().unwrap().expect("a file of its own");
        (&own).seek(SeekFrom::Start(512)).unwrap();
        assert_eq!((position(&own), position(&backing.file)), (512, 0), "it is the same open file");
        let flags = |file| rustix::fs::fcntl_getfl(file).unwrap();
        assert_eq!(flags(&own), flags(&backing.file));
        let again = Disk::open(&DiskSpec::Path { path, create: None }, None, true);
        assert!(again.is_err(), "it is not locked");
    }
}

/// As when the process is killed: its descriptors are closed, and the kernel ends its ring when the last operation is
/// done.
#[test]
fn ring_holds_the_lock_of_its_disks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let spec = DiskSpec::Path { path: path.clone(), create: None };
    for open in [buffered, file] {
        let disk = open(&path);
        let mut devices = devices(8);
        devices.attach(DEVICE, &disk).unwrap();
        // What closes the descriptor, and leaves the ring.
        devices.devices[slot(DEVICE) as usize].as_mut().unwrap().disk = memory(MIB).0;
        drop(disk);
        assert!(matches!(Disk::open(&spec, None, false), Err(crate::OpenError::InUse { .. })));
        drop(devices);
        assert!(Disk::open(&spec, None, false).is_ok());
    }
}

#[test]
fn close_leaves_nothing_of_syncs_that_were_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let disk = buffered(&folder.path().join("disk.img"));
    let mut devices = devices(64);
    devices.attach(DEVICE, &disk).unwrap();
    let (_memory, from) = register(&mut devices, 4096);
    submit_syncs(&mut devices, from, 8);
    assert_eq!(devices.close(Duration::from_secs(60)), Ok(()));
}

#[test]
fn a_flush_in_flight_when_the_cache_is_lost_fails() {
    let folder = tempfile::tempdir().unwrap();
    let disk = file(&folder.path().join("disk.img"));
    let mut devices = devices(8);
    devices.attach(DEVICE, &disk).unwrap();
    devices.submit(Tag(1), DEVICE, BlockOp::Flush).unwrap();
    let failure = crate::Failure { operation: FailedOperation::Flush, byte: 0, errno: libc::EIO };
    disk.0.record.on_cache_lost(failure);
    assert_eq!(results(&mut devices, 1), [(1, Err(BlockError::CacheLost))]);
}

#[test]
fn a_failure_is_recorded_with_operation_byte_and_errno() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let disk = file(&path);
    let mut devices = devices(8);
    devices.attach(DEVICE, &disk).unwrap();
    let (_memory, into) = register(&mut devices, 8192);
    let read = |start, into| BlockOp::Read { range: BlockRange::new(start, 2), into };
    let short = Buffer { len: 512, ..into };
    assert_eq!(run(&mut devices, read(1 << 40, into)), Err(BlockError::OutOfRange));
    assert_eq!(run(&mut devices, read(0, short)), Err(BlockError::BadBuffer));
    assert_eq!(disk.health().failures, 0, "what is refused is no failure of the disk");

    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB as u64).unwrap();
    assert_eq!(run(&mut devices, read(256, into)), Err(BlockError::Medium));
    let byte = MIB as u64;
    let failure = crate::Failure { operation: FailedOperation::Read, byte, errno: 0 };
    assert_eq!(disk.health(), crate::Health { failures: 1, last: Some(failure), cache_lost: None });

    // The read end of a pipe cannot be written to.
    let (pipe, _writer) = std::io::pipe().unwrap();
    devices.ring.set_file(slot(DEVICE), pipe.as_raw_fd()).unwrap();
    let write = BlockOp::Write { range: BlockRange::new(3, 2), from: into, fua: false };
    assert_eq!(run(&mut devices, write), Err(BlockError::ReadOnly));
    let failure = crate::Failure { operation: FailedOperation::Write, byte: 3 * 4096, errno: libc::EBADF };
    assert_eq!(disk.health(), crate::Health { failures: 2, last: Some(failure), cache_lost: None });
}

/// The kernel takes no number of threads beyond 31 bits.
#[test]
fn disk_that_could_not_be_attached_is_not_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut devices = devices(8);
    let depth = core::mem::replace(&mut devices.depth, u32::MAX as usize);
    let attached = devices.attach(DEVICE, &file(&path));
    assert!(matches!(attached, Err(DevicesError::File(_))), "{attached:?}");
    devices.depth = depth;
    devices.attach(DEVICE, &file(&path)).unwrap();
    assert_eq!(run(&mut devices, BlockOp::Flush), Ok(()));
}

#[test]
fn device_that_is_to_come_is_not_gone() {
    let mut devices = devices(8);
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Gone));
    devices.expect(DEVICE);
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Path));
    // Another one is in its place.
    let other = DeviceId(DEVICE.0 + DEVICES_MAX);
    devices.attach(other, &memory(MIB)).unwrap();
    assert!(devices.attach(DEVICE, &memory(MIB)).is_err());
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Path));
    devices.detach(other);
    devices.attach(DEVICE, &memory(MIB)).unwrap();
    assert_eq!(run(&mut devices, BlockOp::Flush), Ok(()));
    devices.detach(DEVICE);
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Gone));
    // Its disk grows before it comes.
    devices.expect(DEVICE);
    devices.resize(DEVICE, &memory(2 * MIB));
    devices.attach(DEVICE, &memory(MIB)).unwrap();
    assert_eq!(devices.geometry(DEVICE).map(|geometry| geometry.blocks), Some(2 * MIB as u64 / 4096));
    devices.detach(DEVICE);
    devices.expect(DEVICE);
    devices.detach(DEVICE);
    assert_eq!(run(&mut devices, BlockOp::Flush), Err(BlockError::Gone));
}

/// As where a disk hangs in `fallocate` or `fdatasync`: threads of the kernel wait for it, of which there are a few for each
/// processor unless more are allowed.
#[test]
fn a_hung_device_leaves_threads_of_the_kernel_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut devices = devices(1024);
    devices.attach(DEVICE, &file(&folder.path().join("disk.img"))).unwrap();
    // The kernel allows four for each processor.
    let threads = std::thread::available_parallelism().map_or(1, |processors| 4 * processors.get() + 1);
    devices.ring.push_hanging(&CString::new(fifo.as_os_str().as_bytes()).unwrap(), threads.min(1000));
    let zeroes = BlockOp::WriteZeroes { range: BlockRange::new(0, 1), deallocate: true, fua: true };
    for op in [BlockOp::Flush, zeroes] {
        assert_eq!(run(&mut devices, op), Ok(()), "{op:?}");
    }
}

#[test]
fn a_hung_device_leaves_room_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let (hung, _writer) = Disk::hanging(4096, 16);
    let mut devices = devices(16);
    devices.attach(HUNG, &hung).unwrap();
    let (_memory, into) = register(&mut devices, 4096);
    let read = BlockOp::Read { range: BlockRange::new(0, 1), into };
    for (at, disk) in [file(&folder.path().join("disk.img")), memory(MIB)].iter().enumerate() {
        let device = DeviceId(DEVICE.0 + at as u32);
        devices.attach(device, disk).unwrap();
        let taken = fill_up(&mut devices, read);
        assert_eq!(taken, if at == 0 { 8 } else { 0 }, "half of the depth, once");
        for tag in 0..100 {
            devices.submit(Tag(tag), device, read).unwrap();
            assert_eq!(collect(&mut devices, 1), [tag]);
        }
    }
    assert_eq!(devices.in_flight(), 8);
    leave(devices);
}

#[test]
fn a_single_device_has_all_the_room() {
    let (hung, _writer) = Disk::hanging(4096, 16);
    let mut devices = devices(16);
    devices.attach(HUNG, &hung).unwrap();
    let (_memory, into) = register(&mut devices, 4096);
    assert_eq!(fill_up(&mut devices, BlockOp::Read { range: BlockRange::new(0, 1), into }), 16);
    leave(devices);
}

#[test]
fn a_hung_device_leaves_bounce_buffers_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let (hung, _writer) = Disk::hanging(4096, 16);
    let mut devices = devices(64);
    devices.attach(HUNG, &hung).unwrap();
    devices.attach(DEVICE, &file(&folder.path().join("disk.img"))).unwrap();
    let verify = BlockOp::Verify { range: BlockRange::new(0, 1) };
    assert!(fill_up(&mut devices, verify) > BOUNCE_BUFFERS);
    assert_eq!(devices.bounce.available(), BOUNCE_BUFFERS / 2);
    for tag in 0..16 {
        devices.submit(Tag(tag), DEVICE, verify).unwrap();
    }
    let mut tags = collect(&mut devices, 16);
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..16));
    leave(devices);
}

#[test]
fn a_short_compare_does_not_wait_for_long_verifies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::write(&path, vec![0; 4 * MIB]).unwrap();
    let mut devices = devices(64);
    devices.attach(DEVICE, &Disk::open_buffered(&path, None, false).unwrap()).unwrap();
    let (_memory, with) = register(&mut devices, 4096);
    for tag in 1..=BOUNCE_BUFFERS as u64 {
        devices.submit(Tag(tag), DEVICE, BlockOp::Verify { range: BlockRange::new(0, 1024) }).unwrap();
    }
    devices.submit(Tag(0), DEVICE, BlockOp::Compare { range: BlockRange::new(0, 1), with }).unwrap();
    assert_eq!(collect(&mut devices, BOUNCE_BUFFERS + 1)[0], 0);
    assert_eq!(devices.bounce.available(), BOUNCE_BUFFERS);
}

#[test]
fn bounce_buffer_is_free_after_each_operation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut devices = devices(8);
    devices.attach(DEVICE, &buffered(&path)).unwrap();
    let (memory, with) = register(&mut devices, 4096);
    let range = BlockRange::new(1, 1);
    for (byte, op, result) in [
        (0, BlockOp::Verify { range }, Ok(())),
        (0, BlockOp::Compare { range, with }, Ok(())),
        (1, BlockOp::Compare { range, with }, Err(BlockError::CompareFailed)),
    ] {
        memory.fill(0, 4096, byte);
        assert_eq!(run(&mut devices, op), result);
        assert_eq!(devices.bounce.available(), BOUNCE_BUFFERS, "{op:?}");
    }
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(run(&mut devices, BlockOp::Verify { range }), Err(BlockError::Medium));
    assert_eq!(devices.bounce.available(), BOUNCE_BUFFERS, "after an error");
}

#[test]
fn a_long_fill_yields_to_others() {
    let mut devices = devices(8);
    devices.attach(DEVICE, &memory(64 * MIB)).unwrap();
    let (memory, buffer) = register(&mut devices, 4096);
    memory.fill(0, 4096, 0x5a);
    for start in [0, 64 * MIB as u64 / 4096 - 1] {
        let write = BlockOp::Write { range: BlockRange::new(start, 1), from: buffer, fua: false };
        assert_eq!(run(&mut devices, write), Ok(()));
    }
    let range = BlockRange::new(0, 64 * MIB as u64 / 4096);
    devices.submit(Tag(1), DEVICE, BlockOp::Deallocate { range }).unwrap();
    devices.submit(Tag(2), DEVICE, BlockOp::WriteZeroes { range, deallocate: false, fua: true }).unwrap();
    let read = BlockOp::Read { range: BlockRange::new(9, 1), into: buffer };
    devices.submit(Tag(3), DEVICE, read).unwrap();
    let mut completions = Vec::with_capacity(8);
    devices.poll(&mut completions);
    assert_eq!(completions, [Completion { tag: Tag(3), result: Ok(()) }], "the fills take many polls");
    assert_eq!(collect(&mut devices, 2), [1, 2]);
    for start in [0, 64 * MIB as u64 / 4096 - 1] {
        memory.fill(0, 4096, 0x5a);
        assert_eq!(
            run(&mut devices, BlockOp::Read { range: BlockRange::new(start, 1), into: buffer }),
            Ok(())
        );
        let mut bytes = [1; 4096];
        memory.read(0, &mut bytes);
        assert_eq!(bytes, [0; 4096]);
    }
}

#[test]
fn a_busy_memory_disk_does_not_starve_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut devices = devices(64);
    devices.attach(HUNG, &memory(MIB)).unwrap();
    devices.attach(DEVICE, &file(&folder.path().join("disk.img"))).unwrap();
    let (_memory, into) = register(&mut devices, 4096);
    let read = BlockOp::Read { range: BlockRange::new(0, 1), into };
    devices.submit(Tag(1), DEVICE, read).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut completions = Vec::with_capacity(4);
    while completions.iter().all(|completion: &Completion| completion.tag != Tag(1)) {
        assert!(Instant::now() < deadline, "the file's read does not complete while the memory disk is busy");
        completions.clear();
        while devices.submit(Tag(0), HUNG, read).is_ok() {}
        devices.poll(&mut completions);
    }
}

#[test]
fn close_gives_up_on_a_hung_device() {
    let folder = tempfile::tempdir().unwrap();
    let (hung, _writer) = Disk::hanging(4096, 16);
    let mut devices = devices(16);
    devices.attach(HUNG, &hung).unwrap();
    devices.attach(DEVICE, &file(&folder.path().join("disk.img"))).unwrap();
    let (_memory, into) = register(&mut devices, 4096);
    let read = BlockOp::Read { range: BlockRange::new(0, 1), into };
    devices.submit(Tag(1), HUNG, read).unwrap();
    devices.submit(Tag(2), DEVICE, read).unwrap();
    devices.submit(Tag(3), HUNG, BlockOp::Verify { range: BlockRange::new(0, 1) }).unwrap();
    let begun = Instant::now();
    let timeout = Duration::from_millis(500);
    assert_eq!(devices.close(timeout), Err(Hung { operations: 2, devices: vec![HUNG] }));
    assert!(begun.elapsed() >= timeout && begun.elapsed() < Duration::from_secs(9), "waits once");
}

#[test]
fn close_waits_for_what_is_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut devices = devices(64);
    devices.attach(DEVICE, &file(&path)).unwrap();
    let (memory, from) = register(&mut devices, 4096);
    memory.fill(0, 4096, 0xc3);
    for at in 0..32 {
        let op = BlockOp::Write { range: BlockRange::new(at, 1), from, fua: true };
        devices.submit(Tag(at), DEVICE, op).unwrap();
    }
    for at in 0..16 {
        devices.submit(Tag(at), DEVICE, BlockOp::Verify { range: BlockRange::new(0, 1024) }).unwrap();
    }
    assert_eq!(devices.close(Duration::from_secs(60)), Ok(()));
    assert!(std::fs::read(&path).unwrap()[..32 * 4096].iter().all(|&byte| byte == 0xc3));
}

#[test]
fn a_detached_device_closes_after_its_last_operation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    for (disk, path) in [(file(&path), Some(&path)), (memory(MIB), None)] {
        let mut devices = devices(8);
        devices.attach(DEVICE, &disk).unwrap();
        let weak = Arc::downgrade(&disk.0);
        let (_memory, into) = register(&mut devices, 4096);
        for tag in 0..2 {
            let read = BlockOp::Read { range: BlockRange::new(tag, 1), into };
            devices.submit(Tag(tag), DEVICE, read).unwrap();
        }
        devices.detach(DEVICE);
        drop(disk);
        assert!(weak.upgrade().is_some(), "its operations are in flight");
        if let Some(path) = path {
            assert!(std::fs::File::open(path).unwrap().try_lock().is_err(), "and it is locked");
        }
        assert!(devices.attach(DEVICE, &memory(MIB)).is_err(), "its slot is taken");
        let mut tags = collect(&mut devices, 2);
        tags.sort_unstable();
        assert_eq!(tags, [0, 1]);
        assert_eq!((devices.in_flight(), devices.attached), (0, 0));
        assert!(weak.upgrade().is_none(), "nobody holds it any more");
        devices.attach(DEVICE, &memory(MIB)).unwrap();
        assert_eq!(run(&mut devices, BlockOp::Flush), Ok(()));
    }
}

#[test]
fn wait_returns_at_once_when_something_is_ready() {
    let mut devices = devices(8);
    devices.attach(DEVICE, &memory(MIB)).unwrap();
    let begun = Instant::now();
    devices.submit(Tag(1), DEVICE, BlockOp::Flush).unwrap();
    devices.wait(Some(Duration::from_secs(60)));
    assert_eq!(collect(&mut devices, 1), [1]);
    devices.submit(Tag(2), DeviceId(7), BlockOp::Flush).unwrap();
    devices.wait(Some(Duration::from_secs(60)));
    assert_eq!(results(&mut devices, 1), [(2, Err(BlockError::Gone))]);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn flush_alone_starts_what_was_submitted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut devices = devices(8);
    devices.attach(DEVICE, &file(&path)).unwrap();
    let (memory, from) = register(&mut devices, 4096);
    memory.fill(0, 4096, 0xc3);
    devices
        .submit(Tag(1), DEVICE, BlockOp::Write { range: BlockRange::new(0, 1), from, fua: false })
        .unwrap();
    devices.flush();
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::read(&path).unwrap()[..4096] != [0xc3; 4096] {
        assert!(Instant::now() < deadline, "the kernel was not told");
        std::thread::yield_now();
    }
    assert_eq!(collect(&mut devices, 1), [1]);
}
