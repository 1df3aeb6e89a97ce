//! From the admin queue's connection to ready.

use super::identify::{self, ControllerIdentity};
use super::{Action, Association, AssociationError, Gate, Purpose, QueueFailure, Reply, State, Step};
use crate::admin::{self, ConnectQueue};
use crate::{Cntlid, FlowControl, Outcome, Qid, Status, limits};
use alloc::format;
use core::time::Duration;
use nvme_proto::Cqe;
use nvme_proto::admin::async_event::notice;
use nvme_proto::admin::features::QueueCounts;
use nvme_proto::fabrics::connect::{ConnectData, Connected, InvalidParameter};
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::fabrics::property::{Capabilities, Configuration, ControllerStatus, Property};
use nvme_proto::rdma::{AcceptData, Request};
use zerocopy::transmute;

/// What the sequence has learned so far and nobody else needs.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// CC as it was set.
    pub(super) configuration: Configuration,
    /// Entries of each I/O queue as asked for.
    entries: u16,
    /// I/O queues that the controller gave.
    io_queues: u16,
    /// What the queues' limits are made of.
    pub(super) identity: ControllerIdentity,
}

impl Association {
    /// Asks for a queue's connection.
    pub(super) fn open_queue(&mut self, now: Duration, qid: Qid) {
        let admin = qid == Qid(0);
        let entries = if admin { limits::ADMIN_QUEUE_ENTRIES } else { self.setup.entries };
        let cntlid = if admin { Cntlid(0) } else { self.controller.cntlid };
        self.state = State::Connecting(qid);
        self.step = Step::Transport(qid);
        self.step_deadline = Some(now.saturating_add(self.config.connect_timeout));
        let request = Request { qid, hrqsize: entries, hsqsize: entries.into(), cntlid };
        self.actions.push_back(Action::OpenQueue {
            qid,
            private_data: transmute!(request.emit()),
            entries,
            in_capsule_bytes: if admin { 0 } else { self.controller.in_capsule_bytes },
        });
    }

    /// The transport is up: what the controller accepted, and Connect.
    pub(super) fn on_transport(
        &mut self,
        now: Duration,
        qid: Qid,
        private_data: &[u8],
    ) -> Result<u16, AssociationError> {
        let fault = |text| AssociationError::Queue { qid, failure: QueueFailure::Other(text) };
        let admin = qid == Qid(0);
        // Over TCP only Connect says how many there are.
        let crqsize = match self.config.transport {
            TransportType::TCP => 0,
            _ => AcceptData::parse(private_data).ok_or_else(|| {
                fault("it accepted without NVMe/RDMA private data; is it an NVMe target?".into())
            })?,
        };
        let asked = if admin { limits::ADMIN_QUEUE_ENTRIES } else { self.setup.entries };
        let entries = match crqsize {
            // Kernel hosts never look at CRQSIZE, so some controllers never set it.
            0 => asked,
            // Peers disagree on whether it is 0's based; only what is less in both readings is less.
            crqsize if crqsize.saturating_add(1) >= asked => asked,
            crqsize => crqsize.max(limits::QUEUE_ENTRIES_MIN),
        };
        if admin && entries <= limits::ASSOCIATION_COMMANDS_MAX {
            return Err(fault(format!("the admin queue has room for {entries} commands only")));
        }
        if !admin {
            self.controller.io_queue_entries = self.controller.io_queue_entries.min(entries);
        }
        self.send_connect(now, qid, asked);
        Ok(entries)
    }

    fn send_connect(&mut self, now: Duration, qid: Qid, entries: u16) {
        let admin = qid == Qid(0);
        let wanted = self.config.controller.unwrap_or(Cntlid::DYNAMIC);
        let keep_alive_ms = u32::try_from(self.config.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = ConnectQueue {
            qid,
            entries,
            disable_flow_control: self.config.disable_flow_control,
            // KATO belongs to the admin queue's Connect.
            keep_alive_ms: if admin { keep_alive_ms } else { 0 },
            cntlid: if admin { wanted } else { self.controller.cntlid },
            host_id: self.config.host_id,
            subsystem_nqn: &self.config.subsystem_nqn,
            host_nqn: &self.config.host_nqn,
            // Every TCP controller takes 8 KiB with a Fabrics command, on any queue.
            in_capsule: self.config.transport == TransportType::TCP
                || !admin
                    && self.config.connect_in_capsule
                    && self.controller.in_capsule_bytes >= ConnectData::LEN as u32,
        };
        let command = admin::connect(&connect);
        self.send_step(now, Step::Connect(qid), command);
    }

    pub(super) fn on_setup_step(&mut self, now: Duration, reply: Reply<'_>) -> Result<(), AssociationError> {
        let outcome = reply.outcome;
        match self.step {
            Step::Connect(qid) => self.on_connected(now, qid, outcome),
            Step::Capabilities => {
                self.on_capabilities(now, succeeded("Property Get (CAP)", outcome)?.result())
            }
            Step::Version => {
                let [tertiary, minor, low, high] = succeeded("Property Get (VS)", outcome)?.dw0.to_le_bytes();
                self.controller.version = (u16::from_le_bytes([low, high]), minor, tertiary);
                self.enable(now);
                Ok(())
            }
            Step::Enable => {
                succeeded("Property Set (CC.EN)", outcome)?;
                let units = Capabilities(self.controller.capabilities).timeout_500ms().max(1);
                self.step_deadline = Some(now.saturating_add(Duration::from_millis(500) * units.into()));
                self.step = Step::AwaitReady;
                self.read_status();
                Ok(())
            }
            Step::AwaitReady => {
                self.on_status(now, ControllerStatus(succeeded("Property Get (CSTS)", outcome)?.dw0))
            }
            Step::IdentifyController => {
                succeeded("Identify Controller", outcome)?;
                self.on_identity(now, reply.data)
            }
            // Optional: controllers before NVMe 2.0 have none, and then there are no such limits.
            Step::IdentifyNvm => {
                if outcome.status.is_success() {
                    self.setup.identity.set_nvm_limits(reply.data);
                }
                self.ask_for_queues(now);
                Ok(())
            }
            Step::NumberOfQueues => {
                self.on_queues(now, succeeded("Set Features (Number of Queues)", outcome)?.dw0)
            }
            // Without events we still work; we only learn of changes later.
            _ => {
                self.on_events_configured(now);
                Ok(())
            }
        }
    }

    fn on_connected(&mut self, now: Duration, qid: Qid, outcome: Outcome) -> Result<(), AssociationError> {
        let connected = check_connect(qid, outcome)?;
        let must_authenticate = self.must_authenticate(connected)?;
        let disabled = self.config.disable_flow_control && outcome.sqhd == Cqe::SQHD_NONE;
        let flow_control = if disabled { FlowControl::Disabled } else { FlowControl::Sqhd };
        if qid == Qid(0) {
            self.controller.cntlid = connected.cntlid;
        } else if qid == Qid(1) || flow_control == FlowControl::Sqhd {
            self.controller.flow_control = flow_control;
        }
        if must_authenticate {
            self.authenticate(now, qid, false);
            return Ok(());
        }
        self.on_queue_connected_and_authenticated(now, qid)
    }

    /// A queue can be used: what comes next.
    pub(super) fn on_queue_connected_and_authenticated(
        &mut self,
        now: Duration,
        qid: Qid,
    ) -> Result<(), AssociationError> {
        if qid == Qid(0) {
            self.state = State::Enabling;
            self.send_step(now, Step::Capabilities, admin::property_get(Property::CAP));
            return Ok(());
        }
        self.controller.io_queues = qid.0;
        if qid.0 < self.setup.io_queues {
            self.open_queue(now, Qid(qid.0 + 1));
        } else {
            self.state = State::Identifying;
            self.look_first(now);
        }
        Ok(())
    }

    fn on_capabilities(&mut self, now: Duration, raw: u64) -> Result<(), AssociationError> {
        let capabilities = Capabilities(raw);
        if capabilities.page_size_min() > 0 {
            return Err(AssociationError::Gate(Gate::PageSize(capabilities.page_size_min())));
        }
        let (nvm, all) = (capabilities.nvm_command_set(), capabilities.all_command_sets());
        if self.config.purpose == Purpose::Io && !nvm && !all {
            return Err(AssociationError::Gate(Gate::CommandSet(raw)));
        }
        // CC.CSS 110b (bits 6:4): all command sets that the controller has, where NVM cannot be chosen alone.
        let command_sets = if !nvm && all { 0b110 << 4 } else { 0 };
        self.setup.configuration = Configuration(Configuration::ENABLE.0 | command_sets);
        self.controller.capabilities = raw;
        self.send_step(now, Step::Version, admin::property_get(Property::VS));
        Ok(())
    }

    fn enable(&mut self, now: Duration) {
        let command = admin::property_set(Property::CC, self.setup.configuration.0);
        self.send_step(now, Step::Enable, command);
    }

    /// Reads CSTS, for the step that waits for a bit of it.
    pub(super) fn read_status(&mut self) {
        self.send_step_within_deadline(self.step, admin::property_get(Property::CSTS));
    }

    pub(super) fn look_again(&mut self, now: Duration) {
        self.look_at = Some(now.saturating_add(limits::STATUS_POLL));
    }

    fn on_status(&mut self, now: Duration, status: ControllerStatus) -> Result<(), AssociationError> {
        if status.fatal() {
            return Err(AssociationError::ControllerFatal);
        }
        if !status.ready() {
            self.look_again(now);
            return Ok(());
        }
        self.state = State::Identifying;
        self.keep_alive.start(now);
        self.send_step(now, Step::IdentifyController, admin::identify_controller());
        Ok(())
    }

    fn on_identity(&mut self, now: Duration, data: &[u8]) -> Result<(), AssociationError> {
        self.setup.identity = identify::controller(data, &self.config, &mut self.controller)?;
        self.keep_alive.traffic_counts = self.setup.identity.traffic_based_keep_alive;
        if self.config.purpose != Purpose::Io {
            self.configure_events(now);
        } else if self.controller.version.0 >= 2 {
            self.send_step(now, Step::IdentifyNvm, admin::identify_nvm_controller());
        } else {
            self.ask_for_queues(now);
        }
        Ok(())
    }

    fn ask_for_queues(&mut self, now: Duration) {
        let command = admin::set_number_of_queues(self.config.io_queues);
        self.send_step(now, Step::NumberOfQueues, command);
    }

    fn on_queues(&mut self, now: Duration, granted: u32) -> Result<(), AssociationError> {
        let granted = QueueCounts::parse(granted);
        let given = granted.submission.min(granted.completion);
        self.setup.io_queues = u16::try_from(given).unwrap_or(u16::MAX).min(self.config.io_queues);
        let entries_max = Capabilities(self.controller.capabilities).queue_entries();
        let outstanding_max = match self.setup.identity.commands_max {
            0 => u32::MAX,
            commands => u32::from(commands),
        };
        let entries = u32::from(self.config.io_queue_entries).min(entries_max).min(outstanding_max);
        let entries = u16::try_from(entries).unwrap_or(u16::MAX).max(limits::QUEUE_ENTRIES_MIN);
        self.setup.entries = entries;
        self.controller.io_queue_entries = entries;
        self.configure_events(now);
        Ok(())
    }

    fn configure_events(&mut self, now: Duration) {
        let wanted = match self.config.purpose {
            Purpose::Io => notice::ATTACHED_NAMESPACE_ATTRIBUTE | notice::ANA_CHANGE,
            Purpose::DiscoveryPersistent => notice::DISCOVERY_LOG_CHANGE,
            Purpose::DiscoveryOnce => 0,
        };
        let events = self.setup.identity.events & wanted;
        if events == 0 {
            return self.on_events_configured(now);
        }
        self.send_step(now, Step::EventConfiguration, admin::set_event_configuration(events));
    }

    fn on_events_configured(&mut self, now: Duration) {
        match self.config.purpose {
            Purpose::Io => self.open_queue(now, Qid(1)),
            Purpose::DiscoveryOnce | Purpose::DiscoveryPersistent => self.look_first(now),
        }
    }

    /// Looks at the namespaces or the log, last of all: connecting the queues may take seconds, in which another disk may come where one
    /// was. What changes from now on is announced.
    fn look_first(&mut self, now: Duration) {
        if self.config.purpose != Purpose::DiscoveryOnce {
            self.request_events(self.setup.identity.event_request_limit);
        }
        self.start_scan(now);
    }

    /// The namespaces or the log are known.
    pub(super) fn become_ready(&mut self, now: Duration) {
        self.state = State::Ready;
        (self.step_deadline, self.setup_deadline) = (None, None);
        self.actions.push_back(Action::Ready);
        // What has changed since is looked into before anything is issued.
        self.settle(now);
    }
}

/// The outcome if it is a success.
pub(super) fn succeeded(command: &'static str, outcome: Outcome) -> Result<Outcome, AssociationError> {
    if outcome.status.is_success() {
        return Ok(outcome);
    }
    Err(AssociationError::Command { command, status: outcome.status })
}

fn check_connect(qid: Qid, outcome: Outcome) -> Result<Connected, AssociationError> {
    let status = outcome.status;
    if status.is(Status::AUTHENTICATION_REQUIRED) {
        return Err(AssociationError::AuthenticationRequired);
    }
    if status.is_success() {
        return Ok(Connected::parse(outcome.dw0));
    }
    let named = status.is(Status::CONNECT_INVALID_PARAMETERS);
    let parameter = named.then(|| InvalidParameter::parse(outcome.dw0));
    Err(AssociationError::Connect { qid, status, parameter })
}
