//! Listening, connecting, and what becomes of it.

use crate::QueuePairId;
use core::fmt;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use thiserror::Error;

/// A listening address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// A peer's connection request that waits for `accept` or `reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u32);

/// What a connection set-up message carries for the layer above: at most [`PrivateData::MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; Self::MAX],
    len: u16,
}

impl PrivateData {
    /// What a message holds at the most. InfiniBand and RoCE carry 56 bytes in a request, 196 in an answer, 148 in a
    /// rejection, and pad with zeros; iWARP carries all of it. A provider refuses what it cannot carry.
    pub const MAX: usize = 256;

    /// No bytes.
    pub const EMPTY: Self = Self { bytes: [0; Self::MAX], len: 0 };

    /// A copy of `bytes`; `None` when there are more than [`PrivateData::MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self { bytes: [0; Self::MAX], len: u16::try_from(bytes.len()).ok()? };
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(data)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({:02x?})", self.as_bytes())
    }
}

/// What one side offers when it connects or accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectParameters {
    /// For the layer above.
    pub private_data: PrivateData,
    /// RDMA READs of the peer's that we serve at once (IRD).
    pub responder_resources: u16,
    /// RDMA READs that we want outstanding at once (ORD).
    pub initiator_depth: u16,
    /// How long the set-up may take before it fails with [`ConnectFailure::TimedOut`].
    pub timeout: Duration,
}

/// What happens to connections; from [`crate::Provider::poll_cm`].
#[derive(Debug)]
pub enum CmEvent {
    /// A peer asks for a connection. A request that is not answered within its set-up time is dropped; `accept` fails
    /// then.
    ConnectRequest {
        /// Where it came in.
        listener: ListenerId,
        /// To accept, reject or hand over.
        request: RequestId,
        /// Who asks.
        peer: SocketAddr,
        /// Whom they asked.
        local: SocketAddr,
        /// The private data of the request.
        private_data: PrivateData,
        /// RDMA READs of ours that the peer serves at once (its IRD).
        peer_responder_resources: u16,
        /// RDMA READs that the peer wants outstanding (its ORD).
        peer_initiator_depth: u16,
    },
    /// Set up, on either side: sends may be posted. What the peer sends at once may be found in the completion queue
    /// before this event is polled.
    Established {
        /// The queue pair.
        queue_pair: QueuePairId,
        /// The private data of the answer (empty on the acceptor's own side).
        private_data: PrivateData,
        /// RDMA READs of the peer's that are served at once.
        responder_resources: u16,
        /// RDMA READs that may be outstanding: the lesser of what we wanted and the peer serves.
        initiator_depth: u16,
    },
    /// `connect` came to nothing. The queue pair is in error.
    ConnectFailed {
        /// The queue pair.
        queue_pair: QueuePairId,
        /// Why.
        failure: ConnectFailure,
    },
    /// An established connection ended. Comes once, after which the flushed completions are all there to be polled.
    Disconnected {
        /// The queue pair.
        queue_pair: QueuePairId,
        /// Why.
        cause: DisconnectCause,
    },
    /// The device is gone, or can no longer be relied on, and this provider with it: nothing works on it any more.
    /// Comes once, after the ends of its connections. A new provider may find the device back.
    DeviceRemoved,
}

/// A connection that came in and was closed: what the peer sent is no request of the provider's protocol, or did not
/// come in time. From [`crate::Provider::next_stranger`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    /// Who it was.
    pub peer: SocketAddr,
    /// What was wrong.
    pub cause: &'static str,
    /// The first bytes that it sent; zeroes behind them.
    pub bytes: [u8; 20],
}

/// Why `connect` came to nothing.
#[derive(Debug, Error)]
#[expect(clippy::large_enum_variant, reason = "once per connection: no reason to allocate")]
pub enum ConnectFailure {
    /// Nothing listens there, or there is no route.
    #[error("cannot reach it")]
    Unreachable(#[source] io::Error),
    /// The layer above at the peer rejected it.
    #[error("the peer rejected the connection")]
    Rejected {
        /// Its reason, for the layer above to read.
        private_data: PrivateData,
    },
    /// No answer in time.
    #[error("no answer within the set-up time")]
    TimedOut,
    /// It answers in this protocol, but breaks it, or cannot be agreed with.
    #[error("the peer does not speak the protocol: {0}")]
    Protocol(&'static str),
    /// It does not answer in this protocol, or hangs up.
    #[error("the peer does not speak the protocol: {text}")]
    Foreign {
        /// What it does instead.
        text: &'static str,
        /// What it answers begins with these bytes, for the layer above to recognise; zeroes where it hangs up.
        answer: [u8; 8],
    },
}

/// Why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DisconnectCause {
    /// This side asked for it.
    #[error("closed by this side")]
    Local,
    /// The peer closed it.
    #[error("closed by the peer")]
    Peer,
    /// The peer has it no more, without having closed it in order: a reset, the end in the middle of a message.
    #[error("broken off by the peer")]
    Reset,
    /// It broke, or the peer does not answer. The peer may have it still.
    #[error("the connection broke")]
    Broken,
    /// The peer broke the protocol, and was sent the reason. The text names the rule.
    #[error("the peer broke the protocol: {0}")]
    PeerViolation(&'static str),
    /// The peer reports that this side broke the protocol. The text is its reason.
    #[error("the peer terminated the stream: {0}")]
    PeerTerminated(&'static str),
    /// The device went away.
    #[error("the RDMA device is gone")]
    DeviceRemoved,
}

impl DisconnectCause {
    /// Whether the peer is known to have ended its side: it takes nothing from the connection any more.
    #[must_use]
    pub fn peer_has_ended(&self) -> bool {
        matches!(self, Self::Peer | Self::Reset | Self::PeerTerminated(_))
    }
}

/// An address could not be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// `connect`, `accept` or `reject` was refused on the spot.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The request is gone: the peer left or its time is over.
    #[error("the connection request is gone")]
    RequestGone,
    /// The queue pair does not exist or is past `Idle`.
    #[error("the queue pair is not idle")]
    NotIdle,
    /// The system refused.
    #[error("cannot start the connection to {address}")]
    Os {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
