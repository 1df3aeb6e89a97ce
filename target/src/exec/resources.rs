//! What all queues of a worker share.

use super::buffers::{Buffers, slot};
use super::limited::Limited;
use super::place::Place;
use super::transport::Transport;
use crate::limits::{ANSWER_FRAMING, ANSWERS_MIN, DISCOVERY_SHARE};
use crate::metrics::meter::Meter;
use crate::settings::{Load, Settings};
use crate::telemetry::{Counters, LogLimit};
use core::time::Duration;
use nvmf_backend::DEVICES_MAX;
use nvmf_block::{Backend, BlockError, BlockOp, DeviceId, Tag};
use nvmf_memory::OutOfMemory;
use nvmf_subsystem::{AssociationKey, Question, Registry};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use thiserror::Error;

/// A worker could not be set up.
#[derive(Debug, Error)]
pub enum SetUpError {
    /// No memory for its buffers.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// The storage ring does not take them.
    #[error(
        "the storage ring does not take the buffers: {0}; see the memlock limit (LimitMEMLOCK= in the unit)"
    )]
    Pin(BlockError),
    /// The transport.
    #[error("{what}")]
    Transport {
        /// What failed.
        what: &'static str,
        /// Why.
        source: Box<dyn core::error::Error + Send + Sync>,
    },
}

/// What all queues of a worker share: both ends of the way, the memory between them, and what is to be done beyond
/// the queue at hand.
pub struct Resources<T: Transport, B> {
    /// The transport.
    pub transport: T,
    /// The backend.
    pub backend: B,
    /// Data buffers.
    pub buffers: Buffers<T::Key>,
    /// Queues with capsules to take up, each once: they are served in turn.
    pub ready_list: VecDeque<u32>,
    /// Queues that were not in that list when a capsule came for them, each once.
    pub newly_ready: VecDeque<u32>,
    /// Operations that their devices have no room for, by the device's slot.
    device_queues: Box<[VecDeque<(Tag, DeviceId, BlockOp)>]>,
    /// The slots with such operations, each once: they are served in turn.
    waiting_devices: VecDeque<u16>,
    /// The time of this turn.
    pub now: Duration,
    /// No timer expires before: what hosts sent while the worker stood still is read first.
    pub no_timer_before: Duration,
    /// Limits of hosts and namespaces, and who waits for them.
    pub limited: Limited,
    /// When a Connect asks the registry again.
    pub connects_due: Option<Duration>,
    /// Responses with borrowed data since the doorbells were rung.
    pub borrowed: Borrowed,
    /// Queues that had pulls, signalled pushes or responses under way since the worker slept last, each once.
    pub unfinished: Vec<u32>,
    /// Which barriers commands that are taken up now come after.
    pub epoch: u64,
    /// What commands ask the control plane.
    pub questions: VecDeque<(Place, u64, Box<Question>)>,
    /// How many they have asked.
    pub asked: u64,
    /// What queues want done to other queues.
    pub deferred: VecDeque<DeferredAction>,
    /// What is counted.
    pub counters: Arc<Counters>,
    /// What is measured of commands.
    pub meter: Meter,
    /// How often may be logged what a peer can trigger.
    pub log: LogLimit,
    /// Who may connect to what.
    pub registry: Arc<Mutex<Registry>>,
    /// What the workers of the group know of each other.
    pub load: Arc<Load>,
    /// Queues that discovery controllers may have.
    pub discovery_max: usize,
    /// No further commands are taken.
    pub draining: bool,
    /// What the transport sends at once.
    packet_len: Option<u32>,
}

/// Answers that leave from where a device borrows them.
#[derive(Debug, Default)]
pub struct Borrowed {
    answers: u32,
    bytes: u32,
    last: u32,
}

impl Borrowed {
    /// One more, with so many bytes of data.
    pub fn add(&mut self, len: u32) {
        self.answers += 1;
        self.last = len.saturating_add(ANSWER_FRAMING);
        self.bytes = self.bytes.saturating_add(self.last);
    }

    /// Whether they are enough, and one like the last would begin another packet.
    fn is_full(&self, packet_len: u32) -> bool {
        let next = self.bytes.saturating_add(self.last);
        self.answers >= ANSWERS_MIN && next / packet_len > self.bytes / packet_len
    }
}

/// What a queue wants done to queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferredAction {
    /// The I/O queues of an association, on all workers.
    CloseIoQueues(AssociationKey),
    /// All queues of an association, on all workers, at once.
    CloseAssociation(AssociationKey),
    /// This queue of this worker, at once.
    Remove(u32),
}

impl<T: Transport, B: Backend> Resources<T, B> {
    /// Submits to the device, or behind what waits for it. A device that is slow delays no other.
    pub fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) {
        let slot = slot(device);
        let queue = &mut self.device_queues[usize::from(slot)];
        if queue.is_empty() {
            if self.backend.submit(tag, device, op).is_ok() {
                return;
            }
            self.waiting_devices.push_back(slot);
        }
        self.counters.waits_backend.add(1);
        queue.push_back((tag, device, op));
    }

    /// Whether the turn should end with the responses that it has, as one more would begin another packet. Not while
    /// other queues are ready: their responses go into packets of their own.
    #[must_use]
    pub fn packet_is_full(&self) -> bool {
        self.ready_list.is_empty() && self.packet_len.is_some_and(|len| self.borrowed.is_full(len))
    }

    /// Submits what waited for its device.
    pub fn submit_waiting(&mut self) {
        for _ in 0..self.waiting_devices.len() {
            let Some(slot) = self.waiting_devices.pop_front() else { break };
            let queue = &mut self.device_queues[usize::from(slot)];
            while let Some(&(tag, device, op)) = queue.front()
                && self.backend.submit(tag, device, op).is_ok()
            {
                queue.pop_front();
            }
            if !queue.is_empty() {
                self.waiting_devices.push_back(slot);
            }
        }
    }

    /// Takes back operations that wait for devices: those of which `dropped` says when they began, in microseconds.
    pub fn drop_waiting(
        &mut self,
        mut dropped: impl FnMut(&mut Buffers<T::Key>, Place, &BlockOp) -> Option<u64>,
    ) {
        for &slot in &self.waiting_devices {
            self.device_queues[usize::from(slot)].retain(|(tag, _, op)| {
                let since_us = dropped(&mut self.buffers, Place::of_tag(*tag), op);
                if let Some(since_us) = since_us {
                    self.meter.end_operation(slot, since_us);
                }
                since_us.is_none()
            });
        }
        self.waiting_devices.retain(|&slot| !self.device_queues[usize::from(slot)].is_empty());
    }

    /// A transport, a backend, and the memory between them.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new(
        mut transport: T,
        mut backend: B,
        registry: Arc<Mutex<Registry>>,
        load: Arc<Load>,
        settings: &Settings,
    ) -> Result<Self, SetUpError> {
        let queues = settings.connections as usize;
        let buffers = Buffers::new(&mut transport, &mut backend, &settings.buffers, queues)?;
        Ok(Self {
            packet_len: transport.packet_len().filter(|&len| len > 0),
            transport,
            backend,
            buffers,
            ready_list: VecDeque::with_capacity(queues),
            newly_ready: VecDeque::with_capacity(queues),
            device_queues: (0..DEVICES_MAX).map(|_| VecDeque::new()).collect(),
            waiting_devices: VecDeque::with_capacity(DEVICES_MAX as usize),
            now: Duration::ZERO,
            no_timer_before: Duration::ZERO,
            limited: Limited::default(),
            connects_due: None,
            borrowed: Borrowed::default(),
            unfinished: Vec::with_capacity(queues),
            epoch: 0,
            questions: VecDeque::new(),
            asked: 0,
            deferred: VecDeque::with_capacity(64),
            counters: Arc::default(),
            meter: Meter::new(),
            log: LogLimit::new(),
            registry,
            load,
            discovery_max: (queues / DISCOVERY_SHARE).max(1),
            draining: false,
        })
    }
}
