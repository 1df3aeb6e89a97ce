//! The namespaces that are served, and those that cannot be served yet.

use super::twins::{Claim, Claims, Key};
use crate::control::Waker;
use crate::exports::{Export, ExportError, ExportFault};
use crate::limits::{NSID_REST, OPEN_TIMEOUT, RETRY_COSTLY_INTERVAL, RETRY_COSTLY_MAX, RETRY_INTERVAL};
use crate::state::StateDirectory;
use core::time::Duration;
use nvmf_backend::{ClusterSpec, DEVICES_MAX};
use nvmf_block::DeviceId;
use nvmf_cluster::Handle;
use nvmf_config::{Backing, Namespace, Subsystem};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use uuid::Uuid;

/// Disks that are begun to be opened at the same time, at the most.
const OPENING_MAX: usize = 32;
/// Those that are being opened and may hang: each keeps a thread.
const HANGING_MAX: usize = 1024;
/// What takes longer to open keeps no other from being begun: many that hang must not add up.
const MAKES_WAY_AFTER: Duration = Duration::from_millis(200);
/// What takes longer to open hangs, as far as the others are concerned: less than a start waits for the next disk.
const HANGS_AFTER: Duration = Duration::from_secs(2);
/// The control loop looks around more often. Did it not, this process stood still: then what hosts sent before is still to be
/// read, and they have heard nothing meanwhile.
const STANDS_STILL: Duration = Duration::from_secs(4);
/// Disks that are closed at the same time, at the most.
const CLOSING_MAX: usize = 32;

/// The namespaces, by how far they are: wanted, being opened, open, leaving.
#[derive(Default)]
pub(super) struct Namespaces {
    /// Served.
    pub(super) open: Vec<Export>,
    opening: Vec<Opening>,
    /// Open, and not served until it is known whether another disk has the same UUID.
    held: Vec<Export>,
    /// Taken from the hosts; workers may still have operations on their disks.
    leaving: Vec<Export>,
    /// Left by all workers, and being closed.
    closing: Vec<Closing>,
    /// What was taken away lately, and until when no other disk takes its NSID.
    resting: HashMap<Key, (Backing, Duration)>,
    /// When it was looked at last what is to be opened.
    begun_at: Duration,
    faults: HashMap<Key, Fault>,
    next_device: u32,
    /// How images are reached that a group of gateways serves.
    pub(super) cluster: Option<ClusterSpec>,
}

/// A disk that a thread of its own is opening: a device that hangs must not keep the control loop waiting.
struct Opening {
    key: Key,
    namespace: Namespace,
    since: Duration,
    told: Receiver<Result<Export, ExportFault>>,
}

impl Opening {
    fn hangs(&self, now: Duration) -> bool {
        now >= self.since + HANGS_AFTER
    }

    fn is_image(&self) -> bool {
        matches!(self.namespace.backing, Backing::Rbd(_))
    }
}

/// A disk that a thread of its own is closing: `close` asks the file system. Until that is over the disk is locked, and
/// cannot be opened again.
struct Closing {
    namespace: Namespace,
    /// The connection of a gateway group that hosts had it through.
    through: Option<Handle>,
    since: Duration,
    over: Receiver<()>,
}

impl Closing {
    /// Returns the disk if there is no thread for it.
    fn begin(export: Export, now: Duration, waker: Waker) -> Result<Self, Box<Export>> {
        let (give, given) = channel::<Export>();
        let (tell, over) = channel();
        let body = move || {
            drop(given.recv());
            drop::<Sender<()>>(tell);
            waker.wake();
        };
        if std::thread::Builder::new().name("close-disk".into()).spawn(body).is_err() {
            return Err(Box::new(export));
        }
        let namespace = export.namespace.clone();
        let through = export.through();
        give.send(export).map_err(|unsent| Box::new(unsent.0))?;
        Ok(Self { namespace, through, since: now, over })
    }

    fn is_over(&self) -> bool {
        self.over.try_recv() == Err(TryRecvError::Disconnected)
    }
}

/// Why a namespace is not served.
struct Fault {
    text: String,
    retry_at: Duration,
    /// How often it was tried in a row where that is costly.
    costly: u32,
    /// What was found of its disk, which had another's UUID.
    twin: Option<Claim>,
    /// There is no file or image of its name.
    is_missing: bool,
    /// There is one, which is another disk.
    is_another: bool,
}

impl Namespaces {
    /// Begins to open what is wanted and not open.
    pub(super) fn begin(
        &mut self,
        wanted: &[Subsystem],
        now: Duration,
        waker: &Waker,
        state: &Arc<StateDirectory>,
    ) {
        self.close(now, waker);
        let stood = now.saturating_sub(core::mem::replace(&mut self.begun_at, now));
        if stood > STANDS_STILL {
            self.resting.values_mut().for_each(|(_, until)| *until += stood);
        }
        self.resting.retain(|_, (_, until)| *until > now);
        let young = self.opening.iter().filter(|opening| now < opening.since + MAKES_WAY_AFTER).count();
        let room = OPENING_MAX.saturating_sub(young).min(HANGING_MAX.saturating_sub(self.opening.len()));
        if room == 0 {
            return;
        }
        // One that was begun for another disk, and may never end, is no reason to wait.
        let mut begun: HashMap<Key, Vec<&Namespace>> = HashMap::new();
        let held = self.held.iter().map(|export| ((export.nqn, export.namespace.nsid), &export.namespace));
        for (key, namespace) in held.chain(self.opening.iter().map(|it| (it.key, &it.namespace))) {
            begun.entry(key).or_default().push(namespace);
        }
        let is_due = |(key, namespace): &(Key, &Namespace)| {
            let is_begun = begun.get(key).is_some_and(|begun| begun.contains(namespace));
            !(is_begun
                || self.is_waiting(key, now)
                || self.is_leaving(key, namespace)
                || self.is_resting(key, namespace))
        };
        // What asks nobody else first.
        let is_image = |(_, namespace): &(Key, &Namespace)| matches!(namespace.backing, Backing::Rbd(_));
        let (images, others): (Vec<_>, Vec<_>) = self.not_open(wanted).partition(is_image);
        let due: Vec<_> = others.into_iter().chain(images).filter(is_due).take(room).collect();
        for (key, namespace) in due {
            let nqn = key.0;
            let (device, waker, state) = (self.take_device(), waker.clone(), Arc::clone(state));
            let (tell, told) = channel();
            let (to_open, cluster) = (namespace.clone(), self.cluster.clone());
            let body = move || {
                let _ = tell.send(Export::open(nqn, &to_open, device, &state, cluster.as_ref()));
                waker.wake();
            };
            // No thread: it is tried again.
            if std::thread::Builder::new().name("open-disk".into()).spawn(body).is_ok() {
                self.opening.push(Opening { key, namespace: namespace.clone(), since: now, told });
            }
        }
    }

    /// What is not served after all is closed when no worker has it.
    pub(super) fn let_go(&mut self, export: Export) {
        self.leaving.push(export);
    }

    /// Begins to close the disks that have left every worker.
    fn close(&mut self, now: Duration, waker: &Waker) {
        self.closing.retain(|closing| !closing.is_over());
        let room = CLOSING_MAX.saturating_sub(self.closing.len());
        let left: Vec<Export> =
            self.leaving.extract_if(.., |export| !export.is_in_use()).take(room).collect();
        for export in left {
            match Closing::begin(export, now, waker.clone()) {
                Ok(closing) => self.closing.push(closing),
                Err(export) => self.leaving.push(*export),
            }
        }
    }

    /// Closes everything at the end of the process, for at most so long: a disk that does not answer is left to the kernel
    /// or to its cluster.
    pub(super) fn close_all(&mut self, most: Duration) {
        let (tell, over) = channel::<()>();
        let disks = [&mut self.open, &mut self.held, &mut self.leaving].into_iter().flat_map(std::mem::take);
        let mut shares: Vec<Vec<Export>> = (0..CLOSING_MAX).map(|_| Vec::new()).collect();
        disks.enumerate().for_each(|(at, disk)| shares[at % CLOSING_MAX].push(disk));
        for share in shares.into_iter().filter(|share| !share.is_empty()) {
            let tell = tell.clone();
            let close = move || drop((share, tell));
            // Without a thread, they are closed here.
            let _ = std::thread::Builder::new().name("close-disk".into()).spawn(close);
        }
        drop(tell);
        if over.recv_timeout(most) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::error!("a disk was not closed within {most:?}: it does not answer");
        }
    }

    /// Takes in what has been opened since, and returns what could not be.
    pub(super) fn collect(&mut self, wanted: &[Subsystem], now: Duration) -> Vec<ExportError> {
        let mut faults = Vec::new();
        for at in (0..self.opening.len()).rev() {
            let result = match self.opening[at].told.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Err(ExportFault::Attach("the opening thread died".into())),
            };
            let Opening { key, namespace, .. } = self.opening.swap_remove(at);
            match result {
                result if !is_wanted(wanted, &key, &namespace) => self.leaving.extend(result),
                Ok(export) => self.held.push(export),
                Err(source) => faults.push(ExportError { nqn: Box::new(key.0), nsid: key.1, source }),
            }
        }
        for fault in &faults {
            self.retry_later(fault, now);
        }
        faults
    }

    /// Whether a disk may still turn out to have the UUID of one that is open: all of those that are opened at about
    /// the same time are looked at together. One that hangs is waited for no longer than at a start; an image, of which
    /// there is a twin only if it is configured twice, not even so long.
    pub(super) fn is_settling(&self, now: Duration) -> bool {
        self.opening.iter().any(|opening| {
            let Namespace { backing, uuid, .. } = &opening.namespace;
            let is_late = match backing {
                Backing::Path { .. } => now >= opening.since + OPEN_TIMEOUT,
                Backing::Rbd(_) => opening.hangs(now),
                Backing::Memory { .. } | Backing::Null { .. } => true,
            };
            uuid.is_none() && !is_late
        })
    }

    /// How many wait for that.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// What of it is to be served, in the order of the file, and what is not because another has its UUID: one that is served
    /// here, or, as these say, in the group.
    pub(super) fn settle(
        &mut self,
        wanted: &[Subsystem],
        of_group: &[(Key, Uuid)],
        now: Duration,
    ) -> (Vec<Export>, Vec<ExportError>) {
        let mut held = std::mem::take(&mut self.held);
        let is_unwanted = |e: &mut Export| !is_wanted(wanted, &(e.nqn, e.namespace.nsid), &e.namespace);
        self.leaving.extend(held.extract_if(.., is_unwanted));
        let place = |export: &Export| wanted.iter().position(|subsystem| subsystem.nqn == export.nqn);
        held.sort_by_key(|export| (place(export), export.namespace.nsid));
        let served: Claims = self.open.iter().map(Claim::of).collect();
        let others = of_group.iter().map(|&(key, uuid)| Claim::of_group(key, uuid));
        let served_in_group: Claims = self.open.iter().map(Claim::of).chain(others).collect();
        // One that the group knows has the UUID that it is known by: with another one it is another disk, which is looked at
        // where it is taken up.
        let is_known = |key: &Key| of_group.iter().any(|(known, _)| known == key);
        // Whatever UUID others are given, that one stays its.
        let has_claim = |claim: &Claim| of_group.contains(&(claim.key, Uuid::from_bytes(claim.uuid)));
        let nobody = Claims::default();
        let configured = Claims::configured(wanted);
        let twins = self.faults.values().filter_map(|fault| fault.twin);
        let twins = twins.filter(|twin| !held.iter().any(|export| export.is(&twin.key.0, twin.key.1)));
        let found: Claims = held.iter().map(Claim::of).chain(twins).collect();
        let (mut opened, mut faults) = (Vec::new(), Vec::new());
        for export in held {
            let claim = Claim::of(&export);
            let (configured, found) =
                if has_claim(&claim) { (&nobody, &nobody) } else { (&configured, &found) };
            let is_looked_at = has_claim(&claim) || is_known(&claim.key) && !claim.is_configured;
            let served = if is_looked_at { &served } else { &served_in_group };
            let Some(source) = claim.refused(served, configured, found) else {
                opened.push(export);
                continue;
            };
            let (nqn, nsid) = claim.key;
            let error = ExportError { nqn: Box::new(nqn), nsid, source };
            self.retry_later(&error, now);
            self.faults.entry(claim.key).and_modify(|fault| fault.twin = Some(claim));
            faults.push(error);
            self.leaving.push(export);
        }
        (opened, faults)
    }

    /// What is wanted, is not served, and did not fail lately: its disk is being opened, is in line for that, or
    /// waits for the one that it replaces.
    pub(super) fn pending(&self, wanted: &[Subsystem], now: Duration) -> Vec<ExportError> {
        let pending = self
            .not_open(wanted)
            .filter(|(key, namespace)| !self.is_waiting(key, now) && !self.is_resting(key, namespace));
        let error = |(key, namespace): (Key, &Namespace)| {
            let leaving = self.is_leaving(&key, namespace);
            let source = if leaving { ExportFault::Busy } else { ExportFault::Slow };
            ExportError { nqn: Box::new(key.0), nsid: key.1, source }
        };
        pending.map(error).collect()
    }

    /// Images that are being opened, and do not answer: their cluster says when they can, and nobody waits for that.
    pub(super) fn hanging_images(&self, now: Duration) -> HashSet<Key> {
        self.slow_images(now, HANGS_AFTER)
    }

    /// Those that have been opened for so long.
    pub(super) fn slow_images(&self, now: Duration, after: Duration) -> HashSet<Key> {
        let slow = self.opening.iter().filter(|opening| opening.is_image() && now >= opening.since + after);
        slow.map(|opening| opening.key).collect()
    }

    /// How many of the wanted may open soon. An image that is merely slow is one of them: hosts that find its namespace missing give
    /// it up.
    pub(super) fn to_come(&self, wanted: &[Subsystem], now: Duration) -> usize {
        let hanging = self.slow_images(now, OPEN_TIMEOUT);
        let is_to_come = |(key, namespace): &(Key, &Namespace)| {
            !self.is_waiting(key, now) && !self.is_resting(key, namespace) && !hanging.contains(key)
        };
        self.not_open(wanted).filter(is_to_come).count().saturating_sub(self.held.len())
    }

    /// Whether memory is being allocated. That takes seconds for many gigabytes, and never hangs.
    pub(super) fn is_allocating(&self) -> bool {
        self.opening.iter().any(|opening| matches!(opening.namespace.backing, Backing::Memory { .. }))
    }

    /// Takes note of a fault, for the next try.
    pub(super) fn retry_later(&mut self, error: &ExportError, now: Duration) {
        let key = (*error.nqn, error.nsid);
        let new = || Fault {
            text: String::new(),
            retry_at: now,
            costly: 0,
            twin: None,
            is_missing: false,
            is_another: false,
        };
        let fault = self.faults.entry(key).or_insert_with(new);
        fault.costly = if error.source.is_costly() { fault.costly + 1 } else { 0 };
        fault.retry_at = now + retry_after(fault.costly);
        fault.is_missing = error.source.is_missing();
        fault.is_another = matches!(error.source, ExportFault::AnotherDisk { .. });
        if fault.is_missing {
            fault.twin = None;
        }
    }

    /// Why it is not served, if it failed lately.
    pub(super) fn fault(&self, key: &Key) -> Option<String> {
        self.faults.get(key).map(|fault| fault.text.clone()).filter(|text| !text.is_empty())
    }

    /// Whether it is being opened, and may be open soon: it did not fail before, and does not hang.
    pub(super) fn is_new(&self, key: &Key, now: Duration) -> bool {
        let of_key = self.opening.iter().filter(|opening| opening.key == *key);
        !self.faults.contains_key(key) && of_key.map(|it| it.since).all(|since| now < since + OPEN_TIMEOUT)
    }

    /// A disk that is being opened, until something else is told.
    #[cfg(test)]
    pub(super) fn hang(&mut self, key: Key, namespace: Namespace, since: Duration) -> impl Send + use<> {
        let (tell, told) = channel();
        self.opening.push(Opening { key, namespace, since, told });
        tell
    }

    /// Whether disks are being opened, but for those that hang and are `known` all the same.
    pub(super) fn is_opening_any(&self, now: Duration, is_known: impl Fn(&Key) -> bool) -> bool {
        self.opening.iter().any(|opening| !opening.hangs(now) || !is_known(&opening.key))
    }

    /// Whether it is being opened, and its disk does not answer.
    pub(super) fn hangs(&self, key: &Key, now: Duration) -> bool {
        self.opening.iter().any(|opening| opening.key == *key && opening.hangs(now))
    }

    /// Whether there was no file or image of its name when it was tried last.
    pub(super) fn is_missing(&self, key: &Key) -> bool {
        self.faults.get(key).is_some_and(|fault| fault.is_missing)
    }

    /// Whether its name is another disk's, as far as the gateway group knows.
    pub(super) fn is_another(&self, key: &Key) -> bool {
        self.faults.get(key).is_some_and(|fault| fault.is_another)
    }

    /// Those that were taken from the hosts, and whose disks workers may still use.
    pub(super) fn leaving(&self) -> impl Iterator<Item = &Export> {
        self.leaving.iter().filter(|export| export.is_in_use())
    }

    /// Connections of a gateway group with an image that was taken from the hosts so long ago, and is being closed still.
    pub(super) fn closes_slowly(&self, now: Duration, after: Duration) -> impl Iterator<Item = Handle> {
        let slow = self.closing.iter().filter(move |it| now >= it.since + after && !it.is_over());
        slow.filter_map(|it| it.through)
    }

    /// Whether this text is another than the last of that namespace: then it is worth a line.
    pub(super) fn is_news(&mut self, error: &ExportError, text: &str) -> bool {
        let Some(fault) = self.faults.get_mut(&(*error.nqn, error.nsid)) else { return true };
        let news = fault.text != text;
        text.clone_into(&mut fault.text);
        news
    }

    /// Everything that failed is tried at once, and said again.
    pub(super) fn forget_faults(&mut self) {
        self.faults.clear();
    }

    /// What is known of one that failed does not count any more.
    pub(super) fn forget_fault(&mut self, key: &Key) {
        self.faults.remove(key);
    }

    /// How many that are wanted are not served, and do not only wait for hosts to forget another disk.
    pub(super) fn failing(&self, wanted: &[Subsystem]) -> usize {
        self.not_open(wanted).filter(|(key, namespace)| !self.is_resting(key, namespace)).count()
    }

    /// Makes an opened one served.
    pub(super) fn add(&mut self, export: Export) {
        self.faults.remove(&(export.nqn, export.namespace.nsid));
        self.open.push(export);
    }

    /// Takes those away that are to go; they are leaving from now on.
    pub(super) fn take_away(
        &mut self,
        now: Duration,
        goes: impl Fn(&Export) -> bool,
    ) -> Vec<(DeviceId, Key)> {
        let before = self.leaving.len();
        self.leaving.extend(self.open.extract_if(.., |export| goes(export)));
        let gone = &self.leaving[before..];
        self.resting.extend(gone.iter().map(|export| {
            let key = (export.nqn, export.namespace.nsid);
            (key, (export.namespace.backing.clone(), now + NSID_REST))
        }));
        gone.iter().map(|export| (export.device, (export.nqn, export.namespace.nsid))).collect()
    }

    /// An id that was not used before (until they have all been), of a slot that is free if there is one.
    pub(super) fn take_device(&mut self) -> DeviceId {
        let slot = |device: DeviceId| device.0 % DEVICES_MAX;
        for _ in 0..DEVICES_MAX {
            let device = DeviceId(self.next_device);
            if self.open.iter().chain(&self.leaving).all(|export| slot(export.device) != slot(device)) {
                break;
            }
            self.next_device = self.next_device.wrapping_add(1);
        }
        let device = DeviceId(self.next_device);
        self.next_device = self.next_device.wrapping_add(1);
        device
    }

    /// Those of the wanted that are not served. There may be thousands: none is searched for among the others.
    fn not_open<'a>(&self, wanted: &'a [Subsystem]) -> impl Iterator<Item = (Key, &'a Namespace)> + use<'a> {
        let open: HashSet<Key> = self.open.iter().map(|export| (export.nqn, export.namespace.nsid)).collect();
        let namespaces = wanted.iter().flat_map(|s| s.namespaces.iter().map(move |n| ((s.nqn, n.nsid), n)));
        namespaces.filter(move |(key, _)| !open.contains(key))
    }

    /// Whether it failed lately.
    fn is_waiting(&self, key: &Key, now: Duration) -> bool {
        self.faults.get(key).is_some_and(|fault| fault.retry_at > now)
    }

    /// Whether another disk had the NSID until a moment ago. A file, device or image that comes back under its own name is no
    /// other disk; memory always is.
    pub(super) fn is_resting(&self, key: &Key, namespace: &Namespace) -> bool {
        let is_same = |other: &Backing| match (other, &namespace.backing) {
            (Backing::Path { path: a, .. }, Backing::Path { path: b, .. }) => a == b,
            (Backing::Rbd(a), Backing::Rbd(b)) => a == b,
            _ => false,
        };
        self.resting.get(key).is_some_and(|(backing, _)| !is_same(backing))
    }

    /// Whether its place, or its disk, is still taken by one that leaves.
    fn is_leaving(&self, key: &Key, namespace: &Namespace) -> bool {
        let same_path = |other: &Namespace| match (&other.backing, &namespace.backing) {
            (Backing::Path { path: a, .. }, Backing::Path { path: b, .. }) => a == b,
            (Backing::Rbd(a), Backing::Rbd(b)) => a == b,
            _ => false,
        };
        // What no worker has any more takes no place: that it cannot be closed keeps no other disk waiting.
        let takes_place = |export: &Export| export.is(&key.0, key.1) && export.is_in_use();
        self.leaving.iter().any(|export| takes_place(export) || same_path(&export.namespace))
            || self.closing.iter().any(|it| same_path(&it.namespace))
    }
}

/// When a disk is tried again that could not be opened, by how often it was tried where that is costly.
fn retry_after(costly: u32) -> Duration {
    match costly.checked_sub(1) {
        None => RETRY_INTERVAL,
        Some(before) => RETRY_COSTLY_INTERVAL.saturating_mul(1 << before.min(8)).min(RETRY_COSTLY_MAX),
    }
}

fn is_wanted(wanted: &[Subsystem], key: &Key, namespace: &Namespace) -> bool {
    wanted.iter().any(|subsystem| subsystem.nqn == key.0 && subsystem.namespaces.contains(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_backend::OpenError;
    use nvmf_config::Config;
    use nvmf_subsystem::Nqn;
    use std::time::Instant;

    #[test]
    fn disks_that_hang_while_they_are_opened_hold_up_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::fs::write(&path, [0; 4096]).unwrap();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:4420\"\n[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\npath = {path:?}\n"
        );
        let wanted = Config::parse(&text).unwrap().subsystems;
        let state = Arc::new(StateDirectory::open(Some(&folder.path().join("state"))).unwrap());
        let waker = Waker::default();
        let mut namespaces = Namespaces::default();
        let mut hanging = Vec::new();
        for nsid in 0..OPENING_MAX as u32 {
            let (tell, told) = channel();
            hanging.push(tell);
            let (key, namespace) = ((wanted[0].nqn, 100 + nsid), wanted[0].namespaces[0].clone());
            namespaces.opening.push(Opening { key, namespace, since: Duration::ZERO, told });
        }
        namespaces.begin(&wanted, Duration::ZERO, &waker, &state);
        assert_eq!(namespaces.opening.len(), OPENING_MAX, "they may be quick");
        namespaces.begin(&wanted, MAKES_WAY_AFTER, &waker, &state);
        assert_eq!(namespaces.opening.len(), OPENING_MAX + 1);
        assert!(!namespaces.hangs(&(wanted[0].nqn, 100), MAKES_WAY_AFTER));
        assert!(namespaces.hangs(&(wanted[0].nqn, 100), HANGS_AFTER));
        namespaces.begin(&wanted, HANGS_AFTER, &waker, &state);
        assert_eq!(namespaces.opening.len(), OPENING_MAX + 1, "once is enough");
    }

    #[test]
    fn wrong_passphrase_is_tried_rarely_and_at_once_when_an_operator_says_so() {
        let (mut namespaces, nqn) = (Namespaces::default(), "nqn.2026-11.com.example:a".parse().unwrap());
        let key: Key = (nqn, 1);
        let fault = |source: OpenError| ExportError { nqn: Box::new(nqn), nsid: 1, source: source.into() };
        let wrong = || nvmf_rados::Error::Passphrase { image: "nvmf/a".into(), file: "/key".into() };
        let rests = |namespaces: &mut Namespaces, error: &ExportError| {
            namespaces.retry_later(error, Duration::ZERO);
            (0..).map(Duration::from_secs).find(|now| !namespaces.is_waiting(&key, *now)).unwrap().as_secs()
        };
        let costly = fault(wrong().into());
        let waits: Vec<u64> = (0..6).map(|_| rests(&mut namespaces, &costly)).collect();
        assert_eq!(waits, [60, 120, 240, 480, 600, 600]);
        // What has another reason is tried as everything is.
        let other = fault(OpenError::Memory { bytes: 1 });
        assert_eq!((rests(&mut namespaces, &other), rests(&mut namespaces, &costly)), (5, 60));
        namespaces.forget_fault(&key);
        assert!(!namespaces.is_waiting(&key, Duration::ZERO));
    }

    #[test]
    fn nsid_rests_for_longer_if_the_process_stood_still() {
        let (waker, state) = (Waker::default(), Arc::new(StateDirectory::open(None).unwrap()));
        let (mut namespaces, backing) = (Namespaces::default(), Backing::Memory { size: 4096 });
        let second = Duration::from_secs;
        let key: Key = ("nqn.2026-11.com.example:a".parse().unwrap(), 1);
        namespaces.begin(&[], second(1), &waker, &state);
        namespaces.resting.insert(key, (backing, second(1) + NSID_REST));
        let mut rests_at = |at| {
            namespaces.begin(&[], second(at), &waker, &state);
            namespaces.resting.contains_key(&key)
        };
        assert!(rests_at(3) && rests_at(63), "hosts have heard nothing meanwhile");
        assert!(rests_at(65) && !rests_at(66));
    }

    #[test]
    fn namespace_that_its_group_has_served_keeps_its_uuid_whatever_another_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let state = Arc::new(StateDirectory::open(Some(&folder.path().join("state"))).unwrap());
        let waker = Waker::default();
        let text = |uuid: Option<Uuid>| {
            let namespace = |nsid: u32, rest: String| {
                let path = folder.path().join(format!("{nsid}.img"));
                std::fs::write(&path, [0; 4096]).unwrap();
                format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = {path:?}\n{rest}")
            };
            let other = uuid.map(|uuid| namespace(2, format!("uuid = \"{uuid}\"\n"))).unwrap_or_default();
            let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n";
            let listener = "[[listener]]\naddress = \"127.0.0.1:4420\"\n";
            format!("{listener}{subsystem}{}{other}", namespace(1, String::new()))
        };
        // As after a start: both are open, none is served.
        let settled = |text: &str, of_group: &dyn Fn(Nqn) -> Vec<(Key, Uuid)>| {
            let wanted = Config::parse(text).unwrap().subsystems;
            let (mut namespaces, now) = (Namespaces::default(), Duration::ZERO);
            let deadline = Instant::now() + Duration::from_secs(10);
            while namespaces.held() < wanted[0].namespaces.len() {
                assert!(Instant::now() < deadline, "it does not open");
                namespaces.begin(&wanted, now, &waker, &state);
                assert!(namespaces.collect(&wanted, now).is_empty());
                std::thread::sleep(Duration::from_millis(1));
            }
            let (opened, faults) = namespaces.settle(&wanted, &of_group(wanted[0].nqn), now);
            let opened = opened.iter().map(|export| (export.namespace.nsid, Uuid::from_bytes(export.uuid)));
            (opened.collect::<Vec<_>>(), faults.iter().map(|fault| fault.nsid).collect::<Vec<_>>())
        };
        let (opened, _) = settled(&text(None), &|_| Vec::new());
        let (_, uuid) = opened[0];
        let known = |nqn: Nqn| vec![((nqn, 1_u32), uuid)];
        let both_known = |nqn: Nqn| vec![((nqn, 1_u32), uuid), ((nqn, 2), Uuid::max())];
        for of_group in [&known as &dyn Fn(Nqn) -> Vec<(Key, Uuid)>, &both_known] {
            assert_eq!(settled(&text(Some(uuid)), of_group), (vec![(1, uuid)], vec![2]));
        }
        assert_eq!(settled(&text(Some(uuid)), &|_| Vec::new()), (vec![(2, uuid)], vec![1]), "of no group");
    }

    #[test]
    fn namespace_leaves_until_no_worker_has_its_disk_that_was_made_smaller_from_outside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::fs::write(&path, [0; 8192]).unwrap();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:4420\"\n[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\npath = {path:?}\n"
        );
        let wanted = Config::parse(&text).unwrap().subsystems;
        let state = StateDirectory::open(Some(&folder.path().join("state"))).unwrap();
        let (nqn, namespace) = (wanted[0].nqn, &wanted[0].namespaces[0]);
        let mut export = Export::open(nqn, namespace, DeviceId(0), &state, None).unwrap();
        export.cut = export.disk.with_blocks(1).unwrap();
        let of_worker = export.cut.clone();
        let (mut namespaces, waker) = (Namespaces::default(), Waker::default());
        namespaces.leaving.push(export);
        namespaces.close(Duration::ZERO, &waker);
        assert_eq!(namespaces.leaving().count(), 1);
        assert!(namespaces.is_leaving(&(nqn, 1), namespace));
        drop(of_worker);
        assert_eq!(namespaces.leaving().count(), 0);
        namespaces.close(Duration::ZERO, &waker);
        assert!(namespaces.leaving.is_empty());
    }

    /// `close` may hang: here the thread that closes the first disk is one that never ends.
    #[test]
    fn disk_is_opened_again_only_when_it_is_closed_and_no_other_waits_for_that() {
        let folder = tempfile::tempdir().unwrap();
        let namespace = |nsid: u32| {
            let path = folder.path().join(format!("{nsid}.img"));
            std::fs::write(&path, [0; 4096]).unwrap();
            format!("[[subsystem.namespace]]\nnsid = {nsid}\npath = {path:?}\n")
        };
        let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\nallow_any_host = true\n";
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:4420\"\n{subsystem}{}{}",
            namespace(1),
            namespace(2)
        );
        let wanted = Config::parse(&text).unwrap().subsystems;
        let state = Arc::new(StateDirectory::open(Some(&folder.path().join("state"))).unwrap());
        let (waker, now) = (Waker::default(), Duration::ZERO);
        let mut namespaces = Namespaces::default();
        let deadline = Instant::now() + Duration::from_secs(10);
        let serve = |namespaces: &mut Namespaces, count: usize| {
            while namespaces.open.len() < count {
                assert!(Instant::now() < deadline, "it does not open");
                namespaces.begin(&wanted, now, &waker, &state);
                assert!(namespaces.collect(&wanted, now).is_empty(), "it finds its own lock");
                let (opened, _) = namespaces.settle(&wanted, &[], now);
                opened.into_iter().for_each(|export| namespaces.add(export));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        serve(&mut namespaces, 2);
        let (hangs, over) = channel();
        let first =
            namespaces.open.iter().find(|export| export.namespace.nsid == 1).unwrap().namespace.clone();
        let key = (wanted[0].nqn, 1);
        namespaces.closing.push(Closing { namespace: first, through: None, since: now, over });
        assert_eq!(namespaces.take_away(now, |_| true).len(), 2);
        serve(&mut namespaces, 1);
        assert_eq!(namespaces.open[0].namespace.nsid, 2);
        namespaces.begin(&wanted, now, &waker, &state);
        assert!(!namespaces.opening.iter().any(|opening| opening.key == key));
        drop(hangs);
        serve(&mut namespaces, 2);
    }
}
