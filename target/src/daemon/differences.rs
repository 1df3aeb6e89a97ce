//! What a change changes, key by key, in the words of a configuration file.

use super::plan::Change;
use crate::control::request::change::KeyChange;
use nvmf_config::{Config, DraftError, Host, HostLimits, Namespace};
use nvmf_subsystem::Nqn;
use std::collections::BTreeSet;
use toml::{Table, Value};

/// The keys that differ; none of a change that says by itself what it is. Files of keys are named, what is in them is not.
pub(super) fn differences(now: &Config, change: &Change) -> Vec<KeyChange> {
    match change {
        Change::SetNamespace(nqn, new) | Change::ReplaceNamespace(nqn, new) => {
            let subsystem = now.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn);
            let old = subsystem.and_then(|it| it.namespaces.iter().find(|old| old.nsid == new.nsid));
            between(old.map(Namespace::to_table), new.to_table())
        }
        Change::Host(new) => {
            let old = now.hosts.iter().find(|old| old.nqn == new.nqn);
            between(old.map(Host::to_table), new.to_table())
        }
        Change::HostLimits(nqn, new) => of_limits(now, nqn, new),
        _ => Vec::new(),
    }
}

/// By host.
fn of_limits(now: &Config, nqn: &Nqn, new: &[HostLimits]) -> Vec<KeyChange> {
    let old = now.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn);
    let old = old.map_or(&[][..], |subsystem| &subsystem.host_limits);
    let of = |limits: &[HostLimits], host: &Nqn| {
        limits.iter().find(|it| it.nqn == *host).map(HostLimits::to_table)
    };
    let hosts: BTreeSet<Nqn> = old.iter().chain(new).map(|limits| limits.nqn).collect();
    let mut changes = Vec::new();
    for host in hosts {
        let (before, after) = (of(old, &host).unwrap_or_default(), of(new, &host).unwrap_or_default());
        collect(&format!("{host} "), &before, &after, &mut changes);
    }
    changes
}

fn between(old: Option<Result<Table, DraftError>>, new: Result<Table, DraftError>) -> Vec<KeyChange> {
    let mut changes = Vec::new();
    // What is new as a whole differs from nothing.
    if let (Some(Ok(old)), Ok(new)) = (old, new) {
        collect("", &old, &new, &mut changes);
    }
    changes
}

fn collect(prefix: &str, old: &Table, new: &Table, changes: &mut Vec<KeyChange>) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for key in keys {
        match (old.get(key), new.get(key)) {
            (before, after) if before == after => {}
            (before, after) if is_table(before) || is_table(after) => {
                let table =
                    |value: Option<&Value>| value.and_then(Value::as_table).cloned().unwrap_or_default();
                collect(&format!("{prefix}{key}."), &table(before), &table(after), changes);
            }
            (before, after) => {
                let text = |value: Option<&Value>| value.map(ToString::to_string);
                changes.push(KeyChange {
                    key: format!("{prefix}{key}"),
                    from: text(before),
                    to: text(after),
                });
            }
        }
    }
}

fn is_table(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::plan::changes;

    const BEFORE: &str = r#"
        [[host]]
        nqn = "nqn.2026-11.a:h1"
        dhchap_key_file = "/keys/one"
        [[subsystem]]
        nqn = "nqn.2026-11.a:one"
        allowed_hosts = ["nqn.2026-11.a:h1"]
        host_limits = [{ nqn = "nqn.2026-11.a:h1", limits = { iops = 100 } }]
        [[subsystem.namespace]]
        nsid = 1
        path = "/srv/one.img"
        limits = { iops = 1000 }
    "#;

    #[test]
    fn each_key_that_differs_is_named() {
        let edits = [
            ("/srv/one.img\"", "/srv/one.img\"\nread_only = true\nana_group = 2"),
            ("{ iops = 1000 }", "{ iops = 2000 }"),
            ("{ iops = 100 }", "{ iops = 100, bytes_per_second = \"1MiB\" }"),
            ("/keys/one", "/keys/two"),
        ];
        let after = edits.iter().fold(BEFORE.to_owned(), |text, (from, to)| text.replacen(from, to, 1));
        let (before, after) = (Config::parse(BEFORE).unwrap(), Config::parse(&after).unwrap());
        let mut said: Vec<String> = changes(&before, &after)
            .iter()
            .flat_map(|it| differences(&before, it))
            .map(|it| it.to_string())
            .collect();
        said.sort();
        let expected = [
            "ana_group: not set -> 2",
            "dhchap_key_file: \"/keys/one\" -> \"/keys/two\"",
            "limits.iops: 1000 -> 2000",
            "nqn.2026-11.a:h1 bytes_per_second: not set -> \"1MiB\"",
            "read_only: not set -> true",
        ];
        assert_eq!(said, expected);
    }
}
