//! Reservations: hosts agree on who may write to a disk, and shut out one that has died or lost touch.
//!
//! A host registers with a key, and acquires the reservation; another that is registered takes it away with
//! [`Device::preempt`]. With `abort`, nothing of the old holder's lands afterwards: that is the fence of a standby.
//!
//! Each command waits for a path as an operation does, is carried out once at most, and goes to no other disk than the one
//! that was opened.

use crate::connection;
use crate::driver::QueueKind;
use crate::raw::{IO_DATA_MAX, RawCommand};
use crate::{Device, Effect, Error};
use nvme_proto::Nsid;
use nvme_proto::nvm::reservation as wire;
use nvme_proto::opcode::NvmOpcode;
use zerocopy::IntoBytes;

pub use nvme_proto::nvm::reservation::ReservationType;

/// A host that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registrant {
    /// Its key.
    pub key: u64,
    /// Its host identifier.
    pub host_id: [u8; 16],
    /// The controller that it uses; `FFFFh` for any.
    pub cntlid: u16,
    /// It holds the reservation.
    pub holds: bool,
}

/// Who is registered, and what is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReservationReport {
    /// Counts the changes.
    pub generation: u32,
    /// The type of the reservation, if there is one.
    pub kind: Option<ReservationType>,
    /// It outlasts a loss of power.
    pub persists: bool,
    /// Those that are registered: the first 15.
    pub registrants: Vec<Registrant>,
}

/// The commands of reservations, for [`Device::raw_io`].
impl RawCommand {
    /// Reservation Register: `crkey` is the key that the host has, `nrkey` the one that it is to have.
    #[must_use]
    pub fn reservation_register(nsid: Nsid, register: &wire::Register, crkey: u64, nrkey: u64) -> Self {
        let data = wire::RegisterData { crkey: crkey.into(), nrkey: nrkey.into() };
        reservation(NvmOpcode::RESERVATION_REGISTER, nsid, register.cdw10(), data.as_bytes())
    }

    /// Reservation Acquire: `crkey` is the host's key, `prkey` that of those to preempt.
    #[must_use]
    pub fn reservation_acquire(nsid: Nsid, acquire: &wire::Acquire, crkey: u64, prkey: u64) -> Self {
        let data = wire::AcquireData { crkey: crkey.into(), prkey: prkey.into() };
        reservation(NvmOpcode::RESERVATION_ACQUIRE, nsid, acquire.cdw10(), data.as_bytes())
    }

    /// Reservation Release: `crkey` is the host's key.
    #[must_use]
    pub fn reservation_release(nsid: Nsid, release: &wire::Release, crkey: u64) -> Self {
        let data = wire::ReleaseData { crkey: crkey.into() };
        reservation(NvmOpcode::RESERVATION_RELEASE, nsid, release.cdw10(), data.as_bytes())
    }

    /// Reservation Report: [`wire::ReservationStatus::parse_extended`] reads what comes back, up to 15 registrants.
    #[must_use]
    pub fn reservation_report(nsid: Nsid) -> Self {
        let report = wire::Report { len: IO_DATA_MAX as u64, extended: true, dispersed: false };
        Self::new(NvmOpcode::RESERVATION_REPORT.0, nsid)
            .with_dwords([report.cdw10(), report.cdw11(), 0, 0, 0, 0])
            .receiving(IO_DATA_MAX as u32)
    }
}

fn reservation(opcode: NvmOpcode, nsid: Nsid, cdw10: u32, data: &[u8]) -> RawCommand {
    RawCommand::new(opcode.0, nsid).with_dwords([cdw10, 0, 0, 0, 0, 0]).sending(data.to_vec())
}

impl Device {
    /// Registers this host with a key that is not zero. With `persist`, registrations and the reservation outlast a loss of
    /// power of the controller's; without, that stays as it is.
    ///
    /// # Errors
    /// [`Error::Io`] with [`ReservationConflict`](crate::BlockError::ReservationConflict) where it has another key; else what
    /// ended the connection: whether it took effect is not known then.
    pub async fn register(&self, key: u64, persist: bool) -> Result<(), Error> {
        self.change_registration(wire::RegisterAction::REGISTER, 0, key, persist).await
    }

    /// Gives this host another key.
    ///
    /// # Errors
    /// As [`Device::register`], where `old` is not its key.
    pub async fn replace_key(&self, old: u64, new: u64) -> Result<(), Error> {
        self.change_registration(wire::RegisterAction::REPLACE, old, new, false).await
    }

    /// Takes this host's registration away, and with it a reservation that it holds alone.
    ///
    /// # Errors
    /// As [`Device::register`], where `key` is not its key.
    pub async fn unregister(&self, key: u64) -> Result<(), Error> {
        self.change_registration(wire::RegisterAction::UNREGISTER, key, 0, false).await
    }

    /// Acquires the reservation.
    ///
    /// # Errors
    /// As [`Device::register`], where another host holds it.
    pub async fn acquire(&self, key: u64, kind: ReservationType) -> Result<(), Error> {
        self.take(wire::AcquireAction::ACQUIRE, key, 0, kind).await
    }

    /// Takes away the registrations with the key `victim`, and acquires the reservation if one of them held it. With `abort`,
    /// what these hosts have under way has ended when this ends, and nothing of it takes effect later.
    ///
    /// # Errors
    /// As [`Device::register`], where nobody has the key.
    pub async fn preempt(
        &self,
        key: u64,
        victim: u64,
        kind: ReservationType,
        abort: bool,
    ) -> Result<(), Error> {
        let action =
            if abort { wire::AcquireAction::PREEMPT_AND_ABORT } else { wire::AcquireAction::PREEMPT };
        self.take(action, key, victim, kind).await
    }

    /// Releases the reservation that this host holds.
    ///
    /// # Errors
    /// As [`Device::register`], where it is of another type.
    pub async fn release(&self, key: u64, kind: ReservationType) -> Result<(), Error> {
        self.give_up(wire::ReleaseAction::RELEASE, key, kind).await
    }

    /// Takes every registration and the reservation away.
    ///
    /// # Errors
    /// As [`Device::register`].
    pub async fn clear_reservations(&self, key: u64) -> Result<(), Error> {
        self.give_up(wire::ReleaseAction::CLEAR, key, ReservationType::NONE).await
    }

    /// Who is registered, and what is reserved.
    ///
    /// # Errors
    /// What the controller says, and what ended the connection.
    pub async fn reservation_report(&self) -> Result<ReservationReport, Error> {
        let what = "a reservation report";
        let data = self.raw(what, RawCommand::reservation_report(self.nsid())).await?;
        let Some((status, registrants)) = wire::ReservationStatus::parse_extended(&data) else {
            return Err(Error::System { what, reason: "the controller's answer is cut off".to_owned() });
        };
        let registrants = registrants.iter().map(|it| Registrant {
            key: it.key.get(),
            host_id: it.hostid,
            cntlid: it.cntlid.get(),
            holds: it.holds(),
        });
        Ok(ReservationReport {
            generation: status.generation.get(),
            kind: (status.rtype != ReservationType::NONE).then_some(status.rtype),
            persists: status.ptpls != 0,
            registrants: registrants.collect(),
        })
    }

    async fn change_registration(
        &self,
        action: wire::RegisterAction,
        current: u64,
        new: u64,
        persist: bool,
    ) -> Result<(), Error> {
        let persist = if persist { wire::PersistChange::PERSIST } else { wire::PersistChange::NONE };
        let register = wire::Register { action, ignore_key: false, persist, dispersed: false };
        let command = RawCommand::reservation_register(self.nsid(), &register, current, new);
        self.raw("a registration", command).await.map(drop)
    }

    async fn take(
        &self,
        action: wire::AcquireAction,
        key: u64,
        victim: u64,
        kind: ReservationType,
    ) -> Result<(), Error> {
        let acquire = wire::Acquire { action, ignore_key: false, kind, dispersed: false };
        let command = RawCommand::reservation_acquire(self.nsid(), &acquire, key, victim);
        self.raw("an acquisition", command).await.map(drop)
    }

    async fn give_up(
        &self,
        action: wire::ReleaseAction,
        key: u64,
        kind: ReservationType,
    ) -> Result<(), Error> {
        let release = wire::Release { action, ignore_key: false, kind, dispersed: false };
        let command = RawCommand::reservation_release(self.nsid(), &release, key);
        self.raw("a release", command).await.map(drop)
    }

    /// Sends a raw command to the disk that was opened; what it receives.
    async fn raw(&self, what: &'static str, command: RawCommand) -> Result<Vec<u8>, Error> {
        let effect = connection::effect(QueueKind::Io, command.opcode());
        let reply = self.send_io(what, command).await?;
        let status = reply.outcome.status;
        if status.is_success() {
            return Ok(reply.data);
        }
        let source = nvmf_host::status::block_error_of_single(status);
        let effect = if effect == Effect::Nothing { effect } else { Effect::of_status(status) };
        Err(Error::Io { what, offset: 0, len: 0, effect, source })
    }
}
