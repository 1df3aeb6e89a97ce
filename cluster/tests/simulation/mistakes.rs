//! Planted mistakes, which the simulation must find: decorators between a gateway's engine and the store, which carry out
//! an action in another way than it is meant, or reply too early. The engine itself is the real one.

use super::plan::{MS, SECOND, Time};
use nvmf_cluster::{Action, Handle, Locker, Object, OpId, Reply, Via};
use serde_json::Value;
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A new owner does not wait for the map with the fence.
    NoMapWait,
    /// Nor does one that takes a group for a planned move, where it fences nobody itself.
    NoMapWaitOnMove,
    /// The address of the handle is stored after the first I/O.
    AddressAfterIo,
    /// A lease is judged by the time that its holder wrote into it, and the local wall clock.
    WallClockLease,
    /// A taker that was too slow becomes owner all the same.
    LateTaker,
    /// A store that does not answer counts as expired leases, and as fine otherwise.
    StallFences,
    /// A move does not wait until I/O in flight has ended.
    MoveWithoutDrain,
    /// A new owner goes on before the monitors have fenced the old one.
    FenceNotAwaited,
    /// A restarted gateway does not fence its former run.
    FormerRunNotFenced,
    /// A change of the configuration is stored whatever somebody else stored meanwhile.
    ChangeWithoutCompare,
    /// The configuration is read only when a notification says that it has changed.
    NotificationsOnly,
    /// Reservations go through the client of the control plane, which nobody fences.
    ReservationsUnfenced,
    /// What a client answers by itself counts, however long ago the lease was renewed.
    EverTrusted,
}

impl Mistake {
    pub(crate) const ALL: [Self; 13] = [
        Self::NoMapWait,
        Self::NoMapWaitOnMove,
        Self::AddressAfterIo,
        Self::WallClockLease,
        Self::LateTaker,
        Self::StallFences,
        Self::MoveWithoutDrain,
        Self::FenceNotAwaited,
        Self::FormerRunNotFenced,
        Self::ChangeWithoutCompare,
        Self::NotificationsOnly,
        Self::ReservationsUnfenced,
        Self::EverTrusted,
    ];
}

/// What becomes of an action: it is carried out so much later, and replies come at once or later by themselves.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) carried_out: Option<(Time, Action)>,
    pub(crate) replies: Vec<(Time, OpId, Reply)>,
}

/// Stands between a gateway's engine and the store.
#[derive(Debug)]
pub(crate) struct Decorator {
    mistake: Option<Mistake>,
    gateway: String,
    /// Addresses of this gateway's former runs.
    former: BTreeSet<String>,
    /// Keys of groups that were claimed without an address to fence, and the handles that were made for those.
    unfenced: BTreeSet<String>,
    of_moves: BTreeSet<Handle>,
    notified: bool,
    has_read: bool,
}

fn json(bytes: Option<&Vec<u8>>) -> Value {
    bytes.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or(Value::Null)
}

impl Decorator {
    pub(crate) fn new(mistake: Option<Mistake>, gateway: &str) -> Self {
        Self {
            mistake,
            gateway: gateway.to_string(),
            former: BTreeSet::new(),
            unfenced: BTreeSet::new(),
            of_moves: BTreeSet::new(),
            notified: false,
            has_read: false,
        }
    }

    /// An action on its way to the store.
    pub(crate) fn on_action(&mut self, action: Action) -> Outcome {
        let Some(mistake) = self.mistake else {
            return Outcome { carried_out: Some((0, action)), replies: Vec::new() };
        };
        self.observe(&action);
        let early = |op: OpId, after: Option<(Time, Action)>| Outcome {
            carried_out: after,
            replies: vec![(100, op, Reply::Done)],
        };
        match (mistake, action) {
            (Mistake::NoMapWait, Action::WaitForLatestOsdmap { op, .. }) => early(op, None),
            (Mistake::NoMapWaitOnMove, Action::WaitForLatestOsdmap { op, handle })
                if self.of_moves.contains(&handle) =>
            {
                early(op, None)
            }
            (Mistake::AddressAfterIo, Action::CompareAndSet { op, via, object, compare, set })
                if becomes(&object, &set, "owned") =>
            {
                early(op, Some((1500 * MS, Action::CompareAndSet { op, via, object, compare, set })))
            }
            (Mistake::LateTaker, Action::CompareAndSet { op, via, object, set, .. })
                if becomes(&object, &set, "owned") =>
            {
                let action = Action::CompareAndSet { op, via, object, compare: Vec::new(), set };
                Outcome { carried_out: Some((0, action)), replies: Vec::new() }
            }
            (Mistake::StallFences, action @ Action::Lock { op, .. }) => early(op, Some((0, action))),
            (Mistake::StallFences, action @ Action::ListLockers { op, .. }) => {
                Outcome { carried_out: Some((0, action)), replies: vec![(SECOND, op, Reply::Free)] }
            }
            (Mistake::MoveWithoutDrain, Action::Drain { op, .. }) => early(op, None),
            (Mistake::FenceNotAwaited, action @ Action::Blocklist { op, .. }) => early(op, Some((0, action))),
            (Mistake::FormerRunNotFenced, Action::Blocklist { op, address, .. })
                if self.former.contains(&address.0) =>
            {
                early(op, None)
            }
            (Mistake::ChangeWithoutCompare, Action::CompareAndSet { op, via, object, set, .. })
                if object == Object::Configuration && set.len() > 1 =>
            {
                let action = Action::CompareAndSet { op, via, object, compare: Vec::new(), set };
                Outcome { carried_out: Some((0, action)), replies: Vec::new() }
            }
            (Mistake::NotificationsOnly, Action::Read { op, object: Object::Configuration, .. })
                if self.has_read && !core::mem::take(&mut self.notified) =>
            {
                Outcome { carried_out: None, replies: vec![(100, op, Reply::Unchanged)] }
            }
            (Mistake::ReservationsUnfenced, Action::CompareAndSet { op, object, compare, set, .. })
                if matches!(object, Object::Reservations(_)) =>
            {
                let action = Action::CompareAndSet { op, via: Via::Control, object, compare, set };
                Outcome { carried_out: Some((0, action)), replies: Vec::new() }
            }
            (_, action) => Outcome { carried_out: Some((0, action)), replies: Vec::new() },
        }
    }

    /// Remembers what this gateway's former runs did I/O with, and what it takes without a fence.
    fn observe(&mut self, action: &Action) {
        if let Action::Connect { handle, group, .. } = action
            && self.unfenced.contains(&format!("group/{group}"))
        {
            self.of_moves.insert(*handle);
        }
        let Action::CompareAndSet { object: Object::Map, compare, set, .. } = action else { return };
        let old = json(compare.first().and_then(|(_, value)| value.as_ref()));
        let own = old["by"]["gateway"] == self.gateway.as_str();
        if let Some((key, value)) = set.first().filter(|_| becomes(&Object::Map, set, "taking")) {
            match json(value.as_ref())["fence"].is_string() {
                true => drop(self.unfenced.remove(key)),
                false => drop(self.unfenced.insert(key.clone())),
            }
        }
        if becomes(&Object::Map, set, "taking")
            && let Some(address) = old["address"].as_str().filter(|_| own)
        {
            self.former.insert(address.to_string());
        }
    }

    pub(crate) fn on_notified(&mut self, object: &Object) {
        self.notified |= *object == Object::Configuration;
    }

    /// A reply on its way to the engine. `stamp` is who took that lease last, and when by that one's wall clock; `wall` is
    /// the local wall clock.
    pub(crate) fn on_reply(&mut self, reply: Reply, wall: i64, stamp: Option<(i64, Locker)>) -> Reply {
        let Some(mistake) = self.mistake else { return reply };
        match (mistake, reply) {
            (Mistake::WallClockLease, reply) => match stamp {
                Some((written, _)) if wall - written > 5 * SECOND as i64 => Reply::Free,
                Some((_, locker)) => Reply::Held(locker),
                None => reply,
            },
            (Mistake::NotificationsOnly, reply @ Reply::Snapshot(_)) => {
                self.has_read = true;
                reply
            }
            (_, reply) => reply,
        }
    }
}

/// Whether this makes an entry of the map one of that state.
fn becomes(object: &Object, set: &[(String, Option<Vec<u8>>)], state: &str) -> bool {
    *object == Object::Map && set.first().is_some_and(|(_, value)| json(value.as_ref())["state"] == state)
}
