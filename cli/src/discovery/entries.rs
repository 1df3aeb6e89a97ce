//! A discovery log, as the engine wants it.
//!
//! Whoever writes the log says where something is, and nothing else: an address is an IP address or a plain name, so that it is no
//! option of a path. An entry that cannot be used costs only itself.

use super::arguments::Keys;
use super::engine::{Controller, Entry, Place, Tls};
use nvme_proto::fabrics::discovery::{AddressFamily, DiscoveryEntry, SubsystemType, TransportType};
use std::net::IpAddr;

/// TSAS of NVMe/TCP: no secure channel.
const NO_CHANNEL: u8 = 0;
/// TREQ: the secure channel, bits 1:0; it is required.
const CHANNEL: u8 = 0b11;
const CHANNEL_REQUIRED: u8 = 1;

/// What this host can connect to, and what it cannot.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Log {
    pub(super) entries: Vec<Entry>,
    /// What is said of those that are left out.
    pub(super) left_out: Vec<String>,
}

/// Why an entry is left out.
enum Unusable {
    /// It cannot be read, or is not for this host: what is wrong with it.
    Entry(&'static str),
    /// Where a link-local address would be reached is not known.
    NoInterface(String),
}

/// The log that this controller gave.
pub(super) fn log(controller: &Controller, log: &[DiscoveryEntry]) -> Log {
    let (mut read, mut unusable, mut first) = (Log::default(), 0_usize, None);
    let keys = controller.keys();
    for it in log {
        match entry(it, controller.interface(), &keys) {
            Ok(found) => read.entries.extend(found),
            Err(Unusable::NoInterface(path)) => read.left_out.push(format!("a path is left out: {path}")),
            Err(Unusable::Entry(why)) => {
                unusable += 1;
                first.get_or_insert(why);
            }
        }
    }
    if let Some(why) = first {
        let (place, all) = (&controller.place, log.len());
        read.left_out.push(format!(
            "discovery at {place}: {unusable} of the {all} entries of the log cannot be used (of the first {why})"
        ));
    }
    read
}

/// What an entry names; `None`: nothing that is attached or asked.
fn entry(entry: &DiscoveryEntry, interface: Option<&str>, keys: &Keys) -> Result<Option<Entry>, Unusable> {
    if ![SubsystemType::REFERRAL, SubsystemType::NVM_SUBSYSTEM].contains(&entry.subtype) {
        return Ok(None);
    }
    let transport = match entry.trtype {
        TransportType::TCP => "tcp",
        TransportType::RDMA => "rdma",
        _ => return Err(Unusable::Entry("the transport is neither tcp nor rdma")),
    };
    if !matches!(entry.adrfam, AddressFamily::IPV4 | AddressFamily::IPV6) {
        return Err(Unusable::Entry("the address is not one of IP"));
    }
    let port = entry.trsvcid().trim().parse().ok().filter(|port| *port != 0);
    let port = port.ok_or(Unusable::Entry("the port is no number from 1 to 65535"))?;
    let address = entry.traddr().trim();
    let address = address.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(address);
    if !is_usable(address) {
        return Err(Unusable::Entry("the address is neither an IP address nor a name"));
    }
    let mut place = Place { transport: transport.to_owned(), address: address.to_owned(), port };
    if let Ok(IpAddr::V6(v6)) = address.parse()
        && v6.is_unicast_link_local()
    {
        // It is on the link on which it was heard of.
        let Some(interface) = interface else {
            return Err(Unusable::NoInterface(format!(
                "{} over {place}: that is a link-local address, which each network has, and it is not known on which interface: \
                 name that of the discovery controller (-f, or as in -a {address}%eth0)",
                entry.subnqn().map(|nqn| nqn.to_string()).unwrap_or_default()
            )));
        };
        place.address = format!("{address}%{interface}");
    }
    if entry.subtype == SubsystemType::REFERRAL {
        return Ok(Some(Entry::Referral(place)));
    }
    let nqn = entry.subnqn().map_err(|_| Unusable::Entry("the NQN is none"))?;
    let is_for_tls = entry.trtype == TransportType::TCP
        && entry.tsas[0] != NO_CHANNEL
        && entry.treq & CHANNEL == CHANNEL_REQUIRED;
    let tls = match is_for_tls {
        false => Tls::No,
        true if keys.have_one_for(nqn) => Tls::Required,
        true => Tls::WithoutKey,
    };
    Ok(Some(Entry::Subsystem { nqn: nqn.to_string(), place, tls }))
}

/// Whether it is an IP address or a name, and nothing that means more as an argument.
fn is_usable(address: &str) -> bool {
    let is_name = |text: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(is_plain)
    };
    address.parse::<IpAddr>().is_ok() || is_name(address)
}

impl Controller {
    /// The network interface that it is reached over, where that is said.
    fn interface(&self) -> Option<&str> {
        let scope = self.place.address.split_once('%').map(|(_, scope)| scope);
        scope.or_else(|| self.options.iter().rev().find_map(|option| option.strip_prefix("--host-iface=")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::place;
    use super::*;
    use zerocopy::FromZeros;

    fn listed(subtype: SubsystemType, address: &str) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::new_zeroed();
        (entry.trtype, entry.adrfam, entry.subtype) = (TransportType::TCP, AddressFamily::IPV4, subtype);
        entry.traddr[..address.len()].copy_from_slice(address.as_bytes());
        entry.trsvcid[..4].copy_from_slice(b"4420");
        let nqn = b"nqn.2026-11.com.example:a";
        entry.subnqn[..nqn.len()].copy_from_slice(nqn);
        entry
    }

    fn from(address: &str, options: &[&str]) -> Controller {
        let options = options.iter().map(|&option| option.to_owned()).collect();
        Controller { place: place("tcp", address, 8009), options }
    }

    fn read(controller: &Controller, addresses: &[&str]) -> (Vec<String>, Vec<String>) {
        let entries: Vec<_> = addresses.iter().map(|it| listed(SubsystemType::NVM_SUBSYSTEM, it)).collect();
        let Log { entries, left_out } = log(controller, &entries);
        let address = |entry| match entry {
            Entry::Subsystem { place, .. } | Entry::Referral(place) => place.address,
        };
        (entries.into_iter().map(address).collect(), left_out)
    }

    #[test]
    fn address_that_cannot_be_used_costs_only_its_entry_and_sets_no_option() {
        let bad = [
            "127.0.0.1,host-iface=nosuch0",
            "127.0.0.1,tls",
            "127.0.0.1/rdma",
            "x y",
            "-x",
            "",
            "a:4420",
            "fe80::1%eth0",
            "$(id)",
        ];
        let (found, left_out) =
            read(&from("192.0.2.1", &[]), &[&["127.0.0.1"], &bad[..], &["storage_b.example"]].concat());
        assert_eq!(found, ["127.0.0.1", "storage_b.example"]);
        let [said] = &left_out[..] else { panic!("{left_out:?}") };
        assert!(
            said.contains("9 of the 11 entries") && said.contains("neither an IP address nor a name"),
            "{said}"
        );
        let referral = [listed(SubsystemType::REFERRAL, "a,tls"), listed(SubsystemType::REFERRAL, "::1")];
        let entries = log(&from("192.0.2.1", &[]), &referral).entries;
        assert_eq!(entries, [Entry::Referral(place("tcp", "::1", 4420))]);
    }

    #[test]
    fn link_local_address_is_on_the_link_of_the_discovery_controller_or_left_out() {
        let addresses = ["fe80::1", "2001:db8::1"];
        let (found, left_out) = read(&from("192.0.2.1", &[]), &addresses);
        assert_eq!(found, ["2001:db8::1"]);
        assert!(left_out.len() == 1 && left_out[0].starts_with("a path is left out: nqn."), "{left_out:?}");
        for controller in [from("fe80::9%eth1", &[]), from("192.0.2.1", &["--host-iface=eth1"])] {
            assert_eq!(
                read(&controller, &addresses),
                (vec!["fe80::1%eth1".to_owned(), addresses[1].to_owned()], vec![])
            );
        }
    }

    #[test]
    fn entry_for_tls_says_whether_this_host_has_a_key_for_it() {
        let mut entry = listed(SubsystemType::NVM_SUBSYSTEM, "192.0.2.1");
        (entry.tsas[0], entry.treq) = (1, CHANNEL_REQUIRED);
        let tls = |options: &[&str]| {
            let host =
                ["--hostnqn=nqn.2026-11.com.example:host", "--hostid=00000000-0000-0000-0000-000000000001"];
            match &log(&from("192.0.2.9", &[&host[..], options].concat()), &[entry]).entries[..] {
                [Entry::Subsystem { tls, .. }] => *tls,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(tls(&["--keyring=.no-such-keyring"]), Tls::WithoutKey);
        assert_eq!(tls(&["--keyring=.no-such-keyring", "--tls"]), Tls::WithoutKey);
        for has_key in [
            "--tls-key=NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
            "--tls-key-file=key",
        ] {
            assert_eq!(tls(&[has_key]), Tls::Required);
        }
        // With that a key is made on each connection.
        assert_eq!(tls(&["--concat", "--dhchap-secret=secret"]), Tls::Required);
    }

    #[test]
    fn entries_that_cannot_be_read_are_counted() {
        let mut entries = vec![listed(SubsystemType::NVM_SUBSYSTEM, "192.0.2.1"); 3];
        entries[0].subnqn.fill(0xff);
        entries[1].trsvcid.fill(b'x');
        entries[2].trtype = TransportType(0xfe);
        let said = log(&from("192.0.2.1", &[]), &entries);
        assert!(said.entries.is_empty() && said.left_out[0].contains("3 of the 3 entries"), "{said:?}");
    }
}
