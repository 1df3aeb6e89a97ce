//! Reservation commands: what they carry.

use super::{Reservation, is_type};
use crate::data::{self, Fit};
use crate::io::IoKind;
use crate::question::{Question, ReservationQuestion};
use crate::step::Work;
use crate::ticket::{Kind, Outcome, Reply};
use crate::{Association, Nsid, Page, status};
use alloc::boxed::Box;
use alloc::sync::Arc;
use nvme_proto::nvm::reservation::{
    Acquire, AcquireAction, AcquireData, PersistChange, Register, RegisterAction, RegisterData, Release,
    ReleaseAction, ReleaseData, Report, ReservationType,
};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Sqe, Status};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// What a host wants of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Register a key that the host does not have yet, or `new` in place of any key.
    Register {
        /// The key.
        new: u64,
        /// IEKEY: also if the host is registered with another key.
        ignore_key: bool,
        /// CPTPL.
        persist: PersistChange,
    },
    /// Give up the registration.
    Unregister {
        /// The key that the host has; any if `None` (IEKEY), also none at all.
        current: Option<u64>,
        /// CPTPL.
        persist: PersistChange,
    },
    /// Change the key.
    Replace {
        /// The key that the host has; any if `None` (IEKEY), also none at all.
        current: Option<u64>,
        /// The key that it wants.
        new: u64,
        /// CPTPL.
        persist: PersistChange,
    },
    /// Acquire a reservation.
    Acquire {
        /// The host's key.
        key: u64,
        /// Of this type.
        kind: ReservationType,
    },
    /// Take the reservation, or the registration, of others.
    Preempt {
        /// The host's key.
        key: u64,
        /// The type that the reservation has then, if it is taken.
        kind: ReservationType,
        /// Whose; 0 of everyone.
        preempted: u64,
        /// What those have in flight is over before the command completes.
        abort: bool,
    },
    /// Release the reservation.
    Release {
        /// The host's key.
        key: u64,
        /// Its type.
        kind: ReservationType,
    },
    /// Release it and unregister everyone.
    Clear {
        /// The host's key.
        key: u64,
    },
    /// The Reservation Persistence feature.
    SetPersistence {
        /// Whether it persists.
        persists: bool,
    },
}

/// A command whose data are being transferred.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pulled {
    pub(crate) nsid: Nsid,
    pub(crate) uuid: [u8; 16],
    pub(crate) opcode: NvmOpcode,
    pub(crate) cdw10: u32,
}

/// Asks for the data of Reservation Register, Acquire or Release.
pub(crate) fn pull(sqe: &Sqe, pulled: Pulled, in_capsule_len: usize) -> Outcome {
    let len = match pulled.opcode {
        NvmOpcode::RESERVATION_RELEASE => size_of::<ReleaseData>(),
        _ => size_of::<RegisterData>(),
    };
    let transfer = data::from_host(sqe, len as u32, Fit::AtLeast, in_capsule_len)?;
    let kind = Kind::Io(IoKind::Reservation(Box::new(pulled)));
    Ok(Reply::Execute { kind, work: Work::Parameters, transfer })
}

impl Pulled {
    /// The data are there: the control plane decides.
    pub(crate) fn ask(&self, association: &Arc<Association>, data: &[u8]) -> Outcome {
        let command = parse(self.opcode, self.cdw10, data)?;
        let (association, nsid, uuid) = (Arc::clone(association), self.nsid, self.uuid);
        let question = Question::Reservation(ReservationQuestion { association, nsid, uuid, command });
        let kind = Kind::Io(IoKind::Plain(status::Direction::Write));
        Ok(Reply::Ask { kind, question: Box::new(question) })
    }
}

/// Reads Reservation Register, Acquire or Release.
///
/// # Errors
/// [`status::INVALID_FIELD`]: what the standard does not have, a key of 0 that is to be registered, a key that is to
/// be ignored by other commands than Register.
fn parse(opcode: NvmOpcode, cdw10: u32, data: &[u8]) -> Result<ReservationCommand, Status> {
    let command = match opcode {
        NvmOpcode::RESERVATION_REGISTER => register(Register::parse(cdw10), read(data)?),
        NvmOpcode::RESERVATION_ACQUIRE => acquire(Acquire::parse(cdw10), read(data)?),
        NvmOpcode::RESERVATION_RELEASE => release(Release::parse(cdw10), read(data)?),
        _ => None,
    };
    command.ok_or(status::INVALID_FIELD)
}

fn read<T: FromBytes + KnownLayout + Immutable>(data: &[u8]) -> Result<T, Status> {
    T::read_from_bytes(data).map_err(|_| status::INVALID_FIELD)
}

fn register(command: Register, data: RegisterData) -> Option<ReservationCommand> {
    let Register { action, ignore_key, persist, .. } = command;
    if !matches!(persist, PersistChange::NONE | PersistChange::CLEAR | PersistChange::PERSIST) {
        return None;
    }
    let new = data.nrkey.get();
    let current = (!ignore_key).then_some(data.crkey.get());
    match action {
        RegisterAction::REGISTER if new != 0 => {
            Some(ReservationCommand::Register { new, ignore_key, persist })
        }
        RegisterAction::UNREGISTER => Some(ReservationCommand::Unregister { current, persist }),
        RegisterAction::REPLACE if new != 0 => Some(ReservationCommand::Replace { current, new, persist }),
        _ => None,
    }
}

fn acquire(command: Acquire, data: AcquireData) -> Option<ReservationCommand> {
    let Acquire { action, ignore_key, kind, .. } = command;
    if ignore_key || !is_type(kind) {
        return None;
    }
    let (key, preempted) = (data.crkey.get(), data.prkey.get());
    match action {
        AcquireAction::ACQUIRE => Some(ReservationCommand::Acquire { key, kind }),
        AcquireAction::PREEMPT | AcquireAction::PREEMPT_AND_ABORT => {
            let abort = action == AcquireAction::PREEMPT_AND_ABORT;
            Some(ReservationCommand::Preempt { key, kind, preempted, abort })
        }
        _ => None,
    }
}

fn release(command: Release, data: ReleaseData) -> Option<ReservationCommand> {
    let Release { action, ignore_key, kind, .. } = command;
    let key = data.crkey.get();
    match action {
        _ if ignore_key => None,
        ReleaseAction::RELEASE => Some(ReservationCommand::Release { key, kind }),
        ReleaseAction::CLEAR => Some(ReservationCommand::Clear { key }),
        _ => None,
    }
}

/// Reservation Report: as much of it as the host asks for. Fabrics has Host Identifiers of 128 bits only, which the
/// short form has no room for.
pub(crate) fn report(sqe: &Sqe, reservation: &Reservation, transfer_max: u32) -> Outcome {
    let [cdw10, cdw11, ..] = sqe.dwords();
    let command = Report::parse(cdw10, cdw11);
    if !command.extended {
        return Err(Status::HOST_ID_INCONSISTENT_FORMAT.with_dnr());
    }
    let len =
        u32::try_from(command.len).ok().filter(|&len| len <= transfer_max).ok_or(status::INVALID_FIELD)?;
    let transfer = data::to_host(sqe, len, Fit::AtLeast)?;
    let report = reservation.report();
    let page = Page::sized(report.len(), |out| out.copy_from_slice(&report));
    let kind = Kind::Io(IoKind::Plain(status::Direction::Read));
    Ok(Reply::Execute { kind, work: Work::Page(Box::new(page)), transfer })
}
