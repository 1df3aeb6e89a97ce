//! Listening sockets.

use crate::config::StreamConfig;
use crate::deadline::Deadline;
use crate::half_open::{HalfOpen, HalfOpenLimits};
use crate::poller::{Interest, Poller};
use crate::stream::Stream;
use core::time::Duration;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

/// How long accepting rests when the process has no descriptor left.
const REST: Duration = Duration::from_millis(100);

/// A socket that listens on `address`, whose port may be 0. Connections queue in it, at most `backlog` and what the
/// system allows, until a [`Listener`] accepts them.
///
/// # Errors
/// When the address is taken or not of this machine.
pub fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // So that IPv4 can have a listener of its own on the same port.
        socket.set_only_v6(true)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(i32::try_from(backlog.max(1)).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// A listening socket, and the connections of it that have not said yet what they want.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    token: u64,
    /// Kept by the user, who has these connections.
    pub half_open: HalfOpen,
    /// The system is short of descriptors or memory: no connection is accepted until then, when [`Listener::resume`] is
    /// due.
    pub rest: Option<Deadline>,
    /// What the system said when that began, for the user to take.
    pub shortage: Option<io::Error>,
}

impl Listener {
    /// Listens on `address`, whose port may be 0: the address that it is then. `poller` reports `token` when there are
    /// connections to accept.
    ///
    /// # Errors
    /// When the address is taken or not of this machine.
    pub fn open(
        poller: &Poller,
        token: impl Into<u64>,
        address: SocketAddr,
        backlog: u32,
        limits: HalfOpenLimits,
    ) -> io::Result<(Self, SocketAddr)> {
        Self::adopt(poller, token, listen(address, backlog)?, limits)
    }

    /// Takes over a socket that listens already, and returns its address. `poller` reports `token` when there are
    /// connections to accept: those that were queued before as well.
    ///
    /// # Errors
    /// When it is no TCP socket, or the system refuses to watch it.
    pub fn adopt(
        poller: &Poller,
        token: impl Into<u64>,
        socket: TcpListener,
        limits: HalfOpenLimits,
    ) -> io::Result<(Self, SocketAddr)> {
        socket.set_nonblocking(true)?;
        let (bound, socket, token) = (socket.local_addr()?, Socket::from(socket), token.into());
        poller.add(&socket, token, Interest::Read)?;
        Ok((Self { socket, token, half_open: HalfOpen::new(limits), rest: None, shortage: None }, bound))
    }

    /// One more connection, if there is one. `None` may also be the begin of a [rest](Listener::rest).
    pub fn accept(&mut self, config: &StreamConfig, poller: &Poller) -> Option<Stream> {
        loop {
            match self.socket.accept() {
                // One that breaks right away is as good as none.
                Ok((socket, _)) => match Stream::take_over(config, socket) {
                    Ok(stream) => return Some(stream),
                    Err(_) => continue,
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // The peer gave up while it was queued.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.shortage = Some(error);
                    poller.change(&self.socket, self.token, Interest::Nothing);
                    self.rest = Some(Deadline::After(REST));
                    return None;
                }
            }
        }
    }

    /// The rest is over: asks for connections again.
    pub fn resume(&mut self, poller: &Poller) {
        self.rest = None;
        poller.change(&self.socket, self.token, Interest::Read);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
