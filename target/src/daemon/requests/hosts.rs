//! Which hosts are known by name.

use super::Daemon;
use crate::control::request::subsystem::{HostsAnswer, KnownHost};
use nvmf_config::Hosts;
use std::collections::BTreeMap;

impl Daemon {
    /// The answer to `host list`.
    pub(in crate::daemon) fn hosts_answer(&self) -> HostsAnswer {
        let mut hosts: BTreeMap<String, KnownHost> = BTreeMap::new();
        let mut for_any_host = Vec::new();
        for subsystem in &self.config.subsystems {
            let nqn = subsystem.nqn.to_string();
            match &subsystem.hosts {
                Hosts::Any => for_any_host.push(nqn),
                Hosts::Only(named) => {
                    for host in named {
                        hosts.entry(host.to_string()).or_default().subsystems.push(nqn.clone());
                    }
                }
            }
        }
        for host in &self.config.hosts {
            let known = hosts.entry(host.nqn.to_string()).or_default();
            known.key |= host.dhchap_key_file.is_some();
            known.controller_key |= host.dhchap_ctrl_key_file.is_some();
            known.tls_key |= host.tls_key_file.is_some();
        }
        self.note_shared_keys(&mut hosts);
        let named = |(nqn, host)| KnownHost { nqn, ..host };
        HostsAnswer { for_any_host, hosts: hosts.into_iter().map(named).collect() }
    }
}
