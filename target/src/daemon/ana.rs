//! Asymmetric namespace access: how the namespaces of a group are reached through a listener.

use super::Daemon;
use crate::barrier::Scope;
use crate::exports::Export;
use core::time::Duration;
use nvmf_config::{AnaGroup, Listener};
use nvmf_subsystem::limits::ANA_TRANSITION_S;
use nvmf_subsystem::{AnaState, DefinitionError, Registry};
use std::collections::BTreeSet;
use std::time::Instant;
use thiserror::Error;

/// The state of an ANA group was not changed as asked.
#[derive(Debug, Error)]
pub(super) enum AnaError {
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
    for (port, listener) in (1..).zip(listeners) {
        for &AnaGroup { id, state } in &listener.ana_groups {
            registry.set_ana_state(port, id, state).map_err(Box::new)?;
        }
    }
    Ok(())
}

/// Whether hosts use a group in this state.
fn is_reachable(state: AnaState) -> bool {
    matches!(state, AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED)
}

impl Daemon {
    /// Sets how the namespaces of an ANA group are reached through a listener.
    ///
    /// Where they could be reached and no longer can, the group is in transition first. With success, nothing that a host
    /// sent before is under way to a disk of the group: another target may take over.
    fn set_group(&mut self, at: usize, group: AnaGroup) -> Result<(), AnaError> {
        let (AnaGroup { id, state }, port) = (group, self.listeners[at].port());
        let before = self.registry().ana().state(port, id);
        let drained = if is_reachable(state) {
            Ok(())
        } else {
            if is_reachable(before) {
                self.change_ana(port, id, AnaState::CHANGE)?;
            }
            self.drain_group(id)
        };
        self.change_ana(port, id, state)?;
        match drained {
            Ok(()) => self.undrained.remove(&(port, id)),
            Err(_) => self.undrained.insert((port, id)),
        };
        let listener = &mut self.config.listeners[at];
        listener.ana_groups.retain(|group| group.id != id);
        listener.ana_groups.push(group);
        tracing::info!("ANA group {id} behind {}: {before:?} until now, now {state:?}", listener.address);
        drained
    }

    /// Whether a group behind this port was taken from the hosts, and was not over in time when it was looked at last: it
    /// is looked at again with every change that is asked for.
    pub(super) fn is_undrained(&self, port: u16) -> bool {
        self.undrained.iter().any(|&(of, _)| of == port)
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
        if self.is_reached_by(&barrier, Instant::now() + Duration::from_secs(ANA_TRANSITION_S.into())) {
            return Ok(());
        }
        let of_group = self.exports().iter().filter(|export| devices.contains(&export.device));
        let disks = of_group.map(Export::backing).collect::<Vec<_>>().join(", ");
        Err(AnaError::Busy { disks })
    }

    /// Takes over the states that a changed configuration has for the listener at a place of it: all of them, whether
    /// or not one of them is over in time.
    pub(super) fn set_groups(&mut self, at: usize, wanted: &[AnaGroup]) -> Result<(), AnaError> {
        let old = self.config.listeners[at].ana_groups.clone();
        let state = |groups: &[AnaGroup], id| {
            groups.iter().find(|group| group.id == id).map_or(AnaState::OPTIMIZED, |group| group.state)
        };
        let mut result = Ok(());
        for id in old.iter().chain(wanted).map(|group| group.id).collect::<BTreeSet<_>>() {
            let port = self.listeners[at].port();
            if state(wanted, id) != state(&old, id) || self.undrained.contains(&(port, id)) {
                result = result.and(self.set_group(at, AnaGroup { id, state: state(wanted, id) }));
            }
        }
        self.config.listeners[at].ana_groups = wanted.to_vec();
        result
    }
}
