//! Commands that wait because of the limits of their host or namespace. They hold no buffer.
//!
//! A command passes its host's limit first and then its namespace's. At each, the queues of this worker take turns.

use super::queue::{Queue, QueueState};
use super::request::RequestState;
use super::resources::Resources;
use super::transport::Transport;
use crate::limits::TIMER_GRAIN;
use crate::metrics::worker::Phase;
use crate::qos::LimitTable;
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_subsystem::{BlockWork, Transfer, Work};
use std::collections::VecDeque;
use std::sync::Arc;

/// Limits that a command passes, one after the other.
const STAGES: usize = 2;

/// What a worker knows of limits, and the queues that wait.
#[derive(Debug, Default)]
pub struct Limited {
    /// None: nothing is limited.
    table: Option<Arc<LimitTable>>,
    /// Queues with commands that wait for a limit, each once, by the limit's number.
    waiting: Vec<VecDeque<u32>>,
    /// The numbers of those that any wait for.
    awaited: Vec<u16>,
    /// When one of them may go on.
    due: Option<Duration>,
    /// The target stops: what was taken up is answered, whatever the limits.
    released: bool,
}

impl Limited {
    /// Whether anything is limited.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.table.is_some()
    }

    /// When [`Limited::is_due`] is to be asked.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Whether commands that wait are to be looked at.
    #[must_use]
    pub fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// From now on nothing waits.
    pub fn release(&mut self) {
        self.released = true;
        self.due = (!self.awaited.is_empty()).then_some(Duration::ZERO);
    }

    /// Other limits. Every queue is to be told ([`Queue::on_limits`]).
    pub fn replace(&mut self, table: Arc<LimitTable>) {
        self.waiting = (0..table.len()).map(|_| VecDeque::new()).collect();
        (self.awaited, self.due) = (Vec::new(), None);
        self.table = (!table.is_empty()).then_some(table);
    }

    /// A queue was removed.
    pub fn forget(&mut self, queue: u32) {
        for &number in &self.awaited {
            self.waiting[usize::from(number)].retain(|&other| other != queue);
        }
    }

    /// The limits that anything waits for, to be asked for their queues by [`Limited::next_waiting`].
    pub fn take_awaited(&mut self) -> Vec<u16> {
        self.due = None;
        core::mem::take(&mut self.awaited)
    }

    /// The queue whose turn it is at the limit.
    pub fn next_waiting(&mut self, number: u16) -> Option<u32> {
        self.waiting[usize::from(number)].pop_front()
    }

    /// The limits that were looked at: those that anything still waits for are looked at again, at the time when they
    /// open, but not at once (the burst covers what they let through meanwhile), unless they were not all looked at.
    pub fn put_back(&mut self, now: Duration, looked_at: Vec<u16>, unfinished: bool) {
        let Some(table) = &self.table else { return };
        for number in looked_at {
            if !self.waiting[usize::from(number)].is_empty() && !self.awaited.contains(&number) {
                self.awaited.push(number);
            }
        }
        let opens = self.awaited.iter().map(|&number| table.limit(number).opens_at()).min();
        self.due =
            opens.map(|opens| if self.released || unfinished { now } else { opens.max(now + TIMER_GRAIN) });
    }

    /// A queue waits for the limit, behind the others.
    fn wait(&mut self, number: u16, queue: u32, first: bool) {
        let Some(table) = &self.table else { return };
        let waiting = &mut self.waiting[usize::from(number)];
        if first {
            waiting.push_front(queue);
        } else if !waiting.contains(&queue) {
            waiting.push_back(queue);
        }
        if !self.awaited.contains(&number) {
            self.awaited.push(number);
        }
        self.due = self.due.into_iter().chain([table.limit(number).opens_at()]).min();
    }

    /// Whether a command may begin at the limit; it is taken then. One that did not wait yet goes behind those that do.
    fn take(&self, number: u16, now: Duration, bytes: u32, waited: bool) -> bool {
        let Some(table) = &self.table else { return true };
        self.released
            || (waited || self.waiting[usize::from(number)].is_empty())
                && table.limit(number).take(now, bytes)
    }
}

impl<T: Transport> Queue<T> {
    /// The limits that a command passes, in this order: those that are not there it has passed.
    fn limits_of<B: Backend>(&self, resources: &Resources<T, B>, request: u16) -> [Option<u16>; STAGES] {
        let request = &self.requests[usize::from(request)];
        let Some(table) = &resources.limited.table else { return [None; STAGES] };
        match &request.work {
            // What makes data durable is no load that a limit is for.
            Some(Work::Block { op: BlockWork::Flush, .. }) | None => [None; STAGES],
            Some(Work::Block { device, .. }) => [self.host_limit, table.of_device(*device)],
            Some(Work::Parameters | Work::Page(_)) => [None; STAGES],
        }
    }

    /// Whether a command may begin; if not, it waits. `from`: the first of its limits that it has not passed.
    pub(super) fn pass_limits<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        from: usize,
    ) -> bool {
        let limits = self.limits_of(resources, request);
        let bytes = self.limited_bytes(request);
        for number in limits.into_iter().skip(from).flatten() {
            if !resources.limited.take(number, resources.now, bytes, false) {
                resources.counters.waits_limit.add(1);
                let this = self.request(request);
                this.state = RequestState::AwaitLimit;
                this.waits_since_us = resources.meter.now_us();
                self.limited.push_back((number, request));
                resources.limited.wait(number, self.index, false);
                return false;
            }
        }
        true
    }

    /// Bytes of data that a command moves.
    fn limited_bytes(&self, request: u16) -> u32 {
        let request = &self.requests[usize::from(request)];
        if matches!(request.transfer, Transfer::None) { 0 } else { request.end }
    }

    /// It is this queue's turn at a limit. `false`: the limit lets nothing more through now.
    pub fn on_limit<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        number: u16,
    ) -> bool {
        let position = self.limited.iter().position(|&(of, _)| of == number);
        let Some((position, &(_, request))) = position.and_then(|at| Some((at, self.limited.get(at)?)))
        else {
            return true;
        };
        if !resources.limited.take(number, now, self.limited_bytes(request), true) {
            resources.limited.wait(number, self.index, true);
            return false;
        }
        self.limited.remove(position);
        if self.limited.iter().any(|&(of, _)| of == number) {
            resources.limited.wait(number, self.index, false);
        }
        let passed = self.limits_of(resources, request).iter().position(|&of| of == Some(number));
        self.end_wait(resources, request);
        if self.pass_limits(resources, request, passed.map_or(STAGES, |at| at + 1)) {
            self.advance(resources, now, request, false);
        }
        true
    }

    /// There are other limits: what waits is looked at by those.
    pub fn on_limits<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration) {
        self.find_host_limit(resources);
        for (_, request) in core::mem::take(&mut self.limited) {
            if self.state == QueueState::Closed {
                continue;
            }
            self.end_wait(resources, request);
            if self.pass_limits(resources, request, 0) {
                self.advance(resources, now, request, false);
            }
        }
    }

    fn end_wait<B: Backend>(&mut self, resources: &Resources<T, B>, request: u16) {
        let this = self.request(request);
        this.state = RequestState::Executing;
        resources.meter.record(&mut this.footprint, Phase::Limit, this.waits_since_us);
    }

    /// Finds the limit of the queue's host.
    pub(super) fn find_host_limit<B: Backend>(&mut self, resources: &Resources<T, B>) {
        let association = self.admitted.as_ref().map(|(association, _)| association);
        let of_host = |table: &Arc<LimitTable>| association.and_then(|it| table.of_host(it));
        self.host_limit = resources.limited.table.as_ref().and_then(of_host);
    }
}
