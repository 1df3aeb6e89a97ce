//! Asymmetric namespace access: how the namespaces of a group are reached through a listener.

use super::Daemon;
use crate::ports::port_id;
use core::net::SocketAddr;
use nvmf_config::{AnaGroup, Config, Listener};
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
    for (at, listener) in listeners.iter().enumerate() {
        for &AnaGroup { id, state } in &listener.ana_groups {
            registry.set_ana_state(port_id(at), id, state)?;
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
        self.registry().set_ana_state(port_id(listener), id, state)?;
        self.publish();
        let listener = &mut self.config.listeners[listener];
        listener.ana_groups.retain(|group| group.id != id);
        listener.ana_groups.push(group);
        tracing::info!("ANA group {id} behind {} is {state:?} from now on", listener.address);
        Ok(())
    }

    /// Takes over the states of a changed configuration. Listeners are known by their address and transport.
    pub(super) fn apply_ana(&mut self, config: &Config) {
        let mut changes = Vec::new();
        for (at, old) in self.config.listeners.iter().enumerate() {
            let same = |new: &&Listener| (new.address, new.transport) == (old.address, old.transport);
            let Some(new) = config.listeners.iter().find(same) else { continue };
            let state = |groups: &[AnaGroup], id| {
                groups.iter().find(|group| group.id == id).map_or(AnaState::OPTIMIZED, |group| group.state)
            };
            for group in old.ana_groups.iter().chain(&new.ana_groups) {
                let wanted = state(&new.ana_groups, group.id);
                let change = (at, AnaGroup { id: group.id, state: wanted });
                if wanted != state(&old.ana_groups, group.id) && !changes.contains(&change) {
                    changes.push(change);
                }
            }
        }
        for (at, group) in changes {
            if let Err(error) = self.set_group(at, group) {
                tracing::error!("ANA group {} was not changed: {error}", group.id);
            }
        }
    }
}
