//! Target: commands to an enabled controller with an Admin queue and an I/O queue.

use crate::disk::{self, BLOCK_SIZE, START, TRANSFER_LEN_MAX};
use crate::input::Input;
use core::time::Duration;
use nvme_proto::{Cntlid, Cqe};
use nvmf_block::{BlockError, BlockRange};
use nvmf_subsystem::{
    Answer, BlockWork, CompareAndWriteWork, CopyWork, Nsid, Queue, Registry, Source, Step, Ticket, Transfer,
    Violation, Work, limits,
};
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// Capsules for both queues, results of the work that they ask for in any order, time, and namespaces that come, go and
/// change. Every command is answered once, and no work exceeds the bounds of its namespace, its capsule or MDTS.
///
/// # Panics
/// When an invariant is violated.
pub fn capsule(data: &[u8]) {
    let mut input = Input::new(data);
    let mut registry = disk::registry();
    let admin = disk::connect(&mut registry, START, 0, Cntlid::DYNAMIC).expect("a valid Connect");
    let mut admin = Side::new(admin);
    disk::enable(&mut admin.queue, START);
    let cntlid = admin.queue.association().expect("connected").key().cntlid;
    let io = disk::connect(&mut registry, START, 1, cntlid).expect("a valid Connect");
    let mut io = Side::new(io);
    let mut now = START;
    while !input.is_empty() && !admin.over {
        let event = input.u8();
        let side = if event & 0x80 == 0 { &mut io } else { &mut admin };
        match event & 7 {
            0..=3 => side.on_capsule(now, &input.array(), usize::from(input.u16())),
            4 => side.finish(now, &mut input, Ok(())),
            5 => side.finish(now, &mut input, Err(BlockError::Medium)),
            6 => {
                now += Duration::from_millis(input.u16().into());
                side.queue.on_timeout(now);
            }
            _ => change(&mut registry, &mut input, now, [&mut admin, &mut io]),
        }
        for side in [&mut admin, &mut io] {
            side.poll(now);
        }
    }
    for (side, qid) in [(io, 1), (admin, 0)] {
        let association = side.queue.association().expect("connected").clone();
        side.close(now);
        let _ = registry.close_queue(&association, nvmf_subsystem::Qid(qid));
    }
    assert_eq!(registry.associations().count(), 0, "every association ends with its queues");
}

/// Adds, removes or resizes namespace 2.
fn change(registry: &mut Registry, input: &mut Input<'_>, now: Duration, sides: [&mut Side; 2]) {
    let (nqn, blocks) = (disk::subsystem_nqn(), u64::from(input.u16()));
    let _ = registry.remove_namespace(&nqn, Nsid(2));
    if blocks > 0 {
        let _ = registry.add_namespace(&nqn, disk::namespace(2, blocks, blocks & 1 == 0));
    }
    let notices = registry.take_notices();
    for side in sides {
        notices.iter().for_each(|notice| side.queue.on_notice(now, notice));
    }
}

/// A queue with the state that its transport keeps.
struct Side {
    queue: Queue,
    /// Outstanding work of the transport.
    work: Vec<InProgress>,
    /// By Command ID: number of commands minus number of responses.
    open: BTreeMap<u16, i64>,
    over: bool,
}

/// A command that the transport is executing.
struct InProgress {
    ticket: Ticket,
    /// Bytes of the parameters to fetch, if the engine requested parameters.
    parameters: Option<u32>,
    /// Bytes of in-capsule data, which stay in the capsule until the response.
    in_capsule_len: usize,
}

impl Side {
    fn new(queue: Queue) -> Self {
        Self { queue, work: Vec::new(), open: BTreeMap::new(), over: false }
    }

    fn on_capsule(&mut self, now: Duration, sqe: &[u8; 64], in_capsule_len: usize) {
        if self.over {
            return;
        }
        *self.open.entry(u16::from_le_bytes([sqe[2], sqe[3]])).or_default() += 1;
        let step = self.queue.on_capsule(now, sqe, in_capsule_len);
        self.take(step, in_capsule_len);
    }

    fn finish(&mut self, now: Duration, input: &mut Input<'_>, result: Result<(), BlockError>) {
        if self.work.is_empty() {
            return;
        }
        let at = usize::from(input.u8()) % self.work.len();
        let InProgress { ticket, parameters, in_capsule_len } = self.work.swap_remove(at);
        let step = match parameters {
            Some(len) => {
                let mut bytes = input.take(len as usize).to_vec();
                bytes.resize(len as usize, 0);
                self.queue.on_parameters(now, ticket, &bytes)
            }
            None => self.queue.on_done(now, ticket, result),
        };
        self.take(step, in_capsule_len);
    }

    fn poll(&mut self, now: Duration) {
        while let Some(step) = self.queue.poll_step(now) {
            self.take(step, 0);
        }
    }

    fn take(&mut self, step: Step, in_capsule_len: usize) {
        match step {
            Step::Respond(response) => {
                let cqe = Cqe::read_from_bytes(&response.cqe).expect("16 bytes");
                let open = self.open.entry(cqe.cid.get()).or_default();
                *open -= 1;
                assert!(*open >= 0, "a response without a command: {cqe:?}");
            }
            Step::Execute { ticket, work, transfer } => {
                check(&work, transfer, in_capsule_len);
                let parameters = match (work, transfer) {
                    (Work::Parameters, Transfer::FromHost { len, .. }) => Some(len),
                    _ => None,
                };
                self.work.push(InProgress { ticket, parameters, in_capsule_len });
            }
            Step::Ask { ticket, .. } => {
                let step = self.queue.on_answer(START, ticket, Answer::Reservation(Ok(())));
                self.take(step, in_capsule_len);
            }
            Step::Held | Step::CloseIoQueues => {}
            Step::Connect(_) => panic!("a second Connect"),
            Step::CloseAssociation(Violation::QueueOverrun { .. }) => {
                // The command that violated the protocol gets no response.
                self.over = true;
            }
            Step::CloseQueue | Step::CloseAssociation(_) => self.over = true,
        }
    }

    /// Finishes the transport's work, unless the connection is closed.
    fn close(mut self, now: Duration) {
        let mut rest = Input::new(&[]);
        while !self.over && !self.work.is_empty() {
            self.finish(now, &mut rest, Ok(()));
        }
        if !self.over {
            // Only Asynchronous Event Requests remain outstanding in the engine.
            let open: i64 = self.open.values().sum();
            assert_eq!(i64::from(self.queue.in_flight()), open, "{:?}", self.open);
            assert!(usize::try_from(open).expect("not negative") <= limits::ASYNC_EVENT_REQUESTS_MAX);
        }
        self.work.into_iter().for_each(|work| work.ticket.abandon());
    }
}

/// Checks that the work is within the limits of the namespace, the capsule and MDTS.
fn check(work: &Work, transfer: Transfer, in_capsule_len: usize) {
    let len = match transfer {
        Transfer::None => 0,
        Transfer::FromHost { len, .. } | Transfer::ToHost { len, .. } => len,
    };
    assert!(len <= TRANSFER_LEN_MAX, "{transfer:?} is longer than MDTS");
    if let Transfer::FromHost { source: Source::InCapsule { offset }, .. } = transfer {
        assert!(offset as usize + len as usize <= in_capsule_len, "{transfer:?} of {in_capsule_len}");
    }
    match work {
        Work::Parameters => assert!(len as usize <= limits::PARAMETERS_LEN_MAX),
        Work::Page(page) => {
            let mut bytes = vec![0xaa; (len as usize).min(10_000)];
            page.fill(len / 2, &mut bytes);
        }
        Work::Block { op, .. } => match op {
            BlockWork::Read { range } | BlockWork::Write { range, .. } | BlockWork::Compare { range } => {
                assert_eq!(range.blocks * u64::from(BLOCK_SIZE), u64::from(len), "{op:?} {transfer:?}");
                check_range(*range);
            }
            BlockWork::WriteZeroes { range, .. } | BlockWork::Verify { range } => check_range(*range),
            BlockWork::Deallocate(ranges) => {
                assert!((1..=limits::DSM_RANGES_MAX).contains(&ranges.len()));
                ranges.iter().copied().for_each(check_range);
            }
            BlockWork::CompareAndWrite(work) => {
                let CompareAndWriteWork { range, data, .. } = &**work;
                assert_eq!(transfer, Transfer::None);
                assert_eq!(2 * range.blocks * u64::from(BLOCK_SIZE), data.len() as u64);
                check_range(*range);
            }
            BlockWork::Copy(copy) => {
                let CopyWork { sources, to, .. } = &**copy;
                assert_eq!(transfer, Transfer::None);
                let total: u64 = sources.iter().map(|source| source.range.blocks).sum();
                assert_eq!(total, to.blocks);
                sources.iter().map(|source| source.range).for_each(check_range);
                check_range(*to);
            }
            BlockWork::Flush => assert_eq!(transfer, Transfer::None),
        },
    }
}

/// Checks a range against the largest namespace, which has 65535 blocks.
fn check_range(range: BlockRange) {
    let end = range.start.checked_add(range.blocks).expect("no overflow");
    assert!(end <= u64::from(u16::MAX), "{range:?}");
}
