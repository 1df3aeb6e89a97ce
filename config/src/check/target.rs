//! The daemon's own limits, and where it listens.

use super::discovery::PORT as DISCOVERY_PORT;
use super::{ANA_GROUPS_MAX, Checker, NETWORKS_MAX, Result, narrow};
use crate::AddressList;
use crate::file;
use crate::model::{
    AnaGroup, ControlSocket, DHCHAP_GROUPS, DHCHAP_HASHES, DuplicateHostId, Listener, Poll, ProviderChoice,
    Target, Tls, Transport, VerbsOptions,
};
use core::ops::RangeInclusive;
use core::time::Duration;
use ipnet::IpNet;
use nvme_proto::admin::log_page::AnaState;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use toml::Spanned;

/// The port that the standard gives to NVMe over RDMA; by custom NVMe/TCP uses it, too. Listeners that name none have
/// it.
pub const PORT: u16 = 4420;
/// The states of ANA groups, as a file has them.
pub(crate) const ANA_STATES: [(&str, AnaState); 5] = [
    ("optimized", AnaState::OPTIMIZED),
    ("non-optimized", AnaState::NON_OPTIMIZED),
    ("inaccessible", AnaState::INACCESSIBLE),
    ("persistent-loss", AnaState::PERSISTENT_LOSS),
    ("change", AnaState::CHANGE),
];
/// The highest Controller ID that a controller may have.
const CNTLID_MAX: i64 = 0xffef;
/// Bytes in the path of a Unix socket, without the NUL behind it (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

impl Checker<'_> {
    pub(super) fn target(&self, file: &file::Target) -> Result<Target> {
        let default = Target::default();
        let polls = [("adaptive", Poll::Adaptive), ("busy", Poll::Busy), ("interrupt", Poll::Interrupt)];
        let policies = [("report", DuplicateHostId::Report), ("refuse", DuplicateHostId::Refuse)];
        let spin_us = self.number("spin_us", file.spin_us.as_ref(), 0..=10_000, 500_u64)?;
        let transfer_timeout_s =
            self.number("transfer_timeout_s", file.transfer_timeout_s.as_ref(), 1..=3600, 30_u64)?;
        let in_capsule_data = self.bytes("in_capsule_data", file.in_capsule_data.as_ref(), 0..=16384, 0)?;
        if let Some(value) = &file.in_capsule_data
            && in_capsule_data % 512 != 0
        {
            return self
                .error(value, format!("in_capsule_data is {in_capsule_data} but must be a multiple of 512"));
        }
        let transfer_max = self.bytes(
            "transfer_max",
            file.transfer_max.as_ref(),
            8192..=1 << 20,
            u64::from(default.transfer_max),
        )?;
        if let Some(value) = &file.transfer_max
            && !transfer_max.is_power_of_two()
        {
            return self.error(
                value,
                "transfer_max must be a power of two, such as \"1MiB\": NVMe can say no other",
            );
        }
        let backend = transfer_max * 4;
        let buffer_memory = self.bytes(
            "buffer_memory",
            file.buffer_memory.as_ref(),
            backend..=1 << 38,
            default.buffer_memory,
        )?;
        Ok(Target {
            workers: self.number("workers", file.workers.as_ref(), 1..=64, default.workers)?,
            poll: self.word("poll", file.poll.as_ref(), &polls, default.poll)?,
            spin: Duration::from_micros(spin_us),
            in_capsule_data: file.in_capsule_data.is_some().then(|| narrow(in_capsule_data)),
            queue_depth: self.number(
                "queue_depth",
                file.queue_depth.as_ref(),
                2..=1024,
                default.queue_depth,
            )?,
            io_queues: self.number("io_queues", file.io_queues.as_ref(), 1..=128, default.io_queues)?,
            transfer_max: narrow(transfer_max),
            buffer_memory,
            connections: self.number(
                "connections",
                file.connections.as_ref(),
                2..=65535,
                default.connections,
            )?,
            transfer_timeout: Duration::from_secs(transfer_timeout_s),
            strict: file.strict.unwrap_or(default.strict),
            tls_keyring: file.tls_keyring.clone(),
            dhchap_hashes: self.words("dhchap_hashes", file.dhchap_hashes.as_ref(), &DHCHAP_HASHES)?,
            dhchap_groups: self.words("dhchap_groups", file.dhchap_groups.as_ref(), &DHCHAP_GROUPS)?,
            dhchap_discovery: file.dhchap_discovery.unwrap_or(default.dhchap_discovery),
            control_socket: self.control_socket(file.control_socket.as_ref())?,
            control_group: self.ascii("control_group", file.control_group.as_ref(), 32)?,
            cntlids: self.cntlids(file)?,
            state_dir: self.state_dir(file)?,
            duplicate_host_id: self.word(
                "duplicate_host_id",
                file.duplicate_host_id.as_ref(),
                &policies,
                default.duplicate_host_id,
            )?,
        })
    }

    fn control_socket(&self, file: Option<&Spanned<String>>) -> Result<ControlSocket> {
        let Some(value) = file else { return Ok(ControlSocket::Usual) };
        match value.as_ref().as_str() {
            "off" => Ok(ControlSocket::Off),
            path if !path.starts_with('/') => {
                self.error(value, "control_socket must be an absolute path, or \"off\"")
            }
            path if path.len() > SOCKET_PATH_MAX || path.contains('\0') => self.error(
                value,
                format!(
                    "control_socket is too long: the path of a socket has at most {SOCKET_PATH_MAX} bytes"
                ),
            ),
            path => Ok(ControlSocket::At(path.into())),
        }
    }

    pub(super) fn listener(&self, file: &Spanned<file::Listener>) -> Result<Listener> {
        let file = file.as_ref();
        let providers = [
            ("auto", ProviderChoice::Auto),
            ("iwarp", ProviderChoice::Iwarp),
            ("verbs", ProviderChoice::Verbs),
        ];
        let transports = [("rdma", Transport::Rdma), ("tcp", Transport::Tcp)];
        let transport = self.word("transport", file.transport.as_ref(), &transports, Transport::Rdma)?;
        let discovery_only = file.discovery_only.unwrap_or(false);
        let discovery = file.discovery.as_ref().is_none_or(|value| *value.as_ref());
        if let Some(value) = file.discovery.as_ref().filter(|_| discovery_only && !discovery) {
            return self
                .error(value, "discovery = false and discovery_only = true leave nothing to serve here");
        }
        if transport == Transport::Tcp {
            let message = |key| format!("{key} is for transport = \"rdma\": remove it, NVMe/TCP needs none");
            if let Some(value) = &file.provider {
                return self.error(value, message("provider"));
            }
            if let Some(value) = &file.crc {
                let message =
                    "crc is for transport = \"rdma\": remove it, over NVMe/TCP hosts ask for digests";
                return self.error(value, message);
            }
            if let Some(value) = &file.verbs {
                return self.error(value, message("verbs"));
            }
        }
        let words = [
            ("off", Tls::Off),
            ("allowed", Tls::Allowed),
            ("concat", Tls::Concat),
            ("required", Tls::Required),
        ];
        let tls = self.word("tls", file.tls.as_ref(), &words, Tls::Off)?;
        if let Some(value) = file.tls.as_ref().filter(|_| transport != Transport::Tcp && tls != Tls::Off) {
            return self.error(value, "tls is for transport = \"tcp\": NVMe/RDMA has none");
        }
        let default = file::Verbs::default();
        Ok(Listener {
            address: self.address(&file.address, if discovery_only { DISCOVERY_PORT } else { PORT })?,
            transport,
            discovery,
            discovery_only,
            provider: self.word("provider", file.provider.as_ref(), &providers, ProviderChoice::Auto)?,
            crc: self.word("crc", file.crc.as_ref(), &[("auto", false), ("on", true)], false)?,
            verbs: self.verbs(file.verbs.as_ref().map_or(&default, Spanned::as_ref))?,
            tls,
            allow: file.allow.as_ref().map(|allow| self.address_list(allow)).transpose()?,
            ana_groups: self.ana_groups(&file.ana_group)?,
        })
    }

    fn cntlids(&self, file: &file::Target) -> Result<RangeInclusive<u16>> {
        let first = self.number("cntlid_min", file.cntlid_min.as_ref(), 1..=CNTLID_MAX, 1_u16)?;
        let last = self.number("cntlid_max", file.cntlid_max.as_ref(), 1..=CNTLID_MAX, 0xffef_u16)?;
        match file.cntlid_max.as_ref().or(file.cntlid_min.as_ref()) {
            Some(value) if last < first => self.error(
                value,
                format!("cntlid_min is {first} and cntlid_max {last}: the first is to be the smaller one"),
            ),
            _ => Ok(first..=last),
        }
    }

    fn state_dir(&self, file: &file::Target) -> Result<Option<PathBuf>> {
        match &file.state_dir {
            Some(path) if !path.as_ref().is_absolute() => {
                self.error(path, "state_dir must be absolute: the daemon does not start where you are")
            }
            path => Ok(path.as_ref().map(|path| path.as_ref().clone())),
        }
    }

    fn ana_groups(&self, groups: &[Spanned<file::AnaGroup>]) -> Result<Vec<AnaGroup>> {
        let of = |group: &Spanned<file::AnaGroup>| {
            let group = group.as_ref();
            Ok(AnaGroup {
                id: self.number("id", Some(&group.id), 1..=ANA_GROUPS_MAX, 1)?,
                state: self.word("state", Some(&group.state), &ANA_STATES, AnaState::OPTIMIZED)?,
            })
        };
        let checked = groups.iter().map(of).collect::<Result<Vec<_>>>()?;
        self.unique("id", groups.iter().map(|g| (g.as_ref().id.span(), *g.as_ref().id.as_ref())))?;
        Ok(checked)
    }

    fn address_list(&self, value: &Spanned<Vec<Spanned<String>>>) -> Result<AddressList> {
        let nets = value.as_ref();
        if nets.is_empty() {
            return self.error(value, "allow = [] lets nobody connect: name networks, or leave allow out");
        }
        self.at_most("networks in allow", nets.iter().map(Spanned::span), NETWORKS_MAX)?;
        let net = |text: &Spanned<String>| {
            let address = text.as_ref().parse::<IpAddr>().map(IpNet::from);
            address.or_else(|_| self.read("allow", text, "a network such as \"10.0.0.0/8\", or an address"))
        };
        nets.iter().map(net).collect()
    }

    pub(super) fn address(&self, value: &Spanned<String>, port: u16) -> Result<SocketAddr> {
        let text = value.as_ref();
        let ip = || text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        match text.parse().ok().or_else(|| Some(SocketAddr::new(ip()?, port))) {
            Some(SocketAddr::V6(v6)) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => self.error(
                value,
                format!(
                    "address \"{text}\" is a link-local address, which each interface may have: add the interface's \
                     index (ip link), for interface 2 \"[{}%2]:{}\"",
                    v6.ip(),
                    v6.port()
                ),
            ),
            Some(address) => Ok(address),
            None => self.error(
                value,
                format!(
                    "address \"{text}\" is not an IP address, alone (port {port} then) or with a port: \
                     write one such as \"192.0.2.1:4420\" or \"[2001:db8::1]:4420\""
                ),
            ),
        }
    }

    fn verbs(&self, file: &file::Verbs) -> Result<VerbsOptions> {
        if let Some(value) = &file.path_mtu {
            return self.error(
                value,
                "path_mtu is not a target's to choose: a connection's two ends must agree, and the host's end decides. Remove it; \
                 to have smaller packets, lower the MTU of the network interface",
            );
        }
        Ok(VerbsOptions {
            gid_index: self.some("gid_index", file.gid_index.as_ref(), 0..=255)?,
            pkey_index: self.some("pkey_index", file.pkey_index.as_ref(), 0..=65535)?,
            dscp: self.some("dscp", file.dscp.as_ref(), 0..=63)?,
            retry_count: self.some("retry_count", file.retry_count.as_ref(), 0..=7)?,
            rnr_retry_count: self.some("rnr_retry_count", file.rnr_retry_count.as_ref(), 0..=7)?,
            ack_timeout: self.some("ack_timeout", file.ack_timeout.as_ref(), 1..=31)?,
            memory_windows: file.memory_windows.as_ref().map(|value| *value.as_ref()),
        })
    }
}
