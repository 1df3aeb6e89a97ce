//! RDMA devices and their ports, as `/sys/class/infiniband` shows them.

use crate::gid::{self, Gid, GidType};
use crate::sysfs;
use std::fmt;
use std::path::Path;

/// What kind of device it is, by `node_type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeType {
    /// `1: CA`: a channel adapter, InfiniBand or RoCE.
    ChannelAdapter,
    /// `4: RNIC`: iWARP.
    Rnic,
    /// Anything else, as the kernel writes it.
    Other(String),
}

/// What drives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// A card's driver, such as `mlx5_core`.
    Hardware(String),
    /// No card: the module that imitates one, `rdma_rxe` or `siw`.
    Software(&'static str),
    /// No card, and no module that we know.
    Unknown,
}

/// A port's logical state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortState {
    /// `1: DOWN`.
    Down,
    /// `2: INIT`: the link is there, no subnet manager has configured it yet.
    Init,
    /// `3: ARMED`.
    Armed,
    /// `4: ACTIVE`: it can be used.
    Active,
    /// Anything else, as the kernel writes it.
    Other(String),
}

/// What the wire is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    Infiniband,
    /// Ethernet: RoCE or iWARP.
    Ethernet,
    /// Anything else, as the kernel writes it.
    Other(String),
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its number, from 1.
    pub number: u32,
    /// Logical state.
    pub state: PortState,
    /// Physical state as the kernel writes it, without its number: `LinkUp`, `Disabled`, …
    pub physical_state: String,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Rate as the kernel writes it, such as `100 Gb/sec (4X EDR)`. Software devices report 2.5, which means nothing.
    pub rate: Option<String>,
    /// The local identifier that the subnet manager gave; 0 on Ethernet.
    pub lid: u16,
    /// The GID table's entries in use.
    pub gids: Vec<Gid>,
    /// The interfaces beneath, the port's own first.
    pub netdevs: Vec<String>,
}

/// An RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name: `mlx5_0`, `rxe0`, …
    pub name: String,
    /// What kind it is.
    pub node_type: NodeType,
    /// The GUID, as the kernel writes it.
    pub node_guid: Option<String>,
    /// Firmware version; software devices have none.
    pub firmware: Option<String>,
    /// What drives it.
    pub driver: Driver,
    /// Its ports.
    pub ports: Vec<Port>,
}

impl Device {
    /// Reads one from `sys/class/infiniband` below `root`.
    #[must_use]
    pub fn read(root: &Path, name: &str) -> Self {
        let folder = root.join("sys/class/infiniband").join(name);
        let of = |file: &str| sysfs::text(&folder.join(file));
        let node_type = NodeType::parse(&of("node_type").unwrap_or_default());
        let driver = match sysfs::link_name(&folder.join("device/driver")) {
            Some(driver) => Driver::Hardware(driver),
            // Only rxe names the interface that it runs on.
            None if of("parent").is_some() || of("node_desc").as_deref() == Some("rxe") => {
                Driver::Software("rdma_rxe")
            }
            None if node_type == NodeType::Rnic => Driver::Software("siw"),
            None => Driver::Unknown,
        };
        let numbers = sysfs::names(&folder.join("ports")).unwrap_or_default();
        let mut ports: Vec<_> =
            numbers.iter().filter_map(|number| Port::read(&folder, number.parse().ok()?).into()).collect();
        for port in &mut ports {
            port.add_netdevs(root, &folder);
        }
        Self {
            name: name.to_owned(),
            node_type,
            node_guid: of("node_guid"),
            firmware: of("fw_ver"),
            driver,
            ports,
        }
    }

    /// The protocol of a port: `InfiniBand`, `RoCE v2`, `RoCE v1`, `iWARP`.
    #[must_use]
    pub fn protocol(&self, port: &Port) -> &'static str {
        if self.node_type == NodeType::Rnic {
            return "iWARP";
        }
        match port.link_layer {
            LinkLayer::Infiniband => "InfiniBand",
            _ if port.has_roce_v2() => "RoCE v2",
            _ => "RoCE v1",
        }
    }

    /// Whether it is a RoCE device.
    #[must_use]
    pub fn is_roce(&self, port: &Port) -> bool {
        self.node_type != NodeType::Rnic && port.link_layer == LinkLayer::Ethernet
    }
}

impl Port {
    fn read(device: &Path, number: u32) -> Self {
        let folder = device.join("ports").join(number.to_string());
        let of = |file: &str| sysfs::text(&folder.join(file));
        let lid = of("lid").and_then(|text| u16::from_str_radix(text.trim_start_matches("0x"), 16).ok());
        let mut port = Self {
            number,
            state: PortState::parse(&of("state").unwrap_or_default()),
            physical_state: word(&of("phys_state").unwrap_or_default()).to_owned(),
            link_layer: LinkLayer::parse(&of("link_layer").unwrap_or_default()),
            rate: of("rate"),
            lid: lid.unwrap_or(0),
            gids: Vec::new(),
            netdevs: Vec::new(),
        };
        // The table may have a thousand entries, nearly all of them unused.
        for index in sysfs::names(&folder.join("gids")).unwrap_or_default() {
            let Some(address) = of(&format!("gids/{index}")).as_deref().and_then(gid::parse) else {
                continue;
            };
            let Ok(number) = index.parse() else { continue };
            let kind = of(&format!("gid_attrs/types/{index}")).map(|text| GidType::parse(&text));
            let netdev = of(&format!("gid_attrs/ndevs/{index}"));
            port.gids.push(Gid { index: number, address, kind, netdev });
        }
        port
    }

    /// The interfaces that it runs on: those that rxe names, those of the GIDs, those of the same card.
    fn add_netdevs(&mut self, root: &Path, device: &Path) {
        let mut netdevs: Vec<String> = sysfs::text(&device.join("parent")).into_iter().collect();
        netdevs.extend(self.gids.iter().filter_map(|gid| gid.netdev.clone()));
        for name in sysfs::names(&device.join("device/net")).unwrap_or_default() {
            let dev_port =
                sysfs::number(&root.join("sys/class/net").join(&name).join("dev_port")).unwrap_or(0);
            if dev_port + 1 == u64::from(self.number) {
                netdevs.push(name);
            }
        }
        for name in netdevs {
            if !self.netdevs.contains(&name) {
                self.netdevs.push(name);
            }
        }
    }

    /// Whether the GID table has an entry for RoCE v2.
    #[must_use]
    pub fn has_roce_v2(&self) -> bool {
        self.gids.iter().any(|gid| gid.kind == Some(GidType::RoceV2))
    }
}

/// `4: ACTIVE` is `ACTIVE`.
fn word(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, word)| word).trim()
}

impl NodeType {
    fn parse(text: &str) -> Self {
        match word(text) {
            "CA" => Self::ChannelAdapter,
            "RNIC" => Self::Rnic,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl PortState {
    fn parse(text: &str) -> Self {
        match word(text) {
            "DOWN" => Self::Down,
            "INIT" => Self::Init,
            "ARMED" => Self::Armed,
            "ACTIVE" => Self::Active,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl LinkLayer {
    fn parse(text: &str) -> Self {
        match text {
            "InfiniBand" => Self::Infiniband,
            "Ethernet" => Self::Ethernet,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ChannelAdapter => "CA",
            Self::Rnic => "RNIC",
            Self::Other(other) => other,
        })
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::Other(other) => other,
        })
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Infiniband => "InfiniBand",
            Self::Ethernet => "Ethernet",
            Self::Other(other) => other,
        })
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hardware(driver) => f.write_str(driver),
            Self::Software(module) => write!(f, "software: {module}"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}
