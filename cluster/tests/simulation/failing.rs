//! A store that writes nothing, and one that refuses a gateway while it stops.

use super::plan::{Fault, MS, SECOND, Time};
use super::scenarios::{AT, groups_of, longest_pause, status, world};
use nvmf_cluster::GatewayName;

const LONG: Time = 1000 * SECOND;

#[test]
fn gateway_that_stops_while_the_store_writes_nothing_gives_its_groups_away_once_it_does() {
    for fault in [Fault::Full, Fault::Unclear] {
        let leave = (AT + SECOND, LONG, Fault::Leave { node: 0 });
        let mut world = world(&[(AT, 10 * SECOND, fault), leave], AT - MS);
        assert!(!groups_of(&world, "gw0").is_empty());
        world.run_until(AT + 9 * SECOND).expect("a run");
        assert!(
            fault == Fault::Unclear || world.nodes[0].running.is_some(),
            "nobody would know that it is gone"
        );
        world.run_until(AT + 20 * SECOND).expect("a run");
        let shown: Vec<_> = (1..=6).map(|group| world.shown(group)).collect();
        assert!(shown.iter().all(|names| names.len() == 1 && names[0] != "gw0"), "{fault:?}: {shown:?}");
        assert!(world.nodes[0].running.is_none(), "{fault:?}: it stops");
    }
}

#[test]
fn gateway_whose_control_client_is_blocklisted_while_it_stops_gives_its_groups_away() {
    let mut owned = 0;
    for delay in 0..20 {
        let fenced = (AT + 5 * MS * delay, SECOND, Fault::FenceControl { node: 0 });
        let mut world = world(&[(AT, LONG, Fault::Leave { node: 0 }), fenced], AT - MS);
        let groups = groups_of(&world, "gw0");
        owned += groups.len();
        let longest = longest_pause(&mut world, &groups, 20 * SECOND);
        assert!(longest < 2 * SECOND, "fenced after {} ms: {} ms", 5 * delay, longest / MS);
        let other = &status(&world, 1).others[&GatewayName::new("gw0").expect("a name")];
        assert!(other.stopped, "fenced after {} ms: {other:?}", 5 * delay);
    }
    assert!(owned > 0);
}
