//! Shutdown, failure, the end.

use super::{Action, Association, AssociationError, State, Step};
use crate::admin;
use crate::{Outcome, Qid, Violation};
use core::time::Duration;
use nvme_proto::fabrics::property::{ControllerStatus, Property};

impl Association {
    /// A queue's connection is gone, or cannot take a command.
    pub fn on_disconnected(&mut self, _now: Duration, qid: Qid, cause: &str) {
        match self.state {
            // The controller may close the connections as it shuts down: that is what we want.
            State::ShuttingDown => self.close(),
            State::Closing | State::Closed => {}
            state => match self.failed_authentication() {
                Some(error) => self.fail(error),
                None => self.fail(AssociationError::Disconnected { qid, state, cause: cause.into() }),
            },
        }
    }

    /// Its user wants another association in its place.
    pub fn on_reset_request(&mut self, _now: Duration) {
        self.fail(AssociationError::ResetRequested);
    }

    /// A queue saw the controller break the protocol.
    pub fn on_violation(&mut self, _now: Duration, violation: Violation) {
        self.fail(violation.into());
    }

    /// A command of the caller's was not completed by its deadline: the association is given up.
    pub fn on_command_timeout(&mut self, _now: Duration, qid: Qid) {
        self.fail(AssociationError::CommandTimedOut { qid });
    }

    /// No memory can be exposed on a queue, and nothing in flight holds a key that could come back.
    pub fn on_no_key(&mut self, _now: Duration, qid: Qid, reason: &str) {
        self.fail(AssociationError::NoKey { qid, reason: reason.into() });
    }

    /// Ends the association in order: CC.SHN if the controller was enabled, then the connections.
    pub fn shutdown(&mut self, now: Duration) {
        match self.state {
            State::Ready | State::Identifying => self.notify_shutdown(now),
            State::Connecting(qid) | State::Authenticating(qid) if qid != Qid(0) => self.notify_shutdown(now),
            State::Connecting(_) | State::Authenticating(_) | State::Enabling => self.close(),
            State::ShuttingDown | State::Closing | State::Closed => {}
        }
    }

    /// After [`Action::CloseQueues`]: all queue pairs are gone.
    pub fn on_closed(&mut self, _now: Duration) {
        if self.state == State::Closing {
            self.state = State::Closed;
            self.actions.push_back(Action::Closed);
        }
    }

    /// The step took too long.
    pub(super) fn on_step_timeout(&mut self) {
        match self.state {
            // The controller had its time.
            State::ShuttingDown => self.close(),
            state => self.fail(AssociationError::TimedOut { state }),
        }
    }

    /// Only the first failure counts: what follows it is its consequence.
    pub(super) fn fail(&mut self, error: AssociationError) {
        match self.state {
            State::Closing | State::Closed => {}
            State::ShuttingDown => self.close(),
            _ => {
                // What was not yet done need not be done any more.
                self.actions.clear();
                self.actions.push_back(Action::Failed(error));
                self.close();
            }
        }
    }

    pub(super) fn on_shutdown_step(&mut self, now: Duration, outcome: Outcome) {
        if !outcome.status.is_success() {
            return self.close();
        }
        match self.step {
            Step::NotifyShutdown => {
                self.step = Step::AwaitShutdown;
                self.read_status();
            }
            _ if ControllerStatus(outcome.dw0).shutdown_complete() => self.close(),
            _ => self.look_again(now),
        }
    }

    fn notify_shutdown(&mut self, now: Duration) {
        self.state = State::ShuttingDown;
        // What the interrupted step was told no longer matters.
        self.pending
            .retain(|(_, role)| !matches!(role, super::CommandRole::Step | super::CommandRole::Reset));
        self.look_at = None;
        self.keep_alive.stop();
        self.ana.stop();
        self.reset = None;
        self.setup_deadline = None;
        self.step_deadline = Some(now.saturating_add(self.config.shutdown_timeout));
        let configuration = self.setup.configuration.with_normal_shutdown();
        self.send_step_within_deadline(
            Step::NotifyShutdown,
            admin::property_set(Property::CC, configuration.0),
        );
    }

    fn close(&mut self) {
        self.state = State::Closing;
        self.step = Step::Over;
        (self.step_deadline, self.setup_deadline, self.look_at) = (None, None, None);
        self.keep_alive.stop();
        self.ana.stop();
        self.reset = None;
        self.pending.clear();
        self.actions.push_back(Action::CloseQueues);
    }
}
