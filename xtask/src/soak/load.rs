//! Writers on an attached disk. Each has blocks of its own and knows what each of them may hold.

use super::disk::Disk;
use anyhow::{Context, Result, bail, ensure};
use nvmf_tests::nbd::Client;
use nvmf_tests::rng::Rng;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) const BLOCK: usize = 4096;
/// Writers of one disk.
const WRITERS: u64 = 2;
/// Blocks of one writer.
const BLOCKS: u64 = 1024;
/// Most blocks of one operation.
const OPERATION_MAX: u64 = 16;
/// The part of a disk that is written.
pub(super) const SIZE: u64 = WRITERS * BLOCKS * BLOCK as u64;
/// Longer than a server that takes a disk over waits for what the last one had sent.
const BACK_MAX: Duration = Duration::from_secs(120);
/// The longest wait for an answer: a machine may be paused with everything on it.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// What a block may hold: the number of the write.
#[derive(Debug, Clone, Default)]
struct Expected {
    /// Of the last one that was answered; 0: none was.
    known: u64,
    /// Of later ones that nobody answered: they may have taken effect, or may yet, until one is answered.
    unknown: Vec<u64>,
}

/// The content of a block by write `number` of a writer: each 16 bytes say it.
fn content(block: u64, number: u64) -> Vec<u8> {
    if number == 0 {
        return vec![0; BLOCK];
    }
    [block.to_le_bytes(), number.to_le_bytes()].concat().repeat(BLOCK / 16)
}

impl Expected {
    fn check(&self, block: u64, found: &[u8]) -> Result<()> {
        let number = u64::from_le_bytes(found[8..16].try_into()?);
        ensure!(
            number == self.known || self.unknown.contains(&number),
            "block {block} holds write {number}, and may hold {} or {:?}",
            self.known,
            self.unknown
        );
        ensure!(found == content(block, number), "block {block} is torn: it begins as write {number} has it");
        Ok(())
    }
}

/// What a writer and its load share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Operations that have ended well.
    done: AtomicU64,
    /// In microseconds.
    latencies: Mutex<Vec<u64>>,
}

/// The writers of a disk.
pub(super) struct Load {
    image: PathBuf,
    writers: Vec<(Arc<Shared>, JoinHandle<Result<Writer>>)>,
}

impl Load {
    pub(super) fn start(disk: &Disk, seed: u64) -> Self {
        let writers = (0..WRITERS).map(|number| {
            let shared = Arc::<Shared>::default();
            let writer = Writer {
                socket: disk.socket.clone(),
                first: number * BLOCKS,
                expected: vec![Expected::default(); BLOCKS as usize],
                random: Rng::new(seed ^ (number << 32)),
                last: 0,
                shared: Arc::clone(&shared),
            };
            (shared, std::thread::spawn(move || writer.run()))
        });
        Self { image: disk.image.clone(), writers: writers.collect() }
    }

    /// Whether all writers go on.
    pub(super) fn check(&mut self) -> Result<()> {
        let ended = self.writers.iter().position(|(_, thread)| thread.is_finished());
        let Some((_, thread)) = ended.map(|at| self.writers.swap_remove(at)) else { return Ok(()) };
        let ended = thread.join().expect("no writer panics").map(drop);
        ended.with_context(|| format!("a writer on {}", self.image.display()))
    }

    /// Operations that have ended well, by writer.
    pub(super) fn done(&self) -> Vec<u64> {
        self.writers.iter().map(|(shared, _)| shared.done.load(Ordering::Relaxed)).collect()
    }

    /// In microseconds, since the last call.
    pub(super) fn take_latencies(&self) -> Vec<u64> {
        let of = |shared: &Shared| core::mem::take(&mut *shared.latencies.lock().expect("no writer panics"));
        self.writers.iter().flat_map(|(shared, _)| of(shared)).collect()
    }

    /// Stops the writers, which read everything once more, and holds the disk's file against what they know. Gives the
    /// number of operations.
    pub(super) fn end(self) -> Result<u64> {
        self.writers.iter().for_each(|(shared, _)| shared.stop.store(true, Ordering::Relaxed));
        let mut operations = 0;
        for (shared, thread) in self.writers {
            let writer = thread.join().expect("no writer panics");
            let writer = writer.with_context(|| self.image.display().to_string())?;
            writer.check_file(&self.image)?;
            operations += shared.done.load(Ordering::Relaxed);
        }
        Ok(operations)
    }
}

struct Writer {
    socket: PathBuf,
    first: u64,
    expected: Vec<Expected>,
    random: Rng,
    /// Of the last write.
    last: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self) -> Result<Self> {
        let mut client = None;
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.step(&mut client)?;
        }
        for at in 0..self.expected.len() as u64 {
            while self.read(&mut client, at, 1)?.is_none() {}
        }
        Ok(self)
    }

    fn step(&mut self, client: &mut Option<Client>) -> Result<()> {
        let begun = Instant::now();
        let len = 1 + self.random.below(OPERATION_MAX);
        let at = self.random.below(self.expected.len() as u64 - len + 1);
        let ended = match self.random.below(10) {
            0 => self.ask(client, |client| client.flush())?,
            1..5 => self.read(client, at, len)?,
            _ => self.write(client, at, len)?,
        };
        if ended.is_some() {
            self.shared.done.fetch_add(1, Ordering::Relaxed);
            let took = u64::try_from(begun.elapsed().as_micros())?;
            self.shared.latencies.lock().expect("no writer panics").push(took);
        }
        Ok(())
    }

    fn write(&mut self, client: &mut Option<Client>, at: u64, len: u64) -> Result<Option<()>> {
        self.last += 1;
        let (number, first) = (self.last, self.first);
        let data: Vec<u8> = (at..at + len).flat_map(|block| content(first + block, number)).collect();
        let range = at as usize..(at + len) as usize;
        self.expected[range.clone()].iter_mut().for_each(|expected| expected.unknown.push(number));
        let ended = self.ask(client, |client| client.write((first + at) * BLOCK as u64, &data))?;
        if ended.is_some() {
            self.expected[range].fill(Expected { known: number, unknown: Vec::new() });
        }
        Ok(ended)
    }

    fn read(&mut self, client: &mut Option<Client>, at: u64, len: u64) -> Result<Option<()>> {
        let mut data = vec![0; len as usize * BLOCK];
        let offset = (self.first + at) * BLOCK as u64;
        let ended = self.ask(client, |client| client.read(offset, &mut data))?;
        if ended.is_some() {
            self.check(at, &data)?;
        }
        Ok(ended)
    }

    fn check(&self, at: u64, data: &[u8]) -> Result<()> {
        let blocks = self.expected[at as usize..].iter().zip(data.chunks_exact(BLOCK)).zip(self.first + at..);
        blocks.into_iter().try_for_each(|((expected, found), block)| expected.check(block, found))
    }

    /// `None`: the connection to the disk's server has ended, and nobody knows what became of the request.
    fn ask<T>(
        &self,
        client: &mut Option<Client>,
        request: impl FnOnce(&mut Client) -> Result<T>,
    ) -> Result<Option<T>> {
        let connected = match client.take() {
            Some(connected) => connected,
            None => self.connect()?,
        };
        match request(client.insert(connected)) {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => match error.root_cause().downcast_ref::<std::io::Error>().map(|error| error.kind())
            {
                // An errno of the disk, or no answer in time.
                None | Some(ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(error),
                Some(_) => {
                    *client = None;
                    Ok(None)
                }
            },
        }
    }

    fn connect(&self) -> Result<Client> {
        let deadline = Instant::now() + BACK_MAX;
        loop {
            match Client::connect(&self.socket) {
                Ok(client) => {
                    client.set_timeout(ANSWER_MAX)?;
                    return Ok(client);
                }
                Err(error) if Instant::now() > deadline => {
                    bail!(error.context(format!("the disk is not served for {BACK_MAX:?}")))
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn check_file(&self, image: &Path) -> Result<()> {
        let mut data = vec![0; self.expected.len() * BLOCK];
        File::open(image)?.read_exact_at(&mut data, self.first * BLOCK as u64)?;
        self.check(0, &data).with_context(|| format!("in {}", image.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_holds_what_was_answered_or_what_nobody_knows_of() {
        let expected = Expected { known: 5, unknown: vec![6, 8] };
        for (number, holds) in [(0, false), (4, false), (5, true), (6, true), (7, false), (8, true)] {
            assert_eq!(expected.check(3, &content(3, number)).is_ok(), holds, "{number}");
        }
        assert!(Expected::default().check(3, &content(3, 0)).is_ok(), "nothing was written");
    }

    #[test]
    fn block_that_is_torn_or_anothers_is_wrong() {
        let expected = Expected { known: 5, unknown: vec![6] };
        let mut torn = content(3, 5);
        torn[BLOCK - 16..].copy_from_slice(&content(3, 6)[..16]);
        assert!(expected.check(3, &torn).is_err());
        assert!(expected.check(3, &content(4, 5)).is_err());
    }
}
