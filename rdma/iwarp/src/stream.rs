//! The TCP socket. The only file with a system call on memory, and the only one with unsafe code.
#![expect(
    unsafe_code,
    reason = "readv and sendmsg on registered memory, which no reference may name; see the SAFETY comments"
)]

use crate::config::IwarpConfig;
use crate::qp::{CHUNKS_MAX, Chunk};
use core::mem::MaybeUninit;
use core::time::Duration;
use nvmf_memory::Memory;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A non-blocking TCP connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
}

impl Stream {
    /// A socket to connect to `address` with, bound to `source` if given.
    pub(crate) fn open(
        config: &IwarpConfig,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(source) = source {
            socket.bind(&SockAddr::from(source))?;
        }
        Self::new(config, socket)
    }

    /// Starts to connect; the socket is writable when that is done, one way or the other.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<()> {
        match self.socket.connect(&SockAddr::from(address)) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes over a socket.
    pub(crate) fn new(config: &IwarpConfig, socket: Socket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(config.dead_peer_timeout))?;
        // An idle peer is asked after a half of the time, and has the other half to answer.
        let half = (config.dead_peer_timeout / 2).max(Duration::from_secs(1));
        let probe = (half / 4).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(half).with_interval(probe).with_retries(4);
        socket.set_tcp_keepalive(&keepalive)?;
        if let Some(bytes) = config.send_buffer {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = config.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        Ok(Self { socket })
    }

    /// What became of [`Stream::connect`].
    pub(crate) fn take_error(&self) -> io::Result<()> {
        self.socket.take_error()?.map_or(Ok(()), Err)
    }

    pub(crate) fn peer_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.peer_addr()?;
        address.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
    }

    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?;
        address.as_socket().ok_or_else(|| ErrorKind::AddrNotAvailable.into())
    }

    /// Bytes of a TCP segment, for those who want an FPDU in each.
    pub(crate) fn segment_len(&self) -> io::Result<usize> {
        self.socket.tcp_mss().map(|mss| mss as usize)
    }

    /// Has TCP send as fast as the peer takes it: for a path that cannot be congested, where what paces only slows.
    pub(crate) fn send_unpaced(&self) {
        // Every kernel has it and anyone may choose it; without it, it is as fast as the system's choice.
        let _ = self.socket.set_tcp_congestion(b"reno");
    }

    /// Receives a few bytes: `None` when there are none, 0 at the end.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        self.receive_into(None, into)
    }

    /// Whether bytes are there to be received.
    pub(crate) fn has_bytes(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        matches!(self.socket.peek(&mut byte), Ok(1))
    }

    /// Receives into `direct` (memory, offset, length) first, if given, and what is left over into `staging`.
    /// `None` when there is nothing, 0 at the end.
    pub(crate) fn receive_into(
        &self,
        direct: Option<(&Memory, usize, usize)>,
        staging: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let mut vectors = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 2];
        let mut count = 0;
        if let Some((memory, offset, len)) = direct {
            vectors[0] = region(memory, offset, len);
            count = 1;
        }
        vectors[count] = libc::iovec { iov_base: staging.as_mut_ptr().cast(), iov_len: staging.len() };
        // SAFETY: the first vector lies within `memory` (checked by `region`), which the borrow keeps alive for the
        // call; the second is `staging`, borrowed exclusively. The kernel keeps neither beyond the call.
        let n = unsafe { libc::readv(self.socket.as_raw_fd(), vectors.as_ptr(), count as i32 + 1) };
        outcome(n)
    }

    /// Sends what the socket takes of `chunks`, at most [`CHUNKS_MAX`]: `None` when it takes nothing now.
    pub(crate) fn send(&self, chunks: &[Chunk<'_>]) -> io::Result<Option<usize>> {
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
        outcome(n)
    }

    /// No more will be sent.
    pub(crate) fn shutdown_write(&self) {
        // Fails only when the connection is gone, which is what is wanted.
        let _ = self.socket.shutdown(Shutdown::Write);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn region(memory: &Memory, offset: usize, len: usize) -> libc::iovec {
    assert!(memory.contains(offset, len), "ranges are checked before they come here");
    // SAFETY: the offset lies within the allocation, or one past its end.
    let base = unsafe { memory.as_ptr().add(offset) };
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

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
