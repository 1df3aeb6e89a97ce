//! Once running, a command costs no allocation on either side: a counting allocator watches thousands of them, over userspace iWARP.
//!
//! (The loopback provider is a model of a network, and what is under way on it is its own memory: it would be the only one to allocate here.)

mod harness;

use harness::{DEPTH, Direction, Harness, LEN_MAX};

/// Commands of each kind that are watched.
const COMMANDS: u64 = 4000;
/// Commands of each kind before that: queues and tables have their size then.
const WARM_UP: u64 = 1000;

#[test]
fn no_command_allocates() {
    let mut harness = Harness::over_iwarp();
    let kinds = [Direction::Read, Direction::Write]
        .into_iter()
        .flat_map(|direction| [4096, LEN_MAX].map(|len| (direction, len)))
        .flat_map(|(direction, len)| [1, DEPTH].map(|depth| (direction, len, depth)));
    let mut found = Vec::new();
    for (direction, len, depth) in kinds {
        harness.run(direction, len, depth, WARM_UP);
        let counted = allocation_counter::measure(|| harness.run(direction, len, depth, COMMANDS));
        if counted.count_total > 0 {
            found.push(format!("{direction:?} of {len} bytes at depth {depth}: {counted:?}"));
        }
    }
    assert!(found.is_empty(), "{COMMANDS} commands of a kind allocate:\n{}", found.join("\n"));
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1, 2, 3])));
    assert_eq!(counted.count_total, 1);
}
