//! What a completion's status means to whoever reads and writes blocks: the only place.

use nvme_proto::Status;
use nvmf_block::BlockError;

const GENERIC: u8 = 0;
const MEDIA: u8 = 2;
const PATH: u8 = 3;

/// What a failed I/O command means to a block device's user. The status itself says more: keep it for messages.
#[must_use]
pub fn block_error(status: Status) -> BlockError {
    let is = |others: &[Status]| others.iter().any(|other| status.is(*other));
    if is(&[Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED]) {
        BlockError::CompareFailed
    } else if is(&[Status::LBA_OUT_OF_RANGE]) {
        BlockError::OutOfRange
    } else if is(&[Status::NAMESPACE_WRITE_PROTECTED, Status::WRITE_TO_READ_ONLY_RANGE]) {
        BlockError::ReadOnly
    } else if is(&[Status::CAPACITY_EXCEEDED]) {
        BlockError::NoSpace
    } else if is(&[Status::INVALID_NAMESPACE, Status::KEEP_ALIVE_EXPIRED]) {
        BlockError::Gone
    } else if is(&[Status::INVALID_OPCODE, Status::INVALID_FIELD, Status::COMMAND_SIZE_LIMIT_EXCEEDED]) {
        BlockError::Unsupported
    } else if is(ABORTED) {
        BlockError::Aborted
    } else if is(&[Status::UNRECOVERED_ERROR]) {
        BlockError::Medium
    } else if is(&[Status::ACCESS_DENIED, Status::OPERATION_DENIED]) {
        BlockError::Os(EACCES)
    } else if is(&[Status::RESERVATION_CONFLICT]) {
        BlockError::ReservationConflict
    } else {
        match status.sct() {
            MEDIA => BlockError::Medium,
            PATH => BlockError::Gone,
            _ => BlockError::Os(EIO),
        }
    }
}

/// The same of a command that is not issued again, as a second one may find what the first has done (Compare and Write, a
/// reservation's). That the way to the disk failed is nothing that it says of the disk: whoever takes a lock so would think that it is
/// gone for good.
#[must_use]
pub fn block_error_of_single(status: Status) -> BlockError {
    let is_of_way = status.sct() == PATH || status.is(Status::KEEP_ALIVE_EXPIRED);
    if is_of_way && !is_without_effect(status) { BlockError::Aborted } else { block_error(status) }
}

/// Whether the same command may succeed when it is issued again: the failure is one that time may cure, and the status does not say
/// "do not retry". What it refused for the command's own sake will be refused again.
#[must_use]
pub fn is_retryable(status: Status) -> bool {
    if status.dnr() || status.is_success() {
        return false;
    }
    match status.sct() {
        GENERIC => RETRYABLE.iter().any(|other| status.is(*other)),
        PATH => !status.is(Status::ANA_PERSISTENT_LOSS),
        _ => false,
    }
}

/// Whether the failure is of the path, or of how it leads to the namespace (ANA): on another one the command may succeed.
#[must_use]
pub fn is_of_path(status: Status) -> bool {
    status.sct() == PATH && !status.dnr()
}

/// Whether the command was refused before anything of it was done, for a reason that time or another path may cure: also what must not
/// be done twice may be issued again.
#[must_use]
pub fn is_without_effect(status: Status) -> bool {
    WITHOUT_EFFECT.iter().any(|other| status.is(*other))
}

/// Whether the command waits for something to end that time alone ends: an ANA transition, a namespace that is being made ready. Such a
/// command is issued again for as long as I/O would wait for a lost connection, not a number of times.
#[must_use]
pub fn is_waiting(status: Status) -> bool {
    is_retryable(status) && (status.sct() == PATH || status.is(Status::NAMESPACE_NOT_READY))
}

const ABORTED: &[Status] = &[
    Status::ABORTED_POWER_LOSS,
    Status::ABORTED_BY_REQUEST,
    Status::ABORTED_SQ_DELETION,
    Status::ABORTED_MISSING_FUSED,
    Status::ABORTED_PREEMPT,
    Status::COMMAND_INTERRUPTED,
    Status::ABORTED_BY_HOST,
];

const WITHOUT_EFFECT: &[Status] = &[
    Status::ANA_PERSISTENT_LOSS,
    Status::ANA_INACCESSIBLE,
    Status::ANA_TRANSITION,
    Status::SANITIZE_IN_PROGRESS,
    Status::FORMAT_IN_PROGRESS,
    Status::NAMESPACE_NOT_READY,
];

const RETRYABLE: &[Status] = &[
    Status::DATA_TRANSFER_ERROR,
    Status::ABORTED_POWER_LOSS,
    Status::INTERNAL_ERROR,
    Status::ABORTED_SQ_DELETION,
    Status::SANITIZE_IN_PROGRESS,
    Status::FORMAT_IN_PROGRESS,
    Status::NAMESPACE_NOT_READY,
    Status::COMMAND_INTERRUPTED,
    Status::TRANSIENT_TRANSPORT_ERROR,
];

// Linux's numbers, which `BlockError::Os` carries.
const EIO: i32 = 5;
const EACCES: i32 = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_map_to_block_errors() {
        for (status, error) in [
            (Status::COMPARE_FAILURE, BlockError::CompareFailed),
            (Status::LBA_OUT_OF_RANGE.with_dnr(), BlockError::OutOfRange),
            (Status::NAMESPACE_WRITE_PROTECTED, BlockError::ReadOnly),
            (Status::CAPACITY_EXCEEDED, BlockError::NoSpace),
            (Status::INVALID_NAMESPACE.with_dnr(), BlockError::Gone),
            (Status::WRITE_FAULT, BlockError::Medium),
            (Status::UNRECOVERED_READ_ERROR, BlockError::Medium),
            (Status::ANA_INACCESSIBLE, BlockError::Gone),
            (Status::ABORTED_BY_HOST, BlockError::Aborted),
            (Status::INVALID_OPCODE, BlockError::Unsupported),
            (Status::RESERVATION_CONFLICT, BlockError::ReservationConflict),
            (Status::new(7, 3), BlockError::Os(5)),
        ] {
            assert_eq!(block_error(status), error, "{status}");
        }
    }

    #[test]
    fn what_failed_on_the_way_and_is_not_issued_again_says_nothing_of_the_disk() {
        for status in
            [Status::INTERNAL_PATH_ERROR, Status::INTERNAL_PATH_ERROR.with_dnr(), Status::KEEP_ALIVE_EXPIRED]
        {
            assert_eq!(block_error_of_single(status), BlockError::Aborted, "{status}");
        }
        for status in [Status::ANA_PERSISTENT_LOSS, Status::INVALID_NAMESPACE, Status::WRITE_FAULT] {
            assert_eq!(block_error_of_single(status), block_error(status), "{status}");
        }
    }

    #[test]
    fn do_not_retry_is_obeyed() {
        assert!(is_retryable(Status::NAMESPACE_NOT_READY));
        assert!(!is_retryable(Status::NAMESPACE_NOT_READY.with_dnr()));
        assert!(is_retryable(Status::ANA_TRANSITION));
        assert!(!is_retryable(Status::COMPARE_FAILURE));
        assert!(!is_retryable(Status::LBA_OUT_OF_RANGE));
        assert!(is_waiting(Status::ANA_INACCESSIBLE) && !is_waiting(Status::ANA_PERSISTENT_LOSS));
        assert!(!is_waiting(Status::INTERNAL_ERROR));
    }
}
