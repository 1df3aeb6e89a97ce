//! What carries commands: the seam between a [`Driver`](crate::driver::Driver) and NVMe/RDMA, NVMe/TCP, or another
//! transport.
//!
//! | module | what it holds |
//! |---|---|
//! | `rdma` | [`Rdma`]: capsules as messages, memory exposed for exactly one command |
//! | `tcp` | [`Tcp`]: PDUs on TCP connections, data received into place |
//! | `any` | [`AnyTransport`]: one of them, chosen at run time |

mod any;
mod rdma;
mod tcp;

pub use any::{AnyRegion, AnyTransport};
pub use rdma::Rdma;
pub use tcp::{Tcp, TcpOptions, TlsOptions};

use core::fmt::Debug;
use core::time::Duration;
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::{Cid, Cqe, Qid};
use nvmf_host::{Command, QueueFailure, Violation};
use nvmf_memory::Memory;
use nvmf_tls::Psk;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// One thread's access to a transport. A queue is named by its number, a command in it by its slot.
///
/// 1. Nothing blocks. What is asked for starts at [`Transport::flush`] or at the next poll.
/// 2. A command that was sent ends with one [`Arrival::Response`], unless its queue ends first: then nothing more
///    arrives. Its memory is in use until then, and until the transport has released it ([`Transport::complete`]).
/// 3. After [`Transport::destroy`] nothing of the peer's reaches memory, and the controller gets nothing more.
pub trait Transport: Sized {
    /// Registered memory.
    type Region: Clone + Debug;

    /// What hosts and controllers call it.
    fn kind(&self) -> TransportType;

    /// Makes what the queues share: one admin queue, and so many I/O queues of so many entries.
    ///
    /// # Errors
    /// [`TransportError`].
    fn prepare(&mut self, io_queues: u16, entries: u16) -> Result<(), TransportError>;

    /// Makes memory known, for data to be moved from and to.
    ///
    /// # Errors
    /// [`TransportError`].
    fn register(&mut self, memory: &Memory) -> Result<Self::Region, TransportError>;

    /// Ends a registration that no command uses.
    fn deregister(&mut self, region: Self::Region);

    /// Connections that are started from now on have TLS with this key, which an authentication made; with `None`, what
    /// they were to have at first.
    ///
    /// # Errors
    /// [`TransportError`]: there is no TLS.
    fn secure(&mut self, key: Option<&Psk>) -> Result<(), TransportError> {
        match key {
            None => Ok(()),
            Some(_) => Err(TransportError("it has no TLS".to_owned())),
        }
    }

    /// Starts to connect a queue, in place of one with its number. [`Event::Connected`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    /// Why it cannot even start.
    fn open(&mut self, now: Duration, queue: &OpenQueue<'_>) -> Result<(), QueueFailure>;

    /// Nothing is in flight, and the queue has so many entries from now on: at most those that it was opened with.
    fn resize(&mut self, qid: Qid, entries: u16);

    /// Closes a connected queue; [`Event::Disconnected`] follows. `orderly`: the controller is shut down, and expects
    /// it.
    fn disconnect(&mut self, qid: Qid, orderly: bool);

    /// Ends a queue at once.
    fn destroy(&mut self, qid: Qid);

    /// Makes progress on connections and their deadlines; `now` only ever grows. One event a call.
    fn poll_event(&mut self, now: Duration) -> Option<Event>;

    /// When [`Transport::poll_event`] must be called again even if nothing arrives.
    fn poll_timeout(&self) -> Option<Duration>;

    /// Looks what arrived, for [`Transport::next_arrival`]; whether anything did.
    fn poll(&mut self) -> bool;

    /// What arrived.
    fn next_arrival(&mut self) -> Option<Arrival>;

    /// The response that arrived last is of the command in this slot, which wants nothing more. Whether its memory is
    /// released; if not, [`Arrival::Released`] follows.
    ///
    /// # Errors
    /// The response did to its memory what it may not: the association is to end.
    fn complete(&mut self, qid: Qid, slot: u16, invalidated: Option<u32>) -> Result<bool, Violation>;

    /// Sends a command. Its slot and its CID are not in use.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent, nothing is held.
    fn send(
        &mut self,
        qid: Qid,
        slot: u16,
        cid: Cid,
        command: &Command,
        data: Data<'_, Self::Region>,
    ) -> Result<(), Refused>;

    /// Copies the data that the command in this slot got ([`Data::IntoSlot`]), after it was released and before another
    /// is sent.
    fn slot_data(&self, qid: Qid, slot: u16, into: &mut [u8]);

    /// Starts everything that was asked for.
    fn flush(&mut self);

    /// Arms [`Transport::fd`]; `false` when there is something to poll.
    fn arm(&mut self) -> bool;

    /// The descriptor to sleep on; `None` in virtual time.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Its device may be gone: it is to be replaced before the next connection.
    fn is_suspect(&self) -> bool;
}

/// A queue to connect.
#[derive(Debug, Clone, Copy)]
pub struct OpenQueue<'a> {
    /// Its number; 0 is the admin queue.
    pub qid: Qid,
    /// Commands at once.
    pub entries: u16,
    /// Where the controller listens.
    pub address: SocketAddr,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// For RDMA's connection request.
    pub private_data: &'a [u8; 32],
    /// How long its set-up may take.
    pub timeout: Duration,
}

/// Something about a queue's connection.
#[derive(Debug)]
pub enum Event {
    /// It is connected.
    Connected {
        /// The queue.
        qid: Qid,
        /// What came with RDMA's acceptance.
        private_data: Vec<u8>,
    },
    /// It could not be connected.
    Failed(Qid, QueueFailure),
    /// The connection ended; why, in words.
    Disconnected {
        /// The queue.
        qid: Qid,
        /// Why, in words.
        cause: String,
        /// The controller is known to have ended its side: it takes nothing from the connection any more.
        peer_has_ended: bool,
    },
    /// Something about a connection that is no queue's any more, or about the device.
    Other,
}

/// Something about a command.
#[derive(Debug)]
pub enum Arrival {
    /// A response; the key that the controller invalidated with it.
    Response(Qid, [u8; Cqe::LEN], Option<u32>),
    /// The memory of a command that is complete is released.
    Released(Qid, u16),
    /// The controller broke the protocol: the association is to end.
    Violation(Violation),
}

/// The data of a command.
#[derive(Debug)]
pub enum Data<'a, R> {
    /// None.
    None,
    /// These bytes, copied into the command's slot.
    Bytes {
        /// The bytes: at most [`nvmf_host::limits::ADMIN_DATA_MAX`] on the admin queue, Connect's on others.
        bytes: &'a [u8],
        /// In the capsule; otherwise the controller fetches them.
        in_capsule: bool,
    },
    /// The controller writes so many bytes into the command's slot.
    IntoSlot {
        /// Bytes.
        len: u32,
    },
    /// The user's memory.
    User {
        /// Where it is registered.
        region: &'a R,
        /// Bytes from the start of the region.
        offset: usize,
        /// Bytes.
        len: u32,
        /// What is done with it.
        payload: Payload,
    },
}

impl<R> Data<'_, R> {
    /// Whether data follow the command in its capsule.
    fn is_in_capsule(&self) -> bool {
        matches!(self, Self::Bytes { in_capsule: true, .. } | Self::User { payload: Payload::InCapsule, .. })
    }
}

impl<R> Copy for Data<'_, R> {}

impl<R> Clone for Data<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

/// Which way the user's memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// The controller writes it.
    FromController,
    /// The controller reads it.
    ToController,
    /// It goes with the capsule.
    InCapsule,
}

/// Why a command was not sent: nothing of it is held.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// Try again after the next completion.
    NoRoom,
    /// The transport cannot expose its memory, although it exposes no other; why, in words.
    NoKey(String),
}

/// The transport lacks a resource, or its device does not do what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

/// Data bytes behind the SQE of an I/O queue's slot: those of the longest authentication message are the most.
pub(crate) const IO_SLOT_DATA: usize = nvmf_auth::MESSAGE_LEN_MAX;

/// Bytes of data that a slot of this queue holds.
fn slot_data_len(qid: Qid) -> usize {
    if qid.is_admin() { nvmf_host::limits::ADMIN_DATA_MAX as usize } else { IO_SLOT_DATA }
}
