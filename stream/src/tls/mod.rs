//! TLS 1.3 with pre-shared keys (RFC 8446).
//!
//! | module | what it holds |
//! |---|---|
//! | `session` | a handshake, and records in user space, by the library |
//! | `kernel` | records by the kernel (kTLS) |
//! | `pipe` | the library's callbacks: bytes to and from the socket |
//! | `records` | counts the records that come, and bounds those without data |
//! | `hello` | the identities that a ClientHello offers |
//!
//! Certificates, tickets and early data are not used. Nothing blocks: a handshake goes on when its socket has bytes. What
//! a peer can make it do is bounded: records and bytes of a handshake (`pipe`), records without data (`records`).

mod hello;
mod kernel;
mod pipe;
mod records;
mod session;

use core::fmt;
use nvmf_tls::{Hash, Psk};
use s2n_tls::callbacks::ClientHelloCallback;
use s2n_tls::config::{self, Config};
use s2n_tls::enums::SerializationVersion;
use s2n_tls::security::Policy;
use std::io;
use std::sync::Arc;
use thiserror::Error;

pub(crate) use kernel::{Kernel, has_ended, is_possible, read_error};
pub(crate) use session::Session;

/// The library's policy: TLS 1.3 alone, with the groups secp256r1, X25519 and secp384r1.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";
/// Identities of one ClientHello that are looked up.
const OFFERS_MAX: usize = 8;

/// Why a TLS connection cannot be had, or ended.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The socket, or the system, during the handshake.
    #[error("TLS handshake: {0}")]
    Io(#[from] io::Error),
    /// The peer closed the connection during the handshake.
    #[error("the peer closed the connection during the TLS handshake")]
    Closed,
    /// The peer has no key that is known here.
    #[error("TLS: {0}")]
    Key(String),
    /// The peer ended the connection with an alert.
    #[error("the peer sent the TLS alert {}", AlertName(*.0))]
    Alert(u8),
    /// The peer's messages are not what they must be, or the library failed.
    #[error("TLS: {0}")]
    Protocol(String),
}

/// An alert, by its name in RFC 8446.
struct AlertName(u8);

impl fmt::Display for AlertName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac: the keys of both sides differ",
            40 => "handshake_failure: no key, cipher suite or group in common",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            50 => "decode_error",
            51 => "decrypt_error: the keys of both sides differ",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            90 => "user_canceled",
            109 => "missing_extension",
            115 => "unknown_psk_identity: the peer has no key for this host and subsystem",
            116 => "certificate_required",
            _ => return write!(f, "{}", self.0),
        };
        write!(f, "{} ({name})", self.0)
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Io(error) => error,
            error => Self::other(error),
        }
    }
}

/// What a handshake has agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secured {
    /// The identity of the key in use.
    pub identity: Vec<u8>,
    /// The cipher suite.
    pub hash: Hash,
    /// The kernel encrypts and decrypts.
    pub by_kernel: bool,
}

/// Finds the key of an identity that came over the wire; if there is none, why, for the log.
pub type FindKey = dyn Fn(&[u8]) -> Result<Psk, String> + Send + Sync;

/// The side that is connected to: chooses the key by what the peer offers.
#[derive(Clone)]
pub struct TlsAcceptor(Config);

/// The side that connects: offers its keys.
#[derive(Clone)]
pub struct TlsConnector {
    config: Config,
    keys: Arc<[Psk]>,
}

impl TlsAcceptor {
    /// For peers whose keys `find` knows.
    ///
    /// # Errors
    /// When the library does not start.
    pub fn new(find: Arc<FindKey>) -> Result<Self, TlsError> {
        let mut builder = builder()?;
        builder.set_client_hello_callback(Chooser(find))?;
        Ok(Self(builder.build()?))
    }
}

impl TlsConnector {
    /// That offers these keys, which are for one cipher suite.
    ///
    /// # Errors
    /// When the library does not start.
    pub fn new(keys: &[Psk]) -> Result<Self, TlsError> {
        Ok(Self { config: builder()?.build()?, keys: keys.into() })
    }
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector").field("keys", &self.keys).finish_non_exhaustive()
    }
}

fn builder() -> Result<config::Builder, TlsError> {
    let mut builder = Config::builder();
    builder.with_system_certs(false)?;
    builder.set_serialization_version(SerializationVersion::V1)?;
    builder.set_security_policy(&Policy::from_version(POLICY)?)?;
    Ok(builder)
}

impl From<s2n_tls::error::Error> for TlsError {
    fn from(error: s2n_tls::error::Error) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// What came of the lookup, kept with the connection.
#[derive(Debug)]
enum Lookup {
    /// The key of this identity was found; the first identity that is offered as well and has none.
    Found { identity: String, other: Option<String> },
    /// None was, and why.
    None(String),
}

/// Looks up what a ClientHello offers.
struct Chooser(Arc<FindKey>);

impl ClientHelloCallback for Chooser {
    fn on_client_hello(
        &self,
        connection: &mut s2n_tls::connection::Connection,
    ) -> Result<Option<core::pin::Pin<Box<dyn s2n_tls::callbacks::ConnectionFuture>>>, s2n_tls::error::Error>
    {
        let message = connection.client_hello()?.raw_message()?;
        let (mut found, mut refusal) = (None, None);
        for identity in hello::offered_identities(&message).take(OFFERS_MAX) {
            match (self.0)(identity) {
                Ok(psk) => {
                    // One that is offered twice is refused by the library.
                    if session::append(connection, &psk).is_ok() {
                        found.get_or_insert(psk.identity);
                    }
                }
                Err(why) => {
                    let name: String = String::from_utf8_lossy(identity).chars().take(600).collect();
                    refusal.get_or_insert((why, name));
                }
            }
        }
        let none = || "the peer offers no pre-shared key; NVMe/TCP has no certificates".to_owned();
        connection.set_application_context(match found {
            Some(identity) => Lookup::Found { identity, other: refusal.map(|(_, name)| name) },
            None => {
                Lookup::None(refusal.map_or_else(none, |(why, name)| format!("{why} (it offers {name:?})")))
            }
        });
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
