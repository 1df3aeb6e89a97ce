//! What reservation commands carry.

use super::ReservationType;
use crate::ident::Cntlid;
use core::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Data of Reservation Register, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RegisterData {
    /// Current key.
    pub crkey: U64,
    /// New key.
    pub nrkey: U64,
}

/// Data of Reservation Acquire, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AcquireData {
    /// Current key.
    pub crkey: U64,
    /// Key of those to preempt.
    pub prkey: U64,
}

/// Data of Reservation Release, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReleaseData {
    /// Current key.
    pub crkey: U64,
}

/// What a report starts with, as on the wire. The registrants follow: [`Registrant`]s behind these 24 bytes, or
/// [`ExtendedRegistrant`]s behind 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReservationStatus {
    /// Generation: counts registrations, preemptions and clears.
    pub generation: U32,
    /// The reservation held, if any.
    pub rtype: ReservationType,
    /// Registrants.
    pub registrants: U16,
    reserved7: [u8; 2],
    /// PTPLS: 1 if reservations persist through power loss.
    pub ptpls: u8,
    reserved10: [u8; 14],
}

/// A registered controller, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Registrant {
    /// Controller identifier.
    pub cntlid: U16,
    /// RCSTS: bit 0 if this controller's host holds the reservation.
    pub rcsts: u8,
    reserved3: [u8; 5],
    /// Host identifier, 64 bits.
    pub hostid: [u8; 8],
    /// Its key.
    pub key: U64,
}

/// A registered controller of the extended structure, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtendedRegistrant {
    /// Controller identifier; [`Cntlid::DYNAMIC`](crate::Cntlid::DYNAMIC) where there is none to name.
    pub cntlid: U16,
    /// RCSTS: bit 0 if this controller's host holds the reservation.
    pub rcsts: u8,
    reserved3: [u8; 5],
    /// Its key.
    pub key: U64,
    /// Host identifier, 128 bits.
    pub hostid: [u8; 16],
    reserved32: [u8; 32],
}

const _: () = {
    assert!(size_of::<RegisterData>() == 16 && size_of::<AcquireData>() == 16);
    assert!(size_of::<ReleaseData>() == 8);
    assert!(size_of::<ReservationStatus>() == ReservationStatus::LEN);
    assert!(offset_of!(ReservationStatus, rtype) == 4 && offset_of!(ReservationStatus, registrants) == 5);
    assert!(offset_of!(ReservationStatus, ptpls) == 9);
    assert!(size_of::<Registrant>() == 24 && offset_of!(Registrant, rcsts) == 2);
    assert!(offset_of!(Registrant, hostid) == 8 && offset_of!(Registrant, key) == 16);
    assert!(size_of::<ExtendedRegistrant>() == 64 && offset_of!(ExtendedRegistrant, rcsts) == 2);
    assert!(offset_of!(ExtendedRegistrant, key) == 8 && offset_of!(ExtendedRegistrant, hostid) == 16);
};

impl ReservationStatus {
    /// Bytes on the wire, before [`Registrant`]s.
    pub const LEN: usize = 24;
    /// Bytes on the wire, before [`ExtendedRegistrant`]s: the rest is reserved.
    pub const EXTENDED_LEN: usize = 64;

    /// A status of so many registrants.
    #[must_use]
    pub fn new(generation: u32, kind: ReservationType, registrants: u16, persists: bool) -> Self {
        Self {
            generation: generation.into(),
            rtype: kind,
            registrants: registrants.into(),
            reserved7: [0; 2],
            ptpls: u8::from(persists),
            reserved10: [0; 14],
        }
    }

    /// Bytes of the whole report.
    #[must_use]
    pub fn report_len(&self, extended: bool) -> usize {
        let (head, each) = if extended {
            (Self::EXTENDED_LEN, size_of::<ExtendedRegistrant>())
        } else {
            (Self::LEN, size_of::<Registrant>())
        };
        head + each * usize::from(self.registrants.get())
    }

    /// Reads an extended report. There are fewer registrants than it says if `report` is shorter than that; `None` if
    /// it does not hold the status itself.
    #[must_use]
    pub fn parse_extended(report: &[u8]) -> Option<(&Self, &[ExtendedRegistrant])> {
        let (head, rest) = report.split_at_checked(Self::EXTENDED_LEN)?;
        let (status, _) = Self::ref_from_prefix(head).ok()?;
        let count = usize::from(status.registrants.get()).min(rest.len() / size_of::<ExtendedRegistrant>());
        let (registrants, _) = <[ExtendedRegistrant]>::ref_from_prefix_with_elems(rest, count).ok()?;
        Some((status, registrants))
    }
}

impl Registrant {
    /// A registered controller.
    #[must_use]
    pub fn new(cntlid: Cntlid, holds: bool, hostid: [u8; 8], key: u64) -> Self {
        Self { cntlid: cntlid.0.into(), rcsts: u8::from(holds), reserved3: [0; 5], hostid, key: key.into() }
    }

    /// Whether its host holds the reservation.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rcsts & 1 == 1
    }
}

impl ExtendedRegistrant {
    /// A registered controller.
    #[must_use]
    pub fn new(cntlid: Cntlid, holds: bool, hostid: [u8; 16], key: u64) -> Self {
        Self {
            cntlid: cntlid.0.into(),
            rcsts: u8::from(holds),
            reserved3: [0; 5],
            key: key.into(),
            hostid,
            reserved32: [0; 32],
        }
    }

    /// Whether its host holds the reservation.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.rcsts & 1 == 1
    }
}
