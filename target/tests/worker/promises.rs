//! What a host is promised, to the byte and to the last credit.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, SglDescriptor, Sqe};
use nvmf_target::settings::Settings;
use std::time::Duration;

fn on_disk(world: &World, lba: u64, len: usize) -> Vec<u8> {
    let disk = world.disk.borrow();
    (lba..lba + len as u64 / 512).flat_map(|lba| disk.block(lba).to_vec()).collect()
}

fn with_fua(opcode: NvmOpcode, lba: u64, len: u32, sgl: SglDescriptor) -> Sqe {
    let mut sqe = ReadWrite { fua: true, ..ReadWrite::new(lba, len / BLOCK) }.emit(opcode, Nsid(1));
    sqe.sgl = sgl;
    sqe
}

#[test]
fn a_write_with_fua_survives_a_power_cut_in_every_chunk() {
    for len in [512usize, 4096, 131_072, 131_584, 1 << 20] {
        let mut world = World::new(1, &settings());
        let (_admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        let data = pattern(len as u32, len);
        io.data.write(0, &data);
        let sgl = io.expose(0, len as u32);
        io.run(&mut world, &with_fua(NvmOpcode::WRITE, 40, len as u32, sgl), &[]);
        if len <= 4096 {
            let sgl = SglDescriptor::in_capsule(0, len as u32);
            io.run(&mut world, &with_fua(NvmOpcode::WRITE, 4096, len as u32, sgl), &data);
        }
        world.disk.borrow_mut().crash();
        assert!(on_disk(&world, 40, len) == data, "{len} bytes were not all durable");
        if len <= 4096 {
            assert!(on_disk(&world, 4096, len) == data, "{len} bytes in the capsule were not all durable");
        }
    }
}

#[test]
fn zeroes_with_fua_survive_a_power_cut() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    io.data.write(0, &[0xff; 65_536]);
    let sgl = io.expose(0, 65_536);
    io.run(&mut world, &with_fua(NvmOpcode::WRITE, 0, 65_536, sgl), &[]);
    let none = SglDescriptor::keyed(0, 0, 0, false);
    io.run(&mut world, &with_fua(NvmOpcode::WRITE_ZEROES, 0, 65_536, none), &[]);
    world.disk.borrow_mut().crash();
    assert!(on_disk(&world, 0, 65_536).iter().all(|&byte| byte == 0));
}

/// Many more than the queue has entries and credits.
#[test]
fn a_queue_goes_on_for_a_thousand_commands_of_each_kind() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for (opcode, len) in [(NvmOpcode::READ, 512), (NvmOpcode::WRITE, 512), (NvmOpcode::READ, 262_144)] {
        for _ in 0..1000 {
            let sgl = io.expose(0, len);
            io.run(&mut world, &read_write(opcode, 0, len, sgl), &[]);
        }
        world.check_credits();
    }
}

#[test]
fn an_event_is_sent_when_namespaces_change() {
    let mut world = World::new(2, &settings());
    let (mut admin, _) = admin(&mut world);
    let mut enable = Sqe::new(AdminOpcode::SET_FEATURES.0);
    enable = enable.with_dwords([0x0b, 1 << 8, 0, 0, 0, 0]);
    admin.run(&mut world, &enable, &[]);
    let cid = admin.send(&Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), &[]);
    (0..50).for_each(|_| world.tick());
    admin.poll(world.now);
    assert!(admin.responses.is_empty(), "nothing has happened yet");
    world.registry.lock().unwrap().remove_namespace(&SUBSYSTEM.parse().unwrap(), Nsid(2)).unwrap();
    world.publish();
    let (cqe, _) = admin.response(&mut world, cid);
    // Notice, namespace attribute changed, Changed Namespace List.
    assert_eq!((cqe.status().is_success(), cqe.dw0.get()), (true, 0x0004_0002));
}

#[test]
fn operations_of_a_lost_queue_are_orphans_until_the_disk_is_done() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let has_orphans = |world: &World| {
        let registry = world.registry.lock().unwrap();
        let association = registry.associations().next().expect("the Admin queue lives").clone();
        association.has_orphans()
    };
    let idle = io(&mut world, 1, cntlid);
    drop(idle);
    world.until("an idle queue is gone", |world| (world.queues() == 1).then_some(()));
    assert!(!has_orphans(&world), "nothing of it was on the disk");

    let mut busy = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    for at in 0..3 {
        busy.send(&read_write(NvmOpcode::WRITE, at, 512, SglDescriptor::in_capsule(0, 512)), &[1; 512]);
    }
    world.until("it is on the disk", |world| {
        let device = nvmf_block::DeviceId(0);
        (world.workers[0].backend().in_flight(device) == 3).then_some(())
    });
    busy.drop_connection();
    (0..50).for_each(|_| world.tick());
    assert!(has_orphans(&world), "its writes may yet take effect");
    world.disk.borrow_mut().set_hanging(false);
    world.until("they are over", |world| (world.queues() == 1).then_some(()));
    assert!(!has_orphans(&world));
}

/// What hosts sent while the target stood still is read before their timers expire. (Keep Alive timers see to that
/// themselves; the worker does for the others.)
#[test]
fn keep_alives_that_came_during_a_stall_count() {
    let settings = Settings { connections: 16, admin_receives: 16 * 36, ..settings() };
    let mut world = World::with_latency(1, &settings, 64, Duration::ZERO);
    let mut hosts: Vec<_> = (0..12).map(|_| admin(&mut world).0).collect();
    for _ in 0..3 {
        // Silent for nearly two timeouts, in which the worker runs; then it stalls for less than one.
        for _ in 0..2 {
            world.now += Duration::from_secs(9);
            world.tick();
        }
        // More than a turn takes up.
        for host in &mut hosts {
            (0..28).for_each(|_| _ = host.send(&Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]));
        }
        world.now += Duration::from_secs(9);
        for host in &mut hosts {
            world.until("all are answered", |world| {
                host.poll(world.now);
                assert!(!host.disconnected, "the host was not silent");
                (host.responses.len() == 28).then(|| host.responses.clear())
            });
        }
    }
    assert_eq!(world.count("keep_alive_expired"), 0);
    // Silence is still found out.
    hosts[0].until_silence_ends_it(&mut world);
}

/// A host that could not wait goes on elsewhere, and trusts that after two timeouts nothing of what it sent here follows.
#[test]
fn what_came_before_a_stall_that_no_host_waits_for_is_not_carried_out() {
    let mut world = World::with_latency(1, &settings(), 64, Duration::ZERO);
    let (mut host, _) = admin(&mut world);
    let (mut patient, _) = admin_in(&mut world, 2, SUBSYSTEM, 0);
    for host in [&mut host, &mut patient] {
        host.send(&Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]);
    }
    world.now += Duration::from_secs(10);
    world.until("its connection is closed", |world| {
        host.poll(world.now);
        host.disconnected.then_some(())
    });
    assert!(host.responses.is_empty(), "the command is not taken");
    assert_eq!(world.count("keep_alive_expired"), 1);
    world.until("a host without a timer is answered", |world| {
        patient.poll(world.now);
        (!patient.responses.is_empty()).then_some(())
    });
}
