//! A worker that sleeps is woken by what it waits for, and by nothing else.

use super::host::*;
use super::read_write;
use nvme_proto::opcode::NvmOpcode;
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
