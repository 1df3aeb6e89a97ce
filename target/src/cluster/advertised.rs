//! How a gateway's record names its listeners: `tcp://192.0.2.1:4420?tls=required`. What is not said is as usual, and
//! what is not known is left out by older versions.

use core::fmt;
use core::str::FromStr;
use nvmf_config::{Tls, Transport};
use std::net::SocketAddr;

/// A listener of a gateway, as the other gateways tell hosts of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// What hosts connect with.
    pub transport: Transport,
    /// Where.
    pub address: SocketAddr,
    /// Whether with TLS.
    pub tls: Tls,
    /// It serves discovery.
    pub discovery: bool,
    /// It serves nothing but discovery.
    pub discovery_only: bool,
}

impl fmt::Display for Advertised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.transport, self.address)?;
        let tls = (self.tls != Tls::Off).then(|| format!("tls={}", self.tls));
        let discovery = match self {
            Self { discovery_only: true, .. } => Some("discovery=only".to_owned()),
            Self { discovery: false, .. } => Some("discovery=no".to_owned()),
            _ => None,
        };
        let options: Vec<String> = tls.into_iter().chain(discovery).collect();
        if options.is_empty() { Ok(()) } else { write!(f, "?{}", options.join("&")) }
    }
}

/// A record names a listener in a way that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" names no listener that this version knows")]
pub struct Unknown(String);

impl FromStr for Advertised {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let unknown = || Unknown(text.to_owned());
        let (transport, rest) = text.split_once("://").ok_or_else(unknown)?;
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "rdma" => Transport::Rdma,
            _ => return Err(unknown()),
        };
        let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
        let address = address.parse().map_err(|_| unknown())?;
        let mut this = Self { transport, address, tls: Tls::Off, discovery: true, discovery_only: false };
        for option in options.split('&') {
            match option {
                "tls=allowed" => this.tls = Tls::Allowed,
                "tls=concat" => this.tls = Tls::Concat,
                "tls=required" => this.tls = Tls::Required,
                "discovery=only" => this.discovery_only = true,
                "discovery=no" => this.discovery = false,
                _ => {}
            }
        }
        Ok(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_is_named_and_read_again() {
        for text in [
            "tcp://192.0.2.1:4420",
            "rdma://[2001:db8::1]:4420",
            "tcp://192.0.2.1:8009?discovery=only",
            "tcp://192.0.2.1:4420?tls=required&discovery=no",
        ] {
            assert_eq!(text.parse::<Advertised>().unwrap().to_string(), text);
        }
        assert!("tcp://192.0.2.1:4420?later=1".parse::<Advertised>().is_ok());
        for text in ["", "fc://1", "tcp://", "tcp://host:1"] {
            assert!(text.parse::<Advertised>().is_err(), "{text}");
        }
    }
}
