//! The log messages of a connection.

use crate::driver::DriverEvent;
use nvme_proto::Nqn;
use nvmf_host::AssociationError;
use std::net::SocketAddr;

/// Logs each event, but a failed attempt only when its reason is new: a target may be away for a day.
#[derive(Debug)]
pub(crate) struct Log {
    /// The subsystem: a process may have connections to many.
    nqn: Nqn,
    /// Why the last attempt failed.
    failed: Option<AssociationError>,
}

impl Log {
    pub(crate) fn of(nqn: Nqn) -> Self {
        Self { nqn, failed: None }
    }

    /// `path` gives the address of a path.
    pub(crate) fn on_event(&mut self, event: &DriverEvent, path: impl Fn(usize) -> SocketAddr) {
        let nqn = &self.nqn;
        match event {
            DriverEvent::Ready { after } => {
                self.failed = None;
                if let Some(after) = after {
                    tracing::info!(%nqn, "connected again after {:.1} s", after.as_secs_f64());
                }
            }
            DriverEvent::Lost(error) => tracing::warn!(%nqn, %error, "the association is lost: reconnecting"),
            DriverEvent::AttemptFailed(error) if self.failed.as_ref() == Some(error) => {
                tracing::debug!(%nqn, %error, "cannot connect again yet");
            }
            DriverEvent::AttemptFailed(error) => {
                tracing::warn!(%nqn, %error, "cannot connect again yet");
                self.failed = Some(error.clone());
            }
            DriverEvent::PathReady(number, after) => match after {
                Some(after) => {
                    tracing::info!(
                        %nqn, "path {} is connected again after {:.1} s",
                        path(*number),
                        after.as_secs_f64()
                    );
                }
                None => tracing::info!(%nqn, "path {} is connected", path(*number)),
            },
            DriverEvent::PathLost(number, error) => {
                tracing::warn!(%nqn, %error, "path {} is lost: I/O goes on over the others that give access", path(*number));
            }
            DriverEvent::PathFailed(number, error) => {
                tracing::debug!(%nqn, %error, "path {} cannot be connected yet", path(*number));
            }
            DriverEvent::PathForeign(number, nsid, mismatch) => tracing::error!(
                %nqn, "path {} shows another disk as namespace {nsid}: {mismatch}. It gets nothing of its I/O",
                path(*number)
            ),
            DriverEvent::Foreign(nsid, mismatch) => tracing::error!(
                %nqn, "namespace {nsid} is not the disk that was opened: {mismatch}. Nothing is sent to it; give the namespace its disk back, or close it and open it anew"
            ),
            DriverEvent::Restored(nsid) => {
                tracing::info!(%nqn, "namespace {nsid} is the disk that was opened again: its I/O goes on");
            }
            DriverEvent::GaveUp => {
                tracing::error!(%nqn, "the controller is given up: all I/O fails from now on");
            }
            DriverEvent::AuthenticatedAgain => tracing::info!(%nqn, "authenticated again"),
            DriverEvent::NamespacesChanged
            | DriverEvent::PathWaits(_)
            | DriverEvent::Admin(..)
            | DriverEvent::Closed => {}
        }
    }
}
