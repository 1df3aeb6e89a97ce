//! Gateways that cannot take groups, and moves: what users would see.

use super::plan::{Fault, MS, Plan, Planned, SECOND, Time, Unable};
use super::world::World;
use nvmf_cluster::{GroupId, Status};

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
fn gateway_that_opens_no_image_gives_the_group_back_at_once() {
    let mut world = with_an_empty_gateway(Some(Unable::Open));
    let (mut away, mut longest) = (None, 0);
    while world.now < AT + 60 * SECOND {
        world.run_until(world.now + 5 * MS).expect("a run");
        match (1..=12).any(|group| world.shown(group).is_empty()) {
            true => longest = longest.max(world.now - *away.get_or_insert(world.now)),
            false => away = None,
        }
    }
    assert!(longest > 0 && longest < 3 * SECOND, "{longest} us");
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
