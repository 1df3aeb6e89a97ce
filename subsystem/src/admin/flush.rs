//! Flushes that an Admin command waits for: what the host wrote is durable when a normal shutdown, or Set Features with
//! the volatile write cache off, is complete.

use super::AdminKind;
use crate::controller::Controller;
use crate::status::{self, Direction};
use crate::step::{BlockWork, Transfer, Work};
use crate::ticket::{Kind, Outcome, Reply};
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::fabrics::property::Configuration;
use nvmf_block::BlockError;

/// What is done once all namespaces are flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFlush {
    /// CC becomes `to`, unless another Property Set changed it from `from` in the meantime.
    Configure { from: Configuration, to: Configuration },
    /// Nothing: the volatile write cache is off already.
    WriteCacheOff,
}

/// Flushes the first namespace behind `nsid` that has a volatile write cache; if there is none, does what comes after. One
/// that became read-only has what was written before; a disk that was opened for reading has nothing.
pub(crate) fn flush_behind(
    controller: &mut Controller,
    now: Duration,
    nsid: Nsid,
    then: AfterFlush,
) -> Outcome {
    let next = controller.namespaces().and_then(|table| {
        table.seen_by(&controller.association.host_nqn).find(|namespace| {
            namespace.nsid > nsid && namespace.geometry.volatile_write_cache && !namespace.geometry.read_only
        })
    });
    if let Some(namespace) = next {
        return Ok(Reply::Execute {
            kind: Kind::Admin(AdminKind::Flush { nsid: namespace.nsid, then }),
            work: Work::Block { device: namespace.device, op: BlockWork::Flush },
            transfer: Transfer::None,
        });
    }
    if let AfterFlush::Configure { from, to } = then {
        controller.configure(now, from, to);
    }
    Ok(Reply::Done(0))
}

/// A namespace was flushed, or was not.
pub(crate) fn on_flushed(
    controller: &mut Controller,
    now: Duration,
    nsid: Nsid,
    then: AfterFlush,
    result: Result<(), BlockError>,
) -> Outcome {
    match result {
        // A namespace that was removed has nothing to wait for.
        Ok(()) | Err(BlockError::Gone) => flush_behind(controller, now, nsid, then),
        Err(error) => {
            if then == AfterFlush::WriteCacheOff {
                controller.association.set_write_cache(true);
            }
            Err(status::of_block_error(error, Direction::Write))
        }
    }
}
