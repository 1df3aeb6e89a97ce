//! The thread that answers what commands ask the control plane.

use super::authentication::{Origin, Pool};
use super::reservations::Reservations;
use crate::message::Asked;
use core::time::Duration;
use nvmf_subsystem::Question;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

/// How often barriers are looked at while a command waits for one.
const GLANCE: Duration = Duration::from_millis(1);

/// Answers questions, in the order in which they were asked, for as long as someone may ask. What computes for long is
/// done by a pool of threads, and a command that waits for others delays none that comes later.
///
/// # Errors
/// The system has no thread left.
pub(super) fn answer(
    asked: Receiver<Asked>,
    pool: Arc<Pool>,
    mut reservations: Reservations,
) -> io::Result<()> {
    let body = move || {
        loop {
            let next = match reservations.is_waiting() {
                false => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
                true => asked.recv_timeout(GLANCE),
            };
            match next {
                Ok(Asked { worker, place, serial, question }) => {
                    let origin = Origin { worker, place, serial };
                    match *question {
                        Question::Authenticate { names, machine, task } => {
                            pool.push(machine, names, task, origin);
                        }
                        Question::Reservation(question) => reservations.take_up(question, origin),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            reservations.answer_those_in_force();
        }
        pool.close();
    };
    std::thread::Builder::new().name("control-plane".into()).spawn(body)?;
    Ok(())
}
