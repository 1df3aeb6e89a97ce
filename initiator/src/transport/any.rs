//! The transport that the options choose.

use super::{Arrival, Data, Event, OpenQueue, Rdma, Refused, Tcp, Transport, TransportError};
use core::time::Duration;
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::{Cid, Qid};
use nvmf_host::{Command, QueueFailure, Violation};
use nvmf_memory::Memory;
use nvmf_rdma::MemoryRegion;
use nvmf_rdma_any::AnyProvider;
use nvmf_tls::Psk;
use std::os::fd::BorrowedFd;

/// One of the transports, chosen at run time. Each call costs one `match`.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a thread, and a pointer more would be followed each call"
)]
pub enum AnyTransport {
    /// NVMe/RDMA over a provider that was chosen at run time as well.
    Rdma(Rdma<AnyProvider>),
    /// NVMe/TCP.
    Tcp(Tcp),
}

/// Memory that is registered with an [`AnyTransport`].
#[derive(Debug, Clone)]
pub enum AnyRegion {
    /// With a provider.
    Rdma(MemoryRegion),
    /// For sockets, which need no registration.
    Tcp(Memory),
}

macro_rules! each {
    ($self:expr, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Rdma($transport) => $call,
            AnyTransport::Tcp($transport) => $call,
        }
    };
}

impl Transport for AnyTransport {
    type Region = AnyRegion;

    fn kind(&self) -> TransportType {
        each!(self, transport => transport.kind())
    }

    fn prepare(&mut self, io_queues: u16, entries: u16) -> Result<(), TransportError> {
        each!(self, transport => transport.prepare(io_queues, entries))
    }

    fn secure(&mut self, key: Option<&Psk>) -> Result<(), TransportError> {
        each!(self, transport => transport.secure(key))
    }

    fn register(&mut self, memory: &Memory) -> Result<AnyRegion, TransportError> {
        match self {
            Self::Rdma(rdma) => rdma.register(memory).map(AnyRegion::Rdma),
            Self::Tcp(tcp) => tcp.register(memory).map(AnyRegion::Tcp),
        }
    }

    fn deregister(&mut self, region: AnyRegion) {
        match (self, region) {
            (Self::Rdma(rdma), AnyRegion::Rdma(region)) => rdma.deregister(region),
            (Self::Tcp(tcp), AnyRegion::Tcp(region)) => tcp.deregister(region),
            (Self::Rdma(_), AnyRegion::Tcp(_)) | (Self::Tcp(_), AnyRegion::Rdma(_)) => {}
        }
    }

    fn open(&mut self, now: Duration, queue: &OpenQueue<'_>) -> Result<(), QueueFailure> {
        each!(self, transport => transport.open(now, queue))
    }

    fn resize(&mut self, qid: Qid, entries: u16) {
        each!(self, transport => transport.resize(qid, entries));
    }

    fn disconnect(&mut self, qid: Qid, orderly: bool) {
        each!(self, transport => transport.disconnect(qid, orderly));
    }

    fn destroy(&mut self, qid: Qid) {
        each!(self, transport => transport.destroy(qid));
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event> {
        each!(self, transport => transport.poll_event(now))
    }

    fn poll_timeout(&self) -> Option<Duration> {
        each!(self, transport => transport.poll_timeout())
    }

    fn poll(&mut self) -> bool {
        each!(self, transport => transport.poll())
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        each!(self, transport => transport.next_arrival())
    }

    fn complete(&mut self, qid: Qid, slot: u16, invalidated: Option<u32>) -> Result<bool, Violation> {
        each!(self, transport => transport.complete(qid, slot, invalidated))
    }

    fn send(
        &mut self,
        qid: Qid,
        slot: u16,
        cid: Cid,
        command: &Command,
        data: Data<'_, AnyRegion>,
    ) -> Result<(), Refused> {
        match self {
            Self::Rdma(rdma) => {
                let data = data.try_map(|region| match region {
                    AnyRegion::Rdma(region) => Some(region),
                    AnyRegion::Tcp(_) => None,
                });
                rdma.send(qid, slot, cid, command, data.ok_or(Refused::NoRoom)?)
            }
            Self::Tcp(tcp) => {
                let data = data.try_map(|region| match region {
                    AnyRegion::Tcp(region) => Some(region),
                    AnyRegion::Rdma(_) => None,
                });
                tcp.send(qid, slot, cid, command, data.ok_or(Refused::NoRoom)?)
            }
        }
    }

    fn slot_data(&self, qid: Qid, slot: u16, into: &mut [u8]) {
        each!(self, transport => transport.slot_data(qid, slot, into));
    }

    fn flush(&mut self) {
        each!(self, transport => transport.flush());
    }

    fn arm(&mut self) -> bool {
        each!(self, transport => transport.arm())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        each!(self, transport => transport.fd())
    }

    fn is_suspect(&self) -> bool {
        each!(self, transport => transport.is_suspect())
    }
}

impl<'a, R> Data<'a, R> {
    /// The same, of a region of another type; `None` if there is none.
    fn try_map<S>(self, map: impl FnOnce(&'a R) -> Option<&'a S>) -> Option<Data<'a, S>> {
        Some(match self {
            Data::None => Data::None,
            Data::Bytes { bytes, in_capsule } => Data::Bytes { bytes, in_capsule },
            Data::IntoSlot { len } => Data::IntoSlot { len },
            Data::User { region, offset, len, payload } => {
                Data::User { region: map(region)?, offset, len, payload }
            }
        })
    }
}
