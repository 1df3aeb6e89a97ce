//! Which gateway takes a group, and which group is moved for balance.

use crate::{GatewayName, GroupId};
use alloc::collections::BTreeMap;

/// A move for balance is worth its pause only if the loads differ by so much.
const DIFFERENCE_MIN: usize = 2;

/// How much this gateway is wanted for this group: rendezvous hashing, so that the groups of a dead gateway spread over
/// all others, and every gateway names the same one without asking.
pub(crate) fn weight(gateway: &GatewayName, group: GroupId) -> u64 {
    // FNV-1a, then the finalizer of SplitMix64, which makes all bits depend on all.
    let bytes = gateway.as_str().bytes().chain([0]).chain(group.0.to_le_bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// How many come before `me`: `first` if it is there, then by rendezvous hashing.
pub(crate) fn rank<'a>(
    me: &GatewayName,
    others: impl Iterator<Item = &'a GatewayName>,
    group: GroupId,
    first: Option<&GatewayName>,
) -> u32 {
    let order = |name: &GatewayName| (first == Some(name), weight(name, group));
    let mine = order(me);
    others.map(|name| u32::from(order(name) > mine)).sum()
}

/// Who gets a group of a gateway that leaves: the one with the fewest.
pub(crate) fn least_loaded(loads: &BTreeMap<GatewayName, usize>, group: GroupId) -> Option<&GatewayName> {
    let order = |(name, load): &(&GatewayName, &usize)| (**load, u64::MAX - weight(name, group));
    loads.iter().min_by_key(order).map(|(name, _)| name)
}

/// A group of `mine` to move, and where to, if this gateway is the one with the most groups; `may` says who may be asked to
/// take it, `follow` whether the hosts of one gateway have another.
pub(crate) fn for_balance(
    me: &GatewayName,
    loads: &BTreeMap<GatewayName, usize>,
    mine: impl Iterator<Item = GroupId>,
    may: impl Fn(GroupId, &GatewayName) -> bool,
    follow: impl Fn(&GatewayName, &GatewayName) -> bool,
) -> Option<(GroupId, GatewayName)> {
    let (to, least) = loads.iter().filter(|(to, _)| follow(me, to)).min_by_key(|(_, load)| **load)?;
    // Of several with the most, the first by name. So one gateway moves one group at a time.
    let from = loads.iter().filter(|(from, _)| follow(from, to));
    let most = from.max_by(|a, b| a.1.cmp(b.1).then_with(|| b.0.cmp(a.0)))?;
    if most.0 != me || *most.1 < least + DIFFERENCE_MIN {
        return None;
    }
    let mine = mine.filter(|&group| may(group, to));
    mine.max_by_key(|&group| weight(to, group)).map(|group| (group, to.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> alloc::vec::Vec<GatewayName> {
        (0..count).map(|n| GatewayName::new(&alloc::format!("gw{n}")).expect("a name")).collect()
    }

    #[test]
    fn dead_gateways_groups_spread_over_all_others() {
        let names = names(4);
        let mut taken = BTreeMap::<_, usize>::new();
        for group in (1..=240).map(GroupId) {
            let ranks = names.iter().map(|me| rank(me, names.iter(), group, None));
            let taker = ranks.enumerate().find(|&(_, rank)| rank == 0).expect("one is named").0;
            *taken.entry(taker).or_default() += 1;
        }
        assert!(taken.len() == 4 && taken.values().all(|&count| (40..=80).contains(&count)), "{taken:?}");
    }

    #[test]
    fn balance_is_restored_by_the_fullest_gateway_only() {
        let names = names(3);
        let loads = |counts: [usize; 3]| names.iter().cloned().zip(counts).collect::<BTreeMap<_, _>>();
        let groups = || (1..=4).map(GroupId);
        let moved =
            for_balance(&names[0], &loads([4, 4, 2]), groups(), |_, _| true, |_, _| true).expect("a move");
        assert_eq!(moved.1, names[2]);
        assert_eq!(
            for_balance(&names[1], &loads([4, 4, 2]), groups(), |_, _| true, |_, _| true),
            None,
            "another one moves"
        );
        assert_eq!(
            for_balance(&names[0], &loads([3, 2, 2]), groups(), |_, _| true, |_, _| true),
            None,
            "the difference is too small"
        );
    }
}
