//! An association of a host with a controller: what its queues, on several workers, share.

use crate::admin::ErrorLog;
use crate::limits::KEEP_ALIVE_GRANULARITY_MS;
use crate::namespace::NamespaceTable;
use crate::orphans::Orphans;
use crate::{Cntlid, HostId, Nqn, Nsid, Options, ReservationNotice, SecureChannel};
use alloc::sync::Arc;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_block::DeviceId;

/// Bits of a controller's random number that differ from life to life; the others differ from association to association.
const EPOCH: u64 = 0xffff;

/// Identifies a subsystem in its registry. No two subsystems get the same one, even after a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubsystemId(pub u32);

/// Names an association in the whole registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AssociationKey {
    /// The subsystem.
    pub subsystem: SubsystemId,
    /// The controller within it.
    pub cntlid: Cntlid,
}

/// The type of a controller (CNTRLTYPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerType {
    /// It has namespaces and I/O queues.
    Io,
    /// It has the discovery log.
    Discovery,
}

/// One host's association with one controller: from the Connect of its Admin queue until its last queue is closed.
/// Atomics, no lock: its queues live on several workers. `enabled`, `epoch` and `io_queues` are read against each other
/// (an I/O queue that connects while the controller is reset must be seen by one side or the other), hence their order
/// is sequentially consistent.
#[derive(Debug)]
pub struct Association {
    pub(crate) key: AssociationKey,
    pub(crate) controller_type: ControllerType,
    pub(crate) subsystem_nqn: Nqn,
    pub(crate) host_nqn: Nqn,
    pub(crate) host_id: HostId,
    pub(crate) port: u16,
    /// Its number among all associations of the registry.
    instance: u64,
    /// The address of the Admin queue's connection.
    pub(crate) peer: IpAddr,
    /// [`crate::Link::machine`].
    pub(crate) machine: IpAddr,
    /// Whose key protects its connections.
    pub(crate) secure_channel: Option<SecureChannel>,
    /// What carries it.
    pub(crate) transport: TransportType,
    /// Bytes of data in the capsule of an I/O queue.
    pub(crate) in_capsule_len: u32,
    pub(crate) options: Arc<Options>,
    pub(crate) counters: Arc<Counters>,
    /// What failed on its queues.
    pub(crate) errors: ErrorLog,
    /// The host's operations that outlived their connection, of this association and of its others with the subsystem.
    pub(crate) orphans: Arc<Orphans>,
    /// CC.EN and CSTS.RDY: I/O queues may connect, and commands run.
    enabled: AtomicBool,
    /// Every queue closes at its next step.
    closing: AtomicBool,
    /// The host must authenticate.
    must_authenticate: bool,
    /// It has, on the Admin queue, or need not.
    authenticated: AtomicBool,
    /// The host lets writes stay in volatile caches (the Volatile Write Cache feature).
    write_cache: AtomicBool,
    /// Queues whose connection is there.
    connections: AtomicU32,
    /// The Keep Alive Timeout in milliseconds, rounded up to its granularity; 0 is none.
    keep_alive_ms: AtomicU32,
    /// I/O queues that are connected.
    io_queues: AtomicU16,
    /// I/O queues that the transport has room for.
    io_queues_served: AtomicU16,
    /// I/O queues that Set Features granted; until then, the option.
    io_queues_granted: AtomicU16,
    /// The host understands a retry delay (Host Behavior Support, ACRE).
    retry_delays: AtomicBool,
    /// Formats of Copy's ranges that the host uses (Host Behavior Support, CDFE).
    copy_formats: AtomicU16,
    /// Incremented by each reset: an I/O queue that was connected with an earlier value closes.
    epoch: AtomicU32,
    /// When the last capsule was received, in milliseconds of the caller's clock.
    last_activity_ms: AtomicU64,
}

/// What the SMART / Health log counts, from the creation of the subsystem on.
#[derive(Debug, Default)]
pub struct Counters {
    /// Read commands that completed.
    pub reads: AtomicU64,
    /// Write commands that completed.
    pub writes: AtomicU64,
    /// Bytes read.
    pub bytes_read: AtomicU64,
    /// Bytes written.
    pub bytes_written: AtomicU64,
    /// Commands that failed on the medium.
    pub media_errors: AtomicU64,
}

/// What a new association is made of.
pub(crate) struct AssociationParts {
    /// Its number among all associations of the registry.
    pub(crate) instance: u64,
    pub(crate) key: AssociationKey,
    pub(crate) controller_type: ControllerType,
    pub(crate) subsystem_nqn: Nqn,
    pub(crate) host_nqn: Nqn,
    pub(crate) host_id: HostId,
    pub(crate) port: u16,
    pub(crate) peer: IpAddr,
    /// [`crate::Link::machine`].
    pub(crate) machine: IpAddr,
    /// Whose key protects its connections.
    pub(crate) secure_channel: Option<SecureChannel>,
    /// What carries it.
    pub(crate) transport: TransportType,
    /// Bytes of data in the capsule of an I/O queue.
    pub(crate) in_capsule_len: u32,
    pub(crate) options: Arc<Options>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) orphans: Arc<Orphans>,
    /// As the host gave it.
    pub(crate) keep_alive_ms: u32,
    /// The host must authenticate.
    pub(crate) must_authenticate: bool,
}

impl Association {
    pub(crate) fn new(now: Duration, parts: AssociationParts) -> Self {
        let AssociationParts {
            instance,
            key,
            controller_type,
            subsystem_nqn,
            host_nqn,
            host_id,
            port,
            peer,
            machine,
            secure_channel,
            transport,
            in_capsule_len,
            options,
            counters,
            orphans,
            keep_alive_ms,
            must_authenticate,
        } = parts;
        let association = Self {
            enabled: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            must_authenticate,
            authenticated: AtomicBool::new(!must_authenticate),
            write_cache: AtomicBool::new(true),
            connections: AtomicU32::new(1),
            keep_alive_ms: AtomicU32::new(0),
            io_queues: AtomicU16::new(0),
            io_queues_served: AtomicU16::new(options.io_queues_max),
            io_queues_granted: AtomicU16::new(options.io_queues_max),
            retry_delays: AtomicBool::new(false),
            copy_formats: AtomicU16::new(0),
            epoch: AtomicU32::new(0),
            last_activity_ms: AtomicU64::new(millis(now)),
            instance,
            key,
            controller_type,
            subsystem_nqn,
            host_nqn,
            host_id,
            port,
            peer,
            machine,
            secure_channel,
            transport,
            in_capsule_len,
            options,
            counters,
            errors: ErrorLog::default(),
            orphans,
        };
        association.set_keep_alive_ms(keep_alive_ms);
        association
    }

    /// Its name in the registry.
    #[must_use]
    pub fn key(&self) -> AssociationKey {
        self.key
    }

    /// The controller in its present life, from one reset to the next: another host cannot guess it. The upper 48 bits of
    /// the random number are those of the association.
    #[must_use]
    pub fn instance(&self) -> ControllerInstance {
        let epoch = self.epoch();
        let mut text = [0; 24];
        text[..16].copy_from_slice(&self.options.instance_secret);
        text[16..].copy_from_slice(&self.instance.to_le_bytes());
        let digest = nvmf_auth::Hash::Sha256.digest(&text);
        let of_association = digest.first_chunk().copied().map_or(self.instance, u64::from_le_bytes);
        let life = self.instance.wrapping_add(epoch.into());
        ControllerInstance {
            cntlid: self.key.cntlid,
            uniquifier: (life % 255) as u8 + 1,
            random: of_association & !EPOCH | u64::from(epoch) & EPOCH,
        }
    }

    /// Whether that is a life of the controller of this association.
    pub(crate) fn has_lived_as(&self, instance: &ControllerInstance) -> bool {
        let own = self.instance();
        own.cntlid == instance.cntlid && (own.random ^ instance.random) & !EPOCH == 0
    }

    /// The type of the controller.
    #[must_use]
    pub fn controller_type(&self) -> ControllerType {
        self.controller_type
    }

    /// The NQN of the subsystem.
    #[must_use]
    pub fn subsystem_nqn(&self) -> &Nqn {
        &self.subsystem_nqn
    }

    /// The host's NQN.
    #[must_use]
    pub fn host_nqn(&self) -> &Nqn {
        &self.host_nqn
    }

    /// The Host Identifier.
    #[must_use]
    pub fn host_id(&self) -> HostId {
        self.host_id
    }

    /// The port of the Admin queue's connection.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of the host at its Admin queue's connection.
    #[must_use]
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// What carries it.
    #[must_use]
    pub fn transport(&self) -> TransportType {
        self.transport
    }

    /// Whether the host enabled the controller, and it is ready.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::SeqCst)
    }

    /// Whether its queues are to close.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Whether a key protects its Admin queue ([`crate::Link::secure_channel`]).
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.secure_channel.is_some()
    }

    /// Whether it ends when this is said of its host: whether it has a secret, which counts for discovery controllers, too,
    /// or does not; and whether it has to make a key for TLS.
    #[must_use]
    pub fn ends_with(&self, has_secret: bool, discovery: bool, concatenates: bool) -> bool {
        let is_io = self.controller_type != ControllerType::Discovery;
        let must = has_secret && (is_io || discovery);
        match self.secure_channel {
            // The key comes from an authentication.
            Some(SecureChannel { generated: Some(_), .. }) => !has_secret,
            Some(_) => must != self.must_authenticate,
            None => must != self.must_authenticate || is_io && concatenates,
        }
    }

    /// Whether its host must authenticate.
    #[must_use]
    pub fn must_authenticate(&self) -> bool {
        self.must_authenticate
    }

    /// Whether its host has authenticated on the Admin queue, or need not.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Acquire)
    }

    /// Records that it has; whether that is new.
    pub(crate) fn set_authenticated(&self) -> bool {
        !self.authenticated.swap(true, Ordering::AcqRel)
    }

    /// I/O queues that are connected now.
    #[must_use]
    pub fn io_queues(&self) -> u16 {
        self.io_queues.load(Ordering::SeqCst)
    }

    /// Records that the connection of one of its queues is gone: nothing is taken from it any more, and what a device
    /// has of it was counted ([`Association::on_operation_orphaned`]). Call it once for each admitted queue.
    ///
    /// # Panics
    /// When none was left.
    pub fn on_connection_gone(&self) {
        let before = self.connections.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a connection is gone that was never admitted");
    }

    /// Whether a queue of it has a connection that operations may yet come from.
    pub(crate) fn has_connections(&self) -> bool {
        self.connections.load(Ordering::Acquire) > 0
    }

    /// Whether the host has sent nothing for the whole Keep Alive Timeout. A host that still has its end of the
    /// connections sends something in that time.
    pub(crate) fn is_silent(&self, now: Duration) -> bool {
        let timeout = Duration::from_millis(self.keep_alive_ms().into());
        !timeout.is_zero() && now.saturating_sub(self.last_activity()) >= timeout
    }

    /// The Keep Alive Timeout; `None` when there is none.
    #[must_use]
    pub fn keep_alive(&self) -> Option<Duration> {
        let timeout_ms = self.keep_alive_ms();
        (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms.into()))
    }

    pub(crate) fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms.load(Ordering::Relaxed)
    }

    /// Sets the Keep Alive Timeout, rounded up to its granularity.
    pub(crate) fn set_keep_alive_ms(&self, kato_ms: u32) {
        let rounded = kato_ms.checked_next_multiple_of(KEEP_ALIVE_GRANULARITY_MS).unwrap_or(u32::MAX);
        self.keep_alive_ms.store(rounded, Ordering::Relaxed);
    }

    /// Records that an operation is still in flight on a device while its connection is gone: it may yet take effect.
    /// Until it completes, the host's commands for that device are answered Namespace Not Ready, on every association;
    /// for the first seconds the host is also refused a new controller ([`crate::Refusal::Orphans`]).
    pub fn on_operation_orphaned(&self, device: DeviceId) {
        self.orphans.add(device);
    }

    /// Records that such an operation completed.
    ///
    /// # Panics
    /// When there was none on the device.
    pub fn on_orphan_done(&self, device: DeviceId) {
        self.orphans.remove(device);
    }

    /// Whether operations of the host are in flight on any device while their connection is gone.
    #[must_use]
    pub fn has_orphans(&self) -> bool {
        self.orphans.any()
    }

    /// Sets how many I/O queues can be served at the moment. The host is granted no more, and at least one, when it asks.
    pub fn limit_io_queues(&self, queues: u16) {
        self.io_queues_served.store(queues.clamp(1, self.options.io_queues_max), Ordering::Release);
    }

    pub(crate) fn io_queues_served(&self) -> u16 {
        self.io_queues_served.load(Ordering::Acquire)
    }

    /// When the last capsule was received, on any queue.
    #[must_use]
    pub fn last_activity(&self) -> Duration {
        Duration::from_millis(self.last_activity_ms.load(Ordering::Relaxed))
    }

    /// Ends the association: every queue returns [`crate::Step::CloseQueue`] from its next [`crate::Queue::poll_step`].
    /// The caller polls each of them.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::SeqCst);
    }

    /// Disables the controller, and makes its I/O queues close.
    pub(crate) fn reset(&self) {
        self.set_enabled(false);
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// After a controller level reset.
    pub(crate) fn reset_features(&self) {
        self.set_write_cache(true);
        self.set_retry_delays(false);
        self.set_copy_formats(0);
        self.io_queues_granted.store(self.options.io_queues_max, Ordering::Release);
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::SeqCst)
    }

    pub(crate) fn on_connection(&self) {
        self.connections.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn on_io_queue_connected(&self) {
        self.io_queues.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn on_io_queue_closed(&self) {
        let before = self.io_queues.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "an I/O queue closed that was never connected");
    }

    pub(crate) fn io_queues_granted(&self) -> u16 {
        self.io_queues_granted.load(Ordering::Acquire)
    }

    /// Grants I/O queues: as many as the host wishes, within the options and what the transport can serve.
    pub(crate) fn grant_io_queues(&self, wished: u16) -> u16 {
        let granted = wished.min(self.io_queues_served());
        self.io_queues_granted.store(granted, Ordering::Release);
        granted
    }

    pub(crate) fn retry_delays(&self) -> bool {
        self.retry_delays.load(Ordering::Relaxed)
    }

    pub(crate) fn set_retry_delays(&self, on: bool) {
        self.retry_delays.store(on, Ordering::Relaxed);
    }

    pub(crate) fn copy_formats(&self) -> u16 {
        self.copy_formats.load(Ordering::Relaxed)
    }

    pub(crate) fn set_copy_formats(&self, formats: u16) {
        self.copy_formats.store(formats, Ordering::Relaxed);
    }

    pub(crate) fn write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    /// Sets it, and says what it was.
    pub(crate) fn replace_write_cache(&self, on: bool) -> bool {
        self.write_cache.swap(on, Ordering::Relaxed)
    }

    pub(crate) fn set_write_cache(&self, on: bool) {
        self.write_cache.store(on, Ordering::Relaxed);
    }

    /// Records that a capsule was received. The latest time of all workers is kept.
    pub(crate) fn touch(&self, now: Duration) {
        let now = millis(now);
        if self.last_activity_ms.load(Ordering::Relaxed) < now {
            self.last_activity_ms.fetch_max(now, Ordering::Relaxed);
        }
    }
}

fn millis(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A change in the registry. Every worker passes it to each of its queues ([`crate::Queue::on_notice`]).
#[derive(Debug, Clone)]
pub enum Notice {
    /// A subsystem has these namespaces from now on.
    Namespaces(Arc<NamespaceTable>),
    /// Hosts are told what others did to a reservation.
    Reservation {
        /// Of which subsystem.
        subsystem: SubsystemId,
        /// Of which namespace.
        nsid: Nsid,
        /// Whom, and what.
        notices: Arc<[(HostId, ReservationNotice)]>,
    },
    /// The discovery log changed.
    Discovery(Arc<crate::discovery::DiscoveryView>),
    /// What is known of the devices.
    Health(Arc<crate::HealthTable>),
    /// A Cross-Controller Reset is over.
    Reset {
        /// The association that it was asked for through.
        by: AssociationKey,
        /// What was reset.
        impacted: ControllerInstance,
        /// Whether none of its commands is under way any more.
        successful: bool,
    },
    /// Associations of the subsystem are closing: poll their queues.
    Closing(SubsystemId),
}
