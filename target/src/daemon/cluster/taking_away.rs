//! Which changes take something away from hosts: they are answered once no gateway lets hosts do it any more.

use super::super::plan::Change as Planned;
use nvmf_config::{Config, Hosts};

/// Whether hosts may do less after a change: nobody may take it for done while a gateway still lets them.
pub(super) fn takes_away(now: &Config, change: &Planned) -> bool {
    match change {
        // Of hosts: who must authenticate from now on, or may no longer connect.
        Planned::Hosts(..)
        | Planned::Host(_)
        | Planned::RemoveHost(_)
        | Planned::RemoveSubsystem(_)
        | Planned::RemoveNamespace(..)
        | Planned::ReplaceNamespace(..) => true,
        Planned::SetNamespace(nqn, new) => {
            let subsystem = now.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn);
            let old = subsystem.and_then(|it| it.namespaces.iter().find(|old| old.nsid == new.nsid));
            old.is_none_or(|old| new.read_only && !old.read_only || loses_hosts(&old.hosts, &new.hosts))
        }
        // What is added, what no host is refused for (rates, what discovery says), and what is this gateway's own.
        Planned::AddSubsystem(_)
        | Planned::AddNamespace(..)
        | Planned::HostLimits(..)
        | Planned::Discovery(_)
        | Planned::Identity(_)
        | Planned::Allow(_)
        | Planned::Ana(_)
        | Planned::AddListener(_)
        | Planned::RemoveListener(_)
        | Planned::Target(_)
        | Planned::Strict(_)
        | Planned::Metrics(_)
        | Planned::Cluster(_) => false,
    }
}

/// Whether a host that had a namespace has it no longer.
fn loses_hosts(old: &Hosts, new: &Hosts) -> bool {
    match (old, new) {
        (_, Hosts::Any) => false,
        (Hosts::Any, Hosts::Only(_)) => true,
        (Hosts::Only(old), Hosts::Only(new)) => old.iter().any(|host| !new.contains(host)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::plan::changes;
    use super::*;

    const SUBSYSTEM: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.a:one\"\n\
        allowed_hosts = [\"nqn.2026-11.a:h1\", \"nqn.2026-11.a:h2\"]\n";
    const NAMESPACE: &str = "[[subsystem.namespace]]\nnsid = 1\nrbd = { pool = \"rbd\", image = \"a\" }\n";

    /// Whether the change from a namespace with these keys to one with those takes something away.
    fn takes(from: &str, to: &str) -> bool {
        let parse = |keys: &str| {
            let text = format!("[[listener]]\naddress = \"192.0.2.1\"\n{SUBSYSTEM}{NAMESPACE}{keys}\n");
            Config::parse(&text).unwrap()
        };
        let (before, after) = (parse(from), parse(to));
        let changes = changes(&before, &after);
        assert_eq!(changes.len(), 1, "{changes:?}");
        takes_away(&before, &changes[0])
    }

    #[test]
    fn namespace_that_is_made_read_only_or_loses_a_host_has_something_taken_away() {
        let (one, other, both) = (
            "hosts = [\"nqn.2026-11.a:h1\"]",
            "hosts = [\"nqn.2026-11.a:h2\"]",
            "hosts = [\"nqn.2026-11.a:h1\", \"nqn.2026-11.a:h2\"]",
        );
        for (from, to) in [("", "read_only = true"), ("", one), (one, other), (both, one)] {
            assert!(takes(from, to), "{from} -> {to}");
        }
        for (from, to) in [
            ("read_only = true", ""),
            (one, ""),
            (one, both),
            ("", "limits = { iops = 5 }"),
            ("read_only = true", "read_only = true\nlimits = { iops = 5 }"),
        ] {
            assert!(!takes(from, to), "{from} -> {to}");
        }
    }
}
