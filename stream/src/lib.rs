//! TCP sockets for transports that run on a byte stream, userspace iWARP and NVMe/TCP; and Unix sockets.
//!
//! | module | what it holds |
//! |---|---|
//! | `config` | [`StreamConfig`]: socket options and times |
//! | `stream` | [`Stream`], a non-blocking connection |
//! | `chunk` | [`Chunk`], [`Chunks`]: bytes named to a socket, which stay where they are until it takes them |
//! | `outbox` | [`Outbox`]: frames to be sent on a connection, made of such chunks |
//! | `poller`, `token` | [`Poller`]: epoll, with tokens of the user's own; [`Token`]: those of a transport |
//! | `schedule` | [`ReadSchedule`], [`SendSchedule`]: which sockets are read and written in a turn, and how much |
//! | `listener`, `half_open` | [`listen()`], [`Listener`]; [`HalfOpen`]: connections that have not said what they want |
//! | `socket_file` | [`listen_unix`], [`SocketFile`]: a Unix socket's file, and who may use it |
//! | `machine` | [`machine_of`]: which addresses are one machine, for whoever counts peers |
//! | `lingering` | [`Lingering`]: a closed connection whose last bytes leave |
//! | `tls` | [`TlsAcceptor`], [`TlsConnector`]: TLS 1.3 with pre-shared keys beneath a [`Stream`] |
//! | `deadline`, `deadlines` | [`Deadline`]: a time to come, in a layer that does not read the clock; [`Deadlines`]: in order |
//!
//! The protocol stays with the user, who keeps connections in a table by a `u32` key, and in each turn
//!
//! 1. reads what [`ReadSchedule::next`] names;
//! 2. if [`ReadSchedule::asks_poller`], handles what the [`Poller`] reports, and reads of that what
//!    [`ReadSchedule::is_due`];
//! 3. sends for what [`SendSchedule::next`] names.
//!
//! A socket is read with [`Stream::receive`] while its budget lasts: the payload under way goes straight to its
//! place, what follows into a staging buffer that all connections share. It is written with [`Stream::send`]. A
//! connection whose bytes find no room is [paused](Stream::pause), which holds its peer back. `tests/turns.rs` is a
//! small service of this shape.
//!
//! Contract: nothing blocks, reads a clock or has a thread of its own. A turn allocates nothing. How many connections
//! a peer can hold is bounded by [`HalfOpenLimits`] and by the user's tables.
//!
//! A connection with TLS is a [`Stream`] like any other once its [handshake](Stream::handshake) is over.
//!
//! What it does not do: framing. Of NVMe it knows nothing but the type of a pre-shared key.
#![deny(unsafe_code)]

mod chunk;
mod config;
mod deadline;
mod deadlines;
mod half_open;
mod lingering;
mod listener;
mod machine;
mod outbox;
mod poller;
mod schedule;
mod socket_file;
mod stream;
mod tls;
mod token;

pub use chunk::{CHUNKS_MAX, Chunk, Chunks};
pub use config::StreamConfig;
pub use deadline::Deadline;
pub use deadlines::Deadlines;
pub use half_open::{HalfOpen, HalfOpenLimits};
pub use lingering::Lingering;
pub use listener::{Listener, listen};
pub use machine::machine_of;
pub use outbox::{Frame, Outbox, Region};
pub use poller::{Interest, Poller};
pub use schedule::{ACTIVE_MAX, ReadSchedule, SendSchedule};
pub use socket_file::{SocketFile, listen_unix};
pub use stream::{DIRECT_MIN, Received, Stream};
pub use tls::{FindKey, Secured, TlsAcceptor, TlsConnector, TlsError};
pub use token::Token;
