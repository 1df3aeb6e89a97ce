//! Whom queues belong to: machines, hosts and their associations, and how many data buffers wait for each.
//!
//! Before a Connect nothing is known of a host but the address of its machine, and a discovery controller is given to
//! anyone under any name: such queues belong to their machine alone. Looked up when a queue comes and goes; for a
//! command it is an index.

use super::accounts::Accounts;
use super::anonymous::{Among, Anonymous};
use super::buffers::Class;
use core::time::Duration;
use nvmf_stream::machine_of;
use nvmf_subsystem::{Association, AssociationKey, ControllerType, HostId, Nqn};
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

/// All owners that a worker's queues have.
#[derive(Debug, Default)]
pub struct Owners {
    machines: Accounts<IpAddr, Held>,
    hosts: Accounts<(Nqn, HostId), Held>,
    associations: Accounts<AssociationKey, Held>,
    unconnected: Anonymous,
    /// Queues of discovery controllers, as old as their Connects.
    discovery: Anonymous,
}

impl Owners {
    /// This queue came from this machine, and is not connected; `io`: its connection was made for an I/O queue.
    pub fn add_unconnected(&mut self, queue: u32, peer: IpAddr, now: Duration, io: bool) -> Owner {
        let machine = self.machines.add(&machine_of(peer));
        self.unconnected.add(queue, machine, now, io);
        Owner { machine, host: None, association: None }
    }

    /// The queue belongs to this association from `now` on.
    pub fn connect(&mut self, queue: u32, owner: &mut Owner, association: &Association, now: Duration) {
        self.unconnected.remove(queue);
        owner.association = Some(self.associations.add(&association.key()));
        match association.controller_type() {
            // It has an Admin queue only.
            ControllerType::Discovery => self.discovery.add(queue, owner.machine, now, false),
            ControllerType::Io => {
                owner.host = Some(self.hosts.add(&(*association.host_nqn(), association.host_id())));
            }
        }
    }

    /// The queue was removed.
    pub fn remove(&mut self, queue: u32, owner: Owner) {
        self.unconnected.remove(queue);
        self.discovery.remove(queue);
        if let Some(host) = owner.host {
            self.hosts.remove(host);
        }
        if let Some(association) = owner.association {
            self.associations.remove(association);
        }
        self.machines.remove(owner.machine);
    }

    /// Queues that have brought no Connect.
    #[must_use]
    pub fn unconnected(&self) -> usize {
        self.unconnected.len()
    }

    /// Queues that this machine has without anyone's leave: those that are not connected, and discovery controllers.
    #[must_use]
    pub fn anonymous(&self, peer: IpAddr) -> u32 {
        let machine = self.machines.find(&machine_of(peer));
        machine.map_or(0, |machine| self.unconnected.count(machine) + self.discovery.count(machine))
    }

    /// The queue without a Connect that makes way for one more of the machine that asks, of these.
    #[must_use]
    pub fn first_to_yield(&self, now: Duration, asking: IpAddr, among: Among) -> Option<u32> {
        let machine = self.machines.find(&machine_of(asking));
        self.unconnected.first_to_yield(now, machine, among)
    }

    /// The same among the queues of discovery controllers. It counts as one no more.
    pub fn take_discovery(&mut self, now: Duration, asking: IpAddr, among: Among) -> Option<u32> {
        let machine = self.machines.find(&machine_of(asking));
        let queue = self.discovery.first_to_yield(now, machine, among)?;
        self.discovery.remove(queue);
        Some(queue)
    }

    /// Where discovery controllers have more than `max` queues, the one that makes way, active or not, for the last, which
    /// has this owner. It counts as one no more.
    pub fn take_surplus_discovery(&mut self, last: Owner, max: usize) -> Option<u32> {
        let is_full = self.discovery.len() > max;
        let queue = self.discovery.oldest_of_most(last.machine).filter(|_| is_full)?;
        self.discovery.remove(queue);
        Some(queue)
    }

    /// Buffers that wait for the machine, the host and the association. A machine is the host of its discovery
    /// controllers, and for queues that are not connected it is one association.
    pub(super) fn held(&self, owner: Owner, class: Class) -> Holdings {
        let machine = self.machines.get(owner.machine)[class as usize];
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
        change(self.machines.get_mut(owner.machine));
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

    #[test]
    fn addresses_of_one_ipv6_network_share_an_account() {
        let address = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
        let mut owners = Owners::default();
        let first = owners.add_unconnected(0, address(1), Duration::ZERO, false);
        assert_eq!(owners.add_unconnected(1, address(2), Duration::ZERO, false), first);
        assert_eq!(owners.anonymous(address(3)), 2);
        assert_eq!(owners.first_to_yield(Duration::from_secs(2), address(3), Among::Own), Some(0));
    }
}
