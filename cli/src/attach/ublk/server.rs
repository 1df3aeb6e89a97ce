//! The thread behind a ublk device: requests in, operations out, on one thread and without a copy.

use super::device::{self, Shape};
use super::operation::operation;
use super::ring::{Queue, Request};
use crate::attach::AttachOptions;
use crate::attach::errno::errno;
use crate::attach::serve::{Change, lock_disk};
use crate::connect::{Via, reach};
use crate::namespace::choose;
use anyhow::{Context, Result, anyhow};
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_block::{Backend, BlockOp, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_host::{AssociationError, Namespace};
use nvmf_initiator::transport::Transport;
use nvmf_initiator::{ConnectionState, RemoteBackend};
use nvmf_memory::Memory;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// How long the last flush may take, and then the end of the connection.
const LAST_TIME_MAX: Duration = Duration::from_secs(15);
/// The last flush's tag: no request's.
const LAST_FLUSH: Tag = Tag(u64::MAX);

/// What the thread may be told: not to wait for the target any more.
#[derive(Debug)]
pub(super) struct Abandon {
    asked: AtomicBool,
    wakeup: EventFd,
}

impl Abandon {
    pub(super) fn new() -> Result<Arc<Self>> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self { asked: AtomicBool::new(false), wakeup }))
    }

    /// Has every request fail, those that wait and those that come.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        // A full counter has rung already.
        let _ = self.wakeup.write(1);
    }
}

/// A device that is added, and whose queue is served.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) device: u32,
    pub(super) namespace: Namespace,
    pub(super) via: Via,
}

/// How the thread is reached, and whom it tells.
pub(super) struct Wires {
    pub(super) abandon: Arc<Abandon>,
    pub(super) state: watch::Sender<Change>,
    pub(super) up: oneshot::Sender<Up>,
}

/// Connects, adds a device for the namespace that is meant, and serves it until it is stopped. What was written is
/// flushed then.
pub(super) fn run(options: &AttachOptions, wires: Wires) -> Result<()> {
    let connection = &options.connection;
    let reached = reach(connection.clone(), async |options| RemoteBackend::connect(&options));
    let (backend, via) = crate::runtime::run(reached)?;
    let nsid = choose(&connection.nqn, options.nsid, backend.namespaces())?;
    let namespace = backend.namespace(nsid)?;
    let _lock = lock_disk(options, &namespace)?;
    let shape = Shape::of(&namespace, u32::from(connection.io_queues) * u32::from(connection.queue_depth));
    let device = device::add(&namespace, shape)?;
    let server = Server::new(backend, device, &namespace, shape, connection.spin, wires.abandon, wires.state);
    let server = server.inspect_err(|_| drop(device::delete(device)))?;
    // Nobody hears: the device is stopped before it was started, which ends the loop.
    let _ = wires.up.send(Up { device, namespace, via });
    server.serve()
}

struct Server<T: Transport> {
    backend: RemoteBackend<T>,
    queue: Queue,
    namespace: DeviceId,
    block_size: u32,
    region: RegionId,
    buffer_len: usize,
    /// What each slot's request reports when it ends well: the bytes that it moves.
    moves: Vec<i32>,
    completions: Vec<Completion>,
    spin: Duration,
    abandon: Arc<Abandon>,
    state: watch::Sender<Change>,
    /// The loss that was told last.
    loss: Option<AssociationError>,
}

impl<T: Transport> Server<T> {
    fn new(
        mut backend: RemoteBackend<T>,
        device: u32,
        namespace: &Namespace,
        shape: Shape,
        spin: Duration,
        abandon: Arc<Abandon>,
        state: watch::Sender<Change>,
    ) -> Result<Self> {
        let buffer_len = shape.io_bytes_max as usize;
        let memory = Memory::alloc(usize::from(shape.depth) * buffer_len)?;
        let region = backend.register(&memory).context("cannot register the device's buffers")?;
        let queue = Queue::open(device, shape.depth, memory, buffer_len)
            .with_context(|| format!("cannot serve /dev/ublkc{device}"))?;
        Ok(Self {
            backend,
            queue,
            namespace: DeviceId(namespace.nsid.0),
            block_size: namespace.geometry.block_size,
            region,
            buffer_len,
            moves: vec![0; usize::from(shape.depth)],
            completions: Vec::with_capacity(usize::from(shape.depth)),
            spin,
            abandon,
            state,
            loss: None,
        })
    }

    /// Serves until the device is stopped, and ends in order.
    fn serve(mut self) -> Result<()> {
        let mut idle_since = None;
        while self.queue.is_alive() {
            if self.turn()? {
                idle_since = None;
            } else if idle_since.get_or_insert_with(Instant::now).elapsed() < self.spin {
                std::hint::spin_loop();
            } else {
                self.backend.sleep(&[self.queue.fd(), self.abandon.wakeup.as_fd()]);
                self.on_abandon();
                idle_since = None;
            }
        }
        self.finish()
    }

    /// Does everything that there is to do now; `false` when that is nothing.
    fn turn(&mut self) -> Result<bool> {
        let mut worked = false;
        while let Some(request) = self.queue.poll() {
            worked = true;
            self.begin(&request);
        }
        self.backend.poll(&mut self.completions);
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
        let (state, loss) = (self.backend.state(), self.backend.loss());
        if self.state.borrow().state != state || self.loss.as_ref() != loss {
            self.loss = loss.cloned();
            let foreign = self.backend.foreign().find(|(nsid, _)| nsid.0 == self.namespace.0);
            let change = Change::new(state, loss, foreign.map(|(_, mismatch)| mismatch));
            self.state.send_replace(change);
        }
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
                let submitted = self.backend.submit(Tag(u64::from(request.tag)), self.namespace, op);
                // It never is: the backend has room for more operations than the queue has slots.
                submitted.is_err().then_some(Errno::EAGAIN)
            }
            Err(errno) => Some(errno),
        };
        if let Some(errno) = refused {
            self.queue.complete(request.tag, -(errno as i32));
        }
    }

    fn on_abandon(&mut self) {
        if self.abandon.asked.swap(false, Ordering::AcqRel) {
            // Empty when it has not rung yet.
            let _ = self.abandon.wakeup.read();
            self.backend.shutdown();
        }
    }

    /// The device is stopped: flushes what was written, and ends the connection.
    fn finish(mut self) -> Result<()> {
        let flushed = self.flush();
        self.backend.shutdown();
        let deadline = Instant::now() + LAST_TIME_MAX;
        while self.backend.state() != ConnectionState::Lost && Instant::now() < deadline {
            if !self.backend.turn() {
                self.backend.sleep(&[]);
            }
        }
        flushed.context("the last flush failed: what was not flushed before may be lost")
    }

    fn flush(&mut self) -> Result<()> {
        let deadline = Instant::now() + LAST_TIME_MAX;
        self.backend.submit(LAST_FLUSH, self.namespace, BlockOp::Flush)?;
        loop {
            self.backend.poll(&mut self.completions);
            for completion in self.completions.drain(..) {
                // A request that ended after its slot was aborted: the kernel has failed it already.
                if completion.tag == LAST_FLUSH {
                    return Ok(completion.result?);
                }
            }
            if Instant::now() >= deadline {
                return Err(anyhow!("it took too long"));
            }
            self.backend.sleep(&[]);
        }
    }
}
