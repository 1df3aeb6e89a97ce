//! A virtqueue: requests out of the available ring, and into the used one.

use super::chain::{Broken, Table};
use super::event::Event;
use super::guest::Guest;
use super::inflight::Inflight;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Address, Bytes, GuestAddress};

/// What a frontend says of a virtqueue before it has it started.
#[derive(Debug)]
pub(super) struct RingSetUp {
    pub(super) size: u16,
    /// In the frontend's process.
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    /// The next entry of the available ring.
    pub(super) base: u16,
    /// Written when there are requests.
    pub(super) kick: File,
    /// To be written when requests are over.
    pub(super) call: Option<File>,
    pub(super) event_idx: bool,
    pub(super) inflight: Option<Inflight>,
}

/// A virtqueue that is served.
pub(super) struct Ring {
    queue: Queue,
    guest: Arc<Guest>,
    kick: Event,
    pub(super) call: Option<Event>,
    inflight: Option<Inflight>,
    /// What the server before had begun: it comes first.
    resumed: std::vec::IntoIter<u16>,
    /// Which requests are under way.
    busy: Vec<bool>,
    /// How many.
    pub(super) under_way: usize,
    /// Something was put into the used ring that the driver may not know of.
    has_news: bool,
    /// The driver broke the rules: nothing more is taken from it.
    is_broken: bool,
}

impl Ring {
    pub(super) fn start(set_up: RingSetUp, guest: Arc<Guest>) -> Result<Self> {
        let mut queue = Queue::new(set_up.size).context("a virtqueue of that size is not served")?;
        let refused = "the rings are not where rings may be";
        let place = |address| guest.of_user(address);
        queue.try_set_desc_table_address(place(set_up.descriptors)?).context(refused)?;
        queue.try_set_avail_ring_address(place(set_up.available)?).context(refused)?;
        queue.try_set_used_ring_address(place(set_up.used)?).context(refused)?;
        queue.set_event_idx(set_up.event_idx);
        queue.set_ready(true);
        ensure!(queue.is_valid(&guest.rings), refused);
        let used_idx = queue.used_idx(&guest.rings, Ordering::Acquire).context(refused)?.0;
        queue.set_next_used(used_idx);
        queue.set_next_avail(set_up.base);
        let mut inflight = set_up.inflight;
        let mut resumed = Vec::new();
        if let Some(left) = inflight.as_mut().and_then(|inflight| inflight.resume(used_idx)) {
            resumed = left;
            resumed.retain(|head| *head < set_up.size);
            // Everything that was taken is over or marked.
            queue.set_next_avail(used_idx.wrapping_add(resumed.len() as u16));
        }
        Ok(Self {
            queue,
            guest,
            kick: set_up.kick.into(),
            call: set_up.call.map(Event::from),
            inflight,
            resumed: resumed.into_iter(),
            busy: vec![false; set_up.size.into()],
            under_way: 0,
            // The driver may have missed what the server before had said last.
            has_news: true,
            is_broken: false,
        })
    }

    pub(super) fn guest(&self) -> &Arc<Guest> {
        &self.guest
    }

    /// The guest's memory is another now: in it, the rings are where they were.
    pub(super) fn set_guest(&mut self, guest: Arc<Guest>) {
        self.is_broken |= !self.queue.is_valid(&guest.rings);
        self.guest = guest;
    }

    /// The table of its descriptors.
    pub(super) fn table(&self) -> Table {
        Table { address: GuestAddress(self.queue.desc_table()), size: self.queue.size() }
    }

    /// Nothing more is taken from it.
    pub(super) fn set_broken(&mut self) {
        self.is_broken = true;
    }

    /// The next request: the head of its chain. With `only_resumed`, of those that had been begun before.
    pub(super) fn pop(&mut self, only_resumed: bool) -> Result<Option<u16>, Broken> {
        if self.is_broken {
            return Ok(None);
        }
        if let Some(head) = self.resumed.next() {
            return self.begin(head).map(Some);
        }
        if only_resumed {
            return Ok(None);
        }
        let memory = &self.guest.rings;
        let outside = |_| Broken("a ring lies outside of memory");
        let next = self.queue.next_avail();
        let ready = self.queue.avail_idx(memory, Ordering::Acquire).map_err(|_| outside(()))?.0;
        let ready = ready.wrapping_sub(next);
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.queue.size() {
            return Err(Broken("the available ring has more requests than it has places"));
        }
        let offset = 4 + 2 * u64::from(next % self.queue.size());
        let place = GuestAddress(self.queue.avail_ring()).checked_add(offset).ok_or(outside(()))?;
        let head = u16::from_le(memory.load(place, Ordering::Relaxed).map_err(|_| outside(()))?);
        if head >= self.queue.size() {
            return Err(Broken("a request's descriptor lies outside of its table"));
        }
        self.queue.set_next_avail(next.wrapping_add(1));
        if let Some(inflight) = self.inflight.as_mut().filter(|_| !self.busy[usize::from(head)]) {
            inflight.begin(head);
        }
        self.begin(head).map(Some)
    }

    fn begin(&mut self, head: u16) -> Result<u16, Broken> {
        if std::mem::replace(&mut self.busy[usize::from(head)], true) {
            return Err(Broken("a request was made again before it was over"));
        }
        self.under_way += 1;
        Ok(head)
    }

    /// A request is over, and so many bytes were written to its memory.
    pub(super) fn push(&mut self, head: u16, len: u32) {
        self.busy[usize::from(head)] = false;
        self.under_way -= 1;
        if let Some(inflight) = &self.inflight {
            inflight.ending(head);
        }
        // Only of rings that are not in memory any more.
        if self.queue.add_used(&self.guest.rings, head, len).is_err() {
            self.is_broken = true;
            return;
        }
        if let Some(inflight) = &self.inflight {
            inflight.ended(head, self.queue.next_used());
        }
        self.has_news = true;
    }

    /// Tells the driver of what is over, if it wants to hear of it.
    pub(super) fn notify(&mut self) {
        if !std::mem::take(&mut self.has_news) {
            return;
        }
        let memory = &self.guest.rings;
        let wants = self.queue.needs_notification(memory).unwrap_or(true);
        let wants = wants && (self.queue.event_idx_enabled() || !self.is_muted());
        if wants {
            self.notify_anyway();
        }
    }

    /// The driver wants no interrupt (VRING_AVAIL_F_NO_INTERRUPT), which the library leaves to others.
    fn is_muted(&self) -> bool {
        let flags = self.guest.rings.load::<u16>(GuestAddress(self.queue.avail_ring()), Ordering::Relaxed);
        flags.is_ok_and(|flags| u16::from_le(flags) & 1 != 0)
    }

    /// Tells the driver of everything, whatever it wants.
    pub(super) fn notify_anyway(&self) {
        if let Some(call) = &self.call {
            call.tell();
        }
    }

    /// Whether the driver is to say when there are requests; `true` when there are some already.
    pub(super) fn wants_kicks(&mut self, wants: bool) -> bool {
        if self.is_broken {
            return false;
        }
        let memory = &self.guest.rings;
        if !wants {
            let _ = self.queue.disable_notification(memory);
            return false;
        }
        self.queue.enable_notification(memory).unwrap_or(false)
    }

    pub(super) fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Takes back a kick that has come.
    pub(super) fn heard(&self) {
        self.kick.heard();
    }

    /// Whether nothing of it is under way, nor was under way when the server before ended.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0 && (self.is_broken || self.resumed.len() == 0)
    }

    /// The next entry of the available ring.
    pub(super) fn base(&self) -> u16 {
        self.queue.next_avail()
    }
}
