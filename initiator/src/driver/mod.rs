//! One subsystem's namespaces, over one path or several, through losses and reconnects.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | what goes in and out; [`Driver::turn`] |
//! | `config` | what a driver is made with |
//! | `path` | one association with a controller: its transport, its queues, its recovery |
//! | `paths` | paths: added, ready, lost; what is told of them |
//! | `heads` | namespaces, pinned to the disks that they were, and the paths that lead to each |
//! | `policy` | which of these an operation goes to |
//! | `op` | what a driver carries out |
//! | `operation` | block operations: waiting, in flight, ended |
//! | `issue` | block operations: given to paths, issued part by part, issued again |
//! | `fence` | what a controller that was lost may still carry out |
//! | `withdraw` | operations that nobody waits for any longer |
//! | `shared_fences` | the same, of the other drivers of the same disk |
//! | `admin` | admin commands and raw commands of the user's |
//! | `descriptor` | one descriptor to sleep on |
//!
//! The driver has no thread, no clock and makes no system call of its own (but what an authentication is to compute, it gives to a
//! thread, and several paths share a descriptor): whoever drives a [`crate::Connection`] runs
//! [`Driver::turn`], and so does a simulator under virtual time.

mod admin;
mod config;
mod descriptor;
mod fence;
mod heads;
mod issue;
mod op;
mod operation;
mod path;
mod paths;
mod policy;
mod shared_fences;
#[cfg(test)]
pub(crate) mod tests;
mod withdraw;

pub use admin::{AdminReply, QueueKind, Recipient, Unanswered};
pub use config::{DriverConfig, Route, StartError};
pub use fence::Impacted;
pub use heads::NamespaceState;
pub use op::Op;
pub use operation::{Ended, Failure};
pub use paths::PathStatus;
pub(crate) use paths::address_of_loss;
pub use policy::{PATHS_MAX, PathPolicy};
pub use shared_fences::SharedFences;

use crate::ConnectionState;
use crate::transport::{Transport, TransportError};
use admin::AdminCommands;
use core::time::Duration;
use descriptor::Descriptor;
use fence::Fences;
use heads::Heads;
use nvme_proto::Nsid;
use nvmf_auth::host::Secrets;
use nvmf_block::{Completion as BlockCompletion, Full, RegionId, Tag};
use nvmf_host::{Association, AssociationError, Mismatch};
use nvmf_memory::Memory;
use operation::Operations;
use path::Path;
use policy::{Chooser, PathSet};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// What happens to a driver. Paths are named by number, in the order in which they were added.
#[derive(Debug)]
pub enum DriverEvent {
    /// Connected: [`Driver::association`] tells the rest. With several paths: the first of them is, and none was.
    Ready {
        /// How long the controller was away; `None` for the first connection.
        after: Option<Duration>,
    },
    /// Namespaces came, went or changed, or how they can be reached.
    NamespacesChanged,
    /// The association was in use and is lost; a reconnect follows, unless [`DriverEvent::GaveUp`] does. With several paths: that
    /// of the last one that was in use.
    Lost(AssociationError),
    /// An attempt to connect, for the first time or again, failed; what follows is the same. With several paths: none is in use.
    AttemptFailed(AssociationError),
    /// Another path is connected.
    PathReady(usize, Option<Duration>),
    /// A path is lost, while others are in use.
    PathLost(usize, AssociationError),
    /// An attempt to connect a path failed, while others are in use.
    PathFailed(usize, AssociationError),
    /// The time of the next attempt to connect a path is known ([`PathStatus::next_attempt`]).
    PathWaits(usize),
    /// A path shows another disk as a namespace in use, and gets nothing of its I/O; others show the right one.
    PathForeign(usize, Nsid, Mismatch),
    /// A namespace in use is not the disk that was opened: its operations wait, or fail if it was taken away.
    Foreign(Nsid, Mismatch),
    /// The disk that was opened is there again.
    Restored(Nsid),
    /// No controller gives access to a namespace in use any more (ANA): its operations wait.
    NoAccess(Nsid),
    /// A controller gives access to it again.
    AccessAgain(Nsid),
    /// An admin command or a raw command ended.
    Admin(u32, Result<AdminReply, Unanswered>),
    /// It is over: all I/O has failed and will fail.
    GaveUp,
    /// [`Driver::authenticate_again`] is done.
    AuthenticatedAgain,
    /// [`Driver::shutdown`] is done.
    Closed,
}

/// One remote subsystem.
pub struct Driver<T: Transport> {
    /// At least one.
    paths: Vec<Path<T>>,
    /// By region.
    regions: Vec<Option<Memory>>,
    operations: Operations,
    heads: Heads,
    fences: Fences,
    admin: AdminCommands,
    descriptor: Descriptor,
    /// When Invalid Field may next cause a scan of the namespaces.
    next_doubt: Duration,
    events: VecDeque<DriverEvent>,
    /// Paths that are authenticating again.
    authenticating: usize,
    /// The paths that are in use, as was told.
    in_use: PathSet,
    was_ready: bool,
    /// The first connection waits until then for paths that were named before the one that is ready.
    first_until: Option<Duration>,
    /// Every path was given up.
    gave_up: bool,
    shut: bool,
    closed: bool,
    /// Another process used its controllers before.
    resumed: bool,
}

/// Makes a transport anew after the device of the last one is gone.
pub type Factory<T> = Box<dyn FnMut() -> Result<T, String> + Send>;

impl<T: Transport> Driver<T> {
    /// Starts to connect.
    ///
    /// # Errors
    /// When the configuration cannot be, or the transport lacks a resource.
    pub fn new(transport: T, config: DriverConfig, now: Duration) -> Result<Self, StartError> {
        let mut driver = Self::over(Path::new(transport, config, now)?);
        driver.act(now);
        Ok(driver)
    }

    /// Takes over what another process of this host used until it ended, as after a loss: operations wait for the controller, and
    /// nothing is changed before what that process had sent to these controllers is over. Paths that are added are taken over, too.
    ///
    /// # Errors
    /// As [`Driver::new`].
    pub fn resume(
        transport: T,
        config: DriverConfig,
        impacted: &[Impacted],
        now: Duration,
    ) -> Result<Self, StartError> {
        let mut driver = Self::over(Path::resumed(transport, config, now)?);
        (driver.resumed, driver.was_ready) = (true, true);
        driver.fences.resume(now, impacted);
        Ok(driver)
    }

    fn over(path: Path<T>) -> Self {
        let config = &path.config;
        let chooser = Chooser::new(config.policy);
        let mut operations = Operations::new(config.operations, config.write_queues > 0, chooser);
        operations.add_path();
        Self {
            paths: vec![path],
            regions: Vec::new(),
            operations,
            heads: Heads::default(),
            fences: Fences::default(),
            admin: AdminCommands::default(),
            descriptor: Descriptor::default(),
            next_doubt: Duration::ZERO,
            events: VecDeque::new(),
            authenticating: 0,
            in_use: PathSet::default(),
            was_ready: false,
            first_until: None,
            gave_up: false,
            shut: false,
            closed: false,
            resumed: false,
        }
    }

    /// The association of the first path that is ready, or else of the first that has one.
    #[must_use]
    pub fn association(&self) -> Option<&Association> {
        self.ready_association().or_else(|| self.paths.iter().find_map(|path| path.association.as_ref()))
    }

    /// The association of the first path that is ready: what it says is what its controller has said.
    pub(crate) fn ready_association(&self) -> Option<&Association> {
        self.paths.iter().find(|path| path.is_ready()).and_then(|path| path.association.as_ref())
    }

    /// The association of each path in turn; `None` for one that is not ready.
    pub(crate) fn ready_associations(&self) -> impl Iterator<Item = Option<&Association>> {
        self.paths.iter().map(|path| path.association.as_ref().filter(|_| path.is_ready()))
    }

    /// Has the transport of the first path replaced when its device is lost. Without this, every reconnect fails from then on.
    pub fn set_factory(&mut self, factory: Factory<T>) {
        self.paths[0].set_factory(factory);
    }

    /// How often [`Driver::fd`] was replaced: each has another descriptor.
    #[must_use]
    pub fn replaced(&self) -> u32 {
        match &self.paths[..] {
            [path] => path.replaced,
            _ => 0,
        }
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        if self.paths.iter().all(|path| path.recovery.is_over()) {
            ConnectionState::Lost
        } else if !self.paths.iter().any(Path::is_ready) {
            ConnectionState::Connecting
        } else if self.foreign().next().is_some() {
            ConnectionState::Foreign
        } else {
            ConnectionState::Live
        }
    }

    /// The transport of a path.
    ///
    /// # Panics
    /// When there is no such path.
    #[must_use]
    pub fn transport(&self, path: usize) -> &T {
        &self.paths[path].transport
    }

    /// The transport of a path.
    ///
    /// # Panics
    /// When there is no such path.
    pub fn transport_mut(&mut self, path: usize) -> &mut T {
        &mut self.paths[path].transport
    }

    /// Has [`Driver::fd`] become readable at what comes next; `false` when there is something to poll already.
    pub fn arm(&mut self) -> bool {
        let watched = self.descriptor.watch(&self.paths);
        self.paths.iter_mut().fold(watched, |armed, path| path.transport.arm() && armed)
    }

    /// The descriptor to sleep on; `None` in virtual time.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.fd(&self.paths)
    }

    /// Makes memory usable in operations, under a number of the caller's choice.
    ///
    /// # Errors
    /// What the transport says.
    pub fn register(&mut self, id: RegionId, memory: &Memory) -> Result<(), TransportError> {
        for number in 0..self.paths.len() {
            if let Err(error) = self.paths[number].register(id, memory) {
                self.deregister(id);
                return Err(error);
            }
        }
        let index = usize::from(id.0);
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        self.regions[index] = Some(memory.clone());
        Ok(())
    }

    /// Ends a registration. No operation may be in flight on it.
    pub fn deregister(&mut self, id: RegionId) {
        self.paths.iter_mut().for_each(|path| path.deregister(id));
        if let Some(region) = self.regions.get_mut(usize::from(id.0)) {
            *region = None;
        }
    }

    /// New operations may wait for a path.
    fn may_queue(&self) -> bool {
        !self.shut && self.paths.iter().any(|path| path.recovery.may_queue())
    }

    /// Takes an operation on a namespace. It waits while there is no connection.
    ///
    /// # Errors
    /// [`Full`]: nothing was taken.
    pub fn submit(&mut self, tag: Tag, nsid: Nsid, op: impl Into<Op>) -> Result<(), Full> {
        let admission = self.use_head(nsid);
        let may_queue = self.may_queue();
        if let Some(index) = self.operations.submit(tag, nsid, op.into(), may_queue)? {
            self.route(index, admission);
        }
        Ok(())
    }

    /// Sends what was submitted, as far as the queues have room.
    pub fn flush(&mut self, now: Duration) {
        self.issue(now);
        self.paths.iter_mut().for_each(|path| path.transport.flush());
    }

    /// An operation that has ended.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.operations.poll_ended()
    }

    /// The operations that have ended, up to the capacity left, without what those may have done that failed.
    pub fn poll(&mut self, completions: &mut Vec<BlockCompletion>) {
        while completions.len() < completions.capacity()
            && let Some(Ended { tag, result }) = self.poll_ended()
        {
            completions.push(BlockCompletion { tag, result: result.map_err(|failure| failure.error) });
        }
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<DriverEvent> {
        self.events.pop_front()
    }

    /// Authenticates every queue again, with these secrets from now on. [`DriverEvent::AuthenticatedAgain`] follows, or
    /// the association is lost. Nothing happens, and `false` is returned, where the controller did not ask for
    /// authentication, or while something else is under way. Where an authentication has made the key for TLS, the Admin
    /// queue alone is authenticated; connections that are there keep their key.
    pub fn authenticate_again(&mut self, now: Duration, secrets: &Secrets) -> bool {
        let begun = self.paths.iter_mut().map(|path| path.authenticate_again(now, secrets.clone()));
        let begun = begun.filter(|begun| *begun).count();
        self.authenticating += begun;
        self.act(now);
        begun > 0
    }

    /// Ends it in order: the controllers are shut down, the queues are closed. [`DriverEvent::Closed`] follows.
    pub fn shutdown(&mut self, now: Duration) {
        if core::mem::replace(&mut self.shut, true) {
            return;
        }
        self.paths.iter_mut().for_each(|path| path.shutdown(now));
        self.act(now);
    }

    /// Has every path look at the namespaces again.
    pub fn scan(&mut self, now: Duration) {
        self.paths.iter_mut().for_each(|path| path.scan(now));
        self.act(now);
    }

    /// Ends the association of every path that is in use, and connects it again, as after a loss.
    pub fn reset(&mut self, now: Duration) {
        if !self.shut {
            self.paths.iter_mut().for_each(|path| path.reset_association(now));
            self.act(now);
        }
    }

    /// Connects every path again at once, also those that were given up. Nothing changes for a path that is in use, before the
    /// first connection, or after [`Driver::shutdown`].
    pub fn retry(&mut self, now: Duration) {
        if self.was_ready && !self.shut {
            self.gave_up = false;
            self.paths.iter_mut().for_each(|path| path.recovery.retry(now));
        }
    }

    /// When [`Driver::turn`] must be called again even if nothing arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let paths = self.paths.iter().filter_map(Path::poll_timeout).min();
        let waiting = [self.operations.poll_timeout(), self.admin.poll_timeout(), self.first_until];
        [paths, self.heads.poll_timeout(), self.fences.poll_timeout()]
            .into_iter()
            .chain(waiting)
            .flatten()
            .min()
    }

    /// Does everything that there is to do now. `true` when something was done: there may be more at once.
    pub fn turn(&mut self, now: Duration) -> bool {
        let mut worked = false;
        for number in 0..self.paths.len() {
            worked |= self.paths[number].poll_arrivals(now);
            while let Some((index, outcome)) = self.paths[number].next_part(now) {
                self.on_part(now, number, index, outcome);
            }
            worked |= self.paths[number].turn(now);
        }
        self.poll_timers(now);
        self.act(now);
        self.paths.iter_mut().for_each(|path| path.issue_own(now));
        self.issue(now);
        self.paths.iter_mut().for_each(|path| path.transport.flush());
        worked
    }

    fn poll_timers(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        if due(self.heads.poll_timeout()) {
            self.fail_blocked(now);
        }
        if due(self.operations.poll_timeout()) {
            self.operations.on_timeout(now);
        }
        if due(self.fences.poll_timeout()) {
            self.on_fence_timeout(now);
        }
        self.tell_first(now);
    }
}
