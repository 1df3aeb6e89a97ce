//! The reservations of an ANA group's namespaces that persist (PTPL), as versioned state.
//!
//! They are read and stored through the group's own handle: a former owner that does not know yet that it is fenced can
//! then not store one, and not tell a host that it has.

use crate::encoding::{Unreadable, decode, encode};
use crate::{RequestId, Snapshot, action::Keys};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A stored reservation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// One higher after each change.
    pub version: u64,
    /// The state: opaque here.
    pub value: Value,
}

/// The reservations of an ANA group, by namespace.
#[derive(Debug, Default)]
pub struct Reservations {
    stored: BTreeMap<String, Vec<u8>>,
    pending: BTreeMap<String, Pending>,
}

/// A change that the store has not answered yet.
#[derive(Debug)]
struct Pending {
    /// What it becomes.
    new: Option<Vec<u8>>,
    then: Then,
}

/// What follows when it is stored.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// Who asked for it is told, if it is not later than that.
    Answer(RequestId, Duration),
    /// Who asked for it was told that it has failed: what was stored before is stored again.
    Undo,
    Nothing,
}

/// What follows of a change that is stored.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Who asked for it is told.
    Answer(RequestId),
    /// This is to be stored next.
    Undo((Keys, Keys)),
    Nothing,
}

const KEY: &str = "reservation/";

impl Reservations {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        let stored = snapshot.keys.into_iter();
        let stored = stored.filter_map(|(key, bytes)| Some((key.strip_prefix(KEY)?.to_string(), bytes)));
        Self { stored: stored.collect(), pending: BTreeMap::new() }
    }

    /// The reservation of each namespace that has one. One that cannot be read is not the same as none: its namespace
    /// must not be served as if nobody held it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Result<Reservation, Unreadable>)> {
        self.stored
            .iter()
            .map(|(key, bytes)| (key.as_str(), decode(&format!("the reservation of {key}"), bytes)))
    }

    /// What stores a reservation for a request that waits until then; `None` while another change of it is under way.
    pub(crate) fn store(
        &mut self,
        namespace: &str,
        value: Option<&Value>,
        request: RequestId,
        until: Duration,
    ) -> Option<(Keys, Keys)> {
        if self.pending.contains_key(namespace) {
            return None;
        }
        let stored = self.stored.get(namespace);
        let version =
            stored.and_then(|bytes| decode::<Reservation>("", bytes).ok()).map_or(0, |known| known.version);
        let new = value
            .map(|value| encode(&Reservation { version: version.saturating_add(1), value: value.clone() }));
        Some(self.begin(namespace, new, Then::Answer(request, until)))
    }

    fn begin(&mut self, namespace: &str, new: Option<Vec<u8>>, then: Then) -> (Keys, Keys) {
        let key = format!("{KEY}{namespace}");
        let keys = ([(key.clone(), self.stored.get(namespace).cloned())].into(), [(key, new.clone())].into());
        self.pending.insert(namespace.to_string(), Pending { new, then });
        keys
    }

    pub(crate) fn on_stored(&mut self, namespace: &str) -> Stored {
        let Some(Pending { new, then }) = self.pending.remove(namespace) else { return Stored::Nothing };
        let before = match new {
            Some(bytes) => self.stored.insert(namespace.to_string(), bytes),
            None => self.stored.remove(namespace),
        };
        match then {
            Then::Answer(request, _) => Stored::Answer(request),
            Then::Undo => Stored::Undo(self.begin(namespace, before, Then::Nothing)),
            Then::Nothing => Stored::Nothing,
        }
    }

    /// Whether something is being stored, or undone.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The requests that have waited for too long. What they asked for is undone if it is stored after all.
    pub(crate) fn give_up(&mut self, now: Duration) -> impl Iterator<Item = RequestId> {
        self.pending.values_mut().filter_map(move |pending| match pending.then {
            Then::Answer(request, until) if until <= now => {
                pending.then = Then::Undo;
                Some(request)
            }
            _ => None,
        })
    }

    /// When the next of them has.
    pub(crate) fn gives_up_at(&self) -> Option<Duration> {
        let until = |pending: &Pending| match pending.then {
            Then::Answer(_, until) => Some(until),
            Then::Undo | Then::Nothing => None,
        };
        self.pending.values().filter_map(until).min()
    }

    /// The requests that wait: nobody here will learn what came of them.
    pub(crate) fn forget(&mut self) -> Vec<RequestId> {
        let request = |pending: Pending| match pending.then {
            Then::Answer(request, _) => Some(request),
            Then::Undo | Then::Nothing => None,
        };
        core::mem::take(&mut self.pending).into_values().filter_map(request).collect()
    }
}
