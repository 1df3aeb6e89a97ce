use super::*;
use crate::conformance::{self, Pair};
use crate::fault::{FaultOptions, Faulty};
use crate::trace::Trace;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Real time, with a yield for a tick: what the checks wait for comes without waiting.
fn pair() -> Pair<Loopback> {
    let fabric = Fabric::new();
    let started = Instant::now();
    let tick = Box::new(move || started.elapsed());
    Pair { left: fabric.provider(), right: fabric.provider(), address: ADDRESS, tick }
}

/// Virtual time, in steps of ten microseconds, with messages that are up to fifteen steps under way.
fn distant_pair(seed: u64) -> Pair<Loopback> {
    let latency = Duration::from_micros(5)..=Duration::from_micros(150);
    let fabric =
        Fabric::with_options(FabricOptions { latency, seed, descriptor: false, ..Default::default() });
    let mut now = Duration::ZERO;
    let tick = Box::new(move || {
        now += Duration::from_micros(10);
        now
    });
    Pair { left: fabric.provider(), right: fabric.provider(), address: ADDRESS, tick }
}

fn map<P, Q>(pair: Pair<P>, wrap: impl Fn(P) -> Q) -> Pair<Q> {
    Pair { left: wrap(pair.left), right: wrap(pair.right), address: pair.address, tick: pair.tick }
}

#[test]
fn loopback_conforms() {
    conformance::run(pair);
}

#[test]
fn loopback_conforms_at_a_distance() {
    let mut seed = 0;
    conformance::run(|| {
        seed += 1;
        distant_pair(seed)
    });
}

#[test]
fn a_decorator_without_faults_changes_nothing() {
    conformance::run(|| map(pair(), |inner| Faulty::new(inner, FaultOptions::default())));
}

/// Slow is not wrong: the suite does not notice completions and events that are held back.
#[test]
fn held_back_completions_and_events_conform() {
    let options = FaultOptions {
        seed: 3,
        hold_completions: 200_000,
        hold_event: 300_000,
        hold_polls_max: 5,
        ..Default::default()
    };
    conformance::run(|| map(distant_pair(9), |inner| Faulty::new(inner, options)));
}

#[test]
fn a_trace_changes_nothing() {
    conformance::run(|| map(pair(), |inner| Trace::new(inner, 100)));
}
