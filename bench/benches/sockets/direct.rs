//! System calls on registered memory: readv and sendmsg as iWARP uses them, and `MSG_ZEROCOPY`.
#![expect(
    unsafe_code,
    reason = "readv and sendmsg on memory that no reference may name; see the SAFETY comments"
)]

use core::mem::MaybeUninit;
use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nvmf_memory::Memory;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Offset and length in a side's memory.
pub(crate) type Chunk = (usize, usize);

/// Most chunks per system call, as in iWARP.
pub(crate) const CHUNKS_MAX: usize = 128;

/// The `iovec` of a chunk.
pub(crate) fn vector(memory: &Memory, (offset, len): Chunk) -> libc::iovec {
    assert!(memory.contains(offset, len), "the chunk is within the memory");
    // SAFETY: the offset lies within the allocation, or one past its end.
    let base = unsafe { memory.as_ptr().add(offset) };
    libc::iovec { iov_base: base.cast(), iov_len: len }
}

/// Receives into the chunks; `None` if there are no bytes. `now` is 0 on a non-blocking socket, otherwise `RWF_NOWAIT`.
pub(crate) fn receive(socket: &TcpStream, memory: &Memory, chunks: &[Chunk], now: i32) -> Option<usize> {
    let mut vectors = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; 2];
    for (to, &chunk) in vectors.iter_mut().zip(chunks) {
        *to = vector(memory, chunk);
    }
    let (fd, count) = (socket.as_raw_fd(), chunks.len().min(vectors.len()) as i32);
    // SAFETY: each vector lies within `memory`, which outlives the call; the kernel keeps none beyond it.
    taken(unsafe {
        match now {
            0 => libc::readv(fd, vectors.as_ptr(), count),
            _ => libc::preadv2(fd, vectors.as_ptr(), count, -1, now),
        }
    })
}

/// Receives into one chunk with recv; `None` if there are no bytes.
pub(crate) fn receive_one(socket: &TcpStream, memory: &Memory, chunk: Chunk) -> Option<usize> {
    let to = vector(memory, chunk);
    // SAFETY: the vector lies within `memory`, which outlives the call; the kernel does not keep it beyond.
    taken(unsafe { libc::recv(socket.as_raw_fd(), to.iov_base, to.iov_len, 0) })
}

/// Sends as much of the chunks as the socket accepts, without the first `skip` bytes; `None` if it accepts nothing.
pub(crate) fn send(
    socket: &TcpStream,
    memory: &Memory,
    chunks: &[Chunk],
    mut skip: usize,
    flags: i32,
) -> Option<usize> {
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; CHUNKS_MAX];
    let mut count = 0;
    for &(offset, len) in chunks {
        let skipped = skip.min(len);
        skip -= skipped;
        if len > skipped {
            vectors[count].write(vector(memory, (offset + skipped, len - skipped)));
            count += 1;
        }
    }
    // SAFETY: an all-zero msghdr is a valid one: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr().cast();
    message.msg_iovlen = count as _;
    // SAFETY: the first `count` vectors were written above and lie within `memory`. With MSG_ZEROCOPY the kernel reads
    // them later: each memory of this benchmark lives as long as the process.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | flags) };
    taken(n)
}

fn taken(n: libc::ssize_t) -> Option<usize> {
    match usize::try_from(n) {
        Ok(0) => panic!("the other side ended"),
        Ok(n) => Some(n),
        Err(_) => {
            let error = io::Error::last_os_error();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            None
        }
    }
}

/// Enables [`libc::MSG_ZEROCOPY`] on a socket.
pub(crate) fn allow_zerocopy(socket: &TcpStream) {
    let on: libc::c_int = 1;
    // SAFETY: the option is an int, which the kernel reads during the call.
    let failed = unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            value,
            size_of_val(&on) as _,
        )
    };
    assert_eq!(failed, 0, "SO_ZEROCOPY: {}", io::Error::last_os_error());
}

/// The number of zero-copy sends completed since the last call.
pub(crate) fn zerocopy_done(socket: &TcpStream) -> u32 {
    let mut space = cmsg_space!([u8; 64]);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let mut none: [IoSliceMut<'_>; 0] = [];
    let Ok(message) = recvmsg::<()>(socket.as_raw_fd(), &mut none, Some(&mut space), flags) else { return 0 };
    let notices = message.cmsgs().expect("the buffer fits the control messages");
    notices
        .map(|notice| match notice {
            ControlMessageOwned::Ipv4RecvErr(range, _) => range.ee_data - range.ee_info + 1,
            _ => 0,
        })
        .sum()
}
