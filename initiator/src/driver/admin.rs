//! Admin commands and raw commands of the user's, for whichever path can take them.

use super::heads::{Admission, Heads};
use super::operation::OTHERS;
use super::path::{Owner, Path};
use super::policy::PathSet;
use super::{Driver, DriverEvent};
use crate::Effect;
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::{Nsid, Status};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{Association, Fate, Outcome, Tries, status};
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

/// Why an admin command or a raw command has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unanswered {
    /// It was not sent: no path led to what it is for, for as long as I/O waits.
    NotSent,
    /// It was sent, and its association ended first: nobody knows whether it took effect.
    Lost,
    /// Whoever waits for it does not wait any longer. If it was sent it goes on.
    TimedOut {
        /// Nothing of it was done: it was not sent, or was refused whenever it was.
        was_waiting: bool,
    },
    /// It was not sent: the connection was over.
    Closed,
}

impl Unanswered {
    /// What the command may have done, if it may have done this when it was sent.
    pub(crate) fn effect(self, sent: Effect) -> Effect {
        match self {
            Self::NotSent | Self::Closed | Self::TimedOut { was_waiting: true } => Effect::Nothing,
            Self::Lost | Self::TimedOut { was_waiting: false } => sent,
        }
    }
}

/// What an admin command or a raw command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// The controller, whatever namespace it has under the NSID by then.
    Controller,
    /// The disk that was opened under its NSID ([`Driver::open`]): where another is in its place it waits, and fails,
    /// as an operation does.
    OpenedDisk,
    /// A controller that has no namespace under its NSID, to be told so: no disk that this host has heard of there gets it.
    NoDisk,
}

/// To which kind of queue a command goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// The Admin queue.
    Admin,
    /// An I/O queue. The command's data are at most [`crate::raw::IO_DATA_MAX`].
    Io,
}

#[derive(Debug)]
struct Waiting {
    number: u32,
    queue: QueueKind,
    recipient: Recipient,
    command: AdminCommand,
    /// How often it failed, was put back for a while, and, since, at once.
    failed: u8,
    delays: u8,
    hops: u8,
    /// When it was refused first.
    refused_at: Option<Duration>,
    /// It is not sent before.
    not_before: Option<Duration>,
    /// It waits for a path until then.
    sent_by: Option<Duration>,
    /// It found none when it was last to be sent.
    finds_no_path: bool,
    /// Nobody waits for it any longer.
    withdrawn: bool,
}

impl Waiting {
    fn nsid(&self) -> Nsid {
        self.command.command.sqe().nsid()
    }
}

/// Commands that wait for a path, or for room.
#[derive(Debug, Default)]
pub(super) struct AdminCommands {
    waiting: Vec<Waiting>,
    /// Those that were sent.
    sent: Vec<Waiting>,
}

impl AdminCommands {
    /// When one that was refused may be sent again, or one that finds no path has waited long enough.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let due = |waiting: &Waiting| match waiting.finds_no_path {
            true => waiting.sent_by,
            false => waiting.not_before,
        };
        self.waiting.iter().filter_map(due).min()
    }
}

impl<T: Transport> Driver<T> {
    /// Takes an admin command or a raw command of the user's; [`DriverEvent::Admin`] follows with this number. With
    /// several paths it goes to the first one that is ready and leads to its namespace, else to the first that is
    /// ready, if it is for the controller. What is for a disk, to an I/O queue, is sent again where its status says that nothing of it
    /// was done and time or another path may cure that, for as long as operations are.
    pub fn submit_command(
        &mut self,
        number: u32,
        queue: QueueKind,
        recipient: Recipient,
        command: AdminCommand,
    ) {
        if self.may_queue() {
            self.admin.waiting.push(Waiting {
                number,
                queue,
                recipient,
                command,
                failed: 0,
                delays: 0,
                hops: 0,
                refused_at: None,
                not_before: None,
                sent_by: None,
                finds_no_path: false,
                withdrawn: false,
            });
        } else {
            self.events.push_back(DriverEvent::Admin(number, Err(Unanswered::NotSent)));
        }
    }

    /// Has a command that was just submitted wait for a path until then at most; then [`Unanswered::NotSent`] follows, or, if it was
    /// refused before, that status.
    pub fn bound_command(&mut self, number: u32, sent_by: Option<Duration>) {
        if let Some(waiting) = self.admin.waiting.iter_mut().find(|waiting| waiting.number == number) {
            waiting.sent_by = sent_by;
        }
    }

    /// Forgets a command that was not sent yet, or not again: nobody waits for it any longer. No event follows then. Whether
    /// it was such a one: nothing of it was done.
    pub fn withdraw_command(&mut self, number: u32) -> bool {
        let waiting = self.admin.waiting.extract_if(.., |waiting| waiting.number == number);
        let was_waiting = waiting.count() > 0;
        if let Some(sent) = self.admin.sent.iter_mut().find(|sent| sent.number == number) {
            sent.withdrawn = true;
        }
        was_waiting
    }

    /// Sends the user's commands, as far as there is room. Nobody knows what they change: while anything is fenced, they wait.
    pub(super) fn issue_admin(&mut self, now: Duration) {
        if self.admin.waiting.is_empty() {
            return;
        }
        for waiting in &mut self.admin.waiting {
            waiting.not_before.take_if(|at| *at <= now);
            waiting.finds_no_path = false;
        }
        let (heads, paths) = (&self.heads, &self.paths);
        fail(&mut self.admin.waiting, &mut self.events, |waiting| match waiting.recipient {
            Recipient::Controller => false,
            Recipient::OpenedDisk => matches!(heads.admission(waiting.nsid()), Admission::Fail(_)),
            Recipient::NoDisk => has_disk(paths, waiting.nsid()),
        });
        let is_fenced = !self.fences.is_empty();
        let (heads, paths) = (&self.heads, &mut self.paths);
        let mut full = [false; 2];
        let AdminCommands { waiting, sent } = &mut self.admin;
        let is_sent = |waiting: &mut Waiting| {
            let full = &mut full[usize::from(waiting.queue == QueueKind::Io)];
            if *full || waiting.not_before.is_some() {
                return false;
            }
            let Some(path) = path_for(heads, paths, waiting) else {
                waiting.finds_no_path = true;
                return false;
            };
            if is_fenced {
                return false;
            }
            *full = !send(now, path, waiting);
            !*full
        };
        sent.extend(waiting.extract_if(.., is_sent));
        // What has a path may wait on for room, or for a fence: its time is not for these.
        let is_late =
            |waiting: &Waiting| waiting.finds_no_path && waiting.sent_by.is_some_and(|at| at <= now);
        fail(waiting, &mut self.events, is_late);
    }

    /// A command that was sent has ended. What its status says of the way to its namespace counts for the next one, and for
    /// operations.
    pub(super) fn on_admin_reply(
        &mut self,
        now: Duration,
        path: usize,
        number: u32,
        reply: Result<AdminReply, Unanswered>,
    ) {
        let sent = self.admin.sent.iter().position(|sent| sent.number == number);
        let sent = sent.map(|at| self.admin.sent.swap_remove(at));
        if let (Some(sent), Ok(AdminReply { outcome: Outcome { status, .. }, .. })) = (sent, &reply) {
            if status::is_of_path(*status) {
                self.paths[path].on_ana_status(now, sent.nsid(), *status);
                self.check_heads(now, None);
            }
            if status::is_without_effect(*status)
                && let Some(again) = self.again(now, path, sent, *status)
            {
                return self.admin.waiting.push(again);
            }
        }
        self.events.push_back(DriverEvent::Admin(number, reply));
    }

    /// A command that was refused before anything of it was done, if it is sent again, as an operation is. (What is for the
    /// controller is for this one.)
    fn again(&self, now: Duration, path: usize, mut sent: Waiting, status: Status) -> Option<Waiting> {
        let is_for_disk = sent.recipient == Recipient::OpenedDisk && sent.queue == QueueKind::Io;
        if !is_for_disk || sent.withdrawn {
            return None;
        }
        let refused_at = *sent.refused_at.get_or_insert(now);
        sent.failed = sent.failed.saturating_add(u8::from(!status::is_waiting(status)));
        let admission = self.heads.admission(sent.nsid());
        let elsewhere = matches!(admission, Admission::On(paths) if paths.has_other_than(path));
        if status::is_of_path(status) && elsewhere && usize::from(sent.hops) + 1 < self.paths.len() {
            sent.hops = sent.hops.saturating_add(1);
        } else {
            let waited = now.saturating_sub(refused_at);
            let tries = Tries { failed: sent.failed, delayed: sent.delays, waited };
            let latest = sent.sent_by.unwrap_or(Duration::MAX);
            match self.paths[path].fate_of_failed(status, tries) {
                // The last try is at the end of its time.
                Fate::Requeue(delay) if now < latest => {
                    (sent.delays, sent.hops) = (sent.delays.saturating_add(1), 0);
                    sent.not_before = Some(now.saturating_add(delay).min(latest));
                }
                _ => return None,
            }
        }
        Some(sent)
    }

    pub(super) fn fail_admin(&mut self) {
        fail(&mut self.admin.waiting, &mut self.events, |_| true);
    }
}

/// Sends a command; `false` when there is no room.
fn send<T: Transport>(now: Duration, path: &mut Path<T>, waiting: &Waiting) -> bool {
    let (queue, timeout) = match waiting.queue {
        QueueKind::Admin => (path.has_admin_room().then_some(0), path.config.association.admin_timeout),
        QueueKind::Io => (path.next_queue(OTHERS, 1), path.config.io_timeout),
    };
    let (owner, deadline) = (Owner::Admin(waiting.number), Some(now.saturating_add(timeout)));
    queue.is_some_and(|queue| path.send_admin(now, queue, owner, &waiting.command, deadline))
}

/// Where a command goes: the first path that is ready, of those that lead to its namespace if there are any. What is
/// for a disk goes to a path that shows that disk only, while nothing says that it may be another by now.
fn path_for<'a, T: Transport>(
    heads: &Heads,
    paths: &'a mut [Path<T>],
    waiting: &Waiting,
) -> Option<&'a mut Path<T>> {
    let nsid = waiting.nsid();
    let leads = match heads.admission(nsid) {
        Admission::On(paths) => paths,
        Admission::Fail(_) => PathSet::default(),
    };
    let shows_disk = |number: usize, association: &Association| {
        !association.is_scanning()
            && association.namespace(nsid).is_some()
            && !heads.is_foreign_on(nsid, number)
    };
    // What takes an I/O queue waits for a path with access, as an operation does.
    let has_access = |number: usize| waiting.queue == QueueKind::Admin || leads.contains(number);
    let takes = |(number, path): &(usize, &mut Path<T>)| {
        let is_disk = |association| shows_disk(*number, association) && has_access(*number);
        let association = path.association.as_ref();
        path.is_ready()
            && match waiting.recipient {
                Recipient::Controller => true,
                Recipient::OpenedDisk => association.is_some_and(is_disk),
                Recipient::NoDisk => association.is_some_and(|it| lacks(it, nsid)),
            }
    };
    let able = paths.iter_mut().enumerate().filter(takes);
    able.min_by_key(|(number, _)| !leads.contains(*number)).map(|(_, path)| path)
}

/// Whether a controller has said that it has nothing there.
fn lacks(association: &Association, nsid: Nsid) -> bool {
    !association.is_scanning() && association.namespace(nsid).is_none()
}

/// Whether every path that is ready shows a namespace there.
fn has_disk<T: Transport>(paths: &[Path<T>], nsid: Nsid) -> bool {
    let mut ready =
        paths.iter().filter(|path| path.is_ready()).filter_map(|path| path.association.as_ref()).peekable();
    ready.peek().is_some() && ready.all(|association| association.namespace(nsid).is_some())
}

/// Ends the commands that are meant, of which nothing was sent.
fn fail(waiting: &mut Vec<Waiting>, events: &mut VecDeque<DriverEvent>, is_meant: impl Fn(&Waiting) -> bool) {
    waiting.retain(|waiting| {
        let fails = is_meant(waiting);
        if fails {
            events.push_back(DriverEvent::Admin(waiting.number, Err(Unanswered::NotSent)));
        }
        !fails
    });
}
