//! NVMe/RDMA: the transport between a provider, an engine and a storage backend.
//!
//! | module | what it holds |
//! |---|---|
//! | [`listener`] | what a connection request says, and what it is answered |
//! | [`buffers`] | the data buffers of a worker, in classes, and who may have how many |
//! | [`owners`] | the hosts and associations that queues belong to |
//! | [`receives`] | receive slots |
//! | [`request`] | a command under way, and the chunks that its data travel in |
//! | [`queue`] | one connection: slots, credits, and a list for every kind of wait |
//! | [`resources`] | what all queues of a worker share |
//! | `command` | from a capsule to its response |
//! | `transfer`, `wire` | the chunks: onto the backend and back, RDMA READs and WRITEs |
//! | [`name`] | what completions are called, so that they find their command |

pub mod buffers;
mod command;
pub mod listener;
pub mod name;
pub mod owners;
pub mod queue;
pub mod receives;
pub mod request;
pub mod resources;
mod transfer;
mod wire;
