//! What a run measured: filled by the jobs' threads, printed by the reports.

use core::time::Duration;
use hdrhistogram::Histogram;
use std::time::SystemTime;

/// What an operation does with the data, in the order of fio's own arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// Deallocation.
    Trim,
}

impl Direction {
    /// All, in order; `self as usize` is the index.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];
}

/// A run of one job file or command line.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// When it ended.
    pub finished: SystemTime,
    /// The process that measured it.
    pub pid: u32,
    /// A signal ended it before its time.
    pub interrupted: bool,
    /// Options of the `[global]` section, as given, in order.
    pub global: Vec<(String, String)>,
    /// One a job, or with `group_reporting` one a group.
    pub jobs: Vec<JobResult>,
}

/// What one job did; or, with `group_reporting`, all jobs of a group together.
#[derive(Debug, Clone)]
pub struct JobResult {
    /// The section's name.
    pub name: String,
    /// fio's `groupid`, from 0.
    pub group: u32,
    /// How many threads' figures are summed here.
    pub threads: u32,
    /// `errno` of the first error that ended it; 0 for none.
    pub error: i32,
    /// What that error was, for people.
    pub message: Option<String>,
    /// Operations that failed.
    pub errors: u64,
    /// Blocks read back that were not what had been written.
    pub verify_errors: u64,
    /// The job's own options, as given, in order.
    pub options: Vec<(String, String)>,
    /// The engine's name, as in `ioengine`.
    pub engine: String,
    /// Depth asked for.
    pub iodepth: u32,
    /// When the measurement began, after `ramp_time`.
    pub started: SystemTime,
    /// Wall time measured, without `ramp_time`.
    pub elapsed: Duration,
    /// Read, write, trim.
    pub directions: [DirectionResult; 3],
    /// How long a sync (`fsync`, `fdatasync`) took, nanoseconds.
    pub sync: Histogram<u64>,
    /// Processor time.
    pub cpu: Cpu,
    /// How many operations were in flight when one was submitted: buckets 1, 2, 4, 8, 16, 32, >=64 (fio's `iodepth_level`).
    pub depth: [u64; 7],
    /// How many operations one call submitted: buckets 0, 1 to 4, to 8, to 16, to 32, to 64, more (fio's `iodepth_submit`).
    pub submit: [u64; 7],
    /// How many operations one call found completed, in the same buckets (fio's `iodepth_complete`).
    pub complete: [u64; 7],
    /// What `latency_target` asked for and came to, when that was asked for.
    pub latency_target: Option<LatencyTarget>,
    /// One sample an interval, in time's order; what the plots draw.
    pub samples: Vec<Sample>,
}

impl JobResult {
    /// Whether anything went wrong: the figures are then those of what was done before, or beside it.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.error != 0 || self.errors != 0 || self.verify_errors != 0
    }
}

/// `latency_target` with its companions, and what was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyTarget {
    /// The latency not to be exceeded.
    pub target: Duration,
    /// How long each depth was tried: `latency_window`.
    pub window: Duration,
    /// Which part of the operations must meet it, 0 to 100: `latency_percentile`.
    pub percentile: f64,
    /// The greatest depth that did.
    pub depth: u32,
}

/// One direction's figures.
#[derive(Debug, Clone)]
pub struct DirectionResult {
    /// Operations completed.
    pub ios: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Wall time in which they were done: from the start (after the ramp) to the last completion.
    pub runtime: Duration,
    /// From before to after the submission, nanoseconds.
    pub submission: Histogram<u64>,
    /// From after the submission to the completion, nanoseconds.
    pub completion: Histogram<u64>,
    /// From before the submission to the completion, nanoseconds.
    pub total: Histogram<u64>,
}

impl DirectionResult {
    /// Operations a second; 0 when there were none.
    #[must_use]
    pub fn iops(&self) -> f64 {
        rate(self.ios, self.runtime)
    }

    /// Bytes a second; 0 when there were none.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        rate(self.bytes, self.runtime)
    }
}

/// So many in such a time, per second; 0 for no time.
#[must_use]
pub fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Processor time and what disturbed it, as getrusage tells it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu {
    /// In user code.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
    /// Context switches, willing and not.
    pub context_switches: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Page faults that did not.
    pub minor_faults: u64,
}

/// What happened in one interval.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// The interval's end, from the measurement's start.
    pub at: Duration,
    /// Its length.
    pub length: Duration,
    /// Operations completed in it: read, write, trim.
    pub ios: [u64; 3],
    /// Bytes of them.
    pub bytes: [u64; 3],
    /// Percentiles of the total latency in it over all directions, nanoseconds: 50, 90, 99, 99.9, 99.99, 100.
    pub percentiles: [u64; 6],
}

impl Sample {
    /// Which percentiles a sample has.
    pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];
}

/// Counts latencies from 1 ns to 1000 s with three significant figures.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000_000, 3).expect("the bounds are sound")
}

impl Default for DirectionResult {
    fn default() -> Self {
        Self {
            ios: 0,
            bytes: 0,
            runtime: Duration::ZERO,
            submission: histogram(),
            completion: histogram(),
            total: histogram(),
        }
    }
}
