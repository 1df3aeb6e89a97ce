//! The NVMe host engine: the initiator side, without I/O.
