//! Remote NVMe namespaces as a userspace block device.
//!
//! ```no_run
//! use nvmf_initiator::{Connection, HostIdentity, Options, block_on};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = HostIdentity::of_this_machine_or_new()?;
//! let subsystem = "nqn.2026-11.com.example:disk1".parse()?;
//! let options = Options::with_host("192.0.2.1:4420".parse()?, subsystem, host);
//! block_on(async {
//!     let connection = Connection::connect(options).await?;
//!     let disk = connection.open(connection.namespaces()[0].nsid)?;
//!     let mut block = vec![0; disk.geometry().block_size as usize];
//!     disk.read_to(0, &mut block).await?;
//!     block[0] ^= 1;
//!     disk.write_from(0, &block).await?;
//!     disk.flush().await?;
//!     connection.close().await;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! | item | what it is |
//! |---|---|
//! | [`Options`], [`HostIdentity`] | whom to connect to, as whom, with how many queues |
//! | [`Uri`] | the same in one line |
//! | [`Connection`] | a connection to a controller, with a thread of its own for reconnects, keep-alive and events |
//! | [`ConnectionState`], [`Mismatch`] | its state; how a namespace differs from the disk that was opened |
//! | [`Change`], [`Changes`], [`Statistics`] | what happens to a connection, and what it has done |
//! | [`Device`] | a namespace: reads, writes and the rest as futures that need no runtime |
//! | [`Buffer`], [`SharedBuffer`] | memory that is registered once and moved without copies |
//! | [`queue`] | many operations under way, without a future for each |
//! | [`blocking`] | the same for code that blocks: `Read`, `Write`, `Seek`, and bytes at any place |
//! | `Stream` | tokio's `AsyncRead`, `AsyncWrite` and `AsyncSeek`, with the feature `tokio` |
//! | [`Error`], [`Failed`], [`Effect`] | what went wrong; the buffer back; whether anything may have been done |
//! | [`reservation`] | who may write to a disk: keys, reservations, and the fence of a standby |
//! | [`identify`] | all that the controller says of itself and of a namespace |
//! | [`raw`] | any Admin or I/O command, with a bounded amount of data |
//! | [`discover`], [`Discovery`] | what a target exports, once or whenever it changes |
//! | [`RemoteBackend`] | the same without a thread: submit, flush and poll on the caller's own, for the least latency |
//! | [`TransportOptions`] | NVMe/RDMA or NVMe/TCP |
//! | [`PathOptions`], [`PathPolicy`], [`PathStatus`] | further paths to the same subsystem; which of them is used; how they are |
//! | [`driver`] | the engine beneath: no thread, no clock |
//! | [`transport`] | what carries commands: NVMe/RDMA over a provider, NVMe/TCP over sockets |
//! | [`block_on`] | runs a future where there is no runtime, and drives what it waits for: close to [`RemoteBackend`] in latency |
//!
//! Contract: memory belongs to a command from its submission to its end. A future that is dropped leaves what was sent to finish on
//! memory that the connection holds, before anything later that changes the same blocks or reads them; nothing more is sent. A device
//! stays the disk that it was when it was opened: no command goes to another that takes its place. What the controller may reach is one command's bytes, under a key of its own, for as long as
//! the command runs, where the RDMA provider has such keys.
//!
//! Several paths ([`Options::paths`]): I/O goes on as long as one of them is there. What was in flight on one that is lost goes on
//! over the others, writes when the controller that was lost can no longer carry them out.
#![forbid(unsafe_code)]

mod address;
pub mod backend;
mod block_on;
pub mod blocking;
mod buffer;
mod caller;
mod connection;
mod copy;
mod device;
mod discover;
pub mod driver;
mod engine;
mod error;
pub mod identify;
mod identity;
mod log;
mod mailbox;
mod operation;
mod options;
pub mod queue;
pub mod raw;
pub mod reservation;
mod shared_driver;
mod sleep;
mod slot;
mod state;
mod statistics;
#[cfg(feature = "tokio")]
mod stream;
mod thread;
pub mod transport;
mod uri;
mod wakes;

pub use address::AddressSource;
pub use backend::RemoteBackend;
pub use block_on::block_on;
pub use buffer::{Buffer, SharedBuffer};
pub use connection::{Connection, ConnectionState};
pub use device::Device;
pub use discover::{Discovery, DiscoveryChange, discover};
pub use driver::{AdminReply, Impacted, NamespaceState, PathPolicy, PathStatus, SharedFences};
pub use error::{Effect, Error, Failed};
pub use identity::HostIdentity;
pub use nvme_proto::admin::log_page::AnaState;
pub use nvme_proto::fabrics::discovery::{DiscoveryEntry, TransportType};
pub use nvme_proto::{Cntlid, HostId, Nqn, Nsid};
pub use nvmf_auth as auth;
pub use nvmf_block::{BlockError, Geometry};
pub use nvmf_host::admin::AdminCommand;
pub use nvmf_host::{
    AssociationError, ControllerInfo, DiscoveryLog, Mismatch, Namespace, Outcome, QueueFailure, Status,
};
pub use nvmf_rdma_any::{Preference, VerbsOptions};
pub use nvmf_tls as tls;
pub use options::{AuthenticationOptions, Options, PathOptions, SecretsSource, TransportOptions};
pub use state::{Change, Changes};
pub use statistics::Statistics;
#[cfg(feature = "tokio")]
pub use stream::Stream;
pub use transport::{TcpOptions, TlsOptions};
pub use uri::Uri;
