//! The work requests of one queue that have not completed, in the order posted.

use core::ops::BitAnd;
use nvmf_rdma::{LocalKey, Opcode, RemoteKey, WcStatus, WorkRequestId};
use std::collections::VecDeque;

/// Sequence numbers have 30 bits: two more tell sends, receives and shared receives apart in the device's name for a
/// work request.
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
    /// Our own: a memory window being bound. The caller does not see it.
    Bind,
}

/// What the device reported of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) status: WcStatus,
    pub(crate) byte_len: u32,
    pub(crate) invalidated: Option<RemoteKey>,
}

#[derive(Debug)]
struct Slot {
    work: Work,
    /// The device reports when it is done. The others are done when a later one is.
    reported: bool,
    done: Option<Done>,
    /// The device has nothing to do for it: it is done once it is the oldest, and proves nothing of those before it.
    void: bool,
}

/// A queue's work, oldest first. What the device completes out of order (iWARP devices complete a SEND before the RDMA
/// READ ahead of it) waits here for what was posted before it.
#[derive(Debug)]
pub(crate) struct Outstanding {
    work: VecDeque<Slot>,
    /// How many of them are done.
    done: usize,
    /// The first of those behind silent ones, by its number: it is looked for once for all of them.
    first_done: Option<(u32, Done)>,
    /// The oldest's number.
    first: u32,
    posted: u32,
    capacity: u32,
}

impl Outstanding {
    /// Room for `capacity` requests of the caller's, and `hidden` of our own.
    pub(crate) fn new(capacity: u32, hidden: u32) -> Self {
        let work = VecDeque::with_capacity((capacity + hidden) as usize);
        Self { work, done: 0, first_done: None, first: 0, posted: 0, capacity }
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
        let names = |slot: &Slot| matches!(slot.work, Work::Posted { sink, .. } if sink == Some(region));
        let last = self.work.iter().rposition(names)?;
        Some(self.first.wrapping_add(last as u32 + 1).bitand(SEQUENCE))
    }

    /// Adds one; its number. `reported`: the device will report when it is done.
    pub(crate) fn push(&mut self, work: Work, reported: bool) -> u32 {
        let sequence = self.end();
        self.posted += u32::from(matches!(work, Work::Posted { .. }));
        self.work.push_back(Slot { work, reported, done: None, void: false });
        sequence
    }

    /// Adds one for which the device has nothing to do.
    pub(crate) fn push_void(&mut self, work: Work) {
        self.posted += u32::from(matches!(work, Work::Posted { .. }));
        self.work.push_back(Slot { work, reported: true, done: None, void: true });
    }

    /// Whether everything before `end` has completed.
    pub(crate) fn has_reached(&self, end: u32) -> bool {
        end.wrapping_sub(self.first).bitand(SEQUENCE) as usize > self.work.len() || end == self.first
    }

    /// The device reported the outcome of the one with this number; ignored for one that is not here any more.
    pub(crate) fn complete(&mut self, sequence: u32, done: Done) {
        let ahead = sequence.wrapping_sub(self.first).bitand(SEQUENCE) as usize;
        if let Some(slot) = self.work.get_mut(ahead)
            && slot.done.replace(done).is_none()
        {
            self.done += 1;
        }
    }

    /// Takes the oldest if it is done, and its outcome.
    pub(crate) fn retire(&mut self) -> Option<(Work, Done)> {
        let oldest = self.work.front()?;
        let done = match oldest.done {
            Some(done) => done,
            None if oldest.void => Done { status: WcStatus::Success, byte_len: 0, invalidated: None },
            None if oldest.reported || self.done == 0 => return None,
            None => of_earlier(self.first_done()?),
        };
        Some((self.pop()?, done))
    }

    fn first_done(&mut self) -> Option<Done> {
        if self.first_done.is_none() {
            let ahead = self.work.iter().position(|slot| slot.done.is_some())?;
            let number = self.first.wrapping_add(ahead as u32).bitand(SEQUENCE);
            self.first_done = self.work[ahead].done.map(|done| (number, done));
        }
        self.first_done.map(|(_, done)| done)
    }

    /// Takes the oldest.
    pub(crate) fn pop(&mut self) -> Option<Work> {
        let Slot { work, done, .. } = self.work.pop_front()?;
        self.done -= usize::from(done.is_some());
        self.first_done.take_if(|&mut (number, _)| number == self.first);
        self.first = self.first.wrapping_add(1).bitand(SEQUENCE);
        self.posted -= u32::from(matches!(work, Work::Posted { .. }));
        Some(work)
    }
}

/// The outcome of one that the device does not report, by a later one: success if that failed by itself (failures are
/// reported), flushed if that was flushed.
fn of_earlier(later: Done) -> Done {
    let status = match later.status {
        WcStatus::Flushed => WcStatus::Flushed,
        _ => WcStatus::Success,
    };
    Done { status, byte_len: 0, invalidated: None }
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
            queue.push(Work::Posted { id, opcode, signaled: true, len: 0, invalidates: None, sink }, true);
        }
        assert_eq!(regions.map(|region| queue.end_of(region)), [2, 1, 2, 3].map(Some));
        assert_eq!(queue.end_of(LocalKey(4)), None);
        let done = [queue.pop(), queue.pop(), queue.pop()];
        assert!(done.iter().all(Option::is_some));
        assert!(queue.has_reached(2) && !queue.has_reached(3));
        assert_eq!(queue.end_of(LocalKey(1)), None);
    }

    fn done(status: WcStatus) -> Done {
        Done { status, byte_len: 0, invalidated: None }
    }

    #[test]
    fn early_completions_wait_for_their_turn() {
        let mut queue = Outstanding::new(4, 1);
        let [read, bind, send] = [(posted(1), true), (Work::Bind, false), (posted(2), true)]
            .map(|(work, reported)| queue.push(work, reported));
        queue.complete(send, done(WcStatus::Success));
        assert_eq!(queue.retire(), None, "the read is not over");
        queue.complete(send + 7, done(WcStatus::Success));
        queue.complete(read, done(WcStatus::RemoteAccess));
        assert_eq!(queue.retire(), Some((posted(1), done(WcStatus::RemoteAccess))));
        assert_eq!(queue.retire(), Some((Work::Bind, done(WcStatus::Success))), "reported by the later one");
        assert_eq!(queue.retire(), Some((posted(2), done(WcStatus::Success))));
        queue.complete(bind, done(WcStatus::Success));
        assert_eq!(queue.retire(), None, "its number is stale");
    }

    #[test]
    fn flushed_request_flushes_unsignaled_ones_before_it() {
        let mut queue = Outstanding::new(4, 0);
        queue.push(posted(1), false);
        let last = queue.push(posted(2), true);
        assert_eq!(queue.retire(), None);
        queue.complete(last, done(WcStatus::Flushed));
        assert_eq!(queue.retire(), Some((posted(1), done(WcStatus::Flushed))));
    }

    #[test]
    fn silent_requests_end_as_the_next_that_is_reported() {
        let mut queue = Outstanding::new(8, 0);
        for id in 0..2 {
            let [_, last] = [false, true].map(|reported| queue.push(posted(id), reported));
            queue.complete(last, done([WcStatus::RemoteAccess, WcStatus::Flushed][id as usize]));
        }
        let ended = core::iter::from_fn(|| queue.retire()).map(|(_, done)| done.status);
        let expected = [WcStatus::Success, WcStatus::RemoteAccess, WcStatus::Flushed, WcStatus::Flushed];
        assert_eq!(ended.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut queue = Outstanding::new(2, 1);
        queue.first = SEQUENCE - 1;
        let numbers =
            [queue.push(posted(1), true), queue.push(Work::Bind, false), queue.push(posted(2), true)];
        assert_eq!(numbers, [SEQUENCE - 1, SEQUENCE, 0]);
        assert!(queue.is_full() && queue.hidden() == 1);
        let end = queue.end();
        assert!(!queue.has_reached(end));
        assert_eq!([queue.pop(), queue.pop()], [Some(posted(1)), Some(Work::Bind)]);
        assert!(!queue.has_reached(end) && queue.has_reached(0) && queue.hidden() == 0);
        assert_eq!((queue.pop(), queue.pop()), (Some(posted(2)), None));
        assert!(queue.has_reached(end) && queue.is_empty());
        queue.push(posted(3), true);
        assert!(queue.has_reached(end), "later work does not matter");
    }
}
