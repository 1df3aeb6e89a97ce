//! Which sockets are read and written in a turn, and how much.
//!
//! Asking epoll costs a system call that brings no byte. A connection under load has bytes at most turns, so those that
//! received some lately are read without asking, and epoll is asked for the others every few turns. Budgets keep one
//! busy connection from delaying the others.

use arrayvec::ArrayVec;

/// Connections that received bytes lately, whose sockets are read without asking epoll first.
pub const ACTIVE_MAX: usize = 16;
/// With more of them than this, epoll is asked after all when most had no bytes: one empty read costs as much as
/// epoll's answer for all of them.
const ASKED_ABOVE: usize = 2;
/// Reads in a row that find nothing, after which a connection leaves that list.
const IDLE_TURNS: u8 = 64;
/// Turns between two questions to epoll while that list is not empty.
const TURNS_PER_POLL: u8 = 4;
/// Bytes taken from one socket in one turn; of several, each has its part.
const RECEIVE_BUDGET: usize = 512 * 1024;
/// Bytes given to one socket in one turn; likewise.
const SEND_BUDGET: usize = 1024 * 1024;
/// The smallest part.
const BUDGET_MIN: usize = 128 * 1024;

fn part(budget: usize, sockets: usize) -> usize {
    (budget / sockets.max(1)).max(BUDGET_MIN)
}

#[derive(Debug, Clone, Copy)]
struct Active {
    key: u32,
    /// Turns in a row in which its socket had no bytes.
    idle_turns: u8,
}

/// Which sockets are read in a turn. Connections are named by their key in the user's table.
#[derive(Debug, Default)]
pub struct ReadSchedule {
    active: ArrayVec<Active, ACTIVE_MAX>,
    /// Of `active`: the next one to read.
    next: usize,
    /// Active ones that had bytes in this turn.
    had_bytes: usize,
    /// In this turn, what epoll reports is read and nothing else.
    only_reported: bool,
    /// Turns until epoll is asked.
    turns_to_poll: u8,
    /// The caller was about to sleep: epoll is asked unless an active one has bytes.
    slept: bool,
    /// Whether the next turn, and this one, reads nothing.
    skips: [bool; 2],
}

impl ReadSchedule {
    /// Begins a turn.
    #[inline]
    pub fn start_turn(&mut self) {
        self.skips = [false, self.skips[0]];
        if self.skips[1] {
            self.next = self.active.len();
            return;
        }
        self.active.retain(|active| {
            active.idle_turns += 1;
            active.idle_turns <= IDLE_TURNS
        });
        let len = self.active.len();
        self.only_reported = len > ASKED_ABOVE && self.had_bytes * 2 < len;
        self.next = if self.only_reported { len } else { 0 };
        self.had_bytes = 0;
    }

    /// The next socket to read before epoll is asked. What came of it: [`ReadSchedule::on_read`].
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "no iterator: the list changes between two calls")]
    pub fn next(&mut self) -> Option<u32> {
        let active = self.active.get(self.next)?;
        self.next += 1;
        Some(active.key)
    }

    /// Whether epoll is to be asked in this turn, after the last of [`ReadSchedule::next`]. To be called once a turn.
    #[inline]
    pub fn asks_poller(&mut self) -> bool {
        if self.skips[1] {
            return false;
        }
        let slept = core::mem::take(&mut self.slept) && self.had_bytes == 0;
        let asks = self.only_reported || self.active.is_empty() || self.turns_to_poll == 0 || slept;
        if asks {
            self.turns_to_poll = TURNS_PER_POLL;
        }
        self.turns_to_poll -= 1;
        asks
    }

    /// Whether a socket that epoll reports is to be read: it was not yet in this turn.
    #[inline]
    #[must_use]
    pub fn is_due(&self, key: u32) -> bool {
        self.only_reported || !self.active.iter().any(|active| active.key == key)
    }

    /// A socket was read, and had bytes or not. One that had is active from now on, if there is a place.
    #[inline]
    pub fn on_read(&mut self, key: u32, had_bytes: bool) {
        if !had_bytes {
            return;
        }
        if let Some(active) = self.active.iter_mut().find(|active| active.key == key) {
            active.idle_turns = 0;
            self.had_bytes += 1;
        } else if !self.active.is_full() {
            self.active.push(Active { key, idle_turns: 0 });
        }
    }

    /// The connection is no more.
    pub fn remove(&mut self, key: u32) {
        if let Some(at) = self.active.iter().position(|active| active.key == key) {
            self.active.remove(at);
            self.next -= usize::from(at < self.next);
        }
    }

    /// Has epoll asked in the next turn: something may be ready of which it did not know.
    #[inline]
    pub fn poll_next_turn(&mut self) {
        self.turns_to_poll = 0;
    }

    /// The caller is about to sleep, and is woken by epoll: it is asked in the next turn, unless it was an active one that
    /// woke the caller. What else is ready ends the next sleep at once, and is read a few turns later.
    #[inline]
    pub fn on_sleep(&mut self) {
        self.slept = true;
    }

    /// Has the next turn read nothing: epoll, on which the caller sleeps, has not reported anything, or what it has was just
    /// read and the caller sleeps on it again.
    #[inline]
    pub fn skip_next_turn(&mut self) {
        self.skips[0] = true;
    }

    /// Bytes to take from one socket in this turn.
    #[inline]
    #[must_use]
    pub fn budget(&self) -> usize {
        part(RECEIVE_BUDGET, self.active.len())
    }
}

/// The connections with something to send. Each is listed once; the flag that says so is kept with the connection.
#[derive(Debug, Default)]
pub struct SendSchedule {
    keys: Vec<u32>,
    next: usize,
}

impl SendSchedule {
    /// Lists a connection, unless it is `listed`.
    #[inline]
    pub fn add(&mut self, key: u32, listed: &mut bool) {
        if !core::mem::replace(listed, true) {
            self.keys.push(key);
        }
    }

    /// Begins a turn.
    #[inline]
    pub fn start_turn(&mut self) {
        self.next = 0;
    }

    /// The next connection to send for. What came of it: [`SendSchedule::on_sent`].
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "no iterator: the list changes between two calls")]
    pub fn next(&mut self) -> Option<u32> {
        self.keys.get(self.next).copied()
    }

    /// What [`SendSchedule::next`] named has more that its socket would take: it comes again in the next turn. If not
    /// it is listed no more, and the user clears its flag.
    #[inline]
    pub fn on_sent(&mut self, more: bool) {
        if more {
            self.next += 1;
        } else {
            self.keys.swap_remove(self.next);
        }
    }

    /// All that are listed.
    pub fn keys(&self) -> impl Iterator<Item = u32> {
        self.keys.iter().copied()
    }

    /// Bytes to give to one socket in this turn.
    #[inline]
    #[must_use]
    pub fn budget(&self) -> usize {
        part(SEND_BUDGET, self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a turn reads without epoll, when the sockets in `with_bytes` have some; whether epoll is asked then.
    fn turn(schedule: &mut ReadSchedule, with_bytes: &[u32]) -> (Vec<u32>, bool) {
        schedule.start_turn();
        let mut read = Vec::new();
        while let Some(key) = schedule.next() {
            schedule.on_read(key, with_bytes.contains(&key));
            read.push(key);
        }
        let asks = schedule.asks_poller();
        if asks {
            for &key in with_bytes {
                if schedule.is_due(key) {
                    schedule.on_read(key, true);
                } else {
                    assert!(read.contains(&key), "what is not due was read");
                }
            }
        }
        (read, asks)
    }

    #[test]
    fn socket_with_bytes_is_read_before_epoll_is_asked() {
        let mut schedule = ReadSchedule::default();
        assert_eq!(turn(&mut schedule, &[]), (vec![], true));
        assert_eq!(turn(&mut schedule, &[7]), (vec![], true));
        for asks in [false, false, false, true, false] {
            assert_eq!(turn(&mut schedule, &[7]), (vec![7], asks));
        }
        schedule.poll_next_turn();
        assert_eq!(turn(&mut schedule, &[7]), (vec![7], true));
    }

    #[test]
    fn idle_socket_is_left_to_epoll_after_some_turns() {
        let mut schedule = ReadSchedule::default();
        turn(&mut schedule, &[7]);
        let turns = (0..1000).take_while(|_| turn(&mut schedule, &[]).0 == [7]).count();
        assert_eq!(turns, usize::from(IDLE_TURNS));
        assert!(turn(&mut schedule, &[]).1, "nobody is active: epoll is asked at every turn");
    }

    #[test]
    fn caller_who_sleeps_asks_epoll_when_no_active_socket_has_bytes() {
        let mut schedule = ReadSchedule::default();
        turn(&mut schedule, &[7]);
        for (with_bytes, asks) in [(&[7][..], false), (&[7], false), (&[], true), (&[8], true)] {
            schedule.on_sleep();
            assert_eq!(turn(&mut schedule, with_bytes).1, asks, "{with_bytes:?}");
        }
    }

    #[test]
    fn caller_who_slept_on_epoll_reads_nothing_that_it_does_not_report() {
        let mut schedule = ReadSchedule::default();
        turn(&mut schedule, &[7]);
        schedule.poll_next_turn();
        schedule.skip_next_turn();
        assert_eq!(turn(&mut schedule, &[7]), (vec![], false));
        assert_eq!(turn(&mut schedule, &[7]), (vec![7], true), "one turn only");
    }

    #[test]
    fn mostly_idle_sockets_are_read_only_when_epoll_reports_them() {
        let mut schedule = ReadSchedule::default();
        let keys = [1, 2, 3, 4, 5];
        turn(&mut schedule, &keys);
        assert_eq!(turn(&mut schedule, &[]), (vec![], true), "only one turn had bytes: that of epoll");
        assert_eq!(turn(&mut schedule, &keys), (vec![], true));
        assert_eq!(turn(&mut schedule, &keys[..2]).0, keys, "all had bytes");
        assert_eq!(turn(&mut schedule, &keys), (vec![], true), "two of five had");
        assert_eq!(turn(&mut schedule, &keys).0, keys);
    }

    #[test]
    fn active_sockets_are_bounded_and_the_others_come_from_epoll() {
        let mut schedule = ReadSchedule::default();
        let keys: Vec<u32> = (0..40).collect();
        let mut reads = [0; 40];
        for _ in 0..8 {
            schedule.start_turn();
            while let Some(key) = schedule.next() {
                reads[key as usize] += 1;
                schedule.on_read(key, true);
            }
            if schedule.asks_poller() {
                for &key in keys.iter().filter(|&&key| schedule.is_due(key)).collect::<Vec<_>>() {
                    reads[key as usize] += 1;
                    schedule.on_read(key, true);
                }
            }
        }
        assert_eq!(reads[..ACTIVE_MAX], [8; ACTIVE_MAX]);
        assert!(reads[ACTIVE_MAX..].iter().all(|&count| count >= 2), "{reads:?}");
        assert_eq!(schedule.budget(), BUDGET_MIN);
    }

    #[test]
    fn removed_connection_moves_no_other_out_of_turn() {
        for removed in 0..4 {
            let mut schedule = ReadSchedule::default();
            turn(&mut schedule, &[0, 1, 2, 3]);
            turn(&mut schedule, &[0, 1, 2, 3]);
            schedule.start_turn();
            let mut read = Vec::new();
            while let Some(key) = schedule.next() {
                read.push(key);
                schedule.on_read(key, true);
                if key == 2 {
                    schedule.remove(removed);
                }
            }
            let expected = if removed == 3 { vec![0, 1, 2] } else { vec![0, 1, 2, 3] };
            assert_eq!(read, expected, "{removed} is removed");
        }
    }

    #[test]
    fn sender_with_more_comes_again_in_the_next_turn_only() {
        let mut schedule = SendSchedule::default();
        let mut listed = [false; 3];
        (0..3).for_each(|key| schedule.add(key, &mut listed[key as usize]));
        schedule.add(1, &mut listed[1]);
        assert_eq!(schedule.keys().collect::<Vec<_>>(), [0, 1, 2]);
        for (more, expected) in [([1, 2], vec![0, 2, 1]), ([1, 1], vec![2, 1]), ([0, 0], vec![1])] {
            schedule.start_turn();
            let mut sent = Vec::new();
            while let Some(key) = schedule.next() {
                sent.push(key);
                schedule.on_sent(more.contains(&key));
            }
            assert_eq!(sent, expected);
        }
        schedule.start_turn();
        assert_eq!(schedule.next(), None);
    }
}
