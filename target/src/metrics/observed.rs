//! Everything that there is to see, in one place for who shows it.

use super::hosts::{HostTotals, Hosts};
use super::meter::Measuring;
use super::namespaces::Namespaces;
use super::slowest::SlowCommand;
use super::worker::WorkerMeasures;
use crate::mailbox::Mailboxes;
use crate::message::{WorkerId, WorkerMessage};
use crate::telemetry::Counters;
use crate::thread::Clock;
use crate::transport::Detached;
use core::time::Duration;
use nvme_proto::Nqn;
use nvmf_cluster::Status;
use nvmf_config::{Metrics, Transport};
use nvmf_subsystem::{ControllerType, Registry};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

/// What is counted and measured, and where the rest is to be had.
pub struct Observed {
    /// When the target was started.
    pub started: SystemTime,
    /// Namespaces. The operations of their disks are counted always, commands only where metrics are on.
    pub namespaces: Namespaces,
    /// Hosts.
    pub hosts: Arc<Hosts>,
    is_measured: bool,
    workers: Mutex<Vec<SeenWorker>>,
    view: Mutex<Arc<View>>,
    /// The measures of each worker, made before it starts.
    measures: Box<[Arc<WorkerMeasures>]>,
    mailboxes: Arc<Mailboxes<Detached>>,
    registry: Arc<Mutex<Registry>>,
    clock: Clock,
}

impl core::fmt::Debug for Observed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Observed").field("started", &self.started).finish_non_exhaustive()
    }
}

/// A worker.
#[derive(Debug, Clone)]
pub struct SeenWorker {
    /// Which.
    pub id: WorkerId,
    /// What its hosts connect with.
    pub transport: Transport,
    /// What it counts always.
    pub counters: Arc<Counters>,
    /// What it measures.
    pub measures: Arc<WorkerMeasures>,
}

/// What the daemon knows.
#[derive(Debug, Default)]
pub struct View {
    /// The namespaces that are to be served.
    pub namespaces: Vec<SeenNamespace>,
    /// Where it listens, and tries to.
    pub listeners: Vec<SeenListener>,
    /// Errors of the last reload.
    pub reload_errors: usize,
    /// Its group of gateways, if it is of one.
    pub group: Option<SeenGroup>,
}

/// A group of gateways, as this one sees it.
#[derive(Debug)]
pub struct SeenGroup {
    /// What it says of itself, and of the group; `None`: its thread does not answer.
    pub status: Option<Status>,
    /// Items of the configuration that are left out.
    pub left_out: usize,
    /// ANA groups that were taken: their images were opened here.
    pub takeovers: u64,
    /// Connections of others that were put on the blocklist.
    pub fences: u64,
}

/// A namespace that is to be served.
#[derive(Debug)]
pub struct SeenNamespace {
    /// Of which subsystem.
    pub nqn: Nqn,
    /// Which.
    pub nsid: u32,
    /// Bytes, if its disk is there.
    pub size: Option<u64>,
    /// Operations that its disk has failed.
    pub disk_failures: u64,
    /// Every flush fails, because one has.
    pub flush_failed: bool,
}

/// A listener.
#[derive(Debug)]
pub struct SeenListener {
    /// Where.
    pub address: SocketAddr,
    /// What hosts connect with.
    pub transport: Transport,
    /// Whether it listens.
    pub up: bool,
}

/// A host that is counted, and its connections.
#[derive(Debug, Default)]
pub struct SeenHost {
    /// Its controllers.
    pub controllers: u64,
    /// Its queues.
    pub queues: u64,
    /// How long ago its last command was received, if it is connected.
    pub idle: Option<Duration>,
    /// What was counted of it.
    pub totals: HostTotals,
}

impl SeenHost {
    fn add_connection(&mut self, queues: u64, idle: Duration) {
        self.controllers += 1;
        self.queues += queues;
        self.idle = Some(self.idle.map_or(idle, |other| other.min(idle)));
    }
}

impl Observed {
    /// Of a target that is starting, with up to so many workers.
    #[must_use]
    pub fn new(
        metrics: Option<&Metrics>,
        workers: usize,
        registry: &Arc<Mutex<Registry>>,
        mailboxes: &Arc<Mailboxes<Detached>>,
        clock: Clock,
    ) -> Self {
        let measured = if metrics.is_some() { workers } else { 0 };
        Self {
            started: SystemTime::now(),
            namespaces: Namespaces::new(workers, metrics.map(|metrics| metrics.namespaces)),
            hosts: Arc::new(Hosts::new(measured, metrics.map_or(0, |metrics| metrics.hosts))),
            is_measured: metrics.is_some(),
            workers: Mutex::default(),
            view: Mutex::default(),
            measures: (0..measured).map(|_| Arc::default()).collect(),
            mailboxes: Arc::clone(mailboxes),
            registry: Arc::clone(registry),
            clock,
        }
    }

    /// Whether commands are measured.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// What a worker measures with, if it is to.
    #[must_use]
    pub fn measuring(&self, id: WorkerId) -> Option<Measuring> {
        let measures = Arc::clone(self.measures.get(id.0)?);
        Some(Measuring { worker: id.0, measures, hosts: Arc::clone(&self.hosts) })
    }

    /// A worker has started.
    pub fn add_worker(&self, id: WorkerId, transport: Transport, counters: Arc<Counters>) {
        if let Some(measures) = self.measures.get(id.0).cloned() {
            lock(&self.workers).push(SeenWorker { id, transport, counters, measures });
        }
    }

    /// The daemon looked around.
    pub fn show(&self, view: View) {
        *lock(&self.view) = Arc::new(view);
    }

    /// What the daemon saw last.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&lock(&self.view))
    }

    /// The workers.
    #[must_use]
    pub fn workers(&self) -> Vec<SeenWorker> {
        lock(&self.workers).clone()
    }

    /// The time on the clock of the workers, in microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.clock.now().as_micros()).unwrap_or(u64::MAX)
    }

    /// How long ago a worker turned.
    #[must_use]
    pub fn turn_age(&self, id: WorkerId) -> Duration {
        self.clock.now().saturating_sub(self.mailboxes.last_turn(id))
    }

    /// The hosts that are counted by themselves, by host NQN and subsystem NQN, and all others together.
    #[must_use]
    pub fn seen_hosts(&self) -> (BTreeMap<(Nqn, Nqn), SeenHost>, SeenHost) {
        let counted = self.hosts.all();
        let mut hosts: BTreeMap<_, _> = counted
            .iter()
            .filter_map(|host| Some((host.name?, SeenHost { totals: host.totals(), ..SeenHost::default() })))
            .collect();
        let mut other = SeenHost { totals: self.hosts.other(), ..SeenHost::default() };
        // Hosts connect under this lock: no more is done under it than to take hold of the associations.
        let associations: Vec<_> = lock(&self.registry).associations().cloned().collect();
        let now = self.clock.now();
        for association in associations.iter().filter(|it| it.controller_type() == ControllerType::Io) {
            let name = (*association.host_nqn(), *association.subsystem_nqn());
            let idle = now.saturating_sub(association.last_activity());
            let queues = 1 + u64::from(association.io_queues());
            hosts.get_mut(&name).unwrap_or(&mut other).add_connection(queues, idle);
        }
        (hosts, other)
    }

    /// The slowest commands of all workers since the last call, the slowest first. Waits for workers no longer than
    /// that.
    #[must_use]
    pub fn take_slowest(&self, wait: Duration) -> Vec<SlowCommand> {
        let (tell, told) = channel();
        self.mailboxes.post_all(&WorkerMessage::TakeSlowest(tell));
        let deadline = Instant::now() + wait;
        let mut commands = Vec::new();
        // It ends when the last worker has told, and the message is gone.
        while let Ok(mut some) = told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            commands.append(&mut some);
        }
        commands.sort_by_key(|command| core::cmp::Reverse(command.total));
        commands
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic happened under this lock")
}
