//! Which subsystems are watched, and over which paths.

use super::*;

#[test]
fn all_ways_to_a_subsystem_are_its_paths() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(
        NOW,
        &controller("d"),
        vec![subsystem("a", "t1"), subsystem("a", "t2"), subsystem("a", "t1")],
    );
    let watched = actions(&mut engine).into_iter().find_map(|action| match action {
        Action::Watch(subsystem) | Action::Widen(subsystem) => Some(subsystem),
        _ => None,
    });
    let watched = watched.expect("it is watched");
    assert_eq!(watched.paths, [path("t1", &["--hdr-digest"]), path("t2", &["--hdr-digest"])]);
    assert_eq!(watched.options, [] as [&str; 0]);
}

/// The subsystem that is to be watched.
fn watched(engine: &mut Engine) -> Subsystem {
    let watch = |action| if let Action::Watch(subsystem) = action { Some(subsystem) } else { None };
    actions(engine).into_iter().find_map(watch).expect("a subsystem is wanted")
}

#[test]
fn tls_is_asked_for_on_the_paths_that_have_nothing_else() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    let secure = Entry::Subsystem { nqn: "a".to_owned(), place: place("t2"), tls: true };
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t1"), secure]);
    let paths = watched(&mut engine).paths;
    assert_eq!(paths, [path("t1", &["--hdr-digest"]), path("t2", &["--hdr-digest", "--tls"])]);
}

#[test]
fn options_of_tcp_are_not_those_of_a_path_over_rdma() {
    let options =
        ["--hdr-digest", "--host-iface=eth0", "--tls", "--tls-key-file=key", "--host-traddr=192.0.2.5"];
    let from = Controller { options: options.map(str::to_owned).to_vec(), ..controller("d") };
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [from.clone()], Vec::new());
    let rdma = Place { transport: "rdma".to_owned(), ..place("t") };
    let entry = Entry::Subsystem { nqn: "a".to_owned(), place: rdma.clone(), tls: false };
    engine.on_log(NOW, &from, vec![entry, subsystem("a", "t")]);
    let wanted = watched(&mut engine);
    assert_eq!(wanted.options, ["--tls-key-file=key"]);
    // Where TLS is insisted on, what has none is left out when it comes to that.
    let over_rdma = OwnOptions::of(["--tls", "--host-traddr=192.0.2.5"]);
    assert_eq!(wanted.paths[0], SubsystemPath { place: rdma, own: over_rdma });
    assert_eq!(
        wanted.paths[1],
        path("t", &["--hdr-digest", "--host-iface=eth0", "--tls", "--host-traddr=192.0.2.5"])
    );
}

#[test]
fn paths_of_two_discovery_controllers_lead_from_where_each_is_asked() {
    let from = |source: &str| {
        let options = vec![format!("--host-traddr={source}"), "--keep-alive-tmo=9".to_owned()];
        Controller { place: place(source), options }
    };
    let (one, other) = (from("192.0.2.5"), from("198.51.100.5"));
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [one.clone(), other.clone()], Vec::new());
    engine.on_log(NOW, &one, vec![subsystem("a", "t1")]);
    engine.on_log(NOW, &other, vec![subsystem("a", "t2")]);
    let last = actions(&mut engine).into_iter().rev();
    let last = last.filter_map(|action| match action {
        Action::Watch(subsystem) | Action::Widen(subsystem) => Some(subsystem),
        _ => None,
    });
    let paths = last.take(1).next().expect("a subsystem is wanted").paths;
    assert_eq!(
        paths,
        [path("t1", &["--host-traddr=192.0.2.5"]), path("t2", &["--host-traddr=198.51.100.5"])]
    );
}

#[test]
fn two_hosts_of_one_file_are_kept_apart() {
    let of = |host: &str, address: &str| Subsystem {
        nqn: "a".to_owned(),
        paths: vec![path(address, &[])],
        options: vec![format!("--hostnqn={host}")],
    };
    let (one, other) = (of("h1", "t1"), of("h2", "t2"));
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [], vec![one.clone(), other.clone()]);
    assert_eq!(actions(&mut engine), [Action::Watch(one.clone()), Action::Watch(other.clone())]);
    // Each sees namespaces of its own, and both see one.
    engine.on_first_namespaces(NOW, &one.seen(), [1, 2]);
    engine.on_first_namespaces(NOW, &other.seen(), [2, 3]);
    let attach = |nsid, as_whom: &Subsystem| Action::Attach(disk("a", nsid), as_whom.clone());
    assert_eq!(actions(&mut engine), [attach(1, &one), attach(2, &one), attach(3, &other)]);
}

#[test]
fn subsystem_that_is_named_itself_needs_no_discovery_controller() {
    let mut engine = Engine::new(Policy::default());
    let named = Subsystem { nqn: "a".to_owned(), paths: vec![path("t", &[])], options: Vec::new() };
    engine.on_configured(NOW, [], vec![named.clone()]);
    assert_eq!(actions(&mut engine), [Action::Watch(named)]);
    engine.on_first_namespaces(NOW, &seen("a"), [7]);
    assert_eq!(disks(&mut engine), ["+a/7"]);
}

#[test]
fn subsystem_that_is_configured_with_tls_gets_no_path_in_the_clear_from_discovery() {
    let fixed = Subsystem { nqn: "a".to_owned(), paths: vec![path("t1", &["--tls"])], options: Vec::new() };
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], vec![fixed]);
    engine.on_log(
        NOW,
        &controller("d"),
        vec![Entry::Subsystem { nqn: "a".to_owned(), place: place("t2"), tls: false }],
    );
    let watched = |action| match action {
        Action::Watch(subsystem) | Action::Widen(subsystem) => Some(subsystem),
        _ => None,
    };
    let last = actions(&mut engine).into_iter().rev().find_map(watched);
    let paths = last.expect("it is watched").paths;
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths.iter().all(|path| path.own.tls), "{paths:?}");
}

/// Whoever writes a log has neither as many connections made as it likes, nor takes those of others.
#[test]
fn subsystems_beyond_the_limit_are_left_out_and_take_no_place_from_others() {
    let mut engine = attached().with_limits(Limits { subsystems: 6, ..Limits::NONE });
    let watched = |engine: &mut Engine| -> Vec<String> {
        let watched = actions(engine).into_iter().filter_map(|action| match action {
            Action::Watch(subsystem) => Some(format!("+{}", subsystem.nqn)),
            Action::Unwatch((nqn, _)) => Some(format!("-{nqn}")),
            _ => None,
        });
        watched.collect()
    };
    let list = |names: &[&str]| names.iter().map(|nqn| subsystem(nqn, "t")).collect();
    // Three are half of six: the one that is watched, and the first two of the others.
    engine.on_log(NOW, &controller("d"), list(&["0", "1", "2", "3", "a"]));
    assert_eq!(watched(&mut engine), ["+0", "+1"]);
    assert_eq!(engine.beyond(), Beyond { subsystems: 2, ..Beyond::default() });
    // The same again, in another order, changes nothing.
    engine.on_log(NOW, &controller("d"), list(&["3", "2", "1", "0", "a"]));
    assert_eq!((watched(&mut engine), engine.beyond().subsystems), (vec![], 2));
    // Another controller has its own share, as far as there is room.
    engine.on_configured(NOW, [controller("d"), controller("e")], Vec::new());
    engine.on_log(NOW, &controller("e"), list(&["4", "5", "6", "7"]));
    assert_eq!(
        (watched(&mut engine), engine.beyond().subsystems),
        (vec!["+4".into(), "+5".into(), "+6".into()], 3)
    );
    engine.on_configured(NOW, [controller("d"), controller("e"), controller("f")], Vec::new());
    engine.on_log(NOW, &controller("f"), list(&["8"]));
    assert_eq!((watched(&mut engine), engine.beyond().subsystems), (vec![], 4));
    // What is not listed any more leaves its place.
    engine.on_log(NOW, &controller("d"), list(&["a"]));
    let expected = ["-0", "-1", "+8"].map(str::to_owned).to_vec();
    assert_eq!((watched(&mut engine), engine.beyond().subsystems), (expected, 1));
    assert!(!disks(&mut engine).iter().any(|it| it == "-a/1"));
}

/// Of a service that was started again: its disks are nobody's to take away.
#[test]
fn disk_that_is_attached_already_has_its_place_among_too_many() {
    let mut engine = Engine::new(Policy::default()).with_limits(Limits { subsystems: 2, ..Limits::NONE });
    engine.on_disks(NOW, [(disk("z", 1), None, true, false)]);
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), ["a", "b", "c", "z"].map(|nqn| subsystem(nqn, "t")).to_vec());
    let is_watched = |action: &Action| matches!(action, Action::Watch(subsystem) if subsystem.nqn == "z");
    assert!(actions(&mut engine).iter().any(is_watched));
    assert_eq!(engine.beyond().subsystems, 3);
}

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

#[test]
fn subsystem_that_is_listed_with_tls_only_gets_no_path_in_the_clear_from_another() {
    let secure = || Entry::Subsystem { nqn: "a".to_owned(), place: place("t"), tls: true };
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
    // Nor from one that was a moment earlier.
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
    let mut engine = Engine::new(Policy::default());
    engine.on_disks(NOW, [(disk("a", 1), Some(place("t")), true, false)]);
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    engine.on_log(NOW, &controller("h"), vec![subsystem("a", "h")]);
    engine.on_first_namespaces(NOW, &seen("a"), []);
    actions(&mut engine);
    engine.on_log(NOW, &controller("l"), vec![subsystem("a", "t")]);
    assert_eq!(watched(&mut engine).paths[0].place, place("t"));
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    engine.on_first_namespaces(NOW + LONG, &seen("a"), [1]);
    assert_eq!(until(&mut engine, NOW + LONG * 2), Vec::<String>::new());
}

#[test]
fn one_that_refers_to_itself_has_no_more_subsystems_for_it() {
    let mut engine = Engine::new(Policy::default()).with_limits(Limits { subsystems: 8, ..Limits::NONE });
    engine.on_disks(NOW, [(disk("z", 1), None, true, false)]);
    engine.on_configured(NOW, [controller("h"), controller("l")], Vec::new());
    let list = |from: u32| (from..from + 8).map(|number| subsystem(&number.to_string(), "t"));
    engine.on_log(NOW, &controller("h"), list(0).chain([Entry::Referral(place("h2"))]).collect());
    engine.on_log(NOW, &controller("h2"), list(8).collect());
    assert_eq!((engine.watched.len(), engine.beyond().subsystems), (4, 12));
    // What is attached has a place of them.
    engine.on_log(NOW, &controller("l"), list(16).chain([subsystem("z", "t")]).collect());
    assert_eq!((engine.watched.len(), engine.beyond().subsystems), (8, 12 + 5));
    assert!(engine.watched.contains_key(&seen("z")));
}
