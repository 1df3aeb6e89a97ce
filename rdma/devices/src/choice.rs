//! Verbs or iwarp for an address, and why: what `provider = "auto"` does.

use crate::{Machine, NodeType, Owner, PortState};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Why iwarp, and not verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason<'a> {
    /// `0.0.0.0` or `::`: no one device owns every address.
    Unspecified,
    /// The machine has no RDMA device.
    NoDevice,
    /// No interface has this address.
    NotLocal,
    /// The interface that has it has no RDMA device on it.
    NoDeviceOn(&'a str),
    /// The device that owns it speaks iWARP, as userspace iWARP does. Over such a device a peer keeps the one key of
    /// all memory that it was shown part of, and every RDMA READ costs a registration: it is taken only when it is
    /// asked for.
    IwarpDevice(Owner<'a>),
    /// A device owns it, but verbs cannot be used: the text says why.
    VerbsUnusable(Owner<'a>, &'a str),
}

/// The provider for an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice<'a> {
    /// libibverbs, on this device.
    Verbs(Owner<'a>),
    /// Userspace iWARP over TCP.
    Iwarp(Reason<'a>),
}

/// What `auto` takes for a local address: verbs when an InfiniBand or RoCE device owns it, otherwise iwarp. `verbs`
/// says whether verbs can be used at all (the libraries load, the device nodes are there), or why not.
///
/// A port that is down does not change the choice: a peer that uses RoCE would not be reached over iwarp either, and
/// the message about the port helps more.
#[must_use]
pub fn choose<'a>(machine: &'a Machine, local: IpAddr, verbs: Result<(), &'a str>) -> Choice<'a> {
    if local.is_unspecified() {
        return Choice::Iwarp(Reason::Unspecified);
    }
    let Some(owner) = machine.device_of(local) else {
        return Choice::Iwarp(match machine.netdev_of(local) {
            _ if machine.devices.is_empty() => Reason::NoDevice,
            Some(netdev) => Reason::NoDeviceOn(&netdev.name),
            None => Reason::NotLocal,
        });
    };
    match verbs {
        Ok(()) if owner.device.node_type == NodeType::Rnic => Choice::Iwarp(Reason::IwarpDevice(owner)),
        Ok(()) => Choice::Verbs(owner),
        Err(why) => Choice::Iwarp(Reason::VerbsUnusable(owner, why)),
    }
}

/// The local address from which the kernel would send to `remote`: [`choose`] decides by it. Nothing is sent.
///
/// # Errors
/// When there is no route.
pub fn source_towards(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    // The route does not depend on the port, but port 0 is refused.
    let port = if remote.port() == 0 { 4420 } else { remote.port() };
    let mut remote = remote;
    remote.set_port(port);
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

impl Choice<'_> {
    /// The provider's name in the configuration: `verbs` or `iwarp`.
    #[must_use]
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Verbs(_) => "verbs",
            Self::Iwarp(_) => "iwarp",
        }
    }
}

/// The reason, as the rest of a sentence that begins with the provider.
impl fmt::Display for Choice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verbs(owner) => {
                let (device, port) = (&owner.device.name, owner.port.number);
                write!(f, "{device} port {port} lies on {}, which has the address", owner.netdev.name)?;
                match owner.gid {
                    Some(gid) => write!(f, " ({}, GID {})", owner.device.protocol(owner.port), gid.index)?,
                    None => write!(f, ", but no GID was made from it")?,
                }
                if owner.port.state != PortState::Active {
                    write!(f, ", but the port is {}", owner.port.state)?;
                }
                Ok(())
            }
            Self::Iwarp(reason) => reason.fmt(f),
        }
    }
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => {
                f.write_str("it stands for every address: name one to use the RDMA device that owns it")
            }
            Self::NoDevice => f.write_str("this machine has no RDMA device"),
            Self::NotLocal => f.write_str("no interface has the address"),
            Self::NoDeviceOn(netdev) => write!(f, "no RDMA device lies on {netdev}, which has the address"),
            Self::IwarpDevice(owner) => {
                let device = &owner.device.name;
                write!(
                    f,
                    "{device} owns the address and speaks iWARP too, without a key for each command: "
                )?;
                f.write_str("provider verbs takes it all the same")
            }
            Self::VerbsUnusable(owner, why) => write!(f, "{} owns the address, but {why}", owner.device.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_towards_loopback_is_loopback() {
        let remote = "127.0.0.1:0".parse().expect("an address");
        assert_eq!(source_towards(remote).expect("a route"), IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
}
