//! Where the other gateways listen: discovery tells hosts of them.

use super::super::{Daemon, Listening};
use super::joining::advertised;
use crate::cluster::{Advertised, ToDriver};
use crate::ports::Served;
use crate::settings::in_capsule_data;
use nvmf_config::{Listener, Tls, Transport};
use nvmf_subsystem::{PortConcatenation, RdmaProviderType};
use std::collections::BTreeMap;

/// Ports of the other gateways have numbers from this one on.
const FIRST_PORT: u16 = 1 << 12;
/// As many as a registry takes.
const PORTS_MAX: usize = 64;

impl Daemon {
    /// Takes over where the others listen. What a newer version says in another way is left out.
    pub(super) fn on_others(&mut self, others: &BTreeMap<String, Vec<String>>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.others = others.len();
        }
        let target = &self.config.target;
        let listeners = others.values().flatten().filter_map(|text| text.parse::<Advertised>().ok());
        let served = listeners.map(|it| Served {
            address: it.address,
            rdma: (it.transport == Transport::Rdma).then_some(RdmaProviderType::NO_PROVIDER_SPECIFIED),
            in_capsule_data: in_capsule_data(target, it.transport),
            discovery: it.discovery,
            discovery_only: it.discovery_only,
            requires_tls: it.tls == Tls::Required,
            concatenation: match it.tls {
                Tls::Off | Tls::Required => PortConcatenation::No,
                Tls::Allowed => PortConcatenation::Allowed,
                Tls::Concat => PortConcatenation::Required,
            },
        });
        let served: Vec<(u16, Served)> = (FIRST_PORT..).zip(served.take(PORTS_MAX)).collect();
        let set = self.registry().set_ports_elsewhere(crate::ports::ports(&served));
        if let Err(error) = set {
            tracing::error!("hosts are not told of the other gateways: {error}");
        }
        self.publish();
    }

    /// Tells the others where this gateway listens, and whether it does, when that has changed.
    pub(super) fn tell_addresses(&mut self) {
        // Before it listens for the first time it may take back what it had. A drain tells more.
        let listens =
            !self.may_listen() || self.draining || self.listeners.iter().any(Listening::is_for_disks);
        let (Some(cluster), Some(config)) = (&mut self.cluster, &self.config.cluster) else { return };
        let listeners: Vec<Listener> =
            self.listeners.iter().map(|it| Listener { address: it.address(), ..it.config.clone() }).collect();
        let addresses = advertised(config, &listeners);
        if addresses != cluster.told {
            cluster.told.clone_from(&addresses);
            cluster.driver.tell(ToDriver::Addresses(addresses));
        }
        if core::mem::replace(&mut cluster.listens, listens) != listens {
            cluster.driver.tell(ToDriver::Reachable(listens));
        }
    }
}
