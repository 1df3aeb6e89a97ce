//! Benchmarks of the whole path of a command, with worker, driver and a memory disk in one thread: over the in-process
//! loopback provider, which excludes the cost of a real provider, and over iWARP and NVMe/TCP on the kernel's loopback interface.

#[path = "../tests/harness/mod.rs"]
mod harness;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use harness::{DEPTH, Direction, Harness, LEN_MAX};
use nvmf_initiator::transport::Transport as HostTransport;
use nvmf_target::exec::transport::Transport;
use std::time::Instant;

fn over<T: Transport, H: HostTransport>(c: &mut Criterion, transport: &str, mut harness: Harness<T, H>) {
    let mut group = c.benchmark_group(format!("worker and driver over {transport}"));
    for direction in [Direction::Read, Direction::Write] {
        for (len, depth) in [(4096, 1), (4096, DEPTH), (LEN_MAX, 8)] {
            harness.run(direction, len, depth, 100);
            group.throughput(Throughput::ElementsAndBytes { elements: 1, bytes: len as u64 });
            let name = format!("{direction:?} of {len} bytes, depth {depth}");
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter_custom(|commands| {
                    let begun = Instant::now();
                    harness.run(direction, len, depth, commands);
                    begun.elapsed()
                });
            });
        }
    }
    group.finish();
}

fn loopback(c: &mut Criterion) {
    over(c, "the loopback provider", Harness::over_loopback());
}

fn iwarp(c: &mut Criterion) {
    over(c, "iWARP", Harness::over_iwarp());
}

fn tcp(c: &mut Criterion) {
    over(c, "NVMe/TCP", Harness::over_tcp(false));
}

criterion_group!(benches, loopback, iwarp, tcp);
criterion_main!(benches);
