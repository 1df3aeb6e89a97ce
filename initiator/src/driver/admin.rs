//! Admin commands and raw commands of the user's, for whichever path can take them.

use super::heads::{Admission, Heads};
use super::operation::OTHERS;
use super::path::{Owner, Path};
use super::policy::PathSet;
use super::{Driver, DriverEvent};
use crate::transport::Transport;
use core::time::Duration;
use nvmf_host::Outcome;
use nvmf_host::admin::AdminCommand;
use std::collections::VecDeque;

/// The reply to an admin command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdminReply {
    /// How it ended.
    pub outcome: Outcome,
    /// What the controller sent.
    pub data: Vec<u8>,
}

/// Commands that wait for a path, or for room.
#[derive(Debug, Default)]
pub(super) struct AdminCommands {
    waiting: VecDeque<(u32, AdminCommand)>,
    /// Raw commands for I/O queues.
    io_waiting: VecDeque<(u32, AdminCommand)>,
}

impl<T: Transport> Driver<T> {
    /// Takes an admin command of the user's; [`DriverEvent::Admin`] follows with this number. With several paths it goes to the first
    /// one that is ready and leads to its namespace, else to the first that is ready.
    pub fn submit_admin(&mut self, number: u32, command: AdminCommand) {
        if self.may_queue() {
            self.admin.waiting.push_back((number, command));
        } else {
            self.events.push_back(DriverEvent::Admin(number, None));
        }
    }

    /// Takes a raw command for an I/O queue; [`DriverEvent::Admin`] follows with this number. Its data are at most
    /// [`crate::raw::IO_DATA_MAX`].
    pub fn submit_raw(&mut self, number: u32, command: AdminCommand) {
        if self.may_queue() {
            self.admin.io_waiting.push_back((number, command));
        } else {
            self.events.push_back(DriverEvent::Admin(number, None));
        }
    }

    /// Sends the user's commands, as far as there is room. Nobody knows what they change: while anything is fenced, they wait.
    pub(super) fn issue_admin(&mut self, now: Duration) {
        let AdminCommands { waiting, io_waiting } = &mut self.admin;
        if (waiting.is_empty() && io_waiting.is_empty()) || !self.fences.is_empty() {
            return;
        }
        let (heads, paths) = (&self.heads, &mut self.paths);
        while let Some((number, command)) = waiting.front()
            && let Some(path) = path_for(heads, paths, command)
            && path.has_admin_room()
        {
            let deadline = Some(now.saturating_add(path.config.association.admin_timeout));
            if !path.send_admin(now, 0, Owner::Admin(*number), command, deadline) {
                break;
            }
            waiting.pop_front();
        }
        while let Some((number, command)) = io_waiting.front()
            && let Some(path) = path_for(heads, paths, command)
            && let Some(queue) = path.next_queue(OTHERS, 1)
        {
            let deadline = Some(now.saturating_add(path.config.io_timeout));
            if !path.send_admin(now, queue, Owner::Admin(*number), command, deadline) {
                break;
            }
            io_waiting.pop_front();
        }
    }

    pub(super) fn fail_admin(&mut self) {
        for (number, _) in self.admin.waiting.drain(..).chain(self.admin.io_waiting.drain(..)) {
            self.events.push_back(DriverEvent::Admin(number, None));
        }
    }
}

/// Where a command goes: the first path that is ready, of those that lead to its namespace if there are any.
fn path_for<'a, T: Transport>(
    heads: &Heads,
    paths: &'a mut [Path<T>],
    command: &AdminCommand,
) -> Option<&'a mut Path<T>> {
    let leads = match heads.admission(command.command.sqe().nsid()) {
        Admission::On(paths) => paths,
        Admission::Fail(_) => PathSet::default(),
    };
    let ready = paths.iter_mut().enumerate().filter(|(_, path)| path.is_ready());
    ready.min_by_key(|(number, _)| !leads.contains(*number)).map(|(_, path)| path)
}
