//! What is counted of a worker, where metrics are on.

use super::histogram::Histogram;
use super::namespaces::STATUS_TYPES;
use crate::exec::buffers::Class;
use crate::telemetry::Counter;
use core::sync::atomic::{AtomicU64, Ordering};

/// A part of a command's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A capsule waits to be taken up: for its turn, or for a request.
    Request,
    /// A command waits because of the limit of its host or namespace. Those that do not wait are not counted.
    Limit,
    /// A chunk of the data waits for a buffer, or for a pull to use it with. Those that do not wait are not counted.
    Buffer,
    /// A chunk is fetched from the host.
    Pull,
    /// The disk has an operation.
    Disk,
    /// A chunk goes to the host. Those that leave together with the response are not counted.
    Push,
}

impl Phase {
    /// All.
    pub const ALL: [Self; 6] = [Self::Request, Self::Limit, Self::Buffer, Self::Pull, Self::Disk, Self::Push];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Limit => "limit",
            Self::Buffer => "buffer",
            Self::Pull => "pull",
            Self::Disk => "disk",
            Self::Push => "push",
        }
    }
}

/// A number that goes up and down: one worker writes it, anyone reads.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it. Only the owning worker may.
    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What one worker measures.
#[derive(Debug, Default)]
#[repr(align(128))] // two cache lines: no worker's counting slows another's
pub struct WorkerMeasures {
    /// By [`Phase`].
    pub phases: [Histogram; Phase::ALL.len()],
    /// I/O commands that failed, by status code type.
    pub errors: [Counter; STATUS_TYPES.len()],
    /// Connects refused, by [`nvmf_subsystem::RefusalReason`].
    pub refused: [Counter; nvmf_subsystem::RefusalReason::ALL.len()],
    /// Queues whose host failed to authenticate, by [`nvmf_auth::controller::FaultReason`].
    pub unauthenticated: [Counter; nvmf_auth::controller::FaultReason::ALL.len()],
    /// Buffers that are free, by [`Class`].
    pub buffers_free: [Gauge; Class::COUNT],
    /// Queues.
    pub queues: Gauge,
    /// Queues without a Connect.
    pub unconnected: Gauge,
}
