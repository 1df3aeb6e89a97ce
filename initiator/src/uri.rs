//! Where a disk is, in one line.

use crate::{AddressSource, Error, HostIdentity, Options, PathOptions, TcpOptions, TransportOptions};
use core::fmt;
use core::str::FromStr;
use nvme_proto::{Nqn, Nsid};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};

/// The port of NVMe over Fabrics.
const PORT: u16 = 4420;

/// Where a disk is: `nvme+tcp://ADDRESS[:PORT]/NQN[/NSID]`, or `nvme+rdma://...`.
///
/// The address is a number or a name; one of IPv6 stands in brackets. The port is 4420 where none is given. In the NQN, `%` and two
/// hexadecimal digits are a byte: a `/` in it must be written so.
///
/// ```
/// let uri: nvmf_initiator::Uri = "nvme+tcp://192.0.2.1/nqn.2026-11.com.example:disk1/1".parse()?;
/// assert_eq!(uri.port, 4420);
/// assert_eq!(uri.nsid, Some(nvmf_initiator::Nsid(1)));
/// # Ok::<(), nvmf_initiator::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Uri {
    /// What carries the commands.
    pub transport: TransportOptions,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The subsystem. `None` in the URI of a further path, which is to the same one.
    pub nqn: Option<Nqn>,
    /// The namespace, if it names one.
    pub nsid: Option<Nsid>,
}

impl Uri {
    /// The first address of its host. A name is looked up, which may block for long.
    ///
    /// # Errors
    /// [`Error::Unresolved`].
    pub fn resolve(&self) -> Result<SocketAddr, Error> {
        let unresolved = |reason: String| Error::Unresolved { uri: self.to_string(), reason };
        let mut found = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| unresolved(format!("{} cannot be looked up: {error}", self.host)))?;
        found.next().ok_or_else(|| unresolved(format!("{} has no address", self.host)))
    }

    /// Where the address of its host is looked up again before each reconnect; `None` for one that is no name.
    #[must_use]
    pub fn address_source(&self) -> Option<AddressSource> {
        let is_name = self.host.parse::<IpAddr>().is_err();
        let uri = self.clone();
        is_name.then(|| AddressSource::of_name(&self.host, move || uri.resolve().ok()))
    }

    /// A further path to the same subsystem. A name that has no address now is looked up again before each attempt.
    ///
    /// # Errors
    /// [`Error::Unresolved`], of what is no name.
    pub fn path(&self) -> Result<PathOptions, Error> {
        let source = self.address_source();
        let address = match self.resolve() {
            Err(_) if source.is_some() => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), self.port),
            resolved => resolved?,
        };
        let mut path = PathOptions::new(address, self.transport.clone());
        path.address_source = source;
        Ok(path)
    }

    /// Options with its address, transport and subsystem, as this host.
    ///
    /// # Errors
    /// [`Error::Uri`] where it names no subsystem; [`Error::Unresolved`].
    pub fn options(&self, host: HostIdentity) -> Result<Options, Error> {
        let nqn = self.nqn.ok_or_else(|| self.error("it names no subsystem (.../NQN)"))?;
        let options = Options::with_host(self.resolve()?, nqn, host);
        let address_source = self.address_source();
        Ok(Options { transport: self.transport.clone(), address_source, ..options })
    }

    fn error(&self, reason: &str) -> Error {
        Error::Uri { uri: self.to_string(), reason: reason.to_owned() }
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let error = |reason: String| Error::Uri { uri: text.to_owned(), reason };
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let transport = match scheme {
            "nvme+tcp" => TransportOptions::Tcp(TcpOptions::default()),
            "nvme+rdma" => TransportOptions::Rdma,
            _ => return Err(error("it begins with nvme+tcp:// or nvme+rdma://".to_owned())),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(|| error("a ] is missing".to_owned()))?;
                (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, Some("")),
            },
        };
        if host.is_empty() {
            return Err(error("it names no address".to_owned()));
        }
        let port = match port {
            Some("") => Ok(PORT),
            Some(port) => port.parse().map_err(|_| error(format!("{port:?} is no port"))),
            None => Err(error("behind the ] comes a port (:4420), or nothing".to_owned())),
        }?;
        let mut segments = path.split('/');
        let nqn = match segments.next().unwrap_or_default() {
            "" => None,
            nqn => {
                let name =
                    decoded(nqn).ok_or_else(|| error(format!("{nqn:?}: % and two digits are a byte")))?;
                Some(name.parse().map_err(|reason| error(format!("{name:?} is no NQN: {reason}")))?)
            }
        };
        let nsid = match segments.next().unwrap_or_default() {
            "" => None,
            nsid => match nsid.parse() {
                Ok(number) if number != 0 && number != Nsid::ALL.0 => Some(Nsid(number)),
                _ => return Err(error(format!("{nsid:?} is no namespace: it is a number"))),
            },
        };
        if segments.next().is_some() {
            return Err(error("behind the namespace comes nothing; a / in an NQN is written %2F".to_owned()));
        }
        Ok(Self { transport, host: host.to_owned(), port, nqn, nsid })
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            TransportOptions::Rdma => "rdma",
            TransportOptions::Tcp(_) => "tcp",
        };
        let host = &self.host;
        match host.contains(':') {
            true => write!(f, "nvme+{transport}://[{host}]:{}", self.port)?,
            false => write!(f, "nvme+{transport}://{host}:{}", self.port)?,
        }
        if let Some(nqn) = &self.nqn {
            write!(f, "/{}", nqn.as_str().replace('%', "%25").replace('/', "%2F"))?;
        }
        match self.nsid {
            Some(nsid) => write!(f, "/{}", nsid.0),
            None => Ok(()),
        }
    }
}

/// Without percent-encoding; `None` for what is none.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (text, whole) in [
            (
                "nvme+tcp://192.0.2.1/nqn.2026-11.com.example:a",
                "nvme+tcp://192.0.2.1:4420/nqn.2026-11.com.example:a",
            ),
            ("nvme+rdma://[2001:db8::1]:5/nqn.2026-11.com.example:a%2Fb%25/7", ""),
            ("nvme+tcp://target.example.com:8009", ""),
        ] {
            let uri: Uri = text.parse().unwrap();
            let whole = if whole.is_empty() { text } else { whole };
            assert_eq!(uri.to_string(), whole);
            assert_eq!(uri.to_string().parse::<Uri>().unwrap(), uri);
        }
        let uri: Uri = "nvme+tcp://[::1]/nqn.2026-11.com.example:a%2fb/9".parse().unwrap();
        assert_eq!((uri.nqn.unwrap().as_str(), uri.nsid), ("nqn.2026-11.com.example:a/b", Some(Nsid(9))));
        assert_eq!(uri.resolve().unwrap(), "[::1]:4420".parse().unwrap());
    }

    #[test]
    fn path_of_a_name_without_an_address_is_one_that_is_away() {
        let path = |text: &str| text.parse::<Uri>().unwrap().path().unwrap();
        let away = path("nvme+tcp://storage-b.invalid:4421");
        assert_eq!(away.address, "0.0.0.0:4421".parse().unwrap());
        assert_eq!(away.address_source.as_ref().and_then(AddressSource::name), Some("storage-b.invalid"));
        assert!(path("nvme+tcp://192.0.2.1").address_source.is_none());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, reason) in [
            ("192.0.2.1", "begins with"),
            ("nvme+quic://a/b", "begins with"),
            ("nvme+tcp:///nqn.2026-11.com.example:a", "no address"),
            ("nvme+tcp://[::1/nqn.2026-11.com.example:a", "] is missing"),
            ("nvme+tcp://[::1]1/nqn.2026-11.com.example:a", "behind the ]"),
            ("nvme+tcp://a:b/nqn.2026-11.com.example:a", "no port"),
            ("nvme+tcp://a/disk", "no NQN"),
            ("nvme+tcp://a/nqn.2026-11.com.example:%4", "% and two digits"),
            ("nvme+tcp://a/nqn.2026-11.com.example:a/x", "no namespace"),
            ("nvme+tcp://a/nqn.2026-11.com.example:a/0", "no namespace"),
            ("nvme+tcp://a/nqn.2026-11.com.example:a/1/2", "%2F"),
        ] {
            let error = text.parse::<Uri>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
        let host = HostIdentity::generate().unwrap();
        let unresolved =
            "nvme+tcp://storage-b.invalid/nqn.2026-11.com.example:a".parse::<Uri>().unwrap().options(host);
        assert!(matches!(unresolved, Err(Error::Unresolved { .. })), "{unresolved:?}");
        let error = "nvme+tcp://127.0.0.1".parse::<Uri>().unwrap().options(host).unwrap_err().to_string();
        assert!(error.contains("no subsystem"), "{error}");
    }
}
