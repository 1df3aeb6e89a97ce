//! What systemd is told. Outside of systemd, nothing happens.

use sd_notify::NotifyState;
use std::time::Duration;

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd could not be notified");
    }
}

/// Listening: dependents may start.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// One line for `systemctl status`.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// A reload begins; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// The end begins.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Every worker turns.
pub fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often [`alive`] is due: half of what systemd allows; `None` when it does not watch.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|interval| interval / 2)
}
