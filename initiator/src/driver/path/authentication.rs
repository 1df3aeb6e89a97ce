//! What is computed for an authentication: on a thread of its own, as it may take some tenths of a second.
//!
//! The thread is one for the whole process, so however many connections authenticate, they take one processor. A driver
//! has no more than one task there.

use super::Path;
use crate::options::SecretsSource;
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::Qid;
use nvmf_auth::host::{Replied, ReplyTask, Secrets};
use nvmf_auth::{GeneratedKey, Group, system_random};
use nvmf_host::QueueFailure;
use nvmf_tls::Psk;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};

/// How often a driver looks whether a task has ended.
const GLANCE: Duration = Duration::from_millis(1);

/// A task, the secrets that it needs, and where its result goes.
struct Job {
    task: Box<ReplyTask>,
    secrets: Secrets,
    replied: Sender<Replied>,
}

/// The thread that computes. `None`: the system has no thread left.
fn thread() -> Option<Sender<Job>> {
    /// With the process that it is of: one that is forked off has no thread.
    static THREAD: Mutex<Option<(u32, Sender<Job>)>> = Mutex::new(None);
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if thread.as_ref().is_none_or(|(of, _)| *of != process) {
        *thread = start().map(|jobs| (process, jobs));
    }
    thread.as_ref().map(|(_, jobs)| jobs.clone())
}

fn start() -> Option<Sender<Job>> {
    let (jobs, queue) = channel::<Job>();
    let body = move || {
        for Job { task, secrets, replied } in queue {
            // Whoever has asked may be gone.
            let _ = replied.send(task.run(&secrets, &mut system_random));
        }
    };
    std::thread::Builder::new().name("nvmf-auth".to_owned()).spawn(body).ok().map(|_| jobs)
}

/// A task that is being computed.
#[derive(Debug)]
pub(super) struct Computing {
    replied: Receiver<Replied>,
    pub(super) look_at: Duration,
}

impl<T: Transport> Path<T> {
    /// Authenticates every queue again, with these secrets from now on. [`super::Note::AuthenticatedAgain`] follows, or
    /// the association is lost.
    pub(in crate::driver) fn authenticate_again(&mut self, now: Duration, secrets: Secrets) -> bool {
        self.config.secrets = Some(secrets);
        let begun = self.association.as_mut().is_some_and(|association| association.authenticate_again(now));
        self.act(now);
        begun
    }

    /// Takes the secrets as they are now, for the authentications to come.
    pub(super) fn read_secrets_again(&mut self) {
        match self.config.secrets_source.as_ref().map(SecretsSource::read) {
            Some(Ok(secrets)) => self.config.secrets = Some(secrets),
            Some(Err(reason)) => tracing::warn!("the secrets as they were are used: {reason}"),
            None => {}
        }
    }

    /// Computes a reply: here where that takes no time, which is so without a group.
    pub(super) fn authenticate(&mut self, now: Duration, task: Box<ReplyTask>) {
        let (Some(secrets), Some(association)) = (&self.config.secrets, &mut self.association) else {
            return;
        };
        let thread = if task.group() == Group::Null { None } else { thread() };
        let Some(thread) = thread else {
            let replied = task.run(secrets, &mut system_random);
            return association.on_authentication_computed(now, replied);
        };
        let (sender, replied) = channel();
        let secrets = secrets.clone();
        // If the thread is gone, so is the sender: the receiver says it.
        let _ = thread.send(Job { task, secrets, replied: sender });
        self.computing = Some(Computing { replied, look_at: now.saturating_add(GLANCE) });
    }

    /// Takes the reply that was computed, if it was.
    pub(super) fn poll_computed(&mut self, now: Duration) -> bool {
        let Some(computing) = &mut self.computing else { return false };
        let replied = match computing.replied.try_recv() {
            Err(TryRecvError::Empty) => {
                computing.look_at = now.saturating_add(GLANCE);
                return false;
            }
            Ok(replied) => Some(replied),
            Err(TryRecvError::Disconnected) => None,
        };
        self.computing = None;
        match (replied, &mut self.association) {
            (Some(replied), Some(association)) => association.on_authentication_computed(now, replied),
            (None, Some(_)) => {
                self.on_lost(now, Qid(0), "the thread that computes for authentications ended", false)
            }
            (_, None) => {}
        }
        self.act(now);
        true
    }

    /// An authentication made a key: connections that are opened from now on have TLS with it.
    pub(super) fn secure(&mut self, now: Duration, key: &GeneratedKey, qid: Option<Qid>) {
        let association = &self.config.association;
        let psk = Psk::generated(key.bytes(), &association.host_nqn, &association.subsystem_nqn);
        let secured = psk
            .map_err(|error| error.to_string())
            .and_then(|psk| self.transport.secure(Some(&psk)).map_err(|error| error.to_string()));
        match (secured, qid) {
            // Nothing is in flight on it. What opens it anew closes it first.
            (Ok(()), _) => {}
            (Err(reason), Some(qid)) => {
                self.transport.destroy(qid);
                self.queues[usize::from(qid.0)] = None;
                if let Some(association) = &mut self.association {
                    association.on_queue_failed(now, qid, QueueFailure::Other(reason));
                }
            }
            // The connections that are there have a key.
            (Err(_), None) => {}
        }
    }
}
