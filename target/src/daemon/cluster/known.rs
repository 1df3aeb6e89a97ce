//! What the group knows of the image of each namespace, whoever can open it: which disk hosts know it as, and the size that
//! they are shown. So all gateways show them the same one: also a gateway that cannot open the image, or that opens it for
//! the first time when it has shrunk.

use super::super::Daemon;
use super::super::changing::{Changing, Pending};
use super::super::sizes::Looked;
use super::Membership;
use super::duplicates::rank;
use super::images::{Key, item, key_of};
use crate::control::request::change::Item;
use crate::exports::{Export, ExportFault, absent};
use crate::limits::RETRY_INTERVAL;
use core::time::Duration;
use nvmf_backend::Disk;
use nvmf_block::{DeviceId, Geometry};
use nvmf_cluster::configuration::{Change, Item as Stored};
use nvmf_config::{Config, Namespace, Subsystem};
use nvmf_subsystem::{NamespaceDefinition, Nqn};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The items, beside `namespace/…`.
pub(super) const SIZE: &str = "size/";

/// What is known of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    /// What hosts are shown.
    pub(super) bytes: u64,
    block_size: u32,
    /// By which hosts know it.
    pub(super) uuid: Uuid,
    /// Its own identity, also where an operator has given it another UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<Uuid>,
}

fn identity(disk: &Disk) -> Option<Uuid> {
    Some(disk.identity().ok()??.uuid)
}

impl Known {
    /// Of a disk that is open, if it has an identity of its own.
    pub(super) fn of(namespace: &Namespace, disk: &Disk) -> Option<Self> {
        let image = identity(disk);
        let uuid = namespace.uuid.map(Uuid::from_bytes).or(image)?;
        let geometry = disk.geometry();
        Some(Self { bytes: geometry.bytes(), block_size: geometry.block_size, uuid, image })
    }

    fn shown(export: &Export) -> Self {
        let (geometry, uuid) = (export.disk.geometry(), Uuid::from_bytes(export.uuid));
        let image = identity(&export.disk);
        Self { bytes: geometry.bytes(), block_size: geometry.block_size, uuid, image }
    }

    /// Whether what was found is the same disk.
    pub(super) fn is_same_disk(&self, found: &Self, namespace: &Namespace) -> bool {
        match (self.image, found.image) {
            (Some(known), Some(found)) => known == found,
            // As a version before this one has stored it: a UUID that an operator has given tells nothing.
            _ => namespace.uuid.is_some() || self.uuid == found.uuid,
        }
    }

    /// Whether hosts see the disk like that already, whatever the item says of it now.
    pub(super) fn shown_as(&self, name: &str, value: Option<&toml::Value>) -> Option<bool> {
        match name {
            "uuid" => {
                let given = value.and_then(|value| value.as_str()?.parse::<Uuid>().ok());
                Some(given.or(self.image)? == self.uuid)
            }
            _ => {
                // Where none is given it is that of images whose size is a multiple of it.
                let usual = self.bytes.is_multiple_of(4096).then_some(4096);
                let size = value.map_or(usual, toml::Value::as_integer)?;
                Some(size == i64::from(self.block_size))
            }
        }
    }

    /// The change that has all gateways know it.
    pub(super) fn change(self, namespace: &str, expect: Option<u64>) -> Option<Change> {
        Some(Change { key: size_of(namespace)?, value: Some(serde_json::to_value(self).ok()?), expect })
    }
}

/// Whether an item is one of these.
pub(super) fn is_known(key: &str) -> bool {
    key.starts_with(SIZE)
}

/// The item of what is known of a namespace's image.
pub(super) fn size_of(namespace: &str) -> Option<String> {
    namespace.strip_prefix("namespace/").map(|of| format!("{SIZE}{of}"))
}

/// The namespace of such an item.
pub(super) fn namespace_of(size: &str) -> Option<String> {
    size.strip_prefix(SIZE).map(|of| format!("namespace/{of}"))
}

/// Which namespace an item of the configuration is.
pub(super) fn key_of_item(namespace: &str) -> Option<Key> {
    let (nqn, nsid) = namespace.strip_prefix("namespace/")?.rsplit_once('/')?;
    Some((nqn.parse().ok()?, nsid.parse().ok()?))
}

/// What the items say.
pub(super) fn known(items: &BTreeMap<String, Stored>) -> BTreeMap<Key, Known> {
    let of = |(key, item): (&String, &Stored)| {
        let namespace = key_of_item(&namespace_of(key)?)?;
        let known: Known = serde_json::from_value(item.value.clone()).ok()?;
        let is_right =
            Geometry::is_block_size(known.block_size) && known.bytes >= u64::from(known.block_size);
        Some((namespace, known)).filter(|_| is_right)
    };
    items.iter().filter_map(of).collect()
}

/// Whether what is shown here may take the place of what is known. Which disk it is never changes: that would be another
/// namespace. An operator may give it another UUID, which counts where it was opened since.
fn may_replace(known: &Known, shown: &Known, export: &Export, stored: &Stored) -> bool {
    let given = stored.value.get("uuid").and_then(Value::as_str).and_then(|text| text.parse::<Uuid>().ok());
    known.is_same_disk(shown, &export.namespace) && (known.uuid == shown.uuid || given == Some(shown.uuid))
}

/// What this gateway tells the group of its images.
#[derive(Debug, Default)]
pub(super) struct Noting {
    /// What was asked for, and the version that came of it.
    asked: Option<crate::cluster::Ticket>,
    version: u64,
    not_before: Duration,
    /// The version of the configuration at which a disk that seems larger than is known was looked at again.
    seen: BTreeMap<DeviceId, u64>,
}

impl Membership {
    /// What the group's configuration has, readable or not.
    pub(super) fn item_names(&self) -> impl Iterator<Item = &String> {
        self.shared.items.keys().chain(self.shared.unreadable.iter().map(|(name, _)| name))
    }

    /// Whether it has such an item.
    pub(super) fn has_item(&self, key: &str) -> bool {
        self.shared.items.contains_key(key) || self.shared.unreadable.iter().any(|(name, _)| name == key)
    }

    /// The change that has all gateways show hosts that an image has shrunk so far. It is for what this gateway has read: behind
    /// that, the namespace may have been removed, and added with another image.
    pub(super) fn accepted(&self, export: &Export, bytes: u64) -> Option<Change> {
        let namespace = item(&key_of(export));
        let known = self.known_of(export).copied().unwrap_or_else(|| Known::shown(export));
        let stored = self.shared.items.get(&size_of(&namespace)?);
        Known { bytes, ..known }.change(&namespace, Some(stored.map_or(0, |item| item.version)))
    }

    /// What is known of this disk, if it is the one that is known.
    fn known_of(&self, export: &Export) -> Option<&Known> {
        let known = self.known.get(&key_of(export))?;
        (known.uuid.as_bytes() == &export.uuid).then_some(known)
    }

    /// What is known goes with its namespace, and with its image.
    pub(super) fn removals_of_known(&self, asked: &[Change]) -> Vec<Change> {
        // By what hosts know it stays, or the change is refused.
        let image = |value: &Value| value.get("rbd").cloned();
        let stays = |change: &Change| {
            let before = self.shared.items.get(&change.key).map(|it| image(&it.value));
            change.value.as_ref().map(image) == before
        };
        let gone = asked.iter().filter(|change| !stays(change)).filter_map(|change| size_of(&change.key));
        let known = gone.filter(|key| self.shared.items.contains_key(key));
        known.map(|key| Change { key, value: None, expect: None }).collect()
    }
}

impl Daemon {
    /// Whether hosts are to be shown that an image has shrunk so far.
    pub(in crate::daemon) fn is_accepted(&self, export: &Export, disk: &Disk) -> bool {
        let known = self.cluster.as_ref().and_then(|it| it.known_of(export));
        known.is_some_and(|known| known.bytes == disk.geometry().bytes())
    }

    /// An image that was just opened is another one than the group serves under this number: the name is another one's now, and
    /// whoever has the right one open goes on with it.
    fn is_another_disk(&self, export: &Export) -> Option<ExportFault> {
        let known = self.cluster.as_ref()?.known.get(&key_of(export))?;
        let found = Known::shown(export);
        let of = |it: &Known| it.image.unwrap_or(it.uuid);
        let another = || ExportFault::AnotherDisk { found: of(&found), known: of(known) };
        (!known.is_same_disk(&found, &export.namespace)).then(another)
    }

    /// Why an image that was just opened is not what the group means by this namespace.
    pub(in crate::daemon) fn is_wrong_image(&self, export: &Export) -> Option<ExportFault> {
        self.is_another_disk(export).or_else(|| {
            let (nqn, nsid) = self.image_elsewhere(&key_of(export), &Known::shown(export))?;
            export.shared.is_some().then(|| ExportFault::SameImage { nqn: Box::new(nqn), nsid })
        })
    }

    /// The namespace that has this image already, under the name that it had: two ANA groups would serve one image, of which
    /// neither fences the other's client. Of two that are known with it, the one that was changed last longest ago has it.
    pub(super) fn image_elsewhere(&self, key: &Key, found: &Known) -> Option<Key> {
        let cluster = self.cluster.as_ref()?;
        let rank = |key: &Key| rank(&cluster.shared.items, &item(key));
        let is_it = |(other, known): &(&Key, &Known)| {
            let is_there = || cluster.shared.items.contains_key(&item(other));
            let is_same = known.image.is_some() && known.image == found.image;
            *other != key && is_same && is_there() && rank(other) < rank(key)
        };
        cluster.known.iter().find(is_it).map(|(other, _)| *other)
    }

    /// An image that was just opened, as hosts are shown it: it may have shrunk while nobody here looked.
    pub(in crate::daemon) fn as_known(&self, export: Export) -> Export {
        let Some(&Known { bytes, .. }) = self.cluster.as_ref().and_then(|it| it.known_of(&export)) else {
            return export;
        };
        let geometry = export.disk.geometry();
        if geometry.bytes() >= bytes {
            return export;
        }
        match export.disk.with_blocks(bytes / u64::from(geometry.block_size)) {
            Ok(Some(disk)) => Export { cut: Some(export.disk), disk, ..export },
            _ => export,
        }
    }

    /// Takes away what is another disk than the group serves under that number, or has another UUID or block size there: the
    /// namespace was removed and added again while this gateway did not look. `before`: the items that were read before.
    pub(super) fn take_away_others(
        &mut self,
        asked: &Config,
        before: &BTreeMap<String, Stored>,
    ) -> Vec<(Key, Vec<Pending>)> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let is_other = |export: &Export, uuid: Option<[u8; 16]>| {
            let (key, shown) = (key_of(export), Known::shown(export));
            match cluster.known.get(&key) {
                Some(known) => {
                    let is_shown = (known.uuid, known.block_size) == (shown.uuid, shown.block_size);
                    !known.is_same_disk(&shown, &export.namespace) || !is_shown
                }
                // It goes with its namespace, and with what names the image. Alone it goes by hand, or where an older version was
                // given another UUID, which nobody has in force.
                None => {
                    let (namespace, size) = (item(&key), size_of(&item(&key)).unwrap_or_default());
                    let is_new = before.get(&namespace).map(|it| it.version)
                        != cluster.shared.items.get(&namespace).map(|it| it.version);
                    is_new
                        && uuid == export.namespace.uuid
                        && before.contains_key(&size)
                        && !cluster.has_item(&size)
                }
            }
        };
        let of_shared = self.exports().iter().filter(|export| export.shared.is_some());
        let stays = of_shared.filter_map(|export| {
            let of = asked.subsystems.iter().filter(|subsystem| subsystem.nqn == export.nqn);
            let new =
                of.flat_map(|subsystem| &subsystem.namespaces).find(|it| it.nsid == export.namespace.nsid)?;
            (new.backing == export.namespace.backing).then_some((export, new.uuid))
        });
        let others: Vec<Key> = stays
            .filter(|(export, uuid)| is_other(export, *uuid))
            .map(|(export, _)| key_of(export))
            .collect();
        let take_away = |(nqn, nsid): Key| {
            tracing::warn!(
                "namespace {nsid} of {nqn} was removed and added again meanwhile: the image of its name is opened anew"
            );
            self.forget_namespace(&nqn, nsid);
            ((nqn, nsid), self.take_away(|export| export.is(&nqn, nsid)))
        };
        others.into_iter().map(take_away).collect()
    }

    /// Has all gateways show hosts the new size of an image that has shrunk; `false` if this is no gateway of a group.
    pub(in crate::daemon) fn ask_to_accept(
        &mut self,
        export: &Export,
        disk: &Disk,
        told: Item,
        changing: &mut Changing,
    ) -> bool {
        let cluster = self.cluster.as_ref();
        let change = cluster.and_then(|cluster| cluster.accepted(export, disk.geometry().bytes()));
        let Some(change) = change else { return false };
        changing.items.push(told);
        changing.asking = Some(self.ask_to_change(vec![change], None, None));
        true
    }

    /// Shows hosts the sizes that were accepted since.
    pub(super) fn show_accepted_sizes(&mut self) {
        let shrunk = self.exports().iter().filter_map(|export| {
            let cut = export.cut.as_ref().filter(|cut| self.is_accepted(export, cut))?;
            Some(Export { disk: cut.clone(), ..export.clone() })
        });
        for export in shrunk.collect::<Vec<_>>() {
            // The next command of a host is in the new size; what was under way fails behind the end, as before.
            drop(self.shrink(&export));
        }
    }

    /// Tells the group what it does not know yet of the images that are served here: that they are there, or have grown.
    pub(super) fn note_known(&mut self) {
        let now = self.common.clock.now();
        let Some(cluster) = &mut self.cluster else { return };
        if let Some(ticket) = cluster.noting.asked {
            let Some(answer) = cluster.answers.remove(&ticket) else { return };
            cluster.noting.asked = None;
            cluster.noting.version = answer.unwrap_or_default();
            cluster.noting.not_before = now + RETRY_INTERVAL;
        }
        if cluster.shared.version < cluster.noting.version || now < cluster.noting.not_before {
            return;
        }
        let Some(cluster) = &self.cluster else { return };
        let served = self.exports().iter().filter(|it| it.shared.is_some() && it.is_for_workers());
        let version = cluster.shared.version;
        let mut unsure: Vec<Export> = Vec::new();
        let change = |export: &Export| {
            let shown = Known::shown(export);
            let namespace = item(&key_of(export));
            // It may have been removed meanwhile.
            let stored = cluster.shared.items.get(&namespace)?;
            let known = cluster.known.get(&key_of(export));
            if known.is_some_and(|known| !may_replace(known, &shown, export, stored)) {
                return None;
            }
            match cluster.known_of(export) {
                Some(known)
                    if known.bytes >= shown.bytes && known.image.is_none() && shown.image.is_some() =>
                {
                    let known = Known { image: shown.image, ..*known };
                    let expect = cluster.shared.items.get(&size_of(&namespace)?)?.version;
                    return known.change(&namespace, Some(expect));
                }
                Some(known) if known.bytes >= shown.bytes => return None,
                // It may have shrunk, and that been accepted, while this gateway was stopped: then it has not grown.
                Some(_) if self.looking.contains_key(&Looked::One(export.device)) => return None,
                Some(_) if cluster.noting.seen.get(&export.device) != Some(&version) => {
                    unsure.push(export.clone());
                    return None;
                }
                _ => {}
            }
            let stored = cluster.shared.items.get(&size_of(&namespace)?);
            shown.change(&namespace, Some(stored.map_or(0, |item| item.version)))
        };
        let changes: Vec<Change> = served.filter_map(change).collect();
        for export in unsure {
            let device = export.device;
            self.begin_one_look(Looked::One(device), &[export]);
            if let Some(cluster) =
                self.cluster.as_mut().filter(|_| self.looking.contains_key(&Looked::One(device)))
            {
                cluster.noting.seen.insert(device, version);
            }
        }
        if changes.is_empty() {
            return;
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.noting.seen.clear();
            cluster.noting.asked = Some(cluster.driver.ask(crate::cluster::Request::Edit(changes)));
        }
    }

    /// Namespaces whose images are not open here, as the group knows them: hosts find them on the other paths. Those that
    /// are gone from the pool are gone for hosts as well.
    pub(in crate::daemon) fn known_elsewhere(&self, nqn: &Nqn) -> Vec<NamespaceDefinition> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let open: BTreeSet<u32> =
            self.exports().iter().filter(|it| it.nqn == *nqn).map(|it| it.namespace.nsid).collect();
        let subsystems = self.config.subsystems.iter().filter(|subsystem| subsystem.nqn == *nqn);
        let namespaces = subsystems.flat_map(|subsystem| &subsystem.namespaces);
        let closed = namespaces.filter(|namespace| !open.contains(&namespace.nsid));
        let now = self.common.clock.now();
        let there = closed.filter(|namespace| {
            let key = (*nqn, namespace.nsid);
            let is_seen = || cluster.elsewhere.iter().any(|(nqn, nsid, _)| (*nqn, *nsid) == key);
            // Hosts must see first that another disk is gone; and what opens at once is seen as it is.
            !self.namespaces.is_missing(&key)
                && !self.namespaces.is_resting(&key, namespace)
                && (!self.namespaces.is_new(&key, now) || is_seen())
        });
        // One disk is there once.
        let mut taken: BTreeSet<[u8; 16]> = self.exports().iter().map(|export| export.uuid).collect();
        let known = there.filter_map(|namespace| {
            let &Known { bytes, block_size, uuid, .. } = cluster.known.get(&(*nqn, namespace.nsid))?;
            let is_free = taken.insert(uuid.into_bytes());
            is_free.then(|| absent(namespace, uuid.into_bytes(), block_size, bytes))
        });
        known.collect()
    }

    /// Whether the group knows the disk that hosts may have opened elsewhere.
    pub(super) fn is_known_elsewhere(&self, export: &Export) -> bool {
        self.cluster.as_ref().is_some_and(|it| it.known_of(export).is_some())
    }

    /// Shows hosts what the group knows of images that are not open here, where that has changed.
    pub(super) fn show_known_elsewhere(&mut self) {
        let open: BTreeSet<Key> = self.exports().iter().map(key_of).collect();
        let lacks_some = |subsystem: &&Subsystem| {
            subsystem.namespaces.iter().any(|it| !open.contains(&(subsystem.nqn, it.nsid)))
        };
        let lacking = self.config.subsystems.iter().filter(lacks_some).map(|subsystem| subsystem.nqn);
        let elsewhere: BTreeSet<(Nqn, u32, [u8; 16])> = lacking
            .flat_map(|nqn| self.known_elsewhere(&nqn).into_iter().map(move |it| (nqn, it.nsid.0, it.uuid)))
            .collect();
        let Some(cluster) = self.cluster.as_mut().filter(|it| it.elsewhere != elsewhere) else { return };
        let changed: BTreeSet<Nqn> =
            cluster.elsewhere.symmetric_difference(&elsewhere).map(|(nqn, ..)| *nqn).collect();
        cluster.elsewhere = elsewhere;
        let is_there = |nqn: &Nqn| self.config.subsystems.iter().any(|subsystem| subsystem.nqn == *nqn);
        changed.iter().filter(|nqn| is_there(nqn)).for_each(|nqn| self.show_again(nqn));
        self.publish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_disk_it_is_tells_the_image_and_not_the_uuid_that_an_operator_has_given_it() {
        let uuid = |number| Uuid::from_u128(number);
        let known = |given, image: Option<u128>| Known {
            bytes: 1 << 20,
            block_size: 4096,
            uuid: uuid(given),
            image: image.map(Uuid::from_u128),
        };
        let namespace = |text: &str| {
            let text = format!(
                "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\n\
                 allow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n{text}"
            );
            let mut subsystem = nvmf_config::Config::parse(&text).unwrap().subsystems.remove(0);
            subsystem.namespaces.remove(0)
        };
        let given = namespace("uuid = \"00000000-0000-0000-0000-000000000009\"\n");
        let (plain, nine) = (namespace(""), 9);
        assert!(!known(nine, Some(1)).is_same_disk(&known(nine, Some(2)), &given), "one name, another image");
        assert!(
            known(7, Some(1)).is_same_disk(&known(nine, Some(1)), &given),
            "an operator has given it another UUID"
        );
        assert!(!known(1, None).is_same_disk(&known(2, Some(2)), &plain), "as an older version stored it");
        assert!(known(1, None).is_same_disk(&known(1, Some(1)), &plain));
        assert!(known(nine, None).is_same_disk(&known(nine, Some(2)), &given), "it cannot be told");
    }
}
