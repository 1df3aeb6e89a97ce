//! What a future costs: 4 KiB random reads at depth 1 through `RemoteBackend`, through `block_on` and through tokio, in turn, on one core.
//!
//! Wants a target that polls (`poll = "busy"`, `workers = 1`) on another core, with namespace 1 in memory:
//!
//! ```sh
//! cargo bench -p nvmf-initiator --bench async_cost -- 127.0.0.1:4420 nqn.2026-11.com.example:disk1 CORE
//! ```
//!
//! Prints the median of each round, and the median over the rounds of each way and of the differences to the first.
#![forbid(unsafe_code)]

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use nvme_proto::Nsid;
use nvmf_block::{Backend, BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_initiator::{Connection, Device, HostIdentity, Options, RemoteBackend, block_on};
use nvmf_memory::Memory;
use std::error::Error;
use std::time::Instant;

const LEN: usize = 4096;
const ROUNDS: usize = 15;
/// Reads of one way in one round.
const READS: usize = 10_000;
const NSID: Nsid = Nsid(1);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let [address, nqn, core] = &arguments[..] else {
        eprintln!("usage: async_cost ADDRESS:PORT NQN CORE");
        return Ok(());
    };
    let mut cores = CpuSet::new();
    cores.set(core.parse()?)?;
    sched_setaffinity(Pid::from_raw(0), &cores)?;

    let options = || -> Result<Options, Box<dyn Error>> {
        Ok(Options::with_host(
            address.parse()?,
            nqn.parse().map_err(|_| "not an NQN")?,
            HostIdentity::generate()?,
        ))
    };
    let mut low = Low::new(RemoteBackend::connect(&options()?)?)?;
    let connection = block_on(Connection::connect(options()?))?;
    let disk = connection.open(NSID)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;

    let mut medians: [Vec<f64>; 3] = Default::default();
    println!("round  RemoteBackend  block_on     tokio   (median, us)");
    for round in 0..ROUNDS {
        let seed = round as u64 + 1;
        let all = [low.round(seed)?, by_block_on(&disk, seed)?, runtime.block_on(by_tokio(&disk, seed))?];
        println!("{round:>5}  {:>13.2}  {:>8.2}  {:>8.2}", all[0], all[1], all[2]);
        for (of_way, median) in medians.iter_mut().zip(all) {
            of_way.push(median);
        }
    }
    for (way, name) in ["RemoteBackend", "block_on", "tokio"].into_iter().enumerate() {
        let more = medians[way].iter().zip(&medians[0]).map(|(this, low)| this - low).collect();
        let it = median(medians[way].clone());
        println!("{name:<14} {it:>6.2} us   {:>+6.2} us to the first, of the same round", median(more));
    }
    block_on(connection.close());
    Ok(())
}

/// Where to read: xorshift.
fn offsets(seed: u64, blocks: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    core::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % blocks * LEN as u64
    })
    .take(READS)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

struct Low<B> {
    backend: B,
    region: RegionId,
    completions: Vec<Completion>,
}

impl<B: Backend> Low<B> {
    fn new(mut backend: B) -> Result<Self, Box<dyn Error>> {
        let region = backend.register(&Memory::alloc(LEN)?)?;
        Ok(Self { backend, region, completions: Vec::with_capacity(4) })
    }

    fn round(&mut self, seed: u64) -> Result<f64, Box<dyn Error>> {
        let geometry = self.backend.geometry(DeviceId(NSID.0)).ok_or("no namespace 1")?;
        let size = u64::from(geometry.block_size);
        let mut times = Vec::with_capacity(READS);
        for offset in offsets(seed, geometry.bytes() / LEN as u64) {
            let range = BlockRange::new(offset / size, LEN as u64 / size);
            let into = Buffer { region: self.region, offset: 0, len: LEN };
            let start = Instant::now();
            let taken = self.backend.submit(Tag(0), DeviceId(NSID.0), BlockOp::Read { range, into });
            taken.map_err(|_| "full")?;
            self.backend.flush();
            while self.completions.is_empty() {
                self.backend.poll(&mut self.completions);
            }
            times.push(microseconds(start));
            self.completions.remove(0).result?;
        }
        Ok(median(times))
    }
}

fn by_block_on(disk: &Device, seed: u64) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::with_capacity(READS);
    let mut buffer = disk.buffer(LEN)?;
    for offset in offsets(seed, disk.geometry().bytes() / LEN as u64) {
        let start = Instant::now();
        buffer = block_on(disk.read(offset, buffer))?;
        times.push(microseconds(start));
    }
    Ok(median(times))
}

async fn by_tokio(disk: &Device, seed: u64) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::with_capacity(READS);
    let mut buffer = disk.buffer(LEN)?;
    for offset in offsets(seed, disk.geometry().bytes() / LEN as u64) {
        let start = Instant::now();
        buffer = disk.read(offset, buffer).await?;
        times.push(microseconds(start));
    }
    Ok(median(times))
}
