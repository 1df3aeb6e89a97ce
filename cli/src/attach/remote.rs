//! A remote namespace on the thread that serves it as a disk: connected, watched, and left in order.

use super::changes::{Change, Changes, Properties};
use super::control::{Control, Line, NewPath, PathNews};
use super::counted::Counted;
use super::fence::{Fence, FenceFile, FencePart};
use super::nbd::{Access, Listener};
use super::process::FatalPanics;
use super::registry::Registry;
use super::serve::{lock_disk, lock_new_disk};
use super::shown::{FIRST_TRY_TIME_MAX, Shown, namespace, shown, turn_until, untried};
use super::{AttachOptions, disk, seccomp};
use crate::connect::{Via, reach};
use crate::discovery::{SubsystemPath, kept_paths, paths_to_come};
use crate::namespace::{ana_name, choose, taken_of};
use crate::print::chain;
use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nvme_proto::Nsid;
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_attached::{AttachedPath, Attachment, DiskLock, State};
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Tag};
use nvmf_host::{ControllerInfo, Namespace, NamespaceIdentity};
use nvmf_initiator::transport::AnyTransport;
use nvmf_initiator::{
    ConnectionState, NamespaceState, Options, PathOptions, PathStatus, RemoteBackend, SharedFences,
    TransportOptions,
};
use nvmf_spin::Spin;
use nvmf_tls::FileError;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// Whose requests a thread serves.
#[derive(Debug, Clone, Copy)]
pub(super) enum AskedBy {
    /// Those of processes on this machine, which have work of their own while it waits for the target: they get the processor at each
    /// look, if they want it.
    Clients,
    /// The kernel's, which has none. (The target may be on this machine: a wait that is long gives the processor away, too.)
    Kernel,
}

/// How long requests under way and the last flush may take together when a disk is detached.
pub(super) const FINISH_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the end of the connection may take.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the thread may take for all of it.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(35);
/// How long the commands of a server are carried out after its target knows of its end, where the target has not said.
const UNKNOWN_QUIESCE: Duration = Duration::from_secs(30);
/// Before a path that could not be made for a reason that passes is tried again.
const PATH_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The last flush's tag: no request's.
const LAST_FLUSH: Tag = Tag(u64::MAX);

/// The state of a connection or a path, as it is written down.
pub(super) fn state_of(state: ConnectionState) -> State {
    match state {
        ConnectionState::Live => State::Live,
        ConnectionState::Foreign => State::Foreign,
        ConnectionState::Lost => State::Lost,
        // Connecting: I/O waits.
        _ => State::Reconnecting,
    }
}

/// How the thread is reached, and whom it tells. `U` is what it says when it serves.
pub(super) struct Wires<U> {
    pub(super) control: Arc<Control>,
    pub(super) changes: Changes,
    pub(super) up: oneshot::Sender<U>,
}

/// What a disk's thread begins with.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) options: AttachOptions,
    pub(super) fence: FenceFile,
    /// The disk that it takes over.
    pub(super) before: Option<Attachment>,
    /// What the kernel has on record for the disk's device.
    pub(super) mark: u64,
    /// Who may use its socket, if it has one.
    pub(super) access: Access,
}

impl Origin {
    /// Where its socket is to be.
    pub(super) fn socket(&self, nsid: Nsid) -> Result<PathBuf> {
        if let Some(path) = self.before.as_ref().and_then(|before| before.socket.clone()) {
            return Ok(path);
        }
        let (registry, nqn) = (Registry::of_this_user(), self.options.connection.nqn.as_str());
        let path = self.options.socket.path.clone().unwrap_or_else(|| registry.default_socket(nqn, nsid.0));
        registry.check_socket(&path)?;
        Ok(path)
    }

    /// Listens there, for those that it is for.
    pub(super) fn listen(&self, socket: &Path) -> Result<Listener> {
        Ok(Listener::bind(socket, self.access, &Registry::of_this_user().socket_lock())?)
    }

    /// Longer than commands of a server that was killed are carried out, where nothing more is known.
    fn quiesce_max(&self) -> Duration {
        self.options.connection.keep_alive.saturating_mul(2) + UNKNOWN_QUIESCE
    }
}

/// Runs what blocks on a thread of its own, which nobody waits for when the process ends. If it panics, the process ends.
pub(super) fn in_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<oneshot::Receiver<Result<T>>> {
    let (done, is_done) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _fatal = FatalPanics;
        drop(done.send(body()));
    })?;
    Ok(is_done)
}

/// What a disk's thread has connected to, or takes over.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) namespace: Namespace,
    /// What its controller says of itself; nothing, of a disk that is taken over.
    pub(super) controller: ControllerInfo,
    /// Over what it is connected; `None` for a disk that is taken over.
    pub(super) via: Option<Via>,
    /// What is said of the choice, if there was one and nobody made it.
    pub(super) choice: Option<String>,
    /// The paths to it; none, of a disk that is taken over.
    pub(super) paths: Vec<AttachedPath>,
}

/// What the connections to one disk have in common.
struct Setting {
    found: Found,
    shared_fences: SharedFences,
    reached: Options,
    /// The paths that it was given since it was attached.
    added: Vec<PathOptions>,
    identity: NamespaceIdentity,
    unknown_quiesce: Duration,
}

/// A path that the disk was given under the server before, and that cannot be made yet.
struct Delayed {
    name: String,
    /// It, where the disk's first thread has made it already.
    path: Option<PathOptions>,
    /// Why not, as it was said.
    reason: String,
}

/// A path cannot be made now, for a reason that passes: no descriptor is left, or no memory, or a device is not there.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct NotYet(nvmf_initiator::Error);

/// Whether a path that cannot be made may be made later.
fn passes(error: &anyhow::Error) -> bool {
    let of_system = |error: &std::io::Error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or_default());
        [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::ENOBUFS, Errno::EAGAIN, Errno::EINTR]
            .contains(&errno)
    };
    // Its cause is in its own words.
    let of_file = |error: &FileError| matches!(error, FileError::Read { cause, .. } if of_system(cause));
    let is_of_system = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().is_some_and(of_system) || cause.downcast_ref().is_some_and(of_file)
    };
    error.is::<NotYet>() || error.chain().any(is_of_system)
}

/// The connection of a disk's thread.
pub(super) struct Remote {
    pub(super) backend: Counted<RemoteBackend<AnyTransport>>,
    pub(super) found: Found,
    control: Arc<Control>,
    line: Arc<Line>,
    changes: Changes,
    /// Of how much of what happened was told, and how the disk was then.
    happened: u64,
    properties: Properties,
    /// It has had a volatile write cache.
    was_cached: bool,
    /// An earlier server may have ended before such a flush of its own did.
    flush_due: bool,
    fence: FencePart,
    /// What is in that part of the record.
    fenced: Fence,
    /// The fences of all connections to the disk.
    shared_fences: SharedFences,
    /// What it was attached with.
    options: AttachOptions,
    /// How its target was reached.
    reached: Options,
    /// Its paths, as they were wanted: those of `reached`, and those that were added.
    wanted: Vec<PathOptions>,
    /// Those of the server before that cannot be made yet.
    delayed: Vec<Delayed>,
    /// When they are tried again.
    delayed_until: Option<Instant>,
    /// Which disk it is.
    identity: NamespaceIdentity,
    /// How long the commands of a controller that was never connected may be carried out.
    unknown_quiesce: Duration,
    spin: Spin,
    spin_max: Duration,
    /// When the clock of `spin` started.
    start: Instant,
    _lock: Option<DiskLock>,
}

impl Remote {
    /// Connects to the namespace that is meant, and locks it. A disk that is taken over is connected later: until then its
    /// requests wait.
    pub(super) fn open(origin: &Origin, control: &Arc<Control>, changes: Changes) -> Result<Self> {
        let options = &origin.options;
        let connection = &options.connection;
        let mut unknown_quiesce = origin.quiesce_max();
        let mut reached = connection.clone();
        let mut tried_until = Instant::now();
        let (backend, found, lock, identity) = match &origin.before {
            Some(before) => {
                let namespace = disk::namespace(before)?;
                let lock = lock_disk(options, &namespace)?;
                let left = origin.fence.read(unknown_quiesce);
                // A block device gives its requests to this server. The clients of a socket have lost their connections, and a virtual
                // machine may be another one than before: they read what became of theirs.
                let asked = before.device.is_none();
                let impacted = left.as_ref().map(|left| left.impacted(asked)).unwrap_or_default();
                reached = disk::connection(connection, before);
                let identity = disk::identity(before)?;
                let backend = RemoteBackend::resume(&reached, identity.clone(), &impacted)?;
                if let Some(left) = &left {
                    unknown_quiesce = left.quiesce();
                }
                let controller = ControllerInfo::default();
                let found = Found { namespace, controller, via: None, choice: None, paths: Vec::new() };
                (backend, found, lock, identity)
            }
            None => {
                let (mut backend, via) = crate::runtime::run(reach(connection.clone(), async |options| {
                    let backend = RemoteBackend::connect(&options)?;
                    reached = options;
                    Ok(backend)
                }))?;
                tried_until = Instant::now() + FIRST_TRY_TIME_MAX;
                let is_meant =
                    |_: &ControllerInfo, it: &Namespace| options.nsid.is_none_or(|nsid| it.nsid == nsid);
                let Shown { controller, namespaces } = shown(&mut backend, is_meant);
                let nsid = choose(&connection.nqn, options.nsid, &namespaces)?;
                let namespace = namespace(&connection.nqn, nsid, &namespaces)?;
                let lock = lock_new_disk(options, &namespace)?;
                let choice = match options.nsid {
                    Some(_) => None,
                    None => taken_of(&connection.nqn, nsid, &namespaces),
                };
                // Whatever it is attached as, the machine is told of a cache, and flushes.
                let seen = NamespaceIdentity::new(&controller, &namespace);
                let identity = NamespaceIdentity { is_flushed: true, ..seen };
                backend.open(identity.clone());
                let found = Found { namespace, controller, via: Some(via), choice, paths: Vec::new() };
                (backend, found, lock, identity)
            }
        };
        let mut remote = Self {
            _lock: lock,
            ..Self::over(
                backend,
                origin,
                control,
                changes,
                Setting {
                    found,
                    shared_fences: SharedFences::default(),
                    reached,
                    added: Vec::new(),
                    identity,
                    unknown_quiesce,
                },
            )?
        };
        remote.add_paths_of_before(origin);
        if origin.before.is_none() {
            remote.try_each_path(tried_until);
            remote.found.paths = remote.paths();
            if let (State::Inaccessible, Some(reason)) = remote.state() {
                let waits =
                    format!("{reason}: its I/O waits. Where other targets serve it, name them with --path");
                let choice = remote.found.choice.take().map(|choice| format!("{choice}. "));
                remote.found.choice = Some(choice.unwrap_or_default() + &waits);
            }
        }
        Ok(remote)
    }

    /// One more connection to the same disk, for a thread of its own: as the first one, which has the disk's lock.
    pub(super) fn another(&self, origin: &Origin, control: &Arc<Control>) -> Result<Self> {
        let backend = match &origin.before {
            // What the server before had under way is fenced by the first one.
            Some(_) => RemoteBackend::resume(&self.reached, self.identity.clone(), &[])?,
            None => {
                let mut backend = RemoteBackend::connect(&self.reached)?;
                let nsid = self.identity.nsid;
                let check = |controller: &ControllerInfo, it: &Namespace| {
                    self.identity.check(&NamespaceIdentity::new(controller, it))
                };
                let is_it = |controller: &ControllerInfo, it: &Namespace| {
                    it.nsid == nsid && check(controller, it).is_ok()
                };
                let Shown { controller, namespaces } = shown(&mut backend, is_it);
                let namespace = namespace(&self.reached.nqn, nsid, &namespaces)?;
                check(&controller, &namespace)
                    .map_err(|mismatch| anyhow!("another connection shows another disk: {mismatch}"))?;
                backend.open(self.identity.clone());
                backend
            }
        };
        Self::over(
            backend,
            origin,
            control,
            self.changes.another(),
            Setting {
                found: self.found.clone(),
                shared_fences: self.shared_fences.clone(),
                reached: self.reached.clone(),
                added: self.wanted[self.reached.all_paths().count()..].to_vec(),
                identity: self.identity.clone(),
                unknown_quiesce: self.unknown_quiesce,
            },
        )
    }

    fn over(
        mut backend: RemoteBackend<AnyTransport>,
        origin: &Origin,
        control: &Arc<Control>,
        changes: Changes,
        setting: Setting,
    ) -> Result<Self> {
        let Setting { found, shared_fences, reached, added, identity, unknown_quiesce } = setting;
        backend.share_fences(&shared_fences);
        // What is issued first may be issued before the controller is known here.
        let (fence, fenced) = (origin.fence.part(), Fence::new(&backend.impacted(unknown_quiesce)));
        fence.write(Some(fenced.clone()))?;
        let counted = Counted::new(backend, Arc::clone(control.counters()));
        let mut remote = Self {
            properties: found.namespace.geometry.into(),
            was_cached: found.namespace.geometry.volatile_write_cache,
            flush_due: origin.before.is_some(),
            found,
            control: Arc::clone(control),
            line: control.line()?,
            changes,
            happened: 0,
            backend: if origin.before.is_some() { counted.with_writes_of_another() } else { counted },
            fence,
            fenced,
            shared_fences,
            spin_max: reached.spin,
            wanted: reached.all_paths().collect(),
            delayed: Vec::new(),
            delayed_until: None,
            options: origin.options.clone(),
            reached,
            identity,
            unknown_quiesce,
            spin: Spin::new(),
            start: Instant::now(),
            _lock: None,
        };
        for path in added {
            let name = path.address.to_string();
            remote.add_path_of_before(Delayed { name, path: Some(path), reason: String::new() });
        }
        Ok(remote)
    }

    /// Adds the paths that the disk was given under the server before. Nobody waits for a name to be looked up: its path is away
    /// until then. One that cannot be made now is tried again. One that can never be (by a server of an earlier version it could,
    /// say) is none of the disk's any more: what is written down of it is what it has, or is to have.
    /// Those that it was attached with and that this call does not name stay, too.
    fn add_paths_of_before(&mut self, origin: &Origin) {
        let Some(before) = &origin.before else { return };
        let given: Vec<_> = self.wanted.iter().flat_map(SubsystemPath::spelled).collect();
        let kept = kept_paths(before, &given).into_iter().map(|path| (path.text(), path.own.tls));
        // Those that were added, too: each as it is, whatever this call says of others. Beside one with TLS none is added without.
        let to_come = paths_to_come(before).into_iter().map(|(name, path)| (name, path.own.tls));
        let mut paths: Vec<_> = kept.chain(to_come).collect();
        paths.sort_by_key(|(_, has_tls)| *has_tls);
        for (name, _) in paths {
            self.add_path_of_before(Delayed { name, path: None, reason: String::new() });
        }
    }

    /// Whether it is there now.
    fn add_path_of_before(&mut self, Delayed { name, path, reason }: Delayed) -> bool {
        let named = path.clone().map_or_else(|| self.options.further.path(&name), Ok);
        let added = named.and_then(|path| self.add_path(path));
        let Err(error) = added else { return true };
        let why = chain(&error);
        if passes(&error) {
            if reason.is_empty() && path.is_none() {
                // Whoever takes the disk over before then has to know of it, and of how it is protected.
                self.control.tell_of_path(PathNews::Added(name.clone()));
            }
            if why != reason {
                tracing::warn!(
                    "{name}, which was added to the disk's paths, cannot be used yet, and is tried again every {} s: {why}",
                    PATH_RETRY_DELAY.as_secs()
                );
            }
            self.delayed.push(Delayed { name, path, reason: why });
            self.delayed_until = Some(Instant::now() + PATH_RETRY_DELAY);
            return false;
        }
        if path.is_some() {
            tracing::error!(
                "{name}, which was added to the disk's paths, cannot be used by each of its queues: {why}"
            );
            return false;
        }
        tracing::error!(
            "{name}, which was added to the disk's paths, is none of them any more: {why}. nvmf add-path adds it again"
        );
        self.control.tell_of_path(PathNews::Dropped(name));
        false
    }

    /// Tries the paths again that could not be made yet; what can be is made by the disk's other threads, too.
    fn try_delayed_paths(&mut self) {
        if self.delayed_until.is_none_or(|until| Instant::now() < until) {
            return;
        }
        self.delayed_until = None;
        for path in core::mem::take(&mut self.delayed) {
            let (name, is_of_first) = (path.name.clone(), path.path.is_none());
            if !self.add_path_of_before(path) {
                continue;
            }
            tracing::info!("{name}, which was added to the disk's paths, can be used now");
            if let Some(path) = self.wanted.last().filter(|_| is_of_first) {
                self.control.offer_path(path);
            }
        }
    }

    /// For how long to sleep at most.
    fn sleeps_for(&self, most: Duration) -> Duration {
        let delayed = self.delayed_until.map(|until| until.saturating_duration_since(Instant::now()));
        delayed.map_or(most, |delayed| delayed.min(most))
    }

    /// Adds a path, unless it is there; then what is not connected is tried at once, also what was given up.
    fn add_path(&mut self, path: PathOptions) -> Result<()> {
        // One in the clear is not the one with TLS that is wanted.
        let is_it = |other: &PathOptions| {
            other.is_same_way(&path) && (self.reached.protects(other) || !self.reached.protects(&path))
        };
        if !self.wanted.iter().any(is_it) {
            seccomp::check_added(&self.options, &self.reached, &path)?;
            self.backend.inner.may_add_path(&self.reached, &path)?;
            self.backend.inner.add_path(&self.reached, &path).map_err(NotYet)?;
            self.wanted.push(path);
        }
        self.backend.inner.reconnect();
        Ok(())
    }

    /// Lets every path try to connect once, so that it can be said which are there. Until then: it may have been waited for them before.
    fn try_each_path(&mut self, deadline: Instant) {
        let backend = &mut self.backend.inner;
        while untried(&backend.paths()).is_some() && Instant::now() < deadline {
            turn_until(backend, deadline);
        }
    }

    /// The namespace as a device of the backend.
    pub(super) fn device(&self) -> DeviceId {
        DeviceId(self.found.namespace.nsid.0)
    }

    /// After a turn that found work or did not: tells what became of the connection, and whether to sleep now.
    pub(super) fn may_sleep(&mut self, worked: bool, asked_by: AskedBy) -> bool {
        self.tell();
        if worked {
            if self.spin.is_waiting() {
                self.spin.on_work(self.start.elapsed());
            }
            return false;
        }
        let now = self.start.elapsed();
        let spins = self.spin.goes_on(now, self.spin_max);
        match asked_by {
            _ if !spins => {}
            AskedBy::Kernel => self.spin.pause(now),
            AskedBy::Clients => {
                self.spin.on_yield();
                self.spin.give_way();
            }
        }
        !spins
    }

    /// Sleeps until there is something to do: at the latest after `most`, or when `requests` is readable.
    pub(super) fn sleep(&mut self, most: Duration, requests: BorrowedFd<'_>) {
        self.backend.inner.sleep_for(self.sleeps_for(most), &[requests, self.line.wakeup()]);
        self.woken();
    }

    /// Prepares a sleep that ends when one of [`Remote::descriptors`] is readable: for how long it may be, at most; `None`
    /// when there is something to do already. [`Remote::woken`] follows it.
    pub(super) fn arm(&mut self) -> Option<Duration> {
        let most = self.backend.inner.arm()?;
        Some(self.sleeps_for(most))
    }

    /// The connection's descriptor and the control's. `u32`: the number of the connection's transport, which tells its
    /// descriptor from that of the one before.
    pub(super) fn descriptors(&self) -> [Option<(BorrowedFd<'_>, u32)>; 2] {
        [self.backend.inner.descriptor(), Some((self.line.wakeup(), 0))]
    }

    /// A sleep is over.
    pub(super) fn woken(&self) {
        self.line.heard();
    }

    /// How the disk is, as far as the target has said.
    pub(super) fn properties(&self) -> Properties {
        self.properties
    }

    fn tell(&mut self) {
        for NewPath { options, made } in self.line.takes_paths() {
            let Some(made) = made else {
                let (name, path) = (options.address.to_string(), Some(options));
                self.add_path_of_before(Delayed { name, path, reason: String::new() });
                continue;
            };
            let added = self.add_path(options);
            // Whoever asked may not wait any more.
            let _ = made.send(added);
        }
        self.try_delayed_paths();
        let backend = &mut self.backend.inner;
        if self.line.takes_reconnect() {
            backend.reconnect();
        }
        if self.line.takes_rescan() {
            backend.rescan();
        }
        if self.line.takes_reset() {
            backend.reset();
        }
        let happened = backend.happened();
        if self.happened == happened {
            return;
        }
        self.happened = happened;
        // Before anything else is connected.
        self.write_fence();
        self.backend.set_reconnects(self.backend.inner.reconnects());
        let (state, reason) = self.state();
        if let Some(geometry) = self.backend.geometry(self.device()).filter(|_| state == State::Live) {
            self.on_geometry(geometry.into());
        }
        self.changes.tell(Change { state, reason, properties: self.properties, paths: self.paths() });
    }

    fn on_geometry(&mut self, now: Properties) {
        let before = self.properties;
        self.properties = Properties { bytes: now.bytes.max(before.bytes), ..now };
        self.was_cached |= now.volatile_write_cache;
        if core::mem::take(&mut self.flush_due) || before.volatile_write_cache != now.volatile_write_cache {
            // What was flushed while nobody knew of the cache, or is left in one that is gone, is not durable before this.
            self.backend.flush_cache(self.device());
        }
    }

    /// The disk's state, and why it cannot be used if it cannot.
    fn state(&self) -> (State, Option<String>) {
        let backend = &self.backend.inner;
        let nsid = self.found.namespace.nsid;
        let state = backend.state();
        if matches!(state, ConnectionState::Connecting | ConnectionState::Lost) {
            return (state_of(state), backend.loss().map(ToString::to_string));
        }
        match backend.namespace_state(nsid) {
            Some(NamespaceState::Foreign(mismatch)) => (State::Foreign, Some(mismatch.to_string())),
            Some(NamespaceState::Inaccessible) => {
                let states = backend.paths().into_iter().flat_map(|path| path.access);
                let states = states.filter(|(of, _)| *of == nsid).map(|(_, state)| ana_name(state));
                let states = states.collect::<Vec<_>>().join(", ");
                (
                    State::Inaccessible,
                    Some(format!("the target gives no access to namespace {nsid} now (ANA: {states})")),
                )
            }
            Some(NamespaceState::Unknown) => (
                State::Inaccessible,
                Some(format!("the target cannot say now which disk namespace {nsid} is")),
            ),
            Some(NamespaceState::NotListed) => (
                State::Inaccessible,
                Some(format!("the target does not list namespace {nsid} (yet, or not for this host)")),
            ),
            Some(NamespaceState::Removed) => (
                State::Removed,
                Some(format!("the target does not have namespace {nsid} any more, or not for this host")),
            ),
            _ => (State::Live, None),
        }
    }

    /// Writes down which controllers may have what is issued from now on.
    fn write_fence(&mut self) {
        let now = Fence::new(&self.backend.inner.impacted(self.unknown_quiesce));
        if now != self.fenced {
            match self.fence.write(Some(now.clone())) {
                Ok(()) => self.fenced = now,
                Err(error) => {
                    tracing::warn!(%error, "if this process is killed, another does not know what is under way");
                }
            }
        }
    }

    /// Ends the connection in order: nothing of it can be carried out later, if all has ended.
    pub(super) fn hand_over(mut self, nothing_is_under_way: bool) {
        let is_connected =
            matches!(self.backend.inner.state(), ConnectionState::Live | ConnectionState::Foreign);
        let may_be_clean = nothing_is_under_way && is_connected && !self.backend.inner.is_fenced();
        self.shut_down();
        if may_be_clean && self.backend.inner.state() == ConnectionState::Lost {
            // The worst is there already.
            let _ = self.fence.write(None);
        }
    }

    /// The paths, as they are written down.
    fn paths(&self) -> Vec<AttachedPath> {
        let backend = &self.backend.inner;
        let nsid = self.found.namespace.nsid;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = |time: Duration| u64::try_from((now + backend.until(time)).as_millis()).ok();
        let attached = |(path, wanted): (PathStatus, &PathOptions)| AttachedPath {
            address: match &path.name {
                Some(name) if path.address.ip().is_unspecified() => format!("{name}:{}", path.address.port()),
                _ => path.address.to_string(),
            },
            transport: if path.transport == TransportType::TCP { "tcp" } else { "rdma" }.to_owned(),
            name: path.name,
            source: path.source.map(|source| source.ip().to_string()),
            interface: wanted.interface().map(str::to_owned),
            protection: self.protection(wanted).map(str::to_owned).collect(),
            cntlid: path.controller.map(|cntlid| cntlid.0),
            state: state_of(path.state),
            ana_state: path
                .access
                .iter()
                .find(|(of, _)| *of == nsid)
                .map(|(_, access)| ana_name(*access).to_owned()),
            reason: path.lost.map(|error| error.to_string()),
            next_attempt: path.next_attempt.and_then(at),
            gives_up: path.gives_up_at.and_then(at),
        };
        backend.paths().into_iter().zip(&self.wanted).map(attached).collect()
    }

    /// The options that protect what goes over a path.
    fn protection(&self, path: &PathOptions) -> impl Iterator<Item = &'static str> + use<> {
        let options = match &path.transport {
            TransportOptions::Tcp(tcp) => [
                ("--tls", tcp.tls.is_some()),
                ("--hdr-digest", tcp.header_digest),
                ("--data-digest", tcp.data_digest),
            ],
            _ => [("--crc", self.reached.crc), ("", false), ("", false)],
        };
        options.into_iter().filter_map(|(name, is_set)| is_set.then_some(name))
    }

    /// Flushes what was written, if that is possible until then, and ends the connection. Where nothing can be lost, nobody waits
    /// for a disk that cannot be used.
    pub(super) fn finish(mut self, until: Instant) -> Result<()> {
        let may_lose = self.backend.has_unfinished(self.was_cached);
        if !may_lose && self.state().0 != State::Live {
            self.close();
            return Ok(());
        }
        let flushed = self.flush(until);
        self.close();
        match flushed {
            Err(_) if !may_lose => Ok(()),
            flushed => flushed.context("the last flush failed: what was not flushed before may be lost"),
        }
    }

    /// Ends the connection. What waits for the target fails, and is not done later.
    pub(super) fn close(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.backend.inner.shutdown();
        let deadline = Instant::now() + CLOSE_TIME_MAX;
        while self.backend.inner.state() != ConnectionState::Lost && Instant::now() < deadline {
            turn_until(&mut self.backend.inner, deadline);
        }
    }

    fn flush(&mut self, until: Instant) -> Result<()> {
        let mut completions: Vec<Completion> = Vec::with_capacity(64);
        let mut is_submitted = false;
        loop {
            // It is full when requests are still under way.
            is_submitted =
                is_submitted || self.backend.submit(LAST_FLUSH, self.device(), BlockOp::Flush).is_ok();
            self.backend.poll(&mut completions);
            self.tell();
            for completion in completions.drain(..) {
                // A request that ended after its client was gone: nobody waits for it.
                if completion.tag == LAST_FLUSH {
                    return completion.result.map_err(|error| match error {
                        BlockError::ReservationConflict => {
                            anyhow!("another host holds a reservation (`nvmf resv-report` shows which)")
                        }
                        error => error.into(),
                    });
                }
            }
            if Instant::now() >= until {
                return Err(anyhow!("it took too long"));
            }
            self.backend.inner.sleep_for(until.saturating_duration_since(Instant::now()), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn path_that_cannot_be_made_for_want_of_something_is_not_given_up() {
        let of_system =
            |errno: Errno| anyhow::Error::from(io::Error::from(errno)).context("cannot read the key");
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            assert!(passes(&of_system(errno)), "{errno}");
        }
        assert!(!passes(&of_system(Errno::ENOENT)));
        let of_file = |errno: Errno| {
            anyhow::Error::from(FileError::Read { path: "/etc/nvmf/key".into(), cause: errno.into() })
        };
        assert!(passes(&of_file(Errno::EMFILE)) && !passes(&of_file(Errno::ENOENT)));
        let refused =
            || nvmf_initiator::Error::System { what: "cannot add a path", reason: "why".to_owned() };
        assert!(passes(&NotYet(refused()).into()), "the system lacks something");
        assert!(!passes(&refused().into()), "it can never be added");
        assert!(!passes(&anyhow!("an option that nobody knows")));
    }
}
