//! One controller's life: connect → enable → identify → ready → shut down or lost.

mod action;
mod config;
mod error;
mod info;

pub use action::{Action, AdminData, CommandId, Reply};
pub use config::{AssociationConfig, Purpose};
pub use error::{AssociationError, Gate, InvalidParameter, QueueFailure, RejectStatus};
pub use info::ControllerInfo;

use crate::discovery::DiscoveryLog;
use crate::{Namespace, Nsid, Qid, Violation};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

/// What an association is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Connecting a queue: RDMA connection, then Connect.
    Connecting(Qid),
    /// Properties: CAP, VS, CC.EN, CSTS.RDY.
    Enabling,
    /// Identify, Set Features, namespaces; for discovery, the log page.
    Identifying,
    /// In use.
    Ready,
    /// CC.SHN is set; waiting for CSTS.SHST.
    ShuttingDown,
    /// Waiting for the connections to be gone.
    Closing,
    /// The end.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting(qid) => write!(f, "connecting queue {}", qid.0),
            Self::Enabling => f.write_str("enabling the controller"),
            Self::Identifying => f.write_str("identifying the controller"),
            Self::Ready => f.write_str("in use"),
            Self::ShuttingDown => f.write_str("shutting the controller down"),
            Self::Closing => f.write_str("closing the connections"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// One association, from the first connection to the last. Made anew for every reconnect.
#[derive(Debug)]
pub struct Association {
    config: AssociationConfig,
    state: State,
    actions: VecDeque<Action>,
    controller: ControllerInfo,
    namespaces: Vec<Namespace>,
    log: DiscoveryLog,
}

impl Association {
    /// Starts: the first action is to open the admin queue.
    ///
    /// # Errors
    /// [`AssociationError::Config`].
    pub fn new(config: AssociationConfig, now: Duration) -> Result<Self, AssociationError> {
        if let Some(fault) = config.fault() {
            return Err(AssociationError::Config(fault));
        }
        let _ = now;
        Ok(Self {
            config,
            state: State::Connecting(Qid(0)),
            actions: VecDeque::new(),
            controller: ControllerInfo::default(),
            namespaces: Vec::new(),
            log: DiscoveryLog::default(),
        })
    }

    /// What to do next. Drain it after every call of another method.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Association::on_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Duration) {
        let _ = now;
    }

    /// A queue's connection is up, with this private data from the acceptor. Gives the entries that the queue may use: give them to
    /// [`crate::Queue::agree`] before the Connect command is taken from [`Association::poll_action`]. `None`: the association failed over it.
    pub fn on_queue_connected(&mut self, now: Duration, qid: Qid, private_data: &[u8]) -> Option<u16> {
        let _ = (now, qid, private_data);
        None
    }

    /// A queue's connection did not come up.
    pub fn on_queue_failed(&mut self, now: Duration, qid: Qid, failure: QueueFailure) {
        let _ = (now, qid, failure);
    }

    /// A queue's connection is gone, or cannot take a command.
    pub fn on_disconnected(&mut self, now: Duration, qid: Qid, cause: &str) {
        let _ = (now, qid, cause);
    }

    /// A command of the association's is completed.
    pub fn on_completion(&mut self, now: Duration, id: CommandId, reply: Reply<'_>) {
        let _ = (now, id, reply);
    }

    /// A queue saw the controller break the protocol.
    pub fn on_violation(&mut self, now: Duration, violation: Violation) {
        let _ = (now, violation);
    }

    /// A command of the caller's was not completed by its deadline: the association is given up.
    pub fn on_command_timeout(&mut self, now: Duration, qid: Qid) {
        let _ = (now, qid);
    }

    /// A command of the caller's was completed: where the controller counts traffic as life, the next Keep Alive can wait.
    pub fn on_traffic(&mut self, now: Duration) {
        let _ = now;
    }

    /// Ends the association in good order.
    pub fn shutdown(&mut self, now: Duration) {
        let _ = now;
    }

    /// After [`Action::CloseQueues`]: all queue pairs are gone.
    pub fn on_closed(&mut self, now: Duration) {
        let _ = now;
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// What the controller is; complete from [`Action::Ready`] on.
    #[must_use]
    pub fn controller(&self) -> &ControllerInfo {
        &self.controller
    }

    /// Its active namespaces that have a usable format, by NSID.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// One of them.
    #[must_use]
    pub fn namespace(&self, nsid: Nsid) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.nsid == nsid)
    }

    /// The discovery log as last read; empty for an I/O association.
    #[must_use]
    pub fn discovery_log(&self) -> &DiscoveryLog {
        &self.log
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &AssociationConfig {
        &self.config
    }
}
