//! Every time of a gateway group.

use core::time::Duration;

/// Times of a gateway group. That no write comes late is safe whatever they are: the store fences. What a client
/// answers by itself ([`Action::Trust`](crate::Action::Trust)) is right only while `self_fence` on its clock is shorter
/// than `lease` on the store's: clocks may run apart by a fifth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between two renewals of the own lease.
    pub renew: Duration,
    /// After so long without a renewal the store lets a lease go.
    pub lease: Duration,
    /// After so long without a renewal a gateway shows its groups inaccessible by itself.
    pub self_fence: Duration,
    /// Between two looks at another gateway's lease, and at the map.
    pub poll: Duration,
    /// An expired lease counts once it was seen expired twice, so far apart.
    pub evidence: Duration,
    /// An operation that took longer says nothing of others: the store itself is slow.
    pub quick: Duration,
    /// After the store was slow, expired leases count for nothing for so long: their holders need time to come back.
    pub settle: Duration,
    /// The gateway that is named takes a group at once, each next one so much later.
    pub rank: Duration,
    /// Between two looks at the configuration and the records of gateways, if no notification hints at a change.
    pub look: Duration,
    /// A planned move may drain for so long; then the next owner fences.
    pub drain: Duration,
    /// A gateway that leaves waits so long for the one that is to get a group, and is not ready; then that one takes it as it
    /// takes those of the dead.
    pub leave: Duration,
    /// A host waits for its reservation to be stored for so long.
    pub keep: Duration,
    /// A step of a takeover may wait for the store so long; then the attempt ends.
    pub step: Duration,
    /// A gateway that could not take a group is given none for so long, while others are there.
    pub unable: Duration,
    /// How long an address stays fenced. Whoever sleeps longer, and wakes with writes of then, is not stopped by it any more, so
    /// it is longer than a machine is likely to be suspended, and than the store's own default of an hour.
    pub blocklist: Duration,
    /// What a client that counts no more still has at the store after so long ends with its process. Shorter than any fence:
    /// where its client cannot reach the store, that carries it out when the fence has ended.
    pub overdue: Duration,
    /// Between two moves for balance.
    pub rebalance: Duration,
    /// No group is moved for balance so long after a takeover or a change of who is there.
    pub quiet: Duration,
    /// Before a step that failed is tried again; doubled each time, up to [`Timing::retry_max`].
    pub retry: Duration,
    /// The longest such pause.
    pub retry_max: Duration,
    /// The longest such pause of a takeover that has fenced nobody yet: hosts wait for it.
    pub retry_unfenced: Duration,
}

impl Timing {
    /// The times that a group has if nothing else is asked for.
    pub const DEFAULT: Self = Self {
        renew: Duration::from_secs(1),
        lease: Duration::from_secs(5),
        self_fence: Duration::from_secs(4),
        poll: Duration::from_millis(500),
        evidence: Duration::from_secs(2),
        quick: Duration::from_secs(1),
        settle: Duration::from_secs(8),
        rank: Duration::from_secs(2),
        look: Duration::from_secs(5),
        drain: Duration::from_secs(5),
        leave: Duration::from_secs(6),
        keep: Duration::from_secs(10),
        step: Duration::from_secs(15),
        unable: Duration::from_secs(60),
        blocklist: Duration::from_secs(24 * 3600),
        overdue: Duration::from_secs(20 * 60),
        rebalance: Duration::from_secs(10),
        quiet: Duration::from_secs(60),
        retry: Duration::from_secs(1),
        retry_max: Duration::from_secs(60),
        retry_unfenced: Duration::from_secs(8),
    };

    /// The pause after something has failed once, and so many times more.
    pub(crate) fn pause(&self, more: u32) -> Duration {
        self.retry.saturating_mul(1 << more.min(16)).min(self.retry_max)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = {
    let t = Timing::DEFAULT;
    assert!(t.self_fence.as_millis() < t.lease.as_millis(), "a gateway stops before others take its groups");
    assert!(t.renew.as_millis() * 2 < t.self_fence.as_millis(), "one late renewal does no harm");
    assert!(t.evidence.as_millis() > t.renew.as_millis(), "a live holder renews between the two looks");
    assert!(
        t.overdue.as_secs() * 2 < 3600,
        "no fence ends before, librbd's own neither, which lasts an hour"
    );
    assert!(t.settle.as_millis() > t.lease.as_millis(), "who comes back after a stall renews in time");
};
