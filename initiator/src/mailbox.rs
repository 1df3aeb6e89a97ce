//! Messages to an engine from threads that do not have its lock.

use crate::Buffer;
use crate::buffer::Piece;
use crate::driver::{AdminReply, Op, QueueKind, Recipient, Unanswered};
use crate::slot::{Reply, Slot};
use core::time::Duration;
use futures_channel::oneshot;
use nvme_proto::Nsid;
use nvmf_auth::host::Secrets;
use nvmf_block::RegionId;
use nvmf_host::NamespaceIdentity;
use nvmf_host::admin::AdminCommand;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A block operation that somebody waits for.
pub(crate) struct Request {
    pub(crate) nsid: Nsid,
    pub(crate) op: Op,
    pub(crate) buffer: Option<Buffer>,
    pub(crate) reply: Reply,
    /// How long somebody waits, in the time of the [`crate::shared_driver::SharedDriver`].
    pub(crate) until: Option<Duration>,
}

/// An admin command or a raw command that somebody waits for.
pub(crate) struct CommandRequest {
    pub(crate) queue: QueueKind,
    pub(crate) recipient: Recipient,
    pub(crate) command: AdminCommand,
    pub(crate) times: Times,
    pub(crate) reply: oneshot::Sender<Result<AdminReply, Unanswered>>,
}

/// Until when somebody waits for a command, in the same time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    /// For its end.
    pub(crate) until: Option<Duration>,
    /// For a path, before it is sent.
    pub(crate) sent_by: Option<Duration>,
}

/// A message to an engine.
pub(crate) enum Message {
    Register(Piece),
    Deregister(RegionId),
    Submit(Request),
    /// The future of this slot was dropped before its operation had ended.
    Withdraw(Arc<Slot>),
    Open(NamespaceIdentity),
    Command(CommandRequest),
    AuthenticateAgain {
        secrets: Box<Secrets>,
        reply: oneshot::Sender<bool>,
    },
    Close {
        reply: Option<oneshot::Sender<()>>,
    },
}

/// Messages, in the order in which they came.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<Mail>);

#[derive(Default)]
struct Mail {
    messages: VecDeque<Message>,
    closed: bool,
}

impl Mailbox {
    /// Leaves a message.
    ///
    /// # Errors
    /// The message, when the mailbox is closed: the caller drops it, and with it the reply's channel, outside of every lock.
    #[expect(clippy::result_large_err, reason = "nothing is allocated for an operation")]
    pub(crate) fn put(&self, message: Message) -> Result<(), Message> {
        let mut mail = self.lock();
        if mail.closed {
            return Err(message);
        }
        mail.messages.push_back(message);
        Ok(())
    }

    /// Moves what is there behind `messages`.
    pub(crate) fn take(&self, messages: &mut VecDeque<Message>) {
        messages.append(&mut self.lock().messages);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().messages.is_empty()
    }

    /// From now on messages are refused; those that are there are returned.
    pub(crate) fn close(&self) -> VecDeque<Message> {
        let mut mail = self.lock();
        mail.closed = true;
        core::mem::take(&mut mail.messages)
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
