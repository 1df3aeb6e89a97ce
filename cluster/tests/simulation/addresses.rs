//! Gateways that give one address: hosts would reach one of the two only.

use super::plan::{Fault, MS, SECOND};
use super::scenarios::{AT, groups_of, status, world};
use super::world::World;
use nvmf_cluster::GatewayName;

const AGAIN: Fault = Fault::Crash { node: 2, again: true };

fn why(world: &World, node: usize) -> (&'static str, String) {
    let status = status(world, node);
    (status.state, status.why.unwrap_or_default())
}

/// From AT + 10 s on, gw2 has the address of gw0.
fn copied(more: &[(u64, u64, Fault)]) -> World {
    let faults: Vec<_> = [(AT, 10 * SECOND, AGAIN)].into_iter().chain(more.iter().copied()).collect();
    let mut world = world(&faults, AT);
    let address = world.nodes[0].address.clone();
    world.nodes[2].address = address;
    world
}

#[test]
fn gateway_with_the_address_of_another_is_refused_and_stays_so_while_that_one_restarts() {
    let mut world = copied(&[(AT + 40 * SECOND, 3 * SECOND, Fault::Crash { node: 0, again: true })]);
    for after in [25, 38, 42, 50] {
        world.run_until(AT + after * SECOND).expect("a run");
        let (state, why) = why(&world, 2);
        assert_eq!(state, "refused", "after {after} s: {why}");
        assert!(why.starts_with("hosts reach gateway gw0 at gw0:4420, and not this one: "), "{why}");
        assert!(
            why.ends_with("`nvmf-target ctl cluster remove gw0` at another gateway, or restart this one"),
            "{why}"
        );
    }
    world.run_until(AT + 80 * SECOND).expect("a run");
    assert_eq!(groups_of(&world, "gw2"), [0; 0]);
    assert_eq!(groups_of(&world, "gw0").len() + groups_of(&world, "gw1").len(), 6);
    assert_eq!(why(&world, 0).0, "member");
    let seen = status(&world, 0).others.remove(&GatewayName::new("gw2").expect("a name"));
    assert_eq!(seen.expect("it has a record").shares, [""; 0], "the record is of its former run");
}

#[test]
fn refused_gateway_is_let_in_once_the_other_one_has_another_address() {
    let mut world = copied(&[]);
    world.run_until(AT + 25 * SECOND).expect("a run");
    assert_eq!(why(&world, 2).0, "refused");
    let clock = world.nodes[0].clock(world.now);
    let engine = &mut world.nodes[0].running.as_mut().expect("it runs").engine;
    engine.set_addresses(clock, vec!["elsewhere:4420".into()]);
    world.pump(0);
    world.run_until(world.now + 5 * SECOND).expect("a run");
    assert_eq!(why(&world, 2).0, "member");
}

#[test]
fn gateway_with_the_address_of_one_that_is_dead_takes_its_place() {
    let mut world = copied(&[(AT, 1000 * SECOND, Fault::Crash { node: 0, again: false })]);
    world.run_until(AT + 20 * SECOND).expect("a run");
    assert_eq!(why(&world, 2).0, "member");
}

#[test]
fn gateway_that_was_killed_and_has_another_name_takes_its_own_place() {
    let mut world = world(&[(AT, SECOND, AGAIN)], AT);
    world.nodes[2].name = "gw9".into();
    world.run_until(AT + 3 * SECOND).expect("a run");
    let text = "hosts reach gateway gw2 at gw2:4420: waits whether it stays";
    assert_eq!(why(&world, 2), ("joining", text.to_owned()));
    world.run_until(AT + 8 * SECOND).expect("a run");
    assert_eq!(why(&world, 2).0, "member");
}

#[test]
fn of_two_that_start_at_once_with_one_address_one_is_let_in() {
    for apart in 0..60 {
        let first = (AT, 10 * SECOND + apart * 3 * MS, Fault::Crash { node: 0, again: true });
        let mut world = copied(&[first]);
        world.run_until(AT + 30 * SECOND).expect("a run");
        let states = [0, 2].map(|node| why(&world, node).0);
        assert!(states.contains(&"member") && states.contains(&"refused"), "{apart}: {states:?}");
    }
}

#[test]
fn gateway_that_has_an_address_of_its_own_is_let_in_and_both_say_which_they_share() {
    let mut world = world(&[], AT);
    let both = vec!["gw2:4420".to_owned(), "gw0:4420?tls=required".into(), "vip:8009?discovery=only".into()];
    let clock = world.nodes[2].clock(world.now);
    world.nodes[2].running.as_mut().expect("it runs").engine.set_addresses(clock, both);
    world.pump(2);
    world.run_until(AT + 20 * SECOND).expect("a run");
    for (node, other) in [(0, "gw2"), (2, "gw0")] {
        assert_eq!(why(&world, node).0, "member");
        let seen = status(&world, node).others.remove(&GatewayName::new(other).expect("a name"));
        assert_eq!(seen.expect("it is there").shares, ["gw0:4420"]);
    }
}
