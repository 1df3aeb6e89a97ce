//! Reservations: hosts agree on who may write to a disk, and shut out one that has died or lost touch.
//!
//! A host registers with a key, and acquires the reservation; another that is registered takes it away with
//! [`Device::preempt`]. With `abort`, nothing of the old holder's lands afterwards: that is the fence of a standby.

use crate::raw::{IO_DATA_MAX, RawCommand};
use crate::{Device, Error};
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
        let report = wire::Report { len: IO_DATA_MAX as u64, extended: true, dispersed: false };
        let command = RawCommand::new(NvmOpcode::RESERVATION_REPORT.0, self.nsid())
            .with_dwords([report.cdw10(), report.cdw11(), 0, 0, 0, 0])
            .receiving(IO_DATA_MAX as u32);
        let what = "a reservation report";
        let data = self.raw(what, command).await?;
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
        let data = wire::RegisterData { crkey: current.into(), nrkey: new.into() };
        self.reserve("a registration", NvmOpcode::RESERVATION_REGISTER, register.cdw10(), data.as_bytes())
            .await
    }

    async fn take(
        &self,
        action: wire::AcquireAction,
        key: u64,
        victim: u64,
        kind: ReservationType,
    ) -> Result<(), Error> {
        let acquire = wire::Acquire { action, ignore_key: false, kind, dispersed: false };
        let data = wire::AcquireData { crkey: key.into(), prkey: victim.into() };
        self.reserve("an acquisition", NvmOpcode::RESERVATION_ACQUIRE, acquire.cdw10(), data.as_bytes()).await
    }

    async fn give_up(
        &self,
        action: wire::ReleaseAction,
        key: u64,
        kind: ReservationType,
    ) -> Result<(), Error> {
        let release = wire::Release { action, ignore_key: false, kind, dispersed: false };
        let data = wire::ReleaseData { crkey: key.into() };
        self.reserve("a release", NvmOpcode::RESERVATION_RELEASE, release.cdw10(), data.as_bytes()).await
    }

    async fn reserve(
        &self,
        what: &'static str,
        opcode: NvmOpcode,
        cdw10: u32,
        data: &[u8],
    ) -> Result<(), Error> {
        let command = RawCommand::new(opcode.0, self.nsid());
        let command = command.with_dwords([cdw10, 0, 0, 0, 0, 0]).sending(data.to_vec());
        self.raw(what, command).await.map(drop)
    }

    /// Sends a raw command to the disk that was opened; what it receives.
    async fn raw(&self, what: &'static str, command: RawCommand) -> Result<Vec<u8>, Error> {
        self.check_identity()?;
        let reply = self.connection().raw_io(command).await?;
        let status = reply.outcome.status;
        if status.is_success() {
            return Ok(reply.data);
        }
        Err(Error::Io { what, offset: 0, len: 0, source: nvmf_host::status::block_error(status) })
    }
}
