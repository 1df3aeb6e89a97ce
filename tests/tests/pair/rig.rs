//! A host engine and a registry, connected by a simulated transport: capsules, keyed memory, a disk and virtual time.

use crate::disk::Disk;
use nvme_proto::rdma::{AcceptData, Request};
use nvmf_auth::controller::Keys;
use nvmf_auth::host::Secrets;
use nvmf_block::DeviceId;
use nvmf_host::{
    Action, AdminData, Association, AssociationConfig, AssociationError, Command, CommandId, DataPointer,
    FlowControl, Outcome, Qid, Reply, Status,
};
use nvmf_subsystem::{
    Answer, Keyed, Link, Question, Registry, Remote, Source, Step, Ticket, Transfer, TransportType,
    Violation, Work,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use zerocopy::IntoBytes;

pub(crate) const PORT: u16 = 1;
/// Deadlines in one [`Pair::pass`] after which it counts as hung.
const TURNS_MAX: u32 = 100_000;

/// An event that the host engine reported to its user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostEvent {
    Ready,
    NamespacesChanged,
    AuthenticatedAgain,
    LogChanged,
    Failed(AssociationError),
    Closed,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Owner {
    Association(CommandId),
    /// Offset in the operation's buffer, bytes.
    Io(usize),
}

/// A command in flight, and the key of its exposed memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlight {
    owner: Owner,
    key: Option<u32>,
}

pub(crate) struct Connection {
    pub(crate) host: nvmf_host::Queue<InFlight>,
    target: nvmf_subsystem::Queue,
}

/// A command that the target's transport is executing.
struct Job {
    qid: u16,
    ticket: Ticket,
    work: Work,
    transfer: Transfer,
    capsule: Vec<u8>,
}

/// The data of a command, to be sent or received by the host.
pub(crate) enum Data {
    None,
    InCapsule(Vec<u8>),
    Exposed(Vec<u8>),
}

/// One host and one target.
pub(crate) struct Pair {
    pub(crate) registry: Registry,
    pub(crate) host: Association,
    pub(crate) disk: Disk,
    pub(crate) now: Duration,
    pub(crate) events: Vec<HostEvent>,
    pub(crate) violations: Vec<Violation>,
    /// Drops the host's capsules.
    pub(crate) mute: bool,
    /// Hangs up when the host's data begin like this.
    pub(crate) hangs_up_at: Option<[u8; 2]>,
    /// Stops the host's timers.
    pub(crate) frozen: bool,
    /// Number of commands on I/O queues.
    pub(crate) io_commands: u32,
    pub(crate) connections: BTreeMap<u16, Connection>,
    exposed: BTreeMap<u32, Vec<u8>>,
    next_key: u32,
    /// What each side has, if the host must authenticate.
    pub(crate) keys: Option<(Keys, Secrets)>,
    /// Queues that the host has replied to a challenge on.
    pub(crate) authentications: u32,
    jobs: VecDeque<Job>,
    /// The parts of the current operation: position, status and data of each.
    pub(crate) done: Vec<(usize, Status, Vec<u8>)>,
}

impl Pair {
    /// Connects; the connect may fail.
    pub(crate) fn connect(registry: Registry, config: AssociationConfig) -> Self {
        Self::connect_with(registry, config, None)
    }

    /// The same with keys.
    pub(crate) fn connect_with(
        registry: Registry,
        config: AssociationConfig,
        keys: Option<(Keys, Secrets)>,
    ) -> Self {
        Self::connect_at(Duration::from_secs(1000), registry, config, keys)
    }

    fn connect_at(
        now: Duration,
        registry: Registry,
        config: AssociationConfig,
        keys: Option<(Keys, Secrets)>,
    ) -> Self {
        let mut pair = Self {
            registry,
            host: Association::new(config, now).expect("a valid configuration"),
            disk: Disk::default(),
            now,
            events: Vec::new(),
            violations: Vec::new(),
            mute: false,
            hangs_up_at: None,
            frozen: false,
            io_commands: 0,
            connections: BTreeMap::new(),
            exposed: BTreeMap::new(),
            next_key: 1,
            keys,
            authentications: 0,
            jobs: VecDeque::new(),
            done: Vec::new(),
        };
        pair.settle();
        pair
    }

    /// Connects, which must succeed.
    pub(crate) fn ready(registry: Registry, config: AssociationConfig) -> Self {
        let mut pair = Self::connect(registry, config);
        assert_eq!(pair.take_events(), [HostEvent::Ready]);
        pair
    }

    pub(crate) fn take_events(&mut self) -> Vec<HostEvent> {
        core::mem::take(&mut self.events)
    }

    /// Connects the same host to the same target again.
    pub(crate) fn again(self) -> Self {
        let config = self.host.config().clone();
        Self { disk: self.disk, ..Self::connect_at(self.now, self.registry, config, self.keys) }
    }

    /// Checks that nothing of the host remains on the target.
    pub(crate) fn assert_clean(&self) {
        assert!(self.connections.is_empty() && self.jobs.is_empty(), "a queue or a command is left");
        assert_eq!(self.registry.associations().count(), 0, "an association is left");
    }

    /// Runs both engines until neither has anything to do. The newest command is executed first.
    pub(crate) fn settle(&mut self) {
        loop {
            if let Some(action) = self.host.poll_action() {
                self.act(action);
            } else if let Some(job) = self.jobs.pop_back() {
                self.execute(job);
            } else {
                return;
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::OpenQueue { qid, private_data, entries, .. } => self.open(qid, &private_data, entries),
            Action::Send { qid, id, command, data } => {
                let data = match data {
                    AdminData::None => Data::None,
                    AdminData::ToController { bytes, in_capsule: true } => Data::InCapsule(bytes),
                    AdminData::ToController { bytes, in_capsule: false } => Data::Exposed(bytes),
                    AdminData::FromController { len } => Data::Exposed(vec![0xee; len as usize]),
                };
                self.send(qid.0, Owner::Association(id), &command, data);
            }
            Action::Ready => {
                if self.host.controller().flow_control == FlowControl::Disabled {
                    let entries = self.host.controller().io_queue_entries;
                    let io = self.connections.range_mut(1..).map(|(_, connection)| &mut connection.host);
                    io.for_each(|queue| queue.agree(entries, FlowControl::Disabled));
                }
                self.events.push(HostEvent::Ready);
            }
            Action::AccessChanged | Action::ResetEnded { .. } => {}
            Action::Authenticate(task) => {
                self.authentications += 1;
                let (_, secrets) = self.keys.as_ref().expect("secrets");
                let replied = task.run(secrets, &mut nvmf_auth::system_random);
                self.host.on_authentication_computed(self.now, replied);
            }
            Action::Secure { .. } => unreachable!("RDMA has no TLS"),
            Action::AuthenticatedAgain => self.events.push(HostEvent::AuthenticatedAgain),
            Action::NamespacesChanged => self.events.push(HostEvent::NamespacesChanged),
            Action::DiscoveryLogChanged => self.events.push(HostEvent::LogChanged),
            Action::Event(event) => panic!("an unknown event: {event:#x}"),
            Action::Failed(error) => self.events.push(HostEvent::Failed(error)),
            Action::CloseQueues => {
                let qids: Vec<u16> = self.connections.keys().copied().collect();
                for qid in qids {
                    self.remove(qid);
                }
                self.host.on_closed(self.now);
            }
            Action::Closed => self.events.push(HostEvent::Closed),
        }
    }

    fn open(&mut self, qid: Qid, private_data: &[u8], entries: u16) {
        let request = Request::parse(private_data).expect("a valid connection request");
        assert_eq!((request.qid, request.hsqsize), (qid, entries.into()));
        // Transports limit the queue size in the same way.
        let options = self.registry.options();
        let ours = if qid.0 == 0 { 32 } else { options.queue_entries_max };
        let entries = entries.min(ours);
        let cntlid = if qid.0 == 0 { 0 } else { request.cntlid.0 };
        let link = Link {
            transport: TransportType::RDMA,
            port: PORT,
            local: [127, 0, 0, 1].into(),
            peer: [192, 0, 2, 1].into(),
            machine: [192, 0, 2, 1].into(),
            qid: Some(qid.0),
            cntlid: Some(cntlid),
            secure_channel: None,
            entries,
        };
        let target = nvmf_subsystem::Queue::new(self.now, link);
        let host = nvmf_host::Queue::new(qid, entries, FlowControl::Sqhd);
        self.connections.insert(qid.0, Connection { host, target });
        let accept = AcceptData::new(entries);
        let agreed = self.host.on_queue_connected(self.now, qid, accept.as_bytes());
        if let (Some(agreed), Some(connection)) = (agreed, self.connections.get_mut(&qid.0)) {
            connection.host.agree(agreed, FlowControl::Sqhd);
        }
    }

    pub(crate) fn send(&mut self, qid: u16, owner: Owner, command: &Command, data: Data) {
        if let (Data::InCapsule(bytes) | Data::Exposed(bytes), Some(start)) = (&data, self.hangs_up_at)
            && bytes.starts_with(&start)
        {
            return self.disconnect(qid, "the target hung up");
        }
        let Some(connection) = self.connections.get_mut(&qid) else { return };
        let key = matches!(data, Data::Exposed(_)).then_some(self.next_key);
        let cid = connection.host.submit(InFlight { owner, key }, None).expect("the queue has a free entry");
        let (pointer, capsule) = match data {
            Data::None => (DataPointer::None, Vec::new()),
            Data::InCapsule(bytes) => (DataPointer::InCapsule { len: bytes.len() as u32 }, bytes),
            Data::Exposed(bytes) => {
                let (key, len) = (self.next_key, bytes.len() as u32);
                self.next_key += 1;
                self.exposed.insert(key, bytes);
                (DataPointer::Keyed { address: address(key), len, key, invalidate: true }, Vec::new())
            }
        };
        self.io_commands += u32::from(matches!(owner, Owner::Io(_)));
        if !self.mute {
            let step = connection.target.on_capsule(self.now, &command.encode(cid, pointer), capsule.len());
            self.take(qid, step, capsule);
        }
    }

    /// Executes a step of the target and those that follow from it.
    fn take(&mut self, qid: u16, step: Step, capsule: Vec<u8>) {
        self.take_one(qid, step, capsule);
        self.poll(qid);
    }

    fn poll(&mut self, qid: u16) {
        while let Some(connection) = self.connections.get_mut(&qid)
            && let Some(step) = connection.target.poll_step(self.now)
        {
            self.take_one(qid, step, Vec::new());
        }
    }

    fn take_one(&mut self, qid: u16, step: Step, capsule: Vec<u8>) {
        match step {
            Step::Respond(response) => self.respond(qid, &response),
            Step::Execute { ticket, work, transfer } => {
                self.jobs.push_back(Job { qid, ticket, work, transfer, capsule });
            }
            Step::Ask { ticket, question } => {
                let answer = match *question {
                    Question::Authenticate { task, .. } => {
                        let keys = self.keys.as_ref().map(|(keys, _)| keys);
                        Answer::Authenticate(task.run(keys, &mut nvmf_auth::system_random))
                    }
                    Question::Reset(question) => Answer::Reset(self.registry.reset(&question).map(|_| true)),
                    Question::Reservation(question) => {
                        let planned = self.registry.plan_reservation(&question);
                        let done =
                            planned.and_then(|change| self.registry.set_reservation(&question, change));
                        Answer::Reservation(done)
                    }
                    Question::WriteProtection(question) => {
                        Answer::Reservation(self.registry.set_write_protection(&question).map(|_| ()))
                    }
                };
                let target = &mut self.connections.get_mut(&qid).expect("a connection that asks").target;
                let step = target.on_answer(self.now, ticket, answer);
                self.take_one(qid, step, capsule);
            }
            Step::Held => {}
            Step::Connect(request) => {
                let admission = self.registry.connect(self.now, &request, true);
                let target = &mut self.connections.get_mut(&qid).expect("a connection that asks").target;
                let step = target.on_admission(self.now, request, admission);
                self.take_one(qid, step, capsule);
            }
            Step::CloseQueue => self.disconnect(qid, "closed by the target"),
            Step::CloseIoQueues => {
                let qids: Vec<u16> = self.connections.range(1..).map(|(&qid, _)| qid).collect();
                qids.into_iter().for_each(|qid| self.disconnect(qid, "closed by the target"));
            }
            Step::CloseAssociation(violation) => {
                self.violations.push(violation);
                let qids: Vec<u16> = self.connections.keys().copied().collect();
                qids.into_iter().for_each(|qid| self.disconnect(qid, "a violation"));
            }
        }
    }

    fn respond(&mut self, qid: u16, response: &nvmf_subsystem::Response) {
        let connection = self.connections.get_mut(&qid).expect("a connection to respond on");
        let (InFlight { owner, key }, outcome) =
            connection.host.on_completion(&response.cqe).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!(response.invalidate, key, "the invalidated key is the command's");
        let bytes = key.and_then(|key| self.exposed.remove(&key)).unwrap_or_default();
        self.host.on_traffic(self.now);
        match owner {
            Owner::Association(id) => self.complete(id, outcome, &bytes),
            Owner::Io(offset) => self.done.push((offset, outcome.status, bytes)),
        }
    }

    fn complete(&mut self, id: CommandId, outcome: Outcome, data: &[u8]) {
        self.host.on_completion(self.now, id, Reply { outcome, data });
    }

    /// Executes a command as the target's transport: fetches data, runs the operation, sends data, returns the ticket.
    fn execute(&mut self, job: Job) {
        let Job { qid, ticket, work, transfer, capsule } = job;
        let mut data = match transfer {
            Transfer::FromHost { len, source: Source::InCapsule { offset } } => {
                capsule[offset as usize..][..len as usize].to_vec()
            }
            Transfer::FromHost { len, source: Source::Remote(Remote::Keyed(keyed)) } => {
                self.memory(keyed, len as usize).to_vec()
            }
            Transfer::FromHost { source: Source::Remote(Remote::Transport), .. } => {
                unreachable!("the queues are NVMe/RDMA's")
            }
            Transfer::ToHost { len, .. } => vec![0; len as usize],
            Transfer::None => Vec::new(),
        };
        let mut result = Ok(());
        match &work {
            Work::Block { device, op } => {
                assert_eq!(*device, DeviceId(101), "the device behind the namespaces");
                result = self.disk.execute(op, &mut data);
            }
            // In pieces, as with small buffers.
            Work::Page(page) => {
                data.chunks_mut(300).enumerate().for_each(|(at, piece)| page.fill(at as u32 * 300, piece))
            }
            Work::Parameters => {}
        }
        if let (Transfer::ToHost { len, sink: Remote::Keyed(sink) }, Ok(())) = (transfer, result) {
            self.memory(sink, len as usize).copy_from_slice(&data);
        }
        let target = &mut self.connections.get_mut(&qid).expect("a job's connection exists").target;
        let step = match work {
            Work::Parameters => target.on_parameters(self.now, ticket, &data),
            _ => target.on_done(self.now, ticket, result),
        };
        self.take(qid, step, capsule);
    }

    /// The host's exposed memory; checks the key and the bounds.
    fn memory(&mut self, keyed: Keyed, len: usize) -> &mut [u8] {
        let bytes = self.exposed.get_mut(&keyed.key).expect("a valid key");
        let offset =
            keyed.address.checked_sub(address(keyed.key)).expect("an address within the key's memory");
        &mut bytes[offset as usize..][..len]
    }

    /// Disconnects a queue by the target and notifies the host.
    fn disconnect(&mut self, qid: u16, cause: &str) {
        if self.remove(qid) {
            self.host.on_disconnected(self.now, Qid(qid), cause);
        }
    }

    /// Removes a queue on both sides, with its commands and the queues that depend on it.
    fn remove(&mut self, qid: u16) -> bool {
        let Some(mut connection) = self.connections.remove(&qid) else { return false };
        let (gone, rest): (Vec<Job>, Vec<Job>) = self.jobs.drain(..).partition(|job| job.qid == qid);
        self.jobs = rest.into();
        gone.into_iter().for_each(|job| job.ticket.abandon());
        for InFlight { key, .. } in connection.host.drain() {
            key.map(|key| self.exposed.remove(&key));
        }
        if let (Some(association), Some(qid)) = (connection.target.association(), connection.target.qid()) {
            let others = self.registry.close_queue(association, qid);
            others.into_iter().for_each(|qid| self.disconnect(qid.0, "its Admin queue was closed"));
        }
        true
    }

    /// Advances the time and runs everything that becomes due.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut turns = 0;
        while let Some(due) = self.next_due().filter(|&due| due <= end) {
            turns += 1;
            assert!(turns < TURNS_MAX, "the deadline at {due:?} stays due");
            self.now = self.now.max(due);
            if !self.frozen && self.host.poll_timeout().is_some_and(|due| due <= self.now) {
                self.host.on_timeout(self.now);
            }
            self.poll_targets(|target, now| target.on_timeout(now));
            self.settle();
        }
        self.now = end;
    }

    fn next_due(&self) -> Option<Duration> {
        let host = self.host.poll_timeout().filter(|_| !self.frozen);
        let targets = self.connections.values().filter_map(|connection| connection.target.poll_timeout());
        host.into_iter().chain(targets).min()
    }

    fn poll_targets(&mut self, mut before: impl FnMut(&mut nvmf_subsystem::Queue, Duration)) {
        let qids: Vec<u16> = self.connections.keys().copied().collect();
        for qid in qids {
            if let Some(connection) = self.connections.get_mut(&qid) {
                before(&mut connection.target, self.now);
                self.poll(qid);
            }
        }
    }

    /// Passes the registry's notices and events of associations to their queues.
    pub(crate) fn deliver(&mut self) {
        let notices = self.registry.take_notices();
        self.poll_targets(|target, now| notices.iter().for_each(|notice| target.on_notice(now, notice)));
        self.settle();
    }

    pub(crate) fn shut_down(&mut self) {
        self.host.shutdown(self.now);
        self.settle();
    }
}

/// The address of a key's memory.
fn address(key: u32) -> u64 {
    u64::from(key) << 32
}
