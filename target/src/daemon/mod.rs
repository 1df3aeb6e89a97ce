//! The daemon: start, serve, reload, drain, stop.

mod reload;
mod start;
mod worker_group;

pub use start::StartError;
use worker_group::WorkerGroup;

use crate::control::{Control, Event};
use crate::exports::Export;
use crate::limits::DRAIN_TIMEOUT;
use crate::mailbox::{Mailboxes, ThreadMessage};
use crate::message::{WorkerId, WorkerMessage};
use crate::notify;
use crate::telemetry::Counters;
use crate::thread::Clock;
use anyhow::Context;
use core::time::Duration;
use nvmf_config::Config;
use nvmf_rdma_any::Detached;
use nvmf_subsystem::Registry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// How often the daemon looks around when nobody asks for anything.
const ROUND: Duration = Duration::from_secs(5);
/// A worker that has not turned for so long hangs.
const HANGS: Duration = Duration::from_secs(10);

/// A running daemon.
pub struct Daemon {
    config: Config,
    /// Where it came from, for a reload.
    path: Option<PathBuf>,
    registry: Arc<Mutex<Registry>>,
    mailboxes: Arc<Mailboxes<Detached>>,
    groups: Vec<WorkerGroup>,
    counters: Vec<Arc<Counters>>,
    threads: Vec<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
    exports: Vec<Export>,
    next_device: u32,
    clock: Clock,
}

impl Daemon {
    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What it exports.
    #[must_use]
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Serves until it is told to stop, then drains.
    ///
    /// # Errors
    /// The daemon cannot go on: a worker died.
    pub fn serve(mut self, control: &mut Control) -> anyhow::Result<()> {
        notify::ready(&self.status());
        let watchdog = notify::watchdog_interval();
        let round = watchdog.map_or(ROUND, |interval| interval.min(ROUND));
        loop {
            match control.next(round) {
                Event::Stop => break,
                Event::Reload => {
                    notify::reloading();
                    self.reload();
                    notify::ready(&self.status());
                }
                Event::Report => self.report(),
                Event::Nothing => {}
            }
            notify::status(&self.status());
            if self.threads.iter().any(JoinHandle::is_finished) {
                self.drain();
                anyhow::bail!("a worker thread ended on its own: see the log above");
            }
            let stalled = self.clock.now().saturating_sub(self.mailboxes.oldest_turn());
            if stalled > HANGS {
                tracing::error!("a worker has not turned for {stalled:?}: a device or the machine hangs");
            } else if watchdog.is_some() {
                notify::alive();
            }
        }
        notify::stopping();
        tracing::info!("stopping: {}", self.status());
        self.drain();
        tracing::info!("stopped");
        Ok(())
    }

    /// Queues on all workers.
    fn queues(&self) -> u32 {
        self.groups.iter().map(|group| group.load.total()).sum()
    }

    fn status(&self) -> String {
        let associations = self.registry.lock().map_or(0, |registry| registry.associations().count());
        let queues = self.queues();
        format!("{} namespace(s), {associations} controller(s), {queues} queue(s)", self.exports.len())
    }

    fn report(&self) {
        for (worker, counters) in self.counters.iter().enumerate() {
            tracing::info!(worker, "{counters}");
        }
        tracing::info!("{}", self.status());
        let Ok(registry) = self.registry.lock() else { return };
        for association in registry.associations() {
            let idle = self.clock.now().saturating_sub(association.last_activity());
            tracing::info!(
                cntlid = association.key().cntlid.0, hostnqn = %association.host_nqn(),
                subsystem = %association.subsystem_nqn(), io_queues = association.io_queues(),
                "controller, last heard of {} s ago", idle.as_secs(),
            );
        }
    }

    /// Commands under way are answered, then the queues are closed; what is not over in time is cut off.
    fn drain(self) {
        tracing::debug!("stopping: {}", self.status());
        self.mailboxes.post_all(&WorkerMessage::Drain);
        for worker in 0..self.mailboxes.workers() {
            self.mailboxes.send(WorkerId(worker), ThreadMessage::Finish);
        }
        let deadline = self.clock.now() + DRAIN_TIMEOUT;
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            if self.clock.now() > deadline {
                tracing::warn!(
                    "{} queue(s) did not drain within {DRAIN_TIMEOUT:?}: closing them",
                    self.queues()
                );
                self.mailboxes.post_all(&WorkerMessage::Close);
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for (worker, thread) in self.threads.into_iter().enumerate() {
            if thread.join().is_err() {
                tracing::error!("worker {worker} panicked");
            }
        }
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
