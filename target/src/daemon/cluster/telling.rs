//! What operators are told of the group: in `status`, in `cluster status`, in the log.

use super::super::Daemon;
use super::converging::remedy;
use super::images::item;
use crate::control::protocol::Fault;
use crate::control::request::status::NamespaceState;
use crate::metrics::observed::SeenGroup;
use nvmf_cluster::status::{GroupStatus, OtherStatus};
use nvmf_cluster::{AnaState, GatewayName, GroupId, Listens, Object, Status};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Items that are named in `status`; `cluster status` has them all.
const NAMED_MAX: usize = 5;

impl Daemon {
    /// What is stored of the configuration cannot be used, or can be again.
    pub(super) fn on_refused(&mut self, refused: Option<String>) {
        let text = refused.as_ref().map(|reason| self.not_used(reason));
        match text {
            Some(text) => tracing::error!("{text}"),
            None => tracing::info!("the group's configuration can be read again"),
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.refused = refused;
        }
    }

    fn not_used(&self, reason: &str) -> String {
        let look = self.config.cluster.as_ref().map(|of| {
            let namespace =
                of.namespace.as_ref().map(|name| format!(" --namespace {name}")).unwrap_or_default();
            let object = Object::Configuration.name(&of.group);
            format!("rados --pool {}{namespace} getomapval {object} version -", of.pool)
        });
        let look = look.unwrap_or_default();
        let was_read = self.cluster.as_ref().is_some_and(|cluster| cluster.is_configured);
        let meanwhile = if was_read {
            "What was read before is served on"
        } else {
            "Nothing of it is served by this gateway"
        };
        format!(
            "the group's configuration is not used: {reason}. {meanwhile}, and changes are refused. \
             `{look}` shows what is stored; setomapval with the bytes that it had mends it. Where all of it is lost: stop all \
             gateways, start one, and give it what `nvmf-target ctl save FILE` once wrote: `nvmf-target ctl apply FILE`"
        )
    }

    /// What is not well with the group, each in a line.
    pub(in crate::daemon) fn group_trouble(&self) -> Vec<String> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let mut lines = Vec::new();
        let said = |why: &Option<String>| why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let status = cluster.driver.status();
        if status.is_none() {
            let trouble = "the thread of the gateway group does not answer: others may have taken what is served here. If that \
                lasts, restart the target (systemctl restart nvmf-target)";
            lines.push(trouble.to_owned());
        }
        if let Some(status) = status {
            if status.state != "member" {
                lines.push(format!("this gateway is {}{}", status.state, said(&status.why)));
            }
            // Who is cut off, or no member, knows nothing of the others.
            let knows = matches!(status.state, "member" | "drained" | "unreachable");
            let others = status.others.iter().filter(|_| knows);
            lines.extend(others.clone().filter_map(|(name, other)| lacking(name, other)));
            lines.extend(others.filter_map(|(name, other)| sharing(name, other)));
            // Wherever they are served: whoever asks any gateway is to know.
            lines.extend(status.groups.iter().filter(|_| knows).filter_map(|(id, group)| {
                let is_used = self.keys_in_group(*id).next().is_some();
                let why = said(&group.why);
                match group.state {
                    "owned" if is_used && !group.served => {
                        Some(format!("ANA group {id} is served by nobody{why}"))
                    }
                    "owned" if group.unopened > 0 => Some(format!("ANA group {id} lacks images{why}")),
                    state if state != "owned" && is_used => Some(format!("ANA group {id} is {state}{why}")),
                    _ => None,
                }
            }));
        }
        lines.extend(cluster.refused.as_ref().map(|reason| self.not_used(reason)));
        let left_out = || cluster.left_out.iter();
        lines.extend(
            left_out()
                .take(NAMED_MAX)
                .map(|(key, reason)| format!("{key} is left out: {reason}. {}", remedy(key))),
        );
        if let Some(more) = left_out().count().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            lines.push(format!("{more} more are left out: see `cluster status`"));
        }
        lines
    }

    /// What is missing before hosts can use a disk. Whoever adds it to a group that a typing error has made has two groups that
    /// serve one disk.
    pub(in crate::daemon) fn serves_nothing(&self) -> Option<String> {
        let what = self.config.serves_nothing()?.to_owned();
        let beside = self.cluster.as_ref().map(|cluster| cluster.driver.made_beside()).unwrap_or_default();
        let Some(of) = self.config.cluster.as_ref().filter(|_| !beside.is_empty()) else { return Some(what) };
        Some(format!(
            "{what}. This gateway has made its group, {}: the pool has {}, too: correct [cluster] if it was to be one of these",
            of.group,
            beside.join(", ")
        ))
    }

    /// The gateways that own ANA groups, by the number of the group.
    pub(in crate::daemon) fn owners(&self) -> BTreeMap<u32, Owner> {
        let status = self.cluster.as_ref().and_then(|cluster| cluster.driver.status());
        status.map(owners).unwrap_or_default()
    }

    /// Why nothing is asked of the group now: while the storage cluster does not answer, an operator would wait for it.
    pub(super) fn cannot_ask(&self) -> Option<Fault> {
        cannot_ask(&self.cluster.as_ref()?.driver.status()?)
    }

    /// The answer to `cluster status`: what the engine knows, with the namespaces of each ANA group and the words for
    /// its state.
    pub(in crate::daemon) fn cluster_answer(&self) -> Result<Value, Fault> {
        let status = self.group_status()?;
        let mut answer = serde_json::to_value(&status).map_err(|error| Fault::refused(error.to_string()))?;
        if let Some(of) = &self.config.cluster {
            answer["group"] = of.group.as_str().into();
            answer["pool"] = of.pool.as_str().into();
            answer["namespace"] = of.namespace.as_deref().into();
        }
        for (id, group) in &status.groups {
            let place = &mut answer["groups"][id.0.to_string()];
            let state = AnaState(group.ana);
            place["ana"] = nvmf_config::AnaGroup { id: id.0, state }.state_word().into();
            place["namespaces"] = self.namespaces_of(id.0).into();
        }
        // Nothing is wrong with the item of an image that is not open.
        let (unopened, broken): (BTreeMap<_, _>, BTreeMap<_, _>) =
            status.configuration.broken.into_iter().partition(|(key, _)| self.is_wanted(key));
        answer["configuration"]["broken"] = json!(broken);
        answer["configuration"]["unopened"] = json!(unopened);
        Ok(answer)
    }

    /// Whether an item is a namespace that this gateway serves, or would if its image was open.
    pub(super) fn is_wanted(&self, key: &str) -> bool {
        let mut all = self.config.subsystems.iter().flat_map(|subsystem| {
            subsystem.namespaces.iter().map(|namespace| item(&(subsystem.nqn, namespace.nsid)))
        });
        !self.is_left_out(key) && all.any(|name| name == key)
    }

    /// For those who read metrics.
    pub(in crate::daemon) fn seen_group(&self) -> Option<SeenGroup> {
        let cluster = self.cluster.as_ref()?;
        let (takeovers, fences) = cluster.driver.counted();
        let status = cluster.driver.status();
        Some(SeenGroup { status, left_out: cluster.left_out.len(), takeovers, fences })
    }

    /// How many namespaces an ANA group has.
    pub(in crate::daemon) fn namespaces_of(&self, group: u32) -> usize {
        let namespaces = self.config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        namespaces.filter(|namespace| namespace.ana_group == group).count()
    }
}

/// The gateway that owns an ANA group, the items of namespaces that it cannot open, and what is so of the others where this
/// gateway is suspended.
pub(in crate::daemon) type Owner = (String, Vec<String>, Option<NamespaceState>);

fn cannot_ask(status: &Status) -> Option<Fault> {
    let why = status.why.as_deref().unwrap_or_default();
    let text = || {
        format!(
            "nothing was changed: this gateway is suspended: {why}. Ask again once it is a member, or another gateway"
        )
    };
    (status.state == "suspended").then(|| Fault::refused(text()))
}

fn owners(status: Status) -> BTreeMap<u32, Owner> {
    let Status { gateway, state, groups, .. } = status;
    // While this gateway is suspended, who serves is not known: who did is told.
    let serves = |group: &GroupStatus| group.served || state == "suspended";
    let owned = groups.into_iter().filter(|(_, group)| group.state == "owned" && serves(group));
    let owner = |(id, group): (GroupId, GroupStatus)| {
        let owner = group.gateway?;
        let meanwhile = if owner == gateway { NamespaceState::Suspended } else { NamespaceState::Unknown };
        Some((id.0, (owner.to_string(), group.lacks, (state == "suspended").then_some(meanwhile))))
    };
    owned.filter_map(owner).collect()
}

/// Why the group has one gateway less that could take ANA groups. One that was stopped is meant to be away.
fn lacking(name: &GatewayName, other: &OtherStatus) -> Option<String> {
    let OtherStatus { lease, dead_s, stopped, leaving, trouble, listens, .. } = other;
    match (*lease, trouble) {
        ("dead", _) if *stopped => None,
        ("dead", _) => Some(format!(
            "gateway {name} has been dead for {} s: start it again, or `nvmf-target ctl cluster remove {name}` if it is gone for \
             good",
            dead_s.unwrap_or_default()
        )),
        ("expired", None) if *leaving => None,
        ("expired", _) => {
            Some(format!("the lease of gateway {name} has expired: others take its ANA groups soon"))
        }
        ("held", None) if *listens == Listens::NotYet => Some(format!(
            "gateway {name} has started, and does not listen yet: no ANA group goes there; `nvmf-target ctl status` there says \
             what it waits for"
        )),
        ("held", Some(trouble)) => Some(format!("gateway {name} cannot take ANA groups now: {trouble}")),
        _ => None,
    }
}

/// That hosts are told of an address which is both this gateway's and another's. One that is each machine's own may be: a gateway
/// that has no other is no member.
fn sharing(name: &GatewayName, other: &OtherStatus) -> Option<String> {
    let is_local = |place: &&String| place.contains("//127.0.0.1:") || place.contains("//[::1]:");
    let shared: Vec<&str> = other.shares.iter().filter(|it| !is_local(it)).map(String::as_str).collect();
    (!shared.is_empty()).then(|| {
        format!(
            "gateway {name} has {}, too: hosts reach one of the two there, and wait for the ANA groups of the other: correct \
             [cluster] addresses, or the listener, in the file of one of them, and restart it",
            shared.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_cluster::BootId;
    use nvmf_cluster::status::ConfigurationStatus;

    fn other(lease: &'static str, trouble: Option<&str>) -> OtherStatus {
        OtherStatus {
            lease,
            dead_s: (lease == "dead").then_some(70),
            stopped: false,
            boot: None,
            addresses: Vec::new(),
            shares: Vec::new(),
            software: None,
            groups: Some(0),
            lacks_hosts: 0,
            leaving: false,
            listens: Listens::Yes,
            trouble: trouble.map(str::to_owned),
            applied: None,
            unfinished: None,
        }
    }

    #[test]
    fn address_of_two_gateways_is_not_well_unless_it_is_each_hosts_own() {
        let name = GatewayName::new("gw2").unwrap();
        let said = |shares: &[&str]| {
            let shares = shares.iter().map(|it| (*it).to_owned()).collect();
            sharing(&name, &OtherStatus { shares, ..other("held", None) }).unwrap_or_default()
        };
        assert_eq!(said(&[]), "");
        assert_eq!(said(&["tcp://127.0.0.1:4420"]), "");
        let said = said(&["tcp://192.0.2.1:4420", "tcp://127.0.0.1:4420", "rdma://192.0.2.1:4420"]);
        assert!(
            said.starts_with("gateway gw2 has tcp://192.0.2.1:4420 and rdma://192.0.2.1:4420, too: "),
            "{said}"
        );
    }

    #[test]
    fn suspended_gateway_says_of_no_namespace_that_it_is_served_and_is_asked_for_nothing() {
        let group = |gateway: &str, served: bool| GroupStatus {
            state: "owned",
            gateway: GatewayName::new(gateway).ok(),
            address: None,
            generation: 1,
            here: "serving".to_owned(),
            ana: AnaState::INACCESSIBLE.0,
            wanted: None,
            refused: None,
            unopened: 0,
            lacks: Vec::new(),
            served,
            why: None,
        };
        let status = |state: &'static str, served: bool| Status {
            gateway: GatewayName::new("gw1").unwrap(),
            boot: BootId("run".to_owned()),
            state,
            why: Some("its lease was not renewed in time".to_owned()),
            listens: Listens::Yes,
            controller_ids: None,
            lease_ms: None,
            others: BTreeMap::new(),
            as_of_s: None,
            groups: [(GroupId(1), group("gw1", served)), (GroupId(2), group("gw2", served))].into(),
            configuration: ConfigurationStatus {
                version: 1,
                applied: Some(1),
                broken: BTreeMap::new(),
                refused: None,
                waiting: 0,
            },
        };
        let meanwhile = |state, served| {
            owners(status(state, served)).into_values().map(|(.., it)| it).collect::<Vec<_>>()
        };
        assert_eq!(
            meanwhile("suspended", false),
            [Some(NamespaceState::Suspended), Some(NamespaceState::Unknown)]
        );
        assert_eq!(meanwhile("member", true), [None, None]);
        assert_eq!(meanwhile("member", false), [], "their leases have expired: nobody serves them");
        let text = cannot_ask(&status("suspended", false)).unwrap().message;
        assert!(text.starts_with("nothing was changed: this gateway is suspended: its lease was"), "{text}");
        assert!(cannot_ask(&status("drained", true)).is_none());
    }

    #[test]
    fn gateway_that_is_missing_is_not_well_and_one_that_was_stopped_is() {
        let name = GatewayName::new("gw2").unwrap();
        let said = |other: OtherStatus| lacking(&name, &other).unwrap_or_default();
        assert_eq!(said(other("held", None)), "");
        assert_eq!(said(other("unknown", None)), "");
        assert_eq!(said(OtherStatus { stopped: true, leaving: true, ..other("dead", None) }), "");
        assert_eq!(said(OtherStatus { leaving: true, ..other("expired", None) }), "", "it stops");
        assert!(said(other("dead", None)).starts_with("gateway gw2 has been dead for 70 s"));
        assert!(said(other("expired", None)).contains("gw2 has expired"));
        let starts = OtherStatus { listens: Listens::NotYet, ..other("held", None) };
        assert!(said(starts).starts_with("gateway gw2 has started, and does not listen yet"));
        let drained = OtherStatus { leaving: true, ..other("held", Some("it is drained")) };
        assert_eq!(said(drained), "gateway gw2 cannot take ANA groups now: it is drained");
    }
}
