//! What happens to a command, whatever carries it: from its capsule through buffers and devices to its response.
//!
//! | module | what it holds |
//! |---|---|
//! | [`transport`] | [`transport::Transport`]: the seam to what carries commands |
//! | [`buffers`] | the data buffers of a worker, in classes, and who may have how many |
//! | [`owners`] | the machines, hosts and associations that queues belong to |
//! | [`accounts`] | what is kept for each of them |
//! | [`anonymous`] | queues that anyone may have: which makes way for others |
//! | [`request`] | a command under way, and the chunks that its data travel in |
//! | [`queue`] | one connection: requests, credits, and a list for every kind of wait |
//! | [`resources`] | what all queues of a worker share |
//! | [`share`] | a Copy whose blocks are shared instead of read and written |
//! | `shares` | how much of what queues share a queue and a machine may have |
//! | `command` | from a capsule to its response |
//! | `connect` | what the registry says to a Connect |
//! | `transfer`, `wire` | the chunks: onto the backend and back, pulls and pushes |
//! | [`place`] | where a command is in its worker |

pub mod accounts;
pub mod anonymous;
pub mod buffers;
mod command;
mod connect;
pub mod limited;
pub mod owners;
pub mod place;
pub mod queue;
pub mod request;
pub mod resources;
pub mod share;
pub(crate) mod shares;
mod transfer;
pub mod transport;
mod wire;
