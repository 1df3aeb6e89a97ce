//! The entry of the disk that this process serves.

use super::{EXTENSIONS, Registry, owner};
use crate::attach::fence::FenceFile;
use crate::attach::nbd::kernel;
use crate::attach::ublk;
use anyhow::{Context, Result};
use nvmf_attached::Attachment;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::PathBuf;

/// The entry of the disk that this process serves.
#[derive(Debug)]
pub(in crate::attach) struct Claim {
    pub(super) registry: Registry,
    pub(super) id: String,
    pub(super) lock: File,
}

impl Claim {
    /// What the entry is called.
    pub(in crate::attach) fn id(&self) -> &str {
        &self.id
    }

    /// The record of what is under way at the target.
    pub(in crate::attach) fn fence(&self) -> Result<FenceFile> {
        FenceFile::open(&self.registry.path(&self.id, "fence"))
    }

    /// Where this server is asked.
    pub(in crate::attach) fn answers(&self) -> PathBuf {
        self.registry.path(&self.id, "ask")
    }

    /// Where this server's log goes.
    pub(in crate::attach) fn log(&self) -> PathBuf {
        self.registry.log(&self.id)
    }

    /// Writes the entry. Readers see the whole of it, or what was there before.
    pub(in crate::attach) fn write(&self, disk: &Attachment) -> Result<()> {
        let (file, draft) = (self.registry.path(&self.id, "json"), self.registry.path(&self.id, "draft"));
        std::fs::write(&draft, serde_json::to_vec_pretty(disk)?)
            .and_then(|()| std::fs::rename(&draft, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Takes away the device of a disk that was to be taken over.
    pub(in crate::attach) fn clear_device_away(&self, disk: &Attachment) {
        ublk::clear_away(disk.mark);
        kernel::clear_away(&owner(disk.mark));
    }

    /// Removes the entry, and leaves its outcome for those who wait for this process's end. The lock goes with the
    /// process. The log of a failure that nobody heard of otherwise stays, until the next disk is attached.
    pub(in crate::attach) fn end(self, outcome: &Result<()>, keep_log: bool) {
        let said = match outcome {
            Ok(()) => "flushed".to_owned(),
            Err(error) => format!("failed: {}", crate::print::chain(error)),
        };
        // Whoever waits hears of a server that was killed if this cannot be written, which is the safe side.
        let mut lock = &self.lock;
        let _ = lock.rewind().and_then(|()| lock.write_all(said.as_bytes()));
        for extension in EXTENSIONS {
            if extension != "log" || outcome.is_ok() || !keep_log {
                let _ = std::fs::remove_file(self.registry.path(&self.id, extension));
            }
        }
        self.keep();
    }

    /// Leaves the entry to the next server, from this process's end on: then all of it is over.
    pub(in crate::attach) fn keep(self) {
        std::mem::forget(self.lock);
    }
}
