//! What becomes of a disk's connections: each of its threads tells of its own, and the disk is what they are together.

use nvmf_attached::{AttachedPath, Attachment, State};
use nvmf_block::Geometry;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// What has become of a connection, or of all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) state: State,
    /// Why, where the disk cannot be used.
    pub(super) reason: Option<String>,
    /// How the disk is.
    pub(super) properties: Properties,
    /// The paths.
    pub(super) paths: Vec<AttachedPath>,
}

/// What of a disk may change while it is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Properties {
    pub(super) bytes: u64,
    pub(super) read_only: bool,
    pub(super) volatile_write_cache: bool,
}

impl From<Geometry> for Properties {
    fn from(geometry: Geometry) -> Self {
        let Geometry { read_only, volatile_write_cache, .. } = geometry;
        Self { bytes: geometry.bytes(), read_only, volatile_write_cache }
    }
}

impl Properties {
    fn written_down(attached: &Attachment) -> Self {
        let disk = attached.disk.clone().unwrap_or_default();
        let (read_only, volatile_write_cache) = (disk.read_only, disk.volatile_write_cache);
        Self { bytes: attached.size, read_only, volatile_write_cache }
    }

    /// Of a disk that two connections show so: the size that both have, and what holds for one of them.
    fn together(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            read_only: self.read_only || other.read_only,
            volatile_write_cache: self.volatile_write_cache || other.volatile_write_cache,
        }
    }
}

/// What the machine is told of a disk that has changed. (Of a cache it is not: it was told of one from the start.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It has so many bytes.
    Size(u64),
    /// It takes no writes any more, or takes them again.
    ReadOnly(bool),
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
        let properties = before.map(Properties::written_down).unwrap_or_default();
        let first = Change { state, reason: None, properties, paths: Vec::new() };
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

/// A disk is as well off as the worst of its connections.
fn together(each: &[Change]) -> Change {
    let worst = each.iter().max_by_key(|change| badness(change.state)).expect("there is a thread");
    let properties = each.iter().map(|change| change.properties).reduce(Properties::together);
    let properties = properties.unwrap_or_default();
    let mut paths: Vec<AttachedPath> = Vec::new();
    for path in each.iter().flat_map(|change| &change.paths) {
        let is_same = |other: &&mut AttachedPath| {
            let way = |path: &AttachedPath| {
                let AttachedPath { address, transport, name, source, interface, .. } = path.clone();
                (address, transport, name, source, interface)
            };
            way(other) == way(path)
        };
        match paths.iter_mut().find(is_same) {
            Some(other) if badness(path.state) > badness(other.state) => *other = path.clone(),
            Some(_) => {}
            None => paths.push(path.clone()),
        }
    }
    Change { state: worst.state, reason: worst.reason.clone(), properties, paths }
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
        Change { state, reason, properties: Properties { bytes, ..Properties::default() }, paths }
    }

    #[test]
    fn disk_of_several_threads_is_the_worst_of_them_and_has_each_path_once() {
        let (first, told) = Changes::new(None);
        let second = first.another();
        let (a, b) = ("192.0.2.1:4420", "192.0.2.2:4420");
        first.tell(change(State::Live, 2048, vec![path(a, State::Live), path(b, State::Live)]));
        assert_eq!(told.borrow().properties.bytes, 0, "the second has not said anything yet");
        second.tell(change(State::Reconnecting, 1024, vec![path(a, State::Live), path(b, State::Lost)]));
        let both = vec![path(a, State::Live), path(b, State::Lost)];
        assert_eq!(*told.borrow(), change(State::Reconnecting, 1024, both));
        second.tell(change(State::Live, 2048, vec![path(a, State::Live), path(b, State::Live)]));
        assert_eq!((told.borrow().state, told.borrow().properties.bytes), (State::Live, 2048));
        assert_eq!(told.borrow().reason, None);
    }

    #[test]
    fn disk_is_read_only_and_cached_if_one_connection_says_so() {
        let (first, told) = Changes::new(None);
        let second = first.another();
        let shown = |read_only, volatile_write_cache| Change {
            properties: Properties { bytes: 1024, read_only, volatile_write_cache },
            ..change(State::Live, 0, Vec::new())
        };
        let seen = || (told.borrow().properties.read_only, told.borrow().properties.volatile_write_cache);
        first.tell(shown(false, true));
        second.tell(shown(true, false));
        assert_eq!(seen(), (true, true));
        second.tell(shown(false, false));
        assert_eq!(seen(), (false, true));
        first.tell(shown(false, false));
        assert_eq!(seen(), (false, false));
    }
}
