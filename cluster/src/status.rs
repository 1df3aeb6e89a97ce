//! What an operator is shown: plain data, for `nvmf-target ctl cluster status`.

use crate::{Address, BootId, GatewayName, GroupId, Listens};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use serde::Serialize;

/// The group as a gateway sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The gateway that is asked.
    pub gateway: GatewayName,
    /// Its run.
    pub boot: BootId,
    /// What it is in the group: `joining`, `member`, `suspended`, `drained`, `unreachable`, `refused`, `stopping`, `stopped`.
    pub state: &'static str,
    /// Why, if it is no plain member.
    pub why: Option<String>,
    /// Whether hosts can connect to it.
    pub listens: Listens,
    /// Its Controller IDs, first and last.
    pub controller_ids: Option<(u16, u16)>,
    /// Milliseconds until it shows its groups inaccessible by itself, unless its lease is renewed.
    pub lease_ms: Option<u64>,
    /// The others.
    pub others: BTreeMap<GatewayName, OtherStatus>,
    /// How old, in seconds, what is said of them and of the groups may be, where this gateway is cut off from the store.
    pub as_of_s: Option<u64>,
    /// The ANA groups.
    pub groups: BTreeMap<GroupId, GroupStatus>,
    /// The configuration.
    pub configuration: ConfigurationStatus,
}

impl Status {
    /// How many of the other gateways could take ANA groups.
    #[must_use]
    pub fn takers(&self) -> usize {
        self.others.values().filter(|other| other.will_take() && other.is_usable()).count()
    }
}

/// Another gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OtherStatus {
    /// `held`, `expired`, `dead`, `unknown`.
    pub lease: &'static str,
    /// For how long it has been dead, in seconds, as far as this gateway has seen it.
    pub dead_s: Option<u64>,
    /// It is not there because it was stopped, and has given all away.
    pub stopped: bool,
    /// Its run, if it holds its lease.
    pub boot: Option<BootId>,
    /// Whether hosts can connect to it.
    pub listens: Listens,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// Those that the gateway that is asked has as well: hosts reach one of the two only.
    pub shares: Vec<String>,
    /// Its version.
    pub software: Option<String>,
    /// ANA groups that it serves, by its record; of who is dead, those that nobody has taken.
    pub groups: Option<usize>,
    /// How many hosts of the gateway that is asked have no connection to it: balance gives it none of that gateway's groups.
    #[serde(skip_serializing_if = "is_zero")]
    pub lacks_hosts: usize,
    /// It gives its groups away, and takes none: it is about to stop, or `trouble` says why.
    pub leaving: bool,
    /// Why it cannot take groups now, as far as is known here.
    pub trouble: Option<String>,
    /// The version of the configuration that it serves.
    pub applied: Option<u64>,
    /// The last version that has taken something away from hosts of which something is still under way there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl OtherStatus {
    /// Whether hosts that lose another gateway have this one.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.is_there() && self.listens == Listens::Yes
    }

    /// Whether it may take ANA groups, now or once it listens.
    #[must_use]
    pub fn will_take(&self) -> bool {
        self.is_there() && self.trouble.is_none()
    }

    fn is_there(&self) -> bool {
        self.lease == "held" && !self.leaving
    }
}

/// An ANA group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// `free`, `taking`, `owned`, `surrendered`, `new`, `unreadable`.
    pub state: &'static str,
    /// Who has it, or is to have it.
    pub gateway: Option<GatewayName>,
    /// The address that does its I/O, or that is to be fenced.
    pub address: Option<Address>,
    /// Its generation.
    pub generation: u64,
    /// What this gateway does with it.
    pub here: String,
    /// Its ANA state at this gateway.
    pub ana: u8,
    /// Where an operator wants it.
    pub wanted: Option<GatewayName>,
    /// Why the gateway where it is wanted does not take it.
    pub refused: Option<String>,
    /// How many of its images its owner cannot open.
    pub unopened: usize,
    /// Which these are, as far as its owner has named them; other groups' may be among them.
    pub lacks: Vec<String>,
    /// Whether hosts can use it: its owner is not known to be away, serves it, and they can connect to that one.
    pub served: bool,
    /// Why it is so, or what it waits for.
    pub why: Option<String>,
}

/// The configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigurationStatus {
    /// The version that was read last.
    pub version: u64,
    /// The version that is served here.
    pub applied: Option<u64>,
    /// Items that are skipped, each with its reason.
    pub broken: BTreeMap<String, String>,
    /// Why what is stored is not used.
    pub refused: Option<String>,
    /// Changes that wait at this gateway.
    pub waiting: usize,
}
