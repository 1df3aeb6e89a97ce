//! Barriers: what was taken up before is over, whatever became of its connection; what comes later is not waited for.

use crate::copy::{allow_copies_across, send_copy};
use crate::host::*;
use crate::read_write;
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::{DescriptorFormat, SourceRange};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{HostId, Nsid, SglDescriptor, Sqe, Status};
use nvmf_block::DeviceId;
use nvmf_target::barrier::{Barrier, Scope};
use nvmf_target::message::WorkerMessage;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The device of namespace 1.
const DISK: DeviceId = DeviceId(0);
const OTHER: DeviceId = DeviceId(1);

fn post(world: &mut World, scope: Scope) -> Arc<Barrier> {
    let barrier = Barrier::new(world.workers.len(), scope);
    for worker in &mut world.workers {
        worker.deliver(WorkerMessage::Barrier(Arc::clone(&barrier)));
    }
    barrier
}

/// Whether it is reached within a time in which nothing else ends.
fn is_reached(world: &mut World, barrier: &Barrier) -> bool {
    for _ in 0..200 {
        world.tick();
    }
    barrier.is_reached()
}

/// A world whose disk hangs, with so many writes on it.
fn with_writes_on_disk(world: &mut World, io: &mut HostQueue, writes: u64) {
    world.disk.borrow_mut().set_hanging(true);
    for at in 0..writes {
        let sgl = SglDescriptor::in_capsule(0, 4096);
        io.send(&read_write(NvmOpcode::WRITE, 8 * at, 4096, sgl), &[1; 4096]);
    }
    let mut on_disk = 0;
    world.until("the writes are on the disk", |world| {
        io.poll(world.now);
        on_disk = world.workers.iter_mut().map(|worker| worker.backend().in_flight(DISK)).sum();
        (on_disk as u64 == writes).then_some(())
    });
}

#[test]
fn barrier_waits_for_older_operations_on_its_device_only() {
    let mut world = World::new(2, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    with_writes_on_disk(&mut world, &mut io, 3);
    let [notices, other, disk] = [Scope::notices(), Scope::devices([OTHER]), Scope::devices([DISK])]
        .map(|scope| post(&mut world, scope));
    assert!(!is_reached(&mut world, &disk));
    assert!(notices.is_reached() && other.is_reached());
    world.disk.borrow_mut().set_hanging(false);
    world.until("the writes are over", |_| disk.is_reached().then_some(()));
}

#[test]
fn barrier_waits_for_no_later_operation() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let barrier = post(&mut world, Scope::devices([DISK]));
    world.tick();
    with_writes_on_disk(&mut world, &mut io, 3);
    assert!(is_reached(&mut world, &barrier));
}

#[test]
fn barrier_waits_for_operations_whose_connection_is_gone() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    with_writes_on_disk(&mut world, &mut io, 3);
    io.drop_connection();
    admin.drop_connection();
    let barrier = post(&mut world, Scope::devices([DISK]));
    assert!(!is_reached(&mut world, &barrier));
    world.disk.borrow_mut().set_hanging(false);
    world.until("the orphaned writes are over", |_| barrier.is_reached().then_some(()));
}

#[test]
fn barrier_waits_for_the_hosts_and_associations_that_it_names() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    with_writes_on_disk(&mut world, &mut io, 3);
    let (key, host) = {
        let registry = world.registry.lock().unwrap();
        let association = registry.associations().next().unwrap();
        (association.key(), association.host_id())
    };
    let of = |hosts| Scope { hosts: Some(BTreeSet::from(hosts)), ..Scope::devices([DISK]) };
    let stranger = post(&mut world, of([HostId([0x77; 16])]));
    let its = post(&mut world, of([host]));
    let association = post(&mut world, Scope { associations: BTreeSet::from([key]), ..Scope::default() });
    assert!(!is_reached(&mut world, &its));
    assert!(stranger.is_reached() && !association.is_reached());
    world.disk.borrow_mut().set_hanging(false);
    world.until("the writes are over", |_| (its.is_reached() && association.is_reached()).then_some(()));
}

/// Takes the path to the disk away, as `ctl ana set` does.
fn take_away(world: &mut World) -> Arc<Barrier> {
    world.registry.lock().unwrap().set_ana_state(1, 1, AnaState::INACCESSIBLE).unwrap();
    world.publish();
    post(world, Scope::devices([DISK]))
}

fn is_unwritten(world: &World) -> bool {
    (0..BLOCKS).all(|lba| world.disk.borrow().block(lba).iter().all(|&byte| byte == 0))
}

fn status(world: &mut World, io: &mut HostQueue, cid: u16) -> Status {
    io.response(world, cid).0.status()
}

/// Sends a command whose data stay on their way for a while, until the target has taken it up.
fn send_until_taken_up(world: &mut World, io: &mut HostQueue, sqe: &Sqe) -> u16 {
    let commands = world.count("commands");
    let cid = io.send(sqe, &[]);
    world.until("the command is taken up", |world| (world.count("commands") == commands + 1).then_some(()));
    cid
}

fn with_slow_messages() -> (World, HostQueue, HostQueue) {
    let mut world = World::with_latency(1, &settings(), 64, Duration::from_millis(5));
    let (admin, cntlid) = admin(&mut world);
    let io = io(&mut world, 1, cntlid);
    (world, admin, io)
}

/// With a write that the target has taken up.
fn with_write_taken_up() -> (World, HostQueue, HostQueue, u16) {
    let (mut world, admin, mut io) = with_slow_messages();
    io.data.write(0, &[1; 131_072]);
    let sgl = io.expose(0, 131_072);
    let cid = send_until_taken_up(&mut world, &mut io, &read_write(NvmOpcode::WRITE, 0, 131_072, sgl));
    (world, admin, io, cid)
}

/// Of the only host.
fn preempt_and_abort(world: &mut World) -> Arc<Barrier> {
    let host = world.registry.lock().unwrap().associations().next().unwrap().host_id();
    post(world, Scope { hosts: Some([host].into()), aborts: [host].into(), ..Scope::devices([DISK]) })
}

#[test]
fn write_whose_data_come_behind_a_barrier_is_checked_again() {
    let (mut world, _admin, mut io, cid) = with_write_taken_up();
    let barrier = take_away(&mut world);
    world.tick();
    assert!(barrier.is_reached(), "nothing is on the disk");
    assert_eq!(status(&mut world, &mut io, cid), Status::ANA_INACCESSIBLE);
    assert!(is_unwritten(&world));
}

/// A status that says that nothing was done would be wrong.
#[test]
fn write_of_which_a_part_is_on_the_disk_is_interrupted_and_not_refused() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let len = 1 << 20;
    io.data.write(0, &vec![1; len as usize]);
    let write = |io: &mut HostQueue| {
        let sgl = io.expose(0, len);
        io.send(&read_write(NvmOpcode::WRITE, 0, len, sgl), &[])
    };
    world.disk.borrow_mut().set_hanging(true);
    let cid = write(&mut io);
    world.until("a part of it is on the disk", |world| {
        io.poll(world.now);
        (world.workers[0].backend().in_flight(DISK) > 0).then_some(())
    });
    take_away(&mut world);
    world.tick();
    world.disk.borrow_mut().set_hanging(false);
    assert_eq!(status(&mut world, &mut io, cid), Status::COMMAND_INTERRUPTED);
    assert!(!is_unwritten(&world));
    // When it comes again it is told why.
    let cid = write(&mut io);
    assert_eq!(status(&mut world, &mut io, cid), Status::ANA_INACCESSIBLE);
}

/// The disk may never have room again.
#[test]
fn writes_that_wait_for_a_disk_that_hangs_are_refused_at_once() {
    // A device leaves half of the room to others.
    let mut world = World::with_backend_depth(1, &settings(), 4);
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let cids = [0, 8, 16, 24, 32].map(|lba| {
        let sgl = SglDescriptor::in_capsule(0, 4096);
        io.send(&read_write(NvmOpcode::WRITE, lba, 4096, sgl), &[1; 4096])
    });
    world.until("some wait for the disk", |world| {
        io.poll(world.now);
        (world.count("waits_backend") == 3).then_some(())
    });
    let barrier = take_away(&mut world);
    for cid in &cids[2..] {
        assert_eq!(status(&mut world, &mut io, *cid), Status::ANA_INACCESSIBLE);
    }
    assert!(!barrier.is_reached(), "the disk has the others");
    world.disk.borrow_mut().set_hanging(false);
    for cid in &cids[..2] {
        assert!(status(&mut world, &mut io, *cid).is_success());
    }
    assert!(is_reached(&mut world, &barrier));
    let written = |lba| world.disk.borrow().block(lba)[0] == 1;
    assert_eq!([0, 8, 16, 24, 32].map(written), [true, true, false, false, false]);
}

#[test]
fn write_of_which_a_part_waits_and_a_part_is_on_the_disk_is_interrupted() {
    let mut world = World::with_backend_depth(1, &settings(), 1);
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let len = 1 << 19;
    io.data.write(0, &vec![1; len as usize]);
    world.disk.borrow_mut().set_hanging(true);
    let sgl = io.expose(0, len);
    let cid = io.send(&read_write(NvmOpcode::WRITE, 0, len, sgl), &[]);
    world.until("parts of it wait for the disk", |world| {
        io.poll(world.now);
        (world.count("waits_backend") > 0).then_some(())
    });
    take_away(&mut world);
    world.tick();
    world.disk.borrow_mut().set_hanging(false);
    assert_eq!(status(&mut world, &mut io, cid), Status::COMMAND_INTERRUPTED);
}

#[test]
fn barrier_is_held_by_the_associations_that_have_something_on_the_disk() {
    let mut world = World::with_backend_depth(1, &settings(), 1);
    let (_admin, cntlid) = admin(&mut world);
    let (_other_admin, other_cntlid) = admin(&mut world);
    let [mut first, mut second] = [cntlid, other_cntlid].map(|cntlid| io(&mut world, 1, cntlid));
    world.disk.borrow_mut().set_hanging(true);
    let write = |io: &mut HostQueue| {
        io.send(&read_write(NvmOpcode::WRITE, 0, 4096, SglDescriptor::in_capsule(0, 4096)), &[1; 4096])
    };
    write(&mut first);
    world.until("it is on the disk", |world| (world.workers[0].backend().in_flight(DISK) == 1).then_some(()));
    let waits = write(&mut second);
    world.until("another waits", |world| (world.count("waits_backend") == 1).then_some(()));
    let barrier = take_away(&mut world);
    assert_eq!(status(&mut world, &mut second, waits), Status::ANA_INACCESSIBLE);
    let (tell, told) = std::sync::mpsc::channel();
    world.workers[0].deliver(WorkerMessage::TellHolders(barrier, tell));
    world.tick();
    assert_eq!(told.iter().map(|key| key.cntlid).collect::<Vec<_>>(), [cntlid]);
}

/// What a barrier took away may come back before the data do: another target may have written meanwhile.
#[test]
fn write_from_before_a_barrier_does_not_take_place_when_the_path_is_back() {
    let (mut world, _admin, mut io, cid) = with_write_taken_up();
    let barrier = take_away(&mut world);
    world.tick();
    assert!(barrier.is_reached());
    world.registry.lock().unwrap().set_ana_state(1, 1, AnaState::OPTIMIZED).unwrap();
    world.publish();
    assert_eq!(status(&mut world, &mut io, cid), Status::ANA_INACCESSIBLE);
    assert!(is_unwritten(&world));
    // What comes now is let in.
    let sgl = SglDescriptor::in_capsule(0, 4096);
    let cid = io.send(&read_write(NvmOpcode::WRITE, 0, 4096, sgl), &[2; 4096]);
    assert!(status(&mut world, &mut io, cid).is_success());
}

/// Whatever the reservation allows by then.
#[test]
fn write_from_before_a_preempt_and_abort_does_not_take_place() {
    let (mut world, _admin, mut io, cid) = with_write_taken_up();
    let barrier = preempt_and_abort(&mut world);
    world.tick();
    assert!(barrier.is_reached());
    assert_eq!(status(&mut world, &mut io, cid), Status::ABORTED_PREEMPT);
    assert!(is_unwritten(&world));
}

/// The ranges are on their way from the host: nothing of the command is a device's yet.
#[test]
fn deallocation_from_before_a_preempt_and_abort_does_not_take_place() {
    let (mut world, _admin, mut io) = with_slow_messages();
    world.disk.borrow_mut().preset(8, [9; BLOCK as usize].into());
    let mut range = [0; 16];
    (range[4], range[8]) = (8, 0);
    io.data.write(0, &range);
    let mut sqe = Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0).with_dwords([0, 4, 0, 0, 0, 0]);
    sqe.nsid = 1.into();
    sqe.sgl = io.expose(0, 16);
    let cid = send_until_taken_up(&mut world, &mut io, &sqe);
    preempt_and_abort(&mut world);
    assert_eq!(status(&mut world, &mut io, cid), Status::ABORTED_PREEMPT);
    assert!(*world.disk.borrow().block(8) == [9; BLOCK as usize]);
}

/// The namespace, its host and its size are as they were: the barrier alone refuses nothing.
#[test]
fn write_whose_data_come_behind_a_barrier_takes_place_if_nothing_has_changed() {
    let (mut world, _admin, mut io, cid) = with_write_taken_up();
    post(&mut world, Scope::devices([DISK]));
    assert!(status(&mut world, &mut io, cid).is_success());
    assert!(*world.disk.borrow().block(255) == [1; BLOCK as usize]);
}

#[test]
fn commands_for_which_no_buffer_was_free_are_checked_again() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    io.data.write(0, &[1; 131_072]);
    let cids: Vec<u16> = (0..16)
        .map(|at| {
            let sgl = io.expose(0, 131_072);
            io.send(&read_write(NvmOpcode::WRITE, 256 * at, 131_072, sgl), &[])
        })
        .collect();
    world.until("the disk has some, and others wait", |world| {
        let on_disk = world.workers[0].backend().in_flight(DISK) > 0;
        (on_disk && world.count("waits_buffer") > 0).then_some(())
    });
    let barrier = take_away(&mut world);
    assert!(!is_reached(&mut world, &barrier), "the disk has some");
    world.disk.borrow_mut().set_hanging(false);
    world.until("those are over", |_| barrier.is_reached().then_some(()));
    world.disk.borrow_mut().set_hanging(true);
    let statuses: Vec<Status> = cids.iter().map(|&cid| status(&mut world, &mut io, cid)).collect();
    let refused = statuses.iter().filter(|&&status| status == Status::ANA_INACCESSIBLE).count();
    assert!(refused >= 8, "{statuses:?}");
    assert!(statuses.iter().all(|&status| status.is_success() || status == Status::ANA_INACCESSIBLE));
}

#[test]
fn copy_that_was_read_before_a_barrier_is_not_written_behind_it() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    allow_copies_across(&mut world, &mut admin);
    world.other_disk.borrow_mut().preset(7, [9; BLOCK as usize].into());
    world.other_disk.borrow_mut().set_hanging(true);
    let command = CopyCommand { format: DescriptorFormat::FORMAT_2, ..CopyCommand::new(40, 1) };
    let range = SourceRange { nsid: Some(Nsid(2)), ..SourceRange::new(7, 1) };
    let cid = send_copy(&mut io, command, &[range]);
    world.until("it is being read", |world| (world.workers[0].backend().in_flight(OTHER) == 1).then_some(()));
    world.registry.lock().unwrap().remove_namespace(&SUBSYSTEM.parse().unwrap(), Nsid(1)).unwrap();
    world.publish();
    post(&mut world, Scope::devices([DISK]));
    world.tick();
    world.other_disk.borrow_mut().set_hanging(false);
    assert!(status(&mut world, &mut io, cid).is(Status::INVALID_NAMESPACE));
    assert!(is_unwritten(&world));
}

/// Both its namespaces are looked at again, and a barrier for either waits for it.
#[test]
fn copy_that_shares_blocks_is_checked_again_and_waited_for() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    allow_copies_across(&mut world, &mut admin);
    world.disk.borrow_mut().set_sharing(Some(1), 4000);
    world.disk.borrow_mut().set_hanging(true);
    let command = CopyCommand { format: DescriptorFormat::FORMAT_2, ..CopyCommand::new(40, 1) };
    let range = |start| SourceRange { nsid: Some(Nsid(2)), ..SourceRange::new(start, 1000) };
    let cid = send_copy(&mut io, command, &[range(0), range(2000)]);
    world
        .until("it is being shared", |world| (world.workers[0].backend().in_flight(DISK) == 1).then_some(()));
    world.registry.lock().unwrap().remove_namespace(&SUBSYSTEM.parse().unwrap(), Nsid(2)).unwrap();
    world.publish();
    let barrier = post(&mut world, Scope::devices([OTHER]));
    assert!(!is_reached(&mut world, &barrier), "its blocks are being shared");
    world.disk.borrow_mut().set_hanging(false);
    let ended = status(&mut world, &mut io, cid);
    assert!(ended.is(Status::COMMAND_INTERRUPTED), "one of its ranges is copied, and nothing more of it");
    assert!(is_reached(&mut world, &barrier));
    assert_eq!(world.disk.borrow().shares_left(), 3000);
}

/// The cache is flushed first: the pair goes to the disk only then.
#[test]
fn pair_whose_flush_ends_behind_a_barrier_is_not_carried_out() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    world.disk.borrow_mut().set_hanging(true);
    let block = BLOCK as usize;
    let cids = [(0x41, NvmOpcode::COMPARE, vec![0; block]), (0x42, NvmOpcode::WRITE, vec![1; block])].map(
        |(flags, opcode, data)| {
            let mut sqe = read_write(opcode, 77, BLOCK, SglDescriptor::in_capsule(0, BLOCK));
            sqe.flags = flags;
            let [cdw10, cdw11, cdw12, ..] = sqe.dwords();
            sqe = sqe.with_dwords([cdw10, cdw11, cdw12 | 1 << 30, 0, 0, 0]);
            io.send(&sqe, &data)
        },
    );
    world.until("the flush is on the disk", |world| {
        (world.workers[0].backend().in_flight(DISK) == 1).then_some(())
    });
    let barrier = take_away(&mut world);
    assert!(!is_reached(&mut world, &barrier));
    world.disk.borrow_mut().set_hanging(false);
    let [first, second] = cids.map(|cid| status(&mut world, &mut io, cid));
    assert!(first.is(Status::ABORTED_FAILED_FUSED) && second == Status::ANA_INACCESSIBLE, "{first} {second}");
    assert!(is_unwritten(&world));
}
