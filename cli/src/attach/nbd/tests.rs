//! The server as its clients see it.

use super::disk::{Disk, DiskInfo};
use super::negotiation;
use super::server::{Server, ServerError};
use crate::attach::SocketOptions;
use nbd_proto::{self as wire, flag};
use nvmf_block::BlockError;
use proptest::prelude::*;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;

/// Memory as a disk.
#[derive(Clone)]
struct Ram {
    bytes: Arc<Mutex<Vec<u8>>>,
    info: DiskInfo,
    /// Writes wait for it.
    gate: Arc<Semaphore>,
    /// Counts the writes that have begun.
    begun: watch::Sender<usize>,
}

const INFO: DiskInfo = DiskInfo {
    bytes: 8192,
    block_size: 512,
    preferred: 4096,
    read_only: false,
    trim: true,
    write_zeroes: true,
};

impl Ram {
    fn new(info: DiskInfo) -> Self {
        Self {
            bytes: Arc::new(Mutex::new(vec![0; info.bytes as usize])),
            info,
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            begun: watch::channel(0).0,
        }
    }
}

impl Disk for Ram {
    fn info(&self) -> DiskInfo {
        self.info
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        assert!(offset.is_multiple_of(self.info.block_size.into()));
        assert!(into.len().is_multiple_of(self.info.block_size as usize));
        into.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    async fn write(&self, offset: u64, data: &[u8], _: bool) -> Result<(), BlockError> {
        assert!(offset.is_multiple_of(self.info.block_size.into()));
        assert!(data.len().is_multiple_of(self.info.block_size as usize));
        self.begun.send_modify(|begun| *begun += 1);
        let _open = self.gate.acquire().await.unwrap();
        self.bytes.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Err(BlockError::Medium)
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        assert!((offset | len).is_multiple_of(self.info.block_size.into()));
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, _: bool, _: bool) -> Result<(), BlockError> {
        assert!((offset | len).is_multiple_of(self.info.block_size.into()));
        self.bytes.lock().unwrap()[offset as usize..][..len as usize].fill(0);
        Ok(())
    }
}

/// Only the owner may use it.
fn socket_options() -> SocketOptions {
    SocketOptions { mode: 0o600, ..SocketOptions::default() }
}

/// Serves 8 KiB of memory while `client` runs.
fn with_server<F: Future<Output = ()>>(client: impl FnOnce(std::path::PathBuf) -> F) {
    with_disk(Ram::new(INFO), client);
}

fn with_disk<F: Future<Output = ()>>(disk: Ram, client: impl FnOnce(std::path::PathBuf) -> F) {
    block_on(async {
        let Serving { folder: _folder, path, stop, task } = serve(disk, Duration::from_secs(5)).await;
        client(path.clone()).await;
        drop(stop);
        task.await.unwrap();
        assert!(!path.exists(), "the socket is removed");
    });
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// A running server; it ends when `stop` is dropped.
struct Serving {
    folder: tempfile::TempDir,
    path: std::path::PathBuf,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn serve(disk: Ram, finish_time_max: Duration) -> Serving {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    let server = Server::bind(&path, &socket_options()).await.unwrap();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(server.serve(disk, async { drop(stopped.await) }, finish_time_max));
    Serving { folder, path, stop, task }
}

async fn connect(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&[0, 0, 0, 3]).await.unwrap();
    stream
}

async fn option(stream: &mut UnixStream, kind: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
    stream.write_all(b"IHAVEOPT").await.unwrap();
    stream.write_u32(kind).await.unwrap();
    stream.write_u32(data.len() as u32).await.unwrap();
    stream.write_all(data).await.unwrap();
    let mut replies = Vec::new();
    loop {
        let mut header = [0; 12];
        stream.read_exact(&mut header).await.unwrap();
        let reply = stream.read_u32().await.unwrap();
        let mut data = vec![0; stream.read_u32().await.unwrap() as usize];
        stream.read_exact(&mut data).await.unwrap();
        replies.push((reply, data));
        if reply == 1 || reply >> 31 == 1 {
            return replies;
        }
    }
}

async fn go(path: &Path) -> UnixStream {
    let mut stream = connect(path).await;
    let replies = option(&mut stream, 7, &[0; 6]).await;
    assert_eq!(replies[0].1[2..10], 8192_u64.to_be_bytes());
    assert_eq!(replies[1].1[..6], [0, 3, 0, 0, 2, 0], "the least block size is 512");
    stream
}

async fn request(stream: &mut UnixStream, command: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
    send(stream, 0, command, offset, len, data).await;
    reply(stream).await
}

async fn send(stream: &mut UnixStream, flags: u16, command: u16, offset: u64, len: u32, data: &[u8]) {
    stream.write_u32(0x2560_9513).await.unwrap();
    stream.write_u16(flags).await.unwrap();
    stream.write_u16(command).await.unwrap();
    stream.write_u64(99).await.unwrap();
    stream.write_u64(offset).await.unwrap();
    stream.write_u32(len).await.unwrap();
    stream.write_all(data).await.unwrap();
}

async fn reply(stream: &mut UnixStream) -> u32 {
    assert_eq!(stream.read_u32().await.unwrap(), 0x6744_6698);
    let errno = stream.read_u32().await.unwrap();
    assert_eq!(stream.read_u64().await.unwrap(), 99);
    errno
}

#[test]
fn write_is_read_by_another_client() {
    with_server(|path| async move {
        let mut writer = go(&path).await;
        assert_eq!(request(&mut writer, 1, 512, 1024, &[7; 1024]).await, 0);
        assert_eq!(request(&mut writer, 6, 512, 512, &[]).await, 0);
        let mut reader = go(&path).await;
        assert_eq!(request(&mut reader, 0, 0, 2048, &[]).await, 0);
        let mut data = [1; 2048];
        reader.read_exact(&mut data).await.unwrap();
        assert!(data[..1024].iter().all(|&b| b == 0) && data[1024..1536].iter().all(|&b| b == 7));
    });
}

#[test]
fn invalid_request_is_refused_and_client_stays() {
    with_server(|path| async move {
        let mut stream = go(&path).await;
        for (command, offset, len, errno) in [
            (0, 8192, 512, 22),
            (0, 8000, 200, 22),
            (0, u64::MAX, 512, 22),
            (6, 8192, 512, 28),
            (9, 0, 0, 22),
            (3, 0, 0, 5),
        ] {
            assert_eq!(
                request(&mut stream, command, offset, len, &[]).await,
                errno,
                "command {command} at {offset}+{len}"
            );
        }
        assert_eq!(request(&mut stream, 1, 8192, 512, &[1; 512]).await, 28);
        assert_eq!(request(&mut stream, 4, 0, 512, &[]).await, 0);
    });
}

#[test]
fn unknown_flags_are_refused() {
    with_server(|path| async move {
        let mut stream = go(&path).await;
        // FAST_ZERO, a bit that nobody has defined, and NO_HOLE where it means nothing.
        for (flags, command, errno) in [(1 << 4, 6, 22), (1 << 15, 0, 22), (2, 0, 22), (3, 6, 0), (1, 4, 5)] {
            send(&mut stream, flags, command, 0, 512, &[]).await;
            assert_eq!(reply(&mut stream).await, errno, "flags {flags:#x} of command {command}");
        }
    });
}

#[test]
fn flags_promise_what_the_disk_has() {
    let all = negotiation::flags(&INFO);
    assert_eq!(all & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES), flag::SEND_TRIM | flag::SEND_WRITE_ZEROES);
    let none = negotiation::flags(&DiskInfo { trim: false, write_zeroes: false, ..INFO });
    assert_eq!(none, all & !(flag::SEND_TRIM | flag::SEND_WRITE_ZEROES));
    with_disk(Ram::new(DiskInfo { trim: false, write_zeroes: false, ..INFO }), |path| async move {
        let mut stream = go(&path).await;
        assert_eq!(request(&mut stream, 4, 0, 512, &[]).await, 95);
        assert_eq!(request(&mut stream, 6, 0, 512, &[]).await, 95);
    });
}

#[test]
fn parts_of_blocks_are_read_and_written() {
    let disk = Ram::new(DiskInfo { block_size: 4096, bytes: 5 * 4096, ..INFO });
    let bytes = Arc::clone(&disk.bytes);
    with_disk(disk, |path| async move {
        // As clients do that do not ask for the block size: two of them, in one block.
        let (mut one, mut two) = (connect(&path).await, connect(&path).await);
        for stream in [&mut one, &mut two] {
            option(stream, 7, &[0; 6]).await;
        }
        bytes.lock().unwrap().fill(9);
        let (mut expected, mut read) = (vec![9; 5 * 4096], vec![0; 1024]);
        expected[512..1024].fill(1);
        expected[1024..1536].fill(2);
        send(&mut one, 0, 1, 512, 512, &[1; 512]).await;
        send(&mut two, 0, 1, 1024, 512, &[2; 512]).await;
        assert_eq!((reply(&mut one).await, reply(&mut two).await), (0, 0));
        assert!(*bytes.lock().unwrap() == expected, "each wrote its part");
        assert_eq!(request(&mut one, 0, 768, 512, &[]).await, 0);
        one.read_exact(&mut read[..512]).await.unwrap();
        assert_eq!(read[..512], expected[768..1280]);
        // Across the end of a block, and zeroes with whole blocks between two parts.
        expected[4000..5024].fill(3);
        assert_eq!(request(&mut one, 1, 4000, 1024, &[3; 1024]).await, 0);
        expected[6000..16500].fill(0);
        assert_eq!(request(&mut one, 6, 6000, 10500, &[]).await, 0);
        expected[100..200].fill(0);
        assert_eq!(request(&mut one, 6, 100, 100, &[]).await, 0);
        assert!(*bytes.lock().unwrap() == expected);
        assert_eq!(
            request(&mut one, 4, 100, 8192, &[]).await,
            0,
            "whole blocks are trimmed, their parts stay"
        );
    });
}

#[test]
fn writes_of_gone_client_overtake_nothing() {
    let disk = Ram::new(INFO);
    let (bytes, gate, mut begun) = (Arc::clone(&disk.bytes), Arc::clone(&disk.gate), disk.begun.subscribe());
    with_disk(disk, |path| async move {
        // The target is away: a write has begun and waits.
        gate.forget_permits(Semaphore::MAX_PERMITS);
        let mut first = go(&path).await;
        send(&mut first, 0, 1, 0, 512, &[1; 512]).await;
        begun.wait_for(|begun| *begun == 1).await.unwrap();
        drop(first);
        // Whoever comes next writes the same block. It waits for what was begun before.
        let mut second = go(&path).await;
        send(&mut second, 0, 1, 0, 512, &[2; 512]).await;
        let early =
            tokio::time::timeout(Duration::from_millis(50), begun.wait_for(|begun| *begun == 2)).await;
        gate.add_permits(1000);
        assert_eq!(reply(&mut second).await, 0);
        assert!(early.is_err(), "it began before the first had ended");
        assert!(bytes.lock().unwrap()[..512].iter().all(|&byte| byte == 2), "the last write stands");
    });
}

#[test]
fn requests_of_gone_client_are_dropped_unless_begun() {
    let disk = Ram::new(INFO);
    let (bytes, gate, mut begun) = (Arc::clone(&disk.bytes), Arc::clone(&disk.gate), disk.begun.subscribe());
    with_disk(disk, |path| async move {
        gate.forget_permits(Semaphore::MAX_PERMITS);
        let mut first = go(&path).await;
        // A part of a block has the disk for itself, so that the write behind it does not begin.
        send(&mut first, 0, 1, 100, 100, &[1; 100]).await;
        begun.wait_for(|begun| *begun == 1).await.unwrap();
        send(&mut first, 0, 1, 4096, 512, &[1; 512]).await;
        drop(first);
        let mut second = go(&path).await;
        send(&mut second, 0, 0, 4096, 512, &[]).await;
        // Its own first request is a sign that the server has read all of the other's.
        gate.add_permits(1000);
        assert_eq!(reply(&mut second).await, 0);
        let mut read = [1; 512];
        second.read_exact(&mut read).await.unwrap();
        assert_eq!(*begun.borrow(), 1, "the second write was begun");
        assert!(bytes.lock().unwrap()[4096..].iter().all(|&byte| byte == 0));
    });
}

/// The bytes of a request without flags.
fn bytes_of(command: u16, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0; 2]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(99_u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Sends it without giving way: the server sees nothing before all that the test does at once is done.
fn send_now(stream: &UnixStream, bytes: &[u8]) {
    assert_eq!(stream.try_write(bytes).unwrap(), bytes.len());
}

/// Whether another write begins before long.
async fn begins(begun: &mut watch::Receiver<usize>, count: usize) -> bool {
    tokio::time::timeout(Duration::from_millis(50), begun.wait_for(|begun| *begun == count)).await.is_ok()
}

#[test]
fn requests_beyond_the_budget_of_gone_client_are_dropped() {
    // As many requests as one connection may have begun.
    const BEGUN_MAX: usize = 16384;
    let disk = Ram::new(INFO);
    let (bytes, gate, mut begun) = (Arc::clone(&disk.bytes), Arc::clone(&disk.gate), disk.begun.subscribe());
    let count = disk.begun.subscribe();
    with_disk(disk, |path| async move {
        gate.forget_permits(Semaphore::MAX_PERMITS);
        let mut first = go(&path).await;
        let one = bytes_of(1, 512, 512, &[1; 512]);
        for _ in 0..BEGUN_MAX / 64 {
            first.write_all(&one.repeat(64)).await.unwrap();
        }
        begun.wait_for(|begun| *begun == BEGUN_MAX).await.unwrap();
        send(&mut first, 0, 1, 0, 512, &[1; 512]).await;
        send(&mut first, 0, 1, 0, 512, &[1; 512]).await;
        drop(first);
        let mut second = go(&path).await;
        send(&mut second, 0, 1, 0, 512, &[2; 512]).await;
        let early = begins(&mut begun, BEGUN_MAX + 1).await;
        gate.add_permits(1000);
        assert_eq!(reply(&mut second).await, 0);
        assert!(!early, "it began before the first client's had ended");
    });
    assert_eq!(*count.borrow(), BEGUN_MAX + 1, "what was left in the socket was begun");
    assert!(bytes.lock().unwrap()[..512].iter().all(|&byte| byte == 2), "the last write stands");
}

#[test]
fn writes_before_a_disconnect_overtake_nothing() {
    let disk = Ram::new(INFO);
    let (bytes, gate, mut begun) = (Arc::clone(&disk.bytes), Arc::clone(&disk.gate), disk.begun.subscribe());
    with_disk(disk, |path| async move {
        gate.forget_permits(Semaphore::MAX_PERMITS);
        let mut first = go(&path).await;
        send(&mut first, 0, 1, 0, 512, &[1; 512]).await;
        begun.wait_for(|begun| *begun == 1).await.unwrap();
        send(&mut first, 0, 2, 0, 0, &[]).await;
        let mut second = go(&path).await;
        send(&mut second, 0, 1, 0, 512, &[2; 512]).await;
        let early = begins(&mut begun, 2).await;
        gate.add_permits(1000);
        assert_eq!(
            (reply(&mut first).await, reply(&mut second).await),
            (0, 0),
            "what is outstanding is answered"
        );
        assert!(!early, "it began before the first had ended");
        assert!(bytes.lock().unwrap()[..512].iter().all(|&byte| byte == 2), "the last write stands");
    });
}

#[test]
fn requests_before_a_disconnect_are_carried_out_before_those_of_others() {
    const COUNT: usize = 200;
    let disk = Ram::new(INFO);
    let (bytes, count) = (Arc::clone(&disk.bytes), disk.begun.subscribe());
    with_disk(disk, |path| async move {
        let (first, mut second) = (go(&path).await, go(&path).await);
        // More than the server reads between two pauses of its own; and nobody waits for the answers.
        send_now(&first, &bytes_of(1, 0, 512, &[1; 512]).repeat(COUNT));
        send_now(&first, &bytes_of(2, 0, 0, &[]));
        drop(first);
        send_now(&second, &bytes_of(1, 0, 512, &[2; 512]));
        assert_eq!(reply(&mut second).await, 0);
    });
    assert_eq!(*count.borrow(), COUNT + 1, "all were carried out");
    assert!(bytes.lock().unwrap()[..512].iter().all(|&byte| byte == 2), "the last write stands");
}

#[test]
fn write_of_busy_client_waits_for_those_of_gone_client() {
    let disk = Ram::new(INFO);
    let (bytes, gate, mut begun) = (Arc::clone(&disk.bytes), Arc::clone(&disk.gate), disk.begun.subscribe());
    with_disk(disk, |path| async move {
        gate.forget_permits(Semaphore::MAX_PERMITS);
        let (mut first, mut second) = (go(&path).await, go(&path).await);
        send(&mut first, 0, 1, 0, 512, &[1; 512]).await;
        begun.wait_for(|begun| *begun == 1).await.unwrap();
        // The server finds all of this at once, the second client's first request first.
        send_now(&second, &bytes_of(6, 4096, 512, &[]));
        drop(first);
        send_now(&second, &bytes_of(1, 0, 512, &[2; 512]));
        let early = begins(&mut begun, 2).await;
        gate.add_permits(1000);
        assert_eq!((reply(&mut second).await, reply(&mut second).await), (0, 0));
        assert!(!early, "it began before the first client's had ended");
        assert!(bytes.lock().unwrap()[..512].iter().all(|&byte| byte == 2), "the last write stands");
    });
}

#[test]
fn options_are_answered_as_the_protocol_says() {
    with_server(|path| async move {
        let mut stream = connect(&path).await;
        assert_eq!(option(&mut stream, 8, &[]).await[0].0, wire::reply::ERROR_UNSUPPORTED);
        assert_eq!(option(&mut stream, 3, &[]).await, [(2, vec![0; 4]), (1, vec![])]);
        assert_eq!(option(&mut stream, 6, &[0, 0, 0, 1, b'x', 0, 0]).await[0].0, wire::reply::ERROR_UNKNOWN);
        assert_eq!(option(&mut stream, 6, &[0, 0, 0, 9]).await[0].0, wire::reply::ERROR_INVALID);
        assert_eq!(option(&mut stream, 6, &[0; 6]).await.len(), 3);
        assert_eq!(option(&mut stream, 2, &[]).await, [(1, vec![])]);
    });
}

#[test]
fn stale_socket_is_replaced_but_live_is_not() {
    with_server(|path| async move {
        assert!(matches!(Server::bind(&path, &socket_options()).await, Err(ServerError::InUse { .. })));
        let stale = path.with_extension("stale");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(Server::bind(&stale, &socket_options()).await.is_ok());
        let file = path.with_extension("file");
        std::fs::write(&file, []).unwrap();
        assert!(matches!(Server::bind(&file, &socket_options()).await, Err(ServerError::NotASocket { .. })));
    });
}

#[test]
fn idle_clients_do_not_delay_the_end() {
    block_on(async {
        let for_ever = Duration::from_secs(3600);
        let Serving { folder: _folder, path, stop, task } = serve(Ram::new(INFO), for_ever).await;
        let (mut idle, mut negotiating) = (go(&path).await, connect(&path).await);
        drop(stop);
        tokio::time::timeout(Duration::from_secs(30), task).await.expect("it ends").unwrap();
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(negotiating.read(&mut [0]).await.unwrap_or(0), 0);
    });
}

proptest! {
    #[test]
    fn parsing_never_panics(header: [u8; 16], a: [u8; 14], b: [u8; 14], data in prop::collection::vec(any::<u8>(), 0..64)) {
        let request: [u8; 28] = core::array::from_fn(|i| if i < 14 { a[i] } else { b[i - 14] });
        let _ = (wire::parse_option(&header), wire::Request::parse(&request), wire::parse_go(&data));
    }
}
