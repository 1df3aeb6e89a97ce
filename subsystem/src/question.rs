//! What a command asks the control plane, and the answer.
//!
//! Some commands need what no worker may do: compute for long, sync a file, wait until all workers have a change. They
//! wait as [`crate::Step::Ask`] while another thread does that.

use crate::{Association, Nsid, ReservationCommand, WriteProtection};
use alloc::sync::Arc;
use core::net::IpAddr;
use nvme_proto::Status;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_auth::Names;
use nvmf_auth::controller::{Computed, Task};

/// What is to be done. Sent with the ticket's place, answered by an [`Answer`] to [`crate::Queue::on_answer`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a question travels in a box")]
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
    /// Reset another controller ([`crate::Registry::reset`]). Answered by [`Answer::Reset`].
    Reset(ResetQuestion),
    /// Change a reservation ([`crate::Registry::plan_reservation`]). Answered by [`Answer::Reservation`].
    Reservation(ReservationQuestion),
    /// Change a write protection ([`crate::Registry::set_write_protection`]). Answered by [`Answer::Reservation`], once what
    /// was under way on the device is over.
    WriteProtection(WriteProtectionQuestion),
}

/// What a host wants of a namespace's write protection.
#[derive(Debug)]
pub struct WriteProtectionQuestion {
    /// Whose association.
    pub association: Arc<Association>,
    /// Which namespace the host means.
    pub nsid: Nsid,
    /// Its UUID when the command came: a disk that takes its NSID is another one.
    pub uuid: [u8; 16],
    /// There is a place where it can be kept, and it has to be there before it is in force.
    pub persists: bool,
    /// What it wants.
    pub to: WriteProtection,
}

/// A Cross-Controller Reset.
#[derive(Debug)]
pub struct ResetQuestion {
    /// Through which association it is asked for.
    pub association: Arc<Association>,
    /// Which controller of the subsystem to reset.
    pub impacted: ControllerInstance,
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
    /// To [`Question::Authenticate`].
    Authenticate(Computed),
    /// To [`Question::Reservation`] and [`Question::WriteProtection`]: the command is done, or failed with this status.
    Reservation(Result<(), Status>),
    /// To [`Question::Reset`]: `Ok(true)` when it is over, `Ok(false)` when it is under way; then [`crate::Notice::Reset`]
    /// follows.
    Reset(Result<bool, Status>),
}
