//! The threads behind a ublk device, one for each of its queues: requests in, operations out, on one thread, over connections
//! of its own and without a copy.

use super::device::{self, Shape};
use super::operation::operation;
use super::ring::{Queue, Request, open_device};
use crate::attach::control::{Control, End};
use crate::attach::errno::errno;
use crate::attach::process::FatalPanics;
use crate::attach::remote::{AskedBy, FINISH_TIME_MAX, Found, Origin, Remote, Wires};
use crate::attach::{AttachOptions, seccomp};
use crate::print::chain;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nvmf_block::{Backend, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_memory::Memory;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Queues that a device has unless the user says otherwise: one for each processor, up to this many. Each has a thread, a
/// connection and buffers.
const DEFAULT_QUEUES_MAX: usize = 4;

/// A device that is there, and whose queues are served.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) device: u32,
    pub(super) found: Found,
}

/// Connects, adds a device for the namespace that is meant, or takes over the one that there is, and serves it until it is
/// stopped. What was written is flushed then.
pub(super) fn run(origin: &Origin, wires: Wires<Up>) -> Result<()> {
    let control = wires.control;
    let first = Remote::open(origin, &control, wires.changes)?;
    let found = first.found.clone();
    let takes_over = origin.before.is_some();
    let (device, shape, remotes) = if takes_over {
        let (device, shape) = device::recover(origin.mark)?;
        (device, shape, connections(first, shape.queues, origin, &control)?)
    } else {
        let wanted = origin.options.queues.unwrap_or_else(default_queues);
        let remotes = connections(first, wanted, origin, &control)?;
        let connection = &origin.options.connection;
        let commands = u32::from(connection.io_queues) * u32::from(connection.queue_depth);
        let queues = u16::try_from(remotes.len()).expect("as many as were wanted at most");
        let shape = Shape::of(&found.namespace, queues, commands);
        (device::add(&found.namespace, shape, origin.mark)?, shape, remotes)
    };
    let ended = start(remotes, device, shape, &origin.options, &control).inspect_err(|_| {
        if !takes_over {
            // Queues that are open are closed by this.
            let _ = device::delete(device);
        }
    })?;
    // Nobody hears: the device is stopped before it was started, which ends the loops.
    let _ = wires.up.send(Up { device, found });
    // One that fails is the end of the disk.
    ended.into_iter().collect()
}

fn default_queues() -> u16 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.min(DEFAULT_QUEUES_MAX) as u16
}

/// A connection for each queue. A disk that is taken over has its queues already; otherwise there are no more than the target
/// grants connections.
fn connections(first: Remote, queues: u16, origin: &Origin, control: &Arc<Control>) -> Result<Vec<Remote>> {
    let mut remotes = vec![first];
    for queue in 1..queues {
        match remotes[0].another(origin, control) {
            Ok(remote) => remotes.push(remote),
            Err(error) if origin.before.is_some() => return Err(error),
            Err(error) => {
                tracing::warn!(
                    "the disk has {queue} queues, not {queues}: one connection more was refused: {}",
                    chain(&error)
                );
                break;
            }
        }
    }
    Ok(remotes)
}

/// Starts a thread for each queue, and waits until all serve; how each of them ends is heard then.
fn start(
    remotes: Vec<Remote>,
    device: u32,
    shape: Shape,
    options: &AttachOptions,
    control: &Arc<Control>,
) -> Result<Receiver<Result<()>>> {
    let cannot_serve = || format!("cannot serve /dev/ublkc{device}");
    let file = Arc::new(open_device(device).with_context(cannot_serve)?);
    let ((serves, is_served), (end, ended)) = (channel(), channel());
    let begun = Arc::new(AtomicUsize::new(remotes.len()));
    let queues = remotes.len();
    for (number, remote) in (0..).zip(remotes) {
        let (file, control, begun) = (Arc::clone(&file), Arc::clone(control), Arc::clone(&begun));
        let (serves, end): (Sender<Result<()>>, Sender<Result<()>>) = (serves.clone(), end.clone());
        let options = options.clone();
        let body = move || {
            let _fatal = FatalPanics;
            let server = Server::new(remote, &file, number, shape, control, begun);
            match server.with_context(|| format!("cannot serve /dev/ublkc{device}")) {
                Ok(server) => {
                    let _ = serves.send(Ok(()));
                    seccomp::confine(&options, false);
                    // A queue that nobody serves any more is the end of the disk.
                    let _ = end.send(server.serve());
                }
                Err(error) => drop(serves.send(Err(error))),
            }
        };
        std::thread::Builder::new().name(format!("nvmf-ublk-{number}")).spawn(body)?;
    }
    is_served.into_iter().take(queues).collect::<Result<()>>()?;
    Ok(ended)
}

/// A queue's.
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
    /// Queues that have something under way, when the disk is handed over: none is closed before.
    begun: Arc<AtomicUsize>,
}

impl Server {
    fn new(
        mut remote: Remote,
        device: &File,
        number: u16,
        shape: Shape,
        control: Arc<Control>,
        begun: Arc<AtomicUsize>,
    ) -> Result<Self> {
        let buffer_len = shape.io_bytes_max as usize;
        let memory = Memory::alloc(usize::from(shape.depth) * buffer_len)?;
        let region = remote.backend.register(&memory).context("cannot register the device's buffers")?;
        let queue = Queue::open(device, number, shape.depth, memory, buffer_len)?;
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
            begun,
        })
    }

    /// Serves until the device is stopped, and ends in order; or until another server is to go on, and what is under way has
    /// ended, of the other queues, too: the kernel takes a device whose first queue is closed for one without a server.
    fn serve(mut self) -> Result<()> {
        let (mut hand_over_by, mut is_idle) = (None, false);
        while self.queue.is_alive() {
            let worked = self.turn()?;
            let mut most = Duration::MAX;
            if self.control.asked() == End::HandOver {
                let now = Instant::now();
                most = hand_over_by.get_or_insert(now + FINISH_TIME_MAX).saturating_duration_since(now);
                if !is_idle && self.under_way == 0 && !worked {
                    is_idle = true;
                    if self.begun.fetch_sub(1, Ordering::AcqRel) == 1 {
                        self.control.wake();
                    }
                }
                if self.begun.load(Ordering::Acquire) == 0 || most.is_zero() {
                    break;
                }
            }
            if self.remote.may_sleep(worked, AskedBy::Kernel)
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
