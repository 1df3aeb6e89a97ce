//! Asymmetric namespace access: how the namespaces of a group are reached through a listener.

use super::Daemon;
use super::apply::{Unmade, failed, held};
use super::changing::Pending;
use crate::barrier::Scope;
use nvmf_config::{AnaGroup, Listener};
use nvmf_subsystem::{AnaState, DefinitionError, Registry};
use std::collections::BTreeSet;

/// What is said where a group is in its new state, and what hosts sent before is not over.
pub(super) const UNDRAINED: &str = ": the group is in its new state, but do not let another target write to these disks \
     before `status` shows nothing of them in flight, or this target is stopped";

/// A group that hosts no longer reach through a port: it takes its state when nothing is under way to its disks.
pub(super) struct Transition {
    port: u16,
    group: AnaGroup,
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
    /// Takes over the states that a changed configuration has for the listener at a place of it.
    ///
    /// Where a group could be reached and no longer can, it is in transition until nothing that a host sent there before is
    /// under way to a disk of the group: then another target may take over.
    pub(super) fn set_groups(&mut self, at: usize, wanted: &[AnaGroup]) -> Result<Vec<Pending>, Unmade> {
        let old = self.config.listeners[at].ana_groups.clone();
        let port = self.listeners[at].port();
        self.config.listeners[at].ana_groups = wanted.to_vec();
        let mut pending = Vec::new();
        for id in old.iter().chain(wanted).map(|group| group.id).collect::<BTreeSet<_>>() {
            let group = AnaGroup { id, state: state_of(wanted, id) };
            let before = self.registry().ana().state(port, id);
            if group.state == before && !self.undrained.contains(&(port, id)) {
                continue;
            }
            if is_reachable(group.state) {
                self.change_ana(port, id, group.state).map_err(failed)?;
                self.undrained.remove(&(port, id));
            } else {
                if is_reachable(before) {
                    self.change_ana(port, id, AnaState::CHANGE).map_err(failed)?;
                }
                pending.push(self.drain_group(port, group));
            }
            let (address, state) = (self.listeners[at].address(), group.state);
            tracing::info!("ANA group {id} behind {address}: {before:?} until now, to be {state:?}");
        }
        Ok(pending)
    }

    /// What came before is over, or not in time. A later change may want another state by now: then that is not touched.
    pub(super) fn end_transition(&mut self, it: &Transition, is_drained: bool) -> Result<(), String> {
        let &Transition { port, group: AnaGroup { id, state } } = it;
        let Some(at) = self.listeners.iter().position(|listener| listener.port() == port) else {
            return Ok(());
        };
        if state_of(&self.config.listeners[at].ana_groups, id) != state {
            return Err("another change has set the group since".to_owned());
        }
        if is_drained {
            self.undrained.remove(&(port, id));
        } else {
            self.undrained.insert((port, id));
        }
        self.change_ana(port, id, state).map_err(|error| error.to_string())
    }

    /// Whether a group behind this port was taken from the hosts, and was not over in time when it was looked at last: it
    /// is looked at again with every change that is asked for.
    pub(super) fn is_undrained(&self, port: u16) -> bool {
        self.undrained.iter().any(|&(of, _)| of == port)
    }

    fn change_ana(&self, port: u16, group: u32, state: AnaState) -> Result<(), Box<DefinitionError>> {
        self.registry().set_ana_state(port, group, state).map_err(Box::new)?;
        self.publish();
        Ok(())
    }

    /// Waits for what came before through this port, disk by disk: those that hold are named.
    fn drain_group(&self, port: u16, group: AnaGroup) -> Pending {
        let devices: BTreeSet<_> = self.registry().devices_of_group(group.id).collect();
        let of_group = self.exports().iter().filter(|export| devices.contains(&export.device));
        let barriers = of_group.map(|export| {
            let scope = Scope { port: Some(port), ..Scope::devices([export.device]) };
            (self.common.mailboxes.barrier(scope), held(export))
        });
        Pending::transition(barriers.collect(), Transition { port, group })
    }
}

/// In which state a listener is to have a group; those that are not named are optimized.
pub(super) fn state_of(groups: &[AnaGroup], id: u32) -> AnaState {
    groups.iter().find(|group| group.id == id).map_or(AnaState::OPTIMIZED, |group| group.state)
}
