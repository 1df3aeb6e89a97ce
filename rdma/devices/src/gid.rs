//! GIDs, and what they are for.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// What an entry of a GID table stands for, by `gid_attrs/types`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GidType {
    /// `IB/RoCE v1`: an InfiniBand GID, or on Ethernet RoCE v1 (its own Ethertype, not routed). iWARP devices report
    /// this too, and it means nothing there.
    InfinibandOrRoceV1,
    /// `RoCE v2`: over UDP, routed.
    RoceV2,
    /// Anything else, as the kernel writes it.
    Other(String),
}

impl GidType {
    /// From what the kernel writes.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "IB/RoCE v1" => Self::InfinibandOrRoceV1,
            "RoCE v2" => Self::RoceV2,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfinibandOrRoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Other(other) => other,
        })
    }
}

/// An entry of a port's GID table that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// The 128 bits, in network order.
    pub address: Ipv6Addr,
    /// What it is for; `None` when the kernel does not report it.
    pub kind: Option<GidType>,
    /// The interface that it came from (a VLAN's or a bond's own, if it is theirs).
    pub netdev: Option<String>,
}

impl Gid {
    /// Whether it was made from this IP address. On RoCE it was, IPv4 in the form `::ffff:a.b.c.d`.
    #[must_use]
    pub fn is(&self, address: IpAddr) -> bool {
        let wanted = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        self.address == wanted
    }
}

/// A GID as sysfs writes it: eight groups of four hexadecimal digits. `None` for anything else, and for the zero GID of
/// an unused entry.
#[must_use]
pub fn parse(text: &str) -> Option<Ipv6Addr> {
    let address: Ipv6Addr = text.parse().ok()?;
    (!address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_unused_entry_is_none() {
        assert_eq!(parse("0000:0000:0000:0000:0000:0000:0000:0000"), None);
    }

    #[test]
    fn an_ipv4_gid_is_its_address() {
        let address = parse("0000:0000:0000:0000:0000:ffff:0a00:020f").expect("a GID");
        let gid = Gid { index: 1, address, kind: Some(GidType::RoceV2), netdev: None };
        assert!(gid.is("10.0.2.15".parse().expect("an address")));
        assert!(!gid.is("10.0.2.16".parse().expect("an address")));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_not(text in ".{0,60}") {
            let _ = parse(&text);
            prop_assert_eq!(GidType::parse(&text).to_string(), text);
        }

        #[test]
        fn written_as_the_kernel_does_it_is_read_back(bits in 1_u128..) {
            let groups: Vec<_> = Ipv6Addr::from(bits).segments().iter().map(|group| format!("{group:04x}")).collect();
            prop_assert_eq!(parse(&groups.join(":")), Some(Ipv6Addr::from(bits)));
        }
    }
}
