//! A connection of a host's queue, made of two: from the host to the network, and on to the target.

use super::flow::{End, Faults, Flips, Flow, Travel};
use crate::rng::Rng;
use crate::simulation::network::Side;
use core::time::Duration;
use nvmf_stream::Poller;
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

/// Turns after which the target is sure to have seen that a connection ended.
const TURNS_TO_SEE: u64 = 16;

/// A connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) route: usize,
    /// Whether it is the Admin queue's.
    pub(super) admin: bool,
    /// By side; `None` once it is closed.
    sockets: [Option<TcpStream>; 2],
    /// By the side that they lead to.
    flows: [Flow; 2],
    /// The side's socket has broken, of which a write was told.
    broken: [bool; 2],
    /// By side: when the network takes more of what it sends.
    takes_from: [Duration; 2],
    /// The turn in which the target's end was reset by the network.
    target_reset: Option<u64>,
    /// The target has closed it.
    target_closed: bool,
    /// The process that had the host's end was killed.
    pub(super) host_is_gone: bool,
    /// The network did something to it.
    pub(super) cut: bool,
}

impl Link {
    pub(super) fn new(route: usize, admin: bool, host: TcpStream, target: TcpStream) -> Self {
        Self {
            route,
            admin,
            sockets: [Some(host), Some(target)],
            flows: Default::default(),
            broken: [false; 2],
            takes_from: [Duration::ZERO; 2],
            target_reset: None,
            target_closed: false,
            host_is_gone: false,
            cut: false,
        }
    }

    pub(super) fn flow(&self, to: Side) -> &Flow {
        &self.flows[to as usize]
    }

    /// Whether the host still has it.
    pub(super) fn host_has_it(&self) -> bool {
        !self.host_is_gone && self.sockets[Side::Host as usize].is_some()
    }

    /// When something arrives at a side.
    pub(super) fn next_due(&self, side: Side) -> Option<Duration> {
        self.flow(side).next_due()
    }

    /// Whether nothing is left to be done.
    pub(super) fn is_over(&self) -> bool {
        let over = |side: Side| self.sockets[side as usize].is_none() || self.flows[side as usize].done;
        over(Side::Host) && over(Side::Target)
    }

    /// Reads what a side sent. Returns how many bytes there were.
    pub(super) fn read(
        &mut self,
        side: Side,
        now: Duration,
        poller: &Poller,
        (travel, faults): (&Travel, &Faults),
        rng: &mut Rng,
        flips: &mut Flips,
    ) -> usize {
        let (from, to) = (side as usize, side.other() as usize);
        if now < self.takes_from[from] {
            self.acknowledge(side);
            return 0;
        }
        let mut len = 0;
        let mut buffer = [0; 16 * 1024];
        let mut had_bytes = false;
        while let Some(socket) = &mut self.sockets[from] {
            match socket.read(&mut buffer) {
                Ok(0) if !self.broken[from] => {
                    poller.remove(&*socket);
                    self.flows[to].end(now + Duration::from_micros(rng.below(travel.farthest)), End::Fin);
                    self.target_closed |= side == Side::Target;
                    break;
                }
                Ok(n) if n > 0 => {
                    flips.add(self.flows[to].push(now, &mut buffer[..n], travel, faults, rng));
                    len += n;
                    had_bytes = true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && had_bytes => {
                    self.acknowledge(side);
                    had_bytes = false;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(_) | Err(_) => {
                    self.sockets[from] = None;
                    self.flows[to].end(now + Duration::from_micros(rng.below(travel.farthest)), End::Reset);
                    self.target_closed |= side == Side::Target;
                }
            }
        }
        if len > 0 && rng.below(1_000_000) < faults.stall {
            self.takes_from[from] = now + Duration::from_micros(rng.below(20_000));
        }
        len
    }

    /// Acknowledges what a side sent. Its kernel may wait for that, and must not wait for a timer.
    fn acknowledge(&self, side: Side) {
        if let Some(socket) = &self.sockets[side as usize] {
            let _ = SockRef::from(socket).set_tcp_quickack(true);
        }
    }

    /// Hands a side what has arrived; whether there was anything. `resets`: ends in order become resets if both sides
    /// have ended.
    pub(super) fn deliver(&mut self, side: Side, now: Duration, turn: u64, resets: bool) -> bool {
        let index = side as usize;
        let (both, may_see) = (self.flows[side.other() as usize].done, self.may_see_end(side, turn));
        let flow = &mut self.flows[index];
        let Some(socket) = &mut self.sockets[index] else {
            let had = !flow.done;
            flow.done = true;
            return had;
        };
        let mut bytes = Vec::new();
        flow.arrived(now, &mut bytes);
        flow.blocked = false;
        let mut taken = 0;
        while taken < bytes.len() {
            match socket.write(&bytes[taken..]) {
                Ok(n) => taken += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    flow.blocked = true;
                    break;
                }
                Err(_) => {
                    // What the side sent before is still to be read, and then how it ended.
                    self.broken[index] = true;
                    taken = bytes.len();
                }
            }
        }
        flow.taken(taken);
        let Some(end) = flow.arrived_end(now).filter(|_| may_see) else { return taken > 0 };
        flow.done = true;
        if end == End::Fin && !(both && resets) {
            let _ = socket.shutdown(Shutdown::Write);
        } else {
            reset(self.sockets[index].take());
            if side == Side::Target {
                self.target_reset = Some(turn);
            }
        }
        true
    }

    /// Whether a side may see an end that has arrived. The end of an Admin queue's connection shows a host that the
    /// target has ended its side (SEMANTICS.md, 18), so it must have.
    fn may_see_end(&self, side: Side, turn: u64) -> bool {
        let has_seen = self.target_reset.is_some_and(|reset| turn > reset + TURNS_TO_SEE);
        side == Side::Target || !self.admin || self.target_closed || has_seen
    }

    /// Cuts it at any byte of each direction.
    pub(super) fn cut_anywhere(&mut self, now: Duration, rng: &mut Rng) {
        self.cut = true;
        for flow in &mut self.flows {
            let keep = rng.below(flow.len() as u64 + 1) as usize;
            flow.cut(keep);
            let end = if rng.percent(60) { End::Reset } else { End::Fin };
            flow.end_cut(now + Duration::from_micros(rng.below(1000)), end);
        }
    }

    /// Breaks it so that `first` notices at once, the other side after `notice`, and gets after `late` what was under
    /// way to it. A host notices the loss of its Admin queue by itself: there is no reset that the target did not send.
    pub(super) fn break_half_open(&mut self, first: Side, now: Duration, late: Duration, notice: Duration) {
        self.cut = true;
        let (first_flow, other_flow) = (first as usize, first.other() as usize);
        self.flows[first_flow].cut(0);
        let silent = self.admin && first == Side::Host;
        let told = if silent { notice.max(late) } else { Duration::ZERO };
        self.flows[first_flow].end_cut(now + told, End::Reset);
        self.flows[other_flow].hold(now + late, now + notice);
    }
}

/// Closes a connection with a reset.
pub(super) fn reset(socket: Option<TcpStream>) {
    if let Some(socket) = socket {
        let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    }
}
