//! Whether hosts can come to where it listens: an address may be taken away, and a link be lost, while the socket is there.

use super::Daemon;
use crate::machine::Addresses;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// A look at the machine's addresses that is under way. The kernel answers when no driver of a network card is busy: a thread
/// of its own waits for that.
#[derive(Debug, Default)]
pub(super) struct AddressLook {
    told: Option<Receiver<io::Result<Addresses>>>,
}

impl Daemon {
    /// Begins to look at the addresses of all listeners, by one question to the system, unless that is under way.
    pub(super) fn look_at_addresses(&mut self) {
        if self.addresses.told.is_some() {
            return;
        }
        let ((tell, told), waker) = (channel(), self.common.waker.clone());
        let body = move || {
            let _ = tell.send(Addresses::read());
            waker.wake();
        };
        // No thread: it is tried again.
        if std::thread::Builder::new().name("addresses".into()).spawn(body).is_ok() {
            self.addresses.told = Some(told);
        }
    }

    /// Takes what was found.
    pub(super) fn collect_addresses(&mut self) {
        let Some(told) = &self.addresses.told else { return };
        let seen = match told.try_recv() {
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => None,
            // Who learns nothing goes on with what is known.
            Ok(seen) => seen.ok(),
        };
        self.addresses.told = None;
        let Some(addresses) = seen else { return };
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
