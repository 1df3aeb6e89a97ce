//! Whom queues belong to: machines, hosts and their associations, and how many data buffers wait for each.
//!
//! Before a Connect nothing is known of a host but the address of its machine, and a discovery controller is given to
//! anyone under any name: such queues belong to their machine alone. Looked up when a queue comes and goes; for a
//! command it is an index.

use super::accounts::Accounts;
use super::buffers::Class;
use super::unconnected::{Among, Unconnected};
use core::time::Duration;
use nvmf_subsystem::{Association, AssociationKey, ControllerType, HostId, Nqn};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Whom a queue belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    machine: u32,
    /// None before the Connect, and for discovery controllers.
    host: Option<u32>,
    association: Option<u32>,
}

/// Buffers of a class that wait for the owners of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holdings {
    pub(super) machine: u32,
    pub(super) host: u32,
    pub(super) association: u32,
}

/// Buffers of each class that wait for one owner.
type Held = [u32; Class::COUNT];

#[derive(Debug, Default)]
struct Machine {
    held: Held,
    /// Queues of discovery controllers.
    discovery: u32,
}

/// All owners that a worker's queues have.
#[derive(Debug, Default)]
pub struct Owners {
    machines: Accounts<IpAddr, Machine>,
    hosts: Accounts<(Nqn, HostId), Held>,
    associations: Accounts<AssociationKey, Held>,
    unconnected: Unconnected,
    /// Queues of discovery controllers.
    discovery: BTreeSet<u32>,
}

impl Owners {
    /// This queue came from this machine, and is not connected; `io`: its connection was made for an I/O queue.
    pub fn add_unconnected(&mut self, queue: u32, peer: IpAddr, now: Duration, io: bool) -> Owner {
        let machine = self.machines.add(&peer.to_canonical());
        self.unconnected.add(queue, machine, now, io);
        Owner { machine, host: None, association: None }
    }

    /// The queue belongs to this association from now on.
    pub fn connect(&mut self, queue: u32, owner: &mut Owner, association: &Association) {
        self.unconnected.remove(queue);
        owner.association = Some(self.associations.add(&association.key()));
        match association.controller_type() {
            ControllerType::Discovery => {
                self.discovery.insert(queue);
                self.machines.get_mut(owner.machine).discovery += 1;
            }
            ControllerType::Io => {
                owner.host = Some(self.hosts.add(&(*association.host_nqn(), association.host_id())));
            }
        }
    }

    /// The queue was removed.
    pub fn remove(&mut self, queue: u32, owner: Owner) {
        self.unconnected.remove(queue);
        if self.discovery.remove(&queue) {
            self.machines.get_mut(owner.machine).discovery -= 1;
        }
        if let Some(host) = owner.host {
            self.hosts.remove(host);
        }
        if let Some(association) = owner.association {
            self.associations.remove(association);
        }
        self.machines.remove(owner.machine);
    }

    /// Queues that this machine has without anyone's leave: those that are not connected, and discovery controllers.
    #[must_use]
    pub fn anonymous(&self, peer: IpAddr) -> u32 {
        let machine = self.machines.find(&peer.to_canonical());
        machine.map_or(0, |machine| self.unconnected.count(machine) + self.machines.get(machine).discovery)
    }

    /// The queue without a Connect that makes way for one more of the machine that asks, of these.
    #[must_use]
    pub fn first_to_yield(&self, now: Duration, asking: IpAddr, among: Among) -> Option<u32> {
        let machine = self.machines.find(&asking.to_canonical());
        self.unconnected.first_to_yield(now, machine, among)
    }

    /// The queues of discovery controllers.
    pub fn discovery(&self) -> impl Iterator<Item = u32> + '_ {
        self.discovery.iter().copied()
    }

    /// Buffers that wait for the machine, the host and the association. A machine is the host of its discovery
    /// controllers, and for queues that are not connected it is one association.
    pub(super) fn held(&self, owner: Owner, class: Class) -> Holdings {
        let machine = self.machines.get(owner.machine).held[class as usize];
        let host = owner.host.map_or(machine, |host| self.hosts.get(host)[class as usize]);
        let association = owner.association.map(|association| self.associations.get(association));
        Holdings { machine, host, association: association.map_or(host, |held| held[class as usize]) }
    }

    pub(super) fn charge(&mut self, owner: Owner, class: Class) {
        self.each_held(owner, |held| held[class as usize] += 1);
    }

    pub(super) fn discharge(&mut self, owner: Owner, class: Class) {
        self.each_held(owner, |held| held[class as usize] -= 1);
    }

    fn each_held(&mut self, owner: Owner, change: impl Fn(&mut Held)) {
        change(&mut self.machines.get_mut(owner.machine).held);
        if let Some(host) = owner.host {
            change(self.hosts.get_mut(host));
        }
        if let Some(association) = owner.association {
            change(self.associations.get_mut(association));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_one_machine_share_an_account_until_the_last_is_gone() {
        let (a, b) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut owners = Owners::default();
        let add =
            |owners: &mut Owners, queue, peer| owners.add_unconnected(queue, peer, Duration::ZERO, false);
        let (first, second) = (add(&mut owners, 0, a), add(&mut owners, 1, a));
        let other = add(&mut owners, 2, b);
        assert!(first == second && first != other);
        owners.charge(first, Class::Connect);
        let held = |owner| owners.held(owner, Class::Connect);
        assert_eq!((held(second).association, held(other).association), (1, 0));
        owners.discharge(second, Class::Connect);
        owners.remove(0, first);
        assert_eq!((owners.anonymous(a), owners.anonymous(b)), (1, 1));
        owners.remove(1, second);
        assert_eq!(owners.anonymous(a), 0);
        assert_eq!(add(&mut owners, 0, IpAddr::from([192, 0, 2, 3])), first, "its number is used again");
    }
}
