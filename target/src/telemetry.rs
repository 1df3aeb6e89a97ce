//! What a worker counts, and how often it may log.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
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
    /// Of the networks of sites (/48) that caused some lately.
    sites: Vec<(Ipv6Addr, Bucket)>,
    /// Of all together.
    all: Bucket,
    /// Not written, of machines that made room for others.
    forgotten: u64,
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

/// Of the machines of one site: half of that. Who has a site's addresses has as many machines as it likes.
const SITE: Rate = Rate { burst: ALL.burst / 2, refill: Duration::from_millis(100) };

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
    /// Machines with buckets of their own, and sites.
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
        // As hosts are written.
        let machine = machine_of(peer.to_canonical());
        let refill = |bucket: &mut Bucket| bucket.refill(now, SITE);
        let mut site = site_of(machine).map(|site| kept(&mut self.sites, site, refill).0);
        let of_site = site.as_deref_mut().map_or(0, refill);
        let has_room = self.all.taken < ALL.burst && of_site < SITE.burst;
        let (buckets, gone) = kept(&mut self.peers, machine, |[usual, fault]: &mut [Bucket; 2]| {
            usual.refill(now, Line::Usual.rate()) + fault.refill(now, Line::Fault.rate())
        });
        self.forgotten += gone.iter().flatten().map(|bucket| bucket.dropped).sum::<u64>();
        let bucket = &mut buckets[line as usize];
        bucket.refill(now, line.rate());
        if !has_room || bucket.taken == line.rate().burst {
            bucket.dropped += 1;
            counters.log_lines_dropped.add(1);
            return false;
        }
        bucket.taken += 1;
        self.all.taken += 1;
        if let Some(site) = site {
            site.taken += 1;
        }
        let dropped = core::mem::take(&mut bucket.dropped);
        if dropped > 0 {
            tracing::warn!(%peer, "{dropped} lines about this peer were left out: there are too many");
        }
        let forgotten = core::mem::take(&mut self.forgotten);
        if forgotten > 0 {
            tracing::warn!("{forgotten} lines about other peers were left out: there are too many");
        }
        true
    }
}

/// The site that a machine is of: providers give one this many addresses, or a part of them.
fn site_of(machine: IpAddr) -> Option<Ipv6Addr> {
    let IpAddr::V6(address) = machine else { return None };
    let [a, b, c, ..] = address.segments();
    Some(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0))
}

/// What is kept of one, and what was kept of another that made room for it.
fn kept<K: PartialEq, T: Default>(
    all: &mut Vec<(K, T)>,
    one: K,
    taken: impl Fn(&mut T) -> u32,
) -> (&mut T, Option<T>) {
    if let Some(at) = all.iter().position(|(known, _)| *known == one) {
        return (&mut all[at].1, None);
    }
    let gone = (all.len() == LogLimit::PEERS).then(|| {
        // Who has caused the fewest lately makes room: not those for whose sake there are buckets.
        let taken: Vec<u32> = all.iter_mut().map(|(_, buckets)| taken(buckets)).collect();
        let fewest = (0..taken.len()).min_by_key(|at| taken[*at]).unwrap_or_default();
        all.swap_remove(fewest).1
    });
    all.push((one, T::default()));
    (&mut all.last_mut().expect("it was pushed").1, gone)
}

impl Bucket {
    /// Returns how many are taken.
    fn refill(&mut self, now: Duration, rate: Rate) -> u32 {
        let refills = now.saturating_sub(self.refilled).as_millis() / rate.refill.as_millis();
        if refills > 0 {
            self.taken = self.taken.saturating_sub(u32::try_from(refills).unwrap_or(u32::MAX));
            self.refilled = now;
        }
        self.taken
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
    fn site_with_many_machines_leaves_others_half_of_the_log() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        let of = |site: u16, network: u16| IpAddr::from([0x2001, 0xdb8, site, network, 0, 0, 0, 1]);
        let mut from = |now, peer| limit.allow(now, peer, Line::Fault, &counters);
        let written = (0..10_000_u16).filter(|network| from(now, of(1, *network))).count();
        assert_eq!(written, SITE.burst as usize);
        assert!(from(now, peer(1)) && from(now, of(2, 1)));
        let later = now + Duration::from_secs(1);
        let written = (0..10_000_u16).filter(|network| from(later, of(1, *network))).count();
        assert_eq!(written, 10, "half of what all may in a second");
        assert!(from(later, peer(2)));
    }

    #[test]
    fn lines_of_a_machine_that_made_room_are_counted_still() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        let written = (0..210).filter(|_| limit.allow(now, peer(1), Line::Fault, &counters)).count();
        assert_eq!(written, 200);
        // It has caused the fewest by now: nothing.
        let later = now + Line::Fault.rate().refill * 300;
        let others =
            || (1..=LogLimit::PEERS as u16).map(|at| IpAddr::from([10, 0, (at >> 8) as u8, at as u8]));
        let before =
            others().take(LogLimit::PEERS - 1).filter(|it| limit.allow(later, *it, Line::Fault, &counters));
        assert_eq!(before.count(), LogLimit::PEERS - 1);
        assert_eq!(limit.forgotten, 0);
        limit.all.taken = ALL.burst;
        assert!(!limit.allow(later, others().next_back().unwrap(), Line::Fault, &counters));
        assert_eq!(limit.forgotten, 10);
        limit.all.taken = 0;
        assert!(limit.allow(later, others().next_back().unwrap(), Line::Fault, &counters));
        assert_eq!(limit.forgotten, 0, "it was told");
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
