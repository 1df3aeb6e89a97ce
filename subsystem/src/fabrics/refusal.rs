//! Why a Connect is refused.

use crate::{Cntlid, DuplicateHost, Nqn, Qid, SecureChannel, status};
use alloc::boxed::Box;
use nvme_proto::Status;
use nvme_proto::fabrics::connect::{InvalidParameter, command_offset, data_offset};

/// Why a Connect was refused: for people, and ([`Refusal::status`], [`Refusal::dw0`]) for the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The target has not published its ports yet ([`crate::Registry::set_ports`]).
    #[error("the target is starting, and does not know its ports yet")]
    Starting,
    /// The target may not know what is to be served by now ([`crate::Registry::admit_until`]).
    #[error(
        "this gateway is cut off from its group, or has not read again what changed meanwhile: `nvmf-target ctl cluster status` \
         says why. The host is to use its other paths"
    )]
    CutOff,
    /// RECFMT is not 0.
    #[error("record format {0} is not supported, only 0")]
    Format(u16),
    /// SQSIZE (0's based) is 0, or more than the queue may have.
    #[error("SQSIZE {sqsize_z} of queue {qid} is not from 1 to {max_z}")]
    QueueSize {
        /// The queue.
        qid: Qid,
        /// What the host asked for, 0's based.
        sqsize_z: u16,
        /// The most, 0's based.
        max_z: u16,
    },
    /// The Queue ID is not the one that the connection was made for.
    #[error("Connect names queue {connect}, but the connection was made for queue {connection}")]
    QueueMismatch {
        /// In the Connect command.
        connect: Qid,
        /// In the connection request.
        connection: Qid,
    },
    /// More queues than the controller was granted.
    #[error("queue {qid} is beyond the {max} I/O queues of the controller")]
    QueueId {
        /// The queue.
        qid: Qid,
        /// How many were granted; none on a discovery controller.
        max: u16,
    },
    /// HOSTNQN is no name.
    #[error("HOSTNQN is not a valid NQN")]
    HostNqn,
    /// HOSTID is zero, in the Connect of an Admin queue.
    #[error("HOSTID is all zeroes")]
    HostId,
    /// CNTLID does not ask for a dynamic controller, in the Connect of an Admin queue.
    #[error("CNTLID {0} asks for a certain controller: this subsystem has dynamic ones only, ask for 65535")]
    StaticController(Cntlid),
    /// There is no such controller, or it is not this host's, or it is about to go.
    #[error("controller {0} does not exist, or belongs to another host")]
    Controller(Cntlid),
    /// The controller is of a host with this NQN, but HOSTID is another one (and not zero, which an I/O queue may say).
    #[error("controller {0} belongs to a host with another HOSTID")]
    OtherHostId(Cntlid),
    /// An I/O queue connects from another address than its Admin queue: others may know names and IDs.
    #[error("controller {0} was given to another address of the host, or to another host")]
    OtherAddress(Cntlid),
    /// An I/O queue connects without the key that protects its Admin queue, or with one where that has none.
    #[error(
        "a queue for controller {0} has TLS and its Admin queue has none, or the reverse: use TLS for all or for none"
    )]
    OtherChannel(Cntlid),
    /// An I/O queue connects through another port than its Admin queue.
    #[error(
        "a queue for controller {cntlid} connects through another listener (port ID {port}) than its Admin queue"
    )]
    OtherPort {
        /// The controller.
        cntlid: Cntlid,
        /// The port of the queue.
        port: u16,
    },
    /// No such subsystem on this port.
    #[error("there is no subsystem {nqn} at this listener (port ID {port})")]
    Subsystem {
        /// What the host asked for.
        nqn: Nqn,
        /// Where.
        port: u16,
    },
    /// The connection is protected by the key of another host, or by one for another subsystem.
    #[error(
        "host {host} connects to {subsystem} with the TLS key of host {} for {}: connect with a key of its own",
        .key.host_nqn, .key.subsystem_nqn
    )]
    OtherKey {
        /// Who it says it is.
        host: Nqn,
        /// What it wants.
        subsystem: Nqn,
        /// Whose key it has.
        key: Box<SecureChannel>,
    },
    /// There is no TLS, which the listener or the host must have, and no authentication that could make a key for it.
    #[error(
        "host {host} must use TLS here: connect with --tls, or with --concat to a listener with tls = \"allowed\" or \
         \"concat\", where its [[host]] has dhchap_key_file"
    )]
    Clear {
        /// Who.
        host: Nqn,
    },
    /// SUBNQN is no name.
    #[error("SUBNQN is not a valid NQN")]
    SubsystemNqn,
    /// The host is not on the subsystem's list.
    #[error(
        "host {host} may not connect to {subsystem}: add it to the subsystem's allowed_hosts if it should"
    )]
    Host {
        /// Who.
        host: Nqn,
        /// To what.
        subsystem: Nqn,
    },
    /// The host's NQN is in use with another Host Identifier, and policy says no.
    #[error("{0}")]
    DuplicateHostId(DuplicateHost),
    /// The subsystem has as many controllers as it may.
    #[error("the subsystem has all of its {0} controllers in use")]
    Busy(u16),
    /// More than half of the subsystem's controllers are in use, and the host has more than its share of them.
    #[error(
        "host {host} has {controllers} controllers of the subsystem, and more than half of all {max} are in use: \
         the rest is for other hosts"
    )]
    HostBusy {
        /// Who.
        host: Nqn,
        /// How many it has, under whatever Host Identifiers.
        controllers: usize,
        /// How many the subsystem may have.
        max: u16,
    },
    /// More than half of the connections that the transport takes are in use, and the host's machine has its share of
    /// them ([`crate::Admission::refused`]).
    #[error(
        "more than half of all connections are in use, and the host's address has its share: the rest is for others"
    )]
    Share,
    /// Operations of the host's last connection are still in flight on a device. Admitted now, the host would issue
    /// them again and write on, and the first copies could overwrite that. After some seconds the host is admitted, and
    /// only the namespaces of that device are held back.
    #[error("operations of this host's last connection, to controller {0}, are still in flight on a device")]
    Orphans(Cntlid),
    /// The host has lost an association whose connections are not closed here yet. What is still on its way there could
    /// overwrite what the host writes next.
    #[error("this host's last connection, to controller {0}, is still being closed")]
    Ending(Cntlid),
    /// The controller is not enabled and ready.
    #[error("controller {0} is not enabled")]
    NotEnabled(Cntlid),
    /// The queue is connected already.
    #[error("queue {0} is connected already")]
    QueueInUse(Qid),
}

/// What kind of reason a Connect is refused for, for those who count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The host may not use the subsystem.
    Host,
    /// There is no such subsystem at the listener.
    Subsystem,
    /// The host is not who it says it is, or shares its name: another Host Identifier, key or address.
    Identity,
    /// It must use TLS, and has none.
    Channel,
    /// No place is left, for anyone or for this host; or the target is starting, or cut off from its group.
    Busy,
    /// The host's last connection, or what it left on a device, has not ended yet.
    Ending,
    /// What the Connect says cannot be.
    Parameters,
}

impl RefusalReason {
    /// All.
    pub const ALL: [Self; 7] = [
        Self::Host,
        Self::Subsystem,
        Self::Identity,
        Self::Channel,
        Self::Busy,
        Self::Ending,
        Self::Parameters,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Subsystem => "subsystem",
            Self::Identity => "identity",
            Self::Channel => "channel",
            Self::Busy => "busy",
            Self::Ending => "ending",
            Self::Parameters => "parameters",
        }
    }
}

impl Refusal {
    /// What kind of reason it is.
    #[must_use]
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::Host { .. } => RefusalReason::Host,
            Self::Subsystem { .. } => RefusalReason::Subsystem,
            Self::OtherHostId(_)
            | Self::OtherAddress(_)
            | Self::OtherChannel(_)
            | Self::OtherKey { .. }
            | Self::DuplicateHostId(_) => RefusalReason::Identity,
            Self::Clear { .. } => RefusalReason::Channel,
            Self::Starting | Self::CutOff | Self::Busy(_) | Self::HostBusy { .. } | Self::Share => {
                RefusalReason::Busy
            }
            Self::Orphans(_) | Self::Ending(_) => RefusalReason::Ending,
            _ => RefusalReason::Parameters,
        }
    }

    /// Whether what refuses is about to pass, mostly within milliseconds: rather than to answer, ask
    /// [`crate::Registry::connect`] again a little later. A host that was told to connect once gives up at the first
    /// refusal, and cannot see that its own last connection is the reason.
    #[must_use]
    pub fn passes_soon(&self) -> bool {
        matches!(self, Self::Orphans(_) | Self::Ending(_))
    }

    /// The status of the response. "Do not retry" is set only where time alone changes nothing: hosts give up a
    /// controller for good when they see it.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Starting
            | Self::CutOff
            | Self::Busy(_)
            | Self::HostBusy { .. }
            | Self::Share
            | Self::Orphans(_)
            | Self::Ending(_) => Status::CONNECT_CONTROLLER_BUSY,
            // The other host may disconnect.
            Self::DuplicateHostId(_) => Status::CONNECT_INVALID_HOST,
            // The Admin queue may be gone or not enabled yet, and its CNTLID in use for another host: a new one helps.
            Self::Controller(_) | Self::OtherHostId(_) | Self::OtherAddress(_) | Self::NotEnabled(_) => {
                Status::CONNECT_INVALID_PARAMETERS
            }
            // The end of the queue's last connection may not have been noticed yet.
            Self::QueueInUse(_) => Status::COMMAND_SEQUENCE_ERROR,
            Self::Format(_) => status::CONNECT_INCOMPATIBLE_FORMAT,
            Self::Host { .. } | Self::OtherKey { .. } | Self::Clear { .. } => status::CONNECT_INVALID_HOST,
            Self::QueueSize { .. }
            | Self::QueueMismatch { .. }
            | Self::QueueId { .. }
            | Self::HostNqn
            | Self::HostId
            | Self::StaticController(_)
            | Self::OtherChannel(_)
            | Self::OtherPort { .. }
            | Self::Subsystem { .. }
            | Self::SubsystemNqn => status::CONNECT_INVALID_PARAMETERS,
        }
    }

    /// With Connect Invalid Parameters: which field (IPO and IATTR). Else 0.
    #[must_use]
    pub fn dw0(&self) -> u32 {
        let parameter = match self {
            Self::QueueSize { .. } => InvalidParameter::Command(command_offset::SQSIZE),
            Self::QueueMismatch { .. } | Self::QueueId { .. } => {
                InvalidParameter::Command(command_offset::QID)
            }
            Self::HostNqn => InvalidParameter::Data(data_offset::HOSTNQN),
            Self::HostId | Self::OtherHostId(_) => InvalidParameter::Data(data_offset::HOSTID),
            Self::StaticController(_)
            | Self::Controller(_)
            | Self::OtherAddress(_)
            | Self::OtherChannel(_)
            | Self::OtherPort { .. }
            | Self::NotEnabled(_) => InvalidParameter::Data(data_offset::CNTLID),
            Self::Subsystem { .. } | Self::SubsystemNqn => InvalidParameter::Data(data_offset::SUBNQN),
            Self::Starting
            | Self::CutOff
            | Self::Format(_)
            | Self::Host { .. }
            | Self::OtherKey { .. }
            | Self::Clear { .. }
            | Self::DuplicateHostId(_)
            | Self::Busy(_)
            | Self::HostBusy { .. }
            | Self::Share
            | Self::Orphans(_)
            | Self::Ending(_)
            | Self::QueueInUse(_) => return 0,
        };
        parameter.emit()
    }
}
