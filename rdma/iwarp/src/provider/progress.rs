//! Reading and writing sockets, each within a budget.

use super::IwarpProvider;
use super::connection::{Connection, Link, Open, Phase};
use crate::poller::{Interest, Token};
use nvmf_rdma::DisconnectCause;

/// Queue pairs that received bytes lately, whose sockets are read without asking epoll first.
pub(super) const ACTIVE_MAX: usize = 16;
/// With more of them than this, epoll is asked after all when most had no bytes: one empty read costs as much as
/// epoll's answer for all of them.
const ASKED_ABOVE: usize = 2;
/// Reads in a row that find nothing, after which a queue pair leaves that list.
const IDLE_TURNS: u8 = 64;
/// Turns between two questions to epoll while that list is not empty.
const TURNS_PER_POLL: u8 = 4;
/// Bytes taken from one socket in one turn; of several, each has its part.
const RECEIVE_BUDGET: usize = 512 * 1024;
/// Bytes given to one socket in one turn; likewise.
const SEND_BUDGET: usize = 1024 * 1024;
/// The smallest part.
const BUDGET_MIN: usize = 128 * 1024;
/// The rest of a segment that is worth a place of its own in the read.
const DIRECT_MIN: usize = 8 * 1024;
/// Staging behind such a rest: the next headers, and no more of the next payload than must be copied.
const DIRECT_STAGING: usize = 4 * 1024;

fn part(budget: usize, sockets: usize) -> usize {
    (budget / sockets.max(1)).max(BUDGET_MIN)
}

impl IwarpProvider {
    pub(super) fn progress(&mut self) {
        let asked = self.active.len() > ASKED_ABOVE && self.had_bytes * 2 < self.active.len();
        self.had_bytes = 0;
        if !asked {
            self.look_at_active(|provider, key| provider.receive(key));
        }
        if asked || self.active.is_empty() || self.turns_to_poll == 0 {
            self.turns_to_poll = TURNS_PER_POLL;
            self.dispatch_ready(asked);
        }
        self.turns_to_poll -= 1;
        if asked {
            // Those that received bytes count their idle turns anew.
            self.look_at_active(|_, _| false);
        }
        self.send_dirty();
    }

    /// Asks of each active queue pair whether it `had_bytes`; one that has had none for long is active no more.
    fn look_at_active(&mut self, mut had_bytes: impl FnMut(&mut Self, u32) -> bool) {
        let mut index = 0;
        while let Some(&key) = self.active.get(index) {
            let had_bytes = had_bytes(self, key);
            self.had_bytes += usize::from(had_bytes);
            let stays = self.connections.get_mut(key).is_some_and(|connection| {
                connection.idle_turns = if had_bytes { 0 } else { connection.idle_turns + 1 };
                connection.active = connection.idle_turns < IDLE_TURNS;
                connection.active
            });
            if stays {
                index += 1;
            } else {
                self.active.swap_remove(index);
            }
        }
    }

    /// Asks epoll; `all`: also of the active queue pairs, which otherwise were read already.
    fn dispatch_ready(&mut self, all: bool) {
        for index in 0..self.poller.poll() {
            let (token, writable) = self.poller.ready(index);
            match token {
                Token::QueuePair(key) => self.on_ready(key, writable, all),
                Token::Listener(key) => self.accept_streams(key),
                Token::Pending(key) => self.read_request(key),
                Token::Lingering(key) => self.linger(key),
            }
        }
    }

    fn on_ready(&mut self, key: u32, writable: bool, all: bool) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        match &mut connection.link {
            Link::Connecting(_) => return self.advance_connect(key),
            Link::Open(open) => {
                if writable && open.blocked {
                    open.blocked = false;
                    self.poller.change(&open.stream, Token::QueuePair(key), Interest::Read);
                    self.mark_dirty(key);
                }
            }
            Link::Idle | Link::Over => return,
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        let was_active = connection.active;
        if (was_active && !all) || !self.receive(key) {
            return;
        }
        self.had_bytes += usize::from(was_active);
        let has_place = was_active || self.active.len() < ACTIVE_MAX;
        let Some(connection) = self.connections.get_mut(key).filter(|_| has_place) else { return };
        connection.idle_turns = 0;
        if !core::mem::replace(&mut connection.active, true) {
            self.active.push(key);
        }
    }

    /// Reads a socket; whether there were bytes.
    fn receive(&mut self, key: u32) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let Connection { qp, link: Link::Open(open), .. } = connection else { return false };
        let whole = part(RECEIVE_BUDGET, self.active.len());
        let mut budget = whole;
        let mut end = None;
        while budget > 0 {
            let direct = match open.phase {
                Phase::AwaitRtr { .. } => None,
                _ => qp.direct(&self.domain, DIRECT_MIN),
            };
            let direct_len = direct.map_or(0, |(_, _, len)| len);
            let staging_len = match (open.phase, direct_len) {
                (Phase::Unannounced, _) => break,
                (Phase::AwaitRtr { left, .. }, _) => left,
                (_, 0) => self.staging.len(),
                _ => DIRECT_STAGING,
            };
            let staging = &mut self.staging[..staging_len];
            let n = match open.stream.receive_into(direct, staging) {
                Ok(None) => break,
                Ok(Some(0)) if qp.is_between_fpdus() => {
                    end = Some((DisconnectCause::Peer, None));
                    break;
                }
                Ok(Some(0)) | Err(_) => {
                    end = Some((DisconnectCause::Broken, None));
                    break;
                }
                Ok(Some(n)) => n,
            };
            budget = budget.saturating_sub(n);
            if direct_len > 0 {
                qp.on_placed(n.min(direct_len));
            }
            if let Err(stop) = qp.on_bytes(&mut self.domain, &staging[..n.saturating_sub(direct_len)]) {
                end = Some((stop.cause(), Some(stop)));
                break;
            }
            if let Phase::AwaitRtr { left, .. } = &mut open.phase {
                *left -= n;
                if *left == 0 {
                    if !qp.has_peer_sent() {
                        let text = "its first message is not the ready-to-receive indication";
                        end = Some((DisconnectCause::PeerViolation(text), None));
                    }
                    break;
                }
            }
            if n < direct_len + staging_len {
                // The socket is empty, unless bytes came meanwhile.
                break;
            }
        }
        let had_bytes = budget < whole;
        let received_fpdu = matches!(open.phase, Phase::AwaitRtr { .. }) && qp.has_peer_sent();
        let sendable = qp.has_work();
        match end {
            Some((cause, stop)) => self.end(key, cause, stop),
            None if received_fpdu => self.establish_responder(key),
            None => {}
        }
        if sendable {
            self.mark_dirty(key);
        }
        had_bytes
    }

    /// Whether a queue pair of the dirty list can get on without the peer.
    pub(super) fn can_send(&self, key: u32) -> bool {
        self.connections.get(key).is_some_and(|connection| match &connection.link {
            Link::Open(open) => {
                let closing = matches!(open.phase, Phase::Closing { .. }) && connection.qp.is_drained();
                !open.blocked && (connection.qp.has_work() || closing)
            }
            _ => false,
        })
    }

    pub(super) fn send_dirty(&mut self) {
        let mut index = 0;
        while let Some(&key) = self.dirty.get(index) {
            if self.send(key) {
                index += 1;
                continue;
            }
            self.dirty.swap_remove(index);
            if let Some(connection) = self.connections.get_mut(key) {
                connection.dirty = false;
            }
        }
    }

    /// Writes a socket; whether there is more that it would take.
    fn send(&mut self, key: u32) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let Connection { qp, link: Link::Open(open), .. } = connection else { return false };
        let Open { stream, phase, blocked } = open;
        let mut budget = part(SEND_BUDGET, self.dirty.len());
        let mut end = None;
        while !*blocked && budget > 0 {
            if let Err(stop) = qp.fill(&mut self.domain, budget) {
                end = Some((stop.cause(), Some(stop)));
                break;
            }
            let (wanted, taken) = {
                let chunks = qp.chunks();
                let wanted = chunks.len_bytes();
                if wanted == 0 {
                    break;
                }
                (wanted, stream.send(chunks.as_slice()))
            };
            match taken {
                Ok(taken) => {
                    let n = taken.unwrap_or(0);
                    budget = budget.saturating_sub(n);
                    qp.on_sent(&mut self.domain, n);
                    *blocked = n < wanted;
                    if *blocked {
                        self.poller.change(&*stream, Token::QueuePair(key), Interest::ReadWrite);
                    }
                }
                Err(_) => {
                    end = Some((DisconnectCause::Broken, None));
                    break;
                }
            }
        }
        // What was borrowed for this, and did not leave, is not ours any more.
        qp.settle();
        let closing = matches!(phase, Phase::Closing { .. });
        let (drained, more) = (qp.is_drained(), !*blocked && qp.has_work());
        match end {
            Some((cause, stop)) => {
                if stop.is_none() {
                    // The peer's last bytes may hold the reason.
                    self.receive(key);
                }
                self.end(key, cause, stop);
                false
            }
            None if closing && drained => {
                self.end(key, DisconnectCause::Local, None);
                false
            }
            None => more,
        }
    }
}
