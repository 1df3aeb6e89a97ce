//! Everything together, and who owns an address.

use crate::{Device, Gid, GidType, InterfaceAddress, Netdev, NodeType, Port, netdev, sysfs};
use std::io;
use std::net::IpAddr;
use std::path::Path;

/// The RDMA devices and network interfaces of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// RDMA devices, by name.
    pub devices: Vec<Device>,
    /// Network interfaces, by name.
    pub netdevs: Vec<Netdev>,
}

/// What owns a local address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    /// The device.
    pub device: &'a Device,
    /// Its port.
    pub port: &'a Port,
    /// The GID to use: on RoCE the one that was made from the address, version 2 before version 1; on InfiniBand the
    /// port's first. iWARP has no use for one.
    pub gid: Option<&'a Gid>,
    /// The interface that has the address.
    pub netdev: &'a Netdev,
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// When the interfaces cannot be read. A machine without RDMA is no error.
    pub fn read() -> io::Result<Self> {
        Self::read_at(Path::new("/"), &netdev::addresses()?)
    }

    /// The machine whose `sys` lies below `root`, with these addresses.
    ///
    /// # Errors
    /// When `sys/class/net` or `sys/class/infiniband` is there and cannot be read.
    pub fn read_at(root: &Path, addresses: &[InterfaceAddress]) -> io::Result<Self> {
        let names = |folder: &str| match sysfs::names(&root.join(folder)) {
            // No module of the RDMA subsystem is loaded; or the sandbox shows no sysfs.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other,
        };
        // `bonding_masters` is a file among the interfaces.
        let interfaces = names("sys/class/net")?.into_iter().filter(|name| name != "bonding_masters");
        let netdevs: Vec<_> = interfaces.map(|name| Netdev::read(root, &name, addresses)).collect();
        let names = names("sys/class/infiniband")?;
        let mut devices: Vec<_> = names.iter().map(|name| Device::read(root, name)).collect();
        for port in devices.iter_mut().flat_map(|device| &mut device.ports) {
            add_ipoib(port, &netdevs);
        }
        Ok(Self { devices, netdevs })
    }

    /// The interface of that name.
    #[must_use]
    pub fn netdev(&self, name: &str) -> Option<&Netdev> {
        self.netdevs.iter().find(|netdev| netdev.name == name)
    }

    /// The interface that has this address.
    #[must_use]
    pub fn netdev_of(&self, local: IpAddr) -> Option<&Netdev> {
        self.netdevs.iter().find(|netdev| netdev.addresses.contains(&local))
    }

    /// The RDMA device that owns a local address: the first of [`Machine::owners_of`].
    #[must_use]
    pub fn device_of(&self, local: IpAddr) -> Option<Owner<'_>> {
        self.owners_of(local).first().copied()
    }

    /// The RDMA ports that lie on the interface that has a local address: cards before software, active ports before
    /// those that are not, then by name.
    #[must_use]
    pub fn owners_of(&self, local: IpAddr) -> Vec<Owner<'_>> {
        let Some(netdev) = self.netdev_of(local) else { return Vec::new() };
        let ports =
            self.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        let mut owners: Vec<_> = ports
            .filter(|(_, port)| port.netdevs.contains(&netdev.name))
            .map(|(device, port)| Owner { device, port, gid: gid_for(device, port, local), netdev })
            .collect();
        owners.sort_by_key(|owner| {
            let software = !matches!(owner.device.driver, crate::Driver::Hardware(_));
            (software, owner.port.state != crate::PortState::Active)
        });
        owners
    }
}

/// IP over InfiniBand: the last 16 of the interface's 20 address bytes are a GID of its port.
fn add_ipoib(port: &mut Port, netdevs: &[Netdev]) {
    for netdev in netdevs {
        let Some(bytes) = netdev.hardware_address.as_deref().and_then(infiniband_gid) else { continue };
        if port.gids.iter().any(|gid| gid.address.octets() == bytes) && !port.netdevs.contains(&netdev.name) {
            port.netdevs.push(netdev.name.clone());
        }
    }
}

/// The GID in an InfiniBand hardware address; `None` for an Ethernet address.
fn infiniband_gid(hardware_address: &str) -> Option<[u8; 16]> {
    let bytes: Option<Vec<u8>> =
        hardware_address.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    <[u8; 20]>::try_from(bytes?).ok()?.last_chunk().copied()
}

fn gid_for<'a>(device: &Device, port: &'a Port, local: IpAddr) -> Option<&'a Gid> {
    if device.node_type == NodeType::Rnic {
        return None;
    }
    if !device.is_roce(port) {
        return port.gids.first();
    }
    let of_address = || port.gids.iter().filter(|gid| gid.is(local));
    of_address().find(|gid| gid.kind == Some(GidType::RoceV2)).or_else(|| of_address().next())
}

#[cfg(test)]
mod tests;
