//! Cross-Controller Reset (NVMe Base 2.3): a controller that was lost may still carry out what it was sent. It is reset
//! through this one, which says when nothing of it is under way any more.

use super::{Action, Association, CommandRole, Reply, State};
use crate::{Qid, admin, limits};
use core::time::Duration;
use nvme_proto::Status;
use nvme_proto::admin::cross_controller_reset::{
    ControllerInstance, IMMEDIATE_RESET_SUCCESSFUL, ResetLogEntry, ResetLogHeader, ResetStatus,
};
use zerocopy::FromBytes;

/// A reset that is under way.
#[derive(Debug)]
pub(super) struct Reset {
    impacted: ControllerInstance,
    /// The command was answered: the log page says how it goes on.
    is_logged: bool,
    /// When the log page is read again, or the command is sent again.
    look_at: Option<Duration>,
    /// When it has failed.
    deadline: Duration,
}

impl Reset {
    pub(super) fn poll_timeout(&self) -> Duration {
        self.look_at.map_or(self.deadline, |at| at.min(self.deadline))
    }
}

impl Association {
    /// Resets another controller of the subsystem, which was lost. [`Action::ResetEnded`] follows. `false`: it cannot, or has not ended
    /// another one.
    pub fn reset(&mut self, now: Duration, impacted: ControllerInstance) -> bool {
        let Some(own) = self.controller.instance else { return false };
        if self.state != State::Ready || self.reset.is_some() || own.cntlid == impacted.cntlid {
            return false;
        }
        let deadline = now.saturating_add(self.config.admin_timeout);
        self.reset = Some(Reset { impacted, is_logged: false, look_at: None, deadline });
        self.send(Qid(0), CommandRole::Reset, admin::cross_controller_reset(impacted));
        true
    }

    pub(super) fn on_reset(&mut self, now: Duration, reply: Reply<'_>) {
        let Some(reset) = &mut self.reset else { return };
        // Another path asked for it before and was lost, or there are too many at once: that passes.
        let passing = [Status::CONTROLLER_RESET_IN_PROGRESS, Status::CONTROLLER_RESET_LIMIT_EXCEEDED];
        if !reset.is_logged && passing.contains(&reply.outcome.status) {
            reset.look_at = Some(now.saturating_add(limits::STATUS_POLL));
            return;
        }
        let status = if !reply.outcome.status.is_success() {
            ResetStatus::FAILED
        } else if reset.is_logged {
            logged(reply.data, reset.impacted).unwrap_or(ResetStatus::FAILED)
        } else if reply.outcome.dw0 & IMMEDIATE_RESET_SUCCESSFUL != 0 {
            ResetStatus::SUCCESSFUL
        } else {
            ResetStatus::IN_PROGRESS
        };
        match status {
            ResetStatus::IN_PROGRESS => {
                reset.is_logged = true;
                reset.look_at = Some(now.saturating_add(limits::STATUS_POLL));
            }
            status => self.end_reset(status == ResetStatus::SUCCESSFUL),
        }
    }

    pub(super) fn on_reset_timeout(&mut self, now: Duration) {
        let Some(reset) = &mut self.reset else { return };
        if reset.deadline <= now {
            return self.end_reset(false);
        }
        if reset.look_at.take_if(|at| *at <= now).is_some() {
            let command = match reset.is_logged {
                true => admin::reset_log(),
                false => admin::cross_controller_reset(reset.impacted),
            };
            self.send(Qid(0), CommandRole::Reset, command);
        }
    }

    fn end_reset(&mut self, successful: bool) {
        self.pending.retain(|(_, role)| *role != CommandRole::Reset);
        if let Some(Reset { impacted, .. }) = self.reset.take() {
            self.actions.push_back(Action::ResetEnded { impacted, successful });
        }
    }
}

/// How the reset stands: the last entry of that controller.
fn logged(page: &[u8], impacted: ControllerInstance) -> Option<ResetStatus> {
    let (header, entries) = ResetLogHeader::ref_from_prefix(page).ok()?;
    let entries = entries.chunks_exact(size_of::<ResetLogEntry>()).take(header.entries.get().into());
    let entries = entries.filter_map(|entry| ResetLogEntry::ref_from_bytes(entry).ok());
    let of_it =
        |entry: &&ResetLogEntry| entry.icid.get() == impacted.cntlid.0 && entry.ciu == impacted.uniquifier;
    entries.rev().find(of_it).map(|entry| ResetStatus(entry.ccrs))
}
