//! Single faults, with what users would see: how long a group is away, who has it then, and what an operator is told.

use super::mistakes::Mistake;
use super::plan::{Fault, MS, Plan, Planned, SECOND, Time, Unable, secs};
use super::shrink::shrink;
use super::world::{Outcome, World};
use nvmf_cluster::{
    Action, Address, BootId, Gateway, GatewayName, GroupId, Locker, Object, RequestId, Status,
};
use serde_json::Value;
use std::time::Duration;

/// All is balanced by then.
pub(super) const AT: Time = 30 * SECOND;

fn plan(faults: &[(Time, Time, Fault)]) -> Plan {
    let faults = faults.iter().map(|&(at, lasts, fault)| Planned { at, lasts, fault }).collect();
    Plan { seed: 7, nodes: 3, groups: 6, osds: 3, hosts: 1, faults, balance: false, moves_on: false }
}

fn run(faults: &[(Time, Time, Fault)]) -> Outcome {
    World::new(plan(faults), None, false).run().unwrap_or_else(|failure| panic!("{}", failure.what))
}

/// A world in the middle of its run, where no I/O hangs.
pub(super) fn world(faults: &[(Time, Time, Fault)], until: Time) -> World {
    let mut world = World::new(plan(faults), None, false);
    world.calm = true;
    world.run_until(until).unwrap_or_else(|what| panic!("{what}"));
    world
}

/// The gateways that show each group optimized, and answer.
fn owners(world: &World) -> Vec<Vec<String>> {
    (1..=world.plan.groups).map(|group| world.shown(group)).collect()
}

pub(super) fn status(world: &World, node: usize) -> Status {
    let clock = world.nodes[node].clock(world.now);
    world.nodes[node].running.as_ref().expect("it runs").engine.status(clock)
}

#[test]
fn dead_owners_groups_are_served_by_the_others_within_ten_seconds() {
    let world = world(&[(AT, 60 * SECOND, Fault::Crash { node: 0, again: true })], AT + 10 * SECOND);
    let owners = owners(&world);
    assert!(owners.iter().all(|names| names.len() == 1 && names[0] != "gw0"), "{owners:?}");
    assert!(world.oracle.takeovers > 0, "gw0 had no group");
}

#[test]
fn killed_gateway_that_is_back_at_once_takes_its_own_groups_again() {
    let world = world(&[(AT, SECOND, Fault::Crash { node: 0, again: true })], AT + 10 * SECOND);
    let counts = world
        .nodes
        .iter()
        .map(|node| owners(&world).iter().filter(|names| **names == [node.name.clone()]).count());
    assert_eq!(counts.collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn hosts_are_told_of_the_gateways_that_are_there() {
    let listed = |faults: &[(Time, Time, Fault)], until: Time| {
        let world = world(faults, until);
        let running = world.nodes[1].running.as_ref().expect("it runs");
        running.engine.others_addresses().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[], AT), ["gw0", "gw2"]);
    for fault in [Fault::Crash { node: 0, again: true }, Fault::Leave { node: 0 }] {
        let faults = [(AT, 30 * SECOND, fault)];
        assert_eq!(listed(&faults, AT + 15 * SECOND), ["gw2"], "{fault:?}");
        assert_eq!(listed(&faults, AT + 40 * SECOND), ["gw0", "gw2"], "{fault:?}");
    }
    let stall = [(AT, 30 * SECOND, Fault::Stall)];
    assert_eq!(listed(&stall, AT + 31 * SECOND), ["gw0", "gw2"], "nobody is dead");
}

#[test]
fn one_gateway_has_made_a_new_group() {
    let mut world = world(&[(AT, SECOND, Fault::Crash { node: 0, again: true })], AT - MS);
    let made = |world: &World| {
        let running = world.nodes.iter().filter_map(|node| node.running.as_ref());
        running.filter(|running| running.engine.has_made_group()).count()
    };
    assert_eq!(made(&world), 1);
    world.run_until(AT + 10 * SECOND).expect("a run");
    let again = world.nodes[0].running.as_ref().expect("it runs");
    assert!(!again.engine.has_made_group(), "it found one");
}

#[test]
fn stall_of_the_store_for_all_makes_nobody_fence_anybody() {
    let outcome = run(&[(AT, 30 * SECOND, Fault::Stall)]);
    assert_eq!(outcome.takeovers, 0);
}

/// An operator has taken from it what it may do, or the monitors are against it: its log is not to be flooded.
#[test]
fn gateway_that_may_not_fence_asks_less_and_less_often_and_takes_over_soon_after_it_may() {
    let unable = Fault::Unable { node: 1, how: Unable::Fence };
    let crash = |node| (AT, 1000 * SECOND, Fault::Crash { node, again: false });
    let faults = [crash(0), crash(2), (AT, 70 * SECOND, unable)];
    let mut world = world(&faults, AT + 40 * SECOND);
    let groups = 4;
    let untaken: Vec<_> = {
        let engine = &world.nodes[1].running.as_ref().expect("it runs").engine;
        engine.untaken().map(|(_, reason)| reason.to_string()).collect()
    };
    assert_eq!(untaken, vec!["permission denied"; groups]);
    let before = world.refused_fences;
    world.run_until(AT + 70 * SECOND).expect("a run");
    let asked = world.refused_fences - before;
    assert!((groups as u32..=5 * groups as u32).contains(&asked), "{asked} times in 30 s");
    world.run_until(AT + 82 * SECOND).expect("a run");
    assert!(owners(&world).iter().all(|names| *names == ["gw1"]), "{:?}", owners(&world));
    assert_eq!(world.nodes[1].running.as_ref().expect("it runs").engine.untaken().count(), 0);
}

#[test]
fn suspended_gateway_does_not_say_that_its_groups_are_served() {
    let served = |until: Time| {
        let world = world(&[(AT, 30 * SECOND, Fault::Stall)], until);
        let status = status(&world, 0);
        let is_own = |name: &GatewayName| name.as_str() == "gw0";
        let own = status.groups.values().filter(|group| group.gateway.as_ref().is_some_and(is_own));
        (status.state, own.map(|group| group.served).collect::<Vec<_>>())
    };
    assert_eq!(served(AT), ("member", vec![true; 2]));
    assert_eq!(served(AT + 20 * SECOND), ("suspended", vec![false; 2]));
    assert_eq!(served(AT + 45 * SECOND), ("member", vec![true; 2]));
}

#[test]
fn gateway_that_starts_while_the_store_does_not_answer_says_so() {
    let after = |until: Time| {
        let status = status(&world(&[(0, 60 * SECOND, Fault::Stall)], until), 0);
        (status.state, status.why.unwrap_or_default())
    };
    let why = "waits for its lease: the storage cluster does not answer, or answers too late";
    assert_eq!(after(10 * SECOND), ("joining", why.to_owned()));
    assert_eq!(after(90 * SECOND), ("member", String::new()));
}

#[test]
fn stall_of_a_lease_makes_nobody_fence_its_holder() {
    let outcome = run(&[(AT, 30 * SECOND, Fault::StallObject { object: 3 })]);
    assert_eq!(outcome.takeovers, 0);
}

#[test]
fn owner_whose_lease_has_lapsed_says_in_the_map_that_it_goes_on() {
    let generations = |world: &World| {
        let keys = world.objects.keys(&Object::Map);
        let entries = keys.into_values().filter_map(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let of = |entry: &Value| entry["by"]["gateway"] == "gw0" && entry["state"] == "owned";
        entries.filter(of).map(|entry| entry["generation"].as_u64().unwrap_or(0)).collect::<Vec<_>>()
    };
    let faults = [(AT, 8 * SECOND, Fault::StallObject { object: 3 })];
    let (before, after) = (generations(&world(&faults, AT)), generations(&world(&faults, AT + 15 * SECOND)));
    assert!(!before.is_empty(), "gw0 has groups");
    assert_eq!(after, before.iter().map(|generation| generation + 1).collect::<Vec<_>>());
}

#[test]
fn dead_monitors_delay_a_takeover_until_they_are_back() {
    let faults =
        [(AT, 60 * SECOND, Fault::Crash { node: 0, again: true }), (AT, 25 * SECOND, Fault::Monitor)];
    let before = world(&faults, AT + 24 * SECOND);
    assert!(owners(&before).iter().any(Vec::is_empty), "{:?}", owners(&before));
    let after = world(&faults, AT + 30 * SECOND);
    assert!(owners(&after).iter().all(|names| names.len() == 1), "{:?}", owners(&after));
}

#[test]
fn gateway_that_wakes_admits_hosts_by_the_configuration_of_now_only() {
    let woken = AT + 20 * SECOND;
    let faults = [
        (AT, 20 * SECOND, Fault::Stop { node: 0 }),
        (AT + 10 * SECOND, SECOND, Fault::Edit { node: 1, key: 1 }),
    ];
    let mut world = world(&faults, woken - MS);
    let (before, now) = (version(&world, 0), version(&world, 1));
    assert!(before < now, "nothing was changed while it slept");
    let admits = |world: &World| {
        let (clock, node) = (world.nodes[0].clock(world.now), &world.nodes[0]);
        node.running.as_ref().is_some_and(|running| running.admits_until > clock)
    };
    assert!(!admits(&world));
    while !admits(&world) {
        assert!(world.now < woken + 10 * SECOND, "it admits nobody");
        world.run_until(world.now + MS).expect("a run");
    }
    let node = world.nodes[0].running.as_ref().expect("it runs");
    assert_eq!(node.engine.configuration().applied(), Some(now), "it admits hosts by what it knew before");
}

fn version(world: &World, node: usize) -> u64 {
    world.nodes[node].running.as_ref().expect("it runs").engine.configuration().version()
}

#[test]
fn planned_move_waits_for_no_lease() {
    let to = 1;
    let group = (1..=6).find(|&group| world(&[], AT).shown(group) == ["gw0"]).expect("gw0 has a group");
    let mut world = world(&[(AT, SECOND, Fault::Move { node: 2, group, to })], AT);
    let mut when = |gateways: &[&str]| {
        while world.shown(group) != gateways {
            assert!(world.now < AT + 10 * SECOND, "{:?}", world.shown(group));
            world.run_until(world.now + 10 * MS).expect("a run");
        }
        world.now
    };
    let (left, came) = (when(&[]), when(&["gw1"]));
    assert!(came - left < 2 * SECOND, "{} s", secs(came - left));
    assert_eq!(world.oracle.takeovers, 0);
}

/// The OSD of a group's reservation hangs for longer than a host waits, and its group is to move meanwhile.
#[test]
fn reservation_that_is_stored_too_late_is_undone_before_its_group_moves() {
    let group = (1..=6).find(|&group| world(&[], AT).shown(group) == ["gw0"]).expect("gw0 has a group");
    let hangs = |osd| (AT, 12 * SECOND, Fault::StallOsd { osd });
    let moves = (AT + 11 * SECOND, SECOND, Fault::Move { node: 2, group, to: 1 });
    let faults: Vec<_> = (0..3).map(hangs).chain([moves]).collect();
    let world = world(&faults, AT + 17 * SECOND);
    assert!(world.outcome.undone > 0, "nothing was stored too late");
    assert_eq!(world.shown(group), ["gw1"]);
    assert_eq!(world.oracle.takeovers, 0, "it has moved with a fence");
}

#[test]
fn reservation_that_is_lost_with_its_group_is_answered_at_once() {
    let faults: Vec<_> = (0..3).map(|osd| (AT, 20 * SECOND, Fault::StallOsd { osd })).collect();
    let mut world = world(&faults, AT + 2 * SECOND);
    let waiting = |world: &World, node: usize| {
        let running = world.nodes[node].running.as_ref().expect("it runs");
        running.storing.values().map(|command| command.block.0).collect::<Vec<_>>()
    };
    let node = (0..3).find(|node| !waiting(&world, *node).is_empty()).expect("a host waits");
    let group = waiting(&world, node)[0];
    let clock = world.nodes[node].clock(world.now);
    let running = world.nodes[node].running.as_mut().expect("it runs");
    running.engine.on_fenced(clock, running.open[&group]);
    world.pump(node);
    world.run_until(world.now + SECOND / 10).expect("a run");
    assert!(!waiting(&world, node).contains(&group), "its host waits for what was lost");
}

#[test]
fn gateway_that_stops_leaves_nothing_to_fence() {
    let outcome = run(&[(AT, 20 * SECOND, Fault::Leave { node: 0 })]);
    assert_eq!(outcome.takeovers, 0);
    assert!(outcome.moves >= 2, "{} moves", outcome.moves);
}

/// The longest time for which one of these groups was optimized nowhere, from now on.
pub(super) fn longest_pause(world: &mut World, groups: &[u32], time: u64) -> u64 {
    const STEP: u64 = SECOND / 100;
    let (end, mut pauses, mut longest) = (world.now + time, vec![0; groups.len()], 0);
    while world.now < end {
        world.run_until(world.now + STEP).expect("a run");
        for (pause, group) in pauses.iter_mut().zip(groups) {
            *pause = if world.shown(*group).is_empty() { *pause + STEP } else { 0 };
            longest = longest.max(*pause);
        }
    }
    longest
}

pub(super) fn groups_of(world: &World, node: &str) -> Vec<u32> {
    (1..=6).filter(|&group| world.shown(group) == [node]).collect()
}

#[test]
fn groups_of_a_gateway_that_stops_pause_no_longer_than_a_planned_move() {
    let mut world = world(&[(AT, 20 * SECOND, Fault::Leave { node: 0 })], AT - SECOND / 10);
    let groups = groups_of(&world, "gw0");
    assert!(groups.len() >= 2, "{groups:?}");
    let longest = longest_pause(&mut world, &groups, 10 * SECOND);
    assert!(longest < SECOND, "{} ms", longest * 1000 / SECOND);
}

#[test]
fn gateway_that_is_drained_gives_its_groups_away_and_takes_none_until_that_ends() {
    let mut world = world(&[], AT);
    let groups = groups_of(&world, "gw0");
    let drain = |world: &mut World, drains| {
        let clock = world.nodes[0].clock(world.now);
        world.nodes[0].running.as_mut().expect("it runs").engine.drain_all(clock, drains);
        world.pump(0);
    };
    drain(&mut world, true);
    let longest = longest_pause(&mut world, &groups, 90 * SECOND);
    assert!(longest < SECOND, "{} ms", longest * 1000 / SECOND);
    assert_eq!(groups_of(&world, "gw0"), [0; 0], "balance brings none back");
    assert_eq!(world.oracle.takeovers, 0);
    let clock = world.nodes[0].clock(world.now);
    let engine = &mut world.nodes[0].running.as_mut().expect("it runs").engine;
    assert_eq!(engine.status(clock).state, "drained");
    drain(&mut world, false);
    world.run_until(world.now + 120 * SECOND).expect("a run");
    assert!(!groups_of(&world, "gw0").is_empty(), "balance brings some back");
}

/// What the engine of a node answers to a request.
pub(super) fn asked(
    world: &mut World,
    node: usize,
    ask: impl FnOnce(&mut Gateway, Duration) -> RequestId,
) -> String {
    let clock = world.nodes[node].clock(world.now);
    let engine = &mut world.nodes[node].running.as_mut().expect("it runs").engine;
    let id = ask(engine, clock);
    let answers = std::iter::from_fn(|| engine.poll_action()).find_map(|action| match action {
        Action::Answer { request, result } if request == id => Some(result),
        _ => None,
    });
    answers.expect("an answer at once").expect_err("it is refused").to_string()
}

pub(super) fn move_to(name: &str) -> impl FnOnce(&mut Gateway, Duration) -> RequestId {
    let name = GatewayName::new(name).expect("a name");
    move |engine, now| engine.move_group(now, GroupId(1), &name)
}

fn remove(name: &str) -> impl FnOnce(&mut Gateway, Duration) -> RequestId {
    let name = GatewayName::new(name).expect("a name");
    move |engine, now| engine.remove_gateway(now, &name)
}

#[test]
fn gateway_that_stops_is_not_taken_for_dead_and_one_that_dies_drained_is() {
    let of = |drained: bool| {
        let fault = if drained { Fault::Crash { node: 0, again: false } } else { Fault::Leave { node: 0 } };
        let mut world = world(&[(AT + 10 * SECOND, 60 * SECOND, fault)], AT);
        let clock = world.nodes[0].clock(world.now);
        world.nodes[0].running.as_mut().expect("it runs").engine.drain_all(clock, true);
        world.pump(0);
        world.run_until(AT + 30 * SECOND).expect("a run");
        let status = status(&world, 1);
        let other = &status.others[&GatewayName::new("gw0").expect("a name")];
        (other.lease, other.stopped, other.groups, other.dead_s.is_some())
    };
    assert_eq!(of(false), ("dead", true, Some(0), true));
    assert_eq!(of(true), ("dead", false, Some(0), true));
}

/// One of a newer version, such as after an upgrade of one gateway.
#[test]
fn gateway_whose_record_cannot_be_read_is_named_with_the_reason_and_asked_for_nothing() {
    let mut world = world(&[], AT);
    let name = GatewayName::new("gw7").expect("a name");
    let (now, by) =
        (world.now, Locker { cookie: BootId("newer".to_owned()), address: Address("host7".to_owned()) });
    world.objects.lock(now, &Object::Lease(name.clone()), by, 600 * SECOND, 0);
    let record = ("gateway/gw7".to_owned(), Some(br#"{"format":2}"#.to_vec()));
    assert!(world.objects.compare_and_set(&Object::Gateways, &[], &[record]));
    world.run_until(AT + 20 * SECOND).expect("a run");
    let seen = status(&world, 0);
    let other = &seen.others[&name];
    let why = "the record of gateway gw7 has format 2, this version reads up to 1: upgrade this gateway";
    assert_eq!((other.lease, other.stopped, other.trouble.as_deref()), ("held", false, Some(why)));
    assert_eq!(seen.takers(), 2, "gw1 and gw2");
    assert_eq!(
        asked(&mut world, 0, move_to("gw7")),
        format!("gateway gw7 cannot take ANA groups now: {why}")
    );
    // It is removed as any other one when it is gone for good.
    assert!(asked(&mut world, 0, remove("gw7")).contains("gw7"));
    world.objects.unlock(&Object::Lease(name.clone()), &BootId("newer".to_owned()));
    world.run_until(AT + 60 * SECOND).expect("a run");
    assert_eq!(status(&world, 0).others[&name].lease, "dead");
}

#[test]
fn requests_that_name_no_gateway_say_which_there_are() {
    let mut world = world(&[], AT);
    let none = "there is no gateway gw9; there are: gw0, gw1, gw2";
    assert_eq!(asked(&mut world, 0, move_to("gw9")), none);
    assert_eq!(asked(&mut world, 1, remove("gw9")), none);
    let own = asked(&mut world, 2, remove("gw2"));
    assert_eq!(own, "this is gateway gw2 itself: stop it, and ask another gateway then");
}

#[test]
fn gateway_that_is_cut_off_says_how_old_its_knowledge_is() {
    let fault = Fault::Stall;
    let world = world(&[(AT, 30 * SECOND, fault)], AT + 20 * SECOND);
    let status = status(&world, 0);
    assert_eq!(status.state, "suspended");
    assert!(status.as_of_s.is_some_and(|age| (15..=25).contains(&age)), "{:?}", status.as_of_s);
    assert!(status.others.values().all(|other| other.lease == "unknown"), "{:?}", status.others);
}

#[test]
fn gateway_that_is_drained_alone_keeps_its_groups() {
    let crashes = [1, 2].map(|node| (AT, SECOND, Fault::Crash { node, again: false }));
    let mut world = world(&crashes, AT + 20 * SECOND);
    assert_eq!(groups_of(&world, "gw0").len(), 6);
    let clock = world.nodes[0].clock(world.now);
    world.nodes[0].running.as_mut().expect("it runs").engine.drain_all(clock, true);
    world.pump(0);
    assert_eq!(longest_pause(&mut world, &[1, 2, 3, 4, 5, 6], 20 * SECOND), 0);
}

#[test]
fn second_gateway_of_a_name_is_refused_and_says_why() {
    let after = |time| world(&[(AT, 30 * SECOND, Fault::Twin { node: 0 })], AT + time);
    let status = |world: &World, node: usize| {
        let node = &world.nodes[node];
        node.running.as_ref().expect("it runs").engine.status(node.clock(world.now))
    };
    // It may be a former run of itself, which ends.
    let early = status(&after(5 * SECOND), 3);
    assert_eq!(early.state, "joining");
    let why = early.why.expect("a reason");
    assert!(why.contains("waits for its lease") && why.contains("another gateway of this name"), "{why}");
    let world = after(20 * SECOND);
    assert_eq!(status(&world, 0).state, "member");
    let refused = status(&world, 3);
    assert_eq!(refused.state, "refused");
    let why = refused.why.expect("a reason");
    assert!(why.contains("another gateway named gw0 is running"), "{why}");
    assert!(owners(&world).iter().flatten().count() == 6);
}

#[test]
fn gateway_that_is_cut_off_shows_nothing_optimized() {
    let cut = Fault::Cut { node: 0, control: true, data: true, hosts: false };
    let world = world(&[(AT, 30 * SECOND, cut)], AT + 15 * SECOND);
    let node = &world.nodes[0];
    let running = node.running.as_ref().expect("it runs");
    assert!(!running.shown.values().any(|state| *state == nvmf_cluster::AnaState::OPTIMIZED));
    assert_eq!(running.engine.status(node.clock(world.now)).state, "suspended");
}

#[test]
fn failing_run_is_made_short_enough_to_read() {
    let mistake = Some(Mistake::FormerRunNotFenced);
    let failing = (0..1000)
        .map(Plan::new)
        .find_map(|plan| Some((World::new(plan.clone(), mistake, false).run().err()?, plan)));
    let (failure, plan) = failing.expect("a seed fails");
    let (shorter, failure) = shrink(&plan, mistake, &failure);
    assert!(shorter.faults.len() <= 3, "{:?}", shorter.faults);
    let control = failure.trace.iter().filter(|line| line.get(10..14) != Some("osd.")).count();
    assert!(control < 150, "{control} lines");
    assert!(failure.what.contains("two writers"), "{}", failure.what);
}

#[test]
fn gateway_that_is_gone_for_good_can_be_removed_but_no_other() {
    let mut world = world(&[(AT, SECOND, Fault::Crash { node: 0, again: false })], AT + 15 * SECOND);
    let mut ask = |name: &str| {
        let (clock, name) = (world.nodes[1].clock(world.now), GatewayName::new(name).expect("a name"));
        world.nodes[1].running.as_mut().expect("it runs").engine.remove_gateway(clock, &name);
        world.pump(1);
        world.run_until(world.now + 2 * SECOND).expect("a run");
    };
    ask("gw0");
    ask("gw2");
    let keys = world.objects.keys(&Object::Gateways);
    assert!(!keys.contains_key("gateway/gw0") && keys.contains_key("gateway/gw2"), "{keys:?}");
    assert!(!String::from_utf8_lossy(&keys["controller_ids"]).contains("gw0"));
}

#[test]
fn entry_that_was_removed_is_written_again_by_its_owner() {
    let mut world = world(&[], AT);
    let owner = world.shown(1);
    assert!(world.objects.compare_and_set(&Object::Map, &[], &[("group/1".into(), None)]));
    world.run_until(AT + 3 * SECOND).expect("a run");
    assert_eq!(world.shown(1), owner);
    assert!(world.objects.keys(&Object::Map).contains_key("group/1"));
    assert_eq!(world.oracle.takeovers, 0);
}

#[test]
fn configuration_that_is_lost_is_not_made_anew_while_somebody_serves_it() {
    let edit = Fault::Edit { node: 0, key: 0 };
    let restart = Fault::Crash { node: 1, again: true };
    let mut world = world(&[(AT - 9 * SECOND, SECOND, edit), (AT + SECOND, SECOND, restart)], AT);
    let served = world.nodes[0].running.as_ref().expect("it runs").applied.clone();
    assert!(!served.is_empty(), "there is nothing to lose");
    let lost = world.objects.keys(&Object::Configuration).into_keys().map(|key| (key, None));
    assert!(world.objects.compare_and_set(&Object::Configuration, &[], &lost.collect::<Vec<_>>()));
    world.run_until(AT + 30 * SECOND).expect("a run");
    assert_eq!(world.objects.keys(&Object::Configuration).len(), 0);
    for node in [0, 2] {
        let running = world.nodes[node].running.as_ref().expect("it runs");
        assert_eq!(running.applied, served);
        let status = running.engine.status(world.nodes[node].clock(world.now));
        assert!(status.configuration.refused.expect("a reason").contains("put its object back"));
    }
    assert!(owners(&world).iter().all(|names| names.len() == 1), "{:?}", owners(&world));
}

#[test]
fn entry_of_a_newer_format_is_left_alone_and_reported() {
    let mut world = world(&[], AT);
    let owner = world.shown(1);
    let newer = br#"{"format":2,"generation":"later"}"#.to_vec();
    assert!(world.objects.compare_and_set(&Object::Map, &[], &[("group/1".into(), Some(newer.clone()))]));
    world.run_until(AT + 5 * SECOND).expect("a run");
    assert_eq!(world.shown(1), Vec::<String>::new(), "{owner:?} serves it");
    assert_eq!(world.objects.keys(&Object::Map)["group/1"], newer);
    let running = world.nodes[1].running.as_ref().expect("it runs");
    let status = running.engine.status(world.nodes[1].clock(world.now));
    let why = status.groups[&GroupId(1)].why.clone().expect("a reason");
    assert!(why.contains("upgrade this gateway"), "{why}");
    assert_eq!(world.shown(2).len(), 1, "others are served");
}
