//! Target: responses of a controller to the host engine.

use crate::disk::{self, LINK, START};
use crate::input::Input;
use core::time::Duration;
use nvme_proto::fabrics::connect::ConnectData;
use nvme_proto::rdma::AcceptData;
use nvme_proto::{Qid, Sgl, SglDescriptor, Sqe};
use nvmf_block::BlockRange;
use nvmf_host::association::{Purpose, State};
use nvmf_host::{
    Action, AdminData, Association, AssociationConfig, Command, CommandId, DataPointer, FlowControl,
    Namespace, Operation, QueueFailure, Reply, limits,
};
use nvmf_subsystem::{Answer, Link, Nsid, Registry, Step, Ticket, Transfer, Work};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// Upper limit of the steps that an association needs to become ready or to fail.
const EVENTS_MAX: usize = 500;

/// The host engine against the subsystem engine, whose answers are changed on the way: bytes of pages, statuses,
/// unexpected completions, missing ones, lost connections. The association ends, or is in use; it asks for nothing out
/// of bounds; and its namespaces split every operation into commands that cover it exactly.
///
/// # Panics
/// When an invariant is violated.
pub fn host_completion(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let mut config = AssociationConfig {
        io_queues: 2,
        io_queue_entries: 32,
        connect_in_capsule: choice & 1 != 0,
        ..AssociationConfig::new(disk::subsystem_nqn(), disk::host_nqn(), disk::HOST_ID)
    };
    if choice & 2 != 0 {
        config = AssociationConfig::discovery(disk::host_nqn(), disk::HOST_ID, choice & 4 != 0);
    }
    let association = Association::new(config, START).expect("a valid configuration");
    let mut pair =
        Pair { association, registry: disk::registry(), queues: BTreeMap::new(), now: START, over: false };
    for _ in 0..EVENTS_MAX {
        pair.perform(&mut input);
        if pair.over {
            break;
        }
        if input.is_empty() && pair.association.poll_timeout().is_none() {
            break;
        }
        pair.event(&mut input);
    }
    pair.finish();
}

/// A queue: the host's and the subsystem's half.
struct Queue {
    host: nvmf_host::Queue<Asked>,
    subsystem: nvmf_subsystem::Queue,
}

/// A command of the association.
#[derive(Debug, Clone)]
struct Asked {
    id: CommandId,
    /// The data that it expects.
    page: Vec<u8>,
    bytes: Vec<u8>,
}

struct Pair {
    association: Association,
    registry: Registry,
    queues: BTreeMap<u16, Queue>,
    now: Duration,
    over: bool,
}

impl Pair {
    /// Executes all pending actions of the association.
    fn perform(&mut self, input: &mut Input<'_>) {
        while let Some(action) = self.association.poll_action() {
            match action {
                Action::OpenQueue { qid, private_data, entries, .. } => {
                    self.open(input, qid, &private_data, entries);
                }
                Action::Send { qid, id, command, data } => self.send(input, qid, id, &command, data),
                Action::Ready => self.check_ready(),
                Action::NamespacesChanged => self.check_namespaces(input),
                Action::Failed(error) => assert!(!error.to_string().is_empty()),
                Action::CloseQueues => {
                    self.disconnect();
                    self.association.on_closed(self.now);
                }
                Action::Closed => self.over = true,
                Action::Authenticate(_) | Action::AuthenticatedAgain | Action::Secure { .. } => {
                    unreachable!("it has no secret")
                }
                Action::DiscoveryLogChanged
                | Action::AccessChanged
                | Action::ResetEnded { .. }
                | Action::Event(_) => {}
            }
        }
    }

    fn open(&mut self, input: &mut Input<'_>, qid: Qid, private_data: &[u8; 32], entries: u16) {
        let request =
            nvme_proto::rdma::Request::parse(private_data).expect("the host's own private data is valid");
        assert_eq!(request.qid, qid);
        let subsystem = nvmf_subsystem::Queue::new(self.now, Link { entries: entries.max(128), ..LINK });
        let mut host = nvmf_host::Queue::new(qid, entries, FlowControl::Sqhd);
        let good = AcceptData::new(entries);
        let choice = input.u8();
        let agreed = match choice & 7 {
            6 => {
                let failure = QueueFailure::from_reject(input.take(usize::from(choice >> 3)));
                return self.association.on_queue_failed(self.now, qid, failure);
            }
            7 => {
                let data = input.take(usize::from(choice >> 2));
                self.association.on_queue_connected(self.now, qid, data)
            }
            _ => self.association.on_queue_connected(self.now, qid, good.as_bytes()),
        };
        if let Some(entries) = agreed {
            assert!(entries >= limits::QUEUE_ENTRIES_MIN);
            host.agree(entries, FlowControl::Sqhd);
        }
        self.queues.insert(qid.0, Queue { host, subsystem });
    }

    fn send(&mut self, input: &mut Input<'_>, qid: Qid, id: CommandId, command: &Command, data: AdminData) {
        let Some(queue) = self.queues.get_mut(&qid.0) else {
            panic!("a command for queue {qid} without one")
        };
        let keyed = |len| DataPointer::Keyed { address: 0x1000, len, key: 7, invalidate: true };
        let (pointer, len, bytes) = match data {
            AdminData::None => (DataPointer::None, 0, Vec::new()),
            AdminData::ToController { bytes, in_capsule } => {
                let len = u32::try_from(bytes.len()).expect("bounded");
                (if in_capsule { DataPointer::InCapsule { len } } else { keyed(len) }, 0, bytes)
            }
            AdminData::FromController { len } => (keyed(len), len, Vec::new()),
        };
        assert!(len <= limits::ADMIN_DATA_MAX && bytes.len() <= limits::ADMIN_DATA_MAX as usize);
        let in_capsule_len = if matches!(pointer, DataPointer::InCapsule { .. }) { bytes.len() } else { 0 };
        let asked = Asked { id, page: vec![0; len as usize], bytes };
        let Ok(cid) = queue.host.submit(asked, None) else { panic!("queue {qid} is full of admin commands") };
        let sqe = command.encode(cid, pointer);
        let sgl = Sqe::read_from_bytes(&sqe).expect("64 bytes").sgl;
        assert_eq!(SglDescriptor::parse(&sgl).map(|sgl| SglDescriptor::emit(&sgl)), Ok(sgl));
        let step = queue.subsystem.on_capsule(self.now, &sqe, in_capsule_len);
        self.take(input, qid, step);
    }

    /// Passes the subsystem's response to the host, modified by the input.
    fn take(&mut self, input: &mut Input<'_>, qid: Qid, step: Step) {
        let Some(queue) = self.queues.get_mut(&qid.0) else { return };
        match step {
            Step::Respond(response) => self.complete(input, qid, response.cqe.to_vec()),
            Step::Execute { ticket, work, transfer } => {
                let next = execute(queue, self.now, ticket, &work, transfer);
                self.take(input, qid, next);
            }
            Step::Connect(request) => {
                let admission = self.registry.connect(self.now, &request, true);
                let next = queue.subsystem.on_admission(self.now, request, admission);
                self.take(input, qid, next);
            }
            Step::Ask { ticket, .. } => {
                let next = queue.subsystem.on_answer(self.now, ticket, Answer::Reservation(Ok(())));
                self.take(input, qid, next);
            }
            Step::Held | Step::CloseIoQueues => {}
            Step::CloseQueue | Step::CloseAssociation(_) => {
                self.association.on_disconnected(self.now, qid, "the controller disconnected");
            }
        }
    }

    fn complete(&mut self, input: &mut Input<'_>, qid: Qid, mut capsule: Vec<u8>) {
        let Some(queue) = self.queues.get_mut(&qid.0) else { return };
        let choice = input.u8();
        match choice & 7 {
            4 => capsule[..8].copy_from_slice(&input.array::<8>()),
            5 => capsule[14..].copy_from_slice(&input.array::<2>()),
            6 => capsule.resize(usize::from(choice >> 3), 0),
            // The response is dropped.
            7 if choice >> 3 == 0 => return,
            _ => {}
        }
        match queue.host.on_completion(&capsule) {
            Ok((mut asked, outcome)) => {
                if choice & 7 == 3 && !asked.page.is_empty() {
                    for _ in 0..(choice >> 3) {
                        let at = usize::from(input.u16()) % asked.page.len();
                        asked.page[at] = input.u8();
                    }
                }
                let reply = Reply { outcome, data: &asked.page };
                self.association.on_completion(self.now, asked.id, reply);
            }
            Err(violation) => self.association.on_violation(self.now, violation),
        }
    }

    /// Injects an event that the association does not expect.
    fn event(&mut self, input: &mut Input<'_>) {
        let event = input.u8();
        let qid = Qid(u16::from(event >> 6));
        match event & 7 {
            1 => {
                let _ = self.registry.remove_namespace(&disk::subsystem_nqn(), Nsid(2));
                let blocks = u64::from(input.u16());
                if blocks > 0 {
                    let namespace = disk::namespace(2, blocks, false);
                    let _ = self.registry.add_namespace(&disk::subsystem_nqn(), namespace);
                }
                let notices = self.registry.take_notices();
                for queue in self.queues.values_mut() {
                    notices.iter().for_each(|notice| queue.subsystem.on_notice(self.now, notice));
                }
            }
            2 if self.queues.contains_key(&qid.0) => {
                let capsule = input.take(usize::from(event >> 3 & 7) * 4).to_vec();
                if let Err(violation) = self
                    .queues
                    .get_mut(&qid.0)
                    .expect("the queue exists")
                    .host
                    .on_completion(&capsule)
                    .map(drop)
                {
                    self.association.on_violation(self.now, violation);
                }
            }
            3 => self.association.on_disconnected(self.now, qid, "reset"),
            4 => self.association.shutdown(self.now),
            5 => self.association.on_command_timeout(self.now, qid),
            6 => self.association.on_queue_failed(self.now, qid, QueueFailure::TimedOut),
            _ => {
                let soon = self.association.poll_timeout().unwrap_or(self.now);
                self.now = soon.max(self.now + Duration::from_millis(input.u8().into()));
                self.association.on_timeout(self.now);
            }
        }
        for qid in self.queues.keys().copied().collect::<Vec<_>>() {
            while let Some(step) =
                self.queues.get_mut(&qid).and_then(|queue| queue.subsystem.poll_step(self.now))
            {
                self.take(input, Qid(qid), step);
            }
        }
    }

    fn check_ready(&self) {
        assert_eq!(self.association.state(), State::Ready);
        let controller = self.association.controller();
        assert!(controller.transfer_bytes_max <= limits::TRANSFER_BYTES_MAX);
        assert!(controller.in_capsule_bytes <= limits::IN_CAPSULE_BYTES_MAX);
        assert!(controller.io_queues <= limits::IO_QUEUES_MAX);
        if self.association.config().purpose == Purpose::Io {
            assert!(controller.io_queues >= 1 && controller.io_queue_entries >= limits::QUEUE_ENTRIES_MIN);
        }
        assert!(self.association.discovery_log().entries.len() <= limits::DISCOVERY_ENTRIES_MAX);
        self.check_namespaces(&mut Input::new(&[1, 0, 9, 0]));
    }

    fn check_namespaces(&self, input: &mut Input<'_>) {
        let namespaces = self.association.namespaces();
        assert!(namespaces.len() <= limits::NAMESPACES_MAX);
        for namespace in namespaces {
            assert!(namespace.geometry.block_size.is_power_of_two() && namespace.geometry.blocks > 0);
            let range = BlockRange::new(input.u16().into(), u64::from(input.u16()));
            check_split(namespace, range);
        }
    }

    fn disconnect(&mut self) {
        for (qid, mut queue) in core::mem::take(&mut self.queues) {
            queue.host.drain().for_each(drop);
            if let Some(association) = queue.subsystem.association() {
                let _ = self.registry.close_queue(association, nvmf_subsystem::Qid(qid));
            }
        }
    }

    fn finish(mut self) {
        self.disconnect();
        assert_eq!(self.registry.associations().count(), 0, "every association ends with its queues");
    }
}

fn execute(queue: &mut Queue, now: Duration, ticket: Ticket, work: &Work, transfer: Transfer) -> Step {
    let cid = ticket.cid();
    match (work, transfer) {
        (Work::Parameters, Transfer::FromHost { len, .. }) => {
            let mut bytes = queue.host.get(cid).map(|asked| asked.bytes.clone()).unwrap_or_default();
            assert!(bytes.len() <= ConnectData::LEN);
            bytes.resize(len as usize, 0);
            queue.subsystem.on_parameters(now, ticket, &bytes)
        }
        (Work::Page(page), Transfer::ToHost { len, .. }) => {
            let asked = queue.host.get_mut(cid).expect("in flight");
            assert!(len as usize <= asked.page.len(), "the response is longer than the host's buffer");
            page.fill(0, &mut asked.page[..len as usize]);
            queue.subsystem.on_done(now, ticket, Ok(()))
        }
        _ => queue.subsystem.on_done(now, ticket, Ok(())),
    }
}

/// Checks that the commands of a read cover its range, each byte once and in order.
fn check_split(namespace: &Namespace, range: BlockRange) {
    let Ok(parts) = namespace.split(Operation::Read { range }) else { return };
    let block_size = u64::from(namespace.geometry.block_size);
    let mut next = 0;
    for part in parts.take(1000) {
        let nvmf_host::io::PartData::FromController { offset, len } = part.data else { panic!("{part:?}") };
        assert_eq!(offset as u64, next);
        assert!(len > 0 && len <= limits::TRANSFER_BYTES_MAX);
        let sqe = part
            .command
            .encode(nvmf_host::Cid(1), DataPointer::Keyed { address: 0, len, key: 1, invalidate: true });
        let sgl = Sqe::read_from_bytes(&sqe).expect("64 bytes").sgl;
        assert!(matches!(SglDescriptor::parse(&sgl), Ok(Sgl::Keyed { len: l, .. }) if l == len));
        next += u64::from(len);
        assert!(next <= range.blocks * block_size);
    }
}
