//! Objects with keys, in memory: what every test's store has.

use nvmf_cluster::{Object, Reply, Snapshot};
use std::collections::BTreeMap;

type Keys = BTreeMap<String, Vec<u8>>;
/// Keys and what they are, or become.
pub(crate) type Changes = [(String, Option<Vec<u8>>)];

/// The objects of a group.
#[derive(Debug, Default)]
pub(crate) struct Objects(BTreeMap<Object, Snapshot>);

impl Objects {
    pub(crate) fn read(&self, object: &Object, unless: Option<u64>) -> Reply {
        let Some(stored) = self.0.get(object) else { return Reply::Snapshot(Snapshot::default()) };
        if unless == Some(stored.version) {
            return Reply::Unchanged;
        }
        Reply::Snapshot(stored.clone())
    }

    pub(crate) fn keys(&self, object: &Object) -> Keys {
        self.0.get(object).map(|stored| stored.keys.clone()).unwrap_or_default()
    }

    /// Gives whether it was done.
    pub(crate) fn compare_and_set(&mut self, object: &Object, compare: &Changes, set: &Changes) -> bool {
        let stored = self.0.entry(object.clone()).or_default();
        if compare.iter().any(|(key, value)| stored.keys.get(key) != value.as_ref()) {
            return false;
        }
        for (key, value) in set {
            match value {
                Some(value) => drop(stored.keys.insert(key.clone(), value.clone())),
                None => drop(stored.keys.remove(key)),
            }
        }
        stored.version += 1;
        true
    }
}
