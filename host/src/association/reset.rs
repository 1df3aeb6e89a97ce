//! Cross-Controller Reset (NVMe Base 2.3): a controller that was lost may still carry out what it was sent. It is reset
//! through the new one, which says when nothing of it is under way any more.

use super::{Association, AssociationError, Reply, Step};
use crate::{admin, limits};
use core::time::Duration;
use nvme_proto::admin::cross_controller_reset::{
    ControllerInstance, IMMEDIATE_RESET_SUCCESSFUL, ResetLogEntry, ResetLogHeader, ResetStatus,
};
use zerocopy::FromBytes;

impl Association {
    /// Resets the controller that was lost.
    pub(super) fn reset_impacted(&mut self, now: Duration) -> Result<(), AssociationError> {
        let impacted = self.impacted()?;
        match self.controller.instance {
            None => return Err(not_reset(impacted, "it has no Cross-Controller Reset")),
            Some(own) if own == impacted => return Err(not_reset(impacted, "it is the same")),
            // In another life: it has been reset since.
            Some(own) if own.cntlid == impacted.cntlid => {
                self.set_up_io(now);
                return Ok(());
            }
            Some(_) => {}
        }
        self.send_step(now, Step::Reset, admin::cross_controller_reset(impacted));
        // No longer than it would take without.
        if let Some(impacted) = &self.config.impacted {
            let until = impacted.until.max(now.saturating_add(limits::RESET_TIME_MIN));
            self.step_deadline = Some(self.step_deadline.map_or(until, |deadline| deadline.min(until)));
        }
        Ok(())
    }

    pub(super) fn on_reset_step(&mut self, now: Duration, reply: Reply<'_>) -> Result<(), AssociationError> {
        let impacted = self.impacted()?;
        if !reply.outcome.status.is_success() {
            return Err(not_reset(impacted, "it refused"));
        }
        let status = match self.step {
            Step::Reset if reply.outcome.dw0 & IMMEDIATE_RESET_SUCCESSFUL != 0 => ResetStatus::SUCCESSFUL,
            Step::Reset => ResetStatus::IN_PROGRESS,
            _ => {
                logged(reply.data, impacted).ok_or_else(|| not_reset(impacted, "its log does not name it"))?
            }
        };
        match status {
            ResetStatus::SUCCESSFUL => self.set_up_io(now),
            ResetStatus::IN_PROGRESS => {
                self.step = Step::AwaitReset;
                self.look_again(now);
            }
            _ => return Err(not_reset(impacted, "it failed")),
        }
        Ok(())
    }

    pub(super) fn read_reset_log(&mut self) {
        self.send_step_within_deadline(Step::AwaitReset, admin::reset_log());
    }

    fn impacted(&self) -> Result<ControllerInstance, AssociationError> {
        let instance = self.config.impacted.and_then(|impacted| impacted.instance);
        let cntlid = crate::Cntlid::DYNAMIC;
        instance.ok_or(AssociationError::NotReset { cntlid, why: "it had no Cross-Controller Reset" })
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

fn not_reset(impacted: ControllerInstance, why: &'static str) -> AssociationError {
    AssociationError::NotReset { cntlid: impacted.cntlid, why }
}
