//! Workers of a target in the test's own process: a registry with one subsystem, which any host may use, and one
//! namespace.

use core::time::Duration;
use nvme_proto::{Nqn, Nsid};
use nvmf_block::{Backend, DeviceId, Geometry};
use nvmf_rdma::Provider;
use nvmf_subsystem::{
    HostAccess, NamespaceDefinition, Options, Port, RdmaProviderType, Registry, SubsystemDefinition,
};
use nvmf_target::exec::buffers::BufferPlan;
use nvmf_target::exec::transport::Transport;
use nvmf_target::message::WorkerId;
use nvmf_target::settings::{Load, Settings};
use nvmf_target::transport::rdma::Rdma;
use nvmf_target::worker::Worker;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// Number of the port that the subsystem is served through, for [`Worker::listen`].
pub const PORT: u16 = 1;

/// What the workers are made from. A test changes the fields that matter to it.
#[derive(Debug, Clone)]
pub struct WorkerSetup {
    /// Sizes of each worker.
    pub settings: Settings,
    /// Limits of the registry.
    pub options: Options,
    /// Namespace 1, on the first device of each worker.
    pub namespace: NamespaceDefinition,
    /// Namespaces beside it.
    pub others: Vec<NamespaceDefinition>,
    /// What the subsystem is served through, number [`PORT`].
    pub port: Port,
}

impl WorkerSetup {
    /// For a disk of this geometry, with memory for a few hosts.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self {
            settings: Settings {
                connections: 8,
                queue_entries: 128,
                io_queues: 4,
                in_capsule_data: 4096,
                admin_receives: 4 * 40,
                io_receives: 1024,
                own_receives: u16::MAX,
                lent_receives: 0,
                buffers: BufferPlan::new(16 << 20, 1 << 20),
                transfer_timeout: Duration::from_secs(30),
            },
            options: Options::default(),
            namespace: NamespaceDefinition {
                nsid: Nsid(1),
                device: DeviceId(0),
                geometry,
                uuid: [1; 16],
                nguid: [0; 16],
                eui64: [0; 8],
                read_only: false,
                access: Default::default(),
            },
            others: Vec::new(),
            port: Port::rdma(PORT, SocketAddr::from(([127, 0, 0, 1], 4420)), RdmaProviderType::IWARP),
        }
    }

    /// The subsystem's NQN.
    #[must_use]
    pub fn subsystem() -> Nqn {
        "nqn.2026-11.com.example:disk".parse().expect("a valid NQN")
    }

    /// A registry with the subsystem and its port.
    ///
    /// # Panics
    /// When the options or the namespace are not valid.
    #[must_use]
    pub fn registry(&self) -> Arc<Mutex<Registry>> {
        let mut registry = Registry::new(self.options.clone()).expect("valid options");
        let definition = SubsystemDefinition {
            nqn: Self::subsystem(),
            serial: "TEST".into(),
            model: "test".into(),
            hosts: HostAccess::Any,
            namespaces: [core::slice::from_ref(&self.namespace), &self.others].concat(),
        };
        registry.add_subsystem(definition).expect("a valid definition");
        registry.set_ports(vec![self.port.clone()]).expect("a valid port");
        registry.take_notices();
        Arc::new(Mutex::new(registry))
    }

    /// A group of workers, one for each provider and backend.
    ///
    /// # Panics
    /// When memory or another resource is missing.
    #[must_use]
    pub fn workers<P: Provider, B: Backend>(
        &self,
        registry: &Arc<Mutex<Registry>>,
        parts: Vec<(P, B)>,
    ) -> Vec<Worker<Rdma<P>, B>> {
        let over_rdma = |(provider, mut backend)| {
            (Rdma::new(provider, &mut backend, &self.settings).expect("a transport"), backend)
        };
        self.workers_over(registry, parts.into_iter().map(over_rdma).collect())
    }

    /// A group of workers, one for each transport and backend.
    ///
    /// # Panics
    /// When memory or another resource is missing.
    #[must_use]
    pub fn workers_over<T: Transport, B: Backend>(
        &self,
        registry: &Arc<Mutex<Registry>>,
        parts: Vec<(T, B)>,
    ) -> Vec<Worker<T, B>> {
        let load = Load::new(WorkerId(0), parts.len());
        let worker = |(id, (transport, backend))| {
            let (load, registry) = (Arc::clone(&load), Arc::clone(registry));
            Worker::new(WorkerId(id), load, self.settings.clone(), registry, transport, backend)
                .expect("a worker")
        };
        parts.into_iter().enumerate().map(worker).collect()
    }

    /// A worker alone.
    ///
    /// # Panics
    /// When memory or another resource is missing.
    #[must_use]
    pub fn worker<P: Provider, B: Backend>(&self, provider: P, backend: B) -> Worker<Rdma<P>, B> {
        self.workers(&self.registry(), vec![(provider, backend)]).pop().expect("one worker")
    }

    /// A worker alone, over any transport.
    ///
    /// # Panics
    /// When memory is missing.
    #[must_use]
    pub fn worker_over<T: Transport, B: Backend>(&self, transport: T, backend: B) -> Worker<T, B> {
        self.workers_over(&self.registry(), vec![(transport, backend)]).pop().expect("one worker")
    }
}
