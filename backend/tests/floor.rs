//! The floor as its users see it: every kind of disk passes the same suite.

use nvmf_backend::decorator::{Delay, Fault, FaultOptions, ReadOnly};
use nvmf_backend::simulated::{SimulatedDisk, SimulatedFloor, SimulatedOptions};
use nvmf_backend::{Disk, DiskSpec, Floor, FloorOptions};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, Tag, conformance};
use nvmf_memory::Memory;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

const DEVICE: DeviceId = DeviceId(3);

fn floor(spec: &DiskSpec, block_size: Option<u32>, read_only: bool) -> Floor {
    let disk = Disk::open(spec, block_size, read_only).expect("the disk opens");
    let mut floor = Floor::new(FloorOptions { depth: 64 }).expect("a ring");
    floor.attach(DEVICE, &disk).expect("the disk attaches");
    floor
}

fn wait(floor: &mut Floor) {
    floor.wait(Some(Duration::from_secs(5)));
}

fn file(path: &Path) -> DiskSpec {
    DiskSpec::Path { path: path.to_owned(), create: Some(4 << 20) }
}

#[test]
fn a_file_conforms() {
    let folder = tempfile::tempdir().unwrap();
    for block_size in [512, 4096] {
        let mut floor =
            floor(&file(&folder.path().join(format!("{block_size}.img"))), Some(block_size), false);
        conformance::check(&mut floor, DEVICE, &mut wait);
    }
}

#[test]
fn a_file_without_direct_io_conforms() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    conformance::check(&mut floor(&file(&folder.path().join("disk.img")), None, false), DEVICE, &mut wait);
}

#[test]
fn memory_conforms() {
    conformance::check(&mut floor(&DiskSpec::Memory { size: 1 << 20 }, None, false), DEVICE, &mut wait);
}

#[test]
fn null_conforms_as_far_as_nothing_can() {
    conformance::check_forgetful(
        &mut floor(&DiskSpec::Null { size: 1 << 40 }, None, false),
        DEVICE,
        &mut wait,
    );
}

#[test]
fn a_read_only_file_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    conformance::check(&mut floor(&DiskSpec::Path { path, create: None }, None, true), DEVICE, &mut wait);
}

#[test]
fn workers_share_a_disk() {
    let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, None, false).unwrap();
    let range = BlockRange::new(9, 1);
    let mut seen = [0; 4096];
    for (at, write) in [true, false].into_iter().enumerate() {
        let mut floor = Floor::new(FloorOptions::default()).unwrap();
        floor.attach(DEVICE, &disk).unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let buffer = Buffer { region: floor.register(&memory).unwrap(), offset: 0, len: 4096 };
        if write {
            memory.fill(0, 4096, 0x5a);
        }
        let op = if write {
            BlockOp::Write { range, from: buffer, fua: true }
        } else {
            BlockOp::Read { range, into: buffer }
        };
        assert_eq!(run(&mut floor, op), Ok(()), "worker {at}");
        memory.read(0, &mut seen);
    }
    assert_eq!(seen, [0x5a; 4096]);
}

fn run(floor: &mut Floor, op: BlockOp) -> Result<(), BlockError> {
    floor.submit(Tag(1), DEVICE, op).unwrap();
    floor.flush();
    let mut completions: Vec<Completion> = Vec::with_capacity(1);
    for _ in 0..1000 {
        floor.poll(&mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result;
        }
        wait(floor);
    }
    panic!("nothing completed");
}

#[test]
fn a_sparse_file_gives_its_blocks_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut floor = floor(&file(&path), None, false);
    let memory = Memory::alloc(1 << 20).unwrap();
    memory.fill(0, 1 << 20, 1);
    let from = Buffer { region: floor.register(&memory).unwrap(), offset: 0, len: 1 << 20 };
    let range = BlockRange::new(0, 256);
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    for free in [BlockOp::Deallocate { range }, BlockOp::WriteZeroes { range, deallocate: true, fua: false }]
    {
        assert_eq!(run(&mut floor, BlockOp::Write { range, from, fua: true }), Ok(()));
        assert!(blocks() >= 2048, "written");
        assert_eq!(run(&mut floor, free), Ok(()));
        assert!(blocks() < 2048, "{free:?} freed nothing");
    }
}

#[test]
fn a_detached_device_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut floor = floor(&file(&path), None, false);
    floor.detach(DEVICE);
    assert_eq!(run(&mut floor, BlockOp::Flush), Err(BlockError::Gone));
    assert_eq!(floor.geometry(DEVICE), None);
    assert!(Disk::open(&file(&path), None, false).is_ok(), "its file can be exported again");
}

#[test]
fn what_cannot_be_aligned_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let disk = Disk::open(&file(&path), None, false).unwrap();
    if !disk.direct() {
        return;
    }
    drop(disk);
    let mut floor = floor(&file(&path), None, false);
    let memory = Memory::alloc(8192).unwrap();
    let into = Buffer { region: floor.register(&memory).unwrap(), offset: 8, len: 4096 };
    assert_eq!(
        run(&mut floor, BlockOp::Read { range: BlockRange::new(0, 1), into }),
        Err(BlockError::BadBuffer)
    );
}

#[test]
fn a_watched_descriptor_ends_the_wait() {
    let mut floor = floor(&DiskSpec::Null { size: 4096 }, None, false);
    let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
    let watch = floor.watch(reader.as_raw_fd()).unwrap();
    floor.wait(Some(Duration::from_millis(1)));
    floor.poll(&mut Vec::with_capacity(1));
    assert!(!floor.take_fired(watch));
    let thread = std::thread::spawn(move || std::io::Write::write_all(&mut &writer, b"x").map(|()| writer));
    // Bounded by the minute; ends as soon as the byte is there.
    floor.wait(Some(Duration::from_secs(60)));
    floor.poll(&mut Vec::with_capacity(1));
    assert!(floor.take_fired(watch));
    drop(thread.join().unwrap());
}

fn simulated(seed: u64) -> SimulatedFloor {
    let options = SimulatedOptions {
        block_size: 512,
        blocks: 256,
        latency_min: Duration::from_micros(5),
        latency_max: Duration::from_millis(2),
    };
    SimulatedFloor::new((0..4).map(|n| SimulatedDisk::new(options, seed + n)).collect(), 64, seed)
}

#[test]
fn a_simulated_disk_conforms() {
    for seed in 0..20 {
        let mut now = Duration::ZERO;
        conformance::check(&mut simulated(seed), DEVICE, &mut |floor| {
            now = floor.next_due().unwrap_or(now);
            floor.advance(now);
        });
    }
}

#[test]
fn what_was_flushed_survives_a_power_cut_and_the_rest_may_not() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut floor = simulated(seed);
        let options = SimulatedOptions {
            block_size: 512,
            blocks: 8,
            latency_min: Duration::ZERO,
            latency_max: Duration::ZERO,
        };
        let disk = SimulatedDisk::new(options, seed);
        drop(core::mem::replace(&mut floor, SimulatedFloor::new(vec![disk.clone()], 8, seed)));
        let memory = Memory::alloc(512).unwrap();
        let from = Buffer { region: floor.register(&memory).unwrap(), offset: 0, len: 512 };
        let mut all = Vec::with_capacity(8);
        let mut act = |op| {
            floor.submit(Tag(0), DeviceId(0), op).unwrap();
            all.clear();
            floor.poll(&mut all);
            assert_eq!(all.len(), 1);
        };
        memory.fill(0, 512, 1);
        act(BlockOp::Write { range: BlockRange::new(0, 1), from, fua: true });
        act(BlockOp::Write { range: BlockRange::new(1, 1), from, fua: false });
        act(BlockOp::Flush);
        act(BlockOp::Write { range: BlockRange::new(2, 1), from, fua: false });
        floor.crash();
        let byte = |lba| disk.borrow().block(lba)[0];
        assert_eq!((byte(0), byte(1)), (1, 1), "seed {seed}");
        lost += usize::from(byte(2) == 0);
    }
    assert!((1..50).contains(&lost), "an unflushed write is lost sometimes, not always: {lost}");
}

#[test]
fn decorators_conform() {
    let memory = || floor(&DiskSpec::Memory { size: 1 << 20 }, None, false);
    conformance::check(&mut Fault::new(memory(), FaultOptions::default(), 1), DEVICE, &mut |_| {});
    conformance::check(&mut ReadOnly::new(memory()), DEVICE, &mut |_| {});
    let mut now = Duration::ZERO;
    conformance::check(&mut Delay::new(memory(), Duration::from_millis(3)), DEVICE, &mut |delay| {
        now += Duration::from_millis(1);
        delay.advance(now);
    });
}

#[test]
fn faults_happen_as_often_as_they_should() {
    let options = FaultOptions { flush_error_ppm: 500_000, ..FaultOptions::default() };
    let mut fault = Fault::new(floor(&DiskSpec::Null { size: 4096 }, None, false), options, 7);
    let mut completions = Vec::with_capacity(32);
    for tag in 0..32 {
        fault.submit(Tag(tag), DEVICE, BlockOp::Flush).unwrap();
    }
    fault.poll(&mut completions);
    let failed = completions.iter().filter(|c| c.result == Err(BlockError::Medium)).count();
    assert!(completions.len() == 32 && (4..28).contains(&failed), "{failed} of {}", completions.len());
}
