//! A path to a subsystem, as `--path` names it.

use super::target::with_port;
use crate::connect::Transport;
use std::net::IpAddr;

/// What a path may have for itself, as `--path` and nvme-cli's files name it.
pub(crate) const OPTIONS: [&str; 5] = ["host-traddr", "host-iface", "tls", "hdr-digest", "data-digest"];

/// A path, as it was given: what it does not say is as the other options have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathArgument {
    pub(super) address: String,
    pub(super) port: Option<u16>,
    pub(super) transport: Option<Transport>,
    pub(super) host_traddr: Option<IpAddr>,
    pub(super) host_iface: Option<String>,
    pub(super) tls: bool,
    pub(super) hdr_digest: bool,
    pub(super) data_digest: bool,
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
        Some((address, number)) => (address, Some(number).filter(|port| *port != 0)),
        None => (rest, None),
    };
    if address.is_empty() {
        return Err("it names no address".to_owned());
    }
    let mut path = PathArgument { address: address.to_owned(), port, transport, ..PathArgument::default() };
    for option in parts {
        path.take(option)?;
    }
    Ok(path)
}

impl PathArgument {
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

    /// Its own options, by their long names.
    pub(super) fn options(&self) -> Vec<String> {
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
    fn path_has_options_of_its_own() {
        let all = "[2001:db8::2]:4421/tcp,host_traddr=2001:db8::9,host-iface=eth1,tls,hdr-digest,data-digest";
        let parsed = path(all).unwrap();
        assert_eq!(
            parsed.options(),
            ["--host-traddr=2001:db8::9", "--host-iface=eth1", "--tls", "--hdr-digest", "--data-digest"]
        );
        for wrong in
            ["a,tls=yes", "a,host-traddr", "a,host-traddr=b", "a,host-iface=", "a,", "a,nr-io-queues=2"]
        {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }
}
