//! Bare TCP with the bytes of several outstanding reads: what a protocol that does nothing would reach.

use crate::bare::{Imitated, Measure};
use crate::wire::{self, Wire};
use anyhow::{Context, Result, ensure};
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use memmap2::{Advice, MmapMut};
use nvmf_bench::workload::Random;
use std::io::IoSlice;
use std::time::Instant;

/// Most replies per send: as many as fit into one packet of TCP, which is the fastest; with one more they are two.
const REPLIES_MAX: usize = 15;
/// Bytes of data in a reply; the rest is headers.
const BLOCK: usize = 4096;
/// Bytes per receive of replies.
const RECEIVE_LEN: usize = 256 << 10;

/// Counts the whole messages in a stream of bytes.
struct Messages {
    len: usize,
    /// Bytes of a message that is not complete.
    rest: usize,
}

impl Messages {
    fn of(len: usize) -> Self {
        Self { len, rest: 0 }
    }

    /// The messages that these bytes complete.
    fn complete(&mut self, bytes: usize) -> usize {
        let bytes = self.rest + bytes;
        self.rest = bytes % self.len;
        bytes / self.len
    }
}

impl Measure {
    /// Measures and prints exchanges of the bytes of 4 KiB reads, with this many outstanding. The data are those of
    /// random blocks of a disk of `disk` bytes in memory.
    ///
    /// # Errors
    /// When this process may not run on a core, or a socket fails.
    pub(crate) fn print_exchange(&self, imitated: Imitated, iodepth: u16, disk: usize) -> Result<()> {
        let rate = self.exchange(imitated, iodepth.into(), disk)?;
        println!("{:#}", serde_json::json!({ "exchanges_per_second": rate }));
        Ok(())
    }

    /// Measures exchanges per second; the first fifth of the time is warm-up.
    fn exchange(&self, imitated: Imitated, iodepth: usize, disk: usize) -> Result<f64> {
        ensure!(iodepth > 0, "at least one exchange must be outstanding");
        ensure!(disk >= BLOCK, "the disk must have at least one block");
        let (request, reply) = imitated.sizes();
        let (mut ask, mut answer) = wire::pair()?;
        self.beside(
            |stop| serve(&mut answer, request, reply, iodepth, disk, stop),
            |stop| {
                let (from, mut into) = (vec![1; iodepth * request], vec![0; RECEIVE_LEN]);
                let mut replies = Messages::of(reply);
                ensure!(ask.give(&from, stop)?, "the other side ended");
                let mut exchange_for = |time: Duration| -> Result<(usize, Duration)> {
                    let (begun, mut count) = (Instant::now(), 0);
                    while begun.elapsed() < time {
                        let received = ask.take_some(&mut into, stop)?;
                        ensure!(received > 0, "the other side ended");
                        let complete = replies.complete(received);
                        ensure!(ask.give(&from[..complete * request], stop)?, "the other side ended");
                        count += complete;
                    }
                    Ok((count, begun.elapsed()))
                };
                exchange_for(self.runtime() / 5)?;
                let (count, time) = exchange_for(self.runtime() * 4 / 5)?;
                Ok(count as f64 / time.as_secs_f64())
            },
        )
    }
}

/// Sends a reply for each request, as many in one send as have come, but no more than [`REPLIES_MAX`].
fn serve(
    wire: &mut Wire,
    request: usize,
    reply: usize,
    iodepth: usize,
    disk: usize,
    stop: &AtomicBool,
) -> Result<()> {
    let (mut into, header) = (vec![0; iodepth * request], vec![0; reply - BLOCK]);
    // In huge pages, as a target's memory disk is, and written, so that every block has memory of its own.
    let mut disk = MmapMut::map_anon(disk).context("no memory for the disk")?;
    disk.advise(Advice::HugePage).context("cannot ask for huge pages")?;
    disk.fill(1);
    let (blocks, mut random) = ((disk.len() / BLOCK) as u64, Random::new(1, 0));
    let mut requests = Messages::of(request);
    loop {
        let received = wire.take_some(&mut into, stop)?;
        if received == 0 {
            return Ok(());
        }
        let mut complete = requests.complete(received);
        while complete > 0 {
            let now = complete.min(REPLIES_MAX);
            let mut replies: [IoSlice<'_>; 2 * REPLIES_MAX] = core::array::from_fn(|at| {
                if at % 2 == 0 {
                    return IoSlice::new(&header);
                }
                let start = random.below(blocks) as usize * BLOCK;
                IoSlice::new(&disk[start..start + BLOCK])
            });
            if !wire.give_all(&mut replies[..2 * now], stop)? {
                return Ok(());
            }
            complete -= now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_when_complete() {
        let mut messages = Messages::of(10);
        assert_eq!([9, 1, 25, 4, 1].map(|bytes| messages.complete(bytes)), [0, 1, 2, 0, 1]);
    }

    #[test]
    fn exchange_returns_a_rate() {
        let measure = Measure::on_one_core();
        assert!(measure.exchange(Imitated::Iwarp, 32, 1 << 20).unwrap() > 0.0);
        assert!(measure.exchange(Imitated::Tcp, 0, 1 << 20).is_err());
    }
}
