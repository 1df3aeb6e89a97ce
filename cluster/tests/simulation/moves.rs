//! Gateways that cannot take groups or open images, and moves: what users would see.

use super::plan::{Fault, MS, Plan, Planned, SECOND, Time, Unable};
use super::world::World;
use nvmf_cluster::{ConnectedHosts, GatewayName, GroupId, Status};

/// All is balanced by then.
const AT: Time = 30 * SECOND;
const LONG: Time = 1000 * SECOND;

fn world(faults: &[(Time, Time, Fault)], groups: u32) -> World {
    let faults = faults.iter().map(|&(at, lasts, fault)| Planned { at, lasts, fault }).collect();
    let plan = Plan { seed: 7, nodes: 3, groups, osds: 3, hosts: 1, faults, balance: false, moves_on: false };
    let mut world = World::new(plan, None, false);
    world.calm = true;
    world
}

fn status(world: &World, node: usize) -> Status {
    let node = &world.nodes[node];
    node.running.as_ref().expect("it runs").engine.status(node.clock(world.now))
}

fn count(world: &World, name: &str) -> usize {
    (1..=world.plan.groups).filter(|&group| world.shown(group) == [name]).count()
}

/// How many groups nobody serves, at most, from now on until then.
fn most_away(world: &mut World, until: Time) -> usize {
    let mut most = 0;
    while world.now < until {
        world.run_until(world.now + 5 * MS).expect("a run");
        let away = (1..=world.plan.groups).filter(|&group| world.shown(group).is_empty());
        most = most.max(away.count());
    }
    most
}

/// gw0 dies, comes back and has nothing: balance would like to give it groups.
fn with_an_empty_gateway(how: Option<Unable>) -> World {
    let mut faults = vec![(AT, 30 * SECOND, Fault::Crash { node: 0, again: true })];
    faults.extend(how.map(|how| (AT, LONG, Fault::Unable { node: 0, how })));
    let mut world = world(&faults, 12);
    world.run_until(AT + 31 * SECOND).expect("a run");
    assert_eq!(count(&world, "gw0"), 0);
    world
}

#[test]
fn balance_moves_one_group_at_a_time() {
    let mut world = with_an_empty_gateway(None);
    assert_eq!(most_away(&mut world, AT + 100 * SECOND), 1);
    assert_eq!(count(&world, "gw0"), 4);
}

/// They would lose the disks of what goes there.
#[test]
fn balance_gives_nothing_to_a_gateway_that_hosts_are_not_connected_to() {
    let mut world = with_an_empty_gateway(None);
    let connect = |world: &mut World, node: usize, hosts: &[u32]| {
        let clock = world.nodes[node].clock(world.now);
        let engine = &mut world.nodes[node].running.as_mut().expect("it runs").engine;
        engine.set_hosts(clock, ConnectedHosts::of(hosts.iter().copied()));
        world.pump(node);
    };
    (0..3).for_each(|node| connect(&mut world, node, [&[][..], &[1, 2, 3], &[1, 2]][node]));
    assert_eq!(most_away(&mut world, AT + 100 * SECOND), 0);
    assert_eq!(["gw0", "gw1", "gw2"].map(|name| count(&world, name)), [0, 6, 6]);
    let lacks = |world: &World, of: usize, name: &str| {
        status(world, of).others[&GatewayName::new(name).unwrap()].lacks_hosts
    };
    assert_eq!([lacks(&world, 1, "gw0"), lacks(&world, 1, "gw2"), lacks(&world, 2, "gw1")], [3, 1, 0]);
    connect(&mut world, 0, &[1, 2]);
    assert_eq!(most_away(&mut world, AT + 200 * SECOND), 1);
    assert_eq!(["gw0", "gw1", "gw2"].map(|name| count(&world, name)), [3, 6, 3], "host 3 has gw1 only");
}

/// Another one goes in its place.
#[test]
fn group_that_an_operator_has_moved_is_left_where_it_is_by_balance() {
    let mut before = world(&[], 6);
    before.run_until(AT).expect("a run");
    let of_first: Vec<u32> = (1..=6).filter(|&group| before.shown(group) == ["gw0"]).collect();
    assert!(!of_first.is_empty());
    for group in of_first {
        let mut world = world(&[(AT, SECOND, Fault::Move { node: 2, group, to: 1 })], 6);
        world.run_until(AT + 5 * SECOND).expect("a run");
        assert_eq!(world.shown(group), ["gw1"]);
        most_away(&mut world, AT + 60 * SECOND);
        assert_eq!(world.shown(group), ["gw1"]);
        assert_eq!(["gw0", "gw1", "gw2"].map(|name| count(&world, name)), [2, 2, 2]);
        let why = status(&world, 1).groups[&GroupId(group)].why.clone();
        assert_eq!(why.as_deref(), Some("an operator has moved it here: balance leaves it"));
    }
}

#[test]
fn gateway_that_cannot_connect_gets_no_group_and_hosts_notice_nothing() {
    for how in [Unable::Connect, Unable::Hang] {
        let mut world = with_an_empty_gateway(Some(how));
        assert_eq!(most_away(&mut world, AT + 120 * SECOND), 0, "{how:?}");
        let told = (0..40).any(|_| {
            world.run_until(world.now + SECOND).expect("a run");
            let others = status(&world, 1).others;
            others.iter().any(|(name, other)| name.as_str() == "gw0" && other.trouble.is_some())
        });
        assert!(told, "{how:?}: gw1 does not know why gw0 has no groups");
    }
}

#[test]
fn gateway_that_cannot_open_all_images_gets_no_group_and_hosts_notice_nothing() {
    for how in [Unable::Open, Unable::OpenAll] {
        let mut world = with_an_empty_gateway(Some(how));
        assert_eq!(most_away(&mut world, AT + 60 * SECOND), 0, "{how:?}");
        assert_eq!(count(&world, "gw0"), 0, "{how:?}");
    }
}

/// gw1 cannot open all images, and gets some groups of gw0, which has died.
fn after_a_loss(how: Unable, others_too: bool) -> World {
    let mut faults =
        vec![(AT, LONG, Fault::Unable { node: 1, how }), (AT, LONG, Fault::Crash { node: 0, again: true })];
    faults.extend(others_too.then_some((AT, LONG, Fault::Unable { node: 2, how })));
    let mut world = world(&faults, 12);
    world.run_until(AT + 9 * SECOND).expect("a run");
    world
}

#[test]
fn group_whose_new_owner_cannot_open_all_images_goes_on_to_one_that_can() {
    for how in [Unable::Open, Unable::OpenAll] {
        let mut world = after_a_loss(how, false);
        let before = count(&world, "gw1");
        world.run_until(AT + 40 * SECOND).expect("a run");
        assert_eq!((count(&world, "gw1"), count(&world, "gw2")), (4, 8), "{how:?}: it had {before}");
    }
}

#[test]
fn images_that_no_gateway_opens_leave_the_group_where_it_is_and_status_says_so_everywhere() {
    let mut world = after_a_loss(Unable::OpenAll, true);
    world.run_until(AT + 20 * SECOND).expect("a run");
    assert_eq!(most_away(&mut world, AT + 80 * SECOND), 0);
    let told = |node| {
        let groups = status(&world, node).groups;
        let lacks = groups.values().filter(|group| group.unopened == 1);
        lacks.filter(|group| group.why.as_ref().is_some_and(|why| why.contains("cannot be opened"))).count()
    };
    assert_eq!((told(1), told(2)), (4, 4));
}

#[test]
fn move_to_a_gateway_that_cannot_open_an_image_is_refused_until_it_is_asked_for_again() {
    let mut world = world(&[(AT, LONG, Fault::Unable { node: 1, how: Unable::OpenAll })], 6);
    world.run_until(AT).expect("a run");
    let group = (1..=6).find(|&group| world.shown(group) == ["gw0"]).expect("gw0 has a group");
    let ask = |world: &mut World| {
        let name = nvmf_cluster::GatewayName::new("gw1").expect("a name");
        let clock = world.nodes[2].clock(world.now);
        world.nodes[2].running.as_mut().expect("it runs").engine.move_group(clock, GroupId(group), &name);
        world.pump(2);
    };
    ask(&mut world);
    assert_eq!(most_away(&mut world, AT + 10 * SECOND), 0);
    for node in 0..3 {
        let refused = status(&world, node).groups[&GroupId(group)].refused.clone().expect("a reason");
        assert!(refused.contains("no passphrase"), "gw{node}: {refused}");
    }
    world.nodes[1].unable = None;
    ask(&mut world);
    world.run_until(AT + 20 * SECOND).expect("a run");
    assert_eq!(world.shown(group), ["gw1"]);
    assert_eq!(status(&world, 2).groups[&GroupId(group)].refused, None);
}

/// An image was renamed, or another one has its name: who has it open goes on with it, and nobody else can.
#[test]
fn disk_that_only_its_owner_finds_is_not_lost_by_a_move() {
    let gone = |node| (AT, LONG, Fault::Unable { node, how: Unable::OneGone });
    let faults = [gone(1), gone(2)];
    let (mut world, group, ask) = with_a_group_of_gw0(&faults);
    for (to, second) in [("gw1", 10), ("gw2", 20)] {
        ask(&mut world, to);
        assert_eq!(most_away(&mut world, AT + second * SECOND), 0);
        let refused = status(&world, 0).groups[&GroupId(group)].refused.clone().expect("a reason");
        assert!(refused.contains("0 cannot be opened there: another disk"), "{refused}");
        assert_eq!(world.shown(group), ["gw0"]);
    }
}

#[test]
fn group_with_an_image_that_is_gone_is_taken_over_and_moves_as_any_other() {
    let mut world = after_a_loss(Unable::OneGone, true);
    world.run_until(AT + 12 * SECOND).expect("a run");
    let lacking = |world: &World, node, by: &str| {
        let groups = status(world, node).groups.into_iter().filter(|(_, group)| group.unopened == 1);
        let of = groups.filter(|(_, group)| group.gateway.as_ref().is_some_and(|it| it.as_str() == by));
        of.map(|(id, _)| id.0).collect::<Vec<_>>()
    };
    assert_eq!(count(&world, "gw1") + count(&world, "gw2"), 12, "the dead gateway's were taken over");
    let (of_gw1, of_gw2) = (lacking(&world, 2, "gw1"), lacking(&world, 1, "gw2"));
    assert_eq!(of_gw1.len() + of_gw2.len(), 4);
    // Nobody is asked for what nobody can do.
    world.run_until(AT + 60 * SECOND).expect("a run");
    let groups = status(&world, 1).groups;
    assert!(groups.values().all(|group| group.wanted.is_none() && group.refused.is_none()), "{groups:?}");
    let ask = |world: &mut World, group, to: &str| {
        let name = nvmf_cluster::GatewayName::new(to).expect("a name");
        let clock = world.nodes[1].clock(world.now);
        world.nodes[1].running.as_mut().expect("it runs").engine.move_group(clock, GroupId(group), &name);
        world.pump(1);
    };
    // Balance does not take it back.
    let (from, to, gone) = match count(&world, "gw1") > count(&world, "gw2") {
        true => ("gw1", "gw2", of_gw1),
        false => ("gw2", "gw1", of_gw2),
    };
    ask(&mut world, gone[0], to);
    world.run_until(AT + 65 * SECOND).expect("a run");
    assert_eq!(world.shown(gone[0]), [to], "its owner had it no better");
    let whole = (1..=12).find(|id| world.shown(*id) == [from] && !gone.contains(id)).expect("a group");
    ask(&mut world, whole, to);
    world.run_until(AT + 70 * SECOND).expect("a run");
    assert_eq!(world.shown(whole), [from], "its owner has all of it open");
    // A drain keeps what hosts would lose, and who stops goes all the same.
    let drained = usize::from(to == "gw1") + 1;
    let clock = world.nodes[drained].clock(world.now);
    world.nodes[drained].running.as_mut().expect("it runs").engine.drain_all(clock, true);
    world.pump(drained);
    world.run_until(AT + 100 * SECOND).expect("a run");
    let stay: Vec<u32> = (1..=12).filter(|id| world.shown(*id) == [from]).collect();
    assert!(!stay.is_empty() && stay.iter().all(|id| !gone.contains(id)), "{stay:?} of {from}; {gone:?}");
    let clock = world.nodes[drained].clock(world.now);
    world.nodes[drained].running.as_mut().expect("it runs").engine.stop(clock);
    world.pump(drained);
    world.run_until(AT + 120 * SECOND).expect("a run");
    assert_eq!(count(&world, to), 12);
}

/// A group of gw0's, and what asks gw2 to move it.
fn with_a_group_of_gw0(faults: &[(Time, Time, Fault)]) -> (World, u32, impl Fn(&mut World, &str)) {
    let mut world = world(faults, 6);
    world.run_until(AT).expect("a run");
    let group = (1..=6).find(|&group| world.shown(group) == ["gw0"]).expect("gw0 has a group");
    let ask = move |world: &mut World, to: &str| {
        let name = nvmf_cluster::GatewayName::new(to).expect("a name");
        let clock = world.nodes[2].clock(world.now);
        world.nodes[2].running.as_mut().expect("it runs").engine.move_group(clock, GroupId(group), &name);
        world.pump(2);
    };
    (world, group, ask)
}

/// What gw2 knows of a group: its state, its owner, and where it is wanted.
fn known(world: &World, group: u32) -> (&'static str, Option<String>, Option<String>) {
    let group = status(world, 2).groups[&GroupId(group)].clone();
    let text = |name: Option<nvmf_cluster::GatewayName>| name.map(|name| name.to_string());
    (group.state, text(group.gateway), text(group.wanted))
}

#[test]
fn move_that_is_asked_for_while_another_one_is_under_way_is_made_whenever_that_is() {
    let mut waited = 0;
    loop {
        let (mut world, group, ask) = with_a_group_of_gw0(&[]);
        ask(&mut world, "gw1");
        while known(&world, group) == ("owned", Some("gw0".into()), None) {
            world.run_until(world.now + MS).expect("a run");
        }
        world.run_until(world.now + waited * MS).expect("a run");
        let is_over = known(&world, group) == ("owned", Some("gw1".into()), None);
        ask(&mut world, "gw2");
        world.run_until(AT + 20 * SECOND).expect("a run");
        assert_eq!(
            world.shown(group),
            ["gw2"],
            "it was asked for {waited} ms after the one before was known"
        );
        if is_over {
            return;
        }
        waited += 3;
    }
}

#[test]
fn group_that_has_moved_and_is_wanted_nowhere_is_served() {
    let (mut world, group, ask) = with_a_group_of_gw0(&[]);
    ask(&mut world, "gw1");
    world.run_until(AT + 50 * MS).expect("a run");
    while known(&world, group) != ("owned", Some("gw1".into()), None) {
        assert!(world.now < AT + 20 * SECOND, "it has not moved: {:?}", known(&world, group));
        world.run_until(world.now + MS).expect("a run");
    }
    assert_eq!(world.shown(group), ["gw1"], "hosts cannot use it yet");
}

#[test]
fn group_that_is_to_stay_is_not_moved_by_what_was_asked_for_before() {
    let (mut world, group, ask) =
        with_a_group_of_gw0(&[(AT - SECOND, LONG, Fault::Unable { node: 1, how: Unable::Hang })]);
    ask(&mut world, "gw1");
    world.run_until(AT + SECOND).expect("a run");
    ask(&mut world, "gw0");
    // Somebody may have to look by himself: notifications are lost at times.
    world.run_until(AT + 8 * SECOND).expect("a run");
    assert_eq!(known(&world, group), ("owned", Some("gw0".into()), None));
    world.nodes[1].unable = None;
    world.run_until(AT + 40 * SECOND).expect("a run");
    assert_eq!(world.shown(group), ["gw0"]);
}

#[test]
fn move_to_a_gateway_that_cannot_connect_leaves_the_group_where_it_is_and_says_why() {
    let mut world = world(&[(AT, LONG, Fault::Unable { node: 1, how: Unable::Connect })], 6);
    world.run_until(AT).expect("a run");
    let group = (1..=6).find(|&group| world.shown(group) == ["gw0"]).expect("gw0 has a group");
    let name = nvmf_cluster::GatewayName::new("gw1").expect("a name");
    let clock = world.nodes[0].clock(world.now);
    world.nodes[0].running.as_mut().expect("it runs").engine.move_group(clock, GroupId(group), &name);
    world.pump(0);
    assert_eq!(most_away(&mut world, AT + 4 * SECOND), 0);
    let why = status(&world, 0).groups[&GroupId(group)].why.clone().expect("a reason");
    assert!(why.contains("cannot take it") && why.contains("permission denied"), "{why}");
    world.nodes[1].unable = None;
    world.run_until(AT + 30 * SECOND).expect("a run");
    assert_eq!(world.shown(group), ["gw1"]);
}

#[test]
fn taker_whose_connection_hangs_leaves_the_group_to_another() {
    let mut waited = 0;
    for (dies, hangs) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let hang = Fault::Unable { node: hangs, how: Unable::Hang };
        let faults = [(AT, LONG, hang), (AT, LONG, Fault::Crash { node: dies, again: true })];
        let mut world = world(&faults, 6);
        world.run_until(AT).expect("a run");
        let (hangs, healthy) = (format!("gw{hangs}"), format!("gw{}", 3 - dies - hangs));
        let before = count(&world, &hangs);
        world.run_until(AT + 10 * SECOND).expect("a run");
        waited += (1..=6).filter(|&group| world.shown(group).is_empty()).count();
        world.run_until(AT + 27 * SECOND).expect("a run");
        assert_eq!((count(&world, &hangs), count(&world, &healthy)), (before, 6 - before));
    }
    assert!(waited > 0, "no group was to be taken by a gateway that hangs");
}

#[test]
fn gateway_that_stops_while_an_image_hangs_is_followed_by_one_that_is_connected() {
    let hangs = |node| (AT, LONG, Fault::Unable { node, how: Unable::OneHangs });
    let mut world = world(&[hangs(1), hangs(2), (AT + SECOND, LONG, Fault::Leave { node: 0 })], 6);
    world.run_until(AT + SECOND).expect("a run");
    let left: Vec<u32> = (1..=6).filter(|&group| world.shown(group) == ["gw0"]).collect();
    let (mut since, mut longest) = (vec![None; left.len()], 0);
    while world.now < AT + 20 * SECOND {
        world.run_until(world.now + 10 * MS).expect("a run");
        for (since, group) in since.iter_mut().zip(&left) {
            let away = world.shown(*group).is_empty();
            *since = away.then(|| since.unwrap_or(world.now));
            longest = longest.max(since.map_or(0, |since| world.now - since));
        }
    }
    assert!(!left.is_empty() && left.iter().all(|&group| world.shown(group).len() == 1));
    // It opens images for 1.3 s.
    assert!(longest < 2 * SECOND, "{} ms", longest / MS);
}
