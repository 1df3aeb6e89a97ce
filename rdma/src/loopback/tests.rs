use super::*;
use crate::conformance::{self, Pair};
use crate::fault::{FaultOptions, Faulty};
use crate::trace::Trace;
use crate::{
    Access, CmEvent, CompletionQueueId, ConnectError, ConnectParameters, DisconnectCause, Payload, PostError,
    PrivateData, Provider, QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, RegisterError,
    SendOperation, SendRequest, Sge, WakeOn, WcStatus, WorkRequestId,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Real time, with a yield for a tick: what the checks wait for comes without waiting.
fn pair() -> Pair<Loopback> {
    let fabric = Fabric::new();
    let started = Instant::now();
    let tick = Box::new(move || started.elapsed());
    Pair { left: fabric.provider(), right: fabric.provider(), address: ADDRESS, tick }
}

/// Virtual time, in steps of ten microseconds, with messages that are up to fifteen steps under way.
fn distant_pair(seed: u64) -> Pair<Loopback> {
    let latency = Duration::from_micros(5)..=Duration::from_micros(150);
    let fabric =
        Fabric::with_options(FabricOptions { latency, seed, descriptor: false, ..Default::default() });
    let mut now = Duration::ZERO;
    let tick = Box::new(move || {
        now += Duration::from_micros(10);
        now
    });
    Pair { left: fabric.provider(), right: fabric.provider(), address: ADDRESS, tick }
}

fn map<P, Q>(pair: Pair<P>, wrap: impl Fn(P) -> Q) -> Pair<Q> {
    Pair { left: wrap(pair.left), right: wrap(pair.right), address: pair.address, tick: pair.tick }
}

#[test]
fn loopback_conforms() {
    conformance::run(pair);
}

#[test]
fn loopback_conforms_at_a_distance() {
    let mut seed = 0;
    conformance::run(|| {
        seed += 1;
        distant_pair(seed)
    });
}

#[test]
fn a_decorator_without_faults_changes_nothing() {
    conformance::run(|| map(pair(), |inner| Faulty::new(inner, FaultOptions::default())));
}

/// Slow is not wrong: the suite does not notice completions and events that are held back.
#[test]
fn held_back_completions_and_events_conform() {
    let options = FaultOptions {
        seed: 3,
        hold_completions: 200_000,
        hold_event: 300_000,
        hold_polls_max: 5,
        ..Default::default()
    };
    conformance::run(|| map(distant_pair(9), |inner| Faulty::new(inner, options)));
}

#[test]
fn a_trace_changes_nothing() {
    conformance::run(|| map(pair(), |inner| Trace::new(inner, 100)));
}

/// A connected pair on one provider's tables: enough to see what the suite leaves to each provider.
pub(super) struct Linked {
    pub(super) fabric: Fabric,
    pub(super) sides: [Loopback; 2],
    pub(super) cq: [CompletionQueueId; 2],
    pub(super) qp: [QueuePairId; 2],
}

fn parameters() -> ConnectParameters {
    ConnectParameters {
        private_data: PrivateData::EMPTY,
        responder_resources: 4,
        initiator_depth: 4,
        timeout: Duration::from_secs(1),
    }
}

fn queue_pair(provider: &mut impl Provider, cq: CompletionQueueId) -> QueuePairId {
    let attributes = QueuePairAttributes {
        send_cq: cq,
        receive_cq: cq,
        shared_receive_queue: None,
        max_send: 16,
        max_receive: 16,
        max_exposed: 16,
    };
    provider.create_queue_pair(&attributes).unwrap()
}

/// Lets virtual time run until everything under way has arrived; the last time is returned.
fn run_dry(fabric: &Fabric, provider: &mut impl Provider, mut now: Duration) -> Duration {
    while let Some(due) = fabric.next_due() {
        now = now.max(due);
        let event = provider.poll_cm(now);
        assert!(event.is_none(), "{event:?}");
    }
    now
}

impl Linked {
    pub(super) fn new(options: FabricOptions) -> Self {
        let fabric = Fabric::with_options(options);
        let mut sides = [fabric.provider(), fabric.provider()];
        let cq = [0, 1].map(|side: usize| sides[side].create_completion_queue(64).unwrap());
        let qp = [0, 1].map(|side: usize| queue_pair(&mut sides[side], cq[side]));
        let (_, address) = sides[1].listen(ADDRESS, 1).unwrap();
        sides[0].connect(Duration::ZERO, qp[0], address, None, &parameters()).unwrap();
        let mut now = Duration::ZERO;
        let mut event = |side: &mut Loopback| loop {
            if let Some(event) = side.poll_cm(now) {
                break event;
            }
            now += Duration::from_micros(1);
        };
        let CmEvent::ConnectRequest { request, .. } = event(&mut sides[1]) else { panic!("a request") };
        sides[1].accept(Duration::ZERO, request, qp[1], &parameters()).unwrap();
        for side in &mut sides {
            assert!(matches!(event(side), CmEvent::Established { .. }));
        }
        Self { fabric, sides, cq, qp }
    }

    fn send(&mut self, side: usize, id: u64) -> Result<(), PostError> {
        send(&mut self.sides[side], self.qp[side], id)
    }

    fn polled(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        polled(&mut self.sides[side], self.cq[side])
    }
}

pub(super) fn send(provider: &mut impl Provider, qp: QueuePairId, id: u64) -> Result<(), PostError> {
    let payload = Payload::Inline(b"hello");
    let operation = SendOperation::Send { payload, invalidate: None, solicited: false };
    provider.post_send(qp, SendRequest { id: WorkRequestId(id), operation, signaled: true })
}

pub(super) fn polled(provider: &mut impl Provider, cq: CompletionQueueId) -> Vec<(u64, WcStatus)> {
    let mut completions = Vec::with_capacity(64);
    provider.poll_cq(cq, &mut completions);
    completions.iter().map(|completion| (completion.id.0, completion.status)).collect()
}

#[test]
fn more_early_messages_than_fit_end_the_connection() {
    let mut linked = Linked::new(FabricOptions { spill: Some(2), ..Default::default() });
    (0..4).for_each(|id| linked.send(0, id).unwrap());
    let (ok, late) = (WcStatus::Success, WcStatus::ReceiverNotReady);
    assert_eq!(linked.polled(0), [(0, ok), (1, ok), (2, late), (3, WcStatus::Flushed)]);
    let ended = |side: &mut Loopback| match side.poll_cm(Duration::ZERO) {
        Some(CmEvent::Disconnected { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };
    assert!(matches!(ended(&mut linked.sides[0]), DisconnectCause::PeerTerminated(_)));
    assert!(matches!(ended(&mut linked.sides[1]), DisconnectCause::PeerViolation(_)));
}

#[test]
fn a_provider_that_goes_takes_its_connections_along() {
    let Linked { sides: [mut left, right], qp, .. } = Linked::new(FabricOptions::default());
    drop(right);
    let event = left.poll_cm(Duration::ZERO);
    let reset = DisconnectCause::Reset;
    assert!(
        matches!(event, Some(CmEvent::Disconnected { queue_pair, cause }) if queue_pair == qp[0] && cause == reset)
    );
}

/// What a seed makes of the same posts on several connections: who arrives when.
fn arrivals(seed: u64) -> Vec<u64> {
    let latency = Duration::from_micros(1)..=Duration::from_micros(100);
    let options = FabricOptions { latency, seed, descriptor: false, ..Default::default() };
    let mut linked = Linked::new(options);
    let (_, address) = linked.sides[1].listen(ADDRESS, 16).unwrap();
    let mut now = Duration::from_millis(1);
    let mut sending = Vec::new();
    for _ in 0..4 {
        let [left, right] = &mut linked.sides;
        let link = [queue_pair(left, linked.cq[0]), queue_pair(right, linked.cq[1])];
        left.connect(now, link[0], address, None, &parameters()).unwrap();
        let request = loop {
            now += Duration::from_micros(1);
            if let Some(CmEvent::ConnectRequest { request, .. }) = right.poll_cm(now) {
                break request;
            }
        };
        right.accept(now, request, link[1], &parameters()).unwrap();
        while left.poll_cm(now).is_none() {
            now += Duration::from_micros(1);
        }
        assert!(right.poll_cm(now).is_some());
        sending.push(link[0]);
    }
    for (n, &qp) in sending.iter().enumerate() {
        (0..3).for_each(|k| send(&mut linked.sides[0], qp, 10 * n as u64 + k).unwrap());
    }
    linked.sides[0].flush();
    assert!(linked.polled(0).is_empty(), "nothing arrives before its time");
    run_dry(&linked.fabric, &mut linked.sides[0], now);
    linked.polled(0).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn latency_reorders_between_connections_and_never_within() {
    let orders: Vec<_> = (0..20).map(arrivals).collect();
    for order in &orders {
        assert_eq!(order.len(), 12);
        for n in 0..4 {
            let of_one: Vec<_> = order.iter().copied().filter(|id| id / 10 == n).collect();
            assert!(of_one.is_sorted(), "one connection's messages overtook: {order:?}");
        }
    }
    assert!(orders.iter().any(|order| order != &orders[0]), "the seed decides who comes first");
    assert_eq!(arrivals(7), orders[7], "and the same seed decides the same");
}

#[test]
fn reads_beyond_the_credits_wait_for_those_before() {
    let trip = Duration::from_micros(100);
    let options = FabricOptions { latency: trip..=trip, descriptor: false, ..Default::default() };
    let mut linked = Linked::new(options);
    let memory = nvmf_memory::Memory::alloc(64).unwrap();
    let remote = linked.sides[1].register(&memory, Access::REMOTE_READ).unwrap().remote.unwrap();
    let local_key = linked.sides[0].register(&memory, Access::LOCAL_WRITE).unwrap().local_key;
    let into = Sge { local_key, offset: 0, len: 64 };
    for id in 0..6 {
        let operation = SendOperation::Read { into, remote };
        let request = SendRequest { id: WorkRequestId(id), operation, signaled: true };
        linked.sides[0].post_send(linked.qp[0], request).unwrap();
    }
    let start = Duration::from_secs(1);
    assert!(linked.sides[0].poll_cm(start).is_none());
    // Four credits: four arrive after one trip, the others, which started then, after two.
    for (trips, arrived) in [(1, 4), (2, 2)] {
        assert!(linked.sides[0].poll_cm(start + trips * trip).is_none());
        assert_eq!(linked.polled(0).len(), arrived);
    }
}

#[test]
fn two_threads_sleep_and_wake_each_other() {
    let Linked { sides, cq, qp, .. } = Linked::new(FabricOptions::default());
    let [left, right] = sides;
    let play = |mut side: Loopback, cq, qp, begins: bool| {
        move || {
            let memory = nvmf_memory::Memory::alloc(64).unwrap();
            let local_key = side.register(&memory, Access::LOCAL_WRITE).unwrap().local_key;
            let buffer = Sge { local_key, offset: 0, len: 64 };
            side.post_receive(qp, ReceiveRequest { id: WorkRequestId(1), buffer }).unwrap();
            if begins {
                send(&mut side, qp, 2).unwrap();
            }
            let mut received = 0;
            while received < 200 {
                side.flush();
                let done = polled(&mut side, cq);
                if done.is_empty() && side.arm(WakeOn::Receives) {
                    let event = side.event.clone().expect("a descriptor");
                    let mut fds = [nix::poll::PollFd::new(
                        std::os::fd::AsFd::as_fd(&*event),
                        nix::poll::PollFlags::POLLIN,
                    )];
                    assert!(nix::poll::poll(&mut fds, 5000u16).unwrap() > 0, "nobody woke us");
                }
                for _ in done.iter().filter(|&&(id, _)| id == 1) {
                    received += 1;
                    side.post_receive(qp, ReceiveRequest { id: WorkRequestId(1), buffer }).unwrap();
                    send(&mut side, qp, 2).unwrap();
                }
            }
            side.flush();
            side
        }
    };
    let threads = [
        std::thread::spawn(play(left, cq[0], qp[0], true)),
        std::thread::spawn(play(right, cq[1], qp[1], false)),
    ];
    // Both ends are kept until both are done: an early end would look like a lost message.
    let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(ended.len(), 2);
}

fn faulty(options: FaultOptions) -> (Faulty<Loopback>, Loopback, [CompletionQueueId; 2], [QueuePairId; 2]) {
    let Linked { sides: [left, right], cq, .. } = Linked::new(FabricOptions::default());
    let (mut left, mut right) = (Faulty::new(left, FaultOptions::default()), right);
    let (_, address) = right.listen(ADDRESS, 1).unwrap();
    let qp = [queue_pair(&mut left, cq[0]), queue_pair(&mut right, cq[1])];
    left.connect(Duration::ZERO, qp[0], address, None, &parameters()).unwrap();
    let Some(CmEvent::ConnectRequest { request, .. }) = right.poll_cm(Duration::ZERO) else { panic!() };
    right.accept(Duration::ZERO, request, qp[1], &parameters()).unwrap();
    assert!(matches!(left.poll_cm(Duration::ZERO), Some(CmEvent::Established { .. })));
    left.set_options(options);
    (left, right, cq, qp)
}

#[test]
fn a_dropped_connection_looks_broken_and_flushes() {
    let (mut left, _right, cq, qp) =
        faulty(FaultOptions { drop_connection: 1_000_000, ..Default::default() });
    let memory = nvmf_memory::Memory::alloc(64).unwrap();
    let local_key = left.register(&memory, Access::LOCAL_WRITE).unwrap().local_key;
    let buffer = Sge { local_key, offset: 0, len: 64 };
    left.post_receive(qp[0], ReceiveRequest { id: WorkRequestId(5), buffer }).unwrap();
    left.flush();
    let event = left.poll_cm(Duration::ZERO);
    let broken = DisconnectCause::Broken;
    assert!(matches!(event, Some(CmEvent::Disconnected { cause, .. }) if cause == broken), "{event:?}");
    assert_eq!(polled(&mut left, cq[0]), [(5, WcStatus::Flushed)]);
}

#[test]
fn a_full_queue_is_claimed_only_while_something_is_outstanding() {
    let (mut left, _right, cq, qp) = faulty(FaultOptions { refuse_post: 1_000_000, ..Default::default() });
    for id in 0..3 {
        assert_eq!(send(&mut left, qp[0], id), Ok(()), "the queue is empty");
        assert_eq!(send(&mut left, qp[0], 9), Err(PostError::Full));
        assert_eq!(polled(&mut left, cq[0]), [(id, WcStatus::Success)]);
    }
}

#[test]
fn refusals_are_refused_before_the_provider_hears() {
    let options =
        FaultOptions { refuse_connect: 1_000_000, refuse_register: 1_000_000, ..Default::default() };
    let (mut left, _right, cq, _) = faulty(options);
    let qp = queue_pair(&mut left, cq[0]);
    let refused = left.connect(Duration::ZERO, qp, ADDRESS, None, &parameters());
    assert!(matches!(refused, Err(ConnectError::Os { .. })));
    assert_eq!(left.state(qp), QueuePairState::Idle);
    let memory = nvmf_memory::Memory::alloc(64).unwrap();
    assert!(matches!(left.register(&memory, Access::LOCAL_READ), Err(RegisterError::NoKey { .. })));
}

#[test]
fn a_trace_tells_the_last_of_it() {
    let Linked { sides: [left, _right], cq, qp, .. } = Linked::new(FabricOptions::default());
    let mut left = Trace::new(left, 3);
    for id in 0..3 {
        send(&mut left, qp[0], id).unwrap();
    }
    left.flush();
    assert_eq!(polled(&mut left, cq[0]).len(), 3);
    left.disconnect(qp[0]);
    assert!(left.poll_cm(Duration::from_millis(5)).is_some());
    let told = left.to_string();
    assert!(told.starts_with("(6 earlier happenings forgotten)\n"), "{told}");
    assert!(told.contains("done Send WorkRequestId(2)") && told.contains("Disconnected"), "{told}");
    assert_eq!(left.happenings().count(), 3);
}
