//! Bytes between the TLS library and a socket: the library's two callbacks, and the buffers behind them.
#![expect(unsafe_code, reason = "the library calls back with pointers; see the SAFETY comments")]

use super::records::{Allowance, RecordCount, WITHOUT_DATA_MAX};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use s2n_tls::connection::Connection;
use s2n_tls::error::Error;
use socket2::Socket;
use std::ffi::{c_int, c_void};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a handshake, in all: two ClientHellos (RFC 8446, 4.1.4) with more identities than are looked up and long key
/// shares have less.
pub(super) const HANDSHAKE_LEN_MAX: usize = 32 * 1024;
/// Records of a handshake, in all. Some may be without effect, as ChangeCipherSpec is: the library takes any number.
pub(super) const HANDSHAKE_RECORDS_MAX: usize = 32;
/// Bytes of records that are received at once: the longest record. More would be quicker for long records, but a peer may
/// fill them with the shortest ones.
const INCOMING_MAX: usize = RECORD_LEN_MAX;
/// Bytes of the longest record: header, data, type, tag, and some padding.
pub(super) const RECORD_LEN_MAX: usize = 5 + RECORD_MAX + 256;
/// Bytes of data in the longest record.
pub(super) const RECORD_MAX: usize = 16 * 1024;
/// Bytes of records that wait for the socket: above, nothing more is encrypted.
const OUTGOING_MAX: usize = 64 * 1024;

/// What lies between a library's connection and its socket.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    fd: RawFd,
    /// The library takes its bytes from `incoming`. Until then it takes them from the socket, and not one too many: the
    /// kernel may be given the records that follow.
    buffered: bool,
    incoming: Vec<u8>,
    taken: usize,
    /// What the library has taken.
    pub(super) count: RecordCount,
    /// Of the last record that the library has begun to take no data have come. Before the first, this is not so.
    is_empty: bool,
    /// For records behind the handshake.
    allowance: Allowance,
    /// Why the library gets no more.
    refused: Option<String>,
    outgoing: Vec<u8>,
    sent: usize,
    /// Something was to be sent.
    has_spoken: bool,
}

/// A pipe, shared with the library.
#[derive(Debug, Clone)]
pub(super) struct SharedPipe(Arc<Mutex<Pipe>>);

impl SharedPipe {
    pub(super) fn new(socket: &Socket) -> Self {
        Self(Arc::new(Mutex::new(Pipe { fd: socket.as_raw_fd(), ..Pipe::default() })))
    }

    /// The pipe. Only one thread has a connection at a time: nobody waits.
    pub(super) fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `connection` receive and send through it.
    ///
    /// # Errors
    /// When the library refuses that.
    pub(super) fn attach(&self, connection: &mut Connection) -> Result<(), Error> {
        let context = Arc::as_ptr(&self.0).cast_mut().cast::<c_void>();
        connection.set_receive_callback(Some(on_receive))?;
        connection.set_send_callback(Some(on_send))?;
        // SAFETY: the pointee lives as long as `self.0`, which the session keeps until its connection is gone.
        unsafe {
            connection.set_receive_context(context)?;
            connection.set_send_context(context)?;
        }
        Ok(())
    }
}

impl Pipe {
    /// From now on whole buffers are received.
    pub(super) fn buffer(&mut self) {
        self.buffered = true;
        self.incoming.reserve_exact(INCOMING_MAX);
        self.outgoing.reserve(OUTGOING_MAX);
    }

    /// Receives bytes of records: how many, and whether the socket may have more; `None` when it has none now.
    pub(super) fn fill(&mut self) -> io::Result<Option<(usize, bool)>> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        let start = self.incoming.len();
        if start == INCOMING_MAX {
            return Ok(None);
        }
        self.incoming.resize(INCOMING_MAX, 0);
        let received = recv(self.fd, &mut self.incoming[start..], MsgFlags::empty());
        self.incoming.truncate(start + received.unwrap_or(0));
        match received {
            Ok(received) => Ok(Some((received, received == INCOMING_MAX - start))),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes of a record that is not there as a whole.
    pub(super) fn pending(&self) -> usize {
        self.incoming.len() - self.taken
    }

    /// Gives the library bytes of records: how many.
    fn take(&mut self, into: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
        if !self.buffered {
            if self.count.bytes() > HANDSHAKE_LEN_MAX || self.count.records() > HANDSHAKE_RECORDS_MAX {
                let why = "the handshake has more than";
                return self
                    .refuse(format!("{why} {HANDSHAKE_RECORDS_MAX} records or {HANDSHAKE_LEN_MAX} bytes"));
            }
            // It asks for no more than a record.
            let mut record = [0; RECORD_LEN_MAX];
            let most = into.len().min(RECORD_LEN_MAX);
            let len = recv(self.fd, &mut record[..most], MsgFlags::empty())?;
            self.count.add(into[..len].write_copy_of_slice(&record[..len]));
            return Ok(len);
        }
        let len = into.len().min(self.pending());
        if len == 0 {
            return Err(Errno::EAGAIN);
        }
        if self.count.is_between_records()
            && core::mem::replace(&mut self.is_empty, true)
            && !self.allowance.on_empty(self.count.last_len())
        {
            return self.refuse(too_many_empty());
        }
        self.count.add(into[..len].write_copy_of_slice(&self.incoming[self.taken..self.taken + len]));
        self.taken += len;
        Ok(len)
    }

    /// No more is taken from this peer.
    #[cold]
    fn refuse(&mut self, why: String) -> Result<usize, Errno> {
        self.refused = Some(why);
        Err(Errno::EMSGSIZE)
    }

    /// Why the library got no more, once.
    pub(super) fn refusal(&mut self) -> Option<String> {
        self.refused.take()
    }

    /// Of the last record, `len` bytes of data have come.
    pub(super) fn on_data(&mut self, len: usize) {
        self.is_empty = false;
        self.allowance.on_data(len);
    }

    /// Bytes that wait for the socket.
    pub(super) fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Whether more may be encrypted.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() < OUTGOING_MAX
    }

    /// Adds bytes that are sent as they are.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.has_spoken = true;
        self.outgoing.extend_from_slice(bytes);
    }

    /// Whether anything was to be sent yet.
    pub(super) fn has_spoken(&self) -> bool {
        self.has_spoken
    }

    /// Sends what the socket takes; whether that is all.
    pub(super) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.unsent() > 0 {
            let sent = socket.send_with_flags(&self.outgoing[self.sent..], nix::libc::MSG_NOSIGNAL);
            match sent {
                Ok(sent) => self.sent += sent,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(true)
    }
}

/// What is said of a peer that sends such records without end.
pub(super) fn too_many_empty() -> String {
    format!("the peer sends more than {WITHOUT_DATA_MAX} records without data (KeyUpdate or empty ones)")
}

/// The pipe behind a callback's context.
///
/// # Safety
/// The context is that of `attach`, and the pipe lives as long as the guard.
unsafe fn pipe<'a>(context: *mut c_void) -> MutexGuard<'a, Pipe> {
    // SAFETY: the caller's promise.
    let pipe: &Mutex<Pipe> = unsafe { &*context.cast() };
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library wants bytes of records.
unsafe extern "C" fn on_receive(context: *mut c_void, into: *mut u8, len: u32) -> c_int {
    // SAFETY: the library passes a buffer of its own of that length for this call; what is in it is not known yet.
    let into = unsafe { core::slice::from_raw_parts_mut(into.cast::<MaybeUninit<u8>>(), len as usize) };
    // SAFETY: the context is that of `attach`: the pipe outlives the connection that calls, and so this call.
    match unsafe { pipe(context) }.take(into) {
        Ok(len) => len as c_int,
        Err(error) => {
            error.set();
            -1
        }
    }
}

/// The library has records to be sent. They are always taken: how many there are, the session bounds.
unsafe extern "C" fn on_send(context: *mut c_void, bytes: *const u8, len: u32) -> c_int {
    // SAFETY: the library passes bytes of its own of that length for this call.
    let bytes = unsafe { core::slice::from_raw_parts(bytes, len as usize) };
    // SAFETY: as in `on_receive`.
    unsafe { pipe(context) }.add(bytes);
    len as c_int
}
