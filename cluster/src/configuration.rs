//! The group's configuration, as versioned state.
//!
//! The object has a key `version`, which every change compares and raises, and a key for each item. What an item says is
//! not looked at here. A gateway reads the whole object and makes what it serves the same; how it came to be is of no
//! interest, so a lost notification or a skipped version does no harm.

use crate::encoding::{Unreadable, decode, encode};
use crate::{RequestError, Snapshot, action::Keys};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The key of the header.
pub(crate) const VERSION: &str = "version";
/// ANA groups of a group of gateways, at most: as many as a target has.
pub const ANA_GROUPS_MAX: u32 = 127;
/// What the keys of items begin with.
const ITEM: &str = "item/";

/// An item: a subsystem, a namespace, a host, a key, a listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The version of the configuration that it came with.
    pub version: u64,
    /// What it says.
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    version: u64,
    /// How many ANA groups there are, from 1 on.
    ana_groups: u32,
}

/// A change of one item.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The item.
    pub key: String,
    /// What it says from now on; `None` removes it.
    pub value: Option<Value>,
    /// The version of the item that the change was made for, 0 for none. The change is refused if it has another one by
    /// then. `None` changes it whatever it says.
    pub expect: Option<u64>,
}

/// What must be so of all other items, too, when changes are made: looked at in the state that they are made to. It says why they
/// are refused.
pub struct Condition(Box<Look>);

type Look = dyn Fn(&BTreeMap<String, Item>) -> Result<(), String> + Send;

impl Condition {
    /// By this look at the items.
    pub fn new(look: impl Fn(&BTreeMap<String, Item>) -> Result<(), String> + Send + 'static) -> Self {
        Self(Box::new(look))
    }

    /// Looks at items.
    ///
    /// # Errors
    /// Why changes are not to be made to them.
    pub fn look_at(&self, items: &BTreeMap<String, Item>) -> Result<(), String> {
        (self.0)(items)
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").finish()
    }
}

/// The configuration as it was read last.
#[derive(Debug, Default)]
pub struct Configuration {
    header: Option<(Header, Vec<u8>)>,
    items: BTreeMap<String, Item>,
    /// Items that cannot be read, each with its reason: skipped.
    unreadable: Vec<(String, String)>,
    /// Why a newer state of the object is not used.
    refused: Option<Unreadable>,
    /// The object is not there, and none was read before.
    missing: bool,
    /// Counts the states that were read.
    serial: u64,
    /// The one that is served, and the items of it that are broken.
    applied: Option<(u64, u64)>,
    /// The last version that took something away which is still under way.
    pub(crate) unfinished: Option<u64>,
    broken: Vec<(String, String)>,
}

impl Configuration {
    /// Its version; 0 before it was read.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.header.as_ref().map_or(0, |(header, _)| header.version)
    }

    /// How many ANA groups there are, from 1 on.
    #[must_use]
    pub fn ana_groups(&self) -> u32 {
        self.header.as_ref().map_or(0, |(header, _)| header.ana_groups)
    }

    /// All items that can be read.
    #[must_use]
    pub fn items(&self) -> &BTreeMap<String, Item> {
        &self.items
    }

    /// The version that is served here.
    #[must_use]
    pub fn applied(&self) -> Option<u64> {
        self.applied.map(|(_, version)| version)
    }

    /// Items that cannot be read, each with its reason.
    #[must_use]
    pub fn unreadable(&self) -> &[(String, String)] {
        &self.unreadable
    }

    /// Items that are skipped, each with its reason.
    pub fn broken(&self) -> impl Iterator<Item = &(String, String)> {
        self.unreadable.iter().chain(&self.broken)
    }

    /// Why what is stored is not used. What was read before goes on being served.
    #[must_use]
    pub fn refused(&self) -> Option<&Unreadable> {
        self.refused.as_ref()
    }

    /// The object was read.
    pub(crate) fn on_snapshot(&mut self, snapshot: &Snapshot) {
        let damaged =
            |cause: String| Some(Unreadable::Damaged { what: "the configuration".to_string(), cause });
        self.missing = self.header.is_none() && !snapshot.keys.contains_key(VERSION);
        let Some(bytes) = snapshot.keys.get(VERSION) else {
            let cause = "it is gone: put its object back, or stop all gateways, and start one, which makes an empty one";
            self.refused = damaged(cause.to_string());
            return;
        };
        let known = self.version();
        match decode::<Header>("the configuration", bytes) {
            Ok(header)
                if !(1..=ANA_GROUPS_MAX).contains(&header.ana_groups) || header.version == u64::MAX =>
            {
                self.refused =
                    damaged(format!("version {} with {} ANA groups", header.version, header.ana_groups));
            }
            Ok(header) if header.version < known => {
                let version = header.version;
                self.refused = damaged(format!(
                    "it has version {version}, and version {known} is served here: it was restored, or made anew. Put the \
                     newer one back, or restart this gateway to serve what is there"
                ));
            }
            Ok(header) => {
                self.refused = None;
                self.take(header, bytes, snapshot);
            }
            Err(unreadable) => self.refused = Some(unreadable),
        }
    }

    /// Whether it has to be made, if nobody has it.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing
    }

    fn take(&mut self, header: Header, bytes: &[u8], snapshot: &Snapshot) {
        let (mut items, mut unreadable) = (BTreeMap::new(), Vec::new());
        for (key, bytes) in &snapshot.keys {
            let Some(name) = key.strip_prefix(ITEM) else { continue };
            match decode::<Item>("it", bytes) {
                Ok(item) => drop(items.insert(name.to_string(), item)),
                Err(error) => unreadable.push((name.to_string(), error.to_string())),
            }
        }
        // An item that somebody mends by hand has the version that it had.
        let is_known = self.header.as_ref().is_some_and(|(_, known)| known == bytes);
        if is_known && (&self.items, &self.unreadable) == (&items, &unreadable) {
            return;
        }
        self.header = Some((header, bytes.to_vec()));
        self.serial += 1;
        (self.items, self.unreadable) = (items, unreadable);
    }

    /// What makes the object, if nobody else makes it first.
    pub(crate) fn creation(ana_groups: u32) -> (Keys, Keys) {
        let header = encode(&Header { version: 1, ana_groups });
        ([(VERSION.to_string(), None)].into(), [(VERSION.to_string(), Some(header))].into())
    }

    /// What a change compares and sets: it is made for the state that was read last, and fails if there is another one by
    /// then. Then it is made again for that.
    pub(crate) fn edit(&self, changes: &[Change]) -> Result<(u64, Keys, Keys), RequestError> {
        if let Some(unreadable) = &self.refused {
            return Err(RequestError::Unreadable(unreadable.clone()));
        }
        let (header, bytes) = self.header.as_ref().ok_or(RequestError::NotThereYet)?;
        for change in changes {
            let version = self.items.get(&change.key).map_or(0, |item| item.version);
            if change.expect.is_some_and(|expected| expected != version) {
                return Err(RequestError::Changed { key: change.key.clone(), version });
            }
            let unreadable = self.unreadable.iter().find(|(key, _)| *key == change.key);
            if let Some((key, reason)) = unreadable.filter(|_| change.value.is_some()) {
                return Err(RequestError::ItemUnreadable { key: key.clone(), reason: reason.clone() });
            }
        }
        let version = header.version + 1;
        let mut set: Keys = changes
            .iter()
            .map(|Change { key, value, .. }| {
                let item = value.as_ref().map(|value| encode(&Item { version, value: value.clone() }));
                (format!("{ITEM}{key}"), item)
            })
            .collect();
        set.push((VERSION.to_string(), Some(encode(&Header { version, ..header.clone() }))));
        Ok((version, [(VERSION.to_string(), Some(bytes.clone()))].into(), set))
    }

    /// Whether what is served is not what was read.
    pub(crate) fn is_pending(&self) -> bool {
        self.serial != self.applied.map_or(0, |(serial, _)| serial)
    }

    /// Whether there are items that may work later.
    pub(crate) fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Names the state that is applied from now on.
    pub(crate) fn state(&self) -> (u64, u64) {
        (self.serial, self.version())
    }

    pub(crate) fn on_converged(&mut self, state: (u64, u64), broken: Vec<(String, String)>) {
        self.applied = Some(state);
        self.broken = broken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: u64, items: &[(&str, &str)]) -> Snapshot {
        let mut keys: BTreeMap<String, Vec<u8>> =
            items.iter().map(|(key, text)| (format!("{ITEM}{key}"), text.as_bytes().to_vec())).collect();
        keys.insert(VERSION.into(), encode(&Header { version, ana_groups: 4 }));
        Snapshot { version, keys }
    }

    fn change(expect: Option<u64>) -> Change {
        Change { key: "host/a".into(), value: Some(Value::Null), expect }
    }

    #[test]
    fn broken_item_is_skipped_and_reported() {
        let mut configuration = Configuration::default();
        let items =
            [("good", r#"{"format":1,"version":1,"value":7}"#), ("bad", "{"), ("new", r#"{"format":9}"#)];
        configuration.on_snapshot(&object(3, &items));
        assert_eq!((configuration.version(), configuration.items().len()), (3, 1));
        assert_eq!(configuration.broken().count(), 2);
    }

    #[test]
    fn item_that_cannot_be_read_is_not_overwritten_and_can_be_removed() {
        let mut configuration = Configuration::default();
        configuration.on_snapshot(&object(3, &[("host/a", r#"{"format":9,"who":"knows"}"#)]));
        for expect in [None, Some(0)] {
            let refused = configuration.edit(&[change(expect)]).expect_err("a newer version wrote it");
            assert!(refused.to_string().contains("host/a") && refused.to_string().contains("upgrade"));
        }
        let removed = Change { value: None, ..change(Some(0)) };
        assert!(configuration.edit(&[removed]).is_ok());
    }

    #[test]
    fn item_that_is_mended_by_hand_is_read_although_the_version_is_the_same() {
        let mut configuration = Configuration::default();
        configuration.on_snapshot(&object(3, &[("host/a", "{")]));
        configuration.on_converged(configuration.state(), Vec::new());
        assert!(!configuration.is_pending());
        configuration.on_snapshot(&object(3, &[("host/a", r#"{"format":1,"version":2,"value":7}"#)]));
        assert!(configuration.is_pending() && configuration.unreadable().is_empty());
    }

    #[test]
    fn newer_format_is_refused_and_what_runs_is_kept() {
        let mut configuration = Configuration::default();
        configuration.on_snapshot(&object(3, &[("good", r#"{"format":1,"version":1,"value":7}"#)]));
        let mut newer = object(4, &[]);
        newer.keys.insert(VERSION.into(), br#"{"format":2,"all":"different"}"#.to_vec());
        configuration.on_snapshot(&newer);
        assert_eq!((configuration.version(), configuration.items().len()), (3, 1));
        assert!(matches!(configuration.refused(), Some(Unreadable::Newer { format: 2, .. })));
        assert!(matches!(configuration.edit(&[change(None)]), Err(RequestError::Unreadable(_))));
        configuration.on_snapshot(&object(5, &[]));
        assert_eq!((configuration.version(), configuration.refused()), (5, None));
    }

    #[test]
    fn older_version_is_refused_and_what_runs_is_kept() {
        let mut configuration = Configuration::default();
        configuration.on_snapshot(&object(61, &[("good", r#"{"format":1,"version":1,"value":7}"#)]));
        configuration.on_snapshot(&object(1, &[]));
        assert_eq!((configuration.version(), configuration.items().len()), (61, 1));
        let why = configuration.refused().expect("a reason").to_string();
        assert!(why.contains("version 1") && why.contains("version 61"), "{why}");
        configuration.on_snapshot(&object(61, &[("good", r#"{"format":1,"version":1,"value":7}"#)]));
        assert_eq!(configuration.refused(), None);
    }

    #[test]
    fn change_of_an_item_that_somebody_changed_meanwhile_is_refused() {
        let mut configuration = Configuration::default();
        configuration.on_snapshot(&object(3, &[("host/a", r#"{"format":1,"version":2,"value":7}"#)]));
        assert!(
            configuration.edit(&[change(Some(2))]).is_ok() && configuration.edit(&[change(None)]).is_ok()
        );
        let refused = configuration.edit(&[change(Some(0))]).expect_err("it exists");
        assert_eq!(refused, RequestError::Changed { key: "host/a".into(), version: 2 });
    }
}
