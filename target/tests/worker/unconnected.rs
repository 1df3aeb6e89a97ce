//! Connections that bring no Connect, or that nobody may have.

use super::host::*;
use super::reject_status;
use nvme_proto::admin::keep_alive::keep_alive;
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::rdma::RejectStatus;
use nvme_proto::{Cntlid, Nqn, Sqe};
use nvmf_subsystem::Options;
use nvmf_target::exec::queue::slots;
use nvmf_target::settings::Settings;
use std::time::Duration;

fn roomy() -> Settings {
    Settings { connections: 64, admin_receives: 64 * 36, io_receives: 8 * 36, ..settings() }
}

fn silent(world: &mut World, machine: u8) -> Result<HostQueue, RejectStatus> {
    let offer = HostQueue::offer(0, 32, 0);
    HostQueue::connect_from(world, machine, offer).map_err(|failure| reject_status(&failure))
}

#[test]
fn one_machine_without_connects_does_not_fill_the_target() {
    let mut world = World::new(1, &roomy());
    let tried: Vec<_> = (0..70).map(|_| silent(&mut world, 9)).collect();
    assert_eq!(tried.iter().flatten().count(), 32);
    assert!(tried.iter().all(|tried| !matches!(tried, Err(status) if *status != RejectStatus::NO_RESOURCES)));
    let (_admin, cntlid) = admin(&mut world);
    io(&mut world, 1, cntlid);
}

#[test]
fn many_machines_without_connects_make_way_for_a_host() {
    let mut world = World::new(1, &roomy());
    let mut flood: Vec<_> = (0..64).map(|at| silent(&mut world, 100 + at / 2).unwrap()).collect();
    assert_eq!(silent(&mut world, 1).err(), Some(RejectStatus::NO_RESOURCES), "they are too young to yield");
    world.now += Duration::from_secs(2);
    let (_admin, cntlid) = admin(&mut world);
    let _io = io(&mut world, 1, cntlid);
    assert_eq!(world.count("unconnected_closed"), 2);
    assert_eq!(world.queues(), 64);
    flood[0].until_disconnected(&mut world);
}

/// A discovery controller of a machine that says nothing more.
fn discovery(world: &mut World, machine: u8) -> Result<HostQueue, RejectStatus> {
    let mut queue = silent(world, machine)?;
    let data = connect_data_of(machine, Cntlid::DYNAMIC, Nqn::DISCOVERY.as_str());
    queue.data.write(0, zerocopy::IntoBytes::as_bytes(&data));
    let mut sqe = connect_command(0, 32, 0);
    sqe.sgl = queue.expose(0, 1024);
    queue.run(world, &sqe, &[]);
    Ok(queue)
}

#[test]
fn one_machine_with_discovery_controllers_does_not_fill_the_target() {
    let mut world = World::new(1, &roomy());
    let tried: Vec<_> = (0..70).map(|_| discovery(&mut world, 9)).collect();
    assert_eq!(tried.iter().flatten().count(), 32);
    let (_admin, cntlid) = admin(&mut world);
    io(&mut world, 1, cntlid);
}

#[test]
fn discovery_controllers_make_way_after_unconnected_queues() {
    let mut world = World::new(1, &roomy());
    let mut flood: Vec<_> = (0..32).map(|at| discovery(&mut world, 100 + at / 2).unwrap()).collect();
    let _hosts: Vec<_> = (20..50).map(|host| admin_of(&mut world, host)).collect();
    let mut waiting: Vec<_> = (0..2).map(|_| silent(&mut world, 99).unwrap()).collect();
    assert_eq!(silent(&mut world, 1).err(), Some(RejectStatus::NO_RESOURCES), "they are too young to yield");
    world.now += Duration::from_secs(2);
    let (_admin, cntlid) = admin(&mut world);
    let _io = io(&mut world, 1, cntlid);
    waiting.iter_mut().for_each(|queue| queue.until_disconnected(&mut world));
    assert_eq!((world.count("unconnected_closed"), world.count("discovery_closed")), (2, 0));
    let _second = io(&mut world, 2, cntlid);
    assert_eq!(world.count("discovery_closed"), 1);
    assert_eq!(world.queues(), 64);
    flood[0].until_disconnected(&mut world);
}

#[test]
fn discovery_controllers_have_half_of_the_places() {
    let mut world = World::new(1, &roomy());
    let mut crowd: Vec<_> =
        (0..64).map(|at| discovery(&mut world, 200 + at % 2).expect("one of its own makes way")).collect();
    assert_eq!((world.queues(), world.count("discovery_closed")), (32, 32));
    let _other = discovery(&mut world, 9).expect("a crowd makes way for one of another machine");
    let hosts: Vec<_> = (20..51).map(|host| admin_of(&mut world, host)).collect();
    assert_eq!((world.queues(), world.count("discovery_closed")), (63, 33));
    crowd[0].until_disconnected(&mut world);
    crowd[32].until_disconnected(&mut world);
    // The table is full, and only discovery controllers may make way.
    let _last: Vec<_> = (51..56).map(|host| admin_of(&mut world, host)).collect();
    assert_eq!((world.queues(), world.count("discovery_closed")), (64, 37));
    drop(hosts);
}

/// The controller that yields is looked for among those of all workers.
#[test]
fn silent_discovery_controller_of_another_worker_makes_way() {
    let options = Options { controllers_max: 2, ..Options::default() };
    let mut world = World::with_options(2, &roomy(), 64, Duration::ZERO, options);
    let discovery = |world: &mut World, host| admin_in(world, host, Nqn::DISCOVERY.as_str(), 0).0;
    let mut here = discovery(&mut world, 101);
    let mut there = discovery(&mut world, 102);
    assert!(world.workers.iter().all(|worker| worker.queues() == 1), "one on each worker");
    world.now += Duration::from_secs(2);
    here.run(&mut world, &keep_alive(), &[]);
    let _third = discovery(&mut world, 103);
    assert_eq!(world.workers[0].queues(), 2, "the new one is where the active one is");
    there.until_disconnected(&mut world);
    here.run(&mut world, &keep_alive(), &[]);
    world.until("its queue is removed", |world| (world.workers[1].queues() == 0).then_some(()));
}

#[test]
fn machines_that_renew_unconnected_queues_make_way_for_another() {
    let mut world = World::new(1, &roomy());
    let _flood: Vec<_> = (0..64).map(|at| silent(&mut world, 100 + at / 32).unwrap()).collect();
    let (_admin, cntlid) = admin(&mut world);
    let _io = io(&mut world, 1, cntlid);
    assert_eq!(world.count("unconnected_closed"), 2);
}

#[test]
fn a_connection_without_a_connect_ends_after_five_seconds() {
    let mut world = World::new(1, &roomy());
    let mut queue = silent(&mut world, 9).unwrap();
    let begun = world.now;
    while !queue.disconnected {
        world.now += Duration::from_millis(100);
        world.tick();
        queue.poll(world.now);
        assert!(world.now - begun < Duration::from_secs(7));
    }
    assert!(world.now - begun >= Duration::from_secs(5));
    world.until_clean();
}

#[test]
fn an_io_connection_needs_a_controller_of_its_machine() {
    let mut world = World::new(2, &roomy());
    let (mut admin, cntlid) = admin(&mut world);
    let ask = |world: &mut World, machine: u8, cntlid: u16| {
        let offer = HostQueue::offer(1, 32, cntlid);
        HostQueue::connect_from(world, machine, offer).map_err(|failure| reject_status(&failure)).err()
    };
    let invalid = Some(RejectStatus::INVALID_CNTLID);
    assert_eq!(ask(&mut world, 1, cntlid.0 + 1), invalid, "there is no such controller");
    assert_eq!(ask(&mut world, 2, cntlid.0), invalid, "it belongs to another machine");
    assert_eq!(ask(&mut world, 2, 0), invalid, "this machine has none");
    assert_eq!(ask(&mut world, 1, 0), None, "older hosts name none");
    assert_eq!(ask(&mut world, 1, cntlid.0), None);
    admin.drop_connection();
    world.until("the controller is gone", |world| (world.queues() == 0).then_some(()));
    assert_eq!(ask(&mut world, 1, cntlid.0), invalid, "it is gone");
    assert_eq!(world.count("rejected_parameters"), 4);
}

/// A host that is granted what cannot be served fails as a whole, though less would do.
#[test]
fn no_more_io_queues_are_granted_than_can_be_served() {
    let io_receives = 3 * usize::from(slots(32));
    let mut world = World::new(1, &Settings { io_receives, ..roomy() });
    let ask = |world: &mut World, admin: &mut HostQueue| {
        let sqe = Sqe::new(AdminOpcode::SET_FEATURES.0).with_dwords([7, 3 << 16 | 3, 0, 0, 0, 0]);
        let dw0 = admin.run(world, &sqe, &[]).0.dw0.get();
        assert_eq!(dw0 as u16, (dw0 >> 16) as u16);
        dw0 as u16 + 1
    };
    let (mut first, cntlid) = admin(&mut world);
    let granted = ask(&mut world, &mut first);
    assert_eq!(granted, 3);
    let mut queues: Vec<_> = (1..=granted).map(|qid| io(&mut world, qid, cntlid)).collect();
    queues.pop();
    world.until("it is gone", |world| (world.queues() == 3).then_some(()));
    let (mut second, cntlid) = admin_of(&mut world, 2);
    assert_eq!(ask(&mut world, &mut second), 1);
    io_of(&mut world, 2, 1, cntlid, 32);
}

/// More Connects than a turn takes up came while the target stood still: all of them were in time.
#[test]
fn connects_that_came_during_a_stall_are_in_time() {
    let mut world = World::with_latency(1, &roomy(), 64, Duration::ZERO);
    let mut queues: Vec<_> = (0..60).map(|at| silent(&mut world, 1 + at / 2).unwrap()).collect();
    let cids: Vec<_> = queues
        .iter_mut()
        .enumerate()
        .map(|(host, queue)| {
            let data = connect_data_of(host as u8 + 1, Cntlid::DYNAMIC, SUBSYSTEM);
            queue.data.write(0, zerocopy::IntoBytes::as_bytes(&data));
            let mut sqe = connect_command(0, 32, 10_000);
            sqe.sgl = queue.expose(0, 1024);
            queue.send(&sqe, &[])
        })
        .collect();
    world.now += Duration::from_secs(6);
    for (queue, cid) in queues.iter_mut().zip(cids) {
        assert!(queue.response(&mut world, cid).0.status().is_success());
    }
}
