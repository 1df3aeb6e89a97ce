//! Every bound of the host engine.

use core::time::Duration;
use nvme_proto::nvm::DsmRange;

/// Entries of the admin queue: what kernel hosts use, and the most that kernel targets take.
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// Admin commands that an [`crate::Association`] has outstanding at once: one of its own sequence (two when a
/// shutdown overtakes it), a keep-alive, a reset of another controller, and the event requests. The caller leaves that many slots of the admin queue to it.
pub const ASSOCIATION_COMMANDS_MAX: u16 = 4 + EVENT_REQUESTS_MAX;
/// Asynchronous Event Requests outstanding.
pub const EVENT_REQUESTS_MAX: u16 = 4;
/// I/O queues of one association.
pub const IO_QUEUES_MAX: u16 = 128;
/// Entries of a queue.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;
/// The fewest entries of a queue: SQSIZE 0 is not allowed.
pub const QUEUE_ENTRIES_MIN: u16 = 2;
/// Namespaces that are looked at; a controller with more is used up to here.
pub const NAMESPACES_MAX: usize = 4096;
/// Bytes in one command's data, if the controller sets no limit (MDTS 0). Below the 24 bits of a keyed descriptor.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Data bytes in a capsule, if the controller takes more.
pub const IN_CAPSULE_BYTES_MAX: u32 = 16 << 10;
/// Blocks in one command: NLB is 16 bits, 0's based.
pub const COMMAND_BLOCKS_MAX: u32 = 1 << 16;
/// Bytes in one deallocation, if the controller sets no limit (DMRSL and DMSL 0).
pub const DEALLOCATE_BYTES_MAX: u64 = 1 << 30;
/// Ranges in one Dataset Management command: NR is 8 bits, 0's based.
pub const DSM_RANGES_MAX: usize = DsmRange::COUNT_MAX;
/// Entries of a discovery log that are read; a log with more is refused.
pub const DISCOVERY_ENTRIES_MAX: usize = 4096;
/// Times that a discovery log is begun anew because it changed while it was read.
pub const DISCOVERY_RESTARTS_MAX: u32 = 8;
/// Bytes of a log page or data structure fetched with one admin command.
pub const ADMIN_DATA_MAX: u32 = 4096;
/// Time after which a namespace that the controller could not describe is asked for again.
pub const RESCAN_DELAY: Duration = Duration::from_secs(1);
/// Looks at what is announced that are so far apart are not in a row: I/O went on between them.
pub(crate) const LOOKS_APART: Duration = Duration::from_millis(10);
/// Looks at what a controller announces that follow each other, before it has to wait for as long. A gateway that gives all of its ANA
/// groups away announces each, twice or so: hosts must not wait for the pause then.
pub const LOOKS_IN_A_ROW_MAX: u32 = 96;
/// Bytes of the ANA log page that are read.
pub const ANA_LOG_MAX: usize = 256 << 10;
/// Time between two readings of the ANA log page that statuses of I/O commands cause.
pub const ANA_READ_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two looks at CSTS.
pub const STATUS_POLL: Duration = Duration::from_millis(10);

const _: () = assert!(ASSOCIATION_COMMANDS_MAX < ADMIN_QUEUE_ENTRIES);
const _: () = assert!(TRANSFER_BYTES_MAX < 1 << 24);
const _: () = assert!(DSM_RANGES_MAX * DsmRange::LEN <= TRANSFER_BYTES_MAX as usize);
