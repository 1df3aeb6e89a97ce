//! A host with few outstanding reads next to one with many: the effect of the heavy host on the other.
//!
//! One thread drives both hosts, because a measurement has only two cores and the target uses the other. The short
//! host therefore waits for the target's work for the heavy host and for this thread's own, which is measured too.

use anyhow::{Context, Result, ensure};
use core::time::Duration;
use hdrhistogram::Histogram;
use nvme_proto::{HostId, Nqn};
use nvmf_bench::result::histogram;
use nvmf_bench::workload::Random;
use nvmf_block::{Backend, BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_initiator::transport::AnyTransport;
use nvmf_initiator::{HostIdentity, Options, RemoteBackend};
use nvmf_memory::Memory;
use std::net::SocketAddr;
use std::time::Instant;

/// Bytes of a read.
const LEN: usize = 4096;

/// Measures reads of 4 KiB by two hosts that one busy-polling thread drives.
#[derive(Debug, clap::Args)]
pub(crate) struct Neighbour {
    /// Address of the target
    #[arg(long)]
    address: SocketAddr,
    /// NQN of the subsystem
    #[arg(long)]
    nqn: Nqn,
    /// Outstanding reads of the short host; 0 disables it
    #[arg(long, default_value_t = 1)]
    iodepth: u16,
    /// Outstanding reads of the heavy host; 0 disables it
    #[arg(long, default_value_t = 128)]
    heavy: u16,
    /// Duration of the measurement, in seconds, after a warm-up of a fifth of it
    #[arg(long, default_value_t = 5)]
    runtime: u64,
}

impl Neighbour {
    /// Measures, and prints `short` and `heavy`, each with `iops` and `latency_ns` (`p50`, `p99`), and `heavy.turn_ns`:
    /// the time that this thread spends on one turn for the heavy host.
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
    backend: RemoteBackend<AnyTransport>,
    device: DeviceId,
    region: RegionId,
    /// By buffer: when its last read was submitted.
    begun: Vec<Instant>,
    free: Vec<usize>,
    completions: Vec<Completion>,
    random: Random,
    /// Number of positions on the disk, and blocks of a read.
    reads: u64,
    blocks: u64,
    latency: Histogram<u64>,
}

impl Reader {
    fn connect(address: SocketAddr, nqn: Nqn, number: u8, depth: u16) -> Result<Self> {
        let mut id = [0x6e; 16];
        id[15] = number;
        let mut options =
            Options::with_host(address, nqn, HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) });
        options.io_queues = 1;
        // A queue with n entries has at most n - 1 commands in flight.
        options.queue_depth = depth.saturating_add(1).max(32);
        let mut backend = RemoteBackend::connect(&options)?;
        let namespace = backend.namespaces().first().context("the target has no namespace for this host")?;
        let device = DeviceId(namespace.nsid.0);
        let geometry = backend.geometry(device).context("the namespace no longer exists")?;
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

    /// Takes completions and submits as many new reads; `true` if there were completions.
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
            ensure!(submitted.is_ok(), "the target granted a smaller queue than requested");
        }
        if asks {
            self.backend.flush();
        }
        Ok(worked)
    }
}
