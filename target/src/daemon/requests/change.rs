//! What changes what is served: each request is an edit of the configuration, checked and applied as a file is.

use super::Daemon;
use crate::control::protocol::{Answer, Fault};
use crate::control::request::ana::AnaSet;
use crate::control::request::change::{ChangesAnswer, Item};
use crate::control::request::config::SaveAnswer;
use crate::control::request::listener::ListenerRequest;
use crate::control::request::namespace::{NamespaceAdd, NamespaceRequest, NamespaceSet};
use crate::control::request::subsystem::{
    HostName, HostRequest, SubsystemAdd, SubsystemName, SubsystemRequest,
};
use crate::daemon::apply::Origin;
use nvmf_config::{Config, Draft, DraftError, Transport};
use serde::Serialize;
use std::net::SocketAddr;
use toml::{Table, Value};

impl Daemon {
    pub(super) fn on_subsystem(&mut self, request: &SubsystemRequest) -> Result<Answer, Fault> {
        match request {
            SubsystemRequest::Add(add) => self.edit(|draft| draft.add_subsystem(subsystem(add))),
            SubsystemRequest::Remove(SubsystemName { nqn }) => self.edit(|draft| draft.remove_subsystem(nqn)),
        }
    }

    pub(super) fn on_host(&mut self, request: &HostRequest) -> Result<Answer, Fault> {
        match request {
            HostRequest::Add(HostName { subsystem, host }) => {
                self.edit(|draft| draft.allow_host(subsystem, host))
            }
            HostRequest::Remove(HostName { subsystem, host }) => {
                self.edit(|draft| draft.revoke_host(subsystem, host))
            }
        }
    }

    pub(super) fn on_namespace(&mut self, request: &NamespaceRequest) -> Result<Answer, Fault> {
        match request {
            NamespaceRequest::Add(add) => self.edit(|draft| {
                let mut table = namespace(add);
                let nsid = add.nsid.map_or_else(|| draft.free_nsid(&add.subsystem), Ok)?;
                table.insert("nsid".into(), i64::from(nsid).into());
                draft.add_namespace(&add.subsystem, table)
            }),
            NamespaceRequest::Set(NamespaceSet { subsystem, nsid, read_only }) => self.edit(|draft| {
                draft.namespace(subsystem, *nsid)?.insert("read_only".into(), (*read_only).into());
                Ok(())
            }),
            NamespaceRequest::Resize(resize) => self.resize(&resize.subsystem, resize.nsid, resize.shrink),
            NamespaceRequest::Remove(name) => {
                self.edit(|draft| draft.remove_namespace(&name.subsystem, name.nsid))
            }
        }
    }

    pub(super) fn on_listener(&mut self, request: &ListenerRequest) -> Result<Answer, Fault> {
        match request {
            ListenerRequest::Add(add) => self.edit(|draft| {
                draft.add_listener(table(add));
                Ok(())
            }),
            ListenerRequest::Set(set) => {
                let at = self.listener_at(&set.address, set.transport.as_deref())?;
                self.edit(|draft| {
                    let Some(listener) = draft.listener(at) else { return Ok(()) };
                    listener.remove("allow");
                    if !set.allow.is_empty() {
                        listener.insert("allow".into(), Value::from(set.allow.clone()));
                    }
                    Ok(())
                })
            }
            ListenerRequest::Remove(name) => {
                let at = self.listener_at(&name.address, name.transport.as_deref())?;
                self.edit(|draft| {
                    draft.remove_listener(at);
                    Ok(())
                })
            }
        }
    }

    pub(super) fn on_ana(&mut self, set: &AnaSet) -> Result<Answer, Fault> {
        let at = self.listener_at(&set.address, set.transport.as_deref())?;
        self.edit(|draft| {
            draft.set_ana_group(at, set.group, &set.state);
            Ok(())
        })
    }

    /// The place of the listener that is meant.
    fn listener_at(&self, address: &str, transport: Option<&str>) -> Result<usize, Fault> {
        let transport = match transport {
            None => None,
            Some("rdma") => Some(Transport::Rdma),
            Some("tcp") => Some(Transport::Tcp),
            Some(other) => {
                return Err(Fault::refused(format!("the transport \"{other}\" is not rdma or tcp")));
            }
        };
        let known = || {
            let all = self.listeners.iter().map(|it| format!("{} over {}", it.address(), it.transport()));
            all.collect::<Vec<_>>().join(", ")
        };
        let whole = address.parse::<SocketAddr>().ok();
        let ip = address.trim_matches(['[', ']']).parse().ok();
        let meant = whole.or_else(|| Some(SocketAddr::new(ip?, nvmf_config::PORT)));
        let is_meant = |at: &usize| meant.is_some_and(|meant| self.listeners[*at].is_named(meant, transport));
        let found: Vec<usize> = (0..self.listeners.len()).filter(is_meant).collect();
        match found[..] {
            [at] => Ok(at),
            [] => Err(Fault::refused(format!("there is no listener {address}; there is {}", known()))),
            _ => Err(Fault::refused(format!(
                "several listeners are {address}: name the transport, of {}",
                known()
            ))),
        }
    }

    pub(super) fn on_plan(&self, text: &str) -> Result<Answer, Fault> {
        let asked = parse(text)?;
        let changes = self.plan(&asked).into_iter().map(|(_, item)| item).collect();
        super::done(&ChangesAnswer { changes })
    }

    pub(super) fn on_apply(&mut self, text: &str) -> Result<Answer, Fault> {
        let asked = parse(text)?;
        let (changes, errors) = self.apply_file(&asked);
        self.reload_errors = errors;
        let failed = count(&changes);
        let answer = super::done(&ChangesAnswer { changes })?;
        match (failed, errors) {
            (0, 0) => Ok(answer),
            (0, errors) => {
                Ok(Answer::failed(answer.result, format!("{errors} error(s): see `status` and the log")))
            }
            (failed, _) => Ok(Answer::failed(answer.result, incomplete(failed))),
        }
    }

    pub(super) fn on_save(&self) -> Result<Answer, Fault> {
        let text = self.config.to_text().map_err(|error| Fault::refused(error.to_string()))?;
        super::done(&SaveAnswer { text, config_file: self.path.clone() })
    }

    /// Changes what is wanted, if it is right then, and makes it so.
    fn edit(&mut self, edit: impl FnOnce(&mut Draft) -> Result<(), DraftError>) -> Result<Answer, Fault> {
        let refused = |error: DraftError| Fault::refused(error.to_string());
        let mut draft = Draft::of(&self.config).map_err(refused)?;
        edit(&mut draft).map_err(refused)?;
        let asked = draft.check().map_err(|error| Fault::refused(error.to_string()))?;
        let changes = self.apply(&asked, Origin::Command);
        changed(changes)
    }
}

/// The answer to changes.
pub(in crate::daemon) fn changed(changes: Vec<Item>) -> Result<Answer, Fault> {
    let failed = count(&changes);
    let answer = super::done(&ChangesAnswer { changes })?;
    if failed == 0 { Ok(answer) } else { Ok(Answer::failed(answer.result, incomplete(failed))) }
}

fn count(changes: &[Item]) -> usize {
    changes.iter().filter(|item| item.outcome.is_some_and(|outcome| outcome.is_error())).count()
}

fn incomplete(failed: usize) -> String {
    format!("{failed} change(s) not made, or not over: see above")
}

fn parse(text: &str) -> Result<Config, Fault> {
    Config::parse(text).map_err(|error| Fault::refused(format!("nothing was changed: {error}")))
}

/// The arguments of a request as the keys of a file.
fn table(arguments: &impl Serialize) -> Table {
    let mut table = Table::try_from(arguments).unwrap_or_default();
    table.retain(|_, value| *value != Value::Boolean(false));
    table
}

fn subsystem(add: &SubsystemAdd) -> Table {
    let mut table = table(add);
    if add.allow_any_host && add.allowed_hosts.is_empty() {
        table.remove("allowed_hosts");
    }
    table
}

fn namespace(add: &NamespaceAdd) -> Table {
    let mut table = table(add);
    table.remove("subsystem");
    table
}
