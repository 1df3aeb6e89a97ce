//! Messages between workers, and from the daemon to them.

use nvmf_subsystem::{AssociationKey, Notice};

/// A worker of the daemon, from 0. Worker 0 listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkerId(pub usize);

/// A message to a worker. `D` is the transport's [`crate::exec::transport::Transport::Detached`].
#[derive(Debug)]
pub enum WorkerMessage<D> {
    /// Take over a connection.
    Adopt(D),
    /// The controller was reset, or its Admin queue is gone: close its I/O queues.
    CloseIoQueues(AssociationKey),
    /// The association is over: close all its queues at once.
    CloseAssociation(AssociationKey),
    /// The registry has news.
    Notice(Notice),
    /// Stop listening, take no further command, finish those under way, close every queue that has none.
    Drain,
    /// Close every queue at once.
    Close,
}

/// Whom a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// One worker.
    Worker(WorkerId),
    /// Every worker but the sender.
    Others,
}

impl<D> WorkerMessage<D> {
    /// The same for another recipient, if it can be said twice.
    #[must_use]
    pub fn copy(&self) -> Option<Self> {
        match self {
            Self::Adopt(_) => None,
            Self::CloseIoQueues(key) => Some(Self::CloseIoQueues(*key)),
            Self::CloseAssociation(key) => Some(Self::CloseAssociation(*key)),
            Self::Notice(notice) => Some(Self::Notice(notice.clone())),
            Self::Drain => Some(Self::Drain),
            Self::Close => Some(Self::Close),
        }
    }

    /// The same with the connection that it hands over, if it does, in another form; `None` if it has none there.
    #[must_use]
    pub fn convert<E>(self, convert: impl FnOnce(D) -> Option<E>) -> Option<WorkerMessage<E>> {
        Some(match self {
            Self::Adopt(detached) => WorkerMessage::Adopt(convert(detached)?),
            Self::CloseIoQueues(key) => WorkerMessage::CloseIoQueues(key),
            Self::CloseAssociation(key) => WorkerMessage::CloseAssociation(key),
            Self::Notice(notice) => WorkerMessage::Notice(notice),
            Self::Drain => WorkerMessage::Drain,
            Self::Close => WorkerMessage::Close,
        })
    }
}
