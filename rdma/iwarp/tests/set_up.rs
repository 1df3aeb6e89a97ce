//! Set-up towards peers of other kinds, and between threads.

mod peer;

use core::time::Duration;
use nvmf_iwarp::wire::mpa::{Enhanced, FRAME_LEN_MAX, Flags, Frame, Kind};
use nvmf_iwarp::{IwarpConfig, Revision};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CmEvent, Opcode, Payload, PrivateData, Provider, QueuePairId, SendOperation, SendRequest,
    WorkRequestId,
};
use peer::{Raw, Side, TIMEOUT, parameters};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

/// An initiator under test, and a raw listener that it connects to.
fn calling(config: IwarpConfig) -> (Side, QueuePairId, TcpListener) {
    let mut side = Side::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (qp, address) = (side.queue_pair(), listener.local_addr().unwrap());
    side.provider.connect(side.now, qp, address, None, &parameters(Duration::from_secs(3))).unwrap();
    (side, qp, listener)
}

fn answer(side: &mut Side, listener: &TcpListener) -> (Raw, Frame) {
    let stream: TcpStream = side.until("a caller", |_| match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => panic!("{error}"),
    });
    stream.set_nonblocking(true).unwrap();
    let mut raw = Raw(stream);
    let mut bytes = raw.read(side, 20);
    let len = Frame::len_of(Kind::Request, bytes[..].try_into().unwrap()).unwrap();
    bytes.extend(raw.read(side, len - 20));
    (raw, Frame::parse(Kind::Request, &bytes).unwrap().unwrap())
}

fn reply(raw: &mut Raw, frame: &Frame) {
    let mut bytes = [0; FRAME_LEN_MAX];
    let len = frame.emit(&mut bytes);
    raw.send(&bytes[..len]);
}

fn plain(request: &Frame, flags: Flags) -> Frame {
    let enhanced = request.enhanced.map(|_| Enhanced { ird: 1, ord: 1, ..Enhanced::default() });
    let flags = flags.with(Flags::ENHANCED, enhanced.is_some());
    let private_data = PrivateData::new(b"welcome").unwrap();
    Frame { kind: Kind::Reply, flags, revision: request.revision, enhanced, private_data }
}

fn established(side: &mut Side) -> (Vec<u8>, u16) {
    side.event("the connection", |event| match event {
        CmEvent::Established { private_data, initiator_depth, .. } => {
            Some((private_data.as_bytes().to_vec(), *initiator_depth))
        }
        _ => None,
    })
}

fn send_now(side: &mut Side, qp: QueuePairId, text: &[u8]) {
    let operation =
        SendOperation::Send { payload: Payload::Inline(text), invalidate: None, solicited: false };
    let request = SendRequest { id: WorkRequestId(9), operation, signaled: true };
    side.provider.post_send(qp, request).unwrap();
    side.provider.flush();
}

/// A target may have 65535 connections, each with an Admin queue at the least.
#[test]
fn completion_queue_of_very_many_connections() {
    let mut side = Side::new(IwarpConfig::default());
    let receives = 65_535 * 36;
    assert!(side.provider.create_completion_queue(4 * receives).is_ok());
}

#[test]
fn hang_up_on_revision_2_is_followed_by_revision_1() {
    let (mut side, qp, listener) = calling(IwarpConfig::default());
    let (raw, request) = answer(&mut side, &listener);
    assert_eq!((request.revision, request.flags), (2, Flags(0x18)));
    let words = request.enhanced.unwrap();
    assert!(words.peer_to_peer && words.write_rtr && words.read_rtr && !words.send_rtr);
    drop(raw);
    let (mut raw, request) = answer(&mut side, &listener);
    assert_eq!((request.revision, request.enhanced), (1, None));
    reply(&mut raw, &plain(&request, Flags::default()));
    assert_eq!(established(&mut side), (b"welcome".to_vec(), 2));
    // No indication in revision 1: the first bytes are the first message.
    send_now(&mut side, qp, b"0123456789");
    assert_eq!(raw.read(&mut side, 36)[..12], [0, 28, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn connect_is_not_tried_a_third_time() {
    let (mut side, qp, listener) = calling(IwarpConfig::default());
    drop(answer(&mut side, &listener));
    drop(answer(&mut side, &listener));
    assert!(side.ended(qp).contains("hung up"));
}

#[test]
fn a_card_that_answers_with_an_indication_gets_it_first() {
    for (write_rtr, opening) in [(true, [0, 14, 0xc1, 0x40]), (false, [0, 46, 0x41, 0x41])] {
        let (mut side, _, listener) = calling(IwarpConfig::default());
        let (mut raw, request) = answer(&mut side, &listener);
        let words =
            Enhanced { ird: 1, ord: 0, peer_to_peer: true, write_rtr, read_rtr: !write_rtr, send_rtr: false };
        reply(&mut raw, &Frame { enhanced: Some(words), ..plain(&request, Flags::CRC) });
        assert_eq!(established(&mut side).1, 1, "the lesser of what it wants and the other serves");
        let len = if write_rtr { 20 } else { 52 };
        let bytes = raw.read(&mut side, len);
        assert_eq!(bytes[..4], opening);
        assert_ne!(bytes[len - 4..], [0; 4], "a CRC, as the reply asked for");
    }
}

#[test]
fn malformed_replies() {
    for (bytes, text) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], "MPA key"),
        (b"MPA ID Rep Frame\x80\x02\0\0", "markers"),
        (b"MPA ID Rep Frame\0\x01\0\0", "revision"),
        (b"MPA ID Rep Frame\x10\x02\x02\0", "too long"),
    ] {
        let config = IwarpConfig { revision: Revision::Two, ..IwarpConfig::default() };
        let (mut side, qp, listener) = calling(config);
        let (mut raw, _) = answer(&mut side, &listener);
        raw.send(bytes);
        let why = side.ended(qp);
        assert!(why.contains(text), "{why}");
    }
}

#[test]
fn connect_without_an_answer_ends_after_the_time_given() {
    let (mut side, qp, listener) = calling(IwarpConfig::default());
    let (mut raw, _) = answer(&mut side, &listener);
    raw.0.write_all(b"MPA ID").unwrap();
    assert_eq!(side.provider.poll_timeout(), Some(Duration::from_secs(4)));
    side.now = Duration::from_secs(4);
    assert!(side.ended(qp).contains("set-up time"));
}

/// Soft-iWARP overlooks an indication that comes too soon, until more bytes come.
#[test]
fn silent_peer_is_prompted_a_few_times() {
    let (mut side, _, listener) = calling(IwarpConfig::default());
    let (mut raw, request) = answer(&mut side, &listener);
    let words = Enhanced { peer_to_peer: true, write_rtr: true, ird: 1, ord: 1, ..Enhanced::default() };
    reply(&mut raw, &Frame { enhanced: Some(words), ..plain(&request, Flags::default()) });
    established(&mut side);
    let word = raw.read(&mut side, 20);
    assert_eq!(word[..4], [0, 14, 0xc1, 0x40], "a WRITE of no bytes");
    let mut waited = Vec::new();
    side.turn();
    while let Some(due) = side.provider.poll_timeout() {
        waited.push((due - side.now).as_millis());
        side.now = due;
        assert_eq!(raw.read(&mut side, 20), word);
        side.turn();
    }
    assert_eq!(waited, [200, 400, 800, 1600, 3200]);
}

#[test]
fn peer_that_has_sent_is_not_prompted() {
    let (mut side, qp, listener) = calling(IwarpConfig::default());
    let (_, region) = side.region(Access::LOCAL_WRITE);
    side.receive(qp, 1, &region, 64);
    let (mut raw, request) = answer(&mut side, &listener);
    reply(&mut raw, &plain(&request, Flags::default()));
    established(&mut side);
    raw.send(&peer::send(1, 0, b"hello"));
    side.until("the message", |side| side.done.pop());
    side.now += Duration::from_secs(1);
    side.turn();
    assert_eq!(side.provider.poll_timeout(), None);
}

/// The way of a target with several workers: one accepts the connection, another serves it.
#[test]
fn a_request_moves_to_another_thread() {
    let mut acceptor = Side::new(IwarpConfig::default());
    let address = acceptor.address;
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let mut side = Side::new(IwarpConfig::default());
        let request = side.provider.adopt(side.now, receiver.recv().unwrap());
        let (qp, (memory, region)) = (side.queue_pair(), side.region(Access::LOCAL_WRITE));
        side.receive(qp, 1, &region, 64);
        side.provider.accept(side.now, request, qp, &parameters(TIMEOUT)).unwrap();
        let done = side.until("a message", |side| side.done.first().copied());
        let mut bytes = vec![0; done.byte_len as usize];
        memory.read(0, &mut bytes);
        (done.opcode, bytes)
    });
    let caller = std::thread::spawn(move || {
        let mut side = Side::new(IwarpConfig::default());
        let qp = side.queue_pair();
        side.provider.connect(side.now, qp, address, None, &parameters(TIMEOUT)).unwrap();
        established(&mut side);
        send_now(&mut side, qp, b"for the other");
        side.until("the end", |side| {
            side.events.iter().any(|event| matches!(event, CmEvent::Disconnected { .. })).then_some(())
        });
    });
    let request = acceptor.request();
    sender.send(acceptor.provider.detach(request).unwrap()).unwrap();
    assert_eq!(worker.join().unwrap(), (Opcode::Receive, b"for the other".to_vec()));
    caller.join().unwrap();
}

#[test]
fn both_families_share_a_port() {
    let mut side = Side::new(IwarpConfig::default());
    let (_, six) = side.provider.listen("[::]:0".parse().unwrap(), 4).unwrap();
    let four = format!("0.0.0.0:{}", six.port()).parse().unwrap();
    // Another program may have just this port of the other family: any other error is ours.
    if let Err(error) = side.provider.listen(four, 4) {
        assert_eq!(error.source.kind(), ErrorKind::AddrInUse);
    }
}

/// A stream of big messages through the kernel's buffers, which takes partial writes and direct placement.
#[test]
fn bulk_data_arrive_whole() {
    const LEN: usize = 8 << 20;
    let mut left = Side::new(IwarpConfig::default());
    let mut right = Side::new(IwarpConfig::default());
    let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let [source, sink, back] = [(); 3].map(|()| Memory::alloc(LEN).unwrap());
    for at in (0..LEN).step_by(8) {
        source.write(at, &(at as u64 * 0x9e37_79b9).to_le_bytes());
    }
    let source_region = left.provider.register(&source, all).unwrap();
    let back_region = left.provider.register(&back, all).unwrap();
    let remote = right.provider.register(&sink, all).unwrap().remote.unwrap();
    let qp = left.queue_pair();
    left.provider.connect(left.now, qp, right.address, None, &parameters(TIMEOUT)).unwrap();
    let request = left.until("a request", |_| {
        right.turn();
        right.events.pop()
    });
    let CmEvent::ConnectRequest { request, .. } = request else { panic!("{request:?}") };
    let served = right.queue_pair();
    right.provider.accept(right.now, request, served, &parameters(TIMEOUT)).unwrap();
    left.until("the connection", |side| {
        right.turn();
        side.events.pop()
    });
    let sge = |region: &nvmf_rdma::MemoryRegion| nvmf_rdma::Sge {
        local_key: region.local_key,
        offset: 0,
        len: LEN as u32,
    };
    let gather = [sge(&source_region)];
    let operations = [
        SendOperation::Write { payload: Payload::Gather(&gather), remote },
        SendOperation::Read { into: sge(&back_region), remote },
    ];
    for (id, operation) in operations.into_iter().enumerate() {
        let id = WorkRequestId(id as u64);
        left.provider.post_send(qp, SendRequest { id, operation, signaled: true }).unwrap();
    }
    left.provider.flush();
    left.until("both", |side| {
        right.turn();
        (side.done.len() == 2).then_some(())
    });
    assert!(left.done.iter().all(|done| done.status.is_success()));
    assert!(source.equals(0, &sink, 0, LEN) && source.equals(0, &back, 0, LEN));
}
