//! A double of the two libraries for tests: one device of this thread, controlled by the test.
//!
//! A test calls [`install`], then drives the provider; [`device`] changes what the device does and records what it was
//! asked.

use super::abi::{AsyncEvent, CmEvent, CmId, CompChannel, ConnParam, Context, Cq, Device, DeviceAttr};
use super::abi::{EventChannel, Mr, Mw, Qp, QpAttr, QpInitAttr, RecvWr, SendWr, Srq, SrqInitAttr, Wc};
use super::constants;
use super::library::Functions;
use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

pub(crate) const SIW_VENDOR_ID: u32 = super::device::SIW_VENDOR_ID;
pub(crate) const CQ_ERR: i32 = constants::EVENT_CQ_ERR;
pub(crate) const COMM_EST: i32 = constants::EVENT_COMM_EST;
pub(crate) const DEVICE_FATAL: i32 = constants::EVENT_DEVICE_FATAL;
pub(crate) const REJECTED: i32 = constants::CM_REJECTED;
pub(crate) const ESTABLISHED: i32 = constants::CM_ESTABLISHED;
pub(crate) const DISCONNECTED: i32 = constants::CM_DISCONNECTED;
pub(crate) const DEVICE_REMOVAL: i32 = constants::CM_DEVICE_REMOVAL;

/// A registration: what it covers, with which rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) access: u32,
}

/// A send work request that was posted.
#[derive(Debug, Clone)]
pub(crate) struct Posted {
    id: u64,
    pub(crate) signaled: bool,
    pub(crate) elements: Vec<(u64, u32, u32)>,
    /// Of a window that is bound: address, length, rights.
    pub(crate) bound: (u64, u64, u32),
    qp: usize,
}

/// The device.
pub(crate) struct World {
    /// Names of functions that fail.
    pub(crate) failing: Vec<&'static str>,
    /// The device reports windows.
    pub(crate) has_windows: bool,
    pub(crate) is_iwarp: bool,
    pub(crate) vendor_id: u32,
    /// By local key.
    pub(crate) registrations: BTreeMap<u32, Registration>,
    /// Windows that were made, and those of them that were freed.
    pub(crate) windows: (usize, usize),
    /// Vectors of the completion queues.
    pub(crate) vectors: Vec<c_int>,
    pub(crate) sent: Vec<Posted>,
    /// Sizes of the queue pairs that were made: sends, receives.
    pub(crate) sizes: Vec<(u32, u32)>,
    /// Connections for which `rdma_notify` was called, with which event.
    pub(crate) notified: Vec<u32>,
    /// ACK time-outs and RNR timers that queue pairs were given.
    pub(crate) ack_timeouts: Vec<u8>,
    pub(crate) rnr_timers: Vec<u8>,
    pub(crate) queue_pairs: Vec<usize>,
    /// Private data of rejections.
    pub(crate) rejections: Vec<Vec<u8>>,
    pub(crate) ids: Vec<usize>,
    next_key: u32,
    receives: Vec<(u64, usize)>,
    async_events: VecDeque<AsyncEvent>,
    cm_events: VecDeque<Box<CmEvent>>,
    /// Completion queues that were armed and have something.
    cq_events: VecDeque<usize>,
    /// How often the provider asked: for an event of a completion queue, for those of the connection manager and the
    /// device, and to have a completion queue armed.
    pub(crate) asked: Asked,
    context: usize,
    device: usize,
    asynchronous: Descriptor,
    /// Of completion channels and event channels.
    channels: Vec<Descriptor>,
    /// The event channel that was made last.
    event_channel: c_int,
}

/// A descriptor that is readable while events wait.
struct Descriptor {
    ours: UnixStream,
    theirs: Option<UnixStream>,
}

impl Descriptor {
    fn new() -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("it can");
        Self { ours, theirs: Some(theirs) }
    }

    fn fd(&self) -> c_int {
        self.ours.as_raw_fd()
    }

    /// One more event waits.
    fn signal(&self) {
        if let Some(mut theirs) = self.theirs.as_ref() {
            theirs.write_all(&[0]).expect("there is room");
        }
    }

    /// An event was taken.
    fn take(&self) {
        let _ = (&self.ours).read(&mut [0]);
    }
}

/// Calls that are system calls in the libraries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) completion_events: usize,
    pub(crate) other_events: usize,
    pub(crate) arms: usize,
}

thread_local! {
    /// Never freed: the thread of a test has one.
    static WORLD: &'static RefCell<Option<World>> = Box::leak(Box::new(RefCell::new(None)));
}

/// The functions, where a double is installed in this thread.
pub(super) fn installed() -> Option<&'static Functions> {
    WORLD.with(|world| world.borrow().is_some()).then_some(&FUNCTIONS)
}

/// The device of this thread.
pub(crate) fn device() -> RefMut<'static, World> {
    let world = WORLD.with(|world| *world);
    RefMut::map(world.borrow_mut(), |world| world.as_mut().expect("`install` was called"))
}

/// Gives this thread a device named `double0`.
pub(crate) fn install(is_iwarp: bool, has_windows: bool) {
    // SAFETY: integers and arrays of integers only.
    let mut device: Box<Device> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
    device.transport_type = i32::from(is_iwarp);
    device.name[..7].copy_from_slice(b"double0");
    let device = Box::into_raw(device);
    let asynchronous = Descriptor::new();
    let mut context = Box::new(MaybeUninit::<Context>::zeroed());
    let it = context.as_mut_ptr();
    // SAFETY: every field that is not an integer or an optional function is written here; the rest may be zero.
    unsafe {
        (*it).device = device;
        (*it).async_fd = asynchronous.fd();
        (*it).num_comp_vectors = 4;
        (&raw mut (*it).ops.alloc_mw).write(Some(alloc_mw));
        (&raw mut (*it).ops.dealloc_mw).write(Some(dealloc_mw));
        (&raw mut (*it).ops.poll_cq).write(poll_cq);
        (&raw mut (*it).ops.req_notify_cq).write(req_notify_cq);
        (&raw mut (*it).ops.post_send).write(post_send);
        (&raw mut (*it).ops.post_recv).write(post_recv);
    }
    let world = World {
        failing: Vec::new(),
        has_windows,
        is_iwarp,
        vendor_id: 0,
        registrations: BTreeMap::new(),
        windows: (0, 0),
        vectors: Vec::new(),
        sent: Vec::new(),
        sizes: Vec::new(),
        notified: Vec::new(),
        ack_timeouts: Vec::new(),
        rnr_timers: Vec::new(),
        queue_pairs: Vec::new(),
        rejections: Vec::new(),
        ids: Vec::new(),
        next_key: 0x100,
        receives: Vec::new(),
        async_events: VecDeque::new(),
        cm_events: VecDeque::new(),
        context: Box::into_raw(context).expose_provenance(),
        device: device.expose_provenance(),
        cq_events: VecDeque::new(),
        asked: Asked::default(),
        asynchronous,
        channels: Vec::new(),
        event_channel: -1,
    };
    WORLD.with(|it| it.replace(Some(world)));
}

impl World {
    fn fails(&self, name: &str) -> bool {
        self.failing.contains(&name)
    }

    fn result(&self, name: &str) -> c_int {
        if self.fails(name) { libc::EIO } else { 0 }
    }

    fn key(&mut self) -> u32 {
        self.next_key += 0x100;
        self.next_key
    }

    /// A descriptor for a channel.
    fn channel(&mut self) -> c_int {
        self.channels.push(Descriptor::new());
        self.channels[self.channels.len() - 1].fd()
    }

    fn descriptor(&self, fd: c_int) -> &Descriptor {
        self.channels.iter().find(|it| it.fd() == fd).expect("a channel that was made")
    }

    /// Reports something of the device, or of its `at`-th queue pair.
    pub(crate) fn report(&mut self, event_type: i32, at: usize) {
        let element = self.queue_pairs.get(at).copied().unwrap_or(0);
        self.async_events.push_back(AsyncEvent { element, event_type });
        self.asynchronous.signal();
    }

    /// Disassociates the device: its descriptors stay readable, and every call fails.
    pub(crate) fn disassociate(&mut self) {
        self.asynchronous.theirs = None;
        self.channels.iter_mut().for_each(|it| it.theirs = None);
        self.failing.extend([
            "ibv_modify_qp",
            "ibv_destroy_qp",
            "ibv_dereg_mr",
            "ibv_reg_mr",
            "ibv_create_qp",
        ]);
    }

    /// An event of the connection manager, about the `at`-th id.
    pub(crate) fn tell(&mut self, event: i32, status: c_int, at: usize, private_data: &'static [u8]) {
        let id = self.ids[at];
        self.push(event, status, id, private_data);
    }

    fn push(&mut self, event: i32, status: c_int, id: usize, private_data: &'static [u8]) {
        // SAFETY: integers and pointers only.
        let mut it: Box<CmEvent> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
        (it.event, it.status, it.id) = (event, status, id as *mut CmId);
        it.conn.private_data = private_data.as_ptr().cast();
        it.conn.private_data_len = private_data.len() as u8;
        (it.conn.initiator_depth, it.conn.responder_resources) = (16, 16);
        self.cm_events.push_back(it);
        self.descriptor(self.event_channel).signal();
    }

    /// A peer asks the `at`-th id, which listens, for a connection. `device` of it is another's when `foreign`.
    pub(crate) fn ask(&mut self, at: usize, foreign: bool) {
        let listener = self.ids[at];
        let id = self.new_id();
        if !foreign {
            // SAFETY: made above.
            unsafe { (*(id as *mut CmId)).verbs = self.context as *mut Context };
        }
        self.push(constants::CM_CONNECT_REQUEST, 0, id, b"");
        if let Some(event) = self.cm_events.back_mut() {
            event.listen_id = listener as *mut CmId;
        }
    }

    fn new_id(&mut self) -> usize {
        // SAFETY: integers and pointers only.
        let mut id: Box<CmId> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
        // An IPv4 address: family and port, then the address.
        id.src_addr[0] = u64::from_ne_bytes([2, 0, 0x11, 0x44, 192, 0, 2, 1]);
        id.dst_addr[0] = u64::from_ne_bytes([2, 0, 0x22, 0x22, 192, 0, 2, 2]);
        let id = Box::into_raw(id).expose_provenance();
        self.ids.push(id);
        id
    }

    /// Completes the oldest `count` of the sends that were posted, and forgets them.
    pub(crate) fn complete(&mut self, count: usize, status: u32) {
        for posted in self.sent.drain(..count).collect::<Vec<_>>() {
            if posted.signaled || status != 0 {
                self.completed(posted.id, posted.qp, status, true);
            }
        }
    }

    /// A message arrives at the oldest receive, and invalidates a key.
    pub(crate) fn receive_and_invalidate(&mut self, key: u32) {
        self.received(Wc { invalidated_rkey: key, wc_flags: 1 << 3, ..Wc::default() });
    }

    /// A message arrives at the oldest receive.
    pub(crate) fn receive(&mut self) {
        self.received(Wc::default());
    }

    fn received(&mut self, wc: Wc) {
        let (wr_id, qp) = self.receives.remove(0);
        // SAFETY: as in `completed`.
        unsafe {
            let qp = &*(qp as *const QueuePair);
            self.add(qp.receive_cq, Wc { wr_id, qp_num: qp.qp.qp_num, ..wc });
        }
    }

    /// Adds a completion, and tells of it if the queue is armed.
    ///
    /// # Safety
    /// A queue of `create_cq`.
    unsafe fn add(&mut self, queue: *mut Completions, wc: Wc) {
        // SAFETY: the caller's.
        let it = unsafe { &mut *queue };
        it.completions.push_back(wc);
        if core::mem::take(&mut it.armed) {
            self.cq_events.push_back(queue.expose_provenance());
            self.descriptor(it.channel).signal();
        }
    }

    fn completed(&mut self, wr_id: u64, qp: usize, status: u32, is_send: bool) {
        // SAFETY: queue pairs and completion queues live until they are destroyed, and are used by this thread only.
        unsafe {
            let qp = &*(qp as *const QueuePair);
            let queue = if is_send { qp.send_cq } else { qp.receive_cq };
            self.add(queue, Wc { wr_id, status, qp_num: qp.qp.qp_num, ..Wc::default() });
        }
    }

    fn flush(&mut self, qp: usize) {
        let of_it = |posted: &Posted| posted.qp == qp;
        for posted in self.sent.extract_if(.., |posted| of_it(posted)).collect::<Vec<_>>() {
            self.completed(posted.id, qp, 5, true);
        }
        for (id, _) in self.receives.extract_if(.., |receive| receive.1 == qp).collect::<Vec<_>>() {
            self.completed(id, qp, 5, false);
        }
    }
}

#[repr(C)]
struct Completions {
    cq: Cq,
    channel: c_int,
    armed: bool,
    completions: VecDeque<Wc>,
}

#[repr(C)]
struct QueuePair {
    qp: Qp,
    send_cq: *mut Completions,
    receive_cq: *mut Completions,
}

fn failed<T>() -> *mut T {
    nix::errno::Errno::set_raw(libc::EIO);
    null_mut()
}

unsafe extern "C" fn alloc_mw(_: *mut c_void, _: u32) -> *mut Mw {
    let mut world = device();
    if world.fails("alloc_mw") {
        nix::errno::Errno::set_raw(libc::EOPNOTSUPP);
        return null_mut();
    }
    // SAFETY: integers and pointers only.
    let mut mw: Box<Mw> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
    mw.rkey = world.key();
    world.windows.0 += 1;
    Box::into_raw(mw)
}

unsafe extern "C" fn dealloc_mw(mw: *mut Mw) -> c_int {
    // SAFETY: made by `alloc_mw`, freed once.
    drop(unsafe { Box::from_raw(mw) });
    device().windows.1 += 1;
    device().result("dealloc_mw")
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, room: c_int, into: *mut Wc) -> c_int {
    // SAFETY: a queue of `create_cq`, and room for as many.
    unsafe {
        let queue = &mut (*cq.cast::<Completions>()).completions;
        let count = queue.len().min(room as usize);
        for (at, wc) in queue.drain(..count).enumerate() {
            into.add(at).write(wc);
        }
        count as c_int
    }
}

unsafe extern "C" fn req_notify_cq(cq: *mut Cq, _: c_int) -> c_int {
    device().asked.arms += 1;
    // SAFETY: a queue of `create_cq`.
    unsafe { (*cq.cast::<Completions>()).armed = true };
    0
}

unsafe extern "C" fn post_send(qp: *mut Qp, first: *mut SendWr, bad: *mut *mut SendWr) -> c_int {
    let mut world = device();
    if world.fails("post_send without a word which") {
        // SAFETY: the caller's place for an answer.
        unsafe { *bad = null_mut() };
    }
    let mut next = first;
    // SAFETY: a chain of work requests and their elements, as verbs has it.
    while let Some(wr) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        let element = |at| unsafe { &*wr.sg_list.add(at) };
        let elements = (0..wr.num_sge as usize).map(element).map(|it| (it.addr, it.length, it.lkey));
        let signaled = wr.send_flags & constants::SEND_SIGNALED != 0;
        let (id, elements) = (wr.wr_id, elements.collect());
        let bound = (wr.mw_addr, wr.mw_length, wr.mw_access);
        world.sent.push(Posted { id, bound, signaled, elements, qp: qp.expose_provenance() });
        next = wr.next;
    }
    world.result("post_send without a word which")
}

unsafe extern "C" fn post_recv(qp: *mut Qp, first: *mut RecvWr, _: *mut *mut RecvWr) -> c_int {
    let mut next = first;
    // SAFETY: a chain of work requests, as verbs has it.
    while let Some(wr) = unsafe { next.as_ref() } {
        device().receives.push((wr.wr_id, qp.expose_provenance()));
        next = wr.next;
    }
    0
}

unsafe extern "C" fn get_device_list(_: *mut c_int) -> *mut *mut Device {
    Box::into_raw(Box::new([device().device as *mut Device, null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut Device) {
    // SAFETY: made by `get_device_list`.
    drop(unsafe { Box::from_raw(list.cast::<[*mut Device; 2]>()) });
}

unsafe extern "C" fn open_device(_: *mut Device) -> *mut Context {
    device().context as *mut Context
}

unsafe extern "C" fn close_device(_: *mut Context) -> c_int {
    0
}

unsafe extern "C" fn query_device(_: *mut Context, into: *mut DeviceAttr) -> c_int {
    let world = device();
    let mut it = DeviceAttr::EMPTY;
    (it.max_mr_size, it.max_qp_wr, it.max_cqe, it.max_sge) = (u64::MAX, 1024, 65_536, 16);
    (it.max_qp_rd_atom, it.max_qp_init_rd_atom) = (16, 16);
    if world.has_windows {
        (it.max_mw, it.device_cap_flags) = (1024, constants::CAP_MW_TYPE_2);
    }
    it.device_cap_flags |= constants::CAP_MEM_MGT_EXTENSIONS;
    it.vendor_id = world.vendor_id;
    // SAFETY: the caller's place for an answer.
    unsafe { into.write(it) };
    0
}

unsafe extern "C" fn get_async_event(_: *mut Context, into: *mut AsyncEvent) -> c_int {
    let mut world = device();
    world.asked.other_events += 1;
    let event = world.async_events.pop_front();
    world.asynchronous.take();
    let errno = if world.asynchronous.theirs.is_none() { libc::EIO } else { libc::EAGAIN };
    let Some(event) = event else {
        nix::errno::Errno::set_raw(errno);
        return -1;
    };
    // SAFETY: the caller's place for an answer.
    unsafe { into.write(event) };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut AsyncEvent) {}

unsafe extern "C" fn alloc_pd(_: *mut Context) -> *mut c_void {
    core::ptr::dangling_mut()
}

unsafe extern "C" fn dealloc_pd(_: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn reg_mr(_: *mut c_void, address: *mut c_void, len: usize, access: c_int) -> *mut Mr {
    let mut world = device();
    if world.fails("ibv_reg_mr") {
        return failed();
    }
    let key = world.key();
    let registration = Registration { address: address.addr() as u64, len, access: access as u32 };
    world.registrations.insert(key, registration);
    // SAFETY: integers and pointers only.
    let mut mr: Box<Mr> = unsafe { Box::new(MaybeUninit::zeroed().assume_init()) };
    (mr.lkey, mr.rkey) = (key, key);
    Box::into_raw(mr)
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut c_void,
    address: *mut c_void,
    len: usize,
    remote_address: u64,
    access: c_uint,
) -> *mut Mr {
    assert_eq!(remote_address, address.addr() as u64, "peers name the same address");
    let asked = access & !constants::ACCESS_RELAXED_ORDERING;
    assert_ne!(access, asked, "writes may pass each other");
    // SAFETY: the caller's.
    unsafe { reg_mr(pd, address, len, asked as c_int) }
}

unsafe extern "C" fn dereg_mr(mr: *mut Mr) -> c_int {
    let mut world = device();
    if world.fails("ibv_dereg_mr") {
        return libc::EIO;
    }
    // SAFETY: made by `reg_mr`, ended once.
    let mr = unsafe { Box::from_raw(mr) };
    world.registrations.remove(&mr.lkey);
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut Context) -> *mut CompChannel {
    Box::into_raw(Box::new(CompChannel { context, fd: device().channel() }))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut CompChannel) -> c_int {
    // SAFETY: made by `create_comp_channel`.
    drop(unsafe { Box::from_raw(channel) });
    0
}

unsafe extern "C" fn get_cq_event(channel: *mut CompChannel, cq: *mut *mut Cq, _: *mut *mut c_void) -> c_int {
    let mut world = device();
    world.asked.completion_events += 1;
    let Some(queue) = world.cq_events.pop_front() else { return -1 };
    // SAFETY: a channel of `create_comp_channel`, and the caller's place for an answer.
    unsafe {
        world.descriptor((*channel).fd).take();
        cq.write(queue as *mut Cq);
    }
    0
}

unsafe extern "C" fn ack_cq_events(_: *mut Cq, _: u32) {}

unsafe extern "C" fn create_cq(
    context: *mut Context,
    _: c_int,
    _: *mut c_void,
    channel: *mut CompChannel,
    vector: c_int,
) -> *mut Cq {
    device().vectors.push(vector);
    // SAFETY: a channel of `create_comp_channel`.
    let channel = unsafe { (*channel).fd };
    let queue = Completions { cq: Cq { context }, channel, armed: false, completions: VecDeque::new() };
    Box::into_raw(Box::new(queue)).cast()
}

unsafe extern "C" fn destroy_cq(cq: *mut Cq) -> c_int {
    device().cq_events.retain(|&it| it != cq.addr());
    // SAFETY: made by `create_cq`.
    drop(unsafe { Box::from_raw(cq.cast::<Completions>()) });
    0
}

unsafe extern "C" fn create_srq(_: *mut c_void, _: *mut SrqInitAttr) -> *mut Srq {
    failed()
}

unsafe extern "C" fn destroy_srq(_: *mut Srq) -> c_int {
    0
}

unsafe extern "C" fn create_qp(_: *mut c_void, attributes: *mut QpInitAttr) -> *mut Qp {
    let mut world = device();
    if world.fails("ibv_create_qp") {
        return failed();
    }
    // SAFETY: the caller's, whole; queues of `create_cq`. A queue pair has integers and pointers only.
    unsafe {
        let attributes = &*attributes;
        world.sizes.push((attributes.cap.max_send_wr, attributes.cap.max_recv_wr));
        let mut qp: Qp = MaybeUninit::zeroed().assume_init();
        qp.qp_num = world.key();
        let (send_cq, receive_cq) = (attributes.send_cq.cast(), attributes.recv_cq.cast());
        let qp = Box::into_raw(Box::new(QueuePair { qp, send_cq, receive_cq }));
        world.queue_pairs.push(qp.expose_provenance());
        qp.cast()
    }
}

unsafe extern "C" fn modify_qp(qp: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
    let mut world = device();
    // SAFETY: the caller's, whole.
    let attributes = unsafe { *attributes };
    if mask & constants::QP_TIMEOUT != 0 {
        world.ack_timeouts.push(attributes.timeout);
    }
    if mask & constants::QP_MIN_RNR_TIMER != 0 {
        world.rnr_timers.push(attributes.min_rnr_timer);
    }
    if world.fails("ibv_modify_qp") {
        return libc::EIO;
    }
    if mask & constants::QP_STATE != 0 && attributes.qp_state == constants::QPS_ERR {
        world.flush(qp.addr());
    }
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut Qp) -> c_int {
    let mut world = device();
    if world.fails("ibv_destroy_qp") {
        return libc::EIO;
    }
    world.queue_pairs.retain(|&it| it != qp.addr());
    world.sent.retain(|it| it.qp != qp.addr());
    world.receives.retain(|it| it.1 != qp.addr());
    // SAFETY: made by `create_qp`, destroyed once.
    drop(unsafe { Box::from_raw(qp.cast::<QueuePair>()) });
    0
}

unsafe extern "C" fn create_event_channel() -> *mut EventChannel {
    let fd = device().channel();
    device().event_channel = fd;
    Box::into_raw(Box::new(EventChannel { fd }))
}

unsafe extern "C" fn destroy_event_channel(channel: *mut EventChannel) {
    // SAFETY: made by `create_event_channel`.
    drop(unsafe { Box::from_raw(channel) });
}

unsafe extern "C" fn create_id(_: *mut EventChannel, id: *mut *mut CmId, _: *mut c_void, _: u32) -> c_int {
    let made = device().new_id();
    // SAFETY: the caller's place for an answer.
    unsafe { id.write(made as *mut CmId) };
    0
}

unsafe extern "C" fn destroy_id(id: *mut CmId) -> c_int {
    let mut world = device();
    world.ids.retain(|&it| it != id.addr());
    world.cm_events.retain(|event| event.id != id);
    // SAFETY: made by `new_id`, destroyed once.
    drop(unsafe { Box::from_raw(id) });
    0
}

unsafe extern "C" fn migrate_id(_: *mut CmId, _: *mut EventChannel) -> c_int {
    0
}

unsafe extern "C" fn set_option(_: *mut CmId, _: c_int, _: c_int, _: *mut c_void, _: usize) -> c_int {
    0
}

unsafe extern "C" fn bind_addr(id: *mut CmId, _: *mut c_void) -> c_int {
    // SAFETY: an id of `new_id`.
    unsafe { (*id).verbs = device().context as *mut Context };
    0
}

unsafe extern "C" fn listen(_: *mut CmId, _: c_int) -> c_int {
    0
}

unsafe extern "C" fn resolve_addr(id: *mut CmId, _: *mut c_void, _: *mut c_void, _: c_int) -> c_int {
    // SAFETY: an id of `new_id`.
    unsafe { (*id).verbs = device().context as *mut Context };
    device().push(0, 0, id.addr(), b"");
    0
}

unsafe extern "C" fn resolve_route(id: *mut CmId, _: c_int) -> c_int {
    device().push(2, 0, id.addr(), b"");
    0
}

unsafe extern "C" fn connect(id: *mut CmId, _: *mut ConnParam) -> c_int {
    let mut world = device();
    // A peer that answers at once, unless the test switched it off.
    if !world.fails("rdma_connect is answered") {
        let event = if world.is_iwarp { ESTABLISHED } else { constants::CM_CONNECT_RESPONSE };
        world.push(event, 0, id.addr(), b"");
    }
    0
}

unsafe extern "C" fn accept(_: *mut CmId, _: *mut ConnParam) -> c_int {
    0
}

unsafe extern "C" fn reject(_: *mut CmId, data: *const c_void, len: u8) -> c_int {
    // SAFETY: so many bytes of the caller's.
    let data = unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) };
    device().rejections.push(data.to_vec());
    0
}

unsafe extern "C" fn one_id(_: *mut CmId) -> c_int {
    0
}

unsafe extern "C" fn notify(_: *mut CmId, event: u32) -> c_int {
    device().notified.push(event);
    0
}

unsafe extern "C" fn init_qp_attr(_: *mut CmId, attributes: *mut QpAttr, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's, whole.
    unsafe {
        *mask = constants::QP_STATE;
        if (*attributes).qp_state == constants::QPS_RTS {
            *mask |= constants::QP_TIMEOUT;
            (*attributes).timeout = 18;
        }
    }
    0
}

unsafe extern "C" fn get_cm_event(_: *mut EventChannel, into: *mut *mut CmEvent) -> c_int {
    let mut world = device();
    world.asked.other_events += 1;
    // One byte for each event, those included that went with their id.
    world.descriptor(world.event_channel).take();
    let Some(event) = world.cm_events.pop_front() else { return -1 };
    // SAFETY: the caller's place for an answer.
    unsafe { into.write(Box::into_raw(event)) };
    0
}

unsafe extern "C" fn ack_cm_event(event: *mut CmEvent) -> c_int {
    // SAFETY: given out by `get_cm_event`, acknowledged once.
    drop(unsafe { Box::from_raw(event) });
    0
}

static FUNCTIONS: Functions = Functions {
    ibv_get_device_list: get_device_list,
    ibv_free_device_list: free_device_list,
    ibv_open_device: open_device,
    ibv_close_device: close_device,
    ibv_query_device: query_device,
    ibv_get_async_event: get_async_event,
    ibv_ack_async_event: ack_async_event,
    ibv_alloc_pd: alloc_pd,
    ibv_dealloc_pd: dealloc_pd,
    ibv_reg_mr: reg_mr,
    ibv_reg_mr_iova2: Some(reg_mr_iova2),
    ibv_dereg_mr: dereg_mr,
    ibv_create_comp_channel: create_comp_channel,
    ibv_destroy_comp_channel: destroy_comp_channel,
    ibv_get_cq_event: get_cq_event,
    ibv_ack_cq_events: ack_cq_events,
    ibv_create_cq: create_cq,
    ibv_destroy_cq: destroy_cq,
    ibv_create_srq: create_srq,
    ibv_destroy_srq: destroy_srq,
    ibv_create_qp: create_qp,
    ibv_modify_qp: modify_qp,
    ibv_destroy_qp: destroy_qp,
    rdma_create_event_channel: create_event_channel,
    rdma_destroy_event_channel: destroy_event_channel,
    rdma_create_id: create_id,
    rdma_destroy_id: destroy_id,
    rdma_migrate_id: migrate_id,
    rdma_set_option: set_option,
    rdma_bind_addr: bind_addr,
    rdma_listen: listen,
    rdma_resolve_addr: resolve_addr,
    rdma_resolve_route: resolve_route,
    rdma_connect: connect,
    rdma_accept: accept,
    rdma_reject: reject,
    rdma_notify: notify,
    rdma_establish: one_id,
    rdma_disconnect: one_id,
    rdma_init_qp_attr: init_qp_attr,
    rdma_get_cm_event: get_cm_event,
    rdma_ack_cm_event: ack_cm_event,
};
