//! Discovery controllers that are announced by multicast DNS (NVMe TP 8009).

use super::engine::Place;
use anyhow::{Context, Result};
use mdns_sd::{IfKind, ResolvedService, ServiceDaemon, ServiceEvent};
use std::collections::BTreeMap;
use tokio::sync::mpsc::UnboundedSender;

/// What controllers announce themselves as: over TCP and iWARP, and over UDP-based RDMA.
const KINDS: [&str; 2] = ["_nvme-disc._tcp.local.", "_nvme-disc._udp.local."];

/// Those of a kind that are announced now.
pub(crate) struct Announced {
    pub(crate) kind: &'static str,
    pub(crate) places: Vec<Place>,
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
    /// Tells those that are announced now, all of a kind, whenever that changes.
    pub(crate) fn start(tell: &UnboundedSender<Announced>) -> Result<Self> {
        let daemon = ServiceDaemon::new().context("cannot listen for multicast DNS")?;
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        for kind in KINDS {
            let events = daemon.browse(kind).context("cannot ask by multicast DNS")?;
            let tell = tell.clone();
            let body = move || {
                let mut found: BTreeMap<String, Place> = BTreeMap::new();
                while let Ok(event) = events.recv() {
                    match event {
                        ServiceEvent::ServiceResolved(service) => {
                            if let Some(place) = place(&service) {
                                found.insert(service.get_fullname().to_owned(), place);
                            }
                        }
                        ServiceEvent::ServiceRemoved(_, name) => drop(found.remove(&name)),
                        _ => continue,
                    }
                    let places = found.values().cloned().collect();
                    if tell.send(Announced { kind, places }).is_err() {
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
    let v4 = service.get_addresses_v4().into_iter().min().map(|address| address.to_string());
    let any = || service.get_addresses().iter().map(|address| address.to_ip_addr().to_string()).min();
    Some(Place { transport: transport.to_owned(), address: v4.or_else(any)?, port: service.get_port() })
}
