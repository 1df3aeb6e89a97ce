//! A worker, its provider and its backend simulated, as a host sees it.

mod barrier;
mod capsule;
mod copy;
mod fairness;
mod fused;
mod host;
mod limits;
mod metrics;
mod orphans;
mod promises;
mod receives;
mod removal;
mod set_up;
mod shares;
mod sleep;
mod strange;
mod unconnected;

use host::*;
use nvme_proto::nvm::dsm::DsmRange;
use nvme_proto::nvm::rw::{ReadWrite, flush};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::rdma::{RejectData, RejectStatus};
use nvme_proto::{Cntlid, Nsid, SglDescriptor, Sqe, Status};
use nvmf_memory::Memory;
use nvmf_rdma::{ConnectFailure, PrivateData, Provider, RemoteKey};
use nvmf_target::message::WorkerMessage;
use std::time::Duration;

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| ((at / 512).wrapping_mul(31) ^ at ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}

fn bytes(memory: &Memory, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(offset, &mut bytes);
    bytes
}

fn read_write(opcode: NvmOpcode, lba: u64, len: u32, sgl: SglDescriptor) -> Sqe {
    let mut sqe = ReadWrite::new(lba, len / BLOCK).emit(opcode, Nsid(1));
    sqe.sgl = sgl;
    sqe
}

fn key(sgl: &SglDescriptor) -> Option<RemoteKey> {
    match sgl.parse().unwrap() {
        nvme_proto::Sgl::Keyed { key, .. } => Some(RemoteKey(key)),
        _ => None,
    }
}

fn reject_status(failure: &ConnectFailure) -> RejectStatus {
    match failure {
        ConnectFailure::Rejected { private_data } => RejectData::parse(private_data.as_bytes()).unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_written_is_read_back_in_every_size() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for (round, len) in [512, 4096, 16384, 16896, 131_072, 131_584, 524_288, 1 << 20].into_iter().enumerate()
    {
        let data = pattern(round as u32, len);
        io.data.write(0, &data);
        let sgl = io.expose(0, len as u32);
        let write = read_write(NvmOpcode::WRITE, 100, len as u32, sgl);
        assert_eq!(io.run(&mut world, &write, &[]).1, key(&sgl), "write of {len}: the key is invalidated");
        let sgl = io.expose(2 << 20, len as u32);
        let read = read_write(NvmOpcode::READ, 100, len as u32, sgl);
        assert_eq!(io.run(&mut world, &read, &[]).1, key(&sgl), "read of {len}: the key is invalidated");
        assert!(bytes(&io.data, 2 << 20, len) == data, "{len} bytes came back different");
    }
    assert!(world.count("waits_buffer") > 0, "1 MiB does not fit into the buffers at once");
    admin.drop_connection();
    world.until_clean();
    io.until_disconnected(&mut world);
}

#[test]
fn worker_whose_device_is_removed_says_so() {
    let mut world = World::new(1, &settings());
    assert!(!world.workers[0].turn(world.now).device_removed);
    world.workers[0].transport().provider.remove_device();
    assert!(world.workers[0].turn(world.now).device_removed);
    assert!(world.workers[0].turn(world.now).device_removed, "and goes on saying so");
}

#[test]
fn in_capsule_writes_of_every_offset() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for (round, (offset, len)) in
        [(0, 4096), (0, 512), (512, 512), (16, 1024), (3072, 1024)].into_iter().enumerate()
    {
        let data = pattern(round as u32, len);
        let mut capsule = vec![0xee; offset];
        capsule.extend(&data);
        let sgl = SglDescriptor::in_capsule(offset as u64, len as u32);
        io.run(&mut world, &read_write(NvmOpcode::WRITE, 7, len as u32, sgl), &capsule);
        let on_disk: Vec<u8> =
            (7..7 + len as u64 / 512).flat_map(|lba| world.disk.borrow().block(lba).to_vec()).collect();
        assert!(on_disk == data, "offset {offset}, {len} bytes");
    }
}

#[test]
fn a_full_queue_of_everything_is_answered() {
    let mut world = World::new(2, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut queues = [io(&mut world, 1, cntlid), io(&mut world, 2, cntlid)];
    let mut sent = Vec::new();
    for at in 0..28usize {
        for (which, queue) in queues.iter_mut().enumerate() {
            let lba = (which * 28 + at) as u64 * 256;
            let place = at * (DATA / 28 / 4096) * 4096;
            let cid = match at % 5 {
                0 => queue.send(&flush(Nsid(1)), &[]),
                1 => {
                    let sgl = SglDescriptor::in_capsule(0, 4096);
                    queue.send(&read_write(NvmOpcode::WRITE, lba, 4096, sgl), &pattern(1, 4096))
                }
                2 => {
                    let sgl = queue.expose(place, 131_072);
                    queue.send(&read_write(NvmOpcode::WRITE, lba, 131_072, sgl), &[])
                }
                _ => {
                    let sgl = queue.expose(place, 131_072);
                    queue.send(&read_write(NvmOpcode::READ, lba, 131_072, sgl), &[])
                }
            };
            sent.push((which, cid));
        }
    }
    for (which, cid) in sent {
        let (cqe, _) = queues[which].response(&mut world, cid);
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }
    assert!(world.count("waits_buffer") > 0, "56 commands of 128 KiB do not fit at once");
}

#[test]
fn compare_zeroes_deallocate_and_identify() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let data = pattern(5, 262_144);
    io.data.write(0, &data);
    let mut with_data = |world: &mut World, opcode, len: u32| {
        let sgl = io.expose(0, len);
        let cid = io.send(&read_write(opcode, 0, len, sgl), &[]);
        let (cqe, invalidated) = io.response(world, cid);
        assert_eq!(invalidated, key(&sgl));
        cqe.status()
    };
    assert!(with_data(&mut world, NvmOpcode::WRITE, 262_144).is_success());
    assert!(with_data(&mut world, NvmOpcode::COMPARE, 262_144).is_success());

    let zeroes = read_write(NvmOpcode::WRITE_ZEROES, 300, 4096, SglDescriptor::keyed(0, 0, 0, false));
    io.run(&mut world, &zeroes, &[]);
    let sgl = io.expose(0, 262_144);
    let cid = io.send(&read_write(NvmOpcode::COMPARE, 0, 262_144, sgl), &[]);
    assert!(io.response(&mut world, cid).0.status().is(Status::COMPARE_FAILURE));

    let ranges: Vec<u8> = [DsmRange::new(0, 10), DsmRange::new(50, 20), DsmRange::new(400, 5)]
        .iter()
        .flat_map(|range| zerocopy::IntoBytes::as_bytes(range).to_vec())
        .collect();
    let mut dsm =
        Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0).with_nsid(Nsid(1)).with_dwords([2, 4, 0, 0, 0, 0]);
    dsm.sgl = SglDescriptor::in_capsule(0, 48);
    io.run(&mut world, &dsm, &ranges);
    io.data.write(1 << 20, &ranges);
    dsm.sgl = io.expose(1 << 20, 48);
    io.run(&mut world, &dsm, &[]);
    let block = |lba| world.disk.borrow().block(lba).to_vec();
    assert_eq!((block(9), block(404)), (vec![0; 512], vec![0; 512]));
    assert_eq!(block(10), data[5120..5632]);

    // Hints about blocks that nobody has are seen to be: they were fetched.
    io.data.write(1 << 20, zerocopy::IntoBytes::as_bytes(&DsmRange::new(u64::MAX, 1)));
    dsm.sgl = io.expose(1 << 20, 48);
    let cid = io.send(&dsm.with_dwords([2, 3, 0, 0, 0, 0]), &[]);
    assert!(io.response(&mut world, cid).0.status().is(Status::LBA_OUT_OF_RANGE));

    let mut identify = Sqe::new(AdminOpcode::IDENTIFY.0).with_dwords([1, 0, 0, 0, 0, 0]);
    identify.sgl = admin.expose(0, 4096);
    admin.run(&mut world, &identify, &[]);
    assert_eq!(bytes(&admin.data, 78, 2), cntlid.0.to_le_bytes(), "CNTLID of Identify Controller");
}

#[test]
fn a_host_that_vanishes_leaves_nothing_behind() {
    for wait in 0..40 {
        let mut world = World::new(2, &settings());
        let (mut admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        for at in 0..20u64 {
            let sgl = io.expose(at as usize * 262_144, 262_144);
            let opcode = if at % 2 == 0 { NvmOpcode::READ } else { NvmOpcode::WRITE };
            io.send(&read_write(opcode, at * 512, 262_144, sgl), &[]);
            io.send(&read_write(NvmOpcode::WRITE, 9, 4096, SglDescriptor::in_capsule(0, 4096)), &[1; 4096]);
            if at == 12 {
                break;
            }
        }
        for _ in 0..wait {
            world.tick();
            io.poll(world.now);
        }
        if wait % 2 == 0 {
            io.drop_connection();
            admin.drop_connection();
        } else {
            io.provider.disconnect(io.qp);
            admin.provider.disconnect(admin.qp);
        }
        world.until_clean();
        // And the target serves the next host.
        let (mut again, _) = host::admin(&mut world);
        again.drop_connection();
        world.until_clean();
    }
}

/// Let in at once it would write on, and find its lost writes on top of that.
#[test]
fn a_host_that_comes_back_waits_for_what_it_left_on_the_disk() {
    let mut world = World::with_latency(1, &settings(), 64, Duration::ZERO);
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for at in 0..16u64 {
        io.send(&read_write(NvmOpcode::WRITE, 8 * at, 4096, SglDescriptor::in_capsule(0, 4096)), &[1; 4096]);
    }
    world.until("the writes are on the disk", |world| {
        io.poll(world.now);
        world.workers[0].backend().next_due()
    });
    io.drop_connection();
    admin.drop_connection();
    world.tick();
    assert!(world.workers[0].backend().next_due().is_some(), "the disk was done before the host was back");
    let (_admin, status) = ask_for_controller(&mut world);
    assert!(status.is_success(), "{status}");
    assert_eq!(world.workers[0].backend().next_due(), None);
}

#[test]
fn bad_connection_requests_have_their_reject_status() {
    let mut world = World::new(2, &settings());
    let mut reject = |private_data: PrivateData| match HostQueue::connect(&mut world, private_data) {
        Err(failure) => reject_status(&failure),
        Ok(_) => panic!("it was accepted"),
    };
    assert_eq!(reject(PrivateData::EMPTY), RejectStatus::INVALID_LENGTH);
    assert_eq!(reject(HostQueue::offer(5, 32, 0)), RejectStatus::INVALID_QID);
    assert_eq!(reject(HostQueue::offer(0, 1, 0)), RejectStatus::INVALID_HSQSIZE);
    assert_eq!(world.count("rejected_parameters"), 3);
}

#[test]
fn more_queues_than_there_are_receives_for_are_rejected_and_room_comes_back() {
    let mut world = World::new(1, &settings());
    let mut queues: Vec<HostQueue> =
        (0..4).map(|_| HostQueue::connected(&mut world, HostQueue::offer(0, 32, 0))).collect();
    let refused = HostQueue::connect(&mut world, HostQueue::offer(0, 32, 0)).err().expect("there is no room");
    assert_eq!(reject_status(&refused), RejectStatus::NO_RESOURCES);
    queues.pop().unwrap().drop_connection();
    world.until("the queue is gone", |world| (world.queues() == 3).then_some(()));
    assert!(HostQueue::connect(&mut world, HostQueue::offer(0, 32, 0)).is_ok());
}

#[test]
fn short_capsules_and_silence_end_the_association() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    io.send_bytes(60, &[0; 63]);
    io.until_disconnected(&mut world);
    admin.until_disconnected(&mut world);
    assert_eq!(world.count("violations"), 1);
    world.until_clean();

    let (mut silent, _) = host::admin(&mut world);
    silent.until_silence_ends_it(&mut world);
    assert_eq!(world.count("keep_alive_expired"), 1);
    world.until_clean();
}

#[test]
fn closing_the_admin_queue_closes_the_io_queues_of_other_workers() {
    let mut world = World::new(3, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut queues: Vec<_> = (1..=4).map(|qid| io(&mut world, qid, cntlid)).collect();
    assert!(world.workers.iter().all(|worker| worker.queues() > 0), "queues spread over the workers");
    admin.provider.disconnect(admin.qp);
    for queue in &mut queues {
        queue.until_disconnected(&mut world);
    }
    world.until_clean();
}

#[test]
fn draining_answers_what_is_under_way_and_takes_no_more() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let sgl = io.expose(0, 1 << 20);
    let cid = io.send(&read_write(NvmOpcode::WRITE, 0, 1 << 20, sgl), &[]);
    world.until("it is under way", |world| (world.count("bytes_in") > 131_072).then_some(()));
    world.workers[0].deliver(WorkerMessage::Drain);
    assert!(io.response(&mut world, cid).0.status().is_success());
    io.until_disconnected(&mut world);
    admin.until_disconnected(&mut world);
    world.until_clean();
    assert!(HostQueue::connect(&mut world, HostQueue::offer(0, 32, 0)).is_err());
}

#[test]
fn connects_are_refused_with_a_status_and_the_queue_can_try_again() {
    let mut world = World::new(1, &settings());
    let mut queue = HostQueue::connected(&mut world, HostQueue::offer(0, 32, 0));
    let wrong = connect_data(Cntlid::DYNAMIC, "nqn.2026-11.com.example:other");
    queue.data.write(0, zerocopy::IntoBytes::as_bytes(&wrong));
    let mut sqe = connect_command(0, 32, 10_000);
    sqe.sgl = queue.expose(0, 1024);
    let cid = queue.send(&sqe, &[]);
    let (cqe, _) = queue.response(&mut world, cid);
    assert!(cqe.status().is(Status::CONNECT_INVALID_PARAMETERS), "{}", cqe.status());
    assert_eq!(world.count("connects_refused"), 1);
}

#[test]
fn a_disk_that_fails_in_the_middle_of_a_command_fails_the_command_only() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for (opcode, lba) in [
        (NvmOpcode::READ, BLOCKS - 1000),
        (NvmOpcode::WRITE, BLOCKS - 1000),
        (NvmOpcode::COMPARE, BLOCKS - 1),
        (NvmOpcode::READ, BLOCKS + 5),
    ] {
        let sgl = io.expose(0, 1 << 20);
        let cid = io.send(&read_write(opcode, lba, 1 << 20, sgl), &[]);
        let (cqe, invalidated) = io.response(&mut world, cid);
        assert!(!cqe.status().is_success(), "{opcode:?} at {lba} reached beyond the disk");
        assert_eq!(invalidated, key(&sgl), "the key is dead after a failure, too");
        let sgl = io.expose(0, 4096);
        io.run(&mut world, &read_write(NvmOpcode::READ, 0, 4096, sgl), &[]);
    }
    assert!(world.count("block_errors") >= 4);
    assert_eq!(world.workers[0].buffers_out(), 0);
}

#[test]
fn a_small_backend_depth_takes_everything_in_the_end() {
    let mut world = World::with_backend_depth(1, &settings(), 2);
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let sent: Vec<u16> = (0..24u64)
        .map(|at| {
            let sgl = SglDescriptor::in_capsule(0, 4096);
            io.send(&read_write(NvmOpcode::WRITE, at * 8, 4096, sgl), &[at as u8; 4096])
        })
        .collect();
    for cid in sent {
        assert!(io.response(&mut world, cid).0.status().is_success());
    }
    assert!(world.count("waits_backend") > 0);
}

#[test]
fn a_key_of_the_hosts_that_does_not_reach_costs_the_host_its_queue() {
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
        let mut world = World::new(1, &settings());
        let (mut admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        let exposed = io.expose(0, 4096);
        let Ok(nvme_proto::Sgl::Keyed { address, key, .. }) = exposed.parse() else { panic!("{exposed:?}") };
        let longer = SglDescriptor::keyed(address, 1 << 20, key, true);
        io.send(&read_write(opcode, 0, 1 << 20, longer), &[]);
        io.until_disconnected(&mut world);
        admin.drop_connection();
        world.until_clean();
    }
}
