//! The host's side: one [`Host`] for each authentication of a queue.
//!
//! ```text
//! start ─► Negotiate ─► (Challenge) ─► ReplyTask ─► Reply ─► (Success1) ─► Success2, if the controller proved itself
//! ```

use crate::controller::emit;
use crate::response::Agreed;
use crate::{Digest, GeneratedKey, Group, Hash, KeyPair, Names, NoRandom, Random, Secret, Terms};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use nvme_proto::fabrics::auth::{
    Challenge, Failure, FailureExplanation, FailureReason, Message, Negotiate, Reply, SecureChannel,
};

/// The secrets of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secrets {
    /// What the host proves to have.
    pub host: Secret,
    /// What the controller must prove to have. `None`: it need not prove anything.
    pub controller: Option<Secret>,
}

/// Why an authentication failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The controller's failure message, with its explanation.
    #[error("the controller refused: {}", refusal(*.0))]
    Refused(FailureExplanation),
    /// The controller's response is wrong.
    #[error(
        "the controller did not prove that it has the controller's secret: it has another one for this host, or is not \
         the controller that it says it is"
    )]
    WrongController,
    /// It sent none.
    #[error(
        "the controller proved nothing, though it was asked to: a controller's secret was given (--dhchap-ctrl-secret)"
    )]
    NoResponse,
    /// What it chose was not offered.
    #[error("the controller chose a hash function (ID {0}) that was not offered")]
    Hash(u8),
    /// See [`HostError::Hash`].
    #[error("the controller chose a Diffie-Hellman group (ID {0}) that was not offered")]
    Group(u8),
    /// Its Diffie-Hellman value would give the shared secret away.
    #[error(
        "the controller's Diffie-Hellman value is not one of the group: something is between it and this host"
    )]
    Value,
    /// A message whose parts do not fit.
    #[error("the controller sent an authentication message with an incorrect payload")]
    Payload,
    /// Another message than the one that was due.
    #[error("the controller sent an authentication message out of order")]
    Order,
    /// The system has no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

fn refusal(explanation: FailureExplanation) -> &'static str {
    match explanation {
        FailureExplanation::AUTHENTICATION_AUTHENTICATION_FAILURE => {
            "the secret given here is not the one that it has for this host NQN, or it has no secret of its own though a \
             controller's secret was given"
        }
        FailureExplanation::AUTHENTICATION_PROTOCOL_NOT_USABLE => "it does not take DH-HMAC-CHAP",
        FailureExplanation::CONCATENATION_MISMATCH => {
            "it insists on secure channel concatenation (--concat), or cannot do it here"
        }
        FailureExplanation::HASH_NOT_USABLE => "it takes none of the hash functions offered",
        FailureExplanation::DH_GROUP_NOT_USABLE => "it takes none of the Diffie-Hellman groups offered",
        FailureExplanation::INCORRECT_PAYLOAD => "it finds the payload of a message incorrect",
        FailureExplanation::INCORRECT_MESSAGE => "it expected another message",
        _ => "for a reason that is not known here",
    }
}

impl HostError {
    /// What the controller is told, if it does not know.
    fn explanation(self) -> Option<FailureExplanation> {
        Some(match self {
            Self::Refused(_) => return None,
            Self::WrongController | Self::NoResponse | Self::Random(_) => {
                FailureExplanation::AUTHENTICATION_AUTHENTICATION_FAILURE
            }
            Self::Hash(_) => FailureExplanation::HASH_NOT_USABLE,
            Self::Group(_) => FailureExplanation::DH_GROUP_NOT_USABLE,
            Self::Value | Self::Payload => FailureExplanation::INCORRECT_PAYLOAD,
            Self::Order => FailureExplanation::INCORRECT_MESSAGE,
        })
    }
}

/// What is to be done next.
#[derive(Debug)]
#[must_use]
pub enum Next {
    /// Send this message, then [`Host::on_sent`].
    Send(Vec<u8>),
    /// Receive a message, then [`Host::on_received`].
    Receive,
    /// Run this, then [`Host::on_computed`].
    Compute(Box<ReplyTask>),
    /// Both sides are authenticated as far as they were to be.
    Done,
}

#[derive(Debug)]
enum State {
    /// The challenge is awaited, from the negotiation on.
    AwaitChallenge,
    /// [`ReplyTask`] is out.
    Replying,
    /// Success1 is awaited, from the reply on.
    AwaitSuccess1 { hash: Hash, expected: Vec<Digest> },
    /// The last message is being sent.
    Finishing(Result<(), HostError>),
}

/// The host's side of the authentication of one queue.
#[derive(Debug)]
pub struct Host {
    names: Names,
    terms: Terms,
    transaction: u16,
    secure_channel: SecureChannel,
    state: State,
    key: Option<GeneratedKey>,
}

/// The reply to a challenge, to be computed: two exponentiations, or none for [`Group::Null`].
pub struct ReplyTask {
    names: Names,
    transaction: u16,
    secure_channel: SecureChannel,
    hash: Hash,
    group: Group,
    sequence: u32,
    challenge: Vec<u8>,
    value: Vec<u8>,
}

/// The result of a [`ReplyTask`].
#[derive(Debug)]
pub struct Replied {
    hash: Hash,
    result: Result<Answer, HostError>,
}

/// What a reply is.
#[derive(Debug)]
struct Answer {
    message: Vec<u8>,
    /// What the controller may prove itself with; empty: it need not.
    expected: Vec<Digest>,
    key: Option<GeneratedKey>,
}

impl Host {
    /// An authentication with a transaction number of its own within the association, and its first message.
    pub fn start(names: Names, terms: Terms, transaction: u16) -> (Self, Next) {
        Self::start_with(names, terms, transaction, SecureChannel::NONE)
    }

    /// The same, to make a key for TLS: for a connection to come ([`SecureChannel::NEW_TLS_PSK`]), or in place of the one
    /// that protects this connection ([`SecureChannel::REPLACE_TLS_PSK`]). `terms` are
    /// [those that make keys](Terms::for_concatenation).
    pub fn start_with(
        names: Names,
        terms: Terms,
        transaction: u16,
        secure_channel: SecureChannel,
    ) -> (Self, Next) {
        let descriptors = [terms.descriptor()];
        let negotiate = Negotiate { transaction, secure_channel, descriptors: &descriptors };
        let first = Next::Send(emit(&Message::Negotiate(negotiate)));
        (Self { names, terms, transaction, secure_channel, state: State::AwaitChallenge, key: None }, first)
    }

    /// The key for TLS that it made, once it is [done](Next::Done).
    pub fn take_key(&mut self) -> Option<GeneratedKey> {
        self.key.take()
    }

    /// How it failed, if the controller is being told: it may hang up before it answers.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        match self.state {
            State::Finishing(result) => result.err(),
            _ => None,
        }
    }

    /// The message was sent.
    ///
    /// # Errors
    /// [`HostError`]: that is over, and the controller knows.
    pub fn on_sent(&mut self) -> Result<Next, HostError> {
        match self.state {
            State::Finishing(result) => result.map(|()| Next::Done),
            _ => Ok(Next::Receive),
        }
    }

    /// A message of the controller's: what Authentication Receive brought, which may be longer.
    ///
    /// # Errors
    /// [`HostError`]: the controller ended it.
    pub fn on_received(&mut self, bytes: &[u8]) -> Result<Next, HostError> {
        let next = match Message::parse(bytes) {
            Ok(Message::Failure1(failure)) => return Err(HostError::Refused(failure.explanation)),
            Ok(message) if message.transaction() != self.transaction => Err(HostError::Payload),
            Ok(message) => self.accept(&message),
            Err(FailureExplanation::INCORRECT_MESSAGE) => Err(HostError::Order),
            Err(_) => Err(HostError::Payload),
        };
        next.or_else(|error| self.fail(error))
    }

    /// The reply was computed.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn on_computed(&mut self, replied: Replied) -> Result<Next, HostError> {
        if !matches!(self.state, State::Replying) {
            return self.fail(HostError::Order);
        }
        match replied.result {
            Ok(Answer { message, expected, key }) => {
                self.key = key;
                self.state = State::AwaitSuccess1 { hash: replied.hash, expected };
                Ok(Next::Send(message))
            }
            Err(error) => self.fail(error),
        }
    }

    fn accept(&mut self, message: &Message<'_>) -> Result<Next, HostError> {
        match (&self.state, message) {
            (State::AwaitChallenge, Message::Challenge(challenge)) => self.on_challenge(challenge),
            (State::AwaitSuccess1 { hash, expected }, Message::Success1(success)) => {
                if usize::from(success.hash_len) != hash.len() {
                    return Err(HostError::Payload);
                }
                if expected.is_empty() {
                    return Ok(Next::Done);
                }
                let response = success.response.ok_or(HostError::NoResponse)?;
                if !expected.iter().any(|expected| expected.is(response)) {
                    return Err(HostError::WrongController);
                }
                self.state = State::Finishing(Ok(()));
                Ok(Next::Send(emit(&Message::Success2 { transaction: self.transaction })))
            }
            _ => Err(HostError::Order),
        }
    }

    fn on_challenge(&mut self, challenge: &Challenge<'_>) -> Result<Next, HostError> {
        let (hash, group) = (challenge.hash, challenge.group);
        let hash =
            Hash::of_id(hash).filter(|&it| self.terms.takes_hash(it)).ok_or(HostError::Hash(hash.0))?;
        let group =
            Group::of_id(group).filter(|&it| self.terms.takes_group(it)).ok_or(HostError::Group(group.0))?;
        if challenge.challenge.len() != hash.len() || challenge.dh_value.len() != group.value_len() {
            return Err(HostError::Payload);
        }
        self.state = State::Replying;
        Ok(Next::Compute(Box::new(ReplyTask {
            names: self.names,
            transaction: self.transaction,
            secure_channel: self.secure_channel,
            hash,
            group,
            sequence: challenge.sequence,
            challenge: challenge.challenge.to_vec(),
            value: challenge.dh_value.to_vec(),
        })))
    }

    /// Tells the controller first, if it does not know.
    fn fail(&mut self, error: HostError) -> Result<Next, HostError> {
        let explanation = error.explanation().ok_or(error)?;
        self.state = State::Finishing(Err(error));
        let reason = FailureReason::AUTHENTICATION_FAILURE;
        let failure = Failure { transaction: self.transaction, reason, explanation };
        Ok(Next::Send(emit(&Message::Failure2(failure))))
    }
}

impl ReplyTask {
    /// Computes it, which may take some tenths of a second.
    #[must_use]
    pub fn run(&self, secrets: &Secrets, random: Random<'_>) -> Replied {
        Replied { hash: self.hash, result: self.reply(secrets, random) }
    }

    /// The group: what running it costs.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }

    fn reply(&self, secrets: &Secrets, random: Random<'_>) -> Result<Answer, HostError> {
        let pair = KeyPair::generate(self.group, random)?;
        let mut agreed = Agreed::new(self.hash, self.transaction, self.secure_channel, &pair, &self.value)
            .map_err(|_| HostError::Value)?;
        let response = agreed.of_host(&self.challenge, self.sequence, &secrets.host, &self.names);
        let concatenates = self.secure_channel != SecureChannel::NONE;
        let mut sequence = [0; 4];
        random(&mut sequence)?;
        // The number is there without a challenge, too, as some controllers look at it. With a key, where there always is a
        // challenge, it says whether the controller is to prove itself.
        let sequence = match &secrets.controller {
            None if concatenates => 0,
            _ => u32::from_le_bytes(sequence).max(1),
        };
        let mut challenge = None;
        if secrets.controller.is_some() || concatenates {
            let mut bytes = vec![0; self.hash.len()];
            random(&mut bytes)?;
            challenge = Some(bytes);
        }
        let key = challenge.as_deref().filter(|_| concatenates);
        let key = key.and_then(|challenge| agreed.generated_key(&self.challenge, challenge));
        let mut expected = Vec::new();
        if let (Some(challenge), Some(secret)) = (&challenge, &secrets.controller) {
            expected.push(agreed.of_controller(challenge, sequence, secret, &self.names));
            if concatenates {
                // Some controllers have the channel in what the host proves only.
                agreed.secure_channel = SecureChannel::NONE;
                expected.push(agreed.of_controller(challenge, sequence, secret, &self.names));
            }
        }
        let message = emit(&Message::Reply(Reply {
            transaction: self.transaction,
            sequence,
            response: &response,
            challenge: challenge.as_deref(),
            dh_value: pair.public(),
        }));
        Ok(Answer { message, expected, key })
    }
}

impl fmt::Debug for ReplyTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyTask")
            .field("hash", &self.hash)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
