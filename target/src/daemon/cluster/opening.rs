//! Opening an image on the connection of its ANA group, in a thread of its own: it may hang, and hold up no other.

use super::super::disks::error_text;
use super::images::Key;
use crate::control::Waker;
use crate::exports::{Export, ExportFault, shared_image};
use core::time::Duration;
use nvmf_backend::{ClusterSpec, Disk, ImageSource};
use nvmf_config::{Backing, Namespace};
use nvmf_rados::Cluster;
use nvmf_subsystem::Nqn;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use uuid::Uuid;

/// Images that are begun to be opened at a time for one ANA group.
pub(super) const OPENING_MAX: usize = 16;

/// Those that are being opened and may hang: each keeps a thread.
const HANGING_MAX: usize = 1024;

/// What takes longer to open keeps no other from being begun: many that hang must not add up.
const MAKES_WAY_AFTER: Duration = Duration::from_millis(100);

/// What takes longer to open hangs, as far as the others are concerned: a failover waits for it.
pub(super) const HANGS_AFTER: Duration = Duration::from_secs(1);

/// The same once an image hangs.
const PATIENCE: Duration = Duration::from_millis(300);

/// Why an image cannot be opened.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) text: String,
    /// There is none of this name, or it is another one: no gateway can open it, and who has it open goes on with it.
    pub(super) is_gone: bool,
    /// The pool has none of this name: hosts are told that it is gone. One that another image has taken the place of may be there
    /// under another name, and hosts wait for it.
    pub(super) is_missing: bool,
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self { text, is_gone: false, is_missing: false }
    }
}

/// Another image has the name of the one that is meant.
pub(super) fn is_another() -> Fault {
    let text = "the image was made anew, which is another disk: give the one that was there its name back, or remove the \
                namespace and add it";
    Fault { text: text.to_owned(), is_gone: true, is_missing: false }
}

/// An image that a thread of its own opens.
pub(super) struct Opening {
    nqn: Nqn,
    /// As it was configured then.
    namespace: Namespace,
    uuid: [u8; 16],
    since: Duration,
    told: Receiver<Result<Disk, Fault>>,
}

impl Opening {
    /// Opens the image of a namespace on a connection, as configured or `only_read`. `None`: the system has no thread left.
    pub(super) fn begin(
        now: Duration,
        connection: &Arc<Cluster>,
        export: &Export,
        spec: &ClusterSpec,
        only_read: bool,
        waker: Waker,
    ) -> Option<Self> {
        let (connection, (tell, told)) = (Arc::clone(connection), channel());
        // The disk that is looked at must not stay open for as long as this takes.
        let image = ToOpen::new(export, spec, only_read);
        let body = move || {
            let opened = image.and_then(|image| image.open(&connection));
            // Neither the image nor the connection ends on the control loop's thread.
            drop(connection);
            let _ = tell.send(opened);
            waker.wake();
        };
        std::thread::Builder::new().name("open-image".into()).spawn(body).ok()?;
        let (nqn, namespace, uuid) = (export.nqn, export.namespace.clone(), export.uuid);
        Some(Self { nqn, namespace, uuid, since: now, told })
    }

    pub(super) fn key(&self) -> Key {
        (self.nqn, self.namespace.nsid)
    }

    /// As it was configured when this was begun.
    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Whether it is what a namespace needs now: another one may have its place by the time when the image is open.
    pub(super) fn is_of(&self, export: &Export) -> bool {
        let (old, new) = (&self.namespace, &export.namespace);
        old.nsid == new.nsid
            && self.nqn == export.nqn
            && self.uuid == export.uuid
            && old.backing == new.backing
            && old.ana_group == new.ana_group
            && old.block_size == new.block_size
            && old.read_only == new.read_only
    }

    /// How many more may be begun beside these.
    pub(super) fn room(openings: &[Self], now: Duration) -> usize {
        let young = openings.iter().filter(|opening| now < opening.since + MAKES_WAY_AFTER).count();
        OPENING_MAX.saturating_sub(young).min(HANGING_MAX.saturating_sub(openings.len()))
    }

    /// After how long others go on without them: one that hangs says what to expect of the next.
    pub(super) fn patience(openings: &[Self], now: Duration) -> Duration {
        if openings.iter().any(|opening| opening.hangs(now, HANGS_AFTER)) { PATIENCE } else { HANGS_AFTER }
    }

    pub(super) fn hangs(&self, now: Duration, after: Duration) -> bool {
        now >= self.since + after
    }

    /// What came of it, once it is over.
    pub(super) fn result(&self) -> Option<Result<Disk, Fault>> {
        match self.told.try_recv() {
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the opening thread died".to_owned().into())),
            Ok(result) => Some(result),
        }
    }
}

/// An image to open on the connection of its ANA group.
struct ToOpen {
    image: ImageSource,
    block_size: u32,
    read_only: bool,
    /// It is only seen whether it could be written.
    only_read: bool,
    /// Which disk it is.
    uuid: Option<Uuid>,
}

impl ToOpen {
    fn new(export: &Export, spec: &ClusterSpec, only_read: bool) -> Result<Self, Fault> {
        let Backing::Rbd(image) = &export.namespace.backing else {
            return Err("it is no image".to_owned().into());
        };
        let uuid = uuid_of(&export.disk)?;
        let block_size = export.disk.geometry().block_size;
        let read_only = export.namespace.read_only;
        Ok(Self { image: shared_image(image, spec), block_size, read_only, only_read, uuid })
    }

    fn open(self, connection: &Arc<Cluster>) -> Result<Disk, Fault> {
        let Self { image, block_size, read_only, only_read, uuid } = self;
        let opened = Disk::open_image(connection, &image, Some(block_size), read_only || only_read);
        let disk = opened.map_err(|error| {
            let text = error_text(&error);
            let is_missing = ExportFault::Open(error).is_missing();
            Fault { text, is_gone: is_missing, is_missing }
        })?;
        if let Some(text) = cached(&disk) {
            return Err(text.to_owned().into());
        }
        // Who opens it for writing was told.
        if only_read && !read_only {
            disk.check_writable().map_err(|error| error.to_string())?;
        }
        if uuid_of(&disk)? != uuid {
            return Err(is_another());
        }
        Ok(disk)
    }
}

/// Why an image may not be served by several gateways in turn, if librbd caches its writes.
pub(super) fn cached(disk: &Disk) -> Option<&'static str> {
    disk.geometry().volatile_write_cache.then_some(
        "the image, or its pool, has rbd_cache on: what is in this gateway's memory would be lost, or old, when another takes \
         over: turn it off (rbd config image remove IMAGE rbd_cache; rbd config pool remove POOL rbd_cache)",
    )
}

/// Of an image, that is known since it was opened.
fn uuid_of(disk: &Disk) -> Result<Option<Uuid>, Fault> {
    let identity = disk.identity().map_err(|error| format!("its identity cannot be read: {error}"))?;
    Ok(identity.map(|identity| identity.uuid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::StateDirectory;
    use nvmf_block::DeviceId;
    use nvmf_config::Config;
    use std::sync::mpsc::Sender;

    fn export() -> Export {
        let text = "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-11.com.example:a\"\n\
            allow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n";
        let subsystem = Config::parse(text).unwrap().subsystems.remove(0);
        let state = StateDirectory::open(None).unwrap();
        Export::open(subsystem.nqn, &subsystem.namespaces[0], DeviceId(0), &state, None).unwrap()
    }

    fn opening(export: &Export, since: Duration) -> (Sender<Result<Disk, Fault>>, Opening) {
        let (tell, told) = channel();
        let (nqn, namespace, uuid) = (export.nqn, export.namespace.clone(), export.uuid);
        (tell, Opening { nqn, namespace, uuid, since, told })
    }

    #[test]
    fn image_that_opens_late_is_taken_only_for_what_is_meant_then() {
        let export = export();
        let (_tell, opening) = opening(&export, Duration::ZERO);
        let with = |change: fn(&mut Export)| {
            let mut export = export.clone();
            change(&mut export);
            opening.is_of(&export)
        };
        assert!(with(|it| it.device = DeviceId(9)), "it is the same disk");
        assert!(
            !with(|it| it.namespace.ana_group = 7),
            "whoever takes that group does not fence this connection"
        );
        assert!(!with(|it| it.namespace.backing = Backing::Memory { size: 4096 }));
        assert!(!with(|it| it.uuid = [9; 16]));
        assert!(!with(|it| it.namespace.read_only = true));
        assert!(!with(|it| it.namespace.nsid = 2));
    }

    #[test]
    fn images_that_hang_do_not_add_up() {
        let export = export();
        let (mut now, mut tells, mut openings) = (Duration::ZERO, Vec::new(), Vec::new());
        while openings.len() < 120 {
            for _ in 0..Opening::room(&openings, now) {
                let (tell, opening) = opening(&export, now);
                tells.push(tell);
                openings.push(opening);
            }
            now += Duration::from_millis(10);
        }
        assert!(now < HANGS_AFTER, "{now:?} until all were begun");
        let are_waited_for = |now| {
            let patience = Opening::patience(&openings, now);
            openings.iter().any(|opening| !opening.hangs(now, patience))
        };
        assert!(are_waited_for(HANGS_AFTER - Duration::from_millis(1)), "they may be slow");
        assert!(!are_waited_for(HANGS_AFTER + PATIENCE));
        assert!(openings.iter().all(|opening| opening.result().is_none()));
    }
}
