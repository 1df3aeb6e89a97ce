//! Reservation commands: decided, stored, put in force on every worker, and answered then.

use super::workers::Common;
use crate::barrier::{Barrier, Scope};
use crate::state::is_to_be_stored;
use core::time::Duration;
use nvme_proto::Status;
use nvmf_block::DeviceId;
use nvmf_subsystem::ReservationQuestion;
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

/// How long a command waits for the workers, and for what preempted hosts have in flight.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Carries a command out. It is to be answered with success once the barrier is reached.
///
/// # Errors
/// The status of the command, which has changed nothing.
pub(super) fn carry_out(common: &Common, question: &ReservationQuestion) -> Result<Arc<Barrier>, Status> {
    let plan = common.registry().plan_reservation(question)?;
    let old = {
        let registry = common.registry();
        let table = registry.namespaces(question.association.subsystem_nqn());
        table.and_then(|table| table.reservation(question.nsid)).cloned().unwrap_or_default()
    };
    if is_to_be_stored(&old, &plan.reservation)
        && let Err(error) = common.state.store(question.uuid, &plan.reservation)
    {
        tracing::error!(
            "a reservation command of {} fails, as the reservation of the namespace with UUID {} cannot be stored: \
             {error}",
            question.association.host_nqn(),
            Uuid::from_bytes(question.uuid),
        );
        return Err(Status::INTERNAL_ERROR);
    }
    let aborted = plan.aborted.clone();
    let device = match old.as_ref() == &plan.reservation {
        true => None,
        false => Some(common.registry().set_reservation(question, plan)?),
    };
    common.publish();
    Ok(common.mailboxes.barrier(scope(device, aborted)))
}

/// Preempt and abort waits for what the preempted have in flight; every other command for the workers only.
fn scope(device: Option<DeviceId>, aborted: BTreeSet<nvmf_subsystem::HostId>) -> Scope {
    match device {
        Some(device) if !aborted.is_empty() => Scope { hosts: Some(aborted), ..Scope::devices([device]) },
        _ => Scope::notices(),
    }
}

/// The barrier was not reached in time.
pub(super) fn too_late(question: &ReservationQuestion) -> Status {
    tracing::error!(
        "a reservation command of {} for namespace {} of {} is in force, but commands of preempted hosts are still in \
         flight after {TIMEOUT:?}, or a worker does not turn: it is answered as failed",
        question.association.host_nqn(),
        question.nsid,
        question.association.subsystem_nqn(),
    );
    Status::INTERNAL_ERROR
}
