//! The table of a job's figures.

use super::plots::directions;
use super::{Entry, Escaped};
use crate::report::number;
use crate::result::{Direction, JobResult};
use core::fmt::{self, Formatter};

/// A column: its head, its value, and the format of the value.
type Column = (&'static str, fn(&JobResult, Direction) -> f64, fn(f64) -> String);

const COLUMNS: [Column; 10] = [
    ("IOPS", |job, d| job.directions[d as usize].iops(), number::plain),
    ("Bandwidth", |job, d| job.directions[d as usize].bandwidth(), number::bandwidth),
    ("Mean", |job, d| job.directions[d as usize].total.mean(), number::latency),
    ("p50", |job, d| percentile(job, d, 50.0), number::latency),
    ("p90", |job, d| percentile(job, d, 90.0), number::latency),
    ("p99", |job, d| percentile(job, d, 99.0), number::latency),
    ("p99.9", |job, d| percentile(job, d, 99.9), number::latency),
    ("p99.99", |job, d| percentile(job, d, 99.99), number::latency),
    ("Max", |job, d| percentile(job, d, 100.0), number::latency),
    // Processor time is measured per job, so the value is the same in all rows of a job.
    ("CPU per op", |job, _| cpu_per_operation(job), number::latency),
];

/// Writes a row for each direction of each run, with ratios to the first run that has the direction.
pub(super) fn figures(f: &mut Formatter<'_>, entries: &[Entry<'_>], several: bool) -> fmt::Result {
    writeln!(f, "<div class=\"wide\"><table>\n<thead><tr>")?;
    if several {
        writeln!(f, "<th scope=\"col\">Run</th>")?;
    }
    writeln!(f, "<th scope=\"col\">Operation</th>")?;
    for (head, ..) in COLUMNS {
        writeln!(f, "<th scope=\"col\" class=\"number\">{head}</th>")?;
    }
    writeln!(f, "</tr></thead>\n<tbody>")?;
    for (index, entry) in entries.iter().enumerate() {
        for (direction, name) in directions(entry.job) {
            let first = entries[..index].iter().find(|e| e.job.directions[direction as usize].ios > 0);
            row(f, entry, direction, name, first.map(|entry| entry.job), several)?;
        }
    }
    writeln!(f, "</tbody>\n</table></div>")
}

fn row(
    f: &mut Formatter<'_>,
    entry: &Entry<'_>,
    direction: Direction,
    name: &str,
    first: Option<&JobResult>,
    several: bool,
) -> fmt::Result {
    write!(f, "<tr>")?;
    if several {
        write!(f, "<th scope=\"row\">{}</th><td>{name}</td>", Escaped(entry.label))?;
    } else {
        write!(f, "<th scope=\"row\">{name}</th>")?;
    }
    for (_, value, text) in COLUMNS {
        let here = value(entry.job, direction);
        write!(f, "<td class=\"number\">{}", text(here))?;
        if let Some(there) = first.map(|job| value(job, direction)).filter(|there| *there > 0.0) {
            write!(f, "<small>{:.2} ×</small>", here / there)?;
        }
        write!(f, "</td>")?;
    }
    writeln!(f, "</tr>")
}

fn percentile(job: &JobResult, direction: Direction, p: f64) -> f64 {
    job.directions[direction as usize].total.value_at_percentile(p) as f64
}

fn cpu_per_operation(job: &JobResult) -> f64 {
    let ios: u64 = job.directions.iter().map(|d| d.ios).sum();
    (job.cpu.user + job.cpu.system).as_nanos() as f64 / ios.max(1) as f64
}
