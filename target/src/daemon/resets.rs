//! Cross-Controller Resets: the impacted association ends, and nobody is told so before its last command is over.

use super::workers::{Common, publish};
use crate::barrier::{Barrier, Scope};
use crate::mailbox::Mailboxes;
use crate::message::{Answered, Origin};
use crate::thread::Clock;
use crate::transport::Detached;
use core::time::Duration;
use nvme_proto::Status;
use nvmf_subsystem::{Answer, AssociationKey, Registry, ResetQuestion};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// How long a command waits for its reset to be over. After that it is answered, and the log page tells the rest.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A reset that takes longer has failed: a device does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Resets that are under way.
pub(super) struct Resets {
    registry: Arc<Mutex<Registry>>,
    /// They end with the daemon.
    mailboxes: Weak<Mailboxes<Detached>>,
    clock: Clock,
    waiting: Vec<Waiting>,
}

/// An association that was told to end.
struct Waiting {
    question: ResetQuestion,
    impacted: AssociationKey,
    /// Who waits for the answer; `None` once it was given.
    origin: Option<Origin>,
    barrier: Arc<Barrier>,
    since: Duration,
}

impl Resets {
    pub(super) fn new(common: &Common) -> Self {
        Self {
            registry: Arc::clone(&common.registry),
            mailboxes: Arc::downgrade(&common.mailboxes),
            clock: common.clock,
            waiting: Vec::new(),
        }
    }

    /// Whether one is under way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Ends the association that a command names.
    pub(super) fn take_up(&mut self, question: ResetQuestion, origin: Origin) {
        let Some(mailboxes) = self.mailboxes.upgrade() else { return };
        let reset = {
            let mut registry = self.registry();
            let reset = registry.reset(&question);
            publish(&mut registry, &mailboxes);
            reset
        };
        let impacted = match reset {
            Ok(Some(impacted)) => impacted,
            Ok(None) => return self.reply(&origin, Ok(true)),
            Err(status) => return self.reply(&origin, Err(status)),
        };
        if self.waiting.iter().any(|other| other.impacted == impacted) {
            return self.reply(&origin, Err(Status::CONTROLLER_RESET_IN_PROGRESS));
        }
        tracing::info!(
            "host {} has controller {} of {} reset through controller {}",
            question.association.host_nqn(),
            impacted.cntlid.0,
            question.association.subsystem_nqn(),
            question.association.key().cntlid.0,
        );
        let barrier = mailboxes.barrier(Scope { associations: [impacted].into(), ..Scope::notices() });
        // Mostly reached at once.
        let _ = barrier.wait(Duration::from_millis(1));
        let since = self.clock.now();
        self.waiting.push(Waiting { question, impacted, origin: Some(origin), barrier, since });
    }

    /// Answers the commands whose reset is over or takes its time, and lets the log page know of the others.
    pub(super) fn answer_those_that_are_over(&mut self) {
        let now = self.clock.now();
        let is_over = |it: &mut Waiting| {
            it.barrier.is_reached() || now.saturating_sub(it.since) >= TIMEOUT && it.origin.is_none()
        };
        let over: Vec<_> = self.waiting.extract_if(.., is_over).collect();
        for Waiting { question, impacted, origin, barrier, .. } in over {
            let successful = barrier.is_reached();
            if !successful {
                too_late(&question, impacted);
            }
            match origin {
                Some(origin) => self.reply(&origin, Ok(true)),
                None => self.tell(&question, successful),
            }
        }
        let (mailboxes, waiting) = (&self.mailboxes, &mut self.waiting);
        for it in waiting.iter_mut().filter(|it| now.saturating_sub(it.since) >= ANSWER_WITHIN) {
            if let Some(origin) = it.origin.take() {
                reply(mailboxes, &origin, Ok(false));
            }
        }
    }

    fn tell(&self, question: &ResetQuestion, successful: bool) {
        let Some(mailboxes) = self.mailboxes.upgrade() else { return };
        let mut registry = self.registry();
        registry.on_reset_over(question, successful);
        publish(&mut registry, &mailboxes);
    }

    fn reply(&self, origin: &Origin, result: Result<bool, Status>) {
        reply(&self.mailboxes, origin, result);
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no panic happened under the registry's lock")
    }
}

fn reply(mailboxes: &Weak<Mailboxes<Detached>>, origin: &Origin, result: Result<bool, Status>) {
    if let Some(mailboxes) = mailboxes.upgrade() {
        let &Origin { worker, place, serial } = origin;
        mailboxes.answer(worker, Answered { place, serial, answer: Answer::Reset(result) });
    }
}

fn too_late(question: &ResetQuestion, impacted: AssociationKey) {
    tracing::error!(
        "the reset of controller {} of {} that host {} asked for has failed: its commands are still in flight after \
         {TIMEOUT:?}, or a worker does not turn",
        impacted.cntlid.0,
        question.association.subsystem_nqn(),
        question.association.host_nqn(),
    );
}
