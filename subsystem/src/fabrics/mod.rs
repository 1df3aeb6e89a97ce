//! Fabrics commands.

mod connect;
mod property;
mod refusal;

pub use connect::{Admission, Admitted, ConnectRequest, DuplicateHost};
pub(crate) use connect::{CONNECT_LEN, Role};
pub(crate) use property::{Change, Properties, VERSION};
pub use refusal::{Refusal, RefusalReason};

use crate::status;
use nvme_proto::fabrics::record_format;
use nvme_proto::opcode::FabricsType;
use nvme_proto::{Sqe, Status};

/// Disconnect ends one I/O queue; the Admin queue ends with its connection.
pub(crate) fn check_disconnect(sqe: &Sqe, is_admin: bool) -> Result<(), Status> {
    if is_admin {
        Err(Status::INVALID_QUEUE_TYPE.with_dnr())
    } else if record_format(sqe) != 0 {
        Err(status::CONNECT_INCOMPATIBLE_FORMAT)
    } else {
        Ok(())
    }
}

/// The status of a Fabrics command that the queue does not have: its host need not authenticate, or the type is
/// reserved.
pub(crate) fn unsupported(fctype: FabricsType) -> Status {
    match fctype {
        FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE => status::INVALID_OPCODE,
        _ => status::INVALID_FIELD,
    }
}
