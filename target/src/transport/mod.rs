//! Transports: from capsules to bytes on a wire.

pub mod rdma;
