//! The features of reservations: which notifications a host does not want, and whether a reservation persists.

use super::AdminKind;
use crate::access::Need;
use crate::controller::Controller;
use crate::question::{Question, ReservationQuestion};
use crate::ticket::{Kind, Outcome, Reply};
use crate::{Nsid, ReservationCommand, status};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use nvme_proto::Status;

/// PTPL of the Reservation Persistence feature.
const PERSISTS: u32 = 1;

/// Reservation Notification Mask.
pub(crate) fn mask(controller: &Controller, nsid: Nsid) -> Result<u32, Status> {
    check(controller, nsid)?;
    Ok(controller.notifications.mask(nsid))
}

/// The same, of one namespace or of all that the host sees.
pub(crate) fn set_mask(controller: &mut Controller, nsid: Nsid, mask: u32) -> Outcome {
    let nsids: Vec<Nsid> = if nsid == Nsid::ALL {
        let table = controller.namespaces().ok_or(status::INVALID_FIELD)?;
        table.seen_by(&controller.association.host_nqn).map(|namespace| namespace.nsid).collect()
    } else {
        check(controller, nsid)?;
        [nsid].into()
    };
    nsids.into_iter().for_each(|nsid| controller.notifications.set_mask(nsid, mask));
    Ok(Reply::Done(0))
}

/// Reservation Persistence.
pub(crate) fn persistence(controller: &Controller, nsid: Nsid) -> Result<u32, Status> {
    check(controller, nsid)?;
    let reservation = controller.namespaces().and_then(|table| table.reservation(nsid));
    Ok(reservation.is_some_and(|reservation| reservation.persists()).into())
}

/// The same, to be stored before the command is complete.
pub(crate) fn set_persistence(controller: &Controller, nsid: Nsid, word: u32) -> Outcome {
    let uuid = check(controller, nsid)?;
    let association = Arc::clone(&controller.association);
    let command = ReservationCommand::SetPersistence { persists: word & PERSISTS != 0 };
    let question = Question::Reservation(ReservationQuestion { association, nsid, uuid, command });
    Ok(Reply::Ask { kind: Kind::Admin(AdminKind::Asked), question: Box::new(question) })
}

/// The UUID of a namespace that the host may use. Both features belong to one.
fn check(controller: &Controller, nsid: Nsid) -> Result<[u8; 16], Status> {
    let table = controller.namespaces().ok_or(status::INVALID_FIELD)?;
    Ok(table.access(nsid, Need::Reservation, &controller.association)?.definition.uuid)
}
