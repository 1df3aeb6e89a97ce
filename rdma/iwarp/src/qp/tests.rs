//! Two queue pairs back to back, without a socket: what one sends, the other takes in pieces of any size.

use super::*;
use crate::config::IwarpConfig;
use nvmf_rdma::{
    Completion, CompletionQueueId, MemoryRegion, Opcode, Payload, RemoteKey, RemoteMemory, SendOperation,
    Sge, SharedReceiveQueueId, WorkRequestId,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const CQ: CompletionQueueId = CompletionQueueId(0);
const LEN: usize = 8192;

struct End {
    qp: QueuePair,
    domain: Domain,
    memory: Memory,
    region: MemoryRegion,
}

fn agreement(crc: bool) -> Agreement {
    Agreement { crc, responder_resources: 4, initiator_depth: 2, rtr: None, large_fpdu: false }
}

impl End {
    fn new(role: Role, crc: bool, fpdu_max: usize, shared: bool) -> Self {
        let mut domain = Domain::new(&IwarpConfig::default());
        domain.completion_queues.push(VecDeque::new());
        domain.shared.push(SharedReceiveQueue { queue: ReceiveQueue::new(8), starved: VecDeque::new() });
        let attributes = QueuePairAttributes {
            send_cq: CQ,
            receive_cq: CQ,
            shared_receive_queue: shared.then_some(SharedReceiveQueueId(0)),
            max_send: 64,
            max_receive: 64,
            max_exposed: 64,
        };
        let mut qp = QueuePair::new(QueuePairId(7), &attributes);
        qp.start(role, &agreement(crc), fpdu_max);
        let memory = Memory::alloc(LEN).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = domain.stags.register(&memory, all).unwrap();
        Self { qp, domain, memory, region }
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { local_key: self.region.local_key, offset, len }
    }

    fn post(&mut self, id: u64, operation: SendOperation<'_>) {
        let request = SendRequest { id: WorkRequestId(id), operation, signaled: true };
        self.qp.post_send(&self.domain, &request).unwrap();
    }

    fn receive(&mut self, id: u64, offset: usize, len: u32) {
        let request = ReceiveRequest { id: WorkRequestId(id), buffer: self.sge(offset, len) };
        self.qp.post_receive(&mut self.domain, &request).unwrap();
    }

    /// What the socket would be given now.
    fn waiting(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.qp.chunks().append_to(&mut bytes);
        bytes
    }

    /// Takes what is to be sent, in writes of at most `step` bytes.
    fn transmit(&mut self, step: usize) -> Result<Vec<u8>, Stop> {
        let mut stream = Vec::new();
        loop {
            self.qp.fill(&mut self.domain, usize::MAX)?;
            let mut part = self.waiting();
            if part.is_empty() {
                return Ok(stream);
            }
            part.truncate(step);
            self.qp.on_sent(&mut self.domain, part.len());
            stream.extend(part);
        }
    }

    fn take(&mut self, stream: &[u8], steps: &mut dyn FnMut() -> usize) -> Result<(), Stop> {
        let mut rest = stream;
        while !rest.is_empty() {
            let n = steps().clamp(1, rest.len());
            self.qp.on_bytes(&mut self.domain, &rest[..n])?;
            rest = &rest[n..];
        }
        Ok(())
    }

    fn completions(&mut self) -> Vec<Completion> {
        self.domain.completion_queues[0].drain(..).collect()
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

fn inline(text: &[u8]) -> SendOperation<'_> {
    SendOperation::Send { payload: Payload::Inline(text), invalidate: None, solicited: false }
}

/// One of everything, cut by `step` on the way out and by `steps` on the way in; what the receiver saw.
fn conversation(
    crc: bool,
    fpdu_max: usize,
    step: usize,
    steps: &mut dyn FnMut() -> usize,
) -> (Vec<Completion>, Vec<Completion>, Vec<u8>, Vec<u8>) {
    let mut a = End::new(Role::Initiator, crc, fpdu_max, false);
    let mut b = End::new(Role::Responder, crc, fpdu_max, false);
    let pattern: Vec<u8> = (0..LEN).map(|i| ((i * 31) >> 3) as u8).collect();
    a.memory.write(0, &pattern[..3000]);
    b.memory.write(4096, &pattern[..2000]);
    let remote = b.region.remote.unwrap();
    let window = b.domain.stags.expose(QueuePairId(7), b.sge(0, 16), Access::REMOTE_READ).unwrap();
    (0..5).for_each(|id| b.receive(id, 7000 + 100 * id as usize, 100));
    a.post(10, inline(b"first"));
    let gather = [a.sge(0, 1001), a.sge(1001, 777)];
    a.post(11, SendOperation::Write { payload: Payload::Gather(&gather), remote });
    let source = RemoteMemory { address: 4096, len: 1999, ..remote };
    for (id, at) in [(12, 3000), (13, 5000), (14, 5000)] {
        a.post(id, SendOperation::Read { into: a.sge(at, 1999), remote: source });
    }
    let payload = Payload::Inline(&[9; 47]);
    a.post(15, SendOperation::Send { payload, invalidate: Some(window.key), solicited: true });
    a.post(16, inline(b""));
    // Two rounds: the third READ waits for a credit, and what follows waits behind it.
    for _ in 0..2 {
        let stream = a.transmit(step).unwrap();
        b.take(&stream, steps).unwrap();
        let stream = b.transmit(step).unwrap();
        a.take(&stream, steps).unwrap();
    }
    assert!(a.qp.is_drained() && b.qp.is_drained());
    let memories = (a.bytes(0, LEN), b.bytes(0, LEN));
    (a.completions(), b.completions(), memories.0, memories.1)
}

#[test]
fn one_of_everything() {
    let (sent, received, a, b) = conversation(false, 65_532, usize::MAX, &mut || usize::MAX);
    let ids: Vec<_> = sent.iter().map(|done| (done.id.0, done.status)).collect();
    assert_eq!(ids, [10, 11, 12, 13, 14, 15, 16].map(|id| (id, WcStatus::Success)), "in the order posted");
    assert_eq!((sent[2].opcode, sent[2].byte_len), (Opcode::Read, 1999));
    let had_bytes: Vec<_> = received.iter().map(|done| (done.id.0, done.byte_len)).collect();
    assert_eq!(had_bytes, [(0, 5), (1, 47), (2, 0)]);
    assert_eq!(received[1].invalidated.map(|key| key.0 >> 8), Some(1));
    assert_eq!(a[..1778], b[..1778]);
    assert_eq!(a[3000..4999], b[4096..6095]);
    assert_eq!(&b[7000..7005], b"first");
}

#[test]
fn splitting_into_bytes_changes_nothing() {
    for crc in [false, true] {
        let whole = conversation(crc, 512, usize::MAX, &mut || usize::MAX);
        assert!(conversation(crc, 512, 1, &mut || 1) == whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn splitting_anywhere_changes_nothing(
        crc: bool, fpdu_max in 256..3000usize, step in 1..5000usize,
        splits in proptest::collection::vec(1..700usize, 1..40),
    ) {
        let whole = conversation(false, 65_532, usize::MAX, &mut || usize::MAX);
        let mut splits = splits.into_iter().cycle();
        prop_assert!(conversation(crc, fpdu_max, step, &mut || splits.next().unwrap()) == whole);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), valid_start: bool) {
        let mut b = End::new(Role::Responder, false, 1024, false);
        b.receive(0, 0, 64);
        let mut stream = if valid_start { vec![0, 46, 0x41, 0x43] } else { Vec::new() };
        stream.extend(bytes);
        if let Err(stop) = b.qp.on_bytes(&mut b.domain, &stream) {
            b.qp.fail(&mut b.domain, Some(stop));
            prop_assert_eq!(b.completions().len(), 1, "the receive completes once, however it ends");
        }
    }
}

#[test]
fn responder_sends_nothing_before_the_first_message() {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, false, 1024, false));
    b.post(1, inline(b"too early"));
    assert!(b.transmit(usize::MAX).unwrap().is_empty() && !b.qp.has_work());
    b.receive(2, 0, 64);
    a.post(3, inline(b"hello"));
    let stream = a.transmit(usize::MAX).unwrap();
    b.take(&stream, &mut || usize::MAX).unwrap();
    assert!(!b.transmit(usize::MAX).unwrap().is_empty());
}

#[test]
fn sends_without_receive_wait_in_order_with_what_is_behind_them() {
    for (shared, step) in [(false, 7), (false, usize::MAX), (true, 7), (true, usize::MAX)] {
        let mut a = End::new(Role::Initiator, false, 1024, false);
        let mut b = End::new(Role::Responder, false, 1024, shared);
        for id in 0..3 {
            a.post(id, inline(&[id as u8 + 1; 30]));
        }
        let window = b.domain.stags.expose(QueuePairId(7), b.sge(1000, 5), Access::REMOTE_WRITE).unwrap();
        a.post(3, SendOperation::Write { payload: Payload::Inline(b"write"), remote: window });
        let stream = a.transmit(usize::MAX).unwrap();
        b.take(&stream, &mut || step).unwrap();
        assert_eq!(b.completions(), [], "nothing is delivered without a receive");
        for id in 0..3 {
            assert!(b.qp.is_waiting());
            assert_eq!(b.bytes(1000, 5), [0; 5], "the WRITE overtook SENDs");
            let request = ReceiveRequest { id: WorkRequestId(id), buffer: b.sge(0, 30) };
            if shared {
                assert_eq!(b.domain.shared[0].starved, [QueuePairId(7)]);
                let receive = receive(&b.domain, &request).unwrap();
                b.domain.shared[0].queue.post(receive).unwrap();
                assert_eq!(b.qp.on_shared_receive(&mut b.domain), id < 2);
            } else {
                assert_eq!(b.qp.post_receive(&mut b.domain, &request), Ok(true));
            }
            let done: Vec<_> = b.completions().iter().map(|done| (done.id.0, done.status)).collect();
            assert_eq!(done, [(id, WcStatus::Success)]);
            assert_eq!(b.bytes(0, 30), [id as u8 + 1; 30]);
        }
        assert_eq!(b.bytes(1000, 5), *b"write");
        assert!(!b.qp.is_waiting() && b.qp.held.capacity() == 0, "no memory is kept");
    }
}

#[test]
fn send_that_waited_and_is_too_long_ends_the_stream() {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, false, 1024, false));
    a.post(1, inline(&[1; 48]));
    let stream = a.transmit(usize::MAX).unwrap();
    b.take(&stream, &mut || usize::MAX).unwrap();
    b.receive(2, 0, 47);
    let stop = b.transmit(usize::MAX).unwrap_err();
    assert_eq!(stop, Stop::Violation(Violation::TooLong));
    b.qp.fail(&mut b.domain, Some(stop));
    assert_eq!(b.completions()[0].status, WcStatus::LocalLength);
}

/// A Terminate behind half an FPDU: the stream stays readable, and the refused READ completes with its error.
#[test]
fn terminate_follows_the_fpdu_under_way() {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, false, 1024, false));
    a.post(1, inline(b"x"));
    let bad = RemoteMemory { key: RemoteKey(0xdead_be00), address: 0, len: 8 };
    a.post(2, SendOperation::Read { into: a.sge(0, 8), remote: bad });
    a.post(3, inline(b"y"));
    a.receive(4, 100, 64);
    b.take(&a_first_fpdu(), &mut || usize::MAX).unwrap();
    b.receive(5, 0, 64);
    b.post(6, inline(&[7; 40]));
    let mut to_a = b.transmit_once(30);
    let stream = a.transmit(usize::MAX).unwrap();
    let stop = b.take(&stream, &mut || usize::MAX).unwrap_err();
    to_a.extend(b.qp.fail(&mut b.domain, Some(stop)));
    let stop = a.take(&to_a, &mut || 3).unwrap_err();
    assert_eq!(a.bytes(100, 40), [7; 40], "the FPDU under way was finished");
    a.qp.fail(&mut a.domain, Some(stop));
    let statuses: Vec<_> = a.completions().iter().map(|done| (done.id.0, done.status)).collect();
    let (good, flushed) = (WcStatus::Success, WcStatus::Flushed);
    assert_eq!(statuses, [(1, good), (4, good), (2, WcStatus::RemoteAccess), (3, flushed)]);
}

/// A zero-length WRITE, after which a responder may send.
fn a_first_fpdu() -> Vec<u8> {
    let mut bytes = vec![0, 14, 0xc1, 0x40, 0, 0, 0, 1];
    bytes.resize(20, 0);
    bytes
}

impl End {
    fn transmit_once(&mut self, n: usize) -> Vec<u8> {
        self.qp.fill(&mut self.domain, usize::MAX).unwrap();
        let mut part = self.waiting();
        part.truncate(n);
        self.qp.on_sent(&mut self.domain, n);
        part
    }
}

#[test]
fn a_flipped_bit_is_found_before_anything_is_delivered() {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, true, 1024, false));
    b.receive(1, 0, 64);
    a.post(2, inline(b"precious"));
    let mut stream = a.transmit(usize::MAX).unwrap();
    stream[22] ^= 1;
    let stop = b.take(&stream, &mut || usize::MAX).unwrap_err();
    assert_eq!((stop, b.completions()), (Stop::Violation(Violation::Crc), vec![]));
}

#[test]
fn deregistration_ends_the_read_that_waits() {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, false, 1024, false));
    let remote = b.region.remote.unwrap();
    a.post(1, SendOperation::Read { into: a.sge(0, 4096), remote });
    let stream = a.transmit(usize::MAX).unwrap();
    b.take(&stream, &mut || usize::MAX).unwrap();
    b.domain.stags.deregister(b.region.local_key);
    assert_eq!(b.transmit(usize::MAX), Err(Stop::Violation(Violation::Revoked)));
}

/// Borrows two payloads, sends `first` bytes, takes them back, and sends the rest: what the peer has then.
fn borrowing(crc: bool, fpdu_max: usize, first: usize) -> Vec<u8> {
    let mut a = End::new(Role::Initiator, crc, fpdu_max, false);
    let mut b = End::new(Role::Responder, crc, fpdu_max, false);
    let borrowed = Memory::alloc(4096).unwrap();
    borrowed.write(1, &[1; 1000]);
    borrowed.write(2001, &[2; 77]);
    let remote = b.region.remote.unwrap();
    for (id, offset, len, to) in [(1, 1, 1000, 0), (2, 2001, 77, 1000)] {
        let (spare, remote) = (a.sge(3 * to, len), RemoteMemory { address: to as u64, ..remote });
        let payload = Payload::Borrowed { from: &borrowed, offset, spare: &spare };
        a.post(id, SendOperation::Write { payload, remote });
    }
    a.qp.fill(&mut a.domain, usize::MAX).unwrap();
    let mut stream = a.waiting();
    stream.truncate(first);
    a.qp.on_sent(&mut a.domain, stream.len());
    a.qp.settle();
    borrowed.fill(0, 4096, 0xff);
    stream.extend(a.transmit(usize::MAX).unwrap());
    b.take(&stream, &mut || usize::MAX).unwrap();
    assert_eq!(a.completions().len(), 2);
    b.bytes(0, 1078)
}

#[test]
fn a_borrowed_payload_is_sent_as_it_was() {
    let expected: Vec<u8> = [&[1; 1000][..], &[2; 77], &[0]].concat();
    for (crc, fpdu_max) in [(false, 65_532), (false, 256), (true, 512)] {
        for first in (0..1300).step_by(3) {
            assert!(borrowing(crc, fpdu_max, first) == expected, "{first} bytes sent, FPDUs of {fpdu_max}");
        }
    }
}

/// `b` exposes a page, and the response to a READ of it by `a` is cut, but not sent: the socket is full.
fn response_behind_a_full_socket() -> (End, End, RemoteMemory) {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, false, 65_532, false));
    let remote = b.domain.stags.expose(QueuePairId(7), b.sge(0, 4096), Access::REMOTE_READ).unwrap();
    a.post(1, SendOperation::Read { into: a.sge(0, 4096), remote });
    let stream = a.transmit(usize::MAX).unwrap();
    b.take(&stream, &mut || usize::MAX).unwrap();
    b.qp.fill(&mut b.domain, usize::MAX).unwrap();
    assert!(b.waiting().len() > 4096);
    (a, b, remote)
}

#[test]
fn invalidation_by_the_peer_during_its_read_is_a_violation() {
    let (mut a, mut b, remote) = response_behind_a_full_socket();
    b.receive(2, 4096, 64);
    let payload = Payload::Inline(b"done");
    a.post(3, SendOperation::Send { payload, invalidate: Some(remote.key), solicited: false });
    let stream = a.transmit(usize::MAX).unwrap();
    let stop = b.take(&stream, &mut || usize::MAX);
    assert_eq!(stop, Err(Stop::Violation(Violation::Invalidate(crate::memory::Fault::InUse))));
    assert_eq!(b.completions(), [], "the memory is not given back while its bytes may still be sent");
}

#[test]
fn local_invalidation_waits_for_the_read_response() {
    let (mut a, mut b, remote) = response_behind_a_full_socket();
    b.post(4, SendOperation::LocalInvalidate { key: remote.key });
    let mut stream = b.transmit_once(100);
    assert_eq!(b.completions(), [], "the memory is not given back while its bytes may still be sent");
    assert!(!b.qp.is_drained());
    stream.extend(b.transmit(usize::MAX).unwrap());
    assert_eq!(b.completions().len(), 1);
    a.take(&stream, &mut || usize::MAX).unwrap();
    assert_eq!(a.completions().len(), 1);
}

/// Else a peer could put off the end of its key for as long as it likes.
#[test]
fn read_of_a_key_that_is_being_ended_is_a_violation() {
    let (mut a, mut b, remote) = response_behind_a_full_socket();
    b.post(4, SendOperation::LocalInvalidate { key: remote.key });
    b.transmit_once(100);
    a.post(5, SendOperation::Read { into: a.sge(0, 64), remote });
    let late = a.transmit(usize::MAX).unwrap();
    let stop = b.take(&late, &mut || usize::MAX);
    assert_eq!(stop, Err(Stop::Violation(Violation::Read(crate::memory::Fault::Stag))));
}

#[test]
fn keys_end_with_their_queue_pair() {
    let mut end = End::new(Role::Initiator, false, 1024, false);
    end.domain.stags = crate::memory::StagTable::new(3);
    let region = end.domain.stags.register(&end.memory, Access::LOCAL_WRITE).unwrap();
    let range = Sge { local_key: region.local_key, offset: 0, len: 8 };
    for _ in 0..10 {
        for _ in 0..2 {
            end.domain.stags.expose(QueuePairId(7), range, Access::REMOTE_READ).expect("a key");
        }
        end.qp.release(&mut end.domain);
    }
}

#[test]
fn read_without_a_read_depth_is_refused() {
    let mut end = End::new(Role::Initiator, false, 1024, false);
    end.qp.start(Role::Initiator, &Agreement { initiator_depth: 0, ..agreement(false) }, 1024);
    let operation = SendOperation::Read { into: end.sge(0, 8), remote: end.region.remote.unwrap() };
    let request = SendRequest { id: WorkRequestId(1), operation, signaled: true };
    assert_eq!(end.qp.post_send(&end.domain, &request), Err(PostError::Invalid));
}

#[test]
fn queue_pair_is_drained_when_nothing_is_left_of_any_kind() {
    let [mut a, mut b] = [Role::Initiator, Role::Responder].map(|role| End::new(role, false, 1024, false));
    assert!(a.qp.is_drained());
    a.post(1, inline(b"not cut"));
    assert!(!a.qp.is_drained(), "a work request that is not cut");
    a.qp.fill(&mut a.domain, usize::MAX).unwrap();
    assert!(!a.qp.is_drained(), "a segment that is not sent");
    let remote = b.region.remote.unwrap();
    a.post(2, SendOperation::Read { into: a.sge(0, 8), remote });
    let stream = a.transmit(usize::MAX).unwrap();
    assert!(a.qp.is_drained());
    b.receive(3, 0, 64);
    b.take(&stream, &mut || usize::MAX).unwrap();
    assert!(!b.qp.is_drained(), "a READ of the peer's that is not answered");
    b.transmit(usize::MAX).unwrap();
    assert!(b.qp.is_drained());
}

/// The kinds of the messages in a stream: `S`END, READ `r`esponse, and so on.
fn kinds(stream: &[u8]) -> String {
    let mut kinds = String::new();
    let mut rest = stream;
    while let Some(len) = rest.first_chunk::<2>().map(|len| usize::from(u16::from_be_bytes(*len))) {
        let (header, _) = crate::wire::rdmap::Header::parse(&rest[..rest.len().min(20)]).unwrap();
        kinds.push(match header {
            crate::wire::rdmap::Header::Send { .. } => 'S',
            crate::wire::rdmap::Header::ReadResponse { .. } => 'r',
            _ => '?',
        });
        let (len, crc) = (2 + len, 4);
        rest = &rest[(len.next_multiple_of(4) + crc).min(rest.len())..];
    }
    kinds
}

#[test]
fn sends_and_read_responses_take_turns() {
    let mut b = End::new(Role::Initiator, false, 1024, false);
    b.qp.parts.inbound_reads.depth = 64;
    let remote = b.region.remote.unwrap();
    let mut reader = End::new(Role::Initiator, false, 1024, false);
    reader.qp.parts.send_queue.read_depth = 64;
    for id in 0..12 {
        reader.post(id, SendOperation::Read { into: reader.sge(0, 8), remote });
        b.post(id, inline(b"x"));
    }
    let stream = reader.transmit(usize::MAX).unwrap();
    b.take(&stream, &mut || usize::MAX).unwrap();
    assert_eq!(kinds(&b.transmit(usize::MAX).unwrap()), "rrrrSrrrrSrrrrSSSSSSSSSS");
}

#[test]
fn batch_is_no_longer_than_its_bounds() {
    let mut end = End::new(Role::Initiator, false, 65_532, false);
    let memory = Memory::alloc(8 << 20).unwrap();
    let region = end.domain.stags.register(&memory, Access::LOCAL_READ).unwrap();
    let remote = RemoteMemory { key: RemoteKey(1), address: 0, len: 8 << 20 };
    let gather = [Sge { local_key: region.local_key, offset: 0, len: 8 << 20 }];
    end.post(1, SendOperation::Write { payload: Payload::Gather(&gather), remote });
    end.qp.fill(&mut end.domain, usize::MAX).unwrap();
    let waiting = end.waiting().len();
    assert!((1 << 20..(1 << 20) + 65_540).contains(&waiting), "{waiting} bytes are cut ahead");
    let mut short = End::new(Role::Initiator, false, 1024, false);
    (0..64).for_each(|id| short.post(id, inline(b"x")));
    short.qp.fill(&mut short.domain, usize::MAX).unwrap();
    assert_eq!(kinds(&short.waiting()), "S".repeat(64), "as many segments as may be cut ahead");
    short.qp.prompt();
    assert_eq!(short.waiting().len(), 64 * 28);
}
