//! Admin and Fabrics commands, one builder each. Each names the bytes that it moves.

use crate::{AdminData, Command, limits};
use alloc::vec::Vec;
use nvme_proto::admin::cross_controller_reset::{ControllerInstance, CrossControllerReset};
use nvme_proto::admin::features::{FeatureId, GetFeatures, QueueCounts, SetFeatures};
use nvme_proto::admin::identify::{self, Cns, Identify};
use nvme_proto::admin::keep_alive;
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::fabrics;
use nvme_proto::fabrics::auth::Authentication;
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::fabrics::property::{Property, PropertyGet, PropertySet};
use nvme_proto::opcode::{AdminOpcode, FabricsType};
use nvme_proto::{Cntlid, HostId, Nqn, Nsid, Qid, Sqe};
use zerocopy::IntoBytes;

/// Bytes of every Identify data structure.
pub const IDENTIFY_LEN: u32 = identify::LEN as u32;

/// A command with the data that it moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminCommand {
    /// The command.
    pub command: Command,
    /// Its data.
    pub data: AdminData,
}

/// Identify Controller.
#[must_use]
pub fn identify_controller() -> AdminCommand {
    identify(Cns::CONTROLLER, Nsid(0))
}

/// Identify Controller of the NVM command set: limits of single commands.
#[must_use]
pub fn identify_nvm_controller() -> AdminCommand {
    identify(Cns::COMMAND_SET_CONTROLLER, Nsid(0))
}

/// Identify Namespace.
#[must_use]
pub fn identify_namespace(nsid: Nsid) -> AdminCommand {
    identify(Cns::NAMESPACE, nsid)
}

/// The active namespaces above `after`: a list of 1024 NSIDs.
#[must_use]
pub fn identify_active_namespaces(after: Nsid) -> AdminCommand {
    identify(Cns::ACTIVE_NAMESPACES, after)
}

/// A namespace's identification descriptors.
#[must_use]
pub fn identify_descriptors(nsid: Nsid) -> AdminCommand {
    identify(Cns::NAMESPACE_DESCRIPTORS, nsid)
}

/// Identify Namespace, independent of its I/O command set.
#[must_use]
pub fn identify_independent_namespace(nsid: Nsid) -> AdminCommand {
    identify(Cns::INDEPENDENT_NAMESPACE, nsid)
}

/// Identify with any CNS: [`IDENTIFY_LEN`] bytes.
#[must_use]
pub fn identify(cns: Cns, nsid: Nsid) -> AdminCommand {
    reading(Identify::new(cns, nsid).emit(), IDENTIFY_LEN)
}

/// Get Log Page: `len` bytes from `offset` on, rounded down to a multiple of 4, from 4 to [`crate::limits::ADMIN_DATA_MAX`].
#[must_use]
pub fn get_log_page(page: LogPageId, nsid: Nsid, offset: u64, len: u32) -> AdminCommand {
    let len = len.clamp(4, limits::ADMIN_DATA_MAX) & !3;
    reading(GetLogPage::new(page, nsid, offset, len.into()).emit(), len)
}

/// Get Features, of the current value, for features whose value is completion dword 0.
#[must_use]
pub fn get_features(feature: FeatureId, nsid: Nsid) -> AdminCommand {
    plain(GetFeatures { nsid, ..GetFeatures::new(feature) }.emit())
}

/// Set Features, until the next reset, for features whose value is dword 11.
#[must_use]
pub fn set_features(feature: FeatureId, dword11: u32) -> AdminCommand {
    plain(SetFeatures::new(feature, dword11).emit())
}

/// Asks for `queues` I/O submission and completion queues.
pub(crate) fn set_number_of_queues(queues: u16) -> AdminCommand {
    let queues = u32::from(queues.max(1));
    set_features(FeatureId::NUMBER_OF_QUEUES, QueueCounts { submission: queues, completion: queues }.emit())
}

/// Turns on these events and no others.
pub(crate) fn set_event_configuration(events: u32) -> AdminCommand {
    set_features(FeatureId::ASYNC_EVENT_CONFIG, events)
}

pub(crate) fn asynchronous_event_request() -> AdminCommand {
    plain(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0))
}

pub(crate) fn keep_alive() -> AdminCommand {
    plain(keep_alive::keep_alive())
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
        if queue.disable_flow_control { ConnectAttributes::DISSQFC } else { ConnectAttributes(0) };
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

/// Sends a message of in-band authentication.
pub(crate) fn authentication_send(message: Vec<u8>, in_capsule: bool) -> AdminCommand {
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    AdminCommand {
        command: Command::new(authentication(FabricsType::AUTHENTICATION_SEND, len)),
        data: AdminData::ToController { bytes: message, in_capsule },
    }
}

/// Receives one.
pub(crate) fn authentication_receive(len: u32) -> AdminCommand {
    reading(authentication(FabricsType::AUTHENTICATION_RECEIVE, len), len)
}

fn authentication(fctype: FabricsType, len: u32) -> Sqe {
    let mut sqe = fabrics::command(fctype);
    let command = Authentication::new(len);
    (sqe.cdw10, sqe.cdw11) = (command.cdw10().into(), command.cdw11().into());
    sqe
}

/// Has another controller of the subsystem reset.
pub(crate) fn cross_controller_reset(impacted: ControllerInstance) -> AdminCommand {
    plain(CrossControllerReset { impacted }.emit())
}

/// The whole log page of such resets.
pub(crate) fn reset_log() -> AdminCommand {
    get_log_page(LogPageId::CROSS_CONTROLLER_RESET, Nsid(0), 0, IDENTIFY_LEN)
}

fn plain(sqe: Sqe) -> AdminCommand {
    AdminCommand { command: Command::new(sqe), data: AdminData::None }
}

fn reading(sqe: Sqe, len: u32) -> AdminCommand {
    AdminCommand { command: Command::new(sqe), data: AdminData::FromController { len } }
}
