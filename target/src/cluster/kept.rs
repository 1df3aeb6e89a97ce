//! What hosts made of namespaces that a group serves (reservations, write protections): the files of a state directory,
//! kept in the pool, each with its ANA group's own connection. A gateway that is fenced can store none.

use super::ToDriver;
use core::time::Duration;
use nvmf_cluster::{GroupId, RequestError};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long the group's thread may take. It says itself when the pool has taken too long (`Timing::keep`).
const TIMEOUT: Duration = Duration::from_secs(15);

/// The files as they are in the pool.
#[derive(Debug, Default)]
struct Files {
    /// The text of each, or why it cannot be read, by the ANA group that it was read of: a namespace that has been in another one before
    /// may have files there as well, which do not count.
    files: BTreeMap<Place, Result<String, String>>,
    /// The ANA groups of the namespaces that are opened here, by UUID.
    groups: BTreeMap<String, GroupId>,
    /// Those that are to go: what the group says to that.
    removing: BTreeMap<Place, Receiver<Result<u64, RequestError>>>,
    /// How often those of each ANA group were read.
    loads: BTreeMap<GroupId, u64>,
}

/// An ANA group, and the name of a file.
type Place = (GroupId, String);

impl Files {
    /// Where the file of this name is that counts.
    fn place(&self, name: &str) -> Option<Place> {
        Some((*self.groups.get(uuid_of(name)?)?, name.to_owned()))
    }

    fn loads(&self, group: GroupId) -> u64 {
        self.loads.get(&group).copied().unwrap_or_default()
    }
}

/// The files of the namespaces of which this gateway serves the ANA group.
#[derive(Debug, Clone)]
pub struct Kept {
    files: Arc<Mutex<Files>>,
    to: Arc<Mutex<Sender<ToDriver>>>,
}

impl Kept {
    pub(super) fn new(to: Sender<ToDriver>) -> Self {
        Self { files: Arc::default(), to: Arc::new(Mutex::new(to)) }
    }

    /// The namespace of this UUID is in that ANA group.
    pub fn note(&self, uuid: &str, group: GroupId) {
        self.locked().groups.insert(uuid.to_owned(), group);
    }

    /// Replaces all that is known of an ANA group by what was read through its connection.
    pub fn load(&self, group: GroupId, kept: Vec<(String, Result<Value, String>)>) {
        let mut files = self.locked();
        *files.loads.entry(group).or_default() += 1;
        files.files.retain(|(of, _), _| *of != group);
        files.removing.retain(|(of, _), _| *of != group);
        for (name, value) in kept {
            let text = value.and_then(|value| match value {
                Value::String(text) => Ok(text),
                _ => Err("it is no text".to_owned()),
            });
            files.files.insert((group, name), text);
        }
    }

    /// Removes what was kept of namespaces in ANA groups that are served here, and that they are in no longer: should they come
    /// back, they come without. `groups` are those in which each UUID is; of one that has none nothing is known. What could
    /// not be removed in the pool is tried again by the next call.
    pub fn forget_regrouped(&self, served: &BTreeSet<GroupId>, groups: &BTreeMap<String, BTreeSet<GroupId>>) {
        let is_stray = |(group, name): &Place| {
            let of_uuid = uuid_of(name).and_then(|uuid| groups.get(uuid));
            served.contains(group) && of_uuid.is_some_and(|groups| !groups.contains(group))
        };
        let mut files = self.locked();
        let Files { files: known, removing, .. } = &mut *files;
        let failed = |told: &Receiver<Result<u64, RequestError>>| match told.try_recv() {
            Ok(result) => Some(result.is_err()),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(true),
        };
        removing.extract_if(.., |_, told| failed(told) == Some(false)).for_each(drop);
        let again = removing.iter().filter(|(place, told)| is_stray(place) && failed(told) == Some(true));
        let mut strays: Vec<Place> = again.map(|(place, _)| place.clone()).collect();
        strays.extend(known.extract_if(.., |place, _| is_stray(place)).map(|(place, _)| place));
        for place in strays {
            let (tell, told) = channel();
            let keep = ToDriver::Keep { group: place.0, name: place.1.clone(), value: None, tell };
            removing.insert(place, told);
            let _ = self.to.lock().unwrap_or_else(PoisonError::into_inner).send(keep);
        }
    }

    /// What stands there is whole between two statements.
    fn locked(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in a file, up to so many bytes.
    pub(crate) fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
        let files = self.locked();
        match files.place(name).and_then(|place| files.files.get(&place)) {
            Some(Ok(text)) => {
                let len = usize::try_from(len_max).unwrap_or(usize::MAX).min(text.len());
                Ok(text.as_bytes()[..len].to_vec())
            }
            Some(Err(reason)) => Err(io::Error::new(io::ErrorKind::InvalidData, reason.clone())),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Gives a file another text, or none: in the pool first. That is asked even if there is nothing to remove: it refuses a
    /// gateway that does not know any more what is there.
    pub(crate) fn replace(&self, name: &str, text: Option<&str>) -> io::Result<()> {
        let (place, loads) = {
            let files = self.locked();
            let place = files.place(name);
            let place = place.ok_or_else(|| io::Error::other("its namespace is in no ANA group here"))?;
            let loads = files.loads(place.0);
            (place, loads)
        };
        let group = place.0;
        let stored = self.store(group, name, text);
        let mut files = self.locked();
        // What was read again meanwhile counts.
        if files.loads(group) == loads {
            match (&stored, text) {
                (Ok(()), Some(text)) => drop(files.files.insert(place, Ok(text.to_owned()))),
                (Ok(()), None) => drop(files.files.remove(&place)),
                // What became of it is not known here, before the group is read again.
                (Err(error), _) if is_lost(error) => drop(files.files.remove(&place)),
                (Err(_), _) => {}
            }
        }
        stored
    }

    fn store(&self, group: GroupId, name: &str, text: Option<&str>) -> io::Result<()> {
        let (tell, told) = channel();
        let value = text.map(|text| Value::String(text.to_owned()));
        let keep = ToDriver::Keep { group, name: name.to_owned(), value, tell };
        let sent = self.to.lock().unwrap_or_else(PoisonError::into_inner).send(keep);
        sent.map_err(|_| io::Error::other("the group's thread has ended"))?;
        match told.recv_timeout(TIMEOUT) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(io::Error::other(error)),
            Err(_) => Err(io::Error::other("the group's thread does not answer")),
        }
    }
}

/// What the group says of a file that could not be stored.
pub(crate) fn refusal(error: &io::Error) -> Option<&RequestError> {
    error.get_ref()?.downcast_ref()
}

fn is_lost(error: &io::Error) -> bool {
    matches!(refusal(error), Some(RequestError::Lost(_)))
}

/// Files are called `reservation-UUID.toml` and `write-protection-UUID`.
fn uuid_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("reservation-").or_else(|| name.strip_prefix("write-protection-"))?;
    Some(rest.trim_end_matches(".toml"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateDirectory;
    use nvmf_subsystem::HostId;
    use nvmf_subsystem::reservation::Reservation;

    const UUID: [u8; 16] = [7; 16];
    const NAME: &str = "07070707-0707-0707-0707-070707070707";

    /// Answers what is to be kept, and gives what was.
    fn pool(inbox: Receiver<ToDriver>, result: Result<u64, RequestError>) -> std::thread::JoinHandle<usize> {
        std::thread::spawn(move || {
            let kept = inbox.into_iter().filter_map(|message| match message {
                ToDriver::Keep { tell, group: GroupId(3), .. } => tell.send(result.clone()).ok(),
                other => panic!("{other:?}"),
            });
            kept.count()
        })
    }

    #[test]
    fn what_is_stored_is_in_the_pool_whether_it_persists_or_not() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        let pool = pool(inbox, Ok(0));
        kept.note(NAME, GroupId(3));
        let state = StateDirectory::shared(kept.clone());
        let reservation = Reservation::restored(4, None, [(HostId([1; 16]), 9)]).unwrap();
        for reservation in [reservation.clone(), reservation.with_persistence(false)] {
            state.store(UUID, &reservation).unwrap();
            assert_eq!(state.load(UUID).unwrap(), Some(reservation));
        }
        state.store(UUID, &Reservation::default()).unwrap();
        assert_eq!(state.load(UUID).unwrap(), None);
        state.set_write_protected(UUID, false).unwrap();
        drop((state, kept));
        assert_eq!(pool.join().unwrap(), 4, "also that there is nothing to remove");
    }

    #[test]
    fn reservation_command_that_changes_nothing_asks_the_pool_of_a_group() {
        let (to, _inbox) = channel();
        let state = StateDirectory::shared(Kept::new(to));
        let reservation = Reservation::restored(4, None, [(HostId([1; 16]), 9)]).unwrap();
        assert!(state.is_to_be_stored(&reservation, &reservation));
    }

    #[test]
    fn what_could_not_be_stored_of_one_group_holds_up_no_other() {
        const OTHER: &str = "08080808-0808-0808-0808-080808080808";
        let (to, inbox) = channel();
        let pool = std::thread::spawn(move || {
            for message in inbox {
                let ToDriver::Keep { tell, group, .. } = message else { panic!("{message:?}") };
                // The first group is another gateway's by now.
                let result = if group == GroupId(3) { Err(RequestError::NotOwner(group)) } else { Ok(1) };
                tell.send(result).unwrap();
            }
        });
        let kept = Kept::new(to);
        kept.note(NAME, GroupId(3));
        kept.note(OTHER, GroupId(4));
        let state = StateDirectory::shared(kept.clone());
        let reservation = Reservation::restored(4, None, [(HostId([1; 16]), 9)]).unwrap();
        assert!(state.store(UUID, &reservation).is_err());
        assert!(state.set_write_protected(UUID, true).is_err());
        assert_eq!(state.load(UUID).unwrap(), None, "what is so is not known here any more");
        state.store([8; 16], &reservation).unwrap();
        assert_eq!(state.load([8; 16]).unwrap(), Some(reservation));
        state.set_write_protected([8; 16], true).unwrap();
        drop((state, kept));
        pool.join().unwrap();
    }

    #[test]
    fn what_a_namespace_had_in_an_ana_group_that_it_left_is_removed_where_that_is_served() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        kept.load(GroupId(3), vec![(format!("write-protection-{NAME}"), Ok(Value::String(String::new())))]);
        let groups = |group| [(NAME.to_owned(), [GroupId(group)].into())].into();
        kept.forget_regrouped(&[GroupId(5)].into(), &groups(5));
        kept.forget_regrouped(&[GroupId(3)].into(), &groups(3));
        kept.forget_regrouped(&[GroupId(3)].into(), &BTreeMap::new());
        assert!(inbox.try_recv().is_err(), "it is there, or another gateway's, or not known");
        for result in [Err(RequestError::Busy), Ok(1)] {
            kept.forget_regrouped(&[GroupId(3)].into(), &groups(5));
            let Ok(ToDriver::Keep { group: GroupId(3), value: None, tell, .. }) = inbox.try_recv() else {
                panic!("the pool has it still");
            };
            kept.forget_regrouped(&[GroupId(3)].into(), &groups(5));
            tell.send(result).unwrap();
        }
        kept.forget_regrouped(&[GroupId(3)].into(), &groups(5));
        assert!(inbox.try_recv().is_err(), "it is gone");
        kept.note(NAME, GroupId(3));
        assert!(!StateDirectory::shared(kept).is_write_protected(UUID).unwrap());
    }

    /// The group is lost while a host waits, and read again before that is known.
    #[test]
    fn what_was_read_again_meanwhile_is_not_replaced_by_what_failed() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        kept.note(NAME, GroupId(3));
        let state = StateDirectory::shared(kept.clone());
        let of = |generation| Reservation::restored(generation, None, [(HostId([1; 16]), 9)]).unwrap();
        for result in [Ok(0), Err(RequestError::Late), Err(RequestError::Lost(GroupId(3)))] {
            kept.load(GroupId(3), Vec::new());
            let asked = std::thread::spawn({
                let kept = kept.clone();
                move || StateDirectory::shared(kept).store(UUID, &of(5)).is_ok()
            });
            let Ok(ToDriver::Keep { name, value: Some(_), tell, .. }) = inbox.recv() else { panic!() };
            let fresh = StateDirectory::shared(kept.clone());
            let read = std::thread::spawn(move || fresh.store(UUID, &of(7)));
            let Ok(ToDriver::Keep { value: Some(fresh), tell: not_asked, .. }) = inbox.recv() else {
                panic!()
            };
            not_asked.send(Err(RequestError::Busy)).unwrap();
            assert!(read.join().unwrap().is_err());
            kept.load(GroupId(3), vec![(name, Ok(fresh))]);
            tell.send(result.clone()).unwrap();
            assert_eq!(asked.join().unwrap(), result.is_ok());
            assert_eq!(state.load(UUID).unwrap(), Some(of(7)), "{result:?}");
        }
    }

    #[test]
    fn what_is_not_stored_in_time_stays_as_it_was() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        kept.note(NAME, GroupId(3));
        let state = StateDirectory::shared(kept.clone());
        let before = Reservation::restored(4, None, [(HostId([1; 16]), 9)]).unwrap();
        let results =
            [Ok(0), Ok(0), Err(RequestError::Late), Err(RequestError::Late), Err(RequestError::Busy)];
        let pool = std::thread::spawn(move || {
            for result in results {
                let Ok(ToDriver::Keep { tell, .. }) = inbox.recv() else { panic!() };
                tell.send(result).unwrap();
            }
            inbox.into_iter().count()
        });
        state.store(UUID, &before).unwrap();
        state.set_write_protected(UUID, true).unwrap();
        assert!(state.store(UUID, &Reservation::default()).is_err());
        assert!(state.set_write_protected(UUID, false).is_err());
        assert!(state.set_write_protected(UUID, false).is_err());
        assert_eq!(state.load(UUID).unwrap(), Some(before));
        assert!(state.is_write_protected(UUID).unwrap());
        drop((state, kept));
        assert_eq!(pool.join().unwrap(), 0, "nothing more is asked of the pool, neither then nor later");
    }

    #[test]
    fn what_a_namespace_had_in_another_group_does_not_count() {
        let (to, _inbox) = channel();
        let kept = Kept::new(to);
        let protection = || vec![(format!("write-protection-{NAME}"), Ok(Value::String("on".into())))];
        kept.load(GroupId(3), protection());
        let state = StateDirectory::shared(kept.clone());
        kept.note(NAME, GroupId(3));
        assert!(state.is_write_protected(UUID).unwrap());
        kept.note(NAME, GroupId(4));
        assert!(!state.is_write_protected(UUID).unwrap());
        // The old group comes here before the namespace is opened, and after that: nothing of it counts, and nothing is lost.
        kept.load(GroupId(4), protection());
        kept.load(GroupId(3), Vec::new());
        assert!(state.is_write_protected(UUID).unwrap());
        kept.note(NAME, GroupId(4));
        assert!(state.is_write_protected(UUID).unwrap());
    }

    #[test]
    fn change_is_stored_with_the_group_that_the_namespace_is_in_whatever_group_was_read_last() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        let old = |text: &str| vec![(format!("write-protection-{NAME}"), Ok(Value::String(text.into())))];
        kept.load(GroupId(3), Vec::new());
        kept.note(NAME, GroupId(3));
        kept.load(GroupId(5), old("on"));
        // It answers for group 3 alone.
        let pool = pool(inbox, Ok(1));
        let state = StateDirectory::shared(kept.clone());
        assert!(!state.is_write_protected(UUID).unwrap());
        state.set_write_protected(UUID, true).unwrap();
        kept.load(GroupId(5), Vec::new());
        assert!(state.is_write_protected(UUID).unwrap());
        drop((state, kept));
        assert!(pool.join().unwrap() > 0);
    }

    #[test]
    fn reservation_that_cannot_be_stored_or_read_is_an_error() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        let pool = pool(inbox, Err(RequestError::NotOwner(GroupId(3))));
        kept.note(NAME, GroupId(3));
        let state = StateDirectory::shared(kept.clone());
        let reservation = Reservation::restored(4, None, [(HostId([1; 16]), 9)]).unwrap();
        assert!(state.store(UUID, &reservation).is_err());
        kept.load(GroupId(3), vec![(format!("reservation-{NAME}.toml"), Err("newer".into()))]);
        assert!(state.load(UUID).is_err(), "that is not the same as none");
        kept.load(GroupId(3), Vec::new());
        assert_eq!(state.load(UUID).unwrap(), None);
        drop((state, kept));
        pool.join().unwrap();
    }
}
