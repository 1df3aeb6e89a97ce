//! NVMe/RDMA: the transport between a provider, an engine and a storage floor.
//!
//! | module | what it holds |
//! |---|---|
//! | [`listener`] | what a connection request says, and what it is answered |
//! | [`buffers`] | the memory of a worker: data buffers in three classes, receive slots |
//! | [`request`] | a command under way, and the chunks that its data travel in |
//! | [`queue`] | one connection: slots, credits, and every wait with its own line |
//! | [`transfer`] | how a command moves from one state to the next |
//! | [`name`] | what completions are called, so that they find their command |

pub mod buffers;
pub mod listener;
pub mod name;
pub mod queue;
pub mod request;
pub mod transfer;
