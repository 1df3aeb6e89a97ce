//! Whether a command may have its namespace: masking, ANA state, write protection, reservations, in this order.

use crate::association::Association;
use crate::namespace::{Namespace, NamespaceTable};
use crate::{Nsid, status};
use nvme_proto::Status;
use nvme_proto::opcode::NvmOpcode;

/// What a command does with a namespace, as reservations see it (NVMe Base, "Reservations", command behaviour).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It reads blocks.
    Read,
    /// It changes blocks, or what becomes of them.
    Write,
    /// It is about the reservation itself: the reservation decides, with the command's key.
    Reservation,
}

impl Need {
    /// What a command needs of the namespace that its NSID names. A Copy needs [`Need::Read`] of each of its sources
    /// besides. What is not known here counts as a write.
    #[must_use]
    pub fn of(opcode: NvmOpcode) -> Self {
        match opcode {
            NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY => Self::Read,
            NvmOpcode::RESERVATION_REGISTER
            | NvmOpcode::RESERVATION_REPORT
            | NvmOpcode::RESERVATION_ACQUIRE
            | NvmOpcode::RESERVATION_RELEASE => Self::Reservation,
            // Flush, Write, Write Uncorrectable, Write Zeroes, Dataset Management, Copy's destination.
            _ => Self::Write,
        }
    }
}

impl NamespaceTable {
    /// The namespace of that NSID, if this association's host may use it in this way now.
    ///
    /// # Errors
    /// The status of the command. An NSID that is not active is Invalid Namespace or Format, like one that can never
    /// be. (The standard would have Invalid Field for an inactive one; hosts take only this status for a namespace that
    /// was removed.)
    pub(crate) fn access(
        &self,
        nsid: Nsid,
        need: Need,
        association: &Association,
    ) -> Result<&Namespace, Status> {
        let namespace = self.entry(nsid).ok_or(status::INVALID_NAMESPACE)?;
        if namespace.is_guarded {
            self.check(namespace, need, association)?;
        }
        Ok(namespace)
    }

    #[cold]
    fn check(&self, namespace: &Namespace, need: Need, association: &Association) -> Result<(), Status> {
        if !namespace.is_seen_by(&association.host_nqn) {
            return Err(status::INVALID_NAMESPACE);
        }
        if let Some(refusal) = namespace.definition.refusal(self.ana(), association.port) {
            return Err(refusal);
        }
        if namespace.reservation.allows(association.host_id, need) {
            return Ok(());
        }
        let is_write = need == Need::Write && namespace.definition.is_read_only();
        Err(if is_write { status::NAMESPACE_WRITE_PROTECTED } else { status::RESERVATION_CONFLICT })
    }
}
