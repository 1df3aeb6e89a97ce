//! Whom queues belong to: hosts and their associations, and how many data buffers wait for each.
//!
//! Before a Connect nothing is known of a host but the address of its machine, and a discovery controller is given to
//! anyone under any name: such queues belong to their address. Looked up when a queue comes and goes; for a command
//! it is an index.

use super::buffers::Class;
use nvmf_subsystem::{Association, AssociationKey, ControllerType, HostId, Nqn};
use std::net::IpAddr;

/// Whom a queue belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    host: u32,
    association: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "few, and made when a host connects")]
enum Name {
    /// Queues of this machine that are not connected yet.
    Unconnected(IpAddr),
    /// Discovery controllers of this machine.
    Discovery(IpAddr),
    /// What a host calls itself.
    Host(Nqn, HostId),
    Association(AssociationKey),
}

#[derive(Debug)]
struct Account {
    name: Name,
    /// Queues that belong to it. None: the place is vacant.
    queues: u32,
    held: [u32; Class::COUNT],
}

/// All owners that a worker's queues have.
#[derive(Debug)]
pub struct Owners(Vec<Account>);

impl Owners {
    /// None yet. A queue has a host and an association: that is how many there are at the most.
    #[must_use]
    pub fn new(queues: usize) -> Self {
        Self(Vec::with_capacity(2 * queues))
    }

    /// One more queue of this machine that is not connected.
    pub fn add_unconnected(&mut self, peer: IpAddr) -> Owner {
        Owner { host: self.add(Name::Unconnected(peer)), association: None }
    }

    /// One more queue of this association, which came from this machine.
    pub fn add_connected(&mut self, association: &Association, peer: IpAddr) -> Owner {
        let host = match association.controller_type() {
            ControllerType::Discovery => Name::Discovery(peer),
            ControllerType::Io => Name::Host(*association.host_nqn(), association.host_id()),
        };
        let host = self.add(host);
        Owner { host, association: Some(self.add(Name::Association(association.key()))) }
    }

    /// A queue was removed, or belongs to another owner now.
    pub fn remove(&mut self, owner: Owner) {
        for account in [Some(owner.host), owner.association].into_iter().flatten() {
            self.0[account as usize].queues -= 1;
        }
    }

    /// Queues of this machine that are not connected.
    #[must_use]
    pub fn unconnected(&self, peer: IpAddr) -> u32 {
        self.queues(&Name::Unconnected(peer))
    }

    /// Queues that this machine has without anyone's leave: those that are not connected, and discovery controllers.
    #[must_use]
    pub fn anonymous(&self, peer: IpAddr) -> u32 {
        self.queues(&Name::Unconnected(peer)) + self.queues(&Name::Discovery(peer))
    }

    fn queues(&self, name: &Name) -> u32 {
        let known = self.0.iter().find(|account| account.queues > 0 && account.name == *name);
        known.map_or(0, |account| account.queues)
    }

    /// Buffers that wait for the host, and for the association. A machine whose queues are not connected is treated
    /// as one association.
    pub(super) fn held(&self, owner: Owner, class: Class) -> (u32, u32) {
        let of = |account: u32| self.0[account as usize].held[class as usize];
        (of(owner.host), of(owner.association.unwrap_or(owner.host)))
    }

    pub(super) fn charge(&mut self, owner: Owner, class: Class) {
        for account in [Some(owner.host), owner.association].into_iter().flatten() {
            self.0[account as usize].held[class as usize] += 1;
        }
    }

    pub(super) fn discharge(&mut self, owner: Owner, class: Class) {
        for account in [Some(owner.host), owner.association].into_iter().flatten() {
            self.0[account as usize].held[class as usize] -= 1;
        }
    }

    fn add(&mut self, name: Name) -> u32 {
        let known = self.0.iter().position(|account| account.queues > 0 && account.name == name);
        let at =
            known.or_else(|| self.0.iter().position(|account| account.queues == 0)).unwrap_or_else(|| {
                self.0.push(Account { name: name.clone(), queues: 0, held: [0; Class::COUNT] });
                self.0.len() - 1
            });
        let account = &mut self.0[at];
        account.name = name;
        account.queues += 1;
        u32::try_from(at).expect("two accounts a queue")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_one_machine_share_an_account_until_the_last_is_gone() {
        let (a, b) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let mut owners = Owners::new(2);
        let (first, second) = (owners.add_unconnected(a), owners.add_unconnected(a));
        let other = owners.add_unconnected(b);
        assert!(first == second && first != other);
        owners.charge(first, Class::Connect);
        assert_eq!(
            (owners.held(second, Class::Connect), owners.held(other, Class::Connect)),
            ((1, 1), (0, 0))
        );
        owners.discharge(second, Class::Connect);
        owners.remove(first);
        assert_eq!((owners.unconnected(a), owners.unconnected(b)), (1, 1));
        owners.remove(second);
        assert_eq!(owners.unconnected(a), 0);
        assert_eq!(
            owners.add_unconnected(IpAddr::from([192, 0, 2, 3])),
            first,
            "a vacant place is used again"
        );
    }
}
