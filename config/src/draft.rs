//! A configuration as the text that it would have: to be saved, or changed and checked again.

use crate::check::{self, MODEL};
use crate::identity;
use crate::model::{
    AnaGroup, Backing, Config, ControlSocket, DHCHAP_GROUPS, DHCHAP_HASHES, Discovery, DuplicateHostId,
    GROUP_KEYS, Host, HostLimits, Hosts, Limits, Listener, Metrics, MetricsAddress, Namespace, Poll,
    ProviderChoice, Referral, Subsystem, Target, Tls, Transport, VerbsOptions,
};
use crate::{Cluster, ConfigError, Rbd, RbdEncryption, size};
use core::fmt::Display;
use nvme_proto::nqn::Nqn;
use std::collections::BTreeSet;
use std::path::Path;
use thiserror::Error;
use toml::{Table, Value};
use uuid::Uuid;

/// A configuration that is being changed: the tables of its file, without those values that are the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft(Table);

/// What is to be changed is not there, or cannot be said.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DraftError {
    /// No such object; these there are.
    #[error("there is no {what} {name}; there is {known}")]
    Unknown {
        /// A subsystem, a namespace, a listener.
        what: &'static str,
        /// Which.
        name: String,
        /// Those of its kind.
        known: String,
    },
    /// It is there already.
    #[error("there is a {what} {name} already")]
    Known {
        /// A subsystem, a namespace, a listener, a host.
        what: &'static str,
        /// Which.
        name: String,
    },
    /// A path whose bytes are no UTF-8 has no place in a file.
    #[error("the path {0} is not UTF-8: a configuration file cannot name it")]
    Path(String),
}

impl Config {
    /// The text of a file that says the same. Its comments are not kept: a [`Config`] has none.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn to_text(&self) -> Result<String, DraftError> {
        Ok(Draft::of(self)?.text())
    }
}

impl Host {
    /// The keys of its section.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn to_table(&self) -> Result<Table, DraftError> {
        host(self)
    }
}

impl Namespace {
    /// The keys of its section.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn to_table(&self) -> Result<Table, DraftError> {
        namespace(self)
    }
}

impl HostLimits {
    /// The keys of its limits.
    #[must_use]
    pub fn to_table(&self) -> Table {
        limits(&self.limits)
    }
}

impl Draft {
    /// What a configuration says.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn of(config: &Config) -> Result<Self, DraftError> {
        let mut table = Table::new();
        let target = target(&config.target)?;
        if !target.is_empty() {
            table.insert("target".into(), Value::Table(target));
        }
        if let Some(measured) = &config.metrics {
            table.insert("metrics".into(), Value::Table(metrics(measured)?));
        }
        if let Some(of) = &config.cluster {
            table.insert("cluster".into(), Value::Table(cluster(of)?));
        }
        let discovery = discovery(&config.discovery);
        if !discovery.is_empty() {
            table.insert("discovery".into(), Value::Table(discovery));
        }
        let tables = [
            ("listener", config.listeners.iter().map(|it| Ok(listener(it))).collect::<Result<Vec<_>, _>>()?),
            ("host", config.hosts.iter().map(host).collect::<Result<_, _>>()?),
            ("subsystem", config.subsystems.iter().map(subsystem).collect::<Result<_, _>>()?),
        ];
        for (key, tables) in tables {
            if !tables.is_empty() {
                let tables = tables.into_iter().map(Value::Table).collect();
                table.insert(key.into(), Value::Array(tables));
            }
        }
        Ok(Self(table))
    }

    /// The text of its file.
    #[must_use]
    pub fn text(&self) -> String {
        toml::to_string(&self.0).unwrap_or_default()
    }

    /// Checks it as the text of a file is checked.
    ///
    /// # Errors
    /// [`ConfigError`]. It names no line: nobody has seen the text.
    pub fn check(&self) -> Result<Config, ConfigError> {
        let file = toml::from_str(&self.text()).map_err(|error| ConfigError::syntax("", &error));
        let checked = file.and_then(|file| check::check("", &file));
        checked.map_err(|error| ConfigError { line: 0, source_line: String::new(), ..error })
    }

    pub(crate) fn table(&self) -> &Table {
        &self.0
    }

    pub(crate) fn table_mut(&mut self) -> &mut Table {
        &mut self.0
    }

    /// Adds a host with the keys that a file may have there.
    ///
    /// # Errors
    /// [`DraftError::Known`].
    pub fn add_host(&mut self, host: Table) -> Result<(), DraftError> {
        let nqn = text(&host, "nqn").to_owned();
        add(list(&mut self.0, "host"), "host", nqn.clone(), host, |other| text(other, "nqn") == nqn)
    }

    /// Adds a subsystem with the keys that a file may have there.
    ///
    /// # Errors
    /// [`DraftError::Known`].
    pub fn add_subsystem(&mut self, subsystem: Table) -> Result<(), DraftError> {
        let nqn = subsystem.get("nqn").and_then(Value::as_str).unwrap_or_default().to_owned();
        let list = list(&mut self.0, "subsystem");
        add(list, "subsystem", nqn.clone(), subsystem, |other| text(other, "nqn") == nqn)
    }

    /// Removes a subsystem with its namespaces.
    ///
    /// # Errors
    /// [`DraftError::Unknown`].
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<(), DraftError> {
        let name = |table: &Table| text(table, "nqn").to_owned();
        let at = find(list(&mut self.0, "subsystem"), "subsystem", nqn, name)?;
        list(&mut self.0, "subsystem").remove(at);
        Ok(())
    }

    /// The keys of a subsystem.
    ///
    /// # Errors
    /// [`DraftError::Unknown`].
    pub fn subsystem(&mut self, nqn: &str) -> Result<&mut Table, DraftError> {
        let name = |table: &Table| text(table, "nqn").to_owned();
        let at = find(list(&mut self.0, "subsystem"), "subsystem", nqn, name)?;
        Ok(table_at(list(&mut self.0, "subsystem"), at))
    }

    /// Adds a namespace to a subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or it has the NSID.
    pub fn add_namespace(&mut self, nqn: &str, namespace: Table) -> Result<(), DraftError> {
        let nsid = nsid(&namespace);
        let list = list(self.subsystem(nqn)?, "namespace");
        add(list, "namespace", nsid.clone(), namespace, |other| self::nsid(other) == nsid)
    }

    /// What stands for the ANA group of a namespace that somebody else is to choose: [`Draft::unplaced`].
    pub const ANY_ANA_GROUP: &str = "any";

    /// The next namespace whose ANA group is to be chosen.
    pub fn unplaced(&mut self) -> Option<&mut Table> {
        let subsystems = list(&mut self.0, "subsystem").iter_mut().filter_map(Value::as_table_mut);
        let mut namespaces = subsystems.flat_map(|table| list(table, "namespace").iter_mut());
        namespaces.find_map(|value| {
            let table = value.as_table_mut()?;
            (text(table, "ana_group") == Self::ANY_ANA_GROUP).then_some(table)
        })
    }

    /// The lowest NSID that a subsystem has free, beside those that are not in the configuration and taken all the
    /// same.
    ///
    /// # Errors
    /// There is no such subsystem.
    pub fn free_nsid(&mut self, nqn: &str, taken: &BTreeSet<u32>) -> Result<u32, DraftError> {
        let list = list(self.subsystem(nqn)?, "namespace");
        let known: Vec<String> = list.iter().filter_map(Value::as_table).map(nsid).collect();
        let is_free = |nsid: &u32| !taken.contains(nsid) && !known.contains(&nsid.to_string());
        Ok((1..).find(is_free).unwrap_or(u32::MAX))
    }

    /// The keys of a namespace.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn namespace(&mut self, nqn: &str, nsid: u32) -> Result<&mut Table, DraftError> {
        let list = list(self.subsystem(nqn)?, "namespace");
        let at = find(list, "namespace", &nsid.to_string(), self::nsid)?;
        Ok(table_at(list, at))
    }

    /// Removes a namespace.
    ///
    /// # Errors
    /// There is no such subsystem or namespace.
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<(), DraftError> {
        let list = list(self.subsystem(nqn)?, "namespace");
        let at = find(list, "namespace", &nsid.to_string(), self::nsid)?;
        list.remove(at);
        Ok(())
    }

    /// Lets one more host connect to a subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or any host may connect to it, or this one.
    pub fn allow_host(&mut self, nqn: &str, host: &str) -> Result<(), DraftError> {
        let subsystem = self.subsystem(nqn)?;
        if subsystem.get("allow_any_host").and_then(Value::as_bool) == Some(true) {
            return Err(DraftError::Known {
                what: "permission for any host on subsystem",
                name: nqn.to_owned(),
            });
        }
        let hosts = list(subsystem, "allowed_hosts");
        if hosts.iter().any(|other| other.as_str() == Some(host)) {
            return Err(DraftError::Known { what: "host", name: host.to_owned() });
        }
        hosts.push(host.into());
        Ok(())
    }

    /// Lets a host connect to a subsystem no more.
    ///
    /// # Errors
    /// There is no such subsystem, or the host is not one of those that are named there.
    pub fn revoke_host(&mut self, nqn: &str, host: &str) -> Result<(), DraftError> {
        let hosts = list(self.subsystem(nqn)?, "allowed_hosts");
        let before = hosts.len();
        hosts.retain(|other| other.as_str() != Some(host));
        if hosts.len() < before {
            return Ok(());
        }
        let known: Vec<_> = hosts.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Err(unknown("host", host, &known))
    }

    /// Adds a listener.
    pub fn add_listener(&mut self, listener: Table) {
        list(&mut self.0, "listener").push(Value::Table(listener));
    }

    /// Removes the listener at a place of [`Config::listeners`].
    pub fn remove_listener(&mut self, at: usize) {
        let list = list(&mut self.0, "listener");
        if at < list.len() {
            list.remove(at);
        }
    }

    /// Sets the state of an ANA group behind the listener at a place of [`Config::listeners`].
    pub fn set_ana_group(&mut self, at: usize, group: u32, state: &str) {
        let Some(listener) = self.listener(at) else { return };
        let groups = list(listener, "ana_group");
        groups.retain(|other| other.get("id").and_then(Value::as_integer) != Some(group.into()));
        let keys = [("id", Value::from(i64::from(group))), ("state", Value::from(state))];
        groups.push(Value::Table(keys.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()));
    }

    /// The keys of the listener at a place of [`Config::listeners`].
    pub fn listener(&mut self, at: usize) -> Option<&mut Table> {
        list(&mut self.0, "listener").get_mut(at)?.as_table_mut()
    }
}

fn unknown(what: &'static str, name: &str, known: &[String]) -> DraftError {
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    DraftError::Unknown { what, name: name.to_owned(), known }
}

/// The list of that key; an empty one is made.
fn list<'a>(table: &'a mut Table, key: &str) -> &'a mut Vec<Value> {
    let value = table.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().expect("it is an array")
}

fn table_at(list: &mut [Value], at: usize) -> &mut Table {
    list[at].as_table_mut().expect("only tables were put there")
}

fn text<'a>(table: &'a Table, key: &str) -> &'a str {
    table.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn nsid(namespace: &Table) -> String {
    namespace.get("nsid").map(ToString::to_string).unwrap_or_default()
}

fn find(
    list: &[Value],
    what: &'static str,
    name: &str,
    name_of: impl Fn(&Table) -> String,
) -> Result<usize, DraftError> {
    let names: Vec<String> = list.iter().filter_map(Value::as_table).map(name_of).collect();
    names.iter().position(|other| other == name).ok_or_else(|| unknown(what, name, &names))
}

fn add(
    list: &mut Vec<Value>,
    what: &'static str,
    name: String,
    table: Table,
    is_same: impl Fn(&Table) -> bool,
) -> Result<(), DraftError> {
    if list.iter().filter_map(Value::as_table).any(is_same) {
        return Err(DraftError::Known { what, name });
    }
    list.push(Value::Table(table));
    Ok(())
}

/// Collects the keys that have another value than the default.
#[derive(Default)]
struct Keys(Table);

impl Keys {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    fn unless<T: PartialEq>(&mut self, key: &str, value: &T, default: &T, text: impl Fn(&T) -> Value) {
        if value != default {
            self.put(key, text(value));
        }
    }

    fn some<T: Into<i64>>(&mut self, key: &str, value: Option<T>) {
        if let Some(value) = value {
            self.put(key, value.into());
        }
    }

    fn path(&mut self, key: &str, path: &Path) -> Result<(), DraftError> {
        let text = path.to_str().ok_or_else(|| DraftError::Path(path.display().to_string()))?;
        self.put(key, text);
        Ok(())
    }
}

/// The words of some values.
fn words<T: PartialEq>(values: &[T], words: &[(&str, T)]) -> Value {
    let word = |value| words.iter().find(|(_, other)| other == value).map(|&(word, _)| Value::from(word));
    Value::Array(values.iter().filter_map(word).collect())
}

fn word(value: &impl Display) -> Value {
    value.to_string().into()
}

fn metrics(metrics: &Metrics) -> Result<Table, DraftError> {
    let mut keys = Keys::default();
    match &metrics.listen {
        Some(MetricsAddress::Unix(path)) => keys.path("listen", path)?,
        Some(MetricsAddress::Tcp(address)) => keys.put("listen", address.to_string()),
        None => {}
    }
    let number = |&n: &usize| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    keys.unless("namespaces", &metrics.namespaces, &Metrics::NAMESPACES, number);
    keys.unless("hosts", &metrics.hosts, &Metrics::HOSTS, number);
    Ok(keys.0)
}

fn target(target: &Target) -> Result<Table, DraftError> {
    let (mut keys, default) = (Keys::default(), Target::default());
    let number = |n: u64| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    keys.unless("workers", &target.workers, &default.workers, |&n| number(n as u64));
    keys.unless("poll", &target.poll, &default.poll, |poll| {
        let word = match poll {
            Poll::Adaptive => "adaptive",
            Poll::Busy => "busy",
            Poll::Interrupt => "interrupt",
        };
        word.into()
    });
    keys.unless("spin_us", &target.spin, &default.spin, |spin| {
        number(spin.as_micros().try_into().unwrap_or(0))
    });
    if let Some(bytes) = target.in_capsule_data {
        keys.put("in_capsule_data", size::text(bytes.into()));
    }
    keys.unless("queue_depth", &target.queue_depth, &default.queue_depth, |&n| number(n.into()));
    keys.unless("io_queues", &target.io_queues, &default.io_queues, |&n| number(n.into()));
    let bytes = |&bytes: &u64| Value::from(size::text(bytes));
    keys.unless("transfer_max", &target.transfer_max.into(), &default.transfer_max.into(), bytes);
    keys.unless("buffer_memory", &target.buffer_memory, &default.buffer_memory, bytes);
    keys.unless("connections", &target.connections, &default.connections, |&n| number(n.into()));
    let (timeout, usual) = (target.transfer_timeout, default.transfer_timeout);
    keys.unless("transfer_timeout_s", &timeout, &usual, |timeout| number(timeout.as_secs()));
    keys.unless("duplicate_host_id", &target.duplicate_host_id, &default.duplicate_host_id, |policy| {
        let word = match policy {
            DuplicateHostId::Report => "report",
            DuplicateHostId::Refuse => "refuse",
        };
        word.into()
    });
    keys.unless("strict", &target.strict, &default.strict, |&strict| strict.into());
    if let Some(keyring) = &target.tls_keyring {
        keys.put("tls_keyring", keyring.as_str());
    }
    keys.unless("dhchap_hashes", &target.dhchap_hashes, &default.dhchap_hashes, |ids| {
        words(ids, &DHCHAP_HASHES)
    });
    keys.unless("dhchap_groups", &target.dhchap_groups, &default.dhchap_groups, |ids| {
        words(ids, &DHCHAP_GROUPS)
    });
    keys.unless("dhchap_discovery", &target.dhchap_discovery, &default.dhchap_discovery, |&on| on.into());
    match &target.control_socket {
        ControlSocket::Usual => {}
        ControlSocket::Off => keys.put("control_socket", "off"),
        ControlSocket::At(path) => keys.path("control_socket", path)?,
    }
    if let Some(path) = &target.state_dir {
        keys.path("state_dir", path)?;
    }
    keys.unless("cntlid_min", target.cntlids.start(), default.cntlids.start(), |&id| number(id.into()));
    keys.unless("cntlid_max", target.cntlids.end(), default.cntlids.end(), |&id| number(id.into()));
    if let Some(group) = &target.control_group {
        keys.put("control_group", group.as_str());
    }
    Ok(keys.0)
}

fn cluster(cluster: &Cluster) -> Result<Table, DraftError> {
    let mut keys = Keys::default();
    keys.put("pool", cluster.pool.as_str());
    let texts = [("namespace", &cluster.namespace), ("name", &cluster.name)];
    texts
        .into_iter()
        .filter_map(|(key, text)| Some((key, text.as_deref()?)))
        .for_each(|(key, text)| keys.put(key, text));
    keys.unless("group", &cluster.group.as_str(), &Cluster::GROUP, word);
    if !cluster.addresses.is_empty() {
        keys.put("addresses", cluster.addresses.iter().map(word).collect::<Vec<_>>());
    }
    for (key, path) in [("conf", &cluster.conf), ("keyring", &cluster.keyring)] {
        path.as_deref().map_or(Ok(()), |path| keys.path(key, path))?;
    }
    keys.unless("user", &cluster.user.as_str(), &Rbd::USER, word);
    keys.unless("ana_groups", &cluster.ana_groups, &Cluster::ANA_GROUPS, |&n| i64::from(n).into());
    Ok(keys.0)
}

fn discovery(discovery: &Discovery) -> Table {
    let mut keys = Keys::default();
    if let Some(nqn) = &discovery.nqn {
        keys.put("nqn", nqn.to_string());
    }
    keys.unless("mdns", &discovery.mdns, &false, |&on| on.into());
    let referral = |referral: &Referral| {
        let mut keys = Keys::default();
        keys.put("transport", referral.transport.to_string());
        keys.put("address", referral.address.to_string());
        keys.unless("nqn", &referral.nqn, &Nqn::DISCOVERY, word);
        Value::Table(keys.0)
    };
    if !discovery.referrals.is_empty() {
        keys.put("referral", discovery.referrals.iter().map(referral).collect::<Vec<_>>());
    }
    keys.0
}

fn limits(limits: &Limits) -> Table {
    let mut keys = Keys::default();
    let number = |n: u64| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    if let Some(iops) = limits.iops {
        keys.put("iops", number(iops));
    }
    if let Some(bytes) = limits.bytes_per_second {
        keys.put("bytes_per_second", size::text(bytes));
    }
    keys.unless("burst_seconds", &limits.burst, &Limits::BURST_DEFAULT, |burst| burst.as_secs_f64().into());
    keys.0
}

fn host_limits(host: &HostLimits) -> Value {
    let mut keys = Keys::default();
    keys.put("nqn", host.nqn.to_string());
    keys.put("limits", limits(&host.limits));
    Value::Table(keys.0)
}

fn listener(listener: &Listener) -> Table {
    let mut keys = Keys::default();
    keys.put("address", listener.address.to_string());
    keys.unless("transport", &listener.transport, &Transport::Rdma, word);
    keys.unless("discovery", &listener.discovery, &true, |&on| on.into());
    keys.unless("discovery_only", &listener.discovery_only, &false, |&only| only.into());
    keys.unless("provider", &listener.provider, &ProviderChoice::Auto, |provider| {
        let word = match provider {
            ProviderChoice::Auto => "auto",
            ProviderChoice::Iwarp => "iwarp",
            ProviderChoice::Verbs => "verbs",
        };
        word.into()
    });
    keys.unless("crc", &listener.crc, &false, |_| "on".into());
    keys.unless("tls", &listener.tls, &Tls::Off, word);
    keys.unless("discovery", &listener.discovery, &true, |&discovery| discovery.into());
    let groups = listener.ana_groups.iter().map(|group| Value::Table(ana_group(*group))).collect::<Vec<_>>();
    keys.unless("ana_group", &groups, &Vec::new(), |groups| groups.clone().into());
    if let Some(list) = &listener.allow {
        let nets = list.iter().map(|net| Value::from(net.to_string()));
        keys.put("allow", nets.collect::<Vec<_>>());
    }
    let verbs = verbs(&listener.verbs);
    if !verbs.is_empty() {
        keys.put("verbs", verbs);
    }
    keys.0
}

fn verbs(verbs: &VerbsOptions) -> Table {
    let mut keys = Keys::default();
    keys.some("gid_index", verbs.gid_index);
    keys.some("pkey_index", verbs.pkey_index);
    keys.some("dscp", verbs.dscp);
    keys.some("retry_count", verbs.retry_count);
    keys.some("rnr_retry_count", verbs.rnr_retry_count);
    keys.some("ack_timeout", verbs.ack_timeout);
    if let Some(on) = verbs.memory_windows {
        keys.put("memory_windows", on);
    }
    keys.0
}

fn ana_group(group: AnaGroup) -> Table {
    let mut keys = Keys::default();
    keys.put("id", i64::from(group.id));
    keys.put("state", group.state_word());
    keys.0
}

fn host(host: &Host) -> Result<Table, DraftError> {
    let mut keys = Keys::default();
    keys.put("nqn", host.nqn.to_string());
    if let Some(path) = &host.tls_key_file {
        keys.path("tls_key_file", path)?;
    }
    if let Some(path) = &host.dhchap_key_file {
        keys.path("dhchap_key_file", path)?;
    }
    if let Some(path) = &host.dhchap_ctrl_key_file {
        keys.path("dhchap_ctrl_key_file", path)?;
    }
    keys.unless("require_concat", &host.require_concat, &false, |&required| required.into());
    keys.unless("group_keys", &host.group_keys, &Vec::new(), |kinds| words(kinds, &GROUP_KEYS));
    Ok(keys.0)
}

fn subsystem(subsystem: &Subsystem) -> Result<Table, DraftError> {
    let mut keys = Keys::default();
    keys.put("nqn", subsystem.nqn.to_string());
    keys.unless("serial", &subsystem.serial, &identity::serial(&subsystem.nqn), word);
    keys.unless("model", &subsystem.model.as_str(), &MODEL, word);
    match &subsystem.hosts {
        Hosts::Any => keys.put("allow_any_host", true),
        Hosts::Only(hosts) => keys.put("allowed_hosts", hosts.iter().map(word).collect::<Vec<_>>()),
    }
    if !subsystem.host_limits.is_empty() {
        keys.put("host_limits", subsystem.host_limits.iter().map(host_limits).collect::<Vec<_>>());
    }
    let namespaces = subsystem.namespaces.iter().map(namespace).collect::<Result<Vec<_>, _>>()?;
    if !namespaces.is_empty() {
        keys.put("namespace", namespaces.into_iter().map(Value::Table).collect::<Vec<_>>());
    }
    Ok(keys.0)
}

fn rbd(image: &Rbd) -> Result<Table, DraftError> {
    let mut keys = Keys::default();
    keys.put("pool", image.pool.as_str());
    if let Some(namespace) = &image.namespace {
        keys.put("namespace", namespace.as_str());
    }
    keys.put("image", image.image.as_str());
    if let Some(snapshot) = &image.snapshot {
        keys.put("snapshot", snapshot.as_str());
    }
    if let Some(conf) = &image.conf {
        keys.path("conf", conf)?;
    }
    keys.unless("user", &image.user.as_str(), &Rbd::USER, word);
    if let Some(keyring) = &image.keyring {
        keys.path("keyring", keyring)?;
    }
    if let Some(RbdEncryption { luks, passphrase_file }) = &image.encryption {
        let mut encryption = Keys::default();
        encryption.put("format", format!("luks{luks}"));
        encryption.path("passphrase_file", passphrase_file)?;
        keys.put("encryption", encryption.0);
    }
    Ok(keys.0)
}

impl Rbd {
    /// The keys of an image.
    ///
    /// # Errors
    /// [`DraftError::Path`].
    pub fn to_table(&self) -> Result<Table, DraftError> {
        rbd(self)
    }
}

fn namespace(namespace: &Namespace) -> Result<Table, DraftError> {
    let mut keys = Keys::default();
    keys.put("nsid", i64::from(namespace.nsid));
    match &namespace.backing {
        Backing::Path { path, size, create } => {
            keys.path("path", path)?;
            if let Some(size) = size {
                keys.put("size", size::text(*size));
            }
            keys.unless("create", create, &false, |&create| create.into());
        }
        Backing::Rbd(image) => keys.put("rbd", rbd(image)?),
        Backing::Memory { size } => keys.put("memory", size::text(*size)),
        Backing::Null { size } => keys.put("null", size::text(*size)),
    }
    if let Some(bytes) = namespace.block_size {
        keys.put("block_size", i64::from(bytes));
    }
    keys.unless("read_only", &namespace.read_only, &false, |&read_only| read_only.into());
    if let Some(uuid) = namespace.uuid {
        keys.put("uuid", Uuid::from_bytes(uuid).to_string());
    }
    keys.unless("ana_group", &namespace.ana_group, &1, |&group| i64::from(group).into());
    if let Hosts::Only(hosts) = &namespace.hosts {
        keys.put("hosts", hosts.iter().map(word).collect::<Vec<_>>());
    }
    if let Some(of) = &namespace.limits {
        keys.put("limits", limits(of));
    }
    Ok(keys.0)
}
