//! Which addresses a listener takes connections from.

use ipnet::IpNet;
use std::net::IpAddr;

/// Networks, as a listener's `allow` has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressList(Vec<IpNet>);

impl AddressList {
    /// Whether an address is in one of them. An IPv4 address that came in over IPv6 is an IPv4 address.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(&address))
    }

    /// The networks.
    pub fn iter(&self) -> impl Iterator<Item = &IpNet> {
        self.0.iter()
    }
}

impl FromIterator<IpNet> for AddressList {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        Self(nets.into_iter().map(|net| net.trunc()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_in_its_network_however_it_came() {
        let list: AddressList =
            ["10.0.0.0/8", "2001:db8::/32"].into_iter().map(|net| net.parse::<IpNet>().unwrap()).collect();
        let has = |address: &str| list.has(address.parse().unwrap());
        assert!(has("10.1.2.3") && has("::ffff:10.1.2.3") && has("2001:db8::1"));
        assert!(!has("11.0.0.1") && !has("2001:db9::1") && !has("::1"));
    }
}
