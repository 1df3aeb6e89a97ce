//! The feature Namespace Write Protection Config.

use super::AdminKind;
use crate::access::Need;
use crate::controller::Controller;
use crate::namespace::NamespaceDefinition;
use crate::question::{Question, WriteProtectionQuestion};
use crate::step::{BlockWork, Transfer, Work};
use crate::ticket::{Kind, Outcome, Reply};
use crate::{Nsid, WriteProtection, status};
use alloc::boxed::Box;
use alloc::sync::Arc;
use nvme_proto::Status;
use nvmf_block::DeviceId;

/// NWPC: protection, and protection until a power cycle. A permanent one would be no promise that a target can keep.
pub(crate) const NWPC: u8 = 0b011;
/// WPS: bits 2:0 of CDW11.
const WPS_MASK: u32 = 0b111;

/// The state of a namespace.
pub(crate) fn state(controller: &Controller, nsid: Nsid) -> Result<u32, Status> {
    let namespace = namespace(controller, nsid)?;
    Ok(match namespace.access.write_protection {
        // By its configuration.
        WriteProtection::Off if namespace.is_read_only() => WriteProtection::On.wps(),
        state => state.wps(),
    })
}

/// Sets it: it is stored and in force on every worker before the command completes, and what was written before is
/// durable. A state that is in force is set anew: the command that made it so may have failed, as it was not stored or not
/// flushed.
pub(crate) fn set(controller: &Controller, nsid: Nsid, word: u32) -> Outcome {
    let namespace = namespace(controller, nsid)?;
    let to = WriteProtection::from_wps(word & WPS_MASK).ok_or(status::INVALID_FIELD)?;
    let from = namespace.access.write_protection;
    let is_final = from == WriteProtection::UntilPowerCycle && to != from;
    if is_final || to == WriteProtection::Off && namespace.is_always_read_only() {
        return Err(status::FEATURE_NOT_CHANGEABLE);
    }
    let flushes = to != WriteProtection::Off && namespace.geometry.volatile_write_cache;
    let kind = if flushes { AdminKind::Protect(namespace.device) } else { AdminKind::Asked };
    let question = Question::WriteProtection(WriteProtectionQuestion {
        association: Arc::clone(&controller.association),
        nsid,
        uuid: namespace.uuid,
        persists: namespace.access.reservation_persists,
        to,
    });
    Ok(Reply::Ask { kind: Kind::Admin(kind), question: Box::new(question) })
}

/// Writes are refused from now on: those before become durable.
pub(crate) fn flush(device: DeviceId) -> Reply {
    Reply::Execute {
        kind: Kind::Admin(AdminKind::Protect(device)),
        work: Work::Block { device, op: BlockWork::Flush },
        transfer: Transfer::None,
    }
}

fn namespace(controller: &Controller, nsid: Nsid) -> Result<&NamespaceDefinition, Status> {
    let table = controller.namespaces().ok_or(status::INVALID_FIELD)?;
    Ok(&table.access(nsid, Need::Reservation, &controller.association)?.definition)
}
