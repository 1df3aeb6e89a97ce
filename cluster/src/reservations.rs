//! The reservations of an ANA group's namespaces that persist (PTPL), as versioned state.
//!
//! They are read and stored through the group's own handle: a former owner that does not know yet that it is fenced can
//! then not store one, and not tell a host that it has.

use crate::encoding::{Unreadable, decode, encode};
use crate::{Snapshot, action::Keys};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
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
    /// Being stored: what it becomes.
    pending: BTreeMap<String, Option<Vec<u8>>>,
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

    /// What stores a reservation; `None` while another change of it is under way.
    pub(crate) fn store(&mut self, namespace: &str, value: Option<&Value>) -> Option<(Keys, Keys)> {
        if self.pending.contains_key(namespace) {
            return None;
        }
        let stored = self.stored.get(namespace);
        let version =
            stored.and_then(|bytes| decode::<Reservation>("", bytes).ok()).map_or(0, |known| known.version);
        let new = value
            .map(|value| encode(&Reservation { version: version.saturating_add(1), value: value.clone() }));
        self.pending.insert(namespace.to_string(), new.clone());
        let key = format!("{KEY}{namespace}");
        Some(([(key.clone(), stored.cloned())].into(), [(key, new)].into()))
    }

    pub(crate) fn on_stored(&mut self, namespace: &str) {
        match self.pending.remove(namespace) {
            Some(Some(bytes)) => drop(self.stored.insert(namespace.to_string(), bytes)),
            Some(None) => drop(self.stored.remove(namespace)),
            None => {}
        }
    }
}
