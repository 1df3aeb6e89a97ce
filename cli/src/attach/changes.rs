//! What becomes of a disk's connections: each of its threads tells of its own, and the disk is what they are together.

use nvmf_attached::{AttachedPath, Attachment, State};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// What has become of a connection, or of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) state: State,
    /// Why, where the disk cannot be used.
    pub(super) reason: Option<String>,
    /// Bytes in the disk.
    pub(super) bytes: u64,
    /// The paths.
    pub(super) paths: Vec<AttachedPath>,
}

/// Where one thread tells what becomes of its connection.
#[derive(Debug)]
pub(super) struct Changes {
    all: Arc<All>,
    /// Its place among them.
    own: usize,
    first: Change,
}

#[derive(Debug)]
struct All {
    each: Mutex<Vec<Change>>,
    together: watch::Sender<Change>,
}

impl Changes {
    /// For the first thread of a disk that is attached, or taken over.
    pub(super) fn new(before: Option<&Attachment>) -> (Self, watch::Receiver<Change>) {
        let state = if before.is_some() { State::Reconnecting } else { State::Live };
        let first =
            Change { state, reason: None, bytes: before.map_or(0, |before| before.size), paths: Vec::new() };
        let (together, told) = watch::channel(first.clone());
        let all = All { each: Mutex::new(vec![first.clone()]), together };
        (Self { all: Arc::new(all), own: 0, first }, told)
    }

    /// For one more thread of the same disk.
    pub(super) fn another(&self) -> Self {
        let mut each = self.all.each.lock().unwrap_or_else(PoisonError::into_inner);
        each.push(self.first.clone());
        Self { all: Arc::clone(&self.all), own: each.len() - 1, first: self.first.clone() }
    }

    /// Tells what has become of the thread's connection.
    pub(super) fn tell(&self, change: Change) {
        let mut each = self.all.each.lock().unwrap_or_else(PoisonError::into_inner);
        each[self.own] = change;
        self.all.together.send_replace(together(&each));
    }
}

/// What becomes of the connections, one change after the other.
pub(super) fn changes(mut told: watch::Receiver<Change>) -> impl AsyncFnMut() -> Change {
    async move || match told.changed().await {
        Ok(()) => told.borrow_and_update().clone(),
        // The threads are gone, which is seen elsewhere.
        Err(_) => core::future::pending().await,
    }
}

/// A disk is as well off as the worst of its connections, and has the size that all of them show.
fn together(each: &[Change]) -> Change {
    let worst = each.iter().max_by_key(|change| badness(change.state)).expect("there is a thread");
    let bytes = each.iter().map(|change| change.bytes).min().unwrap_or_default();
    let mut paths: Vec<AttachedPath> = Vec::new();
    for path in each.iter().flat_map(|change| &change.paths) {
        let is_same = |other: &&mut AttachedPath| {
            (&other.address, &other.transport, &other.source)
                == (&path.address, &path.transport, &path.source)
        };
        match paths.iter_mut().find(is_same) {
            Some(other) if badness(path.state) > badness(other.state) => *other = path.clone(),
            Some(_) => {}
            None => paths.push(path.clone()),
        }
    }
    Change { state: worst.state, reason: worst.reason.clone(), bytes, paths }
}

fn badness(state: State) -> u8 {
    match state {
        State::Live => 0,
        State::Attaching | State::Reconnecting => 1,
        State::Inaccessible => 2,
        State::Removed => 3,
        State::Foreign => 4,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(address: &str, state: State) -> AttachedPath {
        AttachedPath { address: address.to_owned(), state, ..AttachedPath::default() }
    }

    fn change(state: State, bytes: u64, paths: Vec<AttachedPath>) -> Change {
        let reason = (state != State::Live).then(|| "the cable".to_owned());
        Change { state, reason, bytes, paths }
    }

    #[test]
    fn disk_of_several_threads_is_the_worst_of_them_and_has_each_path_once() {
        let (first, told) = Changes::new(None);
        let second = first.another();
        let (a, b) = ("192.0.2.1:4420", "192.0.2.2:4420");
        first.tell(change(State::Live, 2048, vec![path(a, State::Live), path(b, State::Live)]));
        assert_eq!(told.borrow().bytes, 0, "the second has not said anything yet");
        second.tell(change(State::Reconnecting, 1024, vec![path(a, State::Live), path(b, State::Lost)]));
        let both = vec![path(a, State::Live), path(b, State::Lost)];
        assert_eq!(*told.borrow(), change(State::Reconnecting, 1024, both));
        second.tell(change(State::Live, 2048, vec![path(a, State::Live), path(b, State::Live)]));
        assert_eq!((told.borrow().state, told.borrow().bytes), (State::Live, 2048));
        assert_eq!(told.borrow().reason, None);
    }
}
