//! AUTH_Negotiate: what the host can do.

use super::{AuthProtocol, DhGroup, FailureExplanation, HashId, SecureChannel};
use core::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A protocol that the host offers, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ProtocolDescriptor {
    /// Which protocol. Of others than DH-HMAC-CHAP, the rest means nothing to us.
    pub protocol: AuthProtocol,
    reserved: u8,
    halen: u8,
    dhlen: u8,
    hashes: [HashId; ProtocolDescriptor::COUNT_MAX],
    groups: [DhGroup; ProtocolDescriptor::COUNT_MAX],
}

const _: () = {
    assert!(size_of::<ProtocolDescriptor>() == ProtocolDescriptor::LEN);
    assert!(offset_of!(ProtocolDescriptor, hashes) == 4 && offset_of!(ProtocolDescriptor, groups) == 34);
};

impl ProtocolDescriptor {
    /// Bytes on the wire.
    pub const LEN: usize = 64;
    /// Hash functions, and groups, that there is room for.
    pub const COUNT_MAX: usize = 30;

    /// DH-HMAC-CHAP with these hash functions and groups, the preferred ones first; `None` if there are more than 30 of
    /// either.
    #[must_use]
    pub fn dh_hmac_chap(hashes: &[HashId], groups: &[DhGroup]) -> Option<Self> {
        let mut this = Self {
            protocol: AuthProtocol::DH_HMAC_CHAP,
            reserved: 0,
            halen: hashes.len() as u8,
            dhlen: groups.len() as u8,
            hashes: [HashId(0); Self::COUNT_MAX],
            groups: [DhGroup(0); Self::COUNT_MAX],
        };
        this.hashes.get_mut(..hashes.len())?.copy_from_slice(hashes);
        this.groups.get_mut(..groups.len())?.copy_from_slice(groups);
        Some(this)
    }

    /// Hash functions offered, the preferred ones first.
    #[must_use]
    pub fn hashes(&self) -> &[HashId] {
        &self.hashes[..usize::from(self.halen).min(Self::COUNT_MAX)]
    }

    /// Groups offered, the preferred ones first.
    #[must_use]
    pub fn groups(&self) -> &[DhGroup] {
        &self.groups[..usize::from(self.dhlen).min(Self::COUNT_MAX)]
    }

    fn counts_fit(&self) -> bool {
        let counts = [self.halen, self.dhlen];
        self.protocol != AuthProtocol::DH_HMAC_CHAP
            || counts.iter().all(|&count| usize::from(count) <= Self::COUNT_MAX)
    }
}

/// What the host can do: the first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// Transaction (T_ID): the host's name for this authentication.
    pub transaction: u16,
    /// SC_C.
    pub secure_channel: SecureChannel,
    /// Protocols offered, at most 255.
    pub descriptors: &'a [ProtocolDescriptor],
}

impl<'a> Negotiate<'a> {
    /// Reads `count` descriptors.
    pub(super) fn descriptors(
        bytes: &'a [u8],
        count: u8,
    ) -> Result<&'a [ProtocolDescriptor], FailureExplanation> {
        let descriptors = <[ProtocolDescriptor]>::ref_from_prefix_with_elems(bytes, usize::from(count));
        match descriptors {
            Ok((descriptors, _)) if descriptors.iter().all(ProtocolDescriptor::counts_fit) => Ok(descriptors),
            _ => Err(FailureExplanation::INCORRECT_PAYLOAD),
        }
    }
}
