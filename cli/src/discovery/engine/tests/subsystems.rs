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

#[test]
fn tls_is_asked_for_on_the_paths_that_have_nothing_else() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    let secure = Entry::Subsystem { nqn: "a".to_owned(), place: place("t2"), tls: Tls::Required };
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
    let entry = Entry::Subsystem { nqn: "a".to_owned(), place: rdma.clone(), tls: Tls::No };
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
        vec![Entry::Subsystem { nqn: "a".to_owned(), place: place("t2"), tls: Tls::No }],
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
