//! Why an association failed: which layer, what, and what to do.

use super::State;
use crate::{Cntlid, Qid, Status, Violation};
use alloc::string::String;
use core::fmt;
use thiserror::Error;

/// Why a queue's connection did not come up.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QueueFailure {
    /// No way leads there, or nobody listens.
    #[error("cannot reach the controller ({0}); check the address, the port and the RDMA link")]
    Unreachable(String),
    /// The controller's transport rejected the connection.
    #[error("the controller rejected the connection: {0}")]
    Rejected(RejectStatus),
    /// No answer in time.
    #[error("no answer to the connection request; check the fabric and the target's load")]
    TimedOut,
    /// The peer answers, but not as NVMe/RDMA does, or the local side failed.
    #[error("the connection set-up failed: {0}")]
    Other(String),
}

impl QueueFailure {
    /// From the private data of a rejected connection.
    #[must_use]
    pub fn from_reject(private_data: &[u8]) -> Self {
        Self::Rejected(RejectStatus::parse(private_data))
    }
}

/// What an NVMe/RDMA reject says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectStatus {
    /// STS of the private data.
    Sts(u16),
    /// The private data are not those of NVMe/RDMA.
    NotNvme,
}

impl RejectStatus {
    /// RECFMT and STS, two little-endian words.
    #[must_use]
    pub fn parse(private_data: &[u8]) -> Self {
        match private_data {
            [0, 0, low, high, ..] => Self::Sts(u16::from_le_bytes([*low, *high])),
            _ => Self::NotNvme,
        }
    }
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Sts(sts) = *self else {
            return f.write_str("without an NVMe/RDMA reason (is it an NVMe target?)");
        };
        let (name, advice) = match sts {
            0x01 => ("invalid private data length", "the peers speak different versions"),
            0x02 => ("invalid RECFMT", "the peers speak different versions"),
            0x03 => ("invalid QID", "ask for fewer I/O queues"),
            0x04 => ("invalid HSQSIZE", "ask for a smaller queue size"),
            0x05 => ("invalid HRQSIZE", "ask for a smaller queue size"),
            0x06 => ("no resources", "the target is at its limit of queues; ask for fewer, or try later"),
            0x07 => ("invalid IRD", "check the RDMA device's read depth"),
            0x08 => ("invalid ORD", "check the RDMA device's read depth"),
            0x09 => ("invalid CNTLID", "the controller is gone; connect anew"),
            _ => ("unknown", "see the target's log"),
        };
        write!(f, "{name} (status {sts:#04x}); {advice}")
    }
}

/// Why an association failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AssociationError {
    /// The configuration cannot work.
    #[error("the association's configuration is wrong: {0}")]
    Config(&'static str),
    /// A queue's connection did not come up.
    #[error("queue {}: {failure}", qid.0)]
    Queue {
        /// The queue.
        qid: Qid,
        /// Why.
        #[source]
        failure: QueueFailure,
    },
    /// Connect failed.
    #[error("Connect of queue {} failed: {status}{}", qid.0, Invalid(*parameter))]
    Connect {
        /// The queue.
        qid: Qid,
        /// The controller's status.
        status: Status,
        /// Which parameter it did not like.
        parameter: Option<InvalidParameter>,
    },
    /// The controller wants authentication.
    #[error(
        "the controller demands authentication (DH-HMAC-CHAP), which is not configured; allow this host without a key, or use another"
    )]
    AuthenticationRequired,
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
    #[error("the connection of queue {} was lost while {state}: {cause}", qid.0)]
    Disconnected {
        /// The queue.
        qid: Qid,
        /// What was being done.
        state: State,
        /// Why, in the transport's words.
        cause: String,
    },
    /// The controller reports a fatal error (CSTS.CFS).
    #[error("the controller reports a fatal status (CSTS.CFS); it needs a reset on its side")]
    ControllerFatal,
    /// The controller broke the protocol.
    #[error("the controller broke the protocol: {0}")]
    Violation(#[from] Violation),
    /// An I/O command was not completed in time.
    #[error("queue {}: a command was not completed in time", qid.0)]
    CommandTimedOut {
        /// The queue.
        qid: Qid,
    },
}

impl AssociationError {
    /// Connecting again would fail the same way: the controller said so, or the fault is in the configuration.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Config(_) | Self::AuthenticationRequired | Self::Gate(_) => true,
            Self::Connect { status, .. } | Self::Command { status, .. } => status.do_not_retry(),
            _ => false,
        }
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
    #[error("KAS is 0: it has no Keep Alive, which RDMA requires")]
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
    /// No keyed SGLs.
    #[error("SGLS is {0:#010x}: no keyed descriptors, which RDMA requires")]
    Sgls(u32),
    /// The NVM command set is not there.
    #[error("CAP.CSS is {0:#04x}: the NVM command set is not supported")]
    CommandSet(u8),
    /// Not the kind of controller that was asked for.
    #[error("CNTRLTYPE is {0}: not the type of controller that was asked for")]
    ControllerType(u8),
    /// No I/O queue was given.
    #[error("it gave no I/O queue")]
    NoIoQueue,
    /// Pages larger than ours.
    #[error("CAP.MPSMIN is {0}: its smallest memory page is larger than 4 KiB")]
    PageSize(u8),
}

/// A parameter of Connect that the controller did not like: IPO and IATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Byte offset.
    pub offset: u16,
    /// Into the Connect data, rather than the SQE.
    pub in_data: bool,
}

impl fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.in_data, self.offset) {
            (true, 0..=15) => "HOSTID",
            (true, 16..=17) => "CNTLID: the controller is gone or of another host",
            (true, 256..=511) => "SUBNQN: there is no such subsystem at this address",
            (true, 512..=767) => "HOSTNQN: the subsystem does not know or allow this host",
            (false, 40..=41) => "RECFMT",
            (false, 42..=43) => "QID",
            (false, 44..=45) => "SQSIZE",
            (false, 46) => "CATTR",
            (false, 48..=51) => "KATO",
            _ => "an unnamed field",
        };
        let place = if self.in_data { "data" } else { "SQE" };
        write!(f, "{name} (Connect {place}, byte {})", self.offset)
    }
}

struct Invalid(Option<InvalidParameter>);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |parameter| write!(f, ": {parameter}"))
    }
}
