//! Decorators conform when they change nothing, and fail operations as they are told to.

use nvmf_backend::decorator::{Delay, Fault, FaultOptions, ReadOnly};
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{Backend, BlockError, BlockOp, BlockRange, DeviceId, Tag, conformance};
use std::time::Duration;

const DEVICE: DeviceId = DeviceId(3);

fn devices(spec: &DiskSpec) -> Devices {
    let disk = Disk::open(spec, None, false).expect("the disk opens");
    let mut devices = Devices::new(DevicesOptions { depth: 64 }).expect("a ring");
    devices.attach(DEVICE, &disk).expect("the disk attaches");
    devices
}

#[test]
fn decorators_conform() {
    let memory = || devices(&DiskSpec::Memory { size: 1 << 20 });
    conformance::check(&mut Fault::new(memory(), FaultOptions::default(), 1), DEVICE, &mut |_| {});
    conformance::check(&mut ReadOnly::new(memory()), DEVICE, &mut |_| {});
    let mut now = Duration::ZERO;
    conformance::check(&mut Delay::new(memory(), Duration::from_millis(3)), DEVICE, &mut |delay| {
        now += Duration::from_millis(1);
        delay.advance(now);
    });
}

#[test]
fn decorators_of_a_file_conform() {
    let folder = tempfile::tempdir().unwrap();
    let mut now = Duration::ZERO;
    let spec = DiskSpec::Path { path: folder.path().join("disk.img"), create: Some(4 << 20) };
    let fault = Fault::new(devices(&spec), FaultOptions::default(), 1);
    conformance::check(&mut Delay::new(fault, Duration::from_millis(3)), DEVICE, &mut |delay| {
        match delay.next_due() {
            Some(due) => now = due,
            None => delay.inner_mut().inner_mut().wait(Some(Duration::from_secs(5))),
        }
        delay.advance(now);
    });
}

#[test]
fn chosen_blocks_fail_until_cleared() {
    let inner = devices(&DiskSpec::Memory { size: 1 << 20 });
    let mut fault = Fault::new(inner, FaultOptions::default(), 1);
    let verify = |fault: &mut Fault<Devices>, start, blocks| {
        let op = BlockOp::Verify { range: BlockRange::new(start, blocks) };
        fault.submit(Tag(1), DEVICE, op).unwrap();
        let mut completions = Vec::with_capacity(1);
        fault.poll(&mut completions);
        completions[0].result
    };
    fault.fail(DEVICE, BlockRange::new(10, 2), BlockError::NoSpace);
    assert_eq!(verify(&mut fault, 8, 2), Ok(()));
    assert_eq!(verify(&mut fault, 8, 3), Err(BlockError::NoSpace));
    assert_eq!(verify(&mut fault, 11, 1), Err(BlockError::NoSpace));
    assert_eq!(verify(&mut fault, 12, 4), Ok(()));
    fault.heal();
    assert_eq!(verify(&mut fault, 10, 2), Ok(()));
}

#[test]
fn a_decorator_that_is_never_polled_becomes_full() {
    let mut devices = ReadOnly::new(devices(&DiskSpec::Null { size: 4096 }));
    let op = BlockOp::Deallocate { range: BlockRange::new(0, 1) };
    let taken = (0..1_000_000).take_while(|&tag| devices.submit(Tag(tag), DEVICE, op).is_ok()).count();
    assert!(taken < 1_000_000);
    let mut completions = Vec::with_capacity(taken + 1);
    devices.poll(&mut completions);
    assert_eq!(completions.len(), taken);
}

#[test]
fn faults_happen_at_the_chosen_rate() {
    let options = FaultOptions { flush_error_ppm: 500_000, ..FaultOptions::default() };
    let mut fault = Fault::new(devices(&DiskSpec::Null { size: 4096 }), options, 7);
    let mut completions = Vec::with_capacity(32);
    for tag in 0..32 {
        fault.submit(Tag(tag), DEVICE, BlockOp::Flush).unwrap();
    }
    fault.poll(&mut completions);
    let failed = completions.iter().filter(|c| c.result == Err(BlockError::Medium)).count();
    assert!(completions.len() == 32 && (4..28).contains(&failed), "{failed} of {}", completions.len());
}
