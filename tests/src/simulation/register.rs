//! The contents of a block that hosts contend for by Compare and Write.
//!
//! Each attempt would write a value that nobody else writes, in place of the value that it expects: its parent. All have
//! force unit access, so what one has written is there to stay. So the values of the attempts that succeeded are a chain,
//! and whoever looks at the block sees the last of them that was known when it began to look, or one that comes of it.
//! What an attempt whose comparison failed would have written, nobody ever sees.

use core::fmt::Display;

/// What is known of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    Won,
    /// It changed nothing.
    Lost,
    /// It may have taken effect.
    Open,
}

#[derive(Debug)]
struct Attempt {
    parent: u64,
    state: State,
    /// The last value known to be there when it began.
    floor: u64,
    /// The block had what it expects, and nobody else has tried anything since: it cannot lose.
    is_certain: bool,
}

/// A block. It begins with value 0.
#[derive(Debug, Default)]
pub(super) struct Register {
    /// By value, from 1 on.
    attempts: Vec<Attempt>,
    /// The last value known to have been written.
    floor: u64,
    /// The value that it has, if nobody is trying to change it.
    certain: Option<u64>,
    /// How often an attempt began, or ended.
    events: u64,
}

/// What was known when somebody began to look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    floor: u64,
    events: u64,
}

impl Register {
    /// Somebody begins to look at the block.
    pub(super) fn look(&self) -> Look {
        Look { floor: self.floor, events: self.events }
    }

    /// What was seen.
    pub(super) fn seen(&mut self, value: u64, look: Look, what: &dyn Display) {
        assert!(value as usize <= self.attempts.len(), "{what}: value {value}, which nobody wrote");
        let state = self.state(value);
        assert_ne!(state, State::Lost, "{what}: value {value}, whose comparison had failed");
        assert!(self.comes_of(value, look.floor), "{what}: value {value} after {} was there", look.floor);
        let quiet = self.attempts.iter().all(|it| matches!(it.state, State::Won | State::Lost));
        if quiet && look.events == self.events {
            self.certain = Some(value);
        }
    }

    /// Somebody tries to replace a value. Returns what by.
    pub(super) fn begin(&mut self, parent: u64) -> u64 {
        self.events += 1;
        self.attempts.iter_mut().for_each(|other| other.is_certain = false);
        let is_certain = self.certain.take() == Some(parent);
        self.attempts.push(Attempt { parent, state: State::UnderWay, floor: self.floor, is_certain });
        self.attempts.len() as u64
    }

    /// It succeeded.
    pub(super) fn won(&mut self, value: u64, what: &dyn Display) {
        let &Attempt { parent, floor, .. } = self.attempt(value);
        let other = self.attempts.iter().position(|it| it.parent == parent && it.state == State::Won);
        assert_eq!(other, None, "{what}: two have replaced value {parent}");
        assert!(self.comes_of(parent, floor), "{what}: replaced value {parent} after {floor} was there");
        if self.comes_of(value, self.floor) {
            self.floor = value;
        } else {
            assert!(self.comes_of(self.floor, value), "{what}: replaced a value beside {}", self.floor);
        }
        self.end(value, State::Won);
    }

    /// Its comparison failed: it changed nothing.
    pub(super) fn differed(&mut self, value: u64, what: &dyn Display) {
        let &Attempt { parent, is_certain, .. } = self.attempt(value);
        assert!(!is_certain, "{what}: value {parent} was there, and differed");
        self.end(value, State::Lost);
    }

    /// It was refused, or had no effect, for another reason.
    pub(super) fn had_no_effect(&mut self, value: u64) {
        self.end(value, State::Lost);
    }

    /// What became of it is not known.
    pub(super) fn lost_sight(&mut self, value: u64) {
        self.end(value, State::Open);
    }

    /// It can take effect no more, if it has not: `seen` was there after its end.
    pub(super) fn settle(&mut self, value: u64, seen: u64) {
        let state = if self.comes_of(seen, value) { State::Won } else { State::Lost };
        // One that was seen counts as written only as long as nobody loses power: it has not succeeded.
        if state == State::Lost {
            self.end(value, state);
        }
    }

    /// The power was cut: what was not known to be written may be gone.
    pub(super) fn crash(&mut self) {
        self.certain = None;
        self.events += 1;
        self.attempts.iter_mut().for_each(|other| other.is_certain = false);
    }

    fn end(&mut self, value: u64, state: State) {
        self.events += 1;
        self.attempts[value as usize - 1].state = state;
    }

    fn attempt(&self, value: u64) -> &Attempt {
        &self.attempts[value as usize - 1]
    }

    fn state(&self, value: u64) -> State {
        if value == 0 { State::Won } else { self.attempt(value).state }
    }

    /// Whether a value is another one, or was written in place of it, or of one that was.
    fn comes_of(&self, mut value: u64, other: u64) -> bool {
        // Parents have smaller numbers.
        while value > other {
            value = self.attempt(value).parent;
        }
        value == other
    }
}
