//! What operators ask of the group, at any gateway: changes of its configuration, moves, removals. A request is answered
//! once this gateway serves what was asked for.

use super::super::changing::Changing;
use super::super::plan::plan_answer;
use super::super::{Daemon, apply::Origin};
use super::answering::unconfirmed;
use super::duplicates::request;
use super::editing::Edit;
use super::trying::Tries;
use crate::cluster::{Request, Ticket};
use crate::control::protocol::Fault;
use crate::control::request::change::Item;
use crate::limits::GROUP_TIMEOUT;
use core::time::Duration;
use nvmf_cluster::configuration::Change;
use nvmf_cluster::status::OtherStatus;
use nvmf_cluster::{GatewayName, GroupId, RequestError, Status};
use nvmf_subsystem::Nqn;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is said where something is asked that a group decides by itself.
pub(in crate::daemon) const REFUSED_IN_A_GROUP: &str = "the group of gateways decides which of them serves an ANA group: use `nvmf-target \
     ctl cluster move GROUP GATEWAY`";

/// What is said where there is no group.
pub(super) const NO_GROUP: &str =
    "this target is of no group of gateways: its configuration has no [cluster]";

/// How often an edit is made again, where others have changed the same item meanwhile.
const EDITS_MAX: usize = 32;

/// What the group said to requests.
pub(super) type Answers = BTreeMap<Ticket, Result<u64, RequestError>>;

/// A request that the group has not carried out yet.
pub(in crate::daemon) struct Asking {
    pub(super) step: Step,
    pub(super) then: Then,
    /// The edit that it came from, if it may be made again, and how often it was made.
    edit: Option<Edit>,
    edits: usize,
    /// ANA groups that were chosen for namespaces which it adds.
    pub(super) placed: Vec<Arc<u32>>,
    until: Duration,
    look_at: Duration,
    /// Why an ANA group has not moved yet.
    pub(super) why: Option<String>,
    /// Who has it.
    pub(super) owner: Option<GatewayName>,
    /// Gateways that have not said that they serve it, and what that means.
    pub(super) unconfirmed: Vec<String>,
    /// Where something of before is still under way.
    pub(super) unfinished: Vec<String>,
    /// Nothing is to be changed: so said the configuration of this version.
    unchanged_at: Option<u64>,
}

/// How far it is.
pub(super) enum Step {
    /// The images that are new are opened before anything is asked. For a plan (`None`), nothing is.
    Trying(Tries, Option<Vec<Change>>),
    /// The group was asked.
    Asked(Ticket),
    /// Somebody else was first: the edit is made again when this gateway has read the item with that version (0: none), or the
    /// whole configuration with it.
    Behind(RequestError, Option<String>, u64),
    /// It answered: with a version of the configuration, or 0.
    Answered(u64),
    /// The gateway that was to get an ANA group does not take it.
    Refused(String),
}

/// What a request waits for when it was answered.
pub(super) enum Then {
    /// This gateway serves that version. For each item: the namespace whose disk is to be open.
    Served(Vec<Option<(Nqn, u32)>>),
    /// The others as well: something is taken away from hosts.
    ServedByAll,
    /// The ANA group is that gateway's.
    Moved(GroupId, GatewayName),
    Nothing,
}

impl Asking {
    fn new(step: Step, then: Then, now: Duration) -> Self {
        Self {
            step,
            then,
            edit: None,
            edits: 1,
            placed: Vec::new(),
            until: now + GROUP_TIMEOUT,
            look_at: now,
            why: None,
            owner: None,
            unconfirmed: Vec::new(),
            unfinished: Vec::new(),
            unchanged_at: None,
        }
    }

    /// The edit may be made again where somebody else has changed the same item meanwhile.
    pub(in crate::daemon) fn may_edit_again(&mut self, edit: Edit) {
        self.edit = Some(edit);
    }
}

impl Daemon {
    pub(super) fn on_group_answer(&mut self, ticket: Ticket, result: Result<u64, RequestError>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.answers.insert(ticket, result);
        }
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

    pub(super) fn ask_group_to_serve(&mut self, item: Item, changes: Vec<Change>) -> Result<Changing, Fault> {
        self.ask_group(item, Request::Edit(changes), Then::ServedByAll)
    }

    fn ask_group(&mut self, item: Item, request: Request, then: Then) -> Result<Changing, Fault> {
        let now = self.common.clock.now();
        if let Some(fault) = self.cannot_ask() {
            return Err(fault);
        }
        let Some(cluster) = &mut self.cluster else { return Err(Fault::refused(NO_GROUP)) };
        let ticket = cluster.driver.ask(request);
        let mut changing = Changing::new(vec![item], Origin::Command, now);
        changing.asking = Some(Asking::new(Step::Asked(ticket), then, now));
        Ok(changing)
    }

    /// Asks for changes of the configuration, once it is known which of the images that they need can be had. Without
    /// `disks`, all gateways are waited for.
    pub(super) fn ask_to_change(
        &mut self,
        changes: Vec<Change>,
        tries: Option<Tries>,
        disks: Option<Vec<Option<(Nqn, u32)>>>,
    ) -> Asking {
        let step = match (tries, &mut self.cluster) {
            (Some(tries), _) => Step::Trying(tries, Some(changes)),
            (None, Some(cluster)) => Step::Asked(cluster.driver.ask(request(changes))),
            (None, None) => Step::Answered(0),
        };
        let then = disks.map_or(Then::ServedByAll, Then::Served);
        Asking::new(step, then, self.common.clock.now())
    }

    /// Asks whether the configuration that was looked at is the one that is stored: nothing of it is to be changed. It may be in
    /// force at no other gateway yet.
    pub(super) fn ask_whether_it_is_so(&mut self) -> Option<Asking> {
        let cluster = self.cluster.as_mut()?;
        let step = Step::Asked(cluster.driver.ask(Request::Edit(Vec::new())));
        let asking = Asking::new(step, Then::ServedByAll, self.common.clock.now());
        Some(Asking { unchanged_at: Some(cluster.shared.version), ..asking })
    }

    /// Says what of changes can be had, and asks for nothing.
    pub(super) fn only_try(&self, tries: Tries) -> Asking {
        Asking::new(Step::Trying(tries, None), Then::Nothing, self.common.clock.now())
    }

    /// The group as this gateway sees it.
    pub(in crate::daemon) fn group_status(&self) -> Result<Status, Fault> {
        let cluster = self.cluster.as_ref().ok_or_else(|| Fault::refused(NO_GROUP))?;
        let status = cluster.driver.status();
        let mut status = status.ok_or_else(|| Fault::refused("the group's thread does not answer"))?;
        // The engine knows of no connection; why there is none is not its to say.
        if let Some(trouble) = cluster.driver.trouble() {
            status.why = Some(status.why.map_or_else(|| trouble.clone(), |why| format!("{why}: {trouble}")));
        }
        Ok(status)
    }

    /// Looks whether the group has done what was asked.
    pub(in crate::daemon) fn advance_asking(&mut self, changing: &mut Changing, now: Duration) {
        let Some(mut asking) = changing.asking.take() else { return };
        if let Err(fault) = self.take_step(&mut asking, changing, now) {
            changing.refused = Some(fault);
            return;
        }
        let is_over = self.is_over(&mut asking, now);
        let is_trying = matches!(asking.step, Step::Trying(..));
        if !is_over && (is_trying || now < asking.until) {
            changing.asking = Some(asking);
            return;
        }
        self.answer_asking(asking, is_over, changing);
    }

    /// What came since the last look. `Err`: nothing was changed.
    fn take_step(
        &mut self,
        asking: &mut Asking,
        changing: &mut Changing,
        now: Duration,
    ) -> Result<(), Fault> {
        if let Step::Trying(tries, changes) = &mut asking.step {
            self.advance_tries(tries, now);
            if tries.is_over() {
                (asking.step, asking.until) = match changes.take() {
                    None => (self.end_plan(tries, changing), now),
                    Some(changes) => (self.end_tries(tries, changes, changing)?, now + GROUP_TIMEOUT),
                };
            }
            return Ok(());
        }
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        match &mut asking.step {
            Step::Asked(ticket) => match cluster.answers.remove(ticket) {
                None => {}
                Some(Ok(version)) if asking.unchanged_at.is_some_and(|at| at < version) => {
                    let error = RequestError::Changed { key: "the configuration".to_owned(), version };
                    if asking.edit.is_none() || asking.edits >= EDITS_MAX {
                        return Err(Fault::refused(error.to_string()));
                    }
                    asking.step = Step::Behind(error, None, version);
                }
                Some(Ok(version)) => asking.step = Step::Answered(version),
                Some(Err(RequestError::Changed { key, version }))
                    if asking.edit.is_some() && asking.edits < EDITS_MAX =>
                {
                    let error = RequestError::Changed { key: key.clone(), version };
                    asking.step = Step::Behind(error, Some(key), version);
                }
                Some(Err(error)) => return Err(Fault::refused(error.to_string())),
            },
            Step::Behind(_, key, version) => {
                let read = match key {
                    Some(key) => cluster.shared.items.get(key).map_or(0, |item| item.version),
                    None => cluster.shared.version,
                };
                if read >= *version
                    && (*version > 0 || read == 0)
                    && let Some(edit) = asking.edit.take()
                {
                    asking.placed.clear();
                    let again = self.change_group(&edit)?;
                    changing.items = again.items;
                    let edits = asking.edits + 1;
                    *asking = again.asking.ok_or_else(|| Fault::refused("it is so already"))?;
                    (asking.edit, asking.edits) = (Some(edit), edits);
                }
            }
            Step::Trying(..) | Step::Answered(_) | Step::Refused(_) => {}
        }
        Ok(())
    }

    /// Asks the group for what can be had.
    fn end_tries(
        &mut self,
        tries: &mut Tries,
        changes: Vec<Change>,
        changing: &mut Changing,
    ) -> Result<Step, Fault> {
        let changes = self.tried(tries, changes, changing)?;
        let asked = self.cluster.as_mut().filter(|_| !changes.is_empty());
        Ok(asked.map_or(Step::Answered(0), |cluster| Step::Asked(cluster.driver.ask(request(changes)))))
    }

    /// Answers what would be refused.
    fn end_plan(&self, tries: &mut Tries, changing: &mut Changing) -> Step {
        tries.settle(&mut changing.items, &mut Vec::new());
        let mut items = core::mem::take(&mut changing.items);
        items.iter_mut().for_each(|item| item.outcome = None);
        changing.planned = Some(plan_answer(items, Vec::new()));
        Step::Answered(0)
    }

    fn is_over(&self, asking: &mut Asking, now: Duration) -> bool {
        let (Some(cluster), Step::Answered(version)) = (&self.cluster, &asking.step) else { return false };
        match &asking.then {
            Then::Served(disks) => {
                // One that is slow to open holds up the group no longer, but whoever asks for it wants to know.
                let opens = |(nqn, nsid): &(Nqn, u32)| {
                    !self.is_served(nqn, *nsid) && self.namespaces.hangs(&(*nqn, *nsid), now)
                };
                cluster.shared.version >= *version
                    && cluster.converging.is_none()
                    && cluster.next.is_none()
                    && !disks.iter().flatten().any(opens)
            }
            Then::Moved(group, to) if now >= asking.look_at => {
                asking.look_at = now + Duration::from_millis(50);
                let status = cluster.driver.status();
                let Some(it) = status.as_ref().and_then(|status| status.groups.get(group)) else {
                    return false;
                };
                asking.why.clone_from(&it.why);
                let refusal = it.refused.as_ref().filter(|_| it.wanted.as_ref() == Some(to));
                if let Some(reason) = refusal {
                    asking.step = Step::Refused(format!(
                        "ANA group {group} stays where it is: {to} does not take it: {reason}"
                    ));
                    return true;
                }
                let is_owned = it.state == "owned";
                let owner = it.gateway.as_ref().filter(|_| is_owned);
                asking.owner = owner.cloned();
                let is_here = status.as_ref().is_some_and(|status| status.gateway == *to);
                let serves = !is_here || it.here == "serving";
                let refused = match (&it.wanted, owner) {
                    // It came, whoever wants it elsewhere since: most likely its new owner, which cannot open an image of it.
                    (Some(other), Some(owner)) if other != to && owner == to => return serves,
                    (Some(other), _) if other != to => {
                        format!(
                            "ANA group {group} is to move to {other} now: somebody asked for that after you"
                        )
                    }
                    (None, Some(other)) if other != to => format!(
                        "ANA group {group} is {other}'s, and is not wanted at {to} any more: it was taken over, or somebody \
                         moved it on. Ask again if it is to move"
                    ),
                    // Its new owner ends the move when it serves it.
                    (wanted, Some(_)) => return wanted.is_none() && serves,
                    _ => return false,
                };
                asking.step = Step::Refused(refused);
                true
            }
            Then::ServedByAll if now >= asking.look_at => {
                asking.look_at = now + Duration::from_millis(50);
                let is_here = cluster.shared.version >= *version
                    && cluster.converging.is_none()
                    && cluster.next.is_none();
                let status = cluster.driver.status();
                let others = status.iter().flat_map(|status| &status.others);
                let is_behind = |it: &OtherStatus| it.applied.is_some_and(|applied| applied < *version);
                let behind = others.filter(|(_, it)| is_behind(it));
                let (held, gone): (Vec<_>, Vec<_>) = behind.partition(|(_, it)| it.lease == "held");
                let gone = gone.into_iter().filter(|(_, it)| !it.stopped);
                asking.unconfirmed = gone.map(|(name, it)| unconfirmed(name, it)).collect();
                let first = held.first().map(|(name, _)| name);
                // What is so already may be what an earlier version made.
                let from = if asking.unchanged_at.is_some() { 0 } else { *version };
                let is_unfinished = |it: &OtherStatus| it.unfinished.is_some_and(|last| last >= from);
                let others = status.iter().flat_map(|status| &status.others);
                let slow = others.filter(|(_, it)| it.lease == "held" && is_unfinished(it));
                asking.unfinished = slow.map(|(name, _)| name.to_string()).collect();
                let own = cluster.unfinished.holds_up(from).then(|| "this one".to_owned());
                asking.unfinished.extend(own);
                asking.why = first.map(|name| {
                    format!("gateway {name} does not serve version {version} of the configuration yet")
                });
                is_here && status.is_some() && first.is_none() && asking.unfinished.is_empty()
            }
            Then::Moved(..) | Then::ServedByAll => false,
            Then::Nothing => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NQN, gateway};
    use super::*;
    use crate::control::request::change::Outcome;
    use nvmf_cluster::configuration::Item as Stored;
    use serde_json::json;

    #[test]
    fn move_that_is_not_done_in_time_is_no_success_and_says_how_it_is_taken_back() {
        let mut daemon = gateway();
        let now = daemon.common.clock.now();
        let mut changing =
            Changing::new(vec![Item::done("move-ana-group", "1 to gw2")], Origin::Command, now);
        let to = GatewayName::new("gw2").unwrap();
        let mut asking = Asking::new(Step::Answered(0), Then::Moved(GroupId(1), to.clone()), now);
        asking.owner = GatewayName::new("gw1").ok();
        changing.asking = Some(asking);
        daemon.advance_asking(&mut changing, now + GROUP_TIMEOUT);
        let item = &changing.items[0];
        assert!(item.outcome.is_some_and(Outcome::is_error), "{item}");
        let text = item.message.as_deref().unwrap();
        for part in ["wanted at gw2 still", "`nvmf-target ctl cluster move 1 gw1` takes that back"] {
            assert!(text.contains(part), "{text}");
        }
        let mut asking = Asking::new(Step::Answered(0), Then::Moved(GroupId(1), to.clone()), now);
        asking.owner = Some(to);
        changing.asking = Some(asking);
        daemon.advance_asking(&mut changing, now + GROUP_TIMEOUT);
        let text = changing.items[0].message.as_deref().unwrap();
        assert!(text.contains("wanted at gw2 still") && !text.contains("takes that back"), "{text}");
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn namespace_whose_image_is_slow_to_open_is_waited_for_by_who_asked() {
        let mut daemon = gateway();
        let now = daemon.common.clock.now();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 7\nrbd = {{ pool = \"rbd\", image = \"a\" }}\n"
        );
        let namespace = nvmf_config::Config::parse(&text).unwrap().subsystems[0].namespaces[0].clone();
        let key = (NQN.parse().unwrap(), 7);
        let slow = daemon.namespaces.hang(key, namespace, now);
        let asked = |now| {
            let mut changing = Changing::new(vec![Item::done("add-namespace", "7")], Origin::Command, now);
            changing.asking = Some(Asking::new(Step::Answered(1), Then::Served(vec![Some(key)]), now));
            changing
        };
        let mut changing = asked(now);
        let later = now + Duration::from_secs(5);
        daemon.advance_asking(&mut changing, later);
        assert!(changing.asking.is_some(), "it may open yet");
        daemon.advance_asking(&mut changing, now + GROUP_TIMEOUT);
        assert_eq!(changing.items[0].outcome, Some(Outcome::Waiting));
        drop(slow);
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn host_is_added_although_another_gateway_added_one_meanwhile() {
        let mut daemon = gateway();
        let now = daemon.common.clock.now();
        let key = format!("subsystem/{NQN}");
        let mut changing = Changing::new(Vec::new(), Origin::Command, now);
        let mut asking = daemon.ask_to_change(Vec::new(), None, Some(Vec::new()));
        asking.may_edit_again(Box::new(|draft| draft.allow_host(NQN, "nqn.2026-11.com.example:second")));
        let Step::Asked(ticket) = asking.step else { panic!("it was not asked") };
        changing.asking = Some(asking);
        daemon.on_group_answer(ticket, Err(RequestError::Changed { key: key.clone(), version: 7 }));
        daemon.advance_asking(&mut changing, now);
        daemon.advance_asking(&mut changing, now);
        let step =
            |changing: &Changing| changing.asking.as_ref().map(|it| matches!(it.step, Step::Behind(..)));
        assert_eq!(step(&changing), Some(true), "what the other one added has not been read yet");
        let value = json!({ "nqn": NQN, "allowed_hosts": ["nqn.2026-11.com.example:first"] });
        let cluster = daemon.cluster.as_mut().unwrap();
        cluster.shared.items.insert(key, Stored { version: 7, value });
        daemon.advance_asking(&mut changing, now);
        assert!(changing.refused.is_none() && step(&changing) == Some(false), "it was not asked again");
        assert_eq!(changing.items[0].change, "change-hosts");
        assert_eq!(changing.asking.map(|it| it.edits), Some(2));
        daemon.stop(Duration::ZERO);
    }

    /// Somebody has changed it, and this gateway has not read that: it is not so.
    #[test]
    fn nothing_to_change_is_said_only_of_what_is_stored() {
        let mut daemon = gateway();
        let now = daemon.common.clock.now();
        // What is read first has it already.
        let is_so = core::cell::Cell::new(true);
        let edit = move |draft: &mut nvmf_config::Draft| match is_so.replace(false) {
            true => Ok(()),
            false => draft.allow_host(NQN, "nqn.2026-11.com.example:first"),
        };
        let mut changing = daemon.change_group(&edit).unwrap();
        let asking = changing.asking.as_mut().expect("what is stored is asked for");
        asking.may_edit_again(Box::new(edit));
        let Step::Asked(ticket) = asking.step else { panic!("it was not asked") };
        daemon.on_group_answer(ticket, Ok(7));
        daemon.advance_asking(&mut changing, now);
        daemon.advance_asking(&mut changing, now);
        let step =
            |changing: &Changing| changing.asking.as_ref().map(|it| matches!(it.step, Step::Behind(..)));
        assert_eq!(step(&changing), Some(true), "what was changed has not been read yet");
        daemon.cluster.as_mut().unwrap().shared.version = 7;
        daemon.advance_asking(&mut changing, now);
        assert!(changing.refused.is_none() && step(&changing) == Some(false), "it was not asked again");
        assert_eq!(changing.items[0].change, "change-hosts");
        daemon.stop(Duration::ZERO);
    }
}
