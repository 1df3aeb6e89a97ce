//! `trace`.

use super::Daemon;
use crate::control::protocol::Fault;
use crate::control::request::trace::{TraceAnswer, TracedCommand};
use crate::metrics::namespaces::Kind;
use crate::metrics::slowest::SlowCommand;
use crate::metrics::text::OTHER;
use crate::metrics::worker::Phase;
use core::time::Duration;

/// How long workers are waited for. One that hangs has more to tell than this.
const WAIT: Duration = Duration::from_millis(500);

impl Daemon {
    pub(super) fn trace_answer(&self, max: usize) -> Result<TraceAnswer, Fault> {
        if !self.common.observed.is_measured() {
            let message =
                "commands are not measured: add [metrics] to the configuration, and restart the target";
            return Err(Fault::refused(message));
        }
        let commands = self.common.observed.take_slowest(WAIT);
        let now = self.common.clock.now();
        Ok(TraceAnswer { commands: commands.iter().take(max).map(|it| traced(it, now)).collect() })
    }
}

fn traced(command: &SlowCommand, now: Duration) -> TracedCommand {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let phase = |phase: Phase| us(command.phases[phase as usize]);
    let name = command.host.name.as_ref();
    TracedCommand {
        ago_s: now.saturating_sub(command.at).as_secs_f64(),
        total_us: us(command.total),
        request_us: phase(Phase::Request),
        limit_us: phase(Phase::Limit),
        buffer_us: phase(Phase::Buffer),
        pull_us: phase(Phase::Pull),
        disk_us: phase(Phase::Disk),
        push_us: phase(Phase::Push),
        opcode: command.opcode,
        operation: Kind::of(command.opcode).name().to_owned(),
        host: name.map_or_else(|| OTHER.to_owned(), |(host, _)| host.to_string()),
        subsystem: name.map_or_else(|| OTHER.to_owned(), |(_, subsystem)| subsystem.to_string()),
        nsid: command.nsid,
        lba: command.lba,
        blocks: command.blocks,
        status: if command.status.is_success() { "ok".to_owned() } else { command.status.to_string() },
    }
}
