//! The order in which the requests of all clients of a disk begin.

use std::collections::VecDeque;

/// What orders the requests.
///
/// Requests run side by side. Some wait until all that were begun have ended, and nothing begins meanwhile: a request that
/// changes a part of a block, which is read, changed and written; and, when a client goes whose requests have not ended,
/// everything else, so that none of them overtakes what is asked for after it.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Requests that have begun and not ended.
    begun: usize,
    /// There is one, and it has the disk for itself.
    is_alone: bool,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Request {
        index: u32,
        alone: bool,
    },
    /// Nothing begins before what has begun has ended.
    Settle,
}

impl Order {
    /// Whether a request begins now. If not, it is returned by [`Order::next`] when it does.
    pub(super) fn begin(&mut self, index: u32, alone: bool) -> bool {
        if self.waiting.is_empty() && self.try_begin(alone) {
            return true;
        }
        self.waiting.push_back(Waiting::Request { index, alone });
        false
    }

    /// A request that had begun has ended.
    pub(super) fn end(&mut self) {
        self.begun -= 1;
        self.is_alone = false;
    }

    /// Has everything that comes from now on wait until what has begun has ended.
    pub(super) fn settle(&mut self) {
        if self.begun > 0 || !self.waiting.is_empty() {
            self.waiting.push_back(Waiting::Settle);
        }
    }

    /// A request that waited and begins now.
    pub(super) fn next(&mut self) -> Option<u32> {
        loop {
            let first = *self.waiting.front()?;
            match first {
                Waiting::Request { index, alone } if self.try_begin(alone) => {
                    self.waiting.pop_front();
                    return Some(index);
                }
                Waiting::Settle if self.begun == 0 => drop(self.waiting.pop_front()),
                _ => return None,
            }
        }
    }

    /// A request does not wait any more.
    pub(super) fn forget(&mut self, forgotten: u32) {
        self.waiting
            .retain(|waiting| !matches!(waiting, Waiting::Request { index, .. } if *index == forgotten));
    }

    fn try_begin(&mut self, alone: bool) -> bool {
        let may = if alone { self.begun == 0 } else { !self.is_alone };
        if may {
            self.begun += 1;
            self.is_alone = alone;
        }
        may
    }
}
