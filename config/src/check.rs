//! Turns the text into its meaning: checks every value against its bounds, and against the others.

mod cluster;
mod discovery;
mod limits;
mod metrics;
mod rbd;
mod subsystem;
mod target;

pub(crate) use cluster::check_own_file;
pub(crate) use target::ANA_STATES;
pub use target::PORT;

use crate::ConfigError;
use crate::file;
use crate::identity;
use crate::model::{
    Backing, Config, Discovery, Hosts, Listener, Namespace, ProviderChoice, Subsystem, Target, Tls,
    Transport, VerbsOptions,
};
use crate::rbd::{Rbd, RbdNameError};
use core::fmt::Display;
use core::ops::{Range, RangeInclusive};
use core::str::FromStr;
use nvme_proto::nqn::Nqn;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::SocketAddr;
use std::path::Path;
use toml::Spanned;
use uuid::Uuid;

/// The model name that hosts see when none is given.
pub(crate) const MODEL: &str = "nvmf namespace";
/// NSIDs that a subsystem can have.
const NSID_MAX: i64 = 4096;
/// Listeners of a target: the discovery log has a port for each.
const LISTENERS_MAX: usize = 64;
/// Subsystems of a target.
const SUBSYSTEMS_MAX: usize = 1024;
/// Namespaces of all subsystems together: each is a device of every worker.
const NAMESPACES_MAX: usize = 4096;
/// ANA groups.
const ANA_GROUPS_MAX: i64 = 127;
/// Hosts in one list.
const HOSTS_MAX: usize = 1024;
/// Networks in the `allow` of a listener.
const NETWORKS_MAX: usize = 256;

type Result<T> = core::result::Result<T, ConfigError>;

pub(crate) fn check(text: &str, file: &file::File) -> Result<Config> {
    let checker = Checker { text };
    let target = checker.target(&file.target)?;
    let listeners = file.listener.iter().map(|l| checker.listener(l)).collect::<Result<Vec<_>>>()?;
    // An RDMA device and NVMe/TCP may have the same.
    for transport in [Transport::Rdma, Transport::Tcp] {
        let addresses = file.listener.iter().zip(&listeners).filter(|(_, v)| v.transport == transport);
        checker.unique("address", addresses.map(|(l, v)| (l.as_ref().address.span(), v.address)))?;
    }
    let subsystems = file.subsystem.iter().map(|s| checker.subsystem(s)).collect::<Result<Vec<_>>>()?;
    let discovery = checker.discovery(&file.discovery)?;
    if let (Some(own), Some(value)) = (discovery.nqn, &file.discovery.nqn)
        && subsystems.iter().any(|subsystem| subsystem.nqn == own)
    {
        return checker
            .error(value, "nqn is that of a [[subsystem]]: the discovery service needs one of its own");
    }
    checker.unique(
        "nqn",
        file.subsystem.iter().zip(&subsystems).map(|(s, v)| (s.as_ref().nqn.span(), v.nqn.to_string())),
    )?;
    let namespaces = || {
        let both = file.subsystem.iter().zip(&subsystems);
        both.flat_map(|(s, it)| s.as_ref().namespace.iter().zip(&it.namespaces).map(|pair| (it.nqn, pair)))
    };
    let paths = namespaces().filter_map(|(nqn, (file, it))| {
        let path = file.as_ref().path.as_ref()?;
        Some((path.span(), path.as_ref().display().to_string(), (nqn, it.nsid)))
    });
    checker.unique_of_namespaces("path", paths)?;
    let images = namespaces().filter_map(|(nqn, (file, it))| match &it.backing {
        Backing::Rbd(image) => Some((file.span(), image.to_string(), (nqn, it.nsid))),
        _ => None,
    });
    checker.unique_of_namespaces("image", images)?;
    // A host that finds one UUID in two subsystems refuses the second disk.
    let uuids = namespaces().filter_map(|(nqn, (file, it))| {
        Some((file.as_ref().uuid.as_ref()?.span(), Uuid::from_bytes(it.uuid?), (nqn, it.nsid)))
    });
    checker.unique_of_namespaces("uuid", uuids)?;
    checker.at_most("listeners", file.listener.iter().map(Spanned::span), LISTENERS_MAX)?;
    checker.at_most("subsystems", file.subsystem.iter().map(Spanned::span), SUBSYSTEMS_MAX)?;
    checker.at_most("namespaces", namespaces().map(|(_, (n, _))| n.as_ref().nsid.span()), NAMESPACES_MAX)?;
    let limited = file.subsystem.iter().flat_map(|s| &s.as_ref().host_limits);
    checker.at_most("host_limits", limited.map(Spanned::span), HOSTS_MAX)?;
    let hosts = file.host.iter().map(|h| checker.host(h)).collect::<Result<Vec<_>>>()?;
    checker.unique(
        "nqn",
        file.host.iter().zip(&hosts).map(|(h, v)| (h.as_ref().nqn.span(), v.nqn.to_string())),
    )?;
    checker.at_most("hosts", file.host.iter().map(Spanned::span), HOSTS_MAX)?;
    let of_group = file.host.iter().find_map(|host| host.as_ref().group_keys.as_ref());
    if let Some(value) = of_group.filter(|_| !listeners.is_empty()) {
        return checker.error(
            value,
            "group_keys is written by `ctl save` of a group of gateways: a target has the keys of its hosts in files \
             (dhchap_key_file, tls_key_file)",
        );
    }
    let metrics = file.metrics.as_ref().map(|metrics| checker.metrics(metrics)).transpose()?;
    let cluster = file.cluster.as_ref().map(|cluster| checker.cluster(cluster, &listeners)).transpose()?;
    let config = Config { target, discovery, listeners, subsystems, hosts, metrics, cluster };
    cluster::check_shared(&config)?;
    Ok(config)
}

pub(crate) fn export(
    path: &Path,
    create: Option<u64>,
    address: SocketAddr,
    nqn: Option<Nqn>,
    machine: &str,
) -> Result<Config> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let nqn = nqn.unwrap_or_else(|| Nqn::from_uuid(identity::export_nqn(machine, &whole.to_string_lossy())));
    if create.is_some() && is_device_folder(&whole) {
        let message = "there is no such device, and files are not created below /dev";
        return Err(ConfigError::without_file(message));
    }
    let image = path.to_str().and_then(|path| path.strip_prefix(Rbd::PREFIX));
    let backing = match image {
        Some(_) if create.is_some() => {
            return Err(ConfigError::without_file("images are not created here: make it with `rbd create`"));
        }
        Some(name) => Backing::Rbd(
            name.parse().map_err(|error: RbdNameError| ConfigError::without_file(error.to_string()))?,
        ),
        None => Backing::Path { path: whole, size: create, create: create.is_some() },
    };
    let read_only = matches!(&backing, Backing::Rbd(Rbd { snapshot: Some(_), .. }));
    let namespace = Namespace {
        nsid: 1,
        backing,
        block_size: None,
        read_only,
        uuid: None,
        limits: None,
        ana_group: 1,
        hosts: Hosts::Any,
    };
    let subsystem = Subsystem {
        serial: identity::serial(&nqn),
        model: MODEL.to_owned(),
        nqn,
        hosts: Hosts::Any,
        host_limits: Vec::new(),
        namespaces: vec![namespace],
    };
    let listener = Listener {
        address,
        transport: Transport::Rdma,
        discovery: true,
        discovery_only: false,
        provider: ProviderChoice::Auto,
        crc: false,
        verbs: VerbsOptions::default(),
        tls: Tls::Off,
        ana_groups: Vec::new(),
        allow: None,
    };
    Ok(Config {
        target: Target::default(),
        discovery: Discovery::default(),
        listeners: vec![listener],
        subsystems: vec![subsystem],
        hosts: Vec::new(),
        metrics: None,
        cluster: None,
    })
}

struct Checker<'a> {
    /// Empty where nobody has seen a text: then no message names a line of it.
    text: &'a str,
}

impl Checker<'_> {
    fn error<T, S>(&self, value: &Spanned<S>, message: impl Into<String>) -> Result<T> {
        Err(ConfigError::at(self.text, &value.span(), message))
    }

    /// A number of one key, within its bounds.
    fn number<N: TryFrom<i64>>(
        &self,
        key: &str,
        value: Option<&Spanned<i64>>,
        bounds: RangeInclusive<i64>,
        default: N,
    ) -> Result<N> {
        let Some(value) = value else { return Ok(default) };
        match N::try_from(*value.as_ref()) {
            Ok(number) if bounds.contains(value.as_ref()) => Ok(number),
            _ => self.error(
                value,
                format!(
                    "{key} is {} but must be from {} to {}",
                    value.as_ref(),
                    bounds.start(),
                    bounds.end()
                ),
            ),
        }
    }

    /// An optional number.
    fn some<N: TryFrom<i64> + Default>(
        &self,
        key: &str,
        value: Option<&Spanned<i64>>,
        bounds: RangeInclusive<i64>,
    ) -> Result<Option<N>> {
        value.map(|value| self.number(key, Some(value), bounds, N::default())).transpose()
    }

    /// One of several words.
    fn word<T: Copy>(
        &self,
        key: &str,
        value: Option<&Spanned<String>>,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T> {
        let Some(value) = value else { return Ok(default) };
        if let Some((_, meaning)) = words.iter().find(|(word, _)| word == value.as_ref()) {
            return Ok(*meaning);
        }
        let choices = words.iter().map(|(word, _)| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        self.error(value, format!("{key} is \"{}\" but must be one of {choices}", value.as_ref()))
    }

    /// Some of several words, at least one; all of them where the key is not there.
    fn words<T: Copy>(
        &self,
        key: &str,
        value: Option<&Spanned<Vec<Spanned<String>>>>,
        words: &[(&str, T)],
    ) -> Result<Vec<T>> {
        let Some(value) = value else { return Ok(words.iter().map(|&(_, meaning)| meaning).collect()) };
        if value.as_ref().is_empty() {
            return self.error(value, format!("{key} must name at least one, or leave it out for all"));
        }
        let meaning = |word| self.word(key, Some(word), words, words[0].1);
        value.as_ref().iter().map(meaning).collect()
    }

    /// A text that is parsed as something else.
    fn read<T: FromStr<Err: Display>>(&self, key: &str, value: &Spanned<String>, right: &str) -> Result<T> {
        value.as_ref().parse().or_else(|e: T::Err| {
            self.error(value, format!("{key} \"{}\": {e}; write {right}", value.as_ref()))
        })
    }

    /// The first that is too many is the one named.
    fn at_most(&self, what: &str, mut values: impl Iterator<Item = Range<usize>>, most: usize) -> Result<()> {
        match values.nth(most) {
            None => Ok(()),
            Some(span) => Err(ConfigError::at(self.text, &span, format!("there are at most {most} {what}"))),
        }
    }

    fn unique<K: Hash + Eq + Display>(
        &self,
        key: &str,
        values: impl Iterator<Item = (Range<usize>, K)>,
    ) -> Result<()> {
        self.unique_at(key, values.map(|(span, value)| (span, value, ())), |()| "there".to_owned())
    }

    /// The same of what namespaces have.
    fn unique_of_namespaces<K: Hash + Eq + Display>(
        &self,
        key: &str,
        values: impl Iterator<Item = (Range<usize>, K, (Nqn, u32))>,
    ) -> Result<()> {
        self.unique_at(key, values, |(nqn, nsid)| format!("that of namespace {nsid} of {nqn}"))
    }

    /// `place` says where one is that is in no file.
    fn unique_at<K: Hash + Eq + Display, P>(
        &self,
        key: &str,
        values: impl Iterator<Item = (Range<usize>, K, P)>,
        place: impl Fn(P) -> String,
    ) -> Result<()> {
        let mut seen = HashMap::new();
        for (span, value, at) in values {
            match seen.entry(value) {
                Entry::Vacant(entry) => drop(entry.insert((span, at))),
                Entry::Occupied(entry) => {
                    let (value, (first, at)) = entry.remove_entry();
                    let line = ConfigError::at(self.text, &first, "").line;
                    let place = if self.text.is_empty() { place(at) } else { format!("in line {line}") };
                    let message = format!("{key} {value} is {place} already: each may occur once");
                    return Err(ConfigError::at(self.text, &span, message));
                }
            }
        }
        Ok(())
    }

    fn bytes(
        &self,
        key: &str,
        value: Option<&Spanned<file::Size>>,
        bounds: RangeInclusive<u64>,
        default: u64,
    ) -> Result<u64> {
        match value {
            None => Ok(default),
            Some(value) if bounds.contains(&value.as_ref().0) => Ok(value.as_ref().0),
            Some(value) => {
                let (low, high) = (bounds.start(), bounds.end());
                self.error(
                    value,
                    format!("{key} is {} bytes but must be from {low} to {high}", value.as_ref().0),
                )
            }
        }
    }
}

/// Whether a file in it would be in memory, in place of a device that is not there.
fn is_device_folder(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Narrows what was just checked against bounds that fit.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("bounds were checked")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
