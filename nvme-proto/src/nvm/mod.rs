//! Commands of the NVM command set.

pub mod dsm;
pub mod rw;

pub use dsm::{DatasetManagement, DsmRange};
pub use rw::ReadWrite;
