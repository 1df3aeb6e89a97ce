//! The thread behind a ublk device: requests in, operations out, on one thread and without a copy.

use super::device::{self, Shape};
use super::operation::operation;
use super::ring::{Queue, Request};
use crate::attach::errno::errno;
use crate::attach::remote::{Control, End, FINISH_TIME_MAX, Found, Origin, Remote, Wires};
use anyhow::{Context, Result};
use nix::errno::Errno;
use nvmf_block::{Backend, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_memory::Memory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device that is there, and whose queue is served.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) device: u32,
    pub(super) found: Found,
}

/// Connects, adds a device for the namespace that is meant, or takes over the one that there is, and serves it until it is
/// stopped. What was written is flushed then.
pub(super) fn run(origin: &Origin, wires: Wires<Up>) -> Result<()> {
    let connection = &origin.options.connection;
    let control = Arc::clone(&wires.control);
    let remote = Remote::open(origin, wires.control, wires.changes)?;
    let found = remote.found.clone();
    let takes_over = origin.before.is_some();
    let (device, shape) = if takes_over {
        device::recover(origin.mark)?
    } else {
        let commands = u32::from(connection.io_queues) * u32::from(connection.queue_depth);
        let shape = Shape::of(&found.namespace, commands);
        (device::add(&found.namespace, shape, origin.mark)?, shape)
    };
    let server = Server::new(remote, device, shape, control).inspect_err(|_| {
        if !takes_over {
            let _ = device::delete(device);
        }
    })?;
    // Nobody hears: the device is stopped before it was started, which ends the loop.
    let _ = wires.up.send(Up { device, found });
    server.serve()
}

struct Server {
    remote: Remote,
    queue: Queue,
    namespace: DeviceId,
    block_size: u32,
    region: RegionId,
    buffer_len: usize,
    /// What each slot's request reports when it ends well: the bytes that it moves.
    moves: Vec<i32>,
    /// Requests under way at the target.
    under_way: usize,
    completions: Vec<Completion>,
    control: Arc<Control>,
}

impl Server {
    fn new(mut remote: Remote, device: u32, shape: Shape, control: Arc<Control>) -> Result<Self> {
        let buffer_len = shape.io_bytes_max as usize;
        let memory = Memory::alloc(usize::from(shape.depth) * buffer_len)?;
        let region = remote.backend.register(&memory).context("cannot register the device's buffers")?;
        let queue = Queue::open(device, shape.depth, memory, buffer_len)
            .with_context(|| format!("cannot serve /dev/ublkc{device}"))?;
        Ok(Self {
            namespace: remote.device(),
            block_size: remote.found.namespace.geometry.block_size,
            remote,
            queue,
            region,
            buffer_len,
            moves: vec![0; usize::from(shape.depth)],
            under_way: 0,
            completions: Vec::with_capacity(usize::from(shape.depth)),
            control,
        })
    }

    /// Serves until the device is stopped, and ends in order; or until another server is to go on, and what is under way has
    /// ended.
    fn serve(mut self) -> Result<()> {
        let mut hand_over_by = None;
        while self.queue.is_alive() {
            let worked = self.turn()?;
            let mut most = Duration::MAX;
            if self.control.asked() == End::HandOver {
                let now = Instant::now();
                most = hand_over_by.get_or_insert(now + FINISH_TIME_MAX).saturating_duration_since(now);
                if self.under_way == 0 && !worked || most.is_zero() {
                    break;
                }
            }
            if self.remote.may_sleep(worked)
                && let Some(armed) = self.remote.arm()
            {
                let slept = self.queue.sleep(armed.min(most), self.remote.descriptors());
                slept.context("cannot wait for the ublk driver")?;
                self.remote.woken();
            }
            if self.control.asked() == End::AtOnce {
                self.remote.backend.inner.shutdown();
            }
        }
        if self.control.asked() == End::HandOver {
            self.remote.hand_over(self.under_way == 0);
            return Ok(());
        }
        self.remote.finish(Instant::now() + FINISH_TIME_MAX)
    }

    /// Does everything that there is to do now; `false` when that is nothing.
    fn turn(&mut self) -> Result<bool> {
        let mut worked = false;
        while let Some(request) = self.queue.poll() {
            worked = true;
            // One that is not begun when another server goes on is handed to that.
            if self.control.asked() != End::HandOver {
                self.begin(&request);
            }
        }
        self.remote.backend.poll(&mut self.completions);
        for completion in self.completions.drain(..) {
            worked = true;
            self.under_way -= 1;
            let tag = u16::try_from(completion.tag.0).expect("a tag of the queue's");
            let result = match completion.result {
                Ok(()) => self.moves[usize::from(tag)],
                Err(error) => -(errno(error) as i32),
            };
            self.queue.complete(tag, result);
        }
        // What the ring did not take goes out at the next turn, which must not wait for anything else.
        worked |= !self.queue.submit().context("the ublk driver takes no more completions")?;
        Ok(worked)
    }

    fn begin(&mut self, request: &Request) {
        let slot = Buffer {
            region: self.region,
            offset: usize::from(request.tag) * self.buffer_len,
            len: self.buffer_len,
        };
        let refused = match operation(&request.descriptor, self.block_size, slot) {
            Ok((op, moves)) => {
                self.moves[usize::from(request.tag)] = moves;
                let submitted = self.remote.backend.submit(Tag(u64::from(request.tag)), self.namespace, op);
                // It never is: the backend has room for more operations than the queue has slots.
                self.under_way += usize::from(submitted.is_ok());
                submitted.is_err().then_some(Errno::EAGAIN)
            }
            Err(errno) => Some(errno),
        };
        if let Some(errno) = refused {
            self.queue.complete(request.tag, -(errno as i32));
        }
    }
}
