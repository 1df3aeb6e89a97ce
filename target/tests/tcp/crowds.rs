//! Machines that take all that anyone may have. Hosts get in at once.

use crate::host::{Ask, DISCOVERY, Host, Queue};
use crate::world::{World, settings};
use nvme_proto::{Sqe, Status};
use nvmf_target::settings::Settings;

/// A discovery controller of this machine.
fn discovery(world: &mut World, machine: u8) -> Host {
    let queue = Queue { subsystem: DISCOVERY, ..Queue::ADMIN };
    Host::admin_with(world, machine, Ask::default(), &queue).0
}

fn keep_alive(world: &mut World, queue: &mut Host) {
    assert_eq!(queue.run(world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
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
