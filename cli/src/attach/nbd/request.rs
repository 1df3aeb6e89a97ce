//! One request: checked, and carried out on the disk.

use super::disk::{Disk, DiskInfo};
use crate::attach::errno::errno;
use nbd_proto::{self as wire, Command, Errno, Request};
use nvmf_block::BlockError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::task::yield_now;

/// What orders the requests of all clients of a disk.
///
/// Requests run side by side, as readers. A writer waits until all that were begun have ended, and nothing begins
/// meanwhile: for a request of less than a block, which is read, changed and written; and when a client goes whose
/// requests have not ended, so that none of them overtakes what is asked for after it.
#[derive(Debug, Default)]
pub(crate) struct Order {
    lock: Arc<RwLock<()>>,
    clients: AtomicUsize,
}

/// A request that has begun, until it ends.
pub(super) enum Begun {
    BesideOthers { _guard: OwnedRwLockReadGuard<()> },
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

/// A client, until it is gone.
pub(super) struct Client<'a>(&'a Order);

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Order {
    /// Counts a client.
    pub(super) fn enter(&self) -> Client<'_> {
        self.clients.fetch_add(1, Ordering::Relaxed);
        Client(self)
    }

    /// Whether there is more than one client.
    pub(super) fn is_shared(&self) -> bool {
        self.clients.load(Ordering::Relaxed) > 1
    }

    /// Ends when everything that was begun before has ended.
    pub(super) async fn settle(&self) {
        drop(self.lock.write().await);
    }

    /// Lets a client settle that went before a request was sent which another client's task has just received.
    pub(super) async fn let_others_go(&self) {
        // The runtime looks at all sockets before a task that gives way runs again: the client's task then knows that it
        // is gone, and runs, at the latest when this one gives way once more.
        yield_now().await;
        yield_now().await;
    }

    /// Ends when the request may begin, which it then has.
    pub(super) async fn begin(&self, alone: bool) -> Begun {
        let lock = Arc::clone(&self.lock);
        match alone {
            true => Begun::Alone { _guard: lock.write_owned().await },
            false => Begun::BesideOthers { _guard: lock.read_owned().await },
        }
    }
}

/// Whether a request must have the disk for itself: it changes a part of a block.
pub(super) fn is_alone(request: &Request, info: &DiskInfo) -> bool {
    let block = u64::from(info.block_size);
    let is_whole = request.offset.is_multiple_of(block) && u64::from(request.len).is_multiple_of(block);
    !is_whole && matches!(request.command, Command::Write | Command::WriteZeroes)
}

/// Whether a request can be carried out at all.
pub(super) fn check(request: &Request, info: &DiskInfo) -> Errno {
    let inside = request.offset.checked_add(u64::from(request.len)).is_some_and(|end| end <= info.bytes);
    let known_flags = match request.command {
        Command::WriteZeroes => wire::command_flag::FUA | wire::command_flag::NO_HOLE,
        _ => wire::command_flag::FUA,
    };
    match request.command {
        _ if request.flags & !known_flags != 0 => Errno::EINVAL,
        Command::Flush => Errno::OK,
        Command::Write | Command::Trim | Command::WriteZeroes if info.read_only => Errno::EPERM,
        Command::Write | Command::WriteZeroes if !inside => Errno::ENOSPC,
        Command::Read if request.len > wire::REQUEST_LEN_MAX => Errno::EINVAL,
        Command::Trim if !info.trim => Errno::ENOTSUP,
        Command::WriteZeroes if !info.write_zeroes => Errno::ENOTSUP,
        Command::Read | Command::Write | Command::Trim | Command::WriteZeroes if inside => Errno::OK,
        _ => Errno::EINVAL,
    }
}

/// Carries out a request that was checked and has begun. `data` is what is written, or takes what is read.
pub(super) async fn carry_out<D: Disk>(disk: &D, begun: Begun, request: &Request, data: &mut [u8]) -> Errno {
    let block = u64::from(disk.info().block_size);
    let (offset, len, fua) = (request.offset, u64::from(request.len), request.fua());
    let is_whole = offset.is_multiple_of(block) && len.is_multiple_of(block);
    let result = match request.command {
        Command::Flush => disk.flush().await,
        Command::Read if is_whole => disk.read(offset, data).await,
        Command::Read => read_part(disk, offset, data).await,
        Command::Write if is_whole => disk.write(offset, data, fua).await,
        Command::Write => change(disk, offset, len, fua, |part| part.copy_from_slice(data)).await,
        Command::WriteZeroes if is_whole => disk.write_zeroes(offset, len, !request.no_hole(), fua).await,
        Command::WriteZeroes => zero_part(disk, request, block).await,
        // What was trimmed may be anything afterwards, so the parts of blocks at its ends may as well stay.
        Command::Trim => {
            let (start, end) = (offset.next_multiple_of(block), (offset + len) / block * block);
            match if start < end { disk.trim(start, end - start).await } else { Ok(()) } {
                Ok(()) if fua => disk.flush().await,
                other => other,
            }
        }
        Command::Disconnect | Command::Other(_) => unreachable!("refused before"),
    };
    drop(begun);
    reply(result)
}

/// Reads what is not whole blocks.
async fn read_part<D: Disk>(disk: &D, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
    let block = u64::from(disk.info().block_size);
    let start = offset / block * block;
    let end = (offset + into.len() as u64).next_multiple_of(block);
    let mut blocks = vec![0; (end - start) as usize];
    disk.read(start, &mut blocks).await?;
    into.copy_from_slice(&blocks[(offset - start) as usize..][..into.len()]);
    Ok(())
}

/// Reads the blocks of a range, changes the range's bytes, and writes the blocks.
async fn change<D: Disk>(
    disk: &D,
    offset: u64,
    len: u64,
    fua: bool,
    change_part: impl FnOnce(&mut [u8]) + Send,
) -> Result<(), BlockError> {
    let block = u64::from(disk.info().block_size);
    let start = offset / block * block;
    let end = (offset + len).next_multiple_of(block);
    let mut blocks = vec![0; (end - start) as usize];
    disk.read(start, &mut blocks).await?;
    change_part(&mut blocks[(offset - start) as usize..][..len as usize]);
    disk.write(start, &blocks, fua).await
}

/// Zeroes the parts of blocks at the ends of a range, and between them whole blocks, however many.
async fn zero_part<D: Disk>(disk: &D, request: &Request, block: u64) -> Result<(), BlockError> {
    let (offset, end, fua) = (request.offset, request.offset + u64::from(request.len), request.fua());
    let (first_whole, last_whole) = (offset.next_multiple_of(block), end / block * block);
    let zero = |part: &mut [u8]| part.fill(0);
    if first_whole >= last_whole {
        return change(disk, offset, end - offset, fua, zero).await;
    }
    if offset < first_whole {
        change(disk, offset, first_whole - offset, fua, zero).await?;
    }
    disk.write_zeroes(first_whole, last_whole - first_whole, !request.no_hole(), fua).await?;
    if last_whole < end {
        change(disk, last_whole, end - last_whole, fua, zero).await?;
    }
    Ok(())
}

/// How an operation ended, in the protocol's few numbers.
fn reply(result: Result<(), BlockError>) -> Errno {
    match result {
        Ok(()) => Errno::OK,
        Err(error) => match errno(error) {
            nix::errno::Errno::EINVAL => Errno::EINVAL,
            nix::errno::Errno::EROFS => Errno::EPERM,
            nix::errno::Errno::ENOSPC => Errno::ENOSPC,
            nix::errno::Errno::ENOMEM => Errno::ENOMEM,
            nix::errno::Errno::EOPNOTSUPP => Errno::ENOTSUP,
            nix::errno::Errno::ENOLINK => Errno::ESHUTDOWN,
            _ => Errno::EIO,
        },
    }
}
