//! What changes what is served: each request is an edit of the configuration, checked and applied as a file is.

use super::{Daemon, Reply};
use crate::control::protocol::{Answer, Fault};
use crate::control::request::ana::AnaSet;
use crate::control::request::change::{ChangesAnswer, Effect};
use crate::control::request::config::SaveAnswer;
use crate::control::request::listener::ListenerRequest;
use crate::control::request::namespace::{NamespaceAdd, NamespaceRequest, NamespaceSet};
use crate::control::request::subsystem::{
    HostName, HostRequest, SubsystemAdd, SubsystemName, SubsystemRequest,
};
use crate::daemon::apply::Origin;
use crate::daemon::changing::Changing;
use crate::daemon::reading::{EMPTIES, Wanted};
use nvmf_config::{Config, Draft, DraftError, Transport};
use serde::Serialize;
use std::net::SocketAddr;
use toml::{Table, Value};

impl Daemon {
    pub(super) fn on_subsystem(&mut self, request: &SubsystemRequest) -> Result<Reply, Fault> {
        match request {
            SubsystemRequest::Add(add) => self.edit(|draft| draft.add_subsystem(subsystem(add))),
            SubsystemRequest::Remove(SubsystemName { nqn }) => self.edit(|draft| draft.remove_subsystem(nqn)),
        }
    }

    pub(super) fn on_host(&mut self, request: &HostRequest) -> Result<Reply, Fault> {
        match request {
            HostRequest::Add(HostName { subsystem, host }) => {
                self.edit(|draft| draft.allow_host(subsystem, host))
            }
            HostRequest::Remove(HostName { subsystem, host }) => {
                self.edit(|draft| draft.revoke_host(subsystem, host))
            }
            HostRequest::SetKey(set) => Ok(self.set_key(set)?.into()),
        }
    }

    pub(super) fn on_namespace(&mut self, request: &NamespaceRequest) -> Result<Reply, Fault> {
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
            NamespaceRequest::Resize(resize) => {
                Ok(self.resize(&resize.subsystem, resize.nsid, resize.shrink)?.into())
            }
            NamespaceRequest::Remove(name) => {
                self.edit(|draft| draft.remove_namespace(&name.subsystem, name.nsid))
            }
        }
    }

    pub(super) fn on_listener(&mut self, request: &ListenerRequest) -> Result<Reply, Fault> {
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

    pub(super) fn on_ana(&mut self, set: &AnaSet) -> Result<Reply, Fault> {
        let at = self.listener_at(&set.address, set.transport.as_deref())?;
        let mut changing = self.changes(|draft| {
            draft.set_ana_group(at, set.group, &set.state);
            Ok(())
        })?;
        let mut namespaces = self.config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let is_empty = !namespaces.any(|namespace| namespace.ana_group == set.group);
        for item in &mut changing.items {
            let note = "it lasts until the target stops or is given a file: `save --in-place` keeps it";
            let note = item.note.get_or_insert_with(|| note.to_owned());
            if is_empty {
                *note += &format!("; no namespace is in group {}", set.group);
            }
        }
        Ok(changing.into())
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
            let all = all.collect::<Vec<_>>().join(", ");
            if all.is_empty() { "none".to_owned() } else { all }
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

    pub(super) fn on_plan(&self, text: &str) -> Result<Reply, Fault> {
        let asked = parse(text)?;
        if self.empties(&asked) {
            return Err(Fault::refused(EMPTIES));
        }
        let changes: Vec<_> = self.plan(&asked).into_iter().map(|(_, item)| item).collect();
        let refused = changes.iter().filter(|item| item.effect == Effect::Refused).count();
        let answer = super::answer(&ChangesAnswer { changes })?;
        Ok(Reply::Answer(match refused {
            0 => answer,
            _ => Answer::failed(answer.result, format!("{refused} change(s) would be refused: see above")),
        }))
    }

    pub(super) fn on_apply(&mut self, text: &str) -> Result<Reply, Fault> {
        let asked = parse(text)?;
        Ok(self.read(Wanted::Keys(Box::new(asked)))?.into())
    }

    pub(super) fn on_save(&self) -> Result<Reply, Fault> {
        let text = self.wanted().to_text().map_err(|error| Fault::refused(error.to_string()))?;
        let not_in_force = self.names_not_in_force();
        super::done(&SaveAnswer { text, config_file: self.path.clone(), not_in_force })
    }

    /// Changes what is wanted, if it is right then, and makes it so.
    fn edit(&mut self, edit: impl FnOnce(&mut Draft) -> Result<(), DraftError>) -> Result<Reply, Fault> {
        Ok(self.changes(edit)?.into())
    }

    fn changes(
        &mut self,
        edit: impl FnOnce(&mut Draft) -> Result<(), DraftError>,
    ) -> Result<Changing, Fault> {
        let refused = |error: DraftError| Fault::refused(error.to_string());
        let mut draft = Draft::of(&self.config).map_err(refused)?;
        edit(&mut draft).map_err(refused)?;
        let asked = draft.check().map_err(|error| Fault::refused(error.to_string()))?;
        Ok(self.apply(&asked, Origin::Command, None))
    }
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
