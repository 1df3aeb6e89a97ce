//! Block operations, given to paths and issued there part by part.

use super::Driver;
use super::heads::Admission;
use super::op::Op;
use super::operation::{OTHERS, READS, Wait};
use crate::Effect;
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::{Nsid, Status};
use nvmf_block::{BlockError, BlockRange, Geometry};
use nvmf_host::io::{Operation, Parts};
use nvmf_host::{Association, Fate, Namespace, Outcome, Recovery, status};

/// Time between two scans of the namespaces that a status causes.
const DOUBT_INTERVAL: Duration = Duration::from_secs(1);

impl<T: Transport> Driver<T> {
    /// Issues parts while there is room.
    pub(super) fn issue(&mut self, now: Duration) {
        self.look_at_fences(now);
        self.look_at_scans(now);
        loop {
            while let Some(index) = self.operations.pop_unrouted() {
                if let Some(nsid) = self.operations.get(index).map(|operation| operation.nsid) {
                    self.route(index, self.heads.admission(nsid));
                }
            }
            self.issue_admin(now);
            for path in 0..self.paths.len() {
                self.issue_on(now, path);
            }
            // What a path may not have any more goes to another.
            if !self.operations.has_unrouted() {
                return;
            }
        }
    }

    /// Gives an operation that has nothing in flight to a path, or has it wait for one.
    pub(super) fn route(&mut self, index: u32, admission: Admission) {
        match admission {
            Admission::Fail(error) => self.operations.end(index, Err(error)),
            Admission::On(paths) => {
                let avoid = self.operations.get(index).and_then(|operation| operation.avoid);
                let paths = avoid.map_or(paths, |avoid| paths.rather_without(avoid));
                match self.operations.chooser.choose(paths) {
                    Some(path) => self.operations.route(index, path),
                    None => self.operations.wait(index, Wait::Path),
                }
            }
        }
    }

    fn issue_on(&mut self, now: Duration, path: usize) {
        self.paths[path].send_seconds(now);
        // While a change is looked into, nobody knows which disk is where: what can goes another way.
        let association = self.paths[path].association.as_ref();
        if !self.paths[path].is_ready() {
            return;
        }
        if association.is_none_or(Association::is_scanning) {
            let heads = &self.heads;
            let leads = |nsid| matches!(heads.admission(nsid), Admission::On(paths) if paths.contains(path));
            return self.operations.leave_path(path, leads);
        }
        for kind in [READS, OTHERS] {
            while let Some(&index) = self.operations.ready[path][kind].front()
                && let Some(queue) =
                    self.paths[path].next_queue(kind, self.operations.commands_at_once(index))
                && self.issue_part(now, path, index, queue)
            {}
        }
    }

    /// Issues one part of the operation at the head of the path's queue; `false` when it could not be sent.
    fn issue_part(&mut self, now: Duration, path: usize, index: u32, queue: usize) -> bool {
        let Some((op, mut parts)) = self.begin(path, index) else { return true };
        let Some(part) = parts.next() else { return true };
        if !self.paths[path].send_part(now, queue, index, &op, &part) {
            return false;
        }
        let mut sent = 1;
        if op.is_pair()
            && let Some(second) = parts.next()
        {
            self.paths[path].send_second(now, queue, index, op, second);
            sent = 2;
        }
        self.operations.on_parts_sent(now, path, index, sent, parts);
        true
    }

    /// The parts of the operation at the head of the path's queue, of which there is at least one; `None` when it left the queue
    /// instead.
    fn begin(&mut self, path: usize, index: u32) -> Option<(Op, Parts)> {
        let operation = self.operations.get(index)?;
        let (nsid, op) = (operation.nsid, operation.op);
        if operation.is_held_back() {
            self.operations.pop_ready(path, index);
            self.operations.settle(index);
            return None;
        }
        let refused = match self.heads.admission(nsid) {
            Admission::On(paths) if paths.contains(path) => None,
            Admission::On(_) => Some(Ok(())),
            Admission::Fail(error) => Some(Err(error)),
        };
        if let Some(refused) = refused {
            // The parts that were issued were cut for what the path was before: it begins anew.
            operation.move_on();
            operation.error = refused.err();
            self.operations.pop_ready(path, index);
            self.operations.settle(index);
            return None;
        }
        let holds = |range: Option<BlockRange>, changes| {
            range.is_some_and(|range| self.fences.holds(nsid, range, changes))
        };
        if !self.fences.is_empty() && (holds(op.range(), op.writes()) || holds(op.source(), false)) {
            self.operations.pop_ready(path, index);
            let operation = self.operations.get(index)?;
            operation.move_on();
            if operation.outstanding == 0 {
                operation.begin_anew();
                self.operations.wait(index, Wait::Fence);
            }
            return None;
        }
        if let Some(parts) = &operation.parts {
            return Some((op, parts.clone()));
        }
        match self.split(path, nsid, op) {
            Ok(parts) if parts.remaining() > 0 => Some((op, parts)),
            Ok(_) => {
                self.operations.end(index, Ok(()));
                None
            }
            Err(error) => {
                self.operations.end(index, Err(error));
                None
            }
        }
    }

    fn split(&self, path: usize, nsid: Nsid, op: Op) -> Result<Parts, BlockError> {
        let path = &self.paths[path];
        let namespace = path.association.as_ref().and_then(|a| a.namespace(nsid)).ok_or(BlockError::Gone)?;
        // The range counts in blocks of the disk that was opened.
        if self.heads.block_size(nsid) != Some(namespace.geometry.block_size) {
            return Err(BlockError::Gone);
        }
        let operation = op.try_into()?;
        if operation == Operation::Flush && (self.heads.was_cached(nsid) || self.fences.has_cache()) {
            // Over a path that has not heard of the cache yet, too, and for what was written before the cache went.
            let geometry = Geometry { volatile_write_cache: true, ..namespace.geometry };
            return Namespace::new(nsid, geometry, namespace.limits).split(operation);
        }
        // It is what one of them says: others may not have heard of it yet.
        if operation.writes() && self.heads.geometry(nsid).is_some_and(|geometry| geometry.read_only) {
            return Err(BlockError::ReadOnly);
        }
        let parts = namespace.split(operation)?;
        if op.is_pair() && !path.has_room_for_pairs() {
            return Err(BlockError::Unsupported);
        }
        if let (Some(range), Some(buffer)) = (op.range(), op.buffer()) {
            let len = namespace.geometry.bytes_in(range).ok_or(BlockError::OutOfRange)?;
            if !op.fits(len) || !path.holds(&buffer) {
                return Err(BlockError::BadBuffer);
            }
        }
        Ok(parts)
    }

    /// A part has ended.
    pub(super) fn on_part(&mut self, now: Duration, path: usize, index: u32, outcome: Outcome) {
        if outcome.status.is_success() {
            self.operations.on_part_done(now, index);
        } else {
            self.on_part_failed(now, path, index, outcome.status);
        }
    }

    #[cold]
    fn on_part_failed(&mut self, now: Duration, path: usize, index: u32, status: Status) {
        let Some(operation) = self.operations.get(index) else { return };
        let (nsid, is_pair) = (operation.nsid, operation.op.is_pair());
        if is_pair && status.is(Status::ABORTED_FAILED_FUSED) {
            return self.operations.on_second_aborted(index);
        }
        // The standard's status for a namespace that is not active any more, and for much else: a scan tells which it is.
        let doubt = status.is(Status::INVALID_FIELD) && self.next_doubt <= now && !operation.doubted;
        if doubt {
            operation.doubted = true;
            self.next_doubt = now.saturating_add(DOUBT_INTERVAL);
            self.paths[path].scan(now);
        }
        if status::is_of_path(status) {
            self.paths[path].on_ana_status(now, nsid, status);
            self.check_heads(now, None);
        }
        let elsewhere = status::is_of_path(status)
            && matches!(self.heads.admission(nsid), Admission::On(paths) if paths.has_other_than(path));
        let (path, paths) = (&self.paths[path], self.paths.len());
        let effect = Effect::of_status(status);
        let waits = status::is_waiting(status);
        self.operations.on_part_failed(now, index, effect, waits, |operation, waited| {
            if doubt {
                return Fate::Requeue(Duration::ZERO);
            }
            if is_pair && !status::is_without_effect(status) {
                return Fate::Fail(status::block_error_of_single(status));
            }
            match path.fate_of_failed(status, operation.tries(waited)) {
                // Once on each path at once.
                _ if elsewhere && usize::from(operation.hops) + 1 < paths => Fate::Requeue(Duration::ZERO),
                fate => fate,
            }
        });
    }

    /// A path's connections are gone: what was in flight goes on elsewhere, or waits.
    pub(super) fn requeue_lost(&mut self, now: Duration, path: usize) {
        let own = &self.paths[path].recovery;
        let any = self.paths.iter().map(|path| &path.recovery).find(|recovery| recovery.may_queue());
        let recovery: &Recovery = any.unwrap_or(own);
        let shut = self.shut;
        self.operations.on_lost(now, path, |operation, ago| match shut {
            true => Fate::Fail(BlockError::Gone),
            false => recovery.fate_of_lost(operation.losses, operation.overdue, ago),
        });
    }
}
