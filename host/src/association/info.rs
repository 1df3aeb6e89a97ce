//! What a controller says of itself.

use crate::{Cntlid, FlowControl, Status};
use alloc::string::String;
use core::time::Duration;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;

/// What a controller says of itself: Connect, Properties, Identify Controller, the number of queues.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControllerInfo {
    /// CNTLID.
    pub cntlid: Cntlid,
    /// VS: major, minor, tertiary.
    pub version: (u16, u8, u8),
    /// CAP.
    pub capabilities: u64,
    /// SN, trimmed.
    pub serial: String,
    /// MN, trimmed.
    pub model: String,
    /// FR, trimmed.
    pub firmware: String,
    /// SUBNQN: paths with the same one lead to the same subsystem.
    pub subsystem_nqn: String,
    /// Bytes that one command may move.
    pub transfer_bytes_max: u32,
    /// Data bytes that an I/O capsule may carry behind the SQE; 0 when it takes none.
    pub in_capsule_bytes: u32,
    /// MSDBD: descriptors in a command; 0 is no limit.
    pub descriptors_max: u8,
    /// ONCS.
    pub optional_commands: u16,
    /// A volatile write cache is there (VWC bit 0): flush means something.
    pub volatile_write_cache: bool,
    /// KAS: the grain of the keep-alive timer.
    pub keep_alive_grain: Duration,
    /// I/O queues that are in use.
    pub io_queues: u16,
    /// Entries of each I/O queue.
    pub io_queue_entries: u16,
    /// Whether SQHD is reported, as Connect agreed.
    pub flow_control: FlowControl,
    /// CRDT1 to CRDT3: after how long to retry a command whose status has CRD 1 to 3.
    pub retry_delays: [Duration; 3],
    /// CQT: how long after a lost connection the controller may still work on its commands; zero when it does not say.
    pub command_quiesce: Duration,
    /// What Cross-Controller Reset knows the controller by; `None` where it has none.
    pub instance: Option<ControllerInstance>,
    /// Reports through ANA (CMIC bit 3).
    pub ana: bool,
    /// ANATT: how long a change of how namespaces can be reached may take.
    pub ana_transition: Duration,
}

impl ControllerInfo {
    /// After how long a command with this status may be issued again, as the controller asks (CRD).
    #[must_use]
    pub fn retry_delay(&self, status: Status) -> Duration {
        let index = usize::from(status.crd());
        index.checked_sub(1).and_then(|at| self.retry_delays.get(at)).copied().unwrap_or_default()
    }
}

impl Default for ControllerInfo {
    fn default() -> Self {
        Self {
            cntlid: Cntlid(0xffff),
            version: (0, 0, 0),
            capabilities: 0,
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            subsystem_nqn: String::new(),
            transfer_bytes_max: crate::limits::TRANSFER_BYTES_MAX,
            in_capsule_bytes: 0,
            descriptors_max: 1,
            optional_commands: 0,
            volatile_write_cache: false,
            keep_alive_grain: Duration::ZERO,
            io_queues: 0,
            io_queue_entries: 0,
            flow_control: FlowControl::Sqhd,
            retry_delays: [Duration::ZERO; 3],
            command_quiesce: Duration::ZERO,
            instance: None,
            ana: false,
            ana_transition: Duration::ZERO,
        }
    }
}
