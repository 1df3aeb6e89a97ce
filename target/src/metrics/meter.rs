//! How a worker counts: from the arrival of a command to its response.

use super::hosts::{Host, Hosts};
use super::namespaces::{Device, Kind, status_type};
use super::slowest::{SlowCommand, Slowest};
use super::worker::{Phase, WorkerMeasures};
use core::time::Duration;
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cqe, Sqe, Status};
use nvmf_auth::controller::FaultReason;
use nvmf_backend::DEVICES_MAX;
use nvmf_subsystem::limits::SQE_LEN;
use nvmf_subsystem::{Association, ControllerType, Qid, RefusalReason};
use std::sync::Arc;

/// What a worker that measures has of what is shared.
#[derive(Debug)]
pub struct Measuring {
    /// Its place among the workers.
    pub worker: usize,
    /// Its own.
    pub measures: Arc<WorkerMeasures>,
    /// The hosts of all workers.
    pub hosts: Arc<Hosts>,
}

/// What a worker counts with. It knows the time of the turn, in microseconds.
#[derive(Debug)]
pub struct Meter {
    /// By slot.
    devices: Box<[Option<Arc<Device>>]>,
    measuring: Option<Measuring>,
    now_us: u64,
    slowest: Slowest,
}

/// What is remembered of a command until its response.
#[derive(Debug, Clone, Default)]
pub struct Footprint {
    /// Whether the command is measured.
    measured: bool,
    opcode: u8,
    /// The device of its work, by slot.
    slot: Option<u16>,
    nsid: u32,
    blocks: u32,
    lba: u64,
    /// Bytes of data.
    bytes: u32,
    /// Microseconds, by [`Phase`].
    phases: [u32; Phase::ALL.len()],
    arrived_us: u64,
}

impl Footprint {
    /// The command has work for the device of that slot, with so many bytes of data.
    pub fn on_work(&mut self, slot: u16, bytes: u32) {
        (self.slot, self.bytes) = (Some(slot), bytes);
    }
}

impl Meter {
    /// One that counts the operations of devices, and nothing else.
    #[must_use]
    pub fn new() -> Self {
        Self {
            devices: (0..DEVICES_MAX).map(|_| None).collect(),
            measuring: None,
            now_us: 0,
            slowest: Slowest::new(),
        }
    }

    /// Measures from now on.
    pub fn start(&mut self, measuring: Measuring) {
        self.measuring = Some(measuring);
    }

    /// What is measured, if anything is.
    #[must_use]
    pub fn measures(&self) -> Option<&WorkerMeasures> {
        self.measuring.as_ref().map(|measuring| &*measuring.measures)
    }

    /// The device of a slot is counted there from now on.
    pub fn attach(&mut self, slot: u16, device: Arc<Device>) {
        self.devices[usize::from(slot)] = Some(device);
    }

    /// A turn begins.
    pub fn on_turn(&mut self, now: Duration) {
        self.now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    }

    /// The time of this turn, in microseconds.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Where the commands of a queue's host are counted; nowhere on queues without I/O.
    #[must_use]
    pub fn connect(&self, association: &Association, qid: Qid) -> Option<Arc<Host>> {
        let measuring = self.measuring.as_ref()?;
        let has_io = qid.0 != 0 && association.controller_type() == ControllerType::Io;
        has_io.then(|| measuring.hosts.connect(*association.host_nqn(), *association.subsystem_nqn()))
    }

    /// A Connect was refused.
    pub fn on_refused(&self, reason: RefusalReason) {
        if let Some(measures) = self.measures() {
            measures.refused[reason as usize].add(1);
        }
    }

    /// A host was not authenticated.
    pub fn on_authentication_failed(&self, reason: FaultReason) {
        if let Some(measures) = self.measures() {
            measures.unauthenticated[reason as usize].add(1);
        }
    }

    /// A command is taken up that arrived at that time.
    pub fn begin(&self, footprint: &mut Footprint, sqe: &[u8; SQE_LEN], arrived_us: u64) {
        let sqe: Sqe = zerocopy::transmute!(*sqe);
        let (lba, blocks) = match NvmOpcode(sqe.opcode) {
            NvmOpcode::READ
            | NvmOpcode::WRITE
            | NvmOpcode::COMPARE
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::VERIFY => {
                let command = ReadWrite::parse(&sqe);
                (command.slba, command.blocks)
            }
            _ => (0, 0),
        };
        *footprint = Footprint {
            measured: true,
            opcode: sqe.opcode,
            nsid: sqe.nsid().0,
            lba,
            blocks,
            arrived_us,
            ..Footprint::default()
        };
        self.record(footprint, Phase::Request, arrived_us);
    }

    /// A phase ends that began at that time.
    pub fn record(&self, footprint: &mut Footprint, phase: Phase, since_us: u64) {
        if let Some(measures) = self.measures()
            && footprint.measured
        {
            let us = self.now_us.saturating_sub(since_us);
            measures.phases[phase as usize].add(us);
            let sum = &mut footprint.phases[phase as usize];
            *sum = sum.saturating_add(u32::try_from(us).unwrap_or(u32::MAX));
        }
    }

    /// A device has an operation from now on.
    pub fn begin_operation(&self, slot: u16) {
        if let Some(device) = &self.devices[usize::from(slot)] {
            device.pending.begin(self.now_us);
        }
    }

    /// An operation is over that began at that time.
    pub fn end_operation(&self, slot: u16, since_us: u64) {
        if let Some(device) = &self.devices[usize::from(slot)] {
            device.pending.end(since_us);
        }
    }

    /// A command is answered.
    pub fn on_response(&mut self, footprint: &mut Footprint, host: &Arc<Host>, cqe: &[u8; 16]) {
        let Some(Measuring { worker, measures, .. }) = &self.measuring else { return };
        if !core::mem::take(&mut footprint.measured) {
            return;
        }
        let cqe: Cqe = zerocopy::transmute!(*cqe);
        let (status, kind) = (cqe.status(), Kind::of(footprint.opcode));
        let of_host = host.measures(*worker);
        let device = footprint.slot.and_then(|slot| self.devices[usize::from(slot)].as_ref());
        let of_device = device.and_then(|device| device.measures.as_deref());
        let us = self.now_us.saturating_sub(footprint.arrived_us);
        of_host.operations[kind as usize].add(1);
        if let Some(device) = of_device {
            device.operations[kind as usize].add(1);
        }
        if !status.is_success() {
            of_host.errors[0].add(1);
            measures.errors[status_type(status)].add(1);
            if let Some(device) = of_device {
                device.errors[status_type(status)].add(1);
            }
        } else if let Kind::Read | Kind::Write = kind {
            of_host.bytes[kind as usize].add(footprint.bytes.into());
            if let Some(device) = of_device {
                device.bytes[kind as usize].add(footprint.bytes.into());
            }
        }
        if let Kind::Read | Kind::Write = kind
            && let Some(device) = of_device
        {
            device.latency[kind as usize].add(us);
        }
        let total = Duration::from_micros(us);
        // Fabrics commands are of the connection: what stands where others have an NSID is none.
        if NvmOpcode(footprint.opcode) != NvmOpcode::FABRICS && self.slowest.takes(total) {
            self.slowest.add(slow_command(footprint, host, status, self.now_us, total));
        }
    }

    /// The slowest commands since the last call.
    #[must_use]
    pub fn take_slowest(&mut self) -> Vec<SlowCommand> {
        self.slowest.take()
    }
}

#[cold]
fn slow_command(
    footprint: &Footprint,
    host: &Arc<Host>,
    status: Status,
    now_us: u64,
    total: Duration,
) -> SlowCommand {
    SlowCommand {
        at: Duration::from_micros(now_us),
        total,
        phases: footprint.phases.map(|us| Duration::from_micros(us.into())),
        host: Arc::clone(host),
        nsid: footprint.nsid,
        opcode: footprint.opcode,
        lba: footprint.lba,
        blocks: footprint.blocks,
        status,
    }
}

impl Default for Meter {
    fn default() -> Self {
        Self::new()
    }
}

const _: () =
    assert!(Kind::Read as usize == 0 && Kind::Write as usize == 1, "bytes and times are kept for these two");
