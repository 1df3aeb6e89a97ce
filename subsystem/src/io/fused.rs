//! Compare and Write, the fused operation: a Compare, and behind it on the same queue a Write of the same block, which
//! takes place only if the Compare succeeds.
//!
//! The data of both come first, as parameters; the device is then given one operation. A Compare whose Write has not
//! come yet waits here, without a request of the transport's, for the next command of its queue, however late that
//! is. Both responses leave through [`Fused::poll_response`], that of the Compare first.

use super::{Io, IoKind, check_range};
use crate::access::Need;
use crate::data::{self, Fit};
use crate::limits::PARAMETERS_LEN_MAX;
use crate::namespace::NamespaceDefinition;
use crate::status::{self, Direction};
use crate::step::{BlockWork, CompareAndWriteWork, Transfer, Work};
use crate::ticket::{Kind, Outcome, Reply};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;
use nvme_proto::nvm::ReadWrite;
use nvme_proto::nvm::fused::{FusedCommand, FusedOperation, Unfused, compare_and_write};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cid, Nsid, Sqe, Status};
use nvmf_block::{BlockError, BlockRange, DeviceId};

/// The logical blocks of a Compare and Write: ACWU is 0 (one block).
const BLOCKS: u32 = 1;

/// The fused operations of one queue.
#[derive(Debug, Default)]
pub(crate) struct Fused {
    /// In the order in which they came. Of those that are complete nothing is left.
    pairs: Vec<Pair>,
    /// What a command marked second finds before it.
    before: Before,
    /// Responses that are due.
    responses: VecDeque<FusedResponse>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// No command marked first.
    #[default]
    Nothing,
    /// The first half of the last pair.
    First,
    /// A first half that has failed by itself.
    Failed,
}

#[derive(Debug, Default)]
struct Pair {
    first: Option<Half>,
    second: Option<Half>,
}

/// A command of a pair.
#[derive(Debug)]
struct Half {
    answer_to: AnswerTo,
    command: FusedCommand,
    fua: bool,
    /// `None`: they are under way.
    data: Option<Box<[u8]>>,
    /// What it fails with, once its data are not under way any more.
    fate: Option<Status>,
}

/// Whom a response is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerTo {
    pub(crate) cid: Cid,
    pub(crate) invalidate: Option<u32>,
}

/// A response that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FusedResponse {
    pub(crate) to: AnswerTo,
    pub(crate) status: Status,
}

/// A Compare and Write that the device has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Running {
    first: AnswerTo,
    second: AnswerTo,
    bytes: u64,
    /// The operation, if the cache is being flushed before it.
    then: Option<(DeviceId, BlockWork)>,
}

impl Fused {
    /// Whether the command is marked first or second. If not, a first half before it has no second one.
    pub(crate) fn takes(&mut self, sqe: &Sqe) -> bool {
        let is_fused = FusedOperation::parse(sqe.flags) != FusedOperation::NORMAL;
        if self.before != Before::Nothing && !is_fused {
            self.on_other();
        }
        is_fused
    }

    /// Whether a response is due.
    pub(crate) fn has_response(&self) -> bool {
        !self.responses.is_empty()
    }

    /// The next response.
    pub(crate) fn poll_response(&mut self) -> Option<FusedResponse> {
        self.responses.pop_front()
    }

    /// A command that is not part of a pair: the first half before it has no second one.
    pub(crate) fn on_other(&mut self) {
        if core::mem::take(&mut self.before) == Before::First
            && let Some(first) = self.pairs.last_mut().and_then(|pair| pair.first.as_mut())
        {
            first.fate = Some(Status::ABORTED_MISSING_FUSED);
            self.settle();
        }
    }

    /// A command marked first or second.
    pub(crate) fn on_command(
        &mut self,
        io: &Io,
        sqe: &Sqe,
        invalidate: Option<u32>,
        in_capsule_len: usize,
    ) -> Outcome {
        if let Err(status) = io.check_live() {
            self.on_other();
            return Err(status);
        }
        let half = Half::new(sqe, invalidate);
        match half.command.fuse {
            FusedOperation::FIRST => self.on_first(io, sqe, half, in_capsule_len),
            FusedOperation::SECOND => self.on_second(io, sqe, half, in_capsule_len),
            _ => {
                self.on_other();
                Err(status::INVALID_FIELD)
            }
        }
    }

    fn on_first(&mut self, io: &Io, sqe: &Sqe, half: Half, in_capsule_len: usize) -> Outcome {
        self.on_other();
        if half.command.opcode != NvmOpcode::COMPARE {
            return Err(status::INVALID_OPCODE);
        }
        self.before = Before::Failed;
        let transfer = transfer(io, sqe, &half.command, in_capsule_len)?;
        self.before = Before::First;
        let to = half.answer_to;
        self.pairs.push(Pair { first: Some(half), second: None });
        Ok(parameters(to, transfer))
    }

    fn on_second(&mut self, io: &Io, sqe: &Sqe, half: Half, in_capsule_len: usize) -> Outcome {
        match core::mem::take(&mut self.before) {
            Before::Nothing => return Err(Status::ABORTED_MISSING_FUSED),
            Before::Failed => return Err(Status::ABORTED_FAILED_FUSED),
            Before::First => {}
        }
        let pair = self.pairs.last_mut().expect("what came before is the last");
        let first = pair.first.as_mut().expect("one that has failed is not what came before");
        let to = half.answer_to;
        let fits = compare_and_write(first.command, half.command).map_err(finally);
        let moved = fits.and_then(|()| {
            transfer(io, sqe, &half.command, in_capsule_len)
                .map_err(|status| Unfused { first: Some(Status::ABORTED_FAILED_FUSED), second: Some(status) })
        });
        match moved {
            Ok(transfer) => {
                pair.second = Some(half);
                Ok(parameters(to, transfer))
            }
            Err(Unfused { first: of_first, second: of_second }) => {
                first.fate = of_first;
                // Nothing of it is under way.
                pair.second = Some(Half { data: Some(Box::default()), fate: of_second, ..half });
                self.settle();
                Ok(Reply::Held)
            }
        }
    }

    /// The data of a half are here.
    pub(crate) fn on_parameters(&mut self, io: &Io, cid: Cid, parameters: &[u8]) -> Outcome {
        let half = self.half(cid).expect("the data of a command that waits for them");
        half.data = Some(parameters.into());
        self.settle();
        let ready = |pair: &Pair| pair.halves().all(|half| half.is_some_and(|half| half.data.is_some()));
        let Some(at) = self.pairs.iter().position(ready) else { return Ok(Reply::Held) };
        let Pair { first: Some(first), second: Some(second) } = self.pairs.remove(at) else {
            unreachable!("both are there");
        };
        // The namespace, and what this host may do with it, may have changed meanwhile.
        match run(io, &first, &second) {
            Ok(reply) => Ok(reply),
            Err((of_first, of_second)) => {
                self.answer(first.answer_to, of_first);
                self.answer(second.answer_to, of_second);
                Ok(Reply::Held)
            }
        }
    }

    /// The data of a half were damaged on their way.
    pub(crate) fn on_transfer_failed(&mut self, cid: Cid) {
        let Some(at) = self.pairs.iter().position(|pair| pair.has(cid)) else { return };
        let is_open = self.before == Before::First && at + 1 == self.pairs.len();
        let pair = &mut self.pairs[at];
        let [first, second] = [&mut pair.first, &mut pair.second];
        for half in [first, second].into_iter().flatten() {
            let failed = half.answer_to.cid == cid;
            let cause = if failed { Status::TRANSIENT_TRANSPORT_ERROR } else { Status::ABORTED_FAILED_FUSED };
            // What was refused before stays refused for that reason.
            half.fate = half.fate.or(Some(cause));
            if failed {
                half.data = Some(Box::default());
            }
        }
        if is_open {
            self.before = Before::Failed;
        }
        self.settle();
    }

    /// The device is done with a pair, or with the flush before it.
    pub(crate) fn on_done(
        &mut self,
        io: &mut Io,
        now: Duration,
        running: Running,
        result: Result<(), BlockError>,
    ) -> Outcome {
        let Running { first, second, bytes, then } = running;
        match (result, then) {
            (Ok(()), Some((device, op))) => {
                return Ok(execute(device, op, Running { first, second, bytes, then: None }));
            }
            (Ok(()), None) => io.tally.on_write(now, bytes),
            (Err(error), _) => io.count_error(error),
        }
        let failed = Status::ABORTED_FAILED_FUSED;
        let of = status::of_block_error;
        let (of_first, of_second) = match result {
            Ok(()) => (Status::SUCCESS, Status::SUCCESS),
            // Nothing was written: the Compare has failed.
            Err(
                error @ (BlockError::CompareFailed
                | BlockError::NotCompared
                | BlockError::OutOfRange
                | BlockError::BadBuffer
                | BlockError::Gone
                | BlockError::Unsupported),
            ) => (of(error, Direction::Read), failed),
            // How far it came is not known.
            Err(error @ BlockError::Path) => (of(error, Direction::Read), of(error, Direction::Write)),
            Err(error) => (Status::SUCCESS, of(error, Direction::Write)),
        };
        self.answer(first, of_first);
        self.answer(second, of_second);
        Ok(Reply::Held)
    }

    /// The pair may not go to the device any more: nothing was compared.
    pub(crate) fn on_refused(&mut self, running: &Running, status: Status) {
        self.answer(running.first, Status::ABORTED_FAILED_FUSED);
        self.answer(running.second, status);
    }

    fn half(&mut self, cid: Cid) -> Option<&mut Half> {
        let pair = self.pairs.iter_mut().find(|pair| pair.has(cid))?;
        [&mut pair.first, &mut pair.second].into_iter().flatten().find(|half| half.answer_to.cid == cid)
    }

    fn answer(&mut self, to: AnswerTo, status: Status) {
        self.responses.push_back(FusedResponse { to, status });
    }

    /// Answers the halves that fail and have nothing under way, first before second.
    fn settle(&mut self) {
        let Self { pairs, responses, .. } = self;
        pairs.retain_mut(|pair| {
            for half in [&mut pair.first, &mut pair.second] {
                let fails = half.as_ref().is_some_and(|half| half.fate.is_some());
                if let Some(Half { answer_to, fate: Some(status), .. }) =
                    half.take_if(|half| half.fate.is_some() && half.data.is_some())
                {
                    responses.push_back(FusedResponse { to: answer_to, status });
                } else if fails {
                    return true;
                }
            }
            pair.halves().any(|half| half.is_some())
        });
    }
}

impl Pair {
    fn halves(&self) -> impl Iterator<Item = Option<&Half>> {
        [self.first.as_ref(), self.second.as_ref()].into_iter()
    }

    fn has(&self, cid: Cid) -> bool {
        self.halves().flatten().any(|half| half.answer_to.cid == cid)
    }
}

impl Half {
    fn new(sqe: &Sqe, invalidate: Option<u32>) -> Self {
        let rw = ReadWrite::parse(sqe);
        Self {
            answer_to: AnswerTo { cid: sqe.cid(), invalidate },
            command: FusedCommand {
                fuse: FusedOperation::parse(sqe.flags),
                opcode: NvmOpcode(sqe.opcode),
                nsid: sqe.nsid(),
                slba: rw.slba,
                blocks: rw.blocks,
            },
            fua: rw.fua,
            data: None,
            fate: None,
        }
    }
}

/// What a half brings, if the command may be carried out.
fn transfer(io: &Io, sqe: &Sqe, command: &FusedCommand, in_capsule_len: usize) -> Result<Transfer, Status> {
    let (namespace, _) = check(io, command.opcode, command.nsid, command.slba, command.blocks)?;
    if ReadWrite::parse(sqe).directive != 0 {
        return Err(status::INVALID_FIELD);
    }
    data::from_host(sqe, namespace.geometry.block_size, Fit::Exact, in_capsule_len)
}

/// The checks of a half, in the order of those of other commands.
fn check(
    io: &Io,
    opcode: NvmOpcode,
    nsid: Nsid,
    slba: u64,
    blocks: u32,
) -> Result<(&NamespaceDefinition, BlockRange), Status> {
    let namespace = io.namespace(nsid, Need::of(opcode))?;
    let range = check_range(namespace, slba, blocks)?;
    if opcode == NvmOpcode::WRITE && namespace.is_read_only() {
        return Err(status::NAMESPACE_WRITE_PROTECTED);
    }
    if blocks != BLOCKS {
        return Err(status::ATOMIC_WRITE_UNIT_EXCEEDED);
    }
    // The data go through the engine, which takes no more.
    if namespace.geometry.block_size as usize > PARAMETERS_LEN_MAX {
        return Err(status::INVALID_FIELD);
    }
    Ok((namespace, range))
}

/// Both halves are here: one operation of the device, or the statuses of both.
fn run(io: &Io, first: &Half, second: &Half) -> Result<Reply, (Status, Status)> {
    let checked = |half: &Half| {
        let FusedCommand { opcode, nsid, slba, blocks, .. } = half.command;
        check(io, opcode, nsid, slba, blocks)
    };
    let failed = Status::ABORTED_FAILED_FUSED;
    checked(first).map_err(|status| (status, failed))?;
    let (namespace, range) = checked(second).map_err(|status| (failed, status))?;
    let block = namespace.geometry.block_size as usize;
    let (Some(expected), Some(new)) = (&first.data, &second.data) else { return Err((failed, failed)) };
    if expected.len() != block || new.len() != block {
        // The NSID has another namespace now.
        return Err((status::INVALID_NAMESPACE, failed));
    }
    let through = namespace.geometry.volatile_write_cache && !io.association.write_cache();
    let op = BlockWork::CompareAndWrite(Box::new(CompareAndWriteWork {
        range,
        data: [&expected[..], &new[..]].concat().into(),
        fua: second.fua || through,
    }));
    let (device, flushes) = (namespace.device, first.fua && namespace.geometry.volatile_write_cache);
    let (op, then) = if flushes { (BlockWork::Flush, Some((device, op))) } else { (op, None) };
    let running = Running { first: first.answer_to, second: second.answer_to, bytes: block as u64, then };
    Ok(execute(device, op, running))
}

fn execute(device: DeviceId, op: BlockWork, running: Running) -> Reply {
    let kind = Kind::Io(IoKind::Fused(Box::new(running)));
    Reply::Execute { kind, work: Work::Block { device, op }, transfer: Transfer::None }
}

fn parameters(to: AnswerTo, transfer: Transfer) -> Reply {
    let kind = Kind::Io(IoKind::FusedData { cid: to.cid });
    Reply::Execute { kind, work: Work::Parameters, transfer }
}

/// What a retry would only see again is final. A half that missed the other one may find it then.
fn finally(unfused: Unfused) -> Unfused {
    let of = |status: Option<Status>| {
        status.map(|status| if status == Status::ABORTED_MISSING_FUSED { status } else { status.with_dnr() })
    };
    Unfused { first: of(unfused.first), second: of(unfused.second) }
}
