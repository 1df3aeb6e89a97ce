//! Every bound of the daemon, and what must hold between them.

use core::time::Duration;

/// Bytes of the buffers that small transfers use.
pub const SMALL_BUFFER_LEN: usize = 16 * 1024;
/// Bytes of the buffers that large transfers are carried in, one chunk each.
pub const LARGE_BUFFER_LEN: usize = 128 * 1024;
/// Bytes of the buffers kept back for Admin commands and Connects.
pub const RESERVED_BUFFER_LEN: usize = 4096;
/// How many of those a worker has: a quarter for Connects, a quarter for discovery controllers, the rest for the Admin
/// commands of I/O controllers.
pub const RESERVED_BUFFERS: usize = 64;
/// Chunks of one command under way at once; ranges of one deallocation, too.
pub const CHUNKS_MAX: usize = 4;
/// Buffers of a class that wait for one association: up to this part (1/n) of those that are free.
pub const ASSOCIATION_SHARE: usize = 4;
/// The same for all associations of a host.
pub const HOST_SHARE: usize = 2;
/// The same for all hosts that have the address of one machine; those that hold no buffer may have one beyond that.
pub const MACHINE_SHARE: usize = 2;
/// A queue whose host has taken and sent nothing for so long, of what is under way, begins no more.
pub const PAUSE: Duration = Duration::from_secs(1);
/// The same for a device.
pub const DEVICE_SHARE: usize = 2;

/// Bytes that in-capsule data are aligned to in memory: what the backend asks for, at the most. It copies data at an
/// offset in the capsule that its device cannot use.
pub const IN_CAPSULE_ALIGN: usize = nvmf_block::MEMORY_ALIGNMENT;

/// The largest Admin queue, in entries: SPDK's tools ask for more than the usual 32.
pub const ADMIN_ENTRIES_MAX: u16 = 128;
/// The Admin queue that a worker has receives for, for each of its connections; a larger one takes the room of several.
pub const ADMIN_ENTRIES_USUAL: u16 = 32;
/// The smallest queue, in entries.
pub const ENTRIES_MIN: u16 = 2;
/// Receives (and request slots) of a queue beyond its entries: a host may have a capsule on its way before we saw that
/// our last response left.
pub const SPARE_SLOTS: u16 = 4;
/// Receives that an I/O queue has for itself, where those that come beyond wait at no cost: what a queue of 32 entries
/// needs. A deeper one borrows the rest while it has so many commands with data in their capsules.
pub const OWN_RECEIVES: u16 = 32 + SPARE_SLOTS;
/// Receives that a worker lends at least, if its queues can use them and it has memory for them. One queue may have a
/// fifth of what it lends.
pub const LENT_RECEIVES_MIN: usize = 1024;
/// Descriptors beside those of connections: disks, and what the workers and the daemon have.
pub const OTHER_DESCRIPTORS: u64 = 256;
/// Connections of one machine that have no accepted Connect yet, or belong to discovery controllers, which anyone may
/// have: up to this part (1/n) of those that a worker takes, unless the machine has a controller.
pub const ANONYMOUS_SHARE: u32 = 2;
/// Connections of discovery controllers, of all machines: up to this part (1/n) of those that a worker takes.
pub const DISCOVERY_SHARE: usize = 2;
/// A connection that is older than this and has no accepted Connect yet, or a discovery controller, makes way where there is no
/// room for another.
pub const UNCONNECTED_GRACE: Duration = Duration::from_secs(1);
/// A machine with so many of those of one kind, and twice as many as the machine that wants a place, has no such time: it could
/// renew them faster than they grow old.
pub const UNCONNECTED_CROWD: u32 = 8;
/// RDMA READs that we want outstanding on a connection, at the most.
pub const READ_DEPTH_MAX: u16 = 16;
/// How long a connection may take to be set up.
pub const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of data in the capsule of an I/O queue over NVMe/RDMA, unless the configuration says otherwise: a receive is
/// posted for each, whether it is used or not.
pub const IN_CAPSULE_RDMA: u32 = 4096;
/// The same over NVMe/TCP, where a write in its capsule takes one round trip and any other two.
pub const IN_CAPSULE_TCP: u32 = 16384;
/// From a TCP connection to its whole ICReq, and from there to ICResp: hosts give up after this time.
pub const IC_TIMEOUT: Duration = Duration::from_secs(10);
/// MAXH2CDATA: the most data that a host may send in one PDU. A chunk.
pub const H2C_DATA_MAX: u32 = LARGE_BUFFER_LEN as u32;
/// In-capsule data that an NVMe/TCP controller takes on every queue, whatever IOCCSZ says.
pub const IN_CAPSULE_ADMIN: u32 = nvmf_tcp::receiver::ADMIN_IN_CAPSULE_LEN;
/// Bytes that NVMe/TCP reads at once where they have no place of their own yet.
pub const TCP_STAGING: usize = 64 * 1024;
/// Closed NVMe/TCP connections whose last bytes are still to leave.
pub const LINGERING_MAX: u16 = 256;
/// Bytes in a packet that TCP hands to a device (which cuts it up) or to the loopback interface: 64 KiB with all
/// headers.
pub const TCP_PACKET_LEN: u32 = 65_400;
/// Connection requests that wait in the kernel, during a restart too: as many as may be half-open afterwards.
pub const BACKLOG: u32 = 1024;

/// Completions of the provider reaped in one turn.
pub const COMPLETIONS_BUDGET: usize = 128;
/// Capsules taken up in one turn, of all queues; completions of the backend, too.
pub const BATCH: usize = 32;
/// The same while short queues come in between: they wait for the rest of a turn at the most.
pub const BATCH_CONTENDED: usize = 16;
/// For so many turns after the last of them.
pub const CONTENTION_TURNS: u8 = 8;
/// Capsules that a queue hands in at a time: then it is the next queue's turn.
pub const CAPSULES_IN_A_ROW: usize = 8;
/// Answers that leave from where a device borrows them after which a turn looks whether one more still fits in the
/// packet that is being filled: it would cost a packet of its own.
pub const ANSWERS_MIN: u32 = 12;
/// Bytes of an answer beyond its data: the headers of the RDMA WRITE and the response.
pub const ANSWER_FRAMING: u32 = 80;
/// That no connection can be accepted is logged so often.
pub const SHORTAGE_INTERVAL: Duration = Duration::from_secs(10);
/// Connection events handled in one turn.
pub const CM_BUDGET: usize = 16;
/// Connection events that NVMe/TCP keeps: while there are more, it accepts no connection and gives none up.
pub const EVENTS_MAX: usize = 4 * CM_BUDGET;
/// Messages read in one turn.
pub const MESSAGE_BUDGET: usize = 64;
/// So many times within the transfer timeout is looked whether it has passed.
pub const TRANSFER_CHECKS: u32 = 4;
/// A worker that has not turned for so long was stopped itself: what its hosts sent meanwhile has not been read.
pub const STALL: Duration = Duration::from_secs(2);
/// Then no timer of a host expires for so long.
pub const STALL_GRACE: Duration = Duration::from_secs(1);
/// How long a Connect waits for the end of the host's last connection, and of what it left on the devices.
pub const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// How often is looked whether they ended.
pub const CONNECT_RETRY: Duration = Duration::from_millis(2);
/// How often a worker looks whether a barrier is reached.
pub const BARRIER_INTERVAL: Duration = Duration::from_millis(1);
/// Timers are looked at no more often than this.
pub const TIMER_GRAIN: Duration = Duration::from_millis(1);

/// How long a start waits for what the process before it had, which the kernel may still be taking apart, and how often it looks.
pub const LAST_PROCESS_TIMEOUT: Duration = Duration::from_secs(3);
/// See there.
pub const LAST_PROCESS_INTERVAL: Duration = Duration::from_millis(50);
/// How long a stop waits for commands under way.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits, after that, for the queues to close: longer takes only a disk that does not answer.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a start or a reload waits for the next disk to open. Those that take longer come when they are open.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a gateway of a group waits for images that are slow to open, before it listens for the first time.
pub const FIRST_IMAGES_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a change that takes something away waits for what is under way on it.
pub const BARRIER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a worker may take to answer the daemon.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A disk or an address that could not be had is tried again so often.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The same of one of which it takes a processor for long to see that it cannot be had; doubled each time.
pub const RETRY_COSTLY_INTERVAL: Duration = Duration::from_secs(60);
/// Up to this.
pub const RETRY_COSTLY_MAX: Duration = Duration::from_secs(600);
/// How often the daemon looks whether images are still there: that asks their cluster.
pub const LOOK_AT_IMAGES_INTERVAL: Duration = Duration::from_secs(30);
/// How often the daemon looks whether disks have grown or shrunk.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How often the daemon looks whether an RDMA device has come to an address that is served without one.
pub const DEVICES_INTERVAL: Duration = Duration::from_secs(30);

const _: () = assert!(RESERVED_BUFFER_LEN >= nvmf_subsystem::limits::PARAMETERS_LEN_MAX);
const _: () =
    assert!(SMALL_BUFFER_LEN >= 2 * nvmf_subsystem::limits::PARAMETERS_LEN_MAX, "a compare-and-write");
const _: () = assert!(LARGE_BUFFER_LEN.is_multiple_of(65536), "chunks are whole blocks of any size");
const _: () = assert!(SMALL_BUFFER_LEN < LARGE_BUFFER_LEN);
const _: () = assert!(CHUNKS_MAX <= u8::MAX as usize);
const _: () = assert!(ADMIN_ENTRIES_MAX <= nvmf_subsystem::limits::ADMIN_QUEUE_ENTRIES_MAX);
/// How long an NSID has no namespace before another disk takes it. Hosts issue commands until they have heard that the
/// old one is gone: these fail, and none reaches the other disk.
pub const NSID_REST: Duration = Duration::from_secs(5);
/// How long the ANA groups of a gateway that stops may take to be handed over to the others.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(15);
/// The same of one that is drained, which need not be.
pub const DRAIN_GROUPS_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an operator waits for the group of gateways.
pub const GROUP_TIMEOUT: Duration = Duration::from_secs(15);
/// How long hosts wait for what they have under way at a gateway that is cut off from its storage cluster.
pub const CUT_TIMEOUT: Duration = Duration::from_secs(1);
