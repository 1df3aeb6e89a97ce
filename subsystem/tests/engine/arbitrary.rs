//! Whatever a host sends: no panic, and one response for every command.

use crate::host::*;
use nvme_proto::Cqe;
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::BlockError;
use nvmf_subsystem::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// MDTS: small, so that transfers get past it.
const TRANSFER_LEN_MAX: u32 = 64 * 1024;

fn options() -> Options {
    Options { transfer_len_max: TRANSFER_LEN_MAX, ..Options::default() }
}

/// One event at a queue.
#[derive(Debug, Clone)]
enum Event {
    Capsule {
        bytes: [u8; 64],
        in_capsule_len: usize,
    },
    /// The transport finishes one of the commands that it works on.
    Finish {
        which: usize,
        fails: bool,
        fill: u8,
    },
    Time(u64),
    Resize(u64),
}

/// Bytes that are a plausible command often enough to get past the first check.
fn bytes() -> impl Strategy<Value = [u8; 64]> {
    let opcode = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f]),
    ];
    let sgl = prop::sample::select(vec![0x40, 0x4f, 0x01, 0x31, 0x00]);
    let words = prop::collection::vec(prop_oneof![any::<u32>(), 0u32..8, Just(0x0046_0001)], 6);
    let len = prop_oneof![Just(4096u32), Just(512), Just(1024), Just(16), any::<u32>()];
    let fields = (opcode, 0u16..64, prop_oneof![0u32..8, any::<u32>()], sgl, words, len);
    let plausible = fields.prop_map(|(opcode, cid, nsid, sgl, words, len)| {
        let mut bytes = [0; 64];
        (bytes[0], bytes[1], bytes[39]) = (opcode, 0x40, sgl);
        bytes[2..4].copy_from_slice(&cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&nsid.to_le_bytes());
        bytes[32..35].copy_from_slice(&len.to_le_bytes()[..3]);
        for (at, word) in bytes[40..].chunks_exact_mut(4).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    });
    let wild = (any::<[u8; 32]>(), any::<[u8; 32]>())
        .prop_map(|(a, b)| core::array::from_fn(|at| if at < 32 { a[at] } else { b[at - 32] }));
    prop_oneof![4 => plausible, 3 => transfers(), 1 => wild]
}

/// Reads, writes and compares around the end of the disk and around MDTS, with the SGL that fits.
fn transfers() -> impl Strategy<Value = [u8; 64]> {
    let opcodes = vec![NvmOpcode::READ, NvmOpcode::WRITE, NvmOpcode::COMPARE];
    let fields = (prop::sample::select(opcodes), 0u64..1100, 1u32..300, any::<bool>(), 0u16..64);
    fields.prop_map(|(opcode, slba, blocks, fua, cid)| {
        let sqe = ReadWrite { fua, ..ReadWrite::new(slba, blocks) }.emit(opcode, Nsid(1));
        zerocopy::transmute!(with_cid(keyed(sqe, blocks * 512), cid))
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (bytes(), prop_oneof![Just(0usize), Just(4096), 0usize..5000])
            .prop_map(|(bytes, in_capsule_len)| Event::Capsule { bytes, in_capsule_len }),
        4 => (any::<usize>(), any::<bool>(), any::<u8>())
            .prop_map(|(which, fails, fill)| Event::Finish { which, fails, fill }),
        1 => (0u64..4000).prop_map(Event::Time),
        1 => (1u64..2000).prop_map(Event::Resize),
    ]
}

/// What the transport works on: by Command ID, the ticket, and the length of the parameters it pulls.
#[derive(Default)]
struct Transport {
    work: BTreeMap<u16, (Ticket, Option<u32>)>,
    /// Commands that came in, less the responses that went out, by Command ID.
    open: BTreeMap<u16, i64>,
    over: bool,
}

impl Transport {
    fn take(&mut self, step: Step, in_capsule_len: usize) {
        match step {
            Step::Respond(response) => {
                let cqe = Cqe::read_from_bytes(&response.cqe).unwrap();
                *self.open.entry(cqe.cid.get()).or_default() -= 1;
            }
            Step::Execute { ticket, work, transfer } => {
                let pulled = match (&work, transfer) {
                    (Work::Parameters, Transfer::FromHost { len, .. }) => Some(len),
                    (Work::Parameters, transfer) => panic!("parameters from {transfer:?}"),
                    (Work::Page(page), Transfer::ToHost { len, .. }) => {
                        let mut bytes = vec![0; len.min(10_000) as usize];
                        page.fill(len / 2, &mut bytes);
                        None
                    }
                    _ => None,
                };
                if let Transfer::FromHost { len, source: Source::InCapsule { offset } } = transfer {
                    assert!(offset as usize + len as usize <= in_capsule_len);
                }
                if let Transfer::FromHost { len, .. } | Transfer::ToHost { len, .. } = transfer {
                    assert!(len <= TRANSFER_LEN_MAX, "MDTS");
                }
                assert!(pulled.unwrap_or(0) as usize <= limits::PARAMETERS_LEN_MAX);
                assert!(self.work.insert(ticket.cid().0, (ticket, pulled)).is_none());
            }
            Step::Ask { question, .. } => unreachable!("no host must authenticate: {question:?}"),
            Step::Held | Step::CloseIoQueues => {}
            Step::CloseQueue | Step::CloseAssociation(_) => self.over = true,
            Step::Connect(_) => panic!("the queue is connected already"),
        }
    }

    fn finish(&mut self, queue: &mut Queue, which: usize, fails: bool, fill: u8) {
        let Some(&cid) = self.work.keys().nth(which % self.work.len().max(1)) else { return };
        let (ticket, pulled) = self.work.remove(&cid).unwrap();
        let step = match pulled {
            Some(len) => queue.on_parameters(NOW, ticket, &vec![fill; len as usize]),
            None if fails => queue.on_done(NOW, ticket, Err(BlockError::Medium)),
            None => queue.on_done(NOW, ticket, Ok(())),
        };
        self.take(step, 0);
    }

    fn drain(&mut self, queue: &mut Queue) {
        while let Some(step) = queue.poll_step(NOW) {
            self.take(step, 0);
        }
    }
}

fn run(registry: &mut Registry, queue: &mut Queue, events: Vec<Event>) {
    let mut transport = Transport::default();
    let mut end = disk().blocks;
    let mut now = NOW;
    for event in events {
        match event {
            Event::Capsule { bytes, in_capsule_len } => {
                let cid = u16::from_le_bytes([bytes[2], bytes[3]]);
                *transport.open.entry(cid).or_default() += 1;
                let step = queue.on_capsule(now, &bytes, in_capsule_len);
                if let Step::Execute { work: Work::Block { op: BlockWork::Read { range }, .. }, .. } = &step {
                    assert!(range.end().unwrap() <= end);
                }
                transport.take(step, in_capsule_len);
            }
            Event::Finish { which, fails, fill } => transport.finish(queue, which, fails, fill),
            Event::Time(millis) => {
                now += core::time::Duration::from_millis(millis);
                queue.on_timeout(now);
            }
            Event::Resize(blocks) => {
                end = blocks;
                let geometry = nvmf_block::Geometry { blocks, ..disk() };
                registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, geometry)]).unwrap();
                for notice in registry.take_notices() {
                    queue.on_notice(now, &notice);
                }
            }
        }
        transport.drain(queue);
        if transport.over {
            break;
        }
    }
    if transport.over {
        transport.work.into_values().for_each(|(ticket, _)| ticket.abandon());
        return;
    }
    while !transport.work.is_empty() {
        transport.finish(queue, 0, false, 0);
        transport.drain(queue);
    }
    // What is left open waits in the engine: Asynchronous Event Requests.
    let open: i64 = transport.open.values().sum();
    assert!(transport.open.values().all(|&open| open >= 0), "a response without a command");
    assert_eq!(open, i64::from(queue.in_flight()));
    assert!(open <= 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_capsules_on_an_admin_queue(events in prop::collection::vec(event(), 1..80)) {
        let mut fixture = Fixture::with(options());
        run(&mut fixture.registry, &mut fixture.admin, events);
    }

    #[test]
    fn any_capsules_on_an_io_queue(events in prop::collection::vec(event(), 1..80)) {
        let mut fixture = Fixture::with(options());
        run(&mut fixture.registry, &mut fixture.io, events);
    }

    #[test]
    fn any_capsules_on_a_discovery_controller(events in prop::collection::vec(event(), 1..80)) {
        let mut registry = registry(options());
        let (mut queue, ..) = Hello::discovery().connect(&mut registry);
        enable(&mut queue);
        run(&mut registry, &mut queue, events);
    }
}

/// What became of a Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    RefusedByQueue,
    RefusedByRegistry,
    AdmittedAdmin,
    AdmittedIo,
}

/// A Connect with some bytes of the command and of its data changed, for an Admin or an I/O queue.
fn connect(registry: &mut Registry, qid: u16, changes: &[(usize, u8)]) -> Met {
    let hello = if qid == 0 { Hello::admin() } else { Hello::io(qid, 1) };
    let mut sqe: [u8; 64] = zerocopy::transmute!(hello.command());
    let mut data = <[u8; 1024]>::try_from(zerocopy::IntoBytes::as_bytes(&hello.data())).unwrap();
    for &(at, byte) in changes {
        *sqe.iter_mut().chain(&mut data).nth(at).unwrap() = byte;
    }
    let mut queue = Queue::new(NOW, hello.link);
    let ticket = match queue.on_capsule(NOW, &sqe, 1024) {
        Step::Respond(response) => {
            assert!(!responded(Step::Respond(response)).status().is_success());
            assert_eq!(queue.in_flight(), 0);
            return Met::RefusedByQueue;
        }
        step => parameters(step).0,
    };
    let Step::Connect(request) = queue.on_parameters(NOW, ticket, &data) else { panic!("a Connect") };
    let admission = registry.connect(NOW, &request, true);
    let admitted =
        admission.outcome.as_ref().ok().map(|admitted| (admitted.association().key(), admitted.qid()));
    let cqe = responded(queue.on_admission(NOW, request, admission));
    assert_eq!(queue.in_flight(), 0);
    let Some((key, qid)) = admitted else {
        assert!(!cqe.status().is_success() && queue.association().is_none());
        return Met::RefusedByRegistry;
    };
    assert!(cqe.status().is_success());
    // It is what the Connect says.
    assert_eq!(qid.0, u16::from_le_bytes([sqe[42], sqe[43]]));
    assert_eq!((queue.qid(), cqe.dw0.get()), (Some(qid), key.cntlid.0.into()));
    let association = std::sync::Arc::clone(queue.association().unwrap());
    assert_eq!(association.key(), key);
    let field = |at: usize| Nqn::from_field(data[at..at + 256].try_into().unwrap());
    assert_eq!(field(256).as_ref(), Ok(association.subsystem_nqn()));
    assert_eq!(field(512).as_ref(), Ok(association.host_nqn()));
    assert!(association.host_id().0 == data[..16] || (qid.0 > 0 && data[..16] == [0; 16]));
    assert!(qid.0 == 0 || association.key().cntlid.0 == u16::from_le_bytes([data[16], data[17]]));
    registry.close_queue(&association, qid);
    if qid.0 == 0 { Met::AdmittedAdmin } else { Met::AdmittedIo }
}

#[test]
fn any_connect_is_refused_or_becomes_what_it_says() {
    use proptest::test_runner::TestRunner;
    let mut fixture = Fixture::new();
    let mut runner = TestRunner::deterministic();
    // The fields that mean something lie at the beginning of the command, of the data, and of the names.
    let place = prop_oneof![0usize..64, 64usize..84, 320usize..340, 576usize..596, 0usize..1088];
    let changes = prop::collection::vec((place, any::<u8>()), 0..3);
    let strategy = (0u16..4, changes);
    let mut met = BTreeMap::new();
    for _ in 0..4000 {
        let (qid, changes) = strategy.new_tree(&mut runner).unwrap().current();
        // Queue 1 of controller 1 is the fixture's.
        let qid = if qid == 1 { 2 } else { qid };
        *met.entry(connect(&mut fixture.registry, qid, &changes)).or_insert(0) += 1;
    }
    for kind in [Met::RefusedByQueue, Met::RefusedByRegistry, Met::AdmittedAdmin, Met::AdmittedIo] {
        assert!(met.get(&kind).is_some_and(|&count| count >= 20), "{met:?}");
    }
}
