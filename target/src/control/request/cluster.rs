//! `cluster status`, `move`, `remove`: the group of gateways.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The group of gateways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterRequest {
    /// Which gateway serves which ANA group, who is there, and why something is not so.
    Status {},
    /// Have a gateway serve an ANA group. Hosts wait for some milliseconds; nothing they have under way is lost.
    Move(ClusterMove),
    /// Forget a gateway that is gone for good, and free its Controller IDs.
    Remove(ClusterRemove),
    /// Remove an item of the group's configuration that is left out here: damaged, or of no use.
    RemoveItem(ClusterRemoveItem),
}

/// The arguments of `cluster move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ClusterMove {
    /// The ANA group.
    pub group: u32,
    /// The gateway, as `cluster status` names it.
    pub gateway: String,
}

/// The arguments of `cluster remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ClusterRemove {
    /// The gateway.
    pub gateway: String,
}

/// The arguments of `cluster remove-item`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ClusterRemoveItem {
    /// The item, as `cluster status` names it: `namespace/NQN/NSID`.
    pub item: String,
}

/// The answer to `cluster status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The group's name.
    #[serde(default)]
    pub group: String,
    /// The pool with its state.
    #[serde(default)]
    pub pool: String,
    /// The namespace of the pool.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The gateway that is asked.
    pub gateway: String,
    /// `joining`, `member`, `suspended`, `drained`, `unreachable`, `refused`, `stopping` or `stopped`.
    pub state: String,
    /// Why, if it is no plain member.
    pub why: Option<String>,
    /// Its Controller IDs, first and last.
    pub controller_ids: Option<(u16, u16)>,
    /// Milliseconds until it shows its ANA groups inaccessible by itself, unless its lease is renewed.
    pub lease_ms: Option<u64>,
    /// How old, in seconds, what is said of the others and of the groups may be, where it is cut off from the cluster.
    #[serde(default)]
    pub as_of_s: Option<u64>,
    /// The others.
    pub others: BTreeMap<String, Other>,
    /// The ANA groups, by number.
    pub groups: BTreeMap<u32, Group>,
    /// The configuration.
    pub configuration: Configuration,
    /// What more there is.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// Another gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// `held`, `expired`, `dead` or `unknown`.
    pub lease: String,
    /// For how long it has been dead, in seconds.
    #[serde(default)]
    pub dead_s: Option<u64>,
    /// It was stopped.
    #[serde(default)]
    pub stopped: bool,
    /// Where hosts reach it.
    pub addresses: Vec<String>,
    /// Those that the gateway that is asked has as well.
    #[serde(default)]
    pub shares: Vec<String>,
    /// Its version.
    pub software: Option<String>,
    /// How many hosts of the gateway that is asked have no connection to it.
    #[serde(default)]
    pub lacks_hosts: usize,
    /// ANA groups that it serves.
    pub groups: Option<usize>,
    /// It gives its ANA groups away, and takes none.
    pub leaving: bool,
    /// Why it cannot take ANA groups now.
    pub trouble: Option<String>,
    /// The version of the configuration that it serves.
    #[serde(default)]
    pub applied: Option<u64>,
}

/// An ANA group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// `free`, `taking`, `owned`, `surrendered`, `new` or `unreadable`.
    pub state: String,
    /// Who has it, or is to have it.
    pub gateway: Option<String>,
    /// The address that does its I/O, or that is to be fenced.
    pub address: Option<String>,
    /// Its generation.
    pub generation: u64,
    /// What the gateway that is asked does with it.
    pub here: String,
    /// Its state for hosts at that gateway, as `status` names it.
    pub ana: String,
    /// The namespaces in it.
    #[serde(default)]
    pub namespaces: usize,
    /// Where an operator wants it.
    pub wanted: Option<String>,
    /// Why that gateway does not take it.
    #[serde(default)]
    pub refused: Option<String>,
    /// How many of its images its owner cannot open.
    #[serde(default)]
    pub unopened: usize,
    /// Items of namespaces whose images its owner cannot open, as far as it names them.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// Why it is so, or what it waits for.
    pub why: Option<String>,
}

/// The configuration of the group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// The version that was read last.
    pub version: u64,
    /// The version that is served here.
    pub applied: Option<u64>,
    /// What is left out, with the reason.
    pub broken: BTreeMap<String, String>,
    /// Namespaces whose images are not open at this gateway, with the reason.
    #[serde(default)]
    pub unopened: BTreeMap<String, String>,
    /// Why what is stored is not used.
    pub refused: Option<String>,
}

impl fmt::Display for ClusterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
        // An older target does not say.
        if !self.group.is_empty() {
            writeln!(f, "group {} in the pool {}{namespace}", self.group, self.pool)?;
        }
        write!(f, "gateway {}: {}", self.gateway, self.state)?;
        if let Some((first, last)) = self.controller_ids {
            write!(f, ", Controller IDs {first} to {last}")?;
        }
        if let Some(lease_ms) = self.lease_ms {
            write!(f, ", lease for {lease_ms} ms")?;
        }
        writeln!(f)?;
        self.why.iter().try_for_each(|why| writeln!(f, "  {why}"))?;
        if let Some(as_of_s) = self.as_of_s {
            writeln!(f, "cut off from the storage cluster: what follows is as of {as_of_s} s ago")?;
        }
        for (name, other) in &self.others {
            let Other {
                lease,
                dead_s,
                stopped,
                addresses,
                shares,
                software,
                groups,
                lacks_hosts,
                leaving,
                trouble,
                applied,
            } = other;
            if *stopped {
                writeln!(f, "gateway {name}: stopped (`ctl cluster remove {name}` if it is gone for good)")?;
                continue;
            }
            write!(f, "gateway {name}: lease {lease}")?;
            dead_s.iter().try_for_each(|dead_s| write!(f, " for {dead_s} s"))?;
            let behind = applied.filter(|applied| *applied != self.configuration.version);
            behind
                .iter()
                .try_for_each(|applied| write!(f, ", serves version {applied} of the configuration"))?;
            groups.iter().try_for_each(|groups| write!(f, ", {groups} ANA group(s)"))?;
            software.iter().try_for_each(|software| write!(f, ", version {software}"))?;
            f.write_str(if *leaving { ", leaving" } else { "" })?;
            if !addresses.is_empty() {
                write!(f, ": {}", addresses.join(" "))?;
            }
            writeln!(f)?;
            if !shares.is_empty() {
                writeln!(f, "  hosts reach it or this gateway, not both, at {}", shares.join(" "))?;
            }
            if *lacks_hosts > 0 {
                writeln!(
                    f,
                    "  {lacks_hosts} host(s) connected here have no connection to it, and lose what moves there: balance gives \
                     it nothing of this gateway's"
                )?;
            }
            trouble.iter().try_for_each(|trouble| writeln!(f, "  cannot take ANA groups now: {trouble}"))?;
        }
        let Configuration { version, applied, broken, unopened, refused } = &self.configuration;
        match applied {
            Some(applied) if applied == version => writeln!(f, "configuration: version {version}")?,
            Some(applied) => writeln!(f, "configuration: version {version}, served here: {applied}")?,
            None => writeln!(f, "configuration: version {version}, not served here yet")?,
        }
        refused.iter().try_for_each(|refused| writeln!(f, "  not used: {refused}"))?;
        broken.iter().try_for_each(|(name, reason)| writeln!(f, "  left out: {name}: {reason}"))?;
        unopened.iter().try_for_each(|(name, reason)| writeln!(f, "  not open here: {name}: {reason}"))?;
        for (id, group) in &self.groups {
            let gateway = group.gateway.as_deref().unwrap_or("nobody");
            write!(f, "ANA group {id}: {} by {gateway}", group.state)?;
            let wanted = group.wanted.iter().filter(|_| group.refused.is_none());
            wanted.into_iter().try_for_each(|wanted| write!(f, ", to move to {wanted}"))?;
            let Group { generation, here, ana, namespaces, .. } = group;
            writeln!(
                f,
                ", {namespaces} namespace(s) (generation {generation}, here {here}, {ana} to hosts)"
            )?;
            group.why.iter().try_for_each(|why| writeln!(f, "  {why}"))?;
        }
        Ok(())
    }
}
