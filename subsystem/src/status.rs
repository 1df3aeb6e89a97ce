//! Statuses. The only place where a [`BlockError`] becomes a [`Status`].

use nvme_proto::Status;
use nvmf_block::BlockError;

/// Statuses that a retry of the same command would only see again.
macro_rules! final_statuses {
    ($($name:ident)*) => { $(pub(crate) const $name: Status = Status::$name.with_dnr();)* };
}

final_statuses! {
    INVALID_OPCODE INVALID_FIELD OPERATION_DENIED RESERVATION_CONFLICT COMMAND_ID_CONFLICT INVALID_NAMESPACE COMMAND_SEQUENCE_ERROR
    DATA_SGL_LENGTH_INVALID SGL_DESCRIPTOR_TYPE_INVALID SGL_OFFSET_INVALID INVALID_SGL_COUNT
    NAMESPACE_WRITE_PROTECTED LBA_OUT_OF_RANGE ATOMIC_WRITE_UNIT_EXCEEDED
    COMMAND_SIZE_LIMIT_EXCEEDED INCOMPATIBLE_NAMESPACE_OR_FORMAT FAST_COPY_NOT_POSSIBLE OVERLAPPING_IO_RANGE
    INVALID_LOG_PAGE
    FEATURE_NOT_SAVEABLE FEATURE_NOT_CHANGEABLE FEATURE_NOT_NAMESPACE_SPECIFIC IO_COMMAND_SET_COMBINATION_REJECTED
    ASYNC_EVENT_LIMIT_EXCEEDED CONNECT_INCOMPATIBLE_FORMAT CONNECT_INVALID_PARAMETERS CONNECT_INVALID_HOST
}

/// What the device was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The status for a failure of a device. Without "do not retry" where the same command may succeed later, or on another
/// path.
pub(crate) fn of_block_error(error: BlockError, direction: Direction) -> Status {
    match error {
        BlockError::OutOfRange => LBA_OUT_OF_RANGE,
        BlockError::ReadOnly => NAMESPACE_WRITE_PROTECTED,
        BlockError::NoSpace => Status::CAPACITY_EXCEEDED.with_dnr(),
        BlockError::CompareFailed => Status::COMPARE_FAILURE.with_dnr(),
        BlockError::Unsupported => INVALID_OPCODE,
        BlockError::NotCompared => Status::UNRECOVERED_READ_ERROR,
        BlockError::Medium => match direction {
            Direction::Read => Status::UNRECOVERED_READ_ERROR,
            Direction::Write => Status::WRITE_FAULT,
        },
        // A retried flush would succeed, and the host would take for durable what is lost.
        BlockError::CacheLost => Status::INTERNAL_ERROR.with_dnr(),
        // The device was detached. Another one may get its NSID, and a command that was meant for this one must not
        // reach it.
        BlockError::Gone => INVALID_NAMESPACE,
        // Hosts try it on another path, or again; never is it taken for a fault of the medium.
        BlockError::Path => Status::INTERNAL_PATH_ERROR,
        BlockError::Aborted => Status::ABORTED_BY_REQUEST,
        BlockError::ReservationConflict => RESERVATION_CONFLICT,
        // As the drive gave it.
        BlockError::Device(status) => Status::from_field(status << 1),
        BlockError::BadBuffer | BlockError::Os(_) => Status::INTERNAL_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_error_has_its_status() {
        use Direction::{Read, Write};
        for (error, direction, code, retry) in [
            (BlockError::OutOfRange, Read, (0, 0x80), false),
            (BlockError::BadBuffer, Read, (0, 0x06), true),
            (BlockError::ReadOnly, Write, (0, 0x20), false),
            (BlockError::NoSpace, Write, (0, 0x81), false),
            (BlockError::Medium, Read, (2, 0x81), true),
            (BlockError::Medium, Write, (2, 0x80), true),
            (BlockError::CacheLost, Write, (0, 0x06), false),
            (BlockError::CacheLost, Read, (0, 0x06), false),
            (BlockError::CompareFailed, Read, (2, 0x85), false),
            (BlockError::NotCompared, Write, (2, 0x81), true),
            (BlockError::Unsupported, Write, (0, 0x01), false),
            (BlockError::Gone, Read, (0, 0x0b), false),
            (BlockError::Path, Read, (3, 0x00), true),
            (BlockError::Path, Write, (3, 0x00), true),
            (BlockError::Aborted, Write, (0, 0x07), true),
            (BlockError::ReservationConflict, Write, (0, 0x83), false),
            (BlockError::Os(5), Write, (0, 0x06), true),
            (BlockError::Device(0x4287), Read, (2, 0x87), false),
            (BlockError::Device(0x0370), Write, (3, 0x70), true),
        ] {
            let status = of_block_error(error, direction);
            assert_eq!((status.sct(), status.sc()), code, "{error:?}");
            assert_eq!(!status.dnr(), retry, "{error:?}");
        }
    }
}
