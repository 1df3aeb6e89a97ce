//! epoll, level-triggered: what is not handled is reported again.

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Events taken from the kernel at once.
const EVENTS: usize = 64;

/// What to report. Errors and hang-ups are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Errors only.
    Nothing,
    /// The peer's end of stream, but not its bytes.
    HangUp,
    /// Bytes, and the end of stream.
    Read,
    /// Room for bytes; of a socket that connects, that it is done.
    Write,
    /// Both.
    ReadWrite,
}

impl Interest {
    fn flags(self) -> EpollFlags {
        match self {
            Self::Nothing => EpollFlags::empty(),
            Self::HangUp => EpollFlags::EPOLLRDHUP,
            Self::Read => EpollFlags::EPOLLIN,
            Self::Write => EpollFlags::EPOLLOUT,
            Self::ReadWrite => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
        }
    }
}

/// An epoll descriptor. A token says who a descriptor belongs to: 64 bits that mean something to the user.
#[derive(Debug)]
pub struct Poller {
    epoll: Epoll,
    events: [EpollEvent; EVENTS],
}

impl Poller {
    /// A poller of nothing.
    ///
    /// # Errors
    /// When the system gives no epoll descriptor.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, events: [EpollEvent::empty(); EVENTS] })
    }

    /// Reports `token` when the descriptor is ready.
    ///
    /// # Errors
    /// When the system's limit of epoll watches is reached.
    pub fn add(&self, fd: impl AsFd, token: impl Into<u64>, interest: Interest) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(interest.flags(), token.into()))?)
    }

    /// Reports something else of a descriptor that was added, or under another token.
    pub fn change(&self, fd: impl AsFd, token: impl Into<u64>, interest: Interest) {
        let mut event = EpollEvent::new(interest.flags(), token.into());
        // Fails only for a descriptor that was never added.
        let _ = self.epoll.modify(fd, &mut event);
    }

    /// Reports no more of a descriptor.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = self.epoll.delete(fd);
    }

    /// Asks what is ready, without waiting; how many there are to be [taken](Poller::ready).
    pub fn poll(&mut self) -> usize {
        self.epoll.wait(&mut self.events, EpollTimeout::ZERO).unwrap_or(0)
    }

    /// The token of the `index`-th that the last poll found, and whether its descriptor can be written.
    #[inline]
    #[must_use]
    pub fn ready(&self, index: usize) -> (u64, bool) {
        let event = self.events[index];
        (event.data(), event.events().contains(EpollFlags::EPOLLOUT))
    }

    /// Whether the peer of the `index`-th has closed its socket, and not only the direction towards us.
    #[inline]
    #[must_use]
    pub fn has_hung_up(&self, index: usize) -> bool {
        self.events[index].events().contains(EpollFlags::EPOLLHUP)
    }

    /// The descriptor to sleep on: readable when something is ready.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
