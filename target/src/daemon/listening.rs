//! A listener: what is configured, and what became of it.

use super::worker_group::Selection;
use crate::control::request::status::{AnaGroupStatus, ListenerStatus};
use crate::machine::Obstacle;
use crate::metrics::observed::SeenListener;
use crate::ports::Served;
use crate::settings::in_capsule_data;
use nvmf_config::{AddressList, Listener, ProviderChoice, Target, Tls, Transport};
use nvmf_rdma_any::ProviderSelection;
use nvmf_subsystem::{PortConcatenation, RdmaProviderType};
use std::net::SocketAddr;

/// A listener of the configuration.
pub(super) struct Listening {
    pub(super) config: Listener,
    /// The number of its port. No later listener has it.
    pub(super) port: u16,
    /// Where it listens: as configured, but with the port that the system chose for port 0.
    pub(super) address: SocketAddr,
    /// Over what; none when it does not listen.
    pub(super) providers: Vec<Selection>,
    /// Why hosts do not come to it, though it listens, and whether the look before this one has shown something of the kind.
    obstacle: Option<Obstacle>,
    suspected: bool,
    /// What was logged last of why it is down, or of a provider that it could not take.
    pub(super) fault: Option<String>,
}

impl Listening {
    pub(super) fn new(config: Listener, port: u16) -> Self {
        Self {
            address: config.address,
            config,
            port,
            providers: Vec::new(),
            obstacle: None,
            suspected: false,
            fault: None,
        }
    }

    pub(super) fn transport(&self) -> Transport {
        self.config.transport
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is meant by an address and a transport: as configured, or as it listens.
    pub(super) fn is_named(&self, address: SocketAddr, transport: Option<Transport>) -> bool {
        (self.address == address || self.config.address == address)
            && transport.is_none_or(|transport| self.config.transport == transport)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn listens(&self) -> bool {
        !self.providers.is_empty()
    }

    /// Whether hosts can connect.
    pub(super) fn is_up(&self) -> bool {
        self.listens() && self.obstacle.is_none()
    }

    /// Takes what a look has shown to be in the way of hosts. Once is nothing yet: an address may be replaced. The sockets stay:
    /// they serve again as soon as the address is back, and connections may have noticed nothing. Returns whether that is
    /// news.
    pub(super) fn note_obstacle(&mut self, seen: Option<Obstacle>) -> bool {
        let seen = seen.filter(|_| self.listens());
        let is_so = core::mem::replace(&mut self.suspected, seen.is_some());
        let before = core::mem::replace(&mut self.obstacle, seen.filter(|_| is_so));
        self.obstacle != before
    }

    /// What hosts do not come for, and what becomes of it.
    pub(super) fn obstacle(&self) -> Option<String> {
        let obstacle = self.obstacle.as_ref()?;
        Some(format!(
            "hosts cannot come to {}: {obstacle}. It serves again as soon as it is back",
            self.address
        ))
    }

    /// Whether hosts reach disks through it.
    pub(super) fn is_for_disks(&self) -> bool {
        self.is_up() && !self.config.discovery_only
    }

    /// The address and what it is served over, as the log and the status line have it.
    pub(super) fn describe(&self) -> String {
        let providers: Vec<_> = self.providers.iter().map(ToString::to_string).collect();
        let tls = tls_of(&self.config);
        match &providers[..] {
            [] => match self.config.transport {
                Transport::Rdma => format!("{} (rdma, down)", self.address),
                Transport::Tcp => format!("{} (NVMe/TCP{tls}, down)", self.address),
            },
            _ if !self.is_up() => format!("{} ({}{tls}, out of reach)", self.address, providers.join(", ")),
            _ => format!("{} ({}{tls})", self.address, providers.join(", ")),
        }
    }

    /// As those see it who read metrics.
    pub(super) fn seen(&self) -> SeenListener {
        SeenListener { address: self.address, transport: self.config.transport, up: self.is_up() }
    }

    pub(super) fn status(&self, ana_groups: Vec<AnaGroupStatus>) -> ListenerStatus {
        ListenerStatus {
            address: self.address.to_string(),
            transport: self.config.transport.to_string(),
            providers: self.providers.iter().map(ToString::to_string).collect(),
            up: self.is_up(),
            fault: self.obstacle().or_else(|| self.fault.clone()),
            discovery_only: self.config.discovery_only,
            tls: self.config.tls.to_string(),
            allow: self.config.allow.iter().flat_map(AddressList::iter).map(ToString::to_string).collect(),
            ana_groups,
        }
    }

    /// Of a device that is not said: the host finds out by itself whether it is InfiniBand or RoCE.
    pub(super) fn served(&self, target: &Target) -> Option<Served> {
        let rdma = match &self.providers[..] {
            [] => return None,
            [Selection::Tcp] => None,
            [Selection::Rdma(ProviderSelection::Iwarp { .. })] => Some(RdmaProviderType::IWARP),
            _ => Some(RdmaProviderType::NO_PROVIDER_SPECIFIED),
        };
        Some(Served {
            address: self.address,
            rdma,
            in_capsule_data: in_capsule_data(target, self.config.transport),
            discovery: self.config.discovery,
            discovery_only: self.config.discovery_only,
            requires_tls: self.config.tls == Tls::Required,
            concatenation: match self.config.tls {
                Tls::Off | Tls::Required => PortConcatenation::No,
                Tls::Allowed => PortConcatenation::Allowed,
                Tls::Concat => PortConcatenation::Required,
            },
        })
    }

    /// Whether it was left to us which provider it takes, and it has userspace iWARP only.
    pub(super) fn may_find_a_device(&self) -> bool {
        self.config.provider == ProviderChoice::Auto
            && matches!(self.providers[..], [Selection::Rdma(ProviderSelection::Iwarp { .. })])
            && !self.address.ip().is_unspecified()
    }
}

/// What a listener's description says of TLS.
pub(crate) fn tls_of(listener: &Listener) -> &'static str {
    match listener.tls {
        Tls::Off => "",
        Tls::Allowed => ", TLS allowed",
        Tls::Concat => ", TLS required but for authentication and discovery",
        Tls::Required => ", TLS required",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_config::Config;
    use nvmf_rdma_any::VerbsOptions;

    fn verbs(device: &str) -> Selection {
        let options = VerbsOptions::default();
        Selection::Rdma(ProviderSelection::Verbs { device: device.into(), port: 1, options })
    }

    fn listening(text: &str, providers: Vec<Selection>) -> Listening {
        let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.com.example:late\"\nallow_any_host = true\n\
            [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n";
        let config = Config::parse(&format!("[[listener]]\n{text}\n{subsystem}")).expect("a configuration");
        Listening { providers, ..Listening::new(config.listeners[0].clone(), 1) }
    }

    #[test]
    fn listener_whose_address_is_gone_is_down_at_the_second_look_and_up_at_the_first_that_sees_it() {
        let mut listener =
            listening("address = \"192.0.2.1:4420\"\ntransport = \"tcp\"", vec![Selection::Tcp]);
        let gone = || Some(Obstacle::Gone);
        assert!(!listener.note_obstacle(gone()) && listener.is_for_disks(), "it may be replaced");
        assert!(!listener.note_obstacle(None) && !listener.note_obstacle(gone()));
        assert!(listener.note_obstacle(gone()), "it is news");
        assert!(!listener.note_obstacle(gone()), "of before");
        assert!(!listener.is_for_disks() && listener.listens());
        let ListenerStatus { up, fault, .. } = listener.status(Vec::new());
        let fault = fault.unwrap_or_default();
        assert!(!up && fault.contains("no longer one of this machine"), "{fault}");
        assert_eq!(listener.describe(), "192.0.2.1:4420 (NVMe/TCP, out of reach)");
        assert!(listener.note_obstacle(Some(Obstacle::LinkDown("eth1".to_owned()))), "another one");
        assert!(listener.status(Vec::new()).fault.is_some_and(|fault| fault.contains("the link eth1")));
        assert!(listener.note_obstacle(None) && listener.is_for_disks());
        assert_eq!(listener.status(Vec::new()).fault, None);
        // One that does not listen has a reason of its own.
        listener.providers.clear();
        assert!(!listener.note_obstacle(gone()) && !listener.note_obstacle(gone()));
    }

    #[test]
    fn device_is_looked_for_where_a_listener_may_take_one() {
        let listening = |address, provider, providers| {
            listening(&format!("address = \"{address}\"\nprovider = \"{provider}\""), providers)
        };
        let iwarp = || vec![Selection::Rdma(ProviderSelection::Iwarp { crc: false })];
        let rdma = |it: &Listening| it.served(&Target::default()).map(|served| served.rdma);
        let late = listening("192.0.2.1:4420", "auto", iwarp());
        assert!(late.may_find_a_device());
        assert_eq!(rdma(&late), Some(Some(RdmaProviderType::IWARP)));
        assert!(!listening("192.0.2.1:4420", "iwarp", iwarp()).may_find_a_device());
        assert!(!listening("0.0.0.0:4420", "auto", iwarp()).may_find_a_device(), "of which device?");
        assert!(!listening("192.0.2.1:4420", "auto", Vec::new()).may_find_a_device(), "it is down");
        let both = listening("192.0.2.1:4420", "auto", [iwarp(), vec![verbs("rxe0")]].concat());
        assert!(!both.may_find_a_device(), "it has one");
        assert_eq!(both.describe(), "192.0.2.1:4420 (iwarp, verbs on rxe0)");
        assert_eq!(rdma(&both), Some(Some(RdmaProviderType::NO_PROVIDER_SPECIFIED)));
    }
}
