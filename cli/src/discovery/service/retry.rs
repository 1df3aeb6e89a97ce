//! Trying again what could not be reached, ever more seldom, and saying why each time that it is another reason.

use super::Event;
use super::limits::{RETRY_DELAY, RETRY_DELAY_MAX};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

pub(super) struct Retry {
    delay: Duration,
    /// Why it could not be reached last.
    before: String,
}

impl Retry {
    pub(super) fn new() -> Self {
        Self { delay: RETRY_DELAY, before: String::new() }
    }

    /// It cannot be reached.
    pub(super) fn failed(&mut self, tell: &UnboundedSender<Event>, reason: String) {
        if reason != self.before {
            let _ = tell.send(Event::Failed(reason.clone()));
            self.before = reason;
        }
    }

    /// Until it is tried again.
    pub(super) async fn wait(&mut self) {
        sleep(self.delay).await;
        self.delay = (self.delay * 2).min(RETRY_DELAY_MAX);
    }
}
