//! A queue of completions: many operations under way on one device, without a future for each.
//!
//! What is submitted bears a number of the caller's choice, under which [`Queue::poll`] returns its end. [`Queue::poll`] also drives the
//! connection, on the caller's own thread; whoever has nothing else to do sleeps in [`Queue::wait`], or calls [`Queue::arm`] and
//! sleeps on [`Queue::descriptor`] beside other descriptors. The connection's thread drives meanwhile.

use crate::driver::Op;
use crate::shared_driver::SharedDriver;
use crate::slot::{Ended, Reply};
use crate::{Buffer, Device, Error, Failed};
use core::fmt;
use core::time::Duration;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_block::{BlockOp, BlockRange};
use nvmf_spin::Spin;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Operations on a device, and their ends in the order in which they came. May be used from many threads at once. What is under way when
/// it is dropped goes on.
pub struct Queue {
    device: Device,
    done: Arc<Done>,
    /// This queue counts among those that drive the connection.
    joined: AtomicBool,
}

/// An operation that has ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The number that it was submitted with.
    pub cookie: u64,
    /// How it ended.
    pub result: Result<(), Error>,
    /// Its buffer; of a read, with what was read. `None` where it had none, where the connection ended and took it along, and where what
    /// was sent goes on with it ([`Error::TimedOut`]).
    pub buffer: Option<Buffer>,
}

/// What an operation's end is reported with.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    cookie: u64,
    what: &'static str,
    offset: u64,
    len: u64,
}

/// The operations that have ended.
pub(crate) struct Done {
    list: Mutex<List>,
    /// Readable while `signalled`.
    event: EventFd,
}

#[derive(Default)]
struct List {
    ended: VecDeque<(Ticket, Ended)>,
    /// Submitted, and not yet returned.
    owed: usize,
    signalled: bool,
    /// Those that drive and will look here afterwards.
    drivers: usize,
}

impl Done {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, ticket: Ticket, ended: Ended) {
        let mut list = self.lock();
        list.ended.push_back((ticket, ended));
        if list.drivers == 0 {
            self.signal(&mut list);
        }
    }

    /// Has the descriptor say whether there is anything.
    fn signal(&self, list: &mut List) {
        let any = !list.ended.is_empty();
        if core::mem::replace(&mut list.signalled, any) != any {
            // Neither can fail: the counter is 0 or 1.
            let _ = if any { self.event.write(1).map(drop) } else { self.event.read().map(drop) };
        }
    }

    fn take(&self, list: &mut List) -> Option<(Ticket, Ended)> {
        let ended = list.ended.pop_front();
        list.owed -= usize::from(ended.is_some());
        if list.drivers == 0 {
            self.signal(list);
        }
        ended
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Queue {
    /// A queue for this device. With [`Device::with_timeout`], each operation ends with [`Error::TimedOut`] after so long.
    ///
    /// # Errors
    /// [`Error::System`] when there is no descriptor left.
    pub fn new(device: Device) -> Result<Self, Error> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_flags(flags).map_err(|errno| Error::System {
            what: "cannot make an event descriptor",
            reason: errno.to_string(),
        })?;
        let done = Arc::new(Done { list: Mutex::default(), event });
        Ok(Self { device, done, joined: AtomicBool::new(false) })
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Operations that were submitted and whose ends were not returned.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.done.lock().owed
    }

    /// Fills the buffer from `offset` on.
    ///
    /// # Errors
    /// [`Error::Misaligned`]; [`Error::Io`] past the end of the device; [`Error::Memory`] when the buffer is another connection's.
    /// Nothing was submitted then, here and below.
    pub fn read(&self, cookie: u64, offset: u64, buffer: Buffer) -> Result<(), Failed> {
        let range = self.device.range("a read", offset, buffer.len() as u64);
        self.with_buffer(cookie, "a read", range, offset, buffer, |range, into| BlockOp::Read { range, into })
    }

    /// Writes the buffer at `offset`; with `fua` it is durable when that ends.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write(&self, cookie: u64, offset: u64, buffer: Buffer, fua: bool) -> Result<(), Failed> {
        let range = self.device.range("a write", offset, buffer.len() as u64);
        let op = |range, from| BlockOp::Write { range, from, fua };
        self.with_buffer(cookie, "a write", range, offset, buffer, op)
    }

    /// As [`Device::compare`].
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn compare(&self, cookie: u64, offset: u64, buffer: Buffer) -> Result<(), Failed> {
        let range = self.device.range("a compare", offset, buffer.len() as u64);
        let op = |range, with| BlockOp::Compare { range, with };
        self.with_buffer(cookie, "a compare", range, offset, buffer, op)
    }

    /// As [`Device::compare_and_write`].
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn compare_and_write(
        &self,
        cookie: u64,
        offset: u64,
        buffer: Buffer,
        fua: bool,
    ) -> Result<(), Failed> {
        let range = self.device.pair_range(offset, buffer.len());
        let op = |range, data| BlockOp::CompareAndWrite { range, data, fua };
        self.with_buffer(cookie, "a compare and write", range, offset, buffer, op)
    }

    /// Makes durable every write whose end was returned before.
    pub fn flush(&self, cookie: u64) {
        self.submit(Ticket { cookie, what: "a flush", offset: 0, len: 0 }, BlockOp::Flush.into(), None);
    }

    /// A hint that the range is not needed.
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn deallocate(&self, cookie: u64, offset: u64, len: u64) -> Result<(), Error> {
        let what = "a deallocation";
        let range = self.device.range(what, offset, len)?;
        self.submit(Ticket { cookie, what, offset, len }, BlockOp::Deallocate { range }.into(), None);
        Ok(())
    }

    /// As [`Device::write_zeroes`].
    ///
    /// # Errors
    /// As [`Queue::read`].
    pub fn write_zeroes(
        &self,
        cookie: u64,
        offset: u64,
        len: u64,
        deallocate: bool,
        fua: bool,
    ) -> Result<(), Error> {
        let what = "a write of zeroes";
        let range = self.device.range(what, offset, len)?;
        let op = BlockOp::WriteZeroes { range, deallocate, fua };
        self.submit(Ticket { cookie, what, offset, len }, op.into(), None);
        Ok(())
    }

    /// As [`Device::copy`].
    ///
    /// # Errors
    /// As [`Queue::read`]; [`Error::Overlap`].
    pub fn copy(&self, cookie: u64, from: u64, to: u64, len: u64, fua: bool) -> Result<(), Error> {
        let op = self.device.copy_op(from, to, len, fua)?;
        self.submit(Ticket { cookie, what: "a copy", offset: to, len }, op, None);
        Ok(())
    }

    fn with_buffer(
        &self,
        cookie: u64,
        what: &'static str,
        range: Result<BlockRange, Error>,
        offset: u64,
        buffer: Buffer,
        op: impl FnOnce(BlockRange, nvmf_block::Buffer) -> BlockOp,
    ) -> Result<(), Failed> {
        let len = buffer.len() as u64;
        let checked = match buffer.is_of(&self.device.shared.pool) {
            true => range,
            false => Err(Error::Memory { bytes: len, reason: "it is another connection's".to_owned() }),
        };
        match checked {
            Ok(range) => {
                let op = op(range, buffer.name());
                self.submit(Ticket { cookie, what, offset, len }, op.into(), Some(buffer));
                Ok(())
            }
            Err(error) => Err(Failed { error, buffer: Some(buffer) }),
        }
    }

    fn submit(&self, ticket: Ticket, op: Op, buffer: Option<Buffer>) {
        self.done.lock().owed += 1;
        self.device.submit(op, buffer, Reply::to_queue(Arc::clone(&self.done), ticket));
    }

    /// An operation that has ended. Where none has yet, makes a turn of the connection on this thread and looks again.
    #[must_use]
    pub fn poll(&self) -> Option<Completion> {
        let mut list = self.done.lock();
        if list.ended.is_empty() && list.owed > 0 {
            list.drivers += 1;
            drop(list);
            if !self.joined.swap(true, SeqCst) {
                self.shared_driver().join();
            }
            self.shared_driver().drive(Instant::now());
            list = self.done.lock();
            list.drivers -= 1;
        }
        let ended = self.done.take(&mut list);
        drop(list);
        ended.map(|(ticket, ended)| self.completion(ticket, ended))
    }

    fn completion(&self, ticket: Ticket, ended: Ended) -> Completion {
        let Ticket { cookie, what, offset, len } = ticket;
        match self.device.result(ended, what, offset, len) {
            Ok(buffer) => Completion { cookie, result: Ok(()), buffer },
            Err(Failed { error, buffer }) => Completion { cookie, result: Err(error), buffer },
        }
    }

    /// The same, as soon as there is one: spins for as long as [`crate::Options::spin`] says, then sleeps. `None`: none came in this
    /// time, or nothing is under way.
    #[must_use]
    pub fn wait(&self, most: Duration) -> Option<Completion> {
        let (start, mut spin) = (Instant::now(), Spin::new());
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            let waited = start.elapsed();
            if waited >= most || self.under_way() == 0 {
                return None;
            }
            if spin.goes_on(waited, self.shared_driver().spin()) {
                spin.pause(waited);
                continue;
            }
            self.arm();
            let timeout = PollTimeout::try_from((most - waited).saturating_add(Duration::from_micros(999)));
            let mut watched = [PollFd::new(self.descriptor(), PollFlags::POLLIN)];
            match poll(&mut watched, timeout.unwrap_or(PollTimeout::MAX)) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => tracing::error!(%errno, "poll failed"),
            }
            spin.on_work(start.elapsed());
        }
    }

    /// Leaves the driving to the connection's thread, for a sleep on [`Queue::descriptor`]. Without it the thread takes over by itself
    /// within two milliseconds.
    pub fn arm(&self) {
        if self.joined.swap(false, SeqCst) {
            self.shared_driver().leave();
        }
    }

    /// Readable while [`Queue::poll`] has something to return. Never read or written by others than the queue.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.done.event.as_fd()
    }

    fn shared_driver(&self) -> &SharedDriver {
        &self.device.shared.shared_driver
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.arm();
    }
}
