//! A gateway group in simulation: the real engines of several gateways, over a store, monitors, OSDs, networks and clocks
//! that fail. Runs a thousand seeds; `NVMF_SIMULATION_SEED=n` runs one, with its events, `NVMF_SIMULATION_SEEDS=a..b` a
//! range. `cargo xtask sim --group` does both.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | what goes wrong in a run, and when: drawn from the seed |
//! | `world` | the events of a run, in order |
//! | `node`, `process` | machines, clocks, processes; what the daemon does around the engine |
//! | `objects`, `store`, `requests` | objects, locks, monitors, OSDs; what they do with requests |
//! | `host`, `slots` | hosts that write numbers and read them |
//! | `faults` | what goes wrong, and what operators do |
//! | `oracle`, `settled` | what must hold always, and in the end |
//! | `mistakes` | planted mistakes, which must be found |
//! | `shrink` | a failing run made shorter |
//! | `scenarios`, `moves`, `failing` | single faults, with what users would see |

mod addresses;
mod damage;
mod failing;
mod faults;
mod host;
mod mistakes;
mod moves;
mod node;
#[path = "../gateway/objects.rs"]
mod objects;
mod oracle;
mod plan;
mod process;
mod reach;
mod requests;
#[path = "../../../tests/src/rng.rs"]
#[expect(unreachable_pub, reason = "there it is for other crates")]
mod rng;
mod scenarios;
mod settled;
mod shrink;
mod slots;
mod store;
mod world;

use mistakes::Mistake;
use plan::{Plan, secs};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use world::{Coverage, Outcome, World};

/// Lines of a failing run's trace that are printed.
const LINES: usize = 120;
/// And of these, with I/O.
const IO_LINES: usize = 15;

/// What a gateway is doing with a group when some fault comes. (Closing takes a millisecond: few faults meet it.)
const STEPS: [&str; 11] = [
    "idle",
    "preparing",
    "prepared",
    "claiming",
    "connecting",
    "fencing",
    "loading",
    "opening",
    "serving",
    "draining",
    "surrendering",
];

/// Those that take some milliseconds: of a thousand seeds, a fault meets one or another.
const SHORT_STEPS: [&str; 4] = ["looking", "waitingformap", "owning", "releasing"];

/// Seeds of which faults meet each of them.
const MANY_SEEDS: u64 = 10_000;

fn number(text: &str) -> u64 {
    text.parse().expect("a seed is an integer")
}

fn seeds() -> Range<u64> {
    if let Ok(seed) = std::env::var("NVMF_SIMULATION_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match std::env::var("NVMF_SIMULATION_SEEDS") {
        Ok(range) => {
            let (first, end) = range.split_once("..").expect("a range of seeds is written a..b");
            number(first)..number(end)
        }
        Err(_) => 0..1000,
    }
}

fn mistake() -> Option<Mistake> {
    let name = std::env::var("NVMF_SIMULATION_MISTAKE").ok()?;
    Mistake::ALL.into_iter().find(|mistake| format!("{mistake:?}") == name)
}

/// Runs seeds on all processors, until one fails; gives the first that failed, and what the others came to.
fn run_all(seeds: Range<u64>, mistake: Option<Mistake>) -> (Option<u64>, Outcome) {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(u64::MAX));
    let sum = Mutex::new(Outcome::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                return;
            }
            match World::new(Plan::new(seed), mistake, false).run() {
                Ok(outcome) => add(&mut sum.lock().unwrap_or_else(PoisonError::into_inner), outcome),
                Err(_) => drop(failed.fetch_min(seed, Ordering::Relaxed)),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner();
    ((failed < u64::MAX).then_some(failed), sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn add(sum: &mut Outcome, outcome: Outcome) {
    sum.commands += outcome.commands;
    sum.retried += outcome.retried;
    sum.takeovers += outcome.takeovers;
    sum.moves += outcome.moves;
    sum.changes += outcome.changes;
    sum.refused += outcome.refused;
    sum.undone += outcome.undone;
    sum.longest = sum.longest.max(outcome.longest);
    outcome.coverage.into_iter().for_each(|(met, times)| *sum.coverage.entry(met).or_default() += times);
}

/// Prints a failing seed: as short as it can be made, with what happened.
fn report(seed: u64, mistake: Option<Mistake>) -> String {
    let plan = Plan::new(seed);
    let Err(failure) = World::new(plan.clone(), mistake, false).run() else {
        return "does not fail again".into();
    };
    let (shorter, shown) = shrink::shrink(&plan, mistake, &failure);
    // Of I/O only the end is of interest.
    let io = |line: &str| line.get(10..14) == Some("osd.");
    let skipped = shown.trace.len().saturating_sub(IO_LINES);
    let shown_lines = shown.trace.iter().enumerate().filter(|(at, line)| *at >= skipped || !io(line));
    let lines: Vec<_> = shown_lines.map(|(_, line)| line).collect();
    lines.iter().rev().take(LINES).rev().for_each(|line| println!("{line}"));
    println!(
        "seed {seed}, made shorter: {} gateways, {} ANA groups, {} OSDs, {} of {} faults:",
        shorter.nodes,
        shorter.groups,
        shorter.osds,
        shorter.faults.len(),
        plan.faults.len()
    );
    shorter.faults.iter().for_each(|planned| println!("  {planned}"));
    format!(
        "seed {seed} fails {}\nmade shorter, it fails {}\nNVMF_SIMULATION_SEED={seed} cargo test -p nvmf-cluster --test \
         simulation group_of replays it",
        failure.what, shown.what
    )
}

/// A table: how often each fault came while a gateway was at a step with a group.
fn print_coverage(coverage: &Coverage) {
    let steps: BTreeSet<_> = coverage.keys().map(|(_, step)| step).collect();
    let faults: BTreeSet<_> = coverage.keys().map(|(fault, _)| fault).collect();
    print!("{:22}", "");
    steps.iter().for_each(|step| print!(" {step:>13}"));
    for fault in faults {
        print!("\n{fault:22}");
        for step in &steps {
            print!(" {:13}", coverage.get(&(*fault, (*step).clone())).copied().unwrap_or_default());
        }
    }
    println!();
}

#[test]
fn group_of_gateways_keeps_its_promises() {
    let begin = std::time::Instant::now();
    let seeds = seeds();
    if std::env::var_os("NVMF_SIMULATION_SEED").is_some() {
        let result = World::new(Plan::new(seeds.start), mistake(), true).run();
        if let Ok(outcome) = &result {
            println!("{outcome:?}");
        }
    }
    let (failed, sum) = run_all(seeds.clone(), mistake());
    println!(
        "{} seeds in {:.1} s: {} commands, {} sent again, {} refused, {} undone; {} takeovers, {} planned moves, {} changes; the \
         longest command took {:.1} s",
        seeds.end - seeds.start,
        begin.elapsed().as_secs_f64(),
        sum.commands,
        sum.retried,
        sum.refused,
        sum.undone,
        sum.takeovers,
        sum.moves,
        sum.changes,
        secs(sum.longest)
    );
    print_coverage(&sum.coverage);
    if let Some(seed) = failed {
        panic!("{}", report(seed, mistake()));
    }
    if seeds.end - seeds.start >= 1000 {
        let busy = sum.takeovers > 500 && sum.moves > 500 && sum.changes > 300 && sum.retried > 5000;
        assert!(busy, "too little happens to be meaningful");
        assert!(sum.undone > 10, "no reservation is stored too late");
        let met = |fault: &str, step: &str| {
            let met = |&(&(by, ref at), _): &(&(&str, String), &u64)| {
                (fault.is_empty() || by == fault) && at == step
            };
            sum.coverage.iter().filter(met).map(|(_, times)| times).sum::<u64>()
        };
        for step in STEPS {
            assert!(met("", step) > 0, "in no seed: a fault while a gateway is {step}");
        }
        let short = SHORT_STEPS.map(|step| met("", step));
        let is_met = |times: &u64| *times > 0;
        let are_met = match seeds.end - seeds.start >= MANY_SEEDS {
            true => short.iter().all(is_met),
            false => short.iter().any(is_met),
        };
        assert!(are_met, "in no seed: a fault while a gateway is {SHORT_STEPS:?}: {short:?}");
        for fault in sum.coverage.keys().map(|(fault, _)| *fault).collect::<BTreeSet<_>>() {
            assert!(
                met(fault, "serving") > 0 && met(fault, "draining") + met(fault, "prepared") > 0,
                "in no seed: {fault} while it matters"
            );
        }
    }
}

#[test]
fn same_seed_gives_same_outcome() {
    for seed in [1, 2, 3, 5, 8] {
        let run = || World::new(Plan::new(seed), None, false).run().expect("a run");
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn planted_mistakes_are_found() {
    for mistake in Mistake::ALL {
        let (failed, _) = run_all(0..30000, Some(mistake));
        let seed = failed.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        let failure = World::new(Plan::new(seed), Some(mistake), false).run().expect_err("it fails again");
        println!("{mistake:?}: seed {seed}, {}", failure.what.lines().next().unwrap_or_default());
    }
}
