//! What the target may answer on one connection.

use nvme_proto::fabrics::connect::{Connect, Connected};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cntlid, Cqe, Sgl, Sqe};
use std::collections::BTreeMap;

/// Commands of a connection that have no response yet, and where its submission queue stands.
#[derive(Default)]
pub(super) struct Ledger {
    commands: BTreeMap<u16, Outstanding>,
    /// Bytes were sent that are no PDU of ours: nobody knows which commands they were.
    inexact: bool,
    /// Commands that were sent, responses that came.
    sent: u64,
    responses: u64,
    queue: Option<Submission>,
    /// A controller that was connected, until somebody takes note of it.
    cntlid: Option<Cntlid>,
}

/// The commands with one CID.
struct Outstanding {
    sqe: Sqe,
    count: u32,
    /// There never was another with the CID beside it: its data are known.
    sole: bool,
    /// Bytes that came, and bytes that were asked for.
    received: u32,
    asked: u32,
}

/// What the Connect agreed on.
#[derive(Clone, Copy)]
struct Submission {
    qid: u16,
    entries: u16,
    flow_control: bool,
    /// SQHD, and how far it has moved in all.
    head: u16,
    moved: u64,
}

impl Ledger {
    /// From now on the target may take what was sent for any command.
    pub(super) fn give_up(&mut self) {
        self.inexact = true;
    }

    pub(super) fn on_sent(&mut self, sqe: &Sqe) {
        self.sent += 1;
        let fresh = Outstanding { sqe: *sqe, count: 0, sole: true, received: 0, asked: 0 };
        let outstanding = self.commands.entry(sqe.cid.get()).or_insert(fresh);
        outstanding.count += 1;
        outstanding.sole = outstanding.count == 1;
    }

    /// The CID of a command without a response, the nth.
    pub(super) fn outstanding(&self, nth: usize) -> Option<u16> {
        let count = self.commands.len();
        (count > 0).then(|| *self.commands.keys().nth(nth % count).expect("less than there are"))
    }

    /// The controller that was connected since this was asked last.
    pub(super) fn take_cntlid(&mut self) -> Option<Cntlid> {
        self.cntlid.take()
    }

    pub(super) fn on_response(&mut self, cqe: &Cqe) {
        if self.inexact {
            return;
        }
        self.responses += 1;
        assert!(self.responses <= self.sent, "more responses than commands: {cqe:?}");
        let (sqe, sole) = self.end(cqe.cid.get(), cqe.status().is_success());
        let is_connect = super::command::is_connect(&sqe);
        // Of several commands with the CID, nobody knows which this is.
        if sole && is_connect && cqe.status().is_success() {
            let connect = Connect::parse(&sqe);
            if connect.qid.0 == 0 {
                self.cntlid = Some(Connected::parse(cqe.dw0.get()).cntlid);
            }
            let flow_control = !connect.attributes.disables_sq_flow_control();
            let entries = connect.sqsize_z + 1;
            self.queue = Some(Submission { qid: connect.qid.0, entries, flow_control, head: 0, moved: 0 });
        }
        self.check_head(cqe);
    }

    /// The head is within the queue, and not ahead of the host.
    fn check_head(&mut self, cqe: &Cqe) {
        let Some(queue) = &mut self.queue else { return };
        let head = cqe.sqhd.get();
        if !queue.flow_control {
            return assert_eq!(head, Cqe::SQHD_NONE, "without flow control: {cqe:?}");
        }
        assert!(head < queue.entries, "a queue of {} entries: {cqe:?}", queue.entries);
        let step = (head + queue.entries - queue.head) % queue.entries;
        queue.moved += u64::from(step);
        queue.head = head;
        assert!(queue.moved <= self.sent, "the head is ahead of the host: {cqe:?}");
    }

    /// C2HData with SUCCESS, which is in place of a response.
    pub(super) fn on_success(&mut self, cid: u16) {
        if self.inexact {
            return;
        }
        self.responses += 1;
        self.end(cid, true);
        let flow_control = self.queue.is_none_or(|queue| queue.flow_control);
        assert!(!flow_control, "no response, though the host waits for its SQHD: CID {cid:#x}");
    }

    fn end(&mut self, cid: u16, success: bool) -> (Sqe, bool) {
        let Some(outstanding) = self.commands.get_mut(&cid) else {
            panic!("a response to no command: {cid:#x}")
        };
        outstanding.count -= 1;
        let is_io = self.queue.is_some_and(|queue| queue.qid > 0);
        if outstanding.sole && success && is_io && outstanding.sqe.opcode == NvmOpcode::READ.0 {
            let blocks = u32::from(outstanding.sqe.cdw12.get() as u16) + 1;
            let received = outstanding.received;
            assert!(
                received == 0 || received == blocks * crate::disk::BLOCK_SIZE,
                "{received} of {blocks} blocks"
            );
        }
        let ended = (outstanding.sqe, outstanding.sole);
        if outstanding.count == 0 {
            self.commands.remove(&cid);
        }
        ended
    }

    /// C2HData: in order, and no more than the command has room for.
    pub(super) fn on_data(&mut self, cid: u16, offset: u32, len: u32) {
        if let Some(outstanding) = self.known(cid) {
            assert_eq!(offset, outstanding.received, "data out of order, CID {cid:#x}");
            outstanding.received += len;
            assert!(outstanding.received <= transfer_len(&outstanding.sqe), "too many data, CID {cid:#x}");
        }
    }

    /// R2T: likewise.
    pub(super) fn on_r2t(&mut self, cid: u16, offset: u32, len: u32) {
        if let Some(outstanding) = self.known(cid) {
            assert_eq!(offset, outstanding.asked, "R2T out of order, CID {cid:#x}");
            outstanding.asked += len;
            assert!(len > 0 && outstanding.asked <= transfer_len(&outstanding.sqe), "R2T of CID {cid:#x}");
        }
    }

    fn known(&mut self, cid: u16) -> Option<&mut Outstanding> {
        if self.inexact {
            return None;
        }
        let Some(outstanding) = self.commands.get_mut(&cid) else { panic!("data of no command: {cid:#x}") };
        outstanding.sole.then_some(outstanding)
    }

    /// Whether a command named this key, to be invalidated.
    pub(super) fn names_key(&self, cid: u16, key: u32) -> bool {
        let Some(outstanding) = self.commands.get(&cid) else { return false };
        // Of several with the CID, any may have.
        !outstanding.sole
            || matches!(outstanding.sqe.sgl.parse(), Ok(Sgl::Keyed { key: named, invalidate: true, .. }) if named == key)
    }
}

/// Bytes that the SGL has room for.
fn transfer_len(sqe: &Sqe) -> u32 {
    sqe.sgl.parse().map_or(0, |sgl| sgl.len())
}
