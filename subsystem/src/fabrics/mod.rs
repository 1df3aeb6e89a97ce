//! Fabrics commands.

mod connect;

pub use connect::{Admission, Admitted, ConnectRequest, DuplicateHost, Refusal};
