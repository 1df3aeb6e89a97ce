//! Admin and Fabrics commands, one builder each. Each names the bytes that it moves.

use crate::{AdminData, Command, Nsid};

/// A command with the data that it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminCommand {
    /// The command.
    pub command: Command,
    /// Its data.
    pub data: AdminData,
}

/// Identify Controller (CNS 01h): 4096 bytes.
#[must_use]
pub fn identify_controller() -> AdminCommand {
    identify(0x01, 0, Nsid(0))
}

/// Identify Namespace (CNS 00h): 4096 bytes.
#[must_use]
pub fn identify_namespace(nsid: Nsid) -> AdminCommand {
    identify(0x00, 0, nsid)
}

/// The active namespaces above `after` (CNS 02h): 1024 NSIDs.
#[must_use]
pub fn identify_active_namespaces(after: Nsid) -> AdminCommand {
    identify(0x02, 0, after)
}

/// Namespace identification descriptors (CNS 03h): 4096 bytes.
#[must_use]
pub fn identify_descriptors(nsid: Nsid) -> AdminCommand {
    identify(0x03, 0, nsid)
}

/// Identify with any CNS and command set.
#[must_use]
pub fn identify(cns: u8, command_set: u8, nsid: Nsid) -> AdminCommand {
    let command = Command::new(0x06)
        .with_dword(1, nsid.0)
        .with_dword(10, u32::from(cns))
        .with_dword(11, u32::from(command_set) << 24);
    AdminCommand { command, data: AdminData::FromController { len: 4096 } }
}

/// Get Log Page: `len` bytes (a multiple of 4, at most [`crate::limits::ADMIN_DATA_MAX`]) from `offset` on.
#[must_use]
pub fn get_log_page(page: u8, nsid: Nsid, offset: u64, len: u32) -> AdminCommand {
    let dwords_z = (len / 4).saturating_sub(1);
    let command = Command::new(0x02)
        .with_dword(1, nsid.0)
        .with_dword(10, u32::from(page) | (dwords_z & 0xffff) << 16)
        .with_dword(11, dwords_z >> 16)
        .with_dword(12, offset as u32)
        .with_dword(13, (offset >> 32) as u32);
    AdminCommand { command, data: AdminData::FromController { len } }
}

/// Get Features, without data.
#[must_use]
pub fn get_features(feature: u8, nsid: Nsid) -> AdminCommand {
    let command = Command::new(0x0a).with_dword(1, nsid.0).with_dword(10, u32::from(feature));
    AdminCommand { command, data: AdminData::None }
}

/// Set Features, without data, until the next reset.
#[must_use]
pub fn set_features(feature: u8, dword11: u32) -> AdminCommand {
    let command = Command::new(0x09).with_dword(10, u32::from(feature)).with_dword(11, dword11);
    AdminCommand { command, data: AdminData::None }
}
