//! Which namespace of a subsystem is meant.

use anyhow::{Result, anyhow};
use nvme_proto::{Nqn, Nsid};
use nvmf_host::Namespace;
use uuid::Uuid;

/// The namespace that was asked for; the first of those that there are, where none was.
pub(crate) fn choose(nqn: &Nqn, asked_for: Option<Nsid>, namespaces: &[Namespace]) -> Result<Nsid> {
    let first = namespaces.first().map(|namespace| namespace.nsid);
    asked_for.or(first).ok_or_else(|| {
        anyhow!("{nqn} has no namespace for this host: check the target's configuration, and its log")
    })
}

/// Its UUID, if it has one.
pub(crate) fn uuid(namespace: &Namespace) -> Option<String> {
    let uuid = Uuid::from_bytes(namespace.uuid);
    (!uuid.is_nil()).then(|| uuid.to_string())
}
