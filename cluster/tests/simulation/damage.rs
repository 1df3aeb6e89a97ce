//! Keys of the store that somebody has damaged: what is known is written again, what is not is told.

use super::plan::{Fault, MS, SECOND};
use super::scenarios::{AT, status, world};
use super::world::World;
use nvmf_cluster::{GroupId, Object, Status};

const GARBAGE: &[u8] = b"garbage";

fn put(world: &mut World, object: &Object, key: &str, value: &[u8]) {
    assert!(world.objects.compare_and_set(object, &[], &[(key.into(), Some(value.to_vec()))]));
}

fn remove(world: &mut World, object: &Object, key: &str) {
    assert!(world.objects.compare_and_set(object, &[], &[(key.into(), None)]));
}

fn owner(world: &World, group: u32) -> usize {
    let name = world.shown(group).pop().expect("an owner");
    world.nodes.iter().position(|node| node.name == name).expect("a gateway")
}

fn others(world: &World, node: usize) -> Vec<Status> {
    (0..3).filter(|other| *other != node).map(|other| status(world, other)).collect()
}

#[test]
fn entry_that_is_damaged_is_written_again_by_who_serves_the_group() {
    let mut world = world(&[], AT);
    let (before, fences) = (world.shown(1), world.oracle.takeovers);
    put(&mut world, &Object::Map, "group/1", GARBAGE);
    world.run_until(AT + 5 * SECOND).expect("a run");
    assert_eq!(world.shown(1), before);
    assert_eq!(world.oracle.takeovers, fences, "nobody was fenced");
    assert_ne!(world.objects.keys(&Object::Map)["group/1"], GARBAGE);
    let owner = owner(&world, 1);
    assert!(others(&world, owner).iter().all(|status| status.groups[&GroupId(1)].served));
}

#[test]
fn entry_that_is_damaged_while_its_owner_is_dead_is_told_with_what_to_do() {
    let crash = Fault::Crash { node: 0, again: false };
    let mut world = world(&[(AT + MS, 60 * SECOND, crash)], AT);
    let group = (1..=world.plan.groups).find(|group| owner(&world, *group) == 0).expect("it has one");
    put(&mut world, &Object::Map, &format!("group/{group}"), GARBAGE);
    world.run_until(AT + 20 * SECOND).expect("a run");
    assert_eq!(world.shown(group), Vec::<String>::new(), "nobody knows that its client is fenced");
    for status in others(&world, 0) {
        let group = &status.groups[&GroupId(group)];
        let why = group.why.clone().expect("a reason");
        assert!(
            why.contains("is damaged") && why.contains("blocklist add") && why.contains("rmomapkey"),
            "{why}"
        );
        assert!(!group.served);
    }
}

#[test]
fn wish_that_its_owner_cannot_read_is_taken_away_and_holds_up_no_other() {
    let mut world = world(&[], AT);
    let newer = br#"{"format":2,"to":"gw1"}"#;
    (1..=world.plan.groups).for_each(|group| put(&mut world, &Object::Map, &format!("move/{group}"), newer));
    world.run_until(AT + 5 * SECOND).expect("a run");
    assert!(!world.objects.keys(&Object::Map).keys().any(|key| key.starts_with("move/")));
    assert!((1..=world.plan.groups).all(|group| world.shown(group).len() == 1));
}

#[test]
fn damaged_table_of_controller_ids_is_written_again_by_a_member() {
    let mut world = world(&[], AT);
    let ids = |world: &World| [0, 1, 2].map(|node| status(world, node).controller_ids);
    let (table, before) = (world.objects.keys(&Object::Gateways)["controller_ids"].clone(), ids(&world));
    put(&mut world, &Object::Gateways, "controller_ids", GARBAGE);
    world.run_until(AT + 15 * SECOND).expect("a run");
    assert_eq!(world.objects.keys(&Object::Gateways)["controller_ids"], table);
    assert_eq!(ids(&world), before);
}

/// Each member would begin anew, with any range, and close all connections for that.
#[test]
fn table_of_controller_ids_that_was_removed_is_written_again_by_a_member() {
    let mut world = world(&[], AT);
    let ids = |world: &World| [0, 1, 2].map(|node| status(world, node).controller_ids);
    let (table, before) = (world.objects.keys(&Object::Gateways)["controller_ids"].clone(), ids(&world));
    let shown = (1..=world.plan.groups).map(|group| world.shown(group)).collect::<Vec<_>>();
    remove(&mut world, &Object::Gateways, "controller_ids");
    let mut until = AT;
    while until < AT + 15 * SECOND {
        until += SECOND / 10;
        world.run_until(until).expect("a run");
        assert!((0..3).all(|node| status(&world, node).state == "member"));
    }
    assert_eq!(world.objects.keys(&Object::Gateways)["controller_ids"], table);
    assert_eq!(ids(&world), before);
    assert_eq!((1..=world.plan.groups).map(|group| world.shown(group)).collect::<Vec<_>>(), shown);
}

/// The first range would be that of a member, which would close all connections and begin anew; and so would the next one.
#[test]
fn gateway_that_starts_without_a_table_of_controller_ids_takes_no_range_of_a_member() {
    let ids = |world: &World| [0, 1].map(|node| status(world, node).controller_ids);
    for tick in 0..240 {
        let removed = AT + SECOND + tick * (SECOND / 20);
        let mut world = world(&[(AT, 2 * SECOND, Fault::Crash { node: 2, again: true })], removed);
        let before = ids(&world);
        remove(&mut world, &Object::Gateways, "controller_ids");
        while world.now < removed + 10 * SECOND {
            world.run_until(world.now + SECOND / 10).expect("a run");
            let are_members = (0..2).all(|node| status(&world, node).state == "member");
            assert!(are_members, "removed after {:?}", removed - AT);
        }
        assert_eq!(ids(&world), before);
        assert_eq!(status(&world, 2).state, "member");
    }
}

/// None is a member by then, and each could wait for the others.
#[test]
fn table_of_controller_ids_that_was_removed_is_written_again_by_who_was_a_member() {
    let mut world = world(&[], AT);
    let table = world.objects.keys(&Object::Gateways)["controller_ids"].clone();
    remove(&mut world, &Object::Gateways, "controller_ids");
    for node in &mut world.nodes {
        node.running.as_mut().expect("it runs").control_fenced = true;
    }
    world.run_until(AT + 30 * SECOND).expect("a run");
    let states = [0, 1, 2].map(|node| status(&world, node).state);
    assert_eq!(states, ["member"; 3]);
    assert_eq!(world.objects.keys(&Object::Gateways)["controller_ids"], table);
}

#[test]
fn entry_that_was_damaged_and_then_removed_is_told_as_gone_until_a_gateway_is_restarted() {
    let crashes = [0, 1, 2].map(|node| (AT, 2 * SECOND, Fault::Crash { node, again: true }));
    let again = (AT + 40 * SECOND, SECOND, Fault::Crash { node: 2, again: true });
    let mut world = world(&[crashes[0], crashes[1], crashes[2], again], AT + SECOND);
    put(&mut world, &Object::Map, "group/1", GARBAGE);
    let why = |world: &World| status(world, 0).groups[&GroupId(1)].why.clone().unwrap_or_default();
    world.run_until(AT + 20 * SECOND).expect("a run");
    assert!(why(&world).contains("rmomapkey"), "{}", why(&world));
    remove(&mut world, &Object::Map, "group/1");
    world.run_until(AT + 30 * SECOND).expect("a run");
    assert_eq!(why(&world), "its entry is gone: restart one gateway, which takes the group");
    world.run_until(AT + 70 * SECOND).expect("a run");
    assert_eq!(world.shown(1).len(), 1);
}

/// Each change of what it is gets a line in the log.
#[test]
fn gateway_that_is_refused_says_so_until_what_is_stored_is_mended() {
    let crashes = [0, 1, 2].map(|node| (AT, 2 * SECOND, Fault::Crash { node, again: true }));
    let mut world = world(&crashes, AT + SECOND);
    put(&mut world, &Object::Gateways, "controller_ids", GARBAGE);
    world.run_until(AT + 15 * SECOND).expect("a run");
    let mut until = world.now;
    while until < AT + 30 * SECOND {
        until += SECOND / 20;
        world.run_until(until).expect("a run");
        let status = status(&world, 0);
        assert_eq!(status.state, "refused", "{:?}", status.why);
        assert!(status.why.is_some_and(|why| why.contains("rmomapkey")));
    }
    remove(&mut world, &Object::Gateways, "controller_ids");
    world.run_until(AT + 45 * SECOND).expect("a run");
    assert!((0..3).all(|node| status(&world, node).state == "member"));
}

#[test]
fn group_that_its_owner_loses_again_and_again_is_told_as_not_served_and_goes_to_another() {
    let mut world = world(&[], AT);
    let node = owner(&world, 1);
    let name = world.nodes[node].name.clone();
    let (mut at, mut rested) = (AT, 0);
    // Each time its record is damaged it has lost all.
    while world.shown(1).iter().all(|owner| *owner == name) {
        if (at - AT).is_multiple_of(4 * SECOND) {
            put(&mut world, &Object::Gateways, &format!("gateway/{name}"), GARBAGE);
        }
        at += SECOND / 4;
        world.run_until(at).expect("a run");
        assert!(at < AT + 30 * SECOND, "nobody else gets it");
        let group = &status(&world, node).groups[&GroupId(1)];
        let is_own = group.gateway.as_ref().is_some_and(|owner| *owner.as_str() == name);
        if is_own && group.here == "idle" {
            assert!(!group.served);
            rested += 1;
        }
    }
    assert!(rested > 0, "it was never lost");
}
