//! What a worker counts, and how often it may log.

use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use nvmf_stream::machine_of;

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

/// Lines of the log that peers can cause: what one machine causes hides little of the others'.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// Of the machines that caused some lately.
    peers: Vec<(IpAddr, [Bucket; 2])>,
    /// Of all together.
    all: Bucket,
}

/// Lines that may be written now, and more as time goes by.
#[derive(Debug, Default)]
struct Bucket {
    /// Of as many as fit.
    taken: u32,
    refilled: Duration,
    /// Not written since the last one that was.
    dropped: u64,
}

/// How many lines fit at once, and after how long there is place for one more.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    refill: Duration,
}

/// Of all peers together: as many as a log takes.
const ALL: Rate = Rate { burst: 4000, refill: Duration::from_millis(50) };

impl Line {
    /// A host with a hundred queues loses and connects them all at once.
    const fn rate(self) -> Rate {
        match self {
            Self::Usual => Rate { burst: 600, refill: Duration::from_secs(1) },
            Self::Fault => Rate { burst: 200, refill: Duration::from_secs(10) },
        }
    }
}

impl LogLimit {
    /// Machines with buckets of their own.
    const PEERS: usize = 256;

    /// Nobody has caused a line yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a line about this peer may be written now; if not, it is counted. The next one that may be says how many
    /// were not.
    pub fn allow(&mut self, now: Duration, peer: IpAddr, line: Line, counters: &Counters) -> bool {
        self.all.refill(now, ALL);
        let has_room = self.all.taken < ALL.burst;
        // As hosts are written.
        let bucket = &mut self.buckets(now, machine_of(peer.to_canonical()))[line as usize];
        bucket.refill(now, line.rate());
        if !has_room || bucket.taken == line.rate().burst {
            bucket.dropped += 1;
            counters.log_lines_dropped.add(1);
            return false;
        }
        bucket.taken += 1;
        let dropped = core::mem::take(&mut bucket.dropped);
        self.all.taken += 1;
        if dropped > 0 {
            tracing::warn!(%peer, "{dropped} lines about this peer were left out: there are too many");
        }
        true
    }

    fn buckets(&mut self, now: Duration, machine: IpAddr) -> &mut [Bucket; 2] {
        if let Some(at) = self.peers.iter().position(|(known, _)| *known == machine) {
            return &mut self.peers[at].1;
        }
        if self.peers.len() == Self::PEERS {
            // Who has caused the fewest lately makes room: not those for whose sake there are buckets.
            let taken = |(_, [usual, fault]): &mut (IpAddr, [Bucket; 2])| {
                usual.refill(now, Line::Usual.rate());
                fault.refill(now, Line::Fault.rate());
                usual.taken + fault.taken
            };
            let taken: Vec<u32> = self.peers.iter_mut().map(taken).collect();
            let fewest = (0..taken.len()).min_by_key(|at| taken[*at]).unwrap_or_default();
            self.peers.swap_remove(fewest);
        }
        self.peers.push((machine, Default::default()));
        &mut self.peers.last_mut().expect("it was pushed").1
    }
}

impl Bucket {
    fn refill(&mut self, now: Duration, rate: Rate) {
        let refills = now.saturating_sub(self.refilled).as_millis() / rate.refill.as_millis();
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
        assert_eq!((written, counters.log_lines_dropped.get()), (200, 800));
        assert!(limit.allow(now, peer(2), Line::Fault, &counters));
        assert!(limit.allow(now, peer(1), Line::Usual, &counters));
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert!(!limit.allow(now, mapped, Line::Fault, &counters), "the same peer");
        let later = now + Line::Fault.rate().refill;
        assert!(limit.allow(later, peer(1), Line::Fault, &counters));
        assert!(!limit.allow(later, peer(1), Line::Fault, &counters));
    }

    #[test]
    fn machine_of_many_addresses_has_the_lines_of_one() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        let mut from = |host: u16| {
            let address = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, host]);
            limit.allow(now, address, Line::Fault, &counters)
        };
        assert_eq!((0..1000).filter(|host| from(*host)).count(), 200);
        assert!(limit.allow(now, peer(1), Line::Fault, &counters));
    }

    #[test]
    fn many_peers_fill_the_log_no_faster_than_it_takes_and_offenders_stay_known() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        (0..200).for_each(|_| assert!(limit.allow(now, peer(1), Line::Fault, &counters)));
        let many = (0..6000_u16).map(|at| IpAddr::from([10, 0, (at >> 8) as u8, at as u8]));
        let written = many.filter(|peer| limit.allow(now, *peer, Line::Fault, &counters)).count();
        assert_eq!(written, ALL.burst as usize - 200);
        assert_eq!(limit.peers.len(), LogLimit::PEERS);
        let later = now + Duration::from_secs(1);
        assert!(limit.allow(later, peer(2), Line::Fault, &counters));
        assert!(!limit.allow(later, peer(1), Line::Fault, &counters));
    }

    #[test]
    fn only_what_happened_is_printed() {
        let counters = Counters::default();
        counters.commands.add(2);
        counters.accepted.add(1);
        assert_eq!(counters.to_string(), "accepted=1 commands=2");
    }
}
