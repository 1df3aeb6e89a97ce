//! Which namespaces there are, now and after a change; the discovery log.

use super::setup::succeeded;
use super::{Action, Association, AssociationError, Purpose, Reply, State, Step};
use crate::discovery::LogReader;
use crate::{Namespace, Nsid, admin, limits};
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;
use nvme_proto::Status;
use nvme_proto::admin::identify::IdList;
use nvme_proto::admin::log_page::LogPageId;
use zerocopy::FromBytes;

/// A look at all namespaces, under way.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Still to look at, last first; while the list is being read, first first.
    waiting: Vec<Nsid>,
    /// Looked at.
    nsid: Nsid,
    /// Identified; its descriptors are asked for.
    current: Option<Namespace>,
    found: Vec<Namespace>,
    /// Active, but the controller could not describe them now.
    unknown: Vec<Nsid>,
    /// It found something else than the one before.
    pub(super) changed: bool,
    /// It failed, and there is to be another one.
    pub(super) is_owed: bool,
}

impl Association {
    /// The first look: at the namespaces, or at the discovery log.
    pub(super) fn start_scan(&mut self, now: Duration) {
        match self.config.purpose {
            Purpose::Io => self.list_namespaces(now),
            Purpose::DiscoveryOnce | Purpose::DiscoveryPersistent => self.read_log(now),
        }
    }

    /// A look after an announced change.
    pub(super) fn rescan(&mut self, now: Duration) {
        match self.config.purpose {
            Purpose::DiscoveryOnce | Purpose::DiscoveryPersistent => self.read_log(now),
            // Reading the list is what lets the controller announce the next change; what is in it does not matter, as we look at all.
            Purpose::Io => {
                let command = admin::get_log_page(
                    LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST,
                    Nsid::ALL,
                    0,
                    limits::ADMIN_DATA_MAX,
                );
                self.send_step(now, Step::ChangedNamespaces, command);
            }
        }
    }

    pub(super) fn on_scan_step(&mut self, now: Duration, reply: Reply<'_>) -> Result<(), AssociationError> {
        let outcome = reply.outcome;
        let lists = matches!(self.step, Step::ActiveNamespaces | Step::Log);
        if lists && self.state == State::Ready && !outcome.status.is_success() {
            let is_of_disks = self.config.purpose == Purpose::Io;
            let may_succeed = crate::status::is_retryable(outcome.status);
            if is_of_disks && !may_succeed {
                return succeeded("Identify (active namespaces)", outcome).map(drop);
            }
            // No event announces the change again, and which disk is where is not known before a look succeeds. A log that we have is
            // still good.
            self.scan.is_owed = may_succeed;
            self.settle(now);
            return Ok(());
        }
        match self.step {
            // Without that list there is still the look itself.
            Step::ChangedNamespaces => self.list_namespaces(now),
            Step::ActiveNamespaces => {
                succeeded("Identify (active namespaces)", outcome)?;
                let is_full = take_active(reply.data, &mut self.scan.waiting)?;
                match self.scan.waiting.last() {
                    Some(&last) if is_full && self.scan.waiting.len() < limits::NAMESPACES_MAX => {
                        self.send_step(now, Step::ActiveNamespaces, admin::identify_active_namespaces(last));
                    }
                    _ => {
                        self.scan.waiting.reverse();
                        self.next_namespace(now);
                    }
                }
            }
            Step::Namespace | Step::Descriptors | Step::IndependentNamespace
                if !outcome.status.is_success()
                    && (!says_there_is_none(outcome.status) || self.had_descriptors()) =>
            {
                // It is there, and which disk it is cannot be known now: to be asked again.
                self.scan.current = None;
                self.scan.unknown.push(self.scan.nsid);
                self.next_namespace(now);
            }
            Step::Namespace => {
                // It went away meanwhile.
                if outcome.status.is_success() {
                    self.on_namespace(now, reply.data);
                } else {
                    self.next_namespace(now);
                }
            }
            Step::Descriptors => {
                let namespace = self.scan.current.take();
                // A controller without descriptors has only NVM namespaces.
                let data = if outcome.status.is_success() { reply.data } else { &[] };
                self.on_described(now, namespace.and_then(|namespace| namespace.describe(data)));
            }
            Step::IndependentNamespace => {
                let mut namespace = self.scan.current.take();
                if let (Some(namespace), true) = (&mut namespace, outcome.status.is_success()) {
                    namespace.read_independent(reply.data);
                }
                self.scan.found.extend(namespace);
                self.next_namespace(now);
            }
            _ => {
                succeeded("Get Log Page (discovery)", outcome)?;
                match self.reader.on_data(reply.data)? {
                    None => self.send_step(now, Step::Log, self.reader.command()),
                    Some(log) => {
                        self.log = log;
                        self.on_scanned(now, Action::DiscoveryLogChanged);
                    }
                }
            }
        }
        Ok(())
    }

    fn read_log(&mut self, now: Duration) {
        self.scan.is_owed = false;
        self.reader = LogReader::default();
        self.send_step(now, Step::Log, self.reader.command());
    }

    fn list_namespaces(&mut self, now: Duration) {
        self.scan = Scan::default();
        self.send_step(now, Step::ActiveNamespaces, admin::identify_active_namespaces(Nsid(0)));
    }

    fn next_namespace(&mut self, now: Duration) {
        if let Some(nsid) = self.scan.waiting.pop() {
            self.scan.nsid = nsid;
            self.send_step(now, Step::Namespace, admin::identify_namespace(nsid));
            return;
        }
        let found = mem::take(&mut self.scan.found);
        let unknown = mem::take(&mut self.scan.unknown);
        let changed = found != self.namespaces || unknown != self.unknown_namespaces;
        self.namespaces = found;
        self.unknown_namespaces = unknown;
        self.scan.changed = changed;
        // They may be in other groups now.
        if self.controller.ana {
            self.read_ana(now);
        } else {
            self.on_access_read(now);
        }
    }

    /// How the namespaces can be reached is known: the look at them is over, if there was one.
    pub(super) fn on_access_read(&mut self, now: Duration) {
        if mem::take(&mut self.scan.changed) || self.state != State::Ready {
            self.on_scanned(now, Action::NamespacesChanged);
        } else {
            self.settle(now);
        }
    }

    /// Whether the controller is asked for descriptors that it has had before: it cannot say now that there are none.
    fn had_descriptors(&self) -> bool {
        let has = |namespace: &Namespace| namespace.nsid == self.scan.nsid && namespace.uuid != [0; 16];
        let knows = self.namespaces.iter().any(has) || self.unknown_namespaces.contains(&self.scan.nsid);
        self.step == Step::Descriptors && knows
    }

    /// A controller with a volatile write cache is asked which namespaces have none of it, if it is new enough to say.
    fn on_described(&mut self, now: Duration, namespace: Option<Namespace>) {
        if namespace.is_some() && self.controller.volatile_write_cache && self.controller.version.0 >= 2 {
            self.scan.current = namespace;
            let command = admin::identify_independent_namespace(self.scan.nsid);
            return self.send_step(now, Step::IndependentNamespace, command);
        }
        self.scan.found.extend(namespace);
        self.next_namespace(now);
    }

    fn on_namespace(&mut self, now: Duration, data: &[u8]) {
        let nsid = self.scan.nsid;
        self.scan.current = Namespace::identify(nsid, data, &self.setup.identity, &self.controller);
        if self.scan.current.is_some() {
            self.send_step(now, Step::Descriptors, admin::identify_descriptors(nsid));
        } else {
            self.next_namespace(now);
        }
    }

    fn on_scanned(&mut self, now: Duration, change: Action) {
        if self.state != State::Ready {
            return self.become_ready(now);
        }
        self.actions.push_back(change);
        self.settle(now);
    }

    pub(super) fn settle(&mut self, now: Duration) {
        self.step = Step::Idle;
        self.step_deadline = None;
        self.scan_pace.end(now);
        self.ana.pace.end(now);
        if mem::take(&mut self.keep_alive.scan_again) {
            self.request_scan(now);
        }
        if mem::take(&mut self.ana.read_again) {
            self.request_ana(now);
        }
        if self.step == Step::Idle {
            self.schedule_rescan(now);
        }
    }

    /// A list that was refused, and namespaces that could not be described, are asked for again after a while.
    fn schedule_rescan(&mut self, now: Duration) {
        if self.scan.is_owed || !self.unknown_namespaces.is_empty() {
            self.keep_alive.scan_by(now.saturating_add(limits::RESCAN_DELAY));
        }
    }
}

/// Whether there is no such namespace, or the controller knows no such command (as of 1.2).
fn says_there_is_none(status: Status) -> bool {
    [Status::INVALID_NAMESPACE, Status::INVALID_FIELD, Status::INVALID_OPCODE]
        .iter()
        .any(|other| status.is(*other))
}

/// Adds a list to what is active, and says whether there may be another behind it. Its NSIDs grow, so a controller cannot
/// make us look at one twice.
fn take_active(data: &[u8], nsids: &mut Vec<Nsid>) -> Result<bool, AssociationError> {
    let list = IdList::ref_from_bytes(data).map_err(|_| AssociationError::Malformed {
        what: "the list of active namespaces",
        problem: "it is not 4096 bytes",
    })?;
    let before = nsids.len();
    for nsid in list.iter().map(Nsid) {
        let is_new = nsid != Nsid::ALL && nsids.last().is_none_or(|last| *last < nsid);
        if is_new && nsids.len() < limits::NAMESPACES_MAX {
            nsids.push(nsid);
        }
    }
    Ok(nsids.len() - before == IdList::COUNT_MAX)
}
