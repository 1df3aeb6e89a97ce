//! Socket options and times.

use core::time::Duration;

/// What can be chosen about a connection. [`StreamConfig::default`] is right for most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConfig {
    /// How long sent data may stay unacknowledged, and an idle peer unanswering, until the connection counts as broken.
    pub dead_peer_timeout: Duration,
    /// How long a closed connection lingers for its last bytes to be sent: [`Lingering`](crate::Lingering).
    pub linger: Duration,
    /// A stream that is dropped resets its connection (`SO_LINGER` 0): what the kernel has not sent by then never
    /// leaves. Without it the kernel goes on sending for up to [`dead_peer_timeout`](Self::dead_peer_timeout).
    pub reset_on_close: bool,
    /// `SO_SNDBUF` in bytes; `None` lets the kernel tune it, up to more than `net.core.wmem_max` allows here.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF` in bytes; likewise.
    pub receive_buffer: Option<usize>,
    /// The byte Type of Service (IPv4) or Traffic Class (IPv6) of what is sent.
    pub tos: Option<u8>,
    /// `SO_PRIORITY`: the queue of the network device. More than 6 needs `CAP_NET_ADMIN`.
    pub priority: Option<u32>,
    /// The network interface that [`Stream::open`](crate::Stream::open) binds to (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
    /// How often the first packet of a connect is sent again, from 1 (`TCP_SYNCNT`); `None` leaves it to the system.
    pub syn_retries: Option<u8>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            dead_peer_timeout: Duration::from_secs(30),
            linger: Duration::from_secs(1),
            reset_on_close: false,
            send_buffer: None,
            receive_buffer: None,
            tos: None,
            priority: None,
            interface: None,
            syn_retries: None,
        }
    }
}
