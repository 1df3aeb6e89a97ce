//! The device goes away under its connections.

use crate::connection::Role;
use crate::provider::VerbsProvider;
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{CmEvent, QueuePairId};

/// Whether the device is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    No,
    /// It is gone, and its connections are being ended.
    Ending,
    /// The caller got the event.
    Reported,
}

impl VerbsProvider {
    pub(crate) fn is_lost(&self) -> bool {
        self.lost != Lost::No
    }

    /// The device is gone, or no longer works: ends every connection, and uses it no more.
    pub(crate) fn lose(&mut self) {
        if self.is_lost() {
            return;
        }
        self.lost = Lost::Ending;
        // They stay readable from now on, with nothing to read.
        for fd in [self.completion_channel.fd(), self.channel.fd(), self.device.async_fd()] {
            self.watched.remove(fd);
        }
        for request in self.requests.keys().collect::<Vec<_>>() {
            self.requests.remove(request);
        }
        self.listeners = Slots::new(0);
        self.roles.retain(|_, role| matches!(role, Role::QueuePair(_)));
        self.events.retain(|event| !matches!(event, CmEvent::ConnectRequest { .. }));
        for name in self.queue_pairs.keys().map(QueuePairId).collect::<Vec<_>>() {
            self.lose_device(name);
        }
    }

    /// Reports it to the caller, once its connections have ended.
    pub(crate) fn report_loss(&mut self) {
        if self.lost == Lost::Ending && self.attended.is_empty() {
            self.lost = Lost::Reported;
            self.events.push_back(CmEvent::DeviceRemoved);
        }
    }
}
