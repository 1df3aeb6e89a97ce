//! Abort.

use crate::controller::Controller;
use crate::ticket::Reply;
use nvme_proto::Sqe;
use nvme_proto::admin::abort::{Abort, NOT_ABORTED};

/// An Asynchronous Event Request that waits is really aborted. Everything else is on a device or on the wire and will
/// complete by itself; the response says so. An Abort completes at once, so the limit (ACL) cannot be exceeded.
pub(crate) fn on_abort(controller: &mut Controller, sqe: &Sqe) -> Reply {
    let Abort { sqid, cid } = Abort::parse(sqe);
    let aborted = sqid.is_admin() && controller.events.abort(cid);
    Reply::Done(if aborted { 0 } else { NOT_ABORTED.into() })
}
