//! Runs a thousand seeds of the simulation over each transport. `NVMF_SIMULATION_SEED=n` runs one,
//! `NVMF_SIMULATION_SEEDS=a..b` a range. `cargo xtask sim` does both. `NVMF_SIMULATION_LIMITS` leaves out what a failing seed said
//! that it does without.

use nvmf_tests::simulation::{self, Coverage, Limits, Outcome, Transport};
use std::collections::BTreeSet;
use std::ops::Range;

fn seeds() -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is an integer");
    if let Ok(seed) = std::env::var("NVMF_SIMULATION_SEED") {
        let seed = number(&seed);
        return seed..seed + 1;
    }
    match std::env::var("NVMF_SIMULATION_SEEDS") {
        Ok(range) => {
            let (first, end) = range.split_once("..").expect("a range of seeds is written a..b");
            number(first)..number(end)
        }
        Err(_) => 0..1000,
    }
}

fn limits() -> Limits {
    std::env::var("NVMF_SIMULATION_LIMITS").map_or(Limits::NONE, |text| {
        text.parse().unwrap_or_else(|error| panic!("NVMF_SIMULATION_LIMITS: {error}"))
    })
}

/// What must have met each other in a thousand seeds.
const FAULTS: [&str; 15] = [
    "power cut",
    "target killed",
    "disk hangs",
    "half-open connection",
    "ANA inaccessible",
    "namespace hidden from a host",
    "namespace removed",
    "namespace shrunk",
    "namespace read-only",
    "write protection",
    "write protection until a power cycle",
    "state directory fails",
    "acquire",
    "preempt",
    "preempt and abort",
];
const OPERATIONS: [&str; 3] = ["read", "write", "flush"];
/// What rarer operations must have met as well.
const RARER: [&str; 3] = ["copy", "copy across", "compare and write"];
const FAULTS_OF_RARER: [&str; 6] = [
    "power cut",
    "target killed",
    "half-open connection",
    "disk hangs",
    "preempt and abort",
    "write protection",
];

/// A table: how often each fault came while an operation was under way.
fn print_coverage(coverage: &Coverage) {
    let operations: BTreeSet<_> = coverage.keys().map(|&(_, operation)| operation).collect();
    let faults: BTreeSet<_> = coverage.keys().map(|&(fault, _)| fault).collect();
    print!("{:29}", "");
    operations.iter().for_each(|operation| print!(" {operation:>17}"));
    for fault in faults {
        print!("\n{fault:29}");
        for operation in &operations {
            print!(" {:17}", coverage.get(&(fault, *operation)).copied().unwrap_or_default());
        }
    }
    println!();
}

/// Panics of runs that only look whether a shorter seed fails, too.
fn say_nothing_while_shrinking() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !simulation::shrinks() {
            usual(info);
        }
    }));
}

/// Runs all seeds with the test of this name, and adds up what happened.
fn run_all(transport: Transport, test: &str) -> Outcome {
    say_nothing_while_shrinking();
    let mut sum = Outcome::default();
    for seed in seeds() {
        let limits = limits();
        let run = || simulation::run_within(transport, seed, &limits);
        let Ok(outcome) = std::panic::catch_unwind(run) else {
            let shorter = if limits == Limits::NONE { simulation::shrink(transport, seed) } else { limits };
            let command = format!("cargo test -p nvmf-tests --test simulation {test}");
            panic!(
                "seed {seed} failed: NVMF_SIMULATION_SEED={seed} {command} replays it, and what is needed of it: \
                 NVMF_SIMULATION_SEED={seed} NVMF_SIMULATION_LIMITS={shorter} {command}"
            );
        };
        sum.operations += outcome.operations;
        sum.power_cuts += outcome.power_cuts;
        sum.half_open += outcome.half_open;
        sum.losses += outcome.losses;
        sum.route_losses += outcome.route_losses;
        sum.taken_over += outcome.taken_over;
        sum.read_across += outcome.read_across;
        sum.cut += outcome.cut;
        sum.flipped += outcome.flipped;
        sum.refused += outcome.refused;
        sum.copied += outcome.copied;
        sum.replaced += outcome.replaced;
        sum.differed += outcome.differed;
        outcome.coverage.iter().for_each(|(&met, times)| *sum.coverage.entry(met).or_default() += times);
    }
    println!(
        "{transport:?}: {} operations, {} power cuts, {} half-open connections, {} lost associations, {} lost beside others of a path, {} initiators killed, {} blocks read \
         over another path, {} connections cut, {} bits flipped, {} operations refused, {} copies, {} blocks \
         replaced by Compare and Write, which found another content {} times",
        sum.operations,
        sum.power_cuts,
        sum.half_open,
        sum.losses,
        sum.route_losses,
        sum.taken_over,
        sum.read_across,
        sum.cut,
        sum.flipped,
        sum.refused,
        sum.copied,
        sum.replaced,
        sum.differed
    );
    print_coverage(&sum.coverage);
    if seeds().count() >= 1000 {
        let faulty = sum.power_cuts > 100 && sum.losses > 300 && sum.half_open > 300;
        assert!(faulty, "too few faults to be meaningful");
        assert!(sum.read_across > 10_000, "too little is read over another path to be meaningful");
        let raced = sum.copied > 500 && sum.replaced > 1000 && sum.differed > 200;
        assert!(raced, "too few copies and races to be meaningful");
        let usual = FAULTS.iter().flat_map(|fault| OPERATIONS.map(|operation| (*fault, operation)));
        let rarer = FAULTS_OF_RARER.iter().flat_map(|fault| RARER.map(|operation| (*fault, operation)));
        for (fault, operation) in usual.chain(rarer) {
            let times = sum.coverage.get(&(fault, operation)).copied().unwrap_or_default();
            assert!(times > 0, "in no seed: {fault} while there is a {operation}");
        }
    }
    sum
}

#[test]
fn simulated_blocks_always_have_allowed_contents() {
    let _ = run_all(Transport::Rdma, "simulated_blocks_always");
}

#[test]
fn simulated_blocks_over_tcp_always_have_allowed_contents() {
    let sum = run_all(Transport::Tcp, "simulated_blocks_over_tcp");
    if seeds().count() >= 1000 {
        assert!(sum.cut > 300 && sum.flipped > 300, "too few faults to be meaningful");
    }
}

#[test]
fn same_seed_gives_same_outcome() {
    for seed in [1, 2, 3, 5, 8] {
        let run = || simulation::run(Transport::Rdma, seed);
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn same_seed_over_tcp_gives_same_outcome() {
    let mut compared = 0;
    for seed in 0..16 {
        let outcome = simulation::run(Transport::Tcp, seed);
        if !outcome.windows_close {
            assert_eq!(outcome, simulation::run(Transport::Tcp, seed), "seed {seed}");
            compared += 1;
        }
    }
    assert!(compared > 8, "{compared} seeds of 16");
}
