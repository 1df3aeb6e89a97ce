//! Completion queues, and what completions mean.

use crate::ffi::{CompletionQueue, Wc};
use nvmf_rdma::{Completion, QueuePairId, WcStatus};
use std::collections::VecDeque;
use std::rc::Rc;

/// A completion queue, and what was taken from the device before the caller asked.
pub(crate) struct Queue {
    pub(crate) hw: Rc<CompletionQueue>,
    pub(crate) ready: VecDeque<Completion>,
}

/// The device's name for a work request: the queue, the direction, the number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Send(QueuePairId, u32),
    Receive(QueuePairId, u32),
    /// A shared receive queue and a slot of it.
    Shared(u16, u32),
}

/// What stands in the place of a queue pair's generation: `Slots` gives none so high in a lifetime.
const SHARED: u32 = 0xffff_0000;
const RECEIVE: u32 = 1 << 31;

impl Name {
    pub(crate) fn encode(self) -> u64 {
        let (high, low) = match self {
            Self::Send(queue_pair, sequence) => (queue_pair.0, sequence),
            Self::Receive(queue_pair, sequence) => (queue_pair.0, sequence | RECEIVE),
            Self::Shared(queue, slot) => (SHARED | u32::from(queue), slot),
        };
        u64::from(high) << 32 | u64::from(low)
    }

    pub(crate) fn decode(wr_id: u64) -> Self {
        let (high, low) = ((wr_id >> 32) as u32, wr_id as u32);
        if high & SHARED == SHARED {
            Self::Shared(high as u16, low)
        } else if low & RECEIVE != 0 {
            Self::Receive(QueuePairId(high), low & !RECEIVE)
        } else {
            Self::Send(QueuePairId(high), low)
        }
    }
}

/// `enum ibv_wc_status`, as the contract has it.
pub(crate) fn status(wc: &Wc) -> WcStatus {
    match wc.status {
        0 => WcStatus::Success,
        1 => WcStatus::LocalLength,
        // Local protection and local access.
        4 | 8 => WcStatus::LocalProtection,
        5 => WcStatus::Flushed,
        // The peer found the request invalid, or could not do it, or aborted.
        9 | 11 | 16 => WcStatus::RemoteOperation,
        10 => WcStatus::RemoteAccess,
        12 => WcStatus::RetryExceeded,
        13 => WcStatus::ReceiverNotReady,
        other => WcStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let qp = QueuePairId(0x0001_0007);
        for name in
            [Name::Send(qp, 0), Name::Send(qp, 0x7fff_ffff), Name::Receive(qp, 5), Name::Shared(3, 1 << 20)]
        {
            assert_eq!(Name::decode(name.encode()), name);
        }
    }
}
