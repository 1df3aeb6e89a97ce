//! A host that reads one block at a time beside one with many in flight: what the heavy host costs the other.
//!
//! One thread drives both, so that they need one core of the two that a measurement has. What the short one waits for is then the target's
//! work for the heavy host and this thread's own, which is counted too.

use anyhow::{Context, Result, ensure};
use core::time::Duration;
use hdrhistogram::Histogram;
use nvme_proto::{HostId, Nqn};
use nvmf_bench::result::histogram;
use nvmf_bench::workload::Random;
use nvmf_block::{Backend, BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_initiator::{HostIdentity, Options, RemoteBackend};
use nvmf_memory::Memory;
use nvmf_rdma_any::AnyProvider;
use std::net::SocketAddr;
use std::time::Instant;

/// Bytes of a read.
const LEN: usize = 4096;

/// Reads of 4 KiB by two hosts from one thread, busy polling.
#[derive(Debug, clap::Args)]
pub(crate) struct Neighbour {
    /// Where the target listens
    #[arg(long)]
    address: SocketAddr,
    /// The subsystem
    #[arg(long)]
    nqn: Nqn,
    /// Reads that the short host has in flight: 0 leaves the heavy host alone
    #[arg(long, default_value_t = 1)]
    iodepth: u16,
    /// Reads that the heavy host has in flight: 0 leaves the short one alone
    #[arg(long, default_value_t = 128)]
    heavy: u16,
    /// Seconds, after a fifth of them to warm up
    #[arg(long, default_value_t = 5)]
    runtime: u64,
}

impl Neighbour {
    /// Reads, and prints what both came to: `short` and `heavy`, each with `iops` and `latency_ns` (`p50`, `p99`), and
    /// `heavy.turn_ns`: what this thread does at a time for the heavy host.
    ///
    /// # Errors
    /// When a connection or a read fails.
    pub(crate) fn run(&self) -> Result<()> {
        let mut short = Reader::connect(self.address, self.nqn, 1, self.iodepth)?;
        let mut heavy = Reader::connect(self.address, self.nqn, 2, self.heavy)?;
        let runtime = Duration::from_secs(self.runtime.max(1));
        let mut turns = histogram();
        for (counts, time) in [(false, runtime / 5), (true, runtime)] {
            (short.latency, heavy.latency, turns) = (histogram(), histogram(), histogram());
            let begun = Instant::now();
            let mut now = begun;
            while now - begun < time {
                short.turn(now)?;
                let before = Instant::now();
                let worked = heavy.turn(before)?;
                now = Instant::now();
                if counts && worked {
                    turns.record(u64::try_from((now - before).as_nanos())?)?;
                }
            }
        }
        let figures = |latency: &Histogram<u64>| {
            let [p50, p99] = [0.5, 0.99].map(|quantile| latency.value_at_quantile(quantile));
            let iops = latency.len() as f64 / runtime.as_secs_f64();
            serde_json::json!({ "iops": iops, "latency_ns": { "p50": p50, "p99": p99 } })
        };
        let mut printed =
            serde_json::json!({ "short": figures(&short.latency), "heavy": figures(&heavy.latency) });
        printed["heavy"]["turn_ns"] =
            serde_json::json!({ "p50": turns.value_at_quantile(0.5), "p99": turns.value_at_quantile(0.99) });
        println!("{printed:#}");
        Ok(())
    }
}

/// A host with one I/O queue.
struct Reader {
    backend: RemoteBackend<AnyProvider>,
    device: DeviceId,
    region: RegionId,
    /// When each place in the memory was last read into.
    begun: Vec<Instant>,
    free: Vec<usize>,
    completions: Vec<Completion>,
    random: Random,
    /// Places on the disk, and the blocks of each.
    reads: u64,
    blocks: u64,
    latency: Histogram<u64>,
}

impl Reader {
    fn connect(address: SocketAddr, nqn: Nqn, number: u8, depth: u16) -> Result<Self> {
        let mut id = [0x6e; 16];
        id[15] = number;
        let options = Options {
            io_queues: 1,
            // A queue of n entries holds n - 1 commands.
            queue_depth: depth.saturating_add(1).max(32),
            ..Options::with_host(address, nqn, HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) })
        };
        let mut backend = RemoteBackend::connect(&options)?;
        let namespace = backend.namespaces().first().context("the target has no namespace for this host")?;
        let device = DeviceId(namespace.nsid.0);
        let geometry = backend.geometry(device).context("the namespace is gone")?;
        let blocks = (LEN as u64 / u64::from(geometry.block_size)).max(1);
        let places = usize::from(depth);
        let region = backend.register(&Memory::alloc(places.max(1) * LEN)?)?;
        Ok(Self {
            backend,
            device,
            region,
            begun: vec![Instant::now(); places],
            free: (0..places).collect(),
            completions: Vec::with_capacity(places),
            random: Random::new(1, number.into()),
            reads: geometry.blocks / blocks,
            blocks,
            latency: histogram(),
        })
    }

    /// Takes what has come, and asks for as much again; whether anything had come.
    fn turn(&mut self, now: Instant) -> Result<bool> {
        self.backend.poll(&mut self.completions);
        let worked = !self.completions.is_empty();
        if worked {
            let now = Instant::now();
            for Completion { tag, result } in self.completions.drain(..) {
                result?;
                let place = usize::try_from(tag.0)?;
                self.latency.record(u64::try_from((now - self.begun[place]).as_nanos())?)?;
                self.free.push(place);
            }
        }
        let asks = !self.free.is_empty();
        while let Some(place) = self.free.pop() {
            let range =
                BlockRange { start: self.random.below(self.reads) * self.blocks, blocks: self.blocks };
            let into = Buffer { region: self.region, offset: place * LEN, len: LEN };
            self.begun[place] = now;
            let submitted =
                self.backend.submit(Tag(place as u64), self.device, BlockOp::Read { range, into });
            ensure!(submitted.is_ok(), "the queue is smaller than was asked for");
        }
        if asks {
            self.backend.flush();
        }
        Ok(worked)
    }
}
