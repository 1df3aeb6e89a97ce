//! Tests that commands allocate nothing on either side once queues are warm, with a counting allocator and thousands of
//! commands over userspace iWARP, over NVMe/TCP, and over it with TLS.
//!
//! The loopback provider is not used because it models a network and allocates memory for messages in flight.

mod harness;

use harness::{DEPTH, Direction, Harness, LEN_MAX};
use nvmf_initiator::transport::Transport as HostTransport;
use nvmf_target::exec::transport::Transport;

/// Commands of each kind that are measured.
const COMMANDS: u64 = 4000;
/// Commands of each kind before the measurement, after which queues and tables have reached their final size.
const WARM_UP: u64 = 1000;

#[test]
fn commands_over_iwarp_do_not_allocate() {
    check(Harness::over_iwarp());
}

#[test]
fn commands_over_tcp_do_not_allocate() {
    check(Harness::over_tcp(false));
    check(Harness::over_tcp(true));
}

#[test]
fn commands_over_tls_do_not_allocate() {
    check(Harness::over_tls());
}

fn check<T: Transport, H: HostTransport>(mut harness: Harness<T, H>) {
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
fn allocation_counter_counts() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1, 2, 3])));
    assert_eq!(counted.count_total, 1);
}
