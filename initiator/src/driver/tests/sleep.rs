//! A driver that sleeps is woken by what it waits for.

use super::rig::{Rig, read};
use super::target::Invalidate;

#[test]
fn operations_end_without_a_turn_that_nothing_asked_for() {
    for invalidate in [Invalidate::Own, Invalidate::None] {
        let mut rig = Rig::ready();
        rig.target.invalidate = invalidate;
        for round in 0..20 {
            for at in 0..16 {
                let tag = round * 16 + at;
                // Writes of a few blocks go with their capsule.
                let op = if at % 2 == 0 { read(at, 1 + at) } else { rig.write(at, 1 + at, 0xaa) };
                rig.submit(tag, op);
            }
            rig.run_asleep();
            let ended = (round * 16..(round + 1) * 16).filter(|&tag| rig.result(tag) == Some(Ok(())));
            assert_eq!(ended.count(), 16, "of round {round}");
        }
    }
}
