//! The provider for an address, and why.

use nvmf_rdma_devices::{Choice, Machine, choose, source_towards};
use serde_json::{Value, json};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// What `provider = "auto"` does with an address.
#[derive(Debug)]
pub(super) struct Towards<'a> {
    /// The address that was asked about.
    pub(super) address: IpAddr,
    /// The local address that decides: the address itself if it is local, otherwise the source address of the route.
    pub(super) source: Option<IpAddr>,
    /// The choice; an error when there is no route.
    pub(super) choice: io::Result<Choice<'a>>,
}

impl<'a> Towards<'a> {
    /// Asks the kernel for the route (nothing is sent) and decides.
    pub(super) fn new(machine: &'a Machine, address: IpAddr, verbs: Result<(), &'a str>) -> Self {
        let local = address.is_unspecified() || machine.netdev_of(address).is_some();
        let source = if local { Ok(address) } else { source_towards(SocketAddr::new(address, 0)) };
        Self::from_source(machine, address, source, verbs)
    }

    /// The decision, once the source is known.
    pub(super) fn from_source(
        machine: &'a Machine,
        address: IpAddr,
        source: io::Result<IpAddr>,
        verbs: Result<(), &'a str>,
    ) -> Self {
        let found = source.as_ref().ok().copied();
        Self { address, source: found, choice: source.map(|source| choose(machine, source, verbs)) }
    }

    pub(super) fn json(&self) -> Value {
        let (provider, why) = match &self.choice {
            Ok(choice) => (Some(choice.provider()), choice.to_string()),
            Err(error) => (None, error.to_string()),
        };
        let owner = match &self.choice {
            Ok(Choice::Verbs(owner)) => Some(owner),
            _ => None,
        };
        json!({
            "address": self.address, "source": self.source, "provider": provider, "why": why,
            "device": owner.map(|owner| &owner.device.name), "port": owner.map(|owner| owner.port.number),
            "gid_index": owner.and_then(|owner| owner.gid).map(|gid| gid.index),
        })
    }
}
