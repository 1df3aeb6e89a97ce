//! Discovery controllers that are announced by multicast DNS (NVMe TP 8009).

use super::engine::Place;
use anyhow::{Context, Result};
use mdns_sd::{IfKind, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tokio::sync::watch;

/// What controllers announce themselves as: over TCP and iWARP, and over UDP-based RDMA.
const KINDS: [&str; 2] = ["_nvme-disc._tcp.local.", "_nvme-disc._udp.local."];

/// Announcements that are kept: anybody on the network makes them.
const ANNOUNCED_MAX: usize = 64;

/// Those that are announced now, by the names of the announcements.
#[derive(Debug, Default)]
pub(crate) struct Announced(BTreeMap<String, Place>);

impl Announced {
    pub(crate) fn places(&self) -> BTreeSet<Place> {
        self.0.values().cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// What is announced under a name now; `None`: nothing that can be used. Whether that changes anything.
    fn set(&mut self, name: &str, place: Option<Place>) -> bool {
        match place {
            Some(_) if self.0.len() >= ANNOUNCED_MAX && !self.0.contains_key(name) => false,
            Some(place) => self.0.insert(name.to_owned(), place.clone()) != Some(place),
            None => self.0.remove(name).is_some(),
        }
    }
}

/// Looks for them until it is dropped.
pub(crate) struct Browser {
    daemon: ServiceDaemon,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.daemon.shutdown();
    }
}

impl Browser {
    /// Tells those that are announced now.
    pub(crate) fn start(tell: &watch::Sender<Announced>) -> Result<Self> {
        let daemon = ServiceDaemon::new().context("cannot listen for multicast DNS")?;
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        for kind in KINDS {
            let events = daemon.browse(kind).context("cannot ask by multicast DNS")?;
            let tell = tell.clone();
            let body = move || {
                while let Ok(event) = events.recv() {
                    let (name, place) = match event {
                        ServiceEvent::ServiceResolved(service) => {
                            (service.get_fullname().to_owned(), place(&service))
                        }
                        ServiceEvent::ServiceRemoved(_, name) => (name, None),
                        _ => continue,
                    };
                    tell.send_if_modified(|announced| announced.set(&name, place));
                    if tell.is_closed() {
                        return;
                    }
                }
            };
            std::thread::Builder::new().name("nvmf-mdns".to_owned()).spawn(body)?;
        }
        Ok(Self { daemon })
    }
}

fn place(service: &ResolvedService) -> Option<Place> {
    let transport = match service.get_property_val_str("p") {
        Some("rdma" | "iwarp" | "roce") => "rdma",
        _ => "tcp",
    };
    let address = address(service.get_addresses())?;
    let port = Some(service.get_port()).filter(|port| *port != 0)?;
    Some(Place { transport: transport.to_owned(), address, port })
}

/// Of these the one that is connected to: IPv4 if there is one. A link-local address says nothing without its interface.
fn address<'a>(all: impl IntoIterator<Item = &'a ScopedIp>) -> Option<String> {
    let order = |it: &ScopedIp| {
        let is_link_local = matches!(it.to_ip_addr(), IpAddr::V6(v6) if v6.is_unicast_link_local());
        let text = it.to_string();
        (!is_link_local || text.contains('%')).then_some((!it.is_ipv4(), is_link_local, text))
    };
    all.into_iter().filter_map(order).min().map(|(.., text)| text)
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::place;
    use super::*;

    #[test]
    fn no_more_announcements_are_kept_than_a_few() {
        let mut announced = Announced::default();
        for number in 0..1000 {
            announced.set(&number.to_string(), Some(place("tcp", &format!("name{number}"), 8009)));
        }
        assert_eq!(announced.places().len(), ANNOUNCED_MAX);
        assert!(!announced.set("0", Some(place("tcp", "name0", 8009))), "that is known");
        assert!(announced.set("0", Some(place("tcp", "name0", 4420))) && announced.set("0", None));
        assert!(announced.set("1000", Some(place("tcp", "name1000", 8009))), "there is room again");
    }

    #[test]
    fn address_that_is_announced_is_one_that_can_be_connected_to() {
        let of = |texts: &[&str]| {
            let all: Vec<ScopedIp> =
                texts.iter().map(|text| text.parse::<IpAddr>().unwrap().into()).collect();
            address(&all)
        };
        assert_eq!(of(&["2001:db8::1", "192.0.2.2", "192.0.2.1"]).as_deref(), Some("192.0.2.1"));
        assert_eq!(of(&["fe80::1", "2001:db8::1"]).as_deref(), Some("2001:db8::1"));
        assert_eq!(of(&["fe80::1"]), None, "of which interface is not known");
    }
}
