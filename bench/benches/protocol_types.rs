//! Benchmarks of the protocol types: parsing and emitting NVMe and iWARP headers, and CRC32C.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::rdma::{AcceptData, Request};
use nvme_proto::{Cid, Cntlid, Cqe, Nsid, Qid, SglDescriptor, Sqe, Status};
use nvmf_iwarp::wire::ddp::RawTagged;
use nvmf_iwarp::wire::mpa::{Enhanced, FRAME_LEN_MAX, Flags, Frame, Kind};
use nvmf_iwarp::wire::rdmap::{Header, READ_REQUEST_LEN};
use nvmf_memory::Crc32c;
use nvmf_rdma::PrivateData;
use std::hint::black_box;
use zerocopy::{FromBytes, IntoBytes};

fn read_command() -> Sqe {
    let mut sqe = ReadWrite::new(12_345, 8).emit(NvmOpcode::READ, Nsid(1));
    sqe.sgl = SglDescriptor::keyed(0x7f00_0000_1000, 4096, 0x1234, true);
    sqe
}

fn nvme(c: &mut Criterion) {
    let mut group = c.benchmark_group("nvme-proto");
    let bytes: [u8; 64] = zerocopy::transmute!(read_command());
    group.bench_function("sqe: bytes to read command", |b| {
        b.iter(|| {
            let sqe = Sqe::read_from_bytes(black_box(&bytes)).expect("64 bytes");
            (sqe.opcode, sqe.nsid(), ReadWrite::parse(&sqe), sqe.sgl.parse())
        });
    });
    group.bench_function("sqe: read command to bytes", |b| {
        b.iter(|| -> [u8; 64] { zerocopy::transmute!(black_box(read_command())) });
    });
    let keyed = SglDescriptor::keyed(0x1000, 4096, 7, true);
    let in_capsule = SglDescriptor::in_capsule(0, 4096);
    group.bench_function("sgl: keyed", |b| b.iter(|| black_box(&keyed).parse()));
    group.bench_function("sgl: in capsule", |b| b.iter(|| black_box(&in_capsule).parse()));
    let cqe = Cqe::new(Cid(7), Status::SUCCESS, 0);
    group.bench_function("cqe: bytes to status", |b| {
        b.iter(|| Cqe::read_from_bytes(black_box(cqe.as_bytes())).map(|cqe| (cqe.cid(), cqe.status())));
    });
    let request = Request { qid: Qid(1), hrqsize: 128, hsqsize: 128, cntlid: Cntlid(1) };
    let private_data = request.emit();
    group.bench_function("private data: request", |b| {
        b.iter(|| Request::parse(black_box(private_data.as_bytes())));
    });
    let accept = AcceptData::new(128);
    group.bench_function("private data: accept", |b| {
        b.iter(|| AcceptData::parse(black_box(accept.as_bytes())));
    });
    group.finish();
}

fn iwarp(c: &mut Criterion) {
    let mut group = c.benchmark_group("iwarp");
    let headers = [
        ("write", Header::Write { last: true, stag: 0x101, to: 4096 }),
        ("send", Header::Send { last: true, invalidate: Some(0x101), solicited: true, msn: 1, mo: 0 }),
        (
            "read request",
            Header::ReadRequest {
                msn: 1,
                mo: 0,
                sink_stag: 0x101,
                sink_to: 0,
                size: 4096,
                source_stag: 0x201,
                source_to: 0,
            },
        ),
    ];
    for (name, header) in headers {
        let mut bytes = [0; READ_REQUEST_LEN];
        header.emit(4096, &mut bytes);
        group.bench_function(BenchmarkId::new("header: parse", name), |b| {
            b.iter(|| Header::parse(black_box(&bytes)));
        });
        group.bench_function(BenchmarkId::new("header: emit", name), |b| {
            b.iter(|| {
                let mut bytes = [0; READ_REQUEST_LEN];
                black_box(header).emit(4096, &mut bytes);
                bytes
            });
        });
    }
    assert_eq!(size_of::<RawTagged>(), 16, "the header of every placed FPDU");
    let enhanced =
        Enhanced { ird: 16, ord: 16, peer_to_peer: true, send_rtr: false, write_rtr: true, read_rtr: false };
    let frame = Frame {
        kind: Kind::Request,
        flags: Flags::CRC.with(Flags::ENHANCED, true),
        revision: 2,
        enhanced: Some(enhanced),
        private_data: PrivateData::new(&[0; 32]).expect("short enough"),
    };
    let mut bytes = [0; FRAME_LEN_MAX];
    let len = frame.emit(&mut bytes);
    group.bench_function("mpa request: parse", |b| {
        b.iter(|| Frame::parse(Kind::Request, black_box(&bytes[..len])));
    });
    group.finish();
}

/// Compares this project's CRC32C with the `crc32c` crate and with reading the bytes without a checksum.
fn crc32c(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for len in [64, 4 << 10, 128 << 10] {
        let bytes = vec![0xa5_u8; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_with_input(BenchmarkId::new("ours", len), &bytes, |b, bytes| {
            b.iter(|| {
                let mut crc = Crc32c::new();
                crc.update(black_box(bytes));
                crc.finish()
            });
        });
        group.bench_with_input(BenchmarkId::new("crate crc32c", len), &bytes, |b, bytes| {
            b.iter(|| ::crc32c::crc32c(black_box(bytes)));
        });
        group.bench_with_input(BenchmarkId::new("only reading", len), &bytes, |b, bytes| {
            b.iter(|| {
                let words = black_box(bytes).as_chunks::<8>().0;
                words.iter().fold(0, |sum: u64, word| sum ^ u64::from_le_bytes(*word))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, nvme, iwarp, crc32c);
criterion_main!(benches);
