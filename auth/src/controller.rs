//! The controller's side: one [`Controller`] for each queue.
//!
//! ```text
//! Negotiate ─► Task::Challenge ─► Challenge ─► Reply ─► Task::Verify ─► Success1 ─► (Success2)
//! ```
//!
//! A Negotiate begins anew, at any time but while a task is out and after a failure: an authenticated host stays
//! authenticated meanwhile. After a failure nothing but Failure1 follows.

use crate::response::Agreed;
use crate::{Digest, Group, Hash, KeyPair, Names, NoRandom, Random, Secret, Terms};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use nvme_proto::fabrics::auth::{
    AuthProtocol, Challenge, Failure, FailureExplanation, FailureReason, Message, Negotiate, Reply,
    SecureChannel, Success1, transaction_of,
};
use zeroize::Zeroizing;

/// The keys of a host, and of the controller towards it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// What the host must have; `None`: there is a key, but it cannot be had.
    pub host: Option<Secret>,
    /// What the controller proves to have, if the host asks.
    pub controller: Option<Secret>,
}

/// Why a host is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// R1 is wrong.
    #[error(
        "its response is wrong: its secret is not the one in dhchap_key_file of its [[host]], or has another hash"
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
    /// It wants TLS afterwards.
    #[error("it wants secure channel concatenation, which is not supported: connect without concat")]
    Concatenation,
    /// No hash in common.
    #[error("it offers none of the hash functions in dhchap_hashes")]
    Hash,
    /// No group in common.
    #[error("it offers none of the groups in dhchap_groups")]
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
            Self::Concatenation => FailureExplanation::CONCATENATION_MISMATCH,
            Self::Hash => FailureExplanation::HASH_NOT_USABLE,
            Self::Group => FailureExplanation::DH_GROUP_NOT_USABLE,
            Self::Value | Self::Payload => FailureExplanation::INCORRECT_PAYLOAD,
            Self::Order => FailureExplanation::INCORRECT_MESSAGE,
        }
    }

    fn of(explanation: FailureExplanation) -> Self {
        match explanation {
            FailureExplanation::INCORRECT_MESSAGE => Self::Order,
            _ => Self::Payload,
        }
    }
}

/// What was agreed on, and what the challenge was.
#[derive(Debug)]
struct Run {
    transaction: u16,
    hash: Hash,
    pair: KeyPair,
    challenge: Vec<u8>,
    sequence: u32,
}

#[derive(Debug)]
enum State {
    /// Nothing is under way.
    Idle,
    /// [`Task::Challenge`] is out.
    Challenging,
    /// The challenge was made; `sent`: the host has it.
    Challenged { run: Box<Run>, message: Vec<u8>, sent: bool },
    /// [`Task::Verify`] is out.
    Verifying,
    /// The host has proved itself, but not been told.
    Succeeded { transaction: u16, message: Vec<u8>, success2: bool },
    /// The controller has proved itself, and waits to hear that the host thinks so.
    AwaitSuccess2 { transaction: u16 },
    /// It failed; `told`: the host has heard of it, or did it itself.
    Failed { fault: Fault, message: Vec<u8>, told: bool },
}

/// The controller's side of the authentication of one queue.
#[derive(Debug)]
pub struct Controller {
    names: Names,
    terms: Terms,
    state: State,
    authenticated: bool,
}

/// What is to be computed.
#[must_use = "run it, and hand the result to Controller::on_computed"]
pub enum Task {
    /// A challenge; one exponentiation, or none for [`Group::Null`].
    Challenge(ChallengeTask),
    /// Whether the host's response is right, and the controller's own; one exponentiation.
    Verify(Box<VerifyTask>),
}

/// See [`Task::Challenge`].
#[derive(Debug)]
pub struct ChallengeTask {
    transaction: u16,
    hash: Hash,
    group: Group,
}

/// See [`Task::Verify`].
pub struct VerifyTask {
    run: Box<Run>,
    names: Names,
    response: Zeroizing<Vec<u8>>,
    counter_challenge: Option<(u32, Vec<u8>)>,
    value: Vec<u8>,
}

/// The result of a [`Task`].
#[derive(Debug)]
pub struct Computed(Outcome);

#[derive(Debug)]
enum Outcome {
    Challenge(Result<Box<Run>, (u16, Fault)>),
    Verified { transaction: u16, hash: Hash, result: Result<Option<Digest>, Fault> },
}

impl Controller {
    /// Before the first message.
    #[must_use]
    pub fn new(names: Names, terms: Terms) -> Self {
        Self { names, terms, state: State::Idle, authenticated: false }
    }

    /// Between whom.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Whether the host has proved itself once, and has not failed since.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Why it failed, if it did.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        match self.state {
            State::Failed { fault, .. } => Some(fault),
            _ => None,
        }
    }

    /// Whether it failed, and the host knows: the association ends now.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Failed { told: true, .. })
    }

    /// Whether it waits for something.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// Forgets what is under way, as nothing came for too long. An authenticated host stays so. Not while a task is out,
    /// nor after a failure.
    pub fn give_up(&mut self) {
        if !matches!(self.state, State::Challenging | State::Verifying | State::Failed { .. }) {
            self.state = State::Idle;
        }
    }

    /// Takes a message of the host's: all of the data of an Authentication Send.
    pub fn on_message(&mut self, bytes: &[u8]) -> Option<Task> {
        if matches!(self.state, State::Failed { .. }) {
            return None;
        }
        match self.accept(bytes) {
            Ok(task) => task,
            Err(fault) => {
                self.fail(transaction_of(bytes).unwrap_or_default(), fault);
                None
            }
        }
    }

    fn accept(&mut self, bytes: &[u8]) -> Result<Option<Task>, Fault> {
        let message = Message::parse(bytes).map_err(Fault::of)?;
        let whole = message.wire_len() == bytes.len();
        match message {
            Message::Failure2(failure) => {
                let transaction = failure.transaction;
                self.fail(transaction, Fault::Refused(failure.explanation.0));
                if let State::Failed { told, .. } = &mut self.state {
                    *told = true;
                }
                Ok(None)
            }
            Message::Negotiate(negotiate) => match self.state {
                State::Challenging | State::Verifying => Err(Fault::Order),
                _ if !whole => Err(Fault::Payload),
                _ => self.negotiate(&negotiate).map(Some),
            },
            Message::Reply(reply) => match core::mem::replace(&mut self.state, State::Idle) {
                State::Challenged { run, sent: true, .. } => self.reply(run, &reply, whole, bytes).map(Some),
                _ => Err(Fault::Order),
            },
            Message::Success2 { transaction } => match self.state {
                State::AwaitSuccess2 { transaction: ours } if whole && transaction == ours => {
                    self.state = State::Idle;
                    self.authenticated = true;
                    Ok(None)
                }
                State::AwaitSuccess2 { .. } => Err(Fault::Payload),
                _ => Err(Fault::Order),
            },
            _ => Err(Fault::Order),
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate<'_>) -> Result<Task, Fault> {
        if negotiate.secure_channel != SecureChannel::NONE {
            return Err(Fault::Concatenation);
        }
        let mut descriptors = negotiate.descriptors.iter();
        let offer =
            descriptors.find(|it| it.protocol == AuthProtocol::DH_HMAC_CHAP).ok_or(Fault::Protocol)?;
        let hash = self.terms.choose_hash(offer.hashes()).ok_or(Fault::Hash)?;
        let group = self.terms.choose_group(offer.groups()).ok_or(Fault::Group)?;
        self.state = State::Challenging;
        Ok(Task::Challenge(ChallengeTask { transaction: negotiate.transaction, hash, group }))
    }

    fn reply(&mut self, run: Box<Run>, reply: &Reply<'_>, whole: bool, bytes: &[u8]) -> Result<Task, Fault> {
        let lengths = reply.response.len() == run.hash.len()
            && reply.dh_value.len() == run.pair.group().value_len()
            && whole;
        // CVALID is 0 or 1, and a challenge has a sequence number.
        let counter = bytes.get(8).is_some_and(|&cvalid| cvalid <= 1)
            && (reply.challenge.is_none() || reply.sequence != 0);
        if !lengths || !counter || reply.transaction != run.transaction {
            return Err(Fault::Payload);
        }
        self.state = State::Verifying;
        Ok(Task::Verify(Box::new(VerifyTask {
            names: self.names,
            response: Zeroizing::new(reply.response.to_vec()),
            counter_challenge: reply.challenge.map(|challenge| (reply.sequence, challenge.to_vec())),
            value: reply.dh_value.to_vec(),
            run,
        })))
    }

    /// Takes the result of a task. One that nothing waits for any more is dropped.
    pub fn on_computed(&mut self, computed: Computed) {
        match (&self.state, computed.0) {
            (State::Challenging, Outcome::Challenge(Ok(run))) => {
                let message = emit(&Message::Challenge(Challenge {
                    transaction: run.transaction,
                    hash: run.hash.id(),
                    group: run.pair.group().id(),
                    sequence: run.sequence,
                    challenge: &run.challenge,
                    dh_value: run.pair.public(),
                }));
                self.state = State::Challenged { run, message, sent: false };
            }
            (State::Challenging, Outcome::Challenge(Err((transaction, fault)))) => {
                self.fail(transaction, fault)
            }
            (State::Verifying, Outcome::Verified { transaction, hash, result: Ok(response) }) => {
                let hash_len = u8::try_from(hash.len()).expect("at most 64");
                let success = Success1 { transaction, hash_len, response: response.as_deref() };
                let message = emit(&Message::Success1(success));
                // The host has proved itself. Where the controller has to as well, the host says when it is content.
                self.authenticated |= response.is_none();
                self.state = State::Succeeded { transaction, message, success2: response.is_some() };
            }
            (State::Verifying, Outcome::Verified { transaction, result: Err(fault), .. }) => {
                self.fail(transaction, fault);
            }
            _ => {}
        }
    }

    /// The message for the host: what an Authentication Receive returns. Where there is none, that is a failure.
    pub fn message(&mut self) -> &[u8] {
        if !matches!(self.state, State::Challenged { .. } | State::Succeeded { .. } | State::Failed { .. }) {
            self.fail(0, Fault::Order);
        }
        match &self.state {
            State::Challenged { message, .. }
            | State::Succeeded { message, .. }
            | State::Failed { message, .. } => message,
            State::Idle | State::Challenging | State::Verifying | State::AwaitSuccess2 { .. } => &[],
        }
    }

    /// The host has the message.
    pub fn on_message_taken(&mut self) {
        match &mut self.state {
            State::Challenged { sent, .. } => *sent = true,
            State::Failed { told, .. } => *told = true,
            State::Succeeded { success2: true, transaction, .. } => {
                self.state = State::AwaitSuccess2 { transaction: *transaction };
            }
            State::Succeeded { success2: false, .. } => self.state = State::Idle,
            State::Idle | State::Challenging | State::Verifying | State::AwaitSuccess2 { .. } => {}
        }
    }

    fn fail(&mut self, transaction: u16, fault: Fault) {
        let reason = FailureReason::AUTHENTICATION_FAILURE;
        let failure = Failure { transaction, reason, explanation: fault.explanation() };
        self.authenticated = false;
        self.state = State::Failed { fault, message: emit(&Message::Failure1(failure)), told: false };
    }
}

impl Task {
    /// Computes it, which may take a tenth of a second. `keys` are those of the host now; `None`: it has none any more.
    pub fn run(self, keys: Option<&Keys>, random: Random<'_>) -> Computed {
        Computed(match self {
            Self::Challenge(task) => {
                let ChallengeTask { transaction, hash, group } = task;
                let pair = KeyPair::generate(group, random);
                let run = pair.and_then(|pair| Run::new(transaction, hash, pair, random));
                Outcome::Challenge(run.map(Box::new).map_err(|error| (transaction, error.into())))
            }
            Self::Verify(task) => Outcome::Verified {
                transaction: task.run.transaction,
                hash: task.run.hash,
                result: task.verify(keys),
            },
        })
    }

    /// The group: what running it costs.
    #[must_use]
    pub fn group(&self) -> Group {
        match self {
            Self::Challenge(task) => task.group,
            Self::Verify(task) => task.run.pair.group(),
        }
    }
}

impl Run {
    fn new(transaction: u16, hash: Hash, pair: KeyPair, random: Random<'_>) -> Result<Self, NoRandom> {
        let (mut challenge, mut sequence) = (vec![0; hash.len()], [0; 4]);
        random(&mut challenge)?;
        random(&mut sequence)?;
        // 0 has a meaning of its own.
        let sequence = u32::from_le_bytes(sequence).max(1);
        Ok(Self { transaction, hash, pair, challenge, sequence })
    }
}

impl VerifyTask {
    fn verify(&self, keys: Option<&Keys>) -> Result<Option<Digest>, Fault> {
        let keys = keys.ok_or(Fault::NoKey)?;
        let host = keys.host.as_ref().ok_or(Fault::NoKey)?;
        // Asked for in vain whatever the response.
        let controller = match &self.counter_challenge {
            Some(asked) => Some((asked, keys.controller.as_ref().ok_or(Fault::NoControllerKey)?)),
            None => None,
        };
        let Self { run, names, .. } = self;
        let agreed =
            Agreed::new(run.hash, run.transaction, &run.pair, &self.value).map_err(|_| Fault::Value)?;
        if !agreed.of_host(&run.challenge, run.sequence, host, names).is(&self.response) {
            return Err(Fault::WrongResponse);
        }
        Ok(controller
            .map(|((sequence, challenge), secret)| agreed.of_controller(challenge, *sequence, secret, names)))
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Challenge(_) => "Challenge",
            Self::Verify(_) => "Verify",
        };
        f.debug_tuple(name).field(&self.group()).finish()
    }
}

impl fmt::Debug for VerifyTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerifyTask").field("group", &self.run.pair.group()).finish_non_exhaustive()
    }
}

/// Every value has the length of its hash or group.
pub(crate) fn emit(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.wire_len()];
    message.emit(&mut bytes).expect("lengths of a hash and a group can be said");
    bytes
}
