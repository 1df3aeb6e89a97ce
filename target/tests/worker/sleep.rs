//! A worker that sleeps is woken by what it waits for, and by nothing else.

use super::host::*;
use super::read_write;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nsid, Sqe};
use nvmf_target::message::WorkerMessage;

/// A world whose workers sleep, and two queues of a host.
fn sleepy() -> (World, [HostQueue; 3]) {
    let mut world = World::new(1, &settings());
    let (admin, cntlid) = admin(&mut world);
    let queues = [admin, io(&mut world, 1, cntlid), io(&mut world, 2, cntlid)];
    world.sleepy = true;
    (world, queues)
}

fn answers(world: &mut World, queues: &mut [HostQueue], count: usize) {
    world.until("all answers", |world| {
        queues.iter_mut().for_each(|queue| queue.poll(world.now));
        let came: usize = queues.iter().map(|queue| queue.responses.len()).sum();
        (came == count).then_some(())
    });
    queues.iter_mut().for_each(|queue| queue.responses.clear());
}

#[test]
fn commands_that_wait_for_each_other_go_on() {
    let (mut world, mut queues) = sleepy();
    let [_, io @ ..] = &mut queues;
    for len in [512, 4096, 16_384, 131_072, 1 << 20] {
        for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
            for at in 0..28 {
                for queue in &mut *io {
                    let sgl = queue.expose((at % 7) << 20, len);
                    queue.send(&read_write(opcode, 0, len, sgl), &[]);
                }
            }
            answers(&mut world, io, 56);
        }
    }
}

#[test]
fn target_that_drains_closes_its_queues() {
    let (mut world, mut queues) = sleepy();
    let [_, io @ ..] = &mut queues;
    for queue in &mut *io {
        let sgl = queue.expose(0, 4096);
        queue.send(&read_write(NvmOpcode::READ, 0, 4096, sgl), &[]);
    }
    (0..2).for_each(|_| world.tick());
    world.tell(WorkerMessage::Drain);
    for queue in &mut queues {
        queue.until_disconnected(&mut world);
    }
    world.until_clean();
}

/// What a queue had under way when its connection ended is not waited for in the name of the next that has its place.
#[test]
fn queue_in_the_place_of_another_is_woken_for() {
    let mut world = World::new(1, &settings());
    let (mut admin_queue, cntlid) = admin(&mut world);
    for _ in 0..3 {
        world.sleepy = false;
        let mut io = io(&mut world, 1, cntlid);
        world.sleepy = true;
        let commands = |world: &mut World, io: &mut HostQueue| {
            for at in 0..7 {
                let sgl = io.expose(at << 20, 1 << 20);
                let opcode = if at % 2 == 0 { NvmOpcode::READ } else { NvmOpcode::WRITE };
                io.send(&read_write(opcode, 0, 1 << 20, sgl), &[]);
            }
            io.poll(world.now);
        };
        commands(&mut world, &mut io);
        answers(&mut world, core::slice::from_mut(&mut io), 7);
        commands(&mut world, &mut io);
        (0..3).for_each(|_| world.tick());
        let queues = world.queues();
        io.drop_connection();
        world.until("the queue is gone", |world| (world.queues() < queues).then_some(()));
        admin_queue.poll(world.now);
    }
}

/// Else a worker that spins for the next command would take it for that, and spin in vain for ever.
#[test]
fn response_that_left_is_no_work() {
    let mut world = World::new(1, &settings());
    let (_admin, cntlid) = admin(&mut world);
    let mut io = io(&mut world, 1, cntlid);
    for _ in 0..4 {
        let mut idle = 0;
        world.until("a worker that rests", |world| {
            io.poll(world.now);
            idle = if world.worked { 0 } else { idle + 1 };
            (idle == 100).then_some(())
        });
        // Answered at once.
        io.send(&Sqe::new(0x84).with_nsid(Nsid(1)), &[]);
        io.poll(world.now);
        let mut worked = 0;
        for _ in 0..1000 {
            world.tick();
            worked += u32::from(world.worked);
            io.poll(world.now);
        }
        assert_eq!(core::mem::take(&mut io.responses).len(), 1);
        assert_eq!(worked, 1, "one turn takes the command and answers it");
    }
}
