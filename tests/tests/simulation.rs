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
    let (mut operations, mut crashes, mut losses) = (0, 0, 0);
    for seed in seeds() {
        let outcome = std::panic::catch_unwind(|| simulation::run(seed));
        let Ok(outcome) = outcome else {
            panic!(
                "seed {seed} failed: NVMF_SIMULATION_SEED={seed} cargo test -p nvmf-tests --test simulation replays it"
            );
        };
        operations += outcome.operations;
        crashes += outcome.crashes;
        losses += outcome.losses;
    }
    println!("{operations} operations, {crashes} power cuts, {losses} lost associations");
    if seeds().count() >= 1000 {
        assert!(crashes > 100 && losses > 300, "the simulation has too few faults to be meaningful");
    }
}

#[test]
fn same_seed_gives_same_outcome() {
    for seed in [1, 2, 3, 5, 8] {
        assert_eq!(simulation::run(seed), simulation::run(seed), "seed {seed}");
    }
}
