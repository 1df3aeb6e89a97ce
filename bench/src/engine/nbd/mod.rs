//! An NBD export: several outstanding requests on one connection, with simple replies.
//!
//! | module | contents |
//! |---|---|
//! | `stream` | parsing of the URL, and the connection |
//! | `negotiation` | the handshake up to the transmission phase |

mod negotiation;
mod stream;

use super::{Engine, EngineError};
use crate::message::say;
use core::time::Duration;
use nbd_proto::{Command, Errno, Request, SIMPLE_REPLY_LEN, flag};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use stream::Stream;

/// Bytes per read from the socket.
const RECEIVE_LEN: usize = 256 << 10;

const DEVICE: DeviceId = DeviceId(0);

/// A connection to an export.
pub struct Nbd {
    stream: Stream,
    geometry: Geometry,
    flags: u16,
    regions: Vec<Memory>,
    /// By cookie.
    slots: Vec<Option<(Tag, BlockOp)>>,
    free: Vec<usize>,
    /// Requests and write data to send; the bytes before `sent` are sent.
    out: Vec<u8>,
    sent: usize,
    /// Received bytes; `taken..arrived` are not parsed yet.
    received: Vec<u8>,
    taken: usize,
    arrived: usize,
    /// The read whose data is being received: its cookie, and the bytes received so far.
    reading: Option<(usize, usize)>,
    done: VecDeque<Completion>,
    broken: bool,
}

impl Nbd {
    /// Connects to `nbd://HOST:PORT/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`.
    ///
    /// # Errors
    /// [`EngineError::Nbd`], [`EngineError::Option`].
    pub fn connect(url: &str, depth: u32) -> Result<Self, EngineError> {
        let (mut stream, export) = stream::open(url)?;
        let refused = |source| EngineError::Nbd { url: url.to_owned(), source };
        let (geometry, flags) = negotiation::negotiate(&mut stream, &export).map_err(refused)?;
        stream.set_nonblocking().map_err(refused)?;
        let depth = depth as usize + 1;
        Ok(Self {
            stream,
            geometry,
            flags,
            regions: Vec::new(),
            slots: vec![None; depth],
            free: (0..depth).rev().collect(),
            out: Vec::new(),
            sent: 0,
            received: vec![0; RECEIVE_LEN],
            taken: 0,
            arrived: 0,
            reading: None,
            done: VecDeque::with_capacity(depth),
            broken: false,
        })
    }

    /// The request for an operation; its cookie is set later.
    fn request(&self, op: &BlockOp) -> Result<Request, BlockError> {
        let (command, fua) = match *op {
            BlockOp::Read { .. } => (Command::Read, false),
            BlockOp::Write { fua: true, .. } if self.flags & flag::SEND_FUA == 0 => {
                return Err(BlockError::Unsupported);
            }
            BlockOp::Write { fua, .. } => (Command::Write, fua),
            BlockOp::Flush => (Command::Flush, false),
            BlockOp::Deallocate { .. } if self.flags & flag::SEND_TRIM != 0 => (Command::Trim, false),
            BlockOp::WriteZeroes { fua, .. } => (Command::WriteZeroes, fua),
            _ => return Err(BlockError::Unsupported),
        };
        let (mut offset, mut len) = (0, 0);
        if let Some(range) = op.range() {
            offset = self.geometry.byte_offset(range).ok_or(BlockError::OutOfRange)?;
            let bytes = self.geometry.bytes_in(range).ok_or(BlockError::OutOfRange)?;
            len = u32::try_from(bytes).map_err(|_| BlockError::OutOfRange)?;
        }
        if let Some(buffer) = op.buffer() {
            let region = self.regions.get(usize::from(buffer.region.0)).ok_or(BlockError::BadBuffer)?;
            if !region.contains(buffer.offset, buffer.len) || buffer.len != len as usize {
                return Err(BlockError::BadBuffer);
            }
        }
        let flags = if fua { nbd_proto::command_flag::FUA } else { 0 };
        Ok(Request { command, flags, cookie: 0, offset, len })
    }

    /// Sends as much as the socket accepts.
    fn send(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives and parses available bytes.
    fn receive(&mut self) -> io::Result<()> {
        self.received.copy_within(self.taken..self.arrived, 0);
        (self.arrived, self.taken) = (self.arrived - self.taken, 0);
        match self.stream.read(&mut self.received[self.arrived..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.arrived += count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        while self.parse()? {}
        Ok(())
    }

    /// Parses a reply's header or takes some of its data; `false` if more bytes are needed.
    fn parse(&mut self) -> io::Result<bool> {
        if self.reading.is_some() {
            return Ok(self.take_data());
        }
        let Some(header) = self.received[self.taken..self.arrived].first_chunk::<SIMPLE_REPLY_LEN>() else {
            return Ok(false);
        };
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let (errno, cookie) = nbd_proto::parse_simple_reply(header)
            .ok_or_else(|| invalid("the server sent something that is not a reply"))?;
        self.taken += SIMPLE_REPLY_LEN;
        let cookie = usize::try_from(cookie).ok().filter(|&c| self.slots.get(c).is_some_and(Option::is_some));
        let cookie = cookie.ok_or_else(|| invalid("the server replied to an unknown request"))?;
        match self.slots[cookie] {
            Some((_, BlockOp::Read { .. })) if errno == Errno::OK => self.reading = Some((cookie, 0)),
            _ => self.end(cookie, block_result(errno)),
        }
        Ok(true)
    }

    /// Takes received data of the current read; `true` if the read is complete.
    fn take_data(&mut self) -> bool {
        let Some((cookie, at)) = self.reading else { return false };
        let Some((_, BlockOp::Read { into, .. })) = self.slots[cookie] else { return false };
        let part = (into.len - at).min(self.arrived - self.taken);
        self.regions[usize::from(into.region.0)]
            .write(into.offset + at, &self.received[self.taken..self.taken + part]);
        self.taken += part;
        if at + part < into.len {
            self.reading = Some((cookie, at + part));
            return false;
        }
        self.reading = None;
        self.end(cookie, Ok(()));
        true
    }

    fn end(&mut self, cookie: usize, result: Result<(), BlockError>) {
        if let Some((tag, _)) = self.slots[cookie].take() {
            self.free.push(cookie);
            self.done.push_back(Completion { tag, result });
        }
    }

    /// Marks the connection as lost and fails all outstanding requests.
    fn lose(&mut self, error: &io::Error) {
        if !core::mem::replace(&mut self.broken, true) {
            say(format_args!("the NBD connection is lost: {error}"));
        }
        for cookie in 0..self.slots.len() {
            self.end(cookie, Err(BlockError::Gone));
        }
        (self.reading, self.sent) = (None, 0);
        self.out.clear();
    }
}

impl Backend for Nbd {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let id = u16::try_from(self.regions.len()).map_err(|_| BlockError::Unsupported)?;
        self.regions.push(memory.clone());
        Ok(RegionId(id))
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        (device == DEVICE).then_some(self.geometry)
    }

    fn submit(&mut self, tag: Tag, _: DeviceId, op: BlockOp) -> Result<(), Full> {
        let request = if self.broken { Err(BlockError::Gone) } else { self.request(&op) };
        let request = match request {
            Ok(request) => request,
            Err(error) => {
                self.done.push_back(Completion { tag, result: Err(error) });
                return Ok(());
            }
        };
        let cookie = self.free.pop().ok_or(Full)?;
        self.slots[cookie] = Some((tag, op));
        self.out.extend(Request { cookie: cookie as u64, ..request }.emit());
        if let BlockOp::Write { from, .. } = op {
            let at = self.out.len();
            self.out.resize(at + from.len, 0);
            self.regions[usize::from(from.region.0)].read(from.offset, &mut self.out[at..]);
        }
        Ok(())
    }

    fn flush(&mut self) {
        if let Err(error) = self.send() {
            self.lose(&error);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if !self.broken
            && let Err(error) = self.send().and_then(|()| self.receive())
        {
            self.lose(&error);
        }
        while completions.len() < completions.capacity()
            && let Some(completion) = self.done.pop_front()
        {
            completions.push(completion);
        }
    }
}

impl Engine for Nbd {
    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn wait(&mut self, most: Duration) {
        if self.broken || !self.done.is_empty() {
            return;
        }
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, self.sent < self.out.len());
        let timeout = PollTimeout::try_from(most + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        // The result does not matter: the next poll finds data or the error.
        let _ = poll(&mut [PollFd::new(self.stream.as_fd(), flags)], timeout);
    }

    fn close(&mut self) {
        let disconnect = Request { command: Command::Disconnect, flags: 0, cookie: 0, offset: 0, len: 0 };
        self.out.extend(disconnect.emit());
        // If the server is gone, there is nothing to disconnect.
        let _ = self.send();
    }
}

/// Converts an error number of the NBD protocol.
fn block_result(errno: Errno) -> Result<(), BlockError> {
    match errno {
        Errno::OK => Ok(()),
        Errno::EPERM => Err(BlockError::ReadOnly),
        Errno::ENOSPC => Err(BlockError::NoSpace),
        Errno::ENOTSUP => Err(BlockError::Unsupported),
        Errno::ESHUTDOWN => Err(BlockError::Gone),
        Errno::EIO => Err(BlockError::Medium),
        Errno(other) => Err(BlockError::Os(i32::try_from(other).unwrap_or(i32::MAX))),
    }
}
