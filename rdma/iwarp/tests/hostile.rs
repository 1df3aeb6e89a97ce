//! A peer that breaks each rule: it is sent the reason, it reaches nothing, and no other connection is affected.

mod peer;

use core::time::Duration;
use nvmf_iwarp::wire::mpa::Flags;
use nvmf_iwarp::wire::rdmap::Header;
use nvmf_iwarp::{Crc, HalfOpenLimits, IwarpConfig};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CmEvent, Provider, QueuePairId, RemoteKey, RemoteMemory, SendOperation, SendRequest, Sge,
    WcStatus, WorkRequestId,
};
use peer::{Raw, Side, fpdu, send};
use socket2::SockRef;
use std::io::Write;
use std::net::Shutdown;

/// The target of one violation: a posted receive of 64 bytes, and a region for each right.
struct Stage {
    side: Side,
    raw: Raw,
    qp: QueuePairId,
    readable: u32,
    writable: u32,
    memory: Memory,
}

fn stage() -> Stage {
    let mut side = Side::new(IwarpConfig::default());
    let (_, readable) = side.region(Access::REMOTE_READ);
    let (memory, writable) = side.region(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let (raw, qp) = Raw::established(&mut side, Flags::default());
    side.receive(qp, 1, &writable, 64);
    let [readable, writable] = [readable, writable].map(|region| region.remote.unwrap().key.0);
    Stage { side, raw, qp, readable, writable, memory }
}

fn write(stag: u32, to: u64, len: usize) -> Vec<u8> {
    fpdu(Header::Write { last: true, stag, to }, &vec![0xee; len])
}

fn read(msn: u32, source_stag: u32, source_to: u64, size: u32) -> Vec<u8> {
    let (mo, sink_stag, sink_to) = (0, 1, 0);
    fpdu(Header::ReadRequest { msn, mo, sink_stag, sink_to, size, source_stag, source_to }, &[])
}

/// With some bytes of it replaced.
fn patched(mut bytes: Vec<u8>, at: usize, patch: &[u8]) -> Vec<u8> {
    bytes[at..at + patch.len()].copy_from_slice(patch);
    bytes
}

/// Sends `attack` and expects a Terminate with this layer, type and code. A second connection lives on.
fn terminated(layer_type: u8, code: u8, attack: impl FnOnce(&Stage) -> Vec<u8>) {
    let mut stage = stage();
    let (mut bystander, other) = Raw::established(&mut stage.side, Flags::default());
    let attack = attack(&stage);
    stage.raw.send(&attack);
    let control = stage.raw.terminate(&mut stage.side);
    assert_eq!((control[0], control[1]), (layer_type, code), "layer and type, code");
    let cause = stage.side.ended(stage.qp);
    assert!(cause.starts_with("the peer broke the protocol: "), "{cause}");
    let mut bytes = [0; 4096];
    stage.memory.read(64, &mut bytes[64..]);
    assert_eq!(bytes[64..], [0; 4032], "the attack left a trace behind the receive buffer");
    let flushed: Vec<_> = stage.side.done.iter().map(|done| (done.id.0, done.status)).collect();
    assert!(matches!(flushed[..], [(1, WcStatus::Flushed | WcStatus::LocalLength)]), "{flushed:?}");
    let (_, region) = stage.side.region(Access::LOCAL_WRITE);
    stage.side.receive(other, 2, &region, 64);
    bystander.send(&send(1, 0, b"unharmed"));
    stage.side.until("a message", |side| side.done.iter().find(|d| d.id.0 == 2 && d.byte_len == 8).copied());
}

#[test]
fn writes_that_are_not_allowed() {
    terminated(0x11, 0, |stage| write(stage.writable ^ 1, 0, 8));
    terminated(0x11, 0, |_| write(0xffff_ff00, 0, 8));
    terminated(0x11, 1, |stage| write(stage.writable, 4090, 8));
    terminated(0x11, 3, |stage| write(stage.writable, u64::MAX, 8));
    terminated(0x01, 2, |stage| write(stage.readable, 0, 8));
}

#[test]
fn reads_that_are_not_allowed() {
    terminated(0x01, 0, |stage| read(1, stage.readable ^ 1, 0, 8));
    terminated(0x01, 1, |stage| read(1, stage.readable, 4090, 8));
    terminated(0x01, 1, |stage| read(1, stage.readable, 0, u32::MAX));
    terminated(0x01, 2, |stage| read(1, stage.writable, 0, 8));
    terminated(0x01, 4, |stage| read(1, stage.readable, u64::MAX, 8));
    terminated(0x12, 3, |stage| read(2, stage.readable, 0, 8));
    terminated(0x12, 4, |stage| patched(read(1, stage.readable, 0, 8), 16, &[0, 0, 0, 4]));
    // Two are granted.
    terminated(0x02, 7, |stage| (1..=3).flat_map(|msn| read(msn, stage.readable, 0, 0)).collect());
}

#[test]
fn a_read_response_that_nobody_asked_for() {
    terminated(0x11, 0, |stage| {
        fpdu(Header::ReadResponse { last: true, stag: stage.writable, to: 0 }, &[1; 8])
    });
    terminated(0x11, 0, |_| fpdu(Header::ReadResponse { last: true, stag: 1, to: 0 }, &[]));
}

#[test]
fn messages_out_of_sequence_or_bounds() {
    terminated(0x12, 3, |_| send(2, 0, b"skipped one"));
    terminated(0x12, 3, |_| send(0, 0, b"before the first"));
    terminated(0x12, 4, |_| send(1, 8, b"no beginning"));
    terminated(0x12, 5, |_| send(1, 0, &[7; 65]));
    terminated(0x12, 1, |_| patched(send(1, 0, b"x"), 8, &[0, 0, 0, 1]));
    terminated(0x12, 1, |_| patched(send(1, 0, b"x"), 8, &[0xff; 4]));
}

#[test]
fn malformed_headers() {
    terminated(0x12, 6, |_| patched(send(1, 0, b"DV 2"), 2, &[0x42]));
    terminated(0x11, 4, |_| patched(write(1, 0, 8), 2, &[0xc0]));
    terminated(0x02, 5, |_| patched(send(1, 0, b"RV 0"), 3, &[0x03]));
    terminated(0x02, 6, |_| patched(send(1, 0, b"opcode 8"), 3, &[0x48]));
    terminated(0x02, 6, |_| patched(send(1, 0, b"tagged SEND"), 2, &[0xc1]));
    terminated(0x02, 6, |_| patched(write(1, 0, 8), 2, &[0x41]));
    terminated(0x02, 0xff, |_| patched(send(1, 0, b"short"), 0, &[0, 17]));
    terminated(0x02, 0xff, |_| patched(send(1, 0, b"shorter"), 0, &[0, 0]));
    terminated(0x02, 0xff, |stage| patched(read(1, stage.readable, 0, 1), 0, &[0, 50]));
    terminated(0x02, 0xff, |stage| patched(read(1, stage.readable, 0, 1), 2, &[0x01]));
}

#[test]
fn invalidating_what_is_not_its_own() {
    let invalidating = |stag| {
        let invalidate = Some(stag);
        fpdu(Header::Send { last: true, invalidate, solicited: false, msn: 1, mo: 0 }, b"bye")
    };
    terminated(0x01, 9, |stage| invalidating(stage.writable));
    terminated(0x01, 0, |stage| invalidating(stage.writable ^ 0x80));
}

#[test]
fn flood_of_messages_waits_and_its_end_is_noticed() {
    let mut stage = stage();
    let (mut bystander, other) = Raw::established(&mut stage.side, Flags::default());
    let mut flood = (1..).flat_map(|msn| send(msn, 0, b"hello"));
    // Until neither side takes more.
    loop {
        let bytes: Vec<u8> = flood.by_ref().take(16 << 10).collect();
        if stage.raw.0.write(&bytes).is_ok_and(|taken| taken == bytes.len()) {
            stage.side.turn();
        } else {
            break;
        }
    }
    let (_, region) = stage.side.region(Access::LOCAL_WRITE);
    stage.side.receive(other, 9, &region, 64);
    bystander.send(&send(1, 0, b"bystander"));
    stage.side.until("the other's message", |side| side.done.iter().find(|done| done.id.0 == 9).map(|_| ()));
    assert_eq!(stage.side.done.len(), 2, "one receive is posted for the flood");
    SockRef::from(&stage.raw.0).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stage.raw);
    assert_eq!(stage.side.ended(stage.qp), "broken off by the peer");
}

#[test]
fn a_wrong_crc() {
    let mut side = Side::new(IwarpConfig::default());
    let (mut raw, qp) = Raw::established(&mut side, Flags::CRC);
    let (_, region) = side.region(Access::LOCAL_WRITE);
    side.receive(qp, 1, &region, 64);
    raw.send(&send(1, 0, b"its CRC is 0"));
    let control = raw.terminate(&mut side);
    assert_eq!(control, [0x20, 2, 0, 0]);
    assert!(side.ended(qp).contains("CRC"));
    assert_eq!(side.done.len(), 1);
    assert_eq!(side.done[0].status, WcStatus::Flushed);
}

#[test]
fn streams_without_a_terminate() {
    for (bytes, cause) in [
        (&send(1, 0, b"whole")[..], "closed by the peer"),
        (&send(1, 0, b"half")[..25], "broken off by the peer"),
        (&[0, 1], "broken off by the peer"),
        (&[], "closed by the peer"),
    ] {
        let mut stage = stage();
        stage.raw.send(bytes);
        stage.raw.0.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stage.side.ended(stage.qp), cause);
        assert_eq!(stage.side.done.len(), 1);
    }
}

#[test]
fn terminate_is_parsed_in_both_forms() {
    for control in [[0x12, 2, 0, 0], [0x11, 1, 0xc0, 0], [0x11, 1, 3, 0]] {
        let mut stage = stage();
        stage.raw.send(&fpdu(Header::Terminate { msn: 1, mo: 0 }, &control));
        let text = match control[0] {
            0x12 => "the peer terminated the stream: DDP: no buffer available",
            _ => "the peer terminated the stream: DDP: base or bounds violation",
        };
        assert_eq!(stage.side.ended(stage.qp), text);
    }
}

#[test]
fn requests_that_cannot_be_answered() {
    let mut side = Side::new(IwarpConfig { crc: Crc::Off, ..IwarpConfig::default() });
    // What is understood is refused in words.
    let early = [Raw::frame(Flags::default()), send(1, 0, b"too early")].concat();
    for request in [Raw::frame(Flags::MARKERS), Raw::frame(Flags::CRC), early] {
        let mut raw = Raw::connect(&side);
        raw.send(&request);
        let reply = raw.read(&mut side, 20);
        assert_eq!((&reply[..16], reply[16] & 0x20), (&b"MPA ID Rep Frame"[..], 0x20));
    }
    // What is not, in silence.
    let long = patched(Raw::frame(Flags::default()), 18, &[0xff, 0xff]);
    let future = patched(Raw::frame(Flags::default()), 17, &[3]);
    for request in [b"GET / HTTP/1.1\r\n\r\n....".to_vec(), long, future] {
        let mut raw = Raw::connect(&side);
        raw.send(&request);
        assert!(raw.read(&mut side, 20).is_empty());
    }
    assert!(side.events.is_empty(), "nobody was asked: {:?}", side.events);
}

#[test]
fn silent_connections_end_after_their_time() {
    let mut side = Side::new(IwarpConfig::default());
    let mut silent = [Raw::connect(&side), Raw::connect(&side)];
    silent[1].send(b"MPA ID Req");
    for _ in 0..50 {
        side.turn();
    }
    assert_eq!(side.provider.poll_timeout(), Some(Duration::from_secs(6)));
    side.now = Duration::from_secs(6);
    for raw in &mut silent {
        assert!(raw.read(&mut side, 1).is_empty(), "its time is over");
    }
}

#[test]
fn request_that_is_not_answered_ends_after_its_time() {
    let mut side = Side::new(IwarpConfig::default());
    let mut raw = Raw::connect(&side);
    raw.send(&Raw::frame(Flags::default()));
    let request = side.request();
    side.now = Duration::from_secs(30);
    assert!(raw.read(&mut side, 1).is_empty());
    let qp = side.queue_pair();
    let late = side.provider.accept(side.now, request, qp, &peer::parameters(Duration::from_secs(1)));
    assert!(matches!(late, Err(nvmf_rdma::ConnectError::RequestGone)), "{late:?}");
}

/// Many more silent connections than there are places, each renewed as soon as it is closed.
struct Flood(Vec<Option<Raw>>);

impl Flood {
    fn renew(&mut self, side: &Side) {
        for place in &mut self.0 {
            let closed = |raw: &mut Raw| {
                let read = std::io::Read::read(&mut raw.0, &mut [0]);
                !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
            };
            if place.as_mut().is_none_or(closed) {
                *place = Some(Raw::connect_from([127, 0, 0, 1], side));
            }
        }
    }
}

#[test]
fn silent_connections_renewed_for_ever_do_not_keep_a_host_out() {
    let config =
        IwarpConfig { half_open: HalfOpenLimits { max: 16, per_machine: 4 }, ..IwarpConfig::default() };
    // A neighbour has time to speak; who shares the flood's address must speak at once.
    for (address, turns_until_it_speaks) in [([127, 0, 0, 2], 30), ([127, 0, 0, 1], 0)] {
        let mut side = Side::new(config.clone());
        let mut flood = Flood((0..40).map(|_| None).collect());
        for _ in 0..10 {
            flood.renew(&side);
            side.turn();
        }
        let mut host = Raw::connect_from(address, &side);
        for _ in 0..turns_until_it_speaks {
            flood.renew(&side);
            side.turn();
        }
        host.send(&Raw::frame(Flags::default()));
        let asked = |event: &CmEvent| matches!(event, CmEvent::ConnectRequest { peer, .. } if *peer == host.0.local_addr().unwrap());
        let turns = (0..20).take_while(|_| {
            flood.renew(&side);
            side.turn();
            !side.events.iter().any(asked)
        });
        assert!(turns.count() < 20, "a host at {address:?} is kept out");
    }
}

#[test]
fn a_peer_that_takes_nothing_does_not_hold_up_a_disconnect() {
    let mut stage = stage();
    let huge = Memory::alloc(64 << 20).unwrap();
    let region = stage.side.provider.register(&huge, Access::REMOTE_READ).unwrap();
    stage.raw.send(&read(1, region.remote.unwrap().key.0, 0, 64 << 20));
    for _ in 0..100 {
        stage.side.turn();
    }
    stage.side.provider.disconnect(stage.qp);
    for _ in 0..100 {
        stage.side.turn();
    }
    assert!(!stage.side.events.iter().any(|event| matches!(event, CmEvent::Disconnected { .. })));
    assert_eq!(stage.side.provider.poll_timeout(), Some(Duration::from_secs(3)));
    stage.side.now = Duration::from_secs(3);
    assert_eq!(stage.side.ended(stage.qp), "closed by this side");
}

/// A peer whose READ is being answered, and which does not take the answer, while the region is deregistered.
#[test]
fn deregistered_memory_is_not_sent_any_more() {
    const LEN: usize = 16 << 20;
    let mut stage = stage();
    let memory = Memory::alloc(LEN).unwrap();
    memory.fill(0, LEN, 0x11);
    let region = stage.side.provider.register(&memory, Access::REMOTE_READ).unwrap();
    stage.raw.send(&read(1, region.remote.unwrap().key.0, 0, LEN as u32));
    for _ in 0..100 {
        stage.side.turn();
    }
    stage.side.provider.deregister(region.local_key);
    // The owner has other use for it now.
    memory.fill(0, LEN, 0x77);
    assert!(stage.side.ended(stage.qp).contains("ended before it was answered"));
    let seen = stage.raw.read(&mut stage.side, 2 * LEN);
    assert!(seen.len() < LEN && seen.iter().filter(|&&byte| byte == 0x11).count() > 4096);
    let leaked = seen.iter().filter(|&&byte| byte == 0x77).count();
    assert!(leaked < 1000, "{leaked} bytes of what came later");
}

/// The peer under test reads 64 bytes, and gets these segments of a response: (key, offset, bytes, last).
fn read_response(code: u8, segments: &[(u32, u64, usize, bool)]) {
    let mut stage = stage();
    let (sink, region) = stage.side.region(Access::LOCAL_WRITE);
    let into = Sge { local_key: region.local_key, offset: 128, len: 64 };
    let remote = RemoteMemory { key: RemoteKey(7), address: 0, len: 64 };
    let operation = SendOperation::Read { into, remote };
    let request = SendRequest { id: WorkRequestId(5), operation, signaled: true };
    stage.raw.send(&write(1, 0, 0));
    stage.side.event("the connection", |event| matches!(event, CmEvent::Established { .. }).then_some(()));
    stage.side.provider.post_send(stage.qp, request).unwrap();
    let asked = stage.raw.read(&mut stage.side, 52);
    let stag = u32::from_be_bytes(asked[20..24].try_into().unwrap());
    for &(other, to, len, last) in segments {
        let header = Header::ReadResponse { last, stag: stag ^ other, to };
        stage.raw.send(&fpdu(header, &vec![0xee; len]));
    }
    let control = stage.raw.terminate(&mut stage.side);
    assert_eq!(control[..2], [0x11, code]);
    stage.side.ended(stage.qp);
    let mut bytes = [0; 4096];
    sink.read(0, &mut bytes);
    assert!(bytes[..128].iter().chain(&bytes[192..]).all(|&byte| byte == 0), "outside of the sink");
    assert!(!stage.side.done.iter().any(|done| done.status.is_success()), "{:?}", stage.side.done);
}

#[test]
fn read_responses_of_the_wrong_place_or_length() {
    read_response(0, &[(1, 0, 64, true)]);
    read_response(1, &[(0, 4, 60, true)]);
    read_response(1, &[(0, 4, 64, true)]);
    read_response(1, &[(0, 0, 60, true)]);
    read_response(1, &[(0, 0, 64, false)]);
    read_response(1, &[(0, 0, 68, true)]);
    read_response(1, &[(0, 0, 32, false), (0, 0, 32, true)]);
    read_response(1, &[(0, 0, 32, false), (0, 36, 28, true)]);
}

/// Unread bytes turn a close into a reset, which takes away what the peer has not read yet.
#[test]
fn many_connections_that_end_at_once_all_get_the_reason() {
    const MANY: usize = 300;
    let mut side = Side::new(IwarpConfig::default());
    let mut peers: Vec<_> = (0..MANY).map(|_| Raw::established(&mut side, Flags::default()).0).collect();
    let violation = patched(send(1, 0, &[0; 60_000]), 2, &[0x42]);
    for raw in &mut peers {
        raw.send(&violation);
        raw.send(&violation);
    }
    for raw in &mut peers {
        raw.terminate(&mut side);
    }
}
