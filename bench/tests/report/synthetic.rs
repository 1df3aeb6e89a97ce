//! Synthetic runs, generated from a seed with integer arithmetic only, so that they are the same on every machine.

use nvmf_bench::job::JobOptions;
use nvmf_bench::result::{Cpu, DirectionResult, JobResult, RunResult, Sample, histogram};
use std::time::{Duration, SystemTime};

/// Parameters of a synthetic run with one job that reads and writes.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) name: String,
    /// Minimum latency of an operation.
    pub(crate) base_ns: u64,
    /// Samples of 100 ms.
    pub(crate) samples: u64,
    pub(crate) errors: u64,
    pub(crate) verify_errors: u64,
    pub(crate) trims: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let name = "mixed".to_string();
        Self { seed: 1, name, base_ns: 8_000, samples: 50, errors: 0, verify_errors: 0, trims: false }
    }
}

const INTERVAL: Duration = Duration::from_millis(100);
/// Operations in flight.
const DEPTH: u64 = 32;

impl Plan {
    pub(crate) fn run(&self) -> RunResult {
        RunResult {
            finished: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_269_870),
            interrupted: None,
            pid: 4711,
            global: vec![("ioengine".to_string(), "nvmf".to_string())],
            jobs: vec![self.job()],
        }
    }

    fn job(&self) -> JobResult {
        let mut rng = Rng(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut directions: [DirectionResult; 3] = Default::default();
        let samples = (0..self.samples).map(|index| self.sample(index, &mut rng, &mut directions)).collect();
        let elapsed = INTERVAL * self.samples as u32;
        for direction in directions.iter_mut().filter(|d| d.ios > 0) {
            direction.runtime = elapsed;
        }
        let mut sync = histogram();
        for _ in 0..100 {
            sync += 400_000 + rng.below(200_000);
        }
        JobResult {
            name: self.name.clone(),
            group: 0,
            stage: 0,
            threads: 1,
            error: if self.errors > 0 { 5 } else { 0 },
            message: None,
            errors: self.errors,
            outstanding: 0,
            verify_errors: self.verify_errors,
            mismatch: None,
            verified: None,
            percentiles: JobOptions::default().percentile_list,
            options: vec![("rw".to_string(), "randrw".to_string()), ("bs".to_string(), "4k".to_string())],
            engine: "nvmf".to_string(),
            iodepth: DEPTH as u32,
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_269_865),
            elapsed,
            directions,
            sync,
            cpu: Cpu {
                user: elapsed * 61 / 100 + Duration::from_micros(rng.below(100_000)),
                system: elapsed * 30 / 100,
                context_switches: 1234,
                major_faults: 0,
                minor_faults: 56,
            },
            depth: [1, 2, 4, 8, 16, 969, 0],
            submit: [0, 900, 100, 0, 0, 0, 0],
            complete: [500, 400, 100, 0, 0, 0, 0],
            latency_target: None,
            samples,
        }
    }

    /// Generates an interval at full depth, with as many operations as fit. Each one counts as a hundred.
    fn sample(&self, index: u64, rng: &mut Rng, directions: &mut [DirectionResult; 3]) -> Sample {
        let mut here = histogram();
        let mut sample = Sample { at: INTERVAL * (index as u32 + 1), length: INTERVAL, ..Sample::default() };
        // Some intervals are slow, as with background work of a disk.
        let slow = if index % 23 == 17 { 2 } else { 1 };
        let mut time_left = INTERVAL.as_nanos() as u64 * DEPTH / 100;
        loop {
            let submission = 300 + rng.below(200);
            let completion =
                slow * (self.base_ns + (0..4).map(|_| rng.below(1_500)).sum::<u64>()) * rng.tail();
            let total = submission + completion;
            let Some(left) = time_left.checked_sub(total) else { break };
            time_left = left;
            let direction = match rng.below(10) {
                0 if self.trims => 2,
                0..3 => 1,
                _ => 0,
            };
            let d = &mut directions[direction];
            d.ios += 100;
            d.bytes += 100 * 4096;
            d.submission.record_n(submission, 100).unwrap();
            d.completion.record_n(completion, 100).unwrap();
            d.total.record_n(total, 100).unwrap();
            here.record(total).unwrap();
            sample.ios[direction] += 100;
            sample.bytes[direction] += 100 * 4096;
        }
        sample.percentiles = Sample::PERCENTILES.map(|p| here.value_at_percentile(p));
        sample
    }
}

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    /// A random factor for a latency: rarely large, very rarely very large.
    fn tail(&mut self) -> u64 {
        match self.below(10_000) {
            0..3 => 100 + self.below(150),
            3..60 => 4 + self.below(12),
            60..400 => 2,
            _ => 1,
        }
    }
}
