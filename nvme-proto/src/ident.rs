//! Identifiers.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident: $repr:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Namespace identifier. 0 names none, [`Nsid::ALL`] all of them.
    Nsid: u32
}
number! {
    /// Command identifier: the host's name for a command in flight on one queue.
    Cid: u16
}
number! {
    /// Queue identifier: 0 is the admin queue.
    Qid: u16
}
number! {
    /// Controller identifier.
    Cntlid: u16
}

impl Nsid {
    /// Every namespace (broadcast).
    pub const ALL: Self = Self(0xffff_ffff);
}

impl Qid {
    /// The admin queue.
    pub const ADMIN: Self = Self(0);

    /// Whether this is the admin queue.
    #[must_use]
    pub fn is_admin(self) -> bool {
        self == Self::ADMIN
    }
}

impl Cntlid {
    /// In Connect: any controller (dynamic controller model).
    pub const DYNAMIC: Self = Self(0xffff);
    /// In Connect: any controller (static controller model).
    pub const STATIC_ANY: Self = Self(0xfffe);
    /// The largest identifier that a controller can have.
    pub const MAX: Self = Self(0xffef);
}

/// Host identifier: 128 bits, as the host sends them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// All zeroes: not allowed in Fabrics.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid(f, &self.0)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid(f, &self.0)
    }
}

/// 16 bytes in the 8-4-4-4-12 form of a UUID.
pub(crate) fn uuid(f: &mut fmt::Formatter<'_>, bytes: &[u8; 16]) -> fmt::Result {
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            f.write_str("-")?;
        }
        write!(f, "{byte:02x}")?;
    }
    Ok(())
}
