//! Files for disks. They are made by threads of their own: a copy takes as long as it takes, and nobody waits for it but
//! who asked for it.

use super::{Client, Daemon};
use crate::control::protocol::{Answer, Fault};
use crate::control::request::disk::{Content, DiskAnswer, DiskClone, DiskCreate, DiskRequest};
use nvmf_backend::disk::image::{self, Cloned, ImageError, Space};
use std::io::ErrorKind;
use std::path::Path;
use std::thread::{Builder, JoinHandle};

/// Files that are made at one time.
const MAKING_MAX: usize = 4;

impl Daemon {
    /// Makes a file for a disk, and answers when it is there.
    pub(super) fn on_disk(&mut self, request: DiskRequest, client: Client) {
        self.making.retain(|thread| !thread.is_finished());
        if self.making.len() >= MAKING_MAX {
            let message =
                format!("{MAKING_MAX} files are being made: try again when one of them is complete");
            return client.answer(Answer::refused(Fault::refused(message)));
        }
        match spawn(request, client) {
            Ok(thread) => self.making.push(thread),
            // Whoever waits sees the socket close.
            Err(error) => tracing::error!("there is no thread to make a file: {error}"),
        }
    }
}

fn spawn(request: DiskRequest, client: Client) -> std::io::Result<JoinHandle<()>> {
    let make = move || {
        let made = match &request {
            DiskRequest::Create(create) => create_disk(create),
            DiskRequest::Clone(clone) => clone_disk(clone, || !client.is_gone()),
        };
        client.answer(made.and_then(|made| super::answer(&made)).unwrap_or_else(Answer::refused));
    };
    Builder::new().name("make-disk".into()).spawn(make)
}

fn create_disk(DiskCreate { path, size, preallocate }: &DiskCreate) -> Result<DiskAnswer, Fault> {
    let bytes = nvmf_config::size::parse(size).map_err(|error| Fault::refused(format!("size: {error}")))?;
    let (space, content) = match preallocate {
        true => (Space::Allocated, Content::Preallocated),
        false => (Space::Sparse, Content::Sparse),
    };
    image::create(place(path)?, bytes, space).map_err(|error| fault(&error))?;
    Ok(DiskAnswer { path: path.clone(), bytes, content })
}

fn clone_disk(clone: &DiskClone, go_on: impl Fn() -> bool) -> Result<DiskAnswer, Fault> {
    let DiskClone { source, path, copy } = clone;
    let path = place(path)?;
    let content = match image::clone(absolute(source)?, path, *copy, go_on).map_err(|error| fault(&error))? {
        Cloned::Shared => Content::Shared,
        Cloned::Copied => Content::Copied,
    };
    let bytes = path.metadata().map_or(0, |metadata| metadata.len());
    Ok(DiskAnswer { path: clone.path.clone(), bytes, content })
}

/// Where a disk may be made.
fn place(path: &str) -> Result<&Path, Fault> {
    let path = absolute(path)?;
    if path.starts_with("/dev") {
        // It would be in memory, and gone with the next boot.
        return Err(Fault::refused(format!("{} is not made: files are not made below /dev", path.display())));
    }
    Ok(path)
}

/// The target's folder is not that of who asks.
fn absolute(path: &str) -> Result<&Path, Fault> {
    match Path::new(path).is_absolute() {
        true => Ok(Path::new(path)),
        false => Err(Fault::refused(format!("\"{path}\" is no absolute path: begin it with /"))),
    }
}

fn fault(error: &ImageError) -> Fault {
    let text = crate::daemon::disks::error_text(error);
    let ImageError::Os { path, source } = error else { return Fault::refused(text) };
    let folder = path.parent().unwrap_or(Path::new("/"));
    Fault::refused(match source.kind() {
        // ProtectSystem= of the unit, in most cases.
        ErrorKind::ReadOnlyFilesystem => {
            format!("{text}; under systemd, the folder must be in ReadWritePaths= of the unit, as /srv is")
        }
        ErrorKind::NotFound => format!("{text}; make the folder {} first", folder.display()),
        _ => text,
    })
}
