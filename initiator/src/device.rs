//! A namespace as a block device.

use crate::connection::Shared;
use crate::operation::Operation;
use crate::{Buffer, Error};
use nvme_proto::Nsid;
use nvmf_block::{BlockOp, BlockRange, Geometry};
use std::sync::Arc;

/// Bytes that the copying forms move at once.
const COPY_LEN: usize = 1 << 20;

/// A namespace as a block device. Cheap to clone; may be used from many threads at once.
///
/// Offsets and lengths are bytes, multiples of the block size, and of any size: what is longer than one command may move is split.
/// The futures need no runtime. One that is dropped leaves its operation to finish; whether it took effect is not known then.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
    nsid: Nsid,
    /// As it was when it was opened.
    geometry: Geometry,
}

impl Device {
    pub(crate) fn new(shared: Arc<Shared>, nsid: Nsid, geometry: Geometry) -> Self {
        Self { shared, nsid, geometry }
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
    /// [`Error::Misaligned`], [`Error::Io`], [`Error::Memory`], and what ended the connection.
    pub async fn read(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Error> {
        let range = self.range("a read", offset, buffer.len() as u64)?;
        let op = |into| BlockOp::Read { range, into };
        self.with_buffer("a read", op, offset, buffer).await
    }

    /// Writes the buffer at `offset`, without a copy; with one, when the buffer is another connection's.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Error> {
        self.write_with(offset, buffer, false).await
    }

    /// The same, durable when it ends (force unit access).
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_fua(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Error> {
        self.write_with(offset, buffer, true).await
    }

    async fn write_with(&self, offset: u64, buffer: Buffer, fua: bool) -> Result<Buffer, Error> {
        let range = self.range("a write", offset, buffer.len() as u64)?;
        let op = |from| BlockOp::Write { range, from, fua };
        self.with_buffer("a write", op, offset, buffer).await
    }

    /// Succeeds if the device holds the buffer's bytes at `offset`; else [`Error::Io`] with
    /// [`nvmf_block::BlockError::CompareFailed`].
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn compare(&self, offset: u64, buffer: Buffer) -> Result<Buffer, Error> {
        let range = self.range("a compare", offset, buffer.len() as u64)?;
        let op = |with| BlockOp::Compare { range, with };
        self.with_buffer("a compare", op, offset, buffer).await
    }

    /// Reads into memory of any kind, by way of a buffer.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn read_to(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.range("a read", offset, into.len() as u64)?;
        for (part, at) in into.chunks_mut(COPY_LEN).zip((offset..).step_by(COPY_LEN)) {
            self.read(at, self.buffer(part.len())?).await?.copy_to(part);
        }
        Ok(())
    }

    /// Writes memory of any kind, by way of a buffer.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn write_from(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.range("a write", offset, from.len() as u64)?;
        for (part, at) in from.chunks(COPY_LEN).zip((offset..).step_by(COPY_LEN)) {
            let mut buffer = self.buffer(part.len())?;
            buffer.copy_from(part);
            self.write(at, buffer).await?;
        }
        Ok(())
    }

    /// Makes durable every write that ended before this began.
    ///
    /// # Errors
    /// [`Error::Io`], and what ended the connection.
    pub async fn flush(&self) -> Result<(), Error> {
        self.run("a flush", BlockOp::Flush, 0, 0, None).await.map(drop)
    }

    /// A hint that the range is not needed.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn deallocate(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range("a deallocation", offset, len)?;
        self.run("a deallocation", BlockOp::Deallocate { range }, offset, len, None).await.map(drop)
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
        self.run("a write of zeroes", op, offset, len, None).await.map(drop)
    }

    /// Makes the device read the range without transferring it: an error says that it cannot be read.
    ///
    /// # Errors
    /// As [`Device::read`].
    pub async fn verify(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range("a verification", offset, len)?;
        self.run("a verification", BlockOp::Verify { range }, offset, len, None).await.map(drop)
    }

    fn range(&self, what: &'static str, offset: u64, len: u64) -> Result<BlockRange, Error> {
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
        op: impl FnOnce(nvmf_block::Buffer) -> BlockOp,
        offset: u64,
        buffer: Buffer,
    ) -> Result<Buffer, Error> {
        let len = buffer.len() as u64;
        if buffer.is_of(&self.shared.pool) {
            let op = op(buffer.name());
            return self.run(what, op, offset, len, Some(buffer)).await?.ok_or(Error::Closed);
        }
        // Its region number names other memory here: the data go through a buffer of this connection's.
        let own = self.buffer(buffer.len())?;
        let op = op(own.name());
        let reads = matches!(op, BlockOp::Read { .. });
        if !reads {
            buffer.copy_into(&own);
        }
        let own = self.run(what, op, offset, len, Some(own)).await?.ok_or(Error::Closed)?;
        if reads {
            own.copy_into(&buffer);
        }
        Ok(buffer)
    }

    async fn run(
        &self,
        what: &'static str,
        op: BlockOp,
        offset: u64,
        len: u64,
        buffer: Option<Buffer>,
    ) -> Result<Option<Buffer>, Error> {
        match Operation::new(&self.shared.shared_driver, self.nsid, op, buffer).await {
            Some((Ok(()), buffer)) => Ok(buffer),
            Some((Err(source), buffer)) => Err(match buffer.and_then(|buffer| buffer.refused()) {
                Some(reason) => Error::Memory { bytes: len, reason },
                None => Error::Io { what, offset, len, source },
            }),
            None => Err(self.shared.closed()),
        }
    }
}
