//! What there is on the fabric: discovery controllers, subsystems with the paths to them, namespaces.

use crate::command::{OwnOptions, PATH_OPTIONS};
use core::fmt;
use std::net::IpAddr;

/// Where a controller listens, and over what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// `rdma` or `tcp`.
    pub(crate) transport: String,
    pub(crate) address: String,
    pub(crate) port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, address, port } = self;
        write!(f, "{transport} {address} port {port}")
    }
}

impl Place {
    /// Whether both are the same, however the address is written.
    pub(in crate::discovery) fn is(&self, other: &Self) -> bool {
        is_same_host(&self.address, &other.address)
            && (&self.transport, self.port) == (&other.transport, other.port)
    }

    /// Whether it is known by a name, which has to be looked up.
    pub(in crate::discovery) fn has_name(&self) -> bool {
        // A link-local address has its interface behind it.
        let address = self.address.split('%').next().unwrap_or_default();
        address.parse::<IpAddr>().is_err()
    }
}

/// Whether both texts are the same name or address.
pub(in crate::discovery) fn is_same_host(one: &str, other: &str) -> bool {
    let address = |text: &str| text.parse::<IpAddr>().ok().map(|address| address.to_canonical());
    one == other || address(one).is_some_and(|one| Some(one) == address(other))
}

/// A discovery controller: where it is, and with which further options one connects to it and to what it lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Controller {
    pub(crate) place: Place,
    /// Options of `nvmf`, by their long names.
    pub(crate) options: Vec<String>,
}

/// A line of a discovery log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Another discovery controller.
    Referral(Place),
    /// A subsystem with namespaces.
    Subsystem { nqn: String, place: Place, tls: Tls },
}

/// Whether a subsystem is reached by TLS only, as a log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tls {
    No,
    Required,
    /// It is, and this host has no key for that.
    WithoutKey,
}

/// A path to a subsystem: where its controller is, and with which options of its own one connects there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubsystemPath {
    pub(crate) place: Place,
    pub(crate) own: OwnOptions,
}

/// A subsystem that is wanted, with all paths to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    pub(crate) paths: Vec<SubsystemPath>,
    /// Options for all paths, by their long names.
    pub(crate) options: Vec<String>,
}

/// A subsystem as one host sees it: as whom, where that is said.
pub(in crate::discovery) type Seen = (String, Option<String>);

impl SubsystemPath {
    /// A path there, with those of these options that are a path's and are meant for its transport.
    pub(crate) fn new(place: Place, options: &[String]) -> Self {
        let mut own = OwnOptions::of(options.iter().map(String::as_str));
        if place.transport != "tcp" {
            own = OwnOptions { host_traddr: own.host_traddr, tls: own.tls, ..OwnOptions::default() };
        }
        Self { place, own }
    }

    /// The address and the interface that it begins at, where it says so.
    pub(in crate::discovery) fn beginning(&self) -> (Option<IpAddr>, Option<&str>) {
        (self.own.host_traddr, self.own.host_iface.as_deref())
    }

    /// Whether both lead from the same place to the same place.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (&self.place, self.beginning()) == (&other.place, other.beginning())
    }
}

impl Subsystem {
    /// Whether a path of it has TLS.
    pub(in crate::discovery) fn has_tls(&self) -> bool {
        self.paths.iter().any(|path| path.own.tls)
    }

    /// Adds a path that it does not have yet, up to so many.
    pub(super) fn add(&mut self, path: &SubsystemPath, most: usize) {
        if self.paths.len() < most && !self.paths.iter().any(|it| it.is_same(path)) {
            self.paths.push(path.clone());
        }
    }

    /// As one host sees it.
    pub(in crate::discovery) fn seen(&self) -> Seen {
        (self.nqn.clone(), host(&self.options))
    }
}

/// The options that are for all paths.
pub(in crate::discovery) fn of_all_paths(options: &[String]) -> Vec<String> {
    options.iter().filter(|option| !PATH_OPTIONS.contains(&name(option))).cloned().collect()
}

/// The host that options name.
pub(in crate::discovery) fn host(options: &[String]) -> Option<String> {
    options.iter().rev().find_map(|option| option.strip_prefix("--hostnqn=")).map(str::to_owned)
}

/// An option's long name.
fn name(option: &str) -> &str {
    option.trim_start_matches('-').split('=').next().unwrap_or_default()
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Disk {
    pub(crate) nqn: String,
    pub(crate) nsid: u32,
}
