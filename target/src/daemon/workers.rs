//! The workers' threads.

use super::StartError;
use super::authentication::HostKeys;
use super::worker_group::{Selection, WorkerGroup};
use crate::control::{Ended, Waker};
use crate::exec::resources::SetUpError;
use crate::exec::transport::Transport;
use crate::mailbox::Mailboxes;
use crate::message::{WorkerId, WorkerMessage};
use crate::metrics::observed::Observed;
use crate::settings::{Load, Settings};
use crate::state::StateDirectory;
use crate::telemetry::Counters;
use crate::thread::{self, Clock, Waiting};
use crate::transport::Detached;
use crate::transport::rdma::Rdma;
use crate::transport::rdma::listener::rejection;
use crate::transport::tcp::{Tcp, TcpOptions, TlsPorts};
use crate::worker::Worker;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvme_proto::rdma::RejectStatus;
use nvmf_backend::{Devices, DevicesError, DevicesOptions};
use nvmf_rdma_any::OpenOptions;
use nvmf_subsystem::Registry;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use thiserror::Error;

/// A worker could not be set up.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// Its ring.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// Its RDMA provider.
    #[error(transparent)]
    Provider(#[from] nvmf_rdma_any::OpenError),
    /// The memory between them.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
}

/// What every worker gets.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) target: nvmf_config::Target,
    pub(super) waiting: Waiting,
    pub(super) registry: Arc<Mutex<Registry>>,
    pub(super) mailboxes: Arc<Mailboxes<Detached>>,
    pub(super) clock: Clock,
    /// What is counted, for who shows it.
    pub(super) observed: Arc<Observed>,
    pub(super) waker: Waker,
    /// Which NVMe/TCP ports have TLS, if one has.
    pub(super) tls: Arc<TlsPorts>,
    /// Where reservations are kept.
    pub(super) state: Arc<StateDirectory>,
    /// The keys of hosts that must authenticate.
    pub(super) host_keys: Arc<HostKeys>,
}

impl Common {
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no panic happened under the registry's lock")
    }

    /// Tells every worker what has changed in the registry.
    pub(super) fn publish(&self) {
        publish(&mut self.registry(), &self.mailboxes);
    }
}

/// Tells every worker what has changed in the registry. Under its lock: a barrier that anybody posts later comes behind
/// every change that was made before.
pub(super) fn publish(registry: &mut Registry, mailboxes: &Mailboxes<Detached>) {
    for notice in registry.take_notices() {
        mailboxes.post_all(&WorkerMessage::Notice(notice));
    }
}

/// A worker that runs.
pub(super) struct WorkerThread {
    pub(super) thread: JoinHandle<()>,
    pub(super) counters: Arc<Counters>,
    ended: Ended,
}

impl WorkerThread {
    /// Whether it has ended: on its own, if it was not told to.
    pub(super) fn ended(&self) -> bool {
        self.ended.get()
    }

    /// Starts a worker of a group, which has no device and listens nowhere yet.
    pub(super) fn start(id: WorkerId, group: &WorkerGroup, common: &Common) -> Result<Self, StartError> {
        let (selection, load) = (group.selection.clone(), Arc::clone(&group.load));
        let (tell, told) = channel();
        let (end, ended) = common.waker.on_end();
        let observed = Arc::clone(&common.observed);
        let common = common.clone();
        let body = move || {
            let _end = end;
            run(id, &common, &selection, load, &tell);
        };
        let thread = std::thread::Builder::new().name(format!("worker-{}", id.0)).spawn(body)?;
        let started = told.recv().map_err(|_| io::Error::other("the worker's thread died at its start"))?;
        let (counters, unpinned) = started.map_err(|error| StartError::Worker(id.0, error))?;
        observed.add_worker(id, group.selection.transport(), Arc::clone(&counters));
        if unpinned {
            tracing::warn!(
                worker = id.0,
                "buffers could not be pinned for io_uring: I/O works, slower; raise the memlock limit \
                 (LimitMEMLOCK= in the unit)"
            );
        }
        Ok(Self { thread, counters, ended })
    }
}

/// What a worker's thread says once it is set up: its counters, and whether memory could not be pinned.
type Started = Result<(Arc<Counters>, bool), WorkerError>;

fn run(id: WorkerId, common: &Common, selection: &Selection, load: Arc<Load>, tell: &Sender<Started>) {
    let settings = selection.settings(&common.target);
    match selection {
        Selection::Rdma(provider) => {
            let transport = |devices: &mut Devices| {
                let provider = provider.open(OpenOptions {
                    completion_vector: u32::try_from(id.0).unwrap_or(0),
                    rejection: rejection(RejectStatus::NO_RESOURCES),
                    ..OpenOptions::default()
                })?;
                Ok(Rdma::new(provider, devices, &settings)?)
            };
            run_over(id, common, &settings, load, tell, transport);
        }
        Selection::Tcp => {
            let options = TcpOptions { tls: Some(Arc::clone(&common.tls)), ..TcpOptions::default() };
            let transport = |devices: &mut Devices| Ok(Tcp::new(devices, &settings, options)?);
            run_over(id, common, &settings, load, tell, transport);
        }
    }
}

fn run_over<T: Transport>(
    id: WorkerId,
    common: &Common,
    settings: &Settings,
    load: Arc<Load>,
    tell: &Sender<Started>,
    transport: impl FnOnce(&mut Devices) -> Result<T, WorkerError>,
) where
    T::Detached: Into<Detached> + TryFrom<Detached>,
{
    let set_up = || {
        let mut devices = Devices::new(DevicesOptions::default())?;
        let transport = transport(&mut devices)?;
        let registry = Arc::clone(&common.registry);
        Ok(Worker::new(id, load, settings.clone(), registry, transport, devices)?)
    };
    match set_up() {
        Ok(mut worker) => {
            if let Some(measuring) = common.observed.measuring(id) {
                worker.measure(measuring);
            }
            let unpinned = worker.backend().unpinned();
            let _ = tell.send(Ok((Arc::clone(worker.counters()), unpinned)));
            thread::run(worker, id, &common.mailboxes, common.clock, common.waiting);
        }
        Err(error) => {
            let _ = tell.send(Err(error));
        }
    }
}

/// Says so if the process may lock too little memory for so many workers.
pub(super) fn check_memlock(target: &nvmf_config::Target, groups: &[WorkerGroup]) {
    let pinned = |group: &WorkerGroup| {
        let settings = group.selection.settings(target);
        settings.pinned(group.selection.transport()).saturating_mul(group.workers as u64)
    };
    let needed: u64 = groups.iter().map(pinned).fold(0, u64::saturating_add);
    let root = nix::unistd::geteuid().is_root();
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_MEMLOCK)
        && !root
        && limit < needed
    {
        tracing::warn!(
            "the memlock limit is {} KiB, {} KiB are to be pinned: set LimitMEMLOCK=infinity in the unit \
             (ulimit -l), or lower \
             buffer_memory, queue_depth or workers",
            limit >> 10,
            needed >> 10,
        );
    }
}

/// Raises the limit of open files to what is needed, or says that it cannot.
pub(super) fn raise_descriptor_limit(needed: u64) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if soft < needed {
        let raised = setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard);
        if raised.is_err() || hard < needed {
            tracing::warn!(
                "{needed} descriptors may be needed, {hard} are allowed: set LimitNOFILE= in the unit (ulimit -n), or lower \
                 connections or workers"
            );
        }
    }
}
