//! The demo's report: transfers, latencies and checks.

use std::fmt;
use std::time::Duration;

#[derive(Default)]
pub(super) struct Report {
    moved: Vec<(&'static str, u64, Duration)>,
    latencies: Vec<(&'static str, [Duration; 3])>,
    checks: Vec<&'static str>,
}

impl Report {
    pub(super) fn moved(&mut self, what: &'static str, bytes: u64, time: Duration) {
        self.moved.push((what, bytes, time));
    }

    /// Records the median, the 99th percentile and the maximum.
    pub(super) fn latency(&mut self, what: &'static str, mut times: Vec<Duration>) {
        times.sort_unstable();
        let at = |percent: usize| {
            times.get(times.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
        };
        self.latencies.push((what, [at(50), at(99), at(100)]));
    }

    pub(super) fn check(&mut self, what: &'static str) {
        self.checks.push(what);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<34} {:>10} {:>10} {:>12}", "moved", "MiB", "seconds", "MiB/s")?;
        for (what, bytes, time) in &self.moved {
            let (mib, seconds) = (*bytes as f64 / f64::from(1 << 20), time.as_secs_f64());
            writeln!(f, "{what:<34} {mib:>10.1} {seconds:>10.2} {:>12.1}", mib / seconds.max(1e-9))?;
        }
        writeln!(f, "\n{:<34} {:>10} {:>10} {:>12}", "latency (µs)", "median", "99 %", "longest")?;
        for (what, times) in &self.latencies {
            let [median, high, longest] = times.map(|time| time.as_secs_f64() * 1e6);
            writeln!(f, "{what:<34} {median:>10.1} {high:>10.1} {longest:>12.1}")?;
        }
        writeln!(f)?;
        self.checks.iter().try_for_each(|check| writeln!(f, "passed: {check}"))
    }
}
