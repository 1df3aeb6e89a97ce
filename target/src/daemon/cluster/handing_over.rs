//! The ANA groups of a gateway that is drained, or stops, go to the others.
//!
//! Who drains a gateway wants hosts to notice nothing, so a drain ends the listeners only when every ANA group is another
//! gateway's, and is none where that cannot be. Who stops one wants it to end: what is left then, the others fence.

use super::super::Daemon;
use super::super::changing::Changing;
use crate::cluster::ToDriver;
use crate::control::protocol::Fault;
use crate::control::request::change::{Item, Outcome};
use crate::daemon::apply::Origin;
use crate::limits::{DRAIN_GROUPS_TIMEOUT, HAND_OVER_TIMEOUT};
use core::time::Duration;
use nvmf_cluster::status::OtherStatus;
use nvmf_cluster::{AnaState, GatewayName, GroupId, Listens, Status};
use std::collections::{BTreeMap, BTreeSet};

/// How often the group is asked who has which ANA group.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A drain that waits for the other gateways.
pub(in crate::daemon) struct HandingOver {
    /// ANA groups that were this gateway's when it began.
    own: BTreeSet<GroupId>,
    until: Duration,
    look_at: Duration,
    /// Somebody has ended the drain meanwhile.
    pub(in crate::daemon) is_taken_back: bool,
}

/// Why another gateway takes no ANA group now.
fn why_not(other: &OtherStatus) -> Option<String> {
    match (other.lease, &other.trouble, other.listens) {
        ("dead", ..) if other.stopped => Some("it was stopped".to_owned()),
        ("held", Some(trouble), _) => Some(trouble.clone()),
        ("held", None, _) if other.leaving => Some("it is about to stop".to_owned()),
        ("held", None, Listens::NotYet) => Some("it does not listen yet".to_owned()),
        ("held", None, _) => None,
        (lease, ..) => Some(format!("its lease is {lease}")),
    }
}

/// ANA groups that hosts still use here, or that no other gateway has yet.
fn not_handed_over(
    status: &Status,
    states: &BTreeMap<GroupId, AnaState>,
    own: &BTreeSet<GroupId>,
) -> BTreeSet<GroupId> {
    // One that drains has I/O of hosts to end.
    let shown = states.iter().filter(|(_, state)| **state != AnaState::INACCESSIBLE).map(|(id, _)| *id);
    let is_mine = |gateway: &Option<GatewayName>| gateway.as_ref() == Some(&status.gateway);
    let stays = status.groups.iter().filter(|(id, group)| match group.state {
        "owned" => is_mine(&group.gateway),
        // Those of a gateway that has died meanwhile are nobody's that is asked for this.
        _ => own.contains(id) || is_mine(&group.gateway),
    });
    let unknown = own.iter().filter(|id| !status.groups.contains_key(id));
    shown.chain(stays.map(|(id, _)| *id)).chain(unknown.copied()).collect()
}

fn names(groups: &BTreeSet<GroupId>) -> String {
    groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The other gateways, and why they take nothing.
fn reasons(status: &Status) -> String {
    let all = status.others.iter().filter_map(|(name, other)| Some(format!("{name}: {}", why_not(other)?)));
    all.collect::<Vec<_>>().join("; ")
}

/// Why a drain is not begun: hosts would have no path to what has to go, or to what others have.
fn refusal(status: &Status, stays: &BTreeSet<GroupId>) -> Option<String> {
    let will_be_usable = |it: &OtherStatus| it.will_take() || it.is_usable() && stays.is_empty();
    if status.others.is_empty() || status.others.values().any(will_be_usable) {
        return None;
    }
    let what = match stays.is_empty() {
        true => "hosts can use no other gateway".to_owned(),
        false => format!("no other gateway can take ANA group(s) {}", names(stays)),
    };
    let reasons = reasons(status);
    Some(format!("{what}: {reasons}. They would have no path. A stop ends this gateway all the same"))
}

impl Daemon {
    /// Gives the ANA groups to the other gateways, within a bounded time. Those that could not be are fenced by them.
    pub(in crate::daemon) fn leave_group(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        cluster.driver.tell(ToDriver::Stop);
        let until = self.common.clock.now() + HAND_OVER_TIMEOUT;
        while self.cluster.as_ref().is_some_and(|cluster| !cluster.stopped) {
            if self.common.clock.now() >= until {
                tracing::warn!(
                    "not all ANA groups could be handed over in {HAND_OVER_TIMEOUT:?}: other gateways, where there are any, \
                     fence them"
                );
                return;
            }
            self.advance_changes();
            self.keep_alive();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Begins a drain: hosts use this gateway until every ANA group is another one's. Where there is no other gateway at
    /// all, nothing is waited for.
    ///
    /// # Errors
    /// Nothing is changed: no other gateway can take them.
    pub(in crate::daemon) fn begin_to_drain_gateway(&mut self) -> Result<Option<Changing>, Fault> {
        if self.cluster.is_none() {
            return Ok(None);
        }
        let status = self.group_status()?;
        let Some(cluster) = &self.cluster else { return Ok(None) };
        let now = self.common.clock.now();
        let is_mine = |gateway: &Option<GatewayName>| gateway.as_ref() == Some(&status.gateway);
        let own = status.groups.iter().filter(|(_, group)| is_mine(&group.gateway)).map(|(id, _)| *id);
        let own: BTreeSet<GroupId> = own.collect();
        let stays = not_handed_over(&status, &cluster.states, &own);
        if self.changing.iter().any(|(changing, _)| changing.handing_over.is_some()) {
            let text = "a drain waits for the other gateways already: `drain --end` ends it";
            return Err(Fault::refused(text));
        }
        if let Some(text) = refusal(&status, &stays).filter(|_| self.has_namespaces()) {
            return Err(Fault::refused(text));
        }
        cluster.driver.tell(ToDriver::Drain(true));
        if status.others.is_empty() {
            return Ok(None);
        }
        let item = Item::done("drain", "all listeners");
        let mut changing = Changing::new(vec![item], Origin::Command, now);
        let until = now + DRAIN_GROUPS_TIMEOUT;
        changing.handing_over = Some(HandingOver { own, until, look_at: now, is_taken_back: false });
        Ok(Some(changing))
    }

    fn has_namespaces(&self) -> bool {
        self.config.subsystems.iter().any(|subsystem| !subsystem.namespaces.is_empty())
    }

    /// Groups are taken again: balance brings some back. A drain that still waits is none.
    pub(in crate::daemon) fn end_drain_of_group(&mut self) {
        for (changing, _) in &mut self.changing {
            if let Some(handing_over) = &mut changing.handing_over {
                handing_over.is_taken_back = true;
            }
        }
        if let Some(cluster) = &self.cluster {
            cluster.driver.tell(ToDriver::Drain(false));
        }
    }

    /// Looks whether the other gateways have the ANA groups of one that is to be drained; then it is.
    pub(in crate::daemon) fn advance_handing_over(&mut self, changing: &mut Changing, now: Duration) {
        let Some(handing_over) = &mut changing.handing_over else { return };
        if handing_over.is_taken_back {
            changing.handing_over = None;
            return changing
                .fail("it was ended by `drain --end` before the other gateways had all ANA groups");
        }
        if now < handing_over.look_at {
            return;
        }
        handing_over.look_at = now + LOOK_INTERVAL;
        let Some(cluster) = &self.cluster else { return };
        // No word of the group's thread says nothing.
        let status = cluster.driver.status();
        if status.is_none() {
            handing_over.look_at = now + Duration::from_secs(1);
        }
        let is_usable =
            |status: &Status| !self.has_namespaces() || status.others.values().any(OtherStatus::is_usable);
        let is_any_usable = status.as_ref().is_some_and(is_usable);
        let stays = status.as_ref().map(|status| not_handed_over(status, &cluster.states, &handing_over.own));
        if is_any_usable && stays.as_ref().is_some_and(BTreeSet::is_empty) {
            changing.handing_over = None;
            match self.end_listening() {
                Ok(closing) => *changing = closing,
                Err(fault) => changing.fail(&fault.message),
            }
            return;
        }
        let none_will =
            status.as_ref().is_some_and(|status| !status.others.values().any(OtherStatus::will_take));
        if now < handing_over.until && !none_will {
            return;
        }
        let (own, stays) = (handing_over.own.clone(), stays.unwrap_or_else(|| handing_over.own.clone()));
        changing.handing_over = None;
        let refused = |status: &Status| {
            let of =
                |id: &GroupId| Some(format!("ANA group {id}: {}", status.groups.get(id)?.refused.as_ref()?));
            stays.iter().filter_map(of).next()
        };
        let refused = status.as_ref().and_then(refused);
        let why = refused.or_else(|| status.as_ref().map(reasons).filter(|why| !why.is_empty()));
        let why = why.unwrap_or_else(|| "`nvmf-target ctl cluster status` says why".to_owned());
        let moved: BTreeSet<GroupId> = own.difference(&stays).copied().collect();
        let moved = match moved.is_empty() {
            true => String::new(),
            false => format!(" ANA group(s) {} have moved, and stay where they are.", names(&moved)),
        };
        let what = match stays.is_empty() {
            true => "hosts can use no other gateway".to_owned(),
            false => {
                format!("no other gateway has taken ANA group(s) {}, which are served here", names(&stays))
            }
        };
        changing.fail(&format!(
            "it is not drained: {what} ({why}).{moved} A stop ends this gateway all the same, and the others take over"
        ));
        self.end_drain_of_group();
    }
}

impl Changing {
    fn fail(&mut self, why: &str) {
        for item in &mut self.items {
            item.outcome = Some(Outcome::Failed);
            item.message = Some(why.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::changing::Asker;
    use super::super::tests::gateway;
    use super::*;
    use nvmf_cluster::BootId;
    use nvmf_cluster::status::{ConfigurationStatus, GroupStatus};

    fn other(lease: &'static str, trouble: Option<&str>) -> OtherStatus {
        OtherStatus {
            lease,
            dead_s: None,
            stopped: false,
            boot: None,
            listens: Listens::Yes,
            addresses: Vec::new(),
            shares: Vec::new(),
            software: None,
            groups: Some(0),
            lacks_hosts: 0,
            leaving: trouble.is_some(),
            trouble: trouble.map(str::to_owned),
            applied: None,
            unfinished: None,
        }
    }

    /// A gateway gw1, with its ANA groups: each with what its entry says, and of whom.
    fn status(groups: &[(u32, &'static str, Option<&str>)]) -> Status {
        let group = |&(id, state, gateway): &(u32, &'static str, Option<&str>)| {
            let gateway = gateway.map(|name| GatewayName::new(name).unwrap());
            let (address, here, why, lacks) = (None, String::new(), None, Vec::new());
            let (generation, ana, unopened, wanted, refused) = (1, 0, 0, None, None);
            let group = GroupStatus {
                state,
                gateway,
                address,
                generation,
                here,
                ana,
                wanted,
                refused,
                unopened,
                lacks,
                served: state == "owned",
                why,
            };
            (GroupId(id), group)
        };
        let (version, applied, broken, refused, waiting) = (1, Some(1), [].into(), None, 0);
        Status {
            gateway: GatewayName::new("gw1").unwrap(),
            boot: BootId("run".to_owned()),
            state: "member",
            why: None,
            listens: Listens::Yes,
            controller_ids: None,
            lease_ms: Some(2500),
            others: [(GatewayName::new("gw2").unwrap(), other("held", None))].into(),
            as_of_s: None,
            groups: groups.iter().map(group).collect(),
            configuration: ConfigurationStatus { version, applied, broken, refused, waiting },
        }
    }

    #[test]
    fn group_is_handed_over_when_it_is_another_gateways_and_hosts_use_it_here_no_more() {
        let own: BTreeSet<GroupId> = [GroupId(1)].into();
        let stays = |state: &'static str, gateway, ana| {
            let states = [(GroupId(1), ana)].into();
            let status = status(&[(1, state, gateway), (2, "owned", Some("gw2"))]);
            !not_handed_over(&status, &states, &own).is_empty()
        };
        assert!(stays("owned", Some("gw1"), AnaState::OPTIMIZED));
        // It is suspended, opens its images, or rests after an attempt.
        assert!(stays("owned", Some("gw1"), AnaState::INACCESSIBLE));
        assert!(stays("free", Some("gw2"), AnaState::INACCESSIBLE));
        assert!(stays("surrendered", None, AnaState::INACCESSIBLE));
        assert!(stays("taking", Some("gw2"), AnaState::INACCESSIBLE));
        assert!(stays("owned", Some("gw2"), AnaState::CHANGE), "I/O of hosts is under way");
        assert!(!stays("owned", Some("gw2"), AnaState::INACCESSIBLE));
        let status = status(&[(1, "owned", Some("gw2")), (2, "taking", Some("gw2"))]);
        assert!(
            not_handed_over(&status, &[].into(), &own).is_empty(),
            "gw3 has died, which is no matter of this one"
        );
    }

    #[test]
    fn reasons_name_each_gateway_that_takes_nothing() {
        let mut status = status(&[]);
        let name = |name| GatewayName::new(name).unwrap();
        status.others.insert(name("gw3"), other("held", Some("it is drained")));
        status.others.insert(name("gw4"), OtherStatus { stopped: true, ..other("dead", None) });
        status.others.insert(name("gw5"), OtherStatus { listens: Listens::NotYet, ..other("held", None) });
        assert_eq!(reasons(&status), "gw3: it is drained; gw4: it was stopped; gw5: it does not listen yet");
        assert!(!status.others.iter().any(|(name, other)| name.as_str() == "gw3" && other.will_take()));
        assert!(status.others[&name("gw5")].will_take(), "it is worth a wait");
    }

    #[test]
    fn drain_is_refused_where_hosts_could_use_no_other_gateway() {
        let with = |gw2: OtherStatus, groups| {
            let mut status = status(groups);
            status.others = [(GatewayName::new("gw2").unwrap(), gw2)].into();
            let stays = not_handed_over(&status, &[].into(), &[].into());
            refusal(&status, &stays).is_some()
        };
        let (mine, its) = (&[(1, "owned", Some("gw1"))][..], &[(1, "owned", Some("gw2"))][..]);
        let silent = |listens| OtherStatus { listens, ..other("held", None) };
        for groups in [mine, its] {
            assert!(with(other("dead", None), groups));
            assert!(with(other("expired", None), groups));
            assert!(with(OtherStatus { leaving: true, ..silent(Listens::No) }, groups));
            assert!(!with(silent(Listens::NotYet), groups), "it is waited for");
            assert!(!with(other("held", None), groups));
        }
        let trouble = || OtherStatus { leaving: false, ..other("held", Some("permission denied")) };
        assert!(with(trouble(), mine));
        assert!(!with(trouble(), its), "it has them already");
    }

    #[test]
    fn drain_that_is_ended_before_the_groups_have_gone_is_none() {
        let mut daemon = gateway();
        let now = daemon.common.clock.now();
        let waits = || {
            let mut changing =
                Changing::new(vec![Item::done("drain", "all listeners")], Origin::Command, now);
            let (own, until, look_at) = ([GroupId(1)].into(), now + DRAIN_GROUPS_TIMEOUT, now);
            changing.handing_over = Some(HandingOver { own, until, look_at, is_taken_back: false });
            changing
        };
        daemon.changing.push((waits(), Asker::Reload));
        daemon.end_drain_of_group();
        let mut changing = daemon.changing.remove(0).0;
        daemon.advance_handing_over(&mut changing, now);
        assert_eq!(changing.items[0].outcome, Some(Outcome::Failed));
        // Nobody takes group 1 here: it is served on.
        let mut changing = waits();
        daemon.advance_handing_over(&mut changing, now + DRAIN_GROUPS_TIMEOUT);
        assert_eq!(changing.items[0].outcome, Some(Outcome::Failed));
        assert!(!daemon.draining && changing.handing_over.is_none());
        daemon.stop(Duration::ZERO);
    }
}
