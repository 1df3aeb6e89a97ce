//! When to reconnect, and what becomes of the I/O meanwhile: pure policy.

use crate::AssociationError;
use core::time::Duration;
use nvmf_block::BlockError;

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
    /// Times that one command is issued again.
    pub retries_max: u8,
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
        }
    }
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Make a new association; then [`Recovery::on_ready`] or [`Recovery::on_lost`].
    Reconnect {
        /// 1 for the first after a loss.
        attempt: u32,
    },
    /// The attempt, or the closing of the old connections, takes too long: destroy the queue pairs without ceremony, then [`Recovery::on_lost`]
    /// (if an attempt was under way) and [`Recovery::on_closed`].
    Abandon,
    /// Fail all waiting I/O, and new I/O until ready again, with [`BlockError::Gone`].
    FailIo,
    /// It is over: fail everything, reconnect no more.
    GiveUp,
}

/// What becomes of a command that was not completed successfully.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Put it back in the queue: it may be issued again once [`Recovery::may_issue`].
    Requeue,
    /// Complete it with this.
    Fail(BlockError),
}

/// One remote controller's recovery, across its associations.
#[derive(Debug)]
pub struct Recovery {
    policy: RecoveryPolicy,
}

impl Recovery {
    /// Before the first association, which the caller makes at once. `seed` is for the jitter: anything that differs between hosts.
    #[must_use]
    pub fn new(policy: RecoveryPolicy, seed: u64, now: Duration) -> Self {
        let _ = (seed, now);
        Self { policy }
    }

    /// The association is ready.
    pub fn on_ready(&mut self, now: Duration) {
        let _ = now;
    }

    /// The association failed ([`crate::Action::Failed`]).
    pub fn on_lost(&mut self, now: Duration, error: &AssociationError) {
        let _ = (now, error);
    }

    /// Its connections are gone ([`crate::Action::Closed`]); the controller may work on old commands for `quiesce` more
    /// ([`crate::association::ControllerInfo::command_quiesce`]), so no reconnect before.
    pub fn on_closed(&mut self, now: Duration, quiesce: Duration) {
        let _ = (now, quiesce);
    }

    /// What to do, if anything. Ask after every call of another method, until `None`.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        None
    }

    /// When [`Recovery::on_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Duration) {
        let _ = now;
    }

    /// Commands may be issued: an association is ready, and the one before is known dead.
    #[must_use]
    pub fn may_issue(&self) -> bool {
        false
    }

    /// New I/O may wait; otherwise fail it with [`BlockError::Gone`].
    #[must_use]
    pub fn may_queue(&self) -> bool {
        false
    }

    /// What becomes of a command that was in flight when the association was lost, having been issued `issued` times.
    #[must_use]
    pub fn fate_of_lost(&self, issued: u8) -> Fate {
        let _ = issued;
        Fate::Requeue
    }

    /// What becomes of a command that the controller completed with an error.
    #[must_use]
    pub fn fate_of_failed(&self, status: crate::Status, issued: u8) -> Fate {
        let _ = issued;
        Fate::Fail(status.block_error())
    }
}
