//! Which namespaces the paths of a disk show that is attached anew: their order decides, not which of them is there first.

use anyhow::Result;
use nvme_proto::{Nqn, Nsid};
use nvmf_host::{ControllerInfo, Namespace};
use nvmf_initiator::transport::AnyTransport;
use nvmf_initiator::{ConnectionState, Error, PathStatus, RemoteBackend};
use std::time::{Duration, Instant};

/// How long an attachment waits for its further paths before it goes on without them.
pub(super) const FIRST_TRY_TIME_MAX: Duration = Duration::from_secs(1);
/// How long it waits for them where those that are there do not show its namespace.
const SHOW_TIME_MAX: Duration = Duration::from_secs(5);

/// What the controller of a path says of itself, and its namespaces.
#[derive(Default)]
pub(super) struct Shown {
    pub(super) controller: ControllerInfo,
    pub(super) namespaces: Vec<Namespace>,
}

/// What the first path shows, in their order, that shows such a namespace. Those before it, which may be slower, have a moment to
/// answer; where none that is there shows one, all others have longer. Where none does at last: what the first of them shows.
pub(super) fn shown(
    backend: &mut RemoteBackend<AnyTransport>,
    is_meant: impl Fn(&ControllerInfo, &Namespace) -> bool,
) -> Shown {
    let begin = Instant::now();
    loop {
        let fits = |(controller, namespaces): &(&ControllerInfo, &[Namespace])| {
            namespaces.iter().any(|namespace| is_meant(controller, namespace))
        };
        let first = backend.shown().position(|path| path.is_some_and(|shown| fits(&shown)));
        let deadline = begin + if first.is_some() { FIRST_TRY_TIME_MAX } else { SHOW_TIME_MAX };
        let waits = untried(&backend.paths()).is_some_and(|path| first.is_none_or(|first| path < first));
        if !waits || Instant::now() >= deadline {
            let chosen = first.and_then(|first| backend.shown().nth(first));
            let chosen = chosen.or_else(|| backend.shown().find(Option::is_some)).flatten();
            return chosen.map_or_else(Shown::default, |(controller, namespaces)| Shown {
                controller: controller.clone(),
                namespaces: namespaces.to_vec(),
            });
        }
        turn_until(backend, deadline);
    }
}

/// One of the namespaces that are shown.
pub(super) fn namespace(nqn: &Nqn, nsid: Nsid, namespaces: &[Namespace]) -> Result<Namespace> {
    let found = namespaces.iter().find(|namespace| namespace.nsid == nsid);
    Ok(found.cloned().ok_or_else(|| Error::no_such_namespace(nqn, nsid, namespaces))?)
}

/// The first path that has not been connected yet, and has not failed to be.
pub(super) fn untried(paths: &[PathStatus]) -> Option<usize> {
    paths.iter().position(|path| path.state != ConnectionState::Live && path.lost.is_none())
}

/// Makes progress, or sleeps until there is some to make, until then at most.
pub(super) fn turn_until(backend: &mut RemoteBackend<AnyTransport>, deadline: Instant) {
    if !backend.turn() {
        backend.sleep_for(deadline.saturating_duration_since(Instant::now()), &[]);
    }
}
