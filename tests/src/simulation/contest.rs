//! Blocks that all hosts contend for, by Compare and Write: each path reads a block, and replaces what it has read.
//!
//! Both commands of a pair are raw: they are sent once. When the connection is lost, what became of them is open until a
//! read on the same path ends: the driver does not issue that one before they can take effect no more.

use super::host::{BLOCK, Host, SLOTS};
use super::network::Network;
use super::register::{Look, Register};
use super::reservation;
use super::rights::{Reach, Rights};
use crate::rng::Rng;
use core::time::Duration;
use nvme_proto::nvm::ReadWrite;
use nvme_proto::nvm::fused::FusedOperation;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange, Tag};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AdminData, Command};

/// Blocks.
pub(super) const CONTESTED: u64 = 2;
/// Numbers of the commands of a pair.
const COMPARE: u32 = 100;
const WRITE: u32 = 101;
/// In place of a host's number in the contents of these blocks.
pub(super) const NOBODYS: u64 = u64::MAX;

/// Whether a raw command of this number is one of a pair.
pub(super) fn is_of_pair(number: u32) -> bool {
    matches!(number, COMPARE | WRITE)
}

/// What a path is told of its commands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Read(Result<(), BlockError>),
    /// A raw command ended; `None`: its connection was lost.
    Ended(u32, Option<Status>),
}

#[derive(Debug)]
enum Doing {
    Nothing,
    /// It reads a block.
    Reads {
        look: Look,
        then: Then,
    },
    /// It has sent both commands.
    Replaces {
        value: u64,
        compare: Option<Option<Status>>,
        write: Option<Option<Status>>,
    },
    /// It reads again later what it must.
    Settles(u64),
}

/// What a path reads a block for.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// To replace what it finds.
    Replace,
    /// To settle its last attempt, of which it does not know what became.
    Settle(u64),
    /// To look, at the end.
    Look,
}

/// A path that takes part.
struct Contender {
    host: usize,
    path: usize,
    block: u64,
    doing: Doing,
    since: Duration,
    not_before: Duration,
    left: u32,
}

/// The blocks, and who contends for them.
pub(super) struct Contest {
    /// The first of the blocks.
    base: u64,
    registers: Vec<Register>,
    contenders: Vec<Contender>,
    rng: Rng,
    /// Attempts that succeeded, and those whose comparison failed.
    pub(super) won: u64,
    pub(super) differed: u64,
}

impl Contest {
    /// Paths with one I/O queue take part: their commands follow each other in it.
    pub(super) fn new<N: Network>(base: u64, hosts: &[Host<N>], is_held: bool, mut rng: Rng) -> Self {
        let mut contenders = Vec::new();
        for (host, of) in hosts.iter().enumerate().filter(|_| is_held) {
            for (path, _) in of.paths.iter().enumerate().filter(|(_, path)| path.io_queues == 1) {
                contenders.push(Contender {
                    host,
                    path,
                    block: 0,
                    doing: Doing::Nothing,
                    since: Duration::ZERO,
                    not_before: Duration::ZERO,
                    left: 3 + rng.below(10) as u32,
                });
            }
        }
        let registers = (0..CONTESTED).map(|_| Register::default()).collect();
        Self { base, registers, contenders, rng, won: 0, differed: 0 }
    }

    /// Nobody contends from now on.
    pub(super) fn begin_no_more(&mut self) {
        self.contenders.iter_mut().for_each(|it| it.left = 0);
    }

    /// Whether a contender has anything to do.
    pub(super) fn is_busy(&self) -> bool {
        self.contenders.iter().any(|it| it.left > 0 || !matches!(it.doing, Doing::Nothing))
    }

    /// The power was cut.
    pub(super) fn crash(&mut self) {
        self.registers.iter_mut().for_each(Register::crash);
    }

    /// The hosts that may use a block now.
    pub(super) fn owners<N: Network>(&self, lba: u64, hosts: &[Host<N>]) -> Vec<reservation::Host> {
        let Some(block) = lba.checked_sub(self.base) else { return Vec::new() };
        let busy =
            self.contenders.iter().filter(|it| it.block == block && !matches!(it.doing, Doing::Nothing));
        busy.map(|it| hosts[it.host].paths[it.path].id).collect()
    }

    /// What is counted of those that are under way.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &'static str> {
        let pairs = self.contenders.iter().filter(|it| matches!(it.doing, Doing::Replaces { .. }));
        pairs.map(|_| "compare and write")
    }

    /// When a contender goes on.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let waits = |it: &&Contender| match it.doing {
            Doing::Nothing => it.left > 0,
            Doing::Settles(_) => true,
            _ => false,
        };
        self.contenders.iter().filter(waits).map(|it| it.not_before).min()
    }

    /// Each contender does what it can; whether any did.
    pub(super) fn turn<N: Network>(&mut self, now: Duration, hosts: &mut [Host<N>], rights: &Rights) -> bool {
        let mut worked = false;
        for at in 0..self.contenders.len() {
            let Contender { host, path, .. } = self.contenders[at];
            for event in core::mem::take(&mut hosts[host].paths[path].contest) {
                worked = true;
                self.on_event(now, at, &mut hosts[host], rights, event);
            }
            let contender = &self.contenders[at];
            if now < contender.not_before || !hosts[host].is_ready() {
                continue;
            }
            match contender.doing {
                Doing::Nothing if contender.left > 0 && self.rng.percent(60) => {
                    self.contenders[at].left -= 1;
                    self.contenders[at].block = self.rng.below(CONTESTED);
                    self.read(now, at, &mut hosts[host], Then::Replace);
                }
                Doing::Settles(value) => self.read(now, at, &mut hosts[host], Then::Settle(value)),
                _ => continue,
            }
            worked = true;
        }
        worked
    }

    /// Everybody reads every block once more, at the end.
    pub(super) fn read_all<N: Network>(&mut self, now: Duration, block: u64, hosts: &mut [Host<N>]) {
        for at in 0..self.contenders.len() {
            self.contenders[at].block = block;
            let host = self.contenders[at].host;
            self.read(now, at, &mut hosts[host], Then::Look);
        }
    }

    fn read<N: Network>(&mut self, now: Duration, at: usize, host: &mut Host<N>, then: Then) {
        let contender = &mut self.contenders[at];
        let look = self.registers[contender.block as usize].look();
        (contender.doing, contender.since) = (Doing::Reads { look, then }, now);
        let range = BlockRange::new(self.base + contender.block, 1);
        let into = host.contest_buffer(contender.path);
        host.paths[contender.path].submit(Tag(SLOTS as u64), Nsid(1), BlockOp::Read { range, into });
    }

    fn on_event<N: Network>(
        &mut self,
        now: Duration,
        at: usize,
        host: &mut Host<N>,
        rights: &Rights,
        event: Event,
    ) {
        match event {
            Event::Read(result) => self.on_read(now, at, host, rights, result),
            Event::Ended(number, status) => {
                let Doing::Replaces { compare, write, .. } = &mut self.contenders[at].doing else {
                    panic!("a response too many");
                };
                let half = if number == COMPARE { &mut *compare } else { &mut *write };
                assert!(half.replace(status).is_none(), "a command ended twice");
                if let (Some(compare), Some(write)) = (*compare, *write) {
                    self.on_pair(now, at, host, rights, compare, write);
                }
            }
        }
    }

    fn on_read<N: Network>(
        &mut self,
        now: Duration,
        at: usize,
        host: &mut Host<N>,
        rights: &Rights,
        result: Result<(), BlockError>,
    ) {
        let contender = &mut self.contenders[at];
        let Doing::Reads { look, then } = contender.doing else { panic!("a read ended twice") };
        let what = format!(
            "host {}, path {}, read of contested block {}",
            contender.host, contender.path, contender.block
        );
        let register = &mut self.registers[contender.block as usize];
        if let Err(error) = result {
            let reach = Reach { end: self.base + contender.block + 1, writes: false };
            let path = &host.paths[contender.path];
            if !path.may_fail(now, contender.since, error) {
                rights.check_refusal(path.id, &[reach], contender.since, error, &what);
            }
            contender.doing = match then {
                Then::Settle(value) => Doing::Settles(value),
                _ => Doing::Nothing,
            };
            return self.pause(now, at);
        }
        let seen = host.contest_content(contender.path);
        register.seen(seen, look, &what);
        contender.doing = Doing::Nothing;
        match then {
            Then::Settle(value) => return register.settle(value, seen),
            Then::Look => return,
            Then::Replace => {}
        }
        // Sometimes it expects what was there before.
        let expected = if self.rng.percent(15) { self.rng.below(seen + 1) } else { seen };
        let value = register.begin(expected);
        (contender.doing, contender.since) = (Doing::Replaces { value, compare: None, write: None }, now);
        let slba = self.base + contender.block;
        let path = &mut host.paths[contender.path];
        let (in_capsule, from_medium) = (self.rng.percent(50), self.rng.percent(20));
        let half = |opcode: NvmOpcode, fused: FusedOperation, fua, content: u64| {
            let bytes: Vec<u8> = match content {
                0 => vec![0; BLOCK],
                _ => [NOBODYS, content].map(u64::to_le_bytes).concat().repeat(BLOCK / 16),
            };
            let mut sqe = ReadWrite { fua, ..ReadWrite::new(slba, 1) }.emit(opcode, Nsid(1));
            sqe.flags = fused.emit(sqe.flags);
            AdminCommand { command: Command::new(sqe), data: AdminData::ToController { bytes, in_capsule } }
        };
        path.send_raw(COMPARE, half(NvmOpcode::COMPARE, FusedOperation::FIRST, from_medium, expected));
        path.send_raw(WRITE, half(NvmOpcode::WRITE, FusedOperation::SECOND, true, value));
    }

    /// Both commands have ended.
    fn on_pair<N: Network>(
        &mut self,
        now: Duration,
        at: usize,
        host: &mut Host<N>,
        rights: &Rights,
        compare: Option<Status>,
        write: Option<Status>,
    ) {
        let contender = &mut self.contenders[at];
        let Doing::Replaces { value, .. } = contender.doing else { return };
        let (path, since) = (contender.path, contender.since);
        let what = format!(
            "host {}, path {path}, Compare and Write of value {value} to contested block {}: {compare:?}, {write:?}",
            contender.host, contender.block
        );
        if super::prints_events() {
            println!("{now:?}: {what}");
        }
        let register = &mut self.registers[contender.block as usize];
        let fails = |status: Option<Status>| status.is_some_and(|status| !status.is_success());
        let of_pair = |status: &Status| {
            status.is_success()
                || status.is(Status::ABORTED_FAILED_FUSED)
                || status.is(Status::ABORTED_MISSING_FUSED)
        };
        let reach = Reach { end: self.base + contender.block + 1, writes: true };
        contender.doing = Doing::Nothing;
        match (compare, write) {
            (Some(one), Some(two)) if one.is_success() && two.is_success() => {
                self.won += 1;
                return register.won(value, &what);
            }
            (Some(one), two) if one.is(Status::COMPARE_FAILURE) => {
                assert!(two.is_none_or(|two| two.is(Status::ABORTED_FAILED_FUSED)), "{what}");
                self.differed += 1;
                return register.differed(value, &what);
            }
            _ => {}
        }
        for status in [compare, write].into_iter().flatten().filter(|status| !of_pair(status)) {
            host.check_status(rights, path, status, &[reach], since, &what);
        }
        assert!(!fails(compare) || write.is_none_or(|write| !write.is_success()), "{what}");
        let of_compare = write.is_some_and(|write| write.is(Status::ABORTED_FAILED_FUSED));
        if fails(compare) || of_compare {
            register.had_no_effect(value);
        } else {
            register.lost_sight(value);
            contender.doing = Doing::Settles(value);
        }
        self.pause(now, at);
    }

    fn pause(&mut self, now: Duration, at: usize) {
        self.contenders[at].not_before = now + Duration::from_micros(self.rng.below(3000));
    }
}
