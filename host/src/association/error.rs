//! Why an association failed: which layer, what, and what to do.

use super::State;
use crate::{Cntlid, Qid, Status, Violation};
use alloc::string::String;
use core::fmt;
use core::time::Duration;
use nvme_proto::fabrics::connect::InvalidParameter;
use nvme_proto::rdma::{RejectData, RejectStatus};
use nvmf_auth::host::HostError;
use thiserror::Error;

/// Why a queue's connection did not come up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QueueFailure {
    /// No way leads there, or nobody listens.
    #[error("cannot reach the controller ({0}); check the address, the port, the transport and the network")]
    Unreachable(String),
    /// The controller's transport rejected the connection.
    #[error("the controller rejected the connection: {0}")]
    Rejected(Rejection),
    /// No answer in time.
    #[error("no answer to the connection request; check the fabric and the target's load")]
    TimedOut,
    /// The peer answers, but not as the transport does, or the local side failed.
    #[error("the connection set-up failed: {0}")]
    Other(String),
}

impl QueueFailure {
    /// From the private data of a rejected connection.
    #[must_use]
    pub fn from_reject(private_data: &[u8]) -> Self {
        Self::Rejected(Rejection(RejectData::parse(private_data)))
    }
}

/// What the private data of a rejected connection say, if they are NVMe/RDMA's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rejection(pub Option<RejectStatus>);

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(status) = self.0 else {
            return f.write_str("it gave no NVMe/RDMA reason; is it an NVMe/RDMA target?");
        };
        let advice = match status {
            RejectStatus::INVALID_QID => "ask for fewer I/O queues",
            RejectStatus::INVALID_HSQSIZE | RejectStatus::INVALID_HRQSIZE => "ask for a smaller queue size",
            RejectStatus::NO_RESOURCES => "the target is at its limit of queues: ask for fewer, or try later",
            RejectStatus::INVALID_IRD | RejectStatus::INVALID_ORD => "check the RDMA devices' read depths",
            RejectStatus::INVALID_CNTLID => "the controller is gone: connect anew",
            _ => "see the target's log",
        };
        write!(f, "{status}; {advice}")
    }
}

/// Why an association failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AssociationError {
    /// A change of how namespaces can be reached does not end.
    #[error("a namespace is between two ANA states for longer than twice the controller's ANATT ({after:?})")]
    AnaChange {
        /// ANATT.
        after: Duration,
    },
    /// The configuration cannot work.
    #[error("the association's configuration is wrong: {0}")]
    Config(&'static str),
    /// A queue's connection did not come up.
    #[error("queue {}: {failure}", qid.0)]
    Queue {
        /// The queue.
        qid: Qid,
        /// Why.
        failure: QueueFailure,
    },
    /// Connect failed.
    #[error(
        "{}Connect of queue {} failed: {}{}{}",
        meaning(*parameter),
        qid.0,
        ConnectStatus(*status),
        Invalid(*parameter),
        advice(*status)
    )]
    Connect {
        /// The queue.
        qid: Qid,
        /// The controller's status.
        status: Status,
        /// Which parameter it refuses.
        parameter: Option<InvalidParameter>,
    },
    /// The controller wants authentication.
    #[error(
        "the controller demands authentication (DH-HMAC-CHAP): give this host's secret (--dhchap-secret), the one that the target has for its NQN; of a disk that is attached it is read from the file that names its options (--persist, --config) at nvmf upgrade"
    )]
    AuthenticationRequired,
    /// It wants TLS of a key that an authentication makes.
    #[error(
        "the controller demands authentication and a secure channel made of it: connect with --concat and this host's secret (--dhchap-secret), or over TLS with a configured key (--tls)"
    )]
    SecureChannelRequired,
    /// The controller does not ask for authentication, and it was insisted on.
    #[error(
        "the controller does not ask this host to authenticate, though a secret was given: configure the secret at the target (dhchap_key_file of its [[host]]; in a gateway group: ctl host set-key), or, if the network is trusted, allow it (--dhchap-optional)"
    )]
    NotAuthenticated,
    /// Authentication failed.
    #[error("authentication of queue {} failed: {error}", qid.0)]
    Authentication {
        /// The queue.
        qid: Qid,
        /// Why.
        error: HostError,
    },
    /// A command of the set-up failed.
    #[error("{command} failed: {status}")]
    Command {
        /// Which.
        command: &'static str,
        /// The controller's status.
        status: Status,
    },
    /// The controller is not fit for use: the gate that it failed.
    #[error("the controller cannot be used: {0}")]
    Gate(Gate),
    /// A data structure that cannot be read.
    #[error("{what}: {problem}; see the target's version")]
    Malformed {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Something took too long.
    #[error("no answer in time while {state}; see the target's log and the fabric")]
    TimedOut {
        /// What was being done.
        state: State,
    },
    /// The discovery log changed each time that it was read.
    #[error("the discovery log changed {attempts} times while it was read; try again later")]
    DiscoveryUnsettled {
        /// How often it was begun.
        attempts: u32,
    },
    /// A queue's connection is gone.
    #[error("the connection of queue {} was lost while {state}: {cause}{}", qid.0, loss(*state))]
    Disconnected {
        /// The queue.
        qid: Qid,
        /// What was being done.
        state: State,
        /// Why, in the transport's words.
        cause: String,
    },
    /// Its user wanted another in its place.
    #[error("it was reset, as was asked for")]
    ResetRequested,
    /// A Keep Alive was not answered.
    #[error("the controller did not answer a Keep Alive within {timeout:?}; it or the fabric is down")]
    KeepAlive {
        /// KATO.
        timeout: Duration,
    },
    /// The controller reports a fatal error (CSTS.CFS).
    #[error("the controller reports a fatal status (CSTS.CFS); it needs a reset on its side")]
    ControllerFatal,
    /// The controller broke the protocol.
    #[error("the controller broke the protocol: {0}")]
    Violation(Violation),
    /// A command of the caller's was not completed in time.
    #[error("queue {}: a command was not completed in time", qid.0)]
    CommandTimedOut {
        /// The queue.
        qid: Qid,
    },
    /// Memory cannot be exposed to the controller.
    #[error(
        "queue {}: the RDMA provider has no key for a command's memory, although none is in use ({reason}); the device or its library may not have memory windows: use another provider",
        qid.0
    )]
    NoKey {
        /// The queue.
        qid: Qid,
        /// In the provider's words.
        reason: String,
    },
}

impl From<Violation> for AssociationError {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl AssociationError {
    /// Connecting again would fail the same way: the controller said so, or the fault is in the configuration.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::AuthenticationRequired
            | Self::SecureChannelRequired
            | Self::NotAuthenticated
            | Self::Gate(_) => true,
            Self::Authentication { error, .. } => super::authentication::is_final(*error),
            // Of an I/O queue: its controller may have gone this moment, and the next association has another.
            // A controller that is busy will not always be.
            Self::Connect { qid, status, .. } => {
                status.dnr() && *qid == Qid(0) && !status.is(Status::CONNECT_CONTROLLER_BUSY)
            }
            Self::Command { status, .. } => status.dnr(),
            _ => false,
        }
    }

    /// Host and controller do not agree on the secrets that they have, if any: what either side is given later may cure it.
    #[must_use]
    pub fn is_of_secrets(&self) -> bool {
        matches!(
            self,
            Self::AuthenticationRequired
                | Self::SecureChannelRequired
                | Self::NotAuthenticated
                | Self::Authentication { .. }
        )
    }

    /// The controller answered, and refused.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Command { .. })
    }
}

/// What else a loss may mean.
fn loss(state: State) -> &'static str {
    match state {
        State::Authenticating(_) => {
            "; some targets hang up before they say why: the secret (--dhchap-secret) may be another than the one that it \
             has for this host NQN"
        }
        _ => "",
    }
}

/// What Identify Controller or the Properties said that cannot be worked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Gate {
    /// Identify names another controller than Connect.
    #[error("Identify says CNTLID {}, Connect said {}", identify.0, connect.0)]
    ControllerId {
        /// Identify's.
        identify: Cntlid,
        /// Connect's.
        connect: Cntlid,
    },
    /// No Keep Alive.
    #[error("KAS is 0: it has no Keep Alive, which the transport requires")]
    KeepAlive,
    /// Command capsules too small.
    #[error("IOCCSZ is {0}: a command capsule needs at least 4 (64 bytes)")]
    CommandCapsule(u32),
    /// Response capsules too small.
    #[error("IORCSZ is {0}: a response capsule needs at least 1 (16 bytes)")]
    ResponseCapsule(u32),
    /// In-capsule data somewhere else.
    #[error("ICDOFF is {0}: only data right behind the SQE are supported")]
    InCapsuleOffset(u16),
    /// No SGLs, or over RDMA no keyed ones.
    #[error("SGLS is {0:#010x}: it lacks the descriptors that the transport requires (RDMA: keyed ones)")]
    Sgls(u32),
    /// The NVM command set is not there.
    #[error("CAP is {0:#018x}: the NVM command set is not among its command sets")]
    CommandSet(u64),
    /// Not the kind of controller that was asked for.
    #[error("CNTRLTYPE is {0}: not the type of controller that was asked for")]
    ControllerType(u8),
    /// No I/O queue was given.
    #[error("it gave no I/O queue")]
    NoIoQueue,
    /// Pages larger than ours.
    #[error("CAP.MPSMIN is {0}: its smallest memory page is larger than 4 KiB")]
    PageSize(u32),
}

/// A status by Fabrics' name: an I/O command set has other names for some of these codes.
struct ConnectStatus(Status);

impl fmt::Display for ConnectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = *self;
        let Some(text) = status.fabrics_text() else { return status.fmt(f) };
        write!(f, "{text} (SCT {:#x}, SC {:#04x})", status.sct(), status.sc())?;
        if status.dnr() { f.write_str(", do not retry") } else { Ok(()) }
    }
}

struct Invalid(Option<InvalidParameter>);

/// What it means that the controller refuses this parameter, where that is the user's to correct.
fn meaning(parameter: Option<InvalidParameter>) -> &'static str {
    match parameter.and_then(InvalidParameter::field) {
        Some("SUBNQN") => {
            "there is no such subsystem at this address and port (nvmf discover lists where each is: use the transport, traddr and trsvcid of its entry): "
        }
        _ => "",
    }
}

/// What to do about a status of Connect that says enough by itself.
fn advice(status: Status) -> &'static str {
    if status.is(Status::CONNECT_INVALID_HOST) {
        "; the subsystem does not let this host in there: where the target lists hosts, add this NQN (nvmf show-hostnqn) to allowed_hosts; where it lets any host in, or has this one, that port wants TLS (--tls, or --concat with --dhchap-secret)"
    } else if status.is(Status::CONNECT_CONTROLLER_BUSY) {
        "; the target has no controller left, or is not done with this host's last connection: try later, or close other connections"
    } else {
        ""
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(parameter) = self.0 else { return Ok(()) };
        let (place, offset) = match parameter {
            InvalidParameter::Command(offset) => ("command", offset),
            InvalidParameter::Data(offset) => ("data", offset),
        };
        let field = parameter.field().unwrap_or("an unnamed field");
        write!(f, "; it refuses {field} (byte {offset} of the Connect {place})")?;
        f.write_str(match field {
            "HOSTNQN" | "HOSTID" => ": the subsystem does not know or allow this host",
            "CNTLID" => ": the controller is gone, or another host's",
            "SQSIZE" => ": ask for a smaller queue size",
            "KATO" => ": ask for another keep-alive timeout",
            _ => "",
        })
    }
}
