//! Several discovery controllers that list one subsystem.

use super::*;
use std::collections::BTreeMap;

/// Two that are named: `l` lists the subsystem first, and namespace 1 of it is attached; then `h` lists it, too.
fn listed_by_another(entries: Vec<Entry>) -> Engine {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), Vec::new());
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert_eq!(disks(&mut engine), ["+a/1"]);
    engine.on_attached(NOW, &disk("a", 1), true);
    engine.on_log(NOW, &controller("h"), entries);
    engine
}

#[test]
fn paths_of_who_lists_a_subsystem_later_come_behind_and_connect_nothing_anew() {
    let many = (0..100).map(|number| subsystem("a", &format!("h{number}"))).collect();
    let mut engine = listed_by_another(many);
    let done = actions(&mut engine);
    assert!(!done.iter().any(|action| matches!(action, Action::Watch(_))), "{done:?}");
    let wider = done.iter().find_map(|action| if let Action::Widen(it) = action { Some(it) } else { None });
    let paths = &wider.expect("the paths are told").paths;
    assert_eq!((&paths[0].place, paths.len()), (&place("t"), 64));
    // There is room for another path of the first, and for another one that lists it.
    engine.on_configured(NOW, ["h", "l", "m"].map(controller), Vec::new());
    engine.on_log(NOW, &controller("m"), vec![subsystem("a", "m")]);
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t"), subsystem("a", "t2")]);
    let done = actions(&mut engine);
    assert!(!done.iter().any(|action| matches!(action, Action::Watch(_))), "it is connected over t");
    let widened = done.iter().rev().find_map(|it| if let Action::Widen(it) = it { Some(it) } else { None });
    let places: Vec<_> = widened.expect("it has others").paths.iter().map(|path| &path.place).collect();
    assert_eq!(places[..2], [&place("t"), &place("t2")]);
    assert!(places.contains(&&place("m")) && places.len() == 64);
}

/// Which disk it is the one that lists it first says: another place may have another namespace of that number, or none.
#[test]
fn disk_is_attached_over_paths_of_who_listed_it_first_and_given_those_of_others_then() {
    let mut engine = listed_by_another(vec![subsystem("a", "h")]);
    actions(&mut engine);
    engine.on_first_namespaces(NOW, &seen("a"), [1, 2]);
    let attached = actions(&mut engine).into_iter().find_map(|action| match action {
        Action::Attach(disk, subsystem) => Some((disk, subsystem.paths)),
        _ => None,
    });
    assert_eq!(attached, Some((disk("a", 2), vec![path("t", &["--hdr-digest"])])));
    engine.on_attached(NOW, &disk("a", 2), true);
    let added = actions(&mut engine).into_iter().find_map(|action| match action {
        Action::AddPaths(disk, subsystem) => Some((disk, subsystem.paths)),
        _ => None,
    });
    let both = ["t", "h"].map(|address| path(address, &["--hdr-digest"])).to_vec();
    assert_eq!(added, Some((disk("a", 2), both)));
}

/// The paths of the subsystem that is watched, as it was told last: where each leads, and whether with TLS.
fn last_paths(engine: &mut Engine) -> Vec<(String, bool)> {
    let last = actions(engine).into_iter().rev().find_map(|action| match action {
        Action::Watch(subsystem) | Action::Widen(subsystem) => Some(subsystem.paths),
        _ => None,
    });
    let paths = last.expect("it is watched").into_iter();
    paths.map(|path| (path.place.address, path.own.tls)).collect()
}

fn for_tls(address: &str, tls: Tls) -> Entry {
    Entry::Subsystem { nqn: "a".to_owned(), place: place(address), tls }
}

#[test]
fn subsystem_that_is_listed_with_tls_only_gets_no_path_in_the_clear_from_another() {
    let secure = || for_tls("t", Tls::Required);
    let both = [("t".to_owned(), true), ("h".to_owned(), true)];
    let begin = || {
        let mut engine = Engine::new(Policy::default());
        engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
        engine
    };
    let mut engine = begin();
    engine.on_log(NOW, &controller("l"), vec![secure()]);
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    assert_eq!(last_paths(&mut engine), both);
    // Nor from one that was a moment earlier when this began.
    let mut engine = begin();
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    engine.on_log(NOW, &controller("l"), vec![secure()]);
    assert_eq!(last_paths(&mut engine), both);
    // Where it has answered, another one that lists it with TLS takes nothing from it.
    let mut engine = begin();
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    engine.on_log(NOW, &controller("l"), vec![secure()]);
    assert_eq!(last_paths(&mut engine), [("h".to_owned(), false), ("t".to_owned(), true)]);
    // What the first has in the clear as well, others may have.
    let mut engine = begin();
    engine.on_log(NOW, &controller("l"), vec![secure(), subsystem("a", "t2")]);
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    let expected = [("t".to_owned(), true), ("t2".to_owned(), false), ("h".to_owned(), false)];
    assert_eq!(last_paths(&mut engine), expected);
}

#[test]
fn disk_is_not_gone_where_only_another_that_lists_its_subsystem_has_none() {
    let mut engine = listed_by_another(vec![subsystem("a", "h")]);
    // The first place is away, and the other one answers.
    engine.on_namespaces(NOW, &seen("a"), Some(place("h")), []);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    // It says so itself.
    engine.on_namespaces(NOW + LONG, &seen("a"), Some(place("t")), []);
    assert_eq!(until(&mut engine, NOW + LONG * 2), ["-a/1"]);
    // And where the first lists it no more, the other one is who is asked.
    let mut engine = listed_by_another(vec![subsystem("a", "h")]);
    actions(&mut engine);
    engine.on_log(NOW, &controller("l"), Vec::new());
    assert_eq!(watched(&mut engine).paths, [path("h", &["--hdr-digest"])]);
    engine.on_namespaces(NOW, &seen("a"), Some(place("h")), []);
    assert_eq!(until(&mut engine, NOW + LONG), ["-a/1"]);
}

/// Of a service that was started again, to which the other one answers first.
#[test]
fn disk_that_is_attached_already_is_asked_for_where_it_is_attached() {
    let engine = || {
        let mut engine = Engine::new(Policy::default());
        engine.on_disks(NOW, [(disk("a", 1), Some(place("t")), true, false)]);
        engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
        engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
        engine
    };
    for shown in [&[][..], &[1]] {
        let mut engine = engine();
        engine.on_first_namespaces(NOW, &seen("a"), shown.iter().copied());
        actions(&mut engine);
        engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t")]);
        assert_eq!(watched(&mut engine).paths[0].place, place("t"));
        engine.on_namespaces(NOW, &seen("a"), Some(place("h")), []);
        assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
        engine.on_first_namespaces(NOW + LONG, &seen("a"), [1]);
        assert_eq!(until(&mut engine, NOW + LONG * 2), Vec::<String>::new());
    }
}

/// One that cannot be reached keeps nobody from being the first.
#[test]
fn subsystem_is_listed_anew_only_until_all_controllers_that_are_named_were_tried() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("h"), controller("l"), controller("down")], Vec::new());
    engine.on_log(NOW, &controller("h"), Vec::new());
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t")]);
    engine.on_controller_away(NOW, &controller("down"));
    engine.on_log(NOW, &controller("h"), vec![for_tls("h", Tls::Required)]);
    assert_eq!(last_paths(&mut engine), [("t".to_owned(), false), ("h".to_owned(), true)]);
    // Whoever lists it with what this host has no key for keeps nobody away, at any time.
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), vec![for_tls("h", Tls::WithoutKey)]);
    engine.on_controller_away(NOW, &controller("l"));
    engine.on_namespaces(NOW, &seen("a"), None, []);
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t")]);
    assert_eq!(last_paths(&mut engine), [("t".to_owned(), false), ("h".to_owned(), true)]);
    assert!(!engine.is_settled(), "it is asked there now");
}

/// `l` lists `a`, and so does `h`, which has spoken before; nobody has answered yet.
fn listed_by_both(l: Entry, h: Entry) -> Engine {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), Vec::new());
    engine.on_log(NOW, &controller("l"), vec![l]);
    engine.on_log(NOW, &controller("h"), vec![h]);
    engine
}

#[test]
fn tls_of_who_lists_a_subsystem_later_is_on_no_path_of_who_listed_it_before() {
    let mut engine = listed_by_both(subsystem("a", "t"), for_tls("h", Tls::Required));
    assert_eq!(last_paths(&mut engine), [("t".to_owned(), false), ("h".to_owned(), true)]);
    // Its target is away all the time, and is there at last.
    engine.on_first_namespaces(NOW + LONG, &seen("a"), [1]);
    let attached = actions(&mut engine).into_iter().find_map(|action| match action {
        Action::Attach(_, subsystem) => Some(subsystem.paths),
        _ => None,
    });
    assert_eq!(attached, Some(vec![path("t", &["--hdr-digest"])]));
}

#[test]
fn subsystem_that_is_listed_with_tls_for_which_there_is_no_key_is_taken_from_who_lists_it_without() {
    let both = [("t".to_owned(), false), ("h".to_owned(), true)];
    for is_clear_first in [true, false] {
        let mut engine = Engine::new(Policy::default());
        engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
        let mut logs = [("l", subsystem("a", "t")), ("h", for_tls("h", Tls::WithoutKey))];
        if !is_clear_first {
            logs.reverse();
        }
        for (name, entry) in logs {
            engine.on_log(NOW, &controller(name), vec![entry]);
        }
        assert_eq!(last_paths(&mut engine), both);
        engine.on_first_namespaces(NOW, &seen("a"), [1]);
        assert_eq!(disks(&mut engine), ["+a/1"]);
    }
    // Who names the option insists on TLS, with a key or without.
    let insists = Controller { options: vec!["--tls".to_owned()], ..controller("l") };
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("h"), insists.clone()], Vec::new());
    engine.on_log(NOW, &insists, vec![for_tls("t", Tls::WithoutKey)]);
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    assert_eq!(last_paths(&mut engine), [("t".to_owned(), true), ("h".to_owned(), true)]);
}

/// Whoever lists the place of somebody's disk, too, has nothing to say of it, and less so when the first has another place for it.
#[test]
fn disk_is_of_who_listed_it_first_wherever_that_has_it_by_now() {
    let mut engine = listed_by_another(vec![subsystem("a", "t"), subsystem("a", "h")]);
    actions(&mut engine);
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t2")]);
    assert_eq!(watched(&mut engine).paths[0].place, place("t2"));
    // The other one answers.
    engine.on_namespaces(NOW, &seen("a"), Some(place("h")), [2]);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    assert!(disks(&mut engine).is_empty(), "it is another one's namespace");
    engine.on_namespaces(NOW + LONG, &seen("a"), Some(place("t2")), [1, 2]);
    assert_eq!(disks(&mut engine), ["+a/2"]);
    // For a moment the first lists nothing, as when it starts again.
    engine.on_log(NOW + LONG, &controller("l"), Vec::new());
    actions(&mut engine);
    engine.on_log(NOW + LONG, &controller("l"), vec![subsystem("a", "t2")]);
    assert_eq!(watched(&mut engine).paths[0].place, place("t2"));
}

/// Of a service that was started again: the target has moved meanwhile, and another one claims the place that it had.
#[test]
fn disk_that_its_first_has_shown_elsewhere_is_nobody_elses_who_lists_where_it_was() {
    let mut engine = Engine::new(Policy::default());
    engine.on_disks(NOW, [(disk("a", 1), Some(place("t")), true, false)]);
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), Vec::new());
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t2")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    actions(&mut engine);
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "t"), subsystem("a", "h")]);
    let done = actions(&mut engine);
    assert!(!done.iter().any(|action| matches!(action, Action::Watch(_))), "{done:?}");
    engine.on_namespaces(NOW, &seen("a"), Some(place("h")), [2]);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
}

#[test]
fn namespaces_that_another_place_shows_are_not_attached_until_the_first_shows_them() {
    let mut engine = listed_by_another(vec![subsystem("a", "h")]);
    actions(&mut engine);
    engine.on_namespaces(NOW, &seen("a"), Some(place("h")), [1, 2, 3]);
    assert_eq!((disks(&mut engine), engine.beyond().disks), (vec![], 0));
    engine.on_namespaces(NOW, &seen("a"), Some(place("t")), [1, 2]);
    assert_eq!(disks(&mut engine), ["+a/2"]);
}

/// What somebody has detached stays so, whatever other places say that are under the same name.
#[test]
fn disk_that_was_detached_by_hand_is_not_attached_again_because_of_what_another_place_shows() {
    let mut engine = listed_by_another(vec![subsystem("a", "h")]);
    engine.on_listed(NOW, &BTreeMap::new());
    engine.on_namespaces(NOW, &seen("a"), Some(place("h")), []);
    engine.on_namespaces(NOW, &seen("a"), Some(place("t")), [1]);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    engine.on_namespaces(NOW + LONG, &seen("a"), Some(place("t")), []);
    engine.on_namespaces(NOW + LONG, &seen("a"), Some(place("t")), [1]);
    assert_eq!(disks(&mut engine), ["+a/1"]);
}

/// Anybody on the network announces itself, and nobody has named it.
#[test]
fn controller_that_is_announced_comes_behind_those_that_are_named() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("l")], Vec::new());
    engine.on_announced(NOW, [controller("h")]);
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    assert_eq!(last_paths(&mut engine), [("h".to_owned(), false)]);
    engine.on_log(NOW, &controller("l"), vec![Entry::Referral(place("l2"))]);
    engine.on_log(NOW, &controller("l2"), vec![subsystem("a", "t")]);
    assert_eq!(last_paths(&mut engine), [("t".to_owned(), false), ("h".to_owned(), false)]);
    assert_eq!(engine.root_of_subsystem(&seen("a")), Some(&Some(controller("l"))));
    assert_eq!(engine.own_paths(&seen("a")), 1);
}
