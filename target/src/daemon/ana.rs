//! Asymmetric namespace access: how the namespaces of a group are reached through a listener.

use super::Daemon;
use core::net::SocketAddr;
use nvmf_config::{AnaGroup, Listener};
use nvmf_subsystem::{AnaState, DefinitionError, Registry};
use thiserror::Error;

/// The state of an ANA group was not changed as asked.
#[derive(Debug, Error)]
pub enum AnaError {
    /// Nothing listens there.
    #[error("no [[listener]] has the address {0}")]
    NoListener(SocketAddr),
    /// The group or the state does not exist.
    #[error(transparent)]
    Definition(Box<DefinitionError>),
}

/// Sets the groups of all listeners, before anybody listens.
pub(super) fn set_initial(
    registry: &mut Registry,
    listeners: &[Listener],
) -> Result<(), Box<DefinitionError>> {
    for (port, listener) in (1..).zip(listeners) {
        for &AnaGroup { id, state } in &listener.ana_groups {
            registry.set_ana_state(port, id, state)?;
        }
    }
    Ok(())
}

impl Daemon {
    /// Sets how the namespaces of an ANA group are reached through the listeners with this address.
    ///
    /// # Errors
    /// [`AnaError`]: nothing was changed.
    pub fn set_ana_state(
        &mut self,
        address: SocketAddr,
        group: u32,
        state: AnaState,
    ) -> Result<(), AnaError> {
        let of_address = |at: &usize| self.config.listeners[*at].address == address;
        let listeners: Vec<usize> = (0..self.config.listeners.len()).filter(of_address).collect();
        if listeners.is_empty() {
            return Err(AnaError::NoListener(address));
        }
        for at in listeners {
            self.set_group(at, AnaGroup { id: group, state }).map_err(AnaError::Definition)?;
        }
        Ok(())
    }

    fn set_group(&mut self, listener: usize, group: AnaGroup) -> Result<(), Box<DefinitionError>> {
        let AnaGroup { id, state } = group;
        let port = self.listeners[listener].port();
        self.registry().set_ana_state(port, id, state)?;
        self.publish();
        let listener = &mut self.config.listeners[listener];
        listener.ana_groups.retain(|group| group.id != id);
        listener.ana_groups.push(group);
        tracing::info!("ANA group {id} behind {} is {state:?} from now on", listener.address);
        Ok(())
    }

    /// Takes over the states that a changed configuration has for the listener at a place of it.
    pub(super) fn set_groups(&mut self, at: usize, wanted: &[AnaGroup]) -> Result<(), Box<DefinitionError>> {
        let old = self.config.listeners[at].ana_groups.clone();
        let state = |groups: &[AnaGroup], id| {
            groups.iter().find(|group| group.id == id).map_or(AnaState::OPTIMIZED, |group| group.state)
        };
        for group in old.iter().chain(wanted) {
            let state_wanted = state(wanted, group.id);
            if state_wanted != state(&self.config.listeners[at].ana_groups, group.id) {
                self.set_group(at, AnaGroup { id: group.id, state: state_wanted })?;
            }
        }
        self.config.listeners[at].ana_groups = wanted.to_vec();
        Ok(())
    }
}
