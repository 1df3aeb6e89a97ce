//! The slowest commands since someone asked last: a fixed number for each worker.

use super::hosts::Host;
use super::worker::Phase;
use core::time::Duration;
use nvme_proto::Status;
use std::sync::Arc;

/// So many are kept.
pub const KEPT: usize = 32;

/// A command that was slow.
#[derive(Debug, Clone)]
pub struct SlowCommand {
    /// When its response was posted, on the clock of the workers.
    pub at: Duration,
    /// How long it took since its capsule had arrived.
    pub total: Duration,
    /// The parts of that, by [`Phase`]: each is a sum over the chunks of the data, which may go side by side.
    pub phases: [Duration; Phase::ALL.len()],
    /// Its host and subsystem.
    pub host: Arc<Host>,
    /// The namespace.
    pub nsid: u32,
    /// Its opcode, of the NVM command set.
    pub opcode: u8,
    /// The first logical block, for commands that have one.
    pub lba: u64,
    /// Logical blocks.
    pub blocks: u32,
    /// How it ended.
    pub status: Status,
}

/// The slowest commands of one worker.
#[derive(Debug)]
pub struct Slowest {
    commands: Vec<SlowCommand>,
    /// One that took no longer is not among them.
    floor: Duration,
}

impl Slowest {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { commands: Vec::with_capacity(KEPT), floor: Duration::ZERO }
    }

    /// Whether a command that took so long is one of the slowest.
    #[must_use]
    pub fn takes(&self, total: Duration) -> bool {
        total > self.floor
    }

    /// One more.
    pub fn add(&mut self, command: SlowCommand) {
        if self.commands.len() < KEPT {
            self.commands.push(command);
        } else if let Some(fastest) = self.commands.iter_mut().min_by_key(|other| other.total) {
            *fastest = command;
        }
        if self.commands.len() == KEPT {
            self.floor = self.commands.iter().map(|other| other.total).min().unwrap_or_default();
        }
    }

    /// Takes them, and begins anew.
    #[must_use]
    pub fn take(&mut self) -> Vec<SlowCommand> {
        core::mem::take(self).commands
    }
}

impl Default for Slowest {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::hosts::Hosts;

    #[test]
    fn slowest_of_many_commands_are_kept() {
        let nqn = "nqn.2026-11.com.example:a".parse().unwrap();
        let host = Hosts::new(1, 1).connect(nqn, nqn);
        let mut slowest = Slowest::new();
        for ms in (0..1000).map(|at| at * 7 % 1000) {
            let total = Duration::from_millis(ms);
            if slowest.takes(total) {
                slowest.add(SlowCommand {
                    at: Duration::ZERO,
                    total,
                    phases: Default::default(),
                    host: Arc::clone(&host),
                    nsid: 1,
                    opcode: 2,
                    lba: 0,
                    blocks: 1,
                    status: Status::SUCCESS,
                });
            }
        }
        let mut kept: Vec<_> = slowest.take().iter().map(|command| command.total.as_millis()).collect();
        kept.sort_unstable();
        assert_eq!(kept, (968..1000).collect::<Vec<_>>());
        assert!(slowest.take().is_empty());
    }
}
