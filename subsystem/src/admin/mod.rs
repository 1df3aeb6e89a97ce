//! Admin commands: one file for each kind.

pub(crate) mod abort;
mod error_log;
mod event;
pub(crate) mod features;
pub(crate) mod flush;
pub(crate) mod identify;
pub(crate) mod log_page;
mod reservation;

pub(crate) use error_log::ErrorLog;
pub(crate) use event::{Events, Notification};
pub(crate) use features::Features;
pub(crate) use flush::AfterFlush;

use nvme_proto::Nsid;

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
    /// A namespace is being flushed; those behind it follow.
    Flush { nsid: Nsid, then: AfterFlush },
}
