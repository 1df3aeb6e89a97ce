//! What work requests are called, so that their completions find what they are for.

use crate::exec::place::Place;
use nvmf_rdma::WorkRequestId;

/// Which kind of work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A receive slot.
    Receive,
    /// An RDMA READ of a chunk.
    Read,
    /// An RDMA WRITE of a chunk.
    Write,
    /// The response of a request.
    Send,
}

/// The name of a work request: for a receive, the place is that of its slot.
pub(super) fn work_request(kind: Kind, place: Place) -> WorkRequestId {
    WorkRequestId((kind as u64) << 56 | place.bits())
}

/// The reverse.
pub(super) fn of_work_request(id: WorkRequestId) -> (Kind, Place) {
    let kind = match id.0 >> 56 {
        0 => Kind::Receive,
        1 => Kind::Read,
        2 => Kind::Write,
        _ => Kind::Send,
    };
    (kind, Place::from_bits(id.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let place = Place::new(u32::MAX, u16::MAX - 1, 7);
        for kind in [Kind::Receive, Kind::Read, Kind::Write, Kind::Send] {
            assert_eq!(of_work_request(work_request(kind, place)), (kind, place));
        }
    }
}
