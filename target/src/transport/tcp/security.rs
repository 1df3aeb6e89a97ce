//! TLS of connections that come in: which ports have it, whose keys are known, and how far a connection is with it.

use super::Tcp;
use super::establish::Refused;
use crate::transport::strangers;
use nvmf_config::Tls;
use nvmf_stream::{Secured, Stream, TlsAcceptor, TlsError};
use nvmf_subsystem::{Nqn, SecureChannel, TransportType};
use nvmf_tls::{GeneratedKeys, Identity, Keys, Psk, TlsKeyring, Unknown};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;
use tracing::field::display;

/// The first byte of a TLS record that holds a handshake message. An ICReq begins with 0.
const HANDSHAKE_RECORD: u8 = 22;

/// Which ports have TLS, and the keys of hosts: of all workers.
#[derive(Debug)]
pub struct TlsPorts {
    acceptor: TlsAcceptor,
    modes: RwLock<HashMap<u16, Tls>>,
    keys: Arc<RwLock<Keys>>,
    generated: Arc<Generated>,
}

/// The keys that authentications have made, and the clock of their lives.
#[derive(Debug)]
struct Generated {
    start: Instant,
    keys: Mutex<GeneratedKeys>,
}

impl Generated {
    fn lock(&self) -> MutexGuard<'_, GeneratedKeys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, identity: &[u8]) -> Option<Psk> {
        self.lock().find(self.start.elapsed(), identity).cloned()
    }
}

impl TlsPorts {
    /// These ports, by their number, with these keys, and those of `keyring` for hosts that have none of them.
    ///
    /// # Errors
    /// When the TLS library does not start.
    pub fn new(
        modes: impl IntoIterator<Item = (u16, Tls)>,
        keys: Keys,
        keyring: Option<TlsKeyring>,
    ) -> Result<Self, TlsError> {
        let keys = Arc::new(RwLock::new(keys));
        let known = Arc::clone(&keys);
        let generated = Arc::new(Generated { start: Instant::now(), keys: Mutex::default() });
        let made = Arc::clone(&generated);
        let acceptor = TlsAcceptor::new(Arc::new(move |identity| {
            if let Some(psk) = made.find(identity) {
                return Ok(psk);
            }
            let known = known.read().unwrap_or_else(PoisonError::into_inner);
            match (known.find(identity), &keyring) {
                (Err(unknown), Some(keyring)) if matches!(*unknown, Unknown::Host(_)) => {
                    of_keyring(keyring, identity).ok_or_else(|| unknown.to_string())
                }
                (found, _) => found.map_err(|unknown| unknown.to_string()),
            }
        }))?;
        Ok(Self { acceptor, modes: RwLock::new(modes.into_iter().collect()), keys, generated })
    }

    /// Whether a port has TLS, from now on.
    pub fn set_mode(&self, port: u16, tls: Tls) {
        self.modes.write().unwrap_or_else(PoisonError::into_inner).insert(port, tls);
    }

    fn mode(&self, port: u16) -> Tls {
        self.modes.read().unwrap_or_else(PoisonError::into_inner).get(&port).copied().unwrap_or_default()
    }

    /// Replaces the keys, for connections that come from now on.
    pub fn set_keys(&self, keys: Keys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Takes a key that an authentication of this host with this subsystem made, in place of another, by its number
    /// ([`SecureChannel::generated`]).
    pub fn insert_generated(&self, host: Nqn, subsystem: Nqn, psk: Psk, replaced: Option<u64>) {
        self.generated.lock().insert(self.generated.start.elapsed(), host, subsystem, psk, replaced);
    }

    /// Forgets those of hosts that are not trusted, for connections that come from now on.
    pub fn retain_generated(&self, trusted: impl Fn(&Nqn) -> bool) {
        self.generated.lock().retain(trusted);
    }

    /// Whose key it is that a handshake used.
    fn channel(&self, secured: &Secured) -> Result<SecureChannel, Refused> {
        let identity = Identity::parse(&secured.identity).map_err(|error| Refused::Tls(error.to_string()))?;
        let forgotten = || Refused::Tls("its key was replaced meanwhile".to_owned());
        let generated = match identity.generated {
            true => Some(self.generated.lock().on_used(&secured.identity).ok_or_else(forgotten)?),
            false => None,
        };
        Ok(SecureChannel { host_nqn: identity.host, subsystem_nqn: identity.subsystem, generated })
    }
}

/// The key of an identity in the kernel's keyring.
fn of_keyring(keyring: &TlsKeyring, identity: &[u8]) -> Option<Psk> {
    keyring.find(&Identity::parse(identity).ok()?).ok()?
}

/// How far a connection is with TLS.
#[derive(Debug)]
pub(super) enum Security {
    /// Its first byte says whether it is to be had.
    Undecided,
    /// The handshake is not over.
    Handshake,
    /// There is none.
    Plain,
    /// The handshake is over.
    Tls(Box<SecureChannel>),
}

impl Security {
    /// Whose key protects the connection.
    pub(super) fn channel(&self) -> Option<SecureChannel> {
        match self {
            Self::Tls(channel) => Some(**channel),
            Self::Undecided | Self::Handshake | Self::Plain => None,
        }
    }
}

impl Tcp {
    /// Goes on with the security of a connection: whether its ICReq can be read now.
    pub(super) fn secure(&mut self, key: u32) -> bool {
        let tls = self.options.tls.as_deref();
        let Some(pending) = self.pendings.get_mut(key) else { return false };
        match advance(&mut pending.stream, &mut pending.security, pending.port, tls) {
            Ok(done) => done,
            Err(cause) => {
                self.refuse_pending(key, cause, Vec::new());
                false
            }
        }
    }
}

/// Whether a connection is as secure as its port wants it; not yet if not.
fn advance(
    stream: &mut Stream,
    security: &mut Security,
    port: u16,
    tls: Option<&TlsPorts>,
) -> Result<bool, Refused> {
    if let Security::Undecided = security {
        let mut first = [0; strangers::ENOUGH];
        let first = match stream.peek(&mut first) {
            Ok(Some(len)) => &first[..len],
            Ok(None) => return Ok(false),
            Err(_) => return Err(Refused::Gone),
        };
        let of_port = tls.map(|tls| (tls, tls.mode(port)));
        *security = match (of_port, first.first() == Some(&HANDSHAKE_RECORD)) {
            (Some((tls, Tls::Allowed | Tls::Concat | Tls::Required)), true) => {
                stream.accept_tls(&tls.acceptor).map_err(|error| Refused::Tls(error.to_string()))?;
                Security::Handshake
            }
            (None | Some((_, Tls::Off)), true) => {
                let cause = "a TLS ClientHello on a port without TLS: connect without --tls, or set \
                             tls = \"allowed\", \"concat\" or \"required\" in its [[listener]]";
                return Err(Refused::Tls(cause.to_owned()));
            }
            (Some((_, Tls::Required)), false) => return Err(no_tls(first)),
            (None | Some((_, Tls::Off | Tls::Allowed | Tls::Concat)), false) => Security::Plain,
        };
    }
    if let Security::Handshake = security {
        match stream.handshake() {
            Ok(None) => return Ok(false),
            Ok(Some(secured)) => {
                let (suite, peer) = (secured.hash.suite(), stream.peer_address().ok().map(display));
                let records = if secured.by_kernel { "the kernel" } else { "this process" };
                tracing::debug!(peer, "TLS with {suite}, records by {records}");
                let ports = tls.expect("a handshake begins on a port with TLS");
                *security = Security::Tls(Box::new(ports.channel(&secured)?));
            }
            Err(error) => return Err(Refused::Tls(error.to_string())),
        }
    }
    Ok(true)
}

/// Why a connection that begins so is refused on a port that requires TLS.
fn no_tls(first: &[u8]) -> Refused {
    match strangers::recognized(first, TransportType::TCP) {
        Some(what) => Refused::Protocol(format!("this is {what}")),
        None => {
            let cause = "no TLS on a port that requires it: connect with --tls, or set tls = \"allowed\" in its \
                         [[listener]]";
            Refused::Tls(cause.to_owned())
        }
    }
}
