//! The engine, by what it is told and what it wants done.

use super::*;

impl Engine {
    /// As it is said over the first of its paths.
    fn on_first_namespaces(&mut self, now: Duration, seen: &Seen, nsids: impl IntoIterator<Item = u32>) {
        let path = self.watched.get(seen).and_then(|watched| watched.wanted.subsystem.paths.first());
        let at = path.map(|path| path.place.clone());
        self.on_namespaces(now, seen, at, nsids);
    }
}

const NOW: Duration = Duration::from_secs(100);

fn place(address: &str) -> Place {
    Place { transport: "tcp".to_owned(), address: address.to_owned(), port: 8009 }
}

fn path(address: &str, options: &[&str]) -> SubsystemPath {
    SubsystemPath { place: place(address), own: OwnOptions::of(options.iter().copied()) }
}

/// A subsystem as the host of the machine sees it.
fn seen(nqn: &str) -> Seen {
    (nqn.to_owned(), None)
}

fn controller(address: &str) -> Controller {
    Controller { place: place(address), options: vec!["--hdr-digest".to_owned()] }
}

fn subsystem(nqn: &str, address: &str) -> Entry {
    Entry::Subsystem { nqn: nqn.to_owned(), place: place(address), tls: false }
}

fn disk(nqn: &str, nsid: u32) -> Disk {
    Disk { nqn: nqn.to_owned(), nsid }
}

fn actions(engine: &mut Engine) -> Vec<Action> {
    std::iter::from_fn(|| engine.poll_action()).collect()
}

/// Attaches and detaches, as words.
fn disks(engine: &mut Engine) -> Vec<String> {
    let words = actions(engine).into_iter().filter_map(|action| match action {
        Action::Attach(disk, _) => Some(format!("+{}/{}", disk.nqn, disk.nsid)),
        Action::Detach(disk) => Some(format!("-{}/{}", disk.nqn, disk.nsid)),
        _ => None,
    });
    words.collect()
}

/// One controller, which lists `a`, with namespace 1 attached.
fn attached() -> Engine {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    assert_eq!(disks(&mut engine), ["+a/1"]);
    engine.on_attached(NOW, &disk("a", 1), true);
    assert!(actions(&mut engine).is_empty() && engine.is_settled());
    engine
}

/// Turns the clock to when it is wanted next, and no further than this.
fn until(engine: &mut Engine, latest: Duration) -> Vec<String> {
    let mut words = Vec::new();
    while let Some(at) = engine.poll_timeout().filter(|at| *at <= latest) {
        engine.on_timeout(at);
        let now = disks(engine);
        if now.is_empty() && engine.poll_timeout() == Some(at) {
            panic!("it wants the same time again");
        }
        words.extend(now);
    }
    words
}

#[test]
fn referrals_are_followed_once_each_also_in_circles() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("a")], Vec::new());
    assert_eq!(actions(&mut engine), [Action::Follow(controller("a"))]);
    engine.on_log(NOW, &controller("a"), vec![Entry::Referral(place("b")), Entry::Referral(place("b"))]);
    assert_eq!(actions(&mut engine), [Action::Follow(controller("b"))]);
    engine.on_log(NOW, &controller("b"), vec![Entry::Referral(place("a")), Entry::Referral(place("b"))]);
    assert!(actions(&mut engine).is_empty());
    // It is referred to no more.
    engine.on_log(NOW, &controller("a"), Vec::new());
    assert_eq!(actions(&mut engine), [Action::Leave(controller("b"))]);
    // What it says afterwards is nobody's.
    engine.on_log(NOW, &controller("b"), vec![subsystem("x", "t")]);
    assert!(actions(&mut engine).is_empty());
}

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

/// Longer than a disk must be gone.
const LONG: Duration = Duration::from_secs(3600);

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
fn referrals_beyond_the_limits_are_counted() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("0")], Vec::new());
    let many = (1..=300).map(|number| Entry::Referral(place(&number.to_string()))).collect();
    engine.on_log(NOW, &controller("0"), many);
    assert_eq!((engine.counts().0, engine.beyond().referrals), (256, 45));
    // And those behind too many others.
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("0")], Vec::new());
    for number in 0..=8 {
        let next = Entry::Referral(place(&(number + 1).to_string()));
        engine.on_log(NOW, &controller(&number.to_string()), vec![next]);
    }
    assert_eq!((engine.counts().0, engine.beyond().referrals), (9, 1));
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

fn referrals(from: u32, to: u32) -> Vec<Entry> {
    (from..to).map(|number| Entry::Referral(place(&number.to_string()))).collect()
}

/// Whoever fills a log with referrals takes the place of no other's, nor of what is followed already.
#[test]
fn referrals_of_one_take_no_place_from_others() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("H"), controller("L")], Vec::new());
    engine.on_log(NOW, &controller("L"), vec![Entry::Referral(place("R"))]);
    actions(&mut engine);
    engine.on_log(NOW, &controller("H"), referrals(0, 300));
    let left =
        |engine: &mut Engine| actions(engine).into_iter().any(|action| matches!(action, Action::Leave(_)));
    assert!(!left(&mut engine));
    assert_eq!((engine.counts().0, engine.beyond().referrals), (256, 47));
    // Others with as many that come first stay out.
    engine.on_log(NOW, &controller("H"), [referrals(500, 800), referrals(0, 300)].concat());
    assert!(!left(&mut engine));
    // One that is referred to later has a place of the share of the one that refers there.
    engine.on_log(NOW, &controller("L"), vec![Entry::Referral(place("R")), Entry::Referral(place("R2"))]);
    let follows = |action: &Action| matches!(action, Action::Follow(it) if *it == controller("R2"));
    assert!(actions(&mut engine).iter().any(follows));
    assert_eq!(engine.counts().0, 256);
}

#[test]
fn announced_controllers_are_followed_where_the_named_ones_leave_room() {
    let mut engine = Engine::new(Policy::default());
    let announced = || (0..100).map(|number| controller(&format!("m{number}")));
    engine.on_announced(NOW, announced());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    assert_eq!((engine.counts().0, engine.beyond().referrals), (1 + 64, 36));
    engine.on_log(NOW, &controller("d"), referrals(0, 250));
    assert_eq!((engine.counts().0, engine.beyond().referrals), (256, 95));
}

#[test]
fn disk_is_not_gone_while_there_is_no_room_for_the_discovery_controller_that_listed_it() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), [vec![Entry::Referral(place("R"))], referrals(0, 200)].concat());
    for number in 0..200 {
        engine.on_log(NOW, &controller(&number.to_string()), Vec::new());
    }
    engine.on_log(NOW, &controller("R"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    engine.on_attached(NOW, &disk("a", 1), true);
    actions(&mut engine);
    // Others are named, and have their share.
    let others: Vec<_> = (0..255).map(|number| controller(&format!("e{number}"))).collect();
    engine.on_configured(NOW, others.iter().cloned().chain([controller("d")]), Vec::new());
    for it in &others {
        engine.on_log(NOW, it, Vec::new());
    }
    assert!(engine.beyond().referrals == 201 && engine.counts().0 == 256);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    // It is referred to no more.
    engine.on_log(NOW + LONG, &controller("d"), Vec::new());
    assert_eq!(until(&mut engine, NOW + LONG * 2), ["-a/1"]);
}

#[test]
fn delay_as_long_as_can_be_is_no_failure() {
    let mut engine = attached();
    engine.on_policy(NOW, Policy::read_text("detach_delay_s = 18446744073709551615"));
    engine.on_log(NOW, &controller("d"), Vec::new());
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
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
