//! Connections over the loopback interface, with a peer of the standard library.

use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmf_memory::Memory;
use nvmf_stream::{
    CHUNKS_MAX, Chunk, Chunks, HalfOpenLimits, Interest, Lingering, Listener, Poller, Received, Stream,
    StreamConfig,
};
use socket2::SockRef;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// What no wait of a test exceeds.
const TIMEOUT: Duration = Duration::from_secs(10);
const TOKEN: u64 = 7;

/// A connection, and its peer, whose receive buffer is likewise.
fn pair(config: &StreamConfig) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    if let Some(bytes) = config.receive_buffer {
        peer.set_recv_buffer_size(bytes).unwrap();
    }
    peer.connect(&listener.local_addr().unwrap().into()).unwrap();
    let peer = TcpStream::from(peer);
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    peer.set_write_timeout(Some(TIMEOUT)).unwrap();
    peer.set_nodelay(true).unwrap();
    (Stream::take_over(config, listener.accept().unwrap().0).unwrap(), peer)
}

/// Buffers that a few bytes fill.
fn small() -> StreamConfig {
    StreamConfig { send_buffer: Some(32 * 1024), receive_buffer: Some(4 * 1024), ..StreamConfig::default() }
}

fn watched(stream: &Stream) -> Poller {
    let poller = Poller::new().unwrap();
    poller.add(stream, TOKEN, Interest::Read).unwrap();
    poller
}

/// Waits for the poller to report something: whether it is writable.
fn reported(poller: &mut Poller) -> bool {
    let timeout = PollTimeout::try_from(TIMEOUT).unwrap();
    let ready = poll(&mut [PollFd::new(poller.fd(), PollFlags::POLLIN)], timeout).unwrap();
    assert_eq!((ready, poller.poll()), (1, 1), "waited in vain for the poller");
    let (token, writable) = poller.ready(0);
    assert_eq!(token, TOKEN);
    writable
}

/// Waits until this many bytes are there to be received.
fn arrived(stream: &Stream, bytes: usize) {
    let start = std::time::Instant::now();
    let mut buffer = vec![core::mem::MaybeUninit::uninit(); bytes];
    while !matches!(SockRef::from(stream).peek(&mut buffer), Ok(n) if n == bytes) {
        assert!(start.elapsed() < TIMEOUT, "waited in vain for {bytes} bytes");
        std::thread::yield_now();
    }
}

/// What comes when there is something.
fn receive(stream: &Stream, staging: &mut [u8]) -> std::io::Result<Received> {
    let mut poller = watched(stream);
    reported(&mut poller);
    stream.receive(None, staging)
}

fn patterned(len: usize) -> (Memory, Vec<u8>) {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    let memory = Memory::alloc(len).unwrap();
    memory.write(0, &bytes);
    (memory, bytes)
}

#[test]
fn blocked_socket_goes_on_where_it_stopped() {
    const LEN: usize = 2 << 20;
    let (mut stream, mut peer) = pair(&small());
    let mut poller = watched(&stream);
    let (memory, bytes) = patterned(LEN);
    let list = [Chunk::Bytes(b"head"), Chunk::Region(&memory, 3, LEN - 3), Chunk::Bytes(b"tail")];
    let (mut sent, mut blocks, mut received) = (0, 0, Vec::new());
    loop {
        let mut chunks = Chunks::new(sent);
        list.iter().for_each(|&chunk| chunks.push(chunk));
        if chunks.is_empty() {
            break;
        }
        let taken = stream.send(&chunks, &poller, TOKEN).unwrap();
        sent += taken;
        assert_eq!(stream.is_blocked(), taken < chunks.len_bytes());
        let start = received.len();
        received.resize(sent, 0);
        peer.read_exact(&mut received[start..]).unwrap();
        if stream.is_blocked() {
            blocks += 1;
            assert!(reported(&mut poller), "there is room again");
            assert!(stream.on_writable(&poller, TOKEN) && !stream.is_blocked());
            assert_eq!(poller.poll(), 0, "room is of interest only to a blocked socket");
        }
        assert!(!stream.on_writable(&poller, TOKEN), "it was not blocked");
    }
    assert!(blocks > 2, "{blocks}");
    assert_eq!(received, [b"head", &bytes[3..], b"tail"].concat());
}

#[test]
fn send_takes_no_more_chunks_than_fit_a_call() {
    let (stream, mut peer) = pair(&StreamConfig::default());
    let bytes: Vec<u8> = (0..=255).collect();
    let chunks: Vec<_> = bytes.chunks(1).map(Chunk::Bytes).collect();
    assert_eq!(stream.try_send(&chunks).unwrap(), CHUNKS_MAX);
    let mut received = vec![0; CHUNKS_MAX];
    peer.read_exact(&mut received).unwrap();
    assert_eq!(received, bytes[..CHUNKS_MAX]);
}

#[test]
fn payload_goes_to_its_place_and_the_rest_to_staging() {
    const DIRECT: usize = 20_000;
    // Bytes that came, length of the place, room for staging: what is found.
    for (came, direct, staging, expected) in [
        (DIRECT - 1, DIRECT, 65536, (DIRECT - 1, 0, false)),
        (DIRECT, DIRECT, 65536, (DIRECT, 0, false)),
        (DIRECT + 9, DIRECT, 65536, (DIRECT, 9, false)),
        (DIRECT + 4096, DIRECT, 65536, (DIRECT, 4096, true)),
        (DIRECT + 5000, DIRECT, 65536, (DIRECT, 4096, true)),
        (DIRECT + 5000, DIRECT, 100, (DIRECT, 100, true)),
        (DIRECT + 5000, DIRECT, 0, (DIRECT, 0, true)),
        (9, 0, 65536, (0, 9, false)),
        (30_000, 0, 30_000, (0, 30_000, true)),
    ] {
        let (stream, mut peer) = pair(&StreamConfig::default());
        let (_, bytes) = patterned(came);
        let place = Memory::alloc(DIRECT + 200).unwrap();
        place.fill(0, DIRECT + 200, 0xee);
        let mut staged = vec![0xee; staging];
        assert_eq!(stream.receive(None, &mut staged).unwrap(), Received::Nothing);
        peer.write_all(&bytes).unwrap();
        arrived(&stream, came);
        let found = stream.receive((direct > 0).then_some((&place, 100, direct)), &mut staged).unwrap();
        let (in_place, in_staging, more) = expected;
        let cost = in_place + in_staging;
        let expected = Received::Bytes { direct: in_place, staged: in_staging, cost, more };
        assert_eq!(found, expected, "of {came}");
        let mut placed = vec![0; DIRECT + 200];
        place.read(0, &mut placed);
        assert_eq!(placed[100..100 + in_place], bytes[..in_place]);
        assert_eq!(staged[..in_staging], bytes[in_place..in_place + in_staging]);
        let untouched = placed[..100].iter().chain(&placed[100 + in_place..]).chain(&staged[in_staging..]);
        assert!(untouched.copied().all(|byte| byte == 0xee), "bytes outside of what was received");
    }
}

#[test]
fn receive_without_room_is_not_the_end_of_the_stream() {
    let (stream, mut peer) = pair(&StreamConfig::default());
    peer.write_all(b"x").unwrap();
    arrived(&stream, 1);
    assert_eq!(stream.receive(None, &mut []).unwrap(), Received::Nothing);
    let mut byte = [0];
    assert!(stream.has_bytes());
    let received = Received::Bytes { direct: 0, staged: 1, cost: 1, more: true };
    assert_eq!(receive(&stream, &mut byte).unwrap(), received);
    assert!(!stream.has_bytes());
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(receive(&stream, &mut byte).unwrap(), Received::End);
}

#[test]
#[should_panic(expected = "ranges are checked")]
fn place_beyond_its_memory_never_reaches_the_kernel() {
    let (stream, _peer) = pair(&StreamConfig::default());
    let memory = Memory::alloc(4096).unwrap();
    let _ = stream.receive(Some((&memory, 1, 4096)), &mut []);
}

#[test]
#[should_panic(expected = "ranges are checked")]
fn chunk_beyond_its_memory_never_reaches_the_kernel() {
    let (stream, _peer) = pair(&StreamConfig::default());
    let memory = Memory::alloc(4096).unwrap();
    let _ = stream.try_send(&[Chunk::Region(&memory, usize::MAX, 2)]);
}

/// A peer that closes with a reset.
fn reset(peer: TcpStream) {
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
}

fn listening(poller: &Poller) -> (Listener, SocketAddr) {
    let address = "127.0.0.1:0".parse().unwrap();
    Listener::open(poller, TOKEN, address, 4, HalfOpenLimits::default()).unwrap()
}

#[test]
fn peer_that_resets_around_accept_is_an_error_of_the_first_read() {
    for before in [true, false] {
        let mut poller = Poller::new().unwrap();
        let (mut listener, address) = listening(&poller);
        let peer = TcpStream::connect(address).unwrap();
        reported(&mut poller);
        let mut peer = Some(peer);
        if before {
            reset(peer.take().unwrap());
        }
        let stream = listener.accept(&StreamConfig::default(), &poller);
        if let Some(peer) = peer {
            assert_eq!(stream.as_ref().unwrap().peer_address().unwrap(), peer.local_addr().unwrap());
            reset(peer);
        }
        // A system may also take it out of the queue by itself.
        if let Some(stream) = stream {
            let error = receive(&stream, &mut [0; 16]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            assert!(stream.peer_address().is_err());
            assert!(stream.try_send(&[Chunk::Bytes(b"late")]).is_err(), "and no signal");
        }
        assert!(listener.rest.is_none());
        assert!(listener.accept(&StreamConfig::default(), &poller).is_none());
        TcpStream::connect(address).unwrap();
        reported(&mut poller);
        assert!(listener.accept(&StreamConfig::default(), &poller).is_some(), "the next one");
    }
}

#[test]
fn connect_is_done_when_the_socket_is_writable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // An address that is taken by a socket that does not listen.
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let silent = silent.local_addr().unwrap().as_socket().unwrap();
    let source = SocketAddr::from(([127, 0, 0, 2], 0));
    for (address, listens) in [(listener.local_addr().unwrap(), true), (silent, false)] {
        let stream = Stream::open(&StreamConfig::default(), address, Some(source)).unwrap();
        let mut poller = Poller::new().unwrap();
        let started = stream.connect(address);
        poller.add(&stream, TOKEN, Interest::ReadWrite).unwrap();
        reported(&mut poller);
        let done = started.and_then(|()| stream.take_error());
        if listens {
            done.unwrap();
            assert_eq!(listener.accept().unwrap().1, stream.local_address().unwrap());
            assert_eq!(stream.local_address().unwrap().ip(), source.ip());
            assert!(stream.is_local() && stream.segment_len().unwrap() > 500);
            stream.send_unpaced();
        } else {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    }
}

#[test]
fn options_reach_the_socket() {
    let config = StreamConfig {
        dead_peer_timeout: Duration::from_secs(9),
        reset_on_close: true,
        send_buffer: Some(100_000),
        receive_buffer: Some(50_000),
        tos: Some(0x28),
        priority: Some(5),
        interface: Some("lo".into()),
        syn_retries: Some(1),
        ..StreamConfig::default()
    };
    for address in ["127.0.0.1:1", "[::1]:1"] {
        let address: SocketAddr = address.parse().unwrap();
        let stream = match Stream::open(&config, address, None) {
            // This machine may have no IPv6.
            Err(error) if address.is_ipv6() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => continue,
            stream => stream.unwrap(),
        };
        let socket = SockRef::from(&stream);
        assert!(
            socket.nonblocking().unwrap() && socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap()
        );
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(config.dead_peer_timeout));
        assert_eq!(socket.linger().unwrap(), Some(Duration::ZERO));
        // The kernel doubles them, for its own needs.
        assert_eq!(
            (socket.send_buffer_size().unwrap(), socket.recv_buffer_size().unwrap()),
            (200_000, 100_000)
        );
        let tos = if address.is_ipv6() { socket.tclass_v6() } else { socket.tos_v4() };
        assert_eq!((tos.unwrap(), socket.priority().unwrap()), (0x28, 5));
        assert_eq!(socket.device().unwrap().unwrap(), b"lo");
    }
    let address = "127.0.0.1:1".parse().unwrap();
    let plain = Stream::open(&StreamConfig::default(), address, None).unwrap();
    assert_eq!(SockRef::from(&plain).linger().unwrap(), None);
    for refused in [
        StreamConfig { interface: Some("no-such-device".into()), ..StreamConfig::default() },
        StreamConfig { syn_retries: Some(200), ..StreamConfig::default() },
    ] {
        assert!(Stream::open(&refused, address, None).is_err(), "{refused:?}");
    }
}

#[test]
fn reset_on_close_lets_nothing_leave_after_a_drop() {
    for reset_on_close in [false, true] {
        let (mut stream, mut peer) = pair(&StreamConfig { reset_on_close, ..small() });
        let poller = watched(&stream);
        let bytes = vec![0x5a; 16 << 20];
        let mut sent = 0;
        while !stream.is_blocked() {
            let mut chunks = Chunks::new(sent);
            chunks.push(Chunk::Bytes(&bytes));
            sent += stream.send(&chunks, &poller, TOKEN).unwrap();
        }
        drop(stream);
        let mut received = Vec::new();
        let end = peer.read_to_end(&mut received);
        if reset_on_close {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(received.len() < sent);
        } else {
            assert_eq!(end.unwrap(), sent);
        }
    }
}

#[test]
fn lingering_sends_its_last_bytes_past_what_is_unread() {
    const LEN: usize = 1 << 20;
    let (stream, mut peer) = pair(&small());
    let mut poller = watched(&stream);
    peer.write_all(&[1; 1500]).unwrap();
    arrived(&stream, 1500);
    let (_, bytes) = patterned(LEN);
    let mut staging = vec![0; 1024];
    let mut lingering = Lingering::new(stream, bytes.clone(), Duration::from_secs(1));
    assert!(!lingering.advance(&poller, TOKEN, &mut staging), "the peer reads nothing");
    assert_eq!(poller.poll(), 0, "what is unread wakes nobody while bytes are left to send");
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).map(|_| received)
    });
    loop {
        reported(&mut poller);
        if lingering.advance(&poller, TOKEN, &mut staging) {
            break;
        }
    }
    drop(lingering);
    assert_eq!(reader.join().unwrap().unwrap(), bytes);
}

#[test]
fn paused_socket_reports_room_and_errors_but_no_bytes() {
    let (mut stream, mut peer) = pair(&small());
    let mut poller = watched(&stream);
    peer.write_all(b"early").unwrap();
    arrived(&stream, 5);
    stream.pause(true, &poller, TOKEN);
    assert!(stream.is_paused());
    assert_eq!(poller.poll(), 0, "bytes are not wanted");
    let bytes = vec![0x5a; 1 << 20];
    let mut chunks = Chunks::new(0);
    chunks.push(Chunk::Bytes(&bytes));
    let sent = stream.send(&chunks, &poller, TOKEN).unwrap();
    assert!(stream.is_blocked());
    peer.read_exact(&mut vec![0; sent]).unwrap();
    assert!(reported(&mut poller), "there is room");
    assert!(stream.on_writable(&poller, TOKEN));
    assert_eq!(poller.poll(), 0, "room made no bytes wanted");
    stream.pause(false, &poller, TOKEN);
    assert!(!reported(&mut poller));
    stream.pause(true, &poller, TOKEN);
    reset(peer);
    reported(&mut poller);
    assert_eq!(stream.take_error().unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn hang_up_is_reported_without_the_bytes_before_it() {
    let (stream, mut peer) = pair(&StreamConfig::default());
    let mut poller = Poller::new().unwrap();
    poller.add(&stream, TOKEN, Interest::HangUp).unwrap();
    peer.write_all(b"early").unwrap();
    arrived(&stream, 5);
    assert_eq!(poller.poll(), 0);
    drop(peer);
    reported(&mut poller);
    poller.remove(&stream);
    assert_eq!(poller.poll(), 0);
}
