//! The NVM subsystem engine: the target side of NVMe over Fabrics, without I/O.
//!
//! | module | what it holds |
//! |---|---|
//! | [`registry`] | the control path: subsystems, ports, associations; admits or refuses Connects |
//! | [`subsystem`], [`namespace`], [`options`] | what is served, as configured |
//! | [`discovery`] | ports, the discovery log, discovery controllers |
//! | [`queue`] | one queue pair: capsules in, [`Step`]s out |
//! | [`access`], [`ana`] | who may do what with a namespace; how it is reached through a port |
//! | [`reservation`] | who is registered with a namespace and holds it, and what commands make of that |
//! | [`step`], [`ticket`], [`page`] | what the transport is asked to do |
//! | [`question`] | what the control plane is asked to do |
//! | [`association`] | what the queues of one host and controller share |
//! | `authentication` | which hosts must authenticate; the two commands for it |
//! | [`limits`] | every bound |
//!
//! The contract: the engine takes capsules, results and the time, and gives [`Step`]s. One [`Ticket`], one response.
//! The I/O path takes no lock and allocates nothing (a Dataset Management list excepted, which is bounded).
//!
//! What it does not do: it moves no data and opens no device; it has no clock; no metadata in this version, and it says
//! so to hosts that ask.
#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::result_large_err,
    reason = "names are held inline, and only the control path fails with one"
)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod access;
mod admin;
pub mod ana;
pub mod association;
mod authentication;
mod controller;
mod data;
pub mod discovery;
mod fabrics;
mod flight;
mod health;
mod io;
pub mod limits;
pub mod namespace;
pub mod options;
mod orphans;
pub mod page;
pub mod question;
pub mod queue;
pub mod registry;
pub mod reservation;
mod status;
pub mod step;
pub mod subsystem;
pub mod ticket;
mod timer;
pub mod write_protection;

pub use ana::{AnaState, AnaTable};
pub use association::{Association, AssociationKey, ControllerType, Counters, Notice, SubsystemId};
pub use authentication::Authentication;
pub use discovery::{
    AddressFamily, DiscoveryDefinition, Port, PortConcatenation, PortSubsystems, RdmaProviderType, Referral,
    TransportType,
};
pub use fabrics::{Admission, Admitted, ConnectRequest, DuplicateHost, Refusal, RefusalReason};
pub use health::{DeviceHealth, HealthTable, Wear};
pub use namespace::{NamespaceAccess, NamespaceDefinition, NamespaceTable};
pub use nvme_proto::{Cid, Cntlid, HostId, Nqn, Nsid, Qid, Status};
pub use options::{DuplicateHostId, Options, OptionsError};
pub use page::Page;
pub use question::{Answer, Question, ReservationQuestion, ResetQuestion, WriteProtectionQuestion};
pub use queue::{Link, Queue, SecureChannel};
pub use registry::Registry;
pub use reservation::{Reservation, ReservationCommand, ReservationNotice};
pub use step::{
    BlockWork, CompareAndWriteWork, CopySource, CopyWork, Keyed, Remote, Response, Source, Step, Transfer,
    Violation, Work,
};
pub use subsystem::{DefinitionError, HostAccess, SubsystemChange, SubsystemDefinition};
pub use ticket::Ticket;
pub use write_protection::WriteProtection;
