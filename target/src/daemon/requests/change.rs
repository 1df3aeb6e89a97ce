//! What changes what is served: each request is an edit of the configuration, checked and applied as a file is.

use super::{Daemon, Reply};
use crate::control::protocol::Fault;
use crate::control::request::ana::AnaSet;
use crate::control::request::change::Item;
use crate::control::request::config::SaveAnswer;
use crate::control::request::listener::{ListenerAdd, ListenerRequest};
use crate::control::request::namespace::{NamespaceAdd, NamespaceRequest, NamespaceSet};
use crate::control::request::subsystem::{
    HostName, HostRequest, SubsystemAdd, SubsystemName, SubsystemRequest,
};
use crate::daemon::ana::{is_reachable, state_of};
use crate::daemon::apply::Origin;
use crate::daemon::changing::Changing;
use crate::daemon::cluster::REFUSED_IN_A_GROUP;
use crate::daemon::reading::{EMPTIES, Wanted};
use crate::exports::Export;
use nvmf_config::{AnaGroup, Config, Draft, DraftError, Host, Listener, Rbd, RbdNameError, Transport};
use nvmf_subsystem::AnaState;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use toml::{Table, Value};

impl Daemon {
    pub(super) fn on_subsystem(&mut self, request: &SubsystemRequest) -> Result<Reply, Fault> {
        match request {
            SubsystemRequest::Add(add) => self.edit(|draft| draft.add_subsystem(subsystem(add))),
            SubsystemRequest::Remove(SubsystemName { nqn }) => match format!("subsystem/{nqn}") {
                key if self.is_left_out(&key) => Ok(self.remove_left_out(&key)?.into()),
                _ => self.edit(|draft| draft.remove_subsystem(nqn)),
            },
        }
    }

    pub(super) fn on_host(&mut self, request: &HostRequest) -> Result<Reply, Fault> {
        match request {
            HostRequest::Add(name) => {
                let HostName { subsystem, host } = name.clone();
                self.edit_again(move |draft| draft.allow_host(&subsystem, &host))
            }
            HostRequest::Remove(name) => {
                let HostName { subsystem, host } = name.clone();
                self.edit_again(move |draft| draft.revoke_host(&subsystem, &host))
            }
            HostRequest::List {} => super::done(&self.hosts_answer()),
            HostRequest::RemoveKey(remove) => Ok(self.remove_shared_key(remove)?.into()),
            HostRequest::SetKey(set) if self.cluster.is_some() => Ok(self.set_shared_key(set)?.into()),
            HostRequest::SetKey(set) => Ok(self.set_key(set)?.into()),
        }
    }

    pub(super) fn on_namespace(&mut self, request: &NamespaceRequest) -> Result<Reply, Fault> {
        match request {
            NamespaceRequest::Add(add) => {
                let mut table = namespace(add)?;
                if self.cluster.is_some() && add.ana_group.is_none() {
                    table.insert("ana_group".into(), Draft::ANY_ANA_GROUP.into());
                }
                let (subsystem, nsid) = (add.subsystem.clone(), add.nsid);
                let taken = self.nsids_left_out(&subsystem);
                self.edit_again(move |draft| {
                    let nsid = nsid.map_or_else(|| draft.free_nsid(&subsystem, &taken), Ok)?;
                    let mut table = table.clone();
                    table.insert("nsid".into(), i64::from(nsid).into());
                    draft.add_namespace(&subsystem, table)
                })
            }
            NamespaceRequest::Set(set) => Ok(self.set_read_only(set)?.into()),
            NamespaceRequest::Resize(resize) => {
                Ok(self.resize(&resize.subsystem, resize.nsid, resize.shrink)?.into())
            }
            NamespaceRequest::Remove(name) => match format!("namespace/{}/{}", name.subsystem, name.nsid) {
                key if self.is_left_out(&key) => Ok(self.remove_left_out(&key)?.into()),
                _ => self.edit(|draft| draft.remove_namespace(&name.subsystem, name.nsid)),
            },
        }
    }

    fn set_read_only(&mut self, set: &NamespaceSet) -> Result<Changing, Fault> {
        let NamespaceSet { subsystem, nsid, read_only } = set;
        let mut changing = self.changes(|draft| {
            draft.namespace(subsystem, *nsid)?.insert("read_only".into(), (*read_only).into());
            Ok(())
        })?;
        // What kept its disk from being opened may have been mended, whatever is changed of it.
        if let Ok(nqn) = subsystem.parse() {
            self.namespaces.forget_fault(&(nqn, *nsid));
        }
        let is_it = |export: &Export| export.nqn.to_string() == *subsystem && export.namespace.nsid == *nsid;
        let devices = self.devices_in_use(is_it);
        self.wait_again(&mut changing, |it| it.barrier.scope().port.is_none() && it.is_of(&devices));
        if !read_only {
            self.lift_protection(&mut changing, subsystem, *nsid);
        }
        Ok(changing)
    }

    pub(super) fn on_listener(&mut self, request: &ListenerRequest) -> Result<Reply, Fault> {
        match request {
            ListenerRequest::Add(add) => Ok(self.add_like_others(add)?.into()),
            ListenerRequest::Set(set) => {
                let at = self.listener_at(&set.address, set.transport.as_deref())?;
                let mut changing = self.changes(|draft| {
                    let Some(listener) = draft.listener(at) else { return Ok(()) };
                    listener.remove("allow");
                    if !set.allow.is_empty() {
                        listener.insert("allow".into(), Value::from(set.allow.clone()));
                    }
                    Ok(())
                })?;
                for item in changing.items.iter_mut().filter(|_| set.allow.is_empty()) {
                    item.note =
                        Some("hosts may connect from anywhere now: --allow names networks".to_owned());
                }
                Ok(changing.into())
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

    /// A listener that is added opens no path to a group that hosts are to reach through none of the others.
    fn add_like_others(&mut self, add: &ListenerAdd) -> Result<Changing, Fault> {
        let mut taken = if add.discovery_only { Vec::new() } else { best_states(&self.config.listeners) };
        taken.retain(|group| add.ana_group.iter().all(|own| own.id != group.id));
        let at = self.config.listeners.len();
        let mut changing = self.changes(|draft| {
            draft.add_listener(table(add));
            taken.iter().for_each(|group| draft.set_ana_group(at, group.id, group.state_word()));
            Ok(())
        })?;
        let own = add.ana_group.iter().map(|own| format!("ANA group {} is {}", own.id, own.state));
        let as_others = |it: &AnaGroup| {
            format!("ANA group {} is {} as through the other listeners", it.id, it.state_word())
        };
        let states: Vec<String> = own.chain(taken.iter().map(as_others)).collect();
        let note = match states.is_empty() {
            true if self.cluster.is_some() => {
                "each ANA group is as `cluster status` has it for this gateway; [cluster] addresses, where it is set, must \
                 have this one too"
                    .to_owned()
            }
            true => "every ANA group is optimized through it".to_owned(),
            false => format!("through it {}; the others are optimized", states.join(", ")),
        };
        let is_made = |item: &&mut Item| item.outcome.is_some_and(|outcome| !outcome.is_error());
        // A single target has `save --in-place`; of a gateway, nobody writes the file.
        let file = self.path.as_deref().map_or_else(|| "its file".into(), |path| path.display().to_string());
        let lasts = format!("it is gone at the next start: write its [[listener]] into {file}");
        let lasts = self.cluster.is_some().then_some(lasts);
        let note = (!add.discovery_only).then_some(note);
        for item in changing.items.iter_mut().filter(is_made) {
            let said: Vec<String> =
                item.note.take().into_iter().chain(note.clone()).chain(lasts.clone()).collect();
            item.note = (!said.is_empty()).then(|| said.join("; "));
        }
        Ok(changing)
    }

    pub(super) fn on_ana(&mut self, set: &AnaSet) -> Result<Reply, Fault> {
        if self.cluster.is_some() {
            return Err(Fault::refused(REFUSED_IN_A_GROUP));
        }
        let at = self.listener_at(&set.address, set.transport.as_deref())?;
        let mut changing = self.changes(|draft| {
            draft.set_ana_group(at, set.group, &set.state);
            Ok(())
        })?;
        if !is_reachable(state_of(&self.config.listeners[at].ana_groups, set.group)) {
            let concerns = self.concerns_group(self.listeners[at].port(), set.group);
            self.wait_again(&mut changing, concerns);
        }
        let mut namespaces = self.config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let is_empty = !namespaces.any(|namespace| namespace.ana_group == set.group);
        for item in changing.items.iter_mut().filter(|item| item.change == "change-ana") {
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

    pub(super) fn on_plan(&mut self, text: &str) -> Result<Reply, Fault> {
        let asked = parse(text)?;
        if self.cluster.is_some() {
            let asked = self.shared_part(&asked)?;
            if let Some(answer) = self.refused_plan(&asked) {
                return Ok(Reply::Answer(answer));
            }
            return Ok(self.plan_of_group(&asked)?.into());
        }
        refuse_group_keys(&asked)?;
        if self.empties(&asked) {
            return Err(Fault::refused(EMPTIES));
        }
        Ok(self.read(Wanted::Plan(Box::new(asked)))?.into())
    }

    pub(super) fn on_apply(&mut self, text: &str) -> Result<Reply, Fault> {
        let asked = parse(text)?;
        if self.cluster.is_some() {
            let asked = self.shared_part(&asked)?;
            return Ok(self.ask_for(&asked)?.into());
        }
        refuse_group_keys(&asked)?;
        Ok(self.read(Wanted::Keys(Box::new(asked)))?.into())
    }

    pub(super) fn on_save(&self) -> Result<Reply, Fault> {
        if let Some(mut wanted) = self.wanted_of_group() {
            wanted.hosts = self.hosts_with_group_keys();
            let text = wanted.shared_text().map_err(|error| Fault::refused(error.to_string()))?;
            let own_file = self.path.clone();
            return super::done(&SaveAnswer { text, config_file: None, own_file, not_in_force: Vec::new() });
        }
        let text = self.wanted().to_text().map_err(|error| Fault::refused(error.to_string()))?;
        let not_in_force = self.names_not_in_force();
        super::done(&SaveAnswer { text, config_file: self.path.clone(), own_file: None, not_in_force })
    }

    /// Changes what is wanted, if it is right then, and makes it so.
    fn edit(&mut self, edit: impl FnOnce(&mut Draft) -> Result<(), DraftError>) -> Result<Reply, Fault> {
        Ok(self.changes(edit)?.into())
    }

    /// The same, where it may be made again, to what other operators have changed of a group meanwhile.
    fn edit_again(
        &mut self,
        edit: impl Fn(&mut Draft) -> Result<(), DraftError> + 'static,
    ) -> Result<Reply, Fault> {
        let mut changing = self.changes(&edit)?;
        if let Some(asking) = &mut changing.asking {
            asking.may_edit_again(Box::new(edit));
        }
        Ok(changing.into())
    }

    fn changes(
        &mut self,
        edit: impl FnOnce(&mut Draft) -> Result<(), DraftError>,
    ) -> Result<Changing, Fault> {
        if self.cluster.is_some() {
            return self.change_group(edit);
        }
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

/// Without its keys a host would be let in by its name alone.
fn refuse_group_keys(asked: &Config) -> Result<(), Fault> {
    match asked.hosts.iter().find(|host| !host.group_keys.is_empty()) {
        Some(Host { nqn, .. }) => Err(Fault::refused(format!(
            "nothing was changed: this is what a group of gateways served, which had keys of {nqn}: here they belong into files \
             (dhchap_key_file, tls_key_file), in the place of group_keys"
        ))),
        None => Ok(()),
    }
}

/// How hosts reach each group at best through these listeners, where it is not optimized.
fn best_states(listeners: &[Listener]) -> Vec<AnaGroup> {
    let states =
        [AnaState::NON_OPTIMIZED, AnaState::INACCESSIBLE, AnaState::PERSISTENT_LOSS, AnaState::CHANGE];
    let serving = || listeners.iter().filter(|listener| !listener.discovery_only);
    let ids: BTreeSet<u32> = serving().flat_map(|it| &it.ana_groups).map(|group| group.id).collect();
    let best = |id| {
        let is = |state| serving().any(|it| state_of(&it.ana_groups, id) == state);
        let state = states.into_iter().find(|&state| is(state)).filter(|_| !is(AnaState::OPTIMIZED));
        state.map(|state| AnaGroup { id, state })
    };
    ids.into_iter().filter_map(best).collect()
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

fn namespace(add: &NamespaceAdd) -> Result<Table, Fault> {
    let mut table = table(add);
    table.remove("subsystem");
    let mut take = |key: &str| table.remove(key);
    let [conf, user, keyring] = ["ceph_conf", "ceph_user", "ceph_keyring"].map(&mut take);
    let [format, passphrase_file] = ["encryption", "passphrase_file"].map(&mut take);
    if let Some(name) = &add.rbd {
        let image: Rbd = name.parse().map_err(|error: RbdNameError| Fault::refused(error.to_string()))?;
        let mut image = image.to_table().map_err(|error| Fault::refused(error.to_string()))?;
        let given = [("conf", conf), ("user", user), ("keyring", keyring)];
        image.extend(given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        let given = [("format", format), ("passphrase_file", passphrase_file)];
        let encryption: Table =
            given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        if !encryption.is_empty() {
            image.insert("encryption".into(), Value::Table(encryption));
        }
        table.insert("rbd".into(), Value::Table(image));
    }
    Ok(table)
}
