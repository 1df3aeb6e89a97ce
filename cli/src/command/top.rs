//! `nvmf top`: what attached disks do now, and how fast.

use super::{Format, Output};
use crate::attach::{Kind, Listed, Registry, Statistics, step_us};
use crate::print::{OutputClosed, line, text};
use anyhow::Result;
use nvmf_attached::State;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Rows where the height of the terminal is not known.
const ROWS: usize = 40;

#[derive(clap::Args)]
pub(crate) struct Top {
    /// Seconds between two looks
    #[arg(short = 'i', long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    interval: Duration,
    /// Look once (over one interval), print, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: Output,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("an interval is 0.1 to 3600 seconds".to_owned())
    }
}

/// A disk between two looks.
#[derive(Serialize)]
struct Row {
    device: String,
    nqn: String,
    nsid: u32,
    state: State,
    /// `None`: its server does not answer, or did not at the last look.
    #[serde(flatten)]
    interval: Option<Interval>,
}

/// What a disk did between two looks.
#[derive(Serialize)]
pub(super) struct Interval {
    pub(super) reads: Rates,
    pub(super) writes: Rates,
    pub(super) others: Rates,
    pub(super) in_flight: u64,
}

/// Operations of one kind between two looks.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) per_s: f64,
    pub(super) bytes_per_s: f64,
    pub(super) failed: u64,
    pub(super) mean_us: Option<f64>,
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
}

impl Interval {
    pub(super) fn between(before: &Statistics, now: &Statistics, time: Duration) -> Self {
        Self {
            reads: Rates::between(&before.reads, &now.reads, time),
            writes: Rates::between(&before.writes, &now.writes, time),
            others: Rates::between(&before.others, &now.others, time),
            in_flight: now.in_flight,
        }
    }
}

impl Rates {
    fn between(before: &Kind, now: &Kind, time: Duration) -> Self {
        // Another process serves it than before: that counts from zero.
        let before = if before.operations > now.operations { &Kind::default() } else { before };
        let operations = now.operations - before.operations;
        let seconds = time.as_secs_f64().max(1e-9);
        let total_us = now.total_us.saturating_sub(before.total_us);
        let earlier: BTreeMap<_, _> = before.times.iter().copied().collect();
        let count = |&(step, count): &(u16, u64)| {
            (step, count.saturating_sub(earlier.get(&step).copied().unwrap_or_default()))
        };
        let times: Vec<_> = now.times.iter().map(count).collect();
        Self {
            per_s: operations as f64 / seconds,
            bytes_per_s: now.bytes.saturating_sub(before.bytes) as f64 / seconds,
            failed: now.failed.saturating_sub(before.failed),
            mean_us: (operations > 0).then(|| total_us as f64 / operations as f64),
            p50_us: percentile(&times, 0.5),
            p99_us: percentile(&times, 0.99),
        }
    }
}

/// The time that this part of the operations took at most; the step's end, which is at most an eighth more than it was.
fn percentile(times: &[(u16, u64)], part: f64) -> Option<f64> {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    let reached = times.iter().find(|(_, count)| {
        seen += count;
        *count > 0 && seen >= wanted
    });
    reached.map(|(step, _)| step_us(step + 1) as f64)
}

/// What the servers said, by the disk's entry.
type Look = BTreeMap<String, Statistics>;

fn look(disks: &[Listed]) -> Look {
    let said = |listed: &Listed| Some((listed.id().to_owned(), listed.statistics().ok()?));
    disks.iter().filter_map(said).collect()
}

impl Top {
    pub(crate) fn run(&self) -> Result<()> {
        let live = !self.once && self.output.format == Format::Normal && io::stdout().is_terminal();
        let registry = Registry::of_this_user();
        let (mut before, mut since) = (look(&registry.list()?), Instant::now());
        loop {
            std::thread::sleep(self.interval);
            let disks = registry.list()?;
            let (now, at) = (look(&disks), Instant::now());
            let rows: Vec<_> = disks.iter().map(|disk| row(disk, &before, &now, at - since)).collect();
            let printed = match self.output.format {
                Format::Json => line(serde_json::json!({
                    "version": crate::print::JSON_VERSION, "interval_s": (at - since).as_secs_f64(), "disks": rows,
                })),
                Format::Normal if live => {
                    // Home, and what was there before is cleared line by line: the picture does not flicker.
                    let picture = table(&rows, at - since, height()).replace('\n', "\x1b[K\n");
                    text(format_args!("\x1b[H{picture}\x1b[J"))
                }
                Format::Normal => text(table(&rows, at - since, usize::MAX)),
            };
            match printed {
                // Whoever read it has seen enough.
                Err(error) if error.is::<OutputClosed>() && !self.once => return Ok(()),
                printed => printed?,
            }
            if self.once {
                return Ok(());
            }
            (before, since) = (now, at);
        }
    }
}

fn row(listed: &Listed, before: &Look, now: &Look, time: Duration) -> Row {
    let interval = now.get(listed.id()).map(|now| {
        // One that was attached meanwhile began with nothing.
        let nothing = Statistics::default();
        Interval::between(before.get(listed.id()).unwrap_or(&nothing), now, time)
    });
    let disk = &listed.disk;
    let device = disk.place().display().to_string();
    Row { device, nqn: disk.nqn.clone(), nsid: disk.nsid, state: disk.state, interval }
}

fn height() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(ROWS, |size| usize::from(size.ws_row)).max(8)
}

/// The table, in at most so many lines.
fn table(rows: &[Row], time: Duration, lines: usize) -> String {
    let disks = if rows.len() == 1 { "disk" } else { "disks" };
    let mut text = format!("{} {disks}, over {:.1} s\n\n", rows.len(), time.as_secs_f64());
    let _ = writeln!(
        text,
        "{:<32} {:<12} {:>9} {:>9} {:>9} {:>9} {:>15} {:>15} {:>9} {:>7}",
        "DISK",
        "STATE",
        "reads/s",
        "writes/s",
        "read B/s",
        "write B/s",
        "read p50/p99",
        "write p50/p99",
        "in flight",
        "errors"
    );
    let mut rows: Vec<_> = rows.iter().collect();
    let busy = |row: &Row| {
        row.interval.as_ref().map_or(0.0, |it| it.reads.per_s + it.writes.per_s + it.others.per_s)
    };
    rows.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    for row in rows.into_iter().take(lines.saturating_sub(4)) {
        let _ = write!(text, "{:<32} {:<12}", shortened(&row.device, 32), row.state.as_str());
        let Some(Interval { reads, writes, others, in_flight }) = &row.interval else {
            let _ = writeln!(text, " its server does not answer");
            continue;
        };
        let _ = writeln!(
            text,
            " {:>9} {:>9} {:>9} {:>9} {:>15} {:>15} {:>9} {:>7}",
            number(reads.per_s),
            number(writes.per_s),
            number(reads.bytes_per_s),
            number(writes.bytes_per_s),
            times(reads),
            times(writes),
            in_flight,
            reads.failed + writes.failed + others.failed,
        );
    }
    text
}

/// The end of a name tells it from others.
fn shortened(name: &str, len: usize) -> String {
    match name.chars().count().saturating_sub(len) {
        0 => name.to_owned(),
        skip => format!("…{}", name.chars().skip(skip + 1).collect::<String>()),
    }
}

fn number(value: f64) -> String {
    let units = ["", " k", " M", " G", " T"];
    let (mut value, mut unit) = (value, 0);
    while value >= 9999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.0}{}", units[unit])
}

fn times(rates: &Rates) -> String {
    match (rates.p50_us, rates.p99_us) {
        (Some(p50), Some(p99)) => format!("{}/{}", time(p50), time(p99)),
        _ => "-".to_owned(),
    }
}

/// A time as people read it.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 1000.0 => format!("{us:.0}us"),
        us if us < 1e6 => format!("{:.1}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_interval_alone() {
        let kind = |operations, bytes, times: &[(u16, u64)]| Kind {
            operations,
            bytes,
            total_us: operations * 10,
            times: times.to_vec(),
            ..Kind::default()
        };
        let (before, now) = (kind(100, 1000, &[(5, 100)]), kind(300, 5000, &[(5, 100), (10, 198), (40, 2)]));
        let rates = Rates::between(&before, &now, Duration::from_secs(2));
        assert_eq!((rates.per_s, rates.bytes_per_s, rates.mean_us), (100.0, 2000.0, Some(10.0)));
        assert_eq!((rates.p50_us, rates.p99_us), (Some(step_us(11) as f64), Some(step_us(11) as f64)));
        // Another server counts from zero.
        let again = Rates::between(&now, &kind(4, 64, &[(8, 4)]), Duration::from_secs(2));
        assert_eq!((again.per_s, again.bytes_per_s), (2.0, 32.0));
        let idle = Rates::between(&now, &now, Duration::from_secs(2));
        assert_eq!((idle.per_s, idle.mean_us, idle.p99_us), (0.0, None, None));
    }

    #[test]
    fn table_fits_its_lines() {
        let row = |device: &str, interval| Row {
            device: device.to_owned(),
            nqn: String::new(),
            nsid: 1,
            state: State::Live,
            interval,
        };
        let idle = || {
            Some(Interval::between(&Statistics::default(), &Statistics::default(), Duration::from_secs(1)))
        };
        let rows = [row("/dev/ublkb0", idle()), row("/dev/ublkb1", None), row(&"x".repeat(90), idle())];
        let all = table(&rows, Duration::from_secs(1), usize::MAX);
        assert!(
            all.contains("/dev/ublkb0") && all.contains("does not answer") && all.contains("…xxx"),
            "{all}"
        );
        assert!(all.starts_with("3 disks, "), "{all}");
        assert!(table(&rows[..1], Duration::from_secs(1), 9).starts_with("1 disk, "));
        assert!(table(&rows, Duration::from_secs(1), 5).lines().count() <= 5);
    }
}
