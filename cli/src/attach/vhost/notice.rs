//! Telling a frontend that the disk has changed.
//!
//! The crate `vhost` takes the socket that a frontend gives for that, and has no call to say it. So the socket is duplicated
//! while the message that brings it waits to be read, and the notice is written here.

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

/// Bytes of a message's header: the request, flags, and the length of what follows.
const HEADER_LEN: usize = 12;
/// The request of a frontend's that brings a socket.
const SET_BACKEND_REQ_FD: u32 = 21;
/// The request of ours that says that the configuration has changed, and the version of the protocol.
const CONFIG_CHANGE_MSG: u32 = 2;
const VERSION: u32 = 1;

/// Waits for the next message, and leaves it to be read: the socket for notices, if it brings that.
pub(super) fn socket_that_comes(stream: &UnixStream) -> io::Result<Option<UnixStream>> {
    let (mut header, mut space) =
        ([0; HEADER_LEN], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut passed, flags) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let request = u32::from_ne_bytes(header[..4].try_into().expect("four bytes"));
    if received.bytes < 4 || request != SET_BACKEND_REQ_FD {
        return Ok(None);
    }
    let sockets = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(sockets.flatten().next().map(UnixStream::from))
}

/// Says that the configuration has changed. Who does not read what he was told before is not waited for.
pub(super) fn configuration_changed(socket: &UnixStream) -> io::Result<()> {
    let words = [CONFIG_CHANGE_MSG, VERSION, 0].map(u32::to_ne_bytes);
    match send(socket, words.as_flattened(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)? {
        HEADER_LEN => Ok(()),
        // There was room for a part, behind which nothing can be said any more.
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}
