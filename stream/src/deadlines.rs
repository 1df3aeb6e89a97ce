//! Whatever has a deadline, in the order in which it is due.

use crate::deadline::Deadline;
use crate::token::Token;
use core::time::Duration;
use std::collections::BTreeSet;

/// The tokens of whatever has a [`Deadline`]. No step grows with their number, however many connections wait.
///
/// The deadlines themselves are their users': a token that is due here is looked up there, and comes back with
/// [`Deadlines::insert`] if its deadline was put off.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// Those whose clocks have yet to start.
    new: Vec<Token>,
    due: BTreeSet<(Duration, Token)>,
}

impl Deadlines {
    /// This one has a deadline from now on, or another one: its clock is to be started.
    pub fn add(&mut self, token: Token) {
        self.new.push(token);
    }

    /// One whose clock is to be started.
    pub fn pop_new(&mut self) -> Option<Token> {
        self.new.pop()
    }

    /// Its clock runs: it is due then.
    pub fn insert(&mut self, token: Token, at: Duration) {
        self.due.insert((at, token));
    }

    /// One that is due; it is forgotten.
    pub fn pop_due(&mut self, now: Duration) -> Option<Token> {
        let first = self.due.first().copied().filter(|&(at, _)| at <= now)?;
        self.due.remove(&first);
        Some(first.1)
    }

    /// It is gone before its time. One whose clock has not started is found gone when that is tried.
    pub fn remove(&mut self, token: Token, deadline: Deadline) {
        self.due.remove(&(deadline.at(), token));
    }

    /// When the next is due: at once if a clock has yet to start.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        if self.new.is_empty() { self.due.first().map(|&(at, _)| at) } else { Some(Duration::ZERO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn deadlines_are_due_in_order_once_their_clocks_run() {
        let mut deadlines = Deadlines::default();
        let waits = [3, 1, 2].map(|seconds| (Token::Pending(seconds), seconds * SECOND));
        waits.iter().for_each(|&(token, _)| deadlines.add(token));
        assert_eq!((deadlines.next(), deadlines.pop_due(9 * SECOND)), (Some(Duration::ZERO), None));
        while let Some(token) = deadlines.pop_new() {
            let (_, wait) = waits.iter().find(|&&(of, _)| of == token).unwrap();
            deadlines.insert(token, 10 * SECOND + *wait);
        }
        assert_eq!((deadlines.next(), deadlines.pop_due(10 * SECOND)), (Some(11 * SECOND), None));
        deadlines.remove(Token::Pending(2), Deadline::At(12 * SECOND));
        assert_eq!(deadlines.pop_due(20 * SECOND), Some(Token::Pending(1)));
        assert_eq!(deadlines.pop_due(20 * SECOND), Some(Token::Pending(3)));
        assert_eq!((deadlines.pop_due(20 * SECOND), deadlines.next()), (None, None));
    }
}
