//! The namespaces that are served, and those that cannot be served yet.

use crate::control::Waker;
use crate::exports::{Export, ExportError, ExportFault};
use crate::limits::{NSID_REST, RETRY_INTERVAL};
use core::time::Duration;
use nvmf_backend::DEVICES_MAX;
use nvmf_block::DeviceId;
use nvmf_config::{Backing, Namespace, Subsystem};
use nvmf_subsystem::Nqn;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use uuid::Uuid;

/// Disks that are opened at the same time, at the most.
const OPENING_MAX: usize = 32;

/// Which namespace.
type Key = (Nqn, u32);

/// The namespaces, by how far they are: wanted, being opened, open, leaving.
#[derive(Default)]
pub(super) struct Namespaces {
    /// Served.
    pub(super) open: Vec<Export>,
    opening: Vec<Opening>,
    /// Taken from the hosts; workers may still have operations on their disks.
    leaving: Vec<Export>,
    /// What was taken away lately, and until when no other disk takes its NSID.
    resting: HashMap<Key, (Backing, Duration)>,
    faults: HashMap<Key, Fault>,
    next_device: u32,
}

/// A disk that a thread of its own is opening: a device that hangs must not keep the control loop waiting.
struct Opening {
    key: Key,
    namespace: Namespace,
    told: Receiver<Result<Export, ExportFault>>,
}

/// Why a namespace is not served.
struct Fault {
    text: String,
    retry_at: Duration,
}

impl Namespaces {
    /// Begins to open what is wanted and not open.
    pub(super) fn begin(&mut self, wanted: &[Subsystem], now: Duration, waker: &Waker) {
        // A disk that has left every worker is closed here.
        self.leaving.retain(|export| export.disk.is_shared());
        self.resting.retain(|_, (_, until)| *until > now);
        let namespaces = wanted.iter().flat_map(|s| s.namespaces.iter().map(move |n| (s.nqn, n)));
        for (nqn, namespace) in namespaces {
            let key = (nqn, namespace.nsid);
            // One that was begun for another disk, and may never end, is no reason to wait.
            let is_opening = self.opening.iter().any(|o| o.key == key && o.namespace == *namespace);
            if self.is_open(&key)
                || is_opening
                || self.is_waiting(&key, now)
                || self.is_leaving(&key, namespace)
                || self.is_resting(&key, namespace)
                || self.opening.len() >= OPENING_MAX
            {
                continue;
            }
            let (device, waker) = (self.take_device(), waker.clone());
            let (tell, told) = channel();
            let to_open = namespace.clone();
            let body = move || {
                let _ = tell.send(Export::open(nqn, &to_open, device));
                waker.wake();
            };
            // No thread: it is tried again.
            if std::thread::Builder::new().name("open-disk".into()).spawn(body).is_ok() {
                self.opening.push(Opening { key, namespace: namespace.clone(), told });
            }
        }
    }

    /// What has been opened since, if it is still wanted, and what could not be.
    pub(super) fn collect(&mut self, wanted: &[Subsystem], now: Duration) -> (Vec<Export>, Vec<ExportError>) {
        let (mut opened, mut faults) = (Vec::<Export>::new(), Vec::new());
        for at in (0..self.opening.len()).rev() {
            let result = match self.opening[at].told.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) => continue,
                Err(TryRecvError::Disconnected) => Err(ExportFault::Attach("the opening thread died".into())),
            };
            let Opening { key, namespace, .. } = self.opening.swap_remove(at);
            let is_wanted = wanted
                .iter()
                .any(|subsystem| subsystem.nqn == key.0 && subsystem.namespaces.contains(&namespace));
            if !is_wanted {
                continue;
            }
            let unique =
                result.and_then(|export| match self.same_disk(&export).or(find_uuid(&opened, &export)) {
                    None => Ok(export),
                    Some(other) => Err(ExportFault::Twice {
                        uuid: Uuid::from_bytes(export.uuid),
                        nqn: Box::new(other.nqn),
                        nsid: other.namespace.nsid,
                    }),
                });
            match unique {
                Ok(export) => opened.push(export),
                Err(source) => faults.push(ExportError { nqn: Box::new(key.0), nsid: key.1, source }),
            }
        }
        for fault in &faults {
            self.retry_later(fault, now);
        }
        (opened, faults)
    }

    /// What is wanted, is not served, and did not fail lately: its disk is being opened, is in line for that, or
    /// waits for the one that it replaces.
    pub(super) fn pending(&self, wanted: &[Subsystem], now: Duration) -> Vec<ExportError> {
        let namespaces = wanted.iter().flat_map(|s| s.namespaces.iter().map(move |n| ((s.nqn, n.nsid), n)));
        let pending = namespaces.filter(|(key, namespace)| {
            !self.is_open(key) && !self.is_waiting(key, now) && !self.is_resting(key, namespace)
        });
        let error = |(key, namespace): (Key, &Namespace)| {
            let leaving = self.is_leaving(&key, namespace);
            let source = if leaving { ExportFault::Busy } else { ExportFault::Slow };
            ExportError { nqn: Box::new(key.0), nsid: key.1, source }
        };
        pending.map(error).collect()
    }

    /// Whether memory is being allocated. That takes seconds for many gigabytes, and never hangs.
    pub(super) fn is_allocating(&self) -> bool {
        self.opening.iter().any(|opening| matches!(opening.namespace.backing, Backing::Memory { .. }))
    }

    /// Takes note of a fault, for the next try.
    pub(super) fn retry_later(&mut self, error: &ExportError, now: Duration) {
        let key = (*error.nqn, error.nsid);
        let fault = self.faults.entry(key).or_insert(Fault { text: String::new(), retry_at: now });
        fault.retry_at = now + RETRY_INTERVAL;
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

    /// Makes an opened one served.
    pub(super) fn add(&mut self, export: Export) {
        self.faults.remove(&(export.nqn, export.namespace.nsid));
        self.open.push(export);
    }

    /// Takes those away that are to go; they are leaving from now on.
    pub(super) fn take_away(&mut self, now: Duration, goes: impl Fn(&Export) -> bool) -> Vec<DeviceId> {
        let before = self.leaving.len();
        self.leaving.extend(self.open.extract_if(.., |export| goes(export)));
        let gone = &self.leaving[before..];
        self.resting.extend(gone.iter().map(|export| {
            let key = (export.nqn, export.namespace.nsid);
            (key, (export.namespace.backing.clone(), now + NSID_REST))
        }));
        gone.iter().map(|export| export.device).collect()
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

    fn is_open(&self, key: &Key) -> bool {
        self.open.iter().any(|export| export.is(&key.0, key.1))
    }

    /// Whether it failed lately.
    fn is_waiting(&self, key: &Key, now: Duration) -> bool {
        self.faults.get(key).is_some_and(|fault| fault.retry_at > now)
    }

    /// Whether another disk had the NSID until a moment ago. A file or device that comes back under its own path is no
    /// other disk; memory always is.
    pub(super) fn is_resting(&self, key: &Key, namespace: &Namespace) -> bool {
        let is_same = |other: &Backing| match (other, &namespace.backing) {
            (Backing::Path { path: a, .. }, Backing::Path { path: b, .. }) => a == b,
            _ => false,
        };
        self.resting.get(key).is_some_and(|(backing, _)| !is_same(backing))
    }

    /// Whether its place, or its disk, is still taken by one that leaves.
    fn is_leaving(&self, key: &Key, namespace: &Namespace) -> bool {
        let same_path = |other: &Namespace| match (&other.backing, &namespace.backing) {
            (Backing::Path { path: a, .. }, Backing::Path { path: b, .. }) => a == b,
            _ => false,
        };
        self.leaving.iter().any(|export| export.is(&key.0, key.1) || same_path(&export.namespace))
    }

    fn same_disk(&self, export: &Export) -> Option<&Export> {
        find_uuid(&self.open, export)
    }
}

fn find_uuid<'a>(exports: &'a [Export], export: &Export) -> Option<&'a Export> {
    exports.iter().find(|other| other.uuid == export.uuid)
}
