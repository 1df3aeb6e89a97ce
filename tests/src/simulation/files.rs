//! The files of the target's state directory, on a file system that fails, is full, and loses power.
//!
//! The fault model. What was written to a file and not synced is there after a power cut as a whole, in part, or not at
//! all. Renames and removals that were not synced are there in order, up to any of them. A call may fail: a write with
//! part of its text written, a sync with nothing made durable; and every call fails once the power is lost.

use crate::rng::Rng;
use nvmf_target::state::Folder;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

type Names = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// Chance in a thousand that a call fails.
    failing: u64,
    /// Calls until the power is lost.
    power: Option<u64>,
    files: Vec<File>,
    /// As synced, and after each change since.
    names: Vec<Names>,
    failures: u64,
    lost_syncs: u64,
}

/// The files, which outlive the target's process.
#[derive(Debug, Clone)]
pub(super) struct Files(Arc<Mutex<State>>);

impl Files {
    pub(super) fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(State {
            rng,
            failing: 0,
            power: None,
            files: Vec::new(),
            names: vec![Names::new()],
            failures: 0,
            lost_syncs: 0,
        })))
    }

    /// From now on so many calls of a thousand fail.
    pub(super) fn set_failing(&self, failing: u64) {
        self.state().failing = failing;
    }

    /// No call fails from now on.
    pub(super) fn calm(&self) {
        let mut state = self.state();
        (state.failing, state.power) = (0, None);
    }

    /// The power will be lost after so many calls.
    pub(super) fn lose_power_after(&self, calls: u64) {
        self.state().power = Some(calls);
    }

    /// Whether that has happened.
    pub(super) fn has_lost_power(&self) -> bool {
        self.state().power == Some(0)
    }

    /// Calls that failed.
    pub(super) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Calls that failed and left open which names are on the disk.
    pub(super) fn lost_syncs(&self) -> u64 {
        self.state().lost_syncs
    }

    /// The power is cut, and is there again.
    pub(super) fn crash(&self) {
        let State { rng, power, files, names, .. } = &mut *self.state();
        *power = None;
        let survivor = names.swap_remove(rng.below(names.len() as u64) as usize);
        *names = vec![survivor];
        for File { now, durable } in files {
            if now != durable {
                match rng.below(3) {
                    0 => {}
                    1 => now.clone_into(durable),
                    _ => now[..rng.below(now.len() as u64 + 1) as usize].clone_into(durable),
                }
                durable.clone_into(now);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic before")
    }
}

impl State {
    /// A call begins.
    fn call(&mut self) -> io::Result<()> {
        if let Some(power) = &mut self.power {
            *power = power.saturating_sub(1);
            if *power == 0 {
                return Err(io::Error::other("the power is lost"));
            }
        }
        if self.rng.below(1000) < self.failing {
            self.failures += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn names(&self) -> &Names {
        &self.names[self.names.len() - 1]
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names().get(name).copied().ok_or(io::ErrorKind::NotFound.into())
    }

    fn rename(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.names().clone();
        change(&mut names);
        self.names.push(names);
    }
}

impl Folder for Files {
    fn read(&self, name: &str, _len_max: u64) -> io::Result<Vec<u8>> {
        let state = self.state();
        Ok(state.files[state.find(name)?].now.clone())
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let mut state = self.state();
        let called = state.call();
        let at = match state.find(name) {
            Ok(at) => at,
            Err(_) => {
                state.files.push(File::default());
                let at = state.files.len() - 1;
                state.rename(|names| {
                    names.insert(name.into(), at);
                });
                at
            }
        };
        let len = if called.is_ok() { text.len() } else { state.rng.below(text.len() as u64) as usize };
        state.files[at].now = text.as_bytes()[..len].to_vec();
        called
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        let at = state.find(name)?;
        let file = &mut state.files[at];
        file.now.clone_into(&mut file.durable);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        let at = state.find(from)?;
        state.rename(|names| {
            names.remove(from);
            names.insert(to.into(), at);
        });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.call()?;
        state.find(name)?;
        state.rename(|names| {
            names.remove(name);
        });
        Ok(())
    }

    fn sync_name(&self, _name: &str) -> io::Result<()> {
        let mut state = self.state();
        if let Err(error) = state.call() {
            state.lost_syncs += 1;
            return Err(error);
        }
        let last = state.names().clone();
        state.names = vec![last];
        Ok(())
    }
}
