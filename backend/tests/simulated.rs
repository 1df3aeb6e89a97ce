//! The simulated disk: conformance, power cuts, failed flushes, hangs.

use nvmf_backend::simulated::{SharedDisk, SimulatedDevices, SimulatedDisk, SimulatedOptions};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, Buffer, DeviceId, Tag, conformance};
use nvmf_memory::Memory;
use std::time::Duration;

fn simulated(seed: u64) -> SimulatedDevices {
    let options = SimulatedOptions {
        block_size: 512,
        blocks: 256,
        latency_min: Duration::from_micros(5),
        latency_max: Duration::from_millis(2),
    };
    SimulatedDevices::new((0..4).map(|n| SimulatedDisk::new(options, seed + n)).collect(), 64, seed)
}

#[test]
fn a_simulated_disk_conforms() {
    for seed in 0..20 {
        let mut now = Duration::ZERO;
        conformance::check(&mut simulated(seed), DeviceId(3), &mut |devices| {
            now = devices.next_due().unwrap_or(now);
            devices.advance(now);
        });
    }
}

#[test]
fn flushed_data_survive_a_power_cut() {
    let mut lost = 0;
    for seed in 0..50 {
        let mut devices = simulated(seed);
        let options = SimulatedOptions {
            block_size: 512,
            blocks: 8,
            latency_min: Duration::ZERO,
            latency_max: Duration::ZERO,
        };
        let disk = SimulatedDisk::new(options, seed);
        drop(core::mem::replace(&mut devices, SimulatedDevices::new(vec![disk.clone()], 8, seed)));
        let memory = Memory::alloc(512).unwrap();
        let from = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 512 };
        let mut all = Vec::with_capacity(8);
        let mut act = |op| {
            devices.submit(Tag(0), DeviceId(0), op).unwrap();
            all.clear();
            devices.poll(&mut all);
            assert_eq!(all.len(), 1);
        };
        memory.fill(0, 512, 1);
        act(BlockOp::Write { range: BlockRange::new(0, 1), from, fua: true });
        act(BlockOp::Write { range: BlockRange::new(1, 1), from, fua: false });
        act(BlockOp::Flush);
        act(BlockOp::Write { range: BlockRange::new(2, 1), from, fua: false });
        devices.crash();
        let byte = |lba| disk.borrow().block(lba)[0];
        assert_eq!((byte(0), byte(1)), (1, 1), "seed {seed}");
        lost += usize::from(byte(2) == 0);
    }
    assert!((1..50).contains(&lost), "an unflushed write is lost sometimes, not always: {lost}");
}

#[test]
fn a_simulated_flush_covers_completed_writes_only() {
    let options = SimulatedOptions {
        block_size: 512,
        blocks: 8,
        latency_min: Duration::ZERO,
        latency_max: Duration::ZERO,
    };
    let (mut early, mut late) = (0, 0);
    for seed in 0..50 {
        let disk = SimulatedDisk::new(options, seed);
        let mut devices = SimulatedDevices::new(vec![disk.clone()], 8, seed);
        let memory = Memory::alloc(512).unwrap();
        memory.fill(0, 512, 1);
        let from = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 512 };
        let write = |lba| BlockOp::Write { range: BlockRange::new(lba, 1), from, fua: false };
        let mut all = Vec::with_capacity(8);
        devices.submit(Tag(0), DeviceId(0), write(0)).unwrap();
        devices.poll(&mut all);
        // The write is in flight when the flush is submitted, so it is not covered, although it completes first.
        devices.submit(Tag(1), DeviceId(0), write(1)).unwrap();
        devices.submit(Tag(2), DeviceId(0), BlockOp::Flush).unwrap();
        devices.poll(&mut all);
        assert_eq!(all.len(), 3);
        devices.crash();
        early += usize::from(disk.borrow().block(0)[0] == 1);
        late += usize::from(disk.borrow().block(1)[0] == 1);
    }
    assert_eq!(early, 50, "what had completed is durable");
    assert!((1..50).contains(&late), "what had not is lost sometimes: kept {late} of 50");
}

/// A disk of eight blocks that answers at once, and devices that have it.
fn small(seed: u64) -> (SharedDisk, SimulatedDevices) {
    let none = Duration::ZERO;
    let options = SimulatedOptions { block_size: 512, blocks: 8, latency_min: none, latency_max: none };
    let disk = SimulatedDisk::new(options, seed);
    let devices = SimulatedDevices::new(vec![disk.clone()], 8, seed);
    (disk, devices)
}

fn run(devices: &mut SimulatedDevices, op: BlockOp) -> Result<(), BlockError> {
    devices.submit(Tag(0), DeviceId(0), op).unwrap();
    let mut all = Vec::with_capacity(1);
    devices.poll(&mut all);
    all[0].result
}

#[test]
fn a_failed_simulated_flush_loses_cached_data() {
    let mut kept = 0;
    for seed in 0..50 {
        let (disk, mut devices) = small(seed);
        let memory = Memory::alloc(512).unwrap();
        memory.fill(0, 512, 1);
        let from = Buffer { region: devices.register(&memory).unwrap(), offset: 0, len: 512 };
        let write = |lba, fua| BlockOp::Write { range: BlockRange::new(lba, 1), from, fua };
        assert_eq!(run(&mut devices, write(0, false)), Ok(()));
        disk.borrow_mut().fail_next_flush();
        for op in [BlockOp::Flush, BlockOp::Flush, write(1, true)] {
            assert_eq!(run(&mut devices, op), Err(BlockError::CacheLost), "{op:?}");
        }
        assert_eq!(run(&mut devices, write(2, false)), Ok(()));
        disk.borrow_mut().reopen();
        assert_eq!(run(&mut devices, BlockOp::Flush), Ok(()));
        assert_eq!(disk.borrow().block(0)[0], 1, "it is read as before");
        devices.crash();
        let byte = |lba| disk.borrow().block(lba)[0];
        kept += usize::from(byte(0) == 1);
        assert_eq!((byte(1), byte(2)), (0, 1), "seed {seed}");
    }
    assert!((1..50).contains(&kept), "what a failed flush covered is lost sometimes: kept {kept} of 50");
}

#[test]
fn a_hanging_disk_completes_later() {
    let (disk, mut devices) = small(1);
    disk.borrow_mut().set_hanging(true);
    devices.submit(Tag(7), DeviceId(0), BlockOp::Flush).unwrap();
    devices.advance(Duration::from_secs(3600));
    let mut all = Vec::with_capacity(1);
    devices.poll(&mut all);
    assert_eq!((all.len(), devices.next_due()), (0, None));
    disk.borrow_mut().set_hanging(false);
    devices.poll(&mut all);
    assert_eq!(all[0].tag, Tag(7));
}

#[test]
fn simulated_disks_leave_each_other_room() {
    let mut now = Duration::ZERO;
    conformance::check_room_for_others(&mut simulated(1), [DeviceId(0), DeviceId(3)], &mut |devices| {
        now = devices.next_due().unwrap_or(now);
        devices.advance(now);
    });
}
