//! What systemd is told. Outside of systemd, nothing happens.

use sd_notify::NotifyState;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The line for `systemctl status`.
static TOLD: Mutex<String> = Mutex::new(String::new());

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd could not be notified");
    }
}

/// Listening: dependents may start.
pub fn ready(status: &str) {
    is_news(&TOLD, status);
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// One line for `systemctl status`, if it is another one than was told last.
pub fn status(status: &str) {
    if is_news(&TOLD, status) {
        tell(&[NotifyState::Status(status)]);
    }
}

/// Whether this line is another one than the last.
fn is_news(told: &Mutex<String>, status: &str) -> bool {
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let is_news = *told != status;
    if is_news {
        status.clone_into(&mut told);
    }
    is_news
}

/// A reload begins; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(_) => tell(&[NotifyState::Reloading]),
    }
}

/// Has systemd keep a socket over a restart of the target, under a name: that needs `FileDescriptorStoreMax=` in the unit.
pub fn store(socket: &impl AsFd, name: &str) {
    let state = [NotifyState::FdStore, NotifyState::FdName(name)];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[socket.as_fd()]) {
        tracing::warn!(%error, "systemd does not keep {name}: hosts are refused while the target restarts");
    }
}

/// Has systemd close what it keeps under a name.
pub fn remove_stored(name: &str) {
    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// The end begins.
pub fn stopping() {
    let status = "draining";
    is_news(&TOLD, status);
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// systemd's watchdog: told at half of the time that it allows, while every worker turns.
#[derive(Debug)]
pub struct Watchdog {
    /// Half of the time that systemd allows; `None` when it does not watch.
    period: Option<Duration>,
    /// When it is told next.
    due: Cell<Duration>,
}

impl Watchdog {
    /// What systemd asks of this process; due at once.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self { period: sd_notify::watchdog_enabled().map(|interval| interval / 2), due: Cell::default() }
    }

    /// How long to wait for other things to do, at the most `most`.
    #[must_use]
    pub fn wait(&self, now: Duration, most: Duration) -> Duration {
        self.period.map_or(most, |_| self.due.get().saturating_sub(now).min(most))
    }

    /// Tells it, if that is due and every worker turns. Otherwise it is looked at again soon.
    pub fn tell(&self, now: Duration, all_turn: bool) {
        if self.poll(now, all_turn) {
            tell(&[NotifyState::Watchdog]);
        }
    }

    fn poll(&self, now: Duration, all_turn: bool) -> bool {
        let Some(period) = self.period.filter(|_| now >= self.due.get()) else { return false };
        self.due.set(now + if all_turn { period } else { period / 8 });
        all_turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn line_that_stays_is_told_once() {
        let told = Mutex::new(String::new());
        let lines = ["one", "one", "two", "two", "one"];
        assert_eq!(lines.map(|line| is_news(&told, line)), [true, false, true, false, true]);
    }

    #[test]
    fn watchdog_is_told_once_in_each_period() {
        let watchdog = Watchdog { period: Some(8 * SECOND), due: Cell::default() };
        // However often the daemon wakes up.
        let told: Vec<u32> = (0..30).filter(|&second| watchdog.poll(second * SECOND, true)).collect();
        assert_eq!(told, [0, 8, 16, 24]);
        assert_eq!(watchdog.wait(30 * SECOND, 5 * SECOND), 2 * SECOND);
        assert_eq!(watchdog.wait(30 * SECOND, SECOND), SECOND);
    }

    #[test]
    fn watchdog_hears_nothing_while_a_worker_hangs_and_soon_after() {
        let watchdog = Watchdog { period: Some(8 * SECOND), due: Cell::default() };
        let told: Vec<u32> = (0..30).filter(|&s| watchdog.poll(s * SECOND, !(5..14).contains(&s))).collect();
        assert_eq!(told, [0, 14, 22]);
        let stalled = Watchdog { period: Some(8 * SECOND), due: Cell::default() };
        assert!(!stalled.poll(SECOND, false) && stalled.wait(SECOND, 5 * SECOND) == SECOND);
    }

    #[test]
    fn daemon_that_nobody_watches_tells_nothing() {
        let watchdog = Watchdog { period: None, due: Cell::default() };
        assert!(!watchdog.poll(SECOND, true));
        assert_eq!(watchdog.wait(SECOND, 5 * SECOND), 5 * SECOND);
    }
}
