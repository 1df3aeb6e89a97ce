//! Completion queues, and what completions mean.

use crate::ffi::{CompletionQueue, CqKey, DeviceLimits, Wc, constants};
use nvmf_rdma::{Completion, CompletionQueueId, Opcode, QueuePairId, WakeOn, WcStatus};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Completions taken from the device at once.
pub(crate) const BATCH: usize = 32;

/// What completes in a queue of the device. They are apart so that a sleep can end with one kind and not with the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sends,
    Receives,
}

/// A completion queue: as many of the device's as its queue pairs need, because a device's are short, and what was
/// taken from them before the caller asked.
pub(crate) struct Queue {
    parts: Vec<Part>,
    /// Whose turn it is.
    next: usize,
    pub(crate) ready: VecDeque<Completion>,
}

/// One completion queue of the device, and its entries that no queue pair claims.
struct Part {
    hw: Arc<CompletionQueue>,
    side: Side,
    entries: u32,
    free: u32,
    /// An event was requested of it and has not come.
    armed: bool,
    /// Something completed since it was requested: it has come, or is about to.
    fired: bool,
}

/// So many entries of one part, for one queue of one queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    queue: CompletionQueueId,
    part: usize,
    entries: u32,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self { parts: Vec::new(), next: 0, ready: VecDeque::with_capacity(8 * BATCH) }
    }

    /// Entries for that queue of a queue pair that completes here.
    pub(crate) fn claim(
        &mut self,
        queue: CompletionQueueId,
        side: Side,
        entries: u32,
        make: impl FnOnce(u32) -> io::Result<Arc<CompletionQueue>>,
        limits: &DeviceLimits,
    ) -> io::Result<(Arc<CompletionQueue>, Claim)> {
        let part = match self.parts.iter().position(|part| part.side == side && part.free >= entries) {
            Some(part) => part,
            None => {
                let same = self.parts.iter().filter(|part| part.side == side);
                let before = same.fold(0, |sum: u32, part| sum.saturating_add(part.entries));
                let len = part_len(before, entries, limits);
                self.parts.push(Part {
                    hw: make(len)?,
                    side,
                    entries: len,
                    free: len,
                    armed: false,
                    fired: false,
                });
                self.parts.len() - 1
            }
        };
        self.parts[part].free -= entries;
        Ok((Arc::clone(&self.parts[part].hw), Claim { queue, part, entries }))
    }

    /// A queue pair is gone.
    pub(crate) fn release(&mut self, claim: Claim) {
        self.parts[claim.part].free += claim.entries;
    }

    /// Takes a batch from the parts in turn; how many.
    pub(crate) fn poll(&mut self, into: &mut [Wc]) -> usize {
        let mut count = 0;
        for _ in 0..self.parts.len() {
            if count == into.len() {
                break;
            }
            let part = &mut self.parts[self.next];
            let taken = part.hw.poll(&mut into[count..]);
            part.fired |= taken > 0;
            count += taken;
            self.next = (self.next + 1) % self.parts.len();
        }
        count
    }

    /// Requests an event of the next completion of each side named, where none is requested yet.
    pub(crate) fn arm(&mut self, sends: bool) -> io::Result<()> {
        for part in self.parts.iter_mut().filter(|part| !part.armed && (sends || part.side == Side::Receives))
        {
            part.hw.arm()?;
            (part.armed, part.fired) = (true, false);
        }
        Ok(())
    }

    /// Whether something is there that ends such a sleep.
    pub(crate) fn has_ready(&self, wake_on: WakeOn) -> bool {
        let wakes = |it: &Completion| wake_on == WakeOn::Completions || it.opcode == Opcode::Receive;
        self.ready.iter().any(wakes)
    }

    /// Whether events are still to come.
    pub(crate) fn is_armed(&self) -> bool {
        self.parts.iter().any(|part| part.armed)
    }

    /// Whether there is an event that was requested, as far as completions show.
    pub(crate) fn has_event(&self) -> bool {
        self.parts.iter().any(|part| part.armed && part.fired)
    }

    /// The event that was requested of one of the parts came.
    pub(crate) fn on_event(&mut self, key: CqKey) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.hw.key() == key) {
            part.armed = false;
        }
    }
}

/// Entries of one more part, when `asked` are needed: each part is as long as all before it together, so that there are
/// few: every poll reads each of them.
fn part_len(before: u32, asked: u32, limits: &DeviceLimits) -> u32 {
    asked.max(before.max(limits.completions).min(limits.max_completions))
}

impl Claim {
    pub(crate) fn queue(self) -> CompletionQueueId {
        self.queue
    }
}

/// The device's name for a work request: the queue, the direction, the number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Send(QueuePairId, u32),
    Receive(QueuePairId, u32),
    /// A shared receive queue and a slot of it (below 2³⁰: more than any device takes).
    Shared(u16, u32),
}

/// Sequence numbers and slots leave two bits, which tell the kinds apart.
const RECEIVE: u32 = 1 << 31;
const SHARED: u32 = 1 << 30;

impl Name {
    pub(crate) fn encode(self) -> u64 {
        let (high, low) = match self {
            Self::Send(queue_pair, sequence) => (queue_pair.0, sequence),
            Self::Receive(queue_pair, sequence) => (queue_pair.0, sequence | RECEIVE),
            Self::Shared(queue, slot) => (u32::from(queue), slot | SHARED),
        };
        u64::from(high) << 32 | u64::from(low)
    }

    pub(crate) fn decode(wr_id: u64) -> Self {
        let (high, low) = ((wr_id >> 32) as u32, wr_id as u32);
        if low & SHARED != 0 {
            Self::Shared(high as u16, low & !SHARED)
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
        constants::WC_SUCCESS => WcStatus::Success,
        constants::WC_LOC_LEN_ERR => WcStatus::LocalLength,
        constants::WC_LOC_PROT_ERR | constants::WC_LOC_ACCESS_ERR => WcStatus::LocalProtection,
        constants::WC_WR_FLUSH_ERR => WcStatus::Flushed,
        constants::WC_REM_INV_REQ_ERR | constants::WC_REM_OP_ERR | constants::WC_REM_ABORT_ERR => {
            WcStatus::RemoteOperation
        }
        constants::WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        constants::WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        constants::WC_RNR_RETRY_EXC_ERR => WcStatus::ReceiverNotReady,
        other => WcStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_queue_pairs_need_few_parts() {
        let limits = DeviceLimits {
            max_mr_size: 0,
            max_queue_depth: 0,
            max_completions: 1 << 22,
            completions: 8192,
            max_sge: 1,
            max_read_depth: 1,
            max_shared_receives: 0,
            memory_windows: false,
            sends_invalidate: true,
            is_rxe: false,
        };
        let (mut all, mut parts) = (0, 0);
        while all < 1000 * 1000 {
            all += part_len(all, 1000, &limits);
            parts += 1;
        }
        assert_eq!((parts, all), (8, 8192 << 7));
        assert_eq!(part_len(0, 9000, &limits), 9000);
        assert_eq!(part_len(1 << 20, 5, &DeviceLimits { max_completions: 32_767, ..limits }), 32_767);
    }

    #[test]
    fn names_survive_encoding() {
        for qp in [QueuePairId(0x0001_0007), QueuePairId(0xffff_0003)] {
            for name in [
                Name::Send(qp, 0),
                Name::Send(qp, 0x3fff_ffff),
                Name::Receive(qp, 5),
                Name::Receive(qp, 0x3fff_ffff),
                Name::Shared(3, 1 << 20),
            ] {
                assert_eq!(Name::decode(name.encode()), name);
            }
        }
    }
}
