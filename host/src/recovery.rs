//! When to reconnect, and what becomes of the I/O meanwhile: pure policy.

use crate::{AssociationError, status};
use alloc::collections::VecDeque;
use core::time::Duration;
use nvme_proto::Status;
use nvmf_block::BlockError;

/// The most that statuses may have a command wait (CRD), all together, where I/O waits for ever.
const ASKED_MAX: Duration = Duration::from_secs(600);

/// What to do about a lost association.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryPolicy {
    /// Between two attempts; doubled, with jitter, up to [`RecoveryPolicy::reconnect_delay_max`].
    pub reconnect_delay: Duration,
    /// The longest pause.
    pub reconnect_delay_max: Duration,
    /// Give up so long after the loss; `None` is never, zero is at once.
    pub ctrl_loss_timeout: Option<Duration>,
    /// Fail waiting I/O so long after the loss; `None` waits for the reconnect or the end.
    pub fast_io_fail_timeout: Option<Duration>,
    /// One attempt may take so long, and so may the closing of the old connections.
    pub attempt_timeout: Duration,
    /// Times that one command that the controller failed is issued again. Losses of its connection are not counted.
    pub retries_max: u8,
    /// Before a command that the controller failed is issued again; doubled each time, up to
    /// [`RecoveryPolicy::reconnect_delay_max`]. The controller may ask for longer (CRD).
    pub retry_delay: Duration,
}

impl Default for RecoveryPolicy {
    fn default() -> Self {
        Self {
            reconnect_delay: Duration::from_secs(1),
            reconnect_delay_max: Duration::from_secs(10),
            ctrl_loss_timeout: Some(Duration::from_secs(600)),
            fast_io_fail_timeout: None,
            attempt_timeout: Duration::from_secs(90),
            retries_max: 3,
            retry_delay: Duration::from_millis(100),
        }
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Make a new association; then [`Recovery::on_ready`] or [`Recovery::on_lost`].
    Reconnect {
        /// 1 for the first after a loss.
        attempt: u32,
    },
    /// The attempt, or the closing of the old connections, takes too long: destroy the queue pairs without disconnecting, drop the association, then
    /// [`Recovery::on_closed`].
    Abandon,
    /// Fail all waiting I/O, and new I/O until ready again, with [`BlockError::Gone`].
    FailIo,
    /// It is over: fail everything, reconnect no more.
    GiveUp,
}

/// What becomes of a command that was not completed successfully.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Put it back in the queue: it may be issued again after so long, once [`Recovery::may_issue`].
    Requeue(Duration),
    /// Complete it with this.
    Fail(BlockError),
}

/// How often a command was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tries {
    /// A try ended with a status that does not have it wait for something ([`status::is_waiting`]): only these are limited.
    pub failed: u8,
    /// It was put back to be issued after a while.
    pub delayed: u8,
    /// How long ago it first ended with a status.
    pub waited: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// An association is being set up.
    Attempting { deadline: Duration },
    /// It is in use.
    Ready,
    /// It is lost; its connections are being closed.
    Closing { deadline: Duration },
    /// Between two attempts.
    Waiting { until: Duration },
    /// Nothing more.
    Over,
}

/// One remote controller's recovery, across its associations.
///
/// A command whose association was lost may have taken effect or not, and may still take effect later. All of [`crate::Operation`] can be
/// repeated without harm *as long as the first copy is dead*: otherwise it could land on top of what was written since. So nothing is
/// issued again before the old connections are gone ([`Recovery::on_closed`]) and an association is ready, and nothing that changes a disk
/// before the controller has dropped what it had begun, which is the caller's to see to.
///
/// A controller may be one of several paths to the same disks ([`Recovery::be_one_of_several`]). Then the times after which I/O fails and
/// the controller is given up count from when the last path was lost.
#[derive(Debug)]
pub struct Recovery {
    policy: RecoveryPolicy,
    phase: Phase,
    random: u64,
    decisions: VecDeque<Decision>,
    /// It was ready once. A first connection that fails is given up: whoever asked for it wants the error.
    was_ready: bool,
    /// The loss cannot be cured by connecting again.
    permanent: bool,
    lost_at: Option<Duration>,
    /// Since when I/O waits: from the loss, or from when the last other path was lost.
    waits_since: Option<Duration>,
    attempts: u32,
    /// How often in a row what was connected was lost at once: maybe by what is sent on it, which must not be done many times a second.
    short: u32,
    /// Since when it is in use.
    ready_at: Option<Duration>,
    io_failed: bool,
    several: bool,
    others_ready: bool,
    /// An attempt is made whatever the time.
    attempt_due: bool,
}

impl Recovery {
    /// Before the first association, which the caller makes at once. `seed` is for the jitter: anything that differs between hosts.
    #[must_use]
    pub fn new(policy: RecoveryPolicy, seed: u64, now: Duration) -> Self {
        Self {
            phase: Phase::Attempting { deadline: now.saturating_add(policy.attempt_timeout) },
            policy,
            random: seed | 1,
            decisions: VecDeque::new(),
            was_ready: false,
            permanent: false,
            lost_at: None,
            waits_since: None,
            attempts: 0,
            short: 0,
            ready_at: None,
            io_failed: false,
            several: false,
            others_ready: false,
            attempt_due: false,
        }
    }

    /// For a controller that this host used until now, in another process: as after a loss. The first attempt follows at once.
    #[must_use]
    pub fn resumed(policy: RecoveryPolicy, seed: u64, now: Duration) -> Self {
        Self {
            phase: Phase::Waiting { until: now },
            was_ready: true,
            lost_at: Some(now),
            waits_since: Some(now),
            attempt_due: true,
            ..Self::new(policy, seed, now)
        }
    }

    /// There are other paths: a first connection that fails is tried again, until [`Recovery::give_up`].
    pub fn be_one_of_several(&mut self) {
        self.several = true;
    }

    /// Whether one of the other paths is ready from now on.
    pub fn on_others(&mut self, now: Duration, ready: bool) {
        if core::mem::replace(&mut self.others_ready, ready) == ready {
            return;
        }
        self.io_failed = false;
        self.waits_since = self.lost_at.filter(|_| !ready).map(|_| now);
        if ready {
            return;
        }
        // Now it counts.
        (self.attempts, self.short) = (0, 0);
        if let Phase::Waiting { until } = &mut self.phase {
            *until = (*until).min(now.saturating_add(self.policy.reconnect_delay));
        }
    }

    /// Whether it was never ready, and an attempt has failed.
    #[must_use]
    pub fn failed_at_first(&self) -> bool {
        !self.was_ready && self.lost_at.is_some()
    }

    /// The association is ready. Gives how long the controller was away; `None` for the first association.
    pub fn on_ready(&mut self, now: Duration) -> Option<Duration> {
        if !matches!(self.phase, Phase::Attempting { .. }) {
            return None;
        }
        self.phase = Phase::Ready;
        self.was_ready = true;
        self.attempts = 0;
        self.ready_at = Some(now);
        self.io_failed = false;
        self.waits_since = None;
        self.lost_at.take().map(|lost_at| now.saturating_sub(lost_at))
    }

    /// The association failed ([`crate::Action::Failed`]).
    pub fn on_lost(&mut self, now: Duration, error: &AssociationError) {
        if matches!(self.phase, Phase::Attempting { .. } | Phase::Ready) {
            // A controller that was in use refuses its hosts while it starts up again: its subsystems come one by one. And a
            // secret that is being changed, given or taken away is for a while not the same on both sides.
            let may_pass = (self.was_ready || self.several) && (error.is_refusal() || error.is_of_secrets());
            self.permanent |= error.is_permanent() && !may_pass;
            self.close(now);
        }
    }

    /// Its connections are gone ([`crate::Action::Closed`]).
    pub fn on_closed(&mut self, now: Duration) {
        if !matches!(self.phase, Phase::Closing { .. }) {
            return;
        }
        let out_of_time = self.loss_deadline().is_some_and(|deadline| deadline <= now);
        if self.permanent || !(self.was_ready || self.several) || out_of_time {
            return self.give_up();
        }
        self.phase = Phase::Waiting { until: now.saturating_add(self.next_delay()) };
    }

    /// The user wants the controller back: the next attempt is made at once, and there is as much time for more as after a loss,
    /// also when the controller had been given up. While it is in use, or an attempt is under way, nothing changes.
    pub fn retry(&mut self, now: Duration) {
        let was_tried = self.was_ready || self.several;
        if was_tried && matches!(self.phase, Phase::Waiting { .. } | Phase::Over) {
            self.decisions.clear();
            (self.permanent, self.io_failed, self.attempts, self.short) = (false, false, 0, 0);
            (self.lost_at, self.attempt_due) = (Some(now), true);
            self.waits_since = (!self.others_ready).then_some(now);
            self.phase = Phase::Waiting { until: now };
        }
    }

    /// The user closed the connection: nothing is decided from now on.
    pub fn stop(&mut self) {
        self.phase = Phase::Over;
        self.decisions.clear();
    }

    /// What to do, if anything. Ask after every call of another method, until `None`.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// When [`Recovery::on_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Attempting { deadline } | Phase::Closing { deadline } => deadline,
            Phase::Waiting { until } => self.loss_deadline().map_or(until, |deadline| until.min(deadline)),
            Phase::Ready | Phase::Over => return None,
        };
        Some(self.io_fail_at().map_or(phase, |at| at.min(phase)))
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Duration) {
        if self.io_fail_at().is_some_and(|at| at <= now) {
            self.io_failed = true;
            self.decisions.push_back(Decision::FailIo);
        }
        match self.phase {
            Phase::Attempting { deadline } | Phase::Closing { deadline } if deadline <= now => {
                self.decisions.push_back(Decision::Abandon);
                self.close(now);
            }
            Phase::Waiting { .. } if self.loss_deadline().is_some_and(|deadline| deadline <= now) => {
                self.give_up();
            }
            Phase::Waiting { until } if until <= now => {
                self.attempts = self.attempts.saturating_add(1);
                self.attempt_due = false;
                self.phase = Phase::Attempting { deadline: now.saturating_add(self.policy.attempt_timeout) };
                self.decisions.push_back(Decision::Reconnect { attempt: self.attempts });
            }
            _ => {}
        }
    }

    /// Commands may be issued: an association is ready.
    #[must_use]
    pub fn may_issue(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// New I/O may wait; otherwise fail it with [`BlockError::Gone`].
    #[must_use]
    pub fn may_queue(&self) -> bool {
        self.phase != Phase::Over && !self.io_failed
    }

    /// What becomes of a command that was in flight when the association was lost, which has happened to it `losses` times, for the
    /// first time `ago`. It is issued again a number of times whatever the time: fences and a long way may take all of that. And
    /// in the time that a lost controller is waited for, however often: on a bad network every connection is lost soon. (Where no
    /// path leads to the disk, [`Decision::FailIo`] ends it sooner.) `overdue`: how often it was itself what the association was
    /// given up for. Each time, that has cost everybody else a connection: it is done for a number of times only.
    #[must_use]
    pub fn fate_of_lost(&self, losses: u8, overdue: u8, ago: Duration) -> Fate {
        let RecoveryPolicy { retries_max, ctrl_loss_timeout, .. } = self.policy;
        let in_time = losses <= retries_max || ctrl_loss_timeout.is_none_or(|most| ago < most);
        let again = in_time && overdue <= retries_max;
        match self.may_queue() {
            true if again => Fate::Requeue(Duration::ZERO),
            true => Fate::Fail(BlockError::Aborted),
            false => Fate::Fail(BlockError::Gone),
        }
    }

    /// What becomes of a command that the controller completed with an error. `asked` is the time that the status asks for (CRD).
    #[must_use]
    pub fn fate_of_failed(&self, status: Status, tries: Tries, asked: Duration) -> Fate {
        let Tries { failed, delayed, waited } = tries;
        let again = if status::is_waiting(status) {
            self.io_wait_max().is_none_or(|most| waited < most)
        } else {
            status::is_retryable(status) && failed <= self.policy.retries_max
        };
        if !again || !self.may_queue() {
            return Fate::Fail(status::block_error(status));
        }
        let factor = 1_u32.checked_shl(delayed.into()).unwrap_or(u32::MAX);
        let delay = self.policy.retry_delay.saturating_mul(factor).min(self.policy.reconnect_delay_max);
        // No status has it wait for longer than I/O does.
        let left = self.io_wait_max().unwrap_or(ASKED_MAX).saturating_sub(waited);
        Fate::Requeue(delay.max(asked.min(left)))
    }

    /// How long I/O waits for a lost connection, or for its disk, before it fails; `None` is for ever.
    #[must_use]
    pub fn io_wait_max(&self) -> Option<Duration> {
        self.policy.ctrl_loss_timeout.into_iter().chain(self.policy.fast_io_fail_timeout).min()
    }

    /// When the next attempt to connect begins; `None` while none is waited for.
    #[must_use]
    pub fn next_attempt(&self) -> Option<Duration> {
        match self.phase {
            Phase::Waiting { until } => Some(until),
            _ => None,
        }
    }

    /// When the controller is given up, unless it is connected again before; `None` while it is in use, or is never given up.
    #[must_use]
    pub fn gives_up_at(&self) -> Option<Duration> {
        self.loss_deadline().filter(|_| !self.is_over())
    }

    /// Nothing is reconnected any more: given up, or stopped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn close(&mut self, now: Duration) {
        if let Some(since) = self.ready_at.take() {
            let is_short = now.saturating_sub(since) < self.policy.reconnect_delay;
            self.short = if is_short { self.short.saturating_add(1) } else { 0 };
        }
        self.lost_at.get_or_insert(now);
        if !self.others_ready {
            self.waits_since.get_or_insert(now);
        }
        self.phase = Phase::Closing { deadline: now.saturating_add(self.policy.attempt_timeout) };
    }

    /// Nothing is tried any more.
    pub fn give_up(&mut self) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.decisions.push_back(Decision::GiveUp);
        }
    }

    fn loss_deadline(&self) -> Option<Duration> {
        if self.attempt_due {
            return None;
        }
        Some(self.waits_since?.saturating_add(self.policy.ctrl_loss_timeout?))
    }

    fn io_fail_at(&self) -> Option<Duration> {
        if self.io_failed || self.phase == Phase::Over {
            return None;
        }
        Some(self.waits_since?.saturating_add(self.policy.fast_io_fail_timeout?))
    }

    /// The delay doubled for each attempt, and for each loss in a row that came at once, up to the longest, then cut to between half and all of it, so that hosts that lost the same target do
    /// not come back in step.
    fn next_delay(&mut self) -> Duration {
        let factor = 1u32.checked_shl(self.attempts.max(self.short)).unwrap_or(u32::MAX);
        let delay = self.policy.reconnect_delay.saturating_mul(factor).min(self.policy.reconnect_delay_max);
        // Xorshift: the seed is odd, so the state is never zero.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        delay / 2 + (delay / 2).mul_f64((self.random >> 32) as f64 / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests;
