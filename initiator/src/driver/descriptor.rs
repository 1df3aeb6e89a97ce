//! One descriptor to sleep on for several paths.

use super::path::Path;
use crate::transport::Transport;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Readable when the transport of any path is. With one path, its transport's own descriptor does.
#[derive(Default)]
pub(super) struct Descriptor {
    epoll: Option<Epoll>,
    /// By path, which transport of it is watched: each replacement has another descriptor.
    watched: Vec<Option<(u32, OwnedFd)>>,
}

impl Descriptor {
    /// Watches the transports that the paths have now. `false`: the system has no descriptor left, and nothing is to be slept on.
    pub(super) fn watch<T: Transport>(&mut self, paths: &[Path<T>]) -> bool {
        if paths.len() < 2 {
            return true;
        }
        self.watched.resize_with(paths.len(), || None);
        let changed = |(path, watched): (&Path<T>, &Option<(u32, OwnedFd)>)| {
            watched.as_ref().is_none_or(|(replaced, _)| *replaced != path.replaced)
        };
        if !paths.iter().zip(&self.watched).any(changed) {
            return true;
        }
        let watched = self.try_watch(paths);
        if let Err(errno) = watched {
            tracing::error!(%errno, "cannot watch the connections");
        }
        watched.is_ok()
    }

    fn try_watch<T: Transport>(&mut self, paths: &[Path<T>]) -> nix::Result<()> {
        let epoll = match &self.epoll {
            Some(epoll) => epoll,
            None => self.epoll.insert(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?),
        };
        for (path, watched) in paths.iter().zip(&mut self.watched) {
            if watched.as_ref().is_some_and(|(replaced, _)| *replaced == path.replaced) {
                continue;
            }
            // A transport that was replaced is closed, and ours is the last descriptor of what it watched.
            if let Some((_, old)) = watched.take() {
                epoll.delete(old)?;
            }
            let Some(fd) = path.transport.fd() else { continue };
            // The number of a descriptor that is closed may be another's: a copy keeps it apart.
            let copy = fd.try_clone_to_owned().map_err(|_| nix::errno::Errno::EMFILE)?;
            epoll.add(&copy, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
            *watched = Some((path.replaced, copy));
        }
        Ok(())
    }

    pub(super) fn fd<'a, T: Transport>(&'a self, paths: &'a [Path<T>]) -> Option<BorrowedFd<'a>> {
        match (paths, &self.epoll) {
            ([path], _) => path.transport.fd(),
            (_, epoll) => epoll.as_ref().map(|epoll| epoll.0.as_fd()),
        }
    }
}
