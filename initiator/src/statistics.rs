//! What a connection has done so far.

use crate::driver::Op;
use core::sync::atomic::{AtomicU64, Ordering};
use nvmf_block::BlockOp;

/// What a connection has done so far, over all devices and handles. What is split counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Reads that ended.
    pub reads: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Other operations that ended.
    pub others: u64,
    /// Bytes of the reads that succeeded.
    pub bytes_read: u64,
    /// Bytes of the writes that succeeded.
    pub bytes_written: u64,
    /// Of all those, how many failed.
    pub failed: u64,
    /// How often it was connected again after a loss.
    pub reconnects: u64,
}

/// The same, while it is counted: by whoever has the engine, for anyone to read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// By kind: reads, writes, others.
    ended: [AtomicU64; 3],
    /// Of reads and of writes.
    bytes: [AtomicU64; 2],
    failed: AtomicU64,
    reconnects: AtomicU64,
}

/// What is remembered of an operation until it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    at: usize,
    bytes: u64,
}

impl Kind {
    pub(crate) fn of(op: &Op) -> Self {
        match op {
            Op::Block(BlockOp::Read { into, .. }) => Self { at: 0, bytes: into.len as u64 },
            Op::Block(BlockOp::Write { from, .. }) => Self { at: 1, bytes: from.len as u64 },
            _ => Self { at: 2, bytes: 0 },
        }
    }
}

impl Counters {
    pub(crate) fn on_end(&self, kind: Kind, is_success: bool) {
        add(&self.ended[kind.at], 1);
        if !is_success {
            add(&self.failed, 1);
        } else if let Some(bytes) = self.bytes.get(kind.at) {
            add(bytes, kind.bytes);
        }
    }

    pub(crate) fn on_reconnect(&self) {
        add(&self.reconnects, 1);
    }

    pub(crate) fn get(&self) -> Statistics {
        let [reads, writes, others] = self.ended.each_ref().map(read);
        let [bytes_read, bytes_written] = self.bytes.each_ref().map(read);
        let (failed, reconnects) = (read(&self.failed), read(&self.reconnects));
        Statistics { reads, writes, others, bytes_read, bytes_written, failed, reconnects }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// One thread at a time adds: the one that has the engine's lock.
fn add(counter: &AtomicU64, by: u64) {
    counter.store(read(counter) + by, Ordering::Relaxed);
}
