//! The thread that answers what commands ask the control plane.

use super::authentication::{Origin, Pool};
use crate::message::Asked;
use nvmf_subsystem::Question;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Answers questions, in the order in which they were asked, for as long as someone may ask. What computes for long is
/// done by a pool of threads.
///
/// # Errors
/// The system has no thread left.
pub(super) fn answer(asked: Receiver<Asked>, pool: Arc<Pool>) -> io::Result<()> {
    let body = move || {
        while let Ok(Asked { worker, place, serial, question }) = asked.recv() {
            match *question {
                Question::Authenticate { names, machine, task } => {
                    pool.push(machine, names, task, Origin { worker, place, serial });
                }
            }
        }
        pool.close();
    };
    std::thread::Builder::new().name("control-plane".into()).spawn(body)?;
    Ok(())
}
