//! Targets: a host's whole conversation with a worker, over NVMe/TCP and NVMe/RDMA; and a worker's with our host.
//!
//! | module | what it holds |
//! |---|---|
//! | `target` | the worker, its simulated disks and a virtual clock |
//! | `neighbour` | an honest host beside the hostile one |
//! | `command` | commands made of the input |
//! | `ledger` | what a connection may be answered |
//! | `tcp`, `tcp_host` | the conversation over sockets on the loopback interface, and one connection of it |
//! | `rdma`, `rdma_host` | the conversation over the loopback fabric, and one queue pair of it |
//! | `host`, `relay` | our host's conversation with a worker, and what harms the worker's PDUs on their way |

mod command;
mod host;
mod ledger;
mod neighbour;
mod rdma;
mod rdma_host;
mod relay;
mod target;
mod tcp;
mod tcp_host;

pub use host::conversation_host;
pub use rdma::conversation_rdma;
pub use tcp::conversation_tcp;

/// Events of one input, at the most: longer ones find nothing that shorter ones do not.
const EVENTS_MAX: usize = 300;
