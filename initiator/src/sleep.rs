//! Sleeps until the driver has something to do.

use crate::driver::Driver;
use crate::transport::Transport;
use core::time::Duration;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::BorrowedFd;

/// The longest sleep: a bound on the effect of a missed wake-up.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(5);
/// Descriptors that can be watched at once, the transport's included.
const WATCHED_MAX: usize = 4;

/// Has the transport's descriptor become readable at what comes next. For how long to sleep then, at most; `None` when there
/// is something to poll already.
pub(crate) fn arm<T: Transport>(driver: &mut Driver<T>, now: Duration, most: Duration) -> Option<Duration> {
    if !driver.arm() {
        return None;
    }
    let most = most.min(SLEEP_MAX);
    Some(driver.poll_timeout().map_or(most, |at| at.saturating_sub(now)).min(most))
}

/// Sleeps until the transport has something to poll, one of `others` (at most three) is readable, the driver's next
/// deadline has come, or `most` is over.
/// Returns at once when there is something to poll already.
pub(crate) fn sleep<T: Transport>(
    driver: &mut Driver<T>,
    now: Duration,
    most: Duration,
    others: &[BorrowedFd<'_>],
) {
    let Some(until) = arm(driver, now, most) else { return };
    // Rounded up, so that a deadline is past when we wake for it.
    let timeout = PollTimeout::try_from(until + Duration::from_micros(999)).unwrap_or(PollTimeout::ZERO);
    let descriptors = || others.iter().copied().chain(driver.fd());
    let count = descriptors().count();
    assert!(count <= WATCHED_MAX, "{count} descriptors to sleep on");
    let Some(any) = descriptors().next() else { return std::thread::yield_now() };
    let mut rest = descriptors();
    let mut watched: [PollFd<'_>; WATCHED_MAX] =
        core::array::from_fn(|_| PollFd::new(rest.next().unwrap_or(any), PollFlags::POLLIN));
    match poll(&mut watched[..count], timeout) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => tracing::error!(%errno, "poll failed"),
    }
}
