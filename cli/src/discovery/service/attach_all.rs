//! Doing it once, as a call: until everything is settled, or a signal ends it.

use super::{Begin, Outcome, Service};
use crate::attach::Registry;
use crate::interrupt;
use anyhow::{Context, Result};
use nvmf_attached::Attachment;

/// Attaches what discovery controllers list now, and ends.
pub(crate) async fn attach_all(begin: Begin) -> Result<Outcome> {
    interrupt::watch()?;
    let mut service = Service::new(begin.policy, false);
    let before = service.begin(begin.sources)?;
    let mut is_stopped = false;
    while !is_stopped && !service.engine.is_settled() {
        tokio::select! {
            event = service.events.recv() => service.on_event(event.context("nothing is under way")?),
            // Servers that have not reported yet hear the signal, too.
            () = interrupt::asked() => is_stopped = true,
        }
    }
    let Service { report, wanted, .. } = service;
    let mut outcome = report.outcome;
    if is_stopped {
        let stopped = "stopped before everything was attached: what was attached stays";
        outcome.failures.push(stopped.to_owned());
    }
    outcome.subsystems = wanted.len();
    // Those that nobody lists are not meant.
    let listed = |disk: &Attachment| wanted.contains(&disk.nqn);
    outcome.already = before.into_iter().filter(listed).collect();
    outcome.see_again(&Registry::of_this_user().list()?);
    Ok(outcome)
}
