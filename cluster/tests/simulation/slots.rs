//! The hosts' side: commands, answers, attempts.

use super::host::Pending;
use super::node::{Command, Input, Node};
use super::plan::{MS, SECOND, Time};
use super::store::Access;
use super::world::{Event, World};

impl World {
    /// Sends a slot's command, a new one or the one that had no answer.
    pub(crate) fn on_slot(&mut self, index: usize) {
        let attempt = self.number();
        let is_stopped = |node: &Node| node.running.as_ref().is_some_and(|running| running.stopped);
        // Another host of the slot, with another path: one that does not know yet that its gateway has stopped.
        if self.slots[index].pending.is_none() && !self.calm && self.rng.percent(30) {
            let stopped = self.nodes.iter().position(is_stopped).filter(|_| self.rng.percent(50));
            let any = self.rng.below(self.nodes.len() as u64) as usize;
            self.slots[index].gateway = stopped.unwrap_or(any);
        }
        let slot = &mut self.slots[index];
        let pending = match &mut slot.pending {
            Some(pending) => pending,
            None => {
                let writes = slot.reservation || self.rng.percent(60);
                if writes {
                    slot.known.sent += 1;
                }
                let write = writes.then_some(slot.known.sent);
                slot.pending.insert(Pending { attempt, seen: slot.known.seen, write, since: self.now })
            }
        };
        pending.attempt = attempt;
        let access = pending.write.map_or(Access::Read, Access::Write);
        let (block, reservation, gateway) = (slot.block, slot.reservation, slot.gateway);
        let command = Command { slot: index, attempt, block, access, reservation };
        let node = &self.nodes[gateway];
        if node.running.is_none() {
            self.slots[index].gateway = (gateway + 1) % self.nodes.len();
            let at = self.now + 50 * MS + self.rng.below(100 * MS);
            return self.at(at, Event::Slot(index));
        }
        let is_stopped = is_stopped(node);
        let (life, cut) = (node.life, node.hosts_cut_until > self.now);
        let after = self.delay(20 * MS);
        if !cut {
            self.send_to(gateway, life, after, 0, Input::Command(command));
        }
        // Some hosts wait until a gateway that has stopped goes on.
        let waits = if is_stopped && self.rng.percent(50) { 20 * SECOND } else { 2 * SECOND };
        let at = self.now + 2 * SECOND + self.rng.below(waits);
        self.at(at, Event::Timeout { slot: index, attempt });
    }

    /// Hosts that use a block rarely leave its OSD without news.
    fn pause(&mut self) -> Time {
        let is_rare = self.plan.moves_on && !self.calm && self.rng.percent(50);
        if is_rare { self.rng.below(8 * SECOND) } else { 0 }
    }

    fn is_current(&self, slot: usize, attempt: u64) -> bool {
        self.slots[slot].pending.is_some_and(|pending| pending.attempt == attempt)
    }

    pub(crate) fn on_slot_timeout(&mut self, slot: usize, attempt: u64) {
        if self.is_current(slot, attempt) {
            self.outcome.retried += 1;
            self.slots[slot].gateway = (self.slots[slot].gateway + 1) % self.nodes.len();
            self.on_slot(slot);
        }
    }

    pub(crate) fn on_answer(
        &mut self,
        index: usize,
        attempt: u64,
        node: usize,
        number: Option<u64>,
    ) -> Result<(), String> {
        // The host has given up that connection.
        if !self.is_current(index, attempt) {
            return Ok(());
        }
        let slot = &mut self.slots[index];
        let Some(number) = number else {
            self.outcome.refused += 1;
            slot.gateway = (node + 1) % self.nodes.len();
            if let Some(pending) = &mut slot.pending {
                pending.attempt = 0;
            }
            let at = self.now + 20 * MS + self.rng.below(100 * MS);
            self.at(at, Event::Slot(index));
            return Ok(());
        };
        let Some(pending) = slot.pending.take() else { return Ok(()) };
        let (group, block) = slot.block;
        match pending.write {
            Some(number) => slot.known.seen = slot.known.seen.max(number),
            None => slot
                .known
                .on_read(pending.seen, number)
                .map_err(|what| format!("group {group}, block {block}, through gw{node}: {what}"))?,
        }
        self.outcome.commands += 1;
        self.outcome.longest = self.outcome.longest.max(self.now - pending.since);
        let at = self.now + 50 * MS + self.rng.below(300 * MS) + self.pause();
        self.at(at, Event::Slot(index));
        Ok(())
    }
}
