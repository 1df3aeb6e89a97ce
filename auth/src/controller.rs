//! The controller's side: one [`Controller`] for each queue.
//!
//! ```text
//! Negotiate ─► Task::Challenge ─► Challenge ─► Reply ─► Task::Verify ─► Success1 ─► (Success2)
//! ```
//!
//! A Negotiate begins anew, at any time but while a task is out and after a failure: an authenticated host stays
//! authenticated meanwhile. After a failure nothing but Failure1 follows.

pub use crate::fault::{Fault, FaultReason};

use crate::response::Agreed;
use crate::{
    Concatenation, Digest, GeneratedKey, Group, Hash, KeyPair, Names, NoRandom, Random, Secret, Terms,
};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use nvme_proto::fabrics::auth::{
    AuthProtocol, Challenge, Failure, FailureReason, Message, Negotiate, Reply, SecureChannel, Success1,
    transaction_of,
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

/// What was agreed on, and what the challenge was.
#[derive(Debug)]
struct Run {
    transaction: u16,
    hash: Hash,
    pair: KeyPair,
    secure_channel: SecureChannel,
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
    Verifying { secure_channel: SecureChannel },
    /// The host has proved itself, but not been told. `unlocks`: the queue may be used when this is over.
    Succeeded { transaction: u16, message: Vec<u8>, success2: bool, unlocks: bool },
    /// The controller has proved itself, and waits to hear that the host thinks so.
    AwaitSuccess2 { transaction: u16, unlocks: bool },
    /// It failed; `told`: the host has heard of it, or did it itself.
    Failed { fault: Fault, message: Vec<u8>, told: bool },
}

/// The controller's side of the authentication of one queue.
#[derive(Debug)]
pub struct Controller {
    names: Names,
    terms: Terms,
    concatenation: Concatenation,
    state: State,
    authenticated: bool,
    concatenated: bool,
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
    secure_channel: SecureChannel,
}

/// See [`Task::Verify`].
pub struct VerifyTask {
    run: Box<Run>,
    names: Names,
    response: Zeroizing<Vec<u8>>,
    /// The number is 0 where the controller need not prove itself: the challenge goes into a key then.
    counter_challenge: Option<(u32, Vec<u8>)>,
    value: Vec<u8>,
    replaces: Option<u64>,
}

/// The result of a [`Task`].
#[derive(Debug)]
pub struct Computed(Outcome);

#[derive(Debug)]
enum Outcome {
    Challenge(Result<Box<Run>, (u16, Fault)>),
    Verified { transaction: u16, hash: Hash, result: Result<Proof, Fault> },
}

/// The host has proved itself.
#[derive(Debug)]
struct Proof {
    /// What proves the controller, if that was asked for.
    response: Option<Digest>,
    key: Option<Generated>,
}

/// A key for TLS that an authentication made ([`Computed::generated`]).
#[derive(Debug)]
pub struct Generated {
    /// The key.
    pub key: GeneratedKey,
    /// The number of the key that it replaces ([`Concatenation::Replace`]).
    pub replaces: Option<u64>,
}

impl Computed {
    /// A key for TLS: the caller has to know it before it passes the result on, as the host may use it as soon as it hears
    /// of the success.
    #[must_use]
    pub fn generated(&self) -> Option<&Generated> {
        match &self.0 {
            Outcome::Verified { result: Ok(proof), .. } => proof.key.as_ref(),
            _ => None,
        }
    }
}

impl Controller {
    /// Before the first message.
    #[must_use]
    pub fn new(names: Names, terms: Terms) -> Self {
        let (concatenation, state) = (Concatenation::No, State::Idle);
        Self { names, terms, concatenation, state, authenticated: false, concatenated: false }
    }

    /// The same with this secure channel concatenation. [`Concatenation::Replace`]: the connection's key proves the host, so
    /// that it counts as authenticated.
    #[must_use]
    pub fn with_concatenation(self, concatenation: Concatenation) -> Self {
        let authenticated = matches!(concatenation, Concatenation::Replace { .. });
        Self { concatenation, authenticated, ..self }
    }

    /// Whether a key was made for another connection: this one is of no more use.
    #[must_use]
    pub fn is_concatenated(&self) -> bool {
        self.concatenated
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
        if !matches!(self.state, State::Challenging | State::Verifying { .. } | State::Failed { .. }) {
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
                State::Challenging | State::Verifying { .. } => Err(Fault::Order),
                _ if !whole => Err(Fault::Payload),
                _ => self.negotiate(&negotiate).map(Some),
            },
            Message::Reply(reply) => match core::mem::replace(&mut self.state, State::Idle) {
                State::Challenged { run, sent: true, .. } => self.reply(run, &reply, whole, bytes).map(Some),
                _ => Err(Fault::Order),
            },
            Message::Success2 { transaction } => match self.state {
                State::AwaitSuccess2 { transaction: ours, unlocks } if whole && transaction == ours => {
                    self.state = State::Idle;
                    self.succeed(unlocks);
                    Ok(None)
                }
                State::AwaitSuccess2 { .. } => Err(Fault::Payload),
                _ => Err(Fault::Order),
            },
            _ => Err(Fault::Order),
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate<'_>) -> Result<Task, Fault> {
        let secure_channel = negotiate.secure_channel;
        if !self.concatenation.allows(secure_channel) {
            return Err(match secure_channel {
                SecureChannel::NONE => Fault::NoConcatenation,
                SecureChannel(other) => Fault::Concatenation(other),
            });
        }
        let mut descriptors = negotiate.descriptors.iter();
        let offer =
            descriptors.find(|it| it.protocol == AuthProtocol::DH_HMAC_CHAP).ok_or(Fault::Protocol)?;
        let terms = match secure_channel {
            SecureChannel::NONE => self.terms,
            _ => self.terms.that_make_keys(),
        };
        let hash = terms.choose_hash(offer.hashes()).ok_or(Fault::Hash)?;
        let group = terms.choose_group(offer.groups()).ok_or(Fault::Group)?;
        self.state = State::Challenging;
        let transaction = negotiate.transaction;
        Ok(Task::Challenge(ChallengeTask { transaction, hash, group, secure_channel }))
    }

    fn reply(&mut self, run: Box<Run>, reply: &Reply<'_>, whole: bool, bytes: &[u8]) -> Result<Task, Fault> {
        let lengths = reply.response.len() == run.hash.len()
            && reply.dh_value.len() == run.pair.group().value_len()
            && whole;
        // CVALID is 0 or 1, and a challenge has a sequence number. A key for TLS is made of both challenges, so there the
        // host's is there always; only a number other than 0 asks the controller to prove itself.
        let counter = bytes.get(8).is_some_and(|&cvalid| cvalid <= 1)
            && match run.secure_channel {
                SecureChannel::NONE => reply.challenge.is_none() || reply.sequence != 0,
                _ => reply.challenge.is_some(),
            };
        if !lengths || !counter || reply.transaction != run.transaction {
            return Err(Fault::Payload);
        }
        self.state = State::Verifying { secure_channel: run.secure_channel };
        Ok(Task::Verify(Box::new(VerifyTask {
            names: self.names,
            response: Zeroizing::new(reply.response.to_vec()),
            counter_challenge: reply.challenge.map(|challenge| (reply.sequence, challenge.to_vec())),
            value: reply.dh_value.to_vec(),
            replaces: self.concatenation.replaced(),
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
            (
                State::Verifying { secure_channel },
                Outcome::Verified { transaction, hash, result: Ok(Proof { response, .. }) },
            ) => {
                let unlocks = *secure_channel != SecureChannel::NEW_TLS_PSK;
                let hash_len = u8::try_from(hash.len()).expect("at most 64");
                let success = Success1 { transaction, hash_len, response: response.as_deref() };
                let message = emit(&Message::Success1(success));
                // The host has proved itself. Where the controller has to as well, the host says when it is content.
                let success2 = response.is_some();
                if !success2 {
                    self.succeed(unlocks);
                }
                self.state = State::Succeeded { transaction, message, success2, unlocks };
            }
            (State::Verifying { .. }, Outcome::Verified { transaction, result: Err(fault), .. }) => {
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
            State::Idle | State::Challenging | State::Verifying { .. } | State::AwaitSuccess2 { .. } => &[],
        }
    }

    /// The host has the message.
    pub fn on_message_taken(&mut self) {
        match &mut self.state {
            State::Challenged { sent, .. } => *sent = true,
            State::Failed { told, .. } => *told = true,
            State::Succeeded { success2: true, transaction, unlocks, .. } => {
                self.state = State::AwaitSuccess2 { transaction: *transaction, unlocks: *unlocks };
            }
            State::Succeeded { success2: false, .. } => self.state = State::Idle,
            State::Idle | State::Challenging | State::Verifying { .. } | State::AwaitSuccess2 { .. } => {}
        }
    }

    fn succeed(&mut self, unlocks: bool) {
        self.authenticated |= unlocks;
        self.concatenated |= !unlocks;
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
                let ChallengeTask { transaction, hash, group, secure_channel } = task;
                let pair = KeyPair::generate(group, random);
                let run = pair.and_then(|pair| Run::new(transaction, hash, secure_channel, pair, random));
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
    fn new(
        transaction: u16,
        hash: Hash,
        secure_channel: SecureChannel,
        pair: KeyPair,
        random: Random<'_>,
    ) -> Result<Self, NoRandom> {
        let (mut challenge, mut sequence) = (vec![0; hash.len()], [0; 4]);
        random(&mut challenge)?;
        random(&mut sequence)?;
        // 0 has a meaning of its own.
        let sequence = u32::from_le_bytes(sequence).max(1);
        Ok(Self { transaction, hash, pair, secure_channel, challenge, sequence })
    }
}

impl VerifyTask {
    fn verify(&self, keys: Option<&Keys>) -> Result<Proof, Fault> {
        let keys = keys.ok_or(Fault::NoKey)?;
        let host = keys.host.as_ref().ok_or(Fault::NoKey)?;
        let Self { run, names, counter_challenge, .. } = self;
        // Asked for in vain whatever the response.
        let controller = match counter_challenge {
            Some((sequence, challenge)) if *sequence != 0 => {
                Some((*sequence, challenge, keys.controller.as_ref().ok_or(Fault::NoControllerKey)?))
            }
            _ => None,
        };
        let agreed = Agreed::new(run.hash, run.transaction, run.secure_channel, &run.pair, &self.value)
            .map_err(|_| Fault::Value)?;
        if !agreed.of_host(&run.challenge, run.sequence, host, names).is(&self.response) {
            return Err(Fault::WrongResponse);
        }
        let response = controller
            .map(|(sequence, challenge, secret)| agreed.of_controller(challenge, sequence, secret, names));
        let key = match counter_challenge {
            Some((_, challenge)) if run.secure_channel != SecureChannel::NONE => agreed
                .generated_key(&run.challenge, challenge)
                .map(|key| Generated { key, replaces: self.replaces }),
            _ => None,
        };
        Ok(Proof { response, key })
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
