//! One association with a controller: connect → enable → identify → ready → shut down or lost.
//!
//! | file | what it does |
//! |---|---|
//! | `setup` | the sequence from the admin queue's connection to ready |
//! | `reset` | Cross-Controller Reset of a controller that was lost |
//! | `ana` | how namespaces can be reached (ANA) |
//! | `authentication` | DH-HMAC-CHAP, where the controller asks for it |
//! | `namespaces` | which there are, now and after a change; the discovery log |
//! | `keep_alive` | Keep Alive and asynchronous events |
//! | `closing` | shutdown, failure, the end |
//! | `identify` | what Identify Controller says, and what makes a controller unusable |

mod action;
mod ana;
mod authentication;
mod closing;
mod config;
mod error;
mod identify;
mod info;
mod keep_alive;
mod namespaces;
mod pace;
mod reset;
mod setup;

#[cfg(test)]
mod tests;

pub use action::{Action, AdminData, CommandId, Reply};
pub use authentication::AuthenticationConfig;
pub use config::{AssociationConfig, Purpose};
pub use error::{AssociationError, Gate, QueueFailure, Rejection};
pub use info::ControllerInfo;

use crate::admin::AdminCommand;
use crate::discovery::{DiscoveryLog, LogReader};
use crate::{Namespace, Nsid, Qid};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use ana::Ana;
use authentication::{Asks, Run};
use core::fmt;
use core::time::Duration;
use keep_alive::KeepAlive;
use namespaces::Scan;
use pace::Pace;
use reset::Reset;
use setup::Setup;

/// What an association is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Connecting a queue: the transport's connection, then Connect.
    Connecting(Qid),
    /// DH-HMAC-CHAP of a queue, after its Connect.
    Authenticating(Qid),
    /// Properties: CAP, VS, CC.EN, CSTS.RDY.
    Enabling,
    /// Identify, Set Features, namespaces; for discovery, the log page.
    Identifying,
    /// In use.
    Ready,
    /// CC.SHN is set; waiting for CSTS.SHST.
    ShuttingDown,
    /// Waiting for the connections to be gone. The caller closes them; how long it may take is [`crate::Recovery`]'s to say.
    Closing,
    /// The end.
    Closed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting(qid) => write!(f, "connecting queue {}", qid.0),
            Self::Authenticating(qid) => write!(f, "authenticating queue {}", qid.0),
            Self::Enabling => f.write_str("enabling the controller"),
            Self::Identifying => f.write_str("identifying the controller"),
            Self::Ready => f.write_str("in use"),
            Self::ShuttingDown => f.write_str("shutting the controller down"),
            Self::Closing => f.write_str("closing the connections"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

/// What the association's own sequence waits for: one thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The transport's connection of a queue.
    Transport(Qid),
    Connect(Qid),
    AuthenticationSend(Qid),
    AuthenticationReceive(Qid),
    /// The caller computes.
    AuthenticationCompute(Qid),
    Capabilities,
    Version,
    Enable,
    /// CSTS.RDY; between two looks, `look_at` is set.
    AwaitReady,
    IdentifyController,
    IdentifyNvm,
    NumberOfQueues,
    EventConfiguration,
    ChangedNamespaces,
    ActiveNamespaces,
    Namespace,
    Descriptors,
    IndependentNamespace,
    /// The ANA log page.
    Access,
    Log,
    /// Nothing: in use.
    Idle,
    NotifyShutdown,
    /// CSTS.SHST; between two looks, `look_at` is set.
    AwaitShutdown,
    /// Nothing more is sent.
    Over,
}

/// What an outstanding command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandRole {
    Step,
    KeepAlive,
    EventRequest,
    Reset,
}

/// One association, from the first connection to the last. Made anew for every reconnect.
#[derive(Debug)]
pub struct Association {
    config: AssociationConfig,
    state: State,
    actions: VecDeque<Action>,
    /// Outstanding commands: at most [`crate::limits::ASSOCIATION_COMMANDS_MAX`].
    pending: Vec<(CommandId, CommandRole)>,
    next_id: u32,
    step: Step,
    /// When the step fails.
    step_deadline: Option<Duration>,
    /// When the set-up fails, whatever its step; `None` afterwards.
    setup_deadline: Option<Duration>,
    /// When CSTS is read again.
    look_at: Option<Duration>,
    setup: Setup,
    authentication: Option<Box<Run>>,
    /// Where the controller asks for it.
    asks: Asks,
    /// It has made the key for TLS, which every connection has from then on.
    concatenated: bool,
    /// The last authentication's number.
    transaction: u16,
    scan: Scan,
    scan_pace: Pace,
    ana: Ana,
    reset: Option<Reset>,
    keep_alive: KeepAlive,
    reader: LogReader,
    controller: ControllerInfo,
    namespaces: Vec<Namespace>,
    /// Active namespaces that the controller could not describe when it was asked last.
    unknown_namespaces: Vec<Nsid>,
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
        let setup_deadline = config.setup_timeout.map(|most| now.saturating_add(most));
        let mut association = Self {
            keep_alive: KeepAlive::new(&config),
            config,
            state: State::Connecting(Qid(0)),
            actions: VecDeque::new(),
            pending: Vec::new(),
            next_id: 0,
            step: Step::Over,
            step_deadline: None,
            setup_deadline,
            look_at: None,
            setup: Setup::default(),
            authentication: None,
            asks: Asks::Nowhere,
            concatenated: false,
            transaction: 0,
            scan: Scan::default(),
            scan_pace: Pace::default(),
            ana: Ana::default(),
            reset: None,
            reader: LogReader::default(),
            controller: ControllerInfo::default(),
            namespaces: Vec::new(),
            unknown_namespaces: Vec::new(),
            log: DiscoveryLog::default(),
        };
        association.open_queue(now, Qid(0));
        Ok(association)
    }

    /// What to do next. Drain it after every call of another method.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Association::on_timeout`] must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let reset = self.reset.as_ref().map(Reset::poll_timeout);
        let own = [self.step_deadline, self.setup_deadline, self.look_at, self.keep_alive.poll_timeout()];
        own.into_iter()
            .chain([self.ana.poll_timeout().filter(|_| self.state == State::Ready), reset])
            .flatten()
            .min()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        if due(self.step_deadline) || due(self.setup_deadline) {
            return self.on_step_timeout();
        }
        if due(self.look_at) {
            self.look_at = None;
            self.read_status();
        }
        self.on_ana_timeout(now);
        self.on_reset_timeout(now);
        self.on_keep_alive_timeout(now);
    }

    /// A queue's connection is up; over RDMA with this private data from the acceptor. Gives the entries that the queue may use: give them to
    /// [`crate::Queue::agree`] before the Connect command is taken from [`Association::poll_action`]. `None`: the association failed
    /// over it, or does not wait for this queue.
    pub fn on_queue_connected(&mut self, now: Duration, qid: Qid, private_data: &[u8]) -> Option<u16> {
        if self.step != Step::Transport(qid) {
            return None;
        }
        match self.on_transport(now, qid, private_data) {
            Ok(entries) => Some(entries),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// A queue's connection did not come up.
    pub fn on_queue_failed(&mut self, _now: Duration, qid: Qid, failure: QueueFailure) {
        if self.step == Step::Transport(qid) {
            self.fail(AssociationError::Queue { qid, failure });
        }
    }

    /// A command of the association's is completed. One that it no longer waits for is ignored.
    pub fn on_completion(&mut self, now: Duration, id: CommandId, reply: Reply<'_>) {
        let Some(at) = self.pending.iter().position(|(pending, _)| *pending == id) else { return };
        let (_, role) = self.pending.swap_remove(at);
        let result = match role {
            CommandRole::Step => self.on_step(now, reply),
            CommandRole::KeepAlive => self.on_keep_alive(reply.outcome),
            CommandRole::EventRequest => {
                self.on_event(now, reply.outcome);
                Ok(())
            }
            CommandRole::Reset => {
                self.on_reset(now, reply);
                Ok(())
            }
        };
        if let Err(error) = result {
            self.fail(error);
        }
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

    /// Its active namespaces that have a usable format (NVM command set, no metadata), by NSID.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// One of them.
    #[must_use]
    pub fn namespace(&self, nsid: Nsid) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.nsid == nsid)
    }

    /// Whether a namespace is active but could not be described when the controller was asked last. It will be asked again; until then
    /// nobody knows which disk it is.
    #[must_use]
    pub fn is_unknown(&self, nsid: Nsid) -> bool {
        self.unknown_namespaces.contains(&nsid)
    }

    /// Whether the namespaces are being looked at after a change, or are to be because a look failed: which disk is where is not known
    /// before that is over.
    /// How they can be reached (ANA) is another question: a command for one that cannot be is refused.
    #[must_use]
    pub fn is_scanning(&self) -> bool {
        let asks_access_only = self.step == Step::Access && !self.scan.changed && !self.keep_alive.scan_again;
        self.state == State::Ready && (self.scan.is_owed || self.step != Step::Idle && !asks_access_only)
    }

    /// Looks at the namespaces again, after a completion that raises a doubt about one of them. [`Action::NamespacesChanged`] follows if
    /// something changed.
    pub fn scan(&mut self, now: Duration) {
        if self.state == State::Ready && self.config.purpose == Purpose::Io {
            self.request_scan(now);
        }
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

    /// Sends the sequence's next command, with the deadline of any admin command, or of one of the set-up.
    fn send_step(&mut self, now: Duration, step: Step, command: AdminCommand) {
        let most = match self.state {
            State::Ready => self.config.admin_timeout,
            _ => self.config.setup_command_timeout,
        };
        self.step_deadline = Some(now.saturating_add(most));
        self.send_step_within_deadline(step, command);
    }

    /// The same under the deadline that is there.
    fn send_step_within_deadline(&mut self, step: Step, command: AdminCommand) {
        self.step = step;
        let qid = match step {
            Step::Connect(qid) | Step::AuthenticationSend(qid) | Step::AuthenticationReceive(qid) => qid,
            _ => Qid(0),
        };
        self.send(qid, CommandRole::Step, command);
    }

    fn send(&mut self, qid: Qid, role: CommandRole, AdminCommand { command, data }: AdminCommand) {
        let id = CommandId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        self.pending.push((id, role));
        self.actions.push_back(Action::Send { qid, id, command, data });
    }

    /// Dispatches the completion of the sequence's command.
    fn on_step(&mut self, now: Duration, reply: Reply<'_>) -> Result<(), AssociationError> {
        match self.step {
            Step::Connect(_)
            | Step::Capabilities
            | Step::Version
            | Step::Enable
            | Step::AwaitReady
            | Step::IdentifyController
            | Step::IdentifyNvm
            | Step::NumberOfQueues
            | Step::EventConfiguration => self.on_setup_step(now, reply),
            Step::AuthenticationSend(_) | Step::AuthenticationReceive(_) => {
                self.on_authentication_step(now, reply)
            }
            Step::ChangedNamespaces
            | Step::ActiveNamespaces
            | Step::Namespace
            | Step::Descriptors
            | Step::IndependentNamespace
            | Step::Log => self.on_scan_step(now, reply),
            Step::Access => {
                self.on_ana_step(now, reply);
                Ok(())
            }
            Step::NotifyShutdown | Step::AwaitShutdown => {
                self.on_shutdown_step(now, reply.outcome);
                Ok(())
            }
            Step::Transport(_) | Step::AuthenticationCompute(_) | Step::Idle | Step::Over => Ok(()),
        }
    }
}
