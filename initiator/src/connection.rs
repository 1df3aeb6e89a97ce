//! A connection to a controller, and the thread behind it.

use crate::buffer::BufferPool;
use crate::driver::{Factory, PathStatus, QueueKind, Recipient, Route, Unanswered, address_of_loss};
use crate::engine::{FirstError, Observers, SharedSnapshot, Snapshot};
use crate::mailbox::{CommandRequest, Message, Times};
use crate::shared_driver::SharedDriver;
use crate::state::{self, Changes, StateReceiver};
use crate::statistics::{Counters, Statistics};
use crate::transport::Transport;
use crate::{AdminReply, Device, Effect, Error, Options};
use core::fmt;
use futures_channel::oneshot;
use nvme_proto::Nsid;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvmf_auth::host::Secrets;
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AssociationError, ControllerInfo, DiscoveryLog, Mismatch, Namespace, NamespaceIdentity};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// It is being set up, or was lost and is being set up again: I/O waits.
    Connecting,
    /// I/O flows.
    Live,
    /// It is connected, and a namespace that was opened is another disk than it was ([`Connection::foreign`] says how). After a
    /// reconnect its I/O waits as when connecting, and fails after the same time; a disk that is replaced while its controller is
    /// connected was taken away, and its I/O fails at once. I/O of other namespaces flows.
    Foreign,
    /// It was given up, or closed: all I/O fails.
    Lost,
}

/// A controller that is connected to, and its thread. Cheap to clone; dropping the last handle closes it
/// ([`Device`]s are handles too).
#[derive(Clone)]
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) shared_driver: Arc<SharedDriver>,
    pub(crate) snapshot: SharedSnapshot,
    pub(crate) pool: Arc<BufferPool>,
    /// The disks that were opened: one under each NSID, for the life of the connection.
    opened: Mutex<Vec<NamespaceIdentity>>,
    state: StateReceiver,
    counters: Arc<Counters>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shared_driver.send(Message::Close { reply: None });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { nqn, address, .. } = &self.shared.options;
        let mut connection = f.debug_struct("Connection");
        connection.field("nqn", nqn).field("address", address).field("state", &self.state());
        connection.finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects: every queue is up and every namespace known when this ends.
    ///
    /// # Errors
    /// [`Error::Association`] says which layer refused, and what to do.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        options.check()?;
        let transport = options.transport_factory();
        let more_paths = options.more_paths();
        Self::connect_paths(options, transport, more_paths).await
    }

    /// The same over a transport of the caller's, made on the connection's thread, and made anew there when its device is lost.
    /// [`Options::paths`] are not looked at.
    ///
    /// # Errors
    /// As [`Connection::connect`].
    pub async fn connect_over<T: Transport<Region: Send> + Send + 'static>(
        options: Options,
        transport: impl FnMut() -> Result<T, String> + Send + 'static,
    ) -> Result<Self, Error> {
        options.check_queues()?;
        Self::connect_paths(options, transport, Vec::new()).await
    }

    async fn connect_paths<T: Transport<Region: Send> + Send + 'static>(
        options: Options,
        transport: impl FnMut() -> Result<T, String> + Send + 'static,
        more_paths: Vec<(Route, Factory<T>)>,
    ) -> Result<Self, Error> {
        let snapshot = SharedSnapshot::default();
        let (first, connected) = oneshot::channel();
        let (its_state, state) = state::channel();
        let config = options.driver_config();
        let shared_driver = SharedDriver::new(config.operations as usize, options.spin)?;
        let counters = Arc::<Counters>::default();
        let observers = Observers {
            snapshot: Arc::clone(&snapshot),
            state: its_state,
            counters: Arc::clone(&counters),
            first: Some(first),
        };
        let thread_driver = Arc::clone(&shared_driver);
        let body = move || crate::thread::run(transport, more_paths, config, thread_driver, observers);
        let system = |reason: String| Error::System { what: "cannot start a connection", reason };
        std::thread::Builder::new()
            .name("nvmf-connection".to_owned())
            .spawn(body)
            .map_err(|e| system(e.to_string()))?;
        // From here on a dropped future closes the connection: `shared` is its only handle.
        let pool = BufferPool::new(Arc::clone(&shared_driver));
        let opened = Mutex::default();
        let shared = Arc::new(Shared { pool, options, shared_driver, snapshot, opened, state, counters });
        match connected.await {
            Ok(Ok(())) => Ok(Self { shared }),
            Ok(Err(FirstError::System(reason))) => Err(system(reason)),
            Ok(Err(FirstError::Association(source))) => {
                Err(shared.association_error(source, Effect::Nothing))
            }
            Err(_) => Err(Error::Closed { effect: Effect::Nothing }),
        }
    }

    /// Where the controller listens.
    #[must_use]
    pub fn address(&self) -> std::net::SocketAddr {
        self.shared.options.address
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.shared.state.get()
    }

    /// Its state, as soon as that is another than `known`.
    pub async fn state_after(&self, known: ConnectionState) -> ConnectionState {
        self.shared.state.after(known).await
    }

    /// What changes from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        self.shared.state.changes()
    }

    /// What it has done so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.get()
    }

    /// Why the controller was lost last, or the last attempt to connect again failed; `None` while it is connected.
    #[must_use]
    pub fn loss(&self) -> Option<AssociationError> {
        self.shared.lock_snapshot().lost.clone()
    }

    /// How each path is: the one of the options' address first, then [`Options::paths`].
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        self.shared.lock_snapshot().paths.clone()
    }

    /// What the controller says of itself; with several paths, that of the first one in use.
    #[must_use]
    pub fn controller(&self) -> ControllerInfo {
        self.shared.snapshot().controller
    }

    /// Its namespaces, as they are now.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        self.shared.snapshot().namespaces
    }

    pub(crate) fn discovery_log(&self) -> DiscoveryLog {
        self.shared.snapshot().discovery_log
    }

    /// The namespaces that were opened and in whose place there is another disk now, and how it differs.
    #[must_use]
    pub fn foreign(&self) -> Vec<(Nsid, Mismatch)> {
        self.shared.lock_snapshot().foreign.clone()
    }

    /// A namespace as a block device. It stays the disk that it is now: when the controller shows another under its
    /// number, after a reconnect or a change, nothing of the device's I/O goes there ([`ConnectionState::Foreign`]),
    /// and it fails in the end. One that gains a volatile write cache is the same disk: what is to be durable is
    /// flushed, or written with FUA, whether or not there was a cache when it was opened. A disk without UUID, NGUID
    /// and EUI-64 can be told from another by its block size and size only.
    ///
    /// # Errors
    /// [`Error::NoSuchNamespace`]; [`Error::Foreign`] when this connection has opened another disk under the number.
    pub fn open(&self, nsid: Nsid) -> Result<Device, Error> {
        let snapshot = self.shared.snapshot();
        let Some(namespace) = snapshot.namespaces.iter().find(|namespace| namespace.nsid == nsid) else {
            return Err(Error::no_such_namespace(&self.shared.options.nqn, nsid, &snapshot.namespaces));
        };
        // A device has `flush`: whoever wants a write to be durable calls it, or writes with FUA, whatever cache there
        // was at first.
        let seen = NamespaceIdentity::new(&snapshot.controller, namespace);
        let identity = NamespaceIdentity { is_flushed: true, ..seen };
        let mut opened = self.shared.opened.lock().unwrap_or_else(PoisonError::into_inner);
        match opened.iter().find(|opened| opened.nsid == nsid) {
            Some(opened) => {
                opened.check(&identity).map_err(|mismatch| Error::Foreign { nsid, mismatch })?;
            }
            None => {
                opened.push(identity.clone());
                // Before any operation on it.
                self.shared.shared_driver.note(Message::Open(identity));
            }
        }
        drop(opened);
        Ok(Device::new(Arc::clone(&self.shared), nsid, namespace.geometry))
    }

    /// Sends an admin command ([`nvmf_host::admin`] builds them).
    ///
    /// # Errors
    /// What ended the association before the command did, or [`Error::Closed`]; [`Error::effect`] says whether the command may have
    /// taken effect. One that is not answered within 60 seconds ends the association. One that waits for a connection
    /// fails when I/O does. A status that is not success is no error here.
    pub async fn admin(&self, command: AdminCommand) -> Result<AdminReply, Error> {
        let effect = effect(QueueKind::Admin, command.command.sqe().opcode);
        let asked = self.shared.ask(QueueKind::Admin, Recipient::Controller, command, Times::default()).await;
        asked.map_err(|unanswered| self.shared.closed(unanswered.effect(effect)))
    }

    /// Sends a command to an I/O queue ([`crate::raw`]).
    pub(crate) async fn io(&self, command: AdminCommand) -> Result<AdminReply, Error> {
        let effect = effect(QueueKind::Io, command.command.sqe().opcode);
        let asked = self.shared.ask(QueueKind::Io, Recipient::Controller, command, Times::default()).await;
        asked.map_err(|unanswered| self.shared.closed(unanswered.effect(effect)))
    }

    /// Sends a command to an I/O queue of a controller that has no namespace under this NSID.
    pub(crate) async fn io_without_disk(
        &self,
        nsid: Nsid,
        command: AdminCommand,
    ) -> Result<AdminReply, Error> {
        let opcode = command.command.sqe().opcode;
        let effect = effect(QueueKind::Io, opcode);
        let asked = self.shared.ask(QueueKind::Io, Recipient::NoDisk, command, Times::default()).await;
        let appeared = || self.namespaces().iter().any(|namespace| namespace.nsid == nsid);
        asked.map_err(|unanswered| match unanswered {
            Unanswered::NotSent if appeared() => Error::Raw {
                opcode,
                reason: format!("a disk has appeared as namespace {nsid}, which was not there before"),
            },
            unanswered => self.shared.closed(unanswered.effect(effect)),
        })
    }

    /// Authenticates every queue again, with these secrets now and from now on: when those of the target have changed, or
    /// are about to. I/O goes on meanwhile, but for the time that is computed. `false`: the controller did not ask for
    /// authentication, or something else is under way; the secrets count from the next connect on.
    ///
    /// # Errors
    /// The association was lost: the secrets are wrong, say.
    pub async fn authenticate_again(&self, secrets: Secrets) -> Result<bool, Error> {
        let (reply, replied) = oneshot::channel();
        let secrets = Box::new(secrets);
        self.shared.shared_driver.send(Message::AuthenticateAgain { secrets, reply });
        replied.await.map_err(|_| self.shared.closed(Effect::Unknown))
    }

    /// Shuts the controller down, and ends the thread. Operations that have not ended fail, and so does what other handles submit
    /// from now on.
    pub async fn close(self) {
        let (reply, closed) = oneshot::channel();
        self.shared.shared_driver.send(Message::Close { reply: Some(reply) });
        // An error says that it is over already.
        let _ = closed.await;
    }
}

impl Shared {
    /// Sends a command, and waits for its reply, for as long as these times say.
    pub(crate) async fn ask(
        &self,
        queue: QueueKind,
        recipient: Recipient,
        command: AdminCommand,
        times: Times,
    ) -> Result<AdminReply, Unanswered> {
        let (reply, replied) = oneshot::channel();
        let request = CommandRequest { queue, recipient, command, times, reply };
        self.shared_driver.send(Message::Command(request));
        // One that nobody has taken.
        replied.await.unwrap_or(Err(Unanswered::Closed))
    }

    pub(crate) fn lock_snapshot(&self) -> MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> Snapshot {
        self.lock_snapshot().clone()
    }

    fn association_error(&self, source: AssociationError, effect: Effect) -> Error {
        let of_path = address_of_loss(&self.lock_snapshot().paths, &source);
        let (nqn, address) = (self.options.nqn.to_string(), of_path.unwrap_or(self.options.address));
        Error::Association { nqn, address, effect, source: Box::new(source) }
    }

    /// Why operations fail; of one that may have done this.
    pub(crate) fn closed(&self, effect: Effect) -> Error {
        let lost = self.snapshot().lost;
        lost.map_or(Error::Closed { effect }, |source| self.association_error(source, effect))
    }
}

/// What a command may have done that was sent, and of which nothing else is known.
pub(crate) fn effect(queue: QueueKind, opcode: u8) -> Effect {
    let only_reads = match queue {
        QueueKind::Admin => AdminOpcode(opcode) == AdminOpcode::IDENTIFY,
        QueueKind::Io => NvmOpcode(opcode) == NvmOpcode::RESERVATION_REPORT,
    };
    if only_reads { Effect::Nothing } else { Effect::Unknown }
}

#[cfg(test)]
mod tests;
