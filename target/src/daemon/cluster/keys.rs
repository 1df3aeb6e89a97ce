//! The keys of hosts, for DH-HMAC-CHAP and for TLS, which the gateways of a group have in its pool: readable by who may
//! read that.

use super::super::Daemon;
use super::super::changing::Changing;
use super::super::plan::connection_name;
use crate::control::protocol::Fault;
use crate::control::request::change::{Effect, Item as ChangeItem};
use crate::control::request::subsystem::{KeyOf, KnownHost, RemoveKey, SetKey};
use crate::exports::host_access;
use nvmf_auth::Secret;
use nvmf_auth::controller::Keys;
use nvmf_cluster::configuration::{Change, Item};
use nvmf_config::{GroupKey, Host};
use nvmf_subsystem::{Association, Nqn};
use serde_json::Value;
use std::collections::BTreeMap;

/// What the items of keys begin with: those of hosts, those of the group towards them, those for TLS.
const OF_HOST: &str = "key/dhchap/";
const OF_CONTROLLER: &str = "key/dhchap-controller/";
const OF_TLS: &str = "key/tls/";

/// The keys that the group has, by the names of their hosts. `None` is one that is broken: its host is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SharedKeys {
    secrets: BTreeMap<Nqn, Keys>,
    tls: BTreeMap<Nqn, Option<nvmf_tls::Key>>,
}

/// Whether an item is a key.
pub(super) fn is_key(item: &str) -> bool {
    KINDS.iter().any(|(prefix, ..)| item.starts_with(prefix))
}

/// Whether an item is a key without which its host is let in.
pub(super) fn admits(item: &str) -> bool {
    [OF_HOST, OF_TLS]
        .iter()
        .filter_map(|prefix| item.strip_prefix(prefix))
        .any(|host| host.parse::<Nqn>().is_ok())
}

/// What items of keys begin with, what `save` calls such keys, and what people do.
const KINDS: [(&str, GroupKey, &str); 3] = [
    (OF_HOST, GroupKey::Dhchap, "DH-HMAC-CHAP"),
    (OF_CONTROLLER, GroupKey::DhchapController, "that of the controller (--controller)"),
    (OF_TLS, GroupKey::Tls, "TLS (--tls)"),
];

/// Hosts whose lack of keys is told.
const NAMED_MAX: usize = 8;

/// The item of a key of a host.
fn name(kind: KeyOf, host: &Nqn) -> String {
    let prefix = match kind {
        KeyOf::Host => OF_HOST,
        KeyOf::Controller => OF_CONTROLLER,
        KeyOf::Tls => OF_TLS,
    };
    format!("{prefix}{host}")
}

/// The keys among the items. What is none is named, but not shown; its host cannot authenticate. Nor can that of an item that
/// cannot be read, and is named elsewhere: a host that has lost its key would be let in by its name alone.
pub(super) fn keys(
    items: &BTreeMap<String, Item>,
    unreadable: &[(String, String)],
) -> (SharedKeys, Vec<(String, String)>) {
    let (mut keys, mut broken) = (SharedKeys::default(), Vec::new());
    let readable = items.iter().map(|(name, item)| (name, Some(item)));
    for (name, item) in readable.chain(unreadable.iter().map(|(name, _)| (name, None))) {
        let kind = KINDS.into_iter().find(|(prefix, ..)| name.starts_with(prefix));
        let Some((prefix, ..)) = kind else { continue };
        let mut is_broken = |what: &str| broken.extend(item.map(|_| (name.clone(), what.to_owned())));
        let Ok(nqn) = name[prefix.len()..].parse::<Nqn>() else {
            is_broken("it is of no NQN");
            continue;
        };
        let text = item.and_then(|item| item.value.as_str());
        if prefix == OF_TLS {
            let key = text.map(nvmf_tls::Key::parse).and_then(Result::ok);
            if key.is_none() {
                is_broken("it is no key of TLS");
            }
            keys.tls.insert(nqn, key);
            continue;
        }
        let secret = text.map(Secret::parse).and_then(Result::ok);
        if secret.is_none() {
            is_broken("it is no secret of DH-HMAC-CHAP");
        }
        let of = keys.secrets.entry(nqn).or_insert(Keys { host: None, controller: None });
        *(if prefix == OF_HOST { &mut of.host } else { &mut of.controller }) = secret;
    }
    (keys, broken)
}

impl Daemon {
    /// The hosts that must authenticate because the group has a key of theirs.
    pub(in crate::daemon) fn hosts_with_shared_keys(&self) -> Vec<Nqn> {
        self.cluster.iter().flat_map(|cluster| cluster.keys.secrets.keys().copied()).collect()
    }

    /// Which hosts have keys here, also those that are broken.
    pub(in crate::daemon) fn note_shared_keys(&self, hosts: &mut BTreeMap<String, KnownHost>) {
        for item in self.cluster.iter().flat_map(|cluster| cluster.item_names()) {
            let of = |prefix| item.strip_prefix(prefix).map(str::to_owned);
            if let Some(nqn) = of(OF_HOST) {
                hosts.entry(nqn).or_default().key = true;
            } else if let Some(nqn) = of(OF_CONTROLLER) {
                hosts.entry(nqn).or_default().controller_key = true;
            } else if let Some(nqn) = of(OF_TLS) {
                hosts.entry(nqn).or_default().tls_key = true;
            }
        }
    }

    /// The hosts that the group has keys of, without them: whoever gives this back to a group is to set them first.
    pub(in crate::daemon) fn hosts_with_group_keys(&self) -> Vec<Host> {
        let mut hosts: BTreeMap<Nqn, Vec<GroupKey>> = BTreeMap::new();
        for item in self.cluster.iter().flat_map(|cluster| cluster.item_names()) {
            for (prefix, kind, _) in KINDS {
                if let Some(Ok(nqn)) = item.strip_prefix(prefix).map(str::parse) {
                    hosts.entry(nqn).or_default().push(kind);
                }
            }
        }
        let host = |(nqn, group_keys)| Host {
            nqn,
            tls_key_file: None,
            dhchap_key_file: None,
            dhchap_ctrl_key_file: None,
            require_concat: false,
            group_keys,
        };
        hosts.into_iter().map(host).collect()
    }

    /// Why a file is not applied: hosts that had keys when it was saved have none here, and would be let in by their names alone.
    pub(super) fn lacks_keys(&self, hosts: &[Host]) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let lacks = |host: &Host| {
            let is_missing = |(prefix, kind, _): &&(&str, GroupKey, &str)| {
                host.group_keys.contains(kind) && !cluster.has_item(&format!("{prefix}{}", host.nqn))
            };
            let words: Vec<&str> = KINDS.iter().filter(is_missing).map(|(.., word)| *word).collect();
            (!words.is_empty()).then(|| format!("{} ({})", host.nqn, words.join(", ")))
        };
        let mut lacking: Vec<String> = hosts.iter().filter_map(lacks).collect();
        let more = lacking.len().saturating_sub(NAMED_MAX);
        lacking.truncate(NAMED_MAX);
        if more > 0 {
            lacking.push(format!("and {more} more"));
        }
        (!lacking.is_empty()).then(|| {
            format!(
                "nothing was changed: hosts that had keys when this was saved have none in the group, and would be let in without: {}. \
                 Set them first, or new ones: `nvmf-target ctl host set-key HOSTNQN --keyfile FILE`. One that is to need no key any \
                 more: take its [[host]] out of the file",
                lacking.join("; ")
            )
        })
    }

    /// Whether a subsystem lets a host in, by name or as any other.
    fn lets_in(&self, nqn: &Nqn) -> bool {
        self.config.subsystems.iter().any(|subsystem| host_access(&subsystem.hosts).allows(nqn))
    }

    /// Whether a host is known by name already: a key, or a subsystem.
    fn is_known_host(&self, nqn: &Nqn) -> bool {
        let nqn = nqn.to_string();
        self.hosts_answer().hosts.iter().any(|host| host.nqn == nqn)
    }

    /// Takes over the keys that the group has. A host that has lost its key for TLS loses the associations that it made
    /// with it.
    pub(super) fn take_shared_keys(&mut self, keys: SharedKeys) {
        let Some(cluster) = &mut self.cluster else { return };
        let old = core::mem::replace(&mut cluster.keys, keys.clone());
        if old.tls != keys.tls {
            let mut of_tls = nvmf_tls::Keys::default();
            keys.tls.iter().for_each(|(host, key)| of_tls.insert(*host, key.clone()));
            self.common.tls.set_keys(of_tls);
            let is_lost = |host: &Nqn| old.tls.contains_key(host) && !keys.tls.contains_key(host);
            self.registry().close(|association| association.is_secure() && is_lost(association.host_nqn()));
            self.publish();
        }
        if old.secrets != keys.secrets {
            self.set_secrets((keys.secrets, Vec::new()));
        }
    }

    /// Gives the group a key of a host.
    pub(in crate::daemon) fn set_shared_key(&mut self, set: &SetKey) -> Result<Changing, Fault> {
        let (nqn, kind) = (host(&set.host)?, set.kind());
        // Hosts may call themselves what they like; but then somebody has said so before.
        if !has_usual_form(&set.host) && !self.is_known_host(&nqn) {
            return Err(Fault::refused(format!(
                "{nqn} has not the form of a host's name (nqn.yyyy-mm.DOMAIN:…, nqn.2014-08.org.nvmexpress:uuid:UUID), and no \
                 subsystem names it: on the host, `nvmf show-hostnqn` says what it is called. If it is called so, `host add` it first"
            )));
        }
        let unfit = match kind {
            KeyOf::Tls => nvmf_tls::Key::parse(set.key.text()).err().map(|cause| cause.to_string()),
            KeyOf::Host | KeyOf::Controller => Secret::parse(set.key.text())
                .err()
                .map(|cause| format!("this is no secret of DH-HMAC-CHAP: {cause}")),
        };
        if let Some(text) = unfit {
            return Err(Fault::refused(text));
        }
        if kind == KeyOf::Controller && !self.hosts_with_shared_keys().contains(&nqn) {
            let text = format!("{nqn} has no key of its own: set that first, without --controller");
            return Err(Fault::refused(text));
        }
        let value = Some(Value::String(set.key.text().to_string()));
        let change = Change { key: name(kind, &nqn), value, expect: None };
        let is_first = kind == KeyOf::Host && !self.hosts_with_shared_keys().contains(&nqn);
        let then = if is_first {
            "From now on the host must authenticate: every gateway closes its connections that have not, and refuses it \
             until it connects with this key"
        } else {
            "Connections that are there stay until they authenticate again"
        };
        let note = format!(
            "the gateways of the group have it in its pool, where whoever reads the pool can read it. {then}"
        );
        let nobody =
            if self.lets_in(&nqn) { "" } else { "; no subsystem lets this host in: `host add` does" };
        let note = Some(note + nobody);
        let item = ChangeItem { note, ..ChangeItem::done("set-key", nqn.to_string()) };
        let item = if is_first { self.closed_by_key(item, &nqn, true) } else { item };
        if let Some(text) = self.cluster.as_ref().and_then(|cluster| cluster.overwrites(&change)) {
            return Err(Fault::refused(text));
        }
        self.ask_group_to_serve(item, vec![change])
    }

    /// With the connections of a host that close here when it has a key from now on, or none.
    fn closed_by_key(&self, item: ChangeItem, nqn: &Nqn, has_key: bool) -> ChangeItem {
        let (discovery, concatenates) = (self.config.target.dhchap_discovery, false);
        let is_lost = |it: &Association| it.ends_with(has_key, discovery, concatenates);
        self.with_closed(item, |it| it.host_nqn() == nqn && is_lost(it))
    }

    /// A change with the connections that it closes here.
    fn with_closed(&self, item: ChangeItem, is_lost: impl Fn(&Association) -> bool) -> ChangeItem {
        let registry = self.registry();
        let closed = registry.associations().filter(|it| is_lost(it));
        let connections: Vec<_> = closed.map(|it| connection_name(it)).collect();
        let effect = if connections.is_empty() { Effect::None } else { Effect::ClosesConnections };
        ChangeItem { connections, effect, ..item }
    }

    /// Takes a key of a host from the group.
    pub(in crate::daemon) fn remove_shared_key(&mut self, remove: &RemoveKey) -> Result<Changing, Fault> {
        let (nqn, kind) = (host(&remove.host)?, remove.kind());
        let Some(cluster) = &self.cluster else {
            let text = "the keys of this target are in the files that [[host]] names: remove them from the configuration, and \
                        `systemctl reload nvmf-target`";
            return Err(Fault::refused(text));
        };
        let mut gone = vec![name(kind, &nqn)];
        if kind == KeyOf::Host {
            // Nobody asks for it where no host authenticates.
            gone.push(name(KeyOf::Controller, &nqn));
        }
        gone.retain(|key| cluster.shared.items.contains_key(key) || cluster.is_left_out(key));
        if gone.is_empty() {
            return Err(Fault::refused(format!("the group has no such key of {nqn}")));
        }
        let changes = gone.into_iter().map(|key| Change { key, value: None, expect: None }).collect();
        let item = ChangeItem::done("remove-key", nqn.to_string());
        let item = match kind {
            KeyOf::Host => {
                let note = "The host is asked for no key any more: every gateway closes its connections that have authenticated. One \
                            that insists on authentication does not connect again before its secret is taken away, too";
                self.closed_by_key(ChangeItem { note: Some(note.to_owned()), ..item }, &nqn, false)
            }
            KeyOf::Controller => item,
            KeyOf::Tls => {
                let note = "every gateway closes the connections that the host has made with it";
                let item = ChangeItem { note: Some(note.to_owned()), ..item };
                self.with_closed(item, |it| it.is_secure() && *it.host_nqn() == nqn)
            }
        };
        self.ask_group_to_serve(item, changes)
    }
}

/// Whether a name begins with a month and a domain, as NVMe has it; the form with a UUID has a whole one.
pub(in crate::daemon) fn has_usual_form(text: &str) -> bool {
    if let Some(uuid) = text.strip_prefix("nqn.2014-08.org.nvmexpress:uuid:") {
        return uuid.len() == 36 && uuid.parse::<uuid::Uuid>().is_ok();
    }
    let Some((month, domain)) = text.strip_prefix("nqn.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let is_number = |text: &str, len: usize| text.len() == len && text.bytes().all(|it| it.is_ascii_digit());
    let is_month =
        |(year, month)| is_number(year, 4) && is_number(month, 2) && ("01"..="12").contains(&month);
    month.split_once('-').is_some_and(is_month) && !domain.is_empty()
}

fn host(text: &str) -> Result<Nqn, Fault> {
    text.parse().map_err(|error| Fault::refused(format!("the host {text} is no NQN: {error}")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::gateway;
    use super::*;
    use core::time::Duration;
    use serde_json::json;

    #[test]
    fn first_key_of_a_host_is_said_to_end_what_has_not_authenticated() {
        let mut daemon = gateway();
        let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let set = json!({ "host": "nqn.2026-11.a:h", "key": secret, "controller": false, "tls": false });
        let set: SetKey = serde_json::from_value(set).unwrap();
        let note = |daemon: &mut Daemon| {
            let changing = daemon.set_shared_key(&set).map_err(|fault| fault.message);
            changing.unwrap().items[0].note.clone().unwrap()
        };
        let first = note(&mut daemon);
        assert!(
            first.contains("refuses it until it connects with this key") && !first.contains("stay"),
            "{first}"
        );
        let keys = Keys { host: Secret::parse(secret).ok(), controller: None };
        daemon.cluster.as_mut().unwrap().keys.secrets.insert("nqn.2026-11.a:h".parse().unwrap(), keys);
        let next = note(&mut daemon);
        assert!(next.contains("stay until they authenticate again") && !next.contains("refuses"), "{next}");
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn key_of_a_host_that_nobody_knows_is_refused_or_said_to_be_of_no_use() {
        let mut daemon = gateway();
        let set = |daemon: &mut Daemon, host: &str| {
            let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
            let set = json!({ "host": host, "key": secret, "controller": false, "tls": false });
            let set: SetKey = serde_json::from_value(set).unwrap();
            let changing = daemon.set_shared_key(&set).map_err(|fault| fault.message);
            changing.map(|changing| changing.items[0].note.clone().unwrap())
        };
        for wrong in ["nqn.wrong", "nqn.2026-13.a:h", "nqn.2014-08.org.nvmexpress:uuid:6e766d66"] {
            let text = set(&mut daemon, wrong).unwrap_err();
            assert!(text.contains("nvmf show-hostnqn"), "{text}");
        }
        let note = set(&mut daemon, "nqn.2026-11.a:typo").unwrap();
        assert!(note.contains("no subsystem lets this host in"), "{note}");
        let only = nvmf_config::Hosts::Only(vec!["nqn.own-form".parse().unwrap()]);
        daemon.config.subsystems[0].hosts = only;
        let note = set(&mut daemon, "nqn.own-form").unwrap();
        assert!(!note.contains("no subsystem"), "{note}");
        let remove = json!({ "host": "nqn.own-form", "controller": false, "tls": false });
        let remove: RemoveKey = serde_json::from_value(remove).unwrap();
        let text = daemon.remove_shared_key(&remove).map(|_| ()).unwrap_err().message;
        assert!(text.contains("has no such key"), "{text}");
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn hosts_are_listed_with_the_keys_that_they_have_and_no_key_is_shown() {
        let mut daemon = gateway();
        let only = nvmf_config::Hosts::Only(vec!["nqn.2026-11.a:h".parse().unwrap()]);
        daemon.config.subsystems[0].hosts = only;
        let items = &mut daemon.cluster.as_mut().unwrap().shared.items;
        for name in ["key/dhchap/nqn.2026-11.a:h", "key/tls/nqn.2026-11.a:h", "key/dhchap/nqn.2026-11.a:typo"]
        {
            items.insert(name.to_owned(), Item { version: 1, value: Value::String("private".to_owned()) });
        }
        let text = daemon.hosts_answer().to_string();
        let nqn = super::super::tests::NQN;
        assert_eq!(
            text,
            format!(
                "host nqn.2026-11.a:h: may connect to {nqn}; keys: DH-HMAC-CHAP, TLS\n\
                 host nqn.2026-11.a:typo: no subsystem lets it in; keys: DH-HMAC-CHAP\n"
            )
        );
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn file_of_a_group_whose_hosts_had_keys_is_not_applied_before_they_have_them_again() {
        use super::super::super::changing::tests::{answered, ask};
        use super::super::tests::{NQN, refused};
        let mut daemon = gateway();
        daemon.config.subsystems[0].hosts =
            nvmf_config::Hosts::Only(vec!["nqn.2026-11.a:h".parse().unwrap()]);
        let kept = ["key/dhchap/nqn.2026-11.a:h", "key/tls/nqn.2026-11.a:other"];
        for name in kept {
            let item = Item { version: 1, value: Value::String("private".to_owned()) };
            daemon.cluster.as_mut().unwrap().shared.items.insert(name.to_owned(), item);
        }
        let answer = ask(&mut daemon, r#"{"version":1,"request":"save"}"#);
        let saved = answered(&mut daemon, answer).result["text"].as_str().unwrap().to_owned();
        assert!(saved.contains(NQN) && saved.contains("group_keys = [\"dhchap\"]"), "{saved}");
        assert!(!saved.contains("private"), "{saved}");
        // Those that have their keys may be in it.
        let asked = nvmf_config::Config::parse(&saved).unwrap();
        assert!(daemon.shared_part(&asked).map_err(|fault| fault.message).unwrap().hosts.is_empty());
        kept.iter().for_each(|name| drop(daemon.cluster.as_mut().unwrap().shared.items.remove(*name)));
        for request in ["plan", "apply"] {
            let text = refused(&mut daemon, request, &json!({ "text": saved }));
            let said = "nqn.2026-11.a:h (DH-HMAC-CHAP); nqn.2026-11.a:other (TLS (--tls)). Set them first";
            assert!(text.starts_with("nothing was changed: ") && text.contains(said), "{text}");
        }
        let with_file = saved.replace("group_keys = [\"dhchap\"]", "dhchap_key_file = \"/etc/nvmf/h\"");
        let text = refused(&mut daemon, "apply", &json!({ "text": with_file }));
        assert!(text.contains("host set-key"), "{text}");
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn keys_are_read_and_broken_ones_are_named_without_their_text() {
        let item = |text: &str| Item { version: 1, value: Value::String(text.to_owned()) };
        let secret = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let key = nvmf_tls::Key::generate(32, None).unwrap();
        let items = [
            ("key/dhchap/nqn.2026-11.a:h", item(secret)),
            ("key/dhchap-controller/nqn.2026-11.a:h", item("DHHC-1:00:private:")),
            ("key/tls/nqn.2026-11.a:h", item(&key.to_interchange())),
            ("key/tls/nqn.2026-11.a:other", item("NVMeTLSkey-1:00:private:")),
            ("subsystem/nqn.2026-11.a:s", item("")),
        ];
        assert!(!is_key(items[4].0));
        let items = items.map(|(name, item)| (name.to_owned(), item)).into();
        let unreadable = ["key/dhchap/nqn.2026-11.a:damaged", "key/tls/nqn.2026-11.a:damaged"];
        let unreadable = unreadable.map(|name| (name.to_owned(), "it is damaged".to_owned()));
        let (keys, broken) = keys(&items, &unreadable);
        let (host, other) = ["nqn.2026-11.a:h", "nqn.2026-11.a:other"].map(|nqn| nqn.parse().unwrap()).into();
        let of = &keys.secrets[&host];
        assert!(of.host.is_some() && of.controller.is_none());
        assert_eq!((&keys.tls[&host], &keys.tls[&other]), (&Some(key), &None));
        assert_eq!(broken.len(), 2);
        // Such a host is not let in by its name alone.
        let damaged = "nqn.2026-11.a:damaged".parse().unwrap();
        assert!(keys.secrets[&damaged].host.is_none() && keys.tls[&damaged].is_none());
        assert!(!format!("{broken:?}{keys:?}").contains("private"));
    }
}
