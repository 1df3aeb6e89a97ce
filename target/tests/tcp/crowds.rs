//! Machines that take all that anyone may have. Hosts get in at once.

use crate::host::{Ask, DISCOVERY, Host, Pdu, Queue};
use crate::pdu::h2c_term_req;
use crate::world::{World, settings};
use nvme_proto::{Sqe, Status};
use nvmf_stream::HalfOpenLimits;
use nvmf_target::settings::Settings;
use nvmf_target::transport::tcp::TcpOptions;

/// A discovery controller of this machine.
fn discovery(world: &mut World, machine: u8) -> Host {
    let queue = Queue { subsystem: DISCOVERY, ..Queue::ADMIN };
    Host::admin_with(world, machine, Ask::default(), &queue).0
}

fn keep_alive(world: &mut World, queue: &mut Host) {
    assert_eq!(queue.run(world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
}

/// Whoever watches the target sees that somebody floods it.
#[test]
fn half_open_connections_that_yield_are_counted() {
    let half_open = HalfOpenLimits { max: 32, per_machine: 4 };
    let mut world = World::with(1, &settings(), &TcpOptions { half_open, ..TcpOptions::default() });
    let mut silent: Vec<Host> = (0..50).map(|_| Host::tcp(&world, 1)).collect();
    world.until_counted("half_open_closed", 33);
    assert!(silent[..33].iter_mut().all(|host| host.pdu(&mut world) == Pdu::End));
}

#[test]
fn connection_that_begins_with_no_icreq_is_counted() {
    let mut world = World::new();
    let mut host = Host::tcp(&world, 1);
    host.send(&mut world, &h2c_term_req());
    world.until_counted("rejected_parameters", 1);
    let mut host = Host::tcp(&world, 1);
    host.send(&mut world, &Ask::default().ic_req()[..64]);
    drop(host);
    world.until_counted("rejected_parameters", 2);
    // That is how health checks look.
    drop(Host::tcp(&world, 1));
    world.until_clean();
    assert_eq!(world.count("rejected_parameters"), 2);
}

/// As many discovery controllers as there are places, of two machines, none of them silent.
#[test]
fn active_discovery_controllers_leave_half_of_the_places() {
    let settings = Settings { connections: 64, ..settings() };
    let mut world = World::with(1, &settings, &Default::default());
    let mut crowd = Vec::new();
    for at in 0..64 {
        let mut queue = discovery(&mut world, 8 + at % 2);
        keep_alive(&mut world, &mut queue);
        crowd.push(queue);
    }
    assert_eq!(world.queues(), 32);
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    for qid in 1..=8 {
        Host::io(&mut world, 1, Ask::default(), qid, cntlid).check(&mut world, qid.into());
    }
    let mut honest = discovery(&mut world, 2);
    for machine in 0..40 {
        crowd.push(discovery(&mut world, 8 + machine % 2));
    }
    keep_alive(&mut world, &mut honest);
    assert!(world.count("discovery_closed") >= 72, "{}", world.count("discovery_closed"));
}
