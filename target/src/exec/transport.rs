//! What carries commands: the seam between a worker and NVMe/RDMA, NVMe/TCP, or another transport.

use super::place::Place;
use super::resources::SetUpError;
use crate::message::WorkerId;
use crate::settings::{Load, Settings};
use core::fmt::{Debug, Display};
use core::time::Duration;
use nvme_proto::{Cntlid, Qid};
use nvmf_block::BorrowedRead;
use nvmf_config::AddressList;
use nvmf_memory::Memory;
use nvmf_rdma::{ListenError, WakeOn};
use nvmf_subsystem::limits::{CQE_LEN, SQE_LEN};
use nvmf_subsystem::{Remote, SecureChannel, TransportType};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;

/// Where to listen.
#[derive(Debug)]
pub enum ListenAt {
    /// On this address, whose port may be 0.
    Address(SocketAddr),
    /// On this socket, which listens already. Only transports over TCP can.
    Socket(TcpListener),
}

impl ListenAt {
    /// The address, as far as it is known.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Address(address) => *address,
            Self::Socket(socket) => socket.local_addr().unwrap_or(SocketAddr::from(([0; 4], 0))),
        }
    }
}

/// One thread's access to a transport. A connection is named by the index that its queue has in the worker.
///
/// 1. Nothing blocks. What is asked for starts at [`Transport::flush`] or at the next poll.
/// 2. A response leaves behind all data that were pushed for its command before.
/// 3. What is begun ends with one [`Arrival`], unless the connection ends first: then nothing more arrives. A push that
///    is not `signaled` has none of its own, the response behind it stands for both.
/// 4. After [`Transport::destroy`] nothing of the peer's reaches memory, and the host gets nothing more.
pub trait Transport: Sized {
    /// Names registered memory.
    type Key: Copy + Debug;
    /// A capsule that arrived and was not given back yet ([`Transport::give_back`]).
    type Capsule: Debug;
    /// A connection that a host asks for.
    type Incoming: Debug;
    /// One on its way to another worker.
    type Detached: Send;
    /// Why one is refused.
    type Refusal: Copy + Eq + Display;
    /// Something was asked for that the transport does not do: a mistake of ours.
    type Error: Display;

    /// There is no room for the connection.
    const NO_ROOM: Self::Refusal;
    /// What hosts call it.
    const TYPE: TransportType;

    /// Bytes of memory that the connection of an idle queue of so many entries takes, beside receives and what a provider
    /// has of its own.
    fn connection_bytes(entries: u16) -> usize;

    /// Makes memory known, for data to be moved from and to.
    ///
    /// # Errors
    /// [`SetUpError`].
    fn register(&mut self, memory: &Memory) -> Result<Self::Key, SetUpError>;

    /// Listens for connections of the port of that number. Returns the address that was taken.
    ///
    /// # Errors
    /// [`ListenError`].
    fn listen(&mut self, at: ListenAt, port: u16) -> Result<SocketAddr, ListenError>;

    /// Takes connections of that port from these addresses only, from now on; `None`: from all, as before the first
    /// call. Others are refused before they can say anything, and counted.
    fn allow(&mut self, port: u16, from: Option<AddressList>);

    /// No further connection comes in through that port.
    fn stop_listening_on(&mut self, port: u16);

    /// No further connection comes in.
    fn stop_listening(&mut self);

    /// Makes progress on connections and their deadlines; `now` only ever grows. One event a call.
    fn poll_event(&mut self, now: Duration) -> Option<Event<Self::Incoming>>;

    /// When [`Transport::poll_event`] must be called again even if nothing arrives.
    fn poll_timeout(&self) -> Option<Duration>;

    /// Which worker is to have a connection.
    ///
    /// # Errors
    /// Why none is to have it.
    fn route(&mut self, incoming: &Self::Incoming, route: Route<'_>) -> Result<WorkerId, Self::Refusal>;

    /// What a connection may be accepted with.
    ///
    /// # Errors
    /// Why it may not.
    fn terms(&self, incoming: &Self::Incoming, settings: &Settings) -> Result<Terms, Self::Refusal>;

    /// Whether there is memory for the capsules of a queue on these terms.
    fn has_room(&self, terms: &Terms) -> bool;

    /// For how many more I/O queues of so many entries there is.
    fn io_queues_free(&self, entries: u16) -> usize;

    /// The address of the host.
    fn peer(incoming: &Self::Incoming) -> SocketAddr;

    /// Accepts a connection as that queue. `false`: the host did not wait.
    ///
    /// # Errors
    /// Why it cannot be accepted: refuse it.
    fn accept(
        &mut self,
        now: Duration,
        incoming: Self::Incoming,
        queue: u32,
        terms: &Terms,
    ) -> Result<bool, (Self::Incoming, Self::Refusal)>;

    /// Refuses it.
    fn refuse(&mut self, incoming: Self::Incoming, refusal: Self::Refusal);

    /// Lets it go to another worker; `None` when it is gone.
    fn detach(&mut self, incoming: Self::Incoming) -> Option<Self::Detached>;

    /// Takes over one from another worker.
    fn adopt(&mut self, now: Duration, detached: Self::Detached) -> Self::Incoming;

    /// The queue is connected now, with so many entries.
    fn resize(&mut self, queue: u32, entries: u16, admin: bool);

    /// Closes a connection: what was begun still leaves, if the host takes it within a bounded time. Then
    /// [`Event::Disconnected`] comes.
    fn disconnect(&mut self, queue: u32);

    /// Ends a connection at once. Its capsules may still be in use.
    fn destroy(&mut self, queue: u32);

    /// Nothing of the queue is in use any more.
    fn forget(&mut self, queue: u32);

    /// Whether the host's next bytes wait for memory of ours: it is not the host that makes no progress.
    fn awaits_us(&self, queue: u32) -> bool;

    /// Looks what arrived, for [`Transport::next_arrival`].
    fn poll(&mut self);

    /// What arrived.
    fn next_arrival(&mut self) -> Option<Arrival<Self::Capsule>>;

    /// The submission queue entry of a capsule.
    fn entry(&self, capsule: &Self::Capsule) -> [u8; SQE_LEN];

    /// The memory that in-capsule data lie in, and where those from `offset` on begin.
    fn capsule_data(&self, capsule: &Self::Capsule, offset: u32) -> (&Memory, usize);

    /// The same for the backend.
    fn capsule_block(&self, capsule: &Self::Capsule, offset: u32, len: u32) -> nvmf_block::Buffer;

    /// A capsule is not needed any more.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn give_back(&mut self, queue: u32, capsule: Self::Capsule) -> Result<(), Self::Error>;

    /// Fetches a piece of a command's data from the host.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn pull(&mut self, place: Place, piece: Piece, into: Part<'_, Self::Key>) -> Result<(), Self::Error>;

    /// Brings a piece of a command's data to the host. Pieces of one command come in their order.
    ///
    /// With `borrowed` the bytes are there until [`Transport::flush`] returns; what has not left by then is copied to
    /// `from`.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn push(
        &mut self,
        place: Place,
        piece: Piece,
        from: Part<'_, Self::Key>,
        borrowed: Option<BorrowedRead<'_>>,
        signaled: bool,
    ) -> Result<(), Self::Error>;

    /// Sends a response; `invalidate`: the remote key that ends with it.
    ///
    /// # Errors
    /// The connection is to be closed.
    fn respond(
        &mut self,
        place: Place,
        cqe: &[u8; CQE_LEN],
        invalidate: Option<u32>,
    ) -> Result<(), Self::Error>;

    /// Starts everything that was asked for.
    fn flush(&mut self);

    /// The caller sleeps on [`Transport::fd`], which says that nothing has come since it looked: the next look may be spared.
    fn expect_nothing(&mut self) {}

    /// Arms [`Transport::fd`]; `false` when there is something to poll. With [`WakeOn::Receives`] nobody waits for what
    /// was begun: its end need not make the descriptor readable.
    fn arm(&mut self, wake_on: WakeOn) -> bool;

    /// The descriptor to sleep on; `None` in virtual time.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// The bytes of one packet, where a few more would need a second one.
    fn packet_len(&self) -> Option<u32>;
}

/// What is known where a connection is given a worker.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// The worker that it came in at.
    pub here: WorkerId,
    /// The workers of the group.
    pub load: &'a Load,
    /// How large they are.
    pub settings: &'a Settings,
}

/// What a connection is accepted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The port that it came in through.
    pub port: u16,
    /// The address of the host.
    pub peer: SocketAddr,
    /// Ours, that the host connected to.
    pub local: IpAddr,
    /// The queue that the host means to open, where the transport knows before the Connect.
    pub qid: Option<Qid>,
    /// The controller that an I/O queue is for; 0 says nothing.
    pub cntlid: Option<Cntlid>,
    /// Whose key protects the connection, if one does.
    pub secure_channel: Option<SecureChannel>,
    /// Commands that the queue takes, at the most.
    pub entries: u16,
    /// Pulls under way at once.
    pub pulls: u16,
}

impl Terms {
    /// Whether the host said that it is for an I/O queue.
    #[must_use]
    pub fn is_for_io(&self) -> bool {
        self.qid.is_some_and(|qid| qid.0 != 0)
    }
}

/// Something about a connection.
#[derive(Debug)]
pub enum Event<I> {
    /// A host asks for one.
    Incoming(I),
    /// It is set up.
    Established(u32),
    /// It could not be set up: nothing of it is left.
    Failed(u32, String),
    /// It ended.
    Disconnected {
        /// The queue.
        queue: u32,
        /// Whether the host is to blame.
        fault: Option<Fault>,
        /// Why, in words.
        cause: String,
    },
    /// Something came in that is no host, or one that we do not understand.
    Refused {
        /// From where.
        peer: SocketAddr,
        /// Why, in words.
        cause: String,
        /// It failed at TLS.
        at_tls: bool,
    },
    /// A connection from an address that may not connect through the port was closed.
    NotAllowed {
        /// From where.
        peer: SocketAddr,
        /// Ours, that it connected to.
        local: SocketAddr,
    },
    /// The system has no descriptor for one more connection, or says something else of its kind.
    Shortage(io::Error),
    /// A connection that had not said yet what it wants was closed: newer ones need its place or its descriptor.
    Yielded {
        /// From where.
        peer: SocketAddr,
    },
    /// The device is gone: nothing comes any more.
    DeviceRemoved,
}

/// What a host did that its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It broke the protocol.
    Violation,
    /// It began to send something, and did not end in time.
    Stall,
}

/// Something about a command.
#[derive(Debug)]
pub enum Arrival<C> {
    /// A capsule of so many bytes, the submission queue entry included; whether its data arrived intact.
    Capsule(u32, C, u32, bool),
    /// A pull is done; whether the data arrived intact.
    Pulled(Place, bool),
    /// A push left.
    Pushed(Place),
    /// A response left, and the pushes before it.
    Responded(Place),
    /// Something failed. If the connection ended by it, the event comes later; its cause is only here.
    Failed(u32, String),
}

/// A piece of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The command's identifier.
    pub cid: u16,
    /// Where the host has the command's data.
    pub remote: Remote,
    /// Bytes from their start.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// It ends the command's data.
    pub last: bool,
}

/// Registered memory.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a, K> {
    /// Its name.
    pub key: K,
    /// The memory.
    pub memory: &'a Memory,
    /// Where in it.
    pub offset: usize,
}
