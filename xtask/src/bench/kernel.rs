//! The kernel lab's scenarios figures-rxe and figures-tcp: the kernel's and our initiator and target in all
//! combinations, in one guest each.

use super::comparison::Entry;
use super::series::{Goal, Spread, Unit};
use crate::lab;
use anyhow::{Context, Result};

/// What a scenario runs over, and the goal for our target with the kernel's initiator.
const SCENARIOS: [(&str, Goal); 2] =
    [("rxe", Goal { least: 1.0, aim: 1.3 }), ("tcp", Goal { least: 1.0, aim: 1.2 })];
/// The pair that the others are compared with.
const BASE: &str = "kernel → kernel";
/// The kernel's initiator with our target, by default and with busy polling.
const OURS: [&str; 2] = ["kernel → ours", "kernel → ours,busy"];

/// Runs the scenarios.
pub(super) fn measure() -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    for (over, goal) in SCENARIOS {
        for line in lab::figures(&format!("figures-{over}"))? {
            all.extend(entries(&line, goal).with_context(|| format!("not a figure: {line}"))?);
        }
    }
    Ok(all)
}

/// Parses `rxe, randread 4k 1: kernel → kernel 900 IOPS (1.00); kernel → ours 990 IOPS (1.10); …`; each pair is
/// compared with the kernel's own.
fn entries(line: &str, goal: Goal) -> Option<Vec<Entry>> {
    let (work, figures) = line.split_once(": ")?;
    let (over, work) = work.split_once(", ")?;
    let figures: Vec<(&str, f64)> = figures.split(';').map(figure).collect::<Option<_>>()?;
    let (_, base) = *figures.iter().find(|(pair, _)| *pair == BASE)?;
    let only = |figure| Spread::of([figure]);
    let others = figures.iter().filter(|(pair, _)| *pair != BASE).map(|&(pair, iops)| Entry {
        what: format!("kernel lab on {over}, {work}: {pair}"),
        unit: Unit::Iops,
        ours: only(iops),
        peer: Some(BASE),
        theirs: only(base),
        ratio: Spread::of_ratios(&[iops], &[base]),
        goal: (OURS.contains(&pair) && work.starts_with("randread")).then_some(goal),
        missing: None,
    });
    Some(others.collect())
}

/// Parses `kernel → ours 990 IOPS (1.10)`.
fn figure(text: &str) -> Option<(&str, f64)> {
    let (pair, iops) = text.trim().split_once(" IOPS")?.0.rsplit_once(' ')?;
    Some((pair, iops.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::series::GoalStatus;

    #[test]
    fn scenario_line_is_parsed() {
        let goal = Goal { least: 1.0, aim: 1.2 };
        let line = "tcp, randread 4k 32: kernel → kernel 1000 IOPS (1.00); kernel → ours 1400 IOPS (1.40); \
                    ours → kernel 900 IOPS (0.90); ours → ours 1100 IOPS (1.10)";
        let entries = entries(line, goal).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0].what, "kernel lab on tcp, randread 4k 32: kernel → ours");
        assert_eq!(entries[0].ratio.unwrap().median, 1.4);
        assert_eq!(entries[0].status(), Some(GoalStatus::Aim));
        assert_eq!(entries[1].status(), None, "only our target has a goal");
    }

    #[test]
    fn other_lines_are_rejected() {
        let goal = Goal { least: 1.0, aim: 1.2 };
        assert!(entries("siw is slow", goal).is_none());
        assert!(
            entries("rxe, randread 4k 1: kernel → ours 5 IOPS (1.0)", goal).is_none(),
            "there is no baseline"
        );
    }
}
