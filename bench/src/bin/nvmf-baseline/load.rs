//! Other load on the cores that are measured.

use crate::bare::pin;
use anyhow::{Context, Result};
use std::io::Read;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

/// A thread on each of these cores that never sleeps.
#[derive(Debug, clap::Args)]
pub(crate) struct Load {
    /// The cores
    #[arg(long, value_delimiter = ',', required = true)]
    cores: Vec<usize>,
}

impl Load {
    /// Prints `loading N cores`, and loads them until standard input ends.
    ///
    /// # Errors
    /// When this process may not run on a core.
    pub(crate) fn run(&self) -> Result<()> {
        let (ended, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        let are_bound = Barrier::new(self.cores.len() + 1);
        let load = |core| {
            let pinned = pin(core);
            failed.fetch_or(pinned.is_err(), Ordering::Relaxed);
            are_bound.wait();
            while pinned.is_ok() && !ended.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
            pinned
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.cores.iter().map(|core| scope.spawn(|| load(*core))).collect();
            are_bound.wait();
            if !failed.load(Ordering::Relaxed) {
                println!("loading {} cores", threads.len());
                // The content of standard input and a read error do not matter, only that it has ended.
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
            }
            ended.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().expect("no thread panics").context("no load on it")?;
            }
            Ok(())
        })
    }
}
