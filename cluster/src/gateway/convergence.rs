//! Makes what is served what the configuration says.

use super::{Gateway, Purpose};
use crate::{Action, Reply};
use core::time::Duration;

impl Gateway {
    pub(super) fn converge(&mut self, now: Duration) {
        if self.converging || self.configuration.version() == 0 || !self.membership.is_member() {
            return;
        }
        // Items that are broken are tried again now and then: the image of a namespace may be there later.
        if !self.configuration.is_pending() && !self.configuration.has_broken() {
            return;
        }
        // What is new need not wait for that.
        let is_new = self.configuration.is_pending();
        let from = if is_new { self.converge_from } else { self.converge_from.max(self.broken_from) };
        if now < from {
            return self.wake_at(from);
        }
        self.converging = true;
        let state = self.configuration.state();
        let op = self.begin(Purpose::Converge { state });
        self.actions.push_back(Action::Converge { op });
    }

    pub(super) fn on_converged(&mut self, now: Duration, state: (u64, u64), reply: Reply) {
        self.converging = false;
        match reply {
            Reply::Converged(broken) => {
                self.broken_from = now + self.timing.look;
                self.configuration.on_converged(state, broken);
            }
            _ => self.converge_from = now + self.timing.look,
        }
    }
}
