//! NVMe/RDMA: the transport between a provider, an engine and a storage backend.
//!
//! | module | what it holds |
//! |---|---|
//! | [`listener`] | what a connection request says, and what it is answered |
//! | [`buffers`] | the memory of a worker: data buffers in three classes, receive slots |
//! | [`request`] | a command under way, and the chunks that its data travel in |
//! | [`queue`] | one connection: slots, credits, and every wait with its own line |
//! | [`resources`] | what all queues of a worker share |
//! | `command` | from a capsule to its response |
//! | `transfer`, `wire` | the chunks: onto the backend and back, RDMA READs and WRITEs |
//! | [`name`] | what completions are called, so that they find their command |

pub mod buffers;
mod command;
pub mod listener;
pub mod name;
pub mod queue;
pub mod request;
pub mod resources;
mod transfer;
mod wire;
