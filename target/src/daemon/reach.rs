//! Whether hosts can come to where it listens: an address may be taken away, and a link be lost, while the socket is there.

use super::Daemon;
use crate::machine::Addresses;

impl Daemon {
    /// Looks at the addresses of all listeners, by one question to the system.
    pub(super) fn look_at_addresses(&mut self) {
        // Who learns nothing goes on with what is known.
        let Ok(addresses) = Addresses::read() else { return };
        for listener in &mut self.listeners {
            if !listener.note_obstacle(addresses.obstacle(listener.address().ip())) {
                continue;
            }
            match listener.obstacle() {
                Some(text) => tracing::error!("{text}"),
                None => tracing::info!("hosts can come to {} again", listener.describe()),
            }
            // What follows, in a group of gateways, begins at once.
            self.common.waker.wake();
        }
    }
}
