//! Records by the kernel (kTLS, `Documentation/networking/tls.rst`): after the handshake the kernel gets the keys, and
//! the socket is read and written as a plain one. Records without data are handled here.
#![expect(
    unsafe_code,
    reason = "sendmsg with a control message that no safe crate has; see the SAFETY comments"
)]

use super::TlsError;
use super::pipe::{RECORD_MAX, too_many_empty};
use super::records::Allowance;
use super::session::Traffic;
use crate::stream::Received;
use core::mem::MaybeUninit;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, TlsGetRecordType, recvmsg, setsockopt};
use nvmf_tls::Hash;
use socket2::Socket;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use zeroize::Zeroizing;

/// Types of records (RFC 8446, 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// Types of handshake messages (RFC 8446, 4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// Alerts.
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const USER_CANCELED: u8 = 90;

/// A connection whose records the kernel handles.
#[derive(Debug)]
pub(crate) struct Kernel {
    hash: Hash,
    receive: Secret,
    send: Secret,
    /// The peer wants this side to change its keys before it sends data.
    answer_due: bool,
    /// For records without data.
    allowance: Allowance,
}

/// What the keys of one direction come from.
struct Secret(Zeroizing<Vec<u8>>);

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret")
    }
}

/// Whether the kernel has TLS for this socket: it is prepared then, and plain until [`Kernel::new`].
pub(crate) fn is_possible(socket: &Socket) -> bool {
    setsockopt(socket, TcpUlp::default(), b"tls").is_ok()
}

impl Kernel {
    /// Gives the keys to the kernel, which is [prepared](is_possible).
    ///
    /// # Errors
    /// When it does not take them.
    pub(crate) fn new(traffic: Traffic, socket: &Socket) -> io::Result<Self> {
        let Traffic { hash, receive, receive_sequence, send, send_sequence } = traffic;
        setsockopt(socket, TcpTlsTx, &crypto_info(hash, &send, send_sequence))?;
        setsockopt(socket, TcpTlsRx, &crypto_info(hash, &receive, receive_sequence))?;
        let (receive, send) = (Secret(receive), Secret(send));
        Ok(Self { hash, receive, send, answer_due: false, allowance: Allowance::default() })
    }

    /// Receives the record that a plain read has failed at, because it holds no data.
    pub(crate) fn receive_control(&mut self, socket: &Socket) -> io::Result<Received> {
        let mut bytes = [0; RECORD_MAX];
        let mut space = nix::cmsg_space!(u8);
        let mut vectors = [IoSliceMut::new(&mut bytes)];
        let message =
            recvmsg::<()>(socket.as_raw_fd(), &mut vectors, Some(&mut space), MsgFlags::MSG_DONTWAIT);
        let (kind, len) = match message {
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Received::Nothing),
            Err(error) => return Err(error.into()),
            Ok(message) => {
                let record = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::TlsGetRecordType(record) => Some(record),
                    _ => None,
                });
                (record, message.bytes)
            }
        };
        if kind.is_some() {
            self.on_empty(len, socket)?;
        }
        match kind {
            Some(TlsGetRecordType::Alert) => on_alert(&bytes[..len]),
            Some(TlsGetRecordType::Handshake) => self.on_handshake(&bytes[..len], socket),
            // The end of the stream has no record.
            None if len == 0 => Ok(Received::Cut),
            Some(TlsGetRecordType::ApplicationData) if len == 0 => Ok(Received::Nothing),
            _ => Err(protocol("an unexpected record")),
        }
    }

    /// A record without data has come, of `len` bytes.
    ///
    /// # Errors
    /// When there were too many, which the peer is told.
    pub(crate) fn on_empty(&mut self, len: usize, socket: &Socket) -> io::Result<Received> {
        if self.allowance.on_empty(len) {
            return Ok(Received::Nothing);
        }
        // Without room in the socket, the peer sees the end alone.
        let _ = send_record(socket, ALERT, &[2, UNEXPECTED_MESSAGE]);
        Err(protocol(&too_many_empty()))
    }

    /// Data have come.
    #[inline]
    pub(crate) fn on_data(&mut self, len: usize) {
        self.allowance.on_data(len);
    }

    /// Handshake messages behind the handshake.
    fn on_handshake(&mut self, mut bytes: &[u8], socket: &Socket) -> io::Result<Received> {
        while let Some((head, rest)) = bytes.split_first_chunk::<4>() {
            let len = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
            let (body, rest) = rest.split_at_checked(len).ok_or_else(|| protocol("a cut message"))?;
            bytes = rest;
            match (head[0], body) {
                // Tickets would spare a later handshake its key exchange; ours are few.
                (NEW_SESSION_TICKET, _) => {}
                // The record that carries it must end with it.
                (KEY_UPDATE, [request @ (0 | 1)]) if rest.is_empty() => {
                    self.on_key_update(*request == 1, socket)?;
                }
                _ => return Err(protocol("an unexpected handshake message")),
            }
        }
        if bytes.is_empty() { Ok(Received::Nothing) } else { Err(protocol("a cut message")) }
    }

    /// The peer has changed its keys (RFC 8446, 4.6.3 and 7.2). Kernels before 6.14 cannot follow.
    fn on_key_update(&mut self, answer: bool, socket: &Socket) -> io::Result<()> {
        self.receive.update(self.hash);
        let info = crypto_info(self.hash, &self.receive.0, 0);
        setsockopt(socket, TcpTlsRx, &info).map_err(cannot_follow)?;
        self.answer_due |= answer;
        Ok(())
    }

    /// Answers KeyUpdates, if that is asked for and the socket takes it now; whether data may follow.
    ///
    /// # Errors
    /// When the connection is broken, or the kernel cannot change its keys.
    #[inline]
    pub(crate) fn answer(&mut self, socket: &Socket) -> io::Result<bool> {
        if self.answer_due { self.change_keys(socket) } else { Ok(true) }
    }

    /// Changes the keys of this side, if the socket takes the record that says so; whether it did.
    #[cold]
    fn change_keys(&mut self, socket: &Socket) -> io::Result<bool> {
        match send_record(socket, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            sent => sent?,
        }
        self.send.update(self.hash);
        setsockopt(socket, TcpTlsTx, &crypto_info(self.hash, &self.send.0, 0)).map_err(cannot_follow)?;
        self.answer_due = false;
        Ok(true)
    }

    /// Tells the peer that no more data follow.
    pub(crate) fn close(&self, socket: &Socket) {
        // Fails when the socket is full, or gone: the peer sees its end without it.
        let _ = send_record(socket, ALERT, &[1, CLOSE_NOTIFY]);
    }
}

impl Secret {
    fn update(&mut self, hash: Hash) {
        self.0 = hash.expand_label(&self.0, "traffic upd", &[], hash.len());
    }
}

fn on_alert(bytes: &[u8]) -> io::Result<Received> {
    match bytes {
        [_, CLOSE_NOTIFY] => Ok(Received::End),
        [_, USER_CANCELED] => Ok(Received::Nothing),
        [_, alert] => Err(TlsError::Alert(*alert).into()),
        _ => Err(protocol("a malformed alert")),
    }
}

fn cannot_follow(_: Errno) -> io::Error {
    protocol("the peer has changed its keys, which this kernel cannot follow")
}

fn protocol(what: &str) -> io::Error {
    TlsError::Protocol(what.to_owned()).into()
}

/// Whether the peer sends no more.
pub(crate) fn has_ended(socket: &Socket) -> bool {
    let mut asked = [PollFd::new(socket.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
    // Without an answer, the end is what a read of no bytes mostly means.
    poll(&mut asked, PollTimeout::ZERO).map_or(true, |ended| ended > 0)
}

/// What a failed read of a socket of the kernel's TLS means.
pub(crate) fn read_error(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EBADMSG) => protocol("a damaged record: its authentication fails"),
        Some(libc::EINVAL | libc::EMSGSIZE) => protocol("a malformed record"),
        _ => error,
    }
}

/// The key and the nonce of a secret (RFC 8446, 7.3), as the kernel takes them.
fn crypto_info(hash: Hash, secret: &[u8], sequence: u64) -> TlsCryptoInfo {
    let (cipher_type, key_len) = match hash {
        Hash::Sha256 => (libc::TLS_CIPHER_AES_GCM_128, 16),
        Hash::Sha384 => (libc::TLS_CIPHER_AES_GCM_256, 32),
    };
    let info = libc::tls_crypto_info { version: libc::TLS_1_3_VERSION, cipher_type };
    let key = hash.expand_label(secret, "key", &[], key_len);
    let nonce = hash.expand_label(secret, "iv", &[], 12);
    let (mut salt, mut iv) = ([0; 4], [0; 8]);
    salt.copy_from_slice(&nonce[..4]);
    iv.copy_from_slice(&nonce[4..]);
    let rec_seq = sequence.to_be_bytes();
    match hash {
        Hash::Sha256 => {
            let mut copy = [0; 16];
            copy.copy_from_slice(&key);
            TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
                info,
                iv,
                key: copy,
                salt,
                rec_seq,
            })
        }
        Hash::Sha384 => {
            let mut copy = [0; 32];
            copy.copy_from_slice(&key);
            TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
                info,
                iv,
                key: copy,
                salt,
                rec_seq,
            })
        }
    }
}

/// Sends a record of another type than data.
fn send_record(socket: &Socket, kind: u8, bytes: &[u8]) -> io::Result<()> {
    // Of a control message with one byte; the union aligns it.
    #[repr(C)]
    union Control {
        head: libc::cmsghdr,
        bytes: [u8; 64],
    }
    let mut control = Control { bytes: [0; 64] };
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is a valid one: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    // SAFETY: `control` is aligned for a header and has room for one and a byte, so the first header is not null and points to
    // it, and the byte behind it is in it too.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(1) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_TLS;
        (*head).cmsg_type = libc::TLS_SET_RECORD_TYPE;
        (*head).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(head) = kind;
    }
    // SAFETY: the message names `bytes`, which sendmsg only reads, and `control`; both live longer than the call.
    let sent = unsafe {
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_end_the_stream_or_say_why() {
        assert_eq!(on_alert(&[1, 0]).unwrap(), Received::End);
        assert_eq!(on_alert(&[1, 90]).unwrap(), Received::Nothing);
        let error = on_alert(&[2, 20]).unwrap_err().to_string();
        assert!(error.contains("bad_record_mac"), "{error}");
        assert!(on_alert(&[]).is_err() && on_alert(&[2]).is_err() && on_alert(&[2, 20, 0]).is_err());
    }

    /// The traffic secret, key and nonce of the server in RFC 8448, section 3.
    #[test]
    fn key_and_nonce_are_those_of_the_rfc() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
        };
        let secret = bytes("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let TlsCryptoInfo::Aes128Gcm(info) = crypto_info(Hash::Sha256, &secret, 258) else { panic!() };
        assert_eq!(info.key.to_vec(), bytes("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!([&info.salt[..], &info.iv].concat(), bytes("cf782b88dd83549aadf1e984"));
        assert_eq!(info.rec_seq, [0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
