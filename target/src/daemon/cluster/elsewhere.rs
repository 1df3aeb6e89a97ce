//! Where the other gateways listen: discovery tells hosts of them.

use super::super::{Daemon, Listening};
use super::Membership;
use super::joining::advertised;
use crate::cluster::{Advertised, ToDriver};
use crate::ports::Served;
use crate::settings::in_capsule_data;
use core::time::Duration;
use nvmf_cluster::{ConnectedHosts, Listens};
use nvmf_config::{Listener, Tls, Transport};
use nvmf_subsystem::{Nqn, PortConcatenation, RdmaProviderType};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Ports of the other gateways have numbers from this one on.
const FIRST_PORT: u16 = 1 << 12;
/// None of the listeners may be up for so long before the ANA groups go.
const SILENT_MAX: Duration = Duration::from_secs(3);
/// After a start for so long: others wait for what it had.
const STARTS_FOR: Duration = Duration::from_secs(10);
/// Which hosts are connected is looked at so often.
const HOSTS_INTERVAL: Duration = Duration::from_secs(1);
/// As many as a registry takes.
const PORTS_MAX: usize = 64;

impl Daemon {
    /// Takes over where the others listen. What a newer version says in another way is left out.
    pub(super) fn on_others(&mut self, others: &BTreeMap<String, Vec<String>>) {
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
        let now = self.common.clock.now();
        let is_up = self.listeners.iter().any(Listening::is_for_disks);
        let is_wanted = !self.draining && self.config.listeners.iter().any(|it| !it.discovery_only);
        let (Some(cluster), Some(config)) = (&mut self.cluster, &self.config.cluster) else { return };
        let listens = listens(now, is_up, is_wanted, cluster);
        let listeners: Vec<Listener> =
            self.listeners.iter().map(|it| Listener { address: it.address(), ..it.config.clone() }).collect();
        let addresses = advertised(config, &listeners);
        if addresses != cluster.told {
            cluster.told.clone_from(&addresses);
            cluster.driver.tell(ToDriver::Addresses(addresses));
        }
        if core::mem::replace(&mut cluster.listens, listens) != listens {
            cluster.driver.tell(ToDriver::Listens(listens));
        }
    }
}

impl Daemon {
    /// Tells the group which hosts are connected, now and then, when that has changed.
    pub(super) fn tell_hosts(&mut self) {
        let now = self.common.clock.now();
        if self.cluster.as_ref().is_none_or(|cluster| now < cluster.look_at_hosts) {
            return;
        }
        let hosts = {
            let registry = self.registry();
            let with_queues = registry.associations().filter(|it| it.io_queues() > 0);
            ConnectedHosts::of(with_queues.map(|it| number_of_host(it.host_nqn(), it.subsystem_nqn())))
        };
        let Some(cluster) = &mut self.cluster else { return };
        cluster.look_at_hosts = now + HOSTS_INTERVAL;
        if cluster.hosts != hosts {
            cluster.hosts.clone_from(&hosts);
            cluster.driver.tell(ToDriver::Hosts(hosts));
        }
    }
}

/// By which all gateways know a host at a subsystem. That two have one number is rare, and costs no more than that one of them is
/// not seen.
fn number_of_host(host: &Nqn, subsystem: &Nqn) -> u32 {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{host} {subsystem}").as_bytes()).as_fields().0
}

/// Whether hosts can connect. A listener that is changed, or whose address is gone for a moment, moves no ANA group; and one
/// that is about to listen for the first time takes back what it had. Where none is wanted any more, none is waited for.
fn listens(now: Duration, is_up: bool, is_wanted: bool, cluster: &mut Membership) -> Listens {
    if is_up {
        cluster.silent_since = None;
        cluster.has_listened = true;
        return Listens::Yes;
    }
    let (until_then, patience) = match cluster.has_listened {
        true => (Listens::Yes, SILENT_MAX),
        false => (Listens::NotYet, STARTS_FOR),
    };
    // Before it is a member nobody asks.
    if cluster.controller_ids.is_none() {
        return until_then;
    }
    let since = *cluster.silent_since.get_or_insert(now);
    if is_wanted && now < since + patience { until_then } else { Listens::No }
}

#[cfg(test)]
mod tests {
    use super::super::tests::gateway;
    use super::*;

    #[test]
    fn gateway_says_that_hosts_cannot_connect_only_when_that_has_lasted() {
        let mut daemon = gateway();
        let cluster = daemon.cluster.as_mut().unwrap();
        let second = |n| Duration::from_secs(n);
        assert_eq!(listens(second(1), false, true, cluster), Listens::NotYet);
        cluster.controller_ids = Some(1..=2048);
        assert_eq!(
            listens(second(100), false, true, cluster),
            Listens::NotYet,
            "it waits for its group until then"
        );
        assert_eq!(listens(second(109), false, true, cluster), Listens::NotYet);
        assert_eq!(listens(second(110), false, true, cluster), Listens::No);
        assert_eq!(listens(second(111), true, true, cluster), Listens::Yes);
        assert_eq!(listens(second(112), false, true, cluster), Listens::Yes, "a listener was changed");
        assert_eq!(listens(second(113), true, true, cluster), Listens::Yes);
        assert_eq!(listens(second(114), false, true, cluster), Listens::Yes);
        assert_eq!(listens(second(117), false, true, cluster), Listens::No);
        assert_eq!(listens(second(118), true, true, cluster), Listens::Yes);
        assert_eq!(
            listens(second(119), false, false, cluster),
            Listens::No,
            "an operator has removed them all"
        );
        daemon.stop(Duration::ZERO);
    }
}
