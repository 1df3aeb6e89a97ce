//! The thread behind a ublk device: requests in, operations out, on one thread and without a copy.

use super::device::{self, Shape};
use super::operation::operation;
use super::ring::{Queue, Request};
use crate::attach::AttachOptions;
use crate::attach::errno::errno;
use crate::attach::remote::{Control, End, FINISH_TIME_MAX, Remote, Wires};
use crate::connect::Via;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nvmf_block::{Backend, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_host::Namespace;
use nvmf_memory::Memory;
use std::sync::Arc;
use std::time::Instant;

/// A device that is added, and whose queue is served.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) device: u32,
    pub(super) namespace: Namespace,
    pub(super) via: Via,
    pub(super) choice: Option<String>,
}

/// Connects, adds a device for the namespace that is meant, and serves it until it is stopped. What was written is
/// flushed then.
pub(super) fn run(options: &AttachOptions, wires: Wires<Up>) -> Result<()> {
    let connection = &options.connection;
    let control = Arc::clone(&wires.control);
    let remote = Remote::connect(options, wires.control, wires.changes)?;
    let (namespace, via, choice) = (remote.namespace.clone(), remote.via.clone(), remote.choice.clone());
    let shape = Shape::of(&namespace, u32::from(connection.io_queues) * u32::from(connection.queue_depth));
    let device = device::add(&namespace, shape)?;
    let server = Server::new(remote, device, shape, control);
    let server = server.inspect_err(|_| drop(device::delete(device)))?;
    // Nobody hears: the device is stopped before it was started, which ends the loop.
    let _ = wires.up.send(Up { device, namespace, via, choice });
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
            block_size: remote.namespace.geometry.block_size,
            remote,
            queue,
            region,
            buffer_len,
            moves: vec![0; usize::from(shape.depth)],
            completions: Vec::with_capacity(usize::from(shape.depth)),
            control,
        })
    }

    /// Serves until the device is stopped, and ends in order.
    fn serve(mut self) -> Result<()> {
        while self.queue.is_alive() {
            let worked = self.turn()?;
            if self.remote.may_sleep(worked)
                && let Some(most) = self.remote.arm()
            {
                let slept = self.queue.sleep(most, self.remote.descriptors());
                slept.context("cannot wait for the ublk driver")?;
                self.remote.woken();
            }
            if self.control.asked() == End::AtOnce {
                self.remote.backend.shutdown();
            }
        }
        self.remote.finish(Instant::now() + FINISH_TIME_MAX)
    }

    /// Does everything that there is to do now; `false` when that is nothing.
    fn turn(&mut self) -> Result<bool> {
        let mut worked = false;
        while let Some(request) = self.queue.poll() {
            worked = true;
            self.begin(&request);
        }
        self.remote.backend.poll(&mut self.completions);
        for completion in self.completions.drain(..) {
            worked = true;
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
                submitted.is_err().then_some(Errno::EAGAIN)
            }
            Err(errno) => Some(errno),
        };
        if let Some(errno) = refused {
            self.queue.complete(request.tag, -(errno as i32));
        }
    }
}
