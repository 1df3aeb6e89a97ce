//! What operators ask of the group, at any gateway: changes of its configuration, moves, removals. A request is answered
//! once this gateway serves what was asked for.

use super::super::changing::Changing;
use super::super::{Daemon, apply::Origin};
use super::converging::configuration;
use crate::cluster::{Request, Ticket};
use crate::control::protocol::Fault;
use crate::control::request::change::{Item, Outcome};
use crate::limits::GROUP_TIMEOUT;
use core::time::Duration;
use nvmf_cluster::configuration::Change;
use nvmf_cluster::{GatewayName, GroupId, RequestError, Status};
use nvmf_config::{Config, Draft, DraftError, Items};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What is said where something is asked that a group decides by itself.
pub(in crate::daemon) const REFUSED_IN_A_GROUP: &str = "the group of gateways decides which of them serves an ANA group: use `nvmf-target \
     ctl cluster move GROUP GATEWAY`";

/// What the group said to requests.
pub(super) type Answers = BTreeMap<Ticket, Result<u64, RequestError>>;

/// A request that the group has not carried out yet.
pub(in crate::daemon) struct Asking {
    ticket: Ticket,
    /// The answer: a version of the configuration, or 0.
    answer: Option<u64>,
    then: Then,
    until: Duration,
    look_at: Duration,
}

/// What a request waits for when it was answered.
enum Then {
    /// This gateway serves that version.
    Served,
    /// The ANA group is that gateway's.
    Moved(GroupId, GatewayName),
    Nothing,
}

impl Daemon {
    pub(super) fn on_group_answer(&mut self, ticket: Ticket, result: Result<u64, RequestError>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.answers.insert(ticket, result);
        }
    }

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
        let asked = draft.check().map_err(|error| refused(error.to_string()))?;
        if asked.own_part() != wanted.own_part() {
            let own = Config { subsystems: self.config.subsystems.clone(), ..asked };
            return Ok(self.apply(&own, Origin::Command, None));
        }
        self.ask_for(&asked)
    }

    /// The ANA group with the fewest namespaces, in a group of gateways.
    pub(in crate::daemon) fn least_loaded_group(&self) -> Option<u32> {
        let groups = self.cluster.as_ref()?.shared.ana_groups;
        let wanted = self.wanted_of_group()?;
        let namespaces = || wanted.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        (1..=groups).min_by_key(|id| namespaces().filter(|it| it.ana_group == *id).count())
    }

    /// What a file says of all gateways, with what is this one's own.
    pub(in crate::daemon) fn shared_part(&self, asked: &Config) -> Result<Config, Fault> {
        if !asked.listeners.is_empty() || asked.cluster.is_some() {
            let text = "this is the file of one gateway: `apply` takes what all of them serve ([[subsystem]], \
                        [discovery]); a gateway reads its own file at `systemctl reload`";
            return Err(Fault::refused(text));
        }
        if !asked.hosts.is_empty() {
            return Err(Fault::refused(
                "keys of hosts are given to the group by `host set-key`: leave [[host]] out",
            ));
        }
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
        let items: Vec<Item> = self.plan(asked).into_iter().map(|(_, item)| item).collect();
        let now = self.common.clock.now();
        let mut changing = Changing::new(Vec::new(), Origin::Command, now);
        let Some(cluster) = &mut self.cluster else { return Ok(changing) };
        let after = asked.items().map_err(|error| Fault::refused(error.to_string()))?;
        if let Some(name) = regrouped(&cluster.items, &after) {
            return Err(Fault::refused(format!("{name}: {REGROUPED}")));
        }
        let changes = differences(&cluster.items, &after, &cluster.shared.items);
        let changes = changes.map_err(|error| Fault::refused(error.to_string()))?;
        if changes.is_empty() {
            return Ok(changing);
        }
        let ticket = cluster.driver.ask(Request::Edit(changes));
        changing.items = items;
        changing.asking = Some(Asking::new(ticket, Then::Served, now));
        Ok(changing)
    }

    pub(in crate::daemon) fn move_group(&mut self, group: u32, to: &str) -> Result<Changing, Fault> {
        let to = GatewayName::new(to).map_err(|error| Fault::refused(error.to_string()))?;
        let item = Item::done("move-ana-group", format!("{group} to {to}"));
        let group = GroupId(group);
        self.ask_group(item, Request::Move(group, to.clone()), Then::Moved(group, to))
    }

    pub(in crate::daemon) fn remove_gateway(&mut self, name: &str) -> Result<Changing, Fault> {
        let name = GatewayName::new(name).map_err(|error| Fault::refused(error.to_string()))?;
        let item = Item::done("remove-gateway", name.to_string());
        self.ask_group(item, Request::Remove(name), Then::Nothing)
    }

    pub(super) fn ask_group_to_serve(&mut self, item: Item, request: Request) -> Result<Changing, Fault> {
        self.ask_group(item, request, Then::Served)
    }

    fn ask_group(&mut self, item: Item, request: Request, then: Then) -> Result<Changing, Fault> {
        let now = self.common.clock.now();
        let Some(cluster) = &mut self.cluster else { return Err(Fault::refused(NO_GROUP)) };
        let ticket = cluster.driver.ask(request);
        let mut changing = Changing::new(vec![item], Origin::Command, now);
        changing.asking = Some(Asking::new(ticket, then, now));
        Ok(changing)
    }

    /// The group as this gateway sees it.
    pub(in crate::daemon) fn group_status(&self) -> Result<Status, Fault> {
        let cluster = self.cluster.as_ref().ok_or_else(|| Fault::refused(NO_GROUP))?;
        cluster.driver.status().ok_or_else(|| Fault::refused("the group's thread does not answer"))
    }

    /// Looks whether the group has done what was asked.
    pub(in crate::daemon) fn advance_asking(&mut self, changing: &mut Changing, now: Duration) {
        let Some(mut asking) = changing.asking.take() else { return };
        let Some(cluster) = &mut self.cluster else { return };
        match cluster.answers.remove(&asking.ticket) {
            Some(Ok(version)) => asking.answer = Some(version),
            Some(Err(error)) => {
                changing.refused = Some(Fault::refused(error.to_string()));
                return;
            }
            None => {}
        }
        let is_over = match (&asking.then, asking.answer) {
            (_, None) => false,
            (Then::Served, Some(version)) => {
                cluster.shared.version >= version && cluster.converging.is_none() && cluster.next.is_none()
            }
            (Then::Moved(group, to), Some(_)) if now >= asking.look_at => {
                asking.look_at = now + Duration::from_millis(50);
                let status = cluster.driver.status();
                let group = status.as_ref().and_then(|status| status.groups.get(group));
                group.is_some_and(|it| it.state == "owned" && it.gateway.as_ref() == Some(to))
            }
            (Then::Moved(..), Some(_)) => false,
            (Then::Nothing, Some(_)) => true,
        };
        if !is_over && now < asking.until {
            changing.asking = Some(asking);
            return;
        }
        if asking.answer.is_none() {
            let text =
                "the storage cluster does not answer: it may be done once it does, see `cluster status`";
            changing.refused = Some(Fault::refused(text));
            return;
        }
        if matches!(asking.then, Then::Served) {
            self.note_outcomes(changing, is_over);
        } else if !is_over {
            for item in &mut changing.items {
                item.outcome = Some(Outcome::Waiting);
                item.message = Some("it is not done yet: `cluster status` says why".to_owned());
            }
        }
    }

    /// What came of changes that the group has taken.
    fn note_outcomes(&self, changing: &mut Changing, is_served: bool) {
        let left_out: Vec<&String> =
            self.cluster.iter().flat_map(|it| &it.left_out).map(|(_, reason)| reason).collect();
        let open: BTreeSet<String> = self
            .exports()
            .iter()
            .map(|export| format!("{} namespace {}", export.nqn, export.namespace.nsid))
            .collect();
        for item in &mut changing.items {
            item.outcome = Some(Outcome::Done);
            let is_of_disk = matches!(item.change.as_str(), "add-namespace" | "replace-namespace");
            let is_missing = is_of_disk && !open.iter().any(|name| item.name.starts_with(name.as_str()));
            if !is_served || is_missing {
                item.outcome = Some(Outcome::Waiting);
                let reason = "the group has it, and this gateway does not serve it yet: see `status`";
                item.message = Some(left_out.first().map_or(reason.to_owned(), |reason| (*reason).clone()));
            }
        }
    }
}

/// What is said where there is no group.
const NO_GROUP: &str = "this target is of no group of gateways: its configuration has no [cluster]";

impl Asking {
    fn new(ticket: Ticket, then: Then, now: Duration) -> Self {
        Self { ticket, answer: None, then, until: now + GROUP_TIMEOUT, look_at: now }
    }
}

/// What is said where a namespace is to be in another ANA group: what is under way on the connection of the old one is not
/// fenced by the new one's owner.
const REGROUPED: &str = "a namespace stays in its ANA group: move the group to another gateway, or remove the namespace and \
                         add it in the other group";

/// A namespace that has another ANA group afterwards.
fn regrouped(before: &Items, after: &Items) -> Option<String> {
    let group = |item: &toml::Table| item.get("ana_group").and_then(toml::Value::as_integer).unwrap_or(1);
    let namespaces = before.iter().filter(|(key, _)| key.starts_with("namespace/"));
    let mut both = namespaces.filter_map(|(key, old)| Some((key, old, after.get(key)?)));
    both.find(|(_, old, new)| group(old) != group(new)).map(|(key, ..)| key.clone())
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
