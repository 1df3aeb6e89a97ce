//! What controllers serve, and therefore advertise.

use crate::{AnaState, Nsid, limits};
use core::ops::RangeInclusive;

/// What every controller of a registry serves. Identify, CAP and the checks of commands all read the same values,
/// so that nothing is advertised that is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// I/O queues of one controller (1 to [`limits::IO_QUEUES_MAX`]).
    pub io_queues_max: u16,
    /// Entries of an I/O queue (CAP.MQES + 1; 2 to [`limits::QUEUE_ENTRIES_MAX`]).
    pub queue_entries_max: u16,
    /// The longest data transfer of a command, in bytes (MDTS; a power of two).
    pub transfer_len_max: u32,
    /// Controllers of one subsystem at a time (1 to [`limits::CONTROLLERS_MAX`]).
    pub controllers_max: u16,
    /// The Controller IDs that are given out. Targets that serve one subsystem together need ranges without a common ID:
    /// hosts refuse a controller whose ID they have already.
    pub cntlids: RangeInclusive<u16>,
    /// What the generation counter of the discovery log starts from. To be more than it ever was before: hosts take the
    /// number that they know for the log that they know.
    pub discovery_generation: u64,
    /// What the random numbers of controllers are made of (CIRN): another one at each start, that nobody knows.
    pub instance_secret: [u8; 16],
    /// What to do with a host NQN that connects with two Host Identifiers.
    pub duplicate_host_id: DuplicateHostId,
    /// Hosts may protect namespaces (Namespace Write Protection Config): there is a place where that can be kept over a loss
    /// of power.
    pub write_protection: bool,
    /// The state of ANA groups that were never set.
    pub ana_unset: AnaState,
    /// Firmware revision in ASCII, padded with spaces.
    pub firmware: [u8; 8],
}

/// Policy for a host NQN that connects with two Host Identifiers: mostly two machines that were cloned from one image,
/// and that write to the same disks as a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DuplicateHostId {
    /// Accept, and say so in [`crate::Admission::duplicate_host_id`].
    #[default]
    Report,
    /// Refuse with Connect Invalid Host, and say so.
    Refuse,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            io_queues_max: 128,
            queue_entries_max: 128,
            transfer_len_max: 1024 * 1024,
            controllers_max: 1024,
            cntlids: limits::CNTLID_MIN..=limits::CNTLID_MAX,
            discovery_generation: 0,
            instance_secret: [0; 16],
            duplicate_host_id: DuplicateHostId::Report,
            write_protection: false,
            ana_unset: AnaState::OPTIMIZED,
            firmware: *b"0.1     ",
        }
    }
}

impl Options {
    /// The most namespaces of a subsystem (MNAN): hosts that cannot read the whole ANA log in one transfer do without
    /// ANA.
    #[must_use]
    pub fn namespaces_max(&self) -> usize {
        let room = self.transfer_len_max.saturating_sub(limits::ANA_LOG_LEN_MAX) as usize;
        limits::NAMESPACES_MAX.min(room / size_of::<Nsid>())
    }

    /// Checks every value against its bound in [`limits`].
    ///
    /// # Errors
    /// The first value that lies outside, with its bounds.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let check = |name, value: u32, min: u32, max: u32| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(OptionsError { name, value, min, max }) }
        };
        check("io_queues_max", self.io_queues_max.into(), 1, limits::IO_QUEUES_MAX.into())?;
        check(
            "queue_entries_max",
            self.queue_entries_max.into(),
            limits::QUEUE_ENTRIES_MIN.into(),
            limits::QUEUE_ENTRIES_MAX.into(),
        )?;
        check("controllers_max", self.controllers_max.into(), 1, limits::CONTROLLERS_MAX.into())?;
        check(
            "cntlids",
            (*self.cntlids.start()).into(),
            limits::CNTLID_MIN.into(),
            limits::CNTLID_MAX.into(),
        )?;
        let (first, last) = (*self.cntlids.start(), limits::CNTLID_MAX);
        check("the end of cntlids", (*self.cntlids.end()).into(), first.into(), last.into())?;
        check("transfer_len_max", self.transfer_len_max, limits::TRANSFER_LEN_MIN, limits::TRANSFER_LEN_MAX)?;
        check("ones in transfer_len_max", self.transfer_len_max.count_ones(), 1, 1)
    }
}

/// An option outside its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}: it must lie in {min}..={max}")]
pub struct OptionsError {
    /// The option.
    pub name: &'static str,
    /// What it was.
    pub value: u32,
    /// The least that it may be.
    pub min: u32,
    /// The most that it may be.
    pub max: u32,
}
