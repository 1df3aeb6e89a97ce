//! What a reload takes away while commands are in flight and the disk hangs.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use nvmf_block::DeviceId;
use nvmf_subsystem::HostAccess;
use nvmf_target::settings::Settings;
use std::collections::BTreeSet;

const DISK: DeviceId = DeviceId(0);

fn write_block(nsid: u32, lba: u64) -> Sqe {
    let sqe = read_write(NvmOpcode::WRITE, lba, BLOCK, SglDescriptor::in_capsule(0, BLOCK));
    Sqe { nsid: nsid.into(), ..sqe }
}

fn is_gone(status: Status) -> bool {
    status.is(Status::INVALID_NAMESPACE) && status.dnr()
}

/// As a reload does it: the hosts lose the namespace first, the workers lose the device then.
#[test]
fn removed_namespace_of_a_hung_disk_takes_no_more_and_answers_what_it_took() {
    let mut world = World::with_backend_depth(1, &settings(), 2);
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let data = pattern(3, BLOCK as usize);
    let first = io.send(&write_block(1, 0), &data);
    world.until("the disk has it", |world| (world.workers[0].backend().in_flight(DISK) == 1).then_some(()));
    let mut waiting: Vec<_> = (1..4).map(|lba| io.send(&write_block(1, lba), &data)).collect();
    let sgl = io.expose(0, 262_144);
    waiting.push(io.send(&read_write(NvmOpcode::WRITE, 512, 262_144, sgl), &[]));
    world.until("the others wait for it", |world| (world.count("waits_backend") >= 4).then_some(()));

    world.registry.lock().unwrap().remove_namespace(&SUBSYSTEM.parse().unwrap(), Nsid(1)).unwrap();
    world.publish();
    world.tick();
    let late = io.send(&write_block(1, 4), &data);
    assert!(is_gone(io.response(&mut world, late).0.status()), "no command is begun after the removal");
    world.workers[0].backend().detach(DISK);
    for cid in waiting {
        let status = io.response(&mut world, cid).0.status();
        assert!(is_gone(status), "a write that had not reached the disk: {status}");
    }
    io.run(&mut world, &write_block(2, 0), &data);
    assert!(io.responses.is_empty(), "the disk has not answered the first");

    world.disk.borrow_mut().set_hanging(false);
    assert!(io.response(&mut world, first).0.status().is_success());
    let block = |lba| world.disk.borrow().block(lba).to_vec();
    assert_eq!(block(0), data);
    let untouched = (1..5).chain(512..1024).all(|lba| block(lba).iter().all(|&byte| byte == 0));
    assert!(untouched, "a write was carried out that was answered as failed");
    io.drop_connection();
    admin.drop_connection();
    world.until_clean();
}

#[test]
fn revoked_host_is_cut_off_though_its_disk_hangs() {
    let settings = Settings { connections: 16, admin_receives: 8 * 36, io_receives: 8 * 36, ..settings() };
    let mut world = World::new(2, &settings);
    let (mut revoked, cntlid) = admin(&mut world);
    let mut queues: Vec<_> = (1..=2).map(|qid| io(&mut world, qid, cntlid)).collect();
    let (mut other, cntlid) = admin_of(&mut world, 2);
    let mut other_io = io_of(&mut world, 2, 1, cntlid, 32);
    world.disk.borrow_mut().set_hanging(true);
    let data = pattern(5, BLOCK as usize);
    for (lba, queue) in queues.iter_mut().enumerate() {
        queue.send(&write_block(1, lba as u64), &data);
    }
    let on_disk = |world: &mut World| {
        world.workers.iter_mut().map(|worker| worker.backend().in_flight(DISK)).sum::<usize>()
    };
    world.until("the disk has both", |world| (on_disk(world) == 2).then_some(()));

    let host = nvme_proto::Nqn::from_field(&connect_data_of(2, cntlid, SUBSYSTEM).hostnqn).unwrap();
    let hosts = HostAccess::Only(BTreeSet::from([host]));
    world.registry.lock().unwrap().set_hosts(&SUBSYSTEM.parse().unwrap(), hosts).unwrap();
    world.publish();
    queues.iter_mut().for_each(|queue| queue.until_disconnected(&mut world));
    revoked.until_disconnected(&mut world);
    let (mut again, status) = ask_for_controller(&mut world);
    assert!(status.is(Status::CONNECT_INVALID_HOST), "{status}");
    again.drop_connection();
    other_io.run(&mut world, &write_block(2, 0), &data);

    world.disk.borrow_mut().set_hanging(false);
    other_io.run(&mut world, &write_block(1, 9), &data);
    world.until("only the other host is left", |world| (world.queues() == 2).then_some(()));
    other_io.drop_connection();
    other.drop_connection();
    world.until_clean();
}

/// Its buffers may serve others at once, so nothing of its host's may reach them any more.
#[test]
fn queue_that_broke_a_rule_is_cut_off_though_its_disk_hangs() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    io.send(&write_block(1, 0), &pattern(5, BLOCK as usize));
    world.until("the disk has it", |world| (world.workers[0].backend().in_flight(DISK) == 1).then_some(()));
    io.send_bytes(60, &[0; 63]);
    io.until_disconnected(&mut world);
    admin.until_disconnected(&mut world);
    assert_eq!((world.count("violations"), world.workers[0].backend().in_flight(DISK)), (1, 1));
    world.disk.borrow_mut().set_hanging(false);
    world.until_clean();
}

/// A host hears of a new namespace from the worker of its Admin queue, and may use it on a queue of another worker at once: the
/// news of it lie there, but came after the worker had looked for messages last.
#[test]
fn news_are_read_between_the_arrival_of_a_command_and_its_begin() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let nqn = SUBSYSTEM.parse().unwrap();
    world.registry.lock().unwrap().remove_namespace(&nqn, Nsid(1)).unwrap();
    world.publish();
    world.tick();
    world.registry.lock().unwrap().add_namespace(&nqn, namespace(1, BLOCKS)).unwrap();
    let cid = io.send(&write_block(1, 0), &pattern(4, BLOCK as usize));
    let gathered = loop {
        world.now += TICK;
        let now = world.now;
        if world.workers[0].gather(now) {
            break true;
        }
    };
    world.publish();
    let now = world.now;
    world.workers[0].act(now, gathered);
    assert!(io.response(&mut world, cid).0.status().is_success());
}
