//! From a configuration to a daemon that listens.

use super::ana::set_initial;
use super::authentication::{self, Pool, SecretFault};
use super::cluster::{JoinError, Membership};
use super::disks::{OpenDeadline, error_text};
use super::keys::{NO_KEYS, tls_ports};
use super::reach::AddressLook;
use super::reservations::{OfDaemon, Reservations};
use super::resets::Resets;
use super::slow_disks::SlowDisks;
use super::stalls::Stalls;
use super::worker_group::{Selection, WorkerGroup, select};
use super::workers::{Common, WorkerError, check_memlock};
use super::{Daemon, Listening, discovery, questions};
use crate::control::Waker;
use crate::exports::{self, ExportError, ExportFault};
use crate::limits::{ADMIN_ENTRIES_USUAL, DEVICES_INTERVAL, LOOK_INTERVAL, OPEN_TIMEOUT, RETRY_INTERVAL};
use crate::machine;
use crate::mailbox::Mailboxes;
use crate::metrics::endpoint::{self, EndpointError};
use crate::metrics::observed::Observed;
use crate::notify::Watchdog;
use crate::sockets::Sockets;
use crate::state::{StateDirectory, StateError};
use crate::thread::{Clock, Waiting};
use core::time::Duration;
use nvmf_config::{Config, Poll, Transport};
use nvmf_subsystem::{AnaState, DefinitionError, DuplicateHostId, Options, OptionsError, Registry};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use thiserror::Error;

/// What is said where no host can use anything, before what is missing.
pub(crate) const NOTHING_SERVED: &str = "nothing is served";

/// The daemon could not start, or something of it.
#[derive(Debug, Error)]
pub enum StartError {
    /// A disk could not be opened.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// None of the disks could be opened, or with `strict` not all of them.
    #[error("these namespaces cannot be served:{}", lines(.0))]
    Exports(Vec<ExportError>),
    /// No host has a key for TLS.
    #[error("{NO_KEYS}")]
    NoKeys,
    /// The engine does not take the configuration.
    #[error("the configuration cannot be served")]
    Definition(#[source] Box<DefinitionError>),
    /// The engine does not take the limits.
    #[error("the limits in [target] cannot be served")]
    Options(#[from] OptionsError),
    /// There are no random numbers.
    #[error(transparent)]
    Random(#[from] nvmf_auth::NoRandom),
    /// A worker could not be set up.
    #[error("worker {0} cannot start")]
    Worker(usize, #[source] WorkerError),
    /// An address has no such provider.
    #[error("cannot listen on {address}")]
    Provider {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: nvmf_rdma_any::OpenError,
    },
    /// An address could not be listened on.
    #[error("cannot listen on {address}: {}", listen_hint(.source))]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another listener of the configuration has the port.
    #[error(
        "cannot listen on {address}: the listener on {other} has the TCP port{}; give one of the two another port",
        if *.by_rdma { ", which NVMe/RDMA needs where there is no RDMA device at the address" } else { "" }
    )]
    OwnPort {
        /// Which.
        address: SocketAddr,
        /// The other one.
        other: String,
        /// One of them is for NVMe/RDMA.
        by_rdma: bool,
    },
    /// A key of TLS cannot be had.
    #[error("host {host} has no key for TLS")]
    Key {
        /// Whose.
        host: String,
        /// Why not.
        #[source]
        source: nvmf_tls::FileError,
    },
    /// A secret of DH-HMAC-CHAP cannot be had.
    #[error("host {host} cannot authenticate")]
    Secret {
        /// Whose.
        host: String,
        /// Why not.
        #[source]
        source: SecretFault,
    },
    /// The kernel's keyring cannot be had.
    #[error("tls_keyring in [target] cannot be used")]
    Keyring(#[source] nvmf_tls::KeyringError),
    /// Metrics cannot be served where the configuration says.
    #[error("cannot serve metrics on {address}: set listen in [metrics] to an address that is free")]
    Metrics {
        /// Where.
        address: nvmf_config::MetricsAddress,
        /// Why.
        #[source]
        source: EndpointError,
    },
    /// The state directory cannot be had.
    #[error(transparent)]
    State(#[from] StateError),
    /// This gateway cannot be one of its group.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// TLS cannot be had.
    #[error("the TLS library does not start")]
    Tls(#[source] nvmf_stream::TlsError),
    /// The system has no thread or descriptor left.
    #[error("the system refused a thread or a descriptor")]
    System(#[from] io::Error),
}

/// Groups of workers that listeners may need which are added to those of the start: NVMe/TCP, RDMA devices.
const GROUPS_SPARE: usize = 4;

/// So many namespaces are worth a word on the memory that they take.
const MEASURED_MIN: u64 = 64;

/// Each in a line of its own.
fn lines(errors: &[ExportError]) -> String {
    errors.iter().map(|error| format!("\n  {}", error_text(error))).collect()
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is taken: stop the other program (ss -ltnp), or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "the address is not one of this machine (ip address), or not there yet: correct it, or wait \
             for the network"
        }
        io::ErrorKind::PermissionDenied => "not permitted: ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "the system refused",
    }
}

impl Daemon {
    /// Opens the disks, starts the workers, listens: what cannot be had is logged and tried again, as long as there
    /// is one disk, or may be soon, and one address to serve. With `strict`, nothing may be missing.
    ///
    /// # Errors
    /// [`StartError`]: nothing is left running.
    pub fn start(
        config: Config,
        path: Option<PathBuf>,
        waker: Waker,
        sockets: Sockets,
    ) -> Result<Self, StartError> {
        let mut instance_secret = [0; 16];
        nvmf_auth::system_random(&mut instance_secret)?;
        let cluster = match &config.cluster {
            Some(cluster) => Some(Membership::join(&config, cluster, waker.clone())?),
            None => None,
        };
        let state = Arc::new(match &cluster {
            Some(cluster) => cluster.state(),
            None => StateDirectory::open(config.target.state_dir.as_deref())?,
        });
        let mut registry = Registry::new(options(&config, instance_secret, state.keeps()))?;
        for subsystem in &config.subsystems {
            let added = registry.add_subsystem(exports::definition(subsystem));
            added.map_err(|error| StartError::Definition(Box::new(error)))?;
        }
        let (host_keys, who) = authentication::start(&config)?;
        registry.set_authentication(who);
        let set = set_initial(&mut registry, &config.listeners);
        set.map_err(StartError::Definition)?;
        let added = registry.set_discovery(discovery::definition(&config, path.as_deref()));
        added.map_err(|error| StartError::Definition(Box::new(error)))?;
        // Each listener may find a device of its own later, with workers of its own.
        let workers = config.target.workers.max(config.listeners.len());
        // So may those that are added.
        let groups = config.listeners.len() + GROUPS_SPARE;
        let capacity = workers + groups * config.target.workers.div_ceil(2);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let (questions, asked) = channel();
        let registry = Arc::new(Mutex::new(registry));
        let (mailboxes, clock) = (Mailboxes::new(capacity, questions)?, Clock::start());
        let observed = Observed::new(config.metrics.as_ref(), capacity, &registry, &mailboxes, clock);
        let common = Common {
            target: config.target.clone(),
            waiting: Waiting {
                poll: config.target.poll,
                spin: config.target.spin,
                crowded: config.target.workers >= cpus || cpus <= 2,
            },
            registry,
            mailboxes,
            clock,
            observed: Arc::new(observed),
            waker,
            tls: tls_ports(&config)?,
            state,
            host_keys,
        };
        let pool = Pool::start(&common.host_keys, &common.mailboxes, Arc::clone(&common.tls))?;
        let reservations = Reservations::new(Arc::clone(&common.registry), OfDaemon::new(&common));
        let to_store = questions::answer(asked, pool, reservations, Resets::new(&common))?;
        let mut daemon = Self {
            path,
            common,
            groups: Vec::new(),
            workers: Vec::new(),
            listeners: (1..)
                .zip(&config.listeners)
                .map(|(port, it)| Listening::new(it.clone(), port))
                .collect(),
            last_port: config.listeners.len().try_into().unwrap_or(u16::MAX),
            draining: false,
            sockets,
            namespaces: Default::default(),
            awaits_disk: None,
            reload_errors: 0,
            metrics: None,
            slow: SlowDisks::default(),
            health: Default::default(),
            retry_at: Duration::ZERO,
            look_at: Duration::ZERO,
            devices_at: Duration::ZERO,
            watchdog: Watchdog::of_this_process(),
            stalls: Stalls::default(),
            addresses: AddressLook::default(),
            limits: Default::default(),
            announcer: None,
            unfinished: Vec::new(),
            to_store,
            look_at_images: Duration::ZERO,
            looking: std::collections::HashMap::new(),
            disk_memory: 0,
            attaching: Vec::new(),
            making: Vec::new(),
            changing: Vec::new(),
            readings: super::reading::Readings::default(),
            not_in_force: Vec::new(),
            cluster,
            config,
        };
        if let Some(cluster) = &daemon.cluster {
            daemon.namespaces.cluster = Some(cluster.images_at().clone());
            daemon.registry().set_controller_ids(None);
        }
        match daemon.bring_up() {
            Ok(()) => Ok(daemon),
            Err(error) => {
                daemon.stop(Duration::ZERO);
                Err(error)
            }
        }
    }

    /// The disks come before the workers, and the workers before the listeners: whoever connects finds everything.
    fn bring_up(&mut self) -> Result<(), StartError> {
        let strict = self.config.target.strict;
        // Before a disk is created that nobody could reach.
        self.try_addresses()?;
        self.raise_descriptor_limit();
        let before = machine::resident_memory();
        let mut faults = self.open_disks(OPEN_TIMEOUT);
        self.disk_memory = machine::resident_memory().saturating_sub(before);
        let is_slow = |fault: &ExportError| matches!(fault.source, ExportFault::Slow);
        let awaits_disk = self.exports().is_empty() && faults.iter().any(is_slow);
        self.awaits_disk = awaits_disk.then(|| OpenDeadline::new(self.common.clock.now(), OPEN_TIMEOUT));
        if !faults.is_empty() && (strict || self.exports().is_empty() && !awaits_disk) {
            let place = |fault: &ExportError| self.config.subsystems.iter().position(|s| s.nqn == *fault.nqn);
            faults.sort_by_key(|fault| (place(fault), fault.nsid));
            return Err(match faults.len() {
                1 => StartError::Export(faults.remove(0)),
                _ => StartError::Exports(faults),
            });
        }
        for fault in &faults {
            self.log_export_fault(fault);
        }
        let mut selections = Vec::new();
        // A listener without a provider is heard of when it listens.
        for selection in self.config.listeners.iter().filter_map(|listener| select(listener).ok()) {
            if !selections.contains(&selection) {
                selections.push(selection);
            }
        }
        self.groups = WorkerGroup::all(selections, self.config.target.workers);
        check_memlock(&self.config.target, &self.groups);
        self.raise_descriptor_limit();
        for group in 0..self.groups.len() {
            self.start_group(group)?;
        }
        let down = if self.may_listen() { self.listen_where_down() } else { Vec::new() };
        for (at, error) in down {
            if strict || self.addresses().is_empty() {
                return Err(error);
            }
            self.log_listen_fault(at, &error);
        }
        self.release_sockets();
        let now = self.common.clock.now();
        self.retry_at = now + RETRY_INTERVAL;
        self.look_at = now + LOOK_INTERVAL;
        self.devices_at = now + DEVICES_INTERVAL;
        self.show_observed();
        if let Some(address) = self.config.metrics.as_ref().and_then(|metrics| metrics.listen.clone()) {
            let served = endpoint::serve(&address, Arc::clone(&self.common.observed));
            self.metrics = Some(served.map_err(|source| StartError::Metrics { address, source })?);
        }
        self.announce();
        if let Some(metrics) = &self.metrics {
            tracing::info!("metrics on {}", metrics.address());
        }
        Ok(())
    }

    fn announce(&self) {
        let up = self.listeners.iter().filter(|listener| listener.listens());
        let addresses: Vec<_> = up.map(Listening::describe).collect();
        if !addresses.is_empty() {
            tracing::info!(
                "listening on {}, {} worker(s), poll {}, {}",
                addresses.join(", "),
                self.workers.len(),
                match self.common.waiting.poll {
                    Poll::Adaptive => "adaptive",
                    Poll::Busy => "busy",
                    Poll::Interrupt => "interrupt",
                },
                self.memory(),
            );
        }
        if let Some(what) = self.config.serves_nothing().filter(|_| self.cluster.is_none()) {
            tracing::warn!("{NOTHING_SERVED}: there is {what}");
        }
        for WorkerGroup { selection, .. } in &self.groups {
            let entries = selection.settings(&self.config.target).queue_entries;
            tracing::info!(
                "a host over {selection} takes up to {} KiB of memory while it is idle, and {} KiB for each of its I/O \
                 queues of {entries} entries{}",
                selection.queue_bytes(ADMIN_ENTRIES_USUAL, true).div_ceil(1024),
                selection.queue_bytes(entries, false).div_ceil(1024),
                match selection.transport() {
                    Transport::Rdma => ", beside its receives and what the provider has for it",
                    Transport::Tcp => "",
                },
            );
        }
        // Of few, the noise would be more.
        let count = self.exports().len() as u64;
        if count >= MEASURED_MIN {
            tracing::info!(
                "{count} namespaces take {} KiB of memory: {} bytes each while they are idle",
                self.disk_memory >> 10,
                self.disk_memory / count,
            );
        }
    }

    /// What workers of each transport have.
    fn memory(&self) -> String {
        let of =
            |selection: &Selection| selection.settings(&self.config.target).memory(selection.transport());
        match &self.groups[..] {
            [one] => of(&one.selection),
            several => {
                let each =
                    several.iter().map(|group| format!("over {} {}", group.selection, of(&group.selection)));
                each.collect::<Vec<_>>().join("; ")
            }
        }
    }
}

fn options(config: &Config, instance_secret: [u8; 16], write_protection: bool) -> Options {
    let target = &config.target;
    Options {
        io_queues_max: target.io_queues,
        queue_entries_max: target.queue_depth,
        transfer_len_max: target.transfer_max,
        cntlids: target.cntlids.clone(),
        write_protection,
        ana_unset: match config.cluster {
            Some(_) => AnaState::INACCESSIBLE,
            None => AnaState::OPTIMIZED,
        },
        // Each change adds one: no target changes a thousand times a second for long.
        discovery_generation: SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_millis().try_into().unwrap_or(0)),
        instance_secret,
        duplicate_host_id: match target.duplicate_host_id {
            nvmf_config::DuplicateHostId::Report => DuplicateHostId::Report,
            nvmf_config::DuplicateHostId::Refuse => DuplicateHostId::Refuse,
        },
        ..Options::default()
    }
}
