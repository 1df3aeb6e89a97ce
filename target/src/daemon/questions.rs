//! The thread that answers what commands ask the control plane.

use super::reservations::{self, TIMEOUT};
use super::workers::Common;
use crate::barrier::Barrier;
use crate::message::{Answered, Asked};
use core::time::Duration;
use nvmf_subsystem::{Answer, Question};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// How often barriers are looked at while a command waits for one.
const GLANCE: Duration = Duration::from_millis(1);

/// A command that is carried out, and answered when its barrier is reached.
struct Waiting {
    asked: Asked,
    barrier: Arc<Barrier>,
    until: Duration,
}

/// Answers questions, in the order in which they were asked, for as long as someone may ask.
///
/// # Errors
/// The system has no thread left.
pub(super) fn answer(asked: Receiver<Asked>, common: Common) -> io::Result<()> {
    let body = move || {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            // One that waits delays none that comes later.
            let next = match waiting.is_empty() {
                true => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => asked.recv_timeout(GLANCE),
            };
            match next {
                Ok(asked) => waiting.extend(take_up(&common, asked)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = common.clock.now();
            for it in waiting.extract_if(.., |it| it.barrier.is_reached() || it.until <= now) {
                let reached = it.barrier.is_reached();
                let Question::Reservation(question) = &*it.asked.question;
                let result = if reached { Ok(()) } else { Err(reservations::too_late(question)) };
                reply(&common, &it.asked, Answer::Reservation(result));
            }
        }
    };
    std::thread::Builder::new().name("control-plane".into()).spawn(body)?;
    Ok(())
}

/// Does what is asked, and answers unless that has to wait.
fn take_up(common: &Common, asked: Asked) -> Option<Waiting> {
    match &*asked.question {
        Question::Reservation(question) => match reservations::carry_out(common, question) {
            Ok(barrier) => {
                // Mostly over at once.
                let _ = barrier.wait(GLANCE);
                Some(Waiting { asked, barrier, until: common.clock.now() + TIMEOUT })
            }
            Err(status) => {
                reply(common, &asked, Answer::Reservation(Err(status)));
                None
            }
        },
    }
}

fn reply(common: &Common, asked: &Asked, answer: Answer) {
    let &Asked { worker, place, serial, .. } = asked;
    common.mailboxes.answer(worker, Answered { place, serial, answer });
}
