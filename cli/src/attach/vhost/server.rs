//! The thread that serves a guest: requests out of its rings, operations to the target, and answers.

use super::abi::{ID_LEN, QUEUES_MAX};
use super::chain::{Broken, Chain};
use super::event::Event;
use super::flight::{Flight, Next, gathered};
use super::guest::{Guest, SharedRegion};
use super::request::{Rules, Status};
use super::ring::{Ring, RingSetUp};
use super::transfer::{Cursor, GATHER_MAX};
use crate::attach::control::{Control, End};
use crate::attach::nbd::DiskInfo;
use crate::attach::remote::{AskedBy, FINISH_TIME_MAX, Remote};
use anyhow::{Context, Result};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nvmf_block::{Backend, Completion, DeviceId, RegionId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

/// Buffers for what is gathered: 4 MiB, as much as keeps a fast network busy.
const BUFFERS: usize = 32;
/// Requests that are taken from a ring before it is the next one's turn.
const TURN_MAX: usize = 64;
/// Of the tag of an operation: no buffer.
const NO_BUFFER: u16 = u16::MAX;

/// What the frontend's thread has this one do. Where there is something to send to, it waits for that.
pub(super) enum Message {
    /// The guest's memory is this.
    Memory(Vec<SharedRegion>, SyncSender<Result<()>>),
    /// What is written is durable when it completes.
    WriteThrough(bool),
    Start(u16, Box<RingSetUp>, SyncSender<Result<()>>),
    Enable(u16, bool),
    Call(u16, Option<File>),
    /// Ends what a ring has under way, and takes no more: the next entry of its available ring.
    Stop(u16, SyncSender<u16>),
    /// The frontend has gone.
    Gone(SyncSender<()>),
}

/// The data of an operation that has a buffer.
#[derive(Default, Clone, Copy)]
struct Gathered {
    cursor: Cursor,
    len: usize,
    is_read: bool,
}

/// A ring, and those of its requests that are under way, by the heads of their chains.
struct Served {
    ring: Ring,
    flights: Vec<Flight>,
    /// Who waits for its end.
    stop: Option<SyncSender<u16>>,
}

pub(super) struct Server {
    remote: Remote,
    device: DeviceId,
    /// What the guest is told of the disk's name.
    id: [u8; ID_LEN],
    rules: Rules,
    messages: Receiver<Message>,
    control: Arc<Control>,
    /// The kicks of the rings.
    kicks: Epoll,
    rings: Vec<Option<Served>>,
    enabled: [bool; QUEUES_MAX as usize],
    guest: Option<Arc<Guest>>,
    /// Memory that the guest has no more, while requests have it.
    retired: Vec<Arc<Guest>>,
    /// Who waits for the end of everything of a frontend that has gone.
    gone: Option<SyncSender<()>>,
    buffers: Memory,
    buffers_region: RegionId,
    free_buffers: Vec<u16>,
    gathered: Vec<Gathered>,
    /// Requests that wait for a buffer or for room at the target, by ring and head: first come, first served.
    waiting: VecDeque<(u16, u16)>,
    chain: Chain,
    completions: Vec<Completion>,
}

impl Server {
    pub(super) fn new(
        mut remote: Remote,
        messages: Receiver<Message>,
        control: Arc<Control>,
    ) -> Result<Self> {
        let disk = DiskInfo::from(&remote.found.namespace);
        let buffers = Memory::alloc(BUFFERS * GATHER_MAX)?;
        let buffers_region = remote.backend.register(&buffers).context("cannot register the buffers")?;
        let rules = Rules {
            block_size: disk.block_size,
            bytes: disk.bytes,
            read_only: disk.read_only,
            write_through: false,
        };
        Ok(Self {
            device: remote.device(),
            id: super::id(&remote.found.namespace),
            remote,
            rules,
            messages,
            control,
            kicks: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            rings: (0..QUEUES_MAX).map(|_| None).collect(),
            enabled: [false; QUEUES_MAX as usize],
            guest: None,
            retired: Vec::new(),
            gone: None,
            buffers,
            buffers_region,
            free_buffers: (0..BUFFERS as u16).collect(),
            gathered: vec![Gathered::default(); BUFFERS],
            waiting: VecDeque::new(),
            chain: Chain::default(),
            completions: Vec::with_capacity(256),
        })
    }

    /// Serves until it is told to end; what was written is flushed then.
    pub(super) fn serve(mut self) -> Result<()> {
        let mut end_by = None;
        loop {
            let asked = self.control.asked();
            let mut most = Duration::MAX;
            match asked {
                End::NotYet => {}
                End::AtOnce => {
                    self.remote.close();
                    return Ok(());
                }
                End::InOrder | End::HandOver => {
                    let by = *end_by.get_or_insert_with(|| Instant::now() + FINISH_TIME_MAX);
                    most = by.saturating_duration_since(Instant::now());
                    if self.is_idle() || most.is_zero() {
                        break;
                    }
                }
            }
            let worked = self.turn(asked == End::NotYet)?;
            if self.remote.may_sleep(worked, AskedBy::Clients) && !self.wants_kicks() {
                self.remote.sleep(most, self.kicks.0.as_fd());
                self.on_woken();
            }
        }
        let is_idle = self.is_idle();
        if self.control.asked() == End::HandOver {
            self.remote.hand_over(is_idle);
            return Ok(());
        }
        self.remote.finish(end_by.unwrap_or_else(Instant::now))
    }

    fn is_idle(&self) -> bool {
        self.served().all(|served| served.ring.under_way == 0)
    }

    fn served(&self) -> impl Iterator<Item = &Served> {
        self.rings.iter().flatten()
    }

    /// Does everything that there is to do now; `false` when that is nothing.
    fn turn(&mut self, takes_more: bool) -> Result<bool> {
        let mut worked = false;
        while let Ok(message) = self.messages.try_recv() {
            worked = true;
            self.on_message(message);
        }
        let now = self.remote.properties();
        (self.rules.bytes, self.rules.read_only) = (now.bytes, now.read_only);
        while let Some(&(ring, head)) = self.waiting.front() {
            if !self.advance(ring, head) {
                break;
            }
            worked = true;
            self.waiting.pop_front();
        }
        for ring in 0..self.rings.len() as u16 {
            worked |= takes_more && self.take(ring);
        }
        self.remote.backend.poll(&mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            worked = true;
            self.on_completion(completion);
        }
        self.completions = completions;
        self.rings.iter_mut().flatten().for_each(|served| served.ring.notify());
        self.end_what_stops();
        self.control.counters().set_clients(self.served().next().is_some().into());
        Ok(worked)
    }

    /// Takes requests from a ring.
    fn take(&mut self, index: u16) -> bool {
        let mut worked = false;
        for _ in 0..TURN_MAX {
            let Some(served) = &mut self.rings[usize::from(index)] else { return worked };
            if !self.waiting.is_empty() || self.gone.is_some() {
                return worked;
            }
            let only_resumed = served.stop.is_some() || !self.enabled[usize::from(index)];
            let taken = served.ring.pop(only_resumed);
            let begun = match taken {
                Ok(None) => return worked,
                Ok(Some(head)) => self.begin(index, head),
                Err(broken) => Err(broken),
            };
            worked = true;
            if let Err(broken) = begun {
                tracing::error!("queue {index} of the guest is served no more: {broken}");
                if let Some(served) = &mut self.rings[usize::from(index)] {
                    served.ring.set_broken();
                }
                return worked;
            }
        }
        worked
    }

    fn begin(&mut self, index: u16, head: u16) -> Result<(), Broken> {
        let Some(Served { ring, flights, .. }) = &mut self.rings[usize::from(index)] else { return Ok(()) };
        let guest = Arc::clone(ring.guest());
        let flight = &mut flights[usize::from(head)];
        let read = self.chain.read(&guest.rings, ring.table(), head);
        if let Err(broken) = read.and_then(|()| flight.take_up(&guest, &self.chain, &self.rules, &self.id)) {
            // It is not answered, and nothing of it is under way.
            flight.guest = None;
            ring.under_way -= 1;
            return Err(broken);
        }
        if !self.advance(index, head) {
            self.waiting.push_back((index, head));
        }
        Ok(())
    }

    /// Gives what is left of a request to the target, and answers it if nothing is; `false` when it has to wait.
    fn advance(&mut self, index: u16, head: u16) -> bool {
        let Some(Served { ring, flights, .. }) = &mut self.rings[usize::from(index)] else { return true };
        let flight = &mut flights[usize::from(head)];
        loop {
            let (op, buffer) = match flight.next(&self.rules) {
                Next::Done => break,
                Next::Submit(op) => (op, NO_BUFFER),
                Next::Gather { range, len, write } => {
                    let Some(&buffer) = self.free_buffers.last() else { return false };
                    let offset = usize::from(buffer) * GATHER_MAX;
                    let cursor = flight.cursor();
                    if write && let Some(guest) = &flight.guest {
                        let (mut from, mut at) = (cursor, offset);
                        from.advance(&flight.data, len, |piece| {
                            guest.memory(piece).copy_to(piece.offset, &self.buffers, at, piece.len);
                            at += piece.len;
                        });
                    }
                    self.gathered[usize::from(buffer)] = Gathered { cursor, len, is_read: !write };
                    (gathered(range, self.buffers_region, offset, len, write, &self.rules), buffer)
                }
            };
            let tag = u64::from(index) << 32 | u64::from(head) << 16 | u64::from(buffer);
            if self.remote.backend.submit(Tag(tag), self.device, op).is_err() {
                return false;
            }
            if buffer != NO_BUFFER {
                self.free_buffers.pop();
            }
            flight.on_submitted(op.range(), self.rules.block_size);
        }
        if flight.pending == 0 {
            let written = flight.end();
            ring.push(head, written);
        }
        true
    }

    fn on_completion(&mut self, completion: Completion) {
        let tag = completion.tag.0;
        let (index, head, buffer) = ((tag >> 32) as u16, (tag >> 16) as u16, tag as u16);
        let Some(Served { ring, flights, .. }) = &mut self.rings[usize::from(index)] else { return };
        let flight = &mut flights[usize::from(head)];
        flight.pending -= 1;
        if buffer != NO_BUFFER {
            let Gathered { mut cursor, len, is_read } = self.gathered[usize::from(buffer)];
            if let Some(guest) = flight.guest.as_ref().filter(|_| is_read && completion.result.is_ok()) {
                let mut at = usize::from(buffer) * GATHER_MAX;
                cursor.advance(&flight.data, len, |piece| {
                    self.buffers.copy_to(at, guest.memory(piece), piece.offset, piece.len);
                    at += piece.len;
                });
            }
            self.free_buffers.push(buffer);
        }
        if let Err(error) = completion.result {
            flight.fail(Status::from(error));
        }
        if flight.pending == 0 && flight.next(&self.rules) == Next::Done {
            // One that waits, and has failed meanwhile, is answered here.
            self.waiting.retain(|waiting| *waiting != (index, head));
            let written = flight.end();
            ring.push(head, written);
        }
    }

    fn on_message(&mut self, message: Message) {
        // Whoever does not wait any more has gone.
        match message {
            Message::Memory(shared, reply) => drop(reply.send(self.set_memory(&shared))),
            Message::WriteThrough(is_so) => self.rules.write_through = is_so,
            Message::Start(index, set_up, reply) => drop(reply.send(self.start(index, *set_up))),
            Message::Enable(index, is_enabled) => self.enabled[usize::from(index)] = is_enabled,
            Message::Call(index, call) => {
                if let Some(served) = &mut self.rings[usize::from(index)] {
                    served.ring.call = call.map(Event::from);
                    // What was over before may not have been heard of.
                    served.ring.notify_anyway();
                }
            }
            Message::Stop(index, reply) => match &mut self.rings[usize::from(index)] {
                Some(served) => served.stop = Some(reply),
                None => drop(reply.send(0)),
            },
            Message::Gone(reply) => self.gone = Some(reply),
        }
    }

    fn set_memory(&mut self, shared: &[SharedRegion]) -> Result<()> {
        let guest = Arc::new(Guest::new(shared, self.guest.as_deref(), &mut self.remote.backend)?);
        self.rings.iter_mut().flatten().for_each(|served| served.ring.set_guest(Arc::clone(&guest)));
        self.retired.extend(self.guest.replace(guest));
        Ok(())
    }

    fn start(&mut self, index: u16, set_up: RingSetUp) -> Result<()> {
        let guest = self.guest.clone().context("a ring is started before there is memory")?;
        anyhow::ensure!(self.rings[usize::from(index)].is_none(), "a ring is started that is not stopped");
        let size = usize::from(set_up.size);
        let ring = Ring::start(set_up, guest)?;
        self.kicks.add(ring.kick(), EpollEvent::new(EpollFlags::EPOLLIN, index.into()))?;
        let flights = std::iter::repeat_with(Flight::default).take(size).collect();
        self.rings[usize::from(index)] = Some(Served { ring, flights, stop: None });
        Ok(())
    }

    /// Ends rings, memory and frontends that have nothing under way any more.
    fn end_what_stops(&mut self) {
        let has_gone = self.gone.is_some();
        for slot in &mut self.rings {
            let stops = |served: &mut Served| match has_gone {
                true => served.ring.under_way == 0,
                false => served.stop.is_some() && served.ring.is_idle(),
            };
            if let Some(served) = slot.take_if(stops) {
                let _ = self.kicks.delete(served.ring.kick());
                if let Some(reply) = served.stop {
                    let _ = reply.send(served.ring.base());
                }
            }
        }
        if has_gone && self.rings.iter().all(Option::is_none) {
            self.retired.extend(self.guest.take());
            self.enabled = Default::default();
            if let Some(reply) = self.gone.take() {
                let _ = reply.send(());
            }
        }
        while let Some(at) = self.retired.iter().position(|guest| Arc::strong_count(guest) == 1) {
            let over = self.retired.swap_remove(at);
            let others = self.retired.iter().chain(&self.guest).map(|guest| &**guest);
            over.deregister(&others, &mut self.remote.backend);
        }
    }

    /// Has the guest say when there are requests; `true` when there are some already.
    fn wants_kicks(&mut self) -> bool {
        let (enabled, gone) = (self.enabled, self.gone.is_some());
        let rings = self.rings.iter_mut().zip(enabled).filter(|(_, is_enabled)| *is_enabled && !gone);
        let asked = rings.flat_map(|(served, _)| served).map(|served| served.ring.wants_kicks(true));
        let any = asked.fold(false, |any, is_there| any | is_there);
        any && self.waiting.is_empty()
    }

    fn on_woken(&mut self) {
        let mut events = [EpollEvent::empty(); QUEUES_MAX as usize];
        let count = self.kicks.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            if let Some(served) = &mut self.rings[event.data() as usize] {
                served.ring.heard();
            }
        }
        for served in self.rings.iter_mut().flatten() {
            served.ring.wants_kicks(false);
        }
    }
}
