//! The target alone: fairness, idle connections, memory.

use super::measure;
use crate::bench::comparison::{Comparison, Peer};
use crate::bench::series::{Goal, Unit};
use crate::bench::site::Site;
use crate::bench::{idle as measurement, ours};

/// Most rounds of an idle target, each of which is a long one.
const IDLE_ROUNDS_MAX: u32 = 3;

pub(super) fn fairness(site: &Site) -> Comparison<'_> {
    const HEAVY: u16 = 128;
    let peer = Peer {
        name: "the same without that host",
        goal: Some(Goal { least: 3.0, aim: 2.0 }),
        measure: measure(move || ours::beside(site, 0)),
    };
    let what = "4 KiB random read, depth 1, beside a host with 128 in flight, round trip at the median";
    Comparison::new(what.into(), Unit::RoundTrip, measure(move || ours::beside(site, HEAVY)), vec![peer])
}

pub(super) fn idle(site: &Site) -> Vec<Comparison<'_>> {
    let goal = Goal { least: 0.002, aim: 0.0005 };
    let shapes = [("10 hosts, 100 each", 10, 99), ("500 hosts, 2 each", 500, 1)];
    let comparison = |(hosts_of, hosts, io_queues)| {
        let what =
            format!("idle target, 1,000 queue pairs connected ({hosts_of}), over {} s", site.idle_seconds);
        let ours = Box::new(move || measurement::processor(site, hosts, io_queues));
        Comparison { rounds_max: IDLE_ROUNDS_MAX, ..Comparison::alone(what, Unit::Core, ours, goal) }
    };
    shapes.into_iter().map(comparison).collect()
}

pub(super) fn memory(site: &Site) -> Comparison<'_> {
    let what = "resident memory of a connected queue pair, depth 128, 8 KiB in-capsule data";
    let goal = Goal { least: 0.5 * f64::from(1 << 20), aim: 0.5 * f64::from(1 << 20) };
    Comparison::alone(what.into(), Unit::Memory, Box::new(move || measurement::memory(site)), goal)
}
