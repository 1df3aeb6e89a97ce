//! Reference measurement of the machine's TCP: two pinned threads that busy-poll one loopback connection.

use crate::wire::{self, Wire};
use anyhow::{Context, Result, ensure};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use nvmf_bench::result::histogram;
use std::time::Instant;

/// Bytes per write of the stream.
const BLOCK: usize = 128 << 10;
/// Blocks in flight of the jobs that the stream is compared with.
const DEPTH: usize = 8;
/// A measurement with fewer round trips is rejected.
const ROUND_TRIPS_MIN: u64 = 100;
/// Socket reads between two readings of the clock.
const BATCH: u32 = 64;

/// The transport whose 4 KiB read the round trip imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Imitated {
    /// NVMe/RDMA over iWARP
    Iwarp,
    /// NVMe/TCP without digests and without flow control of submission queues
    Tcp,
}

impl Imitated {
    /// Bytes sent to the target and bytes sent back.
    pub(crate) fn sizes(self) -> (usize, usize) {
        match self {
            // There: a SEND in one FPDU, of length (2), untagged header (18), command (64) and CRC field (4). Back: a
            // WRITE in one FPDU, of length (2), tagged header (14), data (4096) and CRC field (4); and a SEND in one
            // FPDU, of 2, 18, response (16) and 4.
            Self::Iwarp => (88, 4116 + 40),
            // There: a command capsule of header (8) and command (64). Back: a C2HData of header (24) and data (4096)
            // whose SUCCESS flag stands for the response.
            Self::Tcp => (72, 24 + 4096),
        }
    }
}

/// The cores to use and the duration.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Measure {
    /// Core of the side that replies, or that sends the stream
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// Core of the side that sends the requests, or that receives the stream
    #[arg(long, default_value_t = 1)]
    to: usize,
    /// Duration of the measurement, in seconds
    #[arg(long, default_value_t = 5)]
    runtime: u64,
}

impl Measure {
    /// Measures and prints round trips of the sizes of a 4 KiB read.
    ///
    /// # Errors
    /// As [`Measure::ping_pong`].
    pub(crate) fn print_ping_pong(&self, imitated: Imitated) -> Result<()> {
        let (request, reply) = imitated.sizes();
        let times = self.ping_pong(request, reply)?;
        let figures = serde_json::json!({ "round_trip_ns": {
            "mean": times.mean(),
            "p50": times.value_at_quantile(0.5),
            "p99": times.value_at_quantile(0.99),
        }});
        println!("{figures:#}");
        Ok(())
    }

    /// Measures and prints throughput in one direction.
    ///
    /// # Errors
    /// As [`Measure::ping_pong`].
    pub(crate) fn print_stream(&self) -> Result<()> {
        println!("{:#}", serde_json::json!({ "bytes_per_second": self.stream()? }));
        Ok(())
    }

    pub(crate) fn runtime(&self) -> Duration {
        Duration::from_secs(self.runtime.max(1))
    }

    /// Measures round trips in nanoseconds; the first fifth of the time is warm-up.
    ///
    /// # Errors
    /// When this process may not run on a core, or a socket fails.
    fn ping_pong(&self, request: usize, reply: usize) -> Result<hdrhistogram::Histogram<u64>> {
        let (mut ask, mut answer) = wire::pair()?;
        self.beside(
            |stop| {
                let (mut into, from) = (vec![0; request], vec![0; reply]);
                while answer.take(&mut into, stop)? && answer.give(&from, stop)? {}
                Ok(())
            },
            |stop| {
                let (from, mut into) = (vec![1; request], vec![0; reply]);
                let (mut times, begun) = (histogram(), Instant::now());
                let runtime = self.runtime();
                let mut last = begun;
                while last - begun < runtime {
                    ensure!(ask.give(&from, stop)? && ask.take(&mut into, stop)?, "the other side ended");
                    let now = Instant::now();
                    if now - begun >= runtime / 5 {
                        times.record(u64::try_from((now - last).as_nanos())?)?;
                    }
                    last = now;
                }
                // Too few round trips mean that the threads hardly ran.
                let count = times.len();
                ensure!(
                    count >= ROUND_TRIPS_MIN,
                    "only {count} round trips in {runtime:?}: the cores are not free"
                );
                Ok(times)
            },
        )
    }

    /// Measures bytes per second: the faster of a connection with the system's buffers and one with as much in flight
    /// as the jobs have that it is compared with, which stays in the processors' caches.
    ///
    /// # Errors
    /// As [`Measure::ping_pong`].
    fn stream(&self) -> Result<f64> {
        Ok(self.stream_over(wire::pair()?)?.max(self.stream_over(wire::pair_holding(DEPTH * BLOCK / 2)?)?))
    }

    /// Measures bytes per second for half of the time; a fifth of that is warm-up.
    fn stream_over(&self, (mut take, mut give): (Wire, Wire)) -> Result<f64> {
        self.beside(
            |stop| {
                let from = vec![1; BLOCK];
                while give.give(&from, stop)? {}
                Ok(())
            },
            |stop| {
                let mut into = vec![0; 2 * BLOCK];
                let runtime = self.runtime() / 2;
                let mut receive_for = |time: Duration, wire: &mut Wire| -> Result<(u64, Duration)> {
                    let (begun, mut bytes) = (Instant::now(), 0);
                    while begun.elapsed() < time {
                        for _ in 0..BATCH {
                            bytes += wire.take_some(&mut into, stop)? as u64;
                        }
                    }
                    Ok((bytes, begun.elapsed()))
                };
                receive_for(runtime / 5, &mut take)?;
                let (bytes, time) = receive_for(runtime * 4 / 5, &mut take)?;
                Ok(bytes as f64 / time.as_secs_f64())
            },
        )
    }

    /// Runs both sides, each on its core, until the measuring side is done.
    pub(crate) fn beside<T: Send>(
        &self,
        serve: impl FnOnce(&AtomicBool) -> Result<()> + Send,
        measure: impl FnOnce(&AtomicBool) -> Result<T> + Send,
    ) -> Result<T> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let served = pin(self.from).and_then(|()| serve(&stop));
                // The other side stops waiting when this one has ended.
                stop.store(true, Ordering::Relaxed);
                served
            });
            let measured = scope.spawn(|| {
                let measured = pin(self.to).and_then(|()| measure(&stop));
                stop.store(true, Ordering::Relaxed);
                measured
            });
            let measured = measured.join().expect("no side panics");
            server.join().expect("no side panics")?;
            measured
        })
    }
}

/// Binds this thread to a core.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core).with_context(|| format!("core {core}: the number is too large"))?;
    sched_setaffinity(Pid::from_raw(0), &set)
        .with_context(|| format!("cannot bind to core {core}: choose a core that this process may use"))
}

#[cfg(test)]
impl Measure {
    /// A short measurement whose sides share one core.
    pub(crate) fn on_one_core() -> Self {
        let set = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
        let core = (0..CpuSet::count()).find(|&core| set.is_set(core).unwrap()).unwrap();
        Self { from: core, to: core, runtime: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_pong_and_stream_return_figures() {
        // Both sides share one core, so only a few hundred round trips are made.
        let measure = Measure::on_one_core();
        let (request, reply) = Imitated::Tcp.sizes();
        match measure.ping_pong(request, reply) {
            Ok(times) => assert!(times.value_at_quantile(0.5) > 0),
            Err(error) => assert!(error.to_string().contains("not free"), "{error:#}"),
        }
        assert!(measure.stream().unwrap() > 0.0);
    }

    #[test]
    fn missing_core_is_error() {
        let measure = Measure { to: CpuSet::count() - 1, ..Measure::on_one_core() };
        let error = measure.ping_pong(1, 1).unwrap_err();
        assert!(format!("{error:#}").contains("core"), "{error:#}");
    }
}
