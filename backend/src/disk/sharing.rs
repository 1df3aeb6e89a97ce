//! Blocks that files share (reflink): which files may, and the threads that have the kernel do it.
//!
//! `io_uring` has no such command, and the system call waits for the file systems' locks and for the source's data to be
//! written. So a thread makes it, one for each file system that a worker's disks are on: a file system that hangs holds
//! nothing up but what is on it.
#![expect(
    unsafe_code,
    reason = "an ioctl with a pointer in its argument has no safe wrapper; see the SAFETY comment"
)]

use super::{Inner, Kind, Mail, Note};
use nvmf_block::DeviceId;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Where the blocks of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The file system, by the number of its device.
    file_system: u64,
    /// Bytes in its blocks, of which only whole ones are shared: a power of two.
    unit: u32,
}

impl Place {
    /// `None` where the file system says nothing of use.
    pub(super) fn of(file: &File, metadata: &Metadata) -> Option<Self> {
        let unit = u32::try_from(rustix::fs::fstatvfs(file).ok()?.f_frsize).ok()?;
        unit.is_power_of_two().then_some(Self { file_system: metadata.dev(), unit })
    }

    /// Blocks of `block_size` bytes that can only be shared together, between this file and another.
    pub(crate) fn unit_with(self, other: Self, block_size: u32) -> u32 {
        (self.unit.max(other.unit) / block_size).max(1)
    }
}

/// What is to be shared, in bytes.
#[derive(Debug)]
pub(crate) struct Share {
    /// The operation's number: what [`Note::Shared`] says.
    pub(crate) index: usize,
    /// What the worker calls the disk that is to have them.
    pub(crate) device: DeviceId,
    /// The disk whose blocks are shared. It stays open.
    pub(crate) source: Arc<Inner>,
    /// Where in it.
    pub(crate) from: u64,
    /// The disk that is to have them.
    pub(crate) to: Arc<Inner>,
    /// Where in it.
    pub(crate) at: u64,
    /// How many.
    pub(crate) len: u64,
}

/// The threads of one worker. They end when this is dropped and what they have is done.
#[derive(Debug)]
pub(crate) struct Sharers {
    mail: Arc<Mail>,
    of: Vec<(u64, Sender<Share>)>,
}

impl Sharers {
    /// None yet. What they have done arrives in `mail`.
    pub(crate) fn new(mail: &Arc<Mail>) -> Self {
        Self { mail: Arc::clone(mail), of: Vec::new() }
    }

    /// Has a thread do it. The first on a file system starts that.
    ///
    /// # Errors
    /// There can be no thread, or it is no file.
    pub(crate) fn share(&mut self, share: Share) -> io::Result<()> {
        let Kind::File(file) = &share.to.kind else { return Err(io::ErrorKind::Unsupported.into()) };
        let place = file.place.ok_or(io::ErrorKind::Unsupported)?.file_system;
        let at = match self.of.iter().position(|(of, _)| *of == place) {
            Some(at) => at,
            None => {
                self.of.push((place, start(Arc::clone(&self.mail))?));
                self.of.len() - 1
            }
        };
        self.of[at].1.send(share).map_err(|_| io::Error::other("the thread has ended"))
    }
}

fn start(mail: Arc<Mail>) -> io::Result<Sender<Share>> {
    let (sender, shares) = channel::<Share>();
    std::thread::Builder::new().name("share".to_owned()).spawn(move || {
        for share in shares {
            let result =
                carry_out(&share).map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
            let (index, device) = (share.index, share.device);
            // The disks are closed before anyone is told.
            drop(share);
            mail.put(device, Note::Shared { index, result });
        }
    })?;
    Ok(sender)
}

fn carry_out(share: &Share) -> io::Result<()> {
    let (Kind::File(source), Kind::File(to)) = (&share.source.kind, &share.to.kind) else {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    };
    let range = libc::file_clone_range {
        src_fd: source.file.as_raw_fd().into(),
        src_offset: share.from,
        src_length: share.len,
        dest_offset: share.at,
    };
    // SAFETY: the argument is of the layout that the kernel reads, and lives until the call is over.
    unsafe { ioctl::clone_range(to.file.as_raw_fd(), &raw const range) }?;
    Ok(())
}

mod ioctl {
    // FICLONERANGE.
    nix::ioctl_write_ptr!(clone_range, 0x94, 13, libc::file_clone_range);
}
