//! The device, protection domain, completion queues.

use super::abi::{self, AsyncEvent, CompChannel, Context, Cq, DeviceAttr, Wc};
use super::constants;
use super::library::{Functions, NoLibrary, functions};
use super::{check, name};
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What carries the verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// InfiniBand or RoCE.
    InfiniBand,
    /// iWARP: no retries of its own, no memory rules of InfiniBand's.
    Iwarp,
}

/// What the device reports of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceLimits {
    pub(crate) max_mr_size: u64,
    pub(crate) max_queue_depth: u32,
    pub(crate) max_completions: u32,
    /// Entries of a completion queue: few enough to be worth one, many enough for the first to cover libsiw's mistake.
    pub(crate) completions: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_read_depth: u16,
    pub(crate) max_shared_receives: u32,
    /// As the kernel reports it: [`super::Window::alloc`] shows whether the library makes any.
    pub(crate) memory_windows: bool,
    /// SENDs can invalidate a key of the peer's.
    pub(crate) sends_invalidate: bool,
    /// Soft-RoCE, which reports an invalidation by the kernel's flag instead of the library's.
    pub(crate) is_rxe: bool,
}

/// What rxe calls itself in `vendor_id`.
const RXE_VENDOR_ID: u32 = 0x00ff_ffff;
/// What Soft-iWARP calls itself there.
pub(super) const SIW_VENDOR_ID: u32 = 0x0062_6d74;
/// Entries of a completion queue, if the device takes so many.
const COMPLETIONS: u32 = 4096;
/// libsiw takes the offset 0x90000 of memory shared with the kernel for none, and makes no queue that gets it. A
/// context's first completion queue begins at offset 0 and stays: with 32 bytes an entry, this one covers the place.
const COMPLETIONS_SIW: u32 = 32_768;

/// Something that happened to the device, or to one of its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AsyncNotice {
    /// The device is gone, or something of it that every connection needs: without its completion queue nothing ever
    /// completes.
    Fatal,
    /// The queue pair with this number is in error.
    QueuePair(u32),
    /// A message came on the queue pair with this number before the connection manager's confirmation.
    Established(u32),
    /// Nothing that matters here. The transport retries through a port that is down until its own time-out.
    Other,
}

/// An open device and one protection domain on it.
pub(crate) struct Device {
    pub(super) functions: &'static Functions,
    pub(super) context: NonNull<Context>,
    pub(super) pd: NonNull<c_void>,
}

// SAFETY: libibverbs locks what its functions share, and every one of them may be called from any thread: its objects
// are bound to the process that made them, not to a thread. What the fields point to is written in `open`, before
// anyone shares it.
unsafe impl Send for Device {}
// SAFETY: as above; `&self` gives out no pointer beyond these modules, and nothing behind the pointers is written by
// us.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: both were made in `open` and are destroyed once, the domain first; everything made from them held an
        // `Arc` of this.
        unsafe {
            (self.functions.ibv_dealloc_pd)(self.pd.as_ptr());
            (self.functions.ibv_close_device)(self.context.as_ptr());
        }
    }
}

/// The names of the RDMA devices that have a userspace driver.
pub(crate) fn device_names() -> Result<Vec<String>, NoLibrary> {
    let functions = functions()?;
    let mut names = Vec::new();
    // SAFETY: the list is null-terminated, its devices are valid until it is freed.
    unsafe {
        let list = (functions.ibv_get_device_list)(null_mut());
        if !list.is_null() {
            let mut at = list;
            while let Some(device) = NonNull::new(*at) {
                names.push(name(&device.as_ref().name));
                at = at.add(1);
            }
            (functions.ibv_free_device_list)(list);
        }
    }
    Ok(names)
}

impl Device {
    /// Opens the device of that name; `None` when there is none.
    pub(crate) fn open(wanted: &str) -> Result<io::Result<Option<Arc<Self>>>, NoLibrary> {
        let functions = functions()?;
        // SAFETY: as in `device_names`; an opened context outlives the list.
        let context = unsafe {
            let list = (functions.ibv_get_device_list)(null_mut());
            if list.is_null() {
                // A kernel without RDMA has no devices, and reports an error.
                let error = io::Error::last_os_error();
                let none = error.raw_os_error() == Some(libc::ENOSYS);
                return Ok(if none { Ok(None) } else { Err(error) });
            }
            let (mut at, mut opened) = (list, None);
            while let Some(device) = NonNull::new(*at) {
                if name(&device.as_ref().name) == wanted {
                    opened = Some(NonNull::new((functions.ibv_open_device)(device.as_ptr())));
                    break;
                }
                at = at.add(1);
            }
            let error = io::Error::last_os_error();
            (functions.ibv_free_device_list)(list);
            match opened {
                None => return Ok(Ok(None)),
                Some(None) => return Ok(Err(error)),
                Some(Some(context)) => context,
            }
        };
        // SAFETY: the context is open.
        let pd = unsafe { NonNull::new((functions.ibv_alloc_pd)(context.as_ptr())) };
        let Some(pd) = pd else {
            let error = io::Error::last_os_error();
            // SAFETY: opened above, nothing was made from it.
            unsafe { (functions.ibv_close_device)(context.as_ptr()) };
            return Ok(Err(error));
        };
        let device = Arc::new(Self { functions, context, pd });
        Ok(non_blocking(device.async_fd()).map(|()| Some(device)))
    }

    pub(super) fn ops(&self) -> &abi::ContextOps {
        // SAFETY: the context is open as long as `self` lives, and its table of operations does not change.
        unsafe { &self.context.as_ref().ops }
    }

    pub(crate) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context's descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.context.as_ref().async_fd) }
    }

    /// Interrupt vectors that completion queues can be given.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        let count = unsafe { self.context.as_ref().num_comp_vectors };
        u32::try_from(count).unwrap_or(0).max(1)
    }

    pub(crate) fn transport(&self) -> Transport {
        // SAFETY: an open context's device is valid.
        match unsafe { (*self.context.as_ref().device).transport_type } {
            constants::TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::InfiniBand,
        }
    }

    pub(crate) fn limits(&self) -> io::Result<DeviceLimits> {
        let mut attributes = DeviceAttr::EMPTY;
        // SAFETY: the context is open; the structure is whole.
        check(unsafe { (self.functions.ibv_query_device)(self.context.as_ptr(), &raw mut attributes) })?;
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        let read_depth = attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom).clamp(0, 255);
        Ok(DeviceLimits {
            max_mr_size: attributes.max_mr_size,
            max_queue_depth: positive(attributes.max_qp_wr),
            max_completions: positive(attributes.max_cqe),
            completions: match attributes.vendor_id {
                SIW_VENDOR_ID => COMPLETIONS_SIW,
                _ => COMPLETIONS,
            },
            max_sge: positive(attributes.max_sge),
            max_read_depth: u16::try_from(read_depth).unwrap_or(0),
            max_shared_receives: if attributes.max_srq > 0 { positive(attributes.max_srq_wr) } else { 0 },
            memory_windows: attributes.max_mw > 0
                && attributes.device_cap_flags & constants::CAP_MW_TYPE_2 != 0,
            // Soft-iWARP's kernel reports it, but libsiw does not pass on the key, and of an inline one the kernel makes
            // an error that ends the connection.
            sends_invalidate: attributes.device_cap_flags & constants::CAP_MEM_MGT_EXTENSIONS != 0
                && attributes.vendor_id != SIW_VENDOR_ID,
            is_rxe: attributes.vendor_id == RXE_VENDOR_ID,
        })
    }

    /// The next thing that happened, if something did.
    pub(crate) fn async_notice(&self) -> Option<AsyncNotice> {
        let mut event = AsyncEvent { element: 0, event_type: 0 };
        // SAFETY: the context is open and its descriptor does not block; the event is acknowledged at once.
        unsafe {
            if (self.functions.ibv_get_async_event)(self.context.as_ptr(), &raw mut event) != 0 {
                let unsignaled = [libc::EAGAIN, libc::EINTR].map(Some);
                let nothing = unsignaled.contains(&io::Error::last_os_error().raw_os_error());
                // The device is disassociated (EIO), for good.
                return (!nothing).then_some(AsyncNotice::Fatal);
            }
            // A queue pair's events keep it from being destroyed until they are acknowledged: it is there.
            let queue_pair = || (*(event.element as *const abi::Qp)).qp_num;
            let notice = match event.event_type {
                constants::EVENT_CQ_ERR | constants::EVENT_DEVICE_FATAL | constants::EVENT_SRQ_ERR => {
                    AsyncNotice::Fatal
                }
                constants::EVENT_QP_FATAL | constants::EVENT_QP_REQ_ERR | constants::EVENT_QP_ACCESS_ERR => {
                    AsyncNotice::QueuePair(queue_pair())
                }
                constants::EVENT_COMM_EST => AsyncNotice::Established(queue_pair()),
                _ => AsyncNotice::Other,
            };
            (self.functions.ibv_ack_async_event)(&raw mut event);
            Some(notice)
        }
    }
}

fn non_blocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Where armed completion queues report a completion.
pub(crate) struct CompletionChannel {
    device: Arc<Device>,
    channel: NonNull<CompChannel>,
}

// SAFETY: see `Device`. A queue's events are acknowledged by the thread that took them, before anyone can destroy the
// queue: both need the provider that holds them, which one thread has at a time.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, after the queues that hold it.
        unsafe { (self.device.functions.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

impl CompletionChannel {
    pub(crate) fn new(device: &Arc<Device>) -> io::Result<Arc<Self>> {
        // SAFETY: the context is open.
        let channel = unsafe { (device.functions.ibv_create_comp_channel)(device.context.as_ptr()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let it = Arc::new(Self { device: Arc::clone(device), channel });
        non_blocking(it.fd())?;
        Ok(it)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// The next event, if there is one: of which queue.
    pub(crate) fn event(&self) -> Option<CqKey> {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and does not block; a queue that spoke is alive until its events are
        // acknowledged.
        unsafe {
            let functions = self.device.functions;
            if (functions.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context) != 0 {
                return None;
            }
            (functions.ibv_ack_cq_events)(cq, 1);
        }
        Some(CqKey(cq.addr()))
    }
}

/// Names a completion queue in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqKey(usize);

/// A completion queue of the device.
pub(crate) struct CompletionQueue {
    channel: Arc<CompletionChannel>,
    cq: NonNull<Cq>,
}

// SAFETY: a queue belongs to no thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: drivers do not lock to arm it, and with some settings not to poll it; but all handles to one are in one provider, which
// one thread has at a time.
unsafe impl Sync for CompletionQueue {}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, after the queue pairs that hold it; its events were all acknowledged.
        unsafe { (self.channel.device.functions.ibv_destroy_cq)(self.cq.as_ptr()) };
    }
}

impl CompletionQueue {
    /// A queue whose completions interrupt on that vector, of those that there are.
    pub(crate) fn new(channel: &Arc<CompletionChannel>, capacity: u32, vector: u32) -> io::Result<Arc<Self>> {
        let device = &channel.device;
        let capacity = c_int::try_from(capacity).unwrap_or(c_int::MAX);
        let vector = c_int::try_from(vector % device.completion_vectors()).unwrap_or(0);
        // SAFETY: context and channel are alive.
        let cq = unsafe {
            let context = device.context.as_ptr();
            (device.functions.ibv_create_cq)(context, capacity, null_mut(), channel.channel.as_ptr(), vector)
        };
        let cq = NonNull::new(cq).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Self { channel: Arc::clone(channel), cq }))
    }

    pub(crate) fn key(&self) -> CqKey {
        CqKey(self.cq.as_ptr().addr())
    }

    /// Requests one event, at the next completion.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is alive.
        check(unsafe { (self.channel.device.ops().req_notify_cq)(self.cq.as_ptr(), 0) })
    }

    /// The next completions; how many.
    pub(crate) fn poll(&self, into: &mut [Wc]) -> usize {
        let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is alive; there is room for as many as are asked for.
        let count = unsafe { (self.channel.device.ops().poll_cq)(self.cq.as_ptr(), room, into.as_mut_ptr()) };
        usize::try_from(count).unwrap_or(0)
    }

    pub(super) fn as_ptr(&self) -> *mut Cq {
        self.cq.as_ptr()
    }
}
