//! Why a host is not authenticated: for people, for the host, and for those who count.

use crate::NoRandom;
use nvme_proto::fabrics::auth::FailureExplanation;

/// Why a host is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// R1 is wrong.
    #[error(
        "its response is wrong: its secret is not the one that this target has of it (dhchap_key_file of its [[host]], or \
         `ctl host set-key`), or has another hash"
    )]
    WrongResponse,
    /// There is no key for it any more, or it could not be read.
    #[error("its key cannot be had: see the log of the start or of the last reload")]
    NoKey,
    /// It wants the controller to prove itself.
    #[error("it wants the controller to prove itself, but its [[host]] has no dhchap_ctrl_key_file")]
    NoControllerKey,
    /// No protocol in common.
    #[error("it does not offer DH-HMAC-CHAP")]
    Protocol,
    /// It wants another secure channel than there can be here.
    #[error(
        "it wants a secure channel (SC_C {0}) that there cannot be here: 1 makes a key, in the clear and on the Admin queue only, \
         where the [[listener]] has tls = \"allowed\" or \"concat\"; 2 replaces it, over TLS only"
    )]
    Concatenation(u8),
    /// It wants none, and must.
    #[error(
        "it does not ask for secure channel concatenation, which its [[host]] or [[listener]] requires: connect with \
         concat"
    )]
    NoConcatenation,
    /// No hash in common.
    #[error(
        "it offers none of the hash functions in dhchap_hashes (for a secure channel sha256 and sha384 only)"
    )]
    Hash,
    /// No group in common.
    #[error("it offers none of the groups in dhchap_groups (for a secure channel not null)")]
    Group,
    /// Its Diffie-Hellman value is none of the group.
    #[error("its Diffie-Hellman value is not one of the group")]
    Value,
    /// A message whose parts do not fit.
    #[error("it sent a message with an incorrect payload")]
    Payload,
    /// A message, or a request for one, out of order.
    #[error("it sent a message, or asked for one, out of order")]
    Order,
    /// The system has no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
    /// The host said so: mostly the controller's response was wrong.
    #[error(
        "it refused the controller (explanation {0}): the host's controller secret is not the one in dhchap_ctrl_key_file, \
         if that is 1"
    )]
    Refused(u8),
}

impl Fault {
    /// What the host is told.
    #[must_use]
    pub fn explanation(self) -> FailureExplanation {
        match self {
            Self::WrongResponse
            | Self::NoKey
            | Self::NoControllerKey
            | Self::Random(_)
            | Self::Refused(_) => FailureExplanation::AUTHENTICATION_AUTHENTICATION_FAILURE,
            Self::Protocol => FailureExplanation::AUTHENTICATION_PROTOCOL_NOT_USABLE,
            Self::Concatenation(_) | Self::NoConcatenation => FailureExplanation::CONCATENATION_MISMATCH,
            Self::Hash => FailureExplanation::HASH_NOT_USABLE,
            Self::Group => FailureExplanation::DH_GROUP_NOT_USABLE,
            Self::Value | Self::Payload => FailureExplanation::INCORRECT_PAYLOAD,
            Self::Order => FailureExplanation::INCORRECT_MESSAGE,
        }
    }

    /// What kind of reason it is.
    #[must_use]
    pub fn reason(self) -> FaultReason {
        match self {
            Self::WrongResponse => FaultReason::Response,
            Self::NoKey => FaultReason::NoKey,
            Self::NoControllerKey => FaultReason::NoControllerKey,
            Self::Protocol => FaultReason::Protocol,
            Self::Concatenation(_) | Self::NoConcatenation => FaultReason::Channel,
            Self::Hash => FaultReason::Hash,
            Self::Group => FaultReason::Group,
            Self::Value | Self::Payload | Self::Order => FaultReason::Message,
            Self::Random(_) => FaultReason::Random,
            Self::Refused(_) => FaultReason::Controller,
        }
    }

    pub(crate) fn of(explanation: FailureExplanation) -> Self {
        match explanation {
            FailureExplanation::INCORRECT_MESSAGE => Self::Order,
            _ => Self::Payload,
        }
    }
}

/// What kind of reason a host is not authenticated for, for those who count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultReason {
    /// Its response is wrong: another secret than the one known here.
    Response,
    /// Its key cannot be had here.
    NoKey,
    /// It wants the controller to prove itself, which has no key for that.
    NoControllerKey,
    /// It does not offer DH-HMAC-CHAP.
    Protocol,
    /// It wants a secure channel where there can be none, or none where one is required.
    Channel,
    /// No hash function in common.
    Hash,
    /// No Diffie-Hellman group in common.
    Group,
    /// A message that is wrong, or out of order.
    Message,
    /// The system has no random numbers.
    Random,
    /// The host refused the controller.
    Controller,
}

impl FaultReason {
    /// All.
    pub const ALL: [Self; 10] = [
        Self::Response,
        Self::NoKey,
        Self::NoControllerKey,
        Self::Protocol,
        Self::Channel,
        Self::Hash,
        Self::Group,
        Self::Message,
        Self::Random,
        Self::Controller,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Response => "response",
            Self::NoKey => "no_key",
            Self::NoControllerKey => "no_controller_key",
            Self::Protocol => "protocol",
            Self::Channel => "channel",
            Self::Hash => "hash",
            Self::Group => "group",
            Self::Message => "message",
            Self::Random => "random",
            Self::Controller => "controller",
        }
    }
}
