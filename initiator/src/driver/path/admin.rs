//! Admin and Fabrics commands on one path: the association's own, and the user's.

use super::queue::{Finished, Owner};
use super::{Note, Path};
use crate::driver::AdminReply;
use crate::transport::{Data, Refused, Transport};
use core::time::Duration;
use nvme_proto::Qid;
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AdminData, CommandId, Reply};
use std::collections::VecDeque;

/// Pause before memory is exposed again after the transport had no key.
const KEY_RETRY: Duration = Duration::from_millis(10);
/// How long the transport may have no key although none is in use.
const KEY_WAIT_MAX: Duration = Duration::from_secs(1);

/// The association's commands that wait for room, and what commands in flight read.
#[derive(Debug, Default)]
pub(super) struct AdminInFlight {
    /// The association's own, with their queues. They come first, and rarely wait.
    association_waiting: VecDeque<(usize, CommandId, AdminCommand)>,
    /// Bytes that the user's commands in flight read, by number.
    reading: Vec<(u32, u32)>,
    association_reading: Vec<(CommandId, u32)>,
}

/// Since when the transport refuses a key although none is in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyRefused {
    since: Duration,
    retry_at: Duration,
}

impl<T: Transport> Path<T> {
    /// Sends a command of the association's as soon as there is room.
    pub(super) fn send_own(&mut self, now: Duration, queue: usize, id: CommandId, command: AdminCommand) {
        self.admin.association_waiting.push_back((queue, id, command));
        self.issue_own(now);
    }

    /// Sends the association's commands that wait, as far as there is room.
    pub(in crate::driver) fn issue_own(&mut self, now: Duration) {
        while let Some((queue, id, command)) = self.admin.association_waiting.pop_front() {
            // The association keeps its deadline.
            if !self.send_admin(now, queue, Owner::Association(id), &command, None) {
                self.admin.association_waiting.push_front((queue, id, command));
                return;
            }
        }
    }

    /// Whether the user's admin commands have room behind the association's own.
    pub(in crate::driver) fn has_admin_room(&self) -> bool {
        let reserved = usize::from(nvmf_host::limits::ASSOCIATION_COMMANDS_MAX);
        self.queues.first().is_some_and(|queue| queue.as_ref().is_some_and(|queue| queue.room() > reserved))
    }

    /// Sends an admin or Fabrics command; `false` when there is no room.
    pub(in crate::driver) fn send_admin(
        &mut self,
        now: Duration,
        queue: usize,
        owner: Owner,
        admin: &AdminCommand,
        deadline: Option<Duration>,
    ) -> bool {
        let Some(Some(pair)) = self.queues.get_mut(queue) else { return false };
        let data = match &admin.data {
            AdminData::None => Data::None,
            AdminData::ToController { bytes, in_capsule } => Data::Bytes { bytes, in_capsule: *in_capsule },
            AdminData::FromController { len } => Data::IntoSlot { len: *len },
        };
        if let Err(refused) = pair.send(&mut self.transport, owner, &admin.command, data, deadline) {
            self.on_refused(now, queue, refused);
            return false;
        }
        self.on_sent(now);
        if let AdminData::FromController { len } = &admin.data {
            match owner {
                Owner::Association(id) => self.admin.association_reading.push((id, *len)),
                Owner::Admin(number) => self.admin.reading.push((number, *len)),
                Owner::Operation(_) => {}
            }
        }
        true
    }

    /// A command was sent on any queue.
    pub(in crate::driver) fn on_sent(&mut self, now: Duration) {
        self.key_refused = None;
        if let Some(association) = &mut self.association {
            association.on_traffic(now);
        }
    }

    /// A command was not sent. Room comes with completions; a transport that has no key although none is in use cannot
    /// expose memory at all, and the association cannot be used.
    pub(in crate::driver) fn on_refused(&mut self, now: Duration, queue: usize, refused: Refused) {
        let Refused::NoKey(reason) = refused else { return };
        let since = self.key_refused.map_or(now, |refused| refused.since);
        self.key_refused = Some(KeyRefused { since, retry_at: now.saturating_add(KEY_RETRY) });
        if now.saturating_sub(since) >= KEY_WAIT_MAX
            && let (Some(Some(pair)), Some(association)) = (self.queues.get(queue), &mut self.association)
        {
            association.on_no_key(now, pair.qid, &reason);
        }
    }

    pub(super) fn on_association_reply(
        &mut self,
        now: Duration,
        id: CommandId,
        qid: Qid,
        finished: &Finished,
    ) {
        let len = take(&mut self.admin.association_reading, id);
        let data = self.slot_data(qid, finished, len);
        if let Some(association) = &mut self.association {
            association.on_completion(now, id, Reply { outcome: finished.outcome, data: &data });
            self.act(now);
        }
    }

    pub(super) fn on_user_reply(&mut self, number: u32, qid: Qid, finished: &Finished) {
        let len = take(&mut self.admin.reading, number);
        let data = self.slot_data(qid, finished, len);
        let reply = AdminReply { outcome: finished.outcome, data };
        self.notes.push_back(Note::Admin(number, Ok(reply)));
    }

    fn slot_data(&self, qid: Qid, finished: &Finished, len: u32) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        self.transport.slot_data(qid, finished.slot, &mut data);
        data
    }

    /// Nothing is in flight any more.
    pub(super) fn forget_admin_in_flight(&mut self) {
        self.admin.association_waiting.clear();
        self.admin.association_reading.clear();
        self.admin.reading.clear();
        self.key_refused = None;
    }
}

impl KeyRefused {
    pub(super) fn poll_timeout(self) -> Duration {
        self.retry_at
    }
}

/// Takes the value of a key out of a short list; 0 when it is not there.
fn take<K: PartialEq + Copy>(list: &mut Vec<(K, u32)>, key: K) -> u32 {
    list.iter().position(|(k, _)| *k == key).map_or(0, |at| list.swap_remove(at).1)
}
