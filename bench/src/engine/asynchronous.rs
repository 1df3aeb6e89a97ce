//! A remote namespace through the async interface: one task for each operation in flight, each with its own buffer. The
//! tasks run on the job's thread; the connection has a thread of its own.

use super::remote::{check_attached, connect_options};
use super::{Engine, EngineError};
use crate::job::JobOptions;
use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Full, Geometry, RegionId, Tag};
use nvmf_initiator::{Buffer, Connection, Device, Error, block_on};
use nvmf_memory::Memory;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::{self, Thread};

const DEVICE: DeviceId = DeviceId(0);

/// A remote namespace, used through the async interface.
pub struct Async {
    connection: Option<Connection>,
    device: Device,
    regions: Rc<RefCell<Vec<Memory>>>,
    tasks: Vec<Task>,
    free: Vec<usize>,
    buffer_len: usize,
    copies: bool,
    started: Vec<usize>,
    in_flight: Vec<usize>,
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
        let connection = block_on(Connection::connect(connect))?;
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
            device,
            regions: Rc::default(),
            tasks: Vec::new(),
            free: (0..=options.iodepth as usize).rev().collect(),
            buffer_len: options.bs_most() as usize,
            // Data is copied only for verification: programs that use this interface have their data in such buffers.
            copies: options.verify.is_some(),
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
        let future = Box::pin(work(device, Rc::clone(&post), regions, buffer, self.copies));
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
    regions: Rc<RefCell<Vec<Memory>>>,
    buffer: Buffer,
    copies: bool,
) {
    let mut buffer = Some(buffer);
    loop {
        let (tag, op) =
            core::future::poll_fn(|_| post.operation.take().map_or(Poll::Pending, Poll::Ready)).await;
        let result = execute(&device, op, &mut buffer, &regions, copies).await;
        let result = result.map_err(|error| error.block_error().unwrap_or(BlockError::Gone));
        post.completion.set(Some(Completion { tag, result }));
    }
}

/// Executes one operation.
async fn execute(
    device: &Device,
    op: BlockOp,
    own: &mut Option<Buffer>,
    regions: &RefCell<Vec<Memory>>,
    copies: bool,
) -> Result<(), Error> {
    let size = u64::from(device.geometry().block_size);
    let place = op.range().map_or((0, 0), |range| (range.start * size, range.blocks * size));
    let (offset, len) = place;
    let taken = |name: nvmf_block::Buffer| regions.borrow().get(usize::from(name.region.0)).cloned();
    match op {
        BlockOp::Read { into, .. } => {
            let buffer = device.read(offset, sized(device, own.take(), into.len)?).await?;
            if copies && let Some(memory) = taken(into) {
                let mut bytes = vec![0; into.len];
                buffer.copy_to(&mut bytes);
                memory.write(into.offset, &bytes);
            }
            *own = Some(buffer);
            Ok(())
        }
        BlockOp::Write { from, fua, .. } => {
            let mut buffer = sized(device, own.take(), from.len)?;
            if copies && let Some(memory) = taken(from) {
                let mut bytes = vec![0; from.len];
                memory.read(from.offset, &mut bytes);
                buffer.copy_from(&bytes);
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
        BlockOp::Compare { .. } => Err(Error::Closed),
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
        regions.push(memory.clone());
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

    fn close(&mut self) {
        self.tasks.clear();
        if let Some(connection) = self.connection.take() {
            block_on(connection.close());
        }
    }
}
