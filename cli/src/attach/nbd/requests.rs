//! The requests of all clients, from their header until their reply has left.

use super::disk::DiskInfo;
use super::order::Order;
use super::pool::Pool;
use super::request::{Extent, Need, STEPS, UnderWay};
use nbd_proto::{Command, Errno, Request};
use nvmf_block::{Backend, BlockOp, Completion, DeviceId, Tag};
use nvmf_memory::Memory;
use std::collections::VecDeque;

/// The requests of a disk. Each has a number, which is its operations' tag.
pub(super) struct Requests {
    disk: DiskInfo,
    device: DeviceId,
    all: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    pub(super) pool: Pool,
    pub(super) order: Order,
    /// Operations that the backend had no room for, by client, and the clients in the order of their turns.
    waiting: Vec<VecDeque<(Tag, BlockOp)>>,
    turns: VecDeque<u32>,
    /// Requests that have ended, to be answered.
    ended: VecDeque<u32>,
    /// Something was submitted since the backend was flushed.
    is_dirty: bool,
}

impl Requests {
    pub(super) fn new(disk: DiskInfo, device: DeviceId) -> Self {
        Self {
            disk,
            device,
            all: Vec::new(),
            free: Vec::new(),
            pool: Pool::default(),
            order: Order::default(),
            waiting: Vec::new(),
            turns: VecDeque::new(),
            ended: VecDeque::new(),
            is_dirty: false,
        }
    }

    /// The disk is so now.
    pub(super) fn change(&mut self, bytes: u64, read_only: bool) {
        (self.disk.bytes, self.disk.read_only) = (bytes, read_only);
    }

    /// What the clients are told of the disk.
    pub(super) fn disk(&self) -> &DiskInfo {
        &self.disk
    }

    /// What a request needs.
    pub(super) fn need(&self, request: &Request) -> Need {
        Need::of(request, &self.disk)
    }

    /// Takes a request, which may be refused: its number. `None` when it must wait for memory; one that may not wait is
    /// refused instead.
    pub(super) fn admit(
        &mut self,
        client: u32,
        request: Request,
        need: Need,
        may_wait: bool,
        backend: &mut impl Backend,
    ) -> Option<u32> {
        let Need { mut errno, data, edges, units } = need;
        if may_wait && !self.pool.has_room(data + edges) {
            return None;
        }
        let mut take = |len| (len > 0).then(|| self.pool.take(len, backend));
        let chains = [take(data), take(edges)];
        let lacks_memory = chains.contains(&Some(None));
        let [data, edges] = chains.map(Option::flatten);
        if lacks_memory && may_wait {
            [data, edges].into_iter().flatten().for_each(|chain| self.pool.put(chain));
            return None;
        }
        if lacks_memory {
            errno = Errno::ENOMEM;
        }
        let under_way =
            UnderWay { client, request, errno, data, edges, units, has_begun: false, step: 0, pending: 0 };
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            u32::try_from(self.all.len() - 1).expect("the clients' budgets bound it")
        });
        self.all[index as usize] = Some(under_way);
        Some(index)
    }

    /// A request.
    ///
    /// # Panics
    /// When its number was given back.
    pub(super) fn get(&self, index: u32) -> &UnderWay {
        self.all[index as usize].as_ref().expect("a number names a request until it is released")
    }

    fn get_mut(&mut self, index: u32) -> &mut UnderWay {
        self.all[index as usize].as_mut().expect("a number names a request until it is released")
    }

    /// Bytes that follow the header.
    pub(super) fn payload_len(&self, index: u32) -> usize {
        let request = &self.get(index).request;
        if request.command == Command::Write { request.len as usize } else { 0 }
    }

    /// Where the payload from `received` on belongs, in one piece: memory, offset, length. `None`: it is dropped.
    pub(super) fn place(&self, index: u32, received: usize) -> Option<(&Memory, usize, usize)> {
        let under_way = self.get(index);
        let data = under_way.data.filter(|_| under_way.errno == Errno::OK)?;
        let at = Extent::new(&under_way.request, &self.disk).displacement() + received;
        let part = self.pool.parts(data, at, self.payload_len(index) - received).next()?;
        Some((part.memory, part.buffer.offset, part.buffer.len))
    }

    /// Bytes of the payload, from `received` on.
    pub(super) fn on_payload(&mut self, index: u32, received: usize, bytes: &[u8]) {
        let under_way = self.get(index);
        if let (Some(data), Errno::OK) = (under_way.data, under_way.errno) {
            let at = Extent::new(&under_way.request, &self.disk).displacement() + received;
            self.pool.write(data, at, bytes);
        }
    }

    /// All of a request was received: begins it if it may begin now. If not, [`Requests::next`] does.
    pub(super) fn begin(&mut self, index: u32, backend: &mut impl Backend) -> bool {
        let under_way = self.get(index);
        if under_way.errno != Errno::OK {
            self.ended.push_back(index);
            return true;
        }
        // Who changes a part of a block must have the disk for itself.
        let may = self.order.begin(index, under_way.edges.is_some());
        if may {
            self.start(index, backend);
        }
        may
    }

    /// Begins a request that waited for others, if there is one that may begin now.
    pub(super) fn next(&mut self, backend: &mut impl Backend) -> Option<u32> {
        let index = self.order.next()?;
        self.start(index, backend);
        Some(index)
    }

    fn start(&mut self, index: u32, backend: &mut impl Backend) {
        self.get_mut(index).has_begun = true;
        self.next_step(index, backend);
    }

    /// Submits the operations of the next step that has any; without one, the request has ended.
    fn next_step(&mut self, index: u32, backend: &mut impl Backend) {
        let Self { all, waiting, turns, .. } = self;
        let under_way = all[index as usize].as_mut().expect("a number names a request until it is released");
        let tag = Tag(index.into());
        let client = under_way.client as usize;
        if waiting.len() <= client {
            waiting.resize_with(client + 1, VecDeque::new);
        }
        while under_way.pending == 0 && under_way.errno == Errno::OK && under_way.step < STEPS {
            let mut submitted = 0;
            under_way.operations(&self.disk, &self.pool, |op| {
                submitted += 1;
                // Those that wait go first.
                if !turns.is_empty() || backend.submit(tag, self.device, op).is_err() {
                    if waiting[client].is_empty() {
                        turns.push_back(client as u32);
                    }
                    waiting[client].push_back((tag, op));
                }
            });
            under_way.pending = submitted;
            under_way.step += 1;
            self.is_dirty |= submitted > 0;
        }
        if under_way.pending == 0 {
            self.order.end();
            self.ended.push_back(index);
        }
    }

    /// An operation has ended.
    pub(super) fn on_completion(&mut self, completion: Completion, backend: &mut impl Backend) {
        let index = completion.tag.0 as u32;
        let under_way = self.get_mut(index);
        under_way.on_result(completion.result);
        if under_way.pending == 0 {
            self.next_step(index, backend);
        }
    }

    /// Submits what waited for room, an operation of each client in turn, and has the backend start what was submitted.
    pub(super) fn flush(&mut self, backend: &mut impl Backend) {
        while let Some(&client) = self.turns.front()
            && let operations = &mut self.waiting[client as usize]
            && let Some(&(tag, op)) = operations.front()
            && backend.submit(tag, self.device, op).is_ok()
        {
            operations.pop_front();
            self.turns.pop_front();
            if !operations.is_empty() {
                self.turns.push_back(client);
            }
            self.is_dirty = true;
        }
        if core::mem::take(&mut self.is_dirty) {
            backend.flush();
        }
    }

    /// The next request that has ended and is to be answered.
    pub(super) fn next_ended(&mut self) -> Option<u32> {
        self.ended.pop_front()
    }

    /// Ends a request that has not begun: nobody waits for it any more.
    pub(super) fn drop_waiting(&mut self, index: u32) -> u32 {
        self.order.forget(index);
        self.release(index)
    }

    /// Gives a request's number and memory back: what it took of the budget.
    pub(super) fn release(&mut self, index: u32) -> u32 {
        let Some(under_way) = self.all[index as usize].take() else { return 0 };
        for chain in [under_way.data, under_way.edges].into_iter().flatten() {
            self.pool.put(chain);
        }
        self.free.push(index);
        under_way.units
    }
}
