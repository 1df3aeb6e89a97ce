//! A namespace as a block device.

use crate::connection::{self, Shared};
use crate::driver::{AdminReply, Failure, Op, QueueKind, Recipient, Unanswered};
use crate::engine::TIMED_OUT;
use crate::mailbox::{Request, Times};
use crate::operation::Operation;
use crate::slot::{Ended, Reply};
use crate::{Buffer, Connection, Effect, Error, Failed};
use core::fmt;
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockOp, BlockRange, Geometry};
use nvmf_host::Namespace;
use nvmf_host::admin::AdminCommand;
use std::sync::Arc;

/// A namespace as a block device. Cheap to clone; may be used from many threads at once.
///
/// Offsets and lengths are bytes, multiples of the block size, and of any size: what is longer than one command may move is split.
/// The futures need no runtime. One that is dropped leaves what of its operation is in flight to finish, and nothing more of it is sent;
/// whether it took effect is not known then. Later operations of this connection that change the same blocks, or read them, come after
/// what is in flight of it.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
    nsid: Nsid,
    /// As it was when it was opened.
    geometry: Geometry,
    timeout: Option<Duration>,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shared, nsid, .. } = self;
        f.debug_struct("Device").field("nqn", &shared.options.nqn).field("nsid", nsid).finish_non_exhaustive()
    }
}

/// An operation that goes on without being waited for.
pub(crate) struct Begun<'a> {
    device: &'a Device,
    operation: Operation<'a>,
    what: &'static str,
    offset: u64,
    len: u64,
}

impl Begun<'_> {
    /// Waits for its end, and gives back the buffer that it has.
    async fn buffer(self) -> Result<Buffer, Failed> {
        let closed = Failed { error: Error::Closed { effect: Effect::Unknown }, buffer: None };
        self.end().await?.ok_or(closed)
    }

    /// Waits for its end.
    pub(crate) async fn end(self) -> Result<Option<Buffer>, Failed> {
        let Self { device, operation, what, offset, len } = self;
        device.result(operation.await, what, offset, len)
    }
}

impl Device {
    pub(crate) fn new(shared: Arc<Shared>, nsid: Nsid, geometry: Geometry) -> Self {
        Self { shared, nsid, geometry, timeout: None }
    }

    /// The same device, of which each operation fails with [`Error::TimedOut`] that has not ended after so long. What was not
    /// sent of it by then is not sent any more; [`Error::effect`] says whether anything was. What is in flight goes on, with its buffer,
    /// and may take effect, but not later than anything that is asked for afterwards: operations of this connection that change the same
    /// blocks, or read them, wait until it has ended. So a write may be done again at once, and a read tells for good what became of it.
    /// Reservation commands, raw commands and Identify have that time for all their tries together, and are not sent any more either;
    /// one that was sent goes on, and holds nothing up.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self.clone() }
    }

    /// Its number.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Its geometry, as the controller shows it now: it may have grown since it was opened, and its rights may have changed. Its block size
    /// stays.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.shown(|namespace| namespace.geometry).unwrap_or(self.geometry)
    }

    /// What the controller says of it now: identifiers, sizes, limits of one command. `None` while it does not show the disk
    /// that was opened. [`Device::identify`] has the rest.
    #[must_use]
    pub fn namespace(&self) -> Option<Namespace> {
        self.shown(Namespace::clone)
    }

    /// Something of what the controller says of it now; `None` while it does not show the disk that was opened.
    fn shown<T>(&self, of: impl FnOnce(&Namespace) -> T) -> Option<T> {
        let snapshot = self.shared.lock_snapshot();
        if snapshot.foreign.iter().any(|(nsid, _)| *nsid == self.nsid) {
            return None;
        }
        snapshot.namespaces.iter().find(|namespace| namespace.nsid == self.nsid).map(of)
    }

    /// Whether the controller copies ([`Device::copy`]).
    #[must_use]
    pub fn copies(&self) -> bool {
        self.namespace().is_some_and(|namespace| namespace.limits.copy_blocks > 0)
    }

    /// The most bytes of a [`Device::compare_and_write`], in each half; 0 where the controller has no such operation.
    #[must_use]
    pub fn compare_and_write_max(&self) -> u32 {
        let blocks = self.namespace().map_or(0, |namespace| namespace.limits.compare_and_write_blocks);
        blocks.saturating_mul(self.geometry.block_size).min(nvmf_block::COMPARE_AND_WRITE_MAX as u32)
    }

    /// Bytes of a block.
    pub(crate) fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// The connection that it came from.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection { shared: Arc::clone(&self.shared) }
    }

    /// That the namespace is the disk that was opened, as far as is known.
    pub(crate) fn check_identity(&self) -> Result<(), Error> {
        let snapshot = self.shared.lock_snapshot();
        match snapshot.foreign.iter().find(|(nsid, _)| *nsid == self.nsid) {
            Some((nsid, mismatch)) => Err(Error::Foreign { nsid: *nsid, mismatch: *mismatch }),
            None => Ok(()),
        }
    }

    /// Until when what begins now is waited for; `None`: without end.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.timeout.map(|timeout| self.shared.shared_driver.now().saturating_add(timeout))
    }

    /// Sends a command for the namespace, to no other disk than the one that was opened: it waits as an operation does,
    /// and goes to no disk that is in its place by then.
    pub(crate) async fn ask(
        &self,
        what: &'static str,
        queue: QueueKind,
        command: AdminCommand,
        times: Times,
    ) -> Result<AdminReply, Error> {
        self.check_identity()?;
        let effect = connection::effect(queue, command.command.sqe().opcode);
        let asked = self.shared.ask(queue, Recipient::OpenedDisk, command, times).await;
        asked.map_err(|unanswered| match (unanswered, unanswered.effect(effect)) {
            (Unanswered::NotSent, effect) => self.check_identity().err().unwrap_or(Error::Io {
                what,
                offset: 0,
                len: 0,
                effect,
                source: BlockError::Gone,
            }),
            (Unanswered::Lost | Unanswered::Closed, effect) => self.shared.closed(effect),
            (Unanswered::TimedOut { .. }, effect) => Error::TimedOut { what, offset: 0, len: 0, effect },
        })
    }

    /// Memory for operations, registered once and used again.
    ///
    /// # Errors
    /// [`Error::Memory`] when there is none left.
    pub fn buffer(&self, len: usize) -> Result<Buffer, Error> {
        self.shared.pool.take(len)
    }

    /// Fills the buffer from `offset` on, without a copy; with one, when the buffer is another connection's.
    ///
    /// # Errors
    /// [`Error::Misaligned`], [`Error::Io`], [`Error::Memory`], and what ended the connection; with the buffer.
    pub async fn read(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        let range = self.range("a read", offset, buffer.len() as u64);
        self.with_buffer("a read", range, |range, into| BlockOp::Read { range, into }, offset, buffer).await
    }

    /// Writes the buffer at `offset`, without a copy; with one, when the buffer is another connection's.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        let range = self.range("a write", offset, buffer.len() as u64);
        let op = |range, from| BlockOp::Write { range, from, fua: false };
        self.with_buffer("a write", range, op, offset, buffer).await
    }

    /// The same, durable when it ends (force unit access).
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_fua(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        let range = self.range("a write", offset, buffer.len() as u64);
        let op = |range, from| BlockOp::Write { range, from, fua: true };
        self.with_buffer("a write", range, op, offset, buffer).await
    }

    /// Succeeds if the device holds the buffer's bytes at `offset`; else [`Error::Io`] with
    /// [`BlockError::CompareFailed`](crate::BlockError::CompareFailed).
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn compare(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        let range = self.range("a compare", offset, buffer.len() as u64);
        let op = |range, with| BlockOp::Compare { range, with };
        self.with_buffer("a compare", range, op, offset, buffer).await
    }

    /// Writes the second half of the buffer at `offset` if the device holds the first half there, else fails with
    /// [`BlockError::CompareFailed`](crate::BlockError::CompareFailed). Nobody's write, of whatever host, comes in between: what
    /// locks and counters that several hosts share are made of. At most [`Device::compare_and_write_max`] bytes in each half, which are
    /// whole blocks. With `fua` what is written is durable when it ends.
    ///
    /// It is never sent twice. When its connection is lost before its response is there it fails with
    /// [`BlockError::Aborted`](crate::BlockError::Aborted), and whether it was written is not known ([`crate::Effect::Unknown`]): a
    /// read of the place tells.
    ///
    /// # Errors
    /// As [`Device::read`]; [`Error::TooLong`]. [`BlockError::Unsupported`](crate::BlockError::Unsupported) where the controller has no
    /// such operation; nothing was done then.
    pub async fn compare_and_write(&self, offset: u64, buffer: Buffer, fua: bool) -> Result<Buffer, Failed> {
        let range = self.pair_range(offset, buffer.len());
        let op = |range, data| BlockOp::CompareAndWrite { range, data, fua };
        self.with_buffer("a compare and write", range, op, offset, buffer).await
    }

    /// Has the controller copy `len` bytes from `from` to `to`, which do not overlap, within the namespace: no byte of them comes here.
    /// What is longer than the controller copies at once is split; after an error any part may be copied. With `fua` the copy is durable
    /// when it ends. [`Device::copies`] says beforehand whether the controller can.
    ///
    /// # Errors
    /// As [`Device::read`]; [`Error::Overlap`]. [`BlockError::Unsupported`](crate::BlockError::Unsupported) where the controller does not
    /// copy; nothing was done then, and reading and writing does the same.
    pub async fn copy(&self, from: u64, to: u64, len: u64, fua: bool) -> Result<(), Error> {
        let op = self.copy_op(from, to, len, fua)?;
        self.run("a copy", op, to).await
    }

    /// Makes durable every write that ended before this began.
    ///
    /// # Errors
    /// [`Error::Io`], and what ended the connection.
    pub async fn flush(&self) -> Result<(), Error> {
        self.run("a flush", BlockOp::Flush, 0).await
    }

    /// A hint that the range is not needed.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn deallocate(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range("a deallocation", offset, len)?;
        self.run("a deallocation", BlockOp::Deallocate { range }, offset).await
    }

    /// Makes the range read as zeroes; with `deallocate` its space may be given back.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        deallocate: bool,
        fua: bool,
    ) -> Result<(), Error> {
        let range = self.range("a write of zeroes", offset, len)?;
        let op = BlockOp::WriteZeroes { range, deallocate, fua };
        self.run("a write of zeroes", op, offset).await
    }

    /// Makes the device read the range without transferring it: an error says that it cannot be read.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn verify(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range("a verification", offset, len)?;
        self.run("a verification", BlockOp::Verify { range }, offset).await
    }

    /// What an operation's end says to whoever waited for it.
    pub(crate) fn result(
        &self,
        ended: Ended,
        what: &'static str,
        offset: u64,
        len: u64,
    ) -> Result<Option<Buffer>, Failed> {
        match ended {
            Ok((Ok(()), buffer)) => Ok(buffer),
            Ok((Err(Failure { error: source, effect }), buffer)) => {
                let error = match buffer.as_ref().and_then(Buffer::refused) {
                    Some(reason) => Error::Memory { bytes: len, reason },
                    None if source == TIMED_OUT => Error::TimedOut { what, offset, len, effect },
                    None => Error::Io { what, offset, len, effect, source },
                };
                Err(Failed { error, buffer })
            }
            Err(effect) => Err(Failed { error: self.shared.closed(effect), buffer: None }),
        }
    }

    /// Submits an operation, of whose end `reply` is told.
    pub(crate) fn submit(&self, op: Op, buffer: Option<Buffer>, reply: Reply) {
        let shared_driver = &self.shared.shared_driver;
        let until = self.timeout.map(|timeout| shared_driver.now().saturating_add(timeout));
        shared_driver.submit(Request { nsid: self.nsid, op, buffer, reply, until }, false);
    }

    /// The range of a copy.
    ///
    /// # Errors
    /// As [`Device::range`]; [`Error::Overlap`].
    pub(crate) fn copy_op(&self, from: u64, to: u64, len: u64, fua: bool) -> Result<Op, Error> {
        let (source, range) = (self.range("a copy", from, len)?, self.range("a copy", to, len)?);
        if source.overlaps(range) {
            return Err(Error::Overlap { from, to, len });
        }
        Ok(Op::Copy { range, from: source.start, fua })
    }

    /// The range of a Compare and Write with a buffer of so many bytes: that of each half.
    ///
    /// # Errors
    /// As [`Device::range`]; [`Error::TooLong`].
    pub(crate) fn pair_range(&self, offset: u64, buffer_len: usize) -> Result<BlockRange, Error> {
        let (what, len, block_size) = ("a compare and write", buffer_len as u64, self.geometry.block_size);
        self.check_aligned(what, offset, len)?;
        if !(len / u64::from(block_size)).is_multiple_of(2) {
            return Err(Error::Misaligned { what, offset, len, block_size: 2 * block_size });
        }
        let (len, max) = (len / 2, self.compare_and_write_max());
        let range = self.range(what, offset, len)?;
        if max > 0 && len > max.into() {
            return Err(Error::TooLong { what, len, max });
        }
        Ok(range)
    }

    /// The blocks that these bytes are.
    ///
    /// # Errors
    /// [`Error::Misaligned`]; as [`Device::check_end`].
    pub(crate) fn range(&self, what: &'static str, offset: u64, len: u64) -> Result<BlockRange, Error> {
        self.check_aligned(what, offset, len)?;
        // It may have grown since it was opened; one that is smaller is another disk.
        if offset.checked_add(len).is_none_or(|end| end > self.geometry.bytes()) {
            self.check_end(what, offset, len)?;
        }
        let size = u64::from(self.geometry.block_size);
        Ok(BlockRange::new(offset / size, len / size))
    }

    fn check_aligned(&self, what: &'static str, offset: u64, len: u64) -> Result<(), Error> {
        let block_size = self.geometry.block_size;
        let size = u64::from(block_size);
        if !offset.is_multiple_of(size) || !len.is_multiple_of(size) {
            return Err(Error::Misaligned { what, offset, len, block_size });
        }
        Ok(())
    }

    /// Fails where these bytes lead past the end of the device. Where the controller does not show it at this moment only the operation
    /// can tell, which waits until it does.
    ///
    /// # Errors
    /// [`Error::Io`] with [`BlockError::OutOfRange`]; nothing was begun.
    pub(crate) fn check_end(&self, what: &'static str, offset: u64, len: u64) -> Result<(), Error> {
        let bytes = self.shown(|namespace| namespace.geometry.bytes()).unwrap_or(u64::MAX);
        if offset.checked_add(len).is_some_and(|end| end <= bytes) {
            return Ok(());
        }
        Err(Error::Io { what, offset, len, effect: Effect::Nothing, source: BlockError::OutOfRange })
    }

    async fn with_buffer(
        &self,
        what: &'static str,
        range: Result<BlockRange, Error>,
        op: impl FnOnce(BlockRange, nvmf_block::Buffer) -> BlockOp,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Buffer, Failed> {
        let range = match range {
            Ok(range) => range,
            Err(error) => return Err(Failed { error, buffer: Some(buffer) }),
        };
        if buffer.is_of(&self.shared.pool) {
            let op = op(range, buffer.name()).into();
            return self.begin(what, op, offset, Some(buffer)).buffer().await;
        }
        // Its region number names other memory here: the data go through a buffer of this connection's.
        let own = match self.buffer(buffer.len()) {
            Ok(own) => own,
            Err(error) => return Err(Failed { error, buffer: Some(buffer) }),
        };
        let op = op(range, own.name());
        let reads = matches!(op, BlockOp::Read { .. });
        if !reads {
            buffer.copy_into(&own);
        }
        match self.begin(what, op.into(), offset, Some(own)).buffer().await {
            Ok(own) if reads => own.copy_into(&buffer),
            Ok(_) => {}
            Err(Failed { error, .. }) => return Err(Failed { error, buffer: Some(buffer) }),
        }
        Ok(buffer)
    }

    /// Submits a read that is waited for later.
    pub(crate) fn begin_read(&self, offset: u64, buffer: Buffer) -> Result<Begun<'_>, Error> {
        let range = self.range("a read", offset, buffer.len() as u64)?;
        let op = BlockOp::Read { range, into: buffer.name() };
        Ok(self.begin("a read", op.into(), offset, Some(buffer)))
    }

    /// Submits a write that is waited for later.
    pub(crate) fn begin_write(&self, offset: u64, buffer: Buffer) -> Result<Begun<'_>, Error> {
        let range = self.range("a write", offset, buffer.len() as u64)?;
        let op = BlockOp::Write { range, from: buffer.name(), fua: false };
        Ok(self.begin("a write", op.into(), offset, Some(buffer)))
    }

    fn begin(&self, what: &'static str, op: Op, offset: u64, buffer: Option<Buffer>) -> Begun<'_> {
        let len = op.range().map_or(0, |range| range.blocks * u64::from(self.geometry.block_size));
        let mut operation = Operation::new(&self.shared.shared_driver, self.nsid, op, buffer, self.timeout);
        operation.begin();
        Begun { device: self, operation, what, offset, len }
    }

    async fn run(&self, what: &'static str, op: impl Into<Op>, offset: u64) -> Result<(), Error> {
        self.begin(what, op.into(), offset, None).end().await.map(drop).map_err(Error::from)
    }
}
