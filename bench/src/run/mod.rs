//! Runs the jobs of a plan, each in its own threads; `stonewall` separates stages that run one after the other.
//!
//! | module | contents |
//! |---|---|
//! | `prepare` | set-up of a thread from its options |
//! | `worker` | the thread's loop: submit, flush, poll |
//! | `source` | the sequence of operations, syncs, pauses and reading back |
//! | `record`, `collect`, `group` | counters of a thread, their intervals, and their sum over a group |
//! | `depth_search` | the search of `latency_target` |
//! | `progress`, `interrupt` | the progress line, and the signals that end a run |

mod collect;
mod depth_search;
mod group;
mod interrupt;
mod prepare;
mod progress;
mod record;
mod source;
#[cfg(test)]
mod tests;
mod worker;

pub use interrupt::Interrupt;

use crate::engine::{self, EngineError};
use crate::job::{EngineKind, Job, Plan};
use crate::result::{JobResult, RunResult, histogram};
use collect::Collector;
use core::time::Duration;
use hdrhistogram::Histogram;
use nvmf_backend::Disk;
use progress::Progress;
use record::Interval;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Instant, SystemTime};

/// Histograms per thread: one is filled while the collector reads the other.
const HISTOGRAMS: usize = 2;
/// Interval between checks for signals and updates of the progress line.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Length of a sample.
    pub log_interval: Duration,
    /// Whether to show the progress line; `None`: only on a terminal.
    pub progress: Option<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { log_interval: Duration::from_millis(500), progress: None }
    }
}

/// A job that could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("job `{job}`")]
pub struct RunError {
    /// Name of the job.
    pub job: String,
    /// The cause.
    pub source: EngineError,
}

/// One thread of a job.
struct ThreadPlan<'a> {
    job: &'a Job,
    /// Index within the job's threads.
    number: u32,
    /// Number of its stream of random numbers.
    stream: u64,
    group: u32,
    stage: u32,
}

/// A message from a thread.
enum Message {
    /// The thread is set up, or could not be.
    Ready(Result<(), RunError>),
    Interval(Interval),
    Done(usize, Box<JobResult>),
}

/// Runs all jobs.
///
/// # Errors
/// When a job cannot be set up; later failures are part of the result.
pub fn run(plan: &Plan, settings: &Settings, interrupt: &Interrupt) -> Result<RunResult, RunError> {
    let read_only = !plan.jobs.iter().any(|job| job.options.rw.writes || job.options.rw.trims);
    let mut disks = HashMap::new();
    let mut jobs: Vec<JobResult> = Vec::new();
    let mut interrupted = None;
    for stage in stages(plan) {
        let (ended, signal) = run_stage(&stage, read_only, &mut disks, settings, interrupt)?;
        jobs.extend(ended);
        interrupted = signal;
        if interrupted.is_some() {
            break;
        }
    }
    Ok(RunResult {
        finished: SystemTime::now(),
        pid: std::process::id(),
        global: plan.global.clone(),
        jobs,
        interrupted,
    })
}

/// The threads of each stage; those of one stage run concurrently.
fn stages(plan: &Plan) -> Vec<Vec<ThreadPlan<'_>>> {
    let mut stages: Vec<Vec<ThreadPlan<'_>>> = Vec::new();
    let (mut group, mut stream) = (0, 0);
    for job in &plan.jobs {
        let first = stages.is_empty();
        if first || job.options.stonewall {
            stages.push(Vec::new());
        }
        if !first && (job.options.stonewall || job.options.new_group) {
            group += 1;
        }
        let stage = u32::try_from(stages.len()).unwrap_or(u32::MAX) - 1;
        for number in 0..job.options.numjobs {
            if let Some(threads) = stages.last_mut() {
                threads.push(ThreadPlan { job, number, stream, group, stage });
            }
            stream += 1;
        }
    }
    stages
}

/// Runs the threads of one stage; the second value is the signal that ended it, if one did.
fn run_stage(
    stage: &[ThreadPlan<'_>],
    read_only: bool,
    disks: &mut HashMap<String, Disk>,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(Vec<JobResult>, Option<i32>), RunError> {
    let mut thread_disks = Vec::new();
    for thread in stage {
        thread_disks.push(match thread.job.options.engine() {
            EngineKind::IoUring | EngineKind::Memory | EngineKind::Null => {
                let opened = engine::open_disk(thread.job, thread.number, read_only, disks);
                Some(opened.map_err(|source| RunError { job: thread.job.name.clone(), source })?)
            }
            _ => None,
        });
    }
    let stop = AtomicBool::new(false);
    let (out, messages) = channel();
    std::thread::scope(|scope| {
        let mut channels = Vec::new();
        for (index, (thread, disk)) in stage.iter().zip(&thread_disks).enumerate() {
            let (go, gone) = channel();
            let (back, used) = channel();
            let link = prepare::RunLink {
                index,
                out: out.clone(),
                back: used,
                go: gone,
                interval: settings.log_interval,
                stop: &stop,
            };
            let name = format!("job-{index}");
            let spawned = std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, move || prepare::run(thread, disk.as_ref(), &link));
            spawned.map_err(|error| RunError {
                job: thread.job.name.clone(),
                source: EngineError::Option(format!("cannot start a thread: {error}")),
            })?;
            for _ in 0..HISTOGRAMS {
                let _ = back.send(histogram());
            }
            channels.push(ThreadChannels { go, back });
        }
        drop(out);
        let mut interrupted = None;
        let mut waits = stage.len();
        while waits > 0 {
            match messages.recv_timeout(POLL_INTERVAL) {
                Ok(Message::Ready(ready)) => {
                    ready?;
                    waits -= 1;
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(signal) = on_signal(&mut interrupted, interrupt, &stop) {
                        std::process::exit(128 + signal);
                    }
                }
                // Threads that send nothing have panicked; the scope propagates the panic.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if interrupted.is_some() {
            return Ok((Vec::new(), interrupted));
        }
        let clock = Instant::now();
        for channel in &channels {
            let _ = channel.go.send(clock);
        }
        let mut stage_run = StageRun::new(stage, channels, settings);
        loop {
            match messages.recv_timeout(POLL_INTERVAL) {
                Ok(message) => stage_run.on_message(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if let Some(signal) = on_signal(&mut interrupted, interrupt, &stop) {
                stage_run.progress.clear();
                std::process::exit(128 + signal);
            }
            stage_run.progress.show(stage_run.running);
        }
        stage_run.progress.clear();
        Ok((stage_run.finish(), interrupted))
    })
}

/// Stops the threads at the first signal; returns the second one, at which the program is to end.
fn on_signal(interrupted: &mut Option<i32>, interrupt: &Interrupt, stop: &AtomicBool) -> Option<i32> {
    let signal = interrupt.came()?;
    stop.store(true, Ordering::Relaxed);
    interrupted.replace(signal).map(|_| signal)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Channels to a thread.
struct ThreadChannels {
    go: Sender<Instant>,
    back: Sender<Histogram<u64>>,
}

/// State of the main thread while a stage runs.
struct StageRun {
    channels: Vec<ThreadChannels>,
    /// By thread: the index of its report.
    report_of: Vec<usize>,
    /// By report.
    reports: Vec<(Collector, Option<JobResult>)>,
    progress: Progress,
    running: usize,
}

impl StageRun {
    fn new(stage: &[ThreadPlan<'_>], channels: Vec<ThreadChannels>, settings: &Settings) -> Self {
        // Threads of a group with `group_reporting` share a report.
        let mut keys: Vec<(u32, bool, usize)> = Vec::new();
        let mut report_of = Vec::new();
        for (index, thread) in stage.iter().enumerate() {
            let together = thread.job.options.group_reporting;
            let key = (thread.group, together, if together { 0 } else { index });
            report_of.push(keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            }));
        }
        let count = |report: usize| report_of.iter().filter(|&&of| of == report).count();
        let reports =
            (0..keys.len()).map(|report| (Collector::new(settings.log_interval, count(report)), None));
        Self {
            reports: reports.collect(),
            report_of,
            channels,
            progress: Progress::new(settings.progress, stage.iter().map(|thread| &thread.job.options)),
            running: stage.len(),
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Interval(mut interval) => {
                let thread = interval.thread;
                self.progress.add(interval.ios, interval.bytes);
                self.reports[self.report_of[thread]].0.add(&mut interval);
                // Sending fails if the thread has ended.
                let _ = self.channels[thread].back.send(interval.latencies);
            }
            Message::Done(thread, result) => {
                self.running -= 1;
                let (collector, report) = &mut self.reports[self.report_of[thread]];
                collector.on_thread_ended(thread);
                match report {
                    Some(report) => group::merge(report, &result),
                    None => *report = Some(*result),
                }
            }
            Message::Ready(..) => {}
        }
    }

    fn finish(self) -> Vec<JobResult> {
        let reports = self.reports.into_iter().filter_map(|(mut collector, report)| {
            collector.finish();
            report.map(|report| JobResult { samples: collector.samples, ..report })
        });
        reports.collect()
    }
}
