//! Gateways that hosts cannot connect to: not yet, or not any more.

use super::plan::{Fault, SECOND, Time, Unable};
use super::scenarios::{AT, asked, groups_of, longest_pause, move_to, status, world};
use super::world::World;
use nvmf_cluster::{GatewayName, Listens};

const LONG: Time = 1000 * SECOND;

fn listens(world: &mut World, node: usize, listens: Listens) {
    let clock = world.nodes[node].clock(world.now);
    world.nodes[node].running.as_mut().expect("it runs").engine.set_listens(clock, listens);
    world.pump(node);
}

#[test]
fn gateway_that_hosts_cannot_reach_gives_its_groups_away_and_is_none_that_groups_move_to() {
    let mut world = world(&[], AT);
    let groups = groups_of(&world, "gw0");
    listens(&mut world, 0, Listens::No);
    let longest = longest_pause(&mut world, &groups, 90 * SECOND);
    assert!(longest < SECOND, "{} ms", longest * 1000 / SECOND);
    assert_eq!(groups_of(&world, "gw0"), [0; 0]);
    for node in [0, 1] {
        let text = asked(&mut world, node, move_to("gw0"));
        assert_eq!(text, "gateway gw0 cannot take ANA groups now: none of its listeners is up");
    }
    let status = status(&world, 1);
    let other = &status.others[&GatewayName::new("gw0").expect("a name")];
    assert_eq!((other.lease, other.trouble.as_deref()), ("held", Some("none of its listeners is up")));
    listens(&mut world, 0, Listens::Yes);
    world.run_until(world.now + 120 * SECOND).expect("a run");
    assert!(!groups_of(&world, "gw0").is_empty(), "balance brings some back");
}

#[test]
fn gateway_that_does_not_listen_yet_gets_nothing_while_another_does() {
    let leave = Fault::Leave { node: 0 };
    for fault in [leave, Fault::Crash { node: 0, again: false }] {
        let mut world = world(&[(AT, LONG, fault)], AT - SECOND);
        listens(&mut world, 1, Listens::NotYet);
        let (before, mut left) = (groups_of(&world, "gw1"), groups_of(&world, "gw0"));
        world.run_until(AT + 20 * SECOND).expect("a run");
        assert_eq!(groups_of(&world, "gw1"), before, "{fault:?}: it keeps what it has");
        left.retain(|&group| world.shown(group) != ["gw2"]);
        assert_eq!(left, [0; 0], "{fault:?}");
        let text = asked(&mut world, 2, move_to("gw1"));
        assert_eq!(text, "gateway gw1 is not available: it has just started, and does not listen yet");
        assert_eq!(status(&world, 2).takers(), 0);
        assert!(before.iter().all(|&group| !status(&world, 2).groups[&nvmf_cluster::GroupId(group)].served));
    }
}

#[test]
fn gateway_that_does_not_listen_yet_takes_what_nobody_else_can() {
    let crashes = [0, 2].map(|node| (AT, LONG, Fault::Crash { node, again: false }));
    let mut world = world(&crashes, AT - SECOND);
    listens(&mut world, 1, Listens::NotYet);
    world.run_until(AT + 20 * SECOND).expect("a run");
    assert_eq!(groups_of(&world, "gw1").len(), 6);
}

#[test]
fn gateway_that_hosts_cannot_reach_for_a_moment_keeps_its_groups() {
    let mut world = world(&[], AT);
    let groups = groups_of(&world, "gw0");
    listens(&mut world, 0, Listens::No);
    listens(&mut world, 0, Listens::Yes);
    assert_eq!(longest_pause(&mut world, &groups, 20 * SECOND), 0);
    assert_eq!(groups_of(&world, "gw0"), groups);
}

#[test]
fn gateway_that_hosts_cannot_reach_takes_nothing_while_another_one_has_trouble() {
    let trouble = Fault::Unable { node: 1, how: Unable::Connect };
    let crash = Fault::Crash { node: 2, again: false };
    // The first attempt of gw1 fails, and it says so for a minute.
    let mut world = world(&[(AT, 8 * SECOND, trouble), (AT, LONG, crash)], AT);
    listens(&mut world, 0, Listens::No);
    world.run_until(AT + 30 * SECOND).expect("a run");
    assert_eq!(groups_of(&world, "gw0"), [0; 0]);
    assert_eq!(groups_of(&world, "gw1").len(), 6);
}

#[test]
fn gateway_that_stops_asks_also_who_could_not_open_all_images_before() {
    let lacks = |node| (0, LONG, Fault::Unable { node, how: Unable::OpenAll });
    let stop = (AT + 90 * SECOND, LONG, Fault::Leave { node: 0 });
    let mut world = world(&[lacks(0), lacks(1), lacks(2), stop], AT + 89 * SECOND);
    let groups = groups_of(&world, "gw0");
    assert!(!groups.is_empty());
    let longest = longest_pause(&mut world, &groups, 20 * SECOND);
    assert!(longest < SECOND / 2, "{} ms", longest * 1000 / SECOND);
}

#[test]
fn gateway_that_is_drained_waits_for_one_that_does_not_listen_yet_and_moves_one_group_after_the_other() {
    let crash = Fault::Crash { node: 2, again: false };
    let mut world = world(&[(AT - 10 * SECOND, LONG, crash)], AT);
    listens(&mut world, 1, Listens::NotYet);
    world.run_until(AT + 2 * SECOND).expect("a run");
    let groups = groups_of(&world, "gw0");
    let clock = world.nodes[0].clock(world.now);
    world.nodes[0].running.as_mut().expect("it runs").engine.drain_all(clock, true);
    world.pump(0);
    assert_eq!(longest_pause(&mut world, &groups, 20 * SECOND), 0);
    assert_eq!(groups_of(&world, "gw0"), groups);
    listens(&mut world, 1, Listens::Yes);
    let longest = longest_pause(&mut world, &groups, 20 * SECOND);
    assert!(longest < SECOND / 2, "{} ms", longest * 1000 / SECOND);
    assert_eq!(groups_of(&world, "gw1").len(), 6);
}
