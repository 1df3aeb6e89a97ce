//! What many futures at once cost: 4 KiB random reads with so many in flight through `RemoteBackend`, through `block_on`, and by a task each on
//! tokio's runtimes of one thread and of two, in turn.
//!
//! Wants a target (`workers = 1`) on another core, with namespace 1 in memory. Everything here runs on CORE, or where the system likes
//! without it:
//!
//! ```sh
//! cargo bench -p nvmf-initiator --bench async_depth -- 127.0.0.1:4420 nqn.2026-11.com.example:disk1 32 CORE
//! ```
//!
//! Prints thousands of reads a second of each round, and the median over the rounds of each way and of the ratio to the first.
#![forbid(unsafe_code)]

use futures_util::stream::{FuturesUnordered, StreamExt};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use nvme_proto::Nsid;
use nvmf_block::{Backend, BlockOp, BlockRange, Buffer, Completion, DeviceId, Tag};
use nvmf_initiator::{Connection, Device, HostIdentity, Options, RemoteBackend, block_on};
use nvmf_memory::Memory;
use std::error::Error;
use std::time::{Duration, Instant};
use tokio::runtime;

const LEN: usize = 4096;
const ROUNDS: usize = 10;
/// How long one way is measured in one round.
const TIME: Duration = Duration::from_millis(500);
const NSID: Nsid = Nsid(1);
const WAYS: [&str; 4] = ["RemoteBackend", "block_on", "tokio, one", "tokio, two"];

type Result<T> = core::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [address, nqn, depth, core @ ..] = &arguments[..] else {
        eprintln!("usage: async_depth ADDRESS:PORT NQN DEPTH [CORE]");
        return Ok(());
    };
    if let [core] = core {
        let mut cores = CpuSet::new();
        cores.set(core.parse()?)?;
        sched_setaffinity(Pid::from_raw(0), &cores)?;
    }
    let depth = depth.parse()?;
    let options = || -> Result<Options> {
        let host = HostIdentity::generate()?;
        Ok(Options::with_host(address.parse()?, nqn.parse().map_err(|_| "not an NQN")?, host))
    };
    let mut remote = RemoteBackend::connect(&options()?)?;
    let connection = block_on(Connection::connect(options()?))?;
    let disk = connection.open(NSID)?;
    let one = runtime::Builder::new_current_thread().build()?;
    let two = runtime::Builder::new_multi_thread().worker_threads(2).build()?;

    let mut all: [Vec<f64>; WAYS.len()] = Default::default();
    println!("round{}   (1000/s)", WAYS.map(|way| format!("{way:>15}")).concat());
    for round in 0..ROUNDS {
        let rates = [
            by_backend(&mut remote, depth)?,
            block_on(by_futures(&disk, depth))?,
            one.block_on(by_tasks(&disk, depth))?,
            two.block_on(by_tasks(&disk, depth))?,
        ];
        println!("{round:>5}{}", rates.map(|rate| format!("{rate:>15.1}")).concat());
        all.iter_mut().zip(rates).for_each(|(all, rate)| all.push(rate));
    }
    for (way, rates) in WAYS.iter().zip(&all) {
        let ratios = rates.iter().zip(&all[0]).map(|(rate, first)| rate / first).collect();
        println!(
            "{way:<14} {:>7.1} thousand a second, {:.2} of the first",
            median(rates.clone()),
            median(ratios)
        );
    }
    block_on(connection.close());
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Where to read: xorshift.
struct Offsets {
    state: u64,
    blocks: u64,
}

impl Offsets {
    fn new(seed: u64, bytes: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, blocks: bytes / LEN as u64 }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.blocks * LEN as u64
    }
}

/// Thousands a second.
fn rate(reads: u64, since: Instant) -> f64 {
    reads as f64 / since.elapsed().as_secs_f64() / 1e3
}

fn by_backend(backend: &mut impl Backend, depth: usize) -> Result<f64> {
    let geometry = backend.geometry(DeviceId(NSID.0)).ok_or("no namespace 1")?;
    let region = backend.register(&Memory::alloc(LEN * depth)?)?;
    let mut offsets = Offsets::new(1, geometry.bytes());
    let mut free: Vec<usize> = (0..depth).collect();
    let mut completions: Vec<Completion> = Vec::with_capacity(depth);
    let (start, mut reads) = (Instant::now(), 0);
    loop {
        let ends = start.elapsed() >= TIME;
        if ends && free.len() == depth {
            backend.deregister(region);
            return Ok(rate(reads, start));
        }
        while !ends && let Some(slot) = free.pop() {
            let size = u64::from(geometry.block_size);
            let range = BlockRange::new(offsets.next() / size, LEN as u64 / size);
            let into = Buffer { region, offset: slot * LEN, len: LEN };
            let taken = backend.submit(Tag(slot as u64), DeviceId(NSID.0), BlockOp::Read { range, into });
            taken.map_err(|_| "full")?;
        }
        backend.flush();
        backend.poll(&mut completions);
        for completion in completions.drain(..) {
            completion.result?;
            free.push(usize::try_from(completion.tag.0)?);
            reads += 1;
        }
    }
}

/// Reads again and again with one buffer.
async fn read_on(
    disk: Device,
    seed: u64,
    until: Instant,
) -> core::result::Result<u64, nvmf_initiator::Error> {
    let mut offsets = Offsets::new(seed, disk.geometry().bytes());
    let mut buffer = disk.buffer(LEN)?;
    let mut reads = 0;
    while Instant::now() < until {
        buffer = disk.read(offsets.next(), buffer).await?;
        reads += 1;
    }
    Ok(reads)
}

/// All in one task.
async fn by_futures(disk: &Device, depth: usize) -> Result<f64> {
    let start = Instant::now();
    let all = (0..depth as u64).map(|seed| read_on(disk.clone(), seed + 1, start + TIME));
    let mut all: FuturesUnordered<_> = all.collect();
    let mut reads = 0;
    while let Some(ended) = all.next().await {
        reads += ended?;
    }
    Ok(rate(reads, start))
}

/// A task for each.
async fn by_tasks(disk: &Device, depth: usize) -> Result<f64> {
    let start = Instant::now();
    let all = (0..depth as u64).map(|seed| tokio::spawn(read_on(disk.clone(), seed + 1, start + TIME)));
    let mut reads = 0;
    for task in all.collect::<Vec<_>>() {
        reads += task.await??;
    }
    Ok(rate(reads, start))
}
