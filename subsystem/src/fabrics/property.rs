//! Property Get and Property Set.

use crate::association::{Association, ControllerType};
use crate::status;
use nvme_proto::fabrics::property::{
    Capabilities, Configuration, ControllerStatus, Property, PropertyGet, PropertySet, version,
};
use nvme_proto::{Sqe, Status};

/// NVMe 2.0.
pub(crate) const VERSION: u32 = version(2, 0, 0);
/// How long enabling and disabling may take (CAP.TO): a reset waits for the I/O queues to go.
const READY_TIMEOUT_500MS: u8 = 30;
/// CAP.CRMS: controller ready with media.
const CAP_READY_WITH_MEDIA: u64 = 1 << 59;
/// CC.CSS: the NVM command set, or all that are supported (which is the same here).
const CSS_NVM: u8 = 0b000;
const CSS_ALL: u8 = 0b110;

/// CC.SHN: a normal shutdown.
const SHN_NORMAL: u8 = 0b01;

/// What Property Set changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing that matters to anyone.
    None,
    /// EN 0 to 1.
    Enabled,
    /// EN 1 to 0: a controller level reset.
    Reset,
    /// SHN asks for a shutdown.
    Shutdown {
        /// Not an abrupt one.
        normal: bool,
    },
}

/// CC, and what follows from it.
#[derive(Debug, Default)]
pub(crate) struct Properties {
    configuration: Configuration,
}

impl Properties {
    pub(crate) fn get(&self, sqe: &Sqe, association: &Association) -> Result<u64, Status> {
        let get = PropertyGet::parse(sqe);
        let is_discovery = association.controller_type == ControllerType::Discovery;
        match (get.property, get.size) {
            (Property::CAP, 1) => {
                let cap =
                    Capabilities::new(association.options.queue_entries_max.into(), READY_TIMEOUT_500MS);
                let ready = if is_discovery { 0 } else { CAP_READY_WITH_MEDIA };
                Ok(cap.with_all_command_sets().0 | ready)
            }
            (Property::VS, 0) => Ok(VERSION.into()),
            (Property::CC, 0) => Ok(self.configuration.0.into()),
            (Property::CSTS, 0) => Ok(self.status(association).0.into()),
            // Reserved on a discovery controller, and reads as 0.
            (Property::CRTO, 0) if is_discovery => Ok(0),
            (Property::CRTO, 0) => Ok(READY_TIMEOUT_500MS.into()),
            _ => Err(status::INVALID_FIELD),
        }
    }

    /// CC as Property Set wants it. Nothing else can be written: there is no subsystem reset (CAP.NSSRS is 0).
    pub(crate) fn check_set(&self, sqe: &Sqe) -> Result<Configuration, Status> {
        let set = PropertySet::parse(sqe);
        if (set.property, set.size) != (Property::CC, 0) {
            return Err(status::INVALID_FIELD);
        }
        let new = Configuration(set.value as u32);
        if new.enabled() && !self.configuration.enabled() {
            check_enable(new)?;
        }
        Ok(new)
    }

    pub(crate) fn configuration(&self) -> Configuration {
        self.configuration
    }

    pub(crate) fn set(&mut self, new: Configuration) -> Change {
        let change = self.change_to(new);
        self.configuration = new;
        change
    }

    /// What it means that CC becomes this.
    pub(crate) fn change_to(&self, new: Configuration) -> Change {
        let old = self.configuration;
        match (old.enabled(), new.enabled()) {
            (true, false) => Change::Reset,
            _ if new.shutdown() != 0 && old.shutdown() == 0 => {
                Change::Shutdown { normal: new.shutdown() == SHN_NORMAL }
            }
            (false, true) => Change::Enabled,
            _ => Change::None,
        }
    }

    /// CSTS. RDY is cleared, and SHST says that a shutdown is complete, once the last I/O queue is closed.
    fn status(&self, association: &Association) -> ControllerStatus {
        let has_io_queues = association.io_queues() > 0;
        let mut status = ControllerStatus::default();
        if self.configuration.enabled() || has_io_queues {
            status = status.with(ControllerStatus::READY);
        }
        if self.configuration.shutdown() != 0 {
            status = status.with(match has_io_queues {
                true => ControllerStatus::SHUTDOWN_OCCURRING,
                false => ControllerStatus::SHUTDOWN_COMPLETE,
            });
        }
        status
    }
}

/// 64-byte submissions, 16-byte completions, 4 KiB pages, round robin, a command set that is there.
fn check_enable(configuration: Configuration) -> Result<(), Status> {
    let good = configuration.io_sqes() == 6
        && configuration.io_cqes() == 4
        && configuration.page_size() == 0
        && configuration.arbitration() == 0
        && matches!(configuration.command_set(), CSS_NVM | CSS_ALL);
    if good { Ok(()) } else { Err(status::INVALID_FIELD) }
}
