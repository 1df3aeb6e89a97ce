//! A scripted controller, and the association against it.

mod ana;
mod gates;
mod lifecycle;
mod setup;

use super::*;
use crate::{Cntlid, HostId, Nqn, Outcome, Status};
use alloc::collections::BTreeMap;
use alloc::vec;
use nvme_proto::admin::identify::{
    Cns, DescriptorWriter, IdList, Identify, IdentifyController, IdentifyNamespace, NamespaceIdType,
    NvmController, ctratt, oncs, sgls, vwc,
};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::fabrics::connect::Connect;
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::fabrics::fabrics_type;
use nvme_proto::fabrics::property::{Capabilities, Property, PropertyGet, PropertySet};
use nvme_proto::opcode::{AdminOpcode, FabricsType};
use nvme_proto::rdma::AcceptData;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const SECOND: Duration = Duration::from_secs(1);
const CNTLID: u16 = 7;
/// More than anything here takes to its end.
const STEPS_MAX: u32 = 1_000_000;

/// A controller that answers as told. Commands have short names, under which they can be refused or left unanswered.
struct Controller {
    identify: IdentifyController,
    nvm: NvmController,
    namespaces: BTreeMap<u32, IdentifyNamespace>,
    capabilities: u64,
    /// What CSTS says each time, the last for ever.
    status: Vec<u32>,
    /// Namespaces without the volatile write cache.
    uncached: Vec<u32>,
    queues_granted: u16,
    crqsize: Option<u16>,
    flow_control: bool,
    /// One I/O queue that has flow control all the same.
    flow_control_of: Option<u16>,
    version: u32,
    connect_dw0: u32,
    log: Vec<u8>,
    /// The ANA log page.
    access: Vec<u8>,
    refuse: BTreeMap<&'static str, Status>,
    silent: Option<&'static str>,
    /// Names in the order that they came.
    seen: Vec<&'static str>,
    connects: Vec<(Connect, AdminData)>,
    configuration: u32,
    event_requests: Vec<CommandId>,
    unanswered: Vec<CommandId>,
}

/// What the association told its user.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Ready,
    NamespacesChanged,
    AccessChanged,
    ResetEnded(bool),
    LogChanged,
    Event(u32),
    Failed(AssociationError),
    CloseQueues,
    Closed,
}

impl Controller {
    fn new() -> Self {
        let mut identify = IdentifyController::new();
        identify.cntlid = CNTLID.into();
        identify.kas = 10.into();
        identify.ioccsz = ((64 + 4096) / 16).into();
        identify.iorcsz = 1.into();
        identify.sgls = (sgls::SUPPORTED | sgls::KSDBDS | sgls::SAOS).into();
        identify.mdts = 5;
        identify.maxcmd = 64.into();
        identify.oaes = (1 << 8 | 1 << 31).into();
        identify.oncs = (oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES).into();
        identify.vwc = vwc::PRESENT;
        identify.aerl_z = 3;
        identify.msdbd = 1;
        IdentifyController::set_text(&mut identify.mn, "A Disk");
        Self {
            identify,
            nvm: NvmController::new_zeroed(),
            namespaces: BTreeMap::from([(1, namespace(1 << 20)), (5, namespace(1 << 10))]),
            capabilities: Capabilities::new(128, 15).0,
            status: vec![1],
            uncached: Vec::new(),
            queues_granted: 8,
            crqsize: None,
            flow_control: true,
            flow_control_of: None,
            version: 0x0002_0000,
            connect_dw0: CNTLID.into(),
            log: vec![0; 1024],
            access: Vec::new(),
            refuse: BTreeMap::new(),
            silent: None,
            seen: Vec::new(),
            connects: Vec::new(),
            configuration: 0,
            event_requests: Vec::new(),
            unanswered: Vec::new(),
        }
    }

    /// Does all that the association wants, and tells what it told.
    fn serve(&mut self, association: &mut Association, now: Duration) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(action) = association.poll_action() {
            match action {
                Action::OpenQueue { qid, entries, .. } => {
                    self.seen.push("open");
                    if self.silent != Some("open") {
                        let accept = AcceptData::new(self.crqsize.unwrap_or(entries));
                        association.on_queue_connected(now, qid, accept.as_bytes());
                    }
                }
                Action::Send { id, command, data, .. } => {
                    self.on_command(association, now, id, &command, data);
                }
                Action::Ready => told.push(Told::Ready),
                Action::NamespacesChanged => told.push(Told::NamespacesChanged),
                Action::Authenticate(_) | Action::AuthenticatedAgain | Action::Secure { .. } => {
                    unreachable!("it has no secret")
                }
                Action::AccessChanged => told.push(Told::AccessChanged),
                Action::ResetEnded { successful, .. } => told.push(Told::ResetEnded(successful)),
                Action::DiscoveryLogChanged => told.push(Told::LogChanged),
                Action::Event(event) => told.push(Told::Event(event)),
                Action::Failed(error) => told.push(Told::Failed(error)),
                Action::Closed => told.push(Told::Closed),
                Action::CloseQueues => {
                    told.push(Told::CloseQueues);
                    association.on_closed(now);
                }
            }
        }
        told
    }

    fn on_command(
        &mut self,
        association: &mut Association,
        now: Duration,
        id: CommandId,
        command: &crate::Command,
        data: AdminData,
    ) {
        let name = name(command);
        self.seen.push(name);
        if name == "event request" {
            return self.event_requests.push(id);
        }
        if self.silent == Some(name) {
            return self.unanswered.push(id);
        }
        let connects = (name == "connect").then(|| Connect::parse(command.sqe()).qid.0);
        let exception = connects.is_some() && connects == self.flow_control_of;
        let sqhd = if self.flow_control || exception { 1 } else { 0xffff };
        let mut outcome = Outcome { dw0: 0, dw1: 0, sqhd, status: Status::SUCCESS };
        let mut page = Vec::new();
        if let Some(status) = self.refuse.get(name) {
            outcome.status = *status;
            outcome.dw0 = self.connect_dw0;
        } else {
            (outcome.dw0, outcome.dw1) = self.execute(name, command, data, &mut page);
        }
        association.on_completion(now, id, Reply { outcome, data: &page });
    }

    fn execute(
        &mut self,
        name: &str,
        command: &crate::Command,
        data: AdminData,
        page: &mut Vec<u8>,
    ) -> (u32, u32) {
        let nsid = command.sqe().nsid().0;
        match name {
            "connect" => {
                self.connects.push((Connect::parse(command.sqe()), data));
                return (self.connect_dw0, 0);
            }
            "CAP" => return (self.capabilities as u32, (self.capabilities >> 32) as u32),
            "VS" => return (self.version, 0),
            "CC" => self.configuration = PropertySet::parse(command.sqe()).value as u32,
            "CSTS" => {
                let status = self.status[0];
                if self.status.len() > 1 {
                    self.status.remove(0);
                }
                return (status, 0);
            }
            "queues" => {
                return (u32::from(self.queues_granted - 1) << 16 | u32::from(self.queues_granted - 1), 0);
            }
            "controller" => page.extend_from_slice(self.identify.as_bytes()),
            "nvm controller" => page.extend_from_slice(self.nvm.as_bytes()),
            "active" => page.extend_from_slice(IdList::new(self.namespaces.keys().copied()).as_bytes()),
            "namespace" => page.extend_from_slice(self.namespaces[&nsid].as_bytes()),
            "descriptors" => {
                let mut descriptors = [0; 4096];
                DescriptorWriter::new(&mut descriptors).push(NamespaceIdType::UUID, &[nsid as u8; 16]);
                page.extend_from_slice(&descriptors);
            }
            "independent" => {
                page.resize(4096, 0);
                page[0] = if self.uncached.contains(&nsid) { 1 << 5 } else { !(1 << 5) };
            }
            "log" => {
                let log = GetLogPage::parse(command.sqe());
                page.extend_from_slice(&self.log[log.offset as usize..][..log.len as usize]);
            }
            "access" => {
                let log = GetLogPage::parse(command.sqe());
                let rest = self.access.get(log.offset as usize..).unwrap_or_default();
                page.extend_from_slice(&rest[..rest.len().min(log.len as usize)]);
                page.resize(log.len as usize, 0);
            }
            "changed list" => page.resize(4096, 0),
            _ => {}
        }
        (0, 0)
    }

    /// Completes one event request.
    fn announce(&mut self, association: &mut Association, now: Duration, event: u32) {
        let id = self.event_requests.remove(0);
        let outcome = Outcome { dw0: event, dw1: 0, sqhd: 0, status: Status::SUCCESS };
        association.on_completion(now, id, Reply { outcome, data: &[] });
    }
}

fn namespace(blocks: u64) -> IdentifyNamespace {
    let mut namespace = IdentifyNamespace::new_zeroed();
    namespace.nsze = blocks.into();
    namespace.lbaf[0].lbads = 12;
    namespace
}

fn name(command: &crate::Command) -> &'static str {
    let sqe = command.sqe();
    match (AdminOpcode(sqe.opcode), fabrics_type(sqe)) {
        (_, Some(FabricsType::CONNECT)) => "connect",
        (_, Some(FabricsType::PROPERTY_SET)) => "CC",
        (_, Some(_)) => match PropertyGet::parse(sqe).property {
            Property::CAP => "CAP",
            Property::VS => "VS",
            _ => "CSTS",
        },
        (AdminOpcode::IDENTIFY, _) => match Identify::parse(sqe).cns {
            Cns::CONTROLLER => "controller",
            Cns::COMMAND_SET_CONTROLLER => "nvm controller",
            Cns::ACTIVE_NAMESPACES => "active",
            Cns::NAMESPACE => "namespace",
            Cns::INDEPENDENT_NAMESPACE => "independent",
            _ => "descriptors",
        },
        (AdminOpcode::GET_LOG_PAGE, _) if GetLogPage::parse(sqe).lid == LogPageId::DISCOVERY => "log",
        (AdminOpcode::GET_LOG_PAGE, _) if GetLogPage::parse(sqe).lid == LogPageId::ANA => "access",
        (AdminOpcode::GET_LOG_PAGE, _) => "changed list",
        (AdminOpcode::SET_FEATURES, _) if sqe.cdw10.get() == 7 => "queues",
        (AdminOpcode::SET_FEATURES, _) => "events",
        (AdminOpcode::KEEP_ALIVE, _) => "keep alive",
        (AdminOpcode::ASYNC_EVENT_REQUEST, _) => "event request",
        _ => "unknown",
    }
}

fn config() -> AssociationConfig {
    let nqn = |text: &str| text.parse::<Nqn>().unwrap();
    AssociationConfig::new(
        nqn("nqn.2026-11.com.example:disk"),
        nqn("nqn.2026-11.com.example:host"),
        HostId([1; 16]),
    )
}

fn start(config: AssociationConfig) -> Association {
    Association::new(config, Duration::ZERO).unwrap()
}

/// An association that is in use.
fn ready(controller: &mut Controller, config: AssociationConfig) -> Association {
    let mut association = start(config);
    assert_eq!(controller.serve(&mut association, Duration::ZERO), [Told::Ready]);
    association
}

/// Lets time pass up to `end`, serving all that comes.
fn pass(
    controller: &mut Controller,
    association: &mut Association,
    now: &mut Duration,
    end: Duration,
) -> Vec<Told> {
    let mut told = Vec::new();
    let mut steps = 0;
    while let Some(next) = association.poll_timeout().filter(|&next| next <= end) {
        steps += 1;
        assert!(steps < STEPS_MAX, "it waits for {next:?} without end: {told:?}");
        assert!(next >= *now, "time never goes back");
        *now = next;
        association.on_timeout(*now);
        told.extend(controller.serve(association, *now));
    }
    *now = end;
    told
}

fn failure(told: &[Told]) -> &AssociationError {
    let [Told::Failed(error), Told::CloseQueues, Told::Closed] = told else { panic!("{told:?}") };
    error
}
