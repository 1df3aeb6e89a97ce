//! epoll, level-triggered: what is not handled is reported again.

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Events taken from the kernel at once.
const EVENTS: usize = 64;

/// Who a descriptor belongs to; a key of the provider's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    QueuePair(u32),
    Pending(u32),
    Listener(u32),
    Lingering(u32),
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, key) = match self {
            Self::QueuePair(key) => (0, key),
            Self::Pending(key) => (1, key),
            Self::Listener(key) => (2, key),
            Self::Lingering(key) => (3, key),
        };
        kind << 32 | u64::from(key)
    }

    fn unpack(word: u64) -> Self {
        let key = word as u32;
        match word >> 32 {
            0 => Self::QueuePair(key),
            1 => Self::Pending(key),
            2 => Self::Listener(key),
            _ => Self::Lingering(key),
        }
    }
}

/// What to report. Errors and hang-ups are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Errors only.
    Nothing,
    /// The peer's end of stream, but not its bytes.
    HangUp,
    Read,
    Write,
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

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Epoll,
    events: [EpollEvent; EVENTS],
    ready: usize,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, events: [EpollEvent::empty(); EVENTS], ready: 0 })
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(interest.flags(), token.pack()))?)
    }

    pub(crate) fn change(&self, fd: impl AsFd, token: Token, interest: Interest) {
        let mut event = EpollEvent::new(interest.flags(), token.pack());
        // Fails only for a descriptor that was never added.
        let _ = self.epoll.modify(fd, &mut event);
    }

    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = self.epoll.delete(fd);
    }

    /// Asks what is ready, without waiting; how many there are to be [taken](Poller::ready).
    pub(crate) fn poll(&mut self) -> usize {
        self.ready = self.epoll.wait(&mut self.events, EpollTimeout::ZERO).unwrap_or(0);
        self.ready
    }

    /// The `index`-th that the last poll found, and whether it can be written.
    pub(crate) fn ready(&self, index: usize) -> (Token, bool) {
        let event = self.events[index];
        (Token::unpack(event.data()), event.events().contains(EpollFlags::EPOLLOUT))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_packing() {
        for token in [Token::QueuePair(7), Token::Pending(u32::MAX), Token::Listener(0), Token::Lingering(9)]
        {
            assert_eq!(Token::unpack(token.pack()), token);
        }
    }
}
