//! Giving the machine a disk.

mod nbd;
mod registry;
