//! The discovery subsystem: its definition, and the view of everything that can be found.

use super::{Registry, definitions};
use crate::discovery::{DiscoveryDefinition, DiscoveryView, PortView};
use crate::subsystem::Identity;
use crate::{ConnectRequest, DefinitionError, Link, Notice, Nqn, Port};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl DiscoveryView {
    /// Nothing can be found yet.
    pub(super) fn empty(version: u64) -> Self {
        Self { version, nqn: Nqn::DISCOVERY, ports: Vec::new(), referrals: Vec::new() }
    }
}

/// What Identify says of the discovery subsystem of this name.
pub(super) fn identity(nqn: Nqn) -> Arc<Identity> {
    let (serial, model) = (String::from("discovery"), String::from("discovery controller"));
    Arc::new(Identity { nqn, serial, model })
}

impl Registry {
    /// Replaces the definition of the discovery subsystem. Controllers that are there keep the name that they have.
    ///
    /// # Errors
    /// [`DefinitionError`]; nothing was changed.
    pub fn set_discovery(&mut self, definition: DiscoveryDefinition) -> Result<(), DefinitionError> {
        definitions::check_referrals(&definition.referrals)?;
        if self.subsystems.contains_key(&definition.nqn) {
            return Err(DefinitionError::Duplicate(definition.nqn));
        }
        self.discovery_identity = identity(definition.nqn);
        self.referrals = definition.referrals;
        self.publish_discovery();
        Ok(())
    }

    /// Whether it is a name of the discovery subsystem: the well-known one, or its own.
    #[must_use]
    pub fn is_discovery(&self, nqn: &Nqn) -> bool {
        *nqn == Nqn::DISCOVERY || *nqn == self.discovery_identity.nqn
    }

    /// What Identify says of the discovery subsystem on such a connection. Hosts come back by the name that it says
    /// (nvme-cli at once), and with TLS they have a key for the name that they came by.
    pub(super) fn discovery_identity(&self, link: Link) -> Arc<Identity> {
        match link.secure_channel {
            Some(channel) => identity(channel.subsystem_nqn),
            None => Arc::clone(&self.discovery_identity),
        }
    }

    /// Whether a Connect asks for a discovery controller.
    #[must_use]
    pub fn asks_for_discovery(&self, request: &ConnectRequest) -> bool {
        Nqn::from_field(&request.data.subnqn).is_ok_and(|nqn| self.is_discovery(&nqn))
    }

    /// Makes the view anew, if it changed.
    pub(super) fn publish_discovery(&mut self) {
        let on = |port: &Port| {
            let names = self.subsystems.values().map(|it| (it.identity.nqn, Arc::clone(&it.hosts)));
            names.filter(|(nqn, _)| port.subsystems.contains(nqn)).collect()
        };
        let port = |port: &Arc<Port>| PortView { subsystems: on(port), port: Arc::clone(port) };
        let old = &self.discovery;
        let new = DiscoveryView {
            version: old.version,
            nqn: self.discovery_identity.nqn,
            ports: self.ports.iter().flatten().chain(&self.elsewhere).map(port).collect(),
            referrals: self.referrals.clone(),
        };
        if new == **old {
            return;
        }
        self.discovery = Arc::new(DiscoveryView { version: old.version + 1, ..new });
        // Only the last view matters.
        self.notices.retain(|notice| !matches!(notice, Notice::Discovery(_)));
        self.notices.push(Notice::Discovery(Arc::clone(&self.discovery)));
    }
}
