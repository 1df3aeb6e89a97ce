//! The steps by which a group is taken and given away, reply by reply.
//!
//! ```text
//! claim ─► connect ─► fence ─► wait for the map ─► own ─► load reservations ─► open images ─► serve
//! affirm ─► serve                                                       (the lease had lapsed)
//! drain ─► close ─► release                                             (a planned move)
//! drain, too slow ─► surrender                                          (the next owner fences)
//! ```
//!
//! A gateway that the group is to move to has connected before. A step that fails, or comes too late, ends the attempt:
//! its handle is shut down, and what the entry says then decides. If it still names this gateway, the gateway takes the
//! group again, with a fence of what it had itself.

use super::{Gateway, Purpose};
use crate::group::{Group, Phase};
use crate::map::{Entry, State};
use crate::reservations::Reservations;
use crate::{Action, GatewayName, GroupId, Object, OpId, Reply, RequestError, Via};
use alloc::format;
use alloc::string::ToString;
use core::time::Duration;

impl Gateway {
    /// Takes the entry. The entry names the dead owner's address until that is fenced, so that whoever goes on, should
    /// this gateway die, finds it.
    pub(super) fn claim(&mut self, now: Duration, id: GroupId) {
        let group = &self.groups[&id];
        let entry =
            Entry::claim(group.entry(), self.me(), |name| self.dead_since(name, group.seen).is_some());
        if let Some(entry) = entry {
            self.store_entry(now, id, Phase::Claiming, entry);
        }
    }

    /// The entry is this gateway's: with the handle that it has got ready, or another one.
    fn take(&mut self, now: Duration, id: GroupId) {
        let group = &self.groups[&id];
        if group.handle.is_some() && group.address.is_some() {
            self.fence(now, id);
        } else {
            self.connect(now, id, Phase::Connecting);
        }
    }

    /// Fences the owner before. The monitors answer once the map with the fence is there; an OSD may learn of it later.
    fn fence(&mut self, now: Duration, id: GroupId) {
        match self.groups[&id].entry().map(|entry| entry.state.clone()) {
            Some(State::Taking { fence: Some(address), .. }) => {
                let (op, handle) = (self.begin_step(now, id, Phase::Fencing), self.last_handle_of(id));
                let duration = self.timing.blocklist;
                self.actions.push_back(Action::Blocklist { op, handle, address, duration });
            }
            Some(State::Taking { fence: None, .. }) => self.wait_for_map(now, id),
            _ => self.lose(now, id, "somebody else has taken it"),
        }
    }

    pub(super) fn connect(&mut self, now: Duration, id: GroupId, phase: Phase) {
        self.last_handle.0 += 1;
        let (op, handle) = (self.begin_step(now, id, phase), self.last_handle);
        let group = self.group(id);
        (group.handle, group.trusted) = (Some(handle), Duration::ZERO);
        self.actions.push_back(Action::Connect { op, handle, group: id });
    }

    /// This closes the hole of the late write: each OSD that hears of this handle has then the map with the fence, and
    /// refuses the owner before from then on. Also where nobody was fenced just now: an owner before that one may have
    /// been, and an OSD that has had no request since may not know.
    fn wait_for_map(&mut self, now: Duration, id: GroupId) {
        let op = self.begin_step(now, id, Phase::WaitingForMap);
        let handle = self.last_handle_of(id);
        self.actions.push_back(Action::WaitForLatestOsdmap { op, handle });
    }

    /// Stores the handle's address. No I/O goes through it before that has succeeded: who takes the group next could not
    /// fence it. A taker that was too slow is stopped here by the generation.
    fn own(&mut self, now: Duration, id: GroupId) {
        let group = &self.groups[&id];
        let entry = group.entry().zip(group.address.as_ref());
        match entry.and_then(|(entry, address)| entry.own(self.me(), address)) {
            Some(entry) => self.store_entry(now, id, Phase::Owning, entry),
            None => self.lose(now, id, "somebody else has taken it"),
        }
    }

    fn load(&mut self, now: Duration, id: GroupId) {
        let op = self.begin_step(now, id, Phase::Loading);
        let via = Via::Handle(self.last_handle_of(id));
        self.actions.push_back(Action::Read { op, via, object: Object::Reservations(id), unless: None });
    }

    fn open(&mut self, now: Duration, id: GroupId) {
        let (op, handle) = (self.begin_step(now, id, Phase::Opening), self.last_handle_of(id));
        self.actions.push_back(Action::OpenImages { op, handle, group: id });
    }

    /// The lease had lapsed: others may be about to take the group. Or somebody has removed the entry. One of the two
    /// compare-and-sets comes too late.
    pub(super) fn affirm(&mut self, now: Duration, id: GroupId) {
        match self.groups[&id].entry().and_then(|entry| entry.affirm(self.me())) {
            Some(entry) => self.store_entry(now, id, Phase::Affirming, entry),
            None => self.lose(now, id, "somebody else has taken it"),
        }
    }

    /// Begins a planned move. Hosts are told to wait before anything is drained.
    pub(super) fn drain(&mut self, now: Duration, id: GroupId, to: Option<GatewayName>) {
        let (op, handle) = (self.begin_step(now, id, Phase::Draining), self.last_handle_of(id));
        let drain_until = now + self.timing.drain;
        let group = self.group(id);
        (group.to, group.drain_until) = (to, drain_until);
        self.show();
        self.actions.push_back(Action::Drain { op, handle, group: id });
        self.wake_at(drain_until);
    }

    pub(super) fn close(&mut self, now: Duration, id: GroupId) {
        let (op, handle) = (self.begin_step(now, id, Phase::Closing), self.last_handle_of(id));
        self.actions.push_back(Action::Shutdown { op, handle });
    }

    /// Nothing of the group is in flight and its handle is closed: no fence is needed.
    fn release(&mut self, now: Duration, id: GroupId) {
        let group = self.group(id);
        (group.handle, group.address) = (None, None);
        let group = &self.groups[&id];
        match group.entry().and_then(|entry| entry.release(self.me(), group.to.clone())) {
            Some(entry) => self.store_entry(now, id, Phase::Releasing, entry),
            None => self.lose(now, id, "somebody else has taken it"),
        }
    }

    /// The drain does not end: the next owner fences this one's handle, which does nothing more for hosts.
    pub(super) fn surrender(&mut self, now: Duration, id: GroupId) {
        self.lose(now, id, "its I/O did not end in time");
        let group = &self.groups[&id];
        if let Some(entry) = group.entry().and_then(|entry| entry.surrender(self.me(), group.to.clone())) {
            self.store_entry(now, id, Phase::Surrendering, entry);
        }
    }

    /// Leaves a group that this gateway cannot take, or does not want any more, to another one.
    pub(super) fn give_up(&mut self, now: Duration, id: GroupId) {
        self.lose(now, id, "it is left to another gateway");
        let me = self.me().clone();
        let to = crate::placement::least_loaded(&self.loads(false), id).cloned();
        let group = self.group(id);
        // A former run's entry has to become this run's first.
        let claimed = Entry::claim(group.entry(), &me, |_| false);
        let entry = group.entry().and_then(|entry| entry.surrender(&me, to.clone()));
        group.to = to;
        if let Some(entry) = entry.or(claimed) {
            self.store_entry(now, id, Phase::Surrendering, entry);
        }
    }

    /// A reply that a group waits for.
    pub(super) fn on_group(&mut self, now: Duration, id: GroupId, op: OpId, reply: Reply) {
        let group = self.group(id);
        if group.op != Some(op) {
            return;
        }
        group.op = None;
        match (group.phase, reply) {
            (Phase::Claiming, Reply::Done) => {
                self.adopt(now, id);
                self.take(now, id);
            }
            (Phase::Preparing, Reply::Connected(address)) if address.names_one_client() => {
                group.address = Some(address);
                self.own.trouble = None;
                self.look_at_images(now, id);
            }
            (Phase::Looking, Reply::Done) => group.phase = Phase::Prepared,
            (Phase::Looking, Reply::Unopened(unopened)) => self.on_looked(now, id, &unopened),
            (Phase::Looking, Reply::Failed(reason)) => self.refuse(now, id, reason),
            (Phase::Connecting, Reply::Connected(address)) if address.names_one_client() => {
                group.address = Some(address);
                self.fence(now, id);
            }
            (Phase::Fencing, Reply::Done) => self.wait_for_map(now, id),
            (Phase::Fencing, Reply::FencedUntil(until)) => {
                self.note_short_fence(id, until);
                self.wait_for_map(now, id);
            }
            (Phase::WaitingForMap, Reply::Done) => self.own(now, id),
            (Phase::Owning, Reply::Done) => {
                group.vain = 0;
                self.adopt(now, id);
                self.load(now, id);
            }
            (Phase::Loading, Reply::Snapshot(snapshot)) => {
                group.reservations = Reservations::new(snapshot);
                self.open(now, id);
            }
            (Phase::Opening, Reply::Done) => {
                (group.phase, group.trouble, group.unable_until) = (Phase::Serving, None, Duration::ZERO);
                group.unable = None;
                self.own.trouble = None;
            }
            (Phase::Affirming, Reply::Done) => {
                group.phase = Phase::Serving;
                self.adopt(now, id);
            }
            // It is closed once what is stored of reservations is what hosts were told.
            (Phase::Draining, Reply::Done) => {}
            (Phase::Closing, Reply::Done) => self.release(now, id),
            (Phase::Releasing | Phase::Surrendering, Reply::Done) => {
                self.adopt(now, id);
                let group = self.group(id);
                // Who gave it up because it was lost again and again waits as before, should it come back.
                let failures = if group.phase == Phase::Releasing { 0 } else { group.failures };
                (group.phase, group.to, group.failures) = (Phase::Idle, None, failures);
            }
            // What was not flushed may be lost if nobody knows that it was there: the next owner must not take it for
            // drained.
            (Phase::Draining | Phase::Closing, Reply::Failed(_)) => self.surrender(now, id),
            (Phase::Releasing | Phase::Surrendering, Reply::Failed(reason)) => {
                let until = now + self.timing.retry;
                self.group(id).kept_until = until;
                self.lose(now, id, &reason);
            }
            (_, Reply::Connected(address)) => {
                self.fail(
                    now,
                    id,
                    &format!("its client has the address {address}, which cannot be fenced alone"),
                );
            }
            // It has come back: no other gateway can open them either.
            (Phase::Opening, Reply::Failed(_)) if now < group.unable_until => group.phase = Phase::Serving,
            (phase, Reply::Failed(reason)) if phase.is_bounded() || phase == Phase::Opening => {
                self.fail(now, id, &reason);
            }
            (_, reply) => {
                self.lose(now, id, &reply.failure().unwrap_or_else(|| "a reply makes no sense".to_string()))
            }
        }
    }

    /// The compare-and-set under way has succeeded.
    fn adopt(&mut self, now: Duration, id: GroupId) {
        let takes_over = {
            let group = self.group(id);
            let Some(entry) = group.pending.take() else { return };
            let takes_over = matches!(entry.state, State::Taking { fence: Some(_), .. });
            let is_new = matches!(entry.state, State::Taking { .. });
            group.inherits |= is_new;
            group.placed &= !is_new;
            let bytes = entry.encode();
            (group.entry, group.seen, group.gone, group.damage) = (Some((entry, bytes)), now, false, None);
            takes_over
        };
        self.changed = now;
        if takes_over {
            self.disturbed = now;
        }
        self.map.on_written(self.next_op());
        self.actions.push_back(Action::Notify { object: Object::Map });
    }

    /// This gateway cannot take the group. It says so to the others, and one of them gets it at once, if there is one.
    /// That none of its images can be opened says nothing of other groups.
    pub(super) fn fail(&mut self, now: Duration, id: GroupId, reason: &str) {
        if self.groups[&id].phase == Phase::Opening {
            self.group(id).unable_until = now + self.timing.unable;
        } else {
            self.note_trouble(now, format!("ANA group {id}: {reason}"));
        }
        let timing = self.timing;
        let group = self.group(id);
        group.unable = Some(reason.to_string());
        let is_in_vain = (Phase::Connecting..Phase::Owning).contains(&group.phase);
        // What was long ago says nothing.
        if now.saturating_sub(group.not_before) > timing.quiet {
            group.vain = 0;
        }
        self.lose(now, id, reason);
        // What keeps it from fencing may last: monitors are asked less and less often, and a recovery is noticed soon.
        if is_in_vain {
            let group = self.group(id);
            group.not_before = now + timing.pause(group.vain).min(timing.retry_unfenced);
            group.vain += 1;
        }
        if self.holds(&self.groups[&id]) && self.others().next().is_some() {
            self.give_up(now, id);
        }
    }

    /// Ends whatever this gateway does with the group. The handle is never used again.
    pub(super) fn lose(&mut self, now: Duration, id: GroupId, reason: &str) {
        let timing = self.timing;
        let group = self.group(id);
        if group.phase == Phase::Idle {
            return;
        }
        // Each fence stays in the store's map for a day, so a group that is lost again and again is not taken at once.
        // Before it is owned there is nothing to fence.
        if group.phase >= Phase::Serving && now.saturating_sub(group.seen) > timing.quiet {
            group.failures = 0;
        }
        let is_fenced = group.phase >= Phase::Owning;
        group.not_before = now + timing.pause(if is_fenced { group.failures } else { 0 });
        group.failures += u32::from(is_fenced);
        group.trouble = Some(reason.to_string());
        let since = group.carries_commands().then(|| now.min(group.trusted));
        (group.phase, group.op, group.pending, group.address) = (Phase::Idle, None, None, None);
        let handle = group.handle.take();
        for request in group.reservations.forget() {
            self.answer(request, Err(RequestError::Lost(id)));
        }
        // Before the handle is gone, so that hosts look for another path instead of trying this one.
        self.show();
        if let Some(handle) = handle {
            self.actions.push_back(Action::Trust { handle, until: Duration::ZERO });
            let op = self.begin(Purpose::Shutdown { handle, since, at: now, is_out: false });
            self.actions.push_back(Action::Shutdown { op, handle });
        }
        self.map.hint();
    }

    fn store_entry(&mut self, now: Duration, id: GroupId, phase: Phase, entry: Entry) {
        let group = self.groups.entry(id).or_insert_with(|| Group::new(now));
        let (key, bytes) = (Entry::key(id), entry.encode());
        let stands = group.entry.as_ref().filter(|_| !group.gone).map(|(_, bytes)| bytes);
        let known = stands.or(group.damage.as_ref()).cloned();
        let compare = [(key.clone(), known)].into();
        let set: crate::action::Keys = [(key, Some(bytes))].into();
        // Whoever judges by this entry looks at the lease after it. If the lease has lapsed at this moment, `check_lapse` says
        // so again.
        group.lapsed = false;
        (group.phase, group.pending, group.step_until) = (phase, Some(entry), now + self.timing.step);
        let op = self.compare_and_set(Purpose::Group(id), Via::Control, Object::Map, (compare, set));
        self.group(id).op = Some(op);
    }

    pub(super) fn begin_step(&mut self, now: Duration, id: GroupId, phase: Phase) -> OpId {
        let op = self.begin(Purpose::Group(id));
        let step_until = now + self.timing.step;
        let group = self.group(id);
        (group.phase, group.op, group.step_until) = (phase, Some(op), step_until);
        op
    }

    pub(super) fn last_handle_of(&self, id: GroupId) -> crate::Handle {
        self.groups[&id].handle.unwrap_or_default()
    }

    pub(super) fn group(&mut self, id: GroupId) -> &mut Group {
        self.groups.entry(id).or_insert_with(|| Group::new(Duration::ZERO))
    }
}
