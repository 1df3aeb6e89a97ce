//! The discovery subsystem: its name, and what it refers hosts to.

use super::Daemon;
use crate::machine;
use nvmf_config::{Config, Referral, Transport};
use nvmf_subsystem::{DiscoveryDefinition, Nqn, TransportType};
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
/// first subsystem. Of a machine without any name, the well-known one.
fn own_nqn(machine: &str, config: &Config, path: Option<&Path>) -> Nqn {
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
