//! Attached disks: each is a process, which is started, told of further paths, and ended.

use super::super::engine::{Detached, Disk, Place, Root, Subsystem, SubsystemPath};
use super::super::further_paths::Added;
use super::Event;
use super::limits::AT_ONCE;
use super::places::Places;
use crate::attach::{self, Listed, Registry};
use crate::print::chain;
use anyhow::{Result, anyhow};
use nvmf_attached::{Attachment, State};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::spawn_blocking;

pub(super) struct Disks {
    follows: bool,
    /// As what they appear.
    form: String,
    tell: UnboundedSender<Event>,
    /// For as many as may be attached at once: each is a process, and how many there are to be others say.
    places: Arc<Semaphore>,
    /// For as many as may be mended at once: one that is brought back is a process more, or waits for a target.
    menders: Places,
}

impl Disks {
    /// `follows`: they are looked after from then on.
    pub(super) fn new(follows: bool, form: String, tell: UnboundedSender<Event>) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Self { follows, form, tell, places, menders: Places::new(AT_ONCE) }
    }

    /// Those that are attached from now on appear as this.
    pub(super) fn appear_as(&mut self, form: &str) {
        form.clone_into(&mut self.form);
    }

    /// Those that there are, and whether each is to be brought back.
    pub(super) fn dead(&self, listed: &[Listed]) -> BTreeMap<Disk, bool> {
        let mut dead: BTreeMap<Disk, bool> = BTreeMap::new();
        for listed in listed {
            *dead.entry(of(&listed.disk)).or_default() |= self.mends(listed);
        }
        dead
    }

    /// Whether a disk is dead, and for this to be brought back: a service cares for its own, a call for all.
    pub(super) fn mends(&self, listed: &Listed) -> bool {
        listed.is_dead() && (!self.follows || listed.disk.by_discovery)
    }

    pub(super) fn attach(&self, disk: Disk, subsystem: Subsystem) {
        let own = [format!("--as={}", self.form)].into_iter();
        let own = own.chain(self.follows.then(|| "--by-discovery".to_owned())).collect::<Vec<_>>();
        let (tell, places) = (self.tell.clone(), Arc::clone(&self.places));
        tokio::spawn(async move {
            let _place = places.acquire().await;
            let meant = disk.clone();
            let attached = spawn_blocking(move || {
                let arguments = subsystem.with_keys().0.attach(&meant).into_iter().chain(own);
                attach::in_background(arguments.map(Into::into))
            });
            let attached = attached.await.unwrap_or_else(|_| Err(anyhow!("the attaching thread has ended")));
            let _ = tell.send(Event::Attached(disk, attached.map(Box::new)));
        });
    }

    /// Brings it back if it is dead and for this to be brought back, and gives it the paths that it does not have. `root`: where the
    /// referrals to its subsystem begin; one that is named has none.
    pub(super) fn add_paths(&mut self, disk: Disk, subsystem: Subsystem, root: Option<&Root>) {
        let (tell, follows, menders) = (self.tell.clone(), self.follows, self.menders.queue(root));
        tokio::spawn(async move {
            let _mender = menders.place().await;
            let meant = disk.clone();
            let added = spawn_blocking(move || add_paths(&meant, &subsystem, follows));
            let added = added.await.unwrap_or_else(|_| Err(anyhow!("the adding thread has ended")));
            let _ = tell.send(Event::PathsAdded(disk, added.unwrap_or_else(Added::from)));
        });
    }

    pub(super) fn detach(&self, disk: Disk) {
        let tell = self.tell.clone();
        tokio::spawn(async move {
            let meant = disk.clone();
            let how = spawn_blocking(move || detach(&meant)).await.unwrap_or(Detached::Failed);
            let _ = tell.send(Event::Detached(disk, how));
        });
    }
}

/// Which disk an entry is of.
pub(super) fn of(disk: &Attachment) -> Disk {
    Disk { nqn: disk.nqn.clone(), nsid: disk.nsid }
}

/// Over which place it was attached first.
pub(super) fn way(disk: &Attachment) -> Option<Place> {
    disk.paths.first().and_then(SubsystemPath::of).map(|path| path.place)
}

fn add_paths(disk: &Disk, subsystem: &Subsystem, follows: bool) -> Result<Added> {
    let listed = Registry::of_this_user().list()?;
    // The same disk may be attached twice, or as another host.
    let each = listed.iter().filter(|listed| of(&listed.disk) == *disk);
    let mends = |listed: &Listed| !follows || listed.disk.by_discovery;
    Ok(each.fold(Added::default(), |added, listed| {
        added.and(match mends(listed) {
            true => subsystem.mend(listed),
            false => subsystem.add_missing_paths(listed),
        })
    }))
}

/// Detaches a disk that discovery has attached, unless it is in use.
fn detach(disk: &Disk) -> Detached {
    let listed = Registry::of_this_user().list().unwrap_or_default();
    let meant = |listed: &Listed| of(&listed.disk) == *disk && listed.disk.by_discovery;
    let Some(listed) = listed.into_iter().find(meant) else { return Detached::Gone };
    if listed.disk.state == State::Ending {
        return Detached::InUse;
    }
    if !listed.is_idle() {
        tracing::info!("{} is gone from discovery, but its disk is in use: it stays", listed.disk);
        return Detached::InUse;
    }
    match listed.detach(false) {
        Ok(()) => {
            tracing::info!("detached {}", listed.disk);
            Detached::Gone
        }
        Err(error) => {
            tracing::warn!("{}: {}", listed.disk, chain(&error));
            // Of one that was removed at its target nothing can be flushed any more.
            if listed.exists() { Detached::Failed } else { Detached::Gone }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::engine::Controller;
    use super::super::super::sources::tests::place;
    use super::*;
    use tokio::sync::mpsc::unbounded_channel;

    /// How long a disk takes to be brought back its target says, and how many are dead.
    #[tokio::test]
    async fn dead_disks_of_one_discovery_controller_keep_those_of_others_not_waiting() {
        let (tell, mut events) = unbounded_channel();
        let mut disks = Disks::new(true, "auto".to_owned(), tell);
        let root = |address| Some(Controller { place: place("tcp", address, 8009), options: Vec::new() });
        let (hostile, honest) = (root("192.0.2.1"), root("192.0.2.2"));
        let queue = disks.menders.queue(Some(&hostile));
        let mut at_work = Vec::new();
        for _ in 0..AT_ONCE / 2 {
            at_work.push(queue.place().await.unwrap());
        }
        for (nqn, root) in [("h", &hostile), ("l", &honest)] {
            let subsystem = Subsystem { nqn: nqn.to_owned(), paths: Vec::new(), options: Vec::new() };
            disks.add_paths(Disk { nqn: nqn.to_owned(), nsid: 1 }, subsystem, Some(root));
        }
        for (nqn, ends) in [("l", true), ("h", false)] {
            let Some(Event::PathsAdded(disk, _)) = events.recv().await else { panic!("nothing was mended") };
            assert_eq!(disk.nqn, nqn);
            if ends {
                at_work.pop();
            }
        }
    }
}
