//! The slowest commands.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The answer to `trace`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceAnswer {
    /// The slowest first.
    pub commands: Vec<TracedCommand>,
}

/// A command that was slow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TracedCommand {
    /// Seconds since its response.
    pub ago_s: f64,
    /// From its arrival to its response, in microseconds.
    pub total_us: u64,
    /// How long its capsule waited to be taken up.
    pub request_us: u64,
    /// How long it waited because of the limits of its host and namespace.
    #[serde(default)]
    pub limit_us: u64,
    /// How long its chunks waited for buffers. This and what follows are sums over the chunks of its data, which may go
    /// side by side.
    pub buffer_us: u64,
    /// How long data came from the host.
    pub pull_us: u64,
    /// How long the disk had it.
    pub disk_us: u64,
    /// How long data went to the host, but for those that left together with the response.
    pub push_us: u64,
    /// The opcode of the NVM command set.
    pub opcode: u8,
    /// `read`, `write`, `flush` or `other`.
    pub operation: String,
    /// The host; `other` where hosts are no longer counted each by itself.
    pub host: String,
    /// The subsystem; `other` likewise.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// The first logical block.
    pub lba: u64,
    /// Logical blocks; 0 for a command without.
    pub blocks: u32,
    /// How it ended.
    pub status: String,
}

impl fmt::Display for TraceAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.commands.is_empty() {
            return writeln!(f, "no command since the last time");
        }
        writeln!(
            f,
            "{:>7} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<9} {:>5} {:>12} {:>7}  {:<10} host, subsystem",
            "ago s",
            "total us",
            "request",
            "limit",
            "buffer",
            "pull",
            "disk",
            "push",
            "command",
            "nsid",
            "lba",
            "blocks",
            "status"
        )?;
        for it in &self.commands {
            let command =
                if it.operation == "other" { format!("{:#04x}", it.opcode) } else { it.operation.clone() };
            writeln!(
                f,
                "{:>7.1} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {command:<9} {:>5} {:>12} {:>7}  {:<10} {}, {}",
                it.ago_s,
                it.total_us,
                it.request_us,
                it.limit_us,
                it.buffer_us,
                it.pull_us,
                it.disk_us,
                it.push_us,
                it.nsid,
                it.lba,
                it.blocks,
                it.status,
                it.host,
                it.subsystem
            )?;
        }
        Ok(())
    }
}
