//! Set-up of a thread from its options.

use super::record::{IntervalChannel, Record};
use super::source::Source;
use super::worker::{Parts, Worker};
use super::{Message, RunError, ThreadPlan};
use crate::engine::{Async, Engine, EngineError, Local, Nbd, OwnThread};
use crate::errno::errno;
use crate::job::{Access, EngineKind, JobOptions};
use crate::result::{self, Direction, DirectionResult, JobResult};
use crate::verify::{Stamp, Verification};
use crate::workload::{Generator, Random, Region};
use core::time::Duration;
use hdrhistogram::Histogram;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use nvmf_backend::Disk;
use nvmf_block::Geometry;
use nvmf_memory::Memory;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

/// What connects a thread to its run.
pub(super) struct RunLink<'a> {
    pub(super) index: usize,
    pub(super) out: Sender<Message>,
    pub(super) back: Receiver<Histogram<u64>>,
    /// Receives the start of the run's clock; disconnected if the run is cancelled.
    pub(super) go: Receiver<Instant>,
    pub(super) interval: Duration,
    pub(super) stop: &'a AtomicBool,
}

/// Sets the thread up, waits for the start, and runs the job.
pub(super) fn run(plan: &ThreadPlan<'_>, disk: Option<&Disk>, link: &RunLink<'_>) {
    let result = pin(&plan.job.options.cpus_allowed).and_then(|()| with_engine(plan, disk, link));
    let Err(source) = result else { return };
    // Sending fails only if the run is already over.
    let _ = link.out.send(Message::Ready(Err(RunError { job: plan.job.name.clone(), source })));
}

/// Selects the engine; the code from here on is compiled for each engine.
fn with_engine(plan: &ThreadPlan<'_>, disk: Option<&Disk>, link: &RunLink<'_>) -> Result<(), EngineError> {
    let options = &plan.job.options;
    match (options.engine(), disk) {
        (EngineKind::Nvmf, _) => drive(OwnThread::connect(options)?, plan, link),
        (EngineKind::NvmfAsync, _) => drive(Async::connect(options)?, plan, link),
        (EngineKind::Nbd, _) => {
            drive(Nbd::connect(options.filename.as_deref().unwrap_or_default(), options.iodepth)?, plan, link)
        }
        (_, Some(disk)) => drive(Local::new(disk, options.iodepth)?, plan, link),
        (kind, None) => Err(EngineError::Option(format!("ioengine={} has no disk", kind.name()))),
    }
}

fn pin(processors: &[usize]) -> Result<(), EngineError> {
    if processors.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    let refused = |errno| {
        EngineError::Option(format!(
            "cpus_allowed: this machine cannot run a thread on {processors:?}: {errno}"
        ))
    };
    processors.iter().try_for_each(|&processor| set.set(processor)).map_err(refused)?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(refused)
}

/// Runs a thread's job on a connected engine.
pub(super) fn drive<E: Engine>(
    mut engine: E,
    plan: &ThreadPlan<'_>,
    link: &RunLink<'_>,
) -> Result<(), EngineError> {
    let options = &plan.job.options;
    let geometry = engine
        .geometry(engine.device())
        .ok_or_else(|| EngineError::Option("the device no longer exists".to_owned()))?;
    let region = region(options, plan.number, geometry)?;
    let generator = Generator::new(options, region, plan.stream).ok_or_else(|| {
        EngineError::Option(format!(
            "no block of {} bytes fits into the {} bytes that start at byte {}",
            options.bs_least(),
            region.len,
            region.offset
        ))
    })?;
    let slot_len = options.bs_most() as usize;
    let memory = buffers(options, slot_len, plan.stream)?;
    let registered = engine.register(&memory);
    let region_id = registered.map_err(|error| {
        EngineError::Option(format!("cannot register {} bytes of memory: {error}", memory.len()))
    })?;
    let verification = options.verify.clone().map(|content| {
        let unit = options.verify_unit();
        let stamp = Stamp::new(options.stamp(), content, unit as usize);
        Verification::new(stamp, generator.region(), unit, options.rw.writes)
    });
    let wait = || link.out.send(Message::Ready(Ok(()))).ok().and_then(|()| link.go.recv().ok());
    let Some(clock) = wait() else { return Ok(()) };
    std::thread::sleep(options.startdelay);
    let (link_out, link_back) = (link.out.clone(), &link.back);
    let channel =
        IntervalChannel { out: link_out, back: link_back, wrap: Message::Interval, length: link.interval };
    let record = Record::new(link.index, engine.threads(), channel);
    let parts = Parts {
        engine,
        source: Source::new(options, generator),
        verification,
        record,
        memory,
        region: region_id,
        slot_len,
        block_size: geometry.block_size,
        clock,
    };
    let outcome = Worker::new(parts, &plan.job.name, options, link.stop).run();
    let mut record = outcome.record;
    let mut engine = outcome.engine;
    engine.close();
    let result = JobResult {
        name: plan.job.name.clone(),
        group: plan.group,
        stage: plan.stage,
        threads: 1,
        // EILSEQ, as in fio, if only verification failed.
        error: outcome
            .error
            .map_or(if record.verify_errors > 0 { nix::errno::Errno::EILSEQ as i32 } else { 0 }, errno),
        message: outcome.error.map(|error| error.to_string()),
        errors: record.errors,
        outstanding: outcome.outstanding,
        verify_errors: record.verify_errors,
        mismatch: outcome.wrong,
        verified: outcome.verified,
        percentiles: options.percentile_list.clone(),
        options: plan.job.given.clone(),
        engine: options.engine().name().to_owned(),
        iodepth: options.iodepth,
        started: record.started,
        elapsed: outcome.elapsed,
        directions: core::mem::replace(
            &mut record.directions,
            core::array::from_fn(|_| DirectionResult::default()),
        ),
        sync: record.sync,
        cpu: outcome.cpu,
        depth: record.depth,
        submit: record.submit,
        complete: record.complete,
        latency_target: options.latency_search().map(|search| result::LatencyTarget {
            target: search.target,
            window: search.window,
            percentile: search.percentile,
            depth: outcome.latency_depth,
        }),
        samples: Vec::new(),
    };
    let _ = link.out.send(Message::Done(link.index, Box::new(result)));
    Ok(())
}

/// The part of the device that this thread uses.
fn region(options: &JobOptions, number: u32, geometry: Geometry) -> Result<Region, EngineError> {
    let (bytes, block) = (geometry.bytes(), geometry.block_size);
    for size in
        options.bs.iter().zip(Direction::ALL).filter(|(_, d)| options.rw.has(*d)).map(|(s, _)| s.least())
    {
        if !size.is_multiple_of(block) {
            return Err(EngineError::Option(format!(
                "bs={size} is not a multiple of the device's block size, {block}"
            )));
        }
    }
    if geometry.read_only && has_writes(options.rw) {
        return Err(EngineError::Option("the device is read-only".to_owned()));
    }
    let increment = options.offset_increment.of(bytes).checked_mul(number.into());
    let offset =
        increment.and_then(|increment| increment.checked_add(options.offset.of(bytes))).unwrap_or(u64::MAX);
    if offset >= bytes || !offset.is_multiple_of(block.into()) {
        return Err(EngineError::Option(format!(
            "offset {offset} must be less than the device's size, {bytes} bytes, and a multiple of its block size, \
            {block}"
        )));
    }
    let rest = bytes - offset;
    Ok(Region { offset, len: options.size.map_or(rest, |size| size.of(bytes)).min(rest) })
}

fn has_writes(rw: Access) -> bool {
    rw.writes || rw.trims
}

/// A buffer for each operation in flight, filled with random bytes unless `zero_buffers` is set.
fn buffers(options: &JobOptions, slot_len: usize, stream: u64) -> Result<Memory, EngineError> {
    let refused = |error: nvmf_memory::OutOfMemory| EngineError::Option(error.to_string());
    let memory = Memory::alloc(slot_len * options.iodepth as usize).map_err(refused)?;
    let mut random = Random::new(options.seed(), !stream);
    let mut page = [0; 4096];
    for at in (0..memory.len()).step_by(page.len()) {
        // Zeroes are written, too: pages that were never written are all mapped to the shared zero page and fault at
        // their first use.
        if !options.zero_buffers {
            page.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        }
        memory.write(at, &page);
    }
    Ok(memory)
}
