//! Leases: who is there, and who is dead.
//!
//! A lease is a lock with a duration that its holder renews. The store's clock lets it go, so gateways need no common
//! clock. A lease that has expired says that its holder did not reach the store, and that may be the store's fault: it
//! may have hung for everybody. So it counts only if the store was quick with this gateway at the same time.

use crate::{BootId, Locker, OpId, Timing};
use core::time::Duration;

/// The own lease.
#[derive(Debug, Default)]
pub(crate) struct OwnLease {
    /// The renewal under way, and since when.
    pub(crate) renewal: Option<(OpId, Duration)>,
    /// When the last renewal that succeeded was sent: the lease holds at least so long from then on.
    renewed: Option<Duration>,
    /// When the last one was sent.
    sent: Option<Duration>,
    /// Since when the store has been quick.
    steady_since: Option<Duration>,
    /// The renewal under way has taken longer than a quick store takes.
    waits: bool,
}

impl OwnLease {
    /// Looks whether the store, or this gateway itself, has been slow.
    pub(crate) fn check(&mut self, now: Duration, timing: &Timing) {
        let late = |since: Duration, after: Duration| now.saturating_sub(since) > after;
        let waits = self.renewal.is_some_and(|(_, sent)| late(sent, timing.quick));
        // No renewal was sent when it was due: this process was stopped, or did not get to run.
        let slept = self.sent.is_some_and(|sent| late(sent, timing.renew + timing.quick));
        self.waits = waits;
        if waits || slept {
            self.steady_since = Some(now + timing.settle);
        }
    }

    pub(crate) fn on_sent(&mut self, now: Duration, op: OpId) {
        self.renewal = Some((op, now));
        self.sent = Some(now);
    }

    /// The renewal under way has ended.
    pub(crate) fn on_reply(&mut self, now: Duration, held: bool, timing: &Timing) {
        self.check(now, timing);
        let Some((_, sent)) = self.renewal.take() else { return };
        self.waits = false;
        if held {
            self.renewed = Some(sent);
            self.steady_since.get_or_insert(now);
        } else {
            self.renewed = None;
            self.steady_since = None;
        }
    }

    /// The renewal under way was refused to this client, which says nothing of the lease.
    pub(crate) fn on_refused(&mut self) {
        (self.renewal, self.waits, self.steady_since) = (None, false, None);
    }

    /// When the next renewal is due.
    pub(crate) fn due(&self, timing: &Timing) -> Option<Duration> {
        match (self.renewal, self.sent) {
            (Some(_), _) => None,
            (None, sent) => Some(sent.map_or(Duration::ZERO, |sent| sent + timing.renew)),
        }
    }

    /// Whether the store does not answer, or answers too late.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// When the last renewal that succeeded was sent.
    pub(crate) fn renewed(&self) -> Option<Duration> {
        self.renewed
    }

    /// Until when this gateway may show its groups, and trust what its clients have of them by themselves. That no
    /// write of it comes late does not depend on this.
    pub(crate) fn holds_until(&self, timing: &Timing) -> Option<Duration> {
        self.renewed.map(|renewed| renewed + timing.self_fence)
    }
}

/// What is known of another gateway's lease.
#[derive(Debug, Default)]
pub(crate) struct PeerLease {
    /// The poll under way, and since when.
    pub(crate) poll: Option<(OpId, Duration)>,
    /// When the next one is due.
    pub(crate) due: Duration,
    /// Who had it when it was looked at last, and when that look was begun.
    held: Option<Locker>,
    looked: Option<Duration>,
    /// When it was first seen expired without a break, and when last.
    expired: Option<(Duration, Duration)>,
    /// Before this nothing counts: the store was slow with this lease.
    settles: Duration,
}

impl PeerLease {
    /// The poll under way has ended; `holder` is `None` if the lease is free. Gives whether who has it has changed.
    pub(crate) fn on_reply(
        &mut self,
        now: Duration,
        holder: Option<Locker>,
        own: &OwnLease,
        timing: &Timing,
    ) -> bool {
        let Some((_, sent)) = self.poll.take() else { return false };
        self.due = sent + timing.poll;
        let quick = now.saturating_sub(sent) <= timing.quick;
        if !quick {
            self.settles = now + timing.settle;
        }
        let steady = own.steady_since.filter(|&since| quick && since.max(self.settles) <= sent);
        self.expired = match steady {
            // What was seen before the store was slow says nothing, even if nobody looked meanwhile.
            Some(since) if holder.is_none() => {
                let first = self.expired.map(|(first, _)| first).filter(|&first| first >= since);
                Some((first.unwrap_or(now), sent))
            }
            _ => None,
        };
        // The look that decides is not made a moment before it can.
        let decides_at = self.expired.map(|(first, _)| first + timing.evidence);
        self.due =
            decides_at.filter(|at| (self.due..self.due + timing.poll).contains(at)).unwrap_or(self.due);
        let boot = |locker: &Option<Locker>| locker.as_ref().map(|locker| locker.cookie.clone());
        let changed = boot(&self.held) != boot(&holder);
        (self.held, self.looked) = (holder, Some(sent));
        changed
    }

    /// Whether a look that was begun since then has had an answer.
    pub(crate) fn was_looked_at(&self, since: Duration) -> bool {
        self.looked.is_some_and(|begun| begun >= since)
    }

    /// Whether nobody had it when it was looked at last.
    pub(crate) fn is_free(&self) -> bool {
        self.held.is_none() && self.expired.is_some()
    }

    pub(crate) fn on_failure(&mut self, now: Duration, timing: &Timing) {
        self.poll = None;
        self.expired = None;
        self.due = now + timing.poll;
    }

    /// Its run, if the lease was held when it was looked at last.
    pub(crate) fn boot(&self) -> Option<&BootId> {
        self.held.as_ref().map(|locker| &locker.cookie)
    }

    /// Since when it counts as dead. Two looks saw its lease expired, far enough apart for a live holder to renew, and
    /// the store was quick with this gateway in between: a store that stalled must not make everybody fence everybody.
    /// A sign of life that was seen at `seen` voids all looks before.
    pub(crate) fn dead_since(&self, seen: Duration, own: &OwnLease, timing: &Timing) -> Option<Duration> {
        let (first, last) = self.expired.filter(|&(_, last)| last >= seen)?;
        let counts = own.steady_since.is_some_and(|since| since <= first);
        (counts && last >= first + timing.evidence).then_some(first + timing.evidence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    const T: Timing = Timing::DEFAULT;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn locker() -> Option<Locker> {
        Some(Locker { cookie: BootId("1".into()), address: Address("10.0.0.1:0/1".into()) })
    }

    /// A second of a gateway: it renews and polls; the store answers after `delay`.
    fn second(own: &mut OwnLease, peer: &mut PeerLease, at: u64, delay: u64, holder: Option<Locker>) {
        own.check(ms(at), &T);
        own.on_sent(ms(at), OpId(1));
        peer.poll = Some((OpId(2), ms(at)));
        own.on_reply(ms(at + delay), true, &T);
        own.check(ms(at + delay), &T);
        peer.on_reply(ms(at + delay), holder, own, &T);
    }

    #[test]
    fn lease_counts_from_the_time_its_renewal_was_sent() {
        let mut own = OwnLease::default();
        own.on_sent(ms(1000), OpId(1));
        own.on_reply(ms(4000), true, &T);
        assert_eq!(
            own.holds_until(&T),
            Some(ms(1000) + T.self_fence),
            "the store may have renewed it at once"
        );
    }

    #[test]
    fn lease_that_stays_expired_for_two_seconds_is_a_dead_gateway() {
        let (mut own, mut peer) = (OwnLease::default(), PeerLease::default());
        second(&mut own, &mut peer, 0, 5, locker());
        for at in [1000, 2000, 3000] {
            second(&mut own, &mut peer, at, 5, None);
            assert_eq!(peer.dead_since(Duration::ZERO, &own, &T), None, "at {at}");
        }
        second(&mut own, &mut peer, 4000, 5, None);
        assert_eq!(peer.dead_since(Duration::ZERO, &own, &T), Some(ms(3005)));
        let affirmed = ms(4001);
        assert_eq!(peer.dead_since(affirmed, &own, &T), None, "its last word came after the last look");
    }

    #[test]
    fn lease_that_stays_expired_is_looked_at_again_when_that_decides() {
        let (mut own, mut peer) = (OwnLease::default(), PeerLease::default());
        second(&mut own, &mut peer, 0, 5, locker());
        let (first, mut at) = (1005, 1000);
        while peer.dead_since(Duration::ZERO, &own, &T).is_none() {
            second(&mut own, &mut peer, at, 5, None);
            at = u64::try_from(peer.due.as_millis()).expect("a time");
        }
        let decided = ms(at) - T.poll;
        assert_eq!(decided, ms(first) + T.evidence, "not at the next look after that");
    }

    #[test]
    fn stall_of_the_store_makes_nobody_dead() {
        let (mut own, mut peer) = (OwnLease::default(), PeerLease::default());
        second(&mut own, &mut peer, 0, 5, locker());
        second(&mut own, &mut peer, 1000, 30_000, None);
        for at in (31_005..39_000).step_by(1000) {
            second(&mut own, &mut peer, at, 5, None);
            assert_eq!(peer.dead_since(Duration::ZERO, &own, &T), None, "at {at}");
        }
    }

    #[test]
    fn gateway_that_slept_does_not_count_what_it_saw_before() {
        let (mut own, mut peer) = (OwnLease::default(), PeerLease::default());
        second(&mut own, &mut peer, 0, 5, locker());
        second(&mut own, &mut peer, 1000, 5, None);
        second(&mut own, &mut peer, 61_000, 5, None);
        assert_eq!(peer.dead_since(Duration::ZERO, &own, &T), None);
    }
}
