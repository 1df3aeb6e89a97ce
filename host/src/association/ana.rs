//! Asymmetric Namespace Access: how each namespace can be reached through this controller.

use super::pace::Pace;
use super::{Action, Association, AssociationError, Reply, State, Step};
use crate::{Nsid, Status, admin, limits};
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;
use nvme_proto::admin::ana::AnaPage;
use nvme_proto::admin::async_event::notice;
use nvme_proto::admin::log_page::{AnaState, LogPageId};

/// What a namespace's group is, and how it can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Access {
    nsid: Nsid,
    group: u32,
    state: AnaState,
}

/// The states as the log page gave them last, and what I/O has shown since.
#[derive(Debug, Default)]
pub(super) struct Ana {
    access: Vec<Access>,
    /// The page was read: a namespace that it does not name cannot be reached.
    known: bool,
    /// As much of the page as was read.
    page: Vec<u8>,
    /// When it was read last.
    read: Duration,
    /// When it is to be read.
    pub(super) read_at: Option<Duration>,
    /// A change was announced while something else was under way.
    pub(super) read_again: bool,
    /// How often it is read for what the controller announces.
    pub(super) pace: Pace,
    /// A group is between two states; that must be over by then.
    change_by: Option<Duration>,
}

impl Ana {
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.read_at.into_iter().chain(self.change_by).min()
    }

    pub(super) fn stop(&mut self) {
        (self.read_at, self.change_by) = (None, None);
    }
}

impl Association {
    /// How a namespace can be reached through this controller; optimized where it does not report it.
    #[must_use]
    pub fn access(&self, nsid: Nsid) -> AnaState {
        let found = self.ana.access.iter().find(|access| access.nsid == nsid);
        match found {
            Some(access) => access.state,
            None if self.ana.known => AnaState::INACCESSIBLE,
            None => AnaState::OPTIMIZED,
        }
    }

    /// A command for this namespace was answered with a status that tells of another state than is known here. The page is read
    /// again, but not without end: until then the namespace's group is in the state that the status names.
    pub fn on_ana_status(&mut self, now: Duration, nsid: Nsid, status: Status) {
        let Some(state) = state_of(status).filter(|_| self.controller.ana) else { return };
        let known = self.ana.access.iter().find(|access| access.nsid == nsid).map(|access| access.group);
        match known {
            Some(group) => {
                let of_it = self.ana.access.iter_mut().filter(|access| access.group == group);
                of_it.for_each(|access| access.state = state);
            }
            None => {
                let group = self.namespace(nsid).map_or(0, |namespace| namespace.ana_group);
                self.ana.access.push(Access { nsid, group, state });
            }
        }
        let earliest = self.ana.read.saturating_add(limits::ANA_READ_INTERVAL);
        self.ana.read_at.get_or_insert(earliest.max(now));
    }

    pub(super) fn on_ana_timeout(&mut self, now: Duration) {
        if self.state != State::Ready {
            return;
        }
        if self.ana.change_by.is_some_and(|by| by <= now) {
            return self.fail(AssociationError::AnaChange { after: self.controller.ana_transition });
        }
        if self.ana.read_at.take_if(|at| *at <= now).is_some() {
            self.request_ana(now);
        }
    }

    /// Reads the page as soon as nothing else is under way.
    pub(super) fn request_ana(&mut self, now: Duration) {
        if self.step != Step::Idle {
            self.ana.read_again = true;
            return;
        }
        match self.ana.pace.begin(now) {
            Ok(()) => self.read_ana(now),
            Err(at) => self.ana.read_at = Some(self.ana.read_at.map_or(at, |before| before.min(at))),
        }
    }

    /// Reads the page from its start.
    pub(super) fn read_ana(&mut self, now: Duration) {
        self.ana.read_again = false;
        self.ana.page.clear();
        self.read_ana_piece(now);
    }

    fn read_ana_piece(&mut self, now: Duration) {
        let offset = self.ana.page.len() as u64;
        let page = LogPageId::ANA;
        let command = admin::get_log_page(page, Nsid::ALL, offset, limits::ADMIN_DATA_MAX);
        self.send_step(now, Step::Access, command);
    }

    /// A piece of the page came, or could not be read: then what is known stays.
    pub(super) fn on_ana_step(&mut self, now: Duration, reply: Reply<'_>) {
        if reply.outcome.status.is_success() {
            self.ana.page.extend_from_slice(reply.data);
            let more = is_cut_off(&self.ana.page) && self.setup.identity.extended_logs;
            if more && self.ana.page.len() < limits::ANA_LOG_MAX {
                return self.read_ana_piece(now);
            }
            self.take_page(now);
        } else if crate::status::is_retryable(reply.outcome.status) {
            self.ana.read_at = Some(now.saturating_add(limits::RESCAN_DELAY));
        }
        self.on_access_read(now);
    }

    fn take_page(&mut self, now: Duration) {
        let mut access = Vec::new();
        let Some(page) = AnaPage::parse(&self.ana.page) else { return };
        for group in page {
            for nsid in group.nsids().take(limits::NAMESPACES_MAX) {
                access.push(Access { nsid, group: group.group_id, state: group.state });
            }
        }
        self.ana.known = !is_cut_off(&self.ana.page);
        (self.ana.page, self.ana.read) = (Vec::new(), now);
        if mem::replace(&mut self.ana.access, access) != self.ana.access && self.state == State::Ready {
            self.actions.push_back(Action::AccessChanged);
        }
        // A change that is under way may end without an event that reaches us.
        let changing =
            self.namespaces.iter().any(|namespace| self.access(namespace.nsid) == AnaState::CHANGE);
        let announced = self.setup.identity.events & notice::ANA_CHANGE != 0;
        if changing || !announced {
            self.ana.read_at = Some(now.saturating_add(limits::RESCAN_DELAY));
        }
        if changing {
            // Kernel hosts wait twice the time, too.
            let most = self.controller.ana_transition.saturating_mul(2).max(limits::RESCAN_DELAY);
            self.ana.change_by.get_or_insert(now.saturating_add(most));
        } else {
            self.ana.change_by = None;
        }
    }
}

/// Whether the page goes on behind these bytes.
fn is_cut_off(page: &[u8]) -> bool {
    AnaPage::parse(page).is_some_and(|mut page| {
        page.by_ref().for_each(drop);
        page.groups_left() > 0
    })
}

/// The state that a status tells of.
fn state_of(status: Status) -> Option<AnaState> {
    if status.is(Status::ANA_INACCESSIBLE) {
        Some(AnaState::INACCESSIBLE)
    } else if status.is(Status::ANA_PERSISTENT_LOSS) {
        Some(AnaState::PERSISTENT_LOSS)
    } else if status.is(Status::ANA_TRANSITION) {
        Some(AnaState::CHANGE)
    } else {
        None
    }
}
