//! `nvmf-target check`: what a start would refuse or miss, before it does.

use crate::control::socket::group_id;
use crate::daemon::{
    NO_KEYS, NOTHING_SERVED, gateway_name, read_config, read_secret, select, tls_of, twins,
    want_one_tcp_port, wants_tcp_port,
};
use crate::exports::{FORGETS, forgets};
use crate::log::say;
use crate::machine;
use anyhow::bail;
use nix::unistd::{AccessFlags, access};
use nvmf_backend::ClusterSpec;
use nvmf_cluster::GatewayName;
use nvmf_config::{
    Backing, Cluster, Config, Hosts, Listener, MetricsAddress, Namespace, Subsystem, Tls, Transport,
};
use nvmf_tls::{TlsKeyring, read_key_file};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::Metadata;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Looks at what the file names, and leaves it alone: no disk is opened, no address taken.
pub(super) fn check(file: &Path, quiet: bool, syntax_only: bool) -> anyhow::Result<()> {
    let config = read_config(file)?;
    if !syntax_only {
        let mut findings = Findings::default();
        findings.look_at(&config);
        for warning in &findings.warnings {
            say(format_args!("warning: {warning}"));
        }
        if nix::unistd::geteuid().is_root() && !quiet {
            say(format_args!(
                "note: root may open everything. What the service may: sudo -u nvmf nvmf-target check {}",
                file.display()
            ));
        }
        if !findings.problems.is_empty() {
            bail!("{} cannot be served as it is:\n  {}", file.display(), findings.problems.join("\n  "));
        }
    }
    if !quiet {
        super::print(&summary(&config))?;
    }
    Ok(())
}

#[derive(Default)]
struct Findings {
    /// What could not be served.
    problems: Vec<String>,
    /// What could, but perhaps not as it was meant.
    warnings: Vec<String>,
}

impl Findings {
    fn look_at(&mut self, config: &Config) {
        // What a group of gateways serves is not in the file of one.
        let nothing =
            config.serves_nothing().filter(|_| config.cluster.is_none() || config.listeners.is_empty());
        self.warnings.extend(nothing.map(|what| format!("{NOTHING_SERVED}: there is {what}")));
        self.look_at_tls(config);
        for (at, listener) in config.listeners.iter().enumerate() {
            self.look_at_listener(listener);
            for other in config.listeners[..at].iter().filter(|other| want_one_tcp_port(other, listener)) {
                let (shown, other_shown) = (describe(listener), describe(other));
                let problem = if listener.address == other.address {
                    "without an RDMA device at the address, NVMe/RDMA takes a TCP port of its own; give one of the \
                     two another port"
                } else {
                    "the wildcard takes the port on every address; remove one of the two"
                };
                self.problems.push(format!("cannot listen on {other_shown} and on {shown}: {problem}"));
            }
        }
        self.look_at_group(config);
        self.look_at_metrics(config);
        self.look_at_control_group(config);
        self.look_at_secrets(config);
        self.look_for_disks_exported_twice(config);
        self.look_for_copies(config);
        for subsystem in &config.subsystems {
            for namespace in &subsystem.namespaces {
                if forgets(namespace) {
                    self.warnings
                        .push(format!("namespace {} of {}: {FORGETS}", namespace.nsid, subsystem.nqn));
                }
                if let Backing::Rbd(image) = &namespace.backing
                    && let Err(problem) = look_at_image(namespace)
                {
                    self.problems.push(format!(
                        "namespace {} of {}, {image}: {problem}",
                        namespace.nsid, subsystem.nqn
                    ));
                }
                let Backing::Path { path, size, create } = &namespace.backing else { continue };
                let hint = machine::service_hint(path, &user());
                let name = format!("namespace {} of {}", namespace.nsid, subsystem.nqn);
                match (self.look_at_disk(namespace, path, *size, *create), hint) {
                    (Ok(()), None) => {}
                    (Ok(()), Some(hint)) => self.warnings.push(format!("{name}: {}: {hint}", path.display())),
                    (Err(problem), None) => self.problems.push(format!("{name}: {problem}")),
                    (Err(problem), Some(hint)) => self.problems.push(format!("{name}: {problem} ({hint})")),
                }
            }
        }
    }

    /// What this machine lacks of what a gateway needs. The cluster is not asked.
    fn look_at_group(&mut self, config: &Config) {
        let Some(cluster) = &config.cluster else { return };
        if let Err(error) = GatewayName::new(&gateway_name(cluster)) {
            self.problems.push(format!("[cluster]: {error}: give this gateway another `name`"));
        }
        let Cluster { conf, user, keyring, .. } = cluster.clone();
        match nvmf_rados::check(&ClusterSpec { conf, user, keyring }) {
            Ok(absent) => self.warnings.extend(absent.iter().map(|error| format!("[cluster]: {error}"))),
            Err(error) => self.problems.push(format!("[cluster]: {error}")),
        }
        for address in cluster.addresses.iter().filter_map(|text| text.parse::<SocketAddr>().ok()) {
            let is_at = |listener: &Listener| {
                let (ip, port) = (listener.address.ip(), listener.address.port());
                port == address.port() && (ip.is_unspecified() || ip == address.ip())
            };
            if !config.listeners.iter().any(is_at) {
                self.warnings.push(format!(
                    "[cluster]: hosts are told to connect to {address}, where no [[listener]] is: something must lead them from \
                     there to one of this gateway's, or write the address of one"
                ));
            }
        }
        if config.listeners.iter().all(|listener| listener.discovery_only) {
            self.warnings.push(
                "this gateway gets no ANA group while there are others: no [[listener]] is for disks"
                    .to_owned(),
            );
        }
    }

    /// Whether the address for metrics is a listener's.
    fn look_at_metrics(&mut self, config: &Config) {
        let listen = config.metrics.as_ref().and_then(|metrics| metrics.listen.as_ref());
        let Some(MetricsAddress::Tcp(address)) = listen else { return };
        for listener in config.listeners.iter().filter(|listener| wants_tcp_port(listener, *address)) {
            self.problems.push(format!(
                "cannot serve metrics on {address}: the listener on {} has that port; give [metrics] another",
                describe(listener)
            ));
        }
    }

    fn look_at_control_group(&mut self, config: &Config) {
        let group = config.target.control_group.as_deref();
        if let Some(Err(error)) = group.map(group_id) {
            self.problems.push(error.to_string());
        }
    }

    /// The keys of hosts, and whether they protect what they are meant to.
    fn look_at_tls(&mut self, config: &Config) {
        let has_tls = config.has_tls();
        for host in &config.hosts {
            let Some(path) = &host.tls_key_file else { continue };
            if !has_tls {
                self.warnings
                    .push(format!("the key of host {} is for nothing: no [[listener]] has tls", host.nqn));
            }
            if let Err(error) = read_key_file(path) {
                self.problems.push(format!("host {} has no key for TLS: {error}", host.nqn));
            }
        }
        if !has_tls {
            return;
        }
        if config.lacks_keys() {
            self.problems.push(NO_KEYS.to_owned());
        }
        if let Some(Err(error)) = config.target.tls_keyring.as_deref().map(TlsKeyring::check) {
            self.problems.push(format!("tls_keyring in [target]: {error}"));
        }
        for listener in &config.listeners {
            if !listener.discovery_only && !matches!(listener.tls, Tls::Concat | Tls::Required) {
                self.warnings.push(format!(
                    "TLS protects no subsystem that is served on {} as well, where anyone who states the NQN of a host \
                     is let in: every [[listener]] with disks needs tls = \"required\" or \"concat\"",
                    shown(listener)
                ));
            }
        }
    }

    /// The secrets of hosts for DH-HMAC-CHAP, and whether they protect what they are meant to.
    fn look_at_secrets(&mut self, config: &Config) {
        let mut any = false;
        for host in &config.hosts {
            for path in [&host.dhchap_key_file, &host.dhchap_ctrl_key_file].into_iter().flatten() {
                any = true;
                if let Err(fault) = read_secret(path) {
                    self.problems.push(format!("host {} cannot authenticate: {fault}", host.nqn));
                }
            }
        }
        for subsystem in config.subsystems.iter().filter(|_| any) {
            let without: Vec<_> = match &subsystem.hosts {
                Hosts::Any => vec!["any host (allow_any_host)".to_owned()],
                Hosts::Only(hosts) => {
                    let has_key =
                        |nqn| config.hosts.iter().any(|it| it.nqn == nqn && it.dhchap_key_file.is_some());
                    hosts.iter().filter(|&&nqn| !has_key(nqn)).map(ToString::to_string).collect()
                }
            };
            if let Some(first) = without.first() {
                self.warnings.push(format!(
                    "{}: {first} needs no authentication: whoever states such an NQN is let in, unless TLS keeps it out",
                    subsystem.nqn
                ));
            }
        }
    }

    /// One disk may have several names: links, and a device's in /dev/disk.
    fn look_for_disks_exported_twice(&mut self, config: &Config) {
        let mut seen: HashMap<DiskNumber, (&Subsystem, &Namespace, &Path)> = HashMap::new();
        let namespaces = config.subsystems.iter().flat_map(|s| s.namespaces.iter().map(move |n| (s, n)));
        for (subsystem, namespace) in namespaces {
            let Backing::Path { path, .. } = &namespace.backing else { continue };
            let Ok(metadata) = std::fs::metadata(path) else { continue };
            let Some((other_subsystem, other, other_path)) =
                seen.insert(disk_number(&metadata), (subsystem, namespace, path))
            else {
                continue;
            };
            // Readers share a disk, but no two namespaces a UUID.
            let is_shared = namespace.read_only && other.read_only && namespace.uuid != other.uuid;
            if !is_shared {
                self.problems.push(format!(
                    "namespace {} of {} ({}) and namespace {} of {} ({}) are one disk: remove one of the two",
                    other.nsid,
                    other_subsystem.nqn,
                    other_path.display(),
                    namespace.nsid,
                    subsystem.nqn,
                    path.display()
                ));
            }
        }
    }

    /// Disks that bear one UUID. What is one disk under two names has been reported.
    fn look_for_copies(&mut self, config: &Config) {
        let mut seen = HashSet::new();
        let own = config.subsystems.iter().flat_map(|s| s.namespaces.iter().map(move |n| (s.nqn, n)));
        let own = own.filter_map(|(nqn, namespace)| {
            let Backing::Path { path, .. } = &namespace.backing else { return None };
            seen.insert(disk_number(&std::fs::metadata(path).ok()?)).then_some(())?;
            let identity = nvmf_backend::Identity::of_path(path).ok()??;
            Some(((nqn, namespace.nsid), *identity.uuid.as_bytes()))
        });
        let own: HashMap<_, _> = own.collect();
        for ((nqn, nsid), fault) in twins::refused(config, |nqn, n| own.get(&(*nqn, n.nsid)).copied()) {
            self.problems.push(format!("namespace {nsid} of {nqn}: {fault}"));
        }
    }

    fn look_at_listener(&mut self, listener: &Listener) {
        let address = listener.address;
        if !machine::has_address(address.ip()) {
            self.problems.push(format!(
                "cannot listen on {address}: the address is not one of this machine (ip address), or not \
                 there yet"
            ));
        } else if let Err(error) = select(listener) {
            self.problems.push(format!("cannot listen on {address}: {:#}", anyhow::Error::new(error)));
        }
    }

    fn look_at_disk(
        &mut self,
        namespace: &Namespace,
        path: &Path,
        size: Option<u64>,
        create: bool,
    ) -> Result<(), String> {
        let shown = path.display();
        let metadata = match std::fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && create => return may_create(path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(nvmf_backend::OpenError::Missing { path: path.to_owned() }.to_string());
            }
            Err(error) => return Err(format!("cannot look at {shown}: {error}")),
        };
        let wanted =
            if namespace.read_only { AccessFlags::R_OK } else { AccessFlags::R_OK | AccessFlags::W_OK };
        if let Err(errno) = access(path, wanted) {
            return Err(format!("this user ({}) cannot open {shown}: {}", user(), errno.desc()));
        }
        let kind = metadata.file_type();
        if kind.is_block_device() {
            return match machine::mount_point(metadata.rdev()) {
                Some(place) if !namespace.read_only => {
                    Err(format!("{shown} is mounted on {}: unmount it first", place.display()))
                }
                _ => Ok(()),
            };
        }
        if nvmf_backend::disk::is_nvme_generic(&metadata) {
            return Ok(());
        }
        if !kind.is_file() {
            return Err(format!(
                "{shown} is neither a file nor a block device, nor an NVMe drive's /dev/ngXnY"
            ));
        }
        self.look_at_size(namespace, path, size, &metadata)
    }

    fn look_at_size(
        &mut self,
        namespace: &Namespace,
        path: &Path,
        size: Option<u64>,
        metadata: &Metadata,
    ) -> Result<(), String> {
        let (shown, bytes) = (path.display(), metadata.len());
        let block = u64::from(namespace.block_size.unwrap_or(512));
        if bytes == 0 {
            return Err(format!("{shown} is empty: give it a size first (truncate -s 10G {shown})"));
        }
        if !bytes.is_multiple_of(block) {
            return Err(format!(
                "{shown} has {bytes} bytes, which is no multiple of its {block}-byte blocks: resize it"
            ));
        }
        if let Some(size) = size.filter(|&size| size != bytes) {
            self.warnings.push(format!(
                "{shown} has {bytes} bytes, not the {size} that `size` says: it is served as it is"
            ));
        }
        Ok(())
    }
}

/// What the kernel knows a disk by, whatever its name.
#[derive(Debug, PartialEq, Eq, Hash)]
enum DiskNumber {
    Device(u64),
    File { filesystem: u64, inode: u64 },
}

/// Opens an image, and closes it again.
fn look_at_image(namespace: &Namespace) -> Result<(), String> {
    let spec = crate::exports::disk_spec(&namespace.backing);
    let opened = nvmf_backend::Disk::open(&spec, namespace.block_size, namespace.read_only);
    opened.map(drop).map_err(|error| format!("{:#}", anyhow::Error::new(error)))
}

fn disk_number(metadata: &Metadata) -> DiskNumber {
    if metadata.file_type().is_block_device() {
        DiskNumber::Device(metadata.rdev())
    } else {
        DiskNumber::File { filesystem: metadata.dev(), inode: metadata.ino() }
    }
}

fn may_create(path: &Path) -> Result<(), String> {
    let folder = path.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned);
    access(&folder, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| {
        format!(
            "this user ({}) cannot create {} in {}: {}",
            user(),
            path.display(),
            folder.display(),
            errno.desc()
        )
    })
}

fn user() -> String {
    let uid = nix::unistd::geteuid();
    nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// A listener, for the user.
fn describe(listener: &Listener) -> String {
    let transport = match listener.transport {
        Transport::Rdma => "rdma",
        Transport::Tcp => "tcp",
    };
    format!("{} over {transport}", listener.address)
}

/// The same with its TLS.
fn shown(listener: &Listener) -> String {
    format!("{}{}", describe(listener), tls_of(listener))
}

/// What would be served.
fn summary(config: &Config) -> String {
    let mut text = String::new();
    for listener in &config.listeners {
        let only = if listener.discovery_only { ", discovery only" } else { "" };
        let _ = writeln!(text, "listen on {}{only}", shown(listener));
    }
    if let Some(cluster) = &config.cluster {
        let Cluster { pool, namespace, group, user, .. } = cluster;
        let namespace = namespace.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
        let name = gateway_name(cluster);
        let _ = writeln!(
            text,
            "gateway {name} of the group {group} in the pool {pool}{namespace}, as client.{user}"
        );
    }
    for host in &config.hosts {
        let key =
            host.tls_key_file.as_ref().map_or_else(|| "none".to_owned(), |path| path.display().to_string());
        let secret = |what: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!(", {what} {}", path.display())).unwrap_or_default()
        };
        let own = secret("for DH-HMAC-CHAP", &host.dhchap_key_file);
        let controller = secret("the controller's", &host.dhchap_ctrl_key_file);
        let _ = writeln!(text, "host {}: key for TLS {key}{own}{controller}", host.nqn);
    }
    for subsystem in &config.subsystems {
        let hosts = match &subsystem.hosts {
            Hosts::Any => "any host".to_owned(),
            Hosts::Only(hosts) => format!("{} host(s)", hosts.len()),
        };
        let _ = writeln!(text, "subsystem {} (serial {}): {hosts}", subsystem.nqn, subsystem.serial);
        for namespace in &subsystem.namespaces {
            let what = match &namespace.backing {
                Backing::Path { path, size: Some(size), create: true } => {
                    format!("{} (created with {size} bytes if it is not there)", path.display())
                }
                Backing::Path { path, .. } => path.display().to_string(),
                Backing::Rbd(image) => image.to_string(),
                Backing::Memory { size } => format!("{size} bytes of memory"),
                Backing::Null { size } => format!("null, {size} bytes (writes are discarded)"),
            };
            let mode = if namespace.read_only { ", read-only" } else { "" };
            let _ = writeln!(text, "  namespace {}: {what}{mode}", namespace.nsid);
        }
    }
    text
}
