//! A device for code that blocks: bytes at any place, and a stream of them.
//!
//! Every call runs in [`block_on`]. What is read and written need not be whole blocks; whoever reads or writes a few bytes at a
//! time puts a [`std::io::BufReader`] or [`std::io::BufWriter`] in between.

use crate::{Connection, Error, Options, block_on};
use nvme_proto::Nsid;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};

/// A device with a position, for code that blocks.
#[derive(Debug, Clone)]
pub struct Device {
    device: crate::Device,
    position: u64,
}

impl Device {
    /// Connects, and opens a namespace.
    ///
    /// # Errors
    /// As [`Connection::connect`] and [`Connection::open`].
    pub fn connect(options: Options, nsid: Nsid) -> Result<Self, Error> {
        let connection = block_on(Connection::connect(options))?;
        Ok(Self::new(connection.open(nsid)?))
    }

    /// A device, from its start on.
    #[must_use]
    pub fn new(device: crate::Device) -> Self {
        Self { device, position: 0 }
    }

    /// The device beneath.
    #[must_use]
    pub fn device(&self) -> &crate::Device {
        &self.device
    }

    /// Its size in bytes, as the controller shows it now.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.device.geometry().bytes()
    }

    /// Reads bytes from `offset` on, up to the end of the device; how many.
    ///
    /// # Errors
    /// As [`crate::Device::read`], as [`io::Error`].
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = until_end(self.size(), offset, into.len());
        block_on(self.device.read_exact_at(offset, &mut into[..len]))?;
        Ok(len)
    }

    /// Reads bytes from `offset` on, or none.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] behind the end of the device; else as [`Device::read_at`].
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        if until_end(self.size(), offset, into.len()) < into.len() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(block_on(self.device.read_exact_at(offset, into))?)
    }

    /// Writes bytes from `offset` on, up to the end of the device; how many. See [`crate::Device::write_all_at`] for blocks
    /// that are written in part.
    ///
    /// # Errors
    /// [`ErrorKind::StorageFull`] at the end of the device; else as [`crate::Device::write_all_at`], as [`io::Error`].
    pub fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let len = until_end(self.size(), offset, from.len());
        if len == 0 && !from.is_empty() {
            return Err(ErrorKind::StorageFull.into());
        }
        block_on(self.device.write_all_at(offset, &from[..len]))?;
        Ok(len)
    }

    /// Writes bytes from `offset` on, or none where they lead past the end of the device.
    ///
    /// # Errors
    /// [`ErrorKind::StorageFull`] behind the end of the device; else as [`Device::write_at`].
    pub fn write_all_at(&self, from: &[u8], offset: u64) -> io::Result<()> {
        if until_end(self.size(), offset, from.len()) < from.len() {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(block_on(self.device.write_all_at(offset, from))?)
    }

    /// Makes durable every write that ended before this began.
    ///
    /// # Errors
    /// As [`crate::Device::flush`], as [`io::Error`].
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(block_on(self.device.flush())?)
    }
}

/// How many of the bytes at that offset lie before the end.
pub(crate) fn until_end(size: u64, offset: u64, len: usize) -> usize {
    usize::try_from(size.saturating_sub(offset)).map_or(len, |left| left.min(len))
}

/// Where a seek leads.
pub(crate) fn seek(size: u64, position: u64, to: SeekFrom) -> io::Result<u64> {
    let at = match to {
        SeekFrom::Start(at) => Some(at),
        SeekFrom::End(by) => size.checked_add_signed(by),
        SeekFrom::Current(by) => position.checked_add_signed(by),
    };
    at.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a seek to before the start of the device"))
}

impl Read for Device {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.read_at(into, self.position)?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Write for Device {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let len = self.write_at(from, self.position)?;
        self.position += len as u64;
        Ok(len)
    }

    /// Makes durable what was written: [`Device::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Seek for Device {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = seek(self.size(), self.position, to)?;
        Ok(self.position)
    }
}
