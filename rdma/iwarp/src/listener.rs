//! Listening sockets.

use crate::config::IwarpConfig;
use crate::half_open::HalfOpen;
use crate::poller::{Interest, Poller, Token};
use crate::stream::Stream;
use core::time::Duration;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// How long accepting rests when the process has no descriptor left.
const REST: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    token: Token,
    pub(crate) half_open: HalfOpen,
    /// The system is out of descriptors: no connection is accepted until then.
    pub(crate) resume_at: Option<Duration>,
}

impl Listener {
    pub(crate) fn open(
        poller: &Poller,
        key: u32,
        address: SocketAddr,
        backlog: u32,
    ) -> io::Result<(Self, SocketAddr)> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // So that IPv4 can have a listener of its own on the same port.
            socket.set_only_v6(true)?;
        }
        socket.bind(&SockAddr::from(address))?;
        socket.listen(i32::try_from(backlog.max(1)).unwrap_or(i32::MAX))?;
        let bound = socket.local_addr()?.as_socket().ok_or(ErrorKind::AddrNotAvailable)?;
        let token = Token::Listener(key);
        poller.add(&socket, token, Interest::Read)?;
        Ok((Self { socket, token, half_open: HalfOpen::default(), resume_at: None }, bound))
    }

    /// One more connection, if there is one.
    pub(crate) fn accept(&mut self, config: &IwarpConfig, poller: &Poller, now: Duration) -> Option<Stream> {
        loop {
            match self.socket.accept() {
                // One that breaks right away is as good as none.
                Ok((socket, _)) => match Stream::new(config, socket) {
                    Ok(stream) => return Some(stream),
                    Err(_) => continue,
                },
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // The peer gave up while it was queued.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(_) => {
                    poller.change(&self.socket, self.token, Interest::Nothing);
                    self.resume_at = Some(now + REST);
                    return None;
                }
            }
        }
    }

    /// Asks for connections again after [`REST`].
    pub(crate) fn resume(&mut self, poller: &Poller) {
        self.resume_at = None;
        poller.change(&self.socket, self.token, Interest::Read);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
