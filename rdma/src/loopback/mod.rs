//! The reference semantics: queue pairs of one process that talk to each other through copies.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | [`Fabric`], [`FabricOptions`], [`Loopback`] |
//! | `provider` | the contract, each call in a line or two |
//! | `state` | the tables, the calendar of messages under way, progress |
//! | `memory` | regions, keys, and what a key lets a peer reach |
//! | `connection` | listeners, requests, set-up, tear-down |
//! | `queue` | queue pairs and queues: made, flushed, removed |
//! | `post`, `complete` | what goes into them and what comes out |
//! | `transfer` | what a message does when it arrives |
//! | `half_open` | connections whose loss one side notices later |
//!
//! Deterministic: the same calls in the same order, with the same seed, end in the same completions. One lock guards a
//! fabric, and a work request is copied when posted: this is the baseline and the simulator's provider, not the fast
//! path.

mod complete;
mod connection;
mod half_open;
mod memory;
mod post;
mod provider;
mod queue;
mod state;
#[cfg(test)]
mod tests;
mod transfer;

use crate::rng::Rng;
use crate::{QueuePairId, RequestId};
use core::ops::RangeInclusive;
use core::time::Duration;
use nix::sys::eventfd::{EfdFlags, EventFd};
use state::{MemberId, State};
use std::sync::{Arc, Mutex, MutexGuard};

/// How a fabric behaves.
#[derive(Debug, Clone)]
pub struct FabricOptions {
    /// How long each message is under way. Messages of one connection and direction stay in order; those of
    /// different connections overtake each other. Zero delivers at the next flush or poll of anybody.
    pub latency: RangeInclusive<Duration>,
    /// Of the latencies.
    pub seed: u64,
    /// SENDs that may wait on a queue pair without a receive; one more ends the connection. `None`: any number waits,
    /// and behind them the answers to RDMA READs, as on one stream of bytes.
    pub spill: Option<usize>,
    /// Whether there is a descriptor to sleep on; without, time is virtual and the caller knows when to poll.
    pub descriptor: bool,
}

impl Default for FabricOptions {
    fn default() -> Self {
        Self { latency: Duration::ZERO..=Duration::ZERO, seed: 0, spill: Some(64), descriptor: true }
    }
}

/// A network inside the process, with its own addresses and ports. Cloning gives another handle to it.
///
/// All its providers share one clock: the latest `now` that any of them was given.
#[derive(Debug, Clone)]
pub struct Fabric(Arc<Mutex<State>>);

impl Fabric {
    /// One that delivers at once.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(FabricOptions::default())
    }

    /// One with these options.
    #[must_use]
    pub fn with_options(options: FabricOptions) -> Self {
        let rng = Rng::new(options.seed);
        Self(Arc::new(Mutex::new(State::new(options, rng))))
    }

    /// Another host, worker or thread on it.
    ///
    /// # Panics
    /// When the process has no descriptor left for it.
    #[must_use]
    pub fn provider(&self) -> Loopback {
        let mut state = self.lock();
        let event = state.options.descriptor.then(|| {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            Arc::new(EventFd::from_flags(flags).expect("a file descriptor for the loopback provider"))
        });
        Loopback { member: state.join(event.clone()), event, fabric: self.clone() }
    }

    /// The next arrival or deadline of any provider on the fabric, if it lies ahead.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.lock().next_due()
    }

    /// From now on this queue pair takes nothing from its peer and answers none of its READs, as a host does that hangs while
    /// its connection stands. What is under way arrives; the peer's later work requests never complete.
    pub fn stop_taking(&self, queue_pair: QueuePairId) {
        if let Some(it) = self.lock().queue_pairs.get_mut(&queue_pair) {
            it.stopped = true;
        }
    }

    /// Breaks a connection. `queue_pair` ends at once, as [`crate::DisconnectCause::Broken`]. Its peer ends `notice`
    /// later and is half-open until then: what was under way to it arrives after `late`, in order, and what it sends
    /// is lost. Returns `false`, and changes nothing, if the two are not connected or one of them is disconnecting.
    pub fn break_half_open(&self, queue_pair: QueuePairId, late: Duration, notice: Duration) -> bool {
        self.lock().break_half_open(queue_pair, late, notice)
    }

    /// Whether work requests of this queue pair are on their way to its peer.
    #[must_use]
    pub fn has_under_way(&self, queue_pair: QueuePairId) -> bool {
        self.lock().queue_pairs.get(&queue_pair).is_some_and(|qp| !qp.started.is_empty())
    }

    /// The other end of a connection.
    #[must_use]
    pub fn peer(&self, queue_pair: QueuePairId) -> Option<QueuePairId> {
        self.lock().queue_pairs.get(&queue_pair)?.peer
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic happened while the fabric was locked")
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

/// A provider on a [`Fabric`]. Dropping it ends its queue pairs and listeners.
#[derive(Debug)]
pub struct Loopback {
    fabric: Fabric,
    member: MemberId,
    event: Option<Arc<EventFd>>,
}

impl Loopback {
    /// Keys of this provider's memory that are open to peers.
    #[must_use]
    pub fn remote_keys(&self) -> usize {
        self.fabric.lock().exposures.values().filter(|exposure| exposure.owner == self.member).count()
    }
}

/// A connection request between two providers of one fabric.
#[derive(Debug)]
pub struct DetachedRequest(RequestId);

impl Drop for Loopback {
    fn drop(&mut self) {
        // A panic elsewhere may have poisoned the lock; a second one in drop would abort and hide it.
        if let Ok(mut state) = self.fabric.0.lock() {
            state.leave(self.member);
        }
    }
}
