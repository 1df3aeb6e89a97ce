//! Who waits for whom: one host's work does not keep another's from being done.

use super::host::*;
use super::read_write;
use super::strange::Dice;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, Sqe};
use nvmf_target::limits::CAPSULES_IN_A_ROW;
use std::time::Duration;

#[test]
fn a_host_that_takes_all_it_can_get_does_not_starve_another() {
    let mut world = World::new(1, &settings());
    let (mut greedy_admin, cntlid) = admin(&mut world);
    let mut greedy = io(&mut world, 1, cntlid);
    let (_admin, cntlid) = admin(&mut world);
    let mut modest = io(&mut world, 1, cntlid);
    for at in 0..30usize {
        let sgl = greedy.expose((at % 8) << 20, 1 << 20);
        greedy.send(&read_write(NvmOpcode::READ, 0, 1 << 20, sgl), &[]);
    }
    world.until("all buffers are in use", |world| (world.count("waits_buffer") > 20).then_some(()));
    for len in [4096, 131_072, 262_144] {
        let sgl = modest.expose(0, len);
        modest.run(&mut world, &read_write(NvmOpcode::READ, 0, len, sgl), &[]);
    }
    // Admin commands have buffers of their own, and Keep Alive needs none.
    greedy_admin.run(&mut world, &Sqe::new(AdminOpcode::KEEP_ALIVE.0), &[]);
    let mut identify = Sqe::new(AdminOpcode::IDENTIFY.0).with_dwords([1, 0, 0, 0, 0, 0]);
    identify.sgl = greedy_admin.expose(0, 4096);
    greedy_admin.run(&mut world, &identify, &[]);
    greedy.poll(world.now);
    assert!(greedy.responses.len() < 20, "{} of the greedy host's 30 went first", greedy.responses.len());
}

#[test]
fn a_single_command_does_not_wait_for_a_flood_that_came_before_it() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let mut world = World::with_road(1, &settings(), 64, Duration::ZERO);
        let (_flooding, cntlid) = admin(&mut world);
        let mut floods: Vec<_> = (1..=4).map(|qid| io(&mut world, qid, cntlid)).collect();
        let (_admin, cntlid) = admin(&mut world);
        let mut modest = io(&mut world, 1, cntlid);
        // Answered by the engine itself: nothing but the order in which commands are taken up decides who is first.
        let unknown = Sqe::new(0x84).with_nsid(Nsid(1));
        let mut sent = 0;
        for queue in &mut floods {
            let many = 25 + dice.below(6) as usize;
            for _ in 0..many {
                queue.send(&unknown, &[]);
            }
            sent += many;
        }
        (0..dice.below(3)).for_each(|_| world.tick());
        let before = world.count("responses");
        let cid = modest.send(&unknown, &[]);
        modest.response(&mut world, cid);
        let ahead = world.count("responses") - before - 1;
        let most = 2 * CAPSULES_IN_A_ROW as u64;
        assert!(ahead <= most, "{ahead} answers of the flood went with or before it (seed {seed})");
        world.until("the flood is answered, too", |world| {
            floods.iter_mut().for_each(|queue| queue.poll(world.now));
            (floods.iter().map(|queue| queue.responses.len()).sum::<usize>() == sent).then_some(())
        });
    }
}
