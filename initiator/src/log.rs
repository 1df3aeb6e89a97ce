//! The log messages of a connection.

use crate::driver::DriverEvent;
use nvme_proto::{Nqn, Nsid};
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

    /// `path` gives the address of a path; `without_access` is a namespace that no path gives access to.
    pub(crate) fn on_event(
        &mut self,
        event: &DriverEvent,
        path: impl Fn(usize) -> SocketAddr,
        without_access: Option<Nsid>,
    ) {
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
                let path = path(*number);
                match without_access {
                    None => tracing::warn!(%nqn, %error, "path {path} is lost: I/O goes on over the others"),
                    Some(nsid) => tracing::warn!(
                        %nqn, %error, "path {path} is lost, and none that is left gives access to namespace {nsid}"
                    ),
                }
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
            DriverEvent::NoAccess(nsid) => tracing::warn!(
                %nqn, "no path gives access to namespace {nsid} (ANA): its I/O waits until the target gives it"
            ),
            DriverEvent::AccessAgain(nsid) => {
                tracing::info!(%nqn, "a path gives access to namespace {nsid} again: its I/O goes on");
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Debug;
    use std::sync::{Arc, Mutex};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    /// Levels and messages, but for what is for debugging.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

    struct Message<'a>(&'a mut String);

    impl Visit for Message<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" {
                *self.0 = format!("{value:?}");
            }
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::INFO
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut message = String::new();
            event.record(&mut Message(&mut message));
            self.0.lock().unwrap().push((*event.metadata().level(), message));
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// The line of an event.
    fn said(event: &DriverEvent, without_access: Option<Nsid>) -> (Level, String) {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            Log::of(Nqn::DISCOVERY).on_event(event, |_| ([192, 0, 2, 1], 4420).into(), without_access);
        });
        let mut lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }

    #[test]
    fn loss_of_a_path_says_whether_io_goes_on() {
        let lost = DriverEvent::PathLost(0, AssociationError::ControllerFatal);
        let (level, line) = said(&lost, None);
        assert!(level == Level::WARN && line.contains("I/O goes on over the others"), "{line}");
        let (level, line) = said(&lost, Some(Nsid(1)));
        assert!(level == Level::WARN && line.contains("gives access to namespace 1"), "{line}");
        assert!(!line.contains("goes on"), "{line}");
    }

    #[test]
    fn end_and_return_of_access_are_said() {
        let (level, line) = said(&DriverEvent::NoAccess(Nsid(1)), Some(Nsid(1)));
        assert!(level == Level::WARN && line.contains("no path gives access to namespace 1 (ANA)"), "{line}");
        let (level, line) = said(&DriverEvent::AccessAgain(Nsid(1)), None);
        assert!(level == Level::INFO && line.contains("its I/O goes on"), "{line}");
    }
}
