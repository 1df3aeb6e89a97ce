//! Memory regions, keys and access rights.

use core::fmt;
use core::ops::BitOr;
use thiserror::Error;

/// What may be done to a region besides sending from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access(u8);

impl Access {
    /// Only a source for our own sends and writes.
    pub const LOCAL_READ: Self = Self(0);
    /// A target of our receives, and of the data of our RDMA READs.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peer may RDMA READ it.
    pub const REMOTE_READ: Self = Self(2);
    /// The peer may RDMA WRITE it.
    pub const REMOTE_WRITE: Self = Self(4);

    /// Whether every right of `other` is among these.
    #[must_use]
    pub fn allows(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Names a registered region in our own work requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalKey(pub u32);

/// Names exposed memory to the peer (rkey, STag).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemoteKey(pub u32);

impl fmt::Display for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A registered region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRegion {
    /// For our own work requests.
    pub local_key: LocalKey,
    /// For the peer, when the region was registered with a remote right: the whole region under one long-lived key.
    /// [`crate::Provider::expose`] gives a key for a part of it and for one command.
    pub remote: Option<RemoteMemory>,
    /// Bytes.
    pub len: usize,
}

/// Memory of one side as the other side names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteMemory {
    /// The key.
    pub key: RemoteKey,
    /// The address (tagged offset) of its first byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// `len` bytes at `offset` of a registered region of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// The region.
    pub local_key: LocalKey,
    /// Bytes from the region's start.
    pub offset: usize,
    /// Bytes.
    pub len: u32,
}

/// Memory could not be registered or exposed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RegisterError {
    /// The provider's table of keys is full.
    #[error("no key is left: the provider takes {limit} regions and per-command keys at once")]
    NoKey {
        /// How many it takes.
        limit: usize,
    },
    /// The range is not inside the region, or there is no such region or queue pair.
    #[error("the range does not lie within a registered region")]
    OutOfBounds,
    /// The region lacks local write, which a key for remote write needs.
    #[error("the region was not registered with the access that is now asked for")]
    Access,
    /// The device is gone.
    #[error("the RDMA device is gone")]
    DeviceRemoved,
    /// The device makes no memory window, so that no key for one command can be made.
    #[error(
        "the device makes no memory window: errno {0}; memory_windows = false does without (peers are told the one key of a region)"
    )]
    Window(i32),
    /// The device or the kernel refused; memlock limits are the common cause.
    #[error(
        "the system refused to pin {len} bytes: errno {errno}; see the memlock limit (LimitMEMLOCK= in the unit)"
    )]
    Os {
        /// Bytes.
        len: usize,
        /// The errno.
        errno: i32,
    },
}
