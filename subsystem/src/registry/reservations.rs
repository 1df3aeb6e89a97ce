//! Reservations: decided here, stored by the caller, then put in force.

use super::Registry;
use crate::association::Notice;
use crate::question::{ReservationQuestion, WriteProtectionQuestion};
use crate::reservation::Change;
use crate::{
    DefinitionError, NamespaceDefinition, NamespaceTable, Nqn, Nsid, Reservation, WriteProtection, status,
};
use alloc::sync::Arc;
use nvme_proto::Status;
use nvmf_block::DeviceId;

impl Registry {
    /// What a command makes of the reservation of its namespace. Nothing is changed yet: store the new reservation first,
    /// if it is another one and it persists or the old one did, then [`Registry::set_reservation`].
    ///
    /// # Errors
    /// The status of the command.
    pub fn plan_reservation(&self, question: &ReservationQuestion) -> Result<Change, Status> {
        let ReservationQuestion { association, nsid, uuid, command } = question;
        let table = self.namespaces(&association.subsystem_nqn).ok_or(status::INVALID_NAMESPACE)?;
        let namespace = table.entry(*nsid).filter(|it| it.definition.uuid == *uuid);
        let namespace = namespace.ok_or(status::INVALID_NAMESPACE)?;
        accessible(table, association.port, &namespace.definition)?;
        let may_persist = namespace.definition.access.reservation_persists;
        namespace.reservation.apply(association.host_id, command, may_persist)
    }

    /// Puts what was planned in force: a [`Notice`] for every queue, and one for those that are told.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn set_reservation(&mut self, question: &ReservationQuestion, change: Change) -> Result<(), Status> {
        let ReservationQuestion { association, nsid, uuid, .. } = question;
        let subsystem = self.subsystems.get_mut(&association.subsystem_nqn);
        let subsystem = subsystem.ok_or(status::INVALID_NAMESPACE)?;
        let table = subsystem.namespaces.with_reservation(*nsid, *uuid, change.reservation);
        subsystem.namespaces = Arc::new(table.ok_or(status::INVALID_NAMESPACE)?);
        self.notices.push(Notice::Namespaces(Arc::clone(&subsystem.namespaces)));
        if !change.notices.is_empty() {
            let notices = change.notices.into();
            self.notices.push(Notice::Reservation { subsystem: subsystem.id, nsid: *nsid, notices });
        }
        Ok(())
    }

    /// Whether the namespace of a write protection is there.
    ///
    /// # Errors
    /// It is gone.
    pub fn plan_write_protection(&self, question: &WriteProtectionQuestion) -> Result<(), Status> {
        let table = self.namespaces(&question.association.subsystem_nqn);
        let namespace = table.and_then(|table| table.get(question.nsid));
        let namespace = namespace.filter(|it| it.uuid == question.uuid).ok_or(status::INVALID_NAMESPACE)?;
        table.map_or(Ok(()), |table| accessible(table, question.association.port, namespace))
    }

    /// Puts a write protection in force: a [`Notice`] for every queue. Store it first, if it persists. Returns the device of
    /// the namespace.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn set_write_protection(&mut self, question: &WriteProtectionQuestion) -> Result<DeviceId, Status> {
        let WriteProtectionQuestion { association, nsid, uuid, to, .. } = question;
        self.protect(&association.subsystem_nqn, *nsid, *uuid, *to)
    }

    /// Ends a write protection, also one that hosts cannot end: the operator says so.
    ///
    /// # Errors
    /// The namespace is gone.
    pub fn lift_write_protection(&mut self, nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> Result<(), Status> {
        self.protect(nqn, nsid, uuid, WriteProtection::Off).map(drop)
    }

    fn protect(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        uuid: [u8; 16],
        to: WriteProtection,
    ) -> Result<DeviceId, Status> {
        let subsystem = self.subsystems.get_mut(nqn).ok_or(status::INVALID_NAMESPACE)?;
        let table = subsystem.namespaces.with_write_protection(nsid, uuid, to);
        subsystem.namespaces = Arc::new(table.ok_or(status::INVALID_NAMESPACE)?);
        self.notices.push(Notice::Namespaces(Arc::clone(&subsystem.namespaces)));
        Ok(subsystem.namespaces.get(nsid).ok_or(status::INVALID_NAMESPACE)?.device)
    }

    /// Gives a namespace the write protection that it has: another target has served it meanwhile.
    ///
    /// # Errors
    /// [`DefinitionError::Nsid`]: there is no such namespace.
    pub fn restore_write_protection(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        uuid: [u8; 16],
        to: WriteProtection,
    ) -> Result<(), DefinitionError> {
        self.protect(nqn, nsid, uuid, to).map(drop).map_err(|_| DefinitionError::Nsid { nsid, nqn: *nqn })
    }

    /// Gives a namespace the reservation that it had before a loss of power. Nobody may have seen it without.
    ///
    /// # Errors
    /// [`DefinitionError::Nsid`]: there is no such namespace.
    pub fn restore_reservation(
        &mut self,
        nqn: &Nqn,
        nsid: Nsid,
        uuid: [u8; 16],
        reservation: Reservation,
    ) -> Result<(), DefinitionError> {
        let subsystem = self.subsystems.get_mut(nqn).ok_or(DefinitionError::Unknown(*nqn))?;
        let table = subsystem.namespaces.with_reservation(nsid, uuid, reservation);
        subsystem.namespaces = Arc::new(table.ok_or(DefinitionError::Nsid { nsid, nqn: *nqn })?);
        // In place of the notice in which it has none.
        let id = subsystem.id;
        self.notices.retain(|it| !matches!(it, Notice::Namespaces(table) if table.subsystem() == id));
        self.notices.push(Notice::Namespaces(Arc::clone(&subsystem.namespaces)));
        Ok(())
    }
}

/// Another target may have the namespace by now, and change the same.
fn accessible(table: &NamespaceTable, port: u16, namespace: &NamespaceDefinition) -> Result<(), Status> {
    namespace.refusal(table.ana(), port).map_or(Ok(()), Err)
}
