//! Changes of the group's configuration: made to what was read last, and asked for. What cannot be had, or would
//! overwrite what this gateway cannot read, is refused before.

use super::super::changing::Changing;
use super::super::plan::Change as Planned;
use super::super::{Daemon, apply::Origin};
use super::converging::{configuration, remedy};
use super::duplicates::uuids_are_free;
use super::images::{Key, item};
use super::known::{self, Known};
use super::taking_away::takes_away;
use crate::control::protocol::Fault;
use crate::control::request::change::{Effect, Item};
use nvmf_cluster::configuration::Change;
use nvmf_config::{Config, Draft, DraftError, Items};
use nvmf_subsystem::Nqn;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

/// An edit that can be made again, to what others have changed meanwhile.
pub(in crate::daemon) type Edit = Box<dyn Fn(&mut Draft) -> Result<(), DraftError>>;

/// What is said where a namespace is to be in another ANA group: what is under way on the connection of the old one is
/// not fenced by the new one's owner.
const REGROUPED: &str = "a namespace stays in its ANA group: move the group to another gateway, or remove the namespace and \
                         add it in the other group, where it has no reservation and no write protection any more";

/// What is said of what hosts know a subsystem or a disk by.
const KNOWN_OTHERWISE: &str =
    "is what hosts know it by, and what is kept of it goes by that: remove it, and add it as it is to be";

impl Daemon {
    /// The configuration of the group and of this gateway, as it was read last: what an edit is made to.
    pub(in crate::daemon) fn wanted_of_group(&self) -> Option<Config> {
        let cluster = self.cluster.as_ref()?;
        Some(configuration(&self.config, &cluster.shared).0)
    }

    /// Changes what is wanted: what is this gateway's own at once, what is the group's for all of them.
    pub(in crate::daemon) fn change_group(
        &mut self,
        edit: impl FnOnce(&mut Draft) -> Result<(), DraftError>,
    ) -> Result<Changing, Fault> {
        let refused = |text: String| Fault::refused(text);
        let wanted = self.wanted_of_group().unwrap_or_else(|| self.config.clone());
        let mut draft = Draft::of(&wanted).map_err(|error| refused(error.to_string()))?;
        edit(&mut draft).map_err(|error| refused(error.to_string()))?;
        let placed = self.place(&mut draft);
        let asked = draft.check().map_err(|error| refused(error.to_string()))?;
        if asked.own_part() != wanted.own_part() {
            let own = Config { subsystems: self.config.subsystems.clone(), ..asked };
            return Ok(self.apply(&own, Origin::Command, None));
        }
        let mut changing = self.ask_for(&asked)?;
        if let Some(asking) = &mut changing.asking {
            asking.placed = placed;
        }
        Ok(changing)
    }

    /// Chooses ANA groups for namespaces that are added without one, each time that the edit is made. What this gateway asks for
    /// meanwhile counts as long as what is returned for it exists.
    fn place(&mut self, draft: &mut Draft) -> Vec<Arc<u32>> {
        let mut placed = Vec::new();
        while let Some(namespace) = draft.unplaced() {
            let Some(group) = self.least_loaded_group() else {
                namespace.remove("ana_group");
                continue;
            };
            namespace.insert("ana_group".into(), i64::from(group).into());
            let group = Arc::new(group);
            self.cluster.iter_mut().for_each(|cluster| cluster.placing.push(Arc::downgrade(&group)));
            placed.push(group);
        }
        placed
    }

    /// The ANA group for a namespace that is added without one, in a group of gateways.
    fn least_loaded_group(&mut self) -> Option<u32> {
        let wanted = self.wanted_of_group()?;
        let cluster = self.cluster.as_mut()?;
        cluster.placing.retain(|group| group.strong_count() > 0);
        let placing: Vec<_> = cluster.placing.iter().filter_map(Weak::upgrade).map(|group| *group).collect();
        let namespaces = wanted.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let mut loads: BTreeMap<u32, usize> = (1..=cluster.shared.ana_groups).map(|id| (id, 0)).collect();
        for group in namespaces.map(|namespace| namespace.ana_group).chain(placing) {
            if let Some(load) = loads.get_mut(&group) {
                *load += 1;
            }
        }
        least_loaded(&loads, &self.owners().into_iter().map(|(id, (owner, ..))| (id, owner)).collect())
    }

    /// NSIDs of a subsystem that the group has for namespaces which are left out here.
    pub(in crate::daemon) fn nsids_left_out(&self, nqn: &str) -> BTreeSet<u32> {
        let prefix = format!("namespace/{nqn}/");
        let left_out = self.cluster.iter().flat_map(|cluster| &cluster.left_out);
        left_out.filter_map(|(key, _)| key.strip_prefix(&prefix)?.parse().ok()).collect()
    }

    /// Removes an item that is left out here, and what is below it.
    pub(in crate::daemon) fn remove_left_out(&mut self, key: &str) -> Result<Changing, Fault> {
        let Some(cluster) = &self.cluster else { return Err(Fault::refused(super::asking::NO_GROUP)) };
        if !cluster.is_left_out(key) {
            let names: Vec<&str> = cluster.left_out.iter().map(|(key, _)| key.as_str()).collect();
            let known = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
            return Err(Fault::refused(format!("{key} is not left out here; {known} is")));
        }
        let mut changes = vec![cluster.removal(key.to_owned())];
        if let Some(nqn) = key.strip_prefix("subsystem/") {
            changes.extend(cluster.removals_below(nqn, &[]));
        }
        changes.extend(cluster.removals_of_known(&changes));
        self.ask_group_to_serve(Item::done("remove-item", key), changes)
    }

    /// Whether an item is left out here.
    pub(in crate::daemon) fn is_left_out(&self, key: &str) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.is_left_out(key))
    }

    /// What a file says of all gateways, with what is this one's own.
    pub(in crate::daemon) fn shared_part(&self, asked: &Config) -> Result<Config, Fault> {
        if !asked.listeners.is_empty() || asked.cluster.is_some() {
            let text = "this is the file of one gateway: `apply` takes what all of them serve ([[subsystem]], \
                        [discovery]); a gateway reads its own file at `systemctl reload`";
            return Err(Fault::refused(text));
        }
        if asked.hosts.iter().any(|host| host.group_keys.is_empty()) {
            return Err(Fault::refused(
                "keys of hosts are given to the group by `host set-key`: leave [[host]] out",
            ));
        }
        if let Some(text) = self.lacks_keys(&asked.hosts) {
            return Err(Fault::refused(text));
        }
        // What it is asked for has nothing else of them.
        let asked = Config { hosts: Vec::new(), ..asked.clone() };
        if asked.is_empty() {
            return Err(Fault::refused("the file has no [[subsystem]]: everything stays as it is"));
        }
        let items = asked.items().map_err(|error| Fault::refused(error.to_string()))?;
        let (config, left_out) =
            self.config.with_items(&items).map_err(|error| Fault::refused(error.to_string()))?;
        match left_out.first() {
            Some((key, reason)) => Err(Fault::refused(format!("nothing was changed: {key}: {reason}"))),
            None => Ok(config),
        }
    }

    /// Asks the group to serve this.
    pub(in crate::daemon) fn ask_for(&mut self, asked: &Config) -> Result<Changing, Fault> {
        let (planned, items): (Vec<Planned>, Vec<Item>) = self.plan(asked).into_iter().unzip();
        let now = self.common.clock.now();
        let mut changing = Changing::new(Vec::new(), Origin::Command, now);
        let changes = self.changes_of_items(asked, &planned)?;
        if let Some(fault) = self.cannot_ask() {
            return Err(fault);
        }
        if changes.is_empty() {
            changing.asking = self.ask_whether_it_is_so();
            return Ok(changing);
        }
        let takes_away = planned.iter().any(|change| takes_away(&self.config, change));
        let disks = (!takes_away).then(|| planned.iter().map(disk_of).collect());
        let tries = self.tries(&planned, &changes);
        changing.items = items;
        changing.asking = Some(self.ask_to_change(changes, Some(tries), disks));
        Ok(changing)
    }

    /// Says what [`Self::ask_for`] would come to.
    pub(in crate::daemon) fn plan_of_group(&self, asked: &Config) -> Result<Changing, Fault> {
        let (planned, items): (Vec<Planned>, Vec<Item>) = self.plan(asked).into_iter().unzip();
        let tries = self.tries(&planned, &self.changes_of_items(asked, &planned)?);
        let mut changing = Changing::new(items, Origin::Command, self.common.clock.now());
        changing.asking = Some(self.only_try(tries));
        Ok(changing)
    }

    /// What changes of the group's items.
    fn changes_of_items(&self, asked: &Config, planned: &[Planned]) -> Result<Vec<Change>, Fault> {
        let Some(cluster) = &self.cluster else { return Ok(Vec::new()) };
        let after = asked.items().map_err(|error| Fault::refused(error.to_string()))?;
        let mut changes = cluster.changes_to(&after, planned).map_err(Fault::refused)?;
        for change in planned {
            if let Planned::RemoveSubsystem(nqn) = change {
                let below = cluster.removals_below(&nqn.to_string(), &changes);
                changes.extend(below);
            }
        }
        Ok(changes)
    }

    /// Why the group would not be asked for this, of which it then changes nothing. What is planned says so of each namespace that
    /// is to be in another ANA group.
    pub(in crate::daemon) fn refused_by_group(
        &self,
        asked: &Config,
        planned: &mut [(Planned, Item)],
    ) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let after = match asked.items() {
            Ok(after) => after,
            Err(error) => return Some(error.to_string()),
        };
        let regrouped: BTreeSet<String> = regrouped(&cluster.items, &after).collect();
        for (change, told) in &mut *planned {
            let (Planned::SetNamespace(nqn, new) | Planned::ReplaceNamespace(nqn, new)) = change else {
                continue;
            };
            if regrouped.contains(&item(&(*nqn, new.nsid))) {
                (told.effect, told.note) = (Effect::Refused, Some(REGROUPED.to_owned()));
                told.connections.clear();
            }
        }
        let planned: Vec<Planned> = planned.iter().map(|(change, _)| change.clone()).collect();
        cluster.changes_to(&after, &planned).err()
    }
}

impl super::Membership {
    pub(super) fn is_left_out(&self, key: &str) -> bool {
        self.left_out.iter().any(|(name, _)| name == key)
    }

    /// Why a change is not asked for: it would overwrite what is left out here, and may be right elsewhere.
    pub(super) fn overwrites(&self, change: &Change) -> Option<String> {
        let (key, reason) =
            self.left_out.iter().find(|(key, _)| change.value.is_some() && *key == change.key)?;
        Some(format!(
            "the group has {key} already, and this gateway leaves it out: {reason}. {}",
            remedy(key)
        ))
    }

    /// What is asked of the group, so that it serves this; or why it is not asked.
    fn changes_to(&self, after: &Items, planned: &[Planned]) -> Result<Vec<Change>, String> {
        if let Some(name) = regrouped(&self.items, after).next() {
            return Err(format!("{name}: {REGROUPED}"));
        }
        if let Some((name, what)) = known_otherwise(&self.items, after, &self.known) {
            return Err(format!("{name}: {what} {KNOWN_OTHERWISE}"));
        }
        if let Some(text) = beyond(planned, self.shared.ana_groups) {
            return Err(text);
        }
        let changes = differences(&self.items, after, &self.shared.items);
        let changes = changes.map_err(|error| error.to_string())?;
        match changes.iter().find_map(|change| self.overwrites(change)) {
            Some(text) => Err(text),
            None => uuids_are_free(&changes, &self.shared.items).map(|()| changes),
        }
    }

    pub(super) fn removal(&self, key: String) -> Change {
        let expect = Some(self.shared.items.get(&key).map_or(0, |item| item.version));
        Change { key, value: None, expect }
    }

    /// Removes what is left out of a subsystem's namespaces, where that is not asked for already.
    fn removals_below(&self, nqn: &str, asked: &[Change]) -> Vec<Change> {
        let prefix = format!("namespace/{nqn}/");
        let keys = self.left_out.iter().map(|(key, _)| key).filter(|key| key.starts_with(&prefix));
        let new = keys.filter(|key| asked.iter().all(|change| change.key != **key));
        new.cloned().collect::<BTreeSet<_>>().into_iter().map(|key| self.removal(key)).collect()
    }
}

/// Of the gateway that serves the fewest namespaces, the ANA group that has the fewest; `loads` has how many each has. Those that
/// nobody serves come last.
fn least_loaded(loads: &BTreeMap<u32, usize>, owners: &BTreeMap<u32, String>) -> Option<u32> {
    let of_owner = |id: &u32| {
        let owner = owners.get(id)?;
        let owned = loads.iter().filter(|(id, _)| owners.get(id) == Some(owner));
        Some(owned.map(|(_, load)| load).sum::<usize>())
    };
    let order = |(id, load): &(&u32, &usize)| (of_owner(id).unwrap_or(usize::MAX), **load, **id);
    loads.iter().min_by_key(order).map(|(id, _)| *id)
}

/// The namespace whose disk a change opens.
fn disk_of(change: &Planned) -> Option<(Nqn, u32)> {
    match change {
        Planned::AddNamespace(nqn, namespace) | Planned::ReplaceNamespace(nqn, namespace) => {
            Some((*nqn, namespace.nsid))
        }
        _ => None,
    }
}

/// Why a change cannot be: there are not so many ANA groups.
fn beyond(planned: &[Planned], ana_groups: u32) -> Option<String> {
    let mut added = planned.iter().filter_map(|change| match change {
        Planned::AddNamespace(nqn, namespace) => Some((nqn, namespace)),
        _ => None,
    });
    let (nqn, namespace) = added.find(|(_, namespace)| namespace.ana_group > ana_groups)?;
    let (nsid, group) = (namespace.nsid, namespace.ana_group);
    Some(format!(
        "namespace {nsid} of {nqn}: ANA group {group}: this group of gateways has 1 to {ana_groups}"
    ))
}

/// Namespaces that have another ANA group afterwards.
fn regrouped(before: &Items, after: &Items) -> impl Iterator<Item = String> {
    let group = |item: &toml::Table| item.get("ana_group").and_then(toml::Value::as_integer).unwrap_or(1);
    let namespaces = before.iter().filter(|(key, _)| key.starts_with("namespace/"));
    let both = namespaces.filter_map(|(key, old)| Some((key, old, after.get(key)?)));
    both.filter(move |(_, old, new)| group(old) != group(new)).map(|(key, ..)| key.clone())
}

/// The first item whose hosts would know it by something else afterwards, and what that is.
fn known_otherwise(
    before: &Items,
    after: &Items,
    known: &BTreeMap<Key, Known>,
) -> Option<(String, &'static str)> {
    let both = before.iter().filter_map(|(key, old)| Some((key, old, after.get(key)?)));
    let mut found = both.filter_map(|(key, old, new)| {
        let differs = |name: &&'static str| old.get(*name) != new.get(*name);
        if key.starts_with("subsystem/") {
            return Some((key.clone(), ["serial", "model"].into_iter().find(differs)?));
        }
        if !key.starts_with("namespace/") || differs(&"rbd") {
            return None;
        }
        let known = known::key_of_item(key).and_then(|key| known.get(&key));
        let is_as_shown = |name: &'static str| {
            let shown = known.and_then(|known| known.shown_as(name, new.get(name)));
            shown.unwrap_or(false)
        };
        let what = ["uuid", "block_size"].into_iter().filter(differs).find(|name| !is_as_shown(name))?;
        Some((key.clone(), what))
    });
    found.next()
}

/// The changes that lead from items to others, each for the version of the item that it was made to.
fn differences(
    before: &Items,
    after: &Items,
    stored: &BTreeMap<String, nvmf_cluster::configuration::Item>,
) -> Result<Vec<Change>, serde_json::Error> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let change = |key: &String| {
        let value = after.get(key).map(serde_json::to_value).transpose()?.filter(|it: &Value| !it.is_null());
        let expect = Some(stored.get(key).map_or(0, |item| item.version));
        Ok(Change { key: key.clone(), value, expect })
    };
    changed.map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NQN, gateway};
    use super::*;
    use core::time::Duration;

    #[test]
    fn namespaces_that_are_asked_for_at_the_same_time_are_in_different_groups() {
        let mut daemon = gateway();
        let mut add = |nsid: u32| {
            let mut draft = Draft::of(&daemon.wanted_of_group().unwrap()).unwrap();
            let table = format!("nsid = {nsid}\nana_group = \"any\"\nrbd = {{ image = \"i{nsid}\" }}");
            draft.add_namespace(NQN, table.parse().unwrap()).unwrap();
            let placed = daemon.place(&mut draft);
            (draft.namespace(NQN, nsid).unwrap()["ana_group"].as_integer().unwrap(), placed)
        };
        let (first, second) = (add(11), add(12));
        assert_ne!(first.0, second.0);
        let (free, of_second) = second;
        drop(of_second);
        assert_eq!(add(13).0, free, "what has come to nothing does not count");
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn new_namespace_goes_to_the_gateway_with_the_fewest_and_there_to_the_group_with_the_fewest() {
        let owners =
            |names: [&str; 4]| (1..).zip(names.map(str::to_owned)).collect::<BTreeMap<u32, String>>();
        let loads = |counts: [usize; 4]| (1..).zip(counts).collect::<BTreeMap<u32, usize>>();
        let shared = owners(["gw2", "gw2", "gw1", "gw1"]);
        assert_eq!(least_loaded(&loads([0, 0, 0, 0]), &shared), Some(1));
        assert_eq!(least_loaded(&loads([1, 0, 0, 0]), &shared), Some(3), "group 2 is the same gateway's");
        assert_eq!(least_loaded(&loads([1, 1, 1, 0]), &shared), Some(4));
        assert_eq!(least_loaded(&loads([1, 1, 3, 0]), &shared), Some(1), "gw1 has one more");
        assert_eq!(least_loaded(&loads([1, 0, 0, 0]), &BTreeMap::new()), Some(2), "nobody serves any yet");
        assert_eq!(least_loaded(&loads([5, 0, 0, 0]), &[(1, "gw1".to_owned())].into()), Some(1));
    }

    #[test]
    fn what_hosts_know_a_disk_by_stays_whether_it_is_open_here_or_not() {
        let nqn: Nqn = "nqn.2026-11.a:one".parse().unwrap();
        let (own, other) = ("b0e2a8d6-0049-50bc-9a3d-5e8aeaac9d6f", "a2a0e7a1-2ff8-44a7-9a1c-111111111111");
        let items = |text: &str| -> Items {
            let item = format!("nsid = 1\nrbd = {{ image = \"a\" }}\n{text}");
            [("namespace/nqn.2026-11.a:one/1".to_owned(), toml::from_str(&item).unwrap())].into()
        };
        let known = |uuid: &str| {
            let known =
                serde_json::json!({ "bytes": 1 << 20, "block_size": 4096, "uuid": uuid, "image": own });
            BTreeMap::from([((nqn, 1), serde_json::from_value::<Known>(known).unwrap())])
        };
        let given = |uuid: &str| format!("uuid = \"{uuid}\"");
        let refused = |from: &str, to: &str, uuid: &str| {
            known_otherwise(&items(from), &items(to), &known(uuid)).map(|(_, what)| what)
        };
        assert_eq!(refused("", &given(other), own), Some("uuid"));
        assert_eq!(refused("", &given(own), own), None, "it is that already");
        assert_eq!(refused(&given(other), "", other), Some("uuid"));
        assert_eq!(refused(&given(own), "", own), None);
        assert_eq!(refused("", "block_size = 512", own), Some("block_size"));
        assert_eq!(refused("", "block_size = 4096", own), None);
        assert_eq!(refused("block_size = 4096", "", own), None, "it is the usual one");
        assert_eq!(refused("", "read_only = true", own), None);
        let unknown = known_otherwise(&items(""), &items(&given(other)), &BTreeMap::new());
        assert_eq!(unknown.map(|(_, what)| what), Some("uuid"), "nobody has opened it yet");
    }
}
