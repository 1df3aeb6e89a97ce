//! Which addresses are one machine.

use std::net::{IpAddr, Ipv6Addr};

/// What a peer counts as where peers are counted by machine: its IPv4 address, or the /64 of its IPv6 address. A machine
/// has as many IPv6 addresses as it likes in the /64 that it is in (RFC 4862, 5.5): to count them would bound nothing.
#[must_use]
pub fn machine_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_machine() {
        let machine = |address: &str| machine_of(address.parse().unwrap());
        assert_eq!(machine("2001:db8::1"), machine("2001:db8::ffff:0:0:2"));
        assert_ne!(machine("2001:db8::1"), machine("2001:db8:0:1::1"));
        assert_ne!(machine("192.0.2.1"), machine("192.0.2.2"));
        assert_eq!(machine("192.0.2.1"), machine("::ffff:192.0.2.1"));
    }
}
