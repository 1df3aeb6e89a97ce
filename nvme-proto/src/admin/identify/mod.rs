//! Identify (NVMe Base, "Identify command").

mod controller;
mod controller_lists;
mod lists;
mod namespace;
mod nvm_specific;

pub use controller::{
    IdentifyController, PowerStateDescriptor, cmic, ctratt, fuses, lpa, oacs, oncs, sgls, vwc,
};
pub use controller_lists::{CommandSets, ControllerList, SecondaryController, SecondaryControllerList};
pub use lists::{Descriptor, DescriptorWriter, Descriptors, IdList, NamespaceIdType};
pub use namespace::{IdentifyNamespace, IndependentNamespace, LbaFormat, independent_nsfeat, nsfeat};
pub use nvm_specific::{NvmController, NvmNamespace};

use crate::ident::{Cntlid, Nsid};
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

/// Bytes of every Identify data structure.
pub const LEN: usize = 4096;

open_enum! {
    /// Controller or namespace structure: what is asked for.
    pub struct Cns: u8 {
        /// A namespace.
        NAMESPACE = 0x00,
        /// The controller.
        CONTROLLER = 0x01,
        /// The active namespaces above an NSID.
        ACTIVE_NAMESPACES = 0x02,
        /// A namespace's identification descriptors.
        NAMESPACE_DESCRIPTORS = 0x03,
        /// NVM sets.
        NVM_SETS = 0x04,
        /// A namespace, I/O command set specific.
        COMMAND_SET_NAMESPACE = 0x05,
        /// The controller, I/O command set specific.
        COMMAND_SET_CONTROLLER = 0x06,
        /// The active namespaces of one I/O command set.
        COMMAND_SET_ACTIVE_NAMESPACES = 0x07,
        /// A namespace, independent of its I/O command set.
        INDEPENDENT_NAMESPACE = 0x08,
        /// The allocated namespaces above an NSID.
        ALLOCATED_NAMESPACES = 0x10,
        /// An allocated namespace.
        ALLOCATED_NAMESPACE = 0x11,
        /// Controllers that a namespace is attached to.
        NAMESPACE_CONTROLLERS = 0x12,
        /// Controllers of the subsystem.
        SUBSYSTEM_CONTROLLERS = 0x13,
        /// Primary controller capabilities.
        PRIMARY_CONTROLLER = 0x14,
        /// Secondary controllers.
        SECONDARY_CONTROLLERS = 0x15,
        /// Namespace granularities.
        NAMESPACE_GRANULARITY = 0x16,
        /// UUIDs.
        UUIDS = 0x17,
        /// Domains.
        DOMAINS = 0x18,
        /// Endurance groups.
        ENDURANCE_GROUPS = 0x19,
        /// I/O command set combinations.
        COMMAND_SETS = 0x1c,
    }
}

/// I/O command set identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

/// Identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identify {
    /// What.
    pub cns: Cns,
    /// Of which namespace, where that matters.
    pub nsid: Nsid,
    /// From which controller on, where that matters.
    pub cntid: Cntlid,
    /// CNS specific identifier.
    pub cns_specific: u16,
    /// I/O command set.
    pub csi: u8,
    /// UUID index.
    pub uuid_index: u8,
}

impl Identify {
    /// Asks for this.
    #[must_use]
    pub fn new(cns: Cns, nsid: Nsid) -> Self {
        Self { cns, nsid, cntid: Cntlid(0), cns_specific: 0, csi: CSI_NVM, uuid_index: 0 }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, cdw11, _, _, cdw14, _] = sqe.dwords();
        Self {
            cns: Cns(cdw10 as u8),
            nsid: sqe.nsid(),
            cntid: Cntlid((cdw10 >> 16) as u16),
            cns_specific: cdw11 as u16,
            csi: (cdw11 >> 24) as u8,
            uuid_index: cdw14 as u8 & 0x7f,
        }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let cdw10 = u32::from(self.cns.0) | u32::from(self.cntid.0) << 16;
        let cdw11 = u32::from(self.cns_specific) | u32::from(self.csi) << 24;
        let sqe = Sqe::new(AdminOpcode::IDENTIFY.0).with_nsid(self.nsid);
        sqe.with_dwords([cdw10, cdw11, 0, 0, u32::from(self.uuid_index & 0x7f), 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(cdw: [u32; 6], nsid: u32) {
            let sqe = Sqe::new(AdminOpcode::IDENTIFY.0).with_nsid(Nsid(nsid)).with_dwords(cdw);
            let command = Identify::parse(&sqe);
            prop_assert_eq!(Identify::parse(&command.emit()), command);
        }
    }
}
