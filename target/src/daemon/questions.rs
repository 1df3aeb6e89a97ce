//! The thread that answers what commands ask the control plane.

use crate::message::Asked;
use std::io;
use std::sync::mpsc::Receiver;

/// Answers questions, in the order in which they were asked, for as long as someone may ask.
///
/// # Errors
/// The system has no thread left.
pub(super) fn answer(asked: Receiver<Asked>) -> io::Result<()> {
    #[allow(clippy::never_loop, reason = "no command asks anything yet")]
    let body = move || {
        while let Ok(asked) = asked.recv() {
            match *asked.question {}
        }
    };
    std::thread::Builder::new().name("control-plane".into()).spawn(body)?;
    Ok(())
}
