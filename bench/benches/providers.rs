//! Benchmarks of DDP without a socket: segmentation of an RDMA WRITE into FPDUs, and placement of FPDUs. The time per
//! FPDU is the time divided by the elements.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nvmf_iwarp::harness::placement::Pipe;

/// Bytes per read from a socket.
const READ: usize = 256 << 10;

/// Bytes of the WRITE, bytes of the largest FPDU, and whether FPDUs have CRCs.
const SHAPES: [(usize, usize, bool); 4] =
    [(4096, 65_535, false), (4096, 65_535, true), (128 << 10, 1460, false), (128 << 10, 65_535, false)];

fn placement(c: &mut Criterion) {
    for what in ["cut", "place"] {
        let mut group = c.benchmark_group(format!("ddp: {what}"));
        for (len, fpdu_max, crc) in SHAPES {
            let mut pipe = Pipe::new(len, fpdu_max, crc);
            // Each payload is surrounded by length, tagged header and CRC.
            let fpdus = len.div_ceil(fpdu_max - 20);
            group.throughput(Throughput::ElementsAndBytes { elements: fpdus as u64, bytes: len as u64 });
            let name = format!("{len} bytes in {fpdus}{}", if crc { ", CRC" } else { "" });
            pipe.cut();
            group.bench_function(BenchmarkId::from_parameter(name), |b| match what {
                "cut" => b.iter(|| pipe.cut()),
                _ => b.iter(|| pipe.place(READ)),
            });
        }
        group.finish();
    }
}

criterion_group!(benches, placement);
criterion_main!(benches);
