//! Keep Alive and asynchronous events.

use super::{Action, Association, AssociationConfig, AssociationError, CommandRole, Purpose, State, Step};
use crate::{Outcome, admin, limits};
use core::time::Duration;
use nvme_proto::admin::async_event::AsyncEvent;

/// The keep-alive timer: when a command was last sent, and when the next Keep Alive is due.
#[derive(Debug)]
pub(super) struct KeepAlive {
    timeout: Duration,
    /// CTRATT.TBKAS: the controller takes any command for a sign of life.
    pub(super) traffic_counts: bool,
    last_traffic: Duration,
    /// When anything came from the controller.
    last_answer: Duration,
    next: Option<Duration>,
    /// A Keep Alive that is not answered by then.
    answer_by: Option<Duration>,
    /// A change was announced while a scan ran: scan again.
    pub(super) scan_again: bool,
    /// When a list that was refused, or namespaces that could not be described, are asked for again.
    pub(super) scan_at: Option<Duration>,
}

impl KeepAlive {
    pub(super) fn new(config: &AssociationConfig) -> Self {
        Self {
            timeout: config.keep_alive,
            traffic_counts: false,
            last_traffic: Duration::ZERO,
            last_answer: Duration::ZERO,
            next: None,
            answer_by: None,
            scan_again: false,
            scan_at: None,
        }
    }

    /// From now on; the controller's own timer runs since it was enabled.
    pub(super) fn start(&mut self, now: Duration) {
        if !self.timeout.is_zero() {
            self.next = Some(now.saturating_add(self.interval()));
        }
    }

    /// Namespaces are looked at again then, or earlier if that was to be.
    pub(super) fn scan_by(&mut self, at: Duration) {
        self.scan_at = Some(self.scan_at.map_or(at, |before| before.min(at)));
    }

    pub(super) fn stop(&mut self) {
        (self.next, self.answer_by, self.scan_at) = (None, None, None);
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.next.into_iter().chain(self.answer_by).chain(self.scan_at).min()
    }

    /// When the controller's own timer has expired, if nothing reaches it any more: what was sent may have been on its way
    /// until the connections were closed, now. The controller rounds KATO up to its granularity; where traffic counts,
    /// it may take an interval with a command in it for a sign of life, and expire one interval later.
    fn expiry(&self, now: Duration, grain: Duration) -> Option<Duration> {
        if self.timeout.is_zero() {
            return None;
        }
        let intervals = if self.traffic_counts { 2 } else { 1 };
        let timeout = self.timeout.saturating_add(grain).saturating_mul(intervals);
        Some(now.saturating_add(timeout))
    }

    /// Half of KATO, so that one delayed Keep Alive is not the end.
    fn interval(&self) -> Duration {
        self.timeout / 2
    }
}

impl Association {
    /// A command of the caller's was sent: where the controller takes commands for a sign of life, the next Keep Alive can wait. It
    /// is the sending that counts: completions of long commands show the controller nothing.
    pub fn on_traffic(&mut self, now: Duration) {
        self.keep_alive.last_traffic = now;
    }

    /// Something came from the controller.
    pub fn on_answer(&mut self, now: Duration) {
        self.keep_alive.last_answer = now;
    }

    /// How long the controller may still carry out commands of this association, which is lost: the time that it asks
    /// for (CQT), from when it knows of the loss, which is at the latest when its keep-alive timer expires.
    #[must_use]
    pub fn quiesce_time(&self, now: Duration, knows_of_loss: bool) -> Duration {
        let expiry = self.keep_alive.expiry(now, self.controller.keep_alive_grain).filter(|_| !knows_of_loss);
        let until_known = expiry.map_or(Duration::ZERO, |expiry| expiry.saturating_sub(now));
        self.controller.command_quiesce.saturating_add(until_known)
    }

    pub(super) fn on_keep_alive_timeout(&mut self, now: Duration) {
        if self.keep_alive.scan_at.take_if(|at| *at <= now).is_some() {
            self.request_scan(now);
        }
        if self.keep_alive.answer_by.is_some_and(|by| by <= now) {
            return self.fail(AssociationError::KeepAlive { timeout: self.config.keep_alive });
        }
        if self.keep_alive.next.is_none_or(|next| next > now) {
            return;
        }
        // A controller that does not answer is to be found out in time, whatever it is sent.
        let both_ways = self.keep_alive.last_traffic.min(self.keep_alive.last_answer);
        let since_traffic = both_ways.saturating_add(self.keep_alive.interval());
        if self.keep_alive.traffic_counts && since_traffic > now {
            self.keep_alive.next = Some(since_traffic);
            return;
        }
        self.keep_alive.next = None;
        self.keep_alive.answer_by = Some(now.saturating_add(self.keep_alive.timeout));
        // The next one counts from the sending of this one, once it is answered.
        self.keep_alive.last_traffic = now;
        self.send(crate::Qid(0), CommandRole::KeepAlive, admin::keep_alive());
    }

    pub(super) fn on_keep_alive(&mut self, outcome: Outcome) -> Result<(), AssociationError> {
        if !outcome.status.is_success() {
            return Err(AssociationError::Command { command: "Keep Alive", status: outcome.status });
        }
        if let Some(by) = self.keep_alive.answer_by.take() {
            let sent = by.saturating_sub(self.keep_alive.timeout);
            self.keep_alive.next = Some(sent.saturating_add(self.keep_alive.interval()));
        }
        Ok(())
    }

    /// Hands the controller its event requests.
    pub(super) fn request_events(&mut self, limit: u8) {
        for _ in 0..limits::EVENT_REQUESTS_MAX.min(u16::from(limit).saturating_add(1)) {
            self.send(crate::Qid(0), CommandRole::EventRequest, admin::asynchronous_event_request());
        }
    }

    pub(super) fn on_event(&mut self, now: Duration, outcome: Outcome) {
        // A request that fails (too many outstanding) is not made again.
        if !outcome.status.is_success() || !matches!(self.state, State::Ready | State::Identifying) {
            return;
        }
        self.send(crate::Qid(0), CommandRole::EventRequest, admin::asynchronous_event_request());
        let io = self.config.purpose == Purpose::Io;
        match AsyncEvent::parse(outcome.dw0) {
            AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED if io => self.request_scan(now),
            AsyncEvent::ANA_CHANGE if io => self.request_ana(now),
            AsyncEvent::DISCOVERY_LOG_CHANGED if !io => self.request_scan(now),
            _ => self.actions.push_back(Action::Event(outcome.dw0)),
        }
    }

    pub(super) fn request_scan(&mut self, now: Duration) {
        if self.step != Step::Idle {
            self.keep_alive.scan_again = true;
            return;
        }
        match self.scan_pace.begin(now) {
            Ok(()) => self.rescan(now),
            Err(at) => self.keep_alive.scan_by(at),
        }
    }
}
