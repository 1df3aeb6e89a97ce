//! Whom to connect to, as whom, and how.

use crate::address::{AddressSource, is_unknown};
use crate::driver::{DriverConfig, Factory, PATHS_MAX, PathPolicy, Route, StartError};
use crate::transport::{AnyTransport, Rdma, Tcp, TcpOptions};
use crate::{Effect, Error, HostIdentity};
use core::time::Duration;
use nvme_proto::Nqn;
use nvmf_auth::Terms;
use nvmf_auth::host::Secrets;
use nvmf_host::{AssociationConfig, AuthenticationConfig, RecoveryPolicy};
use nvmf_rdma_any::{OpenOptions, Preference, ProviderSelection, VerbsOptions};
use std::net::SocketAddr;
use std::sync::Arc;

/// Whom to connect to, as whom, and how: made by [`Options::new`] or [`Options::with_host`], then changed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// Where the address is read again before each reconnect; `None`: it stays the same.
    pub address_source: Option<AddressSource>,
    /// What carries the commands; NVMe/RDMA by default.
    pub transport: TransportOptions,
    /// Over which RDMA, if it is RDMA: by default the device's that leads to the address, else userspace iWARP.
    pub provider: Preference,
    /// Insist on a checksum of what RDMA moves. Without it, data over userspace iWARP have no more than TCP's 16 bits
    /// unless the target asks: RFC 5044's CRC32C then goes with them, and a wrong one ends the connection. InfiniBand
    /// and RoCE always have one; a connection over an iWARP device is refused.
    pub crc: bool,
    /// How connections over an RDMA device are set up.
    pub verbs: VerbsOptions,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// Further paths to the same subsystem, beside the one that `address`, `transport` and `source` are: I/O flows as long as
    /// one of them is there. A connection can be set up when one is; the others are tried on.
    pub paths: Vec<PathOptions>,
    /// The subsystem; for discovery [`Nqn::DISCOVERY`].
    pub nqn: Nqn,
    /// As whom.
    pub host: HostIdentity,
    /// How to authenticate where the controller asks for it (DH-HMAC-CHAP).
    pub authentication: Option<AuthenticationOptions>,
    /// I/O queues: with [`Options::write_queues`], 1 to 128.
    pub io_queues: u16,
    /// I/O queues for everything but reads, beside `io_queues`, which then take reads alone; 0: all are alike.
    pub write_queues: u16,
    /// Commands in an I/O queue: 2 to 1024.
    pub queue_depth: u16,
    /// Keep Alive Timeout. [`crate::discover`] needs none.
    pub keep_alive: Duration,
    /// Of discovery: stay connected, and hear of changes ([`crate::Discovery`]).
    pub persistent: bool,
    /// Ask for submission queues without flow control. Over NVMe/TCP a read then needs no response of its own.
    pub disable_flow_control: bool,
    /// How long the set-up of one queue's connection may take, and at the first attempt the answer to each command of the set-up;
    /// `None`: 3 s over RDMA, 10 s over TCP, and 60 s for a command, as at attempts to connect again.
    pub connect_timeout: Option<Duration>,
    /// How long [`crate::Connection::connect`] may take in all, once a name is looked up; `None`: as long as the steps of the set-up
    /// do, which is 90 s at most. Attempts to connect again have nobody who waits for them: this is not for them.
    pub open_timeout: Option<Duration>,
    /// How long an I/O command may take before its connection counts as lost.
    pub io_timeout: Duration,
    /// Which path an operation goes to, where there are several.
    pub path_policy: PathPolicy,
    /// Pause before the first reconnect.
    pub reconnect_delay: Duration,
    /// How long to try to reconnect before all I/O fails; `None` is for ever, zero not at all.
    pub ctrl_loss_timeout: Option<Duration>,
    /// How long I/O waits for a reconnect before it fails, while reconnecting goes on; `None` waits for its end.
    pub fast_io_fail_timeout: Option<Duration>,
    /// I/O waits for its disk while another one is in its place after a reconnect, as long as for a lost connection.
    pub wait_for_disk: bool,
    /// How long the connection's thread, or [`crate::block_on`], polls without result before it sleeps.
    pub spin: Duration,
}

/// Where secrets are read again before each reconnect: they may have been changed since.
#[derive(Clone)]
pub struct SecretsSource(Arc<dyn Fn() -> Result<Secrets, String> + Send + Sync>);

impl SecretsSource {
    /// Reads them with this, on the connection's thread: it must not block for long. After an error the secrets that are
    /// known stay in use.
    pub fn new(read: impl Fn() -> Result<Secrets, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(crate) fn read(&self) -> Result<Secrets, String> {
        (self.0)()
    }
}

impl core::fmt::Debug for SecretsSource {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SecretsSource")
    }
}

/// How to authenticate where the controller asks for it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuthenticationOptions {
    /// The host's secret; and the controller's, which it must then prove to have.
    pub secrets: Secrets,
    /// Where they are read again before each reconnect; `None`: they stay the same.
    pub source: Option<SecretsSource>,
    /// The hash functions and Diffie-Hellman groups to offer.
    pub terms: Terms,
    /// A controller that does not ask for authentication is not used: whoever is on the way could have taken the request
    /// out.
    pub insist: bool,
    /// The first authentication makes the key for TLS, which every connection has after it (secure channel concatenation):
    /// over NVMe/TCP, without a configured key. Discovery goes in the clear.
    pub concat: bool,
}

impl AuthenticationOptions {
    /// With these secrets, any hash and group; the controller must ask. Without secure channel concatenation.
    #[must_use]
    pub fn new(secrets: Secrets) -> Self {
        Self { secrets, source: None, terms: Terms::default(), insist: true, concat: false }
    }

    /// With secure channel concatenation, or without.
    #[must_use]
    pub fn with_concat(self, concat: bool) -> Self {
        Self { concat, ..self }
    }
}

/// A further path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PathOptions {
    /// Where the controller listens. The unspecified address (`0.0.0.0`, `::`) beside an `address_source`: that is not
    /// known yet, and the path is away until it is.
    pub address: SocketAddr,
    /// Where the address is read again before each reconnect; `None`: it stays the same.
    pub address_source: Option<AddressSource>,
    /// What carries the commands.
    pub transport: TransportOptions,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
}

impl PathOptions {
    /// To this address, which stays the same, from any of ours.
    #[must_use]
    pub fn new(address: SocketAddr, transport: TransportOptions) -> Self {
        Self { address, address_source: None, transport, source: None }
    }

    /// The network interface that it goes through; `None`: whichever the system chooses.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        match &self.transport {
            TransportOptions::Rdma => None,
            TransportOptions::Tcp(options) => options.interface.as_deref(),
        }
    }

    /// Whether both lead from the same place to the same place, over the same transport. Where one has a name, names are
    /// compared: what address a name has may change, and which it has now may not be known.
    #[must_use]
    pub fn is_same_way(&self, other: &Self) -> bool {
        let name = |path: &Self| path.address_source.as_ref().and_then(|it| it.name()).map(str::to_owned);
        let (own, others) = (name(self), name(other));
        let is_same_place = match own.is_some() || others.is_some() {
            true => own == others && self.address.port() == other.address.port(),
            false => self.address == other.address,
        };
        let source = |path: &Self| path.source.map(|source| source.ip());
        is_same_place
            && core::mem::discriminant(&self.transport) == core::mem::discriminant(&other.transport)
            && (source(self), self.interface()) == (source(other), other.interface())
    }
}

/// What carries the commands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TransportOptions {
    /// NVMe/RDMA; [`Options::provider`] and [`Options::verbs`] say how.
    #[default]
    Rdma,
    /// NVMe/TCP.
    Tcp(TcpOptions),
}

impl TransportOptions {
    fn connect_timeout(&self) -> Duration {
        match self {
            Self::Rdma => Duration::from_secs(3),
            Self::Tcp(_) => Duration::from_secs(10),
        }
    }
}

impl Options {
    /// As this machine, whose identity must be there ([`HostIdentity::of_this_machine_or_new`] makes one).
    ///
    /// # Errors
    /// [`Error::Identity`].
    pub fn new(address: SocketAddr, nqn: Nqn) -> Result<Self, Error> {
        Ok(Self::with_host(address, nqn, HostIdentity::of_this_machine()?))
    }

    /// Over this path, as this host.
    #[must_use]
    pub fn over(path: PathOptions, nqn: Nqn, host: HostIdentity) -> Self {
        let PathOptions { address, address_source, transport, source } = path;
        Self { address_source, transport, source, ..Self::with_host(address, nqn, host) }
    }

    /// As this host.
    #[must_use]
    pub fn with_host(address: SocketAddr, nqn: Nqn, host: HostIdentity) -> Self {
        Self {
            address,
            address_source: None,
            transport: TransportOptions::Rdma,
            provider: Preference::Auto,
            crc: false,
            verbs: VerbsOptions::default(),
            source: None,
            paths: Vec::new(),
            nqn,
            host,
            authentication: None,
            io_queues: 1,
            write_queues: 0,
            queue_depth: 128,
            keep_alive: Duration::from_secs(5),
            persistent: false,
            disable_flow_control: false,
            connect_timeout: None,
            open_timeout: None,
            io_timeout: Duration::from_secs(30),
            path_policy: PathPolicy::default(),
            reconnect_delay: Duration::from_secs(1),
            ctrl_loss_timeout: Some(Duration::from_secs(600)),
            fast_io_fail_timeout: None,
            wait_for_disk: true,
            spin: Duration::from_micros(500),
        }
    }

    /// Its paths: the one of its address first, then [`Options::paths`].
    pub fn all_paths(&self) -> impl Iterator<Item = PathOptions> + '_ {
        let first = PathOptions {
            address: self.address,
            address_source: self.address_source.clone(),
            transport: self.transport.clone(),
            source: self.source,
        };
        core::iter::once(first).chain(self.paths.iter().cloned())
    }

    /// Whether what goes over a path with these options is protected by TLS.
    #[must_use]
    pub fn protects(&self, path: &PathOptions) -> bool {
        let concat = self.authentication.as_ref().is_some_and(|it| it.concat);
        matches!(&path.transport, TransportOptions::Tcp(options) if options.tls.is_some() || concat)
    }

    /// Whether one of its paths has TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.all_paths().any(|path| self.protects(&path))
    }

    /// Checks that a path that is added does not go in the clear where another has TLS: who could be on the way there
    /// would have what that protects. Whether this one has TLS.
    pub(crate) fn check_added(&self, path: &PathOptions, others_have_tls: bool) -> Result<bool, Error> {
        let has_tls = self.protects(path);
        if has_tls || !others_have_tls {
            return Ok(has_tls);
        }
        Err(Error::System {
            what: "cannot add a path",
            reason: format!(
                "the one over {} would go in the clear, and another has TLS: give it TLS, too",
                path.address
            ),
        })
    }

    /// Which provider leads to the controller.
    fn selection(&self) -> Result<ProviderSelection, Error> {
        if is_unknown(self.address, self.address_source.as_ref()) {
            // The path's transport is made anew when its address is known.
            return Ok(ProviderSelection::Iwarp { crc: self.crc });
        }
        let source = self.source.map(|source| source.ip());
        Ok(ProviderSelection::towards(self.address, source, self.provider, self.crc, self.verbs)?)
    }

    /// Fails for queues that no association has: memory is taken for each command that they hold, before there is one.
    pub(crate) fn check_queues(&self) -> Result<(), Error> {
        let checked = self.driver_config().association.check_queues();
        checked.map_err(|source| Error::Association {
            nqn: self.nqn.to_string(),
            address: self.address,
            effect: Effect::Nothing,
            source: Box::new(source),
        })
    }

    /// Whether there can be a connection with these options, as far as that can be told, and a transport for it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_queues()?;
        if self.paths.len() >= PATHS_MAX {
            return Err(Error::System {
                what: "cannot start a connection",
                reason: StartError::TooManyPaths.to_string(),
            });
        }
        match self.transport {
            TransportOptions::Rdma => self.selection().map(drop)?,
            TransportOptions::Tcp(_) => {}
        }
        self.each_path().try_for_each(|path| path.check())
    }

    /// The options of each further path, as if it were the only one.
    fn each_path(&self) -> impl Iterator<Item = Self> + '_ {
        self.paths.iter().map(|path| Self {
            address: path.address,
            address_source: path.address_source.clone(),
            transport: path.transport.clone(),
            source: path.source,
            paths: Vec::new(),
            ..self.clone()
        })
    }

    /// The further paths, and what opens their transports.
    pub(crate) fn more_paths(&self) -> Vec<(Route, Factory<AnyTransport>)> {
        let path = |options: Self| {
            let route = Route {
                address: options.address,
                address_source: options.address_source.clone(),
                source: options.source,
                connect_timeout: options.connect_timeout(),
            };
            (route, Box::new(options.transport_factory()) as Factory<AnyTransport>)
        };
        self.each_path().map(path).collect()
    }

    fn connect_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.transport.connect_timeout())
    }

    /// Opens the transport.
    pub(crate) fn open_transport(&self) -> Result<AnyTransport, Error> {
        Ok(match &self.transport {
            TransportOptions::Rdma => {
                let open = OpenOptions { keys: Some(self.keys()), ..OpenOptions::default() };
                AnyTransport::Rdma(Rdma::new(self.selection()?.open(open)?))
            }
            TransportOptions::Tcp(TcpOptions { tls: Some(_), .. })
                if self.authentication.as_ref().is_some_and(|it| it.concat) =>
            {
                return Err(Error::System {
                    what: "cannot start a connection",
                    reason:
                        "a key for TLS is given, and an authentication is to make one: choose one of the two"
                            .to_owned(),
                });
            }
            TransportOptions::Tcp(options) => {
                let tcp = Tcp::new(options, &self.host.nqn, &self.nqn).map_err(|error| Error::System {
                    what: "cannot start a connection",
                    reason: error.to_string(),
                })?;
                AnyTransport::Tcp(tcp)
            }
        })
    }

    /// Opens transports. An RDMA provider is selected anew each time: a device that comes back may be another.
    pub(crate) fn transport_factory(&self) -> impl FnMut() -> Result<AnyTransport, String> + Send + 'static {
        let mut options = self.clone();
        move || {
            if let Some(source) =
                options.address_source.as_ref().filter(|it| is_unknown(options.address, Some(it)))
            {
                options.address = source.read().unwrap_or(options.address);
            }
            options.open_transport().map_err(|error| match error {
                Error::System { reason, .. } => reason,
                error => error.to_string(),
            })
        }
    }

    /// I/O queues in all: for discovery none.
    fn queues(&self) -> u16 {
        if self.nqn == Nqn::DISCOVERY { 0 } else { self.io_queues.saturating_add(self.write_queues) }
    }

    /// Keys of commands that may be alive at once.
    pub(crate) fn keys(&self) -> usize {
        usize::from(self.queues()) * usize::from(self.queue_depth) + 4096
    }

    /// The configuration of the driver.
    #[must_use]
    pub fn driver_config(&self) -> DriverConfig {
        let HostIdentity { nqn, id } = self.host;
        let association = if self.nqn == Nqn::DISCOVERY {
            AssociationConfig::discovery(nqn, id, self.persistent)
        } else {
            AssociationConfig::new(self.nqn, nqn, id)
        };
        let is_once = self.nqn == Nqn::DISCOVERY && !self.persistent;
        let keep_alive = if is_once { Duration::ZERO } else { self.keep_alive };
        let loss = self.ctrl_loss_timeout;
        DriverConfig {
            address: self.address,
            address_source: self.address_source.clone(),
            source: self.source,
            write_queues: self.write_queues,
            association: AssociationConfig {
                io_queues: self.queues(),
                io_queue_entries: self.queue_depth,
                keep_alive,
                connect_timeout: self.connect_timeout(),
                setup_command_timeout: self.connect_timeout.unwrap_or(association.setup_command_timeout),
                setup_timeout: self.open_timeout,
                disable_flow_control: self.disable_flow_control,
                authentication: self.authentication.as_ref().map(|it| {
                    let concatenate = it.concat && self.nqn != Nqn::DISCOVERY;
                    let of_key = it.terms.for_concatenation().filter(|_| concatenate);
                    let terms = of_key.unwrap_or(it.terms);
                    AuthenticationConfig { terms, insist: it.insist, concatenate }
                }),
                ..association
            },
            secrets: self.authentication.as_ref().map(|it| it.secrets.clone()),
            secrets_source: self.authentication.as_ref().and_then(|it| it.source.clone()),
            recovery: RecoveryPolicy {
                reconnect_delay: self.reconnect_delay,
                ctrl_loss_timeout: loss,
                fast_io_fail_timeout: self.fast_io_fail_timeout,
                ..RecoveryPolicy::default()
            },
            wait_for_disk: self.wait_for_disk,
            io_timeout: self.io_timeout,
            policy: self.path_policy,
            operations: u32::from(self.queues().max(1)) * u32::from(self.queue_depth) + 1024,
            seed: id
                .0
                .iter()
                .fold(u64::from(std::process::id()), |seed, &byte| seed.rotate_left(7) ^ u64::from(byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str) -> PathOptions {
        PathOptions::new(address.parse().unwrap(), TransportOptions::Tcp(TcpOptions::default()))
    }

    fn named(name: &str, address: &str) -> PathOptions {
        PathOptions { address_source: Some(AddressSource::of_name(name, || None)), ..tcp(address) }
    }

    #[test]
    fn ways_are_the_same_from_one_place_to_one_place() {
        let first = tcp("192.0.2.1:4420");
        let mut through = first.clone();
        if let TransportOptions::Tcp(options) = &mut through.transport {
            options.interface = Some("eth1".to_owned());
        }
        let from = PathOptions { source: Some("192.0.2.9:0".parse().unwrap()), ..first.clone() };
        let rdma = PathOptions::new(first.address, TransportOptions::Rdma);
        let ways = [first, through, from, rdma, tcp("192.0.2.1:4421"), named("a", "192.0.2.1:4420")];
        for (at, way) in ways.iter().enumerate() {
            let same: Vec<_> = (0..ways.len()).filter(|&other| way.is_same_way(&ways[other])).collect();
            assert_eq!(same, [at], "{way:?}");
        }
        // A name is the same whatever its address is now, and two of them are two while neither has any.
        assert!(named("a", "0.0.0.0:4420").is_same_way(&named("a", "192.0.2.1:4420")));
        assert!(!named("a", "0.0.0.0:4420").is_same_way(&named("b", "0.0.0.0:4420")));
        assert!(!named("a", "0.0.0.0:4420").is_same_way(&named("a", "0.0.0.0:4421")));
    }

    #[test]
    fn path_in_the_clear_is_not_added_beside_one_with_tls() {
        let nqn: Nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        let host = HostIdentity { nqn, id: nvme_proto::HostId([1; 16]) };
        let mut secure = tcp("192.0.2.2:4420");
        if let TransportOptions::Tcp(options) = &mut secure.transport {
            options.tls = Some(crate::TlsOptions::of_keyring("none"));
        }
        let (clear, rdma) = (tcp("192.0.2.3:4420"), PathOptions::new(secure.address, TransportOptions::Rdma));
        let mut options = Options::over(tcp("192.0.2.1:4420"), nqn, host);
        let added = |options: &Options, path| options.check_added(path, options.has_tls());
        assert!(!added(&options, &clear).unwrap() && added(&options, &secure).unwrap());
        options.paths.push(secure.clone());
        assert!(added(&options, &secure).is_ok());
        for path in [&clear, &rdma] {
            let error = added(&options, path).unwrap_err().to_string();
            assert!(error.contains("would go in the clear"), "{error}");
        }
        // A key that an authentication makes is for every path over tcp.
        options.paths.clear();
        let secret = nvmf_auth::Secret::parse("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:");
        let secrets = Secrets { host: secret.unwrap(), controller: None };
        options.authentication = Some(AuthenticationOptions::new(secrets).with_concat(true));
        assert!(added(&options, &clear).is_ok() && added(&options, &rdma).is_err());
    }
}
