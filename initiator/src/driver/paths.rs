//! Paths: added, ready, lost; what is told of them.

use super::config::{DriverConfig, Route, StartError};
use super::path::{Note, Path};
use super::policy::PATHS_MAX;
use super::{Driver, DriverEvent, Factory};
use crate::ConnectionState;
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::{Cntlid, Nsid};
use nvmf_block::{BlockError, RegionId};
use nvmf_host::AssociationError;
use std::net::SocketAddr;

/// How long the first connection waits for a path that was named before the one that is ready.
const FIRST_PATH_TIME: Duration = Duration::from_secs(3);

/// How a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStatus {
    /// Where its controller listens.
    pub address: SocketAddr,
    /// The name that its address is looked up by, if it has one.
    pub name: Option<String>,
    /// From which of our addresses it connects; `None`: whichever the system chooses.
    pub source: Option<SocketAddr>,
    /// What carries its commands.
    pub transport: TransportType,
    /// Live, lost for good, or being connected. [`ConnectionState::Foreign`]: it shows another disk as a namespace in use.
    pub state: ConnectionState,
    /// Its controller, while it is live.
    pub controller: Option<Cntlid>,
    /// How each namespace can be reached on it (ANA), while it is live.
    pub access: Vec<(Nsid, AnaState)>,
    /// Operations that it has, waiting or in flight.
    pub operations: u32,
    /// When the next attempt to connect it begins, on the driver's clock; `None` while none is waited for.
    pub next_attempt: Option<Duration>,
    /// When it is given up, on the driver's clock, unless it is connected before; `None` while it is live, or never.
    pub gives_up_at: Option<Duration>,
    /// Why it was lost last, or could not be connected; `None` while it is live.
    pub lost: Option<AssociationError>,
}

/// The address of the path that was lost for this reason, or could not be connected.
pub(crate) fn address_of_loss(paths: &[PathStatus], error: &AssociationError) -> Option<SocketAddr> {
    paths.iter().find(|path| path.lost.as_ref() == Some(error)).map(|path| path.address)
}

impl<T: Transport> Driver<T> {
    /// Starts to connect another path to the same subsystem: with the options of the first one, but for its route. Each path is lost
    /// and connected again by itself; the first connection succeeds with the first of them, in their order, that does, and waits no longer than 3 s for
    /// those before one that has.
    ///
    /// # Errors
    /// When there are too many, or the transport or the system lacks a resource.
    pub fn add_path(
        &mut self,
        transport: T,
        route: Route,
        factory: Option<Factory<T>>,
        now: Duration,
    ) -> Result<(), StartError> {
        if self.paths.len() == PATHS_MAX {
            return Err(StartError::TooManyPaths);
        }
        let number = self.paths.len();
        let first = &self.paths[0].config;
        let mut config = DriverConfig {
            address: route.address,
            address_source: route.address_source,
            source: route.source,
            // Its own jitter.
            seed: first.seed.wrapping_add(number as u64 * 2),
            ..first.clone()
        };
        config.association.connect_timeout = route.connect_timeout;
        let mut path = match self.resumed {
            true => Path::resumed(transport, config, now)?,
            false => Path::new(transport, config, now)?,
        };
        for (id, memory) in (0..).zip(&self.regions) {
            if let Some(memory) = memory {
                path.register(RegionId(id), memory)?;
            }
        }
        if let Some(factory) = factory {
            path.set_factory(factory);
        }
        self.paths.push(path);
        if !self.descriptor.watch(&self.paths) {
            self.paths.pop();
            return Err(StartError::NoDescriptor);
        }
        self.operations.add_path();
        self.paths.iter_mut().for_each(|path| path.recovery.be_one_of_several());
        self.tell_paths(now);
        self.act(now);
        Ok(())
    }

    /// Where the controller of a path listens.
    pub(crate) fn address(&self, path: usize) -> SocketAddr {
        self.paths[path].config.address
    }

    /// How each path is.
    #[must_use]
    pub fn paths(&self) -> Vec<PathStatus> {
        let status = |(number, path): (usize, &Path<T>)| {
            let association = path.association.as_ref().filter(|_| path.is_ready());
            PathStatus {
                address: path.config.address,
                name: path.config.address_source.as_ref().and_then(|it| it.name()).map(str::to_owned),
                source: path.config.source,
                transport: path.config.association.transport,
                state: match association {
                    _ if path.recovery.is_over() => ConnectionState::Lost,
                    None => ConnectionState::Connecting,
                    Some(_) if self.heads.is_any_foreign_on(number) => ConnectionState::Foreign,
                    Some(_) => ConnectionState::Live,
                },
                controller: association.map(|association| association.controller().cntlid),
                access: association.map_or_else(Vec::new, |association| {
                    let of = |nsid| (nsid, association.access(nsid));
                    association.namespaces().iter().map(|namespace| of(namespace.nsid)).collect()
                }),
                operations: self.operations.chooser.operations(number),
                next_attempt: path.recovery.next_attempt(),
                gives_up_at: path.recovery.gives_up_at(),
                lost: path.lost.clone(),
            }
        };
        self.paths.iter().enumerate().map(status).collect()
    }

    /// Acts on what happened to the paths.
    pub(super) fn act(&mut self, now: Duration) {
        loop {
            let mut quiet = true;
            for number in 0..self.paths.len() {
                while let Some(note) = self.paths[number].poll_note() {
                    quiet = false;
                    self.on_note(now, number, note);
                }
            }
            if quiet {
                return;
            }
            self.reset_fenced(now);
        }
    }

    fn on_note(&mut self, now: Duration, number: usize, note: Note) {
        match note {
            Note::Ready { after } => self.on_path_ready(now, number, after),
            Note::NamespacesChanged | Note::AccessChanged => {
                self.events.push_back(DriverEvent::NamespacesChanged);
                self.check_heads(now, None);
            }
            Note::AuthenticatedAgain => {
                self.authenticating = self.authenticating.saturating_sub(1);
                if self.authenticating == 0 {
                    self.events.push_back(DriverEvent::AuthenticatedAgain);
                }
            }
            Note::ResetEnded { impacted, successful } => self.on_reset_ended(number, impacted, successful),
            Note::Overdue(index) => self.operations.on_overdue(index),
            Note::Failed { error, was_ready } => self.on_path_failed(now, number, error, was_ready),
            Note::Closed(lost) => {
                if let Some(lost) = lost.filter(|_| !self.shut) {
                    self.fence(now, number, &lost);
                }
                self.requeue_lost(now, number);
                if self.paths[number].recovery.next_attempt().is_some() {
                    self.events.push_back(DriverEvent::PathWaits(number));
                }
                self.on_path_closed();
            }
            Note::FailIo => {
                if !self.may_queue() {
                    self.fences.on_operations_failed();
                    self.operations.fail_waiting(BlockError::Gone);
                    self.fail_admin();
                }
            }
            Note::GaveUp => self.on_path_given_up(now),
            Note::Admin(command, reply) => self.on_admin_reply(now, number, command, reply),
        }
    }

    fn on_path_ready(&mut self, now: Duration, number: usize, after: Option<Duration>) {
        let others = !self.in_use.is_empty();
        self.in_use.insert(number);
        if !self.was_ready {
            self.tell_paths(now);
            return self.tell_first(now);
        }
        let again = after.is_some();
        self.events.push_back(match others {
            true => DriverEvent::PathReady(number, after),
            // How long another path has tried before is of no interest.
            false => DriverEvent::Ready { after: after.filter(|_| again) },
        });
        self.tell_paths(now);
        self.check_heads(now, again.then_some(number));
    }

    /// Tells of the first connection: as soon as a path is ready, and those that were named before it cannot be, or take too long. Which
    /// disk is where its controller says to whoever opens one: that is to be the controller that was named first.
    pub(super) fn tell_first(&mut self, now: Duration) {
        if self.was_ready || self.shut {
            return;
        }
        let Some(first) = (0..self.paths.len()).find(|path| self.in_use.contains(*path)) else {
            self.first_until = None;
            return;
        };
        let may_come = |path: &Path<T>| path.lost.is_none() && !path.recovery.is_over();
        let until = *self.first_until.get_or_insert(now.saturating_add(FIRST_PATH_TIME));
        if now < until && self.paths[..first].iter().any(may_come) {
            return;
        }
        (self.was_ready, self.first_until) = (true, None);
        self.events.push_back(DriverEvent::Ready { after: None });
        let others = (first + 1..self.paths.len()).filter(|path| self.in_use.contains(*path));
        self.events.extend(others.map(|path| DriverEvent::PathReady(path, None)));
        self.heads.forget_unopened();
        self.check_heads(now, None);
    }

    fn on_path_failed(&mut self, now: Duration, number: usize, error: AssociationError, was_ready: bool) {
        self.operations.leave_path(number, |_| false);
        self.authenticating = 0;
        self.in_use.remove(number);
        let others = !self.in_use.is_empty();
        self.events.push_back(match (others, was_ready) {
            (false, true) => DriverEvent::Lost(error),
            (false, false) => DriverEvent::AttemptFailed(error),
            (true, true) => DriverEvent::PathLost(number, error),
            (true, false) => DriverEvent::PathFailed(number, error),
        });
        if was_ready {
            self.tell_paths(now);
            self.check_heads(now, None);
        }
        // Whoever waits for the first connection wants the error as soon as no path is left to be tried.
        if !self.was_ready && self.paths.iter().all(|path| path.lost.is_some()) {
            self.paths.iter_mut().for_each(|path| path.recovery.give_up());
        }
        self.tell_first(now);
    }

    fn on_path_closed(&mut self) {
        if !self.shut || self.closed || !self.paths.iter().all(Path::is_closed) {
            return;
        }
        self.closed = true;
        self.operations.fail_waiting(BlockError::Gone);
        self.fail_admin();
        self.events.push_back(DriverEvent::Closed);
    }

    fn on_path_given_up(&mut self, now: Duration) {
        if self.paths.iter().all(|path| path.recovery.is_over()) && !self.shut {
            // Several may be given up at the same time.
            if core::mem::replace(&mut self.gave_up, true) {
                return;
            }
            self.fences.on_operations_failed();
            self.operations.fail_waiting(BlockError::Gone);
            self.fail_admin();
            self.events.push_back(DriverEvent::GaveUp);
        } else {
            self.tell_paths(now);
        }
    }

    /// Tells each path whether another one is ready.
    fn tell_paths(&mut self, now: Duration) {
        if self.paths.len() == 1 {
            return;
        }
        let ready = self.paths.iter().filter(|path| path.is_ready()).count();
        for path in &mut self.paths {
            let others = ready > usize::from(path.is_ready());
            path.on_others(now, others);
        }
    }
}
