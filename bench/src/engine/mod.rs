//! I/O engines: backends that a job's thread can wait on.
//!
//! | module | contents |
//! |---|---|
//! | `local` | files, block devices, memory and null disks; jobs that name the same disk share it |
//! | `remote` | a remote namespace, driven by the job's own thread |
//! | `asynchronous` | a remote namespace through the async interface |
//! | `nbd` | an NBD export |

mod asynchronous;
mod local;
mod nbd;
mod remote;

pub use asynchronous::Async;
pub use local::{Local, open_disk};
pub use nbd::Nbd;
pub use remote::OwnThread;

use crate::cpu::Thread;
use core::time::Duration;
use nvmf_block::{Backend, DeviceId};

/// A backend that a thread can wait on.
pub trait Engine: Backend {
    /// The device that the job uses.
    fn device(&self) -> DeviceId;

    /// Sleeps until there may be something to poll, for at most `most`.
    fn wait(&mut self, most: Duration);

    /// The threads that work for it, besides the job's.
    fn threads(&self) -> Vec<Thread> {
        Vec::new()
    }

    /// Disconnects from the server, if there is one.
    fn close(&mut self) {}
}

/// Why an engine could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A disk cannot be opened.
    #[error(transparent)]
    Open(#[from] nvmf_backend::OpenError),
    /// The `io_uring` instance cannot be created.
    #[error(transparent)]
    Devices(#[from] nvmf_backend::DevicesError),
    /// A file cannot be created or extended.
    #[error("cannot create or extend {path}")]
    LayOut {
        /// Path of the file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The target cannot be used.
    #[error(transparent)]
    Remote(#[from] nvmf_initiator::Error),
    /// The namespace is attached as a disk, and the job would write past it.
    #[error(
        "{namespace} is attached on this machine ({holder}): a job that writes to it destroys what is on the \
         disk; detach it first, or set allow_mounted_write=1"
    )]
    Attached {
        /// The subsystem and the namespace.
        namespace: String,
        /// Where it is attached, in words.
        holder: String,
    },
    /// Whether the namespace is attached cannot be found out.
    #[error("cannot find out whether the namespace is attached to this machine")]
    Attachment(#[source] std::io::Error),
    /// An NBD export cannot be used.
    #[error("cannot use the NBD export {url}")]
    Nbd {
        /// URL of the export.
        url: String,
        /// The cause.
        source: std::io::Error,
    },
    /// An option is missing or has a value that the engine cannot use.
    #[error("{0}")]
    Option(String),
}
