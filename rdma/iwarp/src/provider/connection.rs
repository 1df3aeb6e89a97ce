//! What a queue pair is connected by, and the connections that have no queue pair yet or any more.

use crate::handshake::FrameReader;
use crate::qp::QueuePair;
use crate::wire::mpa::Frame;
use core::time::Duration;
use nvmf_rdma::{ConnectParameters, QueuePairState};
use nvmf_stream::{Deadline, Stream};
use std::net::SocketAddr;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) qp: QueuePair,
    pub(super) link: Link,
    /// In the list of those with something to send.
    pub(super) dirty: bool,
    /// When to send an empty WRITE to a peer from which nothing has come yet.
    pub(super) prompt: Option<Prompt>,
}

/// Soft-iWARP overlooks what arrives while it is about to take the stream from its connection manager, until something
/// more arrives: an initiator that gets no answer to its first message sends an empty WRITE.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt {
    pub(super) deadline: Deadline,
    pub(super) next: Duration,
}

impl Prompt {
    const FIRST: Duration = Duration::from_millis(200);
    const LAST: Duration = Duration::from_secs(4);

    pub(super) fn first() -> Self {
        Self { deadline: Deadline::After(Self::FIRST), next: Self::FIRST * 2 }
    }

    /// The one after this. Each waits twice as long; after a few of them no more is sent.
    pub(super) fn next(self) -> Option<Self> {
        let Self { next, .. } = self;
        (next <= Self::LAST).then_some(Self { deadline: Deadline::After(next), next: next * 2 })
    }
}

#[derive(Debug)]
pub(super) enum Link {
    Idle,
    Connecting(Box<Connecting>),
    Open(Open),
    Over,
}

/// An initiator's connection until the reply.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) stream: Stream,
    pub(super) address: SocketAddr,
    pub(super) source: Option<SocketAddr>,
    pub(super) parameters: ConnectParameters,
    pub(super) request: Frame,
    /// `None` until TCP is connected and the request sent.
    pub(super) reader: Option<FrameReader>,
    pub(super) deadline: Duration,
}

/// A connection on which FPDUs flow.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) stream: Stream,
    pub(super) phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A responder waits for the ready-to-receive indication: an FPDU of exactly `left` more bytes.
    AwaitRtr {
        left: usize,
        deadline: Duration,
    },
    /// `Established` was not polled yet: nothing is received, so that no completion comes before it.
    Unannounced,
    Ready,
    /// `disconnect` was called.
    Closing {
        deadline: Deadline,
    },
}

impl Connection {
    pub(super) fn new(qp: QueuePair) -> Self {
        Self { qp, link: Link::Idle, dirty: false, prompt: None }
    }

    pub(super) fn state(&self) -> QueuePairState {
        match &self.link {
            Link::Idle => QueuePairState::Idle,
            Link::Connecting(_) => QueuePairState::Connecting,
            Link::Open(open) => match open.phase {
                Phase::AwaitRtr { .. } => QueuePairState::Connecting,
                Phase::Unannounced | Phase::Ready => QueuePairState::Ready,
                Phase::Closing { .. } => QueuePairState::Error,
            },
            Link::Over => QueuePairState::Error,
        }
    }

    /// Starts the clocks of a disconnect and of a prompt.
    pub(super) fn start_clock(&mut self, now: Duration) {
        if let Link::Open(Open { phase: Phase::Closing { deadline }, .. }) = &mut self.link {
            deadline.start(now);
        }
        if let Some(Prompt { deadline, .. }) = &mut self.prompt {
            deadline.start(now);
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        match &self.link {
            Link::Connecting(connecting) => Some(connecting.deadline),
            Link::Open(open) => match open.phase {
                Phase::AwaitRtr { deadline, .. } => Some(deadline),
                Phase::Closing { deadline } => Some(deadline.at()),
                Phase::Unannounced | Phase::Ready if self.qp.has_peer_sent() => None,
                Phase::Unannounced | Phase::Ready => self.prompt.map(|prompt| prompt.deadline.at()),
            },
            Link::Idle | Link::Over => None,
        }
    }
}

/// A responder's connection until `accept` or `reject`.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) stream: Stream,
    /// `None` for one that another provider handed over.
    pub(super) listener: Option<u32>,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) stage: Stage,
    pub(super) deadline: Deadline,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "once per connection, and half-open ones are few")]
pub(super) enum Stage {
    Reading(Box<FrameReader>),
    /// The request is with the layer above.
    Asked(Frame),
}

/// A connection request under way from one provider to another.
#[derive(Debug)]
pub struct DetachedRequest {
    pub(super) stream: Stream,
    pub(super) request: Frame,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
}
