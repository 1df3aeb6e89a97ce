//! The RDMA connection manager: event channel, ids, events.

use super::abi::{self, CmEvent, ConnParam, EventChannel, QpAttr};
use super::constants;
use super::library::{Functions, NoLibrary, functions};
use super::{check, name};
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nvmf_rdma::PrivateData;
use socket2::SockAddr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Where the events of the connection manager come.
pub(crate) struct Channel {
    functions: &'static Functions,
    channel: NonNull<EventChannel>,
}

// SAFETY: librdmacm locks what its functions share; an id that moves to another thread still holds the channel that it
// learns from.
unsafe impl Send for Channel {}
// SAFETY: as above: every function of librdmacm may be called from any thread.
unsafe impl Sync for Channel {}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, after its ids, which hold it.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// Names an id in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct IdKey(usize);

/// One end of a connection, or a listener.
pub(crate) struct CmId {
    channel: Arc<Channel>,
    id: NonNull<abi::CmId>,
}

// SAFETY: see `Channel`: an id is used by one thread at a time, and librdmacm does not care by which.
unsafe impl Send for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once. Its events were all acknowledged; but for one that another thread, which had it before,
        // is just reading: this waits until that has acknowledged it, so nothing goes that it uses.
        unsafe { (self.channel.functions.rdma_destroy_id)(self.id.as_ptr()) };
    }
}

/// What one side offers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionParameters<'a> {
    pub(crate) private_data: &'a PrivateData,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) shared_receive_queue: bool,
    pub(crate) queue_pair: u32,
}

impl ConnectionParameters<'_> {
    fn as_c(&self) -> ConnParam {
        let bytes = self.private_data.as_bytes();
        ConnParam {
            private_data: bytes.as_ptr().cast(),
            private_data_len: u8::try_from(bytes.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.shared_receive_queue.into(),
            qp_num: self.queue_pair,
        }
    }
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    AddressResolved,
    RouteResolved,
    ConnectRequest,
    ConnectResponse,
    Established,
    Disconnected,
    /// Nothing is there, or there is no route.
    Unreachable,
    Rejected,
    DeviceRemoved,
    Other,
}

/// An event of the connection manager, copied out and acknowledged.
pub(crate) struct CmNotice {
    pub(crate) id: IdKey,
    /// A connection request's own id.
    pub(crate) request: Option<CmId>,
    /// The listener that it came to.
    pub(crate) listener: Option<IdKey>,
    pub(crate) kind: NoticeKind,
    /// An errno, or InfiniBand's reason of a rejection.
    pub(crate) status: i32,
    pub(crate) private_data: PrivateData,
    /// RDMA READs that the peer wants outstanding.
    pub(crate) peer_initiator_depth: u8,
    /// RDMA READs that the peer serves.
    pub(crate) peer_responder_resources: u8,
}

impl Channel {
    pub(crate) fn new() -> Result<io::Result<Arc<Self>>, NoLibrary> {
        let functions = functions()?;
        // SAFETY: no condition.
        let channel = unsafe { (functions.rdma_create_event_channel)() };
        let Some(channel) = NonNull::new(channel) else { return Ok(Err(io::Error::last_os_error())) };
        let it = Arc::new(Self { functions, channel });
        let flags = fcntl(it.fd(), FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        let set = flags.and_then(|flags| fcntl(it.fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)));
        Ok(set.map(|_| it).map_err(io::Error::from))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// The next event, if there is one.
    pub(crate) fn notice(self: &Arc<Self>) -> Option<CmNotice> {
        let mut event: *mut CmEvent = null_mut();
        // SAFETY: the channel is alive and does not block.
        let got = unsafe { (self.functions.rdma_get_cm_event)(self.channel.as_ptr(), &raw mut event) };
        if got != 0 {
            return None;
        }
        let event = NonNull::new(event)?;
        // SAFETY: an event is valid until it is acknowledged, and so are the ids and the private data that it names.
        let notice = unsafe { self.read(event.as_ref()) };
        // SAFETY: acknowledged once; nothing of it is used afterwards.
        unsafe { (self.functions.rdma_ack_cm_event)(event.as_ptr()) };
        Some(notice)
    }

    /// # Safety
    /// The event is not yet acknowledged.
    unsafe fn read(self: &Arc<Self>, event: &CmEvent) -> CmNotice {
        let kind = match event.event {
            constants::CM_ADDR_RESOLVED => NoticeKind::AddressResolved,
            constants::CM_ROUTE_RESOLVED => NoticeKind::RouteResolved,
            constants::CM_CONNECT_REQUEST => NoticeKind::ConnectRequest,
            constants::CM_CONNECT_RESPONSE => NoticeKind::ConnectResponse,
            constants::CM_ADDR_ERROR
            | constants::CM_ROUTE_ERROR
            | constants::CM_CONNECT_ERROR
            | constants::CM_UNREACHABLE => NoticeKind::Unreachable,
            constants::CM_REJECTED => NoticeKind::Rejected,
            constants::CM_ESTABLISHED => NoticeKind::Established,
            constants::CM_DISCONNECTED => NoticeKind::Disconnected,
            constants::CM_DEVICE_REMOVAL => NoticeKind::DeviceRemoved,
            _ => NoticeKind::Other,
        };
        let about_connection = matches!(
            kind,
            NoticeKind::ConnectRequest
                | NoticeKind::ConnectResponse
                | NoticeKind::Established
                | NoticeKind::Rejected
        );
        let (mut private_data, conn) = (PrivateData::EMPTY, event.conn);
        if about_connection && !conn.private_data.is_null() {
            let len = usize::from(conn.private_data_len).min(PrivateData::MAX);
            // SAFETY: so many bytes are there until the event is acknowledged.
            let bytes = unsafe { core::slice::from_raw_parts(conn.private_data.cast::<u8>(), len) };
            private_data = PrivateData::new(bytes).unwrap_or(PrivateData::EMPTY);
        }
        let request = (kind == NoticeKind::ConnectRequest).then(|| NonNull::new(event.id)).flatten();
        CmNotice {
            id: IdKey(event.id.addr()),
            request: request.map(|id| CmId { channel: Arc::clone(self), id }),
            listener: NonNull::new(event.listen_id).map(|id| IdKey(id.as_ptr().addr())),
            kind,
            status: event.status,
            private_data,
            peer_initiator_depth: if about_connection { conn.responder_resources } else { 0 },
            peer_responder_resources: if about_connection { conn.initiator_depth } else { 0 },
        }
    }
}

impl CmId {
    pub(crate) fn new(channel: &Arc<Channel>) -> io::Result<Self> {
        let mut id = null_mut();
        // SAFETY: the channel is alive; the id is written on success.
        check(unsafe {
            (channel.functions.rdma_create_id)(
                channel.channel.as_ptr(),
                &raw mut id,
                null_mut(),
                constants::PS_TCP,
            )
        })?;
        let id = NonNull::new(id).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { channel: Arc::clone(channel), id })
    }

    pub(crate) fn key(&self) -> IdKey {
        IdKey(self.id.as_ptr().addr())
    }

    fn functions(&self) -> &'static Functions {
        self.channel.functions
    }

    /// The name of the device that it is bound to.
    pub(crate) fn device_name(&self) -> Option<String> {
        // SAFETY: the id is alive; a context that it names is open, and so is its device.
        unsafe {
            let context = NonNull::new(self.id.as_ref().verbs)?;
            Some(name(&(*context.as_ref().device).name))
        }
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive.
        address(unsafe { &self.id.as_ref().src_addr })
    }

    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive.
        address(unsafe { &self.id.as_ref().dst_addr })
    }

    /// Sets the type of service (RoCE: the traffic class; DSCP is its upper six bits).
    pub(crate) fn set_type_of_service(&self, value: u8) -> io::Result<()> {
        let mut value = value;
        // SAFETY: the id is alive; the option takes one byte.
        check(unsafe {
            (self.functions().rdma_set_option)(
                self.id.as_ptr(),
                constants::OPTION_ID,
                constants::OPTION_ID_TOS,
                (&raw mut value).cast(),
                1,
            )
        })
    }

    pub(crate) fn bind(&self, to: SocketAddr) -> io::Result<()> {
        let to = SockAddr::from(to);
        // SAFETY: the id is alive; the address is read, not written.
        check(unsafe { (self.functions().rdma_bind_addr)(self.id.as_ptr(), to.as_ptr().cast_mut().cast()) })
    }

    pub(crate) fn listen(&self, backlog: u32) -> io::Result<()> {
        // SAFETY: the id is alive and bound.
        check(unsafe {
            (self.functions().rdma_listen)(self.id.as_ptr(), c_int::try_from(backlog).unwrap_or(c_int::MAX))
        })
    }

    pub(crate) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let (from, to) = (from.map(SockAddr::from), SockAddr::from(to));
        let from = from.as_ref().map_or(null_mut(), |from| from.as_ptr().cast_mut().cast::<c_void>());
        // SAFETY: the id is alive; the addresses are read, not written.
        check(unsafe {
            (self.functions().rdma_resolve_addr)(
                self.id.as_ptr(),
                from,
                to.as_ptr().cast_mut().cast(),
                milliseconds(timeout),
            )
        })
    }

    pub(crate) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the id is alive.
        check(unsafe { (self.functions().rdma_resolve_route)(self.id.as_ptr(), milliseconds(timeout)) })
    }

    pub(crate) fn connect(&self, parameters: &ConnectionParameters<'_>) -> io::Result<()> {
        let mut parameters = parameters.as_c();
        // SAFETY: the id is alive; the private data outlives the call.
        check(unsafe { (self.functions().rdma_connect)(self.id.as_ptr(), &raw mut parameters) })
    }

    pub(crate) fn accept(&self, parameters: &ConnectionParameters<'_>) -> io::Result<()> {
        let mut parameters = parameters.as_c();
        // SAFETY: the id is alive; the private data outlives the call.
        check(unsafe { (self.functions().rdma_accept)(self.id.as_ptr(), &raw mut parameters) })
    }

    pub(crate) fn reject(&self, private_data: &PrivateData) -> io::Result<()> {
        let bytes = private_data.as_bytes();
        let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        // SAFETY: the id is alive; so many bytes are there.
        check(unsafe { (self.functions().rdma_reject)(self.id.as_ptr(), bytes.as_ptr().cast(), len) })
    }

    /// Confirms the peer's answer: the queue pair is ready.
    pub(crate) fn establish(&self) -> io::Result<()> {
        // SAFETY: the id is alive.
        check(unsafe { (self.functions().rdma_establish)(self.id.as_ptr()) })
    }

    pub(crate) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the id is alive. It may have no device yet, which libraries before rdma-core 19 did not look at; none of those
        // is loaded, as they lack `rdma_establish` (since 23).
        check(unsafe { (self.functions().rdma_disconnect)(self.id.as_ptr()) })
    }

    /// Notifies the connection manager that a message of the peer's came, which confirms the connection.
    pub(crate) fn notify_established(&self) -> io::Result<()> {
        // SAFETY: the id is alive.
        check(unsafe { (self.functions().rdma_notify)(self.id.as_ptr(), constants::EVENT_COMM_EST as u32) })
    }

    /// Its events come to another channel from now on.
    pub(crate) fn migrate(&mut self, channel: &Arc<Channel>) -> io::Result<()> {
        // SAFETY: id and both channels are alive; as in `drop`, this waits for who is just reading an event of it.
        check(unsafe { (self.functions().rdma_migrate_id)(self.id.as_ptr(), channel.channel.as_ptr()) })?;
        self.channel = Arc::clone(channel);
        Ok(())
    }

    /// What the connection manager would set for the state named in `attributes`; which of it counts.
    pub(super) fn queue_pair_attributes(&self, attributes: &mut QpAttr) -> io::Result<c_int> {
        let mut mask = 0;
        // SAFETY: the id is alive, the structure whole.
        check(unsafe {
            (self.functions().rdma_init_qp_attr)(self.id.as_ptr(), &raw mut *attributes, &raw mut mask)
        })?;
        Ok(mask)
    }
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX).max(1)
}

/// A `sockaddr_storage` that the connection manager filled in.
fn address(storage: &[u64; 16]) -> Option<SocketAddr> {
    // SAFETY: 128 aligned bytes, which hold an address of the family that their first two bytes name.
    let ((), address) = unsafe {
        SockAddr::try_init(|to, len| {
            to.cast::<[u64; 16]>().write(*storage);
            *len = 128;
            Ok(())
        })
    }
    .ok()?;
    address.as_socket()
}
