//! A simulated host: the real driver with random operations on the host's own blocks, whose contents it verifies.

use super::oracle::{FlushPoint, Oracle};
use super::rng::Rng;
use core::time::Duration;
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer, Completion, RegionId, Tag};
use nvmf_initiator::driver::{Driver, DriverConfig, DriverEvent};
use nvmf_initiator::{HostIdentity, Options};
use nvmf_memory::Memory;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::Loopback;
use std::net::SocketAddr;

/// Blocks of each host.
pub(super) const BLOCKS: u64 = 48;
/// Distance between the first blocks of two hosts: one unused block follows the blocks of each host.
pub(super) const STRIDE: u64 = BLOCKS + 1;
/// Bytes in a block.
pub(super) const BLOCK: usize = 512;
/// Most operations in flight.
const SLOTS: usize = 8;
/// Most blocks of an operation: more than fit into a capsule.
const SPAN: u64 = 24;
/// Bytes of a slot's memory: one block more than the largest operation.
const SLOT_LEN: usize = (SPAN as usize + 1) * BLOCK;
/// Byte that fills the rest of a slot after an operation's buffer.
const GUARD: u8 = 0x6b;
const REGION: RegionId = RegionId(0);

#[derive(Debug)]
enum Purpose {
    Read,
    /// A write of any kind, and whether it is durable on completion.
    Write {
        fua: bool,
    },
    Flush(FlushPoint),
    /// A compare with these contents, from the first block on.
    Compare(Vec<u64>),
}

#[derive(Debug)]
struct Running {
    purpose: Purpose,
    start: u64,
    blocks: u64,
    /// Power cuts before its start.
    crashes: u32,
}

/// A simulated host.
pub(super) struct Host {
    number: u64,
    pub(super) driver: Driver<Faulty<Loopback>>,
    pub(super) oracle: Oracle,
    memory: Memory,
    running: Vec<Option<Running>>,
    /// Blocks with an operation in flight.
    busy: Vec<bool>,
    /// Content last written to each block.
    contents: Vec<u64>,
    next_content: u64,
    pub(super) left: u32,
    pub(super) ended: u64,
    pub(super) losses: u64,
    pub(super) closed: bool,
    /// Whether it has been connected.
    pub(super) ready: bool,
    /// Flushes may fail that began after so many power cuts or fewer.
    pub(super) flushes_may_fail: Option<u32>,
    rng: Rng,
    completions: Vec<Completion>,
}

impl Host {
    pub(super) fn new(
        number: u64,
        address: SocketAddr,
        subsystem: Nqn,
        provider: Faulty<Loopback>,
        now: Duration,
        mut rng: Rng,
    ) -> Self {
        let id = [number as u8 + 1; 16];
        let identity = HostIdentity { nqn: Nqn::from_uuid(id), id: HostId(id) };
        let options = Options {
            io_queues: 1 + rng.below(3) as u16,
            queue_depth: 2 + rng.below(15) as u16,
            connect_timeout: Duration::from_millis(500),
            io_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(1),
            reconnect_delay: Duration::from_millis(20),
            ctrl_loss_timeout: None,
            ..Options::with_host(address, subsystem, identity)
        };
        let mut config =
            DriverConfig { operations: SLOTS as u32, seed: rng.next(), ..options.driver_config() };
        config.recovery.reconnect_delay_max = Duration::from_millis(200);
        config.recovery.attempt_timeout = Duration::from_secs(5);
        config.recovery.retries_max = u8::MAX;
        config.association.admin_timeout = Duration::from_secs(2);
        config.association.shutdown_timeout = Duration::from_secs(1);
        let memory = Memory::alloc(SLOTS * SLOT_LEN).expect("memory");
        let mut driver = Driver::new(provider, config, now).expect("a driver");
        while driver.register(REGION, &memory).is_err() {}
        Self {
            number,
            driver,
            oracle: Oracle::new(BLOCKS as usize),
            memory,
            running: (0..SLOTS).map(|_| None).collect(),
            busy: vec![false; BLOCKS as usize],
            contents: vec![0; BLOCKS as usize],
            next_content: 0,
            left: 30 + rng.below(40) as u32,
            ended: 0,
            losses: 0,
            closed: false,
            ready: false,
            flushes_may_fail: None,
            rng,
            completions: Vec::with_capacity(SLOTS),
        }
    }

    /// First block of the host on the disk.
    fn base(&self) -> u64 {
        self.number * STRIDE
    }

    pub(super) fn idle(&self) -> bool {
        self.running.iter().all(Option::is_none)
    }

    /// Runs one turn of the driver and of the host; `true` if something happened.
    pub(super) fn turn(&mut self, now: Duration) -> bool {
        let mut worked = self.driver.turn(now);
        while let Some(event) = self.driver.poll_event() {
            match event {
                DriverEvent::Lost(error) | DriverEvent::AttemptFailed(error) => {
                    self.losses += 1;
                    if super::prints_events() {
                        println!("{now:?}: host {} lost its association: {error}", self.number);
                    }
                }
                DriverEvent::Closed => self.closed = true,
                DriverEvent::GaveUp if self.closed => {}
                DriverEvent::GaveUp => {
                    panic!("host {} gave up, although its timeout is infinite", self.number)
                }
                DriverEvent::Ready { .. } => self.ready = true,
                DriverEvent::Foreign(nsid, mismatch) => {
                    if super::prints_events() {
                        println!(
                            "{now:?}: host {}: namespace {nsid} is another disk: {mismatch}",
                            self.number
                        );
                    }
                }
                DriverEvent::NamespacesChanged | DriverEvent::Restored(_) | DriverEvent::Admin(..) => {}
            }
        }
        self.driver.poll(&mut self.completions);
        for completion in core::mem::take(&mut self.completions) {
            worked = true;
            self.on_completion(&completion);
        }
        self.completions.reserve(SLOTS);
        while self.ready && self.left > 0 && self.rng.percent(60) {
            if !self.start_one() {
                break;
            }
            worked = true;
        }
        self.driver.flush(now);
        worked
    }

    /// Sets the faults to inject from now on.
    pub(super) fn set_faults(&mut self, faults: FaultOptions) {
        self.driver.provider_mut().set_options(faults);
    }

    /// Checks that the bytes of a slot after an operation's buffer are unchanged.
    fn check_guard(&self, slot: usize, len: usize, what: &str) {
        let end = SLOT_LEN * (slot + 1);
        let mut guard = vec![0; SLOT_LEN - len];
        self.memory.read(end - guard.len(), &mut guard);
        assert!(guard.iter().all(|&byte| byte == GUARD), "{what}: bytes after its buffer changed");
    }

    /// Reads every block, at the end.
    pub(super) fn read_all(&mut self) {
        for start in (0..BLOCKS).step_by(SPAN as usize) {
            let slot = self.running.iter().position(Option::is_none).expect("an idle host has a free slot");
            self.submit(slot, Purpose::Read, start, SPAN.min(BLOCKS - start));
        }
    }

    fn start_one(&mut self) -> bool {
        let Some(slot) = self.running.iter().position(Option::is_none) else { return false };
        let blocks = 1 + self.rng.below(SPAN);
        let start = self.rng.below(BLOCKS - blocks + 1);
        let free = !self.busy[start as usize..(start + blocks) as usize].contains(&true);
        let fua = self.rng.percent(20);
        let purpose = match self.rng.below(100) {
            0..15 => Purpose::Flush(self.oracle.flush_begins()),
            _ if !free => return false,
            15..45 => Purpose::Read,
            45..55 => Purpose::Compare(Vec::new()),
            _ => Purpose::Write { fua },
        };
        self.left -= 1;
        self.submit(slot, purpose, start, blocks);
        true
    }

    fn submit(&mut self, slot: usize, mut purpose: Purpose, start: u64, blocks: u64) {
        let range = BlockRange::new(self.base() + start, blocks);
        let buffer = Buffer { region: REGION, offset: slot * SLOT_LEN, len: blocks as usize * BLOCK };
        self.memory.fill(buffer.offset + buffer.len, SLOT_LEN - buffer.len, GUARD);
        let span = start as usize..(start + blocks) as usize;
        let op = match &mut purpose {
            Purpose::Flush(_) => BlockOp::Flush,
            Purpose::Read => {
                self.memory.fill(buffer.offset, buffer.len, 0xee);
                BlockOp::Read { range, into: buffer }
            }
            Purpose::Compare(with) => {
                with.extend_from_slice(&self.contents[span.clone()]);
                // Sometimes with other contents, which the compare must detect.
                if self.rng.percent(25) {
                    let other = self.rng.below(blocks) as usize;
                    with[other] = with[other].wrapping_add(1_000_000);
                }
                for (block, &content) in span.clone().zip(&*with) {
                    self.fill(buffer.offset + (block - span.start) * BLOCK, block, content);
                }
                BlockOp::Compare { range, with: buffer }
            }
            Purpose::Write { fua } => match self.rng.below(10) {
                0 => {
                    *fua = false;
                    self.write(span.clone(), 0, true);
                    BlockOp::Deallocate { range }
                }
                1 => {
                    self.write(span.clone(), 0, false);
                    BlockOp::WriteZeroes { range, deallocate: self.rng.percent(50), fua: *fua }
                }
                _ => {
                    self.next_content += 1;
                    let content = self.next_content;
                    for block in span.clone() {
                        self.fill(buffer.offset + (block - span.start) * BLOCK, block, content);
                    }
                    self.write(span.clone(), content, false);
                    BlockOp::Write { range, from: buffer, fua: *fua }
                }
            },
        };
        if op != BlockOp::Flush {
            self.busy[span].fill(true);
        }
        self.running[slot] = Some(Running { purpose, start, blocks, crashes: self.oracle.crashes() });
        if super::prints_events() {
            println!("host {} submits {slot}: {op:?}", self.number);
        }
        self.driver.submit(Tag(slot as u64), Nsid(1), op).expect("as many operations as slots");
    }

    fn write(&mut self, span: core::ops::Range<usize>, content: u64, hint: bool) {
        for block in span {
            self.oracle.begin(block, content, hint);
            self.contents[block] = content;
        }
    }

    /// Fills a block for a content number: its address and the number, repeated; zeroes for content 0.
    fn fill(&self, offset: usize, block: usize, content: u64) {
        if content == 0 {
            return self.memory.fill(offset, BLOCK, 0);
        }
        let mut bytes = [0; BLOCK];
        for pair in bytes.chunks_exact_mut(16) {
            pair[..8].copy_from_slice(&(self.base() + block as u64).to_le_bytes());
            pair[8..].copy_from_slice(&content.to_le_bytes());
        }
        self.memory.write(offset, &bytes);
    }

    /// The content number of a block.
    fn content(&self, offset: usize, block: usize) -> u64 {
        let mut bytes = [0; BLOCK];
        self.memory.read(offset, &mut bytes);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let content = word(8);
        let place = if content == 0 { 0 } else { self.base() + block as u64 };
        let whole = (0..BLOCK).step_by(16).all(|at| word(at) == place && word(at + 8) == content);
        assert!(
            whole,
            "host {}: block {block} is torn or has the contents of another block: {:?}",
            self.number,
            &bytes[..32]
        );
        content
    }

    /// Whether a flush, or a write that includes one, failed. It may only where the disk failed one before.
    fn failed(&self, completion: &Completion, crashes: u32, what: &str) -> bool {
        let may_fail = self.flushes_may_fail.is_some_and(|at| crashes <= at);
        assert!(completion.result.is_ok() || may_fail, "{what}: {:?}", completion.result);
        completion.result.is_err()
    }

    fn on_completion(&mut self, completion: &Completion) {
        let slot = completion.tag.0 as usize;
        let Some(Running { purpose, start, blocks, crashes }) = self.running[slot].take() else {
            panic!("host {}: an operation ended twice", self.number);
        };
        self.ended += 1;
        if super::prints_events() {
            println!("host {} ended {slot}: {:?}", self.number, completion.result);
        }
        let span = start as usize..(start + blocks) as usize;
        let what = format!("host {}, {purpose:?} of {start}+{blocks}", self.number);
        self.check_guard(slot, blocks as usize * BLOCK, &what);
        match purpose {
            Purpose::Flush(point) => {
                if !self.failed(completion, crashes, &what) {
                    self.oracle.flushed(&point);
                }
                return;
            }
            Purpose::Write { fua } => {
                if fua && self.failed(completion, crashes, &what) {
                    span.clone().for_each(|block| self.oracle.fail(block));
                } else {
                    assert_eq!(completion.result, Ok(()), "{what}");
                    span.clone().for_each(|block| self.oracle.end(block, fua, crashes));
                }
            }
            Purpose::Read => {
                assert_eq!(completion.result, Ok(()), "{what}");
                let offset = slot * SLOT_LEN;
                for block in span.clone() {
                    let content = self.content(offset + (block - span.start) * BLOCK, block);
                    self.oracle.read(block, content, crashes, &what);
                    self.contents[block] = content;
                }
            }
            Purpose::Compare(with) => {
                let equal = match completion.result {
                    Ok(()) => true,
                    Err(BlockError::CompareFailed) => false,
                    Err(error) => panic!("{what}: {error:?}"),
                };
                let with: Vec<_> = span.clone().zip(with).collect();
                self.oracle.compared(&with, equal, crashes, &what);
            }
        }
        self.busy[span].fill(false);
    }
}
