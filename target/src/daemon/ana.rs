//! Asymmetric namespace access: how the namespaces of a group are reached through a listener.

use super::Daemon;
use super::apply::{Unmade, failed, held};
use super::changing::Pending;
use super::unfinished::Unfinished;
use crate::barrier::Scope;
use nvmf_block::DeviceId;
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
pub(super) fn is_reachable(state: AnaState) -> bool {
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
            if group.state == before {
                continue;
            }
            if is_reachable(group.state) {
                self.change_ana(port, id, group.state).map_err(failed)?;
                // What was taken away is there again.
                let devices = self.devices_of_group(id);
                self.unfinished.retain(|it| it.barrier.scope().port != Some(port) || !it.is_of(&devices));
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

    /// What came before is over, or the time for it. A later change may want another state by now: then that is not touched.
    pub(super) fn end_transition(&mut self, it: &Transition) -> Result<(), String> {
        let &Transition { port, group: AnaGroup { id, state } } = it;
        let Some(at) = self.listeners.iter().position(|listener| listener.port() == port) else {
            return Ok(());
        };
        if state_of(&self.config.listeners[at].ana_groups, id) != state {
            return Err("another change has set the group since".to_owned());
        }
        self.change_ana(port, id, state).map_err(|error| error.to_string())
    }

    /// Whether what came before an earlier change must be over before hosts reach a group through this port no more: it is
    /// at a disk of the group, or came in through a listener that is gone.
    pub(super) fn concerns_group(&self, port: u16, id: u32) -> impl Fn(&Unfinished) -> bool + use<> {
        let devices = self.devices_of_group(id);
        move |it| {
            let is_of_port = it.barrier.scope().port.is_none_or(|of| of == port);
            it.is_of(&devices) && is_of_port || it.change == "remove-listener"
        }
    }

    /// Also those that were taken away, and that workers still use: what is under way to them lands later.
    fn devices_of_group(&self, id: u32) -> BTreeSet<DeviceId> {
        self.devices_in_use(|export| export.namespace.ana_group == id)
    }

    fn change_ana(&self, port: u16, group: u32, state: AnaState) -> Result<(), Box<DefinitionError>> {
        self.registry().set_ana_state(port, group, state).map_err(Box::new)?;
        self.publish();
        Ok(())
    }

    /// Waits for what came before through this port, disk by disk: those that hold are named.
    fn drain_group(&self, port: u16, group: AnaGroup) -> Pending {
        let all = self.exports().iter().chain(self.namespaces.leaving());
        let of_group = all.filter(|export| export.namespace.ana_group == group.id);
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
