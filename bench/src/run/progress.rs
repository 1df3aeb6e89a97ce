//! The progress line, in fio's form.

use crate::job::JobOptions;
use core::fmt::Write as _;
use core::time::Duration;
use std::io::{IsTerminal, Write as _};
use std::time::Instant;

/// A line on standard error that is overwritten once a second; disabled if that is not a terminal.
pub(super) struct Progress {
    shown: bool,
    start: Instant,
    last: Instant,
    ios: u64,
    read: u64,
    written: u64,
    expected: Option<Duration>,
    letters: String,
}

impl Progress {
    pub(super) fn new<'a>(wanted: Option<bool>, options: impl Iterator<Item = &'a JobOptions>) -> Self {
        let (mut letters, mut expected) = (String::new(), Some(Duration::ZERO));
        for options in options {
            letters.push(letter(options));
            let time = options.runtime.map(|runtime| runtime + options.ramp_time + options.startdelay);
            expected = expected.zip(time).map(|(longest, time)| longest.max(time));
        }
        let now = Instant::now();
        let shown = wanted.unwrap_or_else(|| std::io::stderr().is_terminal());
        Self { shown, start: now, last: now, ios: 0, read: 0, written: 0, expected, letters }
    }

    pub(super) fn add(&mut self, ios: [u64; 3], bytes: [u64; 3]) {
        self.ios += ios.iter().sum::<u64>();
        self.read += bytes[0];
        self.written += bytes[1] + bytes[2];
    }

    /// Prints the progress, at most once a second.
    pub(super) fn show(&mut self, running: usize) {
        let since = self.last.elapsed();
        if !self.shown || since < Duration::from_secs(1) {
            return;
        }
        let per_second = |count: u64| {
            u64::try_from(u128::from(count) * 1000 / since.as_millis().max(1)).unwrap_or(u64::MAX)
        };
        let mut line = format!("Jobs: {running}: [{}]", self.letters);
        if let Some(expected) = self.expected.filter(|expected| !expected.is_zero()) {
            let done = self.start.elapsed().as_secs_f64() / expected.as_secs_f64() * 100.0;
            let _ = write!(line, "[{:.1}%]", done.min(100.0));
        }
        for (letter, bytes) in [('r', self.read), ('w', self.written)] {
            if bytes > 0 {
                let _ = write!(line, "[{letter}={}MiB/s]", per_second(bytes) >> 20);
            }
        }
        let iops = per_second(self.ios);
        let _ = if iops >= 10_000 {
            write!(line, "[{}k IOPS]", iops / 1000)
        } else {
            write!(line, "[{iops} IOPS]")
        };
        if let Some(expected) = self.expected {
            let left = expected.saturating_sub(self.start.elapsed()).as_secs();
            let _ = write!(line, "[eta {:02}m:{:02}s]", left / 60, left % 60);
        }
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        (self.last, self.ios, self.read, self.written) = (Instant::now(), 0, 0, 0);
    }

    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// fio's letter for the kind of a job.
fn letter(options: &JobOptions) -> char {
    match (options.rw.reads, options.rw.writes, options.rw.random) {
        (true, true, false) => 'M',
        (true, true, true) => 'm',
        (true, false, false) => 'R',
        (true, false, true) => 'r',
        (false, true, false) => 'W',
        (false, true, true) => 'w',
        (false, false, _) => 'd',
    }
}
