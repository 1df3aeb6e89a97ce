//! What a worker counts, and how often it may log.

use core::fmt;
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

/// A bucket of log lines: whatever a peer can trigger goes through one.
#[derive(Debug)]
pub struct LogLimit {
    lines: u32,
    refilled: Duration,
}

impl LogLimit {
    /// Lines at once.
    const BURST: u32 = 200;
    /// One more line each.
    const REFILL: Duration = Duration::from_millis(100);

    /// A full bucket.
    #[must_use]
    pub fn new() -> Self {
        Self { lines: Self::BURST, refilled: Duration::ZERO }
    }

    /// Whether a line may be written now; if not, it is counted.
    pub fn allow(&mut self, now: Duration, counters: &Counters) -> bool {
        let refills = now.saturating_sub(self.refilled).as_millis() / Self::REFILL.as_millis();
        if refills > 0 {
            self.lines =
                self.lines.saturating_add(u32::try_from(refills).unwrap_or(u32::MAX)).min(Self::BURST);
            self.refilled = now;
        }
        let allowed = self.lines > 0;
        if allowed {
            self.lines -= 1;
        } else {
            counters.log_lines_dropped.add(1);
        }
        allowed
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_off_and_counted() {
        let (mut limit, counters) = (LogLimit::new(), Counters::default());
        let now = Duration::from_secs(100);
        let written = (0..1000).filter(|_| limit.allow(now, &counters)).count();
        assert_eq!((written, counters.log_lines_dropped.get()), (200, 800));
        assert!(limit.allow(now + LogLimit::REFILL, &counters));
        assert!(!limit.allow(now + LogLimit::REFILL, &counters));
    }

    #[test]
    fn only_what_happened_is_printed() {
        let counters = Counters::default();
        counters.commands.add(2);
        counters.accepted.add(1);
        assert_eq!(counters.to_string(), "accepted=1 commands=2");
    }
}
