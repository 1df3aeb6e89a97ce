//! Memory, descriptors and threads of processes that live as long as the soak, and latencies, and how they are judged.

use anyhow::{Context, Result};
use nvmf_tests::process::{self, until_within};
use std::time::Duration;

/// What a process may grow by from one third of the samples to the last: this part of it, and so many bytes.
const GROWTH_MAX: (u64, u64) = (10, 2 << 20);
/// How much longer the slowest hundredth may take in the last third than in the first.
const DRIFT_MAX: f64 = 2.0;
/// Threads and descriptors that are not needed any more go in this time.
const REST_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
struct Size {
    resident: u64,
    descriptors: usize,
    threads: usize,
}

impl Size {
    fn of(pid: u32) -> Result<Self> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        let threads = tasks.with_context(|| format!("process {pid} does not exist"))?.count();
        Ok(Self { resident: process::resident(pid)?, descriptors: process::descriptors(pid)?, threads })
    }
}

/// A process that lives from the beginning to the end.
pub(super) struct Watched {
    name: &'static str,
    pid: u32,
    /// The most while it warmed up: threads and rings of the kernel come with the first load, and stay.
    warm: Size,
    resident: Vec<u64>,
    most: Size,
}

impl Watched {
    pub(super) fn new(name: &'static str, pid: u32) -> Result<Self> {
        let warm = Size::of(pid)?;
        Ok(Self { name, pid, warm, resident: Vec::new(), most: warm })
    }
}

pub(super) struct Samples {
    watched: Vec<Watched>,
    /// The slowest hundredth began at this many microseconds, of the times in which nothing was done to the disks.
    p99: Vec<u64>,
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Medians of the first and the last third.
fn thirds(values: &[u64]) -> (u64, u64) {
    let third = values.len().div_ceil(3);
    (median(&values[..third]), median(&values[values.len() - third..]))
}

impl Samples {
    pub(super) fn new(watched: Vec<Watched>) -> Self {
        Self { watched, p99: Vec::new() }
    }

    pub(super) fn take(&mut self, counts: bool, calm: bool, mut latencies: Vec<u64>) -> Result<()> {
        for process in &mut self.watched {
            let size = Size::of(process.pid).with_context(|| process.name)?;
            process.most.descriptors = process.most.descriptors.max(size.descriptors);
            process.most.threads = process.most.threads.max(size.threads);
            if !counts {
                process.warm = process.most;
            }
            process.resident.extend(counts.then_some(size.resident));
        }
        latencies.sort_unstable();
        let p99 = latencies.get(latencies.len() * 99 / 100).copied();
        self.p99.extend(p99.filter(|_| counts && calm));
        Ok(())
    }

    /// Prints the table, once the load has ended. Gives what is wrong.
    pub(super) fn judge(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        println!("{:<28} {:>20} {:>26} {:>26}", "", "memory, MiB", "descriptors", "threads");
        println!(
            "{:<28} {:>10} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
            "process", "1st third", "last", "1st min", "most", "after", "1st min", "most", "after"
        );
        for it in &self.watched {
            let (mut after, warm) = (it.warm, it.warm);
            let rests = until_within("at rest", REST_MAX, || {
                after = Size::of(it.pid).unwrap_or(after);
                after.descriptors <= warm.descriptors && after.threads <= warm.threads
            });
            let (first, last) = thirds(&it.resident);
            println!(
                "{:<28} {:>10.1} {:>9.1} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
                it.name,
                first as f64 / f64::from(1 << 20),
                last as f64 / f64::from(1 << 20),
                warm.descriptors,
                it.most.descriptors,
                after.descriptors,
                warm.threads,
                it.most.threads,
                after.threads
            );
            if rests.is_err() {
                wrong.push(format!("{}: descriptors or threads are left", it.name));
            }
            if last > first + first / GROWTH_MAX.0 + GROWTH_MAX.1 {
                wrong.push(format!("{}: memory has grown from {first} to {last} bytes", it.name));
            }
        }
        let (first, last) = thirds(&self.p99);
        println!(
            "\np99 of a request, median of {} calm samples: first third {first} us, last third {last} us",
            self.p99.len()
        );
        if last as f64 > first as f64 * DRIFT_MAX {
            wrong.push(format!("p99 has grown from {first} to {last} us"));
        }
        Ok(wrong)
    }
}
