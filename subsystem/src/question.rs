//! What a command asks the control plane, and the answer.
//!
//! Some commands need what no worker may do: compute for long, sync a file, wait until all workers have a change. They
//! wait as [`crate::Step::Ask`] while another thread does that.

use core::net::IpAddr;
use nvmf_auth::Names;
use nvmf_auth::controller::{Computed, Task};

/// What is to be done. Sent with the ticket's place, answered by an [`Answer`] to [`crate::Queue::on_answer`].
#[derive(Debug)]
pub enum Question {
    /// Compute something for an authentication. Answered by [`Answer::Authenticate`].
    Authenticate {
        /// Whose keys are needed.
        names: Names,
        /// Which machine asks ([`crate::Link::machine`]).
        machine: IpAddr,
        /// What.
        task: Task,
    },
}

/// The outcome.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Authenticate`].
    Authenticate(Computed),
}
