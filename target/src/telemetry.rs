//! What a worker counts, and how often it may log.

use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// A number that one worker writes and anyone reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker may: it is a load and a store, not an atomic addition.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($(#[doc = $help:literal] $name:ident,)*) => {
        /// What one worker counts since its start.
        #[derive(Debug, Default)]
        #[repr(align(128))] // two cache lines: no worker's counting slows another's
        pub struct Counters { $(#[doc = $help] pub $name: Counter,)* }

        impl Counters {
            /// Name and value of each, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }

            /// Name and meaning of each, in the same order.
            pub const MEANINGS: &[(&'static str, &'static str)] = &[$((stringify!($name), $help),)*];
        }
    };
}

counters! {
    /// Connections accepted.
    accepted,
    /// Connections that ended.
    closed,
    /// Connection requests rejected because no queue, receive or completion was left.
    rejected_resources,
    /// Connection requests rejected because of what they said.
    rejected_parameters,
    /// Connections refused because the listener's `allow` has not their address.
    rejected_address,
    /// Connections accepted whose TLS handshake succeeded.
    tls_accepted,
    /// Connections refused because of TLS: they had none and needed it, had no right key, or broke its protocol.
    tls_refused,
    /// Times that the system had no descriptor for one more connection.
    accepts_failed,
    /// Connections that had not asked for anything yet (ICReq) and were closed to make room for others.
    half_open_closed,
    /// Connections without a Connect that were closed to make room for others.
    unconnected_closed,
    /// Discovery controllers that were closed to make room for others.
    discovery_closed,
    /// Associations found silent or closing when their host connected again, and ended.
    lost_closed,
    /// Connect commands refused.
    connects_refused,
    /// Queues whose host failed to authenticate.
    authentications_failed,
    /// Host NQNs seen with a second Host Identifier.
    duplicate_host_ids,
    /// Capsules received.
    commands,
    /// Responses sent.
    responses,
    /// Bytes pulled from hosts, in capsules included.
    bytes_in,
    /// Bytes pushed to hosts.
    bytes_out,
    /// Times that a command waited for a buffer.
    waits_buffer,
    /// Times that a chunk waited for an RDMA READ credit.
    waits_read,
    /// Times that a chunk waited for a place in the send queue.
    waits_send,
    /// Times that a capsule waited for a request slot.
    waits_request,
    /// Commands that waited because of a limit of their host or namespace.
    waits_limit,
    /// Times that the storage backend's queue was full.
    waits_backend,
    /// Operations that the storage backend failed.
    block_errors,
    /// Work requests that failed on a connection that was not closing.
    transport_errors,
    /// Queues closed because their host took nothing of what was posted for too long.
    transfer_timeouts,
    /// Peers that broke the protocol.
    violations,
    /// Associations whose keep alive timer expired.
    keep_alive_expired,
    /// Log lines that were not written, to keep peers from filling the disk.
    log_lines_dropped,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.iter().all(|(_, value)| value == 0) {
            return f.write_str("nothing counted yet");
        }
        for (at, (name, value)) in self.iter().filter(|&(_, value)| value != 0).enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// What a line of the log that a peer can cause says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// It came, or went.
    Usual,
    /// It did something wrong, or was refused.
    Fault,
}

/// Lines of the log that peers can cause: whatever one of them does, the others' are written.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// Of the addresses that caused some lately.
    peers: Vec<(IpAddr, Buckets)>,
    /// Of all for whom there is no room.
    others: Buckets,
}

/// One for each [`Line`].
type Buckets = [Bucket; 2];

/// Lines that may be written now, and more as time goes by.
#[derive(Debug, Default)]
struct Bucket {
    /// Of as many as fit.
    taken: u32,
    refilled: Duration,
    /// Not written since the last one that was.
    dropped: u64,
}

impl Line {
    /// Lines at once: a host with a hundred queues loses and connects them all.
    const fn burst(self) -> u32 {
        match self {
            Self::Usual => 600,
            Self::Fault => 20,
        }
    }

    /// One more line each.
    const fn refill(self) -> Duration {
        Duration::from_secs(match self {
            Self::Usual => 1,
            Self::Fault => 30,
        })
    }
}

impl LogLimit {
    /// Addresses with buckets of their own.
    const PEERS: usize = 64;

    /// Nobody has caused a line yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a line about this peer may be written now; if not, it is counted. The next one that may be says how many
    /// were not.
    pub fn allow(&mut self, now: Duration, peer: IpAddr, line: Line, counters: &Counters) -> bool {
        // As hosts are written.
        let peer = peer.to_canonical();
        let bucket = &mut self.buckets(now, peer)[line as usize];
        bucket.refill(now, line);
        if bucket.taken == line.burst() {
            bucket.dropped += 1;
            counters.log_lines_dropped.add(1);
            return false;
        }
        bucket.taken += 1;
        let dropped = core::mem::take(&mut bucket.dropped);
        if dropped > 0 {
            tracing::warn!(%peer, "{dropped} lines about this peer were left out: it causes too many");
        }
        true
    }

    fn buckets(&mut self, now: Duration, peer: IpAddr) -> &mut Buckets {
        if let Some(at) = self.peers.iter().position(|(known, _)| *known == peer) {
            return &mut self.peers[at].1;
        }
        if self.peers.len() == Self::PEERS {
            // Who has caused nothing for long makes room.
            self.peers.retain_mut(|(_, buckets)| {
                [Line::Usual, Line::Fault].into_iter().any(|line| {
                    let bucket = &mut buckets[line as usize];
                    bucket.refill(now, line);
                    bucket.taken > 0
                })
            });
        }
        if self.peers.len() == Self::PEERS {
            return &mut self.others;
        }
        self.peers.push((peer, Buckets::default()));
        &mut self.peers.last_mut().expect("it was pushed").1
    }
}

impl Bucket {
    fn refill(&mut self, now: Duration, line: Line) {
        let refills = now.saturating_sub(self.refilled).as_millis() / line.refill().as_millis();
        if refills > 0 {
            self.taken = self.taken.saturating_sub(u32::try_from(refills).unwrap_or(u32::MAX));
            self.refilled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    #[test]
    fn a_flood_of_lines_is_cut_off_and_counted_and_silences_nothing_else() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        let written = (0..1000).filter(|_| limit.allow(now, peer(1), Line::Fault, &counters)).count();
        assert_eq!((written, counters.log_lines_dropped.get()), (20, 980));
        assert!(limit.allow(now, peer(2), Line::Fault, &counters));
        assert!(limit.allow(now, peer(1), Line::Usual, &counters));
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert!(!limit.allow(now, mapped, Line::Fault, &counters), "the same peer");
        let later = now + Line::Fault.refill();
        assert!(limit.allow(later, peer(1), Line::Fault, &counters));
        assert!(!limit.allow(later, peer(1), Line::Fault, &counters));
    }

    #[test]
    fn peers_of_many_addresses_share_a_bucket_until_others_have_been_quiet() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        let mut ten =
            |number| (0..10).filter(|_| limit.allow(now, peer(number), Line::Fault, &counters)).count();
        assert_eq!((0..=255).map(&mut ten).sum::<usize>(), LogLimit::PEERS * 10 + 20);
        assert_eq!(ten(200), 0);
        let later = now + Line::Fault.refill() * Line::Fault.burst();
        assert!(limit.allow(later, peer(200), Line::Fault, &counters));
        assert_eq!(limit.peers.len(), 1);
    }

    #[test]
    fn only_what_happened_is_printed() {
        let counters = Counters::default();
        counters.commands.add(2);
        counters.accepted.add(1);
        assert_eq!(counters.to_string(), "accepted=1 commands=2");
    }
}
