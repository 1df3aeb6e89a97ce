//! The control path: what exists, who may have it, who has it.

use crate::discovery::Port;
use crate::{
    Admission, Association, ConnectRequest, DefinitionError, HostAccess, NamespaceDefinition, Notice, Nsid,
    Options, OptionsError, Qid, SubsystemDefinition,
};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

/// Everything that the target serves, and every association. One for the whole target, under one lock, which is taken
/// for a Connect, the end of a queue and a change of the configuration, and for nothing else.
///
/// A change leaves [`Notice`]s: take them with [`Registry::take_notices`] and deliver each to every worker, in order.
#[derive(Debug)]
pub struct Registry {}

impl Registry {
    /// A registry without subsystems and ports: it serves discovery, of nothing.
    ///
    /// # Errors
    /// The first option outside its bounds.
    pub fn new(_options: Options) -> Result<Self, OptionsError> {
        unimplemented!()
    }

    /// What its controllers serve.
    #[must_use]
    pub fn options(&self) -> &Options {
        unimplemented!()
    }

    /// Adds a subsystem, reachable at once on the ports that serve it.
    ///
    /// # Errors
    /// What is wrong with the definition.
    pub fn add_subsystem(&mut self, _definition: SubsystemDefinition) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// Removes a subsystem: its associations close ([`Notice::Closing`]).
    ///
    /// # Errors
    /// [`DefinitionError::Unknown`].
    pub fn remove_subsystem(&mut self, _nqn: &Nqn) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// Replaces who may connect. Associations of hosts that no longer may close.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn set_hosts(&mut self, _nqn: &Nqn, _hosts: HostAccess) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// Replaces all namespaces of a subsystem: hosts hear of those that are new, gone or different.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn set_namespaces(
        &mut self,
        _nqn: &Nqn,
        _namespaces: Vec<NamespaceDefinition>,
    ) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// Adds one namespace.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn add_namespace(
        &mut self,
        _nqn: &Nqn,
        _namespace: NamespaceDefinition,
    ) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// Removes one namespace.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn remove_namespace(&mut self, _nqn: &Nqn, _nsid: Nsid) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// Replaces the ports. Associations that came in through a port that is gone, or that no longer serves their
    /// subsystem, live on; new Connects are refused.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn set_ports(&mut self, _ports: Vec<Port>) -> Result<(), DefinitionError> {
        unimplemented!()
    }

    /// What the changes since the last call mean to queues. Deliver each notice to every worker.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        unimplemented!()
    }

    /// Judges a Connect. The answer goes into [`crate::Queue::on_admission`]; should the connection be gone by then, an
    /// admitted queue must still be reported to [`Registry::close_queue`].
    pub fn connect(&mut self, _now: Duration, _request: &ConnectRequest) -> Admission {
        unimplemented!()
    }

    /// An admitted queue's connection is gone, for whatever reason. Call it once for each admitted queue, after the last
    /// command of the queue has left the devices. Returns the queues of the association that must be closed as well:
    /// its I/O queues when the Admin queue went.
    pub fn close_queue(&mut self, _association: &Association, _qid: Qid) -> Vec<Qid> {
        unimplemented!()
    }

    /// Every association that has a queue left.
    pub fn associations(&self) -> impl Iterator<Item = &Arc<Association>> {
        core::iter::empty()
    }
}
