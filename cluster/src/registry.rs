//! Records of gateways, and their ranges of Controller IDs.

use crate::encoding::{Unreadable, decode, encode};
use crate::{GatewayName, GroupId, Process};
use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use serde::{Deserialize, Serialize};

/// Controller IDs that a gateway has: enough for its hosts, and for 31 gateways.
pub const CNTLIDS_PER_GATEWAY: u16 = 2048;
const CNTLID_MIN: u16 = 1;
/// Larger values have a meaning of their own (NVMe Base 2.1, Controller ID).
const CNTLID_MAX: u16 = 0xffef;

/// Images that a gateway names which it cannot open.
pub(crate) const LACKS_MAX: usize = 64;

/// Whether hosts can connect to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listens {
    /// They can.
    #[default]
    Yes,
    /// It has started, and what hosts would find is not there yet. It takes back what it had; nothing else goes there.
    NotYet,
    /// None of its listeners is up.
    No,
}

impl Listens {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
    fn is_yes(&self) -> bool {
        *self == Self::Yes
    }
}

/// Hosts that are connected to a gateway, each by a number that is the same at all gateways. Where nothing is known of them, as
/// there are too many or the gateway is of a version that does not say it, there is no such list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConnectedHosts(BTreeSet<u32>);

impl ConnectedHosts {
    /// More are not told: a record is read by every gateway.
    pub const MAX: usize = 256;

    /// Of these; `None` if there are too many.
    pub fn of(hosts: impl Iterator<Item = u32>) -> Option<Self> {
        let hosts: BTreeSet<u32> = hosts.take(4 * Self::MAX).collect();
        (hosts.len() <= Self::MAX).then_some(Self(hosts))
    }

    /// How many of these a gateway with `others` does not have.
    pub(crate) fn lacking(&self, others: &Self) -> usize {
        self.0.difference(&others.0).count()
    }
}

/// What a gateway tells the others of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its run.
    #[serde(flatten)]
    pub process: Process,
    /// Where hosts reach it, for discovery: what stands before a `?` is where, and opaque here.
    pub addresses: Vec<String>,
    /// Its version.
    pub software: String,
    /// ANA groups that it serves.
    pub groups: usize,
    /// It gives its groups away and takes none: it is about to stop, or [`Record::trouble`] says why.
    #[serde(default)]
    pub leaving: bool,
    /// Whether hosts can connect to it.
    #[serde(default, skip_serializing_if = "Listens::is_yes")]
    pub listens: Listens,
    /// Why it cannot take groups now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// ANA groups that it serves without some of their images, which it cannot open: how many of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unopened: Vec<(GroupId, usize)>,
    /// Which images these are, as far as there is room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
    /// ANA groups that it owns and does not serve now: it has lost them, and rests before it takes them again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resting: Vec<GroupId>,
    /// Hosts that are connected to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<ConnectedHosts>,
    /// The version of the configuration that it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<u64>,
    /// The last version of the configuration that has taken something away from hosts of which something is still under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<u64>,
}

impl Record {
    pub(crate) fn key(gateway: &GatewayName) -> String {
        format!("gateway/{gateway}")
    }

    pub(crate) fn name(key: &str) -> Option<GatewayName> {
        GatewayName::new(key.strip_prefix("gateway/")?).ok()
    }

    /// Whether another record says the same of all that others wait for: what it takes, what it can open, what it serves.
    pub(crate) fn acts_as(&self, other: &Self) -> bool {
        let (groups, addresses, hosts) = (other.groups, other.addresses.clone(), other.hosts.clone());
        let same = Self { groups, addresses, hosts, ..self.clone() };
        same == *other
    }

    pub(crate) fn decode(gateway: &GatewayName, bytes: &[u8]) -> Result<Self, Unreadable> {
        decode(&format!("the record of gateway {gateway}"), bytes)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Where hosts reach the disks of a gateway, by its addresses. An address for discovery only may be that of several.
pub(crate) fn places(addresses: &[String]) -> impl Iterator<Item = &str> {
    let both = addresses.iter().map(|address| address.split_once('?').unwrap_or((address, "")));
    let for_disks = both.filter(|(_, options)| options.split('&').all(|option| option != "discovery=only"));
    for_disks.map(|(place, _)| place)
}

/// Which gateway has which range. It is one value, so that a compare-and-set of it gives no range twice. A range stays with
/// its gateway, there or not, until the gateway is removed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ControllerIds {
    /// The first ID of each.
    first: BTreeMap<GatewayName, u16>,
}

impl ControllerIds {
    pub(crate) const KEY: &str = "controller_ids";

    pub(crate) fn decode(bytes: Option<&Vec<u8>>) -> Result<Self, Unreadable> {
        bytes.map_or_else(|| Ok(Self::default()), |bytes| decode("the table of Controller IDs", bytes))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    pub(crate) fn range(&self, gateway: &GatewayName) -> Option<RangeInclusive<u16>> {
        let first = *self.first.get(gateway)?;
        let last = first.checked_add(CNTLIDS_PER_GATEWAY - 1)?;
        (CNTLID_MIN..=CNTLID_MAX - CNTLIDS_PER_GATEWAY + 1).contains(&first).then_some(first..=last)
    }

    /// The table with a range for this gateway, which is no other one's; `None` if none is left.
    pub(crate) fn with(mut self, gateway: &GatewayName) -> Option<Self> {
        let known = self.range(gateway);
        self.first.remove(gateway);
        let is_free =
            |first: &u16| !self.first.values().any(|other| first.abs_diff(*other) < CNTLIDS_PER_GATEWAY);
        let mut ranges =
            (CNTLID_MIN..=CNTLID_MAX - CNTLIDS_PER_GATEWAY + 1).step_by(CNTLIDS_PER_GATEWAY.into());
        let known = known.map(|range| *range.start()).filter(is_free);
        let first = known.or_else(|| ranges.find(is_free))?;
        self.first.insert(gateway.clone(), first);
        Some(self)
    }

    pub(crate) fn without(mut self, gateway: &GatewayName) -> Self {
        self.first.remove(gateway);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_controller_ids_never_overlap() {
        let name = |n: u32| GatewayName::new(&format!("gw{n}")).expect("a name");
        let mut ids = ControllerIds::default();
        for n in 0..31 {
            ids = ids.with(&name(n)).expect("a range is left");
        }
        assert_eq!(ids.clone().with(&name(31)), None);
        let mut ranges: Vec<_> = (0..31).map(|n| ids.range(&name(n)).expect("it has one")).collect();
        ranges.sort_by_key(|range| *range.start());
        assert!(ranges.windows(2).all(|pair| pair[0].end() < pair[1].start()));
        assert!(*ranges[0].start() >= CNTLID_MIN && *ranges[30].end() <= CNTLID_MAX);
        let again = ids.clone().without(&name(7)).with(&name(40)).expect("one is free again");
        assert_eq!(again.range(&name(40)), ids.range(&name(7)));
    }

    #[test]
    fn range_that_is_none_or_another_gateways_is_given_anew() {
        let name = |n: u32| GatewayName::new(&format!("gw{n}")).expect("a name");
        for damaged in [
            r#"{"format":1,"first":{"gw0":0,"gw1":2049}}"#,
            r#"{"format":1,"first":{"gw0":2048,"gw1":2049}}"#,
        ] {
            let ids = ControllerIds::decode(Some(&damaged.into())).expect("it can be read");
            let ids = ids.with(&name(0)).expect("a range is left");
            assert_eq!(ids.range(&name(0)), Some(1..=2048), "{damaged}");
            assert_eq!(ids.range(&name(1)), Some(2049..=4096), "{damaged}");
        }
    }
}
