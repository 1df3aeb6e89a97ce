//! The kernel lab's figures: the kernel's and our initiator and target in all combinations, with TLS, and as disks side by
//! side, in one guest each.

use super::comparison::Entry;
use super::series::{Goal, Spread, Unit};
use crate::lab;
use anyhow::{Context, Result};

/// A scenario, and its goal.
struct Scenario {
    name: &'static str,
    goal: Goal,
    /// The pairs and the workloads that the goal is for, by their beginning. Without pairs, the figures are there to be seen.
    pairs: &'static [&'static str],
    rw: &'static str,
}

/// The kernel's initiator with our target, by default and with busy polling.
const OURS: &[&str] = &["kernel → ours", "kernel → ours,busy"];
/// TLS whose records the kernel handles, on both sides.
const TLS: &[&str] = &["ours → ours,TLS-kernel", "kernel → ours,TLS"];
/// A disk through ublk beside the kernel's own, on our target.
const UBLK: &[&str] = &["ublk → ours"];
const VHOST: &[&str] = &["vhost → memory"];
const FAILOVER: &[&str] = &["ublk → pair"];
const LOAD: &[&str] = &["kernel → ours"];
const SCENARIOS: [Scenario; 8] = [
    Scenario { name: "figures-rxe", goal: Goal { least: 1.0, aim: 1.3 }, pairs: OURS, rw: "randread" },
    Scenario { name: "figures-tcp", goal: Goal { least: 1.0, aim: 1.2 }, pairs: OURS, rw: "randread" },
    Scenario { name: "figures-tls", goal: Goal { least: 0.5, aim: 0.8 }, pairs: TLS, rw: "" },
    Scenario { name: "figures-ublk-rxe", goal: Goal { least: 1.0, aim: 1.0 }, pairs: &[], rw: "" },
    Scenario { name: "figures-ublk-tcp", goal: Goal { least: 0.6, aim: 0.9 }, pairs: UBLK, rw: "randread" },
    Scenario { name: "figures-vhost", goal: Goal { least: 0.3, aim: 0.6 }, pairs: VHOST, rw: "randread" },
    Scenario {
        name: "figures-failover",
        goal: Goal { least: 1.0, aim: 0.5 },
        pairs: FAILOVER,
        rw: "gap between completions, path cut",
    },
    Scenario { name: "figures-load", goal: Goal { least: 0.8, aim: 1.0 }, pairs: LOAD, rw: "randread" },
];
/// Rounds of each scenario.
pub(super) const ROUNDS: usize = 6;
/// The pairs that others are compared with: the first of a line.
const BASES: [&str; 5] =
    ["kernel → kernel", "ours → ours", "kernel → ours", "virtio → memory", "kernel → pair"];

/// Runs the scenarios. One that does not run has a line that says why, and the others go on.
pub(super) fn measure() -> Vec<Entry> {
    let one = |scenario: &Scenario| {
        run(scenario).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", scenario.name);
            vec![Entry::of_failure(format!("kernel lab, {}", scenario.name), &error)]
        })
    };
    SCENARIOS.iter().flat_map(one).collect()
}

fn run(scenario: &Scenario) -> Result<Vec<Entry>> {
    let lines = lab::figures(scenario.name)?;
    let all =
        lines.iter().map(|line| entries(line, scenario).with_context(|| format!("not a figure: {line}")));
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

/// Parses `rxe, randread 4k 1: kernel → kernel 900,800 IOPS (1.00); kernel → ours 990,880 IOPS (1.10); …`, with a figure
/// of each round, or the same with `ms`; each pair is compared with the first, round by round.
fn entries(line: &str, scenario: &Scenario) -> Option<Vec<Entry>> {
    let (work, figures) = line.split_once(": ")?;
    let (over, work) = work.split_once(", ")?;
    let (unit, name) = if figures.contains(" ms") { (Unit::Pause, " ms") } else { (Unit::Iops, " IOPS") };
    let figures: Vec<(&str, Vec<f64>)> =
        figures.split(';').map(|text| figure(text, name)).collect::<Option<_>>()?;
    let ((first, base), others) = figures.split_first()?;
    let peer = BASES.into_iter().find(|name| name == first)?;
    let spread = |iops: &[f64]| Spread::of(iops.iter().copied());
    let others = others.iter().map(|(pair, iops)| Entry {
        what: format!("kernel lab on {over}, {work}: {pair}"),
        unit,
        ours: spread(iops),
        peer: Some(peer),
        theirs: spread(base),
        ratio: Spread::of_ratios(iops, base),
        goal: (scenario.pairs.contains(pair) && work.starts_with(scenario.rw)).then_some(scenario.goal),
        busy: (None, None),
        apart: (0, 0),
        repeated: 0,
        missing: None,
        failed: false,
    });
    Some(others.collect())
}

/// Parses `kernel → ours 990,880 IOPS (1.10)`.
fn figure<'a>(text: &'a str, unit: &str) -> Option<(&'a str, Vec<f64>)> {
    let (pair, iops) = text.trim().split_once(unit)?.0.rsplit_once(' ')?;
    Some((pair, iops.split(',').map(|iops| iops.parse().ok()).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::series::GoalStatus;

    #[test]
    fn scenario_line_is_parsed() {
        let line = "tcp, randread 4k 32: kernel → kernel 1000,500,1000 IOPS (1.00); kernel → ours 1400,600,1500 IOPS (1.40); \
                    ours → kernel 900,450,900 IOPS (0.90); ours → ours 1100,550,1100 IOPS (1.10)";
        let read = entries(line, &SCENARIOS[1]).unwrap();
        assert_eq!(read.len(), 3);
        assert_eq!(read[0].what, "kernel lab on tcp, randread 4k 32: kernel → ours");
        let ratio = read[0].ratio.unwrap();
        assert_eq!((ratio.least, ratio.median, ratio.most), (1.2, 1.4, 1.5));
        assert_eq!(read[0].status(), Some(GoalStatus::Aim));
        assert_eq!(read[1].status(), None, "only our target has a goal");
        let line = "tcp, write 128k 8: ours → ours 100,100,100 IOPS (1.00); ours → ours,TLS-kernel 60,60,60 IOPS (0.60); \
                    ours → ours,TLS-user 40,40,40 IOPS (0.40)";
        let read = entries(line, &SCENARIOS[2]).unwrap();
        assert_eq!((read[0].peer, read[0].status()), (Some("ours → ours"), Some(GoalStatus::Met)));
        assert_eq!(read[1].status(), None, "only the kernel's TLS has a goal");
        let line =
            "rxe, randread 4k 1: kernel → ours 200,100,100 IOPS (1.00); ublk → ours 100,60,50 IOPS (0.50)";
        let read = entries(line, &SCENARIOS[3]).unwrap();
        assert_eq!(read[0].what, "kernel lab on rxe, randread 4k 1: ublk → ours");
        assert_eq!((read[0].peer, read[0].status()), (Some("kernel → ours"), None));
        let read = entries(&line.replace("rxe", "tcp"), &SCENARIOS[4]).unwrap();
        assert_eq!(read[0].status(), Some(GoalStatus::Unclear), "over NVMe/TCP it has a goal: 0.5 and 0.6");
        let line = "tcp, gap between completions, path cut: kernel → pair 60,80,80 ms (1.00); ublk → pair 30,60,60 ms (0.62)";
        let read = entries(line, &SCENARIOS[6]).unwrap();
        assert_eq!(read[0].what, "kernel lab on tcp, gap between completions, path cut: ublk → pair");
        assert_eq!((read[0].unit, read[0].status()), (Unit::Pause, Some(GoalStatus::Met)), "less is better");
    }

    #[test]
    fn other_lines_are_rejected() {
        assert!(entries("siw is slow", &SCENARIOS[0]).is_none());
        assert!(
            entries("rxe, randread 4k 1: ours → kernel 5 IOPS (1.0)", &SCENARIOS[0]).is_none(),
            "there is no baseline"
        );
    }
}
