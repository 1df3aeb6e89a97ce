//! Cross-Controller Resets, carried out as the daemon does: the association ends, and the command is answered when its
//! last command is over on every worker, or after a while, when the log page tells the rest. Or they fail, or are late, so that
//! hosts have to wait as if there were none.

use super::network::Network;
use super::plane::TargetWorker;
use core::time::Duration;
use nvmf_subsystem::{Answer, AssociationKey, Question, Registry, ResetQuestion, Status};
use nvmf_target::barrier::{Barrier, Scope};
use nvmf_target::message::{Answered, Asked, WorkerMessage};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// How long a command waits for its reset to be over.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A reset that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What becomes of resets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResetMode {
    Works,
    /// Each is refused.
    Refused,
    /// The target takes each up so much later.
    Late(Duration),
}

/// Those that are under way.
pub(super) struct Resets {
    mode: ResetMode,
    /// Those that are to be taken up, and when.
    asked: VecDeque<(Duration, Asked)>,
    waiting: Vec<Waiting>,
}

struct Waiting {
    asked: Asked,
    is_answered: bool,
    impacted: AssociationKey,
    barrier: Arc<Barrier>,
    since: Duration,
}

impl Resets {
    pub(super) fn new(mode: ResetMode) -> Self {
        Self { mode, asked: VecDeque::new(), waiting: Vec::new() }
    }

    /// Whether one is under way.
    pub(super) fn is_waiting(&self) -> bool {
        !self.asked.is_empty() || !self.waiting.is_empty()
    }

    /// Takes up what commands ask for, and answers what is over. Whether there was anything.
    pub(super) fn turn<N: Network>(
        &mut self,
        now: Duration,
        asked: Vec<Asked>,
        workers: &mut [TargetWorker<N>],
        registry: &Mutex<Registry>,
    ) -> bool {
        let late = if let ResetMode::Late(late) = self.mode { late } else { Duration::ZERO };
        self.asked.extend(asked.into_iter().map(|asked| (now + late, asked)));
        let mut worked = false;
        while let Some((_, asked)) = self.asked.pop_front_if(|(due, _)| *due <= now) {
            worked = true;
            self.take_up::<N>(now, asked, workers, registry);
        }
        let is_over =
            |it: &mut Waiting| it.barrier.is_reached() || it.is_answered && now >= it.since + TIMEOUT;
        for it in self.waiting.extract_if(.., is_over) {
            worked = true;
            if it.is_answered {
                let successful = it.barrier.is_reached();
                registry.lock().expect("no panic before").on_reset_over(question(&it.asked), successful);
                publish::<N>(workers, &mut registry.lock().expect("no panic before"));
            } else {
                answer::<N>(workers, &it.asked, Ok(true));
            }
        }
        for it in &mut self.waiting {
            if now >= it.since + ANSWER_WITHIN && !core::mem::replace(&mut it.is_answered, true) {
                worked = true;
                answer::<N>(workers, &it.asked, Ok(false));
            }
        }
        worked
    }

    /// Ends the association that a command names; the barrier is reached when nothing of it is under way.
    fn take_up<N: Network>(
        &mut self,
        now: Duration,
        asked: Asked,
        workers: &mut [TargetWorker<N>],
        registry: &Mutex<Registry>,
    ) {
        if self.mode == ResetMode::Refused {
            return answer::<N>(workers, &asked, Err(Status::INVALID_OPCODE));
        }
        let reset = {
            let mut registry = registry.lock().expect("no panic before");
            let reset = registry.reset(question(&asked));
            publish::<N>(workers, &mut registry);
            reset
        };
        let impacted = match reset {
            Ok(Some(impacted)) => impacted,
            Ok(None) => return answer::<N>(workers, &asked, Ok(true)),
            Err(status) => return answer::<N>(workers, &asked, Err(status)),
        };
        if self.waiting.iter().any(|other| other.impacted == impacted) {
            return answer::<N>(workers, &asked, Err(Status::CONTROLLER_RESET_IN_PROGRESS));
        }
        let scope = Scope { associations: [impacted].into(), ..Scope::notices() };
        let barrier = Barrier::new(workers.len(), scope);
        workers.iter_mut().for_each(|worker| worker.deliver(WorkerMessage::Barrier(Arc::clone(&barrier))));
        self.waiting.push(Waiting { asked, is_answered: false, impacted, barrier, since: now });
    }
}

fn question(asked: &Asked) -> &ResetQuestion {
    let Question::Reset(question) = &*asked.question else { panic!("nobody asks that here") };
    question
}

fn publish<N: Network>(workers: &mut [TargetWorker<N>], registry: &mut Registry) {
    for notice in registry.take_notices() {
        workers.iter_mut().for_each(|worker| worker.deliver(WorkerMessage::Notice(notice.clone())));
    }
}

fn answer<N: Network>(workers: &mut [TargetWorker<N>], asked: &Asked, result: Result<bool, Status>) {
    let &Asked { worker, place, serial, .. } = asked;
    let answered = Answered { place, serial, answer: Answer::Reset(result) };
    workers[worker.0].deliver(WorkerMessage::Answer(Box::new(answered)));
}
