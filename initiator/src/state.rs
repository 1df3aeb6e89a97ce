//! The state of a connection, and what changes behind it, for those that wait for that.

use crate::ConnectionState;
use core::fmt;
use event_listener::Event;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Both sides of a state, which is [`ConnectionState::Connecting`] at first.
pub(crate) fn channel() -> (StateSender, StateReceiver) {
    let now = Now { state: ConnectionState::Connecting, namespaces: 0 };
    let watched = Arc::new(Watched { now: Mutex::new(now), changed: Event::new() });
    (StateSender(Arc::clone(&watched)), StateReceiver(watched))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Now {
    state: ConnectionState,
    /// How often the namespaces changed.
    namespaces: u64,
}

struct Watched {
    now: Mutex<Now>,
    changed: Event,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who says what the state is. When it is gone, so is the connection.
pub(crate) struct StateSender(Arc<Watched>);

impl StateSender {
    pub(crate) fn set(&self, state: ConnectionState) {
        self.0.lock().state = state;
        self.0.changed.notify(usize::MAX);
    }

    pub(crate) fn namespaces_changed(&self) {
        self.0.lock().namespaces += 1;
        self.0.changed.notify(usize::MAX);
    }
}

impl Drop for StateSender {
    fn drop(&mut self) {
        self.set(ConnectionState::Lost);
    }
}

/// Who is told.
#[derive(Clone)]
pub(crate) struct StateReceiver(Arc<Watched>);

impl StateReceiver {
    pub(crate) fn get(&self) -> ConnectionState {
        self.0.lock().state
    }

    /// The state, as soon as it is another than `known`.
    pub(crate) async fn after(&self, known: ConnectionState) -> ConnectionState {
        self.until(|now| now.state != known).await.state
    }

    pub(crate) fn changes(&self) -> Changes {
        Changes { receiver: self.clone(), seen: *self.0.lock() }
    }

    async fn until(&self, is_so: impl Fn(&Now) -> bool) -> Now {
        loop {
            let changed = self.0.changed.listen();
            let now = *self.0.lock();
            if is_so(&now) {
                return now;
            }
            changed.await;
        }
    }
}

/// What has changed of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Its state is this now.
    State(ConnectionState),
    /// Namespaces came, went, grew, or are other disks now: [`crate::Connection::namespaces`], [`crate::Connection::foreign`].
    Namespaces,
}

/// The changes of a connection, from the call of [`crate::Connection::changes`] on. Several of a kind between two looks are one.
pub struct Changes {
    receiver: StateReceiver,
    seen: Now,
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

impl Changes {
    /// The next. None comes after the state [`ConnectionState::Lost`]. A future that is dropped takes nothing along.
    pub async fn next(&mut self) -> Change {
        let seen = self.seen;
        let now = self.receiver.until(|now| *now != seen).await;
        if now.state == seen.state {
            self.seen.namespaces = now.namespaces;
            return Change::Namespaces;
        }
        self.seen.state = now.state;
        Change::State(now.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;

    #[test]
    fn who_waits_learns_of_a_change_and_of_the_end() {
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || sender.set(ConnectionState::Live));
        assert_ne!(block_on(receiver.after(ConnectionState::Connecting)), ConnectionState::Connecting);
        assert_eq!(block_on(receiver.after(ConnectionState::Live)), ConnectionState::Lost);
        thread.join().unwrap();
    }

    #[test]
    fn changes_come_once_each() {
        let (sender, receiver) = channel();
        let mut changes = receiver.changes();
        sender.namespaces_changed();
        sender.namespaces_changed();
        sender.set(ConnectionState::Live);
        assert_eq!(block_on(changes.next()), Change::State(ConnectionState::Live));
        assert_eq!(block_on(changes.next()), Change::Namespaces);
        drop(sender);
        assert_eq!(block_on(changes.next()), Change::State(ConnectionState::Lost));
    }
}
