//! Abort.

use crate::Cid;
use crate::controller::Controller;
use crate::ticket::Reply;
use nvme_proto::Sqe;

/// DW0 bit 0: the command was not aborted.
const NOT_ABORTED: u64 = 1;

/// An Asynchronous Event Request that waits is really aborted. Everything else is on a device or on the wire and will
/// complete by itself, which the host is told. An Abort is over at once, so the limit (ACL) cannot be exceeded.
pub(crate) fn on_abort(controller: &mut Controller, sqe: &Sqe) -> Reply {
    let cdw10 = sqe.cdw10.get();
    let (sqid, cid) = (cdw10 as u16, Cid((cdw10 >> 16) as u16));
    let aborted = sqid == 0 && controller.events.abort(cid);
    Reply::Done(if aborted { 0 } else { NOT_ABORTED })
}
