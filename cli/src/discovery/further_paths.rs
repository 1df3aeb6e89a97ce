//! Paths that attached disks do not have yet.

use super::arguments::parse;
use super::engine::{Disk, PATHS_MAX, Place, Subsystem, SubsystemPath, is_same_host};
use crate::attach::{self, Listed, OtherHost, Unable, other_host};
use crate::command::{OwnOptions, PathArgument};
use anyhow::{Result, bail};
use nvmf_attached::{AttachedPath, Attachment, State};
use nvmf_initiator::{HostIdentity, PathOptions, TransportOptions};
use std::net::IpAddr;

/// What became of paths that a disk did not have.
#[derive(Debug, Default)]
pub(crate) struct Added {
    /// How many it has now.
    pub(crate) count: usize,
    /// Why one could not be made, for now.
    pub(crate) failed: Option<anyhow::Error>,
    /// Why it can never have one, as it is attached.
    pub(crate) unable: Option<anyhow::Error>,
    /// How it was brought back before, if it was dead.
    pub(crate) brought_back: Vec<String>,
}

impl Added {
    /// That of another disk as well.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            failed: self.failed.or(other.failed),
            unable: self.unable.or(other.unable),
            brought_back: [self.brought_back, other.brought_back].concat(),
        }
    }

    fn add(&mut self, place: &Place, made: Result<()>) {
        // The others are not worse for it.
        let Err(error) = made else { return self.count += 1 };
        let why = if error.is::<Unable>() { &mut self.unable } else { &mut self.failed };
        why.get_or_insert(error.context(format!("the path over {place}")));
    }
}

impl From<anyhow::Error> for Added {
    fn from(error: anyhow::Error) -> Self {
        Self { failed: Some(error), ..Self::default() }
    }
}

/// Gives an attached disk those of these paths that it does not have, if it is this host's.
pub(crate) fn add_missing_paths(listed: &Listed, host: &HostIdentity, paths: &[SubsystemPath]) -> Added {
    let mut added = Added::default();
    if other_host(&listed.disk, host).is_some() {
        return added;
    }
    // A disk that was attached over TLS is reached in no other way.
    let insists = listed.disk.tls;
    // A path in the clear is not the one with TLS that is wanted.
    let is_it = |path: &SubsystemPath, attached: &AttachedPath| {
        path.is_at(attached) && (!path.own.tls || insists || is_with_tls(attached))
    };
    let is_there = |path: &&SubsystemPath| listed.disk.paths.iter().any(|attached| is_it(path, attached));
    let is_able = |path: &&SubsystemPath| !insists || path.place.transport == "tcp";
    let mut missing: Vec<_> = paths.iter().filter(|path| !is_there(path) && is_able(path)).cloned().collect();
    for path in &mut missing {
        path.own.tls |= path.had_tls(&listed.disk);
        added.add(&path.place, listed.add_path(&path.text()));
    }
    added
}

/// The paths of a disk that whoever takes it over with these has to name besides, each as it was.
pub(crate) fn kept_paths(disk: &Attachment, given: &[SubsystemPath]) -> Vec<SubsystemPath> {
    let is_missing = |path: &&AttachedPath| !given.iter().any(|given| given.is(path));
    disk.paths.iter().filter(is_missing).filter_map(SubsystemPath::of).collect()
}

/// The paths that a disk was given and has not got yet: each as it was named, and what that says.
pub(crate) fn paths_to_come(disk: &Attachment) -> Vec<(String, PathArgument)> {
    // Without a port it is that of the first path.
    let port = disk.paths.first().and_then(|first| first.host_and_port().1).unwrap_or_default();
    let is_there = |added: &PathArgument| {
        disk.paths.iter().any(|path| SubsystemPath::named(added, &path.transport, port).is(path))
    };
    added_paths(disk).filter(|(_, added)| !is_there(added)).collect()
}

fn added_paths(disk: &Attachment) -> impl Iterator<Item = (String, PathArgument)> {
    disk.added_paths.iter().map(|name| (name.clone(), PathArgument::read(name)))
}

/// Whether a path of this disk has TLS, or is to have it.
pub(crate) fn has_tls(disk: &Attachment) -> bool {
    disk.tls || disk.paths.iter().any(is_with_tls) || added_paths(disk).any(|(_, added)| added.own.tls)
}

fn is_with_tls(path: &AttachedPath) -> bool {
    protection(path).tls
}

/// What protects it alone.
fn protection(path: &AttachedPath) -> OwnOptions {
    OwnOptions::of(path.protection.iter().map(String::as_str))
}

/// The address and the interface that it begins at, where one was chosen.
fn beginning(path: &AttachedPath) -> (Option<IpAddr>, Option<&str>) {
    (path.source.as_ref().and_then(|source| source.parse().ok()), path.interface.as_deref())
}

impl Subsystem {
    /// Brings an attached disk of it back if it is dead, and gives it those of its paths that it does not have.
    pub(super) fn mend(&self, listed: &Listed) -> Added {
        // A target that was given up may be there under another address by now.
        let mut added = match listed.disk.state {
            // Whoever takes it over has all of its paths.
            State::Killed | State::Unknown => Added::default(),
            _ => self.add_missing_paths(listed),
        };
        match self.bring_back(listed) {
            Ok(said) => added.brought_back.extend(said),
            Err(error) => added.failed = Some(error),
        }
        added
    }

    fn bring_back(&self, listed: &Listed) -> Result<Option<String>> {
        if !listed.is_dead() {
            return Ok(None);
        }
        let host = parse(&self.arguments())?.0.target.host()?;
        if let Some(OtherHost { how, options }) = other_host(&listed.disk, &host) {
            bail!("it is {}, and attached as {how}: {options} brings it back", listed.disk.state.as_str());
        }
        listed.bring_back(|option| {
            let arguments = self.as_it_was(&listed.disk).into_iter().chain([option]);
            attach::in_background(arguments.map(Into::into))
        })
    }

    /// The options of `nvmf attach` with which a disk of it is the one that was attached.
    fn as_it_was(&self, disk: &Attachment) -> Vec<String> {
        let Self { mut paths, nqn, options } = self.with_keys().0;
        let (has_tls, given) = (paths.iter().any(|path| path.own.tls), paths.len());
        let has_concat = options.iter().any(|option| option == "--concat");
        paths.extend(kept_paths(disk, &paths));
        // What is beyond, the server that takes the disk over adds as far as there is room.
        paths.truncate(PATHS_MAX);
        for (path, number) in paths.iter_mut().zip(0..) {
            // A disk that was attached over TLS is reached in no other way.
            let needs_tls = path.had_tls(disk) || has_tls && number >= given;
            path.own.tls |= needs_tls && !has_concat && path.place.transport == "tcp";
        }
        paths.retain(|path| !disk.tls || path.place.transport == "tcp");
        let meant = Disk { nqn: disk.nqn.clone(), nsid: disk.nsid };
        let mut arguments = Self { paths, nqn, options }.attach(&meant);
        if disk.asked_nsid.is_none() {
            arguments.retain(|option| !option.starts_with("--nsid="));
        }
        arguments.push(format!("--as={}", if disk.vhost_user { "vhost" } else { "auto" }));
        arguments
    }

    /// Gives an attached disk of it those of its paths that it does not have.
    pub(super) fn add_missing_paths(&self, listed: &Listed) -> Added {
        let host = parse(&self.arguments()).and_then(|(attach, _)| attach.target.host());
        // A disk that was attached over TLS has its key.
        let paths = if listed.disk.tls { self.paths.clone() } else { self.with_keys().0.paths };
        host.map_or_else(Added::from, |host| add_missing_paths(listed, &host, &paths))
    }
}

impl SubsystemPath {
    /// Where it leads and where it begins: by its name, where it has one, and by its address, where that is known.
    pub(crate) fn spelled(path: &PathOptions) -> impl Iterator<Item = Self> + use<> {
        let transport = if let TransportOptions::Rdma = path.transport { "rdma" } else { "tcp" };
        let port = path.address.port();
        let (host_traddr, host_iface) =
            (path.source.map(|source| source.ip()), path.interface().map(str::to_owned));
        let own = OwnOptions { host_traddr, host_iface, ..OwnOptions::default() };
        let name = path.address_source.as_ref().and_then(|source| source.name().map(str::to_owned));
        let address = Some(path.address.ip()).filter(|ip| name.is_none() || !ip.is_unspecified());
        name.into_iter().chain(address.map(|ip| ip.to_string())).map(move |address| Self {
            place: Place { transport: transport.to_owned(), address, port },
            own: own.clone(),
        })
    }

    /// That of an attached disk; `None`: where it leads cannot be read.
    pub(super) fn of(attached: &AttachedPath) -> Option<Self> {
        let (host, port) = attached.host_and_port();
        let address = attached.name.clone().unwrap_or_else(|| host.to_owned());
        let place = Place { transport: attached.transport.clone(), address, port: port? };
        let (host_traddr, host_iface) = beginning(attached);
        let host_iface = host_iface.map(str::to_owned);
        Some(Self { place, own: OwnOptions { host_traddr, host_iface, ..protection(attached) } })
    }

    /// The path that was named so, over this transport and to this port where it names none.
    fn named(path: &PathArgument, transport: &str, port: u16) -> Self {
        let transport = path.transport.map_or(transport, |it| it.name()).to_owned();
        let address = path.address.trim_matches(['[', ']']).to_owned();
        Self { place: Place { transport, address, port: path.port.unwrap_or(port) }, own: path.own.clone() }
    }

    /// Whether an attached disk has it as this path. One that says nothing of where it begins is every path there, as nvme-cli has it.
    fn is_at(&self, attached: &AttachedPath) -> bool {
        let ((source, interface), there) = (self.beginning(), beginning(attached));
        self.leads_there(attached)
            && (source.is_none() || source == there.0)
            && (interface.is_none() || interface == there.1)
    }

    /// Whether it is this path and no other that leads there.
    fn is(&self, attached: &AttachedPath) -> bool {
        self.leads_there(attached) && self.beginning() == beginning(attached)
    }

    /// Whether this disk has TLS there, or everywhere.
    pub(crate) fn had_tls(&self, disk: &Attachment) -> bool {
        let Place { transport, port, .. } = &self.place;
        // One that waits for its key is known by its name only.
        let waits = |added: PathArgument| {
            added.own.tls && Self::named(&added, transport, *port).place.is(&self.place)
        };
        disk.tls
            || disk.paths.iter().any(|path| is_with_tls(path) && self.leads_there(path))
            || added_paths(disk).any(|(_, added)| waits(added))
    }

    fn leads_there(&self, attached: &AttachedPath) -> bool {
        let (address, port) = attached.host_and_port();
        let Place { transport, address: own, port: own_port } = &self.place;
        (port, &attached.transport) == (Some(*own_port), transport)
            && (is_same_host(address, own) || attached.name.as_ref() == Some(own))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::place;
    use super::*;
    use nvmf_initiator::{AddressSource, TcpOptions};

    #[test]
    fn path_that_a_disk_can_never_have_is_no_failure_and_hides_no_other() {
        let mut added = Added::default();
        added.add(&place("rdma", "192.0.2.1", 4420), Err(Unable("a seccomp filter".to_owned()).into()));
        added.add(&place("tcp", "192.0.2.1", 4420), Ok(()));
        let other = Added { count: 1, ..Added::default() };
        let Added { count, failed, unable, .. } = added.and(other);
        assert_eq!((count, failed.map(|error| error.to_string())), (2, None));
        assert!(unable.is_some_and(|error| format!("{error:#}").contains("a seccomp filter")));
        let mut added = Added::default();
        added.add(&place("tcp", "192.0.2.2", 4420), Err(anyhow::anyhow!("no descriptor is left")));
        added.add(&place("tcp", "192.0.2.1", 4420), Ok(()));
        assert_eq!((added.count, added.failed.is_some()), (1, true));
    }

    #[test]
    fn disk_that_is_taken_over_keeps_its_paths() {
        let at = |address: &str| AttachedPath {
            address: address.to_owned(),
            transport: "tcp".to_owned(),
            ..AttachedPath::default()
        };
        let named = AttachedPath { name: Some("storage-b".to_owned()), ..at("192.0.2.5:4420") };
        let source = AttachedPath {
            source: Some("192.0.2.9".to_owned()),
            protection: ["--tls", "--data-digest"].map(str::to_owned).to_vec(),
            ..at("[2001:db8::2]:4421")
        };
        let mut disk = Attachment {
            nqn: "nqn.2026-11.com.example:a".to_owned(),
            nsid: 3,
            paths: vec![at("192.0.2.1:4420"), at("192.0.2.2:4420"), at("[2001:db8::1]:4420"), named, source],
            added_paths: vec![
                "192.0.2.2:4420/tcp,hdr-digest".to_owned(),
                "[2001:db8::1]".to_owned(),
                // Of the port of the first path.
                "192.0.2.1".to_owned(),
            ],
            ..Attachment::default()
        };
        let given = [SubsystemPath::new(place("tcp", "192.0.2.1", 4420), &[])];
        let kept: Vec<_> = kept_paths(&disk, &given).iter().map(SubsystemPath::text).collect();
        let expected = [
            "192.0.2.2:4420/tcp",
            "[2001:db8::1]:4420/tcp",
            "storage-b:4420/tcp",
            "[2001:db8::2]:4421/tcp,host-traddr=192.0.2.9,tls,data-digest",
        ];
        assert_eq!(kept, expected);
        disk.added_paths.push("192.0.2.77".to_owned());
        let to_come: Vec<_> = paths_to_come(&disk).into_iter().map(|(name, _)| name).collect();
        assert_eq!(to_come, ["192.0.2.77"]);
        // From elsewhere: neither what is given nor what was added is that path.
        let sources = ["192.0.2.8", "192.0.2.9"]
            .map(|source| AttachedPath { source: Some(source.to_owned()), ..at("192.0.2.3:4420") });
        let multihomed = Attachment {
            paths: sources.to_vec(),
            added_paths: vec!["192.0.2.3:4420/tcp,host-traddr=192.0.2.9".to_owned()],
            ..disk.clone()
        };
        let given_there = SubsystemPath::new(place("tcp", "192.0.2.3", 4420), &[]);
        let kept: Vec<_> = kept_paths(&multihomed, &[given_there]).iter().map(SubsystemPath::text).collect();
        assert_eq!(
            kept,
            ["192.0.2.8", "192.0.2.9"].map(|from| format!("192.0.2.3:4420/tcp,host-traddr={from}"))
        );
        assert!(paths_to_come(&multihomed).is_empty());
        let other_port =
            Attachment { paths: vec![at("192.0.2.7:4420"), at("192.0.2.1:4421")], ..disk.clone() };
        assert_eq!(kept_paths(&other_port, &[]).len(), 2, "not the one that was added");
        let subsystem = Subsystem {
            nqn: disk.nqn.clone(),
            paths: given.to_vec(),
            options: vec!["--iopolicy=latency".to_owned()],
        };
        let arguments = subsystem.as_it_was(&disk);
        assert!(!arguments.iter().any(|it| it.starts_with("--nsid")), "nobody asked for one: {arguments:?}");
        disk.asked_nsid = Some(3);
        let arguments = subsystem.as_it_was(&disk);
        for option in
            ["--traddr=192.0.2.1", "--path=storage-b:4420/tcp", "--nsid=3", "--iopolicy=latency", "--as=auto"]
        {
            assert!(arguments.iter().any(|it| it == option), "{option}: {arguments:?}");
        }
        // One that was attached over TLS is reached in no other way.
        disk.tls = true;
        let arguments = subsystem.as_it_was(&disk);
        assert!(arguments.iter().any(|it| it == "--path=192.0.2.1:4420/tcp,tls"), "{arguments:?}");
        assert!(
            !arguments.iter().any(|it| it.starts_with("--path=") && !it.contains(",tls")),
            "{arguments:?}"
        );
    }

    #[test]
    fn path_that_waits_for_its_key_is_one_with_tls() {
        let had_tls = |added: &str, address: &str| {
            let disk = Attachment { added_paths: vec![added.to_owned()], ..Attachment::default() };
            assert_eq!(has_tls(&disk), added.contains("tls"));
            SubsystemPath::new(place("tcp", address, 4420), &[]).had_tls(&disk)
        };
        assert!(
            had_tls("192.0.2.1,tls", "192.0.2.1") && had_tls("[2001:db8::1]:4420/tcp,tls", "2001:db8::1")
        );
        assert!(had_tls("storage-a:4420,of-another-version,tls", "storage-a"));
        assert!(!had_tls("192.0.2.1:4421,tls", "192.0.2.1") && !had_tls("192.0.2.1,hdr-digest", "192.0.2.1"));
        assert!(!had_tls("192.0.2.11,tls", "192.0.2.1"));
        assert!(
            had_tls("192.0.2.1,tls", "::ffff:192.0.2.1") && had_tls("[2001:db8:0::1],tls", "2001:db8::1")
        );
    }

    #[test]
    fn path_is_known_by_its_name_and_by_its_address() {
        let disk = Attachment {
            paths: vec![AttachedPath {
                address: "127.0.0.1:4420".to_owned(),
                transport: "tcp".to_owned(),
                protection: vec!["--tls".to_owned()],
                ..AttachedPath::default()
            }],
            ..Attachment::default()
        };
        let had_tls = |address: &str, name: Option<&str>| {
            let transport = TransportOptions::Tcp(TcpOptions::default());
            let mut path = PathOptions::new(address.parse().unwrap(), transport);
            path.address_source = name.map(|name| AddressSource::of_name(name, || None));
            SubsystemPath::spelled(&path).any(|path| path.had_tls(&disk))
        };
        assert!(had_tls("127.0.0.1:4420", Some("localhost")) && had_tls("[::ffff:127.0.0.1]:4420", None));
        assert!(!had_tls("127.0.0.2:4420", Some("localhost")) && !had_tls("127.0.0.1:4421", None));
        assert!(!had_tls("0.0.0.0:4420", Some("localhost")), "its address is not known");
    }

    #[test]
    fn path_is_that_of_an_attached_disk_if_it_leads_from_the_same_place_to_the_same_place() {
        let attached = AttachedPath {
            address: "192.0.2.1:4420".to_owned(),
            transport: "tcp".to_owned(),
            name: Some("storage-a".to_owned()),
            interface: Some("eth0".to_owned()),
            ..AttachedPath::default()
        };
        let is_at = |transport, address, options: &[&str]| {
            let own = OwnOptions::of(options.iter().copied());
            SubsystemPath { place: place(transport, address, 4420), own }.is_at(&attached)
        };
        assert!(is_at("tcp", "192.0.2.1", &[]) && is_at("tcp", "storage-a", &["--host-iface=eth0"]));
        assert!(!is_at("tcp", "192.0.2.1", &["--host-iface=eth1"]) && !is_at("tcp", "storage-b", &[]));
        assert!(!is_at("rdma", "192.0.2.1", &[]) && !is_at("tcp", "192.0.2.1", &["--host-traddr=192.0.2.9"]));
    }
}
