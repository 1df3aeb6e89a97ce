//! In-band authentication (DH-HMAC-CHAP) of each queue: after its Connect, and again whenever the caller wants.

use super::{Action, Association, AssociationError, Purpose, Reply, State, Step};
use crate::{Cntlid, Qid, admin};
use alloc::boxed::Box;
use core::time::Duration;
use nvme_proto::fabrics::auth::SecureChannel;
use nvme_proto::fabrics::connect::Connected;
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_auth::host::{Host, HostError, Next, Replied};
use nvmf_auth::{MESSAGE_LEN_MAX, Names, Terms};

/// Bytes that a message of the controller's has room for. An I/O queue has no more for its commands' own data.
const RECEIVE_LEN: u32 = MESSAGE_LEN_MAX as u32;

/// How to authenticate. The secrets are with whoever runs [`Action::Authenticate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// The hash functions and groups to offer.
    pub terms: Terms,
    /// A controller of namespaces that does not ask for authentication on its Admin queue is not used: whoever is on
    /// the way could have taken the request out. On I/O queues that is up to the controller: Linux's asks there until
    /// 6.17, and no more since.
    pub insist: bool,
    /// The Admin queue's authentication makes the key for TLS, which all connections have after it (secure channel
    /// concatenation): over NVMe/TCP, without TLS before, and with terms
    /// [that make keys](Terms::for_concatenation).
    pub concatenate: bool,
}

/// On which queues the controller asks for authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Asks {
    /// On none.
    #[default]
    Nowhere,
    /// On the Admin queue alone.
    Admin,
    /// On the I/O queues as well.
    Everywhere,
}

/// What is under way.
#[derive(Debug)]
pub(super) struct Run {
    qid: Qid,
    protocol: Host,
    /// The queue is in use: others follow, and then nothing.
    again: bool,
}

impl Association {
    /// What Connect of a queue says of authentication: whether it comes next.
    pub(super) fn must_authenticate(&self, connected: Connected) -> Result<bool, AssociationError> {
        let concatenates = self.concatenates();
        if connected.secure_channel_required && (!concatenates || self.concatenated) {
            return Err(AssociationError::SecureChannelRequired);
        }
        if concatenates {
            return match (connected.authentication_required, self.concatenated) {
                // Whoever is on the way could have taken the request out.
                (false, false) => Err(AssociationError::NotAuthenticated),
                // The channel's key proves both sides; some controllers ask once more.
                (asked, _) => Ok(asked),
            };
        }
        match (connected.authentication_required, &self.config.authentication) {
            (true, None) => Err(AssociationError::AuthenticationRequired),
            (true, Some(_)) => Ok(true),
            (false, Some(it))
                if it.insist && self.asks == Asks::Nowhere && self.config.purpose == Purpose::Io =>
            {
                Err(AssociationError::NotAuthenticated)
            }
            (false, _) => Ok(false),
        }
    }

    /// Authenticates again every queue that was asked to, the Admin queue first: after the secret has changed on the other side, say. Does
    /// nothing while something else is under way; whether it does.
    pub fn authenticate_again(&mut self, now: Duration) -> bool {
        let idle = self.state == State::Ready && self.step == Step::Idle;
        let again = idle && self.asks != Asks::Nowhere;
        if again {
            self.authenticate(now, Qid(0), true);
        }
        again
    }

    fn concatenates(&self) -> bool {
        self.config.authentication.is_some_and(|it| it.concatenate)
    }

    /// Begins.
    pub(super) fn authenticate(&mut self, now: Duration, qid: Qid, again: bool) {
        let terms = self.config.authentication.map_or(Terms::default(), |it| it.terms);
        let names = Names { host: self.config.host_nqn, subsystem: self.config.subsystem_nqn };
        self.transaction = self.transaction.wrapping_add(1);
        let wanted = match (self.concatenates() && qid == Qid(0), self.concatenated) {
            (false, _) => SecureChannel::NONE,
            (true, false) => SecureChannel::NEW_TLS_PSK,
            (true, true) => SecureChannel::REPLACE_TLS_PSK,
        };
        let (protocol, next) = Host::start_with(names, terms, self.transaction, wanted);
        if !again {
            self.asks = if qid == Qid(0) { Asks::Admin } else { Asks::Everywhere };
            self.state = State::Authenticating(qid);
        }
        self.authentication = Some(Box::new(Run { qid, protocol, again }));
        // It begins with a message, and cannot fail.
        let _ = self.go_on(now, next);
    }

    /// A message was sent or received.
    pub(super) fn on_authentication_step(
        &mut self,
        now: Duration,
        reply: Reply<'_>,
    ) -> Result<(), AssociationError> {
        let (step, outcome) = (self.step, reply.outcome);
        let Some(run) = &mut self.authentication else { return Ok(()) };
        let qid = run.qid;
        let failed = |error| AssociationError::Authentication { qid, error };
        let next = match step {
            Step::AuthenticationSend(_) => {
                super::setup::succeeded("Authentication Send", outcome)?;
                run.protocol.on_sent().map_err(failed)?
            }
            _ => {
                super::setup::succeeded("Authentication Receive", outcome)?;
                run.protocol.on_received(reply.data).map_err(failed)?
            }
        };
        self.go_on(now, next)
    }

    /// That the controller is being told of.
    pub(super) fn failed_authentication(&self) -> Option<AssociationError> {
        let run = self.authentication.as_ref()?;
        let error = run.protocol.failure()?;
        Some(AssociationError::Authentication { qid: run.qid, error })
    }

    /// [`Action::Authenticate`] was run.
    pub fn on_authentication_computed(&mut self, now: Duration, replied: Replied) {
        let (Step::AuthenticationCompute(qid), Some(run)) = (self.step, &mut self.authentication) else {
            return;
        };
        let next = run.protocol.on_computed(replied);
        let next = next.map_err(|error| AssociationError::Authentication { qid, error });
        if let Err(error) = next.and_then(|next| self.go_on(now, next)) {
            self.fail(error);
        }
    }

    fn go_on(&mut self, now: Duration, next: Next) -> Result<(), AssociationError> {
        let Some(run) = &self.authentication else { return Ok(()) };
        let qid = run.qid;
        match next {
            Next::Send(message) => {
                // Every TCP controller takes 8 KiB with a Fabrics command, on any queue.
                let in_capsule = self.config.transport == TransportType::TCP;
                self.send_step(
                    now,
                    Step::AuthenticationSend(qid),
                    admin::authentication_send(message, in_capsule),
                );
            }
            Next::Receive => {
                let command = admin::authentication_receive(RECEIVE_LEN);
                self.send_step(now, Step::AuthenticationReceive(qid), command);
            }
            Next::Compute(task) => {
                self.step = Step::AuthenticationCompute(qid);
                self.step_deadline = None;
                self.actions.push_back(Action::Authenticate(task));
            }
            Next::Done => return self.on_authenticated(now),
        }
        Ok(())
    }

    fn on_authenticated(&mut self, now: Duration) -> Result<(), AssociationError> {
        let Some(mut run) = self.authentication.take() else { return Ok(()) };
        let key = run.protocol.take_key();
        if let Some(key) = key {
            if !self.concatenated {
                self.concatenated = true;
                self.controller.cntlid = Cntlid(0);
                self.actions.push_back(Action::Secure { key, qid: Some(run.qid) });
                self.open_queue(now, run.qid);
                return Ok(());
            }
            // For connections to come; those that are there stay.
            self.actions.push_back(Action::Secure { key, qid: None });
        }
        if !run.again {
            return self.on_queue_connected_and_authenticated(now, run.qid);
        }
        // With a channel, its key proves the host on the others.
        let others = self.asks == Asks::Everywhere && !self.concatenates();
        if others && run.qid.0 < self.controller.io_queues {
            self.authenticate(now, Qid(run.qid.0 + 1), true);
            return Ok(());
        }
        self.actions.push_back(Action::AuthenticatedAgain);
        self.settle(now);
        Ok(())
    }
}

/// Whether the error is the user's secret or the target's: connecting again changes nothing.
pub(super) fn is_final(error: HostError) -> bool {
    !matches!(error, HostError::Random(_))
}
