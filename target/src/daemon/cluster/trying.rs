//! The images that a change adds, or puts in the place of others: opened before the group is asked for it. Hosts lose no
//! disk for one that is not there, and nobody is told that something is done which no gateway can serve.

use super::super::Daemon;
use super::super::changing::Changing;
use super::super::disks::error_text;
use super::super::plan::Change as Planned;
use super::beside::others_at;
use super::images::{Key, item};
use super::known::Known;
use super::opening::{OPENING_MAX, cached};
use crate::control::protocol::Fault;
use crate::control::request::change::{Effect, Item, Outcome};
use crate::exports::{ExportFault, describe, shared_image};
use crate::limits::GROUP_TIMEOUT;
use core::time::Duration;
use nvmf_backend::{Disk, DiskSpec};
use nvmf_cluster::configuration::Change;
use nvmf_config::{Backing, Items, Namespace, Rbd};
use nvmf_subsystem::Nqn;
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use toml::Table;

/// How long all of them may take together.
const ALL_TIMEOUT: Duration = Duration::from_secs(60);

/// What is said of one that did not open in time.
const SILENT: &str = "it cannot be opened yet: the storage cluster does not answer";

/// One image.
struct Try {
    /// The place of the change among all that were asked for.
    at: usize,
    /// The namespace's item.
    of: String,
    key: Key,
    namespace: Namespace,
    /// What hosts have there until now.
    replaces: Option<String>,
    /// No namespace has it yet: who has it open is none of the group.
    is_new: bool,
    told: Option<Receiver<Tried>>,
}

/// What came of it.
type Tried = Result<Found, String>;

/// An image that can be had.
struct Found {
    known: Option<Known>,
    /// Who else has it open, for people.
    beside: Option<String>,
}

/// All of a request.
pub(super) struct Tries {
    left: Vec<Try>,
    /// The items that the request changes.
    changed: BTreeSet<String>,
    /// What is known of those that can be had.
    known: Vec<Change>,
    /// Those that cannot, with the reason.
    refused: Vec<(Try, String)>,
    /// What else an operator is to know, with the place of the change.
    notes: Vec<(usize, String)>,
    /// The addresses of the group's clients.
    ours: BTreeSet<String>,
    until: Duration,
    all_until: Duration,
}

impl Tries {
    pub(super) fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    fn refuse_rest(&mut self) {
        let silent = core::mem::take(&mut self.left).into_iter();
        self.refused.extend(silent.map(|it| (it, SILENT.to_owned())));
    }

    /// Why nothing is asked for, where all that was asked for is one namespace.
    fn is_in_vain(&self, items: &[Item]) -> Option<Fault> {
        let ([(it, text)], [item]) = (&self.refused[..], items) else { return None };
        let name = describe(&it.namespace.backing);
        let is_new = item.change == "add-namespace";
        is_new.then(|| Fault::refused(format!("nothing was changed: {name}: {text}")))
    }

    /// Notes at each item what cannot be had, and leaves that out of what the group is asked for.
    pub(super) fn settle(&self, items: &mut [Item], changes: &mut Vec<Change>) {
        for (it, text) in &self.refused {
            changes.retain(|change| change.key != it.of);
            let Some(item) = items.get_mut(it.at) else { continue };
            let text = match &it.replaces {
                Some(old) => {
                    format!(
                        "namespace {} stays {old}: the new disk cannot be served: {text}",
                        it.namespace.nsid
                    )
                }
                None => format!("its disk cannot be served: {text}"),
            };
            (item.effect, item.outcome, item.note) = (Effect::Refused, Some(Outcome::Refused), Some(text));
            item.connections.clear();
        }
        for (at, text) in &self.notes {
            let Some(item) = items.get_mut(*at) else { continue };
            let before = item.note.take().map(|note| format!("{note}\n  ")).unwrap_or_default();
            item.note = Some(before + text);
        }
    }
}

impl Daemon {
    /// The images that changes need which the group does not have yet.
    pub(super) fn tries(&self, planned: &[Planned], changes: &[Change]) -> Tries {
        let one = |(at, change): (usize, &Planned)| {
            let (Planned::AddNamespace(nqn, new) | Planned::ReplaceNamespace(nqn, new)) = change else {
                return None;
            };
            let of = item(&(*nqn, new.nsid));
            let is_asked_for = changes.iter().any(|change| change.key == of);
            (is_asked_for && matches!(new.backing, Backing::Rbd(_))).then(|| Try {
                at,
                of,
                key: (*nqn, new.nsid),
                namespace: new.clone(),
                replaces: self.backing_of(nqn, new.nsid),
                is_new: !self.has_image(&new.backing),
                told: None,
            })
        };
        let left: Vec<Try> = planned.iter().enumerate().filter_map(one).collect();
        let asks = left.iter().any(|it| it.is_new);
        let ours = self.cluster.as_ref().filter(|_| asks).map(|cluster| cluster.addresses_of_group());
        let now = self.common.clock.now();
        let (until, all_until) = (now + GROUP_TIMEOUT, now + ALL_TIMEOUT);
        let changed = changes.iter().map(|change| change.key.clone()).collect();
        let (known, refused, notes) = (Vec::new(), Vec::new(), Vec::new());
        Tries { left, changed, known, refused, notes, ours: ours.unwrap_or_default(), until, all_until }
    }

    /// Whether a namespace of the group has that image: gateways have it open.
    fn has_image(&self, backing: &Backing) -> bool {
        let mut namespaces = self.config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let name = describe(backing);
        namespaces.any(|namespace| describe(&namespace.backing) == name)
    }

    fn backing_of(&self, nqn: &Nqn, nsid: u32) -> Option<String> {
        let subsystem = self.config.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn)?;
        let namespace = subsystem.namespaces.iter().find(|namespace| namespace.nsid == nsid)?;
        Some(describe(&namespace.backing))
    }

    /// Takes in what came, and opens more. One that hangs keeps others waiting for a bounded time only.
    pub(super) fn advance_tries(&self, tries: &mut Tries, now: Duration) {
        for mut it in core::mem::take(&mut tries.left) {
            let told = match it.told.as_ref().map(Receiver::try_recv) {
                None | Some(Err(TryRecvError::Empty)) => {
                    tries.left.push(it);
                    continue;
                }
                Some(Err(TryRecvError::Disconnected)) => Err("the thread that opens it died".to_owned()),
                Some(Ok(told)) => told,
            };
            tries.until = now + GROUP_TIMEOUT;
            it.told = None;
            let told = told.and_then(|found| {
                let known = found.known.as_ref();
                let fault = known.and_then(|known| self.renamed_elsewhere(&tries.changed, &it, known));
                fault.map_or(Ok(found), |fault| Err(fault.to_string()))
            });
            match told {
                Ok(Found { known, beside }) => {
                    tries.known.extend(known.and_then(|known| known.change(&it.of, None)));
                    tries.notes.extend(beside.map(|text| (it.at, text)));
                }
                Err(text) => tries.refused.push((it, text)),
            }
        }
        if now >= tries.until || now >= tries.all_until {
            tries.refuse_rest();
        }
        let begun = tries.left.iter().filter(|it| it.told.is_some()).count();
        let due = tries.left.iter_mut().filter(|it| it.told.is_none());
        for it in due.take(OPENING_MAX.saturating_sub(begun)) {
            if let Backing::Rbd(image) = &it.namespace.backing {
                // Without a thread it is tried at the next glance.
                let ours = it.is_new.then(|| tries.ours.clone());
                it.told = self.try_to_open(image, &it.namespace, ours);
            }
        }
    }

    /// The namespace that has the image under another name, and keeps it. Who has it under this one is found where the group is
    /// asked.
    fn renamed_elsewhere(&self, changed: &BTreeSet<String>, it: &Try, known: &Known) -> Option<ExportFault> {
        let (nqn, nsid) = self.image_elsewhere(&it.key, known)?;
        let is_renamed = self.backing_of(&nqn, nsid) != Some(describe(&it.namespace.backing));
        let keeps_it = !changed.contains(&item(&(nqn, nsid)));
        (is_renamed && keeps_it).then(|| ExportFault::SameImage { nqn: Box::new(nqn), nsid })
    }

    /// Opens an image, read-only, in a thread of its own, and sees who else has it open who is not `ours`.
    fn try_to_open(
        &self,
        image: &Rbd,
        namespace: &Namespace,
        ours: Option<BTreeSet<String>>,
    ) -> Option<Receiver<Tried>> {
        let cluster = self.cluster.as_ref()?;
        let spec = DiskSpec::Rbd(shared_image(image, cluster.images_at()));
        let (waker, namespace, image) = (self.common.waker.clone(), namespace.clone(), image.clone());
        let (tell, told) = channel();
        let body = move || {
            let opened = Disk::open(&spec, namespace.block_size, true);
            let known = opened.map_err(|error| error_text(&error)).and_then(|disk| {
                cached(&disk).map_or(Ok(()), |text| Err(text.to_owned()))?;
                if !namespace.read_only && image.snapshot.is_none() {
                    disk.check_writable().map_err(|error| error.to_string())?;
                }
                // What a snapshot has does not change.
                let ours = ours.filter(|_| image.snapshot.is_none());
                let beside = ours.and_then(|ours| others_at(&disk, &image, &ours));
                Ok(Found { known: Known::of(&namespace, &disk), beside })
            });
            // Nobody waits any more where it took too long.
            let _ = tell.send(known);
            waker.wake();
        };
        std::thread::Builder::new().name("look-at-image".into()).spawn(body).ok()?;
        Some(told)
    }

    /// What of changes the group is asked for after the look. `Err`: nothing was changed.
    pub(super) fn tried(
        &self,
        tries: &mut Tries,
        mut changes: Vec<Change>,
        changing: &mut Changing,
    ) -> Result<Vec<Change>, Fault> {
        if let Some(fault) = tries.is_in_vain(&changing.items) {
            return Err(fault);
        }
        tries.settle(&mut changing.items, &mut changes);
        if !tries.refused.is_empty() {
            self.are_right(&changes)?;
        }
        let Some(cluster) = &self.cluster else { return Ok(changes) };
        changes.extend(cluster.removals_of_known(&changes));
        changes.extend(cluster.removals_of_duplicates(&changes));
        for known in core::mem::take(&mut tries.known) {
            changes.retain(|change| change.key != known.key);
            changes.push(known);
        }
        Ok(changes)
    }

    /// Whether changes are right without those that are refused: another namespace may need what one of these keeps.
    pub(super) fn are_right(&self, changes: &[Change]) -> Result<(), Fault> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let mut items: Items = cluster.items.clone();
        for Change { key, value, .. } in changes {
            let table = value.as_ref().and_then(|value| serde_json::from_value::<Table>(value.clone()).ok());
            match table {
                Some(table) => drop(items.insert(key.clone(), table)),
                None => drop(items.remove(key)),
            }
        }
        let (_, left_out) =
            self.config.with_items(&items).map_err(|error| Fault::refused(error.to_string()))?;
        match left_out.first() {
            Some((key, reason)) => {
                let text = format!(
                    "nothing was changed, as a disk cannot be had: {key}: {reason}; `plan` says which"
                );
                Err(Fault::refused(text))
            }
            None => Ok(()),
        }
    }
}
