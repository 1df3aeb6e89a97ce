//! What is seen of a group of gateways, as OpenMetrics. Without a group there are the families, and no series.

use super::observed::SeenGroup;
use super::text::{Families, Labels, float};
use core::fmt::Error;
use core::time::Duration;
use nvmf_cluster::status::GroupStatus;
use nvmf_cluster::{AnaState, GroupId, Status};
use nvmf_config::AnaGroup;
use prometheus_client::registry::Unit;

const STATES: [&str; 8] =
    ["joining", "member", "suspended", "drained", "unreachable", "refused", "stopping", "stopped"];
const LEASES: [&str; 4] = ["held", "expired", "dead", "unknown"];
const ANA_STATES: [AnaState; 3] = [AnaState::OPTIMIZED, AnaState::INACCESSIBLE, AnaState::CHANGE];

/// Writes them.
pub(super) fn encode(families: &mut Families<'_>, seen: Option<&SeenGroup>) -> Result<(), Error> {
    let status = seen.and_then(|seen| seen.status.as_ref());
    let states =
        status.into_iter().flat_map(|it| STATES.map(|state| (label("state", state), is(it.state == state))));
    families.gauges(("group_state", "1 for what this gateway is in its group", None), states)?;
    // Who does not say has none, as far as anybody knows.
    let holds = |status: &Status| Duration::from_millis(status.lease_ms.unwrap_or(0)).as_secs_f64();
    let lease = seen.map(|it| (vec![], it.status.as_ref().map_or(0.0, holds)));
    let help = "For how long the lease holds, unless it is renewed: 0 when it does not";
    families.gauges(("group_lease", help, Some(Unit::Seconds)), lease)?;
    let others =
        status.into_iter().flat_map(|it| LEASES.map(|lease| (label("lease", lease), with_lease(it, lease))));
    families.gauges(("group_gateways", "The other gateways of the group, by their leases", None), others)?;
    let takers = status.map(|it| (vec![], count(it.takers())));
    let help =
        "Other gateways that could take ANA groups: those that are dead, drained or not reachable could not";
    families.gauges(("group_takers", help, None), takers)?;
    let owned = status.into_iter().flat_map(owned);
    families.gauges(("group_ana_group_owned", "Whether a gateway serves the ANA group", None), owned)?;
    // Of one that is suspended, hosts are shown nothing.
    let is_here = |group: &&GroupStatus| group.here == "serving" && group.ana == AnaState::OPTIMIZED.0;
    let here = status.map(|it| (vec![], count(it.groups.values().filter(is_here).count())));
    families.gauges(("group_ana_groups_served", "ANA groups that this gateway serves", None), here)?;
    let states = status.into_iter().flat_map(ana_states);
    families
        .gauges(("group_ana_state", "1 for the state of the ANA group through this gateway", None), states)?;
    let version = status.map(|it| (vec![], float(it.configuration.version)));
    families.gauges(
        ("group_configuration_version", "The version of the configuration that was read", None),
        version,
    )?;
    let served = status.map(|it| (vec![], float(it.configuration.applied.unwrap_or(0))));
    families.gauges(("group_configuration_served", "The version of it that is served here", None), served)?;
    let unusable = status.map(|it| (vec![], is(it.configuration.refused.is_some())));
    let help = "1 while what is stored of the configuration cannot be used: changes are refused";
    families.gauges(("group_configuration_unusable", help, None), unusable)?;
    let left_out = seen.map(|it| (vec![], count(it.left_out)));
    families.gauges(
        ("group_items_left_out", "Items of the configuration that are left out here", None),
        left_out,
    )?;
    let takeovers = seen.map(|it| (vec![], it.takeovers));
    families.counters(
        ("group_takeovers", "Times that this gateway began to serve an ANA group", None),
        takeovers,
    )?;
    let fences = seen.map(|it| (vec![], it.fences));
    families.counters(("group_fences", "Times that this gateway put a client on the blocklist", None), fences)
}

fn label(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

fn is(it: bool) -> f64 {
    f64::from(u8::from(it))
}

fn count(count: usize) -> f64 {
    float(count as u64)
}

fn with_lease(status: &Status, lease: &str) -> f64 {
    count(status.others.values().filter(|other| other.lease == lease).count())
}

fn owned(status: &Status) -> impl Iterator<Item = (Labels, f64)> {
    status.groups.iter().map(|(id, group)| (label("ana_group", &id.to_string()), is(group.served)))
}

fn ana_states(status: &Status) -> impl Iterator<Item = (Labels, f64)> {
    let of = |(id, now): (&GroupId, AnaState)| {
        let id = id.0;
        ANA_STATES.map(|state| {
            let word = AnaGroup { id, state }.state_word();
            (vec![("ana_group", id.to_string()), ("state", word.to_owned())], is(state == now))
        })
    };
    status.groups.iter().flat_map(move |(id, group)| of((id, AnaState(group.ana))))
}

#[cfg(test)]
mod tests {
    use super::super::scrape::Scrape;
    use super::*;
    use core::fmt;
    use nvmf_cluster::status::ConfigurationStatus;
    use nvmf_cluster::{BootId, GatewayName, Listens};
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::{DescriptorEncoder, text::encode as write};
    use prometheus_client::registry::Registry;

    struct Shown(SeenGroup);

    impl fmt::Debug for Shown {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Shown")
        }
    }

    impl Collector for Shown {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
            encode(&mut Families(encoder), Some(&self.0))
        }
    }

    fn ana_group(state: &'static str, ana: AnaState) -> GroupStatus {
        GroupStatus {
            state,
            gateway: None,
            address: None,
            generation: 1,
            here: if ana == AnaState::OPTIMIZED { "serving" } else { "idle" }.to_owned(),
            ana: ana.0,
            wanted: None,
            refused: None,
            unopened: 0,
            lacks: Vec::new(),
            served: state == "owned",
            why: None,
        }
    }

    fn scraped(status: Option<Status>) -> (Scrape, String) {
        let mut registry = Registry::with_prefix("nvmf_target");
        registry.register_collector(Box::new(Shown(SeenGroup {
            status,
            left_out: 3,
            takeovers: 4,
            fences: 5,
        })));
        let mut text = String::new();
        write(&mut text, &registry).unwrap();
        (Scrape::parse(&text).unwrap(), text)
    }

    #[test]
    fn gateway_whose_group_does_not_answer_has_no_lease() {
        let (_, text) = scraped(None);
        assert!(text.contains("nvmf_target_group_lease_seconds 0.0\n"), "{text}");
        assert!(!text.contains("nvmf_target_group_takers 0"), "nobody knows\n{text}");
    }

    #[test]
    fn metrics_tell_which_ana_group_nobody_serves_and_that_the_gateway_is_suspended() {
        let status = Status {
            gateway: GatewayName::new("gw1").unwrap(),
            boot: BootId("run".to_owned()),
            state: "suspended",
            why: None,
            listens: Listens::Yes,
            controller_ids: None,
            lease_ms: Some(2500),
            others: [].into(),
            as_of_s: None,
            groups: [
                (
                    GroupId(3),
                    GroupStatus { here: "serving".to_owned(), ..ana_group("owned", AnaState::INACCESSIBLE) },
                ),
                (GroupId(1), ana_group("owned", AnaState::OPTIMIZED)),
                (GroupId(2), ana_group("free", AnaState::INACCESSIBLE)),
            ]
            .into(),
            configuration: ConfigurationStatus {
                version: 7,
                applied: Some(6),
                broken: [].into(),
                refused: Some("damaged".to_owned()),
                waiting: 0,
            },
        };
        let (scrape, text) = scraped(Some(status));
        for (name, labels, value) in [
            ("group_state", &[("state", "suspended")][..], 1.0),
            ("group_state", &[("state", "member")], 0.0),
            ("group_lease_seconds", &[], 2.5),
            ("group_ana_group_owned", &[("ana_group", "1")], 1.0),
            ("group_ana_group_owned", &[("ana_group", "2")], 0.0),
            ("group_takers", &[], 0.0),
            ("group_ana_groups_served", &[], 1.0),
            ("group_ana_state", &[("ana_group", "2"), ("state", "inaccessible")], 1.0),
            ("group_configuration_version", &[], 7.0),
            ("group_configuration_served", &[], 6.0),
            ("group_configuration_unusable", &[], 1.0),
            ("group_items_left_out", &[], 3.0),
            ("group_takeovers_total", &[], 4.0),
            ("group_fences_total", &[], 5.0),
        ] {
            assert!(
                (scrape.sum(&format!("nvmf_target_{name}"), labels) - value).abs() < 1e-9,
                "{name} {labels:?}\n{text}"
            );
        }
    }
}
