//! Commands as no host sends them.

use super::host::*;
use nvme_proto::{Nsid, SglDescriptor, Sqe};

/// A generator good enough for tests; the seed is the number of the round.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn strange_command(dice: &mut Dice, queue: &mut HostQueue) -> (Sqe, usize) {
    let opcodes = [0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f, 0x84];
    let mut sqe = Sqe::new(opcodes[dice.below(12) as usize]);
    if dice.below(10) == 0 {
        sqe.flags = dice.below(256) as u8;
    }
    sqe = sqe.with_nsid(Nsid(dice.below(3) as u32));
    if sqe.opcode == 0x7f {
        sqe.nsid = [0x00, 0x01, 0x04, 0x05, 0x08][dice.below(5) as usize].into();
    }
    sqe = sqe.with_dwords(std::array::from_fn(|_| match dice.below(3) {
        0 => 0,
        1 => dice.below(2049) as u32,
        _ => dice.below(1 << 31) as u32,
    }));
    if dice.below(4) == 0 {
        return fitting_command(dice, sqe);
    }
    let len = [0, 16, 512, 1024, 4096, 65536, 1 << 20, 0x00ff_ffff][dice.below(8) as usize];
    let offset = dice.below(4200);
    sqe.sgl = match dice.below(40) {
        0..10 => SglDescriptor::in_capsule(offset, len),
        10..15 => SglDescriptor::in_capsule(0, len),
        15..18 => SglDescriptor::in_capsule_list(offset, len),
        18 => SglDescriptor::keyed(offset, len, dice.below(1 << 31) as u32, true),
        _ => queue.expose(0, len.min(DATA as u32).max(1)),
    };
    (sqe, dice.below(4097) as usize)
}

/// The same command with a range of the disk, in-capsule data of exactly that length, and often force unit access.
fn fitting_command(dice: &mut Dice, sqe: Sqe) -> (Sqe, usize) {
    let blocks = 1 + dice.below(7) as u32;
    let fua = (dice.below(2) as u32) << 30;
    let mut sqe = sqe.with_nsid(Nsid(1)).with_dwords([dice.below(64) as u32, 0, fua | (blocks - 1), 0, 0, 0]);
    let offset = [0, 0, 16, 512][dice.below(4) as usize];
    let len = blocks * BLOCK;
    sqe.sgl = SglDescriptor::in_capsule(offset, len);
    (sqe, (offset as usize + len as usize).min(4096))
}

#[test]
fn whatever_a_host_sends_the_target_lives_and_nothing_leaks() {
    let mut world = World::new(2, &settings());
    for round in 0..60 {
        let mut dice = Dice(round);
        let (mut admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        for _ in 0..100 {
            let on_admin = dice.below(3) == 0;
            let queue = if on_admin { &mut admin } else { &mut io };
            let (sqe, len) = strange_command(&mut dice, queue);
            queue.send(&sqe, &[0x5a; 4096][..if on_admin { 0 } else { len }]);
            for _ in 0..dice.below(4) {
                world.tick();
                admin.poll(world.now);
                io.poll(world.now);
            }
        }
        io.drop_connection();
        admin.drop_connection();
        world.until_clean();
    }
    assert!(world.count("commands") > 1000);
}
