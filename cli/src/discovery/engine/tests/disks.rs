//! Which disks are attached, given paths, brought back and detached, and when.

use super::*;

/// The disks that are given paths, and how many these are.
fn added(engine: &mut Engine) -> Vec<(Disk, usize)> {
    let given = actions(engine).into_iter().filter_map(|action| match action {
        Action::AddPaths(disk, subsystem) => Some((disk, subsystem.paths.len())),
        _ => None,
    });
    given.collect()
}

#[test]
fn path_that_an_attached_disk_could_not_be_given_is_tried_again() {
    let mut engine = attached();
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t"), subsystem("a", "t2")]);
    assert_eq!(added(&mut engine), [(disk("a", 1), 2)]);
    engine.on_paths_added(NOW, &disk("a", 1), false);
    assert!(added(&mut engine).is_empty() && engine.is_settled(), "not at once");
    let later = engine.poll_timeout().expect("it is tried again");
    assert!(later > NOW);
    engine.on_timeout(later);
    assert_eq!(added(&mut engine), [(disk("a", 1), 2)]);
    engine.on_paths_added(later, &disk("a", 1), true);
    assert_eq!((added(&mut engine), engine.poll_timeout()), (vec![], None));
    // Another list is tried at once.
    engine.on_log(later, &controller("d"), vec![subsystem("a", "t"), subsystem("a", "t3")]);
    assert_eq!(added(&mut engine), [(disk("a", 1), 2)]);
    engine.on_paths_added(later, &disk("a", 1), false);
    engine.on_log(later, &controller("d"), vec![subsystem("a", "t")]);
    assert_eq!(added(&mut engine), [(disk("a", 1), 1)]);
}

#[test]
fn attached_disk_is_given_the_paths_that_are_listed_later_and_once_each() {
    let mut engine = attached();
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t"), subsystem("a", "t2")]);
    assert_eq!(added(&mut engine), [(disk("a", 1), 2)]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert!(!engine.is_settled() && added(&mut engine).is_empty(), "it is under way");
    engine.on_paths_added(NOW, &disk("a", 1), true);
    assert!(added(&mut engine).is_empty() && engine.is_settled());
    // What is listed no more stays, and is not taken for something new.
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t2")]);
    assert_eq!(added(&mut engine), [(disk("a", 1), 1)]);
    engine.on_paths_added(NOW, &disk("a", 1), true);
    // One that somebody else attached has them looked at from the start.
    let mut engine = Engine::new(Policy::default());
    engine.on_disks(NOW, [(disk("a", 1), None, false, false)]);
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t")]);
    assert_eq!(added(&mut engine), [(disk("a", 1), 1)]);
}

#[test]
fn what_appears_is_attached_and_what_was_removed_is_detached_after_a_while() {
    let mut engine = attached();
    engine.on_first_namespaces(NOW, &seen("a"), [1, 2]);
    assert_eq!(disks(&mut engine), ["+a/2"]);
    engine.on_attached(NOW, &disk("a", 2), true);
    engine.on_first_namespaces(NOW, &seen("a"), [2]);
    assert!(disks(&mut engine).is_empty(), "it may come back");
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(29)), Vec::<String>::new());
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(31)), ["-a/1"]);
    engine.on_detached(NOW, &disk("a", 1), Detached::Gone);
    // The subsystem with all of it.
    engine.on_log(NOW, &controller("d"), Vec::new());
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(60)), ["-a/2"]);
    engine.on_detached(NOW, &disk("a", 2), Detached::Gone);
    assert_eq!(engine.counts(), (1, 0));
}

#[test]
fn target_that_starts_again_loses_no_disk() {
    let mut engine = attached();
    let mut now = NOW;
    for _ in 0..5 {
        engine.on_log(now, &controller("d"), Vec::new());
        now += Duration::from_secs(20);
        assert_eq!(until(&mut engine, now), Vec::<String>::new());
        engine.on_log(now, &controller("d"), vec![subsystem("a", "t")]);
        engine.on_first_namespaces(now, &seen("a"), []);
        now += Duration::from_secs(20);
        assert_eq!(until(&mut engine, now), Vec::<String>::new());
        engine.on_first_namespaces(now, &seen("a"), [1]);
        assert!(disks(&mut engine).is_empty(), "it is attached still");
    }
    assert_eq!(engine.counts(), (1, 1));
}

#[test]
fn disk_is_not_gone_while_the_subsystem_that_had_it_is_away() {
    let mut engine = attached();
    // It shows nothing for a moment while it ends, and when it begins.
    engine.on_first_namespaces(NOW, &seen("a"), []);
    engine.on_subsystem_away(NOW, &seen("a"));
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    let now = NOW + LONG;
    engine.on_timeout(now);
    engine.on_first_namespaces(now, &seen("a"), []);
    assert!(disks(&mut engine).is_empty(), "the time counts from now on");
    engine.on_first_namespaces(now, &seen("a"), [1]);
    assert_eq!(until(&mut engine, now + LONG), Vec::<String>::new());
    // What is there and has it no more is believed, after a while.
    engine.on_first_namespaces(now, &seen("a"), []);
    assert_eq!(until(&mut engine, now + Duration::from_secs(29)), Vec::<String>::new());
    assert_eq!(until(&mut engine, now + Duration::from_secs(30)), ["-a/1"]);
}

#[test]
fn disk_is_not_gone_while_the_discovery_controller_that_listed_it_is_away() {
    let mut engine = attached();
    engine.on_log(NOW, &controller("d"), Vec::new());
    let mut now = NOW + Duration::from_secs(29);
    engine.on_controller_away(now, &controller("d"));
    assert_eq!(until(&mut engine, now + LONG), Vec::<String>::new());
    now += LONG;
    engine.on_log(now, &controller("d"), Vec::new());
    assert!(disks(&mut engine).is_empty(), "the time counts from now on");
    // Another one that never listed it is not asked.
    engine.on_configured(now, [controller("d"), controller("e")], Vec::new());
    engine.on_log(now, &controller("e"), Vec::new());
    engine.on_controller_away(now, &controller("e"));
    assert_eq!(until(&mut engine, now + Duration::from_secs(29)), Vec::<String>::new());
    assert_eq!(until(&mut engine, now + Duration::from_secs(30)), ["-a/1"]);
}

#[test]
fn disk_that_the_policy_denies_goes_also_while_its_discovery_controller_is_away() {
    let mut engine = attached();
    engine.on_subsystem_away(NOW, &seen("a"));
    engine.on_controller_away(NOW, &controller("d"));
    engine.on_policy(NOW, Policy::read_text("deny = [\"a\"]"));
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(30)), ["-a/1"]);
    // And one whose controller is not followed any more.
    let mut engine = attached();
    engine.on_controller_away(NOW, &controller("d"));
    engine.on_configured(NOW, [], Vec::new());
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(30)), ["-a/1"]);
}

#[test]
fn disk_in_use_stays_until_it_is_not() {
    let mut engine = attached();
    engine.on_first_namespaces(NOW, &seen("a"), []);
    let mut now = NOW + Duration::from_secs(30);
    for _ in 0..3 {
        assert_eq!(until(&mut engine, now), ["-a/1"]);
        engine.on_detached(now, &disk("a", 1), Detached::InUse);
        assert!(disks(&mut engine).is_empty());
        now += Duration::from_secs(30);
    }
    assert_eq!(until(&mut engine, now), ["-a/1"]);
    engine.on_detached(now, &disk("a", 1), Detached::Gone);
    assert_eq!(engine.poll_timeout(), None);
}

#[test]
fn attach_that_fails_is_tried_again_ever_more_seldom() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert_eq!(disks(&mut engine), ["+a/1"]);
    let (mut now, mut delays) = (NOW, Vec::new());
    for _ in 0..8 {
        engine.on_attached(now, &disk("a", 1), false);
        let at = engine.poll_timeout().expect("it is tried again");
        delays.push((at - now).as_secs());
        now = at;
        engine.on_timeout(now);
        assert_eq!(disks(&mut engine), ["+a/1"]);
    }
    assert_eq!(delays, [2, 4, 8, 16, 32, 64, 120, 120]);
    // What is no more wanted is not tried.
    engine.on_attached(now, &disk("a", 1), false);
    engine.on_first_namespaces(now, &seen("a"), []);
    assert_eq!((engine.poll_timeout(), disks(&mut engine)), (None, Vec::new()));
}

#[test]
fn policy_decides_and_its_change_counts_at_once() {
    let mut engine = attached();
    let entries = vec![subsystem("a", "t"), subsystem("b", "t")];
    engine.on_log(NOW, &controller("d"), entries);
    engine.on_first_namespaces(NOW, &seen("b"), [1]);
    assert_eq!(disks(&mut engine), ["+b/1"]);
    engine.on_attached(NOW, &disk("b", 1), true);
    let denied = Policy::read_text("deny = [\"a\"]\ndetach_delay_s = 0");
    engine.on_policy(NOW, denied);
    assert_eq!(disks(&mut engine), ["-a/1"]);
    engine.on_detached(NOW, &disk("a", 1), Detached::Gone);
    let keeps = Policy::read_text("deny = [\"*\"]\ndetach = false");
    engine.on_policy(NOW, keeps);
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(3600)), Vec::<String>::new());
    assert_eq!(engine.counts().1, 1);
}

#[test]
fn disk_of_somebody_else_is_not_attached_again_nor_detached() {
    let mut engine = Engine::new(Policy::default());
    engine.on_disks(
        NOW,
        [
            (disk("a", 1), None, false, false),
            (disk("a", 2), None, true, false),
            (disk("z", 1), None, true, false),
        ],
    );
    engine.on_configured(NOW, [controller("d")], Vec::new());
    // Nothing is known yet of what is gone.
    assert_eq!(until(&mut engine, NOW + Duration::from_secs(3600)), Vec::<String>::new());
    let now = NOW + Duration::from_secs(3600);
    engine.on_log(now, &controller("d"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(now, &seen("a"), [3]);
    assert_eq!(disks(&mut engine), ["+a/3"]);
    engine.on_attached(now, &disk("a", 3), true);
    assert_eq!(until(&mut engine, now + Duration::from_secs(60)), ["-a/2", "-z/1"]);
}

#[test]
fn disk_that_a_person_detached_stays_away_until_it_was_gone() {
    let mut engine = attached();
    engine.on_listed(NOW, &BTreeMap::from([(disk("a", 1), false)]));
    assert_eq!(engine.counts(), (1, 1));
    engine.on_listed(NOW, &BTreeMap::new());
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert!(disks(&mut engine).is_empty());
    engine.on_first_namespaces(NOW, &seen("a"), []);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert_eq!(disks(&mut engine), ["+a/1"]);
}

/// Whether the disk is to be brought back or given paths.
fn adds(engine: &mut Engine) -> bool {
    actions(engine).iter().any(|action| matches!(action, Action::AddPaths(..)))
}

#[test]
fn disk_that_is_dead_is_brought_back_once_its_target_is_there() {
    let mut engine = attached();
    engine.on_subsystem_away(NOW, &seen("a"));
    let dead = BTreeMap::from([(disk("a", 1), true)]);
    engine.on_listed(NOW, &dead);
    assert!(!adds(&mut engine), "its target is away");
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert!(adds(&mut engine));
    engine.on_listed(NOW, &dead);
    assert!(!adds(&mut engine), "that is under way");
    engine.on_paths_added(NOW, &disk("a", 1), false);
    engine.on_listed(NOW, &dead);
    assert!(!adds(&mut engine), "it has failed just now");
    let at = engine.poll_timeout().expect("it is tried again");
    engine.on_timeout(at);
    assert!(at > NOW && adds(&mut engine));
    engine.on_paths_added(at, &disk("a", 1), true);
    assert!(!adds(&mut engine) && engine.poll_timeout().is_none());
    // It dies again.
    engine.on_listed(at, &dead);
    assert!(adds(&mut engine));
}

#[test]
fn disk_that_was_dead_from_the_start_waits_for_its_target() {
    let mut engine = Engine::new(Policy::default());
    engine.on_disks(NOW, [(disk("a", 1), None, false, true)]);
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t")]);
    assert!(!adds(&mut engine));
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert!(adds(&mut engine) && !engine.is_settled());
    engine.on_paths_added(NOW, &disk("a", 1), true);
    assert!(engine.is_settled());
}

#[test]
fn delay_as_long_as_can_be_is_no_failure() {
    let mut engine = attached();
    engine.on_policy(NOW, Policy::read_text("detach_delay_s = 18446744073709551615"));
    engine.on_log(NOW, &controller("d"), Vec::new());
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
}
