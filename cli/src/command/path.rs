//! A path to a subsystem, as `--path` names it.

use super::target::with_port;
use crate::connect::Transport;
use std::net::{IpAddr, Ipv6Addr};

/// What a path may have for itself, as `--path` and nvme-cli's files name it.
pub(crate) const OPTIONS: [&str; 5] = ["host-traddr", "host-iface", "tls", "hdr-digest", "data-digest"];

/// The options that a path has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnOptions {
    pub(crate) host_traddr: Option<IpAddr>,
    pub(crate) host_iface: Option<String>,
    pub(crate) tls: bool,
    pub(crate) hdr_digest: bool,
    pub(crate) data_digest: bool,
}

/// A path, as it was given: what it does not say is as the other options have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathArgument {
    pub(crate) address: String,
    pub(crate) port: Option<u16>,
    pub(crate) transport: Option<Transport>,
    pub(crate) own: OwnOptions,
}

/// ADDRESS[:PORT][/TRANSPORT][,OPTION[=VALUE]]...
pub(super) fn path(text: &str) -> Result<PathArgument, String> {
    let mut parts = text.split(',');
    let place = parts.next().unwrap_or_default();
    let (rest, transport) = match place.rsplit_once('/') {
        Some((rest, name)) => (rest, Some(<Transport as clap::ValueEnum>::from_str(name, true)?)),
        None => (place, None),
    };
    let (address, port) = match with_port(rest) {
        Some((_, 0)) => return Err(no_port("0")),
        Some((address, number)) => (address, Some(number)),
        None => (rest, None),
    };
    if address.is_empty() {
        return Err("it names no address".to_owned());
    }
    if port.is_none() {
        check_address(address)?;
    }
    let mut path = PathArgument { address: address.to_owned(), port, transport, ..PathArgument::default() };
    for option in parts {
        path.own.take(option)?;
    }
    Ok(path)
}

/// That this is an address or a name: a port with a typing error in it would be a part of a name that nobody has.
fn check_address(text: &str) -> Result<(), String> {
    let is_of_names = |c: char| c.is_alphanumeric() || ".-_".contains(c);
    let number = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    // A link-local address has its interface behind it.
    let is_ipv6 = number.split('%').next().is_some_and(|number| number.parse::<Ipv6Addr>().is_ok());
    if is_ipv6 || text.chars().all(is_of_names) {
        return Ok(());
    }
    match text.rsplit_once(':') {
        Some((address, port)) if !address.contains(':') || address.ends_with(']') => Err(no_port(port)),
        Some(_) => {
            Err(format!("`{text}` is no IPv6 address, which stands in brackets where a port is behind it"))
        }
        None => Err(format!("`{text}` is neither an IP address nor a name")),
    }
}

fn no_port(text: &str) -> String {
    format!("`{text}` is no port: that is a number from 1 to 65535")
}

impl PathArgument {
    /// One that is written down, maybe by another version: what is not understood of it is left out.
    pub(crate) fn read(text: &str) -> Self {
        let (place, options) = text.split_once(',').unwrap_or((text, ""));
        Self { own: OwnOptions::of(options.split(',')), ..path(place).unwrap_or_default() }
    }
}

impl OwnOptions {
    /// Those of these options, by their long names, that a path may have for itself.
    pub(crate) fn of<'a>(options: impl IntoIterator<Item = &'a str>) -> Self {
        let mut own = Self::default();
        for option in options {
            // Any other is none of a path's.
            let _ = own.take(option.trim_start_matches('-'));
        }
        own
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn take(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        // The kernel's names have underscores.
        match (name.replace('_', "-").as_str(), value) {
            ("host-traddr", Some(address)) => {
                let parsed = address.parse().map_err(|_| format!("`{address}` is no IP address"))?;
                self.host_traddr = Some(parsed);
            }
            ("host-iface", Some(name)) if !name.is_empty() => self.host_iface = Some(name.to_owned()),
            ("tls", None) => self.tls = true,
            ("hdr-digest", None) => self.hdr_digest = true,
            ("data-digest", None) => self.data_digest = true,
            _ => {
                return Err(format!(
                    "`{option}` is no option of a path: those are host-traddr=ADDRESS, host-iface=NAME, tls, hdr-digest \
                     and data-digest"
                ));
            }
        }
        Ok(())
    }

    /// Each by its long name.
    pub(crate) fn options(&self) -> Vec<String> {
        let flag = |name: &str, is_given: bool| is_given.then(|| format!("--{name}"));
        [
            self.host_traddr.map(|address| format!("--host-traddr={address}")),
            self.host_iface.as_ref().map(|name| format!("--host-iface={name}")),
            flag("tls", self.tls),
            flag("hdr-digest", self.hdr_digest),
            flag("data-digest", self.data_digest),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_an_address_with_or_without_port_and_transport() {
        let of = |address: &str, port, transport| {
            Ok(PathArgument { address: address.to_owned(), port, transport, ..PathArgument::default() })
        };
        assert_eq!(path("192.0.2.2"), of("192.0.2.2", None, None));
        assert_eq!(path("192.0.2.2:4421"), of("192.0.2.2", Some(4421), None));
        assert_eq!(path("[2001:db8::2]:4421/tcp"), of("[2001:db8::2]", Some(4421), Some(Transport::Tcp)));
        assert_eq!(path("2001:db8::2/rdma"), of("2001:db8::2", None, Some(Transport::Rdma)));
        assert_eq!(path("storage-b:4420"), of("storage-b", Some(4420), None));
        assert!(path("192.0.2.2/fc").is_err() && path("/tcp").is_err());
    }

    #[test]
    fn port_with_a_typing_error_is_no_part_of_a_name() {
        for (text, port) in [
            ("127.0.0.2:1542x", "1542x"),
            ("127.0.0.1:1544O/tcp", "1544O"),
            ("storage-b:", ""),
            ("[2001:db8::2]:44 20", "44 20"),
            ("192.0.2.2:70000,tls", "70000"),
            ("192.0.2.2:0", "0"),
        ] {
            let said = path(text).unwrap_err();
            assert!(said.starts_with(&format!("`{port}` is no port")), "{text}: {said}");
        }
        for text in ["2001:db8::zz", "2001:db8::2]", "192.0.2.2;4420", "storage b"] {
            assert!(path(text).is_err(), "{text}");
        }
        for text in ["fe80::2%eth0", "[fe80::2%eth0]:4420", "[2001:db8::2]", "storage_b.example.com."] {
            assert!(path(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn path_has_options_of_its_own() {
        let all = "[2001:db8::2]:4421/tcp,host_traddr=2001:db8::9,host-iface=eth1,tls,hdr-digest,data-digest";
        let parsed = path(all).unwrap();
        assert_eq!(
            parsed.own.options(),
            ["--host-traddr=2001:db8::9", "--host-iface=eth1", "--tls", "--hdr-digest", "--data-digest"]
        );
        for wrong in
            ["a,tls=yes", "a,host-traddr", "a,host-traddr=b", "a,host-iface=", "a,", "a,nr-io-queues=2"]
        {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_another_version_wrote_is_read_as_far_as_it_is_understood() {
        let understood = path("[2001:db8::2]:4421/tcp,host-traddr=2001:db8::9,tls").unwrap();
        let written = "[2001:db8::2]:4421/tcp,host-traddr=2001:db8::9,of-another-version=1,tls";
        assert_eq!(PathArgument::read(written), understood);
        let elsewhere = PathArgument::read("192.0.2.2/of-another-version,tls");
        assert!(elsewhere.address.is_empty() && elsewhere.own.tls);
    }
}
