//! Bytes in: placements and completions out.
//!
//! The receiver takes the stream in pieces of any size. It keeps no more than one header, so that a connection that
//! stops in the middle of an FPDU holds no buffer.

use super::Parts;
use super::domain::Domain;
use super::inbound_reads::InboundRead;
use super::receive::Receive;
use super::terminate::{TERMINATE_LEN_MAX, Terminated, Violation};
use crate::memory::Fault;
use crate::wire::ddp::{Control, FIRST_MSN};
use crate::wire::mpa::{CRC_LEN, pad_len};
use crate::wire::rdmap::{Header, HeaderError, READ_REQUEST_LEN};
use nvmf_memory::Crc32c;
use nvmf_memory::Memory;
use nvmf_rdma::{Access, WcStatus};

/// The stream is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Violation(Violation),
    Terminated(Terminated),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Head,
    Payload,
    Tail,
}

/// The FPDU under way.
#[derive(Debug, Clone, Copy)]
struct Segment {
    header: Header,
    /// Payload bytes, and how many are in place.
    len: u32,
    placed: u32,
}

/// The SEND under way.
#[derive(Debug)]
struct Incoming {
    receive: Receive,
    received: u32,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    phase: Phase,
    head: [u8; READ_REQUEST_LEN],
    head_len: usize,
    /// The head is that of a SEND that finds no receive.
    waiting: bool,
    tail: [u8; CRC_LEN + 3],
    tail_len: usize,
    segment: Segment,
    crc: Option<Crc32c>,
    send_msn: u32,
    read_msn: u32,
    incoming: Option<Incoming>,
    terminate: [u8; TERMINATE_LEN_MAX],
    terminate_len: usize,
    received_fpdu: bool,
}

const NO_SEGMENT: Segment =
    Segment { header: Header::Write { last: true, stag: 0, to: 0 }, len: 0, placed: 0 };

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Head,
            head: [0; READ_REQUEST_LEN],
            head_len: 0,
            waiting: false,
            tail: [0; CRC_LEN + 3],
            tail_len: 0,
            segment: NO_SEGMENT,
            crc: None,
            send_msn: FIRST_MSN,
            read_msn: FIRST_MSN,
            incoming: None,
            terminate: [0; TERMINATE_LEN_MAX],
            terminate_len: 0,
            received_fpdu: false,
        }
    }

    pub(crate) fn use_crc(&mut self, on: bool) {
        self.crc = on.then(Crc32c::new);
    }

    /// Whether a whole FPDU has come.
    pub(crate) fn has_received(&self) -> bool {
        self.received_fpdu
    }

    /// Whether the stream may end here: between two FPDUs.
    pub(crate) fn is_between_fpdus(&self) -> bool {
        self.phase == Phase::Head && self.head_len == 0
    }

    /// The header of the segment under way, as far as it has come.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    /// Whether the stream stands at a SEND that has no receive yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Takes bytes: all of them, unless a SEND finds no receive; how many.
    pub(crate) fn on_bytes(
        &mut self,
        parts: &mut Parts,
        domain: &mut Domain,
        bytes: &[u8],
    ) -> Result<usize, Stop> {
        let mut used = 0;
        while used < bytes.len() && !self.waiting {
            let rest = &bytes[used..];
            used += match self.phase {
                Phase::Head => self.on_head(parts, domain, rest)?,
                Phase::Payload => self.on_payload(parts, domain, rest)?,
                Phase::Tail => self.on_tail(parts, domain, rest)?,
            };
        }
        Ok(used)
    }

    /// Goes on with a SEND that found no receive, and with the bytes behind its head, as [`Receiver::on_bytes`].
    pub(crate) fn resume(
        &mut self,
        parts: &mut Parts,
        domain: &mut Domain,
        bytes: &[u8],
    ) -> Result<usize, Stop> {
        self.waiting = false;
        self.on_head(parts, domain, &[])?;
        self.on_bytes(parts, domain, bytes)
    }

    fn on_head(&mut self, parts: &mut Parts, domain: &mut Domain, bytes: &[u8]) -> Result<usize, Stop> {
        // The control field says how long the header is.
        const TO_CONTROL: usize = 4;
        let mut used = 0;
        // Mostly all of it is there: a copy of a fixed length is no call.
        let whole = bytes.first_chunk::<READ_REQUEST_LEN>().filter(|_| self.head_len == 0);
        if let Some(&whole) = whole {
            self.head = whole;
        } else if self.head_len < TO_CONTROL {
            used = self.fill_head(TO_CONTROL, bytes);
            if self.head_len < TO_CONTROL {
                return Ok(used);
            }
        }
        let control = Control(u16::from_be_bytes([self.head[2], self.head[3]]));
        let want = Header::len_of(control).map_err(Violation::from)?;
        if whole.is_some() {
            (self.head_len, used) = (want, want);
        } else {
            used += self.fill_head(want, &bytes[used..]);
        }
        if self.head_len < want {
            return Ok(used);
        }
        let (header, len) = Header::parse(&self.head[..want]).map_err(Violation::from)?;
        let len = u32::try_from(len).map_err(|_| Violation::Header(HeaderError::Length))?;
        self.waiting = !self.open(parts, domain, header, len)?;
        if self.waiting {
            return Ok(used);
        }
        self.segment = Segment { header, len, placed: 0 };
        self.phase = if len == 0 { Phase::Tail } else { Phase::Payload };
        self.tail_len = 0;
        if let Some(crc) = &mut self.crc {
            *crc = Crc32c::new();
            crc.update(&self.head[..want]);
        }
        Ok(used)
    }

    fn fill_head(&mut self, want: usize, bytes: &[u8]) -> usize {
        let n = (want - self.head_len).min(bytes.len());
        self.head[self.head_len..self.head_len + n].copy_from_slice(&bytes[..n]);
        self.head_len += n;
        n
    }

    /// Checks the whole segment before a byte of it is placed. `false`: it is a SEND, and has to wait for a receive.
    fn open(
        &mut self,
        parts: &mut Parts,
        domain: &mut Domain,
        header: Header,
        len: u32,
    ) -> Result<bool, Violation> {
        match header {
            Header::Send { msn, mo, .. } => {
                check(msn == self.send_msn, Violation::Msn)?;
                return self.open_send(parts, domain, mo, len);
            }
            // RFC 5040 has no STag in a zero-length WRITE or READ checked.
            Header::Write { stag, to, .. } if len > 0 => {
                let reached = domain.stags.remote(parts.id, stag, to, len, Access::REMOTE_WRITE);
                reached.map_err(Violation::Write)?;
            }
            Header::Write { .. } => {}
            Header::ReadResponse { last, stag, to } => {
                let read = parts.send_queue.reads.front().ok_or(Violation::ReadSink)?;
                if read.sink_stag != stag {
                    return Err(Violation::ReadSink);
                }
                let end = read.received.checked_add(len).ok_or(Violation::ReadBounds)?;
                let fits = to == u64::from(read.received) && end <= read.size && last == (end == read.size);
                check(fits, Violation::ReadBounds)?;
            }
            Header::ReadRequest { msn, mo, .. } => {
                check(msn == self.read_msn, Violation::Msn)?;
                check(mo == 0, Violation::Mo)?;
            }
            Header::Terminate { msn, mo } => {
                check(msn == FIRST_MSN, Violation::Msn)?;
                check(mo == 0, Violation::Mo)?;
            }
        }
        Ok(true)
    }

    fn open_send(
        &mut self,
        parts: &mut Parts,
        domain: &mut Domain,
        mo: u32,
        len: u32,
    ) -> Result<bool, Violation> {
        if self.incoming.is_none() {
            check(mo == 0, Violation::Mo)?;
            let Some(receive) = parts.receives(domain).take() else { return Ok(false) };
            self.incoming = Some(Incoming { receive, received: 0 });
        }
        let Some(incoming) = &self.incoming else { return Err(Violation::Mo) };
        check(mo == incoming.received, Violation::Mo)?;
        let end = mo.checked_add(len).ok_or(Violation::TooLong)?;
        check(end <= incoming.receive.buffer.len, Violation::TooLong)?;
        Ok(true)
    }

    fn on_payload(&mut self, parts: &mut Parts, domain: &mut Domain, bytes: &[u8]) -> Result<usize, Stop> {
        let left = (self.segment.len - self.segment.placed) as usize;
        let bytes = &bytes[..left.min(bytes.len())];
        match self.segment.header {
            Header::Terminate { .. } => {
                // Bytes beyond the longest Terminate mean nothing.
                let room = &mut self.terminate[self.terminate_len..];
                let n = room.len().min(bytes.len());
                room[..n].copy_from_slice(&bytes[..n]);
                self.terminate_len += n;
            }
            _ => {
                let (memory, offset) = self.destination(parts, domain, bytes.len())?;
                memory.write(offset, bytes);
            }
        }
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
        self.on_placed(bytes.len());
        Ok(bytes.len())
    }

    /// Where the next `len` bytes of the segment go. Keys are looked up each time: one may have become invalid
    /// meanwhile.
    fn destination<'a>(
        &'a self,
        parts: &'a Parts,
        domain: &'a Domain,
        len: usize,
    ) -> Result<(&'a Memory, usize), Violation> {
        let placed = self.segment.placed;
        match self.segment.header {
            Header::Write { stag, to, .. } => {
                let to = to.checked_add(u64::from(placed)).ok_or(Violation::Write(Fault::Wrap))?;
                let len = u32::try_from(len).map_err(|_| Violation::Write(Fault::Bounds))?;
                let reached = domain.stags.remote(parts.id, stag, to, len, Access::REMOTE_WRITE);
                reached.map_err(Violation::Write)
            }
            Header::ReadResponse { .. } => parts.send_queue.sink(placed).ok_or(Violation::ReadSink),
            Header::Send { .. } => {
                let incoming = self.incoming.as_ref().ok_or(Violation::Mo)?;
                let buffer = &incoming.receive.buffer;
                Ok((&buffer.memory, buffer.offset + (incoming.received + placed) as usize))
            }
            Header::ReadRequest { .. } | Header::Terminate { .. } => {
                Err(Violation::Header(HeaderError::Length))
            }
        }
    }

    /// Where at least `min` next bytes of the stream can go without a copy, and how many. Not with CRCs: those read
    /// every byte anyway.
    pub(crate) fn direct<'a>(
        &'a self,
        parts: &'a Parts,
        domain: &'a Domain,
        min: usize,
    ) -> Option<(&'a Memory, usize, usize)> {
        let left = (self.segment.len - self.segment.placed) as usize;
        if self.phase != Phase::Payload || left < min || self.crc.is_some() {
            return None;
        }
        let (memory, offset) = self.destination(parts, domain, left).ok()?;
        Some((memory, offset, left))
    }

    /// `n` bytes of the payload are in place.
    pub(crate) fn on_placed(&mut self, n: usize) {
        self.segment.placed += u32::try_from(n).expect("bounded by the segment");
        if self.segment.placed == self.segment.len {
            self.phase = Phase::Tail;
        }
    }

    fn on_tail(&mut self, parts: &mut Parts, domain: &mut Domain, bytes: &[u8]) -> Result<usize, Stop> {
        let pad = pad_len(self.head_len + self.segment.len as usize);
        let n = (pad + CRC_LEN - self.tail_len).min(bytes.len());
        match bytes.first_chunk() {
            Some(&whole) if self.tail_len == 0 => self.tail = whole,
            _ => self.tail[self.tail_len..self.tail_len + n].copy_from_slice(&bytes[..n]),
        }
        self.tail_len += n;
        if self.tail_len == pad + CRC_LEN {
            if let Some(crc) = &mut self.crc {
                crc.update(&self.tail[..pad]);
                // The one field that is little-endian.
                check(crc.finish().to_le_bytes() == self.tail[pad..pad + CRC_LEN], Violation::Crc)?;
            }
            self.deliver(parts, domain)?;
            self.phase = Phase::Head;
            self.head_len = 0;
            self.received_fpdu = true;
        }
        Ok(n)
    }

    fn deliver(&mut self, parts: &mut Parts, domain: &mut Domain) -> Result<(), Stop> {
        let Segment { header, len, .. } = self.segment;
        match header {
            Header::Write { .. } => {}
            Header::ReadResponse { last, .. } => {
                if let Some(read) = parts.send_queue.reads.front_mut() {
                    read.received += len;
                }
                if last {
                    parts.send_queue.on_read(domain);
                }
            }
            Header::ReadRequest { sink_stag, sink_to, size, source_stag, source_to, .. } => {
                self.read_msn = self.read_msn.wrapping_add(1);
                let source = match size {
                    0 => None,
                    _ => {
                        let (stag, to) = (source_stag, source_to);
                        check(!parts.is_ending(stag), Violation::Read(Fault::Stag))?;
                        let reached = domain.stags.remote(parts.id, stag, to, size, Access::REMOTE_READ);
                        let (memory, offset) = reached.map_err(Violation::Read)?;
                        Some((memory.clone(), offset))
                    }
                };
                let read = InboundRead { sink_stag, sink_to, size, source_stag, source_to, source, cut: 0 };
                check(parts.inbound_reads.push(read), Violation::ReadDepth)?;
            }
            Header::Send { last, invalidate, .. } => {
                if let Some(incoming) = &mut self.incoming {
                    incoming.received += len;
                }
                if last {
                    self.deliver_send(parts, domain, invalidate)?;
                }
            }
            Header::Terminate { .. } => {
                return Err(Stop::Terminated(Terminated::parse(&self.terminate[..self.terminate_len])));
            }
        }
        Ok(())
    }

    fn deliver_send(
        &mut self,
        parts: &mut Parts,
        domain: &mut Domain,
        invalidate: Option<u32>,
    ) -> Result<(), Violation> {
        if let Some(stag) = invalidate {
            // The sender cannot have its data yet: what it READ would be sent after the memory went back to its owner.
            let in_use = parts.inbound_reads.needs(|other| other == stag);
            check(!in_use, Violation::Invalidate(Fault::InUse))?;
            domain.stags.invalidate_by_peer(parts.id, stag).map_err(Violation::Invalidate)?;
        }
        self.send_msn = self.send_msn.wrapping_add(1);
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        parts.complete_receive(domain, &incoming.receive, incoming.received, invalidate);
        Ok(())
    }

    /// The receive that was being filled, of a stream that ends without a completion.
    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        Some(self.incoming.take()?.receive)
    }

    /// The stream is over: a receive that was being filled ends with `status`.
    pub(crate) fn abandon(&mut self, parts: &Parts, domain: &mut Domain, status: WcStatus) {
        let Some(Incoming { receive, .. }) = self.incoming.take() else { return };
        parts.fail_receive(domain, &receive, status);
    }
}

fn check(holds: bool, violation: Violation) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(violation) }
}
