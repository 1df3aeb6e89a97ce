//! A namespace as a block device.

use crate::connection::Shared;
use crate::engine::TIMED_OUT;
use crate::operation::Operation;
use crate::{Buffer, Connection, Error, Failed};
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::{BlockOp, BlockRange, Geometry};
use std::sync::Arc;

/// A namespace as a block device. Cheap to clone; may be used from many threads at once.
///
/// Offsets and lengths are bytes, multiples of the block size, and of any size: what is longer than one command may move is split.
/// The futures need no runtime. One that is dropped leaves its operation to finish; whether it took effect is not known then.
#[derive(Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
    nsid: Nsid,
    /// As it was when it was opened.
    geometry: Geometry,
    timeout: Option<Duration>,
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
        let closed = Failed { error: Error::Closed, buffer: None };
        self.end().await?.ok_or(closed)
    }

    /// Waits for its end.
    pub(crate) async fn end(self) -> Result<Option<Buffer>, Failed> {
        let Self { device, operation, what, offset, len } = self;
        match operation.await {
            Some((Ok(()), buffer)) => Ok(buffer),
            Some((Err(source), buffer)) => {
                let error = match buffer.as_ref().and_then(Buffer::refused) {
                    Some(reason) => Error::Memory { bytes: len, reason },
                    None if source == TIMED_OUT => Error::TimedOut { what, offset, len },
                    None => Error::Io { what, offset, len, source },
                };
                Err(Failed { error, buffer })
            }
            None => Err(Failed { error: device.shared.closed(), buffer: None }),
        }
    }
}

impl Device {
    pub(crate) fn new(shared: Arc<Shared>, nsid: Nsid, geometry: Geometry) -> Self {
        Self { shared, nsid, geometry, timeout: None }
    }

    /// The same device, of which each operation fails with [`Error::TimedOut`] that has not ended after so long. It goes on all
    /// the same, with its buffer, and may take effect.
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
        let snapshot = self.shared.lock_snapshot();
        if snapshot.foreign.iter().any(|(nsid, _)| *nsid == self.nsid) {
            return self.geometry;
        }
        let now = snapshot.namespaces.iter().find(|namespace| namespace.nsid == self.nsid);
        now.map_or(self.geometry, |namespace| namespace.geometry)
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
        self.with_buffer("a read", |range, into| BlockOp::Read { range, into }, offset, buffer).await
    }

    /// Writes the buffer at `offset`, without a copy; with one, when the buffer is another connection's.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        let op = |range, from| BlockOp::Write { range, from, fua: false };
        self.with_buffer("a write", op, offset, buffer).await
    }

    /// The same, durable when it ends (force unit access).
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_fua(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        let op = |range, from| BlockOp::Write { range, from, fua: true };
        self.with_buffer("a write", op, offset, buffer).await
    }

    /// Succeeds if the device holds the buffer's bytes at `offset`; else [`Error::Io`] with
    /// [`BlockError::CompareFailed`](crate::BlockError::CompareFailed).
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn compare(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Failed> {
        self.with_buffer("a compare", |range, with| BlockOp::Compare { range, with }, offset, buffer).await
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

    pub(crate) fn range(&self, what: &'static str, offset: u64, len: u64) -> Result<BlockRange, Error> {
        let block_size = self.geometry.block_size;
        let size = u64::from(block_size);
        if !offset.is_multiple_of(size) || !len.is_multiple_of(size) {
            return Err(Error::Misaligned { what, offset, len, block_size });
        }
        Ok(BlockRange::new(offset / size, len / size))
    }

    async fn with_buffer(
        &self,
        what: &'static str,
        op: impl FnOnce(BlockRange, nvmf_block::Buffer) -> BlockOp,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Buffer, Failed> {
        let range = match self.range(what, offset, buffer.len() as u64) {
            Ok(range) => range,
            Err(error) => return Err(Failed { error, buffer: Some(buffer) }),
        };
        if buffer.is_of(&self.shared.pool) {
            let op = op(range, buffer.name());
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
        match self.begin(what, op, offset, Some(own)).buffer().await {
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
        Ok(self.begin("a read", op, offset, Some(buffer)))
    }

    /// Submits a write that is waited for later.
    pub(crate) fn begin_write(&self, offset: u64, buffer: Buffer) -> Result<Begun<'_>, Error> {
        let range = self.range("a write", offset, buffer.len() as u64)?;
        let op = BlockOp::Write { range, from: buffer.name(), fua: false };
        Ok(self.begin("a write", op, offset, Some(buffer)))
    }

    fn begin(&self, what: &'static str, op: BlockOp, offset: u64, buffer: Option<Buffer>) -> Begun<'_> {
        let len = op.range().map_or(0, |range| range.blocks * u64::from(self.geometry.block_size));
        let mut operation = Operation::new(&self.shared.shared_driver, self.nsid, op, buffer, self.timeout);
        operation.begin();
        Begun { device: self, operation, what, offset, len }
    }

    async fn run(&self, what: &'static str, op: BlockOp, offset: u64) -> Result<(), Error> {
        self.begin(what, op, offset, None).end().await.map(drop).map_err(Error::from)
    }
}
