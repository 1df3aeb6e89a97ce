//! The transmission phase: requests are carried out side by side, and answered in whatever order they end.

use super::disk::{Disk, DiskInfo};
use crate::attach::errno::errno;
use nbd_proto::{self as wire, Command, Errno, Request};
use nvmf_block::BlockError;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};

/// Bytes that the requests of one connection hold at once, in units of 4 KiB; a request takes at least one.
const BUDGET: u32 = (64 << 20) / UNIT;
const UNIT: u32 = 4096;

/// Serves requests until the client says goodbye, is gone, or speaks nonsense, or the disk is `closed`. What was begun is answered.
///
/// # Errors
/// When the client is gone or speaks nonsense.
pub(crate) async fn transmit<D: Disk>(
    stream: UnixStream,
    disk: &D,
    mut closed: watch::Receiver<bool>,
) -> io::Result<()> {
    let info = disk.info();
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let budget = Arc::new(Semaphore::new(BUDGET as usize));
    let result = loop {
        let mut header = [0; Request::LEN];
        // A header that is cut short here is not missed: nothing is read after it.
        tokio::select! {
            read = reader.read_exact(&mut header) => if let Err(error) = read { break Err(error) },
            _ = closed.wait_for(|closed| *closed) => break Ok(()),
        }
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
        let mut data = vec![0; if carries { request.len as usize } else { 0 }];
        if let Err(error) = reader.read_exact(&mut data).await {
            break Err(error);
        }
        match check(&request, &info) {
            Errno::OK => {
                drop(tokio::spawn(carry_out(disk.clone(), request, data, Arc::clone(&writer), permit)))
            }
            errno => answer(&writer, errno, request.cookie, &[]).await?,
        }
    };
    // What is under way is finished, and answered if anyone is there to hear.
    let _ = budget.acquire_many(BUDGET).await;
    result
}

/// Whether a request can be carried out at all.
fn check(request: &Request, info: &DiskInfo) -> Errno {
    let aligned = |value: u64| value.is_multiple_of(u64::from(info.block_size));
    let inside = request.offset.checked_add(u64::from(request.len)).is_some_and(|end| end <= info.bytes);
    match request.command {
        Command::Flush => Errno::OK,
        Command::Write | Command::Trim | Command::WriteZeroes if info.read_only => Errno::EPERM,
        Command::Write | Command::WriteZeroes if !inside => Errno::ENOSPC,
        Command::Read if request.len > wire::REQUEST_LEN_MAX => Errno::EINVAL,
        Command::Read | Command::Write | Command::Trim | Command::WriteZeroes => {
            if inside && aligned(request.offset) && aligned(u64::from(request.len)) {
                Errno::OK
            } else {
                Errno::EINVAL
            }
        }
        Command::Disconnect | Command::Other(_) => Errno::EINVAL,
    }
}

async fn carry_out<D: Disk>(
    disk: D,
    request: Request,
    data: Vec<u8>,
    writer: Arc<Mutex<OwnedWriteHalf>>,
    permit: OwnedSemaphorePermit,
) {
    let Request { offset, len, fua, .. } = request;
    let mut read = Vec::new();
    let result = match request.command {
        Command::Read => disk.read(offset, len as usize).await.map(|data| read = data),
        Command::Write => disk.write(offset, data, fua).await,
        Command::Flush => disk.flush().await,
        Command::Trim => match disk.trim(offset, u64::from(len)).await {
            Ok(()) if fua => disk.flush().await,
            other => other,
        },
        Command::WriteZeroes => disk.write_zeroes(offset, u64::from(len), !request.no_hole, fua).await,
        Command::Disconnect | Command::Other(_) => unreachable!("refused before"),
    };
    // A client that is gone is seen by the reader, too.
    let _ = answer(&writer, told(result), request.cookie, &read).await;
    drop(permit);
}

/// How an operation went, in the protocol's few numbers.
fn told(result: Result<(), BlockError>) -> Errno {
    match result {
        Ok(()) => Errno::OK,
        Err(error) => match errno(error) {
            nix::errno::Errno::EINVAL => Errno::EINVAL,
            nix::errno::Errno::EROFS => Errno::EPERM,
            nix::errno::Errno::ENOSPC => Errno::ENOSPC,
            nix::errno::Errno::EOPNOTSUPP => Errno::ENOTSUP,
            nix::errno::Errno::ENOLINK | nix::errno::Errno::ETIMEDOUT => Errno::ESHUTDOWN,
            _ => Errno::EIO,
        },
    }
}

async fn answer(writer: &Mutex<OwnedWriteHalf>, errno: Errno, cookie: u64, data: &[u8]) -> io::Result<()> {
    let mut writer = writer.lock().await;
    writer.write_all(&wire::simple_reply(errno, cookie)).await?;
    if errno == Errno::OK { writer.write_all(data).await } else { Ok(()) }
}
