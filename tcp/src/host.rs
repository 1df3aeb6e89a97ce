//! The host's ledger: what each command may still send and receive.

use alloc::vec::Vec;
use nvme_proto::tcp::{C2hData, Digests, FatalError, FatalErrorStatus, H2cData, IcReq, IcResp, R2t};
use nvme_proto::{Cid, Cqe, Status};

/// The most commands of a queue.
pub const ENTRIES_MAX: usize = 1 << 15;

/// Offsets of fields in the headers of ICResp, C2HData and R2T, and CapsuleResp.
const DGST: usize = 11;
const CCCID: usize = 8;
const RCCQE_CID: usize = 8 + 12;

/// The digests that are used on a connection.
///
/// # Errors
/// The controller uses digests that were not asked for, or does not use those that were.
pub fn agreed(request: &IcReq, response: &IcResp) -> Result<Digests, FatalError> {
    let (asked, used) = (request.digests, response.digests);
    if (used.header && !asked.header) || (used.data && !asked.data) {
        return Err(FatalError::invalid_field(DGST));
    }
    if used != asked {
        let status = FatalErrorStatus::UNSUPPORTED_PARAMETER;
        return Err(FatalError { status, information: DGST as u32 });
    }
    Ok(used)
}

/// The data that a command moves outside its capsule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transfer {
    /// None, or only in-capsule data.
    #[default]
    None,
    /// So many bytes from the controller.
    ToHost(u32),
    /// So many bytes to the controller, which asks for them by R2T.
    ToController(u32),
}

/// The commands of one queue that wait for their completion. At most one R2T is outstanding for each (MAXR2T 0 in
/// ICReq).
#[derive(Debug)]
pub struct Commands {
    slots: Vec<Slot>,
    slot_mask: u16,
    maxh2cdata: u32,
    /// The command that the data of the PDU under way belong to.
    arriving: Option<Cid>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// The command, if one is under way.
    cid: Option<Cid>,
    transfer: Transfer,
    /// Bytes received, or asked for.
    moved: u32,
    r2t: Option<Pending>,
    /// C2HData said that no more follow.
    last: bool,
    /// C2HData said that no response follows.
    success: bool,
    damaged: bool,
}

/// An R2T that is not answered in full.
#[derive(Clone, Debug)]
struct Pending {
    ttag: u16,
    next: u32,
    end: u32,
}

/// Where the data of a C2HData belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The command.
    pub cid: Cid,
    /// Where in the command's data they start, in bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// A command is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The response; one of zeros where SUCCESS in C2HData stands for it (its SQHD means nothing then). Where the
    /// controller says success and there is a [`DataFault`], the status is that of the fault.
    pub cqe: Cqe,
    /// Why the data are not as a success must have them.
    pub fault: Option<DataFault>,
}

/// What is wrong with the data of a command that the controller says succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFault {
    /// A data digest was wrong: Transient Transport Error.
    Damaged,
    /// The controller sent or asked for only so many bytes: Data Transfer Error.
    Short(u32),
}

impl Commands {
    /// For `entries` commands. `maxh2cdata` is what ICResp says.
    ///
    /// # Panics
    /// With no entries, or more than [`ENTRIES_MAX`].
    #[must_use]
    pub fn new(entries: usize, maxh2cdata: u32) -> Self {
        assert!((1..=ENTRIES_MAX).contains(&entries), "{entries} entries");
        let slot_mask = (entries.next_power_of_two() - 1) as u16;
        Self { slots: alloc::vec![Slot::default(); entries], slot_mask, maxh2cdata, arriving: None }
    }

    /// A command is sent. The low bits of its CID are its slot, the bits above are its owner's.
    ///
    /// # Panics
    /// When the CID names no slot, or its slot has a command under way.
    pub fn begin(&mut self, cid: Cid, transfer: Transfer) {
        let slot = &mut self.slots[usize::from(cid.0 & self.slot_mask)];
        assert!(slot.cid.is_none(), "{cid:?} has a command under way");
        *slot = Slot { cid: Some(cid), transfer, ..Slot::default() };
    }

    /// Whether this command waits for its completion.
    #[must_use]
    pub fn contains(&self, cid: Cid) -> bool {
        let slot = self.slots.get(usize::from(cid.0 & self.slot_mask));
        slot.is_some_and(|slot| slot.cid == Some(cid))
    }

    /// The controller asks for data. [`Commands::next_h2c_data`] says what to send.
    ///
    /// # Errors
    /// It may not ask for these. The connection is to end.
    pub fn on_r2t(&mut self, r2t: &R2t) -> Result<(), FatalError> {
        let slot = self.slot(r2t.cid).ok_or(FatalError::invalid_field(CCCID))?;
        let Transfer::ToController(len) = slot.transfer else {
            return Err(FatalError::invalid_field(CCCID));
        };
        if slot.r2t.is_some() {
            return Err(error(FatalErrorStatus::DATA_TRANSFER_LIMIT_EXCEEDED));
        }
        let end = in_range(r2t.offset, r2t.len, len)?;
        if r2t.offset != slot.moved {
            return Err(error(FatalErrorStatus::PDU_SEQUENCE_ERROR));
        }
        slot.moved = end;
        slot.r2t = Some(Pending { ttag: r2t.ttag, next: r2t.offset, end });
        Ok(())
    }

    /// The next H2CData to send for this command: at most MAXH2CDATA bytes, LAST_PDU in the last for the R2T. `None` if
    /// nothing was asked for that this has not returned already. What it returned is to be sent.
    pub fn next_h2c_data(&mut self, cid: Cid) -> Option<H2cData> {
        let len_max = self.maxh2cdata;
        let slot = self.slot(cid)?;
        let pending = slot.r2t.as_mut()?;
        let (ttag, offset) = (pending.ttag, pending.next);
        let len = (pending.end - offset).min(len_max);
        pending.next += len;
        let last = pending.next == pending.end;
        if last {
            slot.r2t = None;
        }
        Some(H2cData { cid, ttag, offset, len, last })
    }

    /// Data are about to arrive: where they belong.
    ///
    /// # Errors
    /// The command gets no such data. The connection is to end.
    pub fn on_data(&mut self, data: &C2hData) -> Result<Placement, FatalError> {
        let slot = self.slot(data.cid).ok_or(FatalError::invalid_field(CCCID))?;
        let Transfer::ToHost(len) = slot.transfer else {
            return Err(FatalError::invalid_field(CCCID));
        };
        let end = in_range(data.offset, data.len, len)?;
        // LAST_PDU before the end is a short read, which the completion tells.
        let is_last_missing = end == len && !data.last;
        if slot.last || data.offset != slot.moved || is_last_missing {
            return Err(error(FatalErrorStatus::PDU_SEQUENCE_ERROR));
        }
        (slot.moved, slot.last, slot.success) = (end, data.last, data.success);
        self.arriving = Some(data.cid);
        Ok(Placement { cid: data.cid, offset: data.offset, len: data.len })
    }

    /// The data of the PDU under way are there. Returns the command's completion if SUCCESS said so.
    pub fn on_data_end(&mut self, intact: bool) -> Option<Completion> {
        let cid = self.arriving.take()?;
        let slot = self.slot(cid)?;
        slot.damaged |= !intact;
        if !slot.success {
            return None;
        }
        let completion = slot.complete(Cqe::new(cid, Status::SUCCESS, 0));
        slot.cid = None;
        Some(completion)
    }

    /// A response arrived: the command is complete. What an R2T of it asked for and was not handed out by
    /// [`Commands::next_h2c_data`] is not sent.
    ///
    /// # Errors
    /// It is for no command that is under way, or says success where data that were asked for are not sent yet. The
    /// connection is to end.
    pub fn on_response(&mut self, cqe: &Cqe) -> Result<Completion, FatalError> {
        let slot = self.slot(cqe.cid()).ok_or(FatalError::invalid_field(RCCQE_CID))?;
        if cqe.status().is_success() && slot.r2t.is_some() {
            return Err(error(FatalErrorStatus::PDU_SEQUENCE_ERROR));
        }
        slot.cid = None;
        Ok(slot.complete(*cqe))
    }

    /// The slot of a command that is under way.
    fn slot(&mut self, cid: Cid) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(cid.0 & self.slot_mask))?;
        (slot.cid == Some(cid)).then_some(slot)
    }
}

impl Slot {
    fn complete(&self, mut cqe: Cqe) -> Completion {
        let fault = match self.transfer {
            _ if !cqe.status().is_success() => None,
            _ if self.damaged => Some(DataFault::Damaged),
            Transfer::ToHost(len) | Transfer::ToController(len) if self.moved < len => {
                Some(DataFault::Short(self.moved))
            }
            _ => None,
        };
        match fault {
            Some(DataFault::Damaged) => cqe.status = Status::TRANSIENT_TRANSPORT_ERROR.to_field().into(),
            Some(DataFault::Short(_)) => cqe.status = Status::DATA_TRANSFER_ERROR.to_field().into(),
            None => {}
        }
        Completion { cqe, fault }
    }
}

/// The end of `[offset, offset + len)`, which must not be beyond `limit`.
fn in_range(offset: u32, len: u32, limit: u32) -> Result<u32, FatalError> {
    let end = offset.checked_add(len).filter(|&end| end <= limit);
    end.ok_or(error(FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE))
}

fn error(status: FatalErrorStatus) -> FatalError {
    FatalError { status, information: 0 }
}
