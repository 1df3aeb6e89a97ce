//! What hosts made of namespaces that a group serves (reservations, write protections): the files of a state directory,
//! kept in the pool, each with its ANA group's own connection. A gateway that is fenced can store none.

use super::ToDriver;
use crate::state::Folder;
use core::time::Duration;
use nvmf_cluster::{GroupId, RequestError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long the pool may take to store a file: a host waits for it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What files are called that are not complete yet.
const NEW: &str = ".new";

/// A file as it is known here.
#[derive(Debug, Clone)]
struct KeptFile {
    /// Its text, or why it cannot be read; `None`: it was removed.
    text: Option<Result<String, String>>,
    /// It is not in the pool yet.
    is_dirty: bool,
}

#[derive(Debug, Default)]
struct Files {
    files: BTreeMap<String, KeptFile>,
    /// The ANA groups of namespaces, by UUID.
    groups: BTreeMap<String, GroupId>,
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
        let Files { files, groups } = &mut *files;
        files.retain(|name, _| group_of(groups, name) != Some(group));
        for (name, value) in kept {
            let text = value.and_then(|value| match value {
                Value::String(text) => Ok(text),
                _ => Err("it is no text".to_owned()),
            });
            if let Some(uuid) = uuid_of(&name) {
                groups.insert(uuid.to_owned(), group);
            }
            files.insert(name, KeptFile { text: Some(text), is_dirty: false });
        }
    }

    /// What stands there is whole between two statements.
    fn locked(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, name: &str, text: Option<String>) -> io::Result<()> {
        let group = group_of(&self.locked().groups, name);
        let group = group.ok_or_else(|| io::Error::other("its namespace is in no ANA group here"))?;
        let (tell, told) = channel();
        let keep = ToDriver::Keep { group, name: name.to_owned(), value: text.map(Value::String), tell };
        let sent = self.to.lock().unwrap_or_else(PoisonError::into_inner).send(keep);
        sent.map_err(|_| io::Error::other("the group's thread has ended"))?;
        match told.recv_timeout(TIMEOUT) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(io::Error::other(error)),
            Err(_) => Err(io::Error::other("the storage cluster does not answer")),
        }
    }
}

/// What the group says of a file that could not be stored.
pub(crate) fn refusal(error: &io::Error) -> Option<&RequestError> {
    error.get_ref()?.downcast_ref()
}

/// Files are called `reservation-UUID.toml` and `write-protection-UUID`.
fn uuid_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("reservation-").or_else(|| name.strip_prefix("write-protection-"))?;
    Some(rest.trim_end_matches(".toml"))
}

fn group_of(groups: &BTreeMap<String, GroupId>, name: &str) -> Option<GroupId> {
    groups.get(uuid_of(name)?).copied()
}

impl Folder for Kept {
    fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
        let files = self.locked();
        let text = files.files.get(name).and_then(|file| file.text.clone());
        match text {
            Some(Ok(text)) => {
                let len = usize::try_from(len_max).unwrap_or(usize::MAX).min(text.len());
                Ok(text.as_bytes()[..len].to_vec())
            }
            Some(Err(reason)) => Err(io::Error::new(io::ErrorKind::InvalidData, reason)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let file = KeptFile { text: Some(Ok(text.to_owned())), is_dirty: true };
        self.locked().files.insert(name.to_owned(), file);
        Ok(())
    }

    fn sync(&self, _name: &str) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.locked();
        let file = files.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.files.insert(to.to_owned(), KeptFile { is_dirty: true, ..file });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut files = self.locked();
        match files.files.get_mut(name).filter(|file| file.text.is_some()) {
            Some(_) if name.ends_with(NEW) => drop(files.files.remove(name)),
            Some(file) => *file = KeptFile { text: None, is_dirty: true },
            None => {
                // The pool is asked all the same: it refuses a gateway that does not know any more what is there.
                if group_of(&files.groups, name).is_some() && !name.ends_with(NEW) {
                    files.files.insert(name.to_owned(), KeptFile { text: None, is_dirty: true });
                }
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        Ok(())
    }

    /// It is in the pool afterwards. Others are not looked at: what could not be stored of one ANA group, which another gateway
    /// may have by now, says nothing of the next.
    fn sync_name(&self, name: &str) -> io::Result<()> {
        let Some(KeptFile { text, is_dirty: true }) = self.locked().files.get(name).cloned() else {
            return Ok(());
        };
        let text = text.and_then(Result::ok);
        let stored = self.store(name, text.clone());
        let mut files = self.locked();
        if let Err(error) = stored {
            // What another gateway makes of it counts, unless it was read again meanwhile.
            let is_same = |file: &KeptFile| file.is_dirty && file.text.clone().and_then(Result::ok) == text;
            let is_of_other = matches!(refusal(&error), Some(RequestError::NotOwner(_)));
            if is_of_other && files.files.get(name).is_some_and(is_same) {
                files.files.remove(name);
            }
            return Err(error);
        }
        if text.is_none() {
            files.files.remove(name);
        } else if let Some(file) = files.files.get_mut(name) {
            file.is_dirty = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateDirectory;
    use nvmf_subsystem::HostId;
    use nvmf_subsystem::reservation::Reservation;
    use std::sync::mpsc::Receiver;

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
        let state = StateDirectory::shared(Box::new(kept.clone()));
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
        let state = StateDirectory::shared(Box::new(Kept::new(to)));
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
        let state = StateDirectory::shared(Box::new(kept.clone()));
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
    fn reservation_that_cannot_be_stored_or_read_is_an_error() {
        let (to, inbox) = channel();
        let kept = Kept::new(to);
        let pool = pool(inbox, Err(RequestError::NotOwner(GroupId(3))));
        kept.note(NAME, GroupId(3));
        let state = StateDirectory::shared(Box::new(kept.clone()));
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
