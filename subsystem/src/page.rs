//! Data that the engine sends to the host.

use crate::discovery::DiscoveryLog;
use crate::limits::PAGE_LEN;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;

/// A data structure for the host: an Identify page, a part of a log page. Its content is that of the moment when the
/// command was received, even if the transport waits for a buffer before it sends it.
///
/// One box for each command under way: of [`PAGE_LEN`] bytes, or for the ANA log and a reservation report of what the
/// namespaces and their registrants take, never of what the command asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    content: Content,
    /// Where in the structure the transfer begins.
    start: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Bytes(Box<[u8]>),
    /// The whole, or what is about the port that the host came through.
    Discovery {
        log: Arc<DiscoveryLog>,
        port_local: bool,
    },
}

impl Page {
    /// A page of zeroes to be written by `write`.
    pub(crate) fn build(write: impl FnOnce(&mut [u8])) -> Self {
        Self::sized(PAGE_LEN, write)
    }

    /// A structure of `len` zeroes to be written by `write`.
    pub(crate) fn sized(len: usize, write: impl FnOnce(&mut [u8])) -> Self {
        let mut bytes = vec![0; len].into_boxed_slice();
        write(&mut bytes);
        Self { content: Content::Bytes(bytes), start: 0 }
    }

    pub(crate) fn discovery(log: Arc<DiscoveryLog>, port_local: bool) -> Self {
        Self { content: Content::Discovery { log, port_local }, start: 0 }
    }

    /// The same from byte `start` on.
    pub(crate) fn starting_at(mut self, start: u64) -> Self {
        self.start = start;
        self
    }

    /// Writes the bytes from `offset` of the transfer on; zeroes behind the end of the structure. May be called for any
    /// part, in any order.
    pub fn fill(&self, offset: u32, out: &mut [u8]) {
        let from = self.start.saturating_add(offset.into());
        match &self.content {
            Content::Bytes(bytes) => copy_from(bytes, from, out),
            Content::Discovery { log, port_local } => log.read(*port_local, from, out),
        }
    }
}

/// Copies `source[from..]` to `out`, and zeroes where there is no more.
pub(crate) fn copy_from(source: &[u8], from: u64, out: &mut [u8]) {
    let rest = usize::try_from(from).ok().and_then(|from| source.get(from..)).unwrap_or_default();
    let len = rest.len().min(out.len());
    out[..len].copy_from_slice(&rest[..len]);
    out[len..].fill(0);
}
