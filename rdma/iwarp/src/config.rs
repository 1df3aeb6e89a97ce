//! What can be chosen, and the bounds of everything that could grow.

use core::time::Duration;
use nvmf_stream::{HalfOpenLimits, StreamConfig};

/// Gather elements that one work request may have: a capsule and its data. Work requests are copied about, so they are
/// kept small.
pub const MAX_SGE: usize = 2;
/// Bytes that can be posted inline: a completion queue entry and some more.
pub const MAX_INLINE: usize = 48;
/// RDMA READs in one direction of a queue pair. Linux siw has the same bound.
pub const MAX_READ_DEPTH: u16 = 128;
/// Work requests on one queue.
pub const MAX_QUEUE_DEPTH: u32 = 16 * 1024;
/// Completions that wait in one queue: those of 65535 connections with deep queues.
pub const MAX_COMPLETIONS: u32 = 1 << 28;
/// So many of them have memory from the start; the rest when they come.
pub const READY_COMPLETIONS: usize = 1 << 20;
/// The largest FPDU that is sent. The length field is 16 bits; what is left is a multiple of four.
pub const MAX_FPDU: usize = 65_532;
/// Bytes in a packet that TCP hands to a device (which cuts it up) or to the loopback interface: 64 KiB with all
/// headers.
pub const PACKET_LEN: u32 = 65_400;
/// The smallest bound on FPDUs that is believed, whatever the path claims.
pub const MIN_FPDU: usize = 256;

const _: () = assert!(MAX_FPDU.is_multiple_of(4) && MAX_FPDU < 65_536 + 4 && MIN_FPDU.is_multiple_of(4));
// The length of inline bytes is kept in one.
const _: () = assert!(MAX_INLINE <= u8::MAX as usize);

/// CRC32C on every FPDU. MPA uses it in both directions as soon as one side asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Crc {
    /// Never: a peer that asks for it is refused.
    Off,
    /// Only when the peer asks. Linux siw does not, hardware does.
    #[default]
    Auto,
    /// Always.
    On,
}

/// How long FPDUs get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fpdu {
    /// [`Fpdu::Large`] towards a peer that announced that it takes them, or on this machine; otherwise
    /// [`Fpdu::Segment`].
    #[default]
    Auto,
    /// One TCP segment, as MPA wants it and as some cards need it.
    Segment,
    /// As long as the length field allows. Any receiver that reads a byte stream, siw among them, takes it.
    Large,
}

/// Which MPA revision `connect` uses. A listener answers in the revision of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Revision {
    /// 2, and 1 if the peer hangs up on that.
    #[default]
    Auto,
    /// 1: no read depths, no peer-to-peer mode.
    One,
    /// 2 (enhanced connection set-up).
    Two,
}

/// Everything that can be chosen. [`IwarpConfig::default`] is right for most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IwarpConfig {
    /// CRC32C.
    pub crc: Crc,
    /// FPDU size.
    pub fpdu: Fpdu,
    /// MPA revision of our requests.
    pub revision: Revision,
    /// Whether our requests ask for peer-to-peer mode, in which the acceptor may send first. Only revision 2 has it.
    pub peer_to_peer: bool,
    /// From the TCP connection to the whole MPA request.
    pub request_timeout: Duration,
    /// From the MPA request to `accept` or `reject`; peers give up after about this time.
    pub answer_timeout: Duration,
    /// How long `disconnect` waits for the peer to take what was posted.
    pub disconnect_timeout: Duration,
    /// The sockets, and how long a closed one lingers for its last bytes (such as a Terminate) to be sent.
    pub stream: StreamConfig,
    /// Regions and per-command keys at once.
    pub keys_max: usize,
    /// Queue pairs at once.
    pub queue_pairs_max: u16,
    /// Connections per listener whose request has not come yet.
    pub half_open: HalfOpenLimits,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        Self {
            crc: Crc::Auto,
            fpdu: Fpdu::Auto,
            revision: Revision::Auto,
            peer_to_peer: true,
            request_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            disconnect_timeout: Duration::from_secs(2),
            stream: StreamConfig::default(),
            keys_max: 1 << 18,
            queue_pairs_max: 16 * 1024,
            half_open: HalfOpenLimits::default(),
        }
    }
}
