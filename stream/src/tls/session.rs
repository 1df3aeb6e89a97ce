//! A TLS connection by the library: its handshake, and its records.

use super::pipe::{RECORD_MAX, SharedPipe};
use super::{Lookup, Secured, TlsAcceptor, TlsConnector, TlsError};
use crate::chunk::Chunk;
use crate::stream::Received;
use core::fmt;
use core::task::{Poll, Waker};
use nvmf_tls::{Hash, Psk};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac, Version};
use s2n_tls::error::{Error, ErrorType};
use socket2::Socket;
use std::io;
use zeroize::Zeroizing;

/// Fatal alerts.
const HANDSHAKE_FAILURE: u8 = 40;
const DECRYPT_ERROR: u8 = 51;
const UNKNOWN_PSK_IDENTITY: u8 = 115;
/// The library's name of the error that a key differs.
const BAD_BINDER: &str = "S2N_ERR_BAD_PSK_BINDER";

/// A handshake under way, or a connection whose records the library handles.
pub(crate) struct Session {
    // Before the pipe, which it points to.
    connection: Connection,
    pipe: SharedPipe,
    /// Data on their way into a record.
    plain: Zeroizing<Vec<u8>>,
    /// How the connection ended, behind data that are to be received first.
    failed: Option<TlsError>,
}

/// What the records of a connection are protected with.
pub(crate) struct Traffic {
    /// The cipher suite.
    pub(super) hash: Hash,
    /// The secret and the number of the next record that comes.
    pub(super) receive: Zeroizing<Vec<u8>>,
    pub(super) receive_sequence: u64,
    /// The same of what is sent.
    pub(super) send: Zeroizing<Vec<u8>>,
    pub(super) send_sequence: u64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Adds a key that a connection may use.
pub(super) fn append(connection: &mut Connection, psk: &Psk) -> Result<(), Error> {
    let mut builder = s2n_tls::psk::Psk::builder()?;
    builder.set_identity(psk.identity.as_bytes())?;
    builder.set_secret(&psk.secret)?;
    builder.set_hmac(match psk.hash {
        Hash::Sha256 => PskHmac::SHA256,
        Hash::Sha384 => PskHmac::SHA384,
    })?;
    connection.append_psk(&builder.build()?)
}

impl Session {
    pub(crate) fn accept(acceptor: &TlsAcceptor, socket: &Socket) -> Result<Self, TlsError> {
        Self::new(Connection::new_server(), acceptor.0.clone(), socket)
    }

    pub(crate) fn connect(connector: &TlsConnector, socket: &Socket) -> Result<Self, TlsError> {
        let mut session = Self::new(Connection::new_client(), connector.config.clone(), socket)?;
        for key in &*connector.keys {
            append(&mut session.connection, key)?;
        }
        Ok(session)
    }

    fn new(
        mut connection: Connection,
        config: s2n_tls::config::Config,
        socket: &Socket,
    ) -> Result<Self, TlsError> {
        connection.set_config(config)?;
        // By default the library would put the thread to sleep after an error.
        connection.set_blinding(Blinding::SelfService)?;
        // Nothing is done elsewhere that a handshake would wait for; the library asks for it all the same.
        connection.set_waker(Some(Waker::noop()))?;
        connection.prefer_throughput()?;
        let pipe = SharedPipe::new(socket);
        // From here on the pipe is dropped behind the connection that calls it.
        let mut session = Self { connection, pipe, plain: Zeroizing::default(), failed: None };
        session.pipe.attach(&mut session.connection)?;
        Ok(session)
    }

    /// Goes on with the handshake: `None` until more has come.
    pub(crate) fn handshake(&mut self, socket: &Socket) -> Result<Option<Secured>, TlsError> {
        let outcome = match self.connection.poll_negotiate() {
            Poll::Pending => None,
            Poll::Ready(Ok(_)) => Some(Ok(())),
            Poll::Ready(Err(error)) => {
                let failure = self.failure(&error);
                self.say(&error, &failure);
                Some(Err(failure))
            }
        };
        // A message of the handshake always fits into an empty socket.
        let flushed = self.pipe.lock().flush(socket);
        match outcome {
            None => {
                flushed?;
                Ok(None)
            }
            Some(Err(error)) => Err(error),
            Some(Ok(())) => {
                flushed?;
                self.secured().map(Some)
            }
        }
    }

    /// Tells the peer of an error while that can be done in clear text; the library does not.
    fn say(&mut self, error: &Error, failure: &TlsError) {
        let alert = match failure {
            TlsError::Key(_) if error.name() == BAD_BINDER => DECRYPT_ERROR,
            TlsError::Key(_) => UNKNOWN_PSK_IDENTITY,
            TlsError::Protocol(_) => HANDSHAKE_FAILURE,
            TlsError::Io(_) | TlsError::Closed | TlsError::Alert(_) => return,
        };
        let mut pipe = self.pipe.lock();
        if self.connection.mode() == Mode::Server && !pipe.has_spoken() {
            pipe.add(&[21, 3, 3, 0, 2, 2, alert]);
        }
    }

    /// What was agreed on, if it is what NVMe/TCP allows.
    fn secured(&mut self) -> Result<Secured, TlsError> {
        let version = self.connection.actual_protocol_version()?;
        let hash = match self.connection.cipher_suite()? {
            "TLS_AES_128_GCM_SHA256" => Hash::Sha256,
            "TLS_AES_256_GCM_SHA384" => Hash::Sha384,
            other => return Err(TlsError::Protocol(format!("the peer chose the cipher suite {other}"))),
        };
        let mut identity = vec![0; self.connection.negotiated_psk_identity_length()?];
        if version != Version::TLS13 || identity.is_empty() {
            return Err(TlsError::Protocol("the peer did not use a pre-shared key".to_owned()));
        }
        self.connection.negotiated_psk_identity(&mut identity)?;
        Ok(Secured { identity, hash, by_kernel: false })
    }

    fn failure(&mut self, error: &Error) -> TlsError {
        if let Some(why) = self.pipe.lock().refusal() {
            return TlsError::Protocol(why);
        }
        match self.connection.application_context() {
            Some(Lookup::None(why)) => return TlsError::Key(why.clone()),
            Some(Lookup::Found { identity, other }) if error.name() == BAD_BINDER => {
                // One of version 1 ends with a digest of the key.
                let other =
                    other.as_ref().map_or_else(String::new, |other| format!(" (it also offers {other:?})"));
                return TlsError::Key(format!(
                    "the peer has another key than the one known here for {identity:?}: give both the same key{other}"
                ));
            }
            _ => {}
        }
        match (error.kind(), self.connection.alert()) {
            (ErrorType::Alert, Some(alert)) => TlsError::Alert(alert),
            (ErrorType::IOError, _) => TlsError::Io(io::Error::last_os_error()),
            (ErrorType::ConnectionClosed, _) => TlsError::Closed,
            _ => TlsError::Protocol(format!("{error} ({})", error.name())),
        }
    }

    /// Takes what protects the records out of the library, which is of no use afterwards.
    ///
    /// # Errors
    /// When the library does not give it, or something of the handshake has not left.
    pub(crate) fn into_traffic(self, hash: Hash) -> Result<Traffic, TlsError> {
        if self.pipe.lock().unsent() > 0 {
            return Err(TlsError::Protocol("the socket does not take the handshake".to_owned()));
        }
        let mut bytes = Zeroizing::new(vec![0; self.connection.serialization_length()?]);
        self.connection.serialize(&mut bytes)?;
        // As the library documents it: a number, version, cipher suite, sequence numbers of client and server, length
        // of a fragment; then the secrets of client and server.
        let part = |at: usize, len: usize| bytes.get(at..at + len);
        let sequence = |at| part(at, 8)?.try_into().ok().map(u64::from_be_bytes);
        let secret = |at| part(at, hash.len()).map(|secret| Zeroizing::new(secret.to_vec()));
        let read = || {
            let client = (secret(30)?, sequence(12)?);
            let server = (secret(30 + hash.len())?, sequence(20)?);
            Some(if self.connection.mode() == Mode::Client { (client, server) } else { (server, client) })
        };
        let ours = read().ok_or_else(|| TlsError::Protocol("the library has another format".to_owned()))?;
        let ((send, send_sequence), (receive, receive_sequence)) = ours;
        Ok(Traffic { hash, receive, receive_sequence, send, send_sequence })
    }

    /// The handshake is over: records follow.
    pub(crate) fn start_records(&mut self) {
        self.pipe.lock().buffer();
        self.plain.reserve_exact(RECORD_MAX);
    }

    /// Whether something came that nobody has received.
    pub(crate) fn has_unread(&self) -> bool {
        self.connection.peek_len() > 0 || self.pipe.lock().pending() > 0
    }

    /// Receives into `staging`. With room for two records there, no data stay here that a poller would not report.
    pub(crate) fn receive(&mut self, staging: &mut [u8]) -> io::Result<Received> {
        if let Some(failed) = self.failed.take() {
            return Err(failed.into());
        }
        let (filled, cost) = {
            let mut pipe = self.pipe.lock();
            (pipe.fill()?, pipe.count.cost())
        };
        let mut len = 0;
        while len < staging.len() {
            match self.connection.poll_recv(&mut staging[len..]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    return Ok(if len == 0 {
                        Received::End
                    } else {
                        bytes(len, self.cost_since(cost), true)
                    });
                }
                Poll::Ready(Ok(received)) => {
                    len += received;
                    self.pipe.lock().on_data(received);
                }
                Poll::Ready(Err(error)) => {
                    let failure = self.failure(&error);
                    if len == 0 {
                        return Err(failure.into());
                    }
                    self.failed = Some(failure);
                    return Ok(bytes(len, self.cost_since(cost), true));
                }
            }
        }
        Ok(match filled {
            Some((0, _)) if len == 0 => Received::Cut,
            // Of a record only the beginning came, or one without data. The poller reports what is left in the socket.
            _ if len == 0 => Received::Nothing,
            _ => bytes(
                len,
                self.cost_since(cost),
                len == staging.len() || filled.is_some_and(|(_, more)| more),
            ),
        })
    }

    /// What a budget is charged for the records that were taken since their cost was `before`.
    fn cost_since(&self, before: usize) -> usize {
        self.pipe.lock().count.cost() - before
    }

    /// Encrypts `chunks` as far as there is room, and sends; how many of their bytes were taken, and whether all records
    /// have left.
    pub(crate) fn send(&mut self, chunks: &[Chunk<'_>], socket: &Socket) -> io::Result<(usize, bool)> {
        let (mut taken, mut rest) = (0, chunks.iter().copied());
        let mut current = rest.next();
        let mut flushed = self.pipe.lock().flush(socket)?;
        while current.is_some() && self.pipe.lock().has_room() {
            self.plain.clear();
            while let Some(chunk) = current
                && self.plain.len() < RECORD_MAX
            {
                let len = chunk.len().min(RECORD_MAX - self.plain.len());
                chunk.part(0, len).append_to(&mut self.plain);
                current = if len < chunk.len() { Some(chunk.part(len, chunk.len())) } else { rest.next() };
            }
            let mut done = 0;
            while done < self.plain.len() {
                match self.connection.poll_send(&self.plain[done..]) {
                    Poll::Ready(Ok(sent)) => done += sent,
                    // Its records are always taken.
                    Poll::Pending => return Err(io::ErrorKind::WouldBlock.into()),
                    Poll::Ready(Err(error)) => return Err(self.failure(&error).into()),
                }
            }
            taken += done;
            flushed = self.pipe.lock().flush(socket)?;
            if !flushed {
                break;
            }
        }
        Ok((taken, flushed))
    }

    /// Sends records that wait; whether that is all.
    pub(crate) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        self.pipe.lock().flush(socket)
    }

    /// Tells the peer that no more data follow.
    pub(crate) fn close(&mut self, socket: &Socket) {
        let _ = self.connection.poll_shutdown_send();
        let _ = self.pipe.lock().flush(socket);
    }
}

fn bytes(staged: usize, cost: usize, more: bool) -> Received {
    Received::Bytes { direct: 0, staged, cost, more }
}
