//! Keep Alive (NVMe Base, "Keep Alive command").

use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

/// Keep Alive. It has no fields: that it arrives is what it says.
#[must_use]
pub fn keep_alive() -> Sqe {
    Sqe::new(AdminOpcode::KEEP_ALIVE.0)
}
