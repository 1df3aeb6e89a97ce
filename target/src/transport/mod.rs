//! What carries commands.

pub mod rdma;
pub mod tcp;
