//! A queue pair: its device queues, what is outstanding on them, and the phase of its connection.

use crate::completion::Claim;
use crate::ffi::{self, CmId, PostFailure, Region};
use crate::outstanding::Outstanding;
use core::time::Duration;
use nvmf_rdma::{
    ConnectFailure, ConnectParameters, DisconnectCause, QueuePairAttributes, QueuePairId, QueuePairState,
};
use std::collections::VecDeque;

/// The phase of a connection.
pub(crate) enum Phase {
    Idle,
    /// Finding the route to the peer.
    Resolving(ConnectParameters),
    /// The request or the answer was sent; its confirmation has not come.
    Connecting(ConnectParameters),
    Ready,
    /// What was posted is still being sent.
    Closing,
    /// The stream is being closed (iWARP).
    Disconnecting,
    /// The device is flushing; the end is reported when it has.
    Draining(End),
    Over,
}

/// The event at the end.
#[expect(clippy::large_enum_variant, reason = "once per connection: no reason to allocate")]
pub(crate) enum End {
    Failed(ConnectFailure),
    Disconnected(DisconnectCause),
}

/// One queue pair.
pub(crate) struct QueuePair {
    pub(crate) name: QueuePairId,
    pub(crate) attributes: QueuePairAttributes,
    /// None once it had to be destroyed before it was flushed.
    pub(crate) hw: Option<ffi::QueuePair>,
    pub(crate) id: Option<CmId>,
    pub(crate) phase: Phase,
    /// When the phase ends at the latest.
    pub(crate) deadline: Option<Duration>,
    pub(crate) sends: Outstanding,
    pub(crate) receives: Outstanding,
    /// The device refused work: what comes after it would take effect although it did not.
    pub(crate) is_broken: bool,
    /// Of each, so many at the end that the device never took.
    pub(crate) untaken: [usize; 2],
    /// iWARP: the registrations of the READs that are outstanding, one each.
    pub(crate) read_sinks: VecDeque<Option<Region>>,
    /// Sends since the last that completes visibly: of those that wait for the doorbell, whose last does.
    pub(crate) unsignaled_run: u32,
    /// RDMA READs that may be outstanding; 0 until it is known.
    pub(crate) read_depth: u8,
    /// Whether work waits for the doorbell.
    pub(crate) is_dirty: bool,
    /// Where it completes.
    pub(crate) claims: [Claim; 2],
}

impl QueuePair {
    pub(crate) fn new(
        name: QueuePairId,
        attributes: QueuePairAttributes,
        hw: ffi::QueuePair,
        windows: bool,
        claims: [Claim; 2],
    ) -> Self {
        let hidden = if windows { attributes.max_exposed } else { 0 };
        let receives = if attributes.shared_receive_queue.is_some() { 0 } else { attributes.max_receive };
        Self {
            name,
            attributes,
            hw: Some(hw),
            id: None,
            phase: Phase::Idle,
            deadline: None,
            sends: Outstanding::new(attributes.max_send, hidden),
            receives: Outstanding::new(receives, 0),
            is_broken: false,
            untaken: [0; 2],
            read_sinks: VecDeque::new(),
            unsignaled_run: 0,
            read_depth: 0,
            is_dirty: false,
            claims,
        }
    }

    pub(crate) fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Idle => QueuePairState::Idle,
            Phase::Resolving(_) | Phase::Connecting(_) => QueuePairState::Connecting,
            Phase::Ready => QueuePairState::Ready,
            Phase::Closing | Phase::Disconnecting | Phase::Draining(_) | Phase::Over => QueuePairState::Error,
        }
    }

    /// Rings the receive queue's doorbell.
    #[must_use]
    pub(crate) fn ring_receives(&mut self) -> bool {
        let Some(hw) = &mut self.hw else { return true };
        let Err(PostFailure { refused }) = hw.ring_receives() else { return true };
        (self.untaken[1], self.is_broken) = (self.untaken[1] + refused, true);
        false
    }

    /// Rings both doorbells. `false` when the device does not take the work: the connection ends then.
    #[must_use]
    pub(crate) fn ring(&mut self) -> bool {
        self.is_dirty = false;
        let receives = self.ring_receives();
        self.unsignaled_run = 0;
        let Some(hw) = &mut self.hw else { return true };
        let Err(PostFailure { refused }) = hw.ring_sends() else { return receives };
        (self.untaken[0], self.is_broken) = (self.untaken[0] + refused, true);
        false
    }

    /// Whether it takes no more work.
    pub(crate) fn is_broken(&self) -> bool {
        self.hw.is_none() || self.is_broken
    }

    /// Whether the device has nothing of it any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.hw.is_none() || (self.sends.len() <= self.untaken[0] && self.receives.len() <= self.untaken[1])
    }
}
