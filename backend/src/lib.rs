//! The storage floor: io_uring files and block devices, memory, null.
