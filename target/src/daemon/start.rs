//! From a configuration to workers that listen.

use super::Daemon;
use super::worker_group::WorkerGroup;
use crate::exports::{self, Export, ExportError};
use crate::mailbox::Mailboxes;
use crate::message::WorkerId;
use crate::settings::{Load, Settings};
use crate::thread::{self, Clock, Waiting};
use crate::transport::rdma::buffers::SetUpError;
use crate::transport::rdma::listener::rejection;
use crate::worker::Worker;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvme_proto::rdma::RejectStatus;
use nvmf_backend::{Devices, DevicesError, DevicesOptions};
use nvmf_block::DeviceId;
use nvmf_config::{Config, Poll};
use nvmf_rdma::ListenError;
use nvmf_rdma_any::{AnyProvider, Detached, OpenOptions, ProviderSelection};
use nvmf_subsystem::{DefinitionError, DuplicateHostId, Options, OptionsError, Registry};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// The daemon could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A disk could not be opened.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The engine does not take the configuration.
    #[error("the configuration cannot be served")]
    Definition(#[source] Box<DefinitionError>),
    /// The engine does not take the limits.
    #[error("the limits in [target] cannot be served")]
    Options(#[from] OptionsError),
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
    /// The system has no thread or descriptor left.
    #[error("the system refused a thread or a descriptor")]
    System(#[from] io::Error),
}

/// A worker could not be set up.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The backend.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// The selection.
    #[error(transparent)]
    Provider(#[from] nvmf_rdma_any::OpenError),
    /// The memory between them.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
    /// A listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

fn listen_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is taken: stop the other program (ss -ltnp), or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "the address is not one of this machine (ip address), or not there yet: correct it, or wait for the network"
        }
        io::ErrorKind::PermissionDenied => "not permitted: ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "the system refused",
    }
}

/// What every worker thread gets.
#[derive(Clone)]
struct Common {
    settings: Settings,
    waiting: Waiting,
    registry: Arc<Mutex<Registry>>,
    mailboxes: Arc<Mailboxes<Detached>>,
    exports: Vec<Export>,
    clock: Clock,
}

/// Places in the configuration, and the addresses that were taken.
type Listening = Vec<(usize, SocketAddr)>;

/// What a worker's thread says once it stands.
type Started = Result<(Listening, Arc<crate::telemetry::Counters>, bool), WorkerError>;

impl Daemon {
    /// Opens the disks, starts the workers, listens.
    ///
    /// # Errors
    /// [`StartError`]: nothing is left running.
    pub fn start(config: Config, path: Option<PathBuf>) -> Result<Self, StartError> {
        let exports = open_exports(&config)?;
        let mut registry = Registry::new(options(&config))?;
        for subsystem in &config.subsystems {
            let added = registry.add_subsystem(exports::definition(subsystem, &exports));
            added.map_err(|error| StartError::Definition(Box::new(error)))?;
        }
        let groups = WorkerGroup::all(&config)?;
        let workers = groups.iter().map(|group| group.workers).sum();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let common = Common {
            settings: Settings::new(&config.target),
            waiting: Waiting {
                poll: config.target.poll,
                spin: config.target.spin,
                crowded: workers >= cpus || cpus <= 2,
            },
            registry: Arc::new(Mutex::new(registry)),
            mailboxes: Mailboxes::new(workers)?,
            exports: exports.clone(),
            clock: Clock::start(),
        };
        check_memlock(&common.settings, workers);
        raise_descriptor_limit(&common.settings, workers);
        let mut daemon = Self {
            next_device: u32::try_from(exports.len()).expect("bounded by the configuration"),
            path,
            registry: Arc::clone(&common.registry),
            mailboxes: Arc::clone(&common.mailboxes),
            groups,
            counters: Vec::new(),
            threads: Vec::new(),
            addresses: config.listeners.iter().map(|listener| listener.address).collect(),
            exports,
            clock: common.clock,
            config,
        };
        // A group's listening worker comes last: whoever connects finds all the others.
        for id in (0..workers).rev() {
            if let Err(error) = daemon.start_worker(WorkerId(id), &common) {
                daemon.drain();
                return Err(error);
            }
        }
        daemon.counters.reverse();
        daemon.threads.reverse();
        if let Err(error) = daemon.publish_ports() {
            daemon.drain();
            return Err(error);
        }
        daemon.announce(&common);
        Ok(daemon)
    }

    fn start_worker(&mut self, id: WorkerId, common: &Common) -> Result<(), StartError> {
        let group =
            self.groups.iter().rfind(|group| group.first.0 <= id.0).expect("every worker has a group");
        let (selection, load, listen) =
            (group.selection.clone(), Arc::clone(&group.load), group.listens(id).to_vec());
        let (common, (tell, told)) = (common.clone(), channel::<Started>());
        let body = move || worker_thread(id, &common, &selection, load, &listen, &tell);
        let thread = std::thread::Builder::new().name(format!("worker-{}", id.0)).spawn(body)?;
        let started = told.recv().map_err(|_| io::Error::other("the worker's thread died at its start"))?;
        match started {
            Ok((addresses, counters, unpinned)) => {
                for (at, address) in addresses {
                    self.addresses[at] = address;
                }
                self.counters.push(counters);
                self.threads.push(thread);
                if unpinned {
                    tracing::warn!(
                        worker = id.0,
                        "buffers could not be pinned for io_uring: I/O works, slower; raise the memlock limit (LimitMEMLOCK= in the unit)"
                    );
                }
                Ok(())
            }
            Err(WorkerError::Listen(ListenError { address, source })) => {
                Err(StartError::Listen { address, source })
            }
            Err(error) => Err(StartError::Worker(id.0, error)),
        }
    }

    fn publish_ports(&mut self) -> Result<(), StartError> {
        let mut registry = self.registry.lock().expect("no panic happened under the registry's lock");
        let set = registry.set_ports(exports::ports(&self.addresses, &self.selections()));
        set.map_err(|error| StartError::Definition(Box::new(error)))?;
        let notices = registry.take_notices();
        drop(registry);
        self.deliver(&notices);
        Ok(())
    }

    /// Of each listener, in the configuration's order.
    fn selections(&self) -> Vec<&ProviderSelection> {
        let of = |at| self.groups.iter().find(|group| group.listeners.iter().any(|&(other, _)| other == at));
        (0..self.addresses.len()).filter_map(|at| of(at).map(|group| &group.selection)).collect()
    }

    fn announce(&self, common: &Common) {
        let addresses = self.addresses.iter().zip(self.selections());
        let addresses: Vec<_> =
            addresses.map(|(address, selection)| format!("{address} ({selection})")).collect();
        let (settings, workers) = (&common.settings, self.mailboxes.workers());
        tracing::info!(
            "listening on {}, {workers} worker(s), poll {}, {} MiB pinned a worker: {} MiB data buffers, {} MiB receives \
             ({} I/O queues of {} entries)",
            addresses.join(", "),
            match common.waiting.poll {
                Poll::Adaptive => "adaptive",
                Poll::Busy => "busy",
                Poll::Interrupt => "interrupt",
            },
            settings.pinned() >> 20,
            settings.buffers.bytes() >> 20,
            (settings.pinned() - settings.buffers.bytes()) >> 20,
            settings.full_queues(),
            settings.queue_entries,
        );
        for export in &self.exports {
            let geometry = export.disk.geometry();
            tracing::info!(
                "{} namespace {}: {}, {} bytes in blocks of {}{}",
                export.nqn,
                export.namespace.nsid,
                export.backing(),
                geometry.bytes(),
                geometry.block_size,
                if geometry.read_only { ", read-only" } else { "" },
            );
        }
    }
}

fn worker_thread(
    id: WorkerId,
    common: &Common,
    selection: &ProviderSelection,
    load: Arc<Load>,
    listen: &[(usize, SocketAddr)],
    tell: &Sender<Started>,
) {
    let worker = match set_up(id, common, selection, load, listen) {
        Ok((mut worker, addresses)) => {
            let unpinned = worker.backend().unpinned();
            let _ = tell.send(Ok((addresses, Arc::clone(worker.counters()), unpinned)));
            worker
        }
        Err(error) => {
            let _ = tell.send(Err(error));
            return;
        }
    };
    thread::run(worker, id, &common.mailboxes, common.clock, common.waiting);
}

fn set_up(
    id: WorkerId,
    common: &Common,
    selection: &ProviderSelection,
    load: Arc<Load>,
    listen: &[(usize, SocketAddr)],
) -> Result<(Worker<AnyProvider, Devices>, Listening), WorkerError> {
    let mut backend = Devices::new(DevicesOptions::default())?;
    for export in &common.exports {
        backend.attach(export.device, &export.disk)?;
    }
    let provider = selection.open(OpenOptions {
        completion_vector: u32::try_from(id.0).unwrap_or(0),
        rejection: rejection(RejectStatus::NO_RESOURCES),
        ..OpenOptions::default()
    })?;
    let registry = Arc::clone(&common.registry);
    let mut worker = Worker::new(id, load, common.settings.clone(), registry, provider, backend)?;
    let mut addresses = Vec::new();
    for &(at, address) in listen {
        addresses.push((at, worker.listen(address, exports::port_id(at))?));
    }
    Ok((worker, addresses))
}

fn open_exports(config: &Config) -> Result<Vec<Export>, ExportError> {
    let mut exports = Vec::new();
    for subsystem in &config.subsystems {
        for namespace in &subsystem.namespaces {
            let device = DeviceId(u32::try_from(exports.len()).expect("bounded by the configuration"));
            exports.push(Export::open(subsystem.nqn, namespace, device)?);
        }
    }
    Ok(exports)
}

fn options(config: &Config) -> Options {
    let target = &config.target;
    Options {
        io_queues_max: target.io_queues,
        queue_entries_max: target.queue_depth,
        in_capsule_len: target.in_capsule_data,
        transfer_len_max: target.transfer_max,
        duplicate_host_id: match target.duplicate_host_id {
            nvmf_config::DuplicateHostId::Report => DuplicateHostId::Report,
            nvmf_config::DuplicateHostId::Refuse => DuplicateHostId::Refuse,
        },
        ..Options::default()
    }
}

fn check_memlock(settings: &Settings, workers: usize) {
    let needed = settings.pinned().saturating_mul(workers as u64);
    let root = nix::unistd::geteuid().is_root();
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_MEMLOCK)
        && !root
        && limit < needed
    {
        tracing::warn!(
            "the memlock limit is {} KiB, {} KiB are to be pinned: set LimitMEMLOCK=infinity in the unit (ulimit -l), or lower \
             buffer_memory, queue_depth or workers",
            limit >> 10,
            needed >> 10,
        );
    }
}

/// A connection takes a descriptor, and the soft limit is often 1024.
fn raise_descriptor_limit(settings: &Settings, workers: usize) {
    let needed = u64::from(settings.connections) * workers as u64 + 256;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < needed {
        let raised = setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard);
        if raised.is_err() || hard < needed {
            tracing::warn!(
                "{needed} descriptors may be needed, {hard} are allowed: set LimitNOFILE= in the unit"
            );
        }
    }
}

impl Daemon {
    /// Tells every worker.
    pub(super) fn deliver(&self, notices: &[nvmf_subsystem::Notice]) {
        for notice in notices {
            self.mailboxes.post_all(&crate::message::WorkerMessage::Notice(notice.clone()));
        }
    }
}
