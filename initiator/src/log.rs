//! The log messages of a connection.

use crate::driver::DriverEvent;
use nvmf_host::AssociationError;
use std::net::SocketAddr;

/// Logs each event, but a failed attempt only when its reason is new: a target may be away for a day.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Why the last attempt failed.
    failed: Option<AssociationError>,
}

impl Log {
    /// `path` gives the address of a path.
    pub(crate) fn on_event(&mut self, event: &DriverEvent, path: impl Fn(usize) -> SocketAddr) {
        match event {
            DriverEvent::Ready { after } => {
                self.failed = None;
                if let Some(after) = after {
                    tracing::info!("connected again after {:.1} s", after.as_secs_f64());
                }
            }
            DriverEvent::Lost(error) => tracing::warn!(%error, "the association is lost: reconnecting"),
            DriverEvent::AttemptFailed(error) if self.failed.as_ref() == Some(error) => {
                tracing::debug!(%error, "cannot connect again yet");
            }
            DriverEvent::AttemptFailed(error) => {
                tracing::warn!(%error, "cannot connect again yet");
                self.failed = Some(error.clone());
            }
            DriverEvent::PathReady(number, after) => match after {
                Some(after) => {
                    tracing::info!(
                        "path {} is connected again after {:.1} s",
                        path(*number),
                        after.as_secs_f64()
                    );
                }
                None => tracing::info!("path {} is connected", path(*number)),
            },
            DriverEvent::PathLost(number, error) => {
                tracing::warn!(%error, "path {} is lost: I/O goes on over the others", path(*number));
            }
            DriverEvent::PathFailed(number, error) => {
                tracing::debug!(%error, "path {} cannot be connected yet", path(*number));
            }
            DriverEvent::PathForeign(number, nsid, mismatch) => tracing::error!(
                "path {} shows another disk as namespace {nsid}: {mismatch}. It gets nothing of its I/O",
                path(*number)
            ),
            DriverEvent::Foreign(nsid, mismatch) => tracing::error!(
                "namespace {nsid} is not the disk that was opened: {mismatch}. Its I/O waits; give the namespace its disk back, or close it and open it anew"
            ),
            DriverEvent::Restored(nsid) => {
                tracing::info!("namespace {nsid} is the disk that was opened again: its I/O goes on");
            }
            DriverEvent::GaveUp => {
                tracing::error!("the controller is given up: all I/O fails from now on");
            }
            DriverEvent::AuthenticatedAgain => tracing::info!("authenticated again"),
            DriverEvent::NamespacesChanged
            | DriverEvent::PathWaits(_)
            | DriverEvent::Admin(..)
            | DriverEvent::Closed => {}
        }
    }
}
