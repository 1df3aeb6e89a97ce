//! Work in: FPDUs out.
//!
//! Messages are cut into segments one batch ahead of the socket. Headers, trailers and short payloads of the segments
//! ahead stand in one run of bytes, so that the socket call names few pieces; longer payload stays where it is and is
//! named to the socket as [`Chunk`]s.

use super::Parts;
use super::domain::Domain;
use super::inbound_reads::InboundRead;
use super::send_queue::{OutboundRead, Work};
use super::terminate::{self, TERMINATE_LEN_MAX, Violation};
use crate::config::{MAX_FPDU, MAX_SGE, MIN_FPDU};
use crate::handshake::Rtr;
use crate::wire::ddp::FIRST_MSN;
use crate::wire::mpa::{CRC_LEN, pad_len};
use crate::wire::rdmap::{Header, READ_REQUEST_LEN};
use nvmf_memory::Crc32c;
use nvmf_rdma::Access;
use nvmf_stream::{Chunk, Chunks};
use std::collections::VecDeque;

/// Segments that are cut ahead.
const SEGMENTS_MAX: usize = 64;
/// Bytes that are cut ahead; one segment may go over.
const BATCH_BYTES: usize = 1024 * 1024;
/// Payload up to this is copied behind its header: to name it would cost more.
const COPIED_MAX: u32 = 128;
/// Bytes of a segment that are not elsewhere: header, copied payload, pad and CRC.
const FRAMING_MAX: usize = READ_REQUEST_LEN + COPIED_MAX as usize + 3 + CRC_LEN;
/// Such bytes of all segments that are cut ahead.
const FRAMING_ROOM: usize = 8 * 1024;
/// READ responses in a row while sends wait.
const RESPONSES_IN_A_ROW: u8 = 4;

/// A WRITE of no bytes. Any STag will do: none is checked. siw uses 1 as well.
const NOTHING: Header = Header::Write { last: true, stag: 1, to: 0 };

/// Whose payload a segment carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Nothing,
    Work(u64),
    Response(u64),
}

#[derive(Debug)]
struct Segment {
    /// Where its header begins in the framing; copied payload stands behind it, then pad and CRC.
    start: u16,
    /// Bytes of header and copied payload.
    head_len: u16,
    tail_len: u8,
    source: Source,
    /// The place in the message, and the length, of payload that is elsewhere.
    at: u32,
    len: u32,
    last: bool,
}

impl Segment {
    fn total(&self) -> usize {
        usize::from(self.head_len) + self.len as usize + usize::from(self.tail_len)
    }

    fn tail_start(&self) -> usize {
        usize::from(self.start) + usize::from(self.head_len)
    }

    fn end(&self) -> usize {
        self.tail_start() + usize::from(self.tail_len)
    }
}

#[derive(Debug)]
pub(crate) struct Transmitter {
    segments: VecDeque<Segment>,
    /// The bytes of the segments ahead that are not elsewhere, and of those that went since it was last empty.
    framing: Vec<u8>,
    /// Bytes in `segments`.
    queued: usize,
    /// Bytes of the segment in front that are sent already.
    sent: usize,
    /// The message that is not wholly cut yet: nothing else may come between its segments.
    current: Option<Source>,
    responses_in_a_row: u8,
    send_msn: u32,
    read_msn: u32,
    fpdu_max: usize,
    crc: bool,
    /// A responder sends nothing before the initiator's first message.
    pub(crate) held: bool,
}

impl Transmitter {
    pub(crate) fn new() -> Self {
        Self {
            segments: VecDeque::with_capacity(SEGMENTS_MAX),
            framing: Vec::with_capacity(FRAMING_ROOM),
            queued: 0,
            sent: 0,
            current: None,
            responses_in_a_row: 0,
            send_msn: FIRST_MSN,
            read_msn: FIRST_MSN,
            fpdu_max: MAX_FPDU,
            crc: false,
            held: false,
        }
    }

    pub(crate) fn start(&mut self, crc: bool, fpdu_max: usize, held: bool) {
        self.crc = crc;
        self.fpdu_max = fpdu_max.clamp(MIN_FPDU, MAX_FPDU) & !3;
        self.held = held;
    }

    pub(crate) fn has_crc(&self) -> bool {
        self.crc
    }

    pub(crate) fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// Whether there is something that could be sent now.
    pub(crate) fn has_work(&self, parts: &Parts) -> bool {
        let free = !self.held
            && (self.has_segments() || parts.next_work().is_some() || parts.inbound_reads.next().is_some());
        free || parts.broken.is_some()
    }

    /// An empty message. Not in the middle of another, which serves as well.
    pub(crate) fn push_prompt(&mut self, parts: &Parts) {
        if self.current.is_none() && self.has_room() {
            self.push(parts, NOTHING, Source::Nothing, 0, 0, true);
        }
    }

    /// The initiator's first message in peer-to-peer mode.
    pub(crate) fn push_rtr(&mut self, parts: &mut Parts, rtr: Rtr) {
        let header = match rtr {
            Rtr::Write => NOTHING,
            Rtr::Read => self.read_request(parts, 0, 1, 0, None),
        };
        self.push(parts, header, Source::Nothing, 0, 0, true);
    }

    /// Cuts the next batch, up to about `budget` bytes.
    pub(crate) fn fill(
        &mut self,
        parts: &mut Parts,
        domain: &mut Domain,
        budget: usize,
    ) -> Result<(), Violation> {
        if self.held {
            return Ok(());
        }
        while self.queued < budget && self.has_room() {
            match self.current.or_else(|| self.choose(parts)) {
                Some(Source::Work(sequence)) => self.cut_work(parts, domain, sequence),
                Some(Source::Response(sequence)) => self.cut_response(parts, domain, sequence)?,
                Some(Source::Nothing) | None => break,
            }
        }
        Ok(())
    }

    /// Whether another segment may be cut.
    fn has_room(&self) -> bool {
        self.segments.len() < SEGMENTS_MAX
            && self.queued < BATCH_BYTES
            && self.framing.len() + FRAMING_MAX <= FRAMING_ROOM
    }

    /// Whose message comes next.
    fn choose(&mut self, parts: &Parts) -> Option<Source> {
        let work = parts.next_work().map(Source::Work);
        let response = parts.inbound_reads.next().map(Source::Response);
        if response.is_some() && (work.is_none() || self.responses_in_a_row < RESPONSES_IN_A_ROW) {
            self.responses_in_a_row = self.responses_in_a_row.saturating_add(1);
            return response;
        }
        self.responses_in_a_row = 0;
        work
    }

    fn cut_work(&mut self, parts: &mut Parts, domain: &mut Domain, sequence: u64) {
        let Some(entry) = parts.send_queue.entry_mut(sequence) else { return };
        let at = entry.cut;
        let (mut header, rest) = match &entry.work {
            Work::LocalInvalidate { key } => {
                domain.stags.invalidate(parts.id, *key);
                parts.send_queue.advance();
                parts.send_queue.on_done(sequence);
                parts.send_queue.reap(domain);
                return;
            }
            Work::Read { into, remote } => {
                let (size, stag, to) = (into.len, remote.key.0, remote.address);
                let header = self.read_request(parts, size, stag, to, Some(sequence));
                parts.send_queue.advance();
                self.push(parts, header, Source::Work(sequence), 0, 0, true);
                return;
            }
            Work::Send { data, invalidate, solicited } => {
                let invalidate = invalidate.map(|key| key.0);
                let (solicited, msn) = (*solicited, self.send_msn);
                (Header::Send { last: true, invalidate, solicited, msn, mo: at }, data.len() - at)
            }
            Work::Write { data, remote } => {
                let to = remote.address.wrapping_add(u64::from(at));
                (Header::Write { last: true, stag: remote.key.0, to }, data.len() - at)
            }
        };
        let len = rest.min(self.room(&header));
        entry.cut += len;
        let is_last = len == rest;
        match &mut header {
            Header::Send { last, .. } => {
                *last = is_last;
                self.send_msn = self.send_msn.wrapping_add(u32::from(is_last));
            }
            Header::Write { last, .. } => *last = is_last,
            _ => {}
        }
        self.current = (!is_last).then_some(Source::Work(sequence));
        if is_last {
            parts.send_queue.advance();
        }
        self.push(parts, header, Source::Work(sequence), at, len, is_last);
    }

    fn cut_response(&mut self, parts: &mut Parts, domain: &Domain, sequence: u64) -> Result<(), Violation> {
        let Some(read) = parts.inbound_reads.get_mut(sequence) else { return Ok(()) };
        let &mut InboundRead { sink_stag, sink_to, size, source_stag, source_to, cut, .. } = read;
        if size > 0 {
            // The key may have died since the request came.
            let reached = domain.stags.remote(parts.id, source_stag, source_to, size, Access::REMOTE_READ);
            reached.map_err(|_| Violation::Revoked)?;
        }
        let to = sink_to.wrapping_add(u64::from(cut));
        let mut header = Header::ReadResponse { last: true, stag: sink_stag, to };
        let len = (size - cut).min(self.room(&header));
        let is_last = cut + len == size;
        if let Header::ReadResponse { last, .. } = &mut header {
            *last = is_last;
        }
        read.cut += len;
        self.current = (!is_last).then_some(Source::Response(sequence));
        if is_last {
            parts.inbound_reads.advance();
        }
        self.push(parts, header, Source::Response(sequence), cut, len, is_last);
        Ok(())
    }

    /// Payload bytes that a segment with this header has room for. All but the last of a message are filled, so that
    /// FPDUs are whole words.
    fn room(&self, header: &Header) -> u32 {
        u32::try_from(self.fpdu_max - CRC_LEN - header.len()).expect("an FPDU is shorter than 64 KiB")
    }

    fn read_request(
        &mut self,
        parts: &mut Parts,
        size: u32,
        source_stag: u32,
        source_to: u64,
        entry: Option<u64>,
    ) -> Header {
        let msn = self.read_msn;
        self.read_msn = msn.wrapping_add(1);
        // A name that no other outstanding READ has; it is no key of the STag table.
        let sink_stag = msn.rotate_left(8);
        parts.send_queue.reads.push_back(OutboundRead { sink_stag, size, received: 0, entry });
        Header::ReadRequest { msn, mo: 0, sink_stag, sink_to: 0, size, source_stag, source_to }
    }

    fn push(&mut self, parts: &Parts, header: Header, source: Source, at: u32, len: u32, last: bool) {
        let framing = &mut self.framing;
        let start = framing.len();
        let mut head = [0; READ_REQUEST_LEN];
        let header_len = header.emit(len as usize, &mut head);
        // Copies of a fixed length are no calls.
        framing.extend_from_slice(&head);
        framing.truncate(start + header_len);
        let elsewhere = if len > COPIED_MAX { len } else { 0 };
        if elsewhere == 0 {
            payload(parts, source, at, len, &mut |chunk| chunk.append_to(framing));
        }
        let head_len = framing.len() - start;
        let pad = pad_len(header_len + len as usize);
        let mut tail = [0; CRC_LEN + 3];
        if self.crc {
            let mut crc = Crc32c::new();
            crc.update(&framing[start..]);
            payload(parts, source, at, elsewhere, &mut |chunk| chunk.for_each_part(|part| crc.update(part)));
            crc.update(&tail[..pad]);
            tail[pad..pad + CRC_LEN].copy_from_slice(&crc.finish().to_le_bytes());
        }
        let tail_start = framing.len();
        framing.extend_from_slice(&tail);
        framing.truncate(tail_start + pad + CRC_LEN);
        let (start, head_len) = (start as u16, head_len as u16);
        let tail_len = (pad + CRC_LEN) as u8;
        let segment = Segment { start, head_len, tail_len, source, at, len: elsewhere, last };
        self.queued += segment.total();
        self.segments.push_back(segment);
    }

    /// What to send next.
    pub(crate) fn chunks<'a>(&'a self, parts: &'a Parts) -> Chunks<'a> {
        let mut chunks = Chunks::new(self.sent);
        let Some(first) = self.segments.front() else { return chunks };
        // What follows each other in the framing is one chunk.
        let (mut from, mut to) = (usize::from(first.start), usize::from(first.start));
        for segment in &self.segments {
            if !chunks.has_room_for(MAX_SGE + 2) {
                break;
            }
            if segment.len > 0 {
                chunks.push(Chunk::Bytes(&self.framing[from..segment.tail_start()]));
                payload(parts, segment.source, segment.at, segment.len, &mut |chunk| chunks.push(chunk));
                from = segment.tail_start();
            }
            to = segment.end();
        }
        chunks.push(Chunk::Bytes(&self.framing[from..to]));
        chunks
    }

    /// `n` bytes are with TCP.
    pub(crate) fn on_sent(&mut self, parts: &mut Parts, domain: &mut Domain, n: usize) {
        self.sent += n;
        while let Some(front) = self.segments.front() {
            let total = front.total();
            if self.sent < total {
                break;
            }
            let (source, last) = (front.source, front.last);
            self.sent -= total;
            self.queued -= total;
            self.segments.pop_front();
            match source {
                Source::Work(sequence) if last => {
                    let read =
                        parts.send_queue.entry(sequence).is_some_and(|e| matches!(e.work, Work::Read { .. }));
                    if !read {
                        parts.send_queue.on_done(sequence);
                    }
                }
                Source::Response(_) if last => parts.inbound_reads.on_done(),
                _ => {}
            }
        }
        parts.send_queue.reap(domain);
        if self.segments.is_empty() {
            self.framing.clear();
        }
    }

    /// The work request of which part is sent, and how many bytes of its payload are.
    pub(crate) fn sending(&self) -> Option<(u64, u32)> {
        let segment = self.segments.front()?;
        let Source::Work(sequence) = segment.source else { return None };
        let sent = self.sent.saturating_sub(usize::from(segment.head_len)) as u32;
        Some((sequence, segment.at + sent.min(segment.len)))
    }

    /// What must still be sent for the stream to end at the end of an FPDU, and a Terminate behind it.
    pub(crate) fn final_bytes(&mut self, parts: &Parts, violation: Option<(Violation, &[u8])>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.sent > 0
            && let Some(segment) = self.segments.front()
        {
            bytes.extend_from_slice(&self.framing[usize::from(segment.start)..segment.tail_start()]);
            payload(parts, segment.source, segment.at, segment.len, &mut |chunk| chunk.append_to(&mut bytes));
            bytes.extend_from_slice(&self.framing[segment.tail_start()..segment.end()]);
            bytes.drain(..self.sent);
        }
        if let Some((violation, offender)) = violation {
            let mut message = [0; TERMINATE_LEN_MAX];
            let len = terminate::emit(violation, offender, &mut message);
            let mut head = [0; READ_REQUEST_LEN];
            let head_len = Header::Terminate { msn: FIRST_MSN, mo: 0 }.emit(len, &mut head);
            let start = bytes.len();
            bytes.extend_from_slice(&head[..head_len]);
            bytes.extend_from_slice(&message[..len]);
            bytes.extend(core::iter::repeat_n(0, pad_len(head_len + len)));
            let mut crc = Crc32c::new();
            crc.update(&bytes[start..]);
            bytes.extend_from_slice(&if self.crc { crc.finish() } else { 0 }.to_le_bytes());
        }
        self.clear();
        bytes
    }

    pub(crate) fn clear(&mut self) {
        self.segments.clear();
        self.framing.clear();
        (self.queued, self.sent, self.current) = (0, 0, None);
    }
}

const _: () = assert!(FRAMING_ROOM <= u16::MAX as usize && FRAMING_MAX <= FRAMING_ROOM);
const _: () = assert!(COPIED_MAX as usize >= crate::config::MAX_INLINE, "inline payload is always copied");

/// Names bytes `[at, at + len)` of a message.
fn payload<'a>(parts: &'a Parts, source: Source, at: u32, len: u32, each: &mut dyn FnMut(Chunk<'a>)) {
    let (at, len) = (at as usize, len as usize);
    if len == 0 {
        return;
    }
    match source {
        Source::Nothing => {}
        Source::Response(sequence) => {
            if let Some((memory, offset)) =
                parts.inbound_reads.get(sequence).and_then(|read| read.source.as_ref())
            {
                each(Chunk::Region(memory, offset + at, len));
            }
        }
        Source::Work(sequence) => {
            let work = parts.send_queue.entry(sequence).map(|entry| &entry.work);
            if let Some(Work::Send { data, .. } | Work::Write { data, .. }) = work {
                data.name(at, len, each);
            }
        }
    }
}
