//! The daemon: start, serve, reload, drain, stop.
//!
//! | module | what it holds |
//! |---|---|
//! | `start` | the order of a start |
//! | `namespaces`, `disks` | which namespaces are open, opening, leaving; taking them up and taking them away |
//! | `attaching` | giving their disks to the workers |
//! | `sizes` | disks that grow or shrink |
//! | `fences` | images whose client was fenced |
//! | `health` | what hosts are told of the disks' temperature and wear |
//! | `twins` | disks that bear one UUID |
//! | `ana` | how the namespaces of a group are reached through a listener |
//! | `listeners`, `listening` | where it listens, and tries to; one listener |
//! | `reach` | whether hosts can come to where it listens |
//! | `discovery` | the discovery subsystem's name and referrals |
//! | `limits` | what namespaces and hosts may do a second |
//! | `keys` | the keys of hosts for TLS |
//! | `authentication` | the keys of hosts for DH-HMAC-CHAP, and the threads that compute with them |
//! | `host_key` | keys of hosts that come over the control socket |
//! | `protection` | the operator ends a write protection that a host has set |
//! | `workers`, `worker_group` | the workers' threads, and which provider they serve |
//! | `questions`, `reservations`, `resets` | the thread that answers what commands ask the control plane |
//! | `cluster` | this gateway as one of a group |
//! | `plan`, `apply` | what a changed configuration changes, what that costs, and making it so |
//! | `changing` | changes that are made and wait for disks, and who waits for them |
//! | `unfinished` | what came before a change and is still under way, to be waited for again |
//! | `not_in_force` | what a file asked for and was not made: it is saved with the rest |
//! | `reading` | the configuration and its keys, read by a thread of its own |
//! | `requests` | what comes over the control socket |
//! | `status` | the status line and the report |
//! | `slow_disks` | disks that do not answer |

mod ana;
mod apply;
mod attaching;
mod authentication;
mod changing;
mod cluster;
mod differences;
mod discovery;
mod disks;
mod fences;
mod health;
mod host_key;
mod keys;
mod limits;
mod listeners;
mod listening;
mod namespaces;
mod not_in_force;
mod plan;
mod protection;
mod questions;
mod reach;
mod reading;
mod requests;
pub mod reservations;
mod resets;
mod sizes;
mod slow_disks;
mod stalls;
mod start;
mod status;
pub(crate) mod twins;
mod unfinished;
mod worker_group;
mod workers;

pub use authentication::SecretFault;
pub(crate) use authentication::read_secret;
pub(crate) use cluster::gateway_name;
pub(crate) use keys::NO_KEYS;
pub(crate) use listening::tls_of;
pub(crate) use slow_disks::STUCK;
pub(crate) use start::NOTHING_SERVED;
pub use start::StartError;
pub(crate) use worker_group::{select, want_one_tcp_port, wants_tcp_port};
pub use workers::WorkerError;

use crate::control::{Control, Event};
use crate::exports::Export;
use crate::limits::{
    CLOSE_TIMEOUT, DEVICES_INTERVAL, DRAIN_TIMEOUT, LOOK_AT_IMAGES_INTERVAL, LOOK_INTERVAL, RETRY_INTERVAL,
};
use crate::mailbox::ThreadMessage;
use crate::mdns::Announcer;
use crate::message::{WorkerId, WorkerMessage};
use crate::metrics::endpoint::Endpoint;
use crate::notify::{self, Watchdog};
use crate::qos::Limit;
use crate::sockets::Sockets;
use anyhow::Context;
use changing::{Asker, Changing, GLANCE};
use core::time::Duration;
use health::HealthWatch;
use listening::Listening;
use namespaces::Namespaces;
use nvmf_config::Config;
use nvmf_subsystem::Registry;
use reach::AddressLook;
use sizes::{Looked, Looking};
use slow_disks::SlowDisks;
use stalls::Stalls;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use worker_group::WorkerGroup;
use workers::{Common, WorkerThread};

/// How often the daemon looks around when nobody asks for anything.
const ROUND: Duration = Duration::from_secs(5);

/// A running daemon.
pub struct Daemon {
    /// What is to be served. What of it is not is in `namespaces` and `listeners`.
    config: Config,
    /// Where it came from, for a reload.
    path: Option<PathBuf>,
    common: Common,
    groups: Vec<WorkerGroup>,
    /// By their [`WorkerId`].
    workers: Vec<WorkerThread>,
    listeners: Vec<Listening>,
    /// Listening sockets that systemd handed over and that no listener has taken yet.
    sockets: Sockets,
    namespaces: Namespaces,
    /// It started without a disk, as all that may come are slow: hosts would find their disks gone, so it does not listen yet.
    awaits_disk: Option<disks::OpenDeadline>,
    /// The number of the port of the listener that came last.
    last_port: u16,
    /// No connection is taken for now.
    draining: bool,
    /// How many errors the last reload had.
    reload_errors: usize,
    /// When to try again what could not be had, and when to look for RDMA devices.
    retry_at: Duration,
    /// When to look whether disks have grown.
    look_at: Duration,
    devices_at: Duration,
    watchdog: Watchdog,
    stalls: Stalls,
    addresses: AddressLook,
    /// Where metrics are served.
    metrics: Option<Endpoint>,
    slow: SlowDisks,
    health: HealthWatch,
    /// Those that the workers know.
    limits: HashMap<limits::Limited, Arc<Limit>>,
    /// Announces the discovery service, where that is wanted.
    announcer: Option<Announcer>,
    /// What came before changes that are made and is still under way.
    unfinished: Vec<unfinished::Unfinished>,
    /// What keeps reservations and write protections.
    to_store: Sender<questions::ToStore>,
    /// When to look whether images are still there.
    look_at_images: Duration,
    /// The disks are being looked at.
    looking: HashMap<Looked, Looking>,
    /// Bytes that the process grew by when the disks were opened and given to the workers.
    disk_memory: u64,
    /// Disks that some workers do not have yet.
    attaching: Vec<attaching::Attaching>,
    /// Files for disks are being made.
    making: Vec<JoinHandle<()>>,
    /// What the last file asked for and takes effect at the next start, or was refused: it is saved with the rest.
    not_in_force: Vec<plan::Change>,
    /// Changes that are made and not over, with who waits for them.
    changing: Vec<(Changing, Asker)>,
    /// Configurations that are being read.
    readings: reading::Readings,
    /// What is known of the group of gateways, where this is one of them.
    cluster: Option<Box<cluster::Membership>>,
}

impl Daemon {
    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter(|listener| listener.listens()).map(Listening::address).collect()
    }

    /// What it exports.
    #[must_use]
    pub fn exports(&self) -> &[Export] {
        &self.namespaces.open
    }

    /// Serves until it is told to stop, then drains.
    ///
    /// # Errors
    /// The daemon cannot go on: a worker died, or the thread of the gateway group.
    pub fn serve(mut self, control: &mut Control) -> anyhow::Result<()> {
        self.announce_discovery();
        notify::ready(&self.status());
        let mut round_at = Duration::ZERO;
        loop {
            let now = self.common.clock.now();
            let mut wait = self.watchdog.wait(now, ROUND).min(self.look_at.saturating_sub(now));
            if self.is_changing() || self.is_group_busy() {
                wait = wait.min(GLANCE);
            }
            let event = control.next(wait);
            let is_idle = matches!(event, Event::Nothing);
            match event {
                Event::Stop => break,
                Event::Reload => {
                    notify::reloading();
                    self.reload();
                }
                Event::Report => self.report(),
                Event::Call(call) => self.on_call(call),
                Event::Wake | Event::Nothing => {}
            }
            if self.workers.iter().any(WorkerThread::ended) {
                self.stop(Duration::ZERO);
                anyhow::bail!("a worker thread ended on its own: see the log above");
            }
            if self.group_ended() {
                self.stop(Duration::ZERO);
                anyhow::bail!("the thread of the gateway group ended on its own: see the log above");
            }
            self.advance_changes();
            let now = self.common.clock.now();
            if is_idle && (self.is_changing() || self.is_group_busy()) && now < round_at {
                // It was a glance at what a change waits for, one of many.
                self.keep_alive();
                continue;
            }
            round_at = now + ROUND;
            self.maintain();
            self.announce_discovery();
            notify::status(&self.status());
            self.keep_alive();
        }
        notify::stopping();
        tracing::info!("stopping: {}", self.status());
        self.leave_group();
        self.stop(DRAIN_TIMEOUT);
        tracing::info!("stopped");
        Ok(())
    }

    /// Tells systemd's watchdog, when that is due, that the workers turn, if they do.
    fn keep_alive(&self) {
        let now = self.common.clock.now();
        let seen = self.stalls.look(now, self.common.mailboxes.oldest_turn());
        if let Some(stalled) = seen.news {
            tracing::error!("a worker has not turned for {stalled:?}: a device or the machine hangs");
        }
        self.watchdog.tell(now, seen.all_turn);
    }

    /// Takes up what has become possible since: disks and addresses that could not be had, RDMA devices that are new.
    fn maintain(&mut self) {
        self.attach_late();
        self.collect_sizes();
        self.collect_addresses();
        self.look_at_changed();
        self.note_fenced();
        self.log_slow_disks();
        self.watch_health();
        self.show_observed();
        let now = self.common.clock.now();
        if now >= self.retry_at {
            self.retry_at = now + RETRY_INTERVAL;
            self.log_failures();
            self.forget_regrouped();
        }
        if now >= self.look_at {
            self.look_at = now + LOOK_INTERVAL;
            self.retry_listeners();
            let images = now >= self.look_at_images;
            if images {
                self.look_at_images = now + LOOK_AT_IMAGES_INTERVAL;
            }
            self.begin_to_look(images);
            self.look_at_addresses();
        }
        if now >= self.devices_at {
            self.devices_at = now + DEVICES_INTERVAL;
            self.look_for_devices();
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.common.registry()
    }

    /// Tells every worker what has changed in the registry.
    fn publish(&self) {
        self.common.publish();
    }

    /// Commands under way are answered, then the queues are closed; what is not over in time is cut off, and what is
    /// not even then (a disk that hangs) is left to the end of the process.
    fn stop(mut self, drain: Duration) {
        // Hosts are told before the listeners go.
        self.announcer = None;
        let (mailboxes, clock) = (&self.common.mailboxes, self.common.clock);
        let all_ended = |deadline: Duration| {
            while !self.workers.iter().all(WorkerThread::ended) {
                if clock.now() >= deadline {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            true
        };
        mailboxes.post_all(&WorkerMessage::Drain);
        for worker in 0..mailboxes.workers() {
            mailboxes.send(WorkerId(worker), ThreadMessage::Finish);
        }
        let mut ended = all_ended(clock.now() + drain);
        if !ended {
            let queues = self.queues();
            if !drain.is_zero() {
                tracing::warn!("{queues} queue(s) did not drain within {drain:?}: closing them");
            }
            mailboxes.post_all(&WorkerMessage::Close);
            ended = all_ended(clock.now() + CLOSE_TIMEOUT);
        }
        if !ended {
            tracing::error!(
                "operations on a disk have not ended within {CLOSE_TIMEOUT:?}: leaving them to the kernel"
            );
        }
        close_in_time(core::mem::take(&mut self.namespaces));
        for (id, worker) in self.workers.into_iter().enumerate().filter(|(_, worker)| worker.ended()) {
            if worker.thread.join().is_err() {
                tracing::error!("worker {id} panicked");
            }
        }
        self.namespaces.close_all(CLOSE_TIMEOUT);
    }
}

/// Closes the disks, within a bounded time: a storage cluster that does not answer keeps nobody from stopping.
fn close_in_time(namespaces: Namespaces) {
    let (tell, over) = std::sync::mpsc::channel::<()>();
    let body = move || {
        drop(namespaces);
        drop(tell);
    };
    if std::thread::Builder::new().name("close-disks".into()).spawn(body).is_ok() {
        // It says nothing, and is gone when that is over.
        let _ = over.recv_timeout(CLOSE_TIMEOUT);
    }
}

/// Reads a configuration file.
///
/// # Errors
/// It is not there, or says something that cannot be.
pub fn read_config(path: &std::path::Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Config::parse(&text).with_context(|| format!("{} is not a configuration to serve", path.display()))
}
