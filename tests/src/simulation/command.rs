//! Commands of hosts that change what hosts may do with the namespace: for its reservation, and for its write protection.

use super::reservation::{self, Host};
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::admin::features::{FeatureId, HOST_BEHAVIOR_LEN, SetFeatures};
use nvme_proto::nvm::copy::DescriptorFormat;
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AdminData, Command as Sent};
use nvmf_initiator::driver::{Driver, QueueKind, Recipient};
use nvmf_initiator::transport::Transport;
use nvmf_subsystem::{ReservationCommand, WriteProtection};

/// One.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Reservation(ReservationCommand),
    Protection(WriteProtection),
}

/// One that was answered.
#[derive(Debug, Clone)]
pub(super) struct Done {
    pub(super) host: Host,
    pub(super) command: Command,
    pub(super) at: Duration,
    pub(super) is_success: bool,
}

impl Command {
    /// What is counted of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Reservation(command) => reservation::name(&command),
            Self::Protection(WriteProtection::Off) => "end of a write protection",
            Self::Protection(WriteProtection::On) => "write protection",
            Self::Protection(WriteProtection::UntilPowerCycle) => "write protection until a power cycle",
        }
    }

    /// Whether it lets nobody write: what was written before is durable then.
    pub(super) fn protects(self) -> bool {
        matches!(self, Self::Protection(WriteProtection::On | WriteProtection::UntilPowerCycle))
    }

    /// Sends it.
    pub(super) fn submit<T: Transport>(self, driver: &mut Driver<T>, number: u32) {
        let (queue, command) = match self {
            Self::Reservation(command) => (QueueKind::Io, reservation::encoded(&command, Nsid(1))),
            Self::Protection(to) => (QueueKind::Admin, protect(to)),
        };
        driver.submit_command(number, queue, Recipient::OpenedDisk, command);
    }
}

fn protect(to: WriteProtection) -> AdminCommand {
    let wps = match to {
        WriteProtection::Off => 0,
        WriteProtection::On => 1,
        WriteProtection::UntilPowerCycle => 2,
    };
    let feature = SetFeatures::new(FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG, wps);
    set_feature(SetFeatures { nsid: Nsid(1), ..feature }, AdminData::None)
}

/// Enables Copy from other namespaces.
pub(super) fn allow_copies_across() -> AdminCommand {
    let mut bytes = vec![0; HOST_BEHAVIOR_LEN];
    bytes[4] = 1 << DescriptorFormat::FORMAT_2.0;
    let data = AdminData::ToController { bytes, in_capsule: false };
    set_feature(SetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT, 0), data)
}

fn set_feature(feature: SetFeatures, data: AdminData) -> AdminCommand {
    AdminCommand { command: Sent::new(feature.emit()), data }
}
