//! Admin and Fabrics commands, one builder each. Each names the bytes that it moves.

use crate::{AdminData, Command};
use alloc::vec::Vec;
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::fabrics::property::{Property, PropertyGet, PropertySet};
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Cntlid, HostId, Nqn, Nsid, Qid, Sqe};
use zerocopy::IntoBytes;

/// Bytes of every Identify data structure.
pub const IDENTIFY_LEN: u32 = 4096;

/// A command with the data that it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminCommand {
    /// The command.
    pub command: Command,
    /// Its data.
    pub data: AdminData,
}

/// Identify Controller (CNS 01h).
#[must_use]
pub fn identify_controller() -> AdminCommand {
    identify(0x01, 0, Nsid(0))
}

/// Identify Controller of the NVM command set (CNS 06h): limits of single commands.
#[must_use]
pub fn identify_nvm_controller() -> AdminCommand {
    identify(0x06, 0, Nsid(0))
}

/// Identify Namespace (CNS 00h).
#[must_use]
pub fn identify_namespace(nsid: Nsid) -> AdminCommand {
    identify(0x00, 0, nsid)
}

/// The active namespaces above `after` (CNS 02h): 1024 NSIDs.
#[must_use]
pub fn identify_active_namespaces(after: Nsid) -> AdminCommand {
    identify(0x02, 0, after)
}

/// Namespace identification descriptors (CNS 03h).
#[must_use]
pub fn identify_descriptors(nsid: Nsid) -> AdminCommand {
    identify(0x03, 0, nsid)
}

/// Identify with any CNS and command set: [`IDENTIFY_LEN`] bytes.
#[must_use]
pub fn identify(cns: u8, command_set: u8, nsid: Nsid) -> AdminCommand {
    let cdw11 = u32::from(command_set) << 24;
    reading(AdminOpcode::IDENTIFY, nsid, [u32::from(cns), cdw11, 0, 0, 0, 0], IDENTIFY_LEN)
}

/// Get Log Page: `len` bytes (a multiple of 4, at most [`crate::limits::ADMIN_DATA_MAX`]) from `offset` on.
#[must_use]
pub fn get_log_page(page: u8, nsid: Nsid, offset: u64, len: u32) -> AdminCommand {
    let dwords_z = (len / 4).saturating_sub(1);
    let cdw10 = u32::from(page) | (dwords_z & 0xffff) << 16;
    let dwords = [cdw10, dwords_z >> 16, offset as u32, (offset >> 32) as u32, 0, 0];
    reading(AdminOpcode::GET_LOG_PAGE, nsid, dwords, len)
}

/// Get Features, of the current value, for features whose value is completion dword 0.
#[must_use]
pub fn get_features(feature: u8, nsid: Nsid) -> AdminCommand {
    plain(admin(AdminOpcode::GET_FEATURES, nsid, [u32::from(feature), 0, 0, 0, 0, 0]))
}

/// Set Features, until the next reset, for features whose value is dword 11.
#[must_use]
pub fn set_features(feature: u8, dword11: u32) -> AdminCommand {
    plain(admin(AdminOpcode::SET_FEATURES, Nsid(0), [u32::from(feature), dword11, 0, 0, 0, 0]))
}

/// Asks for `queues` I/O submission and completion queues (Set Features, Number of Queues).
pub(crate) fn set_number_of_queues(queues: u16) -> AdminCommand {
    const NUMBER_OF_QUEUES: u8 = 0x07;
    let queues_z = u32::from(queues.saturating_sub(1));
    set_features(NUMBER_OF_QUEUES, queues_z << 16 | queues_z)
}

/// Turns on these events and no others (Set Features, Asynchronous Event Configuration).
pub(crate) fn set_event_configuration(events: u32) -> AdminCommand {
    const ASYNCHRONOUS_EVENT_CONFIGURATION: u8 = 0x0b;
    set_features(ASYNCHRONOUS_EVENT_CONFIGURATION, events)
}

pub(crate) fn asynchronous_event_request() -> AdminCommand {
    plain(admin(AdminOpcode::ASYNC_EVENT_REQUEST, Nsid(0), [0; 6]))
}

pub(crate) fn keep_alive() -> AdminCommand {
    plain(admin(AdminOpcode::KEEP_ALIVE, Nsid(0), [0; 6]))
}

/// Property Get of the property's own size.
#[must_use]
pub fn property_get(property: Property) -> AdminCommand {
    let size = u8::from(property == Property::CAP);
    plain(PropertyGet { size, property }.emit())
}

/// Property Set of 4 bytes.
pub(crate) fn property_set(property: Property, value: u32) -> AdminCommand {
    plain(PropertySet { size: 0, property, value: value.into() }.emit())
}

/// What a queue's Connect says.
pub(crate) struct ConnectQueue<'a> {
    pub(crate) qid: Qid,
    pub(crate) entries: u16,
    pub(crate) disable_flow_control: bool,
    pub(crate) keep_alive_ms: u32,
    pub(crate) cntlid: Cntlid,
    pub(crate) host_id: HostId,
    pub(crate) subsystem_nqn: &'a Nqn,
    pub(crate) host_nqn: &'a Nqn,
    pub(crate) in_capsule: bool,
}

pub(crate) fn connect(queue: &ConnectQueue<'_>) -> AdminCommand {
    let attributes =
        if queue.disable_flow_control { ConnectAttributes::DISABLE_SQ_FLOW_CONTROL } else { ConnectAttributes(0) };
    let sqe = Connect {
        recfmt: 0,
        qid: queue.qid,
        sqsize_z: queue.entries.saturating_sub(1),
        attributes,
        kato_ms: queue.keep_alive_ms,
    };
    let data = ConnectData::new(queue.host_id, queue.cntlid, queue.subsystem_nqn, queue.host_nqn);
    AdminCommand {
        command: Command::new(sqe.emit()),
        data: AdminData::ToController { bytes: Vec::from(data.as_bytes()), in_capsule: queue.in_capsule },
    }
}

fn admin(opcode: AdminOpcode, nsid: Nsid, dwords: [u32; 6]) -> Sqe {
    Sqe::new(opcode.0).with_nsid(nsid).with_dwords(dwords)
}

fn plain(sqe: Sqe) -> AdminCommand {
    AdminCommand { command: Command::new(sqe), data: AdminData::None }
}

fn reading(opcode: AdminOpcode, nsid: Nsid, dwords: [u32; 6], len: u32) -> AdminCommand {
    AdminCommand {
        command: Command::new(admin(opcode, nsid, dwords)),
        data: AdminData::FromController { len },
    }
}
