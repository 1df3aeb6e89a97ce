//! Network interfaces.

use crate::sysfs;
use std::net::IpAddr;
use std::path::Path;

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface.
    pub netdev: String,
    /// The address.
    pub address: IpAddr,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Netdev {
    /// Its name.
    pub name: String,
    /// `up`, `down`, `unknown` (loopback, say), …
    pub operstate: String,
    /// Bytes of an IP packet.
    pub mtu: Option<u32>,
    /// The hardware address as the kernel writes it; 20 bytes on InfiniBand.
    pub hardware_address: Option<String>,
    /// The driver; `None` for an interface with no hardware of its own (VLAN, bond, dummy).
    pub driver: Option<String>,
    /// Which port of its hardware it is, from 0.
    pub dev_port: u32,
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
}

impl Netdev {
    /// Reads one from `sys/class/net` below `root`.
    #[must_use]
    pub fn read(root: &Path, name: &str, addresses: &[InterfaceAddress]) -> Self {
        let folder = root.join("sys/class/net").join(name);
        let of = |file: &str| sysfs::text(&folder.join(file));
        let mine = addresses.iter().filter(|address| address.netdev == name);
        Self {
            name: name.to_owned(),
            operstate: of("operstate").unwrap_or_else(|| "unknown".to_owned()),
            mtu: of("mtu").and_then(|text| text.parse().ok()),
            hardware_address: of("address"),
            driver: sysfs::link_name(&folder.join("device/driver")),
            dev_port: of("dev_port").and_then(|text| text.parse().ok()).unwrap_or(0),
            addresses: mine.map(|address| address.address).collect(),
        }
    }

    /// The path MTU of RoCE over this interface, in bytes: the largest power of two from 256 to 4096 that leaves room
    /// for the headers of RoCE v2, 96 bytes as Linux counts them. `None` when not even 256 fits.
    #[must_use]
    pub fn roce_mtu(&self) -> Option<u32> {
        const HEADERS: u32 = 96;
        let room = self.mtu?.checked_sub(HEADERS)?;
        [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room)
    }
}

/// The IP addresses of this machine.
///
/// # Errors
/// When the kernel does not report it.
pub fn addresses() -> std::io::Result<Vec<InterfaceAddress>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    Ok(interfaces
        .filter_map(|interface| {
            let storage = interface.address?;
            let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            let address = v4.or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))?;
            // An alias (`eth0:1`) is a label on an address of the interface.
            let netdev = interface.interface_name.split(':').next().unwrap_or_default().to_owned();
            Some(InterfaceAddress { netdev, address })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_follows_the_interface() {
        let with = |mtu| Netdev {
            name: "eth0".into(),
            operstate: "up".into(),
            mtu: Some(mtu),
            hardware_address: None,
            driver: None,
            dev_port: 0,
            addresses: vec![],
        };
        let expected =
            [(1500, Some(1024)), (4192, Some(4096)), (4191, Some(2048)), (9000, Some(4096)), (300, None)];
        for (mtu, path) in expected {
            assert_eq!(with(mtu).roce_mtu(), path, "{mtu}");
        }
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let addresses = addresses().expect("addresses");
        assert!(addresses.iter().any(|address| address.netdev == "lo" && address.address.is_loopback()));
    }
}
