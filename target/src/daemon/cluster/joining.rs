//! Who this gateway is, from its configuration.

use super::Membership;
use crate::cluster::{self, Advertised, Place, Shared};
use crate::control::Waker;
use crate::state::StateDirectory;
use core::time::Duration;
use nvmf_backend::ClusterSpec;
use nvmf_cluster::{BootId, GatewayName, Identity, InvalidName, Listens, Process};
use nvmf_config::{Cluster, Config, Listener};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use thiserror::Error;
use uuid::Uuid;

/// This gateway cannot be one of its group.
#[derive(Debug, Error)]
pub enum JoinError {
    /// It has no name that it can have.
    #[error("this gateway has no name in its group: set name in [cluster]")]
    Name(#[source] InvalidName),
    /// The system has no thread left.
    #[error("the system refused a thread")]
    Thread(#[from] io::Error),
}

impl Membership {
    pub(in crate::daemon) fn join(
        config: &Config,
        cluster: &Cluster,
        waker: Waker,
    ) -> Result<Box<Self>, JoinError> {
        let Cluster { pool, namespace, group, conf, user, keyring, ana_groups, .. } = cluster.clone();
        let images_at = ClusterSpec { conf, user, keyring };
        let gateway = GatewayName::new(&gateway_name(cluster)).map_err(JoinError::Name)?;
        let told = advertised(cluster, &config.listeners);
        let place = Place { cluster: images_at.clone(), pool, namespace, group };
        tracing::info!("gateway {gateway} of {place}");
        let identity = Identity {
            process: Process { gateway, boot: BootId(Uuid::new_v4().to_string()) },
            addresses: told.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            ana_groups,
        };
        let driver = cluster::start(place, identity, waker)?;
        Ok(Box::new(Self {
            kept: driver.kept(),
            driver,
            images_at,
            shared: Shared::default(),
            items: BTreeMap::new(),
            left_out: Vec::new(),
            keys: Default::default(),
            refused: None,
            failed: Default::default(),
            converging: None,
            next: None,
            is_configured: false,
            images_until: None,
            controller_ids: None,
            states: BTreeMap::new(),
            news: BTreeMap::new(),
            handles: BTreeMap::new(),
            looks: Vec::new(),
            hanging: Vec::new(),
            unopened: BTreeMap::new(),
            slow: BTreeSet::new(),
            answers: BTreeMap::new(),
            known: BTreeMap::new(),
            placing: Vec::new(),
            claims: Vec::new(),
            noting: Default::default(),
            elsewhere: Default::default(),
            told,
            listens: Listens::NotYet,
            hosts: None,
            look_at_hosts: Duration::ZERO,
            unfinished: super::unfinished::UnfinishedVersions::default(),
            silent_since: None,
            has_listened: false,
            stopped: false,
        }))
    }

    /// Where reservations and write protections are kept.
    pub(in crate::daemon) fn state(&self) -> StateDirectory {
        StateDirectory::shared(self.kept.clone())
    }

    /// How the images that the group serves are reached.
    pub(in crate::daemon) fn images_at(&self) -> &ClusterSpec {
        &self.images_at
    }
}

/// What a gateway is called: as its configuration says, or as its machine.
pub(crate) fn gateway_name(cluster: &Cluster) -> String {
    cluster.name.clone().or_else(host_name).unwrap_or_default()
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned())
}

/// The listeners as the other gateways tell hosts of them: at the addresses that the configuration names, or at those that
/// they listen on.
pub(super) fn advertised(cluster: &Cluster, listeners: &[Listener]) -> Vec<String> {
    let of = |listener: &Listener, address| Advertised {
        transport: listener.transport,
        address,
        tls: listener.tls,
        discovery: listener.discovery,
        discovery_only: listener.discovery_only,
    };
    let named: Vec<SocketAddr> = cluster.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    if named.is_empty() {
        let known = listeners.iter().filter(|it| !it.address.ip().is_unspecified() && it.address.port() != 0);
        return known.map(|listener| of(listener, listener.address).to_string()).collect();
    }
    let listener = |address: &SocketAddr| {
        let same_port = listeners.iter().find(|listener| listener.address.port() == address.port());
        same_port.or(listeners.first())
    };
    named.iter().filter_map(|address| Some(of(listener(address)?, *address).to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_where_hosts_reach_this_gateway() {
        let text = "[[listener]]\naddress = \"192.0.2.1\"\n\
            [[listener]]\naddress = \"0.0.0.0:4421\"\ntransport = \"tcp\"\n[cluster]\npool = \"nvmf\"\n";
        let told = |text: &str| {
            let config = Config::parse(text).unwrap();
            advertised(config.cluster.as_ref().unwrap(), &config.listeners)
        };
        assert_eq!(told(text), ["rdma://192.0.2.1:4420"]);
        let named = format!("{text}addresses = [\"198.51.100.1:4421\", \"198.51.100.1:4420\"]\n");
        assert_eq!(told(&named), ["tcp://198.51.100.1:4421", "rdma://198.51.100.1:4420"]);
    }
}
