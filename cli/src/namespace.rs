//! Which namespace of a subsystem is meant.

use crate::print::{human, wrong_arguments};
use anyhow::{Result, anyhow};
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::{Nqn, Nsid};
use nvmf_host::Namespace;
use uuid::Uuid;

/// Namespaces that are named where one was taken of several.
const LISTED_MAX: usize = 16;

/// The namespace that was asked for; the first of those that there are, where none was.
pub(crate) fn choose(nqn: &Nqn, asked_for: Option<Nsid>, namespaces: &[Namespace]) -> Result<Nsid> {
    let first = namespaces.first().map(|namespace| namespace.nsid);
    asked_for.or(first).ok_or_else(|| {
        anyhow!(
            "{nqn} has no namespace for this host, or none of a size and format that can be used (blocks of 512 \
             bytes to 64 KiB without metadata): check the target's configuration, and its log"
        )
    })
}

/// The namespace that was asked for; the only one that there is, where none was.
pub(crate) fn only(nqn: &Nqn, asked_for: Option<Nsid>, namespaces: &[Namespace]) -> Result<Nsid> {
    if asked_for.is_none() && namespaces.len() > 1 {
        return wrong_arguments(format!(
            "{nqn} has several namespaces: {}. Name one with --nsid",
            listed(namespaces)
        ));
    }
    choose(nqn, asked_for, namespaces)
}

/// What is said where one of several was taken and none was asked for.
pub(crate) fn taken_of(nqn: &Nqn, taken: Nsid, namespaces: &[Namespace]) -> Option<String> {
    (namespaces.len() > 1).then(|| {
        let listed = listed(namespaces);
        format!("{nqn} has several namespaces: {listed}. This is {taken}; another is chosen by --nsid")
    })
}

fn listed(namespaces: &[Namespace]) -> String {
    let shown = |it: &Namespace| format!("{} ({})", it.nsid, human(it.geometry.bytes()));
    let listed = namespaces.iter().take(LISTED_MAX).map(shown).collect::<Vec<_>>().join(", ");
    match namespaces.len().saturating_sub(LISTED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// What nvme-cli and the kernel call a state of Asymmetric Namespace Access.
pub(crate) fn ana_name(state: AnaState) -> &'static str {
    match state {
        AnaState::OPTIMIZED => "optimized",
        AnaState::NON_OPTIMIZED => "non-optimized",
        AnaState::INACCESSIBLE => "inaccessible",
        AnaState::PERSISTENT_LOSS => "persistent-loss",
        AnaState::CHANGE => "change",
        _ => "invalid state",
    }
}

/// Its UUID, if it has one.
pub(crate) fn uuid(namespace: &Namespace) -> Option<String> {
    let uuid = Uuid::from_bytes(namespace.uuid);
    (!uuid.is_nil()).then(|| uuid.to_string())
}
