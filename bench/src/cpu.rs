//! Processor time of a job: of its thread, and of the threads that its engine has.

use crate::result::Cpu;
use core::time::Duration;
use nix::sys::resource::{UsageWho, getrusage};

/// The kernel's unit of the times in `stat`.
const TICK: Duration = Duration::from_millis(10);

/// A thread of this process, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Thread(u32);

impl Thread {
    /// The threads with this name, at most 15 bytes of which count.
    #[must_use]
    pub fn named(name: &str) -> Vec<Self> {
        let name = &name[..name.len().min(15)];
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
        let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        let is_named = |thread: &Self| thread.read("comm").is_some_and(|comm| comm.trim_end() == name);
        numbers.map(Self).filter(is_named).collect()
    }

    fn read(self, file: &str) -> Option<String> {
        std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0)).ok()
    }

    /// Its usage so far; nothing once it has ended.
    fn usage(self) -> Option<Cpu> {
        let (stat, status) = (self.read("stat")?, self.read("status")?);
        // Field 3 follows the name in parentheses.
        let fields: Vec<u64> =
            stat.rsplit(')').next()?.split_whitespace().map(|text| text.parse().unwrap_or(0)).collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let time = |ticks: u64| TICK * u32::try_from(ticks).unwrap_or(u32::MAX);
        let switches = |line: &&str| line.contains("ctxt_switches:");
        let count =
            |line: &str| line.split_whitespace().next_back().and_then(|text| text.parse::<u64>().ok());
        Some(Cpu {
            user: time(field(14)),
            system: time(field(15)),
            context_switches: status.lines().filter(switches).filter_map(count).sum(),
            major_faults: field(12),
            minor_faults: field(10),
        })
    }
}

/// The usage of this thread and of others so far.
pub(crate) fn cpu(others: &[Thread]) -> Cpu {
    let own = own().unwrap_or_default();
    others.iter().filter_map(|thread| thread.usage()).fold(own, |sum, other| Cpu {
        user: sum.user + other.user,
        system: sum.system + other.system,
        context_switches: sum.context_switches + other.context_switches,
        major_faults: sum.major_faults + other.major_faults,
        minor_faults: sum.minor_faults + other.minor_faults,
    })
}

fn own() -> Option<Cpu> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
    let time = |time: nix::sys::time::TimeVal| {
        let microseconds = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
        Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
    };
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    Some(Cpu {
        user: time(usage.user_time()),
        system: time(usage.system_time()),
        context_switches: count(usage.voluntary_context_switches())
            + count(usage.involuntary_context_switches()),
        major_faults: count(usage.major_page_faults()),
        minor_faults: count(usage.minor_page_faults()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn other_threads_are_counted() {
        const WORK: Duration = Duration::from_millis(60);
        let ((worked, works), (release, released)) = (channel(), channel::<()>());
        let body = move || {
            while own().is_some_and(|cpu| cpu.user + cpu.system < WORK) {}
            worked.send(()).unwrap();
            let _ = released.recv();
        };
        let name = "cpu-of-another-thread";
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body).unwrap();
        works.recv().unwrap();
        let others = Thread::named(name);
        assert_eq!(others.len(), 1);
        let (alone, together) = (cpu(&[]), cpu(&others));
        let more = (together.user + together.system).saturating_sub(alone.user + alone.system);
        // The kernel counts whole ticks of user and of system time.
        assert!(more >= WORK - 2 * TICK, "{more:?}");
        drop(release);
        thread.join().unwrap();
    }
}
