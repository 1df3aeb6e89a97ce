//! Replies in chunks, for clients that have agreed on them.
//!
//! What a target has deallocated it cannot say here (Get LBA Status is optional, and nothing asks for it), so nothing is called a
//! hole that was not seen to be zeroes. Parts of a read that are zeroes are not sent. Which parts of a range are zeroes is found
//! out by reading them, where the user wants it: to a client that copies a disk, it costs more than it saves.

use super::disk::DiskInfo;
use super::negotiation::{ALLOCATION, Terms};
use super::pool::{self, Part};
use super::requests::Requests;
use arrayvec::ArrayVec;
use nbd_proto::{self as wire, Command, Errno, Request, command_flag};
use nvmf_memory::Memory;
use nvmf_stream::{Frame, Outbox, Region};

/// The beginning of a reply, or of a chunk of it.
pub(super) type Head = ArrayVec<u8, { wire::DATA_CHUNK_LEN + 4 }>;

/// The most of a range that is looked at to say which parts of it are zeroes. Clients ask again for the rest.
const STATUS_LEN_MAX: u32 = 256 << 10;
/// Parts of this length are zeroes or data as a whole, unless the range begins or ends within.
const GRANULE: u64 = 4096;
/// Bytes of an extent in a reply.
const EXTENT_LEN: usize = 8;

// All extents of a reply have room in the shortest piece of memory. A range may begin and end within a granule.
const _: () = assert!((STATUS_LEN_MAX as usize / GRANULE as usize + 1) * EXTENT_LEN <= pool::UNIT_LEN);

/// Has no more of a range looked at than may be; refuses what was not agreed on.
pub(super) fn bound_status(request: &mut Request, terms: Terms, disk: &DiskInfo) {
    if !terms.block_status {
        request.command = Command::Other(Command::BlockStatus.into());
    } else if request.offset.checked_add(request.len.into()).is_some_and(|end| end <= disk.bytes) {
        request.len = request.len.min(STATUS_LEN_MAX);
    }
}

/// Answers a request that has ended.
pub(super) fn reply(replies: &mut Outbox<Head, Option<u32>>, requests: &Requests, index: u32) {
    let under_way = requests.get(index);
    let Request { command, cookie, offset, len, flags } = under_way.request;
    let note = Some(index);
    let mut push = |head: &[u8], data, note| {
        let head = head.iter().copied().collect();
        replies.push(Frame { head, data, trailer: None, note });
    };
    if under_way.errno != Errno::OK {
        return push(&wire::error_chunk(under_way.errno, cookie), None, note);
    }
    let parts = under_way.reply_data(requests.disk(), &requests.pool);
    match command {
        Command::BlockStatus => {
            let one = flags & command_flag::REQ_ONE != 0;
            let extents = extents(offset, parts, one);
            // What was read is not needed any more. The range may begin with the last byte of a block: there is no room behind it.
            let Some(first) = under_way.memory(&requests.pool) else {
                return push(&wire::error_chunk(Errno::EIO, cookie), None, note);
            };
            let (memory, offset, count) = (first.memory, first.buffer.offset, extents.len() as u32);
            for (at, (len, state)) in extents.into_iter().enumerate() {
                let bytes = [len.to_be_bytes(), state.to_be_bytes()];
                memory.write(offset + at * EXTENT_LEN, bytes.as_flattened());
            }
            let data = Region { memory: memory.clone(), offset, len: count as usize * EXTENT_LEN };
            push(&wire::status_chunk(cookie, ALLOCATION, count), Some(data), note);
        }
        Command::Read if len > 0 => {
            let (mut at, end) = (offset, offset + u64::from(len));
            let in_one_piece = flags & command_flag::DF != 0;
            for part in parts {
                let (begins, part_len) = (at == offset, part.buffer.len as u32);
                let next = at + u64::from(part_len);
                let (is_last, note) = (next == end, note.filter(|_| next == end));
                let region = || Region {
                    memory: part.memory.clone(),
                    offset: part.buffer.offset,
                    len: part.buffer.len,
                };
                match in_one_piece {
                    true if begins => {
                        push(&wire::data_chunk(cookie, offset, len, true), Some(region()), note)
                    }
                    true => push(&[], Some(region()), note),
                    false if is_zero(part.memory, part.buffer.offset, part.buffer.len) => {
                        push(&wire::hole_chunk(cookie, at, part_len, is_last), None, note);
                    }
                    false => push(&wire::data_chunk(cookie, at, part_len, is_last), Some(region()), note),
                }
                at = next;
            }
        }
        _ => push(&wire::structured_done(cookie), None, note),
    }
}

/// The extents of data that lie in these parts and begin at this offset of the disk: lengths and states.
fn extents<'a>(offset: u64, parts: impl Iterator<Item = Part<'a>>, one: bool) -> Vec<(u32, u32)> {
    let mut extents: Vec<(u32, u32)> = Vec::new();
    let mut at = offset;
    for part in parts {
        let mut done = 0;
        while done < part.buffer.len {
            let len = (GRANULE - at % GRANULE).min((part.buffer.len - done) as u64) as usize;
            let state =
                if is_zero(part.memory, part.buffer.offset + done, len) { wire::STATE_ZERO } else { 0 };
            match extents.last_mut() {
                Some(last) if last.1 == state => last.0 += len as u32,
                Some(_) if one => return extents,
                _ => extents.push((len as u32, state)),
            }
            (at, done) = (at + len as u64, done + len);
        }
    }
    extents
}

/// Whether these bytes are zeroes; mostly the first of them tell.
fn is_zero(memory: &Memory, offset: usize, len: usize) -> bool {
    let mut bytes = [0; 512];
    (0..len).step_by(bytes.len()).all(|at| {
        let now = &mut bytes[..(len - at).min(512)];
        memory.read(offset + at, now);
        now.iter().all(|byte| *byte == 0)
    })
}
