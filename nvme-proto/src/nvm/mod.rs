//! Commands of the NVM command set.

pub mod copy;
pub mod dsm;
pub mod fused;
pub mod reservation;
pub mod rw;

pub use copy::CopyCommand;
pub use dsm::{DatasetManagement, DsmRange};
pub use rw::ReadWrite;
