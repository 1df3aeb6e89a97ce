//! What a command asks the control plane, and the answer.
//!
//! Some commands need what no worker may do: compute for long, sync a file, wait until all workers have a change. They
//! wait as [`crate::Step::Ask`] while another thread does that.

/// What is to be done. Sent with the ticket's place, answered by an [`Answer`] to [`crate::Queue::on_answer`].
#[derive(Debug)]
pub enum Question {}

/// The outcome.
#[derive(Debug)]
pub enum Answer {}
