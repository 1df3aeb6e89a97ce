//! Carries out what comes over the control socket.

mod change;
mod service;
mod status;
mod trace;

pub(in crate::daemon) use change::changed;

use super::Daemon;
use crate::control::Call;
use crate::control::protocol::{Answer, Fault};
use crate::control::request::Request;
use crate::control::request::ana::AnaRequest;
use crate::control::request::service::ConnectionsRequest;
use crate::log::AUDIT;
use serde::Serialize;

impl Daemon {
    /// Carries a request out and answers it. What changes something leaves a line in the log, with who asked.
    pub(super) fn on_call(&mut self, call: Call) {
        let Call { request, uid, pid, reply } = call;
        let audit = request.audit();
        let answer = self.carry_out(&request).unwrap_or_else(Answer::refused);
        if let Some(asked) = audit {
            let fault = answer.error.as_ref().map_or("done", |fault| &fault.message);
            tracing::info!(target: AUDIT, uid, pid, audit = "change", "control: {asked}: {fault}");
        }
        // Nobody waits any more if the client has gone.
        let _ = reply.send(answer);
    }

    fn carry_out(&mut self, request: &Request) -> Result<Answer, Fault> {
        match request {
            Request::Status {} => done(&self.status_answer()),
            Request::Trace { max } => done(&self.trace_answer(*max)?),
            Request::Subsystem(request) => self.on_subsystem(request),
            Request::Namespace(request) => self.on_namespace(request),
            Request::Host(request) => self.on_host(request),
            Request::Listener(request) => self.on_listener(request),
            Request::Ana(AnaRequest::Set(set)) => self.on_ana(set),
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

fn done(result: &impl Serialize) -> Result<Answer, Fault> {
    let result = serde_json::to_value(result).map_err(|error| Fault::refused(error.to_string()))?;
    Ok(Answer::done(result))
}
