//! Every bound of the engine, and what must hold between them.

use core::time::Duration;

/// Bytes of a submission queue entry.
pub const SQE_LEN: usize = 64;
/// Bytes of a completion queue entry.
pub const CQE_LEN: usize = 16;
/// Bytes of the data of a Connect command.
pub const CONNECT_DATA_LEN: usize = 1024;
/// Bytes of an Identify data structure, and the unit that small log pages are built in.
pub const PAGE_LEN: usize = 4096;

/// The smallest queue, in entries: NVMe wants at least two.
pub const QUEUE_ENTRIES_MIN: u16 = 2;
/// The largest queue that an option may ask for, in entries.
pub const QUEUE_ENTRIES_MAX: u16 = 4096;
/// The largest Admin queue, in entries. Hosts ask for 32.
pub const ADMIN_QUEUE_ENTRIES_MAX: u16 = 128;
/// The most I/O queues that an option may grant one controller.
pub const IO_QUEUES_MAX: u16 = 1024;
/// The most controllers of one subsystem at a time that an option may grant.
pub const CONTROLLERS_MAX: u16 = 4096;

/// The first and the last Controller ID that is given out; the rest is reserved or has a meaning of its own.
pub const CNTLID_MIN: u16 = 1;
/// See [`CNTLID_MIN`].
pub const CNTLID_MAX: u16 = 0xffef;

/// The most namespaces of a subsystem. [`crate::Options::namespaces_max`] may be less.
pub const NAMESPACES_MAX: usize = 4096;
/// The highest Namespace ID (NN).
pub const NSID_MAX: u32 = NAMESPACES_MAX as u32;
/// ANA groups (ANAGRPMAX, NANAGRPID).
pub const ANA_GROUPS_MAX: u32 = 127;
/// Bytes of the ANA log without the namespaces, which take four bytes each.
pub(crate) const ANA_LOG_LEN_MAX: u32 = 16 + 32 * ANA_GROUPS_MAX;
/// How long a change of an ANA state may take, in seconds (ANATT).
pub const ANA_TRANSITION_S: u8 = 10;
/// Hosts that may be registered with a namespace at once.
pub const REGISTRANTS_MAX: usize = 1024;
/// Reservation notifications that wait for a controller's host to read them; the oldest go first.
pub const RESERVATION_NOTIFICATIONS_MAX: usize = 64;
/// The most subsystems of a registry.
pub const SUBSYSTEMS_MAX: usize = 1024;
/// The most ports of a registry.
pub const PORTS_MAX: usize = 64;
/// The most referrals to discovery services of other targets.
pub const REFERRALS_MAX: usize = 64;
/// The most host NQNs in one allow-list.
pub const HOSTS_MAX: usize = 1024;

/// The most in-capsule data that an option may ask for, in bytes.
pub const IN_CAPSULE_LEN_MAX: u32 = 16 * 1024;
/// The smallest and the largest data transfer limit (MDTS), in bytes. MDTS cannot say one page, as its 0 is no limit;
/// a keyed SGL cannot name more than 2^24-1.
pub const TRANSFER_LEN_MIN: u32 = 2 * 4096;
/// See [`TRANSFER_LEN_MIN`].
pub const TRANSFER_LEN_MAX: u32 = 8 * 1024 * 1024;

/// Asynchronous Event Requests that may wait at once (AERL + 1).
pub const ASYNC_EVENT_REQUESTS_MAX: usize = 4;
/// Abort commands that may run at once (ACL + 1).
pub const ABORTS_MAX: u8 = 4;
/// Cross-Controller Resets that one controller may have under way at once (CCRL).
pub const CROSS_CONTROLLER_RESETS_MAX: u8 = 4;
/// The Command Quiesce Time in milliseconds (CQT): how long after the loss of an association is known its commands may
/// still be carried out. A command that a device takes longer for holds back its host's commands for that namespace.
pub const COMMAND_QUIESCE_MS: u16 = 5000;
/// Entries of the Error Information log (ELPE + 1).
pub const ERROR_LOG_ENTRIES: usize = 16;
/// Ranges that one Dataset Management command may bring.
pub const DSM_RANGES_MAX: usize = 256;
/// Ranges of it that are processed: DMRL has one byte, and 0 would say that there is no limit of blocks either.
pub const DMRL: u8 = u8::MAX;
/// Blocks that one range of a Dataset Management command deallocates (DMRSL), and all its ranges together (DMSL).
/// Blocks beyond are not processed, as the standard has it: deallocation is a hint.
pub const DSM_BLOCKS_MAX: u32 = 1 << 20;
/// Bytes that one Write Zeroes (WZSL) or Verify (VSL) covers: they move no data, so MDTS does not bound them.
pub const BLOCKS_LEN_MAX: u32 = 32 * 1024 * 1024;
/// Ranges that one Copy command brings (MSRC + 1).
pub const COPY_RANGES_MAX: usize = 128;
/// Bytes that one Copy command writes (MCL).
pub const COPY_LEN_MAX: u32 = 32 * 1024 * 1024;
/// Bytes of one Dataset Management range.
pub const DSM_RANGE_LEN: usize = 16;
/// Bytes of the largest Parameters that a command brings: DSM or Copy ranges, Set Features data, or a block of a fused
/// operation.
pub const PARAMETERS_LEN_MAX: usize = DSM_RANGES_MAX * DSM_RANGE_LEN;

/// Granularity of the Keep Alive Timeout, in units of 100 ms (KAS).
pub const KEEP_ALIVE_GRANULARITY_100MS: u16 = 10;
/// The same in milliseconds.
pub const KEEP_ALIVE_GRANULARITY_MS: u32 = KEEP_ALIVE_GRANULARITY_100MS as u32 * 100;
/// The default of the Keep Alive Timer feature, in milliseconds (the standard has it for RDMA and TCP). Also what a
/// discovery controller has when its host asks for none: a host that only reads the log needs no more, and one that
/// stays connected sets its own.
pub const KEEP_ALIVE_DEFAULT_MS: u32 = 120_000;
/// The delay after which a host is to try again what was answered Namespace Not Ready, in units of 100 ms (CRDT1).
pub const RETRY_DELAY_100MS: u16 = 20;
/// How long a connection may live without an accepted Connect: anyone may have one, so it is short.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for a connection that names an I/O queue, or none because its transport does not say. Hosts set up all of
/// them before the first Connect.
pub const IO_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a controller may stay without having been enabled once, whatever its Keep Alive Timeout: until then it
/// serves nobody, and holds one of the subsystem's controllers.
pub const ENABLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the first authentication of a queue may take, without what the target takes for it, and one step of a later
/// one.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a queue whose authentication failed stays, for its host to ask why.
pub const AUTHENTICATION_LINGER: Duration = Duration::from_millis(500);
/// The most associations of a subsystem, or of discovery, that wait for their first authentication: of further ones,
/// one of the machine that has most makes way.
pub const UNAUTHENTICATED_MAX: usize = 64;
/// While more than half of the controllers that a subsystem may have are in use, a host NQN that has more than this
/// part (1/n) of them gets no further one.
pub const HOST_CONTROLLERS_SHARE: usize = 8;

const _: () = assert!(PARAMETERS_LEN_MAX <= TRANSFER_LEN_MIN as usize);
const _: () = assert!(ANA_LOG_LEN_MAX as usize + 4096 <= TRANSFER_LEN_MIN as usize);
const _: () =
    assert!(COPY_RANGES_MAX * size_of::<nvme_proto::nvm::copy::SourceRange0>() <= PARAMETERS_LEN_MAX);
const _: () = assert!(COPY_RANGES_MAX <= u8::MAX as usize + 1, "MSRC has one byte");
const _: () = assert!(CONNECT_DATA_LEN <= TRANSFER_LEN_MIN as usize);
const _: () = assert!(TRANSFER_LEN_MAX < 1 << 24, "one keyed SGL carries a whole command");
const _: () = assert!(TRANSFER_LEN_MIN.is_power_of_two() && TRANSFER_LEN_MAX.is_power_of_two());
const _: () = assert!(BLOCKS_LEN_MAX.is_power_of_two() && BLOCKS_LEN_MAX as usize >= PAGE_LEN);
const _: () = assert!(IN_CAPSULE_LEN_MAX.is_multiple_of(16), "IOCCSZ counts 16 bytes");
const _: () = assert!(ASYNC_EVENT_REQUESTS_MAX < ADMIN_QUEUE_ENTRIES_MAX as usize);
const _: () = assert!(CONTROLLERS_MAX < CNTLID_MAX - CNTLID_MIN, "an ID can rest before it is used again");
const _: () =
    assert!(QUEUE_ENTRIES_MIN <= ADMIN_QUEUE_ENTRIES_MAX && ADMIN_QUEUE_ENTRIES_MAX <= QUEUE_ENTRIES_MAX);
const _: () = assert!(CNTLID_MIN > 0 && CNTLID_MAX < 0xfff0);
