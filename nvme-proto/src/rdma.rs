//! The private data of NVMe/RDMA connections (NVMe/RDMA Transport 1.0, "RDMA_CM Private Data").

use crate::ident::{Cntlid, Qid};
use core::fmt;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the host says when it connects, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RequestData {
    recfmt: U16,
    qid: U16,
    hrqsize: U16,
    hsqsize_z: U16,
    cntlid: U16,
    reserved: [u8; 22],
}

/// What the controller says when it accepts, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AcceptData {
    recfmt: U16,
    crqsize: U16,
    reserved: [u8; 28],
}

/// What the controller says when it rejects, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RejectData {
    recfmt: U16,
    status: U16,
}

const _: () =
    assert!(size_of::<RequestData>() == 32 && size_of::<AcceptData>() == 32 && size_of::<RejectData>() == 4);

open_enum! {
    /// Why a connection was rejected.
    pub struct RejectStatus: u16 {
        /// The private data is too short.
        INVALID_LENGTH = 0x01,
        /// Its format is not 0.
        INVALID_RECFMT = 0x02,
        /// The queue identifier cannot be.
        INVALID_QID = 0x03,
        /// The host's send queue size cannot be.
        INVALID_HSQSIZE = 0x04,
        /// The host's receive queue size cannot be.
        INVALID_HRQSIZE = 0x05,
        /// The controller has no resources left.
        NO_RESOURCES = 0x06,
        /// The host serves no RDMA READ, which the controller needs.
        INVALID_IRD = 0x07,
        /// The host wants to RDMA READ, which it may not.
        INVALID_ORD = 0x08,
        /// There is no such controller.
        INVALID_CNTLID = 0x09,
    }
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::INVALID_LENGTH => "invalid private data length",
            Self::INVALID_RECFMT => "invalid private data format",
            Self::INVALID_QID => "invalid queue identifier",
            Self::INVALID_HSQSIZE => "invalid host send queue size",
            Self::INVALID_HRQSIZE => "invalid host receive queue size",
            Self::NO_RESOURCES => "no resources",
            Self::INVALID_IRD => "invalid inbound RDMA READ depth",
            Self::INVALID_ORD => "invalid outbound RDMA READ depth",
            Self::INVALID_CNTLID => "invalid controller identifier",
            _ => "unknown reason",
        };
        write!(f, "{text} (NVMe/RDMA reject status {:#x})", self.0)
    }
}

/// What the host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which queue.
    pub qid: Qid,
    /// Entries in the host's receive queue (not 0's based).
    pub hrqsize: u16,
    /// Entries in the host's send queue: one more than the field says, and therefore a `u32`.
    pub hsqsize: u32,
    /// The controller that an I/O queue is for; 0 for admin queues and from older hosts.
    pub cntlid: Cntlid,
}

impl Request {
    /// Reads the host's private data. What is behind the 32 bytes is ignored: providers may pad.
    ///
    /// # Errors
    /// The status to reject with.
    pub fn parse(private_data: &[u8]) -> Result<Self, RejectStatus> {
        let (raw, _) =
            RequestData::read_from_prefix(private_data).map_err(|_| RejectStatus::INVALID_LENGTH)?;
        if raw.recfmt.get() != 0 {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        Ok(Self {
            qid: Qid(raw.qid.get()),
            hrqsize: raw.hrqsize.get(),
            hsqsize: u32::from(raw.hsqsize_z.get()) + 1,
            cntlid: Cntlid(raw.cntlid.get()),
        })
    }

    /// The private data that says so.
    ///
    /// # Panics
    /// When `hsqsize` is 0 or over 65536.
    #[must_use]
    pub fn emit(&self) -> RequestData {
        let hsqsize_z = self.hsqsize.checked_sub(1).and_then(|z| u16::try_from(z).ok());
        RequestData {
            recfmt: 0.into(),
            qid: self.qid.0.into(),
            hrqsize: self.hrqsize.into(),
            hsqsize_z: hsqsize_z.expect("a send queue has 1 to 65536 entries").into(),
            cntlid: self.cntlid.0.into(),
            reserved: [0; 22],
        }
    }
}

impl AcceptData {
    /// Accepts with this many entries in the controller's receive queue.
    #[must_use]
    pub fn new(crqsize: u16) -> Self {
        Self { recfmt: 0.into(), crqsize: crqsize.into(), reserved: [0; 28] }
    }

    /// CRQSIZE of an acceptance; `None` when it is none that we understand.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<u16> {
        let (raw, _) = Self::read_from_prefix(private_data).ok()?;
        (raw.recfmt.get() == 0).then_some(raw.crqsize.get())
    }
}

impl RejectData {
    /// Rejects for this reason.
    #[must_use]
    pub fn new(status: RejectStatus) -> Self {
        Self { recfmt: 0.into(), status: status.0.into() }
    }

    /// The reason of a rejection; `None` when it is none that we understand.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Option<RejectStatus> {
        let (raw, _) = Self::read_from_prefix(private_data).ok()?;
        (raw.recfmt.get() == 0).then_some(RejectStatus(raw.status.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_linux_host_sends() {
        let mut bytes = [0; 32];
        bytes[4] = 0x20;
        bytes[6] = 0x1f;
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request, Request { qid: Qid(0), hrqsize: 32, hsqsize: 32, cntlid: Cntlid(0) });
        assert_eq!(request.emit().as_bytes(), bytes);
    }

    #[test]
    fn what_a_linux_target_answers() {
        let mut bytes = [0; 32];
        bytes[2] = 0x20;
        assert_eq!(AcceptData::parse(&bytes), Some(32));
        assert_eq!(AcceptData::new(32).as_bytes(), bytes);
        assert_eq!(RejectData::parse(&[0, 0, 6, 0]), Some(RejectStatus::NO_RESOURCES));
    }

    #[test]
    fn invalid_requests_have_their_reject_status() {
        assert_eq!(Request::parse(&[0; 31]), Err(RejectStatus::INVALID_LENGTH));
        assert_eq!(Request::parse(&[1; 32]), Err(RejectStatus::INVALID_RECFMT));
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_emits_the_same(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert_eq!(Request::parse(request.emit().as_bytes()), Ok(request));
            }
            let _ = (AcceptData::parse(&bytes), RejectData::parse(&bytes));
        }
    }
}
