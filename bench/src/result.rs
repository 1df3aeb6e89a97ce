//! The results of a run: filled in by the jobs' threads, printed by the reports.

use core::time::Duration;
use hdrhistogram::Histogram;
use std::time::SystemTime;

/// Kind of an operation, in the order of fio's arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the device to memory.
    Read,
    /// From memory to the device.
    Write,
    /// Deallocation.
    Trim,
}

impl Direction {
    /// All directions, in order; `self as usize` is the index.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];
}

/// Results of a run of one job file or command line.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// When the run ended.
    pub finished: SystemTime,
    /// Process ID of the benchmark.
    pub pid: u32,
    /// The signal that ended the run early, if one did.
    pub interrupted: Option<i32>,
    /// Options of the `[global]` section, as given, in order.
    pub global: Vec<(String, String)>,
    /// One result for each job, or for each group with `group_reporting`.
    pub jobs: Vec<JobResult>,
}

/// Results of one job or, with `group_reporting`, of all jobs of a group.
#[derive(Debug, Clone)]
pub struct JobResult {
    /// The section's name.
    pub name: String,
    /// fio's `groupid`, from 0.
    pub group: u32,
    /// The stage of the run: jobs of one stage run at the same time, stages one after the other.
    pub stage: u32,
    /// Number of threads whose figures are summed here.
    pub threads: u32,
    /// `errno` of the first error; 0 for none.
    pub error: i32,
    /// Description of that error.
    pub message: Option<String>,
    /// Operations that failed.
    pub errors: u64,
    /// Operations that had not completed when the job was over.
    pub outstanding: u64,
    /// Blocks whose data failed verification.
    pub verify_errors: u64,
    /// Description of the first of them.
    pub mismatch: Option<String>,
    /// What was verified, with `verify`.
    pub verified: Option<Verified>,
    /// The percentiles to print.
    pub percentiles: Vec<f64>,
    /// The job's own options, as given, in order.
    pub options: Vec<(String, String)>,
    /// Name of the engine, as in `ioengine`.
    pub engine: String,
    /// Queue depth that was configured.
    pub iodepth: u32,
    /// When the measurement began, after `ramp_time`.
    pub started: SystemTime,
    /// Wall time measured, without `ramp_time`.
    pub elapsed: Duration,
    /// Read, write, trim.
    pub directions: [DirectionResult; 3],
    /// Durations of syncs (`fsync`, `fdatasync`), nanoseconds.
    pub sync: Histogram<u64>,
    /// Processor time.
    pub cpu: Cpu,
    /// Operations in flight at each submission, in buckets 1, 2, 4, 8, 16, 32, >=64 (fio's `iodepth_level`).
    pub depth: [u64; 7],
    /// Operations per submitting call, in buckets 0, 1 to 4, 5 to 8, 9 to 16, 17 to 32, 33 to 64, more (fio's
    /// `iodepth_submit`).
    pub submit: [u64; 7],
    /// Completions per polling call, in the same buckets (fio's `iodepth_complete`).
    pub complete: [u64; 7],
    /// Parameters and result of the `latency_target` search, if there was one.
    pub latency_target: Option<LatencyTarget>,
    /// One sample for each interval, in chronological order; shown in the plots.
    pub samples: Vec<Sample>,
}

impl JobResult {
    /// Whether anything failed; the figures then cover only the operations that succeeded.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.error != 0 || self.errors != 0 || self.outstanding != 0 || self.verify_errors != 0
    }
}

/// What a job verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Blocks that were read and checked.
    pub checked: u64,
    /// Blocks that were read and not checked: a job that writes knows only what it has written.
    pub skipped: u64,
    /// Blocks that were written and not read back, as the job ended before.
    pub not_read_back: u64,
    /// The number of the run in the blocks: the one that wrote them, or with which they were compared.
    pub run: Option<u64>,
}

/// Parameters and result of a `latency_target` search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyTarget {
    /// The latency not to be exceeded.
    pub target: Duration,
    /// Duration of each trial: `latency_window`.
    pub window: Duration,
    /// Percentage of operations that must meet the target: `latency_percentile`.
    pub percentile: f64,
    /// The greatest depth that met the target.
    pub depth: u32,
}

/// Results of one direction.
#[derive(Debug, Clone)]
pub struct DirectionResult {
    /// Operations completed.
    pub ios: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Wall time of the job, without `ramp_time`; if written blocks are read back, of writing or of reading them back.
    pub runtime: Duration,
    /// Time taken by the submission, nanoseconds.
    pub submission: Histogram<u64>,
    /// Time from the end of the submission to the completion, nanoseconds.
    pub completion: Histogram<u64>,
    /// Time from the start of the submission to the completion, nanoseconds.
    pub total: Histogram<u64>,
    /// With `rate` or `rate_iops`: time from when the job meant the operation to start to the completion, nanoseconds.
    /// Of operations that never completed: to the end of the job.
    pub scheduled: Histogram<u64>,
    /// With `rate` or `rate_iops`: operations that were due before the end of the job and never started.
    pub never_started: u64,
}

impl DirectionResult {
    /// Its histograms.
    pub(crate) fn histograms_mut(&mut self) -> [&mut Histogram<u64>; 4] {
        [&mut self.submission, &mut self.completion, &mut self.total, &mut self.scheduled]
    }

    /// Operations per second; 0 if there were none.
    #[must_use]
    pub fn iops(&self) -> f64 {
        rate(self.ios, self.runtime)
    }

    /// Bytes per second; 0 if there were none.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        rate(self.bytes, self.runtime)
    }
}

/// `count` divided by `time`, per second; 0 if `time` is zero.
#[must_use]
pub fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// Processor time, context switches and page faults, from `getrusage`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu {
    /// In user code.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
    /// Context switches, voluntary and involuntary.
    pub context_switches: u64,
    /// Page faults that read from a disk.
    pub major_faults: u64,
    /// Page faults served without a disk read.
    pub minor_faults: u64,
}

/// Figures of one interval.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// End of the interval, measured from the start.
    pub at: Duration,
    /// Length of the interval.
    pub length: Duration,
    /// Whether written blocks were read back in it.
    pub reads_back: bool,
    /// Operations completed in the interval: read, write, trim.
    pub ios: [u64; 3],
    /// Bytes transferred.
    pub bytes: [u64; 3],
    /// Percentiles of the total latency of all directions, nanoseconds: 50, 90, 99, 99.9, 99.99, 100.
    pub percentiles: [u64; 6],
}

impl Sample {
    /// The percentiles of a sample.
    pub const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 100.0];
}

/// An empty histogram for latencies from 1 ns to 1000 s, with three significant figures.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000_000, 3).expect("the bounds are valid")
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
            scheduled: histogram(),
            never_started: 0,
        }
    }
}
