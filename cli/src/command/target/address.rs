//! Where a target is: an address, or a name that is looked up; and where we connect from.

use super::TargetArguments;
use super::paths::RuledOut;
use crate::connect::Transport;
use crate::print::wrong_arguments;
use anyhow::{Context, Result, anyhow};
use nix::net::if_::if_nametoindex;
use nvme_proto::Nqn;
use nvmf_initiator::{AddressSource, PathOptions};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// How long one of several addresses of a name may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// A name has no address now.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is neither an IP address nor a name that resolves: check {1}")]
pub(super) struct Unresolved(String, &'static str);

/// Address and port, where the text is both: `192.0.2.1:4420`, `[2001:db8::1]:4420`, `name:4420`.
pub(in crate::command) fn with_port(text: &str) -> Option<(&str, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    let is_whole = !address.contains(':') || (address.starts_with('[') && address.ends_with(']'));
    Some((address, port.parse().ok().filter(|_| is_whole && !address.is_empty())?))
}

/// An address that says nothing without its interface.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// The addresses that can be reached from `source`.
fn of_family(addresses: &[SocketAddr], source: Option<IpAddr>) -> Vec<SocketAddr> {
    let fits = |address: &&SocketAddr| source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
    addresses.iter().filter(fits).copied().collect()
}

/// Of the addresses of one name, the first that takes a connection: a target may listen on one of them only. One address
/// is not tried.
fn first_that_answers(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, ANSWER_TIMEOUT).is_ok();
    addresses.iter().filter(|_| addresses.len() > 1).find(answers).copied()
}

impl TargetArguments {
    /// The address, resolved if it is a name.
    pub(super) fn address(&self, nqn: Nqn) -> Result<SocketAddr> {
        let port = self.port(nqn == Nqn::DISCOVERY);
        let traddr = self.traddr()?;
        if let Some((address, port)) = with_port(traddr) {
            return wrong_arguments(format!(
                "-a {traddr} has a port: the port goes into -s (--trsvcid): -a {address} -s {port}"
            ));
        }
        let text = traddr.trim_matches(['[', ']']);
        if let Some(address) = text.parse().ok().filter(|&address| is_link_local(address)) {
            // Other paths are none the worse for it.
            return Err(RuledOut(format!(
                "-a {address} is a link-local address, which each network has: add the interface to it, as in \
                 {address}%eth0"
            ))
            .into());
        }
        let unresolved = || Unresolved(text.to_owned(), if self.is_further { "--path" } else { "-a" });
        if let Some(found) = self.found_before(text, port) {
            return found.with_context(unresolved);
        }
        let resolved: Vec<_> = (text, port).to_socket_addrs().with_context(unresolved)?.collect();
        let found = of_family(&resolved, self.host_traddr);
        match (found.first(), self.host_traddr) {
            (Some(&first), _) if self.transport == Transport::Tcp => {
                Ok(first_that_answers(&found).unwrap_or(first))
            }
            (Some(&first), _) => Ok(first),
            (None, Some(source)) if !resolved.is_empty() => Err(RuledOut(format!(
                "--host-traddr {source} and the target's address, {}, are of different kinds (IPv4, IPv6): no \
                 connection leads from one to the other",
                resolved.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ")
            ))
            .into()),
            (None, _) => Err(unresolved().into()),
        }
    }

    /// What was found before as the address of a name; `None` in it: nothing.
    fn found_before(&self, name: &str, port: u16) -> Option<Option<SocketAddr>> {
        let is_it = |path: &&PathOptions| {
            path.address_source.as_ref().and_then(AddressSource::name) == Some(name)
                && (path.address.port(), path.source.map(|source| source.ip())) == (port, self.host_traddr)
        };
        let found = self.found.iter().find(is_it)?;
        Some(Some(found.address).filter(|address| !address.ip().is_unspecified()))
    }

    /// Where the address is looked up again when the connection was lost; `None` for one that is no name.
    pub(super) fn address_source(&self, nqn: Nqn) -> Option<AddressSource> {
        let name = self.traddr.as_deref()?.trim_matches(['[', ']']);
        if name.parse::<IpAddr>().is_ok() {
            return None;
        }
        let arguments = Self { found: Vec::new(), ..self.clone() };
        Some(AddressSource::of_name(name, move || arguments.address(nqn).ok()))
    }

    /// What this machine does not have now of what to connect from: the address, or the interface.
    pub(super) fn missing_source(&self) -> Result<Option<anyhow::Error>> {
        if let Some(address) = self.host_traddr {
            if is_link_local(address) {
                return wrong_arguments(format!(
                    "-w {address} is a link-local address, which each interface may have: name the interface \
                     instead, with -f (tcp)"
                ));
            }
            if let Err(error) = UdpSocket::bind((address, 0)) {
                return Ok(Some(anyhow!(error).context(format!(
                    "--host-traddr {address}: this machine has no such address (`ip address` lists them)"
                ))));
            }
        }
        let Some(name) = &self.host_iface else { return Ok(None) };
        let missing = |error: nix::Error| {
            anyhow!(error).context(format!(
                "--host-iface {name}: this machine has no such network interface (`ip link` lists them)"
            ))
        };
        Ok(if_nametoindex(name.as_str()).err().map(missing))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::target;
    use super::*;

    #[test]
    fn name_is_looked_up_again_and_an_address_is_not() {
        for address in ["192.0.2.1", "2001:db8::1", "[2001:db8::1]"] {
            assert!(target(&["-a", address]).address_source(Nqn::DISCOVERY).is_none());
        }
        assert!(target(&["-a", "localhost"]).address_source(Nqn::DISCOVERY).is_some());
        let nqn = "nqn.2026-11.com.example:disk".parse().unwrap();
        let paths = ["-a", "192.0.2.1", "--path", "localhost:4421", "--path", "192.0.2.2"];
        let paths = target(&paths).path_options(nqn).unwrap();
        let is_name: Vec<_> = paths.iter().map(|path| path.address_source.is_some()).collect();
        assert_eq!(is_name, [false, true, false], "each for itself");
    }

    #[test]
    fn address_of_a_name_is_one_that_answers_from_where_it_is_asked() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        // Nobody listens there.
        let other = SocketAddr::from(([127, 0, 0, 2], here.port()));
        assert_eq!(first_that_answers(&[other, here]), Some(here));
        assert_eq!(first_that_answers(&[other, other]), None);
        assert_eq!(first_that_answers(&[here]), None, "there is no choice");
        let v6 = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 4420));
        assert_eq!(of_family(&[v6, here], Some(here.ip())), [here]);
        assert_eq!(of_family(&[v6, here], None), [v6, here]);
    }
}
