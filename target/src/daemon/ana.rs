//! Asymmetric namespace access: how the namespaces of a group are reached through a listener.

use super::Daemon;
use crate::barrier::Scope;
use crate::exports::Export;
use crate::ports::port_id;
use core::net::SocketAddr;
use core::time::Duration;
use nvmf_config::{AnaGroup, Config, Listener};
use nvmf_subsystem::limits::ANA_TRANSITION_S;
use nvmf_subsystem::{AnaState, DefinitionError, Registry};
use std::collections::BTreeSet;
use thiserror::Error;

/// How long the barrier is waited for before the watchdog is looked after.
const PIECE: Duration = Duration::from_millis(500);

/// The state of an ANA group was not changed as asked.
#[derive(Debug, Error)]
pub enum AnaError {
    /// Nothing listens there.
    #[error("no [[listener]] has the address {0}")]
    NoListener(SocketAddr),
    /// The group or the state does not exist.
    #[error(transparent)]
    Definition(#[from] Box<DefinitionError>),
    /// Hosts are refused, but what they sent before is not over.
    #[error(
        "the group is in its new state, but commands that hosts sent before are still on {disks} after {} s: do not let \
         another target write to these disks before `status` shows nothing of them in flight, or this target is stopped",
        ANA_TRANSITION_S
    )]
    Busy {
        /// The disks of the group.
        disks: String,
    },
}

/// Sets the groups of all listeners, before anybody listens.
pub(super) fn set_initial(
    registry: &mut Registry,
    listeners: &[Listener],
) -> Result<(), Box<DefinitionError>> {
    for (at, listener) in listeners.iter().enumerate() {
        for &AnaGroup { id, state } in &listener.ana_groups {
            registry.set_ana_state(port_id(at), id, state).map_err(Box::new)?;
        }
    }
    Ok(())
}

/// Whether hosts use a group in this state.
fn is_reachable(state: AnaState) -> bool {
    matches!(state, AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED)
}

impl Daemon {
    /// Sets how the namespaces of an ANA group are reached through the listeners with this address.
    ///
    /// Where they could be reached and no longer can, the group is in transition first. With success, nothing that a host
    /// sent before is under way to a disk of the group: another target may take over.
    ///
    /// # Errors
    /// [`AnaError`]: nothing was changed, except with [`AnaError::Busy`].
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
            self.set_group(at, AnaGroup { id: group, state })?;
        }
        Ok(())
    }

    fn set_group(&mut self, at: usize, group: AnaGroup) -> Result<(), AnaError> {
        let (AnaGroup { id, state }, port) = (group, port_id(at));
        let before = self.registry().ana().state(port, id);
        let drained = if is_reachable(before) && !is_reachable(state) {
            self.change_ana(port, id, AnaState::CHANGE)?;
            self.drain_group(id)
        } else {
            Ok(())
        };
        self.change_ana(port, id, state)?;
        let listener = &mut self.config.listeners[at];
        listener.ana_groups.retain(|group| group.id != id);
        listener.ana_groups.push(group);
        tracing::info!("ANA group {id} behind {}: {before:?} until now, now {state:?}", listener.address);
        drained
    }

    fn change_ana(&self, port: u16, group: u32, state: AnaState) -> Result<(), AnaError> {
        self.registry().set_ana_state(port, group, state).map_err(Box::new)?;
        self.publish();
        Ok(())
    }

    /// Waits until nothing that came before is on the disks of a group.
    fn drain_group(&self, group: u32) -> Result<(), AnaError> {
        let devices: BTreeSet<_> = self.registry().devices_of_group(group).collect();
        let barrier = self.common.mailboxes.barrier(Scope::devices(devices.clone()));
        let until = self.common.clock.now() + Duration::from_secs(ANA_TRANSITION_S.into());
        while barrier.wait(PIECE).is_err() {
            if self.common.clock.now() >= until {
                let of_group = self.exports().iter().filter(|export| devices.contains(&export.device));
                let disks = of_group.map(Export::backing).collect::<Vec<_>>().join(", ");
                return Err(AnaError::Busy { disks });
            }
            self.keep_alive();
        }
        Ok(())
    }

    /// Takes over the states of a changed configuration. Listeners are known by their address and transport. Returns how
    /// many errors it logged.
    pub(super) fn apply_ana(&mut self, config: &Config) -> usize {
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
        let mut errors = 0;
        for (at, group) in changes {
            if let Err(error) = self.set_group(at, group) {
                let address = self.config.listeners[at].address;
                tracing::error!("ANA group {} behind {address}: {error}", group.id);
                errors += 1;
            }
        }
        errors
    }
}
