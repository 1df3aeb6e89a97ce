//! The kernel's nbd client: `/dev/nbdN` for a socket that this process serves. Generic netlink, as linux/nbd-netlink.h
//! has it.

use super::disk::DiskInfo;
use super::negotiation;
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Netlink message types: an error or acknowledgement, and the generic netlink controller.
const ERROR: u16 = 2;
const FAMILIES: u16 = 0x10;
/// Netlink flags: a request with acknowledgement.
const REQUEST_ACK: u16 = 1 | 4;
/// An attribute that holds attributes.
const NESTED: u16 = 1 << 15;
const ANSWER_LEN_MAX: usize = 16 << 10;
/// Longer than the kernel takes to make a device.
const ANSWER_SECONDS_MAX: i64 = 30;

/// A command of the generic netlink controller, and its attributes.
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// Commands of the family "nbd", and their attributes.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;

/// The kernel's blocks are no longer than a page.
const BLOCK_SIZE_MAX: u32 = 4096;

/// A connection to the kernel's nbd client.
pub(crate) struct Kernel {
    socket: OwnedFd,
    family: u16,
}

impl Kernel {
    /// Connects to the client.
    pub(crate) fn open() -> Result<Self> {
        let protocol = SockProtocol::NetlinkGeneric;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
            .context("cannot open a netlink socket")?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, 0)).context("cannot bind a netlink socket")?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(ANSWER_SECONDS_MAX, 0))?;
        let mut kernel = Self { socket, family: FAMILIES };
        let mut message = Message::new(FAMILIES, GET_FAMILY);
        message.attribute(FAMILY_NAME, b"nbd\0");
        let family = kernel.ask(message, FAMILY_ID)?;
        let family = family.as_deref().and_then(|id| id.first_chunk::<2>());
        kernel.family = u16::from_ne_bytes(*family.context("the kernel did not name its nbd client")?);
        Ok(kernel)
    }

    /// Makes a disk of what is served on the other end of `socket`: its node. The kernel keeps `owner` on record
    /// for it.
    pub(crate) fn connect(
        &mut self,
        disk: &DiskInfo,
        socket: BorrowedFd<'_>,
        owner: &str,
        patience: Duration,
    ) -> Result<PathBuf> {
        ensure!(
            disk.block_size <= BLOCK_SIZE_MAX,
            "the namespace has blocks of {} bytes, and the kernel's block devices at most {BLOCK_SIZE_MAX}: use --as socket",
            disk.block_size
        );
        let message = connect_message(self.family, disk, socket, owner, patience);
        let index = self.ask(message, INDEX).context("cannot make an nbd device")?;
        let index = index.as_deref().and_then(|index| index.first_chunk::<4>());
        let index = u32::from_ne_bytes(*index.context("the kernel did not name the nbd device")?);
        Ok(format!("/dev/nbd{index}").into())
    }

    /// Gives a disk whose server was killed another one, on the other end of `socket`.
    pub(crate) fn reconnect(&mut self, node: &Path, socket: BorrowedFd<'_>, owner: &str) -> Result<()> {
        let mut message = self.reconfigure(node, owner)?;
        add_socket(&mut message, socket);
        self.ask(message, INDEX).with_context(|| format!("cannot take over {}", node.display())).map(drop)
    }

    /// Tells the kernel a disk's new size.
    pub(crate) fn resize(&mut self, node: &Path, bytes: u64, owner: &str) -> Result<()> {
        let mut message = self.reconfigure(node, owner)?;
        message.attribute(SIZE_BYTES, &bytes.to_ne_bytes());
        self.ask(message, INDEX).with_context(|| format!("cannot resize {}", node.display())).map(drop)
    }

    fn reconfigure(&self, node: &Path, owner: &str) -> Result<Message> {
        let index = number(node).with_context(|| format!("{} is no nbd device", node.display()))?;
        let mut message = Message::new(self.family, RECONFIGURE);
        message.attribute(INDEX, &index.to_ne_bytes());
        message.attribute(BACKEND, format!("{owner}\0").as_bytes());
        Ok(message)
    }

    /// Disconnects a disk.
    pub(crate) fn disconnect(&mut self, node: &Path) -> Result<()> {
        let index = number(node).with_context(|| format!("{} is no nbd device", node.display()))?;
        let mut message = Message::new(self.family, DISCONNECT);
        message.attribute(INDEX, &index.to_ne_bytes());
        self.ask(message, INDEX).with_context(|| format!("cannot disconnect {}", node.display()))?;
        Ok(())
    }

    /// Sends a message, and waits for its acknowledgement; returns the reply's attribute of the wanted kind.
    fn ask(&mut self, message: Message, wanted: u16) -> Result<Option<Vec<u8>>> {
        let bytes = message.finish();
        sendto(self.socket.as_raw_fd(), &bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut found = None;
        let mut buffer = vec![0; ANSWER_LEN_MAX];
        loop {
            let len = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..len];
            while let Some((kind, body, behind)) = split_message(rest) {
                rest = behind;
                if kind != ERROR {
                    found = body.get(4..).and_then(|attributes| find(attributes, wanted)).map(<[u8]>::to_vec);
                    continue;
                }
                let errno = body.first_chunk::<4>().map_or(0, |errno| i32::from_ne_bytes(*errno));
                if errno != 0 {
                    bail!("{}", Errno::from_raw(-errno));
                }
                return Ok(found);
            }
        }
    }
}

/// The message that makes a disk.
fn connect_message(
    family: u16,
    disk: &DiskInfo,
    socket: BorrowedFd<'_>,
    owner: &str,
    patience: Duration,
) -> Message {
    let mut message = Message::new(family, CONNECT);
    message.attribute(SIZE_BYTES, &disk.bytes.to_ne_bytes());
    message.attribute(BLOCK_SIZE_BYTES, &u64::from(disk.block_size).to_ne_bytes());
    message.attribute(SERVER_FLAGS, &u64::from(negotiation::flags(disk)).to_ne_bytes());
    message.attribute(BACKEND, format!("{owner}\0").as_bytes());
    // Zero: a request waits as long as the target is away, which is the connection's affair. The kernel keeps to it as
    // long as there is one socket; with several, it takes a slow one for dead after 30 seconds.
    message.attribute(TIMEOUT, &0_u64.to_ne_bytes());
    // When this process dies so does the socket, and requests wait so long for another server's.
    message.attribute(DEAD_CONN_TIMEOUT, &patience.as_secs().to_ne_bytes());
    add_socket(&mut message, socket);
    message
}

fn add_socket(message: &mut Message, socket: BorrowedFd<'_>) {
    message.nested(SOCKETS, |list| {
        list.nested(SOCKET_ITEM, |item| {
            item.attribute(SOCKET_FD, &socket.as_raw_fd().to_ne_bytes());
        });
    });
}

/// Whether the kernel has this owner on record for a device.
pub(crate) fn is_owned(node: &Path, owner: &str) -> bool {
    let Some(name) = node.file_name().and_then(|name| name.to_str()) else { return false };
    let said = std::fs::read_to_string(format!("/sys/block/{name}/backend"));
    said.is_ok_and(|said| said.trim_end() == owner)
}

/// Disconnects the device of a server that was killed: the one for which the kernel has it on record as the owner.
pub(crate) fn clear_away(owner: &str) {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let nodes = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    if let Some(node) = nodes.into_iter().find(|node| number(node).is_some() && is_owned(node, owner)) {
        let _ = Kernel::open().and_then(|mut kernel| kernel.disconnect(&node));
    }
}

/// The number of the device at this node, if it is one of nbd's.
pub(crate) fn number(node: &Path) -> Option<u32> {
    node.to_str()?.strip_prefix("/dev/nbd")?.parse().ok()
}

/// A generic netlink message that is being written. Integers are the machine's own.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(family.to_ne_bytes());
        bytes.extend(REQUEST_ACK.to_ne_bytes());
        // Sequence number and sender's port: the kernel fills them in.
        bytes.extend([0; 8]);
        bytes.extend([command, 1, 0, 0]);
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(4 + value.len()).expect("attributes are short");
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self(Vec::new());
        fill(&mut inner);
        self.attribute(kind | NESTED, &inner.0);
    }

    fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).expect("messages are short");
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

/// The type and the body of the first message, and the bytes after it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_ne_bytes(*len)).ok()?;
    let kind = u16::from_ne_bytes(*rest.first_chunk::<2>()?);
    let body = bytes.get(16..len)?;
    Some((kind, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// The value of the first attribute of this kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (len, rest) = attributes.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_ne_bytes(*len));
        let kind = u16::from_ne_bytes(*rest.first_chunk::<2>()?);
        let value = attributes.get(4..len)?;
        if kind & !NESTED == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn disk_has_one_socket_and_no_request_time_out() {
        let info = DiskInfo {
            bytes: 1 << 20,
            block_size: 4096,
            preferred: 4096,
            read_only: false,
            trim: true,
            write_zeroes: true,
            block_status: false,
        };
        let (socket, _its) = std::os::unix::net::UnixStream::pair().unwrap();
        let bytes =
            connect_message(7, &info, std::os::fd::AsFd::as_fd(&socket), "nvmf 1", Duration::from_secs(600))
                .finish();
        let (_, body, _) = split_message(&bytes).unwrap();
        assert_eq!(find(&body[4..], TIMEOUT), Some(&0_u64.to_ne_bytes()[..]));
        assert_eq!(find(&body[4..], DEAD_CONN_TIMEOUT), Some(&600_u64.to_ne_bytes()[..]));
        let list = find(&body[4..], SOCKETS).unwrap();
        // One item: its header, and in it the header and value of the descriptor.
        assert_eq!(list.len(), 4 + 4 + 4);
        assert_eq!(list[8..], socket.as_raw_fd().to_ne_bytes());
    }

    #[test]
    fn attributes_are_found() {
        let mut message = Message::new(7, CONNECT);
        message.attribute(BACKEND, b"abc\0\0");
        message.nested(SOCKETS, |list| list.attribute(SOCKET_FD, &5_i32.to_ne_bytes()));
        let bytes = message.finish();
        let (kind, body, behind) = split_message(&bytes).unwrap();
        assert_eq!((kind, &body[..2], behind.len()), (7, &[CONNECT, 1][..], 0));
        let attributes = &body[4..];
        assert_eq!(find(attributes, BACKEND), Some(&b"abc\0\0"[..]));
        let list = find(attributes, SOCKETS).unwrap();
        assert_eq!(find(list, SOCKET_FD), Some(&5_i32.to_ne_bytes()[..]));
        assert_eq!(find(attributes, INDEX), None);
    }

    #[test]
    fn node_has_a_number() {
        assert_eq!(number(Path::new("/dev/nbd12")), Some(12));
        assert_eq!(number(Path::new("/dev/nbd0p1")), None);
        assert_eq!(number(Path::new("/dev/ublkb0")), None);
    }

    proptest! {
        #[test]
        fn answers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = (split_message(&bytes), find(&bytes, 1));
        }
    }
}
