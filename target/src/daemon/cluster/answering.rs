//! What who asked the group for something is told when that is over, or its time is.

use super::super::Daemon;
use super::super::changing::Changing;
use super::asking::{Asking, Step, Then};
use super::images::item;
use crate::control::protocol::Fault;
use crate::control::request::change::{Effect, Outcome};
use crate::limits::GROUP_TIMEOUT;
use nvmf_cluster::GatewayName;
use nvmf_cluster::status::OtherStatus;
use nvmf_subsystem::Nqn;

/// What is said where nothing better is known.
const USUAL: &str = "`cluster status` says why";

impl Daemon {
    /// Says what came of it; `is_over`: all of it.
    pub(super) fn answer_asking(&self, asking: Asking, is_over: bool, changing: &mut Changing) {
        let why = || asking.why.clone().unwrap_or_else(|| USUAL.to_owned());
        match (asking.step, asking.then) {
            (Step::Refused(text), _) => changing.refused = Some(Fault::refused(text)),
            // It has an end of its own.
            (Step::Trying(..), _) => {}
            (Step::Behind(error, ..), _) => changing.refused = Some(Fault::refused(error.to_string())),
            (Step::Asked(_), _) => {
                let text =
                    "the storage cluster does not answer: it may be done once it does, see `cluster status`";
                changing.refused = Some(Fault::refused(text));
            }
            (Step::Answered(_), Then::Served(disks)) => self.note_outcomes(changing, &disks, is_over),
            (Step::Answered(_), Then::ServedByAll) if is_over => {
                self.note_outcomes(changing, &[], true);
                let unconfirmed = asking.unconfirmed.join("; ");
                let made = changing.items.iter_mut().filter(|item| item.effect != Effect::Refused);
                for item in made.filter(|_| !unconfirmed.is_empty()) {
                    item.message = Some(unconfirmed.clone());
                }
            }
            (Step::Answered(_), _) if is_over => {}
            (Step::Answered(_), Then::Moved(group, to)) => {
                // Where it is on its way from there to another one, this is what was typed.
                let back = asking.owner.as_ref().filter(|owner| **owner != to);
                let back = back
                    .map(|owner| format!("; `nvmf-target ctl cluster move {group} {owner}` takes that back"));
                let text = format!(
                    "it is not done: {}. ANA group {group} is wanted at {to} still, and moves as soon as that can be{}",
                    why(),
                    back.unwrap_or_default()
                );
                leave_unfinished(changing, &text);
            }
            // Something is taken away: hosts may have it still, or what they had begun before is not over.
            (Step::Answered(_), _) => {
                let (what, text) = match &asking.why {
                    None if !asking.unfinished.is_empty() => {
                        let text = format!(
                            "what hosts had begun before is still under way after {} s, on a disk that does not answer, at gateway \
                             {}: it may be carried out yet",
                            GROUP_TIMEOUT.as_secs(),
                            asking.unfinished.join(", ")
                        );
                        (format!("it is so already, and {text}"), text)
                    }
                    _ => {
                        let what = format!("it is so already, and not in force everywhere: {}", why());
                        (what, format!("it is not done yet: {}", why()))
                    }
                };
                if changing.items.is_empty() {
                    changing.refused = Some(Fault::refused(what));
                }
                leave_unfinished(changing, &text);
            }
        }
    }

    /// What came of changes that the group has taken.
    pub(super) fn note_outcomes(
        &self,
        changing: &mut Changing,
        disks: &[Option<(Nqn, u32)>],
        is_served: bool,
    ) {
        let items = changing.items.iter_mut().enumerate();
        for (at, item) in items.filter(|(_, item)| item.effect != Effect::Refused) {
            let disk = disks.get(at).and_then(Option::as_ref);
            let is_missing = disk.is_some_and(|(nqn, nsid)| !self.is_served(nqn, *nsid));
            item.outcome = Some(if is_served && !is_missing { Outcome::Done } else { Outcome::Waiting });
            if item.outcome == Some(Outcome::Waiting) {
                let reason = disk.and_then(|(nqn, nsid)| self.reason_of(nqn, *nsid));
                let usual =
                    || "the group has it, and this gateway does not serve it yet: see `status`".to_owned();
                item.message = Some(reason.unwrap_or_else(usual));
            }
        }
    }

    /// Why a namespace of the group is not served here.
    fn reason_of(&self, nqn: &Nqn, nsid: u32) -> Option<String> {
        let key = (*nqn, nsid);
        let item = item(&key);
        let mut left_out = self.cluster.iter().flat_map(|cluster| &cluster.left_out);
        let left_out = left_out.find(|(name, _)| *name == item).map(|(_, reason)| reason.clone());
        let wanted = self.config.subsystems.iter().filter(|subsystem| subsystem.nqn == *nqn);
        let mut wanted = wanted.flat_map(|subsystem| &subsystem.namespaces).filter(|it| it.nsid == nsid);
        left_out.or_else(|| self.why_not_open(&key, wanted.next()?))
    }
}

/// What was asked for is not over.
fn leave_unfinished(changing: &mut Changing, why: &str) {
    for item in changing.items.iter_mut().filter(|item| item.effect != Effect::Refused) {
        item.outcome = Some(Outcome::Unfinished);
        item.message = Some(why.to_owned());
    }
}

/// What it means that a gateway without a lease has not said that it serves what it is to.
pub(super) fn unconfirmed(name: &GatewayName, it: &OtherStatus) -> String {
    let lease = it.lease;
    let owns = match it.groups {
        Some(0) | None => "",
        Some(_) => ", and whoever takes its ANA groups fences it first",
    };
    format!(
        "gateway {name} has not confirmed it: its lease is {lease}{owns}. If it still runs, it shows hosts nothing as accessible \
         and admits none before it has read the configuration again"
    )
}
