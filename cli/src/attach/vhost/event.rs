//! The eventfds by which a driver and its device tell each other that there is something in a ring: the kick and the
//! call.
//!
//! They are the frontend's, which may have made them block, and left them full: nobody waits for that here. One that
//! fills its call in the moment between the look and the write stops its own disk only.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// One of them.
#[derive(Debug)]
pub(super) struct Event {
    file: File,
    may_block: bool,
}

impl From<File> for Event {
    fn from(file: File) -> Self {
        let may_block = !fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        Self { file, may_block }
    }
}

impl Event {
    /// Tells the other side. A counter that is full has told it already.
    pub(super) fn tell(&self) {
        if self.is(PollFlags::POLLOUT) {
            let _ = nix::unistd::write(&self.file, &1_u64.to_ne_bytes());
        }
    }

    /// Takes back what the other side has told.
    pub(super) fn heard(&self) {
        if self.is(PollFlags::POLLIN) {
            let _ = nix::unistd::read(&self.file, &mut [0; 8]);
        }
    }

    /// Whether it can be read or written without waiting.
    fn is(&self, ready: PollFlags) -> bool {
        let look = || {
            let mut looked = [PollFd::new(self.file.as_fd(), ready)];
            poll(&mut looked, PollTimeout::ZERO).is_ok()
                && looked[0].revents().is_some_and(|events| events.contains(ready))
        };
        !self.may_block || look()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn event_that_blocks_is_not_waited_for() {
        for flags in [EfdFlags::empty(), EfdFlags::EFD_NONBLOCK] {
            let theirs = EventFd::from_value_and_flags(0, flags).unwrap();
            let event = Event::from(File::from(theirs.as_fd().try_clone_to_owned().unwrap()));
            let (tell, told) = channel();
            std::thread::spawn(move || {
                event.heard();
                event.tell();
                theirs.write(u64::MAX - 2).unwrap();
                event.tell();
                // It had counted before it was full.
                let _ = tell.send(theirs.read().unwrap());
            });
            let counted = told.recv_timeout(Duration::from_secs(20)).expect("it does not wait");
            assert_eq!(counted, u64::MAX - 1);
        }
    }
}
