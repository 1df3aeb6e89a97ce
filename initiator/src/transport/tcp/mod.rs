//! NVMe/TCP: capsules and data as PDUs on TCP connections, one for each queue.
//!
//! | module | what it holds |
//! |---|---|
//! | `connection` | from commands to PDUs, and from bytes to responses |
//! | `progress` | reads and writes sockets, ends connections |
//!
//! The memory of a write is in use until its last byte is the kernel's, or the connection is gone. A connection that is
//! closed for a failure is reset: what the kernel still has of it never leaves.

mod connection;
mod progress;

use super::{Arrival, Data, Event, OpenQueue, Refused, Transport, TransportError, slot_data_len};
use connection::{Connection, Phase};
use core::time::Duration;
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::tcp::Digests;
use nvme_proto::{Cid, Nqn, Qid};
use nvmf_host::{Command, QueueFailure, Violation};
use nvmf_memory::Memory;
use nvmf_stream::{
    Interest, Lingering, Poller, ReadSchedule, SendSchedule, Stream, StreamConfig, TlsConnector,
};
use nvmf_tls::{Key, Psk, TlsKeyring, Version};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Bytes received at once that do not go straight to their place.
const STAGING: usize = 256 * 1024;
/// How often the first packet of a connect is sent again: as kernel hosts, which try another time after it.
const SYN_RETRIES: u8 = 1;

/// How NVMe/TCP is used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TcpOptions {
    /// PDU headers have a checksum (HDGST).
    pub header_digest: bool,
    /// Data have a checksum (DDGST).
    pub data_digest: bool,
    /// The byte Type of Service (IPv4) or Traffic Class (IPv6) of what is sent.
    pub tos: Option<u8>,
    /// The network interface to connect through.
    pub interface: Option<String>,
    /// `SO_SNDBUF` in bytes; `None` lets the kernel tune it.
    pub send_buffer: Option<usize>,
    /// The key to connect with TLS 1.3 with; `None`: without TLS.
    pub tls: Option<TlsOptions>,
}

impl TcpOptions {
    /// With checksums over PDU headers (HDGST), over data (DDGST), or without.
    #[must_use]
    pub fn with_digests(self, header: bool, data: bool) -> Self {
        Self { header_digest: header, data_digest: data, ..self }
    }

    /// With TLS 1.3 by this key, or without TLS.
    #[must_use]
    pub fn with_tls(self, tls: impl Into<Option<TlsOptions>>) -> Self {
        Self { tls: tls.into(), ..self }
    }
}

/// With which key to connect over TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    source: KeySource,
    version: Option<Version>,
}

/// Where the key comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KeySource {
    Configured(Key),
    Keyring(String),
}

impl TlsOptions {
    /// With this key, which the target has for this host. Identities of both versions are offered.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { source: KeySource::Configured(key), version: None }
    }

    /// With a key from the kernel's keyring of that name, mostly [`NVME_KEYRING`](nvmf_tls::NVME_KEYRING).
    #[must_use]
    pub fn of_keyring(name: &str) -> Self {
        Self { source: KeySource::Keyring(name.to_owned()), version: None }
    }

    /// Offers the identity of this version alone: a target that looks at the first only (tlshd) must know that one.
    #[must_use]
    pub fn with_version(self, version: Version) -> Self {
        Self { version: Some(version), ..self }
    }

    /// What a host offers to a subsystem.
    fn connector(&self, host: &Nqn, subsystem: &Nqn) -> Result<TlsConnector, TransportError> {
        let failed = |error: &dyn core::fmt::Display| TransportError(error.to_string());
        let keys: Vec<_> = match &self.source {
            KeySource::Keyring(name) => TlsKeyring::open(name)
                .and_then(|keyring| keyring.keys_of(host, subsystem, self.version))
                .map_err(|error| {
                    failed(&format_args!("{error}; or name a file with the key (--tls-key-file)"))
                })?,
            KeySource::Configured(key) => {
                let psk = |version| key.psk(version, host, subsystem);
                let first = psk(self.version.unwrap_or(Version::V1)).map_err(|error| failed(&error))?;
                // Long names have no identity of version 0.
                let second = self.version.is_none().then(|| psk(Version::V0).ok()).flatten();
                [first].into_iter().chain(second).collect()
            }
        };
        TlsConnector::new(&keys).map_err(|error| failed(&error))
    }
}

impl TcpOptions {
    fn stream(&self) -> StreamConfig {
        StreamConfig {
            reset_on_close: true,
            syn_retries: Some(SYN_RETRIES),
            tos: self.tos,
            interface: self.interface.clone(),
            send_buffer: self.send_buffer,
            ..StreamConfig::default()
        }
    }
}

/// One thread's access to NVMe/TCP.
#[derive(Debug)]
pub struct Tcp {
    config: StreamConfig,
    digests: Digests,
    tls: Option<TlsConnector>,
    /// With a key that an authentication made.
    secured: Option<TlsConnector>,
    poller: Poller,
    /// By qid.
    links: Vec<Option<Link>>,
    /// What commands move that is not the user's memory, by qid: until the queue is destroyed.
    slots: Vec<Option<Memory>>,
    reads: ReadSchedule,
    sends: SendSchedule,
    staging: Box<[u8]>,
    events: VecDeque<Event>,
    arrivals: VecDeque<Arrival>,
    /// Some link may have a deadline.
    is_timed: bool,
}

/// A queue's connection.
#[derive(Debug)]
enum Link {
    Open(Box<Connection>),
    /// It ends; what is told of it when it has.
    Closing(Lingering, Option<Event>),
}

impl Tcp {
    /// An access without connections, for connections of this host to this subsystem.
    ///
    /// # Errors
    /// When the system gives no epoll descriptor, or the names make no identity for TLS.
    pub fn new(options: &TcpOptions, host: &Nqn, subsystem: &Nqn) -> Result<Self, TransportError> {
        let tls = options.tls.as_ref().map(|tls| tls.connector(host, subsystem)).transpose()?;
        let poller = Poller::new()
            .map_err(|error| TransportError(format!("the system gives no epoll descriptor: {error}")))?;
        Ok(Self {
            config: options.stream(),
            tls,
            secured: None,
            digests: Digests { header: options.header_digest, data: options.data_digest },
            poller,
            links: Vec::new(),
            slots: Vec::new(),
            reads: ReadSchedule::default(),
            sends: SendSchedule::default(),
            staging: vec![0; STAGING].into(),
            events: VecDeque::new(),
            arrivals: VecDeque::new(),
            is_timed: false,
        })
    }

    fn connection(&mut self, qid: Qid) -> Option<&mut Connection> {
        match self.links.get_mut(usize::from(qid.0))? {
            Some(Link::Open(connection)) => Some(connection),
            _ => None,
        }
    }

    fn list_to_send(&mut self, qid: Qid) {
        if let Some(Some(Link::Open(connection))) = self.links.get_mut(usize::from(qid.0)) {
            self.sends.add(qid.0.into(), &mut connection.listed);
        }
    }
}

impl Transport for Tcp {
    type Region = Memory;

    fn kind(&self) -> TransportType {
        TransportType::TCP
    }

    fn prepare(&mut self, _io_queues: u16, _entries: u16) -> Result<(), TransportError> {
        Ok(())
    }

    fn register(&mut self, memory: &Memory) -> Result<Memory, TransportError> {
        Ok(memory.share())
    }

    fn deregister(&mut self, _region: Memory) {}

    fn secure(&mut self, key: Option<&Psk>) -> Result<(), TransportError> {
        let connector = |key: &Psk| TlsConnector::new(core::slice::from_ref(key));
        self.secured = key.map(connector).transpose().map_err(|error| TransportError(error.to_string()))?;
        Ok(())
    }

    fn open(&mut self, now: Duration, queue: &OpenQueue<'_>) -> Result<(), QueueFailure> {
        let index = usize::from(queue.qid.0);
        self.destroy(queue.qid);
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
            self.slots.resize_with(index + 1, || None);
        }
        let unreachable = |error: std::io::Error| QueueFailure::Unreachable(error.to_string());
        let memory = Memory::alloc(Connection::memory_len(queue))
            .map_err(|error| QueueFailure::Other(error.to_string()))?;
        let stream = Stream::open(&self.config, queue.address, queue.source).map_err(unreachable)?;
        stream.connect(queue.address).map_err(unreachable)?;
        self.poller.add(&stream, queue.qid.0, Interest::Write).map_err(unreachable)?;
        let connection = Connection::new(now, queue, stream, memory.share(), self.digests);
        // A turn may find a response and a release of each command.
        self.arrivals.reserve(2 * usize::from(queue.entries));
        self.slots[index] = Some(memory);
        self.links[index] = Some(Link::Open(Box::new(connection)));
        self.is_timed = true;
        Ok(())
    }

    fn resize(&mut self, qid: Qid, entries: u16) {
        if let Some(connection) = self.connection(qid) {
            connection.resize(entries);
        }
    }

    fn disconnect(&mut self, qid: Qid, orderly: bool) {
        self.close(qid, orderly);
    }

    fn destroy(&mut self, qid: Qid) {
        if let Some(link) = self.take_link(qid) {
            self.poller.remove(link.stream());
        }
        if let Some(slots) = self.slots.get_mut(usize::from(qid.0)) {
            *slots = None;
        }
        self.arrivals.retain(|arrival| arrival.qid() != Some(qid));
        self.events.retain(|event| event.qid() != Some(qid));
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event> {
        if self.is_timed {
            self.expire(now);
        }
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let at = |link: &Link| match link {
            Link::Open(connection) if connection.phase == Phase::Ready => None,
            Link::Open(connection) => Some(connection.deadline),
            Link::Closing(lingering, _) => Some(lingering.deadline.at()),
        };
        if self.is_timed { self.links.iter().flatten().filter_map(at).min() } else { None }
    }

    fn poll(&mut self) -> bool {
        self.progress()
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    fn complete(&mut self, qid: Qid, slot: u16, _invalidated: Option<u32>) -> Result<bool, Violation> {
        Ok(self.connection(qid).is_none_or(|connection| connection.complete(slot)))
    }

    fn send(
        &mut self,
        qid: Qid,
        slot: u16,
        cid: Cid,
        command: &Command,
        data: Data<'_, Memory>,
    ) -> Result<(), Refused> {
        let Some(connection) = self.connection(qid) else { return Err(Refused::NoRoom) };
        connection.send(slot, cid, command, data)?;
        self.list_to_send(qid);
        Ok(())
    }

    fn slot_data(&self, qid: Qid, slot: u16, into: &mut [u8]) {
        if let Some(Some(slots)) = self.slots.get(usize::from(qid.0)) {
            slots.read(usize::from(slot) * slot_data_len(qid), into);
        }
    }

    fn flush(&mut self) {
        self.send_listed();
    }

    fn arm(&mut self) -> bool {
        self.reads.on_sleep();
        self.events.is_empty() && self.arrivals.is_empty() && !self.can_send()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.fd())
    }

    fn is_suspect(&self) -> bool {
        false
    }
}
