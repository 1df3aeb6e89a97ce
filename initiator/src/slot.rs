//! A reusable channel for one value: the result of an operation, for the future that waits for it.
//!
//! A slot is taken from its connection's pool and goes back there, so that operations allocate nothing once there are as many slots
//! as there are operations at once. A future that is dropped first leaves its slot to the operation, and both end together.

use crate::driver::Failure;
use crate::queue::{Done, Ticket};
use crate::{Buffer, Effect};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The result of an operation, and its buffer. An error, with what it may have done, when its connection ended first.
pub(crate) type Ended = Result<(Result<(), Failure>, Option<Buffer>), Effect>;

enum State {
    /// In the pool, or in flight and not yet waited for.
    Quiet,
    Waited(Waker),
    Ended(Ended),
    /// The future was dropped.
    Abandoned,
}

/// The channel of one operation.
pub(crate) struct Slot(Mutex<State>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who is to be woken.
    fn end(&self, ended: Ended) -> Option<Waker> {
        let mut state = self.lock();
        if matches!(*state, State::Abandoned) {
            // Its buffer goes back to its pool outside of the lock.
            drop(state);
            drop(ended);
            return None;
        }
        match core::mem::replace(&mut *state, State::Ended(ended)) {
            State::Waited(waker) => Some(waker),
            State::Quiet | State::Ended(_) | State::Abandoned => None,
        }
    }
}

/// The operation's side.
pub(crate) struct Reply {
    to: To,
    /// What the operation may have done when nobody says how it ended: nothing, unless it was begun.
    unanswered: Effect,
}

impl Default for Reply {
    fn default() -> Self {
        Self::to(To::Nobody)
    }
}

/// Who is told.
#[derive(Default)]
enum To {
    /// Nobody any more.
    #[default]
    Nobody,
    Slot(Arc<Slot>),
    Queue(Arc<Done>, Ticket),
}

impl Reply {
    fn to(to: To) -> Self {
        Self { to, unanswered: Effect::Nothing }
    }

    /// Its operation, which changes something, may be sent from now on.
    pub(crate) fn on_begun(&mut self) {
        self.unanswered = Effect::Unknown;
    }

    /// Whether its future was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        matches!(&self.to, To::Slot(slot) if matches!(*slot.lock(), State::Abandoned))
    }

    /// To a queue of completions.
    pub(crate) fn to_queue(done: Arc<Done>, ticket: Ticket) -> Self {
        Self::to(To::Queue(done, ticket))
    }

    /// Whether it is that of this slot.
    pub(crate) fn is_of(&self, slot: &Arc<Slot>) -> bool {
        matches!(&self.to, To::Slot(own) if Arc::ptr_eq(own, slot))
    }

    /// Who is to be woken then.
    #[must_use]
    pub(crate) fn send(mut self, result: Result<(), Failure>, buffer: Option<Buffer>) -> Option<Waker> {
        self.end(Ok((result, buffer)))
    }

    fn end(&mut self, ended: Ended) -> Option<Waker> {
        match core::mem::take(&mut self.to) {
            To::Nobody => None,
            To::Slot(slot) => slot.end(ended),
            To::Queue(done, ticket) => {
                done.put(ticket, ended);
                None
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(waker) = self.end(Err(self.unanswered)) {
            waker.wake();
        }
    }
}

/// The slots of a connection that are not in use.
pub(crate) struct Slots {
    free: Mutex<Vec<Arc<Slot>>>,
    kept: usize,
}

impl Slots {
    /// Keeps up to `kept` of them.
    pub(crate) fn new(kept: usize) -> Self {
        Self { free: Mutex::new(Vec::with_capacity(kept)), kept }
    }

    /// Both sides of a slot.
    pub(crate) fn take(&self) -> (Reply, Waiting) {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = free.unwrap_or_else(|| Arc::new(Slot(Mutex::new(State::Quiet))));
        (Reply::to(To::Slot(Arc::clone(&slot))), Waiting(Some(slot)))
    }

    fn put(&self, slot: Arc<Slot>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.kept {
            free.push(slot);
        }
    }
}

/// The future's side.
pub(crate) struct Waiting(Option<Arc<Slot>>);

impl Waiting {
    /// The operation's end, once; `slots` gets the slot back then.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, slots: &Slots) -> Poll<Ended> {
        let slot = self.0.as_ref().expect("a future that is over is not polled");
        let mut state = slot.lock();
        match &mut *state {
            State::Ended(ended) => {
                let ended = core::mem::replace(ended, Err(Effect::Nothing));
                *state = State::Quiet;
                drop(state);
                if let Some(slot) = self.0.take() {
                    slots.put(slot);
                }
                Poll::Ready(ended)
            }
            State::Waited(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
            State::Quiet | State::Abandoned => {
                *state = State::Waited(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Waiting {
    /// Waits no longer; the slot of an operation that has not ended.
    pub(crate) fn abandon(&mut self) -> Option<Arc<Slot>> {
        let slot = self.0.take()?;
        // What it held is dropped after the lock.
        let before = core::mem::replace(&mut *slot.lock(), State::Abandoned);
        (!matches!(before, State::Ended(_))).then_some(slot)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_block::BlockError;

    fn poll(waiting: &mut Waiting, slots: &Slots) -> Poll<Ended> {
        waiting.poll(&mut Context::from_waker(Waker::noop()), slots)
    }

    #[test]
    fn slot_is_reused_after_its_result() {
        let slots = Slots::new(4);
        let failure = Failure { error: BlockError::Gone, effect: Effect::Unknown };
        for result in [Ok(()), Err(failure)] {
            let (reply, mut waiting) = slots.take();
            assert!(poll(&mut waiting, &slots).is_pending());
            assert!(reply.send(result, None).is_some(), "somebody waits");
            let Poll::Ready(Ok((ended, None))) = poll(&mut waiting, &slots) else { panic!("it ended") };
            assert_eq!(ended, result);
            assert_eq!(slots.free.lock().expect("no panic").len(), 1);
        }
    }

    #[test]
    fn dropped_reply_ends_the_wait() {
        let slots = Slots::new(4);
        let (reply, mut waiting) = slots.take();
        drop(reply);
        assert!(matches!(poll(&mut waiting, &slots), Poll::Ready(Err(Effect::Nothing))));
        let (mut reply, mut waiting) = slots.take();
        reply.on_begun();
        drop(reply);
        assert!(matches!(poll(&mut waiting, &slots), Poll::Ready(Err(Effect::Unknown))));
    }

    #[test]
    fn slot_of_a_dropped_future_is_not_reused_before_its_end() {
        let slots = Slots::new(4);
        let (reply, waiting) = slots.take();
        drop(waiting);
        let (_other, mut waiting) = slots.take();
        assert!(reply.send(Ok(()), None).is_none(), "nobody waits");
        assert!(poll(&mut waiting, &slots).is_pending(), "the end of another operation");
    }
}
