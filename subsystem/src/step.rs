//! What the engine asks the transport to do.

use crate::Nsid;
use crate::{ConnectRequest, Page, Question, Ticket};
use alloc::boxed::Box;
use core::time::Duration;
use nvmf_block::{BlockRange, DeviceId};

/// What the transport is to do next for a queue.
#[derive(Debug)]
#[must_use = "a step that is not taken loses a command"]
pub enum Step {
    /// Send this response. The command is over.
    Respond(Response),
    /// Move the data that `transfer` names, do `work`, then hand the ticket back:
    ///
    /// - [`Work::Block`]: pull (`FromHost`), run on the device, push (`ToHost`), then [`crate::Queue::on_done`].
    /// - [`Work::Parameters`]: pull, then [`crate::Queue::on_parameters`].
    /// - [`Work::Page`]: [`Page::fill`] a buffer, push, then [`crate::Queue::on_done`].
    ///
    /// Both calls may answer with another `Execute` (a flush before a read, the ranges of a deallocation). Data in the
    /// capsule must stay available until the response: any of these steps may ask for them.
    Execute {
        /// Goes back into the engine exactly once, or is abandoned by name with its connection.
        ticket: Ticket,
        /// What to do.
        work: Work,
        /// The data of the command.
        transfer: Transfer,
    },
    /// Keep the ticket, have the control plane answer the question, then [`crate::Queue::on_answer`]. The command holds
    /// nothing meanwhile.
    Ask {
        /// Goes back into the engine exactly once, or is abandoned by name with its connection.
        ticket: Ticket,
        /// What is asked.
        question: Box<Question>,
    },
    /// The engine keeps the command (an Asynchronous Event Request): nothing to send now, and the transport may reuse
    /// whatever it held for it. The response comes from [`crate::Queue::poll_step`].
    Held,
    /// A Connect: take the registry, [`crate::Registry::connect`], then [`crate::Queue::on_admission`].
    Connect(Box<ConnectRequest>),
    /// Send what was responded, then disconnect this queue. On an Admin queue that ends the association
    /// ([`crate::Registry::close_queue`] names the I/O queues).
    CloseQueue,
    /// The controller was reset or shut down: close every I/O queue of the association, on whichever worker they live,
    /// and report each to [`crate::Registry::close_queue`]; this Admin queue stays.
    CloseIoQueues,
    /// The peer broke the protocol, or is gone: disconnect every queue of the association (of an unconnected queue:
    /// that queue), do not wait for sends, count and log the violation.
    CloseAssociation(Violation),
}

/// One completion, ready to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// The completion queue entry, as on the wire.
    pub cqe: [u8; 16],
    /// The host asks that this remote key be invalidated with the response. May be ignored. Only after every
    /// RDMA operation of the command is complete.
    pub invalidate: Option<u32>,
}

/// What a command wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Work {
    /// An operation on a device.
    Block {
        /// Which.
        device: DeviceId,
        /// What. Its buffer is the transfer's.
        op: BlockWork,
    },
    /// The engine must read the data of the command itself (1 to [`crate::limits::PARAMETERS_LEN_MAX`] bytes).
    Parameters,
    /// The engine has the data of the command.
    Page(Box<Page>),
}

/// [`nvmf_block::BlockOp`] without the buffer, which is the transport's affair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockWork {
    /// Device to host.
    Read {
        /// What to read.
        range: BlockRange,
    },
    /// Host to device.
    Write {
        /// What to overwrite.
        range: BlockRange,
        /// Durable before it completes.
        fua: bool,
    },
    /// All completed writes become durable.
    Flush,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The range.
        range: BlockRange,
        /// The space may be given back.
        deallocate: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// The ranges' contents are no longer needed. At least one, at most [`crate::limits::DSM_RANGES_MAX`]; one result
    /// for all: the first error.
    Deallocate(Box<[BlockRange]>),
    /// The range is held against the data from the host.
    Compare {
        /// The range.
        range: BlockRange,
    },
    /// Blocks of this namespace and others are copied to the device. Boxed, as the next one: rare and large, and every step
    /// of a read is moved with room for it.
    Copy(Box<CopyWork>),
    /// The range is held against data, and overwritten with other data if they are equal: one operation.
    CompareAndWrite(Box<CompareAndWriteWork>),
    /// The range can be read.
    Verify {
        /// The range.
        range: BlockRange,
    },
}

/// The sources, one behind the other, are copied to the device. Blocks are read before they are written, in pieces that may
/// be under way at the same time; see [`copy_piece`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyWork {
    /// At least one, at most [`crate::limits::COPY_RANGES_MAX`].
    pub sources: Box<[CopySource]>,
    /// As long as all of them.
    pub to: BlockRange,
    /// Bytes of a block of all devices.
    pub block_size: u32,
    /// Durable before it completes.
    pub fua: bool,
}

/// The range is held against the first half of the data, and overwritten with the second one if they are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompareAndWriteWork {
    /// The range.
    pub range: BlockRange,
    /// The expected bytes, and behind them the new ones. At most twice [`crate::limits::PARAMETERS_LEN_MAX`].
    pub data: Box<[u8]>,
    /// Durable before it completes.
    pub fua: bool,
}

/// Blocks to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySource {
    /// The namespace that the command names.
    pub nsid: Nsid,
    /// Where they are.
    pub device: DeviceId,
    /// Which.
    pub range: BlockRange,
}

/// The blocks of a Copy from byte `offset` on, to the end of their source range: where they are, and where they go.
#[must_use]
pub fn copy_piece(
    sources: &[CopySource],
    to: BlockRange,
    block_size: u32,
    offset: u32,
) -> Option<(CopySource, BlockRange)> {
    let done = u64::from(offset / block_size);
    let (mut skipped, to) = (done, to.split_at(done).1);
    for &CopySource { nsid, device, range } in sources {
        if skipped < range.blocks {
            let range = range.split_at(skipped).1;
            return Some((CopySource { nsid, device, range }, to.split_at(range.blocks).0));
        }
        skipped -= range.blocks;
    }
    None
}

/// The data of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// None.
    None,
    /// Host to controller.
    FromHost {
        /// Bytes: what the command takes, which is never more than its SGL describes.
        len: u32,
        /// Where they are.
        source: Source,
    },
    /// Controller to host.
    ToHost {
        /// Bytes.
        len: u32,
        /// Where they go.
        sink: Remote,
    },
}

impl Transfer {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::FromHost { len, .. } | Self::ToHost { len, .. } => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where data from the host are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In the capsule.
    InCapsule {
        /// Bytes from the end of the submission queue entry. `offset + len` lies within the capsule.
        offset: u32,
    },
    /// In the host's memory.
    Remote(Remote),
}

/// Memory of the host, as its transport names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// Behind a remote key (NVMe/RDMA).
    Keyed(Keyed),
    /// By the command alone: the transport's own messages carry the data (NVMe/TCP).
    Transport,
}

/// A keyed SGL data block: memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keyed {
    /// Where it begins, in the host's addresses.
    pub address: u64,
    /// The remote key.
    pub key: u32,
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More commands in flight than the queue has entries.
    #[error("the host has more commands in flight than the {entries} entries of queue {qid}")]
    QueueOverrun {
        /// The queue.
        qid: u16,
        /// Its entries.
        entries: u16,
    },
    /// The Keep Alive timer expired: no command for twice the Keep Alive Timeout.
    #[error("the host sent no command for {silent:?}; its keep alive timeout is {timeout:?}")]
    KeepAliveExpired {
        /// How long ago the last capsule was received.
        silent: Duration,
        /// What was agreed.
        timeout: Duration,
    },
    /// The connection brought no acceptable Connect command in time.
    #[error("the connection brought no acceptable Connect within {0:?}")]
    ConnectTimeout(Duration),
    /// The host did not enable its controller in time.
    #[error("the host did not enable the controller within {0:?}")]
    EnableTimeout(Duration),
    /// The host did not authenticate in time.
    #[error("the host did not authenticate within {0:?}")]
    AuthenticationTimeout(Duration),
    /// The capsule is shorter than a submission queue entry.
    #[error("a capsule of {0} bytes holds no command")]
    ShortCapsule(usize),
}
