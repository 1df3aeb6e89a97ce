//! How much of what the queues of a worker share a queue and a machine may have.

use super::accounts::Accounts;
use nvmf_stream::machine_of;
use std::net::IpAddr;

/// A queue may have another while it holds fewer than this part (1/n) of those that are free, and one in any case. A disk
/// that hangs keeps what those hold who write to it.
const QUEUE_SHARE: u32 = 4;
/// The same for all queues of a machine.
const MACHINE_SHARE: u32 = 2;

/// What machines hold of one kind of memory, of which a queue takes a piece at a time.
#[derive(Debug)]
pub(crate) struct Shares {
    machines: Accounts<IpAddr, u32>,
    /// The machine of each queue.
    machine_of: Box<[u32]>,
}

impl Shares {
    /// For so many queues.
    pub(crate) fn new(queues: usize) -> Self {
        Self { machines: Accounts::default(), machine_of: vec![0; queues].into() }
    }

    /// A queue came, from this machine.
    pub(crate) fn add(&mut self, queue: u32, address: IpAddr) {
        self.machine_of[queue as usize] = self.machines.add(&machine_of(address));
    }

    /// It is gone, and holds nothing any more.
    pub(crate) fn remove(&mut self, queue: u32) {
        self.machines.remove(self.machine_of[queue as usize]);
    }

    /// Whether a queue that holds so many may have another when so many are free.
    pub(crate) fn may_take(&self, queue: u32, held: u32, free: u32) -> bool {
        is_within_queue_share(held, free)
            && is_within(*self.machines.get(self.machine_of[queue as usize]), free, MACHINE_SHARE)
    }

    /// The queue has one more.
    pub(crate) fn take(&mut self, queue: u32) {
        *self.machines.get_mut(self.machine_of[queue as usize]) += 1;
    }

    /// The queue has `count` fewer.
    pub(crate) fn put(&mut self, queue: u32, count: u32) {
        *self.machines.get_mut(self.machine_of[queue as usize]) -= count;
    }
}

/// Whether a queue that holds so many has not its share yet, whatever its machine has.
pub(crate) fn is_within_queue_share(held: u32, free: u32) -> bool {
    is_within(held, free, QUEUE_SHARE)
}

/// Whether one that holds so many may have another when so many are free. One that holds none may, if there is one.
fn is_within(held: u32, free: u32, share: u32) -> bool {
    free > 0 && held * share < free + share - 1
}
