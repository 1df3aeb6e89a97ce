//! Messages between workers, and from the daemon to them.

use crate::barrier::Barrier;
use crate::exec::place::Place;
use crate::metrics::slowest::SlowCommand;
use crate::qos::LimitTable;
use nvmf_subsystem::{Answer, AssociationKey, Notice, Question};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// A worker of the daemon, from 0. Worker 0 listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub usize);

/// A command's question to the control plane, and where its answer goes.
#[derive(Debug)]
pub struct Asked {
    /// Who asks.
    pub worker: WorkerId,
    /// For which command.
    pub place: Place,
    /// Tells the command from later ones at its place.
    pub serial: u64,
    /// What it asks.
    pub question: Box<Question>,
}

/// Where an answer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// [`Asked::worker`].
    pub worker: WorkerId,
    /// [`Asked::place`].
    pub place: Place,
    /// [`Asked::serial`].
    pub serial: u64,
}

/// The answer to what was [`Asked`].
#[derive(Debug)]
pub struct Answered {
    /// [`Asked::place`].
    pub place: Place,
    /// [`Asked::serial`].
    pub serial: u64,
    /// The outcome.
    pub answer: Answer,
}

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
    /// Say when what came before is in force ([`Barrier::reach`]).
    Barrier(Arc<Barrier>),
    /// These limits hold from now on.
    Limits(Arc<LimitTable>),
    /// A question of a command was answered.
    Answer(Box<Answered>),
    /// Say whose operations keep a barrier from being reached. Who hears nothing more has heard of all.
    TellHolders(Arc<Barrier>, Sender<AssociationKey>),
    /// Say which commands were the slowest since the last such message.
    TakeSlowest(Sender<Vec<SlowCommand>>),
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
            Self::Adopt(_) | Self::Answer(_) => None,
            Self::CloseIoQueues(key) => Some(Self::CloseIoQueues(*key)),
            Self::CloseAssociation(key) => Some(Self::CloseAssociation(*key)),
            Self::Notice(notice) => Some(Self::Notice(notice.clone())),
            Self::Barrier(barrier) => Some(Self::Barrier(Arc::clone(barrier))),
            Self::TellHolders(barrier, tell) => Some(Self::TellHolders(Arc::clone(barrier), tell.clone())),
            Self::TakeSlowest(tell) => Some(Self::TakeSlowest(tell.clone())),
            Self::Limits(table) => Some(Self::Limits(Arc::clone(table))),
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
            Self::Barrier(barrier) => WorkerMessage::Barrier(barrier),
            Self::Answer(answered) => WorkerMessage::Answer(answered),
            Self::TellHolders(barrier, tell) => WorkerMessage::TellHolders(barrier, tell),
            Self::TakeSlowest(tell) => WorkerMessage::TakeSlowest(tell),
            Self::Limits(table) => WorkerMessage::Limits(table),
            Self::Drain => WorkerMessage::Drain,
            Self::Close => WorkerMessage::Close,
        })
    }
}
