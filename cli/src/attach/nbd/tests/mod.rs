//! The server as its clients see it, turn by turn on the test's own thread.

mod listener;
mod negotiation;
mod order;
mod pool;
mod requests;
mod sessions;
mod structured;

use super::disk::DiskInfo;
use super::listener::{Access, ListenError, Listener, OWN_MODE};
use super::server::Server;
use nvmf_backend::decorator::{Fault, FaultOptions};
use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{
    Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, Full, Geometry, RegionId, Tag,
};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(1);
/// How long a client waits before the test fails.
const TIME_MAX: Duration = Duration::from_secs(60);

const INFO: DiskInfo = DiskInfo {
    bytes: 8192,
    block_size: 512,
    preferred: 4096,
    read_only: false,
    trim: true,
    write_zeroes: true,
    block_status: true,
};

/// Commands.
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

/// Holds writes back while it is closed, as a target that is away.
struct Gate<B> {
    inner: B,
    is_open: bool,
    held: VecDeque<(Tag, DeviceId, BlockOp)>,
    /// Writes that it holds at most.
    depth: usize,
    /// Writes that were submitted: the block with which each begins.
    begun: Vec<u64>,
    /// Bytes that are registered.
    registered: usize,
    regions: Vec<(RegionId, usize)>,
}

impl<B> Gate<B> {
    fn new(inner: B) -> Self {
        let (held, begun, regions) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { inner, is_open: true, held, depth: usize::MAX, begun, registered: 0, regions }
    }
}

impl<B: Backend> Backend for Gate<B> {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let region = self.inner.register(memory)?;
        self.registered += memory.len();
        self.regions.push((region, memory.len()));
        Ok(region)
    }

    fn deregister(&mut self, region: RegionId) {
        let at = self.regions.iter().position(|(known, _)| *known == region).expect("a region");
        self.registered -= self.regions.swap_remove(at).1;
        self.inner.deregister(region);
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        if let BlockOp::Write { range, .. } = op {
            if self.held.len() == self.depth {
                return Err(Full);
            }
            self.begun.push(range.start);
            self.held.push_back((tag, device, op));
            return Ok(());
        }
        self.inner.submit(tag, device, op)
    }

    fn flush(&mut self) {
        while let Some(&(tag, device, op)) = self.held.front()
            && self.is_open
            && self.inner.submit(tag, device, op).is_ok()
        {
            self.held.pop_front();
        }
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.flush();
        self.inner.poll(completions);
    }
}

/// A server on a socket, and its disk: memory whose flushes fail.
struct Scene {
    server: Server,
    backend: Gate<Fault<Devices>>,
    disk: Disk,
    now: Duration,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// Only the owner may use it.
/// Under a lock beside it.
fn bind(path: &Path) -> Result<Listener, ListenError> {
    Listener::bind(path, Access { mode: OWN_MODE, group: None }, &lock_of(path))
}

fn lock_of(path: &Path) -> PathBuf {
    path.with_file_name("sockets.lock")
}

fn devices(disk: &Disk) -> Devices {
    let mut devices = Devices::new(DevicesOptions { depth: 64 }).unwrap();
    devices.attach(DEVICE, disk).unwrap();
    devices
}

impl Scene {
    fn new() -> Self {
        Self::with(INFO)
    }

    fn with(info: DiskInfo) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        let disk = Disk::open(&DiskSpec::Memory { size: info.bytes }, Some(info.block_size), false).unwrap();
        let faults = FaultOptions { flush_error_ppm: 1_000_000, ..FaultOptions::default() };
        let inner = Fault::new(devices(&disk), faults, 1);
        let backend = Gate::new(inner);
        let mut server = Server::new(info, DEVICE).unwrap();
        server.listen(bind(&path).unwrap()).unwrap();
        Self { server, backend, disk, now: Duration::ZERO, path, _folder: folder }
    }

    fn turn(&mut self) -> bool {
        self.server.turn(self.now, &mut self.backend)
    }

    /// Does everything that can be done now.
    fn settle(&mut self) {
        let deadline = Instant::now() + TIME_MAX;
        while self.turn() {
            assert!(Instant::now() < deadline, "there is always more to do");
        }
        // Those whose sockets are read without asking the poller make way for the others.
        self.server.arm();
        while self.turn() {
            assert!(Instant::now() < deadline, "there is always more to do");
        }
    }

    fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + TIME_MAX;
        while !condition(self) {
            self.turn();
            assert!(Instant::now() < deadline, "{what} does not come");
        }
    }

    /// Writes that have begun.
    fn begun(&self) -> usize {
        self.backend.begun.len()
    }

    fn read(&mut self, client: &mut UnixStream, into: &mut [u8]) {
        let mut at = 0;
        self.until("an answer", |_| {
            match client.read(&mut into[at..]) {
                Ok(0) if at < into.len() => panic!("the server has closed the connection"),
                Ok(len) => at += len,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            at == into.len()
        });
    }

    fn write(&mut self, client: &mut UnixStream, bytes: &[u8]) {
        let mut at = 0;
        self.until("room for a request", |_| {
            match client.write(&bytes[at..]) {
                Ok(len) => at += len,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            at == bytes.len()
        });
    }

    /// Whether the server has closed the connection.
    fn is_closed(&mut self, client: &mut UnixStream) -> bool {
        self.settle();
        match client.read(&mut [0; 4096]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// A client that was greeted.
    fn connect(&mut self) -> UnixStream {
        self.connect_with(3)
    }

    /// A client that was greeted, and answers with these flags.
    fn connect_with(&mut self, flags: u32) -> UnixStream {
        let mut client = UnixStream::connect(&self.path).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut greeting = [0; 18];
        self.read(&mut client, &mut greeting);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        self.write(&mut client, &flags.to_be_bytes());
        client
    }

    fn option(&mut self, client: &mut UnixStream, kind: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.write(client, &option_bytes(kind, data));
        let mut replies = Vec::new();
        loop {
            let mut header = [0; 20];
            self.read(client, &mut header);
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            let mut data = vec![0; word(16) as usize];
            self.read(client, &mut data);
            replies.push((word(12), data));
            if word(12) == 1 || word(12) >> 31 == 1 {
                return replies;
            }
        }
    }

    /// A client that may send requests.
    fn client(&mut self) -> UnixStream {
        let mut client = self.connect();
        self.option(&mut client, 7, &[0; 6]);
        client
    }

    /// Sends a request, and waits for its answer.
    fn request(&mut self, client: &mut UnixStream, command: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        self.write(client, &bytes_of(command, offset, len, data));
        self.reply(client)
    }

    fn reply(&mut self, client: &mut UnixStream) -> u32 {
        let mut header = [0; 16];
        self.read(client, &mut header);
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(12)), (0x6744_6698, 99));
        word(4)
    }

    /// What is on the disk.
    fn content(&self) -> Vec<u8> {
        let memory = self.beside(0, |range, into| BlockOp::Read { range, into });
        let mut bytes = vec![0; devices(&self.disk).geometry(DEVICE).unwrap().bytes() as usize];
        memory.read(0, &mut bytes);
        bytes
    }

    /// Fills the disk.
    fn fill(&self, byte: u8) {
        self.beside(byte, |range, from| BlockOp::Write { range, from, fua: false });
    }

    /// Reads or writes the whole disk beside the server, with memory that holds this byte everywhere.
    fn beside(&self, byte: u8, op: impl Fn(BlockRange, Buffer) -> BlockOp) -> Memory {
        let mut devices = devices(&self.disk);
        let geometry = devices.geometry(DEVICE).unwrap();
        let len = geometry.bytes() as usize;
        let memory = Memory::alloc(len).unwrap();
        memory.fill(0, len, byte);
        let region = devices.register(&memory).unwrap();
        let op = op(BlockRange::new(0, geometry.blocks), Buffer { region, offset: 0, len });
        devices.submit(Tag(0), DEVICE, op).unwrap();
        devices.flush();
        let (mut completions, deadline) = (Vec::with_capacity(1), Instant::now() + TIME_MAX);
        while completions.is_empty() {
            devices.poll(&mut completions);
            assert!(Instant::now() < deadline, "the disk does not answer");
        }
        assert_eq!(completions[0].result, Ok(()));
        memory
    }
}

/// The bytes of an option.
fn option_bytes(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The bytes of a request without flags.
fn bytes_of(command: u16, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    flagged(0, command, offset, len, data)
}

fn flagged(flags: u16, command: u16, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(99_u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Sends it at once: the server sees nothing before the test takes the next turn.
fn send_now(mut client: &UnixStream, bytes: &[u8]) {
    assert_eq!(client.write(bytes).unwrap(), bytes.len());
}
