//! The transmission phase: requests are carried out side by side, and answered in whatever order they end.

use super::disk::Disk;
use super::request::{Order, carry_out, check};
use nbd_proto::{self as wire, Command, Errno, Request};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;

/// Bytes that the requests of one connection hold at once, in units of 4 KiB; a request takes at least one.
const BUDGET: u32 = (64 << 20) / UNIT;
const UNIT: u32 = 4096;
/// Buffers that a connection keeps for its next requests, and how long the longest is that it keeps.
const BUFFERS_KEPT: usize = 128;
const BUFFER_KEPT_MAX: usize = 256 << 10;

/// Serves requests until the client disconnects, is gone, or breaks the protocol, or the disk is `closed`. What was
/// begun has ended when this does. Of a client that is gone, what has not begun is dropped.
///
/// # Errors
/// When the client is gone or breaks the protocol.
pub(crate) async fn transmit<D: Disk>(
    stream: UnixStream,
    disk: &D,
    order: &Arc<Order>,
    mut closed: watch::Receiver<bool>,
) -> io::Result<()> {
    let info = disk.info();
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let budget = Arc::new(Semaphore::new(BUDGET as usize));
    let buffers = Arc::new(Buffers::default());
    let (is_gone, mut requests) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    let result = loop {
        let mut header = [0; Request::LEN];
        // A header that is cut short here is not missed: nothing is read after it.
        tokio::select! {
            read = reader.read_exact(&mut header) => if let Err(error) = read { break Err(error) },
            _ = closed.wait_for(|closed| *closed) => break Ok(()),
        }
        while requests.try_join_next().is_some() {}
        let Some(request) = Request::parse(&header) else {
            break Err(io::Error::new(io::ErrorKind::InvalidData, "not a request"));
        };
        if request.command == Command::Disconnect {
            break Ok(());
        }
        let carries = request.command == Command::Write;
        if carries && request.len > wire::REQUEST_LEN_MAX {
            break Err(io::Error::new(io::ErrorKind::InvalidData, "a write is too long"));
        }
        let moves = carries || request.command == Command::Read && request.len <= wire::REQUEST_LEN_MAX;
        let units = if moves { request.len.div_ceil(UNIT).max(1) } else { 1 };
        let permit =
            Arc::clone(&budget).acquire_many_owned(units).await.expect("the semaphore is never closed");
        let mut data = buffers.take(if moves { request.len as usize } else { 0 });
        if carries && let Err(error) = reader.read_exact(&mut data).await {
            break Err(error);
        }
        match check(&request, &info) {
            Errno::OK => {
                let (disk, order) = (disk.clone(), Arc::clone(order));
                let (writer, buffers, is_gone) =
                    (Arc::clone(&writer), Arc::clone(&buffers), Arc::clone(&is_gone));
                requests.spawn(async move {
                    let errno = carry_out(&disk, &order, &is_gone, &request, &mut data).await;
                    let read: &[u8] = if request.command == Command::Read { &data } else { &[] };
                    // A client that is gone is seen by the reader, too.
                    let _ = answer(&writer, errno, request.cookie, read).await;
                    buffers.put(data);
                    drop(permit);
                });
            }
            errno => {
                if let Err(error) = answer(&writer, errno, request.cookie, &[]).await {
                    break Err(error);
                }
            }
        }
    };
    if result.is_err() {
        is_gone.store(true, Ordering::Relaxed);
        while requests.try_join_next().is_some() {}
        if !requests.is_empty() {
            // Nobody waits for these any more, and they must overtake nothing: nothing begins before they have ended.
            order.settle().await;
        }
    }
    while requests.join_next().await.is_some() {}
    result
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
