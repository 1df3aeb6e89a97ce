//! A remote namespace through the async interface: one task for each operation in flight, each with its own buffer. The
//! tasks run on the job's thread; the connection has a thread of its own.
//!
//! A program's data are not in such buffers, and only copies lead into and out of them. So they are copied here as well.

use super::remote::{check_attached, connect_options};
use super::{Engine, EngineError};
use crate::cpu::Thread as ThreadNumber;
use crate::job::JobOptions;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_initiator::{Buffer, Connection, Device, Effect, Error, block_on};
use nvmf_memory::Memory;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::thread::{self, Thread};

const DEVICE: DeviceId = DeviceId(0);
/// What the library calls the thread of a connection.
const CONNECTION_THREAD: &str = "nvmf-connection";
/// One connect at a time: its thread is told from those of other jobs by when it appears.
static CONNECTING: Mutex<()> = Mutex::new(());

/// A remote namespace, used through the async interface.
pub struct Async {
    connection: Option<Connection>,
    /// The connection's.
    threads: Vec<ThreadNumber>,
    device: Device,
    regions: Rc<RefCell<Vec<Region>>>,
    tasks: Vec<Task>,
    free: Vec<usize>,
    buffer_len: usize,
    /// Whether the job looks at what was read, and writes other bytes each time.
    mirrors: bool,
    started: Vec<usize>,
    in_flight: Vec<usize>,
}

/// A job's memory, and the same bytes as a program has them.
struct Region {
    memory: Memory,
    bytes: Vec<u8>,
}

/// A task that repeatedly takes an operation and awaits it.
struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    post: Rc<Post>,
    waker: Waker,
    woken: Arc<Woken>,
}

/// Passes an operation to a task and its completion back.
#[derive(Default)]
struct Post {
    operation: Cell<Option<(Tag, BlockOp)>>,
    completion: Cell<Option<Completion>>,
}

/// Waker of a task: marks the task for polling and wakes the job's thread.
struct Woken {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Async {
    /// Connects to the target and opens the namespace.
    ///
    /// # Errors
    /// [`EngineError::Remote`], [`EngineError::Option`].
    pub fn connect(options: &JobOptions) -> Result<Self, EngineError> {
        let (connect, nsid) = connect_options(options)?;
        let nqn = connect.nqn;
        let (connection, threads) = {
            let _alone = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
            let before = ThreadNumber::named(CONNECTION_THREAD);
            let connection = block_on(Connection::connect(connect))?;
            let mut threads = ThreadNumber::named(CONNECTION_THREAD);
            threads.retain(|thread| !before.contains(thread));
            (connection, threads)
        };
        let namespaces = connection.namespaces();
        let first = namespaces.first().map(|namespace| namespace.nsid);
        let nsid = nsid.or(first);
        let nsid = nsid
            .ok_or_else(|| EngineError::Option("the subsystem has no namespace for this host".to_owned()))?;
        let device = connection.open(nsid)?;
        if let Some(namespace) = namespaces.iter().find(|namespace| namespace.nsid == nsid) {
            check_attached(options, &nqn, nsid, namespace.uuid)?;
        }
        let mut engine = Self {
            connection: Some(connection),
            threads,
            device,
            regions: Rc::default(),
            tasks: Vec::new(),
            free: (0..=options.iodepth as usize).rev().collect(),
            buffer_len: options.bs_most() as usize,
            mirrors: options.verify.is_some() || options.refill_buffers,
            started: Vec::with_capacity(options.iodepth as usize + 1),
            in_flight: Vec::with_capacity(options.iodepth as usize + 1),
        };
        for _ in 0..=options.iodepth {
            engine.add_task()?;
        }
        Ok(engine)
    }

    fn add_task(&mut self) -> Result<(), EngineError> {
        let post = Rc::new(Post::default());
        let woken = Arc::new(Woken { woken: AtomicBool::new(false), thread: thread::current() });
        let (device, regions) = (self.device.clone(), Rc::clone(&self.regions));
        let buffer = device.buffer(self.buffer_len)?;
        let future = Box::pin(work(device, Rc::clone(&post), regions, buffer, self.mirrors));
        self.tasks.push(Task { future, post, waker: Waker::from(Arc::clone(&woken)), woken });
        Ok(())
    }

    fn run(&mut self, task: usize) {
        let Task { future, waker, .. } = &mut self.tasks[task];
        // The future never completes.
        let _ = future.as_mut().poll(&mut Context::from_waker(waker));
    }
}

/// Takes operations and awaits them, in an endless loop.
async fn work(
    device: Device,
    post: Rc<Post>,
    regions: Rc<RefCell<Vec<Region>>>,
    buffer: Buffer,
    mirrors: bool,
) {
    let mut buffer = Some(buffer);
    loop {
        let (tag, op) =
            core::future::poll_fn(|_| post.operation.take().map_or(Poll::Pending, Poll::Ready)).await;
        let result = execute(&device, op, &mut buffer, &regions, mirrors).await;
        let result = result.map_err(|error| error.block_error().unwrap_or(BlockError::Gone));
        post.completion.set(Some(Completion { tag, result }));
    }
}

/// Executes one operation.
async fn execute(
    device: &Device,
    op: BlockOp,
    own: &mut Option<Buffer>,
    regions: &RefCell<Vec<Region>>,
    mirrors: bool,
) -> Result<(), Error> {
    let size = u64::from(device.geometry().block_size);
    let place = op.range().map_or((0, 0), |range| (range.start * size, range.blocks * size));
    let (offset, len) = place;
    match op {
        BlockOp::Read { into, .. } => {
            let buffer = device.read(offset, sized(device, own.take(), into.len)?).await?;
            if let Some(region) = regions.borrow_mut().get_mut(usize::from(into.region.0)) {
                let bytes = &mut region.bytes[into.offset..into.offset + into.len];
                buffer.copy_to(bytes);
                if mirrors {
                    region.memory.write(into.offset, bytes);
                }
            }
            *own = Some(buffer);
            Ok(())
        }
        BlockOp::Write { from, fua, .. } => {
            let mut buffer = sized(device, own.take(), from.len)?;
            if let Some(region) = regions.borrow_mut().get_mut(usize::from(from.region.0)) {
                let bytes = &mut region.bytes[from.offset..from.offset + from.len];
                if mirrors {
                    region.memory.read(from.offset, bytes);
                }
                buffer.copy_from(bytes);
            }
            *own = Some(if fua {
                device.write_fua(offset, buffer).await?
            } else {
                device.write(offset, buffer).await?
            });
            Ok(())
        }
        BlockOp::Flush => device.flush().await,
        BlockOp::WriteZeroes { deallocate, fua, .. } => {
            device.write_zeroes(offset, len, deallocate, fua).await
        }
        BlockOp::Deallocate { .. } => device.deallocate(offset, len).await,
        BlockOp::Verify { .. } => device.verify(offset, len).await,
        BlockOp::Compare { .. } | BlockOp::CompareAndWrite { .. } | BlockOp::Share { .. } => {
            Err(Error::Closed { effect: Effect::Nothing })
        }
    }
}

/// A buffer of this length: the task's own if it has that length, otherwise a new one.
fn sized(device: &Device, own: Option<Buffer>, len: usize) -> Result<Buffer, Error> {
    match own {
        Some(buffer) if buffer.len() == len => Ok(buffer),
        _ => device.buffer(len),
    }
}

impl Backend for Async {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let mut regions = self.regions.borrow_mut();
        let id = u16::try_from(regions.len()).map_err(|_| BlockError::Unsupported)?;
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes);
        regions.push(Region { memory: memory.clone(), bytes });
        Ok(RegionId(id))
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        (device == DEVICE).then(|| self.device.geometry())
    }

    fn submit(&mut self, tag: Tag, _: DeviceId, op: BlockOp) -> Result<(), Full> {
        let task = self.free.pop().ok_or(Full)?;
        self.tasks[task].post.operation.set(Some((tag, op)));
        self.started.push(task);
        Ok(())
    }

    fn flush(&mut self) {
        while let Some(task) = self.started.pop() {
            self.run(task);
            self.in_flight.push(task);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut at = 0;
        while at < self.in_flight.len() && completions.len() < completions.capacity() {
            let task = self.in_flight[at];
            if self.tasks[task].woken.woken.swap(false, Ordering::Acquire) {
                self.run(task);
            }
            match self.tasks[task].post.completion.take() {
                Some(completion) => {
                    completions.push(completion);
                    self.in_flight.swap_remove(at);
                    self.free.push(task);
                }
                None => at += 1,
            }
        }
    }
}

impl Engine for Async {
    fn device(&self) -> DeviceId {
        DEVICE
    }

    fn wait(&mut self, most: Duration) {
        if !self.in_flight.iter().any(|&task| self.tasks[task].woken.woken.load(Ordering::Acquire)) {
            thread::park_timeout(most);
        }
    }

    fn threads(&self) -> Vec<ThreadNumber> {
        self.threads.clone()
    }

    fn close(&mut self) {
        self.tasks.clear();
        if let Some(connection) = self.connection.take() {
            block_on(connection.close());
        }
    }
}
