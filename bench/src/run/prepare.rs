//! From options to a thread that is ready to go.

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

/// A thread's ties to the run.
pub(super) struct Ties<'a> {
    pub(super) index: usize,
    pub(super) out: Sender<Message>,
    pub(super) back: Receiver<Histogram<u64>>,
    /// Says when to begin; gone when there is nothing to begin.
    pub(super) go: Receiver<Instant>,
    pub(super) interval: Duration,
    pub(super) stop: &'a AtomicBool,
}

/// Makes ready, waits for the word, does the job.
pub(super) fn run(plan: &ThreadPlan<'_>, disk: Option<&Disk>, ties: &Ties<'_>) {
    let result = pin(&plan.job.options.cpus_allowed).and_then(|()| with_engine(plan, disk, ties));
    let Err(source) = result else { return };
    // Without a listener the run is over already.
    let _ = ties.out.send(Message::Ready(Err(RunError { job: plan.job.name.clone(), source })));
}

/// The one place where an engine is chosen: what follows is compiled for each.
fn with_engine(plan: &ThreadPlan<'_>, disk: Option<&Disk>, ties: &Ties<'_>) -> Result<(), EngineError> {
    let options = &plan.job.options;
    match (options.engine(), disk) {
        (EngineKind::Nvmf, _) => drive(OwnThread::connect(options)?, plan, ties),
        (EngineKind::NvmfAsync, _) => drive(Async::connect(options)?, plan, ties),
        (EngineKind::Nbd, _) => {
            drive(Nbd::connect(options.filename.as_deref().unwrap_or_default(), options.iodepth)?, plan, ties)
        }
        (_, Some(disk)) => drive(Local::new(disk, options.iodepth)?, plan, ties),
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

/// A thread's life, on an engine that is ready.
pub(super) fn drive<E: Engine>(
    mut engine: E,
    plan: &ThreadPlan<'_>,
    ties: &Ties<'_>,
) -> Result<(), EngineError> {
    let options = &plan.job.options;
    let geometry = engine
        .geometry(engine.device())
        .ok_or_else(|| EngineError::Option("the device is gone already".to_owned()))?;
    let region = region(options, plan.number, geometry)?;
    let generator = Generator::new(options, region, plan.stream).ok_or_else(|| {
        EngineError::Option(format!(
            "no block of {} bytes fits into the {} bytes from byte {}",
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
        let stamp = Stamp::new(options.randseed, content, unit as usize);
        Verification::new(stamp, generator.region(), unit, options.rw.writes)
    });
    let wait = || ties.out.send(Message::Ready(Ok(()))).ok().and_then(|()| ties.go.recv().ok());
    let Some(clock) = wait() else { return Ok(()) };
    std::thread::sleep(options.startdelay);
    let (ties_out, ties_back) = (ties.out.clone(), &ties.back);
    let channel =
        IntervalChannel { out: ties_out, back: ties_back, wrap: Message::Interval, length: ties.interval };
    let parts = Parts {
        engine,
        source: Source::new(options, generator),
        verification,
        record: Record::new(ties.index, channel),
        memory,
        region: region_id,
        slot_len,
        block_size: geometry.block_size,
        clock,
    };
    let outcome = Worker::new(parts, &plan.job.name, options, ties.stop).run();
    let mut record = outcome.record;
    let (elapsed, cpu) = record.finish(outcome.now);
    let mut engine = outcome.engine;
    engine.close();
    let message = outcome.error.map(|error| error.to_string()).or(outcome.wrong);
    let result = JobResult {
        name: plan.job.name.clone(),
        group: plan.group,
        threads: 1,
        // EILSEQ, as fio has it, when only verification failed.
        error: outcome
            .error
            .map_or(if record.verify_errors > 0 { nix::errno::Errno::EILSEQ as i32 } else { 0 }, errno),
        message,
        errors: record.errors,
        verify_errors: record.verify_errors,
        options: plan.job.given.clone(),
        engine: options.engine().name().to_owned(),
        iodepth: options.iodepth,
        started: record.started,
        elapsed,
        directions: core::mem::replace(
            &mut record.directions,
            core::array::from_fn(|_| DirectionResult::default()),
        ),
        sync: record.sync,
        cpu,
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
    let _ = ties.out.send(Message::Done(ties.index, Box::new(result)));
    Ok(())
}

/// The bytes of the device that this thread uses.
fn region(options: &JobOptions, number: u32, geometry: Geometry) -> Result<Region, EngineError> {
    let (bytes, block) = (geometry.bytes(), geometry.block_size);
    for size in
        options.bs.iter().zip(Direction::ALL).filter(|(_, d)| options.rw.has(*d)).map(|(s, _)| s.least())
    {
        if !size.is_multiple_of(block) {
            return Err(EngineError::Option(format!(
                "bs={size} is no multiple of the device's block size, {block}"
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
            "offset {offset} must lie on the device, which has {bytes} bytes, and be a multiple of its block size, {block}"
        )));
    }
    let rest = bytes - offset;
    Ok(Region { offset, len: options.size.map_or(rest, |size| size.of(bytes)).min(rest) })
}

fn has_writes(rw: Access) -> bool {
    rw.writes || rw.trims
}

/// A buffer for each operation in flight, filled with random bytes unless zeroes are wanted.
fn buffers(options: &JobOptions, slot_len: usize, stream: u64) -> Result<Memory, EngineError> {
    let refused = |error: nvmf_memory::OutOfMemory| EngineError::Option(error.to_string());
    let memory = Memory::alloc(slot_len * options.iodepth as usize).map_err(refused)?;
    let mut random = Random::new(options.randseed, !stream);
    let mut page = [0; 4096];
    for at in (0..memory.len()).step_by(page.len()) {
        // Zeroes are written, too: a page that was never written is shared with all such pages, and costs at its first use.
        if !options.zero_buffers {
            page.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        }
        memory.write(at, &page);
    }
    Ok(memory)
}
