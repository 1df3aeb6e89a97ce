//! What does the work: backends that a job's thread can wait on.
//!
//! | file | what it is |
//! |---|---|
//! | `local` | files, block devices, memory, nothing: one disk, shared by the jobs that name it |
//! | `remote` | a namespace over RDMA, on the job's own thread |
//! | `asynchronous` | the same by the async interface |
//! | `nbd` | an NBD export |

mod asynchronous;
mod local;
mod nbd;
mod remote;

pub use asynchronous::Async;
pub use local::{Local, open_disk};
pub use nbd::Nbd;
pub use remote::OwnThread;

use core::time::Duration;
use nvmf_block::{Backend, DeviceId};

/// A backend that a thread can wait on.
pub trait Engine: Backend {
    /// The device that the job uses.
    fn device(&self) -> DeviceId;

    /// Sleeps until there may be something to poll, at most so long.
    fn wait(&mut self, most: Duration);

    /// Ends in order what must be.
    fn close(&mut self) {}
}

/// An engine cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A disk cannot be opened.
    #[error(transparent)]
    Open(#[from] nvmf_backend::OpenError),
    /// The ring cannot be made.
    #[error(transparent)]
    Devices(#[from] nvmf_backend::DevicesError),
    /// A file cannot be laid out.
    #[error("cannot lay out {path}")]
    LayOut {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The target cannot be used.
    #[error(transparent)]
    Remote(#[from] nvmf_initiator::Error),
    /// An NBD export cannot be used.
    #[error("cannot use the NBD export {url}")]
    Nbd {
        /// Which.
        url: String,
        /// Why.
        source: std::io::Error,
    },
    /// An option is missing or does not fit.
    #[error("{0}")]
    Option(String),
}
