//! What an association wants done.

use super::AssociationError;
use crate::{Command, Outcome, Qid};
use alloc::boxed::Box;
use alloc::vec::Vec;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_auth::GeneratedKey;
use nvmf_auth::host::ReplyTask;

/// The association's name for a command of its own; comes back in [`super::Association::on_completion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandId(pub(crate) u32);

/// The data of a command of the association's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminData {
    /// None: [`crate::DataPointer::None`].
    None,
    /// These bytes, at most [`crate::limits::ADMIN_DATA_MAX`].
    ToController {
        /// The bytes.
        bytes: Vec<u8>,
        /// In the capsule behind the SQE; otherwise where the controller fetches them.
        in_capsule: bool,
    },
    /// At most this many bytes; at most [`crate::limits::ADMIN_DATA_MAX`].
    FromController {
        /// Bytes.
        len: u32,
    },
}

/// One thing to do.
#[derive(Debug)]
pub enum Action {
    /// Open a queue's connection. Over RDMA: a queue pair with `entries` receives of a CQE posted and as many sends, connected
    /// with this private data. Answer with
    /// [`super::Association::on_queue_connected`] or [`super::Association::on_queue_failed`].
    OpenQueue {
        /// 0 is the admin queue.
        qid: Qid,
        /// For the connection request of RDMA.
        private_data: [u8; 32],
        /// Commands that may be on the queue; capsules to make room for.
        entries: u16,
        /// Data bytes that a capsule of this queue can carry behind the SQE.
        in_capsule_bytes: u32,
    },
    /// Send a command. Answer with [`super::Association::on_completion`].
    Send {
        /// On this queue.
        qid: Qid,
        /// Under this name.
        id: CommandId,
        /// The command; take a CID from the queue's [`crate::Queue`].
        command: Command,
        /// Its data.
        data: AdminData,
    },
    /// Run this with the secrets, then [`super::Association::on_authentication_computed`]. It may take some tenths of a
    /// second.
    Authenticate(Box<ReplyTask>),
    /// Connections that are opened from now on have TLS with the key made of this one. The queue, if one is named, is closed
    /// at once: [`Action::OpenQueue`] opens it anew.
    Secure {
        /// The key that the authentication made.
        key: GeneratedKey,
        /// The queue that it was made on, in the clear.
        qid: Option<Qid>,
    },
    /// Every queue was authenticated again ([`super::Association::authenticate_again`]).
    AuthenticatedAgain,
    /// Every queue is connected: [`super::Association::controller`] and [`super::Association::namespaces`] are there; I/O may flow.
    /// For discovery: [`super::Association::discovery_log`] is there.
    Ready,
    /// Namespaces came, went or changed: look at [`super::Association::namespaces`] again.
    NamespacesChanged,
    /// How namespaces can be reached changed: ask [`super::Association::access`] again.
    AccessChanged,
    /// What [`super::Association::reset`] began is over.
    ResetEnded {
        /// The controller that was to be reset.
        impacted: ControllerInstance,
        /// Nothing of it is under way any more, nor can be.
        successful: bool,
    },
    /// The discovery log was read anew.
    DiscoveryLogChanged,
    /// An event that the association does nothing about, for the log: completion dword 0.
    Event(u32),
    /// The association is lost. [`Action::CloseQueues`] follows. Everything in flight has an unknown fate.
    Failed(AssociationError),
    /// Disconnect and destroy every queue pair of the association; when all are gone, call [`super::Association::on_closed`].
    CloseQueues,
    /// The end. What was in flight may be issued again only after this; what changes a disk, only when the controller that was lost can
    /// no longer carry it out.
    Closed,
}

/// A completion of an association's command.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a> {
    /// From [`crate::Queue::on_completion`].
    pub outcome: Outcome,
    /// The bytes of [`AdminData::FromController`], as many as were asked for; else empty.
    pub data: &'a [u8],
}
