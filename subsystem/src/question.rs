//! What a command asks the control plane, and the answer.
//!
//! Some commands need what no worker may do: compute for long, sync a file, wait until all workers have a change. They
//! wait as [`crate::Step::Ask`] while another thread does that.

use crate::{Association, Nsid, ReservationCommand};
use alloc::sync::Arc;
use nvme_proto::Status;

/// What is to be done. Sent with the ticket's place, answered by an [`Answer`] to [`crate::Queue::on_answer`].
#[derive(Debug)]
pub enum Question {
    /// Change a reservation ([`crate::Registry::plan_reservation`]). Answered by [`Answer::Reservation`].
    Reservation(ReservationQuestion),
}

/// A command for a reservation.
#[derive(Debug)]
pub struct ReservationQuestion {
    /// Whose.
    pub association: Arc<Association>,
    /// Which namespace the host means.
    pub nsid: Nsid,
    /// Its UUID when the command came: a disk that takes its NSID is another one.
    pub uuid: [u8; 16],
    /// What it wants.
    pub command: ReservationCommand,
}

/// The outcome.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Reservation`]: the command is done, or failed with this status.
    Reservation(Result<(), Status>),
}
