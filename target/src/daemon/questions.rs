//! The threads that answer what commands ask the control plane.

use super::authentication::Pool;
use super::reservations::{Lift, OfDaemon, Reservations};
use super::resets::Resets;
use crate::message::{Asked, Origin};
use core::time::Duration;
use nvmf_subsystem::{Question, ReservationQuestion, WriteProtectionQuestion};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, channel};
use std::thread::Builder;

/// How often barriers are looked at while a command waits for one.
const GLANCE: Duration = Duration::from_millis(1);

/// What changes the state directory.
pub(super) enum ToStore {
    Reservation(ReservationQuestion, Origin),
    WriteProtection(WriteProtectionQuestion, Origin),
    Lift(Lift),
    /// Says when all that came before is stored.
    Sync(Sender<()>),
}

/// Answers questions for as long as someone may ask. Each kind has its own threads: authentication a pool that computes,
/// reservations one that stores them in the order in which they were asked for, and that a hung state directory keeps. Returns
/// how that one is reached.
///
/// # Errors
/// The system has no thread left.
pub(super) fn answer(
    asked: Receiver<Asked>,
    pool: Arc<Pool>,
    reservations: Reservations<OfDaemon>,
    mut resets: Resets,
) -> io::Result<Sender<ToStore>> {
    let (store, to_store) = channel();
    Builder::new().name("reservations".into()).spawn(move || answer_reservations(&to_store, reservations))?;
    let to_reservations = store.clone();
    let body = move || {
        while let Ok(next) = next_of(&asked, resets.is_waiting()) {
            if let Some(Asked { worker, place, serial, question }) = next {
                let origin = Origin { worker, place, serial };
                match *question {
                    Question::Authenticate { names, machine, task } => {
                        pool.push(machine, names, task, origin);
                    }
                    Question::Reset(question) => resets.take_up(question, origin),
                    // It ends after this thread.
                    Question::Reservation(question) => {
                        drop(store.send(ToStore::Reservation(question, origin)));
                    }
                    Question::WriteProtection(question) => {
                        drop(store.send(ToStore::WriteProtection(question, origin)));
                    }
                }
            }
            resets.answer_those_that_are_over();
        }
        pool.close();
    };
    Builder::new().name("control-plane".into()).spawn(body)?;
    Ok(to_reservations)
}

/// A command that waits until it is in force delays none that comes later.
fn answer_reservations(asked: &Receiver<ToStore>, mut reservations: Reservations<OfDaemon>) {
    while let Ok(next) = next_of(asked, reservations.is_waiting()) {
        match next {
            Some(ToStore::Reservation(question, origin)) => reservations.take_up(&question, origin),
            Some(ToStore::WriteProtection(question, origin)) => reservations.protect(&question, origin),
            Some(ToStore::Lift(lift)) => reservations.lift(&lift),
            // Nobody may wait any more.
            Some(ToStore::Sync(tell)) => drop(tell.send(())),
            None => {}
        }
        reservations.answer_those_in_force();
    }
}

/// The next that is asked; `None` after a [`GLANCE`] where barriers are to be looked at. `Err`: nobody asks any more.
fn next_of<T>(asked: &Receiver<T>, awaits_barriers: bool) -> Result<Option<T>, RecvError> {
    if !awaits_barriers {
        return asked.recv().map(Some);
    }
    match asked.recv_timeout(GLANCE) {
        Ok(next) => Ok(Some(next)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(RecvError),
    }
}
