//! The flags that name a target: nvme-cli's.
//!
//! | file | what it does |
//! |---|---|
//! | `address` | where the target is |
//! | `paths` | the paths of a call, and those that are added later |
//! | `transport` | what carries the commands, and TLS |
//! | `authentication` | secrets |

mod address;
mod authentication;
mod paths;
mod transport;

pub(super) use address::with_port;
pub(crate) use paths::Further;

use super::path::{PathArgument, path};
use super::refused::Absent;
use crate::connect::Transport;
use crate::namespace::{DiskName, only};
use crate::print::wrong_arguments;
use anyhow::{Result, ensure};
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_host::Namespace;
use nvmf_initiator::{HostIdentity, Options, PathOptions, PathPolicy, Preference, VerbsOptions};
use nvmf_tls::Key;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use uuid::Uuid;

/// The port of NVMe over Fabrics.
pub(crate) const PORT: u16 = 4420;
/// I/O queues that a controller has at the most.
const IO_QUEUES_MAX: u16 = 128;
/// How long a command whose answer somebody waits for waits for a path, where --fast-io-fail-tmo does not say.
const ANSWER_SECONDS: u32 = 5;
/// The port of discovery over NVMe/TCP.
pub(crate) const DISCOVERY_PORT: u16 = 8009;

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
    /// The key of that file, where it was read before ([`paths::Further`])
    #[arg(skip)]
    key: Option<Key>,
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
    /// Its paths as they were found before: their names are not looked up again.
    #[arg(skip)]
    pub(super) found: Vec<PathOptions>,
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
    /// The disk that this namespace has to be
    #[arg(long, hide = true, requires = "nsid")]
    disk: Option<DiskName>,
}

pub(super) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| "a port is a number from 1 to 65535".to_owned())
}

fn host_id(text: &str) -> Result<Uuid, String> {
    Uuid::parse_str(text).map_err(|_| "a host identifier is a UUID (`uuidgen` makes one)".to_owned())
}

impl TargetArguments {
    fn traddr(&self) -> Result<&str> {
        match &self.traddr {
            Some(traddr) => Ok(traddr),
            None => wrong_arguments("-a (--traddr) is missing: the address of the target"),
        }
    }

    /// How long I/O waits for a path, and which option says so.
    pub(super) fn patience(&self) -> String {
        let fast = self.fast_io_fail_tmo.map(|seconds| (u64::from(seconds), "--fast-io-fail-tmo"));
        let lost = u64::try_from(self.ctrl_loss_tmo).map(|seconds| (seconds, "--ctrl-loss-tmo"));
        match fast.into_iter().chain(lost).min() {
            Some((seconds, option)) => format!("for up to {seconds} s ({option})"),
            None => "without end (--ctrl-loss-tmo)".to_owned(),
        }
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

    /// Who this host is.
    pub(crate) fn host(&self) -> Result<HostIdentity> {
        if let (Some(nqn), Some(id)) = (self.hostnqn, self.hostid) {
            return Ok(HostIdentity { nqn, id: HostId(id.into_bytes()) });
        }
        let HostIdentity { nqn, id } = HostIdentity::of_this_machine_or_new()?;
        let own = self.hostid.map(|id| HostId(id.into_bytes()));
        Ok(HostIdentity { nqn: self.hostnqn.unwrap_or(nqn), id: own.unwrap_or(id) })
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

impl NamespaceArguments {
    /// The same for a command whose answer somebody waits for: where no path is there soon, it fails, if nobody wants
    /// it otherwise.
    pub(super) fn answered_soon(&self) -> Self {
        let mut soon = self.clone();
        soon.target.fast_io_fail_tmo.get_or_insert(ANSWER_SECONDS);
        soon
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
        let nsid = only(&self.nqn, self.nsid.map(Nsid), namespaces)?;
        self.check_disk(namespaces)?;
        Ok(nsid)
    }

    /// Fails where an attached disk was named, and its NSID is another one's by now.
    pub(super) fn check_disk(&self, namespaces: &[Namespace]) -> Result<()> {
        let (Some(disk), Some(nsid)) = (&self.disk, self.nsid) else { return Ok(()) };
        let is_it = |there: &Namespace| there.nsid == Nsid(nsid) && DiskName::from(there) == *disk;
        ensure!(
            namespaces.iter().any(is_it),
            "{} does not show the disk that was attached as namespace {nsid} now, or shows another one in its place: nothing was sent \
             (nvmf list says how the disk is)",
            self.nqn
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn target(call: &[&str]) -> TargetArguments {
        use clap::Parser;
        #[derive(Parser)]
        struct Call {
            #[command(flatten)]
            target: TargetArguments,
        }
        Call::parse_from([&["nvmf", "-t", "tcp"], call].concat()).target
    }
}
