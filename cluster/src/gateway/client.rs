//! The control plane's client of the store, which is made anew where it is refused.

use super::membership::Membership;
use super::{Gateway, Purpose};
use crate::{Action, OpId};
use core::time::Duration;

/// So many clients are tried by a gateway that stops, and is refused.
const CLIENTS_TO_STOP: u32 = 3;

impl Gateway {
    pub(super) fn on_control_blocklisted(&mut self, now: Duration, op: OpId) {
        if matches!(self.membership, Membership::Reconnecting | Membership::Stopped) {
            return;
        }
        if !self.gives_away_by_another_client(now, op) {
            self.step_down(now, Membership::Reconnecting);
            self.want_client(now);
        }
    }

    /// The clients of the ANA groups are as old, and may be refused what the new one of the control plane may: with the lease
    /// alone they would be served again by clients that fail. So they are taken anew.
    pub(super) fn on_control_outdated(&mut self, now: Duration, op: OpId) {
        if matches!(self.membership, Membership::Reconnecting | Membership::Stopped) {
            return;
        }
        if !self.gives_away_by_another_client(now, op) {
            self.step_down(now, Membership::Reconnecting);
            self.own.reconnect_at = Some(now);
        }
    }

    /// To give groups away takes the control plane only. So who stops stays a member, and has another client for that; unless
    /// those are refused as well.
    fn gives_away_by_another_client(&mut self, now: Duration, op: OpId) -> bool {
        if !self.stopping || !self.membership.is_member() {
            return false;
        }
        if op < self.own.client_from || self.is_reconnecting() {
            return true;
        }
        let is_tried = self.own.reconnects < CLIENTS_TO_STOP;
        if is_tried {
            self.want_client(now);
        }
        is_tried
    }

    /// At once for the first time. Where the whole machine is fenced, each new client is.
    fn want_client(&mut self, now: Duration) {
        let again = self.own.reconnects.checked_sub(1);
        let pause = again.map_or(Duration::ZERO, |more| self.timing.pause(more));
        self.own.reconnect_at = Some(now + pause.min(self.timing.retry_max / 4));
        self.own.reconnects += 1;
    }

    /// It waits for another client, and may write nothing until then.
    pub(super) fn is_reconnecting(&self) -> bool {
        let is_under_way = |purpose: &Purpose| matches!(purpose, Purpose::Reconnect);
        self.own.reconnect_at.is_some() || self.operations.values().any(is_under_way)
    }

    /// Asks for another client of the store when it is time.
    pub(super) fn reconnect(&mut self, now: Duration) {
        match self.own.reconnect_at {
            Some(at) if at > now => self.wake_at(at),
            Some(_) => {
                self.own.reconnect_at = None;
                let op = self.begin(Purpose::Reconnect);
                self.actions.push_back(Action::ReconnectControl { op });
            }
            None => {}
        }
    }

    /// Whether that worked, the attempt to take the lease will tell.
    pub(super) fn on_reconnected(&mut self) {
        self.own.client_from = self.next_op();
        self.map.hint();
        self.registry.hint();
        if self.membership == Membership::Reconnecting {
            self.membership = Membership::Joining;
        }
    }
}
