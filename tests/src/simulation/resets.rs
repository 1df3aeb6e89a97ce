//! Cross-Controller Resets, carried out as the daemon does: the association ends, and the command is answered when its
//! last command is over on every worker.

use super::network::Network;
use nvmf_backend::simulated::SimulatedDevices;
use nvmf_subsystem::{Answer, Question, Registry, ResetQuestion, Status};
use nvmf_target::barrier::{Barrier, Scope};
use nvmf_target::message::{Answered, Asked, WorkerMessage};
use nvmf_target::worker::Worker;
use std::sync::{Arc, Mutex};

/// Those that are under way.
#[derive(Default)]
pub(super) struct Resets {
    waiting: Vec<(Asked, Arc<Barrier>)>,
}

impl Resets {
    /// Takes up what commands ask for, and answers what is over. Whether there was anything.
    pub(super) fn turn<N: Network>(
        &mut self,
        asked: Vec<Asked>,
        workers: &mut [Worker<N::Target, SimulatedDevices>],
        registry: &Mutex<Registry>,
    ) -> bool {
        let mut answers: Vec<(Asked, Result<bool, Status>)> = Vec::new();
        for asked in asked {
            let Question::Reset(question) = &*asked.question else { panic!("nobody asks that here") };
            match begin::<N>(question, workers, registry) {
                Ok(Some(barrier)) => self.waiting.push((asked, barrier)),
                Ok(None) => answers.push((asked, Ok(true))),
                Err(status) => answers.push((asked, Err(status))),
            }
        }
        let over = self.waiting.extract_if(.., |(_, barrier)| barrier.is_reached());
        answers.extend(over.map(|(asked, _)| (asked, Ok(true))));
        let any = !answers.is_empty();
        for (Asked { worker, place, serial, .. }, result) in answers {
            let answered = Answered { place, serial, answer: Answer::Reset(result) };
            workers[worker.0].deliver(WorkerMessage::Answer(Box::new(answered)));
        }
        any
    }
}

/// Ends the association; the barrier is reached when nothing of it is under way.
fn begin<N: Network>(
    question: &ResetQuestion,
    workers: &mut [Worker<N::Target, SimulatedDevices>],
    registry: &Mutex<Registry>,
) -> Result<Option<Arc<Barrier>>, Status> {
    let mut registry = registry.lock().expect("no panic before");
    let Some(impacted) = registry.reset(question)? else { return Ok(None) };
    for notice in registry.take_notices() {
        workers.iter_mut().for_each(|worker| worker.deliver(WorkerMessage::Notice(notice.clone())));
    }
    let scope = Scope { associations: [impacted].into(), ..Scope::notices() };
    let barrier = Barrier::new(workers.len(), scope);
    workers.iter_mut().for_each(|worker| worker.deliver(WorkerMessage::Barrier(Arc::clone(&barrier))));
    Ok(Some(barrier))
}
