//! What hosts do: each slot writes numbers that rise into a block of its own, through whichever gateway answers, and reads
//! them. A write that got no answer is sent again, elsewhere, while the first one may still be under way.

use super::oracle::Known;
use super::plan::Time;
use super::store::Block;

/// A command, from its first attempt to its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    /// Of this attempt.
    pub(crate) attempt: u64,
    /// What was known when it was sent first.
    pub(crate) seen: u64,
    /// `None` reads.
    pub(crate) write: Option<u64>,
    pub(crate) since: Time,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) block: Block,
    /// It is about the group's reservation instead of the block.
    pub(crate) reservation: bool,
    pub(crate) known: Known,
    pub(crate) pending: Option<Pending>,
    /// The gateway that answered last, or is tried next.
    pub(crate) gateway: usize,
}
