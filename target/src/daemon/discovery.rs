//! The discovery subsystem: its name, what it refers hosts to, and where it is announced.

use super::Daemon;
use crate::machine;
use crate::mdns::{Announced, Announcer};
use crate::ports::Served;
use nvmf_config::{Cluster, Config, Referral, Transport};
use nvmf_subsystem::{DiscoveryDefinition, Nqn, TransportType};
use std::collections::BTreeMap;
use std::path::Path;
use uuid::Uuid;

/// As configured, with a name of its own.
pub(super) fn definition(config: &Config, path: Option<&Path>) -> DiscoveryDefinition {
    let nqn = config.discovery.nqn.unwrap_or_else(|| own_nqn(&machine::name(), config, path));
    DiscoveryDefinition { nqn, referrals: config.discovery.referrals.iter().map(referral).collect() }
}

fn referral(referral: &Referral) -> nvmf_subsystem::Referral {
    let Referral { transport, address, nqn } = *referral;
    let transport = match transport {
        Transport::Rdma => TransportType::RDMA,
        Transport::Tcp => TransportType::TCP,
    };
    nvmf_subsystem::Referral { transport, address, nqn }
}

/// One that stays over restarts and that no other target has: from this machine and the configuration file, else the
/// first subsystem. Of a machine without any name, the well-known one. The gateways of a group have one together: each tells
/// hosts of the others.
fn own_nqn(machine: &str, config: &Config, path: Option<&Path>) -> Nqn {
    if let Some(Cluster { pool, namespace, group, .. }) = &config.cluster {
        let namespace = namespace.as_deref().unwrap_or_default();
        let from = format!("nvmf-discovery://{pool}/{namespace}/{group}");
        return Nqn::from_uuid(*Uuid::new_v5(&Uuid::NAMESPACE_URL, from.as_bytes()).as_bytes());
    }
    if machine.is_empty() {
        return Nqn::DISCOVERY;
    }
    let of_file = path.and_then(|path| std::path::absolute(path).ok()).map(|path| path.display().to_string());
    let of_subsystem = || config.subsystems.first().map(|subsystem| subsystem.nqn.to_string());
    let of_target = of_file.or_else(of_subsystem).unwrap_or_default();
    let from = format!("nvmf-discovery://{machine}#{of_target}");
    Nqn::from_uuid(*Uuid::new_v5(&Uuid::NAMESPACE_URL, from.as_bytes()).as_bytes())
}

impl Daemon {
    /// Takes over what a changed configuration says of discovery. Returns how many errors it logged.
    pub(super) fn apply_discovery(&mut self, config: &Config) -> usize {
        if config.discovery == self.config.discovery {
            return 0;
        }
        let definition = definition(config, self.path.as_deref());
        let set = self.registry().set_discovery(definition);
        if let Err(error) = set {
            tracing::error!("[discovery] was not changed: {error}");
            return 1;
        }
        self.config.discovery.clone_from(&config.discovery);
        self.publish();
        tracing::info!("[discovery]: changed");
        0
    }
}

impl Daemon {
    /// Announces the listeners that answer discovery and are up now, if that is wanted. What fails is tried again in
    /// the next round.
    pub(super) fn announce_discovery(&mut self) {
        if !self.config.discovery.mdns {
            self.announcer = None;
            return;
        }
        let nqn = definition(&self.config, self.path.as_deref()).nqn;
        if self.announcer.as_ref().is_none_or(|announcer| *announcer.nqn() != nqn) {
            // The old one says goodbye first.
            self.announcer = None;
            match Announcer::new(nqn) {
                Ok(announcer) => self.announcer = Some(announcer),
                Err(error) => return tracing::warn!("discovery is not announced by mDNS: {error}"),
            }
        }
        let served =
            self.listeners.iter().map(|listener| (listener.port(), listener.served(&self.config.target)));
        let wanted = announced(&served.collect::<Vec<_>>());
        let Some(announcer) = &mut self.announcer else { return };
        let before = announcer.len();
        if let Err(error) = announcer.set(&wanted) {
            tracing::warn!("a listener is not announced by mDNS: {error}");
        }
        if announcer.len() != before {
            tracing::info!("discovery is announced by mDNS on {} listener(s) as {nqn}", announcer.len());
        }
    }
}

/// Which of the listeners, by the number of their port, other machines can ask.
fn announced(listeners: &[(u16, Option<Served>)]) -> BTreeMap<u16, Announced> {
    let up = listeners.iter().filter_map(|(port, served)| Some((*port, served.as_ref()?)));
    let open = up.filter(|(_, served)| served.discovery && !served.address.ip().is_loopback());
    open.map(|(port, served)| (port, Announced { address: served.address, rdma: served.rdma })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_name_is_stable_and_unlike_that_of_any_other_target() {
        let path = Path::new("/srv/disk.img");
        let address = "127.0.0.1:4420".parse().unwrap();
        let config = Config::export(path, None, address, None, "here").unwrap();
        let file = Some(Path::new("/etc/nvmf/target.toml"));
        let name = own_nqn("here", &config, file);
        assert_eq!(name, own_nqn("here", &config, file));
        assert!(name.to_string().starts_with("nqn.2014-08.org.nvmexpress:uuid:"));
        let others = [
            own_nqn("there", &config, file),
            own_nqn("here", &config, Some(Path::new("/etc/nvmf/other.toml"))),
            own_nqn("here", &config, None),
        ];
        assert!(!others.contains(&name), "{others:?}");
        assert_eq!(own_nqn("", &config, file), Nqn::DISCOVERY);
    }
}
