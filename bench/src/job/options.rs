//! What a job is to do, once its options have been understood.

use super::unit::Extent;
use crate::result::Direction;
use core::time::Duration;
use std::net::SocketAddr;

/// Which operations, and in what order (`rw`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// There are reads.
    pub reads: bool,
    /// There are writes.
    pub writes: bool,
    /// There are trims; with writes, each trim is followed by the write of what it trimmed.
    pub trims: bool,
    /// At random offsets, else one behind the other.
    pub random: bool,
}

impl Access {
    /// Whether operations of this direction occur.
    #[must_use]
    pub fn has(&self, direction: Direction) -> bool {
        match direction {
            Direction::Read => self.reads,
            Direction::Write => self.writes,
            Direction::Trim => self.trims,
        }
    }
}

/// How long operations of one direction are, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockSize {
    /// All alike.
    Fixed(u32),
    /// Any multiple of the first up to the second.
    Range(u32, u32),
    /// By chance: each size, and the percentage of operations that have this size or one before it.
    Split(Vec<(u32, u8)>),
}

impl BlockSize {
    /// The shortest.
    #[must_use]
    pub fn least(&self) -> u32 {
        match self {
            Self::Fixed(size) | Self::Range(size, _) => *size,
            Self::Split(parts) => parts.iter().map(|part| part.0).min().unwrap_or(0),
        }
    }

    /// The longest.
    #[must_use]
    pub fn most(&self) -> u32 {
        match self {
            Self::Fixed(size) | Self::Range(_, size) => *size,
            Self::Split(parts) => parts.iter().map(|part| part.0).max().unwrap_or(0),
        }
    }
}

/// Where random operations fall.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Anywhere alike.
    Uniform,
    /// The k-th most wanted block is wanted in proportion to k to the power of minus this.
    Zipf(f64),
}

/// What stands in the blocks, so that they can be told from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verify {
    /// Bytes that follow from the seed, the address and the generation (`crc32c`).
    Random,
    /// These bytes, again and again (`pattern`).
    Pattern(Vec<u8>),
}

/// What does the work (`ioengine`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// A remote namespace, on the job's own thread.
    Nvmf,
    /// A remote namespace by the async interface.
    NvmfAsync,
    /// A local file or block device.
    IoUring,
    /// Memory.
    Memory,
    /// Nothing.
    Null,
    /// An NBD export.
    Nbd,
}

impl EngineKind {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Nvmf, "nvmf"),
        (Self::NvmfAsync, "nvmf-async"),
        (Self::IoUring, "io_uring"),
        (Self::Memory, "memory"),
        (Self::Null, "null"),
        (Self::Nbd, "nbd"),
    ];

    /// The engine of a filename that is a URL.
    #[must_use]
    pub fn of_filename(name: &str) -> Option<Self> {
        if name.starts_with("nvmf://") {
            Some(Self::Nvmf)
        } else if name.starts_with("nbd://") || name.starts_with("nbd+unix://") {
            Some(Self::Nbd)
        } else {
            None
        }
    }

    /// Its name, as in `ioengine`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// How a job waits for completions (`poll`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// It spins.
    Busy,
    /// It spins for a while ([`JobOptions::spin`]), then sleeps.
    Adaptive,
    /// It sleeps.
    Interrupt,
}

/// Over which RDMA (`provider`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdmaProvider {
    /// The device's that leads to the address, else userspace iWARP.
    Auto,
    /// Userspace iWARP.
    Iwarp,
    /// A device.
    Verbs,
}

/// A remote namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Where the controller listens.
    pub address: Option<SocketAddr>,
    /// The subsystem.
    pub nqn: Option<String>,
    /// The namespace; the first by default.
    pub nsid: Option<u32>,
    /// Over which RDMA.
    pub provider: RdmaProvider,
    /// As whom, instead of this machine.
    pub hostnqn: Option<String>,
}

/// A search for the deepest queue that keeps to a latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyTarget {
    /// The latency.
    pub target: Duration,
    /// How long each depth is tried.
    pub window: Duration,
    /// Percentage of operations that must keep to it.
    pub percentile: f64,
}

/// What a job is to do. The names are fio's.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "`TABLE` says of each option what it is, for the user and here")]
pub struct JobOptions {
    pub rw: Access,
    /// By direction.
    pub bs: [BlockSize; 3],
    pub size: Option<Extent>,
    pub io_size: Option<Extent>,
    pub offset: Extent,
    pub offset_increment: Extent,
    pub iodepth: u32,
    /// 0: as many as there is room for.
    pub iodepth_batch: u32,
    pub iodepth_batch_complete: u32,
    pub iodepth_low: Option<u32>,
    pub numjobs: u32,
    pub runtime: Option<Duration>,
    pub time_based: bool,
    pub ramp_time: Duration,
    pub startdelay: Duration,
    pub loops: u32,
    /// Percent.
    pub rwmixread: u8,
    pub verify: Option<Verify>,
    pub verify_pattern: Option<Vec<u8>>,
    pub do_verify: bool,
    pub verify_fatal: bool,
    /// Bytes in a block that has a mark of its own; the shortest block by default.
    pub verify_interval: Option<u32>,
    /// Bytes a second, by direction.
    pub rate: [Option<u64>; 3],
    /// Operations a second, by direction.
    pub rate_iops: [Option<u64>; 3],
    pub random_distribution: Distribution,
    pub norandommap: bool,
    pub randseed: u64,
    /// Writes between two; 0: never.
    pub fsync: u32,
    pub end_fsync: bool,
    /// The target, if one is wanted; the rest of it lies beside until the job is complete.
    pub latency_target: Option<Duration>,
    pub latency_window: Duration,
    pub latency_percentile: f64,
    pub thinktime: Duration,
    pub thinktime_blocks: u32,
    pub group_reporting: bool,
    pub new_group: bool,
    pub stonewall: bool,
    pub filename: Option<String>,
    pub directory: Option<String>,
    pub direct: bool,
    /// As given; [`JobOptions::engine`] is what it comes to.
    pub ioengine: Option<EngineKind>,
    pub remote: Remote,
    pub cpus_allowed: Vec<usize>,
    pub poll: Poll,
    pub spin: Duration,
    pub continue_on_error: bool,
    pub zero_buffers: bool,
    pub refill_buffers: bool,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            rw: Access { reads: true, writes: false, trims: false, random: false },
            bs: [BlockSize::Fixed(4096), BlockSize::Fixed(4096), BlockSize::Fixed(4096)],
            size: None,
            io_size: None,
            offset: Extent::Bytes(0),
            offset_increment: Extent::Bytes(0),
            iodepth: 1,
            iodepth_batch: 0,
            iodepth_batch_complete: 1,
            iodepth_low: None,
            numjobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Duration::ZERO,
            startdelay: Duration::ZERO,
            loops: 1,
            rwmixread: 50,
            verify: None,
            verify_pattern: None,
            do_verify: true,
            verify_fatal: false,
            verify_interval: None,
            rate: [None; 3],
            rate_iops: [None; 3],
            random_distribution: Distribution::Uniform,
            norandommap: false,
            randseed: 0x89,
            fsync: 0,
            end_fsync: false,
            latency_target: None,
            latency_window: Duration::from_millis(500),
            latency_percentile: 100.0,
            thinktime: Duration::ZERO,
            thinktime_blocks: 1,
            group_reporting: false,
            new_group: false,
            stonewall: false,
            filename: None,
            directory: None,
            direct: false,
            ioengine: None,
            remote: Remote {
                address: None,
                nqn: None,
                nsid: None,
                provider: RdmaProvider::Auto,
                hostnqn: None,
            },
            cpus_allowed: Vec::new(),
            poll: Poll::Adaptive,
            spin: Duration::from_micros(50),
            continue_on_error: false,
            zero_buffers: false,
            refill_buffers: false,
        }
    }
}

impl JobOptions {
    /// What does the work: the engine that was given, else the one that the filename's scheme names, else a local file's.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        let by_name = || EngineKind::of_filename(self.filename.as_deref()?);
        self.ioengine.or_else(by_name).unwrap_or(EngineKind::IoUring)
    }

    /// The shortest block of any direction that occurs, in bytes.
    #[must_use]
    pub fn bs_least(&self) -> u32 {
        self.sizes().map(BlockSize::least).min().unwrap_or(4096)
    }

    /// The longest, in bytes.
    #[must_use]
    pub fn bs_most(&self) -> u32 {
        self.sizes().map(BlockSize::most).max().unwrap_or(4096)
    }

    /// Whether all block sizes of directions that occur are.
    #[must_use]
    pub fn bs_are_multiples_of(&self, unit: u32) -> bool {
        self.sizes().all(|size| match size {
            BlockSize::Fixed(size) => size.is_multiple_of(unit),
            // Rounded by the generator to multiples of the shortest.
            BlockSize::Range(..) | BlockSize::Split(_) => self.bs_least().is_multiple_of(unit),
        })
    }

    /// Bytes in a block that is verified by itself.
    #[must_use]
    pub fn verify_unit(&self) -> u32 {
        self.verify_interval.unwrap_or_else(|| self.bs_least())
    }

    fn sizes(&self) -> impl Iterator<Item = &BlockSize> {
        Direction::ALL.into_iter().filter(|&direction| self.rw.has(direction)).map(|d| &self.bs[d as usize])
    }

    /// The search for a depth, if one is wanted.
    #[must_use]
    pub fn latency_search(&self) -> Option<LatencyTarget> {
        let (window, percentile) = (self.latency_window, self.latency_percentile);
        self.latency_target.map(|target| LatencyTarget { target, window, percentile })
    }
}
