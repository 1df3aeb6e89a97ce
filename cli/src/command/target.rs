//! The flags that name a target: nvme-cli's.

use super::dhchap_key::{is_secret, read_secret};
use super::path::{PathArgument, path};
use super::refused::Absent;
use crate::connect::Transport;
use crate::discovery::{Place, SubsystemPath};
use crate::namespace::only;
use crate::print::{chain, wrong_arguments};
use anyhow::{Context, Result, anyhow};
use nix::net::if_::if_nametoindex;
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_host::Namespace;
use nvmf_initiator::auth::host::Secrets;
use nvmf_initiator::{
    AddressSource, AuthenticationOptions, HostIdentity, Options, PathOptions, PathPolicy, Preference,
    SecretsSource, TcpOptions, TlsOptions, TransportOptions, VerbsOptions,
};
use nvmf_tls::{Key, NVME_KEYRING, Version, read_key_file};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// The port of NVMe over Fabrics.
pub(super) const PORT: u16 = 4420;
/// I/O queues that a controller has at the most.
const IO_QUEUES_MAX: u16 = 128;
/// How long one of several addresses of a name may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The port of discovery over NVMe/TCP.
const DISCOVERY_PORT: u16 = 8009;

/// Which target, and how to connect to it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TargetArguments {
    /// Transport
    #[arg(short = 't', long, value_enum, default_value_t = Transport::Rdma)]
    transport: Transport,
    /// Address or name of the target
    #[arg(short = 'a', long, required_unless_present = "paths")]
    traddr: Option<String>,
    /// Port; 4420 by default, and 8009 for discovery over tcp
    #[arg(short = 's', long, value_parser = port)]
    trsvcid: Option<u16>,
    /// Another path to the same subsystem, as 192.0.2.2, [2001:db8::2]:4421, name:4420/tcp: port and transport are those of -s and
    /// -t where none is named, and so are all other options but what it has for itself after a comma: host-traddr=ADDRESS,
    /// host-iface=NAME, tls, hdr-digest, data-digest. I/O goes on as long as one path is there. Repeat it for more
    #[arg(long = "path", value_name = "ADDRESS[:PORT][/TRANSPORT][,OPTION]...", value_parser = path)]
    paths: Vec<PathArgument>,
    /// Which path a command goes to, of those that lead to its namespace equally well (ANA)
    #[arg(long, value_enum, default_value_t = IoPolicy::QueueDepth)]
    iopolicy: IoPolicy,
    /// NQN of this host, instead of the machine's
    #[arg(short = 'q', long)]
    pub(super) hostnqn: Option<Nqn>,
    /// Identifier of this host (a UUID), instead of the machine's
    #[arg(short = 'I', long, value_parser = host_id)]
    hostid: Option<Uuid>,
    /// Address of this host to connect from
    #[arg(short = 'w', long)]
    host_traddr: Option<IpAddr>,
    /// Network interface to connect through (tcp)
    #[arg(short = 'f', long)]
    host_iface: Option<String>,
    /// Of rdma, the provider: auto takes the device on the route to the target, else userspace iWARP over TCP
    #[arg(long, value_enum, default_value_t = Provider::Auto)]
    provider: Provider,
    /// Insist on a checksum of the data (rdma): of iwarp a CRC of each frame, which is off by default
    #[arg(long)]
    crc: bool,
    /// Type of service of connections over tcp or an RDMA device (RoCE: the traffic class)
    #[arg(short = 'T', long)]
    tos: Option<u8>,
    /// I/O queues
    #[arg(short = 'i', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    nr_io_queues: u16,
    /// I/O queues for everything but reads, beside those of --nr-io-queues, which then take reads alone
    #[arg(short = 'W', long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=127))]
    nr_write_queues: u16,
    /// Checksums of PDU headers (tcp)
    #[arg(short = 'g', long)]
    hdr_digest: bool,
    /// Checksums of data (tcp)
    #[arg(short = 'G', long)]
    data_digest: bool,
    /// Connect with TLS (tcp): with the key that is given, else with one from the kernel's keyring
    #[arg(long)]
    tls: bool,
    /// File with the key for --tls, in the form NVMeTLSkey-1:…, which only its owner may read
    #[arg(long, value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// The key for --tls; better is --tls-key-file: others see a command's arguments
    #[arg(long, alias = "tls_key", value_name = "KEY", conflicts_with = "tls_key_file")]
    tls_key: Option<String>,
    /// Offer only the identity of this version for --tls: needed with a Linux target whose keyring has the older one, 0
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=1))]
    tls_identity_version: Option<u8>,
    /// The kernel's keyring to look into for --tls; .nvme by default
    #[arg(long, value_name = "NAME")]
    keyring: Option<String>,
    /// Secret of this host for DH-HMAC-CHAP: DHHC-1:…, or better a file that holds it, which only its owner may read: others
    /// see a command's arguments. The target must ask for it
    #[arg(short = 'S', long, alias = "dhchap_secret", value_name = "SECRET|FILE")]
    dhchap_secret: Option<String>,
    /// Secret that the target must prove to have, in the same way
    #[arg(long, alias = "dhchap_ctrl_secret", value_name = "SECRET|FILE", requires = "dhchap_secret")]
    dhchap_ctrl_secret: Option<String>,
    /// Authenticate, and connect with TLS by the key that this makes (tcp): needs no key but --dhchap-secret
    #[arg(long, requires = "dhchap_secret", conflicts_with_all = ["tls", "dhchap_optional"])]
    concat: bool,
    /// Connect also to a target that does not ask for --dhchap-secret
    #[arg(long, requires = "dhchap_secret")]
    dhchap_optional: bool,
    /// Ask for submission queues without flow control: over tcp a read then needs no response of its own
    #[arg(short = 'd', long)]
    disable_sqflow: bool,
    /// Commands in an I/O queue
    #[arg(short = 'Q', long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(2..=1024))]
    queue_size: u16,
    /// Keep alive timeout, in seconds
    #[arg(short = 'k', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    keep_alive_tmo: u32,
    /// Seconds before the first reconnect
    #[arg(short = 'c', long, default_value_t = 1)]
    reconnect_delay: u32,
    /// Seconds to try to reconnect before all I/O fails; -1 is for ever
    #[arg(short = 'l', long, default_value_t = 600, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..))]
    ctrl_loss_tmo: i64,
    /// Seconds that I/O waits for a reconnect before it fails, while reconnecting goes on. By default I/O waits as long as
    /// --ctrl-loss-tmo says. A write that failed so may yet take effect until two Keep Alive Timeouts have passed
    #[arg(long)]
    fast_io_fail_tmo: Option<u32>,
    /// It is one of --path, not that of -a.
    #[arg(skip)]
    is_further: bool,
    #[command(flatten)]
    _absent: Absent,
}

/// Over which RDMA.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    Auto,
    Iwarp,
    Verbs,
}

/// Which path a command goes to.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum IoPolicy {
    /// One after the other
    RoundRobin,
    /// The one with the fewest commands
    QueueDepth,
    /// The one that is expected to answer first
    Latency,
}

impl From<IoPolicy> for PathPolicy {
    fn from(policy: IoPolicy) -> Self {
        match policy {
            IoPolicy::RoundRobin => Self::RoundRobin,
            IoPolicy::QueueDepth => Self::QueueDepth,
            IoPolicy::Latency => Self::Latency,
        }
    }
}

impl From<Provider> for Preference {
    fn from(provider: Provider) -> Self {
        match provider {
            Provider::Auto => Self::Auto,
            Provider::Iwarp => Self::Iwarp,
            Provider::Verbs => Self::Verbs,
        }
    }
}

/// A name has no address now.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a name that resolves: check {1}")]
struct Unresolved(String, &'static str);

/// A path that cannot be used with the options that are given: others may be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RuledOut(String);

/// Which subsystem and namespace of it.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NamespaceArguments {
    #[command(flatten)]
    pub(crate) target: TargetArguments,
    /// NQN of the subsystem
    #[arg(short = 'n', long)]
    pub(crate) nqn: Nqn,
    /// Namespace; need not be named where there is only one
    #[arg(long, visible_alias = "namespace-id")]
    pub(crate) nsid: Option<u32>,
}

pub(super) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| "a port is a number from 1 to 65535".to_owned())
}

fn host_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text).map_err(|_| "a host identifier is a UUID (`uuidgen` makes one)".to_owned())
}

/// Address and port, where the text is both: `192.0.2.1:4420`, `[2001:db8::1]:4420`, `name:4420`.
pub(super) fn with_port(text: &str) -> Option<(&str, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    let is_whole = !address.contains(':') || (address.starts_with('[') && address.ends_with(']'));
    Some((address, port.parse().ok().filter(|_| is_whole && !address.is_empty())?))
}

/// A key that was given as an argument.
fn parse_key(text: &str) -> Result<Key> {
    Key::parse(text).or_else(|error| {
        let is_number = text.trim_start_matches("0x").bytes().all(|byte| byte.is_ascii_hexdigit());
        wrong_arguments(if is_number {
            format!(
                "--tls-key {text}: here it is the key itself (NVMeTLSkey-1:…), not the number of a key in the keyring as \
                 of nvme-cli: leave it out, and --tls takes this host's key from the keyring"
            )
        } else {
            format!("--tls-key: {error}")
        })
    })
}

/// The secrets that are given, or in the files that are named.
fn read_secrets(host: &str, controller: Option<&str>) -> Result<Secrets> {
    let host = read_secret("--dhchap-secret", host)?;
    let controller = controller.map(|secret| read_secret("--dhchap-ctrl-secret", secret)).transpose()?;
    Ok(Secrets { host, controller })
}

/// An address that says nothing without its interface.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The addresses that can be reached from `source`.
fn of_family(addresses: &[SocketAddr], source: Option<IpAddr>) -> Vec<SocketAddr> {
    let fits = |address: &&SocketAddr| source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
    addresses.iter().filter(fits).copied().collect()
}

/// Of the addresses of one name, the first that takes a connection: a target may listen on one of them only. One address
/// is not tried.
fn first_that_answers(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, ANSWER_TIMEOUT).is_ok();
    addresses.iter().filter(|_| addresses.len() > 1).find(answers).copied()
}

impl TargetArguments {
    fn traddr(&self) -> Result<&str> {
        match &self.traddr {
            Some(traddr) => Ok(traddr),
            None => wrong_arguments("-a (--traddr) is missing: the address of the target"),
        }
    }

    /// How long I/O waits for a path, in seconds; `None`: without end.
    pub(super) fn patience(&self) -> Option<u64> {
        let fast = self.fast_io_fail_tmo.map(u64::from);
        fast.into_iter().chain(u64::try_from(self.ctrl_loss_tmo)).min()
    }

    /// Whether an address is given.
    pub(crate) fn names_a_target(&self) -> bool {
        self.traddr.is_some() || !self.paths.is_empty()
    }

    /// Whether -a names a path, whose options are those of all others.
    pub(super) fn has_first(&self) -> bool {
        self.traddr.is_some()
    }

    fn port(&self, of_discovery: bool) -> u16 {
        let is_tcp_discovery = self.transport == Transport::Tcp && of_discovery;
        self.trsvcid.unwrap_or(if is_tcp_discovery { DISCOVERY_PORT } else { PORT })
    }

    /// Where that is, as it is written: the first path.
    pub(crate) fn place(&self, of_discovery: bool) -> Result<Place> {
        let first = self.each_path().next().unwrap_or_else(|| self.clone());
        let address = first.traddr()?.trim_matches(['[', ']']).to_owned();
        Ok(Place { transport: first.transport.name().to_owned(), address, port: first.port(of_discovery) })
    }

    /// The paths, each with all that it has of its own or of the call.
    pub(crate) fn whole_paths(&self) -> Result<Vec<SubsystemPath>> {
        let whole = |path: Self| {
            let own = PathArgument {
                host_traddr: path.host_traddr,
                host_iface: path.host_iface.clone(),
                tls: path.tls,
                hdr_digest: path.hdr_digest,
                data_digest: path.data_digest,
                ..PathArgument::default()
            };
            Ok(SubsystemPath { place: path.place(false)?, options: own.options() })
        };
        self.each_path().map(whole).collect()
    }

    /// The paths, each with what it has for itself.
    pub(crate) fn paths(&self) -> Result<Vec<SubsystemPath>> {
        let own = self.traddr.iter().map(|_| Vec::new()).chain(self.paths.iter().map(PathArgument::options));
        let path = |(path, options): (Self, _)| Ok(SubsystemPath { place: path.place(false)?, options });
        self.each_path().zip(own).map(path).collect()
    }

    /// Who this host is.
    pub(crate) fn host(&self) -> Result<HostIdentity> {
        if let (Some(nqn), Some(id)) = (self.hostnqn, self.hostid) {
            return Ok(HostIdentity { nqn, id: HostId(id.into_bytes()) });
        }
        let HostIdentity { nqn, id } = HostIdentity::of_this_machine_or_new()?;
        let own = self.hostid.map(|id| HostId(id.into_bytes()));
        Ok(HostIdentity { nqn: self.hostnqn.unwrap_or(nqn), id: own.unwrap_or(id) })
    }

    /// The address, resolved if it is a name.
    fn address(&self, nqn: Nqn) -> Result<SocketAddr> {
        let port = self.port(nqn == Nqn::DISCOVERY);
        let traddr = self.traddr()?;
        if let Some((address, port)) = with_port(traddr) {
            return wrong_arguments(format!(
                "-a {traddr} has a port: the port goes into -s (--trsvcid): -a {address} -s {port}"
            ));
        }
        let text = traddr.trim_matches(['[', ']']);
        if let Some(address) = text.parse().ok().filter(|&address| is_link_local(address)) {
            return wrong_arguments(format!(
                "-a {address} is a link-local address, which each network has: add the interface to it, as in \
                 {address}%eth0"
            ));
        }
        let unresolved = || Unresolved(text.to_owned(), if self.is_further { "--path" } else { "-a" });
        let resolved: Vec<_> = (text, port).to_socket_addrs().with_context(unresolved)?.collect();
        let found = of_family(&resolved, self.host_traddr);
        match (found.first(), self.host_traddr) {
            (Some(&first), _) if self.transport == Transport::Tcp => {
                Ok(first_that_answers(&found).unwrap_or(first))
            }
            (Some(&first), _) => Ok(first),
            (None, Some(source)) if !resolved.is_empty() => Err(RuledOut(format!(
                "--host-traddr {source} and the target's address, {}, are of different kinds (IPv4, IPv6): no \
                 connection leads from one to the other",
                resolved.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
            ))
            .into()),
            (None, _) => Err(unresolved().into()),
        }
    }

    /// Where the address is looked up again when the connection was lost; `None` for one that is no name.
    fn address_source(&self, nqn: Nqn) -> Option<AddressSource> {
        let name = self.traddr.as_deref()?.trim_matches(['[', ']']);
        if name.parse::<IpAddr>().is_ok() {
            return None;
        }
        let arguments = self.clone();
        Some(AddressSource::of_name(name, move || arguments.address(nqn).ok()))
    }

    /// What carries the commands, as the flags say.
    fn transport(&self) -> Result<TransportOptions> {
        match self.transport {
            Transport::Tcp if self.provider != Provider::Auto => {
                wrong_arguments("--provider is for -t rdma: leave it out, or use that transport")
            }
            Transport::Tcp if self.crc => {
                let text = "--crc is for -t rdma: over tcp use --hdr-digest and --data-digest";
                Err(RuledOut(text.to_owned()).into())
            }
            Transport::Tcp => {
                let mut tcp = TcpOptions::default();
                tcp.header_digest = self.hdr_digest;
                tcp.data_digest = self.data_digest;
                tcp.tos = self.tos;
                tcp.interface = self.host_iface.clone();
                tcp.tls = self.tls_options()?;
                Ok(TransportOptions::Tcp(tcp))
            }
            Transport::Rdma if self.tos.is_some() && self.provider == Provider::Iwarp => wrong_arguments(
                "--tos is for -t tcp and for RDMA devices: userspace iWARP does not set it; leave it out",
            ),
            Transport::Rdma => match self.option_of_tcp() {
                Some(option) => Err(RuledOut(format!(
                    "{option} is for -t tcp: leave it out, or use that transport (over rdma, --crc asks for checksums)"
                ))
                .into()),
                None => Ok(TransportOptions::Rdma),
            },
        }
    }

    /// An option that was given and is of NVMe/TCP only.
    fn option_of_tcp(&self) -> Option<&'static str> {
        let options = [
            ("--tls", self.tls),
            ("--concat", self.concat),
            ("--hdr-digest", self.hdr_digest),
            ("--data-digest", self.data_digest),
            ("--host-iface", self.host_iface.is_some()),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// What an option says to everybody, if a key itself was given; `from_file`: not where a file has it.
    pub(super) fn key_as_argument(&self, from_file: bool) -> Option<&'static str> {
        let is_shown =
            |secret: &str| !from_file || std::env::args_os().any(|it| it.to_string_lossy().contains(secret));
        let is_secret = |option: &Option<String>| {
            option.as_deref().is_some_and(|secret| is_secret(secret) && is_shown(secret))
        };
        match () {
            () if self.tls_key.is_some() => Some("--tls-key would show the key"),
            () if is_secret(&self.dhchap_secret) => Some("--dhchap-secret would show the secret"),
            () if is_secret(&self.dhchap_ctrl_secret) => Some("--dhchap-ctrl-secret would show the secret"),
            () => None,
        }
    }

    /// The port that is used where none is named is not one where disks are served.
    pub(super) fn asks_discovery_port(&self) -> bool {
        self.transport == Transport::Tcp && self.trsvcid.is_none()
    }

    /// That what is said of TLS is said of a path with TLS.
    fn check_tls(&self) -> Result<()> {
        let is_of_tls = self.tls_key_file.is_some()
            || self.tls_key.is_some()
            || self.tls_identity_version.is_some()
            || self.keyring.is_some();
        if is_of_tls && !self.each_path().any(|path| path.tls) {
            return wrong_arguments(
                "--tls-key-file, --tls-key, --tls-identity-version and --keyring go with --tls: add it, or leave them out",
            );
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<()> {
        let (reads, writes) = (self.nr_io_queues, self.nr_write_queues);
        if reads + writes > IO_QUEUES_MAX {
            return wrong_arguments(format!(
                "--nr-io-queues {reads} and --nr-write-queues {writes} are more than {IO_QUEUES_MAX} together: ask for fewer"
            ));
        }
        Ok(())
    }

    /// What this machine does not have now of what to connect from: the address, or the interface.
    fn missing_source(&self) -> Result<Option<anyhow::Error>> {
        if let Some(address) = self.host_traddr {
            if is_link_local(address) {
                return wrong_arguments(format!(
                    "-w {address} is a link-local address, which each interface may have: name the interface \
                     instead, with -f (tcp)"
                ));
            }
            if let Err(error) = UdpSocket::bind((address, 0)) {
                return Ok(Some(anyhow!(error).context(format!(
                    "--host-traddr {address}: this machine has no such address (`ip address` lists them)"
                ))));
            }
        }
        let Some(name) = &self.host_iface else { return Ok(None) };
        let missing = |error: nix::Error| {
            anyhow!(error).context(format!(
                "--host-iface {name}: this machine has no such network interface (`ip link` lists them)"
            ))
        };
        Ok(if_nametoindex(name.as_str()).err().map(missing))
    }

    /// The key, if TLS is wanted.
    fn tls_options(&self) -> Result<Option<TlsOptions>> {
        let options = match (self.tls, &self.tls_key_file, &self.tls_key) {
            (false, ..) => return Ok(None),
            (true, Some(path), _) => TlsOptions::new(read_key_file(path)?),
            (true, None, Some(text)) => TlsOptions::new(parse_key(text)?),
            (true, None, None) => TlsOptions::of_keyring(self.keyring.as_deref().unwrap_or(NVME_KEYRING)),
        };
        Ok(Some(match self.tls_identity_version {
            None => options,
            Some(0) => options.with_version(Version::V0),
            Some(_) => options.with_version(Version::V1),
        }))
    }

    /// The files of secrets, to be read again; `None` where there is none.
    fn secrets_source(&self) -> Option<SecretsSource> {
        // As it is written now: a server changes its working folder.
        let absolute = |text: &String| {
            let path =
                std::path::absolute(text).ok().and_then(|path| path.into_os_string().into_string().ok());
            if is_secret(text) { text.clone() } else { path.unwrap_or_else(|| text.clone()) }
        };
        let host = self.dhchap_secret.as_ref().map(absolute)?;
        let controller = self.dhchap_ctrl_secret.as_ref().map(absolute);
        let read = move || read_secrets(&host, controller.as_deref()).map_err(|error| format!("{error:#}"));
        Some(SecretsSource::new(read))
    }

    /// What to prove and to ask for, if there is a secret.
    fn authentication(&self) -> Result<Option<AuthenticationOptions>> {
        let Some(secret) = &self.dhchap_secret else { return Ok(None) };
        let secrets = read_secrets(secret, self.dhchap_ctrl_secret.as_deref())?;
        let mut options = AuthenticationOptions::new(secrets);
        options.insist = !self.dhchap_optional;
        options.concat = self.concat;
        options.source = self.secrets_source();
        Ok(Some(options))
    }

    /// The paths: that of -a, and the further ones, each as if it were the only one.
    fn each_path(&self) -> impl Iterator<Item = Self> {
        let transport = |path: &PathArgument| path.transport.unwrap_or(self.transport);
        let is_first = self.traddr.is_some();
        let mut transports = self.paths.iter().map(transport).chain(is_first.then_some(self.transport));
        let is_mixed = transports.next().is_some_and(|first| transports.any(|other| other != first));
        let further = move |path: &PathArgument| {
            let one = Self {
                traddr: Some(path.address.clone()),
                trsvcid: path.port.or(self.trsvcid),
                is_further: true,
                ..self.over(transport(path), is_mixed)
            };
            Self {
                host_traddr: path.host_traddr.or(one.host_traddr),
                host_iface: path.host_iface.clone().or(one.host_iface),
                tls: path.tls || one.tls,
                hdr_digest: path.hdr_digest || one.hdr_digest,
                data_digest: path.data_digest || one.data_digest,
                ..one
            }
        };
        let first = is_first.then(|| self.over(self.transport, is_mixed));
        first.into_iter().chain(self.paths.iter().map(further))
    }

    /// The options of one path. Where there are several transports, what is of another one is not meant for it; but what insists
    /// on something (`--tls`, `--crc`) is.
    fn over(&self, transport: Transport, is_mixed: bool) -> Self {
        let mut one = Self { transport, paths: Vec::new(), ..self.clone() };
        match transport {
            _ if !is_mixed => {}
            Transport::Tcp => one.provider = Provider::Auto,
            Transport::Rdma => {
                (one.hdr_digest, one.data_digest, one.host_iface) = (false, false, None);
                one.tos = one.tos.filter(|_| one.provider != Provider::Iwarp);
            }
        }
        one
    }

    /// The paths, of which one at least can be tried now: first those that can, each in its turn. One whose name has no
    /// address now, or whose source this machine does not have, is away, as one whose controller is, and is tried again.
    fn path_options(&self, nqn: Nqn) -> Result<Vec<PathOptions>> {
        let (mut known, mut unknown, mut failed) = (Vec::new(), Vec::new(), None);
        let mut ruled_out = Vec::new();
        // Each discovery service is asked for itself.
        let count = if nqn == Nqn::DISCOVERY { 1 } else { usize::MAX };
        for path in self.each_path().take(count) {
            let within = |error: anyhow::Error| match &path.traddr {
                Some(name) if path.is_further => error.context(format!("--path {name}")),
                _ => error,
            };
            match path.one_path(nqn) {
                Ok((options, None)) => known.push(options),
                Ok((options, Some(problem))) => {
                    failed.get_or_insert(within(problem));
                    unknown.push(options);
                }
                Err(error) if error.is::<RuledOut>() => ruled_out.push(within(error)),
                Err(error) => return Err(within(error)),
            }
        }
        match (failed, ruled_out.first()) {
            (Some(error), _) if known.is_empty() => return Err(error),
            (_, Some(error)) if known.is_empty() => return wrong_arguments(chain(error)),
            (None, None) if known.is_empty() => self.traddr().map(drop)?,
            _ => {}
        }
        for error in ruled_out {
            tracing::warn!("a path is left out: {}", chain(&error));
        }
        Ok([known, unknown].concat())
    }

    /// The only path of these options, and why it cannot be tried now.
    fn one_path(&self, nqn: Nqn) -> Result<(PathOptions, Option<anyhow::Error>)> {
        match self.address(nqn) {
            Ok(address) => Ok((self.path_to(nqn, address)?, self.missing_source()?)),
            Err(error) if error.is::<Unresolved>() => Ok((self.path_to_name(nqn)?, Some(error))),
            Err(error) => Err(error),
        }
    }

    /// The same without looking a name up: it is away until that was done.
    fn path_to_name(&self, nqn: Nqn) -> Result<PathOptions> {
        self.path_to(nqn, (Ipv4Addr::UNSPECIFIED, self.port(nqn == Nqn::DISCOVERY)).into())
    }

    fn path_to(&self, nqn: Nqn, address: SocketAddr) -> Result<PathOptions> {
        let mut options = PathOptions::new(address, self.transport()?);
        options.address_source = self.address_source(nqn);
        options.source = self.host_traddr.map(|address| (address, 0).into());
        Ok(options)
    }

    /// The options of one more path beside these, as `--path` names it. A subsystem that is reached by TLS gets none in the clear.
    fn further(&self, text: &str) -> Result<Self> {
        let mut argument = path(text).or_else(|problem| wrong_arguments(format!("{text}: {problem}")))?;
        let has_tls = self.each_path().any(|path| path.tls);
        if (has_tls || self.concat) && argument.transport.unwrap_or(self.transport) != Transport::Tcp {
            return wrong_arguments(format!(
                "{text}: the disk is reached by TLS, and over rdma there is none: add a path over tcp"
            ));
        }
        argument.tls |= has_tls;
        // Beside those that there are, so that it is known which options are meant for it.
        let all = Self { paths: [self.paths.clone(), vec![argument]].concat(), ..self.clone() };
        all.each_path().last().context("it is no path")
    }

    /// How to connect to this subsystem.
    pub(crate) fn options(&self, nqn: Nqn) -> Result<Options> {
        let host = self.host()?;
        let mut paths = self.path_options(nqn)?;
        let first = paths.remove(0);
        self.check_queues()?;
        self.check_tls()?;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let mut options = Options::over(first, nqn, host);
        options.paths = paths;
        options.path_policy = self.iopolicy.into();
        options.provider = self.provider.into();
        options.crc = self.crc;
        options.verbs = VerbsOptions { traffic_class: self.tos, ..VerbsOptions::default() };
        options.authentication = self.authentication()?;
        options.io_queues = self.nr_io_queues;
        options.write_queues = self.nr_write_queues;
        options.disable_flow_control = self.disable_sqflow;
        options.queue_depth = self.queue_size;
        options.keep_alive = seconds(self.keep_alive_tmo);
        options.reconnect_delay = seconds(self.reconnect_delay);
        options.fast_io_fail_timeout = self.fast_io_fail_tmo.map(seconds);
        options.ctrl_loss_timeout = u64::try_from(self.ctrl_loss_tmo).ok().map(Duration::from_secs);
        Ok(options)
    }
}

/// How to connect to a subsystem over further paths.
#[derive(Clone, Debug)]
pub(crate) struct Further {
    target: TargetArguments,
    nqn: Nqn,
}

impl Further {
    /// The path that `--path` would name so.
    pub(crate) fn path(&self, name: &str) -> Result<PathOptions> {
        self.target.further(name)?.one_path(self.nqn).map(|(path, _)| path)
    }

    /// The same, without waiting for a name to be looked up.
    pub(crate) fn path_later(&self, name: &str) -> Result<PathOptions> {
        let path = self.target.further(name)?;
        match path.address_source(self.nqn) {
            Some(_) => path.path_to_name(self.nqn),
            None => path.one_path(self.nqn).map(|(path, _)| path),
        }
    }
}

impl NamespaceArguments {
    /// How to connect over further paths, from whatever folder.
    pub(super) fn further(&self) -> Result<Further> {
        let mut target = self.target.clone();
        target.tls_key_file = target.tls_key_file.map(std::path::absolute).transpose()?;
        Ok(Further { target, nqn: self.nqn })
    }

    pub(crate) fn options(&self) -> Result<Options> {
        if self.nqn == Nqn::DISCOVERY {
            return wrong_arguments(format!(
                "-n {}: the discovery subsystem has no namespaces; `nvmf discover` lists the subsystems that have",
                self.nqn
            ));
        }
        self.target.options(self.nqn)
    }

    /// The namespace that is meant, among those that there are. Where there are several it must be named.
    pub(crate) fn choose(&self, namespaces: &[Namespace]) -> Result<Nsid> {
        only(&self.nqn, self.nsid.map(Nsid), namespaces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_looked_up_again_and_an_address_is_not() {
        for address in ["192.0.2.1", "2001:db8::1", "[2001:db8::1]"] {
            assert!(target(&["-a", address]).address_source(Nqn::DISCOVERY).is_none());
        }
        assert!(target(&["-a", "localhost"]).address_source(Nqn::DISCOVERY).is_some());
        let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        let paths = ["-a", "192.0.2.1", "--path", "localhost:4421", "--path", "192.0.2.2"];
        let paths = target(&paths).path_options(nqn).unwrap();
        let is_name: Vec<_> = paths.iter().map(|path| path.address_source.is_some()).collect();
        assert_eq!(is_name, [false, true, false], "each for itself");
    }

    fn target(call: &[&str]) -> TargetArguments {
        use clap::Parser;
        #[derive(Parser)]
        struct Call {
            #[command(flatten)]
            target: TargetArguments,
        }
        Call::parse_from([&["nvmf", "-t", "tcp"], call].concat()).target
    }

    /// How a disk that was attached by this call gets further paths.
    fn further(call: &[&str]) -> Further {
        Further { target: target(call), nqn: "nqn.2026-11.com.example:disk".parse().unwrap() }
    }

    #[test]
    fn path_beside_others_with_tls_has_it_too_or_cannot_be() {
        let key = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let tls = |path: &PathOptions| matches!(&path.transport, TransportOptions::Tcp(tcp) if tcp.tls.is_some());
        let one = ["-a", "127.0.0.1", "--path", "127.0.0.2,tls", "--tls-key", key];
        for call in [&one[..], &["-a", "127.0.0.1", "--tls", "--tls-key", key]] {
            let further = further(call);
            assert!(tls(&further.path("127.0.0.3").unwrap()), "{call:?}");
            assert!(tls(&further.path_later("localhost").unwrap()), "{call:?}");
            let error = further.path("127.0.0.3/rdma").unwrap_err().to_string();
            assert!(error.contains("the disk is reached by TLS"), "{error}");
        }
        assert!(!tls(&further(&["-a", "127.0.0.1"]).path("127.0.0.3").unwrap()));
    }

    #[test]
    fn name_of_a_path_is_not_waited_for_where_that_is_not_wanted() {
        let further = further(&["-a", "127.0.0.1"]);
        assert!(further.path_later("localhost:4421").unwrap().address.ip().is_unspecified());
        assert!(further.path("localhost:4421").unwrap().address.ip().is_loopback());
        assert_eq!(further.path_later("127.0.0.2:4421").unwrap().address.to_string(), "127.0.0.2:4421");
    }

    /// The paths that this call has.
    fn paths(call: &[&str]) -> Result<Vec<PathOptions>> {
        target(call).path_options("nqn.2026-11.com.example:disk".parse().unwrap())
    }

    #[test]
    fn path_has_its_own_options_and_else_those_of_the_call() {
        let found = paths(&[
            "--path",
            "127.0.0.1,host-traddr=127.0.0.5,hdr-digest",
            "--path",
            "127.0.0.2",
            "-w",
            "127.0.0.6",
        ]);
        let found = found.unwrap();
        let source = |path: &PathOptions| path.source.map(|source| source.ip().to_string()).unwrap();
        assert_eq!(found.iter().map(source).collect::<Vec<_>>(), ["127.0.0.5", "127.0.0.6"]);
        let digest =
            |path: &PathOptions| matches!(&path.transport, TransportOptions::Tcp(tcp) if tcp.header_digest);
        assert_eq!(found.iter().map(digest).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn options_of_one_transport_are_for_its_paths() {
        let found =
            paths(&["-a", "127.0.0.1", "--path", "127.0.0.2/rdma", "-g", "--provider", "iwarp"]).unwrap();
        assert!(matches!(&found[0].transport, TransportOptions::Tcp(tcp) if tcp.header_digest));
        assert!(matches!(found[1].transport, TransportOptions::Rdma));
        let error = paths(&["-a", "127.0.0.1", "--provider", "iwarp"]).unwrap_err();
        assert!(error.is::<crate::print::WrongArguments>(), "there is no path that it is for: {error}");
    }

    #[test]
    fn path_that_the_options_rule_out_is_left_out_where_there_are_others() {
        for ruled_out in [
            &["-a", "127.0.0.1", "--path", "[::1]", "-w", "127.0.0.1"][..],
            &["-a", "::1", "--path", "127.0.0.1,host-traddr=127.0.0.1", "-w", "127.0.0.1"],
            &["-a", "127.0.0.1", "--path", "127.0.0.2/rdma", "--tls"],
        ] {
            let found = paths(ruled_out).unwrap();
            assert_eq!(found.len(), 1, "{ruled_out:?}");
            assert_eq!(found[0].address.ip().to_string(), "127.0.0.1");
        }
        let error = paths(&["-a", "::1", "-w", "127.0.0.1"]).unwrap_err();
        assert!(error.is::<crate::print::WrongArguments>(), "{error}");
        // An interface that is away may come back.
        let found = paths(&["-a", "127.0.0.1", "--path", "127.0.0.2,host-traddr=192.0.2.77"]).unwrap();
        assert_eq!(found.len(), 2);
        assert!(paths(&["-a", "127.0.0.2", "-w", "192.0.2.77"]).is_err());
    }

    #[test]
    fn address_of_a_name_is_one_that_answers_from_where_it_is_asked() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        // Nobody listens there.
        let other = SocketAddr::from(([127, 0, 0, 2], here.port()));
        assert_eq!(first_that_answers(&[other, here]), Some(here));
        assert_eq!(first_that_answers(&[other, other]), None);
        assert_eq!(first_that_answers(&[here]), None, "there is no choice");
        let v6 = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 4420));
        assert_eq!(of_family(&[v6, here], Some(here.ip())), [here]);
        assert_eq!(of_family(&[v6, here], None), [v6, here]);
    }
}
