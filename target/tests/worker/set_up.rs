//! What a worker sets up with its provider: memory, and queue pairs for connections.

use super::host::*;
use super::{read_write, reject_status};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::rdma::RejectStatus;
use nvmf_rdma::fault::FaultOptions;
use nvmf_target::settings::Settings;

/// Commands and data of all hosts of a worker lie in its receive slots and buffers: a key for one peer would reach
/// those of the others.
#[test]
fn receive_slots_and_buffers_have_no_key_for_a_peer() {
    let mut world = World::new(1, &settings());
    let remote_keys = |world: &mut World| world.workers[0].transport().provider.inner().remote_keys();
    assert_eq!(remote_keys(&mut world), 0);
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for opcode in [NvmOpcode::WRITE, NvmOpcode::READ] {
        let sgl = io.expose(0, 262_144);
        let cid = io.send(&read_write(opcode, 0, 262_144, sgl), &[]);
        for _ in 0..20 {
            world.tick();
            assert_eq!(remote_keys(&mut world), 0, "{opcode:?}");
        }
        assert!(io.response(&mut world, cid).0.status().is_success());
    }
}

#[test]
fn connection_whose_receives_are_refused_is_rejected_and_leaves_nothing() {
    let settings = Settings { connections: 8, admin_receives: 5 * 36, ..settings() };
    let mut world = World::new(1, &settings);
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    let refuse = |world: &mut World, refuse_receive| {
        let options = FaultOptions { refuse_receive, ..FaultOptions::default() };
        world.workers[0].transport().provider.set_options(options);
    };
    // The first receive, or one of many: a queue pair takes 36.
    for chance in [1_000_000, 200_000] {
        refuse(&mut world, chance);
        for _ in 0..20 {
            let refused = HostQueue::connect_from(&mut world, 9, HostQueue::offer(0, 32, 0)).err();
            assert_eq!(reject_status(&refused.expect("a refusal")), RejectStatus::NO_RESOURCES);
            let sgl = io.expose(0, 4096);
            io.run(&mut world, &read_write(NvmOpcode::READ, 0, 4096, sgl), &[]);
        }
    }
    assert_eq!((world.queues(), world.count("rejected_resources")), (2, 40));
    refuse(&mut world, 0);
    // Every receive is there for others, and the machine is not taken for one with many connections.
    let queues: Vec<_> =
        (0..4).map(|_| HostQueue::connect_from(&mut world, 9, HostQueue::offer(0, 32, 0)).unwrap()).collect();
    assert_eq!((world.queues(), queues.len()), (6, 4));
}
