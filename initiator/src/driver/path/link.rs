//! Queues: opened, connected, closed; the transport, replaced when its device is lost.

use super::queue::{LinkState, Owner, Queue};
use super::{Lost, Note, Path, Unanswered};
use crate::address::AddressSource;
use crate::driver::fence::Impacted;
use crate::driver::operation::OTHERS;
use crate::transport::{Event, OpenQueue, Transport};
use core::time::Duration;
use nvme_proto::Qid;
use nvmf_host::{Association, AssociationConfig, AssociationError, FlowControl, QueueFailure};

/// How long is looked whether a controller that ended an I/O queue ended them all: one that died has.
const IO_END_GRACE: Duration = Duration::from_millis(20);
/// Connection events taken in one turn.
const EVENTS_AT_ONCE: usize = 16;

/// An I/O queue that the controller ended.
#[derive(Debug)]
pub(super) struct IoEnd {
    pub(super) qid: Qid,
    pub(super) cause: String,
    /// Until then its Admin queue may be seen to have ended, too.
    pub(super) until: Duration,
}

impl<T: Transport> Path<T> {
    /// Begins a new association, over a new transport if the device of the last one may be gone.
    pub(super) fn reconnect(&mut self, now: Duration) {
        self.ended_by_controller = false;
        (self.io_end, self.admin_lost, self.raw_lost) = (None, false, false);
        self.read_secrets_again();
        let was_unknown = self.config.is_address_unknown();
        if let Some(address) = self.config.address_source.as_ref().and_then(AddressSource::read) {
            self.config.address = address;
        }
        // An authentication makes a new key. Without one there is nothing that could fail.
        let _ = self.transport.secure(None);
        let made = self
            .replace_transport(was_unknown && !self.config.is_address_unknown())
            .map_err(|reason| AssociationError::Queue { qid: Qid(0), failure: QueueFailure::Other(reason) });
        // Nobody waits for this one.
        let association = self.config.association.clone();
        let setup_command_timeout = association.admin_timeout;
        let config = AssociationConfig { setup_timeout: None, setup_command_timeout, ..association };
        match made.and_then(|()| Association::new(config, now)) {
            Ok(association) => self.association = Some(association),
            Err(error) => {
                self.on_failed(now, error);
                // There is nothing to close.
                self.recovery.on_closed(now);
            }
        }
    }

    /// Replaces the transport if its device may be gone, or if it `is_due`, and registers all memory with the new one.
    fn replace_transport(&mut self, is_due: bool) -> Result<(), String> {
        if !is_due && !self.transport.is_suspect() {
            return Ok(());
        }
        let Some(factory) = &mut self.factory else { return Ok(()) };
        let mut transport = factory()?;
        self.config.prepare(&mut transport).map_err(|e| e.to_string())?;
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            let registered = region.as_ref().map(|region| transport.register(&region.memory));
            regions.push(registered.transpose().map_err(|e| e.to_string())?);
        }
        for (region, anew) in self.regions.iter_mut().zip(regions) {
            if let (Some(region), Some(anew)) = (region, anew) {
                region.region = anew;
            }
        }
        self.transport = transport;
        self.replaced = self.replaced.wrapping_add(1);
        Ok(())
    }

    pub(super) fn open_queue(&mut self, now: Duration, qid: Qid, private_data: &[u8; 32], entries: u16) {
        let index = usize::from(qid.0);
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        let queue = OpenQueue {
            qid,
            entries,
            address: self.config.address,
            source: self.config.source,
            private_data,
            timeout: self.config.association.connect_timeout,
        };
        self.queues[index] = Some(Queue::new(qid, entries));
        let opened = match self.config.is_address_unknown() {
            true => Err(QueueFailure::Unreachable("its name has no address".to_owned())),
            false => self.transport.open(now, &queue),
        };
        // In the next turn: until then it may turn out to be one of several paths.
        self.unopened.extend(opened.err().map(|failure| (qid, failure)));
    }

    pub(super) fn poll_connections(&mut self, now: Duration) -> bool {
        let mut worked = false;
        while let Some((qid, failure)) = self.unopened.pop_front() {
            worked = true;
            self.on_connect_failed(now, qid, failure);
            self.act(now);
            self.close_if_gone(now);
        }
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.transport.poll_event(now) else { break };
            worked = true;
            match event {
                Event::Connected { qid, private_data } => self.on_connected(now, qid, &private_data),
                Event::Failed(qid, failure) => self.on_connect_failed(now, qid, failure),
                Event::Disconnected { qid, cause, peer_has_ended } => {
                    let Some(queue) = self.queue(qid) else { continue };
                    queue.link = LinkState::Closed;
                    if qid.is_admin() || !peer_has_ended {
                        self.on_lost(now, qid, &cause, peer_has_ended);
                    } else if self.io_end.is_none() {
                        self.io_end = Some(IoEnd { qid, cause, until: now + IO_END_GRACE });
                    }
                }
                Event::Other => {}
            }
            self.act(now);
            self.close_if_gone(now);
        }
        worked
    }

    /// A queue's connection is lost, and with it the association. `by_controller`: the controller ended its Admin queue,
    /// and with that all others.
    pub(super) fn on_lost(&mut self, now: Duration, qid: Qid, cause: &str, by_controller: bool) {
        self.io_end = None;
        if let (false, Some(association)) = (self.closing, &mut self.association) {
            self.ended_by_controller = by_controller;
            association.on_disconnected(now, qid, cause);
        }
    }

    fn queue(&mut self, qid: Qid) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(qid.0))?.as_mut()
    }

    fn on_connected(&mut self, now: Duration, qid: Qid, private_data: &[u8]) {
        // One that was given up while it was being connected goes with the others: nobody would close it.
        let Some(queue) = self.queue(qid).filter(|queue| queue.link == LinkState::Connecting) else { return };
        queue.link = LinkState::Connected;
        let Some(association) = &mut self.association else { return };
        if let Some(entries) = association.on_queue_connected(now, qid, private_data) {
            self.agree(qid, entries, FlowControl::Sqhd);
        }
    }

    fn agree(&mut self, qid: Qid, entries: u16, flow_control: FlowControl) {
        if let Some(queue) = self.queue(qid) {
            queue.agree(entries, flow_control);
            self.transport.resize(qid, entries);
        }
    }

    fn on_connect_failed(&mut self, now: Duration, qid: Qid, failure: QueueFailure) {
        let Some(queue) = self.queue(qid) else { return };
        queue.link = LinkState::Closed;
        if let Some(association) = &mut self.association {
            association.on_queue_failed(now, qid, failure);
        }
    }

    /// Every queue is connected: what Connect agreed about flow control holds now.
    pub(super) fn on_ready(&mut self, now: Duration) {
        self.lost = None;
        let Some(association) = &self.association else { return };
        self.quiesce = Some(association.quiesce_time(now, false));
        let controller = association.controller();
        if controller.flow_control == FlowControl::Disabled {
            let entries = controller.io_queue_entries;
            for qid in 1..self.queues.len() as u16 {
                self.agree(Qid(qid), entries, FlowControl::Disabled);
            }
        }
    }

    /// Closes what is connected, and forgets the rest.
    pub(super) fn close_queues(&mut self, now: Duration) {
        self.closing = true;
        if self.has_company && !self.shut {
            // What was in flight goes on elsewhere as soon as nothing of this path's can reach its memory.
            self.queues.iter_mut().flatten().for_each(|queue| queue.link = LinkState::Closed);
        }
        for queue in self.queues.iter_mut().flatten() {
            match queue.link {
                LinkState::Connected => self.transport.disconnect(queue.qid, self.shut),
                LinkState::Connecting => queue.link = LinkState::Closed,
                LinkState::Closed => {}
            }
        }
        self.close_if_gone(now);
    }

    /// Its connections are being closed, which may take its time.
    pub(super) fn is_closing(&self) -> bool {
        self.closing && !self.shut
    }

    fn close_if_gone(&mut self, now: Duration) {
        if !self.closing || self.queues.iter().flatten().any(|queue| queue.link != LinkState::Closed) {
            return;
        }
        self.destroy_queues();
        if let Some(association) = &mut self.association {
            association.on_closed(now);
        }
        self.act(now);
    }

    /// Destroys every queue. From here on nothing that was in flight can reach our memory.
    pub(super) fn destroy_queues(&mut self) {
        self.closing = false;
        self.computing = None;
        self.seconds = 0;
        self.unopened.clear();
        for queue in self.queues.drain(..).flatten() {
            self.transport.destroy(queue.qid);
            let is_io = queue.qid != Qid(0);
            for owner in queue.into_owners() {
                if let Owner::Admin(number) = owner {
                    self.admin_lost = true;
                    self.raw_lost |= is_io;
                    self.notes.push_back(Note::Admin(number, Err(Unanswered::Lost)));
                }
            }
        }
        self.forget_admin_in_flight();
    }

    /// The association is at its end.
    pub(super) fn on_closed(&mut self, now: Duration) {
        let lost = self.association.take().map(|association| Lost {
            impacted: Impacted {
                controller: association.controller().instance.map(|instance| (self.config.address, instance)),
                until: now.saturating_add(association.quiesce_time(now, self.ended_by_controller)),
                // The user, who is told of its end, looks for what became of it.
                reads: self.raw_lost,
            },
            admin: self.admin_lost,
        });
        if self.shut {
            self.recovery.stop();
        }
        self.recovery.on_closed(now);
        self.notes.push_back(Note::Closed(lost));
    }

    /// The next I/O queue for operations of this kind, in turn, that has room for so many commands, or for all that it can have.
    pub(in crate::driver) fn next_queue(&mut self, kind: usize, commands: usize) -> Option<usize> {
        let all = self.queues.len().checked_sub(1)?;
        // A controller may give fewer queues than there are to be for the others alone.
        let others = Some(usize::from(self.config.write_queues)).filter(|&others| others < all).unwrap_or(0);
        let (first, count) = match kind {
            _ if others == 0 => (1, all),
            OTHERS => (1, others),
            _ => (1 + others, all - others),
        };
        for _ in 0..count {
            let round = &mut self.rounds[kind];
            *round = (*round + 1) % count;
            let index = first + *round;
            if self.queues[index].as_ref().is_some_and(|queue| queue.room() >= commands.min(queue.capacity()))
            {
                return Some(index);
            }
        }
        None
    }
}
