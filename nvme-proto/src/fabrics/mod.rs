//! Fabrics commands (NVMe Base, "Fabrics Command Set"; opcode 7Fh on any queue).

pub mod auth;
pub mod connect;
pub mod discovery;
pub mod property;

use crate::opcode::{AdminOpcode, FabricsType};
use crate::sqe::Sqe;

/// The command's type (FCTYPE, byte 4), if it is a Fabrics command.
#[must_use]
pub fn fabrics_type(sqe: &Sqe) -> Option<FabricsType> {
    (sqe.opcode == AdminOpcode::FABRICS.0).then(|| FabricsType(sqe.nsid.get() as u8))
}

/// A Fabrics command of this type, all else zero.
#[must_use]
pub fn command(fctype: FabricsType) -> Sqe {
    let mut sqe = Sqe::new(AdminOpcode::FABRICS.0);
    sqe.nsid = u32::from(fctype.0).into();
    sqe
}

/// Disconnect: ends an I/O queue. Its record format is 0.
#[must_use]
pub fn disconnect() -> Sqe {
    command(FabricsType::DISCONNECT)
}

/// The record format (bytes 41:40) of Connect and Disconnect.
#[must_use]
pub fn record_format(sqe: &Sqe) -> u16 {
    sqe.cdw10.get() as u16
}
