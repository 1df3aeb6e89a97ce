use super::*;
use crate::association::Gate;
use alloc::vec::Vec;

const SECOND: Duration = Duration::from_secs(1);
/// More than any policy here takes to its end.
const STEPS_MAX: usize = 10_000;

fn lost() -> AssociationError {
    AssociationError::ControllerFatal
}

fn ready(policy: RecoveryPolicy) -> Recovery {
    let mut recovery = Recovery::new(policy, 42, Duration::ZERO);
    recovery.on_ready(Duration::ZERO);
    assert!(recovery.may_issue());
    recovery
}

/// Follows the recovery through failing attempts, and gives what it decided and when.
fn fail_until_over(recovery: &mut Recovery) -> Vec<(Duration, Decision)> {
    let mut decisions = Vec::new();
    let mut now = SECOND;
    recovery.on_lost(now, &lost());
    recovery.on_closed(now);
    for _ in 0..STEPS_MAX {
        while let Some(decision) = recovery.poll_decision() {
            decisions.push((now, decision));
            assert!(decisions.len() < STEPS_MAX, "it decides without end");
            if matches!(decision, Decision::Reconnect { .. }) {
                recovery.on_lost(now, &lost());
                recovery.on_closed(now);
            }
        }
        let Some(next) = recovery.poll_timeout() else { return decisions };
        assert!(next >= now, "time never goes back");
        now = next;
        recovery.on_timeout(now);
    }
    panic!("it is not over after {STEPS_MAX} steps: {decisions:?}");
}

#[test]
fn attempts_back_off_until_the_loss_timeout() {
    let policy = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..RecoveryPolicy::default() };
    let decisions = fail_until_over(&mut ready(policy));
    assert_eq!(decisions.last(), Some(&(61 * SECOND, Decision::GiveUp)));
    let attempts: Vec<Duration> = decisions.iter().map(|(at, _)| *at).collect();
    for pair in attempts.windows(2) {
        assert!(pair[1] - pair[0] <= policy.reconnect_delay_max);
    }
    assert!(attempts.len() > 6, "{attempts:?}");
    assert!(attempts[0] >= SECOND + policy.reconnect_delay / 2);
}

/// What is sent on it again may be what each new association is lost by.
#[test]
fn controller_that_is_lost_soon_after_each_connect_is_connected_more_and_more_seldom() {
    let policy = RecoveryPolicy { ctrl_loss_timeout: Some(600 * SECOND), ..RecoveryPolicy::default() };
    let mut recovery = ready(policy);
    let (mut now, mut attempts) = (Duration::ZERO, Vec::new());
    let lose = |recovery: &mut Recovery, now| {
        recovery.on_lost(now, &lost());
        recovery.on_closed(now);
    };
    lose(&mut recovery, now);
    while now < 300 * SECOND {
        now = recovery.poll_timeout().expect("it waits");
        recovery.on_timeout(now);
        while let Some(decision) = recovery.poll_decision() {
            assert!(matches!(decision, Decision::Reconnect { .. }), "{decision:?}");
            attempts.push(now);
            recovery.on_ready(now);
            now += SECOND / 20;
            lose(&mut recovery, now);
        }
    }
    assert!(attempts.len() < 300 / 5 + 10, "{} in 300 s", attempts.len());
    // After it was in use for a while the first attempt comes soon.
    now = recovery.poll_timeout().expect("it waits");
    recovery.on_timeout(now);
    assert!(recovery.poll_decision().is_some());
    recovery.on_ready(now);
    now += policy.reconnect_delay;
    lose(&mut recovery, now);
    assert!(recovery.next_attempt().is_some_and(|at| at <= now + policy.reconnect_delay));
}

/// What it took to connect says nothing of how it was lost afterwards, and a path that is the last one counts from then on.
#[test]
fn pause_after_a_short_connection_is_short_at_first() {
    for others in [false, true] {
        let policy = RecoveryPolicy { ctrl_loss_timeout: Some(600 * SECOND), ..RecoveryPolicy::default() };
        let mut recovery = ready(policy);
        let mut now = 60 * SECOND;
        recovery.on_others(now, others);
        recovery.on_lost(now, &lost());
        recovery.on_closed(now);
        for _ in 0..6 {
            now = recovery.poll_timeout().expect("it waits");
            recovery.on_timeout(now);
            assert!(recovery.poll_decision().is_some());
            recovery.on_lost(now, &lost());
            recovery.on_closed(now);
        }
        now = recovery.poll_timeout().expect("it waits");
        recovery.on_timeout(now);
        assert!(recovery.poll_decision().is_some());
        recovery.on_ready(now);
        now += SECOND / 2;
        recovery.on_others(now, false);
        recovery.on_lost(now, &lost());
        recovery.on_closed(now);
        assert!(recovery.next_attempt().is_some_and(|at| at <= now + 2 * policy.reconnect_delay));
    }
}

#[test]
fn fast_io_fail_does_not_end_reconnecting() {
    let policy = RecoveryPolicy { fast_io_fail_timeout: Some(5 * SECOND), ..RecoveryPolicy::default() };
    let mut recovery = ready(policy);
    assert_eq!(recovery.fate_of_lost(1, 0, Duration::ZERO), Fate::Requeue(Duration::ZERO));
    let decisions = fail_until_over(&mut recovery);
    let fail_io = decisions.iter().position(|decision| *decision == (6 * SECOND, Decision::FailIo));
    assert!(fail_io.is_some_and(|at| at + 2 < decisions.len()));
    assert!(!recovery.may_queue());
    assert_eq!(recovery.fate_of_lost(1, 0, Duration::ZERO), Fate::Fail(BlockError::Gone));
}

#[test]
fn nothing_is_issued_before_the_old_connection_is_closed() {
    let mut recovery = ready(RecoveryPolicy::default());
    recovery.on_lost(SECOND, &lost());
    assert!(!recovery.may_issue() && recovery.may_queue());
    recovery.on_timeout(10 * SECOND);
    assert_eq!(recovery.poll_decision(), None, "its connections are not yet gone");
    recovery.on_closed(10 * SECOND);
    let until = recovery.poll_timeout().unwrap();
    assert!(until <= 11 * SECOND, "{until:?}");
    recovery.on_timeout(until);
    assert_eq!(recovery.poll_decision(), Some(Decision::Reconnect { attempt: 1 }));
    assert!(!recovery.may_issue());
    recovery.on_ready(41 * SECOND);
    assert!(recovery.may_issue());
}

#[test]
fn permanent_error_or_first_failure_gives_up() {
    let mut recovery = ready(RecoveryPolicy::default());
    recovery.on_lost(SECOND, &AssociationError::Gate(Gate::KeepAlive));
    recovery.on_closed(SECOND);
    assert_eq!(recovery.poll_decision(), Some(Decision::GiveUp));
    let mut recovery = Recovery::new(RecoveryPolicy::default(), 1, Duration::ZERO);
    recovery.on_lost(SECOND, &lost());
    recovery.on_closed(SECOND);
    assert_eq!(recovery.poll_decision(), Some(Decision::GiveUp));
    assert_eq!(recovery.poll_timeout(), None);
}

#[test]
fn hanging_attempt_or_closing_is_abandoned() {
    let mut recovery = ready(RecoveryPolicy::default());
    recovery.on_lost(SECOND, &lost());
    let deadline = recovery.poll_timeout().unwrap();
    recovery.on_timeout(deadline);
    assert_eq!(recovery.poll_decision(), Some(Decision::Abandon));
    recovery.on_closed(deadline);
    let until = recovery.poll_timeout().unwrap();
    recovery.on_timeout(until);
    assert_eq!(recovery.poll_decision(), Some(Decision::Reconnect { attempt: 1 }));
    let deadline = recovery.poll_timeout().unwrap();
    recovery.on_timeout(deadline);
    assert_eq!(recovery.poll_decision(), Some(Decision::Abandon));
}

#[test]
fn command_is_retried_a_limited_number_of_times() {
    let recovery = ready(RecoveryPolicy::default());
    let tried = |failed, delayed| Tries { failed, delayed, waited: Duration::ZERO };
    let fate = |status, times| recovery.fate_of_failed(status, tried(times, times - 1), Duration::ZERO);
    let delay = Duration::from_millis(100);
    assert_eq!(fate(Status::INTERNAL_ERROR, 1), Fate::Requeue(delay));
    assert_eq!(fate(Status::INTERNAL_ERROR, 3), Fate::Requeue(4 * delay));
    assert_eq!(fate(Status::INTERNAL_ERROR, 4), Fate::Fail(BlockError::Os(5)));
    assert_eq!(fate(Status::LBA_OUT_OF_RANGE.with_dnr(), 1), Fate::Fail(BlockError::OutOfRange));
    let asked = recovery.fate_of_failed(Status::INTERNAL_ERROR.with_crd(1), tried(1, 0), 3 * SECOND);
    assert_eq!(asked, Fate::Requeue(3 * SECOND), "the controller asks for more");
    let once = recovery.fate_of_failed(Status::INTERNAL_ERROR, tried(1, 3), Duration::ZERO);
    assert_eq!(once, Fate::Requeue(8 * delay), "it waited before, and has failed once");
}

#[test]
fn status_has_no_command_wait_for_longer_than_io_waits() {
    const HOUR: Duration = Duration::from_secs(3600);
    let policy = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..RecoveryPolicy::default() };
    let never = RecoveryPolicy { ctrl_loss_timeout: None, ..policy };
    for status in [Status::INTERNAL_ERROR, Status::ANA_TRANSITION] {
        let status = status.with_crd(1);
        let fate = |policy, waited| {
            ready(policy).fate_of_failed(status, Tries { failed: 1, delayed: 0, waited }, HOUR)
        };
        assert_eq!(fate(policy, Duration::ZERO), Fate::Requeue(60 * SECOND));
        assert_eq!(fate(policy, 50 * SECOND), Fate::Requeue(10 * SECOND));
        assert_eq!(fate(never, Duration::ZERO), Fate::Requeue(600 * SECOND));
        assert_eq!(fate(never, HOUR), Fate::Requeue(never.retry_delay));
    }
}

#[test]
fn lost_command_is_issued_again_for_as_long_as_a_lost_controller_is_waited_for() {
    let policy = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..RecoveryPolicy::default() };
    let fate = |policy, losses, ago| ready(policy).fate_of_lost(losses, 0, ago);
    let (again, aborted) = (Fate::Requeue(Duration::ZERO), Fate::Fail(BlockError::Aborted));
    for fast_io_fail_timeout in [None, Some(5 * SECOND), Some(Duration::ZERO)] {
        // The time for fast failure counts while no path is there.
        let policy = RecoveryPolicy { fast_io_fail_timeout, ..policy };
        assert_eq!(fate(policy, 3, 1_000_000 * SECOND), again, "after few losses, whatever the time");
        assert_eq!(fate(policy, u8::MAX, 59 * SECOND), again);
        assert_eq!(fate(policy, 4, 60 * SECOND), aborted, "the device is there");
    }
    let never = RecoveryPolicy { ctrl_loss_timeout: None, ..policy };
    assert_eq!(fate(never, u8::MAX, 1_000_000 * SECOND), again);
    assert_eq!(ready(never).fate_of_lost(u8::MAX, 3, SECOND), again);
    assert_eq!(ready(never).fate_of_lost(u8::MAX, 4, SECOND), aborted, "it ends each association itself");
}

#[test]
fn path_statuses_wait_as_long_as_a_lost_connection() {
    let policy = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..RecoveryPolicy::default() };
    for status in [Status::ANA_TRANSITION, Status::ANA_INACCESSIBLE, Status::NAMESPACE_NOT_READY] {
        let fate = |policy, waited| {
            ready(policy).fate_of_failed(status, Tries { failed: 0, delayed: 200, waited }, Duration::ZERO)
        };
        assert_eq!(fate(policy, 59 * SECOND), Fate::Requeue(policy.reconnect_delay_max));
        assert!(matches!(fate(policy, 60 * SECOND), Fate::Fail(_)));
        let fast = RecoveryPolicy { fast_io_fail_timeout: Some(5 * SECOND), ..policy };
        assert!(matches!(fate(fast, 5 * SECOND), Fate::Fail(_)));
        let never = RecoveryPolicy { ctrl_loss_timeout: None, ..policy };
        assert!(matches!(fate(never, 1_000_000 * SECOND), Fate::Requeue(_)));
    }
}

#[test]
fn refusal_of_a_controller_that_was_in_use_is_not_the_end() {
    let refused = AssociationError::Connect {
        qid: crate::Qid(0),
        status: Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
        parameter: None,
    };
    assert!(refused.is_permanent());
    let mut recovery = ready(RecoveryPolicy::default());
    let other_secret = AssociationError::Authentication {
        qid: crate::Qid(0),
        error: nvmf_auth::host::HostError::WrongController,
    };
    assert!(other_secret.is_permanent());
    let mut first = Recovery::new(RecoveryPolicy::default(), 7, Duration::ZERO);
    first.on_lost(SECOND, &other_secret);
    first.on_closed(SECOND);
    assert_eq!(first.poll_decision(), Some(Decision::GiveUp), "the first connection");
    // A secret was given to one side, or taken away there.
    let unequal = [AssociationError::AuthenticationRequired, AssociationError::NotAuthenticated];
    for error in &unequal {
        let mut first = Recovery::new(RecoveryPolicy::default(), 7, Duration::ZERO);
        first.on_lost(SECOND, error);
        first.on_closed(SECOND);
        assert_eq!(first.poll_decision(), Some(Decision::GiveUp), "the first connection: {error}");
    }
    // A target that is starting answers, and does not have everything yet.
    let not_yet =
        |status: Status| AssociationError::Command { command: "Identify", status: status.with_dnr() };
    let booting = [
        not_yet(Status::INTERNAL_ERROR),
        not_yet(Status::NAMESPACE_NOT_READY),
        not_yet(Status::INVALID_FIELD),
    ];
    for error in [lost(), refused, other_secret].into_iter().chain(unequal).chain(booting) {
        recovery.on_lost(SECOND, &error);
        recovery.on_closed(SECOND);
        assert_eq!(recovery.poll_decision(), None, "{error}");
        recovery.on_timeout(recovery.poll_timeout().unwrap());
        assert!(matches!(recovery.poll_decision(), Some(Decision::Reconnect { .. })), "{error}");
    }
    assert_eq!(recovery.on_ready(8 * SECOND), Some(7 * SECOND), "it says how long it was away");
}

#[test]
fn next_attempt_and_end_are_told_while_they_are_waited_for() {
    let mut recovery = ready(RecoveryPolicy::default());
    assert_eq!((recovery.next_attempt(), recovery.gives_up_at()), (None, None));
    recovery.on_lost(SECOND, &lost());
    assert_eq!((recovery.next_attempt(), recovery.gives_up_at()), (None, Some(601 * SECOND)));
    recovery.on_closed(SECOND);
    assert_eq!(recovery.next_attempt(), recovery.poll_timeout());
    recovery.on_timeout(recovery.poll_timeout().unwrap());
    assert_eq!((recovery.next_attempt(), recovery.gives_up_at()), (None, Some(601 * SECOND)));
    recovery.on_ready(3 * SECOND);
    assert_eq!((recovery.next_attempt(), recovery.gives_up_at()), (None, None));
}

#[test]
fn controller_that_was_given_up_is_tried_again_on_request() {
    for ctrl_loss_timeout in [Duration::ZERO, 60 * SECOND] {
        let policy =
            RecoveryPolicy { ctrl_loss_timeout: Some(ctrl_loss_timeout), ..RecoveryPolicy::default() };
        let mut recovery = ready(policy);
        fail_until_over(&mut recovery);
        assert!(recovery.is_over() && !recovery.may_queue());
        let now = 100 * SECOND;
        recovery.retry(now);
        assert!(recovery.may_queue() && !recovery.may_issue(), "I/O waits again");
        assert_eq!(recovery.poll_timeout(), Some(now), "it is tried at once");
        recovery.on_timeout(now);
        assert_eq!(recovery.poll_decision(), Some(Decision::Reconnect { attempt: 1 }));
        recovery.retry(now);
        assert_eq!(recovery.poll_decision(), None, "an attempt is under way");
        assert_eq!(recovery.on_ready(now + 6 * SECOND), Some(6 * SECOND));
        assert!(recovery.may_issue());
    }
    let mut never = Recovery::new(RecoveryPolicy::default(), 42, Duration::ZERO);
    never.on_lost(SECOND, &lost());
    never.on_closed(SECOND);
    never.retry(SECOND);
    assert!(never.is_over(), "what was never connected is not tried again");
}

#[test]
fn taken_over_controller_is_tried_at_once_and_given_up_in_time() {
    let policy = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..RecoveryPolicy::default() };
    let mut recovery = Recovery::resumed(policy, 42, SECOND);
    assert!(recovery.may_queue() && !recovery.may_issue());
    assert_eq!(recovery.poll_timeout(), Some(SECOND));
    recovery.on_timeout(SECOND);
    assert_eq!(recovery.poll_decision(), Some(Decision::Reconnect { attempt: 1 }));
    recovery.on_lost(13 * SECOND, &lost());
    recovery.on_closed(13 * SECOND);
    assert!(!recovery.is_over(), "it was in use before, in another process");
    recovery.on_timeout(61 * SECOND);
    assert!(recovery.is_over());
}

#[test]
fn path_is_tried_for_as_long_as_another_is_ready() {
    let policy = RecoveryPolicy {
        ctrl_loss_timeout: Some(60 * SECOND),
        fast_io_fail_timeout: Some(5 * SECOND),
        ..RecoveryPolicy::default()
    };
    let mut recovery = Recovery::new(policy, 1, Duration::ZERO);
    recovery.be_one_of_several();
    recovery.on_others(Duration::ZERO, true);
    let mut now = SECOND;
    while now < 600 * SECOND {
        recovery.on_lost(now, &lost());
        recovery.on_closed(now);
        assert!(recovery.failed_at_first());
        now = recovery.poll_timeout().unwrap();
        recovery.on_timeout(now);
        assert!(matches!(recovery.poll_decision(), Some(Decision::Reconnect { .. })), "{now:?}");
        assert!(recovery.may_queue());
    }
    // The last other one is lost: it is tried soon, and the times count from now.
    recovery.on_lost(now, &lost());
    recovery.on_closed(now);
    recovery.on_others(now, false);
    let alone = now;
    assert!(recovery.poll_timeout().unwrap() <= now + policy.reconnect_delay);
    let decisions = loop {
        now = recovery.poll_timeout().unwrap();
        recovery.on_timeout(now);
        match recovery.poll_decision() {
            Some(Decision::Reconnect { .. }) => {
                recovery.on_lost(now, &lost());
                recovery.on_closed(now);
            }
            Some(Decision::FailIo) => assert_eq!(now, alone + 5 * SECOND),
            other => break other,
        }
    };
    assert_eq!((now, decisions), (alone + 60 * SECOND, Some(Decision::GiveUp)));
}
