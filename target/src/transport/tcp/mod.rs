//! NVMe/TCP: capsules and data as PDUs on TCP connections, one for each queue.
//!
//! | module | what it holds |
//! |---|---|
//! | `establish` | listening, ICReq and ICResp, handing over |
//! | `deadlines` | closed connections that linger, and what is due |
//! | `connection` | from bytes to capsules and data, and back |
//! | `outbox` | what is to be sent |
//! | `capsules` | the memory that in-capsule data land in |
//! | `progress` | reads and writes sockets, ends connections |
//! | `security` | which ports have TLS, and the handshake |
//! | `wire` | the seam to the worker |

mod capsules;
mod connection;
mod deadlines;
mod establish;
mod outbox;
mod progress;
mod security;
mod wire;

pub use capsules::Capsule;
pub use establish::{Detached, Incoming, Refusal};
pub use security::TlsPorts;

use crate::exec::resources::SetUpError;
use crate::exec::transport::{Arrival, Event};
use crate::limits::{IN_CAPSULE_ADMIN, LINGERING_MAX, TCP_STAGING, TRANSFER_CHECKS};
use crate::settings::Settings;
use capsules::Capsules;
use connection::Connection;
use core::time::Duration;
use establish::Pending;
use nvmf_block::Backend;
use nvmf_config::AddressList;
use nvmf_rdma::slots::Slots;
use nvmf_stream::{
    Deadline, Deadlines, HalfOpenLimits, Lingering, Listener, Poller, ReadSchedule, SendSchedule,
    StreamConfig,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Listeners at once.
const LISTENERS_MAX: u16 = 1024;

/// How a [`Tcp`] behaves.
#[derive(Debug, Clone, Default)]
pub struct TcpOptions {
    /// The sockets.
    pub stream: StreamConfig,
    /// Connections that have not sent their ICReq.
    pub half_open: HalfOpenLimits,
    /// Which ports have TLS; `None`: none has.
    pub tls: Option<Arc<TlsPorts>>,
}

/// One thread's access to NVMe/TCP.
pub struct Tcp {
    options: TcpOptions,
    poller: Poller,
    listeners: Slots<(Listener, u16)>,
    /// Of ports that do not take connections from anywhere.
    allowed: HashMap<u16, AddressList>,
    pendings: Slots<Pending>,
    lingering: Slots<Lingering>,
    connections: Box<[Option<Box<Connection>>]>,
    capsules: Capsules,
    /// Bytes of data in the capsule of an I/O queue.
    in_capsule_len: u32,
    /// How long the data of a capsule may take to arrive.
    capsule_timeout: Duration,
    reads: ReadSchedule,
    sends: SendSchedule,
    /// Queues with a capsule that waits for a slot, each once.
    awaiting: VecDeque<u32>,
    staging: Box<[u8]>,
    events: VecDeque<Event<Incoming>>,
    /// By queue.
    arrivals: VecDeque<(u32, Arrival<Capsule>)>,
    /// Whatever has a deadline.
    deadlines: Deadlines,
    /// When connections are looked at that are within a capsule.
    capsule_check: Deadline,
}

impl Tcp {
    /// An access without listeners and connections.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new<B: Backend>(
        backend: &mut B,
        settings: &Settings,
        options: TcpOptions,
    ) -> Result<Self, SetUpError> {
        let queues = settings.connections as usize;
        let in_capsule_len = settings.tcp_slot_len();
        let io = (settings.io_receives, in_capsule_len as usize);
        let admin = (settings.tcp_admin_slots(), IN_CAPSULE_ADMIN as usize);
        let poller = Poller::new().map_err(|error| SetUpError::Transport {
            what: "the system gives no epoll descriptor",
            source: error.into(),
        })?;
        Ok(Self {
            options,
            poller,
            listeners: Slots::new(LISTENERS_MAX),
            allowed: HashMap::new(),
            pendings: Slots::new(u16::MAX),
            lingering: Slots::new(LINGERING_MAX),
            connections: (0..queues).map(|_| None).collect(),
            capsules: Capsules::new(backend, admin, io, queues)?,
            in_capsule_len,
            capsule_timeout: settings.transfer_timeout,
            reads: ReadSchedule::default(),
            sends: SendSchedule::default(),
            awaiting: VecDeque::with_capacity(queues),
            staging: vec![0; TCP_STAGING].into(),
            events: VecDeque::new(),
            arrivals: VecDeque::with_capacity(1024),
            deadlines: Deadlines::default(),
            capsule_check: Deadline::After(settings.transfer_timeout / TRANSFER_CHECKS),
        })
    }

    /// Slots that hold in-capsule data, or wait for them.
    #[must_use]
    pub fn slots_out(&self) -> usize {
        self.capsules.out()
    }

    fn connection(&mut self, queue: u32) -> Option<&mut Connection> {
        self.connections.get_mut(queue as usize)?.as_deref_mut()
    }
}
