//! Makes a run that goes wrong shorter: leaves out what is not needed for it to go wrong in the same way.

use super::mistakes::Mistake;
use super::plan::Plan;
use super::world::{Failure, World};

/// The kind of a failure: what it says, without the numbers and names.
fn kind(failure: &Failure) -> String {
    let what = failure.what.split_once(" s: ").map_or("", |(_, what)| what);
    what.chars().filter(|c| c.is_alphabetic() || *c == ' ').take(24).collect()
}

fn fails(plan: &Plan, mistake: Option<Mistake>) -> Option<Failure> {
    World::new(plan.clone(), mistake, false).run().err()
}

/// The shortest plan that is found, and how it fails, with its trace.
pub(crate) fn shrink(plan: &Plan, mistake: Option<Mistake>, failure: &Failure) -> (Plan, Failure) {
    let wanted = kind(failure);
    let mut best = plan.clone();
    let still = |plan: &Plan| fails(plan, mistake).is_some_and(|failure| kind(&failure) == wanted);
    loop {
        let mut candidates: Vec<Plan> = Vec::new();
        for at in 0..best.faults.len() {
            let mut plan = best.clone();
            plan.faults.remove(at);
            candidates.push(plan);
        }
        candidates.push(Plan { hosts: 1, ..best.clone() });
        candidates.push(Plan { groups: 1, ..best.clone() });
        candidates.push(Plan { osds: 1, ..best.clone() });
        candidates.push(Plan { balance: false, ..best.clone() });
        candidates.push(Plan { moves_on: false, ..best.clone() });
        match candidates.into_iter().find(|plan| *plan != best && plan.is_sound() && still(plan)) {
            Some(plan) => best = plan,
            None => break,
        }
    }
    let failure = World::new(best.clone(), mistake, true).run().err();
    (best, failure.unwrap_or_else(|| Failure { what: "does not fail again".into(), trace: Vec::new() }))
}
