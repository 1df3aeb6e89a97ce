//! The work requests of one queue that have not completed, in the order posted.

use core::ops::BitAnd;
use nvmf_rdma::{LocalKey, Opcode, RemoteKey, WcStatus, WorkRequestId};
use std::collections::VecDeque;

/// Sequence numbers have 30 bits: two more tell sends, receives and shared receives apart in the device's name for a work request.
const SEQUENCE: u32 = 0x3fff_ffff;

/// What a work request was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// The caller's.
    Posted {
        id: WorkRequestId,
        opcode: Opcode,
        signaled: bool,
        len: u32,
        invalidates: Option<RemoteKey>,
        /// Where a receive lands.
        sink: Option<LocalKey>,
    },
    /// Our own: a memory window being bound. Nobody hears of it.
    Bind,
}

/// A queue's work, oldest first.
#[derive(Debug)]
pub(crate) struct Outstanding {
    work: VecDeque<Work>,
    /// The oldest's number.
    first: u32,
    posted: u32,
    capacity: u32,
}

impl Outstanding {
    /// Room for `capacity` requests of the caller's, and `hidden` of our own.
    pub(crate) fn new(capacity: u32, hidden: u32) -> Self {
        let work = VecDeque::with_capacity((capacity + hidden) as usize);
        Self { work, first: 0, posted: 0, capacity }
    }

    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Whether the caller may post no more.
    pub(crate) fn is_full(&self) -> bool {
        self.posted == self.capacity
    }

    /// How many of our own are under way.
    pub(crate) fn hidden(&self) -> usize {
        self.work.len() - self.posted as usize
    }

    /// The number that the next one gets.
    pub(crate) fn end(&self) -> u32 {
        self.first.wrapping_add(self.work.len() as u32).bitand(SEQUENCE)
    }

    /// The number after the last receive that lands in the region.
    pub(crate) fn end_of(&self, region: LocalKey) -> Option<u32> {
        let names = |work: &Work| matches!(work, Work::Posted { sink, .. } if *sink == Some(region));
        let last = self.work.iter().rposition(names)?;
        Some(self.first.wrapping_add(last as u32 + 1).bitand(SEQUENCE))
    }

    /// Adds one; its number.
    pub(crate) fn push(&mut self, work: Work) -> u32 {
        let sequence = self.end();
        self.posted += u32::from(matches!(work, Work::Posted { .. }));
        self.work.push_back(work);
        sequence
    }

    /// Whether everything before `end` has completed.
    pub(crate) fn has_reached(&self, end: u32) -> bool {
        end.wrapping_sub(self.first).bitand(SEQUENCE) as usize > self.work.len() || end == self.first
    }

    /// How many will have completed when the one with this number has; `None` for a number that is not here any more.
    pub(crate) fn up_to(&self, sequence: u32) -> Option<usize> {
        let ahead = sequence.wrapping_sub(self.first).bitand(SEQUENCE) as usize;
        (ahead < self.work.len()).then_some(ahead + 1)
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<Work> {
        let work = self.work.pop_front()?;
        self.first = self.first.wrapping_add(1).bitand(SEQUENCE);
        self.posted -= u32::from(matches!(work, Work::Posted { .. }));
        Some(work)
    }
}

/// What became of one that completed together with a later one: success if that failed by itself (work completes in order), flushed
/// if that was flushed.
pub(crate) fn status_of_earlier(status: WcStatus) -> WcStatus {
    match status {
        WcStatus::Flushed => WcStatus::Flushed,
        _ => WcStatus::Success,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(id: u64) -> Work {
        let (id, opcode) = (WorkRequestId(id), Opcode::Send);
        Work::Posted { id, opcode, signaled: true, len: 0, invalidates: None, sink: None }
    }

    #[test]
    fn a_region_is_waited_for_until_its_last_receive() {
        let mut queue = Outstanding::new(4, 0);
        queue.first = SEQUENCE;
        let regions = [LocalKey(1), LocalKey(2), LocalKey(1), LocalKey(3)];
        for (n, region) in (0..).zip(regions) {
            let (id, opcode) = (WorkRequestId(n), Opcode::Receive);
            let sink = Some(region);
            queue.push(Work::Posted { id, opcode, signaled: true, len: 0, invalidates: None, sink });
        }
        assert_eq!(regions.map(|region| queue.end_of(region)), [2, 1, 2, 3].map(Some));
        assert_eq!(queue.end_of(LocalKey(4)), None);
        let done = [queue.pop(), queue.pop(), queue.pop()];
        assert!(done.iter().all(Option::is_some));
        assert!(queue.has_reached(2) && !queue.has_reached(3));
        assert_eq!(queue.end_of(LocalKey(1)), None);
    }

    #[test]
    fn numbers_go_round() {
        let mut queue = Outstanding::new(2, 1);
        queue.first = SEQUENCE - 1;
        let numbers = [queue.push(posted(1)), queue.push(Work::Bind), queue.push(posted(2))];
        assert_eq!(numbers, [SEQUENCE - 1, SEQUENCE, 0]);
        assert!(queue.is_full() && queue.hidden() == 1);
        assert_eq!(numbers.map(|n| queue.up_to(n)), [Some(1), Some(2), Some(3)]);
        assert_eq!((queue.up_to(1), queue.up_to(SEQUENCE - 2)), (None, None));
        let end = queue.end();
        assert!(!queue.has_reached(end));
        assert_eq!([queue.pop(), queue.pop()], [Some(posted(1)), Some(Work::Bind)]);
        assert!(!queue.has_reached(end) && queue.has_reached(0) && queue.hidden() == 0);
        assert_eq!((queue.pop(), queue.pop()), (Some(posted(2)), None));
        assert!(queue.has_reached(end) && queue.is_empty());
        queue.push(posted(3));
        assert!(queue.has_reached(end), "later work does not matter");
    }

    #[test]
    fn what_came_before_a_failure_went_well() {
        for status in [WcStatus::Success, WcStatus::RemoteAccess, WcStatus::RetryExceeded] {
            assert_eq!(status_of_earlier(status), WcStatus::Success);
        }
        assert_eq!(status_of_earlier(WcStatus::Flushed), WcStatus::Flushed);
    }
}
