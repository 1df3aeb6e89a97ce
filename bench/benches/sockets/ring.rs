//! An `io_uring` with registered sockets, the memory of one side and, optionally, provided buffers.
#![expect(unsafe_code, reason = "requests of io_uring name memory by address; see the SAFETY comments")]

use crate::direct::{CHUNKS_MAX, Chunk, vector};
use core::sync::atomic::{AtomicU16, Ordering};
use io_uring::types::{BufRingEntry, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};
use nvmf_memory::Memory;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// `IORING_ENTER_GETEVENTS`: run pending task work.
const GET_EVENTS: u32 = 1;
/// `IORING_RECVSEND_FIXED_BUF`, of a request's `ioprio`.
const FIXED_BUFFER: u16 = 1 << 2;
/// The only buffer group.
const GROUP: u16 = 0;

/// Contiguous buffers of one size, from which the kernel takes one for each receive.
#[derive(Clone, Copy)]
pub(crate) struct Provided {
    /// Offset of the first buffer in the memory.
    pub(crate) offset: usize,
    /// Bytes of each buffer.
    pub(crate) len: usize,
    /// Number of buffers, a power of two.
    pub(crate) count: u16,
}

/// A completion.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    /// The request's tag.
    pub(crate) tag: u64,
    /// Bytes transferred; `None` if a non-blocking request found none, or no provided buffer was left.
    pub(crate) bytes: Option<usize>,
    /// The provided buffer that was used.
    pub(crate) buffer: Option<u16>,
    /// Whether more completions of this request follow.
    pub(crate) more: bool,
    /// Whether the kernel has released a zero-copy send's memory.
    pub(crate) is_notice: bool,
}

pub(crate) struct Ring {
    uring: IoUring,
    memory: &'static Memory,
    provided: Option<Provided>,
    /// The shared entries of `provided`.
    entries: Memory,
    tail: u16,
    /// Vectors and headers of requests not yet submitted; the kernel copies them at submission.
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::msghdr>,
}

impl Ring {
    /// A ring for the calling thread. Requests name sockets by their index.
    pub(crate) fn new(sockets: &[TcpStream], memory: &'static Memory, provided: Option<Provided>) -> Self {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_cqsize(1024);
        let uring: IoUring = builder.build(256).expect("io_uring");
        let files: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let submitter = uring.submitter();
        submitter.register_files(&files).expect("registered files");
        // SAFETY: the memory is never freed.
        unsafe { submitter.register_buffers(&[vector(memory, (0, memory.len()))]) }
            .expect("registered memory");
        let mut ring = Self {
            uring,
            memory,
            provided,
            entries: Memory::alloc(nvmf_memory::PAGE).expect("memory"),
            tail: 0,
            vectors: Vec::with_capacity(4 * CHUNKS_MAX),
            headers: Vec::with_capacity(CHUNKS_MAX),
        };
        if let Some(Provided { count, .. }) = provided {
            assert!(
                count.is_power_of_two()
                    && usize::from(count) * size_of::<BufRingEntry>() <= nvmf_memory::PAGE
            );
            let address = ring.entries.as_ptr() as u64;
            // SAFETY: a page of zeros, page-aligned, which is freed after the ring: it is the later field.
            unsafe { ring.uring.submitter().register_buf_ring_with_flags(address, count, GROUP, 0) }
                .expect("provided buffers");
            (0..count).for_each(|buffer| ring.give_back(buffer));
        }
        ring
    }

    /// Offset of a provided buffer in the memory.
    pub(crate) fn buffer_offset(&self, buffer: u16) -> usize {
        let Provided { offset, len, .. } = self.provided.expect("provided buffers");
        offset + usize::from(buffer) * len
    }

    /// Returns a provided buffer to the kernel.
    pub(crate) fn give_back(&mut self, buffer: u16) {
        let Provided { len, count, .. } = self.provided.expect("provided buffers");
        let base = vector(self.memory, (self.buffer_offset(buffer), len)).iov_base;
        let at = usize::from(self.tail % count) * size_of::<BufRingEntry>();
        self.entries.write(at, &(base as u64).to_ne_bytes());
        self.entries.write(at + 8, &(len as u32).to_ne_bytes());
        self.entries.write(at + 12, &buffer.to_ne_bytes());
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is the last half word of the first entry, aligned, and lives as long as `entries`; this is
        // the only place that writes it.
        let tail = unsafe { AtomicU16::from_ptr(self.entries.as_ptr().add(14).cast()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Queues RECV for one chunk or READV for several. `flags` apply to RECV only.
    pub(crate) fn receive(&mut self, tag: u64, socket: u32, chunks: &[Chunk], flags: i32) {
        let entry = if let &[chunk] = chunks {
            let vector = vector(self.memory, chunk);
            opcode::Recv::new(Fixed(socket), vector.iov_base.cast(), vector.iov_len as u32)
                .flags(flags)
                .build()
        } else {
            let (vectors, count) = self.vectors_of(chunks);
            opcode::Readv::new(Fixed(socket), vectors, count as u32).build()
        };
        self.push(entry, tag);
    }

    /// Queues a multishot RECV into provided buffers.
    pub(crate) fn receive_multishot(&mut self, tag: u64, socket: u32) {
        self.push(opcode::RecvMulti::new(Fixed(socket), GROUP).build(), tag);
    }

    /// Queues a multishot POLL_ADD, which completes whenever bytes arrive.
    pub(crate) fn watch(&mut self, tag: u64, socket: u32) {
        self.push(opcode::PollAdd::new(Fixed(socket), libc::POLLIN as u32).multi(true).build(), tag);
    }

    /// Queues SEND of a whole chunk.
    pub(crate) fn send(&mut self, tag: u64, socket: u32, chunk: Chunk) {
        let vector = vector(self.memory, chunk);
        let entry = opcode::Send::new(Fixed(socket), vector.iov_base.cast(), vector.iov_len as u32);
        self.push(entry.flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).build(), tag);
    }

    /// Queues SEND_ZC of a whole chunk; with `then`, the next request is linked to it.
    pub(crate) fn send_zc(&mut self, tag: u64, socket: u32, chunk: Chunk, registered: bool, then: bool) {
        let vector = vector(self.memory, chunk);
        let entry = opcode::SendZc::new(Fixed(socket), vector.iov_base.cast(), vector.iov_len as u32);
        let entry =
            entry.flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).buf_index(registered.then_some(0)).build();
        self.push(if then { entry.flags(squeue::Flags::IO_LINK) } else { entry }, tag);
    }

    /// Queues SENDMSG of all chunks.
    pub(crate) fn send_message(&mut self, tag: u64, socket: u32, chunks: &[Chunk]) {
        let header = self.header_of(chunks);
        let entry = opcode::SendMsg::new(Fixed(socket), header);
        self.push(entry.flags((libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32).build(), tag);
    }

    /// Queues SENDMSG_ZC of all chunks.
    pub(crate) fn send_message_zc(&mut self, tag: u64, socket: u32, chunks: &[Chunk], registered: bool) {
        let header = self.header_of(chunks);
        let entry = opcode::SendMsgZc::new(Fixed(socket), header);
        let entry = entry.flags((libc::MSG_WAITALL | libc::MSG_NOSIGNAL) as u32);
        self.push(entry.ioprio(if registered { FIXED_BUFFER } else { 0 }).build(), tag);
    }

    fn vectors_of(&mut self, chunks: &[Chunk]) -> (*const libc::iovec, usize) {
        let begin = self.vectors.len();
        assert!(
            begin + chunks.len() <= self.vectors.capacity(),
            "vectors stay where they are until submitted"
        );
        self.vectors.extend(chunks.iter().map(|&chunk| vector(self.memory, chunk)));
        (self.vectors[begin..].as_ptr(), chunks.len())
    }

    fn header_of(&mut self, chunks: &[Chunk]) -> *const libc::msghdr {
        let (vectors, count) = self.vectors_of(chunks);
        assert!(self.headers.len() < self.headers.capacity(), "headers stay where they are until submitted");
        // SAFETY: an all-zero msghdr is a valid one: null pointers with zero lengths.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = vectors.cast_mut();
        header.msg_iovlen = count as _;
        self.headers.push(header);
        &raw const self.headers[self.headers.len() - 1]
    }

    fn push(&mut self, entry: squeue::Entry, tag: u64) {
        // SAFETY: requests name only bytes of `memory`, which is never freed. Vectors and headers do not move until
        // `enter`, and the kernel has copied them when that returns (IORING_FEAT_SUBMIT_STABLE).
        unsafe { self.uring.submission().push(&entry.user_data(tag)) }
            .expect("the submission queue has a free entry");
    }

    /// Submits queued requests and runs pending task work; does not wait.
    pub(crate) fn enter(&mut self) {
        let count = self.uring.submission().len() as u32;
        // SAFETY: no argument is passed by address.
        let submitted = unsafe { self.uring.submitter().enter::<libc::sigset_t>(count, 0, GET_EVENTS, None) };
        assert_eq!(submitted.expect("an entered ring"), count as usize, "all requests are taken");
        self.vectors.clear();
        self.headers.clear();
    }

    /// Enters if there are requests or task work, which is visible without a system call.
    pub(crate) fn enter_if_due(&mut self) {
        let requests = self.uring.submission();
        if requests.taskrun() || !requests.is_empty() {
            drop(requests);
            self.enter();
        }
    }

    /// Polls for a completion; enters the kernel only when needed.
    pub(crate) fn wait(&mut self) -> Event {
        loop {
            if let Some(event) = self.pop() {
                return event;
            }
            self.enter_if_due();
            core::hint::spin_loop();
        }
    }

    /// Takes a completion, if there is one.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let cqe = self.uring.completion().next()?;
        let bytes = match cqe.result() {
            n if n >= 0 => Some(n as usize),
            error if [-libc::EAGAIN, -libc::ENOBUFS].contains(&error) => None,
            error => panic!("request {}: {}", cqe.user_data(), std::io::Error::from_raw_os_error(-error)),
        };
        Some(Event {
            tag: cqe.user_data(),
            bytes,
            buffer: cqueue::buffer_select(cqe.flags()),
            more: cqueue::more(cqe.flags()),
            is_notice: cqueue::notif(cqe.flags()),
        })
    }
}
