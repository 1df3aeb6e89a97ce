//! The keys of hosts for DH-HMAC-CHAP, which the gateways of a group have in its pool: readable by who may read that.

use super::super::Daemon;
use super::super::changing::Changing;
use crate::cluster::Request;
use crate::control::protocol::Fault;
use crate::control::request::change::Item as ChangeItem;
use crate::control::request::subsystem::SetKey;
use nvmf_auth::Secret;
use nvmf_auth::controller::Keys;
use nvmf_cluster::configuration::{Change, Item};
use nvmf_subsystem::Nqn;
use serde_json::Value;
use std::collections::BTreeMap;

/// What the items of keys begin with: those of hosts, and those of the group towards them.
const OF_HOST: &str = "key/dhchap/";
const OF_CONTROLLER: &str = "key/dhchap-controller/";

/// The keys of hosts by their names.
pub(super) type HostKeys = BTreeMap<Nqn, Keys>;

/// Whether an item is a key.
pub(super) fn is_key(item: &str) -> bool {
    item.starts_with(OF_HOST) || item.starts_with(OF_CONTROLLER)
}

/// The keys among the items. What is none is named, but not shown; its host cannot authenticate.
pub(super) fn keys(items: &BTreeMap<String, Item>) -> (HostKeys, Vec<(String, String)>) {
    let (mut keys, mut broken) = (HostKeys::new(), Vec::new());
    for (name, item) in items {
        let of_host = name.strip_prefix(OF_HOST);
        let Some(host) = of_host.or_else(|| name.strip_prefix(OF_CONTROLLER)) else { continue };
        let Ok(nqn) = host.parse::<Nqn>() else {
            broken.push((name.clone(), "it is of no NQN".to_owned()));
            continue;
        };
        let secret = item.value.as_str().map(Secret::parse).and_then(Result::ok);
        if secret.is_none() {
            broken.push((name.clone(), "it is no secret of DH-HMAC-CHAP".to_owned()));
        }
        let of = keys.entry(nqn).or_insert(Keys { host: None, controller: None });
        *(if of_host.is_some() { &mut of.host } else { &mut of.controller }) = secret;
    }
    (keys, broken)
}

impl Daemon {
    /// The hosts that must authenticate because the group has a key of theirs.
    pub(in crate::daemon) fn hosts_with_shared_keys(&self) -> Vec<Nqn> {
        self.cluster.iter().flat_map(|cluster| cluster.keys.keys().copied()).collect()
    }

    /// Takes over the keys that the group has.
    pub(super) fn take_shared_keys(&mut self, keys: HostKeys) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.keys != keys {
            cluster.keys.clone_from(&keys);
            self.set_secrets((keys, Vec::new()));
        }
    }

    /// Gives the group the key of a host.
    pub(in crate::daemon) fn set_shared_key(&mut self, set: &SetKey) -> Result<Changing, Fault> {
        let SetKey { host, controller, key } = set;
        let refused = |text: String| Err(Fault::refused(text));
        if let Err(cause) = Secret::parse(key.text()) {
            return refused(format!("this is no secret of DH-HMAC-CHAP: {cause}"));
        }
        let nqn: Nqn = match host.parse() {
            Ok(nqn) => nqn,
            Err(error) => return refused(format!("the host {host} is no NQN: {error}")),
        };
        let has_own = self.hosts_with_shared_keys().contains(&nqn);
        if *controller && !has_own {
            return refused(format!("{nqn} has no key of its own: set that first, without --controller"));
        }
        let prefix = if *controller { OF_CONTROLLER } else { OF_HOST };
        let value = Some(Value::String(key.text().to_string()));
        let change = Change { key: format!("{prefix}{nqn}"), value, expect: None };
        let note = "the gateways of the group have it in its pool. Connections that are there stay until they \
                    authenticate again";
        let item = ChangeItem { note: Some(note.to_owned()), ..ChangeItem::done("set-key", nqn.to_string()) };
        self.ask_group_to_serve(item, Request::Edit(vec![change]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_a_broken_one_is_named_without_its_text() {
        let item = |text: &str| Item { version: 1, value: Value::String(text.to_owned()) };
        let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let items = [
            ("key/dhchap/nqn.2026-11.a:h", item(secret)),
            ("key/dhchap-controller/nqn.2026-11.a:h", item("DHHC-1:00:private:")),
            ("subsystem/nqn.2026-11.a:s", item("")),
        ];
        let items = items.map(|(name, item)| (name.to_owned(), item)).into();
        let (keys, broken) = keys(&items);
        let of = &keys[&"nqn.2026-11.a:h".parse::<Nqn>().unwrap()];
        assert!(of.host.is_some() && of.controller.is_none());
        assert_eq!(broken.len(), 1);
        assert!(!format!("{broken:?}").contains("private"));
    }
}
