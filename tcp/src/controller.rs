//! The controller's ledger: R2Ts that are outstanding, and the data that arrive for them.

use alloc::vec::Vec;
use nvme_proto::Cid;
use nvme_proto::tcp::{FatalError, FatalErrorStatus, H2cData, R2t};

/// The most slots of a queue: at least four bits of a TTAG are left for the generation.
pub const SLOTS_MAX: usize = 4096;

/// Offsets of fields in the header of H2CData.
const CCCID: usize = 8;
const TTAG: usize = 10;

/// The R2Ts of one queue: at most one for each slot, which is a request's index.
///
/// A TTAG is the slot and a generation, which changes with every R2T: data for an R2T that is over are seen.
#[derive(Debug)]
pub struct Transfers {
    slots: Vec<Slot>,
    slot_bits: u32,
    maxh2cdata: u32,
    /// The slot that the data of the PDU under way belong to.
    arriving: Option<u16>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    cid: Cid,
    generation: u16,
    is_outstanding: bool,
    discard: bool,
    damaged: bool,
    /// Where the next data start.
    next: u32,
    start: u32,
    end: u32,
}

/// Where the data of an H2CData belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The request.
    pub slot: u16,
    /// Where in the command's data they start, in bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// They are the last of their R2T.
    pub last: bool,
    /// The command is over: the data are read off the stream and thrown away.
    pub discard: bool,
}

/// The data of an H2CData are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The request.
    pub slot: u16,
    /// The R2T is answered in full: its slot is free for the next one.
    pub last: bool,
    /// Whether the data digests of all PDUs of this R2T so far were right. If not, the command fails with Transient
    /// Transport Error, when its R2T is answered.
    pub intact: bool,
    /// The command is over: nobody waits for the data.
    pub discard: bool,
}

impl Transfers {
    /// Bytes that each slot takes.
    pub const SLOT_BYTES: usize = size_of::<Slot>();

    /// For `slots` requests. `maxh2cdata` is what ICResp says.
    ///
    /// # Panics
    /// With no slots, or more than [`SLOTS_MAX`].
    #[must_use]
    pub fn new(slots: usize, maxh2cdata: u32) -> Self {
        assert!((1..=SLOTS_MAX).contains(&slots), "{slots} slots");
        let slot_bits = usize::BITS - (slots - 1).leading_zeros();
        Self { slots: alloc::vec![Slot::default(); slots], slot_bits, maxh2cdata, arriving: None }
    }

    /// Asks for `len` bytes of the command's data from `offset` on: the R2T to send. Its answer is taken from now on,
    /// before the R2T was seen to be sent.
    ///
    /// `None` if the slot's last R2T is still outstanding, or the range is empty, not in whole dwords, or ends beyond
    /// 4 GiB.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn begin(&mut self, slot: u16, cid: Cid, offset: u32, len: u32) -> Option<R2t> {
        let index = usize::from(slot);
        let end = offset.checked_add(len)?;
        let is_range = len > 0 && offset.is_multiple_of(4) && len.is_multiple_of(4);
        if !is_range || self.slots[index].is_outstanding {
            return None;
        }
        let generation = self.slots[index].generation.wrapping_add(1);
        let (discard, damaged) = (false, false);
        self.slots[index] = Slot {
            cid,
            generation,
            is_outstanding: true,
            discard,
            damaged,
            next: offset,
            start: offset,
            end,
        };
        Some(R2t { cid, ttag: self.ttag(slot), offset, len })
    }

    /// Data are about to arrive: where they belong.
    ///
    /// # Errors
    /// They were not asked for in this way. The connection is to end.
    pub fn on_data(&mut self, data: &H2cData) -> Result<Placement, FatalError> {
        if data.len > self.maxh2cdata {
            return Err(error(FatalErrorStatus::DATA_TRANSFER_LIMIT_EXCEEDED));
        }
        let index = data.ttag & self.slot_mask();
        let expected = self.ttag(index);
        let slot = self.slots.get_mut(usize::from(index));
        let slot = slot.filter(|slot| slot.is_outstanding && expected == data.ttag);
        let slot = slot.ok_or(FatalError::invalid_field(TTAG))?;
        if slot.cid != data.cid {
            return Err(FatalError::invalid_field(CCCID));
        }
        let end = u64::from(data.offset) + u64::from(data.len);
        if data.offset < slot.start || end > u64::from(slot.end) {
            return Err(error(FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE));
        }
        let last = end == u64::from(slot.end);
        if data.len == 0 || data.offset != slot.next || data.last != last {
            return Err(error(FatalErrorStatus::PDU_SEQUENCE_ERROR));
        }
        slot.next += data.len;
        self.arriving = Some(index);
        Ok(Placement { slot: index, offset: data.offset, len: data.len, last, discard: slot.discard })
    }

    /// The data of the PDU under way are there. `None` if they were no H2CData, but those of a capsule.
    pub fn on_data_end(&mut self, intact: bool) -> Option<Arrival> {
        let index = self.arriving.take()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        slot.damaged |= !intact;
        let last = slot.next == slot.end;
        slot.is_outstanding = !last;
        Some(Arrival { slot: index, last, intact: !slot.damaged, discard: slot.discard })
    }

    /// The command is over before its R2T was answered: data that still arrive for it are to be thrown away, those of
    /// the PDU under way too. The slot stays outstanding until they have come.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn end(&mut self, slot: u16) {
        self.slots[usize::from(slot)].discard = true;
    }

    /// Whether data for this slot are still to come, or are arriving. Only then may its memory be written.
    #[must_use]
    pub fn is_outstanding(&self, slot: u16) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|slot| slot.is_outstanding)
    }

    fn slot_mask(&self) -> u16 {
        (1 << self.slot_bits) - 1
    }

    fn ttag(&self, slot: u16) -> u16 {
        let generation = self.slots.get(usize::from(slot)).map_or(0, |slot| slot.generation);
        slot | generation << self.slot_bits
    }
}

fn error(status: FatalErrorStatus) -> FatalError {
    FatalError { status, information: 0 }
}
