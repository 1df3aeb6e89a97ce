//! Runs a plan's jobs: a thread each, those behind a stonewall after those before it.
//!
//! | file | what it is |
//! |---|---|
//! | `prepare` | from options to a thread that is ready to go |
//! | `worker` | the thread: submits, flushes, polls |
//! | `source` | what is next: operations, syncs, pauses, reading back |
//! | `record`, `collect`, `group` | what is counted, interval by interval, thread by thread |
//! | `depth_search` | `latency_target` |
//! | `progress`, `interrupt` | the live line, and the signals that end a run |

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

/// Histograms that a thread has for its intervals: one fills up while the other is being read.
const HISTOGRAMS: usize = 2;
/// How often the signals are looked at, and the line is drawn.
const LOOK: Duration = Duration::from_millis(100);

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A sample's length.
    pub log_interval: Duration,
    /// Whether the live line is shown; when not said, on a terminal.
    pub progress: Option<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { log_interval: Duration::from_millis(500), progress: None }
    }
}

/// A job that cannot be made ready.
#[derive(Debug, thiserror::Error)]
#[error("job `{job}`")]
pub struct RunError {
    /// Which.
    pub job: String,
    /// Why.
    pub source: EngineError,
}

/// One thread of a job.
struct ThreadPlan<'a> {
    job: &'a Job,
    /// Which of the job's threads.
    number: u32,
    /// Its sequence of random numbers.
    stream: u64,
    group: u32,
}

/// What a thread tells.
enum Message {
    /// It is ready, or cannot be.
    Ready(Result<(), RunError>),
    Interval(Interval),
    Done(usize, Box<JobResult>),
}

/// Runs all jobs.
///
/// # Errors
/// When a job cannot be made ready; what fails later stands in the result.
pub fn run(plan: &Plan, settings: &Settings, interrupt: &Interrupt) -> Result<RunResult, RunError> {
    let read_only = !plan.jobs.iter().any(|job| job.options.rw.writes || job.options.rw.trims);
    let mut disks = HashMap::new();
    let mut jobs: Vec<JobResult> = Vec::new();
    let mut interrupted = false;
    for stage in stages(plan) {
        let (ended, was_interrupted) = run_stage(&stage, read_only, &mut disks, settings, interrupt)?;
        jobs.extend(ended);
        interrupted |= was_interrupted;
        if interrupted {
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

/// The threads that run at once, stage by stage.
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
        for number in 0..job.options.numjobs {
            if let Some(stage) = stages.last_mut() {
                stage.push(ThreadPlan { job, number, stream, group });
            }
            stream += 1;
        }
    }
    stages
}

/// Runs the threads of one stage; also says whether a signal ended it.
fn run_stage(
    stage: &[ThreadPlan<'_>],
    read_only: bool,
    disks: &mut HashMap<String, Disk>,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(Vec<JobResult>, bool), RunError> {
    let mut their_disks = Vec::new();
    for thread in stage {
        their_disks.push(match thread.job.options.engine() {
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
        let mut stations = Vec::new();
        for (index, (thread, disk)) in stage.iter().zip(&their_disks).enumerate() {
            let (go, gone) = channel();
            let (back, used) = channel();
            let ties = prepare::Ties {
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
                .spawn_scoped(scope, move || prepare::run(thread, disk.as_ref(), &ties));
            spawned.map_err(|error| RunError {
                job: thread.job.name.clone(),
                source: EngineError::Option(format!("cannot start a thread: {error}")),
            })?;
            for _ in 0..HISTOGRAMS {
                let _ = back.send(histogram());
            }
            stations.push(Station { go, back });
        }
        drop(out);
        for _ in 0..stage.len() {
            // A thread that is gone without a word has panicked; the scope says so.
            if let Ok(Message::Ready(ready)) = messages.recv() {
                ready?;
            }
        }
        let clock = Instant::now();
        for station in &stations {
            let _ = station.go.send(clock);
        }
        let mut watch = Watch::new(stage, stations, settings);
        let mut interrupted = false;
        loop {
            match messages.recv_timeout(LOOK) {
                Ok(message) => watch.on_message(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if interrupt.came() {
                if interrupted {
                    watch.progress.clear();
                    std::process::exit(130);
                }
                interrupted = true;
                stop.store(true, Ordering::Relaxed);
            }
            watch.progress.show(watch.running);
        }
        watch.progress.clear();
        Ok((watch.finish(), interrupted))
    })
}

/// The way to a thread.
struct Station {
    go: Sender<Instant>,
    back: Sender<Histogram<u64>>,
}

/// What the main thread keeps while a stage runs.
struct Watch {
    stations: Vec<Station>,
    /// By thread: the report that it goes into.
    report_of: Vec<usize>,
    /// By report.
    reports: Vec<(Collector, Option<JobResult>)>,
    progress: Progress,
    running: usize,
}

impl Watch {
    fn new(stage: &[ThreadPlan<'_>], stations: Vec<Station>, settings: &Settings) -> Self {
        // Threads of one group that want to be reported together share a report.
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
            stations,
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
                // The thread may have ended meanwhile.
                let _ = self.stations[thread].back.send(interval.latencies);
            }
            Message::Done(thread, result) => {
                self.running -= 1;
                let (collector, report) = &mut self.reports[self.report_of[thread]];
                collector.on_thread_ended();
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
