//! The whole way of a command, worker and driver in one thread, memory behind them: over the loopback provider, which leaves out the
//! road, and over iWARP through the kernel's loopback interface.

#[path = "../tests/house/mod.rs"]
mod house;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use house::{DEPTH, Direction, House, LEN_MAX};
use nvmf_rdma::Provider;
use std::time::Instant;

fn over<P: Provider>(c: &mut Criterion, road: &str, mut house: House<P>) {
    let mut group = c.benchmark_group(format!("worker and driver over {road}"));
    for direction in [Direction::Read, Direction::Write] {
        for (len, depth) in [(4096, 1), (4096, DEPTH), (LEN_MAX, 8)] {
            house.run(direction, len, depth, 100);
            group.throughput(Throughput::ElementsAndBytes { elements: 1, bytes: len as u64 });
            let name = format!("{direction:?} of {len} bytes, depth {depth}");
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                b.iter_custom(|commands| {
                    let begun = Instant::now();
                    house.run(direction, len, depth, commands);
                    begun.elapsed()
                });
            });
        }
    }
    group.finish();
}

fn loopback(c: &mut Criterion) {
    over(c, "the loopback provider", House::over_loopback());
}

fn iwarp(c: &mut Criterion) {
    over(c, "iWARP", House::over_iwarp());
}

criterion_group!(benches, loopback, iwarp);
criterion_main!(benches);
