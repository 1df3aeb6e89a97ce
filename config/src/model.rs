//! What a configuration means.

use crate::{AddressList, Cluster, ConfigError, Rbd, check, file};
use core::fmt;
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::fabrics::auth::{DhGroup, HashId};
use nvme_proto::nqn::Nqn;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that the target serves, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The daemon itself.
    pub target: Target,
    /// The discovery service.
    pub discovery: Discovery,
    /// Where it listens: no address twice over one transport.
    pub listeners: Vec<Listener>,
    /// What it exports: no NQN twice.
    pub subsystems: Vec<Subsystem>,
    /// What is known of hosts: no NQN twice. Others may connect as well.
    pub hosts: Vec<Host>,
    /// What is measured of commands, and who is told; nothing is without.
    pub metrics: Option<Metrics>,
    /// The group of gateways that this one is of.
    pub cluster: Option<Cluster>,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Worker threads, 1 to 64.
    pub workers: usize,
    /// How a worker waits.
    pub poll: Poll,
    /// How long an adaptive worker spins before it sleeps.
    pub spin: Duration,
    /// Bytes of data that a command capsule may carry on an I/O queue: 0 to 16384, a multiple of 512. When not given,
    /// what is right for the transport.
    pub in_capsule_data: Option<u32>,
    /// Commands in flight on an I/O queue: 2 to 1024. A host that wants more gets this.
    pub queue_depth: u16,
    /// I/O queues that a host may open on one controller: 1 to 128.
    pub io_queues: u16,
    /// The largest transfer of a command, in bytes: a power of two from 4 KiB to 1 MiB.
    pub transfer_max: u32,
    /// Memory for data buffers of each worker, in bytes: at least four of the largest transfers.
    pub buffer_memory: u64,
    /// Queue pairs of each worker, at the most.
    pub connections: u32,
    /// How long a host may take nothing of what is sent to it until its queue is closed: 1 second to 1 hour.
    pub transfer_timeout: Duration,
    /// What happens when one host NQN is seen with two host IDs.
    pub duplicate_host_id: DuplicateHostId,
    /// A disk, an address, a key or keyring of TLS that cannot be had keeps the target from starting.
    pub strict: bool,
    /// The kernel's keyring with keys for TLS of hosts that are not in [`Config::hosts`].
    pub tls_keyring: Option<String>,
    /// Hash functions that hosts may authenticate with: at least one.
    pub dhchap_hashes: Vec<HashId>,
    /// Diffie-Hellman groups that hosts may authenticate with: at least one.
    pub dhchap_groups: Vec<DhGroup>,
    /// Hosts with a key for DH-HMAC-CHAP must authenticate to discovery controllers, too.
    pub dhchap_discovery: bool,
    /// The Controller IDs that are given out: within 1 to 65519. Targets that serve one subsystem together have ranges
    /// without a common ID.
    pub cntlids: RangeInclusive<u16>,
    /// Where reservations are kept, when given: an absolute path.
    pub state_dir: Option<PathBuf>,
    /// Where `nvmf-target ctl` reaches it.
    pub control_socket: ControlSocket,
    /// The group that may use the control socket, beside the daemon's user and root.
    pub control_group: Option<String>,
}

/// Where the control socket is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ControlSocket {
    /// At the usual place, if that can be had.
    #[default]
    Usual,
    /// Nowhere.
    Off,
    /// At this absolute path, or the target does not start.
    At(PathBuf),
}

/// Hash functions of DH-HMAC-CHAP by name.
pub(crate) const DHCHAP_HASHES: [(&str, HashId); 3] =
    [("sha256", HashId::SHA256), ("sha384", HashId::SHA384), ("sha512", HashId::SHA512)];
/// Diffie-Hellman groups by name.
pub(crate) const DHCHAP_GROUPS: [(&str, DhGroup); 6] = [
    ("null", DhGroup::NULL),
    ("ffdhe2048", DhGroup::FFDHE2048),
    ("ffdhe3072", DhGroup::FFDHE3072),
    ("ffdhe4096", DhGroup::FFDHE4096),
    ("ffdhe6144", DhGroup::FFDHE6144),
    ("ffdhe8192", DhGroup::FFDHE8192),
];

/// How a worker waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Spins for a short time, then sleeps.
    Adaptive,
    /// Never sleeps: uses all of its core for the lowest latency.
    Busy,
    /// Sleeps at once.
    Interrupt,
}

/// What happens when one host NQN is seen with two host IDs (two machines that share an identity corrupt shared disks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuplicateHostId {
    /// It is logged and counted.
    Report,
    /// The second host is refused as well.
    Refuse,
}

/// The discovery service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// Its own NQN, when given; that of no subsystem. The well-known one: it has none of its own.
    pub nqn: Option<Nqn>,
    /// It is announced by multicast DNS.
    pub mdns: bool,
    /// Discovery services of other targets that hosts are told of: at most 64.
    pub referrals: Vec<Referral>,
}

/// The discovery service of another target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referral {
    /// What hosts connect with.
    pub transport: Transport,
    /// Where.
    pub address: SocketAddr,
    /// Its NQN; the well-known one when not given.
    pub nqn: Nqn,
}

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// The address and port.
    pub address: SocketAddr,
    /// What hosts connect with.
    pub transport: Transport,
    /// Discovery is served here.
    pub discovery: bool,
    /// Only discovery is served here.
    pub discovery_only: bool,
    /// Which RDMA provider serves it.
    pub provider: ProviderChoice,
    /// A checksum of what RDMA moves is insisted on; otherwise userspace iWARP has one where the host asks.
    pub crc: bool,
    /// How connections over an RDMA device are set up.
    pub verbs: VerbsOptions,
    /// Whether connections are encrypted; with [`Transport::Tcp`] only.
    pub tls: Tls,
    /// In which state ANA groups are here at the start; the others are optimized. No group twice.
    pub ana_groups: Vec<AnaGroup>,
    /// Only hosts with these addresses may connect; `None`: with any.
    pub allow: Option<AddressList>,
}

/// An ANA group behind a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its number, 1 to 127.
    pub id: u32,
    /// How its namespaces can be reached here.
    pub state: AnaState,
}

impl AnaGroup {
    /// The state, as a file has it.
    #[must_use]
    pub fn state_word(&self) -> &'static str {
        check::ANA_STATES.iter().find(|(_, state)| *state == self.state).map_or("optimized", |(word, _)| word)
    }
}

/// What is measured of commands, and where it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Where it is served, as OpenMetrics over HTTP; nowhere without.
    pub listen: Option<MetricsAddress>,
    /// So many namespaces are measured each by itself, those that come later together: 1 to 1024.
    pub namespaces: usize,
    /// So many hosts are counted each by itself, those that come later together: 1 to 65536.
    pub hosts: usize,
}

impl Metrics {
    /// [`Metrics::namespaces`] where nothing is said.
    pub const NAMESPACES: usize = 256;
    /// [`Metrics::hosts`] where nothing is said.
    pub const HOSTS: usize = 1024;
}

/// Where metrics are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket: an absolute path.
    Unix(PathBuf),
}

impl core::fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Whether connections are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    /// None is.
    #[default]
    Off,
    /// Those are whose host wants it.
    Allowed,
    /// All are but those by which a host authenticates and makes the key for its others (secure channel concatenation),
    /// and those for discovery.
    Concat,
    /// All are.
    Required,
}

impl fmt::Display for Tls {
    /// As the file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Allowed => "allowed",
            Self::Concat => "concat",
            Self::Required => "required",
        })
    }
}

/// What is known of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: Nqn,
    /// The file with its key for TLS: an absolute path.
    pub tls_key_file: Option<PathBuf>,
    /// What holds its secret for DH-HMAC-CHAP, with which it must authenticate: an absolute path, or the name of a
    /// systemd credential.
    pub dhchap_key_file: Option<PathBuf>,
    /// What holds the secret of the controller towards this host, which may ask the controller to prove that it has it.
    /// There only with `dhchap_key_file`.
    pub dhchap_ctrl_key_file: Option<PathBuf>,
    /// It uses namespaces over TLS only: where that is not there from the first byte, its authentication must make the key
    /// (secure channel concatenation). There only with `dhchap_key_file`.
    pub require_concat: bool,
    /// The keys that a group of gateways had of it when the file was saved, which has none of them. There only where nothing
    /// else is, and no listener.
    pub group_keys: Vec<GroupKey>,
}

/// A key of a host that a group of gateways has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKey {
    /// Its secret for DH-HMAC-CHAP.
    Dhchap,
    /// That of the controller towards it.
    DhchapController,
    /// Its key for TLS.
    Tls,
}

/// The words for [`Host::group_keys`].
pub(crate) const GROUP_KEYS: [(&str, GroupKey); 3] =
    [("dhchap", GroupKey::Dhchap), ("dhchap-controller", GroupKey::DhchapController), ("tls", GroupKey::Tls)];

/// What hosts connect with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// NVMe/RDMA.
    #[default]
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

impl fmt::Display for Transport {
    /// As the file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        })
    }
}

/// How connections over an RDMA device are set up, where the administrator chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VerbsOptions {
    /// Source GID, as an index of the port's table.
    pub gid_index: Option<u8>,
    /// Partition key, as an index of the port's table.
    pub pkey_index: Option<u16>,
    /// Differentiated services code point, 0 to 63.
    pub dscp: Option<u8>,
    /// How often a packet is sent again, 0 to 7.
    pub retry_count: Option<u8>,
    /// How often a message that found no receive is sent again, 0 to 6; 7 means without limit.
    pub rnr_retry_count: Option<u8>,
    /// How long a packet may stay unacknowledged, as a power of two of 4.096 µs, 1 to 31.
    pub ack_timeout: Option<u8>,
    /// Whether each command has a key of its own where the device has memory windows.
    pub memory_windows: Option<bool>,
}

/// Which RDMA provider serves an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderChoice {
    /// The best one that the address has.
    Auto,
    /// Userspace iWARP over TCP.
    Iwarp,
    /// The RDMA device that owns the address.
    Verbs,
}

/// An NVM subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number: 1 to 20 printable ASCII characters.
    pub serial: String,
    /// Model: 1 to 40 printable ASCII characters.
    pub model: String,
    /// Who may connect.
    pub hosts: Hosts,
    /// What hosts may do at it: no host twice.
    pub host_limits: Vec<HostLimits>,
    /// Its namespaces: no NSID twice.
    pub namespaces: Vec<Namespace>,
}

/// Who may connect to a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Anyone who reaches the address.
    Any,
    /// These, by host NQN.
    Only(Vec<Nqn>),
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its number, 1 to 4096.
    pub nsid: u32,
    /// What holds its data.
    pub backing: Backing,
    /// Bytes in a logical block, when given: 512, 1024, 2048 or 4096.
    pub block_size: Option<u32>,
    /// Hosts may not write.
    pub read_only: bool,
    /// Its identity, which hosts find it by, when given: not nil, and in no other namespace. Otherwise the disk's own.
    pub uuid: Option<[u8; 16]>,
    /// What all hosts together may do.
    pub limits: Option<Limits>,
    /// Its ANA group, 1 to 127.
    pub ana_group: u32,
    /// The hosts of its subsystem that it exists for.
    pub hosts: Hosts,
}

/// What a namespace, or a host of a subsystem, may do. At least one of the rates is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Commands a second.
    pub iops: Option<u64>,
    /// Bytes of data a second, reads and writes together.
    pub bytes_per_second: Option<u64>,
    /// What was left unused for so long may be used at once: 10 ms to 60 s.
    pub burst: Duration,
}

impl Limits {
    /// Where the file does not say.
    pub(crate) const BURST_DEFAULT: Duration = Duration::from_millis(100);
}

/// What a host of a subsystem may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLimits {
    /// The host.
    pub nqn: Nqn,
    /// All its controllers of the subsystem together.
    pub limits: Limits,
}

/// What holds a namespace's data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// A file or block device.
    Path {
        /// Absolute.
        path: PathBuf,
        /// Bytes that it should have, when given.
        size: Option<u64>,
        /// A file that is not there is created, sparse, with `size` bytes. `size` is given then.
        create: bool,
    },
    /// An image of a Ceph cluster.
    Rbd(Rbd),
    /// Memory, lost when the daemon ends.
    Memory {
        /// Bytes.
        size: u64,
    },
    /// No data: writes are discarded, reads return zeroes. For measurements.
    Null {
        /// Bytes.
        size: u64,
    },
}

impl Config {
    /// Reads a configuration file's text.
    ///
    /// # Errors
    /// [`ConfigError`]: the line and column, what is wrong there, and what would be right.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let file: file::File = toml::from_str(text).map_err(|e| ConfigError::syntax(text, &e))?;
        check::check_own_file(text, &file)?;
        check::check(text, &file)
    }

    /// What is missing before any host can use a disk, and how it is added. A target starts all the same: it may be
    /// filled by commands.
    #[must_use]
    pub fn serves_nothing(&self) -> Option<&'static str> {
        if self.listeners.is_empty() {
            return Some(
                "no [[listener]]: add one with `nvmf-target ctl listener add ADDRESS -t tcp`, or to the file",
            );
        }
        if self.listeners.iter().all(|listener| listener.discovery_only) {
            return Some(
                "every [[listener]] has discovery_only: add one without it with `nvmf-target ctl listener add ADDRESS \
                 -t tcp`, or to the file",
            );
        }
        if self.subsystems.is_empty() && self.cluster.is_some() {
            return Some(
                "no subsystem in this group of gateways: add one, at any of them, with `nvmf-target ctl subsystem add NQN \
                 --host HOSTNQN`",
            );
        }
        if self.subsystems.is_empty() {
            return Some(
                "no [[subsystem]]: add one with `nvmf-target ctl subsystem add NQN --host HOSTNQN`, or to the file",
            );
        }
        let is_empty = self.subsystems.iter().all(|subsystem| subsystem.namespaces.is_empty());
        if is_empty && self.cluster.is_some() {
            return Some(
                "no namespace in this group of gateways: add one, at any of them, with `nvmf-target ctl namespace add NQN \
                 --rbd POOL/IMAGE`",
            );
        }
        is_empty.then_some(
            "no [[subsystem.namespace]]: add one with `nvmf-target ctl namespace add NQN PATH`, or to the file",
        )
    }

    /// Whether it has neither a listener nor a subsystem, as an empty file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.subsystems.is_empty()
    }

    /// Whether a listener has TLS, but no host a key, nor one to make it with. A reload may come to that, when the last key
    /// is revoked.
    #[must_use]
    pub fn lacks_keys(&self) -> bool {
        let concatenates =
            self.listeners.iter().any(|listener| matches!(listener.tls, Tls::Allowed | Tls::Concat));
        let has_key =
            |host: &Host| host.tls_key_file.is_some() || concatenates && host.dhchap_key_file.is_some();
        self.has_tls()
            && self.target.tls_keyring.is_none()
            && self.cluster.is_none()
            && !self.hosts.iter().any(has_key)
    }

    /// Whether a listener has TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.listeners.iter().any(|listener| listener.tls != Tls::Off)
    }

    /// One subsystem with one namespace on one address, any host allowed: what `serve --export` serves.
    /// Without an `nqn` it gets one from the path and from `machine`, what tells this machine from others: one path on
    /// two machines is two disks.
    ///
    /// # Errors
    /// [`ConfigError`] when the path cannot name anything.
    pub fn export(
        path: &Path,
        create: Option<u64>,
        address: SocketAddr,
        nqn: Option<Nqn>,
        machine: &str,
    ) -> Result<Self, ConfigError> {
        check::export(path, create, address, nqn, machine)
    }
}

impl Default for Target {
    fn default() -> Self {
        Self {
            workers: std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2).min(8)),
            poll: Poll::Adaptive,
            spin: Duration::from_micros(500),
            in_capsule_data: None,
            queue_depth: 128,
            io_queues: 128,
            transfer_max: 1 << 20,
            buffer_memory: 64 << 20,
            connections: 1024,
            transfer_timeout: Duration::from_secs(30),
            duplicate_host_id: DuplicateHostId::Report,
            strict: false,
            tls_keyring: None,
            dhchap_hashes: DHCHAP_HASHES.map(|(_, id)| id).to_vec(),
            dhchap_groups: DHCHAP_GROUPS.map(|(_, id)| id).to_vec(),
            dhchap_discovery: false,
            control_socket: ControlSocket::Usual,
            control_group: None,
            cntlids: 1..=0xffef,
            state_dir: None,
        }
    }
}
