//! Admin commands: one file for each kind.

pub(crate) mod abort;
mod error_log;
mod event;
pub(crate) mod features;
pub(crate) mod flush;
pub(crate) mod identify;
pub(crate) mod log_page;
mod reservation;
pub(crate) mod reset;
pub(crate) mod write_protection;

pub(crate) use error_log::{ErrorLog, is_error};
pub(crate) use event::{Events, Notification};
pub(crate) use features::Features;
pub(crate) use flush::AfterFlush;
pub(crate) use reset::Resets;

use nvme_proto::Nsid;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_block::DeviceId;

/// What is left to do when the transport is done with an Admin command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdminKind {
    /// Nothing: a page was sent.
    Page,
    /// The data of the Timestamp feature are being transferred.
    Timestamp,
    /// The data of the Host Behavior Support feature are being transferred.
    HostBehavior,
    /// The control plane does the rest.
    Asked,
    /// It resets this controller.
    Reset(ControllerInstance),
    /// The control plane protects the namespace of this device; then it is flushed.
    Protect(DeviceId),
    /// A namespace is being flushed; those behind it follow.
    Flush { nsid: Nsid, then: AfterFlush },
}
