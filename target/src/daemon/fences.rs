//! Images whose client the cluster has fenced, of a target that is in no group.
//!
//! librbd mostly gives such a client up for good, if it hears of the fence while that stands. Who slept meanwhile goes on when it
//! has ended, and nobody notices. Nothing is opened anew by itself: somebody has fenced it so that another client could write, and
//! the new connection would not be fenced. In a group of gateways its engine decides.

use super::Daemon;
use crate::exports::Export;

impl Daemon {
    /// Says so of those of which an operation or a look has found it, for as long as they are open: once in the log.
    pub(super) fn note_fenced(&mut self) {
        for export in &mut self.namespaces.open {
            let fault = fenced(export);
            if let Some(text) = fault.filter(|text| export.look_fault.as_ref() != Some(text)) {
                tracing::error!("{} namespace {}: {text}", export.nqn, export.namespace.nsid);
                export.look_fault = Some(text);
            }
        }
    }
}

/// What is said of a disk whose client was fenced, if it was.
pub(super) fn fenced(export: &Export) -> Option<String> {
    let is_fenced = export.shared.is_none() && export.disk.is_fenced();
    is_fenced.then(|| {
        format!(
            "the cluster has fenced this client of {} (ceph osd blocklist ls), and writes fail from then on, mostly also when the fence \
             has ended. Find out who fenced it, as another client may serve the image now; then remove the namespace (`ctl \
             namespace remove`) and add it again, which makes a new connection, or restart the target",
            export.backing()
        )
    })
}
