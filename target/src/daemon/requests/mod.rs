//! Carries out what comes over the control socket.

mod change;
mod cluster;
mod disk;
mod hosts;
mod service;
mod status;
mod trace;

use super::Daemon;
use super::changing::{Asker, Changing};
use crate::control::Call;
use crate::control::protocol::{Answer, Fault};
use crate::control::request::Request;
use crate::control::request::ana::AnaRequest;
use crate::control::request::disk::DiskRequest;
use crate::control::request::service::ConnectionsRequest;
use crate::log::CHANGE;
use crate::visible::shortened;
use serde::Serialize;
use tokio::sync::oneshot;

/// Bytes that the log takes of a request, and of what is said to it: clients write what they like.
const AUDIT_MAX: usize = 2048;

/// What comes of a request.
enum Reply {
    /// Its answer.
    Answer(Answer),
    /// Changes that are answered when they are over.
    Changes(Box<Changing>),
    /// A file to be made by a thread of its own, which answers.
    Disk(DiskRequest),
}

impl From<Changing> for Reply {
    fn from(changing: Changing) -> Self {
        Self::Changes(Box::new(changing))
    }
}

/// Who waits for an answer, and what is logged with it.
pub(super) struct Client {
    uid: u32,
    pid: Option<i32>,
    audit: Option<String>,
    reply: oneshot::Sender<Answer>,
}

impl Client {
    /// Whether nobody waits any more.
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    pub(super) fn answer(self, answer: Answer) {
        let Self { uid, pid, audit, reply } = self;
        if let Some(asked) = audit {
            let fault = answer.error.as_ref().map_or("done", |fault| &fault.message);
            let (asked, fault) = (shortened(&asked, AUDIT_MAX), shortened(fault, AUDIT_MAX));
            tracing::info!(target: CHANGE, uid, pid, audit = "change", "control: {asked}: {fault}");
        }
        // Nobody waits any more if the client has gone.
        let _ = reply.send(answer);
    }
}

impl Daemon {
    /// Carries a request out and answers it. What changes something leaves a line in the log, with who asked.
    pub(super) fn on_call(&mut self, call: Call) {
        let Call { request, uid, pid, reply } = call;
        let client = Client { uid, pid, audit: request.audit(), reply };
        match self.carry_out(&request) {
            Ok(Reply::Changes(changing)) => self.await_changes(*changing, Asker::Client(client)),
            Ok(Reply::Disk(request)) => self.on_disk(request, client),
            Ok(Reply::Answer(answer)) => client.answer(answer),
            Err(fault) => client.answer(Answer::refused(fault)),
        }
    }

    fn carry_out(&mut self, request: &Request) -> Result<Reply, Fault> {
        match request {
            Request::Status { .. } => done(&self.status_answer()),
            Request::Trace { max } => done(&self.trace_answer(*max)?),
            Request::Subsystem(request) => self.on_subsystem(request),
            Request::Namespace(request) => self.on_namespace(request),
            Request::Host(request) => self.on_host(request),
            Request::Disk(request) => Ok(Reply::Disk(request.clone())),
            Request::Listener(request) => self.on_listener(request),
            Request::Ana(AnaRequest::Set(set)) => self.on_ana(set),
            Request::Cluster(request) => self.on_cluster(request),
            Request::Connections(ConnectionsRequest::List {}) => self.on_list(),
            Request::Connections(ConnectionsRequest::Close(which)) => self.on_close(which),
            Request::Plan(file) => self.on_plan(&file.text),
            Request::Apply(file) => self.on_apply(&file.text),
            Request::Save(_) => self.on_save(),
            Request::LogLevel(level) => self.on_log_level(level),
            Request::Drain(drain) => self.on_drain(drain),
        }
    }
}

fn done(result: &impl Serialize) -> Result<Reply, Fault> {
    Ok(Reply::Answer(answer(result)?))
}

fn answer(result: &impl Serialize) -> Result<Answer, Fault> {
    let result = serde_json::to_value(result).map_err(|error| Fault::refused(error.to_string()))?;
    Ok(Answer::done(result))
}
