//! The options of a job, parsed.

use super::unit::Extent;
use crate::result::Direction;
use core::time::Duration;
use nvmf_initiator::Uri;
use std::path::PathBuf;

/// The kinds of operations and their order (`rw`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// The job reads.
    pub reads: bool,
    /// The job writes.
    pub writes: bool,
    /// The job trims; if it also writes, each trim is followed by a write of the same blocks.
    pub trims: bool,
    /// Offsets are random, otherwise sequential.
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

/// Block sizes of one direction, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockSize {
    /// One size.
    Fixed(u32),
    /// Random multiples of the first size, up to the second.
    Range(u32, u32),
    /// Random sizes: each with the cumulative percentage of operations up to and including it.
    Split(Vec<(u32, u8)>),
}

impl BlockSize {
    /// The smallest size.
    #[must_use]
    pub fn least(&self) -> u32 {
        match self {
            Self::Fixed(size) | Self::Range(size, _) => *size,
            Self::Split(parts) => parts.iter().map(|part| part.0).min().unwrap_or(0),
        }
    }

    /// The largest size.
    #[must_use]
    pub fn most(&self) -> u32 {
        match self {
            Self::Fixed(size) | Self::Range(_, size) => *size,
            Self::Split(parts) => parts.iter().map(|part| part.0).max().unwrap_or(0),
        }
    }
}

/// Distribution of random offsets (`random_distribution`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Uniform.
    Uniform,
    /// Zipf: the probability of the k-th most frequent block is proportional to k^-theta.
    Zipf(f64),
}

/// Contents of the blocks that are verified (`verify`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verify {
    /// Pseudo-random bytes, derived from the seed, the address and the generation (`crc32c`).
    Random,
    /// These bytes, repeated (`pattern`).
    Pattern(Vec<u8>),
}

/// The I/O engine (`ioengine`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    /// A remote namespace, on the job's own thread.
    Nvmf,
    /// A remote namespace through the async interface.
    NvmfAsync,
    /// A local file or block device.
    IoUring,
    /// Memory.
    Memory,
    /// A null disk.
    Null,
    /// An NBD export.
    Nbd,
}

impl EngineKind {
    /// All engines, with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::Nvmf, "nvmf"),
        (Self::NvmfAsync, "nvmf-async"),
        (Self::IoUring, "io_uring"),
        (Self::Memory, "memory"),
        (Self::Null, "null"),
        (Self::Nbd, "nbd"),
    ];

    /// The engine for a filename that is a URL.
    #[must_use]
    pub fn of_filename(name: &str) -> Option<Self> {
        if name.starts_with("nvmf://") || name.starts_with("nvmf+tcp://") {
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
    /// Busy polling.
    Busy,
    /// Busy polling for [`JobOptions::spin`], then sleeping.
    Adaptive,
    /// Sleeping.
    Interrupt,
}

/// The RDMA provider (`provider`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RdmaProvider {
    /// The RDMA device on the route to the address, or userspace iWARP if there is none.
    Auto,
    /// Userspace iWARP.
    Iwarp,
    /// An RDMA device (verbs).
    Verbs,
}

/// What carries the commands (`transport`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteTransport {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

/// A remote namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// What carries the commands, when given; see [`Remote::transport`].
    pub transport: Option<RemoteTransport>,
    /// NVMe/TCP: checksums of PDU headers.
    pub header_digest: bool,
    /// NVMe/TCP: checksums of data.
    pub data_digest: bool,
    /// Over NVMe/TCP: TLS.
    pub tls: bool,
    /// The file with the key for it.
    pub tls_key_file: Option<PathBuf>,
    /// The file with the host's secret for DH-HMAC-CHAP.
    pub dhchap_key_file: Option<PathBuf>,
    /// The file with the secret that the controller must prove to have.
    pub dhchap_ctrl_key_file: Option<PathBuf>,
    /// Over NVMe/TCP: TLS with a key that the authentication makes.
    pub concat: bool,
    /// NVMe/RDMA: insist on a checksum of the data.
    pub crc: bool,
    /// Ask for submission queues without flow control.
    pub disable_flow_control: bool,
    /// Address of the controller.
    pub address: Option<Uri>,
    /// Further paths to it, or to other controllers of the subsystem.
    pub paths: Vec<Uri>,
    /// NQN of the subsystem.
    pub nqn: Option<String>,
    /// The namespace; by default the first.
    pub nsid: Option<u32>,
    /// The RDMA provider.
    pub provider: RdmaProvider,
    /// Host NQN to use instead of this machine's.
    pub hostnqn: Option<String>,
}

impl Remote {
    /// What carries the commands: NVMe/RDMA by default.
    #[must_use]
    pub fn transport(&self) -> RemoteTransport {
        self.transport.unwrap_or(RemoteTransport::Rdma)
    }
}

/// Parameters of a search for the greatest queue depth that meets a latency target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatencyTarget {
    /// The latency target.
    pub target: Duration,
    /// Duration of each trial.
    pub window: Duration,
    /// Percentage of operations that must meet the target.
    pub percentile: f64,
}

/// The options of a job, with fio's names.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "`TABLE` describes each option")]
pub struct JobOptions {
    /// The job's name, instead of the section's.
    pub name: Option<String>,
    pub rw: Access,
    /// By direction.
    pub bs: [BlockSize; 3],
    pub size: Option<Extent>,
    pub io_size: Option<Extent>,
    pub offset: Extent,
    pub offset_increment: Extent,
    pub iodepth: u32,
    /// As given; see [`JobOptions::batch_submit`].
    pub iodepth_batch: u32,
    /// As given; see [`JobOptions::batch_complete_min`].
    pub iodepth_batch_complete: u32,
    /// As given; see [`JobOptions::batch_complete_max`].
    pub iodepth_batch_complete_max: u32,
    pub iodepth_low: Option<u32>,
    pub numjobs: u32,
    pub runtime: Option<Duration>,
    pub time_based: bool,
    /// Longest wait for outstanding operations after `runtime`.
    pub drain_timeout: Duration,
    pub ramp_time: Duration,
    pub startdelay: Duration,
    pub loops: u32,
    /// Percent.
    pub rwmixread: u8,
    pub verify: Option<Verify>,
    pub verify_pattern: Option<Vec<u8>>,
    pub do_verify: bool,
    pub verify_fatal: bool,
    /// Bytes of a block with its own verification header; by default the smallest block size.
    pub verify_interval: Option<u32>,
    /// Bytes per second, by direction.
    pub rate: [Option<u64>; 3],
    /// Operations per second, by direction.
    pub rate_iops: [Option<u64>; 3],
    pub random_distribution: Distribution,
    pub norandommap: bool,
    /// As given; see [`JobOptions::seed`].
    pub randseed: Option<u64>,
    pub randrepeat: bool,
    /// The number of the run, drawn by [`super::Plan::number`].
    pub run: Option<u64>,
    /// The blocks to verify are of an earlier run, whose number the first of them tells.
    pub of_earlier_run: bool,
    /// Writes between two flushes; 0: never.
    pub fsync: u32,
    pub end_fsync: bool,
    /// The target, if there is one; see [`JobOptions::latency_search`].
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
    /// Writes are durable when they complete (`sync`).
    pub sync: bool,
    pub invalidate: bool,
    /// Write also to a namespace that is attached to this machine as a disk.
    pub allow_mounted_write: bool,
    /// As given; [`JobOptions::engine`] is the engine that is used.
    pub ioengine: Option<EngineKind>,
    pub remote: Remote,
    pub cpus_allowed: Vec<usize>,
    pub poll: Poll,
    pub spin: Duration,
    pub continue_on_error: bool,
    /// Percentages, in order.
    pub percentile_list: Vec<f64>,
    pub zero_buffers: bool,
    pub refill_buffers: bool,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            name: None,
            rw: Access { reads: true, writes: false, trims: false, random: false },
            bs: [BlockSize::Fixed(4096), BlockSize::Fixed(4096), BlockSize::Fixed(4096)],
            size: None,
            io_size: None,
            offset: Extent::Bytes(0),
            offset_increment: Extent::Bytes(0),
            iodepth: 1,
            iodepth_batch: 1,
            iodepth_batch_complete: 1,
            iodepth_batch_complete_max: 1,
            iodepth_low: None,
            numjobs: 1,
            runtime: None,
            time_based: false,
            drain_timeout: Duration::from_secs(30),
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
            randseed: None,
            randrepeat: true,
            run: None,
            of_earlier_run: false,
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
            sync: false,
            invalidate: true,
            allow_mounted_write: false,
            ioengine: None,
            remote: Remote {
                transport: None,
                header_digest: false,
                data_digest: false,
                tls: false,
                tls_key_file: None,
                dhchap_key_file: None,
                dhchap_ctrl_key_file: None,
                concat: false,
                crc: false,
                disable_flow_control: false,
                address: None,
                paths: Vec::new(),
                nqn: None,
                nsid: None,
                provider: RdmaProvider::Auto,
                hostnqn: None,
            },
            cpus_allowed: Vec::new(),
            poll: Poll::Adaptive,
            spin: Duration::from_micros(500),
            continue_on_error: false,
            percentile_list: PERCENTILES.to_vec(),
            zero_buffers: false,
            refill_buffers: false,
        }
    }
}

/// The seed of fio's and ours without another.
const SEED: u64 = 0x89;

/// The percentiles that fio prints by default.
const PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

impl JobOptions {
    /// The seed of the operations: the same in every run unless `randrepeat=0`.
    #[must_use]
    pub fn seed(&self) -> u64 {
        let of_run = self.run.filter(|_| !self.randrepeat);
        self.randseed.or(of_run).unwrap_or(SEED)
    }

    /// The number in the headers of verified blocks, another one in every run unless there is a `randseed`: the blocks of
    /// an earlier run are not taken for this one's. `None`: the one in the first block that is read.
    #[must_use]
    pub fn stamp(&self) -> Option<u64> {
        let of_run = || (!self.of_earlier_run).then(|| self.run.unwrap_or(SEED));
        self.randseed.or_else(of_run)
    }

    /// The engine to use: `ioengine` if given, otherwise by the scheme of `filename`, otherwise `io_uring`.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        let by_name = || EngineKind::of_filename(self.filename.as_deref()?);
        self.ioengine.or_else(by_name).unwrap_or(EngineKind::IoUring)
    }

    /// Operations per submission.
    #[must_use]
    pub fn batch_submit(&self) -> u32 {
        if self.iodepth_batch == 0 { self.iodepth } else { self.iodepth_batch.min(self.iodepth) }
    }

    /// Completions to wait for before the next submission.
    #[must_use]
    pub fn batch_complete_min(&self) -> u32 {
        self.iodepth_batch_complete.min(self.iodepth)
    }

    /// Completions that are taken at once.
    #[must_use]
    pub fn batch_complete_max(&self) -> u32 {
        self.iodepth_batch_complete_max.max(self.iodepth_batch_complete).clamp(1, self.iodepth)
    }

    /// The smallest block size of all directions in use, in bytes.
    #[must_use]
    pub fn bs_least(&self) -> u32 {
        self.sizes().map(BlockSize::least).min().unwrap_or(4096)
    }

    /// The largest block size of all directions in use, in bytes.
    #[must_use]
    pub fn bs_most(&self) -> u32 {
        self.sizes().map(BlockSize::most).max().unwrap_or(4096)
    }

    /// Whether all block sizes of the directions in use are multiples of `unit`.
    #[must_use]
    pub fn bs_are_multiples_of(&self, unit: u32) -> bool {
        self.sizes().all(|size| match size {
            BlockSize::Fixed(size) => size.is_multiple_of(unit),
            // The generator rounds these to multiples of the smallest size.
            BlockSize::Range(..) | BlockSize::Split(_) => self.bs_least().is_multiple_of(unit),
        })
    }

    /// Bytes of a block with its own verification header.
    #[must_use]
    pub fn verify_unit(&self) -> u32 {
        self.verify_interval.unwrap_or_else(|| self.bs_least())
    }

    fn sizes(&self) -> impl Iterator<Item = &BlockSize> {
        Direction::ALL.into_iter().filter(|&direction| self.rw.has(direction)).map(|d| &self.bs[d as usize])
    }

    /// Parameters of the `latency_target` search, if there is one.
    #[must_use]
    pub fn latency_search(&self) -> Option<LatencyTarget> {
        let (window, percentile) = (self.latency_window, self.latency_percentile);
        self.latency_target.map(|target| LatencyTarget { target, window, percentile })
    }
}
