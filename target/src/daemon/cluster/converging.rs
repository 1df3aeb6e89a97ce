//! The group's items as a configuration, and making it so: by the same changes as a file.

use super::super::apply::Origin;
use super::super::changing::{Asker, Changing};
use super::super::{Daemon, disks::error_text};
use super::duplicates::{claims_of_served, rank};
use super::{images::item, keys, known};
use crate::cluster::Shared;
use crate::control::request::change::{Item as ChangeItem, Outcome};
use crate::limits::FIRST_IMAGES_TIMEOUT;
use nvmf_cluster::configuration::Item;
use nvmf_cluster::{OpId, Reply};
use nvmf_config::{Config, Items};
use std::collections::{BTreeMap, BTreeSet};
use toml::Table;

/// Items as tables of a configuration. Those that are none are named.
fn tables(items: &BTreeMap<String, Item>) -> (Items, Vec<(String, String)>) {
    let (mut tables, mut broken) = (Items::new(), Vec::new());
    for (key, item) in items.iter().filter(|(key, _)| !keys::is_key(key) && !known::is_known(key)) {
        match serde_json::from_value::<Table>(item.value.clone()) {
            Ok(table) => drop(tables.insert(key.clone(), table)),
            Err(error) => broken.push((key.clone(), format!("it is no table of a configuration: {error}"))),
        }
    }
    (tables, broken)
}

/// The configuration of these items, with what of them is left out, each with its reason.
pub(super) fn configuration(own: &Config, shared: &Shared) -> (Config, Vec<(String, String)>) {
    let (items, mut left_out) = tables(&shared.items);
    left_out.extend(shared.unreadable.iter().cloned());
    match own.with_items_by(&items, |key| rank(&shared.items, key)) {
        Ok((mut config, others)) => {
            left_out.extend(others);
            for subsystem in &mut config.subsystems {
                let nqn = subsystem.nqn;
                subsystem.namespaces.retain(|namespace| {
                    let is_there = namespace.ana_group <= shared.ana_groups;
                    if !is_there {
                        let reason =
                            format!("ANA group {}: there are {}", namespace.ana_group, shared.ana_groups);
                        left_out.push((item(&(nqn, namespace.nsid)), reason));
                    }
                    is_there
                });
            }
            (config, left_out)
        }
        Err(error) => {
            left_out.push(("*".to_owned(), error_text(&error)));
            (own.clone(), left_out)
        }
    }
}

/// What can be done about an item that is left out.
pub(super) fn remedy(key: &str) -> String {
    let removes = format!("`ctl cluster remove-item {key}` removes it from the group's configuration");
    match keys::admits(key) {
        true => {
            format!("Its host is refused. {removes}: then the host needs no key until `ctl host set-key`")
        }
        false => removes,
    }
}

impl Daemon {
    /// Begins to serve what the group says, unless that is under way.
    pub(super) fn begin_to_converge(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.converging.is_some() {
            return;
        }
        let Some((op, shared)) = cluster.next.take() else { return };
        let (config, mut left_out) = configuration(&self.config, &shared);
        let (keys, broken) = keys::keys(&shared.items, &shared.unreadable);
        left_out.extend(broken);
        for (key, reason) in left_out.iter().filter(|it| !cluster.left_out.contains(it)) {
            tracing::error!("{key} of the group's configuration is left out: {reason}. {}", remedy(key));
        }
        cluster.converging = Some(op);
        let before = core::mem::replace(&mut cluster.shared, *shared);
        cluster.known = known::known(&cluster.shared.items);
        cluster.claims = claims_of_served(&cluster.shared.items);
        cluster.items = config.items().unwrap_or_default();
        cluster.left_out = left_out;
        // Before a subsystem is there that a host without its key could connect to.
        self.take_shared_keys(keys);
        self.show_accepted_sizes();
        let away = self.take_away_others(&config, &before.items);
        let mut changing = self.apply(&config, Origin::Group, None);
        for ((nqn, nsid), pending) in away {
            let name = format!("{nqn} namespace {nsid} (");
            if let Some(at) = changing.items.iter().position(|item| item.name.starts_with(&name)) {
                changing.wait_for(at, pending);
            }
        }
        self.await_changes(changing, Asker::Group(op));
    }

    /// A file of this gateway's own, with what the group says.
    pub(in crate::daemon) fn with_shared(&self, own: &Config) -> Option<Config> {
        let cluster = self.cluster.as_ref()?;
        Some(configuration(own, &cluster.shared).0)
    }

    /// The changes that are worth a line: what fails is tried again and again.
    pub(in crate::daemon) fn news_of_group<'a>(
        &mut self,
        changing: &'a Changing,
    ) -> impl Iterator<Item = &'a ChangeItem> + use<'a> {
        let is_error = |item: &&ChangeItem| item.outcome.is_some_and(Outcome::is_error);
        let failed: BTreeSet<String> =
            changing.items.iter().filter(is_error).map(ToString::to_string).collect();
        let old =
            self.cluster.as_mut().map(|it| core::mem::replace(&mut it.failed, failed)).unwrap_or_default();
        changing.items.iter().filter(move |item| !is_error(item) || !old.contains(&item.to_string()))
    }

    /// What the group says is served as far as it can be.
    pub(in crate::daemon) fn on_converged(&mut self, op: OpId, changing: &Changing) {
        let mut broken: BTreeMap<String, String> = BTreeMap::new();
        for item in changing.items.iter().filter(|item| item.outcome.is_some_and(|it| it.is_error())) {
            let reason = item.message.as_ref().or(item.note.as_ref()).cloned().unwrap_or_default();
            broken.insert(format!("{} {}", item.change, item.name), reason);
        }
        let wanted = self.config.subsystems.iter();
        let all = wanted.flat_map(|subsystem| subsystem.namespaces.iter().map(|it| (subsystem.nqn, it)));
        let missing = all.filter(|(nqn, namespace)| !self.is_served(nqn, namespace.nsid));
        for (nqn, namespace) in missing {
            let key = (nqn, namespace.nsid);
            let reason = self.why_not_open(&key, namespace);
            let reason = reason.unwrap_or_else(|| "its image has not been opened yet".to_owned());
            broken.insert(item(&key), reason);
        }
        self.note_unfinished(changing);
        // What was removed, and hosts saw without its image, is not seen any more when that is said.
        self.show_known_elsewhere();
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.converging != Some(op) {
            return;
        }
        // Those that cannot be read are known where they are read, and need not be tried again.
        let unreadable = &cluster.shared.unreadable;
        broken.extend(cluster.left_out.iter().filter(|it| !unreadable.contains(it)).cloned());
        cluster.converging = None;
        if !core::mem::replace(&mut cluster.is_configured, true) {
            cluster.images_until = Some(self.common.clock.now() + FIRST_IMAGES_TIMEOUT);
        }
        let is_last = cluster.next.is_none();
        cluster.driver.reply(op, Reply::Converged(broken.into_iter().collect()));
        if is_last {
            self.forget_regrouped();
        }
        self.begin_to_converge();
        self.listen_if_ready();
    }
}
