//! Locks on ranges of a disk, shared by the workers that have it attached.
//!
//! [`nvmf_block::BlockOp::CompareAndWrite`] locks its range. All other operations that change blocks are kept out of it,
//! and pay nothing for that while no range is locked: they look at a list of their own worker that is empty then. One that
//! finds its range locked asks for a lock itself, so that it gets its turn between compare-and-writes that never end.
//!
//! - Whoever asks for a lock tells every member (each worker's attachment of the disk), itself included.
//! - A member that was told begins nothing more that changes the range, waits until what it has begun is over, and says
//!   so ([`RangeLocks::on_quiet`]). So nothing depends on when one thread sees what another has stored.
//! - Who asked is granted the lock when all members are quiet and no older lock overlaps it.
//! - When the lock is released, every member is told again.

use core::sync::atomic::{AtomicBool, Ordering};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_block::{BlockRange, DeviceId};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A lock of one disk. Older locks have smaller numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LockId(u64);

/// A worker's attachment of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemberId(u64);

/// What a worker is told of a device by other threads: mostly of its locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// Somebody wants the range: begin no change of it, and say when none is under way.
    Locked { lock: LockId, range: BlockRange },
    /// The lock is over.
    Released(LockId),
    /// The lock that this worker asked for is its own now.
    Granted(LockId),
    /// Not of locks: the blocks of operation `index` are shared, or that failed with a negative errno.
    Shared { index: usize, result: i32 },
}

/// A worker's notes, and what wakes it to read them.
#[derive(Debug)]
pub(crate) struct Mail {
    notes: Mutex<VecDeque<(DeviceId, Note)>>,
    /// Looked at in every poll, so that the mutex is not.
    any: AtomicBool,
    wakeup: EventFd,
}

impl Mail {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self { notes: Mutex::default(), any: AtomicBool::new(false), wakeup }))
    }

    /// What becomes readable with a note.
    pub(crate) fn fd(&self) -> RawFd {
        self.wakeup.as_raw_fd()
    }

    /// The same, to wait for it alone.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The oldest note; `None` once all were taken, and then nothing is readable any more.
    pub(crate) fn take(&self) -> Option<(DeviceId, Note)> {
        let mut notes = locked(&self.notes);
        let note = notes.pop_front();
        if note.is_none() {
            self.any.store(false, Ordering::Release);
            // It fails only when nothing was to be read.
            let _ = self.wakeup.read();
        }
        note
    }

    pub(super) fn put(&self, device: DeviceId, note: Note) {
        let mut notes = locked(&self.notes);
        notes.push_back((device, note));
        self.any.store(true, Ordering::Release);
        // It fails only when the counter is full, and then it is readable.
        let _ = self.wakeup.write(1);
    }
}

#[derive(Debug)]
struct Member {
    id: MemberId,
    device: DeviceId,
    mail: Arc<Mail>,
}

impl Member {
    fn tell(&self, note: Note) {
        self.mail.put(self.device, note);
    }
}

#[derive(Debug)]
struct Lock {
    id: LockId,
    range: BlockRange,
    owner: MemberId,
    /// Members that may still change the range.
    awaited: Vec<MemberId>,
    granted: bool,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Member>,
    /// Oldest first.
    locks: Vec<Lock>,
    last: u64,
}

/// The locks of a disk. Its mutex is taken for locks only, never for an operation that needs none.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks(Mutex<State>);

impl RangeLocks {
    /// A worker attaches the disk. It has nothing under way, so no lock waits for it; it gets those that there are.
    pub(crate) fn join(&self, device: DeviceId, mail: &Arc<Mail>) -> (MemberId, Vec<(LockId, BlockRange)>) {
        let mut state = locked(&self.0);
        let id = MemberId(state.number());
        state.members.push(Member { id, device, mail: Arc::clone(mail) });
        (id, state.locks.iter().map(|lock| (lock.id, lock.range)).collect())
    }

    /// A worker has detached the disk: nothing of it is under way.
    pub(crate) fn leave(&self, member: MemberId) {
        let mut state = locked(&self.0);
        state.members.retain(|other| other.id != member);
        let own: Vec<_> =
            state.locks.iter().filter(|lock| lock.owner == member).map(|lock| lock.id).collect();
        own.into_iter().for_each(|lock| state.release(lock));
        state.locks.iter_mut().for_each(|lock| lock.awaited.retain(|&other| other != member));
        state.grant();
    }

    /// Asks for a lock: [`Note::Granted`] says when it is there, and it must be released then.
    pub(crate) fn ask(&self, owner: MemberId, range: BlockRange) -> LockId {
        let mut state = locked(&self.0);
        let id = LockId(state.number());
        let awaited = state.members.iter().map(|member| member.id).collect();
        state.members.iter().for_each(|member| member.tell(Note::Locked { lock: id, range }));
        state.locks.push(Lock { id, range, owner, awaited, granted: false });
        id
    }

    /// A member that was told of the lock has no change of its range under way, and begins none.
    pub(crate) fn on_quiet(&self, member: MemberId, lock: LockId) {
        let mut state = locked(&self.0);
        if let Some(lock) = state.locks.iter_mut().find(|other| other.id == lock) {
            lock.awaited.retain(|&other| other != member);
        }
        state.grant();
    }

    pub(crate) fn release(&self, lock: LockId) {
        let mut state = locked(&self.0);
        state.release(lock);
        state.grant();
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn release(&mut self, lock: LockId) {
        self.locks.retain(|other| other.id != lock);
        self.members.iter().for_each(|member| member.tell(Note::Released(lock)));
    }

    fn grant(&mut self) {
        for at in 0..self.locks.len() {
            let (older, rest) = self.locks.split_at_mut(at);
            let Some(lock) = rest.first_mut() else { return };
            let is_next = older.iter().all(|older| !older.range.overlaps(lock.range));
            if is_next && lock.awaited.is_empty() && !core::mem::replace(&mut lock.granted, true) {
                let owner = self.members.iter().find(|member| member.id == lock.owner);
                owner.into_iter().for_each(|owner| owner.tell(Note::Granted(lock.id)));
            }
        }
    }
}

/// What stands in the mutex is whole between two statements: a panic elsewhere has not damaged it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(mail: &Mail) -> Vec<Note> {
        core::iter::from_fn(|| mail.take()).map(|(_, note)| note).collect()
    }

    fn range(start: u64) -> BlockRange {
        BlockRange::new(start, 2)
    }

    #[test]
    fn lock_is_granted_when_all_are_quiet_and_no_older_one_overlaps() {
        let locks = RangeLocks::default();
        let (here, there) = (Mail::new().unwrap(), Mail::new().unwrap());
        let ((one, _), (two, _)) = (locks.join(DeviceId(1), &here), locks.join(DeviceId(7), &there));
        let first = locks.ask(one, range(0));
        let second = locks.ask(two, range(1));
        let third = locks.ask(two, range(8));
        let told = |lock, range| Note::Locked { lock, range };
        let all = [told(first, range(0)), told(second, range(1)), told(third, range(8))];
        assert_eq!((notes(&here), notes(&there)), (all.to_vec(), all.to_vec()));
        assert!(!here.any());
        for lock in [third, second, first] {
            locks.on_quiet(two, lock);
        }
        assert_eq!(notes(&there), []);
        locks.on_quiet(one, third);
        assert_eq!(notes(&there), [Note::Granted(third)], "nothing older overlaps it");
        locks.on_quiet(one, second);
        assert_eq!(notes(&there), [], "it waits for the older one");
        locks.on_quiet(one, first);
        assert_eq!(notes(&here), [Note::Granted(first)]);
        locks.release(first);
        assert_eq!(notes(&here), [Note::Released(first)]);
        assert_eq!(notes(&there), [Note::Released(first), Note::Granted(second)]);
    }

    #[test]
    fn member_that_leaves_is_waited_for_no_more_and_holds_nothing() {
        let locks = RangeLocks::default();
        let (here, there) = (Mail::new().unwrap(), Mail::new().unwrap());
        let ((one, _), (two, _)) = (locks.join(DeviceId(1), &here), locks.join(DeviceId(1), &there));
        let first = locks.ask(one, range(0));
        let second = locks.ask(two, range(0));
        locks.on_quiet(one, first);
        locks.on_quiet(two, second);
        notes(&there);
        locks.leave(one);
        assert_eq!(notes(&there), [Note::Released(first), Note::Granted(second)]);
        let (_, known) = locks.join(DeviceId(2), &here);
        assert_eq!(known, [(second, range(0))], "it keeps out of what is locked already");
    }
}
