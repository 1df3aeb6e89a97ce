//! Where the blocks of a host are: in two namespaces, beside those of other hosts.

use core::ops::Range;
use nvme_proto::Nsid;

/// Most blocks of an operation: more than fit into a capsule.
pub(super) const SPAN: usize = 24;
/// Blocks of a host in namespace 1; those in namespace 2 have the numbers behind them.
const MAIN: usize = 48;
/// Blocks of a host.
pub(super) const ALL: usize = MAIN + SPAN;

/// A host's blocks in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Area {
    /// Namespace 1, which hosts contend for and the operator changes.
    Main,
    /// Namespace 2.
    Other,
}

pub(super) const AREAS: [Area; 2] = [Area::Main, Area::Other];

impl Area {
    /// Where this block of a host is.
    pub(super) fn of(block: usize) -> Self {
        if block < MAIN { Self::Main } else { Self::Other }
    }

    pub(super) fn nsid(self) -> Nsid {
        Nsid(if self == Self::Main { 1 } else { 2 })
    }

    /// A host's blocks.
    pub(super) fn blocks(self) -> Range<usize> {
        if self == Self::Main { 0..MAIN } else { MAIN..ALL }
    }

    /// Distance between the first blocks of two hosts: one unused block follows the blocks of each host.
    pub(super) fn stride(self) -> u64 {
        self.blocks().len() as u64 + 1
    }

    /// Where in the namespace a host's block is.
    pub(super) fn lba(self, host: u64, block: usize) -> u64 {
        host * self.stride() + (block - self.blocks().start) as u64
    }

    /// Which host's block it is, and which of them. It may be the unused one.
    pub(super) fn block(self, lba: u64) -> (u64, usize) {
        (lba / self.stride(), self.blocks().start + (lba % self.stride()) as usize)
    }

    /// The blocks that no host writes to.
    pub(super) fn unused(self, hosts: u64) -> impl Iterator<Item = u64> {
        (0..hosts).map(move |host| (host + 1) * self.stride() - 1)
    }
}
