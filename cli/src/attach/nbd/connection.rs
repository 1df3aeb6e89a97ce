//! The transmission phase: requests are carried out side by side, and answered in whatever order they end.

use super::disk::Disk;
use super::request::{Order, carry_out, check, is_alone};
use core::pin::pin;
use core::task::{Context, Waker};
use nbd_proto::{self as wire, Command, Errno, Request};
use std::io;
use std::sync::{Arc, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::task::coop::unconstrained;

/// Bytes that the requests of one connection hold at once, in units of 4 KiB; a request takes at least one.
const BUDGET: u32 = (64 << 20) / UNIT;
const UNIT: u32 = 4096;
/// Buffers that a connection keeps for its next requests, and how long the longest is that it keeps.
const BUFFERS_KEPT: usize = 128;
const BUFFER_KEPT_MAX: usize = 256 << 10;

/// Serves requests until the client disconnects, is gone, or breaks the protocol, or the disk is `closed`. What was
/// begun has ended when this does, and before anything else begins.
///
/// A client that hangs up in order is heard to the end: what it sent before its disconnect request is carried out. Of
/// one that is gone without it, or that closes its socket while its requests wait for others, what has not begun is
/// dropped.
///
/// # Errors
/// When the client is gone or breaks the protocol.
pub(crate) async fn transmit<D: Disk>(
    stream: UnixStream,
    disk: &D,
    order: &Order,
    closed: watch::Receiver<bool>,
) -> io::Result<()> {
    let _client = order.enter();
    let mut requests = JoinSet::new();
    // What the socket holds is read without a pause, so that nothing of other clients comes in between: the budget
    // bounds it.
    let result = unconstrained(receive(stream, disk, order, closed, &mut requests)).await;
    while requests.try_join_next().is_some() {}
    if !requests.is_empty() {
        // Nobody waits for these any more, and they must overtake nothing: nothing begins before they have ended.
        order.settle().await;
    }
    while requests.join_next().await.is_some() {}
    result
}

/// Receives requests, and begins them in the order in which they were sent.
async fn receive<D: Disk>(
    stream: UnixStream,
    disk: &D,
    order: &Order,
    mut closed: watch::Receiver<bool>,
    requests: &mut JoinSet<()>,
) -> io::Result<()> {
    let info = disk.info();
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let budget = Arc::new(Semaphore::new(BUDGET as usize));
    let buffers = Arc::new(Buffers::default());
    loop {
        let mut header = [0; Request::LEN];
        // A header that is cut short here is not missed: nothing is read after it.
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => return Ok(()),
            read = reader.read_exact(&mut header) => read?,
        };
        while requests.try_join_next().is_some() {}
        let request = Request::parse(&header)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a request"))?;
        if request.command == Command::Disconnect {
            return Ok(());
        }
        let carries = request.command == Command::Write;
        if carries && request.len > wire::REQUEST_LEN_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a write is too long"));
        }
        let moves = carries || request.command == Command::Read && request.len <= wire::REQUEST_LEN_MAX;
        let units = if moves { request.len.div_ceil(UNIT).max(1) } else { 1 };
        let permit = unless_gone(&reader, Arc::clone(&budget).acquire_many_owned(units)).await?;
        let permit = permit.expect("the semaphore is never closed");
        let mut data = buffers.take(if moves { request.len as usize } else { 0 });
        if carries {
            reader.read_exact(&mut data).await?;
        }
        let errno = check(&request, &info);
        let begun = match errno {
            Errno::OK => {
                // A client that has hung up gives way to nobody: all that it sent was sent before that.
                if order.is_shared() && !has_hung_up(&reader) {
                    order.let_others_go().await;
                }
                Some(unless_gone(&reader, order.begin(is_alone(&request, &info))).await?)
            }
            _ => None,
        };
        let (disk, writer, buffers) = (disk.clone(), Arc::clone(&writer), Arc::clone(&buffers));
        requests.spawn(async move {
            let errno = match begun {
                Some(begun) => carry_out(&disk, begun, &request, &mut data).await,
                None => errno,
            };
            let read: &[u8] = if request.command == Command::Read { &data } else { &[] };
            // A client that is gone is seen by the reader, too.
            let _ = answer(&writer, errno, request.cookie, read).await;
            buffers.put(data);
            drop(permit);
        });
    }
}

/// Waits for `turn`.
///
/// # Errors
/// When the client closes its socket meanwhile. Reading does not show that before all is read that it sent.
async fn unless_gone<T>(reader: &OwnedReadHalf, turn: impl Future<Output = T>) -> io::Result<T> {
    tokio::select! {
        biased;
        turn = turn => Ok(turn),
        () = hung_up(reader) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Whether it is known that the peer has closed its socket.
fn has_hung_up(reader: &OwnedReadHalf) -> bool {
    pin!(hung_up(reader)).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Ends when the peer has closed its socket. One that has only shut down its sending side waits for its answers.
async fn hung_up(reader: &OwnedReadHalf) {
    // Of what this interest has, only that the sending side was shut down happens to a Unix socket.
    let _ = reader.ready(Interest::PRIORITY).await;
    let ready = reader.ready(Interest::PRIORITY | Interest::WRITABLE).await;
    if ready.is_ok_and(|ready| !ready.is_write_closed()) {
        core::future::pending().await
    }
}

async fn answer(writer: &Mutex<OwnedWriteHalf>, errno: Errno, cookie: u64, data: &[u8]) -> io::Result<()> {
    let mut writer = writer.lock().await;
    writer.write_all(&wire::simple_reply(errno, cookie)).await?;
    if errno == Errno::OK { writer.write_all(data).await } else { Ok(()) }
}

/// Memory for requests, used again: none is asked of the system for each.
#[derive(Default)]
struct Buffers(std::sync::Mutex<Vec<Vec<u8>>>);

impl Buffers {
    fn take(&self, len: usize) -> Vec<u8> {
        let kept = if len == 0 { None } else { self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() };
        let mut buffer = kept.unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if (1..=BUFFER_KEPT_MAX).contains(&buffer.capacity()) && kept.len() < BUFFERS_KEPT {
            kept.push(buffer);
        }
    }
}
