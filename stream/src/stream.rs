//! The socket: TCP, or a Unix socket. The only file with a system call on registered memory.
#![expect(
    unsafe_code,
    reason = "readv and sendmsg on registered memory, which no reference may name; see the SAFETY comments"
)]

use crate::chunk::{CHUNKS_MAX, Chunk, Chunks};
use crate::config::StreamConfig;
use crate::poller::{Interest, Poller};
use crate::tls::{self, Kernel, Secured, Session, TlsAcceptor, TlsConnector, TlsError};
use core::cell::RefCell;
use core::mem::MaybeUninit;
use core::time::Duration;
use nix::errno::Errno;
use nix::sys::socket::MsgFlags;
use nvmf_memory::Memory;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// The rest of a payload that is worth a place of its own in a read: below, copying it costs less.
pub const DIRECT_MIN: usize = 8 * 1024;
/// Staging behind such a rest: the next headers, and no more of the next payload than must be copied.
const DIRECT_STAGING: usize = 4 * 1024;

/// What [`Stream::receive`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// No bytes are there now.
    Nothing,
    /// The peer sends no more; over TLS it has said so (close_notify).
    End,
    /// Over TLS: the stream ended, and nobody who has the key has said so (RFC 8446, 6.1). Whoever is on the way can do
    /// that, and deliver late what the peer has not received yet.
    Cut,
    /// Bytes.
    Bytes {
        /// How many went to the place given.
        direct: usize,
        /// How many came behind them, to the front of the staging buffer.
        staged: usize,
        /// What a budget is charged: as many bytes, or of TLS more, where it came in many small records.
        cost: usize,
        /// All room was used: more may be there. Otherwise the socket is empty, unless bytes came meanwhile.
        more: bool,
    },
}

/// A non-blocking connection. Dropping it closes it: [`StreamConfig::reset_on_close`].
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    layer: Layer,
    /// The socket took no more: epoll reports when it does.
    blocked: bool,
    /// Bytes that come are not wanted now.
    paused: bool,
}

/// What lies between the user's bytes and the socket's.
#[derive(Debug)]
enum Layer {
    /// Nothing.
    Plain,
    /// A TLS handshake that is not over.
    Handshake(Box<Session>),
    /// TLS, whose records this process handles.
    Records(Box<RefCell<Session>>),
    /// TLS, whose records the kernel handles.
    Kernel(Box<RefCell<Kernel>>),
}

impl Stream {
    /// A socket to connect to `address` with, bound to `source` if given.
    ///
    /// # Errors
    /// When the system refuses the source address, the interface or another option.
    pub fn open(config: &StreamConfig, address: SocketAddr, source: Option<SocketAddr>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(interface) = &config.interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if let Some(source) = source {
            socket.bind(&SockAddr::from(source))?;
        }
        if let Some(retries) = config.syn_retries {
            set_syn_retries(&socket, retries)?;
        }
        Self::with_options(config, socket)
    }

    /// Starts to connect; the socket is writable when that is done, one way or the other: [`Stream::take_error`].
    ///
    /// # Errors
    /// When the system knows at once that there is no way.
    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        match self.socket.connect(&SockAddr::from(address)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes over a connection.
    ///
    /// # Errors
    /// When it is gone already, or the system refuses an option.
    pub fn take_over(config: &StreamConfig, connection: impl Into<OwnedFd>) -> io::Result<Self> {
        Self::with_options(config, Socket::from(connection.into()))
    }

    /// Takes over a connection between processes of this machine: a Unix socket, which has no options of TCP.
    ///
    /// # Errors
    /// When the system refuses to make it non-blocking.
    pub fn local(connection: UnixStream) -> io::Result<Self> {
        connection.set_nonblocking(true)?;
        let socket = Socket::from(OwnedFd::from(connection));
        Ok(Self { socket, layer: Layer::Plain, blocked: false, paused: false })
    }

    fn with_options(config: &StreamConfig, socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(config.dead_peer_timeout))?;
        // An idle peer is asked after a half of the time, and has the other half to answer.
        let half = (config.dead_peer_timeout / 2).max(Duration::from_secs(1));
        let probe = (half / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(half).with_interval(probe).with_retries(4);
        socket.set_tcp_keepalive(&keepalive)?;
        if config.reset_on_close {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        if let Some(bytes) = config.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = config.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(tos) = config.tos.map(u32::from) {
            if socket.domain()? == Domain::IPV6 {
                socket.set_tclass_v6(tos)?
            } else {
                socket.set_tos_v4(tos)?
            }
        }
        // After the type of service, which chooses a priority as well.
        if let Some(priority) = config.priority {
            socket.set_priority(priority)?;
        }
        Ok(Self { socket, layer: Layer::Plain, blocked: false, paused: false })
    }

    /// What became of [`Stream::connect`], once.
    ///
    /// # Errors
    /// What went wrong.
    pub fn take_error(&self) -> io::Result<()> {
        self.socket.take_error()?.map_or(Ok(()), Err)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// When the peer is gone again.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.peer_addr()?;
        address.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
    }

    /// This side's address.
    ///
    /// # Errors
    /// When the system has none.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
    }

    /// Whether the peer runs on this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match (self.peer_address(), self.local_address()) {
            (Ok(peer), Ok(local)) => peer.ip().is_loopback() || peer.ip() == local.ip(),
            _ => false,
        }
    }

    /// Bytes of a TCP segment.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn segment_len(&self) -> io::Result<usize> {
        self.socket.tcp_mss().map(|mss| mss as usize)
    }

    /// Has TCP send as fast as the peer takes it: for a path that cannot be congested, where what paces only slows.
    pub fn send_unpaced(&self) {
        // Every kernel has it and anyone may choose it; without it, it is as fast as the system's choice.
        let _ = self.socket.set_tcp_congestion(b"reno");
    }

    /// Whether bytes are there to be received.
    pub fn has_bytes(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        matches!(self.socket.peek(&mut byte), Ok(1))
    }

    /// Copies the first bytes that are there to be received, and leaves them there; how many, `None` if there is none
    /// now.
    ///
    /// # Errors
    /// When none will come.
    pub fn peek(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        match nix::sys::socket::recv(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_PEEK) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => Ok(Some(len)),
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a TLS handshake as the side that was connected to: [`Stream::handshake`] goes on with it.
    ///
    /// # Errors
    /// When the library fails.
    pub fn accept_tls(&mut self, acceptor: &TlsAcceptor) -> Result<(), TlsError> {
        self.layer = Layer::Handshake(Box::new(Session::accept(acceptor, &self.socket)?));
        Ok(())
    }

    /// Begins a TLS handshake as the side that has connected.
    ///
    /// # Errors
    /// When the library fails.
    pub fn connect_tls(&mut self, connector: &TlsConnector) -> Result<(), TlsError> {
        self.layer = Layer::Handshake(Box::new(Session::connect(connector, &self.socket)?));
        Ok(())
    }

    /// Goes on with a TLS handshake, at its begin and when bytes have come; `None` until it is over. Nothing is to be sent
    /// or received before. What was to be said of an error was said: let the stream [linger](crate::Lingering).
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn handshake(&mut self) -> Result<Option<Secured>, TlsError> {
        let Layer::Handshake(session) = &mut self.layer else { return Ok(None) };
        match session.handshake(&self.socket) {
            Ok(None) => Ok(None),
            Ok(Some(mut secured)) => {
                if let Layer::Handshake(mut session) = core::mem::replace(&mut self.layer, Layer::Plain) {
                    secured.by_kernel = tls::is_possible(&self.socket);
                    self.layer = if secured.by_kernel {
                        let kernel = Kernel::new(session.into_traffic(secured.hash)?, &self.socket)?;
                        Layer::Kernel(Box::new(RefCell::new(kernel)))
                    } else {
                        session.start_records();
                        Layer::Records(Box::new(RefCell::new(*session)))
                    };
                }
                Ok(Some(secured))
            }
            Err(error) => {
                self.layer = Layer::Plain;
                Err(error)
            }
        }
    }

    /// Whether TLS protects it, or is to.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        !matches!(self.layer, Layer::Plain)
    }

    /// Whether bytes of TLS were taken from the socket that [`Stream::receive`] has not returned: a poller does not report
    /// them. With 64 KiB of staging there are none but of a record that is not there as a whole.
    #[must_use]
    pub fn has_unread(&self) -> bool {
        matches!(&self.layer, Layer::Records(session) if session.borrow().has_unread())
    }

    /// Receives into `direct` (memory, offset, length) first, if given, and what is left over into `staging`, of which
    /// a part is used then: enough for the next headers.
    ///
    /// # Errors
    /// When the connection is broken; a [`TlsError`] within when TLS is.
    ///
    /// # Panics
    /// When `direct` is not within its memory.
    #[inline]
    pub fn receive(
        &self,
        direct: Option<(&Memory, usize, usize)>,
        staging: &mut [u8],
    ) -> io::Result<Received> {
        match &self.layer {
            Layer::Plain | Layer::Kernel(_) => {}
            Layer::Records(session) => return session.borrow_mut().receive(staging),
            Layer::Handshake(_) => return Ok(Received::Nothing),
        }
        let mut vectors = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 2];
        let (mut count, mut direct_len, mut staging_len) = (0, 0, staging.len());
        if let Some((memory, offset, len)) = direct {
            vectors[0] = region(memory, offset, len);
            (count, direct_len, staging_len) = (1, len, staging_len.min(DIRECT_STAGING));
        }
        let room = direct_len + staging_len;
        if room == 0 {
            return Ok(Received::Nothing);
        }
        vectors[count] = libc::iovec { iov_base: staging.as_mut_ptr().cast(), iov_len: staging_len };
        // SAFETY: the first vector lies within `memory` (checked by `region`), which the borrow keeps alive for the
        // call; the second is `staging` or its beginning, borrowed exclusively. The kernel keeps neither beyond the
        // call.
        let n = unsafe { libc::readv(self.socket.as_raw_fd(), vectors.as_ptr(), count as i32 + 1) };
        let n = match outcome(n) {
            Ok(n) => n,
            Err(error) => return self.after_failure(error),
        };
        Ok(match n {
            None => Received::Nothing,
            Some(0) => return self.after_nothing(),
            Some(n) => {
                if let Layer::Kernel(kernel) = &self.layer {
                    kernel.borrow_mut().on_data(n);
                }
                let direct = n.min(direct_len);
                Received::Bytes { direct, staged: n - direct, cost: n, more: n == room }
            }
        })
    }

    /// What a read of no bytes means: of TLS by the kernel, it may be a record without any.
    #[cold]
    fn after_nothing(&self) -> io::Result<Received> {
        match &self.layer {
            // The poller reports what follows it.
            Layer::Kernel(kernel) if self.has_bytes() || !tls::has_ended(&self.socket) => {
                kernel.borrow_mut().on_empty(0, &self.socket)
            }
            Layer::Kernel(_) => Ok(Received::Cut),
            _ => Ok(Received::End),
        }
    }

    /// What a failed read means: of TLS by the kernel, it may be a record without data.
    #[cold]
    fn after_failure(&self, error: io::Error) -> io::Result<Received> {
        match &self.layer {
            Layer::Kernel(kernel) if error.raw_os_error() == Some(libc::EIO) => {
                kernel.borrow_mut().receive_control(&self.socket)
            }
            Layer::Kernel(_) => Err(tls::read_error(error)),
            Layer::Plain | Layer::Handshake(_) | Layer::Records(_) => Err(error),
        }
    }

    /// Sends what the socket takes of `chunks`; how many bytes. If it does not take them all it is
    /// [blocked](Stream::is_blocked) until `poller`, which was told of it, reports `token` as writable.
    ///
    /// # Errors
    /// When the connection is broken.
    ///
    /// # Panics
    /// When a region is not within its memory.
    #[inline]
    pub fn send(&mut self, chunks: &Chunks<'_>, poller: &Poller, token: impl Into<u64>) -> io::Result<usize> {
        let (taken, unsent) = self.give(chunks.as_slice())?;
        self.blocked = unsent || taken < chunks.len_bytes();
        if self.blocked {
            poller.change(&*self, token, self.interest());
        }
        Ok(taken)
    }

    /// Whether the last [`Stream::send`] found the socket full.
    #[inline]
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The poller reports that the socket can be written; whether it was blocked, and is not now.
    #[inline]
    pub fn on_writable(&mut self, poller: &Poller, token: impl Into<u64>) -> bool {
        if let Layer::Records(session) = &self.layer
            && matches!(session.borrow_mut().flush(&self.socket), Ok(false))
        {
            return false;
        }
        let was_blocked = core::mem::replace(&mut self.blocked, false);
        if was_blocked {
            poller.change(&*self, token, self.interest());
        }
        was_blocked
    }

    /// Stops reading, or goes on: bytes that come are not reported meanwhile, and TCP holds the peer back when its
    /// window is full. A broken connection is still reported: [`Stream::take_error`].
    pub fn pause(&mut self, paused: bool, poller: &Poller, token: impl Into<u64>) {
        if core::mem::replace(&mut self.paused, paused) != paused {
            poller.change(&*self, token, self.interest());
        }
    }

    /// Whether reading was [stopped](Stream::pause).
    #[inline]
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// What the poller is to report of an open connection.
    fn interest(&self) -> Interest {
        match (self.paused, self.blocked) {
            (false, false) => Interest::Read,
            (false, true) => Interest::ReadWrite,
            (true, false) => Interest::Nothing,
            (true, true) => Interest::Write,
        }
    }

    /// Sends what the socket takes of the first [`CHUNKS_MAX`] of `chunks`; how many bytes, 0 when it takes nothing now.
    ///
    /// # Errors
    /// When the connection is broken.
    ///
    /// # Panics
    /// When a region is not within its memory.
    pub fn try_send(&self, chunks: &[Chunk<'_>]) -> io::Result<usize> {
        self.give(chunks).map(|(taken, _)| taken)
    }

    /// Whether all that was taken has left this process.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn flush(&self) -> io::Result<bool> {
        match &self.layer {
            Layer::Records(session) => session.borrow_mut().flush(&self.socket),
            Layer::Plain | Layer::Handshake(_) | Layer::Kernel(_) => Ok(true),
        }
    }

    /// How many bytes were taken, and whether some of them wait here for the socket.
    #[inline]
    fn give(&self, chunks: &[Chunk<'_>]) -> io::Result<(usize, bool)> {
        match &self.layer {
            Layer::Plain => self.write(chunks).map(|taken| (taken, false)),
            Layer::Kernel(kernel) => {
                // Blocked until the socket takes it: that is reported as for data.
                let answered = kernel.borrow_mut().answer(&self.socket)?;
                if answered { self.write(chunks).map(|taken| (taken, false)) } else { Ok((0, true)) }
            }
            Layer::Records(session) => {
                let (taken, flushed) = session.borrow_mut().send(chunks, &self.socket)?;
                Ok((taken, !flushed))
            }
            Layer::Handshake(_) => Ok((0, false)),
        }
    }

    #[inline]
    fn write(&self, chunks: &[Chunk<'_>]) -> io::Result<usize> {
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; CHUNKS_MAX];
        let count = chunks.len().min(CHUNKS_MAX);
        for (vector, chunk) in vectors.iter_mut().zip(chunks) {
            vector.write(match *chunk {
                Chunk::Bytes(bytes) => {
                    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
                }
                Chunk::Region(memory, offset, len) => region(memory, offset, len),
            });
        }
        // SAFETY: an all-zero msghdr is a valid one: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr().cast();
        message.msg_iovlen = count as _;
        // SAFETY: the first `count` vectors were written above. Each names bytes that `chunks` borrows, or a range
        // within a memory that it borrows (checked by `region`); sendmsg only reads them and keeps none beyond the
        // call.
        let n = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        Ok(outcome(n)?.unwrap_or(0))
    }

    /// No more will be sent.
    pub fn shutdown_write(&self) {
        match &self.layer {
            Layer::Records(session) => session.borrow_mut().close(&self.socket),
            Layer::Kernel(kernel) => kernel.borrow().close(&self.socket),
            Layer::Plain | Layer::Handshake(_) => {}
        }
        // Fails only when the connection is gone, which is what is wanted.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[inline]
fn region(memory: &Memory, offset: usize, len: usize) -> libc::iovec {
    assert!(memory.contains(offset, len), "ranges are checked before they come here");
    // SAFETY: the offset lies within the allocation, or one past its end.
    let base = unsafe { memory.as_ptr().add(offset) };
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

fn set_syn_retries(socket: &Socket, retries: u8) -> io::Result<()> {
    let value = libc::c_int::from(retries);
    // SAFETY: the option is an integer, and `value` is one, which the call reads and does not keep.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[inline]
fn outcome(n: libc::ssize_t) -> io::Result<Option<usize>> {
    if let Ok(n) = usize::try_from(n) {
        return Ok(Some(n));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        // A signal: the next turn tries again.
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}
