//! How many disks there may be of others' lists, and whose turn it is.

use super::super::disks::RETRY_DELAY_MAX;
use super::*;

/// An attach may take long, and others decide how long.
#[test]
fn one_subsystem_does_not_take_the_turn_of_others() {
    let limits = Limits { at_once: 6, at_once_of_subsystem: 2, ..Limits::NONE };
    let mut engine = Engine::new(Policy::default()).with_limits(limits);
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), ["a", "b", "c"].map(|nqn| subsystem(nqn, "h")).to_vec());
    for nqn in ["a", "b", "c"] {
        engine.on_first_namespaces(NOW, &seen(nqn), 1..=40);
    }
    assert_eq!(disks(&mut engine), ["+a/1", "+a/2", "+b/1"], "half of them are of one discovery controller");
    engine.on_log(NOW, &controller("l"), vec![subsystem("z", "t")]);
    engine.on_first_namespaces(NOW, &seen("z"), [1]);
    assert_eq!(disks(&mut engine), ["+z/1"]);
    assert_eq!(engine.poll_timeout(), None, "nothing is due before one is done");
    engine.on_attached(NOW, &disk("a", 1), true);
    assert_eq!(disks(&mut engine), ["+a/3"]);
    engine.on_attached(NOW, &disk("a", 2), false);
    assert_eq!(disks(&mut engine), ["+a/4"]);
    let at = engine.poll_timeout().expect("it is tried again");
    engine.on_timeout(at);
    assert!(disks(&mut engine).is_empty() && engine.poll_timeout().is_none());
}

#[test]
fn disks_beyond_the_limits_are_left_out_and_take_no_place_from_others() {
    let limits = Limits { disks: 12, disks_of_subsystem: 4, ..Limits::NONE };
    let mut engine = Engine::new(Policy::default()).with_limits(limits);
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), ["a", "b"].map(|nqn| subsystem(nqn, "h")).to_vec());
    engine.on_first_namespaces(NOW, &seen("a"), 1..=9);
    assert_eq!(disks(&mut engine), ["+a/1", "+a/2", "+a/3", "+a/4"]);
    engine.on_first_namespaces(NOW, &seen("b"), 1..=9);
    assert_eq!((disks(&mut engine), engine.beyond().disks), (vec!["+b/1".into(), "+b/2".into()], 5 + 7));
    engine.on_log(NOW, &controller("l"), vec![subsystem("z", "t")]);
    engine.on_first_namespaces(NOW, &seen("z"), [1]);
    assert_eq!(disks(&mut engine), ["+z/1"]);
    // Those that come first later take nobody's place; one that is gone leaves it.
    engine.on_attached(NOW, &disk("a", 4), true);
    engine.on_first_namespaces(NOW, &seen("a"), 0..=9);
    assert!(disks(&mut engine).is_empty());
    engine.on_first_namespaces(NOW, &seen("a"), 5..=9);
    let now = NOW + LONG;
    engine.on_attached(NOW, &disk("a", 1), false);
    assert_eq!(disks(&mut engine), ["+a/5"]);
    assert!(until(&mut engine, now).contains(&"-a/4".to_owned()));
}

/// Those that fail take their turns behind those that have waited longer, whatever they are called.
#[test]
fn disks_that_fail_again_and_again_keep_nobody_waiting() {
    let limits = Limits { at_once: 2, at_once_of_subsystem: 2, ..Limits::NONE };
    let mut engine = Engine::new(Policy::default()).with_limits(limits);
    engine.on_configured(NOW, [controller("h")], Vec::new());
    engine.on_log(NOW, &controller("h"), ["a", "z"].map(|nqn| subsystem(nqn, "h")).to_vec());
    engine.on_first_namespaces(NOW, &seen("a"), 1..=40);
    engine.on_first_namespaces(NOW, &seen("z"), [1]);
    let mut now = NOW;
    for number in 1..=40 {
        assert_eq!(disks(&mut engine), [format!("+a/{number}")]);
        // By then all that have failed before are due again.
        now += RETRY_DELAY_MAX;
        engine.on_attached(now, &disk("a", number), false);
    }
    assert_eq!(disks(&mut engine), ["+z/1"]);
}

/// Whoever lists it, too, has no say in how many disks there are of it.
#[test]
fn subsystem_that_is_named_is_of_no_controllers_share() {
    let limits = Limits { disks: 4, ..Limits::NONE };
    let mut engine = Engine::new(Policy::default()).with_limits(limits);
    let named = Subsystem {
        nqn: "z".to_owned(),
        paths: vec![path("t", &[])],
        options: vec!["--hdr-digest".to_owned()],
    };
    engine.on_configured(NOW, [controller("h")], vec![named]);
    engine.on_log(NOW, &controller("h"), ["a", "z"].map(|nqn| subsystem(nqn, "h")).to_vec());
    engine.on_first_namespaces(NOW, &seen("a"), 1..=40);
    engine.on_first_namespaces(NOW, &seen("z"), [1]);
    assert!(disks(&mut engine).contains(&"+z/1".to_owned()));
}
