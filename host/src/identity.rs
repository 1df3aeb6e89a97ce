//! Which disk a namespace is, and whether it still is the one that somebody opened.
//!
//! An NSID does not identify a disk: after a reconnect, or a change at the target, another disk may have it. What is written to
//! that disk then overwrites somebody's data. So what was opened is pinned, and held against what the controller shows now, before
//! anything is issued.

use crate::{ControllerInfo, Namespace, Nsid};
use alloc::string::String;
use core::fmt;
use nvmf_block::Geometry;

/// What whoever opened a namespace relies on: which disk it is, and what its geometry lets them do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceIdentity {
    /// NSID.
    pub nsid: Nsid,
    /// SUBNQN of Identify Controller; empty when the controller gives none.
    pub subsystem_nqn: String,
    /// UUID; all zeroes when it has none.
    pub uuid: [u8; 16],
    /// NGUID; all zeroes when it has none.
    pub nguid: [u8; 16],
    /// EUI-64; all zeroes when it has none.
    pub eui64: [u8; 8],
    /// The geometry as it was.
    pub geometry: Geometry,
    /// Whoever opened it flushes what must be durable even though it has no volatile write cache: one may appear.
    pub is_flushed: bool,
}

/// In what a namespace differs from the one that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// It belongs to another subsystem.
    Subsystem,
    /// Its UUID is another, or is there in one case only.
    Uuid {
        /// As opened.
        opened: [u8; 16],
        /// Now.
        now: [u8; 16],
    },
    /// Its NGUID is another, or is there in one case only.
    Nguid {
        /// As opened.
        opened: [u8; 16],
        /// Now.
        now: [u8; 16],
    },
    /// Its EUI-64 is another, or is there in one case only.
    Eui64 {
        /// As opened.
        opened: [u8; 8],
        /// Now.
        now: [u8; 8],
    },
    /// Its blocks have another size: byte offsets would name other blocks.
    BlockSize {
        /// As opened.
        opened: u32,
        /// Now.
        now: u32,
    },
    /// It is smaller.
    Size {
        /// Blocks as opened.
        opened: u64,
        /// Blocks now.
        now: u64,
    },
    /// It has a volatile write cache and had none: whoever opened it sends no flushes.
    WriteCache,
}

impl NamespaceIdentity {
    /// Of a namespace as its controller shows it now.
    #[must_use]
    pub fn new(controller: &ControllerInfo, namespace: &Namespace) -> Self {
        Self {
            nsid: namespace.nsid,
            subsystem_nqn: controller.subsystem_nqn.clone(),
            uuid: namespace.uuid,
            nguid: namespace.nguid,
            eui64: namespace.eui64,
            geometry: namespace.geometry,
            is_flushed: false,
        }
    }

    /// Whether the namespace that is there now may be used as the one that was opened.
    ///
    /// It may have grown. A disk without any identifier cannot be told from another: then the rest decides.
    ///
    /// # Errors
    /// The first [`Mismatch`].
    pub fn check(&self, now: &Self) -> Result<(), Mismatch> {
        let (opened, geometry) = (self.geometry, now.geometry);
        if self.subsystem_nqn != now.subsystem_nqn {
            Err(Mismatch::Subsystem)
        } else if self.uuid != now.uuid {
            Err(Mismatch::Uuid { opened: self.uuid, now: now.uuid })
        } else if self.nguid != now.nguid {
            Err(Mismatch::Nguid { opened: self.nguid, now: now.nguid })
        } else if self.eui64 != now.eui64 {
            Err(Mismatch::Eui64 { opened: self.eui64, now: now.eui64 })
        } else if opened.block_size != geometry.block_size {
            Err(Mismatch::BlockSize { opened: opened.block_size, now: geometry.block_size })
        } else if geometry.blocks < opened.blocks {
            Err(Mismatch::Size { opened: opened.blocks, now: geometry.blocks })
        } else if geometry.volatile_write_cache && !opened.volatile_write_cache && !self.is_flushed {
            Err(Mismatch::WriteCache)
        } else {
            Ok(())
        }
    }
}

impl Mismatch {
    /// Whether the identifiers differ. Otherwise it is the disk that was opened, in a shape that cannot be used as that.
    #[must_use]
    pub fn is_another_disk(self) -> bool {
        matches!(self, Self::Subsystem | Self::Uuid { .. } | Self::Nguid { .. } | Self::Eui64 { .. })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subsystem => f.write_str("it belongs to another subsystem"),
            Self::Uuid { opened, now } => identifiers(f, "UUID", opened, now),
            Self::Nguid { opened, now } => identifiers(f, "NGUID", opened, now),
            Self::Eui64 { opened, now } => identifiers(f, "EUI-64", opened, now),
            Self::BlockSize { opened, now } => {
                write!(f, "its blocks have {now} bytes, {opened} when it was opened")
            }
            Self::Size { opened, now } => write!(f, "it has {now} blocks, and had {opened} at the most"),
            Self::WriteCache => f.write_str("it has a volatile write cache, none when it was opened"),
        }
    }
}

fn identifiers(f: &mut fmt::Formatter<'_>, name: &str, opened: &[u8], now: &[u8]) -> fmt::Result {
    write!(f, "its {name} is {}, {} when it was opened", Hex(now), Hex(opened))
}

/// An identifier in hexadecimal digits; a UUID and an NGUID in the groups of a UUID.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(|&byte| byte == 0) {
            return f.write_str("none");
        }
        for (at, byte) in self.0.iter().enumerate() {
            let group = self.0.len() == 16 && matches!(at, 4 | 6 | 8 | 10);
            write!(f, "{}{byte:02x}", if group { "-" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn opened() -> NamespaceIdentity {
        NamespaceIdentity {
            nsid: Nsid(1),
            subsystem_nqn: "nqn.2026-11.com.example:disk".into(),
            uuid: [1; 16],
            nguid: [2; 16],
            eui64: [3; 8],
            geometry: Geometry::new(512, 1000),
            is_flushed: false,
        }
    }

    #[test]
    fn every_difference_that_matters_is_a_mismatch() {
        type Change = fn(&mut NamespaceIdentity);
        let cases: [(Change, &str); 8] = [
            (|it| it.subsystem_nqn.push('2'), "it belongs to another subsystem"),
            (|it| it.uuid[0] = 9, "its UUID is 09010101-0101-0101-0101-010101010101, 01010101-0101-"),
            (|it| it.uuid = [0; 16], "its UUID is none, 01010101-"),
            (|it| it.nguid[15] = 0, "its NGUID is 02020202-0202-0202-0202-020202020200, 02020202-0202-"),
            (|it| it.eui64[0] = 0, "its EUI-64 is 0003030303030303, 0303030303030303 when it was opened"),
            (|it| it.geometry.block_size = 4096, "its blocks have 4096 bytes, 512 when it was opened"),
            (|it| it.geometry.blocks = 999, "it has 999 blocks, and had 1000 at the most"),
            (|it| it.geometry.volatile_write_cache = true, "it has a volatile write cache, none"),
        ];
        for (change, text) in cases {
            let mut now = opened();
            change(&mut now);
            let mismatch = opened().check(&now).unwrap_err().to_string();
            assert!(mismatch.starts_with(text), "{mismatch}");
        }
    }

    #[test]
    fn growth_and_what_changes_no_promise_are_accepted() {
        let mut now = opened();
        now.geometry.blocks = 2000;
        now.geometry.read_only = true;
        now.geometry.deallocate = true;
        assert_eq!(opened().check(&now), Ok(()));
        let mut cached = opened();
        cached.geometry.volatile_write_cache = true;
        assert_eq!(cached.check(&opened()), Ok(()), "a cache that is gone costs nothing");
        let flushed = NamespaceIdentity { is_flushed: true, ..opened() };
        assert_eq!(flushed.check(&cached), Ok(()), "nor does one that is flushed");
    }
}
