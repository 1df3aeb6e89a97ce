//! Tests of a whole thread on a disk that corrupts a write.

use super::prepare::{RunLink, drive};
use super::{Message, ThreadPlan};
use crate::engine::{Engine, Local};
use crate::job::{Given, Plan, Section};
use crate::result::{Direction, JobResult, histogram};
use core::time::Duration;
use nvmf_backend::{Disk, DiskSpec};
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Instant;

/// The fault injected into one write.
#[derive(Clone, Copy)]
enum Fault {
    /// No fault.
    None,
    /// One bit is flipped.
    Flip,
    /// The write is acknowledged but not executed.
    Lose,
    /// The write goes to the next block.
    Misplace,
    /// The write fails.
    Fail,
    /// All writes are acknowledged but not executed.
    LoseAll,
    /// The operation never completes, whatever it is.
    Hang,
}

/// A disk that injects a fault into one write.
struct CorruptingEngine {
    disk: Local,
    fault: Fault,
    victim: u32,
    writes: u32,
    memory: Vec<Memory>,
    failed: Vec<Completion>,
}

impl Backend for CorruptingEngine {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.memory.push(memory.clone());
        self.disk.register(memory)
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.disk.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, mut op: BlockOp) -> Result<(), Full> {
        if matches!(self.fault, Fault::Hang) {
            self.writes += 1;
            if self.writes == self.victim {
                return Ok(());
            }
        }
        if let BlockOp::Write { range, from, .. } = &mut op {
            self.writes += 1;
            match self.fault {
                Fault::LoseAll => op = BlockOp::Flush,
                _ if self.writes != self.victim => {}
                Fault::None | Fault::Hang => {}
                Fault::Flip => {
                    let mut byte = [0];
                    self.memory[0].read(from.offset + 100, &mut byte);
                    self.memory[0].write(from.offset + 100, &[byte[0] ^ 4]);
                }
                Fault::Lose => op = BlockOp::Flush,
                Fault::Misplace => range.start = (range.start + 1) % 64,
                Fault::Fail => {
                    self.failed.push(Completion { tag, result: Err(BlockError::Medium) });
                    return Ok(());
                }
            }
        }
        self.disk.submit(tag, device, op)
    }

    fn flush(&mut self) {
        self.disk.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.extend(self.failed.pop());
        self.disk.poll(completions);
    }
}

impl Engine for CorruptingEngine {
    fn device(&self) -> DeviceId {
        self.disk.device()
    }

    fn wait(&mut self, most: Duration) {
        self.disk.wait(most);
    }
}

/// Runs a job with these options on 64 blocks of 4 KiB.
fn run(options: &[(&str, &str)], fault: Fault, victim: u32) -> JobResult {
    let disk = Disk::open(&DiskSpec::Memory { size: 64 * 4096 }, None, false).unwrap();
    run_on(&disk, 1, options, fault, victim)
}

/// Runs a job with these options on a disk, as the run of this number.
fn run_on(disk: &Disk, number: u64, options: &[(&str, &str)], fault: Fault, victim: u32) -> JobResult {
    let given = options.iter().map(|(name, value)| Given {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
        place: String::new(),
    });
    let section = Section { name: "job".to_owned(), options: given.collect() };
    let mut plan = Plan::new(&[section], &[]).unwrap();
    plan.number(number);
    let job = &plan.jobs[0];
    let disk = Local::new(disk, job.options.iodepth).unwrap();
    let corrupting =
        CorruptingEngine { disk, fault, victim, writes: 0, memory: Vec::new(), failed: Vec::new() };
    let ((out, messages), (go, gone), (back, used)) = (channel(), channel(), channel());
    back.send(histogram()).unwrap();
    go.send(Instant::now()).unwrap();
    let stop = AtomicBool::new(false);
    let link =
        RunLink { index: 0, out, back: used, go: gone, interval: Duration::from_millis(500), stop: &stop };
    drive(corrupting, &ThreadPlan { job, number: 0, stream: 0, group: 0, stage: 0 }, &link).unwrap();
    drop(link);
    let done = messages.iter().find_map(|message| match message {
        Message::Done(_, result) => Some(*result),
        _ => None,
    });
    done.expect("the thread sends its result")
}

const VERIFIED: [(&str, &str); 3] = [("rw", "randwrite"), ("verify", "crc32c"), ("iodepth", "8")];

#[test]
fn correct_disk_passes_verification() {
    for extra in [
        ("loops", "3"),
        ("verify_interval", "512"),
        ("norandommap", ""),
        ("bsrange", "4k-16k"),
        ("rw", "write"),
    ] {
        let result = run(&[&VERIFIED[..], &[extra]].concat(), Fault::None, 0);
        assert_eq!(
            (result.errors, result.verify_errors, result.error),
            (0, 0, 0),
            "{extra:?}: {:?}",
            result.message
        );
        let (read, written) =
            (&result.directions[Direction::Read as usize], &result.directions[Direction::Write as usize]);
        assert!(read.bytes > 0 && read.bytes <= 64 * 4096 && written.bytes >= 64 * 4096, "{extra:?}");
    }
}

#[test]
fn injected_faults_are_reported_by_kind() {
    // A write lost in the second loop leaves the block of the first loop.
    let twice = [&VERIFIED[..], &[("loops", "2"), ("rw", "write"), ("iodepth", "1")]].concat();
    for (fault, victim, words) in [
        (Fault::Flip, 100, "byte 100 of it"),
        (Fault::Lose, 100, "generation is 1, the last written is 2"),
        (Fault::Misplace, 128, "misplaced: it is the block of byte 258048"),
        (Fault::Lose, 10, "zeroes"),
    ] {
        let options = if victim == 10 { VERIFIED.to_vec() } else { twice.clone() };
        let result = run(&options, fault, victim);
        let message = result.mismatch.unwrap_or_default();
        assert!(
            result.verify_errors > 0 && result.error != 0 && message.contains(words),
            "{words}: {message}"
        );
    }
}

#[test]
fn failed_write_ends_job_unless_continue_on_error() {
    let result = run(&VERIFIED, Fault::Fail, 20);
    assert_eq!((result.errors, result.error), (1, nix::errno::Errno::EIO as i32));
    assert!(result.directions[Direction::Write as usize].ios < 63);
    let result = run(&[&VERIFIED[..], &[("continue_on_error", "all")]].concat(), Fault::Fail, 20);
    assert_eq!(
        (result.errors, result.verify_errors),
        (1, 0),
        "the contents after a failed write are not verified"
    );
    assert_eq!(result.directions[Direction::Write as usize].ios, 63);
    assert_eq!(result.directions[Direction::Read as usize].bytes, 63 * 4096);
}

#[test]
fn counters_add_up() {
    let result =
        run(&[("rw", "randrw"), ("fsync", "4"), ("iodepth", "16"), ("end_fsync", "1")], Fault::None, 0);
    let (read, written) = (&result.directions[0], &result.directions[1]);
    assert_eq!(read.ios + written.ios, 64);
    assert_eq!(read.total.len() + written.total.len(), 64);
    assert_eq!(read.submission.len(), read.ios);
    assert_eq!(result.depth.iter().sum::<u64>(), 64);
    assert_eq!(result.sync.len(), written.ios / 4 + 1);
}

#[test]
fn rate_and_thinktime_limit_speed() {
    for slow in [("rate_iops", "640"), ("thinktime", "1500us")] {
        let result = run(&[("rw", "read"), ("iodepth", "4"), slow], Fault::None, 0);
        assert_eq!(result.directions[0].ios, 64);
        // The job must not be faster than its limit; how much slower it is depends on the machine.
        assert!(result.elapsed >= Duration::from_millis(90), "{slow:?}: {:?}", result.elapsed);
    }
}

#[test]
fn batches_are_of_the_configured_sizes() {
    // Buckets: 0, 1 to 4, 5 to 8, 9 to 16, …
    let result = run(&[("rw", "read"), ("iodepth", "16")], Fault::None, 0);
    assert_eq!((result.submit[1], result.complete[1]), (64, 64), "one by one, as in fio");
    let batches = [("iodepth_batch", "16"), ("iodepth_batch_complete_min", "16")];
    let result = run(&[&[("rw", "read"), ("iodepth", "16")], &batches[..]].concat(), Fault::None, 0);
    assert_eq!((result.submit[3], result.complete[3]), (4, 4));
}

#[test]
fn scheduled_latency_is_recorded_with_a_rate_only() {
    let limited = run(&[("rw", "read"), ("rate_iops", "1g")], Fault::None, 0);
    let read = &limited.directions[0];
    assert_eq!(read.scheduled.len(), 64);
    assert!(read.scheduled.min() >= read.total.min() && read.scheduled.max() >= read.total.max());
    let unlimited = run(&[("rw", "read")], Fault::None, 0);
    assert!(unlimited.directions[0].scheduled.is_empty());
}

#[test]
fn writes_that_are_all_lost_are_told_from_those_of_an_earlier_run() {
    let disk = Disk::open(&DiskSpec::Memory { size: 64 * 4096 }, None, false).unwrap();
    let first = run_on(&disk, 1, &VERIFIED, Fault::None, 0);
    assert_eq!(
        (first.verify_errors, first.verified.map(|it| (it.checked, it.run))),
        (0, Some((64, Some(1))))
    );
    let second = run_on(&disk, 2, &VERIFIED, Fault::LoseAll, 0);
    let message = second.mismatch.unwrap_or_default();
    assert_eq!(second.verify_errors, 64, "{message}");
    assert!(message.contains("stale: it is of another run or job, 1; this one's number is 2"), "{message}");
    // With a seed the runs are the same, as asked for.
    let seeded = [&VERIFIED[..], &[("randseed", "7")]].concat();
    assert_eq!(run_on(&disk, 3, &seeded, Fault::None, 0).verify_errors, 0);
    assert_eq!(run_on(&disk, 4, &seeded, Fault::LoseAll, 0).verify_errors, 0);
}

#[test]
fn blocks_that_were_not_checked_are_counted() {
    let result = run(&[("rw", "randrw"), ("verify", "crc32c"), ("norandommap", "1")], Fault::None, 0);
    let verified = result.verified.unwrap();
    assert_eq!(verified.checked + verified.skipped, result.directions[0].ios);
    assert!(verified.skipped > 0, "what the job has not written itself");
    assert_eq!(verified.not_read_back, 0);
    let result = run(&[&VERIFIED[..], &[("continue_on_error", "none")]].concat(), Fault::Fail, 20);
    assert!(result.verified.unwrap().not_read_back > 0);
}

#[test]
fn operation_that_never_completes_ends_with_the_runtime() {
    let limits =
        [("runtime", "200ms"), ("time_based", "1"), ("drain_timeout", "50ms"), ("rate_iops", "1000")];
    let result = run(&[&[("rw", "randread"), ("iodepth", "2")], &limits[..]].concat(), Fault::Hang, 20);
    assert_eq!((result.outstanding, result.error), (1, nix::errno::Errno::ETIMEDOUT as i32));
    assert!(result.elapsed >= Duration::from_millis(250));
    let read = &result.directions[0];
    assert_eq!(read.scheduled.len(), read.ios + read.never_started + 1, "none is left out");
    assert!(
        read.scheduled.max() >= 200_000_000,
        "it waited for as long as anybody knows: {}",
        read.scheduled.max()
    );
    assert_eq!(read.scheduled.len(), 200);
}
