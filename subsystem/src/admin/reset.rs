//! Cross-Controller Reset: the resets that a host asked this controller for, and how they ended.

use super::{AdminKind, Notification};
use crate::Page;
use crate::controller::Controller;
use crate::limits::CROSS_CONTROLLER_RESETS_MAX;
use crate::question::{Question, ResetQuestion};
use crate::ticket::{Kind, Outcome, Reply};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use nvme_proto::admin::cross_controller_reset::{
    ControllerInstance, CrossControllerReset, IMMEDIATE_RESET_SUCCESSFUL, LOG_ENTRIES_MAX, ResetLogEntry,
    ResetLogHeader, ResetStatus,
};
use nvme_proto::{Sqe, Status};
use zerocopy::IntoBytes;

/// The resets that a controller was asked for.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    /// Commands that are not answered.
    asked: usize,
    /// The log page: those that were not over when their command was answered.
    entries: Vec<ResetLogEntry>,
}

pub(crate) fn on_reset(controller: &mut Controller, sqe: &Sqe) -> Outcome {
    let impacted = CrossControllerReset::parse(sqe).impacted;
    let resets = &mut controller.resets;
    let is_under_way = |entry: &&ResetLogEntry| entry.ccrs == ResetStatus::IN_PROGRESS.0;
    let under_way = resets.asked + resets.entries.iter().filter(is_under_way).count();
    if under_way >= usize::from(CROSS_CONTROLLER_RESETS_MAX) {
        return Err(Status::CONTROLLER_RESET_LIMIT_EXCEEDED);
    }
    // Each command that is not answered may yet need a place.
    if resets.entries.len() + resets.asked >= LOG_ENTRIES_MAX {
        return Err(Status::CONTROLLER_RESET_LOG_PAGE_FULL);
    }
    resets.asked += 1;
    let association = Arc::clone(&controller.association);
    let question = Question::Reset(ResetQuestion { association, impacted });
    Ok(Reply::Ask { kind: Kind::Admin(AdminKind::Reset(impacted)), question: Box::new(question) })
}

/// The command is answered. `Ok(false)`: the reset is under way, and [`on_over`] follows.
pub(crate) fn on_answer(
    controller: &mut Controller,
    impacted: &ControllerInstance,
    result: Result<bool, Status>,
) -> Outcome {
    controller.resets.asked = controller.resets.asked.saturating_sub(1);
    if result? {
        return Ok(Reply::Done(IMMEDIATE_RESET_SUCCESSFUL.into()));
    }
    let acid = controller.association.key.cntlid;
    controller.resets.entries.push(ResetLogEntry::new(impacted, acid, ResetStatus::IN_PROGRESS));
    Ok(Reply::Done(0))
}

/// A reset that was under way is over.
pub(crate) fn on_over(controller: &mut Controller, impacted: &ControllerInstance, status: ResetStatus) {
    let acid = controller.association.key.cntlid;
    let under_way = ResetLogEntry::new(impacted, acid, ResetStatus::IN_PROGRESS);
    // None: the controller was reset itself, and has forgotten it.
    if let Some(entry) = controller.resets.entries.iter_mut().find(|entry| **entry == under_way) {
        entry.ccrs = status.0;
        controller.events.raise(Notification::CrossControllerReset);
    }
}

impl Resets {
    /// The log page, and its length.
    pub(crate) fn page(&self) -> (Page, u64) {
        let (head, entries) = (size_of::<ResetLogHeader>(), self.entries.as_bytes());
        let page = Page::build(|out| {
            let count = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
            out[..head].copy_from_slice(ResetLogHeader::new(count).as_bytes());
            out[head..head + entries.len()].copy_from_slice(entries);
        });
        (page, (head + entries.len()) as u64)
    }

    /// Forgets those that are over.
    pub(crate) fn remove_completed(&mut self) {
        self.entries.retain(|entry| entry.ccrs == ResetStatus::IN_PROGRESS.0);
    }

    /// The controller is reset itself. Commands that are not answered stay.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

const _: () = assert!(size_of::<ResetLogHeader>() + LOG_ENTRIES_MAX * size_of::<ResetLogEntry>() <= 4096);
