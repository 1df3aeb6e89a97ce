//! Runs a thousand seeds of the simulation. `NVMF_SIMULATION_SEED=n` runs one, `NVMF_SIMULATION_SEEDS=a..b` a range.

use nvmf_tests::simulation;
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

#[test]
fn simulated_blocks_always_have_allowed_contents() {
    let (mut operations, mut power_cuts, mut half_open, mut losses, mut read_across) = (0, 0, 0, 0, 0);
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| simulation::run(seed));
        let Ok(outcome) = outcome else {
            panic!(
                "seed {seed} failed: NVMF_SIMULATION_SEED={seed} cargo test -p nvmf-tests --test simulation replays it"
            );
        };
        operations += outcome.operations;
        power_cuts += outcome.power_cuts;
        half_open += outcome.half_open;
        losses += outcome.losses;
        read_across += outcome.read_across;
    }
    println!(
        "{operations} operations, {power_cuts} power cuts, {half_open} half-open connections, \
         {losses} lost associations, {read_across} blocks read over another path"
    );
    if seeds().count() >= 1000 {
        assert!(power_cuts > 100 && losses > 300 && half_open > 300, "too few faults to be meaningful");
        assert!(read_across > 10_000, "too little is read over another path to be meaningful");
    }
}

#[test]
fn same_seed_gives_same_outcome() {
    for seed in [1, 2, 3, 5, 8] {
        assert_eq!(simulation::run(seed), simulation::run(seed), "seed {seed}");
    }
}
