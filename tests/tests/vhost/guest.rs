//! A virtual machine's driver, without a machine: memory, a queue, and the frontend's side of vhost-user.

use nvmf_memory::Memory;
use nvmf_tests::process;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Bytes of the guest's memory.
pub(crate) const MEMORY_LEN: usize = 16 << 20;
/// Entries of the queue.
pub(crate) const QUEUE_SIZE: u16 = 128;
/// Requests at once; each has this many descriptors, and room for data.
pub(crate) const SLOTS: u16 = 8;
const CHAIN: u16 = 16;
pub(crate) const DATA_LEN: usize = 1 << 20;
const DATA: usize = 4 << 20;
const HEADERS: usize = 0x10000;
/// The rings.
const DESCRIPTORS: usize = 0x1000;
const AVAILABLE: usize = 0x2000;
const USED: usize = 0x3000;
/// Where the frontend has the guest's memory, and the guest its first byte.
const USER: u64 = 0x7000_0000_0000;
const BASE: u64 = 0x4000_0000;

const F_EVENT_IDX: u64 = 1 << 29;

/// How long an answer or an interrupt may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(90);

/// The machine: what outlives a connection.
pub(crate) struct Guest {
    memory: Memory,
    file: File,
    available: u16,
    used: u16,
    inflight: Option<(VhostUserInflight, File)>,
    /// The features that its driver agreed to when it started.
    agreed: Option<u64>,
    pub(crate) event_idx: bool,
}

/// A connection to a server.
pub(crate) struct Connection {
    pub(crate) frontend: Frontend,
    /// What the device offered when it was connected to.
    pub(crate) offered: u64,
    kick: EventFd,
    call: EventFd,
}

impl Guest {
    pub(crate) fn new() -> Self {
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        let file = File::from(file);
        file.set_len(MEMORY_LEN as u64).expect("memory");
        let memory = Memory::map(&file, 0, MEMORY_LEN).expect("memory");
        Self { memory, file, available: 0, used: 0, inflight: None, agreed: None, event_idx: true }
    }

    /// Connects and starts the queue, as QEMU does at first and after each loss.
    pub(crate) fn connect(&mut self, socket: &Path) -> Connection {
        let mut frontend = None;
        process::until("the server listens", || {
            frontend = UnixStream::connect(socket).ok();
            frontend.is_some()
        })
        .expect("a server");
        let stream = frontend.expect("a server");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut frontend = Frontend::from_stream(stream, 1);
        frontend.set_owner().expect("set owner");
        let offered = frontend.get_features().expect("features");
        let wanted = if self.event_idx { offered } else { offered & !F_EVENT_IDX };
        // A driver that runs does not agree anew.
        let features = *self.agreed.get_or_insert(wanted);
        let protocol = frontend.get_protocol_features().expect("protocol features");
        assert!(
            protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD | VhostUserProtocolFeatures::CONFIG)
        );
        frontend.set_protocol_features(protocol).expect("protocol features");
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features).expect("features");
        if self.inflight.is_none() {
            let asked = VhostUserInflight::new(0, 0, 1, QUEUE_SIZE);
            self.inflight = Some(frontend.get_inflight_fd(&asked).expect("in-flight memory"));
        }
        let (area, file) = self.inflight.as_ref().expect("in-flight memory");
        frontend.set_inflight_fd(area, file.as_raw_fd()).expect("in-flight memory");
        frontend.set_mem_table(&[self.region()]).expect("memory");
        frontend.set_vring_num(0, QUEUE_SIZE).expect("a size");
        // QEMU knows no more of a ring whose server was killed.
        frontend.set_vring_base(0, self.word(USED + 2)).expect("a base");
        let rings = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: USER + DESCRIPTORS as u64,
            used_ring_addr: USER + USED as u64,
            avail_ring_addr: USER + AVAILABLE as u64,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &rings).expect("addresses");
        let (kick, call) = (EventFd::new(0), EventFd::new(EFD_NONBLOCK));
        let (kick, call) = (kick.expect("an eventfd"), call.expect("an eventfd"));
        frontend.set_vring_call(0, &call).expect("a call");
        frontend.set_vring_kick(0, &kick).expect("a kick");
        frontend.set_vring_enable(0, true).expect("enabled");
        Connection { frontend, offered, kick, call }
    }

    /// Takes the memory away from under whoever has mapped it; this process must not touch it any more.
    pub(crate) fn cut_off(&self) {
        self.file.set_len(0).expect("shorter");
    }

    /// A region that leads past the end of its file, with the guest's file.
    pub(crate) fn too_long(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo { memory_size: 2 * MEMORY_LEN as u64, ..self.region() }
    }

    /// A region that is not registered with the guest's own: half of it.
    pub(crate) fn half(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo { memory_size: MEMORY_LEN as u64 / 2, ..self.region() }
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: MEMORY_LEN as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    fn word(&self, at: usize) -> u16 {
        let mut word = [0; 2];
        self.memory.read(at, &mut word);
        u16::from_le_bytes(word)
    }

    fn set_word(&self, at: usize, value: u16) {
        self.memory.write(at, &value.to_le_bytes());
    }

    /// Where a slot has its data in the memory.
    pub(crate) fn data(slot: u16) -> usize {
        DATA + usize::from(slot) * DATA_LEN
    }

    /// The guest's address of a place in its memory.
    pub(crate) fn address(at: usize) -> u64 {
        BASE + at as u64
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }

    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at, &mut bytes);
        bytes
    }

    pub(crate) fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_at(DESCRIPTORS + 16 * usize::from(index), address, len, flags, next);
    }

    /// A descriptor anywhere in the memory.
    pub(crate) fn descriptor_at(&self, at: usize, address: u64, len: u32, flags: u16, next: u16) {
        self.memory.write(at, &address.to_le_bytes());
        self.memory.write(at + 8, &len.to_le_bytes());
        self.memory.write(at + 12, &flags.to_le_bytes());
        self.memory.write(at + 14, &next.to_le_bytes());
    }

    /// The header of a slot's request: where it is, and where the status is to be.
    pub(crate) fn header(&self, slot: u16, kind: u32, sector: u64) -> (u64, u64) {
        let at = HEADERS + 64 * usize::from(slot);
        self.memory.write(at, &kind.to_le_bytes());
        self.memory.write(at + 4, &[0; 4]);
        self.memory.write(at + 8, &sector.to_le_bytes());
        self.memory.write(at + 32, &[0xff]);
        (Self::address(at), Self::address(at + 32))
    }

    pub(crate) fn status(&self, slot: u16) -> u8 {
        self.read(HEADERS + 64 * usize::from(slot) + 32, 1)[0]
    }

    /// Makes a request with these parts of the slot's data, by offset and length; the head of its chain.
    pub(crate) fn make(&self, slot: u16, kind: u32, sector: u64, parts: &[(usize, u32)]) -> u16 {
        let (header, status) = self.header(slot, kind, sector);
        let first = slot * CHAIN;
        let flags = if [IN, GET_ID].contains(&kind) { NEXT | WRITE } else { NEXT };
        self.descriptor(first, header, 16, NEXT, first + 1);
        for (&(offset, len), at) in parts.iter().zip(first + 1..) {
            self.descriptor(at, Self::address(Self::data(slot) + offset), len, flags, at + 1);
        }
        self.descriptor(first + 1 + parts.len() as u16, status, 1, WRITE, 0);
        first
    }

    /// Hands chains to the device.
    pub(crate) fn offer(&mut self, connection: &Connection, heads: &[u16]) {
        for head in heads {
            self.set_word(AVAILABLE + 4 + 2 * usize::from(self.available % QUEUE_SIZE), *head);
            self.available = self.available.wrapping_add(1);
        }
        // Every request is to be heard of.
        self.set_word(AVAILABLE + 4 + 2 * usize::from(QUEUE_SIZE), self.used);
        fence(Ordering::SeqCst);
        self.set_word(AVAILABLE + 2, self.available);
        fence(Ordering::SeqCst);
        connection.kick();
    }

    /// The heads of what is over since the last call.
    pub(crate) fn over(&mut self) -> Vec<u16> {
        let mut heads = Vec::new();
        loop {
            let until = self.word(USED + 2);
            fence(Ordering::SeqCst);
            while self.used != until {
                heads.push(self.word(USED + 4 + 8 * usize::from(self.used % QUEUE_SIZE)));
                self.used = self.used.wrapping_add(1);
            }
            self.set_word(AVAILABLE + 4 + 2 * usize::from(QUEUE_SIZE), self.used);
            // What was over before the device could see this interrupts nobody (virtio 1.2, 2.7.7.1).
            fence(Ordering::SeqCst);
            if self.word(USED + 2) == self.used {
                return heads;
            }
        }
    }

    /// Waits until so many are over, each once; the machine is interrupted for them.
    pub(crate) fn wait(&mut self, connection: &Connection, count: usize) -> Vec<u16> {
        let mut heads = Vec::new();
        while heads.len() < count {
            heads.extend(self.over());
            if heads.len() < count {
                connection.interrupted();
            }
        }
        assert_eq!(heads.len(), count, "{heads:?}");
        heads
    }

    /// One request from its begin to its end: its status.
    pub(crate) fn request(
        &mut self,
        connection: &Connection,
        kind: u32,
        sector: u64,
        parts: &[(usize, u32)],
    ) -> u8 {
        self.request_in(0, connection, kind, sector, parts)
    }

    /// The same in another slot than the first.
    pub(crate) fn request_in(
        &mut self,
        slot: u16,
        connection: &Connection,
        kind: u32,
        sector: u64,
        parts: &[(usize, u32)],
    ) -> u8 {
        let head = self.make(slot, kind, sector, parts);
        self.offer(connection, &[head]);
        assert_eq!(self.wait(connection, 1), [head]);
        self.status(slot)
    }
}

impl Connection {
    /// Tells the device that there is something in the queue.
    pub(crate) fn kick(&self) {
        self.kick.write(1).expect("a kick");
    }

    /// Waits for the device's interrupt.
    fn interrupted(&self) {
        process::until_within("an interrupt", PATIENCE, || self.call.read().is_ok()).expect("there is one");
    }

    /// Leaves the device no room to tell of what is over.
    pub(crate) fn fill_call(&self) {
        self.call.write(u64::MAX - 1).expect("it was empty");
    }

    /// Bytes of the configuration space.
    pub(crate) fn configuration(&mut self, len: u32) -> Vec<u8> {
        let flags = VhostUserConfigFlags::empty();
        self.frontend.get_config(0, len, flags, &vec![0; len as usize]).expect("a configuration").1
    }

    /// Bytes in the disk.
    pub(crate) fn capacity(&mut self) -> u64 {
        u64::from_le_bytes(self.configuration(60)[..8].try_into().expect("eight bytes")) * 512
    }
}
