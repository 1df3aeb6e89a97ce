//! What an operator asks for, at any gateway of the group.

use super::{Gateway, Purpose};
use crate::configuration::{Change, Condition};
use crate::encoding::Unreadable;
use crate::group::{Group, Phase};
use crate::map::Move;
use crate::registry::{ControllerIds, Record};
use crate::reservations::Stored;
use crate::{Action, GatewayName, GroupId, Listens, Object, OpId, Reply, Via};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use serde_json::Value;

/// Names a request, for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Why a request was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The item is not what the change was made for.
    #[error(
        "{key} was changed meanwhile and has version {version} (0 if there is none): look at it and ask again"
    )]
    Changed {
        /// The item.
        key: String,
        /// Its version now.
        version: u64,
    },
    /// What it was asked for on is not so.
    #[error("nothing was changed: {0}")]
    Refused(String),
    /// What is stored of the item cannot be read, and is not overwritten.
    #[error("{key} is there, and this gateway cannot read it: {reason}")]
    ItemUnreadable {
        /// The item.
        key: String,
        /// Why.
        reason: String,
    },
    /// What is stored cannot be read, and is not overwritten.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The configuration was not read yet.
    #[error("the configuration could not be read yet: is the storage cluster reachable?")]
    NotThereYet,
    /// This gateway is no member of its group.
    #[error("this gateway is not a member of its group now: see its status for why")]
    NotMember,
    /// There is no such ANA group.
    #[error("there is no ANA group {0}")]
    NoSuchGroup(GroupId),
    /// No gateway has that name.
    #[error("there is no gateway {0}; there are: {1}")]
    NoSuchGateway(GatewayName, String),
    /// The gateway is not there.
    #[error("gateway {0} is not available: {1}")]
    NotAvailable(GatewayName, &'static str),
    /// A gateway is to forget itself.
    #[error("this is gateway {0} itself: stop it, and ask another gateway then")]
    ItIsThisOne(GatewayName),
    /// The gateway could not take a group a short time ago.
    #[error("gateway {0} cannot take ANA groups now: {1}")]
    CannotTake(GatewayName, String),
    /// The gateway is there, or has groups.
    #[error("gateway {0} {1}")]
    StillThere(GatewayName, String),
    /// This gateway does not own the group.
    #[error("this gateway does not serve ANA group {0}")]
    NotOwner(GroupId),
    /// Another change of the same thing is under way.
    #[error("another change of it is under way")]
    Busy,
    /// What was to be stored for a host is not, after as long as a host waits.
    #[error("the storage cluster has not stored it in time: it is undone as soon as it can be")]
    Late,
    /// Another gateway has the group by now, or this one takes it anew.
    #[error("this gateway lost ANA group {0} meanwhile: it may be stored nevertheless")]
    Lost(GroupId),
    /// The store failed.
    #[error("the storage cluster failed: {0}; it may have been done nevertheless")]
    Failed(String),
}

/// A change of the configuration.
#[derive(Debug)]
pub(super) struct Edit {
    id: RequestId,
    changes: Vec<Change>,
    condition: Option<Condition>,
    /// It is decided on by a read that was sent after it was asked for.
    from: OpId,
    /// The version that the compare-and-set under way makes.
    writing: Option<u64>,
}

/// Other requests, while their compare-and-set is under way.
#[derive(Debug)]
pub(super) enum Request {
    Move { id: RequestId, group: GroupId, wish: Move },
    Remove(RequestId),
    Reservation { group: GroupId, handle: crate::Handle, namespace: String },
}

impl Gateway {
    /// Changes items of the configuration, all of them or none. The answer has the version that they came with; without
    /// changes, the version that is stored.
    pub fn edit(&mut self, now: Duration, changes: Vec<Change>) -> RequestId {
        self.edit_if(now, changes, None)
    }

    /// The same on a condition. It holds in the very state that the changes are made to, whoever else changes it meanwhile.
    pub fn edit_if(
        &mut self,
        now: Duration,
        changes: Vec<Change>,
        condition: Option<Condition>,
    ) -> RequestId {
        let id = self.request();
        if !self.membership.is_member() {
            self.answer(id, Err(RequestError::NotMember));
            return id;
        }
        self.edits.push_back(Edit { id, changes, condition, from: self.next_op(), writing: None });
        self.advance(now);
        id
    }

    /// The first change that waits: written against what was read last, and again if somebody else was first.
    pub(super) fn advance_edits(&mut self) {
        while let Some(edit) = self.edits.front_mut() {
            if edit.writing.is_some() {
                return;
            }
            if !self.membership.is_member() {
                let id = edit.id;
                self.edits.pop_front();
                self.answer(id, Err(RequestError::NotMember));
            } else if self.configuration_reader.used < edit.from {
                return self.configuration_reader.hint_for(edit.from);
            } else {
                let made = self.configuration.edit(&edit.changes).and_then(|made| {
                    let condition = edit.condition.as_ref();
                    let looked = condition.map_or(Ok(()), |it| it.look_at(self.configuration.items()));
                    looked.map(|()| made).map_err(RequestError::Refused)
                });
                match made {
                    Ok((version, ..)) if edit.changes.is_empty() => {
                        let id = edit.id;
                        self.edits.pop_front();
                        self.answer(id, Ok(version - 1));
                    }
                    Ok((version, compare, set)) => {
                        edit.writing = Some(version);
                        let keys = (compare, set);
                        self.compare_and_set(Purpose::Edit, Via::Control, Object::Configuration, keys);
                    }
                    Err(error) => {
                        let id = edit.id;
                        self.edits.pop_front();
                        self.answer(id, Err(error));
                    }
                }
            }
        }
    }

    pub(super) fn on_edit(&mut self, reply: Reply) {
        let next = self.next_op();
        self.configuration_reader.on_written(next);
        self.configuration_reader.hint();
        let Some(edit) = self.edits.front_mut() else { return };
        let Some(version) = edit.writing.take() else { return };
        let (id, result) = match reply {
            Reply::Conflict => {
                edit.from = next;
                return;
            }
            Reply::Done => (edit.id, Ok(version)),
            other => (edit.id, Err(RequestError::Failed(other.failure().unwrap_or_default()))),
        };
        self.edits.pop_front();
        // Those that wait need to see this one.
        self.edits.iter_mut().for_each(|edit| edit.from = edit.from.max(next));
        self.actions.push_back(Action::Notify { object: Object::Configuration });
        self.answer(id, result);
    }

    /// Asks that this gateway gets a group, by a planned move.
    pub fn move_group(&mut self, now: Duration, group: GroupId, to: &GatewayName) -> RequestId {
        let id = self.request();
        let refused = if !self.membership.is_member() {
            Some(RequestError::NotMember)
        } else if !self.groups.contains_key(&group) {
            Some(RequestError::NoSuchGroup(group))
        } else {
            // Who has it may keep it: so a move that waits is taken back.
            let holder = self.groups[&group].entry().and_then(crate::map::Entry::holder);
            self.cannot_take(to).filter(|_| holder.is_none_or(|by| by.gateway != *to))
        };
        match refused {
            Some(error) => self.answer(id, Err(error)),
            // Also where it has the group already, as far as is known here: it is to stay, whatever was wanted before.
            None => {
                let wish = Move::new(to.clone());
                let set = [(Move::key(group), Some(wish.encode()))].into();
                let purpose = Purpose::Request(Request::Move { id, group, wish });
                self.compare_and_set(purpose, Via::Control, Object::Map, (Vec::new(), set));
            }
        }
        self.advance(now);
        id
    }

    /// Why a gateway is not asked to take a group.
    pub(super) fn cannot_take(&self, to: &GatewayName) -> Option<RequestError> {
        if *to == self.me().gateway {
            let why = self.idle.reason().or(self.stopping.then_some("it is about to stop"))?;
            return Some(RequestError::CannotTake(to.clone(), why.to_string()));
        }
        let Some(peer) = self.peers.get(to) else { return Some(self.no_such_gateway(to)) };
        match (peer.lease.boot(), peer.trouble().cloned()) {
            (Some(_), Some(trouble)) => Some(RequestError::CannotTake(to.clone(), trouble)),
            (Some(_), None) if peer.available().is_some() => (peer.listens() != Listens::Yes).then(|| {
                RequestError::NotAvailable(to.clone(), "it has just started, and does not listen yet")
            }),
            (Some(_), None) => Some(RequestError::NotAvailable(to.clone(), "it is about to stop")),
            (None, _) if peer.has_stopped() => Some(RequestError::NotAvailable(to.clone(), "it was stopped")),
            (None, _) => Some(RequestError::NotAvailable(to.clone(), "nobody holds its lease")),
        }
    }

    fn no_such_gateway(&self, name: &GatewayName) -> RequestError {
        let mut all: Vec<&str> = self.peers.keys().map(GatewayName::as_str).collect();
        all.push(self.me().gateway.as_str());
        all.sort_unstable();
        RequestError::NoSuchGateway(name.clone(), all.join(", "))
    }

    /// Forgets a gateway that is gone for good, and frees its range of Controller IDs.
    pub fn remove_gateway(&mut self, now: Duration, name: &GatewayName) -> RequestId {
        let id = self.request();
        let owns = self.groups.values().any(|group| {
            group.entry().and_then(crate::map::Entry::holder).is_some_and(|by| by.gateway == *name)
        });
        let record = self.peers.get(name).filter(|peer| peer.is_registered()).map(|peer| peer.stored.clone());
        match record {
            None if *name == self.me().gateway => {
                self.answer(id, Err(RequestError::ItIsThisOne(name.clone())));
            }
            None => self.answer(id, Err(self.no_such_gateway(name))),
            Some(_) if owns || self.dead_since(name, Duration::ZERO).is_none() => {
                let is_running = self.peers.get(name).is_some_and(|peer| peer.lease.boot().is_some());
                let why = why_there(owns, is_running, self.timing.evidence);
                self.answer(id, Err(RequestError::StillThere(name.clone(), why)));
            }
            Some(record) => match &self.own.ids {
                Some((ids, bytes)) => {
                    let table = ControllerIds::KEY.to_string();
                    let compare = [(Record::key(name), Some(record)), (table.clone(), Some(bytes.clone()))];
                    let set = [(Record::key(name), None), (table, Some(ids.clone().without(name).encode()))];
                    let purpose = Purpose::Request(Request::Remove(id));
                    let keys = (compare.into(), set.into());
                    self.compare_and_set(purpose, Via::Control, Object::Gateways, keys);
                }
                None => self.answer(id, Err(RequestError::NotMember)),
            },
        }
        self.advance(now);
        id
    }

    /// Stores the reservation of a namespace (`None`: there is none any more), before a host is told of it. A group that drains
    /// has commands that came before, and the next owner reads what is stored only when the drain is over. One that is
    /// answered with [`RequestError::Late`] is undone when the store has it after all. A planned move waits for that as for the rest.
    pub fn store_reservation(
        &mut self,
        now: Duration,
        group: GroupId,
        namespace: &str,
        value: Option<&Value>,
    ) -> RequestId {
        let id = self.request();
        let serves = |group: &&mut Group| matches!(group.phase, Phase::Serving | Phase::Draining);
        let until = now + self.timing.keep;
        let served = self.groups.get_mut(&group).filter(serves);
        let store =
            |group: &mut Group| Some((group.handle?, group.reservations.store(namespace, value, id, until)));
        match served.and_then(store) {
            None => self.answer(id, Err(RequestError::NotOwner(group))),
            Some((_, None)) => self.answer(id, Err(RequestError::Busy)),
            Some((handle, Some(keys))) => self.send_reservation(group, handle, namespace, keys),
        }
        self.advance(now);
        id
    }

    fn send_reservation(
        &mut self,
        group: GroupId,
        handle: crate::Handle,
        namespace: &str,
        keys: (crate::action::Keys, crate::action::Keys),
    ) {
        let request = Request::Reservation { group, handle, namespace: namespace.to_string() };
        let object = Object::Reservations(group);
        self.compare_and_set(Purpose::Request(request), Via::Handle(handle), object, keys);
    }

    /// Answers hosts' requests that have waited for too long.
    pub(super) fn give_up_reservations(&mut self, now: Duration) {
        let all = self.groups.values_mut().flat_map(|group| group.reservations.give_up(now));
        for request in all.collect::<Vec<_>>() {
            self.answer(request, Err(RequestError::Late));
        }
        let next = self.groups.values().filter_map(|group| group.reservations.gives_up_at()).min();
        next.into_iter().for_each(|at| self.wake_at(at));
    }

    fn on_reservation(
        &mut self,
        now: Duration,
        id: GroupId,
        handle: crate::Handle,
        namespace: &str,
        done: bool,
    ) {
        // Who waited was answered when the handle was given up.
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.handle == Some(handle)) else {
            return;
        };
        if !done {
            // What is stored is not known, so the group is taken anew, and reads it.
            return self.lose(now, id, "a reservation could not be stored");
        }
        match group.reservations.on_stored(namespace) {
            Stored::Answer(request) => self.answer(request, Ok(0)),
            Stored::Undo(keys) => self.send_reservation(id, handle, namespace, keys),
            Stored::Nothing => {}
        }
    }

    pub(super) fn on_request(&mut self, now: Duration, request: Request, reply: Reply) {
        let done = reply == Reply::Done;
        let result = match reply {
            Reply::Done => Ok(0),
            Reply::Conflict => Err(RequestError::Busy),
            other => Err(RequestError::Failed(other.failure().unwrap_or_default())),
        };
        match request {
            Request::Move { id, group, wish } => {
                if let Some(group) = self.groups.get_mut(&group).filter(|_| done) {
                    group.wish = Some(wish.encode());
                    group.wanted = Some(wish);
                }
                self.map.on_written(self.next_op());
                self.map.hint();
                self.actions.push_back(Action::Notify { object: Object::Map });
                self.answer(id, result);
            }
            Request::Remove(id) => {
                self.registry.hint();
                self.answer(id, result);
            }
            Request::Reservation { group, handle, namespace } => {
                self.on_reservation(now, group, handle, &namespace, done);
            }
        }
    }

    fn request(&mut self) -> RequestId {
        self.last_request.0 += 1;
        self.last_request
    }

    pub(super) fn answer(&mut self, request: RequestId, result: Result<u64, RequestError>) {
        self.actions.push_back(Action::Answer { request, result });
    }
}

/// Why a gateway is not forgotten.
fn why_there(owns: bool, is_running: bool, evidence: Duration) -> String {
    match (is_running, owns) {
        (true, _) => "is still running: stop it first".to_string(),
        (false, true) => {
            "does not run, and owns ANA groups still: others take them once it counts as dead, ask again then (`cluster status`)"
                .to_string()
        }
        (false, false) => format!(
            "does not run: its lease has expired, but does not count as dead before this gateway has read the pool without delay \
             for {} s: ask again",
            evidence.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_that_does_not_run_is_not_said_to() {
        let evidence = Duration::from_secs(2);
        assert!(why_there(true, true, evidence).contains("is still running"));
        for owns in [true, false] {
            let text = why_there(owns, false, evidence);
            assert!(!text.contains("running") && text.contains("ask again"), "{text}");
        }
        assert!(why_there(false, false, evidence).contains("for 2 s"));
        assert!(why_there(true, false, evidence).contains("owns ANA groups"));
    }
}
