//! Who waits for whom: one host's work does not keep another's from being done.

use super::host::*;
use super::read_write;
use super::strange::Dice;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, Sqe};
use nvmf_target::exec::queue::slots;
use nvmf_target::limits::{BATCH_CONTENDED, CAPSULES_IN_A_ROW};
use nvmf_target::settings::Settings;
use std::time::Duration;

#[test]
fn a_host_that_takes_all_it_can_get_does_not_starve_another() {
    let mut world = World::new(1, &settings());
    let (mut greedy_admin, cntlid) = admin(&mut world);
    let mut greedy = io(&mut world, 1, cntlid);
    let (_admin, cntlid) = admin(&mut world);
    let mut short = io(&mut world, 1, cntlid);
    for at in 0..30usize {
        let sgl = greedy.expose((at % 8) << 20, 1 << 20);
        greedy.send(&read_write(NvmOpcode::READ, 0, 1 << 20, sgl), &[]);
    }
    world.until("all buffers are in use", |world| (world.count("waits_buffer") > 20).then_some(()));
    for len in [4096, 131_072, 262_144] {
        let sgl = short.expose(0, len);
        short.run(&mut world, &read_write(NvmOpcode::READ, 0, len, sgl), &[]);
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
        let mut world = World::with_latency(1, &settings(), 64, Duration::ZERO);
        let (_flooding, cntlid) = admin(&mut world);
        let mut heavies: Vec<_> = (1..=4).map(|qid| io(&mut world, qid, cntlid)).collect();
        let (_admin, cntlid) = admin(&mut world);
        let mut short = io(&mut world, 1, cntlid);
        // Answered by the engine itself: nothing but the order in which commands are taken up decides who is first.
        let unknown = Sqe::new(0x84).with_nsid(Nsid(1));
        let mut sent = 0;
        for queue in &mut heavies {
            let many = 25 + dice.below(6) as usize;
            for _ in 0..many {
                queue.send(&unknown, &[]);
            }
            sent += many;
        }
        (0..dice.below(3)).for_each(|_| world.tick());
        let before = world.count("responses");
        let cid = short.send(&unknown, &[]);
        short.response(&mut world, cid);
        let ahead = world.count("responses") - before - 1;
        let most = 2 * CAPSULES_IN_A_ROW as u64;
        assert!(ahead <= most, "{ahead} answers of the heavy host went with or before it (seed {seed})");
        world.until("the heavy host is answered, too", |world| {
            heavies.iter_mut().for_each(|queue| queue.poll(world.now));
            (heavies.iter().map(|queue| queue.responses.len()).sum::<usize>() == sent).then_some(())
        });
    }
}

#[test]
fn many_that_bring_little_do_not_starve_one_that_brings_much() {
    const MUCH: usize = 128;
    // The most that a queue may bring to be let go first.
    const LITTLE: usize = CAPSULES_IN_A_ROW;
    const SHORT: usize = 12;
    // In a round of the line each queue has one go. A turn takes up so many of what all of them bring, at the least.
    const ROUNDS: usize = MUCH / CAPSULES_IN_A_ROW;
    const TURNS: usize = ROUNDS * (CAPSULES_IN_A_ROW + SHORT * LITTLE) / BATCH_CONTENDED;
    // A queue holds one command less than it has entries.
    let entries = MUCH as u16 + 1;
    let io_receives = usize::from(slots(entries)) + SHORT * usize::from(slots(32));
    let settings = Settings { connections: 32, queue_entries: entries, io_receives, ..settings() };
    let mut world = World::with_latency(1, &settings, 64, Duration::ZERO);
    let (_admin, cntlid) = admin(&mut world);
    let mut big = io_of(&mut world, 1, 1, cntlid, entries);
    let hosts: Vec<_> = (0..SHORT / 4).map(|_| admin(&mut world)).collect();
    let mut short: Vec<_> = hosts
        .iter()
        .flat_map(|&(_, cntlid)| (1..=4).map(move |qid| (qid, cntlid)))
        .map(|(qid, cntlid)| io(&mut world, qid, cntlid))
        .collect();
    let unknown = Sqe::new(0x84).with_nsid(Nsid(1));
    short.iter_mut().for_each(|queue| (0..LITTLE).for_each(|_| _ = queue.send(&unknown, &[])));
    (0..MUCH).for_each(|_| _ = big.send(&unknown, &[]));
    let mut answered = [0; SHORT];
    let mut turns = 0;
    while big.responses.len() < MUCH {
        let so_far = big.responses.len();
        assert!(turns < TURNS, "{so_far} answers in {turns} turns, and of the others {answered:?}");
        turns += 1;
        world.tick();
        big.poll(world.now);
        for (queue, answered) in short.iter_mut().zip(&mut answered) {
            queue.poll(world.now);
            // Whoever is answered is back at once.
            while queue.responses.pop_front().is_some() {
                *answered += 1;
                queue.send(&unknown, &[]);
            }
        }
    }
    // In every round each had its go in line, as the big one had, and was let go first once at the most.
    let fair = ROUNDS * LITTLE..=2 * (ROUNDS + 1) * LITTLE;
    assert!(
        answered.iter().all(|answers| fair.contains(answers)),
        "{fair:?} answers each are fair: {answered:?}"
    );
}
