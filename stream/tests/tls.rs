//! TLS beneath a stream: handshakes, records, and peers that do it wrong.

use nvmf_stream::{
    Chunk, FindKey, Received, Secured, Stream, StreamConfig, TlsAcceptor, TlsConnector, TlsError,
};
use nvmf_tls::{Hash, Psk};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Whatever is waited for comes at once; a test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

fn psk(name: &str, hash: Hash, byte: u8) -> Psk {
    Psk { identity: name.to_owned(), hash, secret: Zeroizing::new(vec![byte; hash.len()]) }
}

/// Knows these keys.
fn acceptor(keys: &[Psk]) -> TlsAcceptor {
    let keys = keys.to_vec();
    let find: Arc<FindKey> = Arc::new(move |identity| {
        let found = keys.iter().find(|key| key.identity.as_bytes() == identity);
        found.cloned().ok_or_else(|| "nobody knows it".to_owned())
    });
    TlsAcceptor::new(find).unwrap()
}

/// Both ends of a TCP connection.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (host, listener.accept().unwrap().0)
}

fn stream(socket: TcpStream) -> Stream {
    Stream::take_over(&StreamConfig::default(), socket).unwrap()
}

/// Asks until there is an answer.
fn wait<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < TIMEOUT, "nothing comes");
        std::thread::yield_now();
    }
}

type Outcome = Result<Secured, TlsError>;

/// The outcomes of a handshake: of who connects, and of who accepts.
fn shake(host: &mut Stream, target: &mut Stream) -> (Outcome, Outcome) {
    let (mut of_host, mut of_target) = (None, None);
    wait(|| {
        if of_host.is_none() {
            of_host = host.handshake().transpose();
        }
        if of_target.is_none() {
            of_target = target.handshake().transpose();
        }
        // An end that has failed says no more: the other learns of it when it is closed.
        if matches!((&of_host, &of_target), (Some(Err(_)), None)) {
            host.shutdown_write();
        }
        if matches!((&of_host, &of_target), (None, Some(Err(_)))) {
            target.shutdown_write();
        }
        (of_host.is_some() && of_target.is_some()).then_some(())
    });
    (of_host.unwrap(), of_target.unwrap())
}

/// Two ends that know each other.
fn secured(hash: Hash) -> (Stream, Stream) {
    let key = psk("a key", hash, 7);
    let (host, target) = pair();
    let (mut host, mut target) = (stream(host), stream(target));
    host.connect_tls(&TlsConnector::new(std::slice::from_ref(&key)).unwrap()).unwrap();
    target.accept_tls(&acceptor(&[key])).unwrap();
    let (of_host, of_target) = shake(&mut host, &mut target);
    let secured = Secured { identity: b"a key".to_vec(), hash, by_kernel: false };
    let without_kernel = |secured: Secured| Secured { by_kernel: false, ..secured };
    assert_eq!(without_kernel(of_host.unwrap()), secured);
    assert_eq!(without_kernel(of_target.unwrap()), secured);
    (host, target)
}

/// Moves `bytes` from one end to the other.
fn transfer(from: &mut Stream, to: &mut Stream, bytes: &[u8]) {
    let (mut sent, mut received) = (0, Vec::new());
    let mut staging = vec![0; 256 * 1024];
    wait(|| {
        if sent < bytes.len() {
            sent += from.try_send(&[Chunk::Bytes(&bytes[sent..])]).unwrap();
        } else {
            from.flush().unwrap();
        }
        if let Received::Bytes { direct, staged, .. } = to.receive(None, &mut staging).unwrap() {
            assert_eq!(direct, 0);
            received.extend_from_slice(&staging[..staged]);
        }
        (received.len() >= bytes.len()).then_some(())
    });
    assert!(received == bytes);
}

#[test]
fn bytes_arrive_both_ways_with_either_suite() {
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    for hash in [Hash::Sha256, Hash::Sha384] {
        let (mut host, mut target) = secured(hash);
        for len in [1, 128, 16 * 1024, 16 * 1024 + 1, bytes.len()] {
            transfer(&mut host, &mut target, &bytes[..len]);
            transfer(&mut target, &mut host, &bytes[..len]);
        }
    }
}

#[test]
fn end_of_stream_follows_the_last_bytes() {
    let (host, target) = secured(Hash::Sha256);
    assert_eq!(host.try_send(&[Chunk::Bytes(b"last")]).unwrap(), 4);
    host.shutdown_write();
    let mut staging = [0; 32 * 1024];
    let first = wait(|| match target.receive(None, &mut staging).unwrap() {
        Received::Nothing => None,
        received => Some(received),
    });
    assert!(matches!(first, Received::Bytes { staged: 4, .. }), "{first:?}");
    assert_eq!(target.receive(None, &mut staging).unwrap(), Received::End);
}

#[test]
fn key_is_chosen_by_the_identity_that_is_offered() {
    let keys = [psk("one", Hash::Sha256, 1), psk("two", Hash::Sha384, 2), psk("three", Hash::Sha384, 3)];
    for (offered, chosen) in [(&keys[..1], "one"), (&keys[1..2], "two"), (&keys[1..], "two")] {
        let (host, target) = pair();
        let (mut host, mut target) = (stream(host), stream(target));
        host.connect_tls(&TlsConnector::new(offered).unwrap()).unwrap();
        target.accept_tls(&acceptor(&keys)).unwrap();
        let (of_host, of_target) = shake(&mut host, &mut target);
        assert_eq!(of_host.unwrap().identity, chosen.as_bytes());
        assert_eq!(of_target.unwrap().identity, chosen.as_bytes());
    }
}

#[test]
fn unknown_identity_ends_the_handshake_on_both_sides() {
    let (host, target) = pair();
    let (mut host, mut target) = (stream(host), stream(target));
    host.connect_tls(&TlsConnector::new(&[psk("stranger", Hash::Sha256, 1)]).unwrap()).unwrap();
    target.accept_tls(&acceptor(&[psk("known", Hash::Sha256, 1)])).unwrap();
    let (of_host, of_target) = shake(&mut host, &mut target);
    assert!(matches!(of_host, Err(TlsError::Alert(115))), "{of_host:?}");
    let text = of_target.unwrap_err().to_string();
    assert!(text.contains("nobody knows it") && text.contains("stranger"), "{text}");
}

#[test]
fn wrong_key_ends_the_handshake_on_both_sides() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let (host, target) = pair();
        let (mut host, mut target) = (stream(host), stream(target));
        host.connect_tls(&TlsConnector::new(&[psk("name", hash, 1)]).unwrap()).unwrap();
        target.accept_tls(&acceptor(&[psk("name", hash, 2)])).unwrap();
        let (of_host, of_target) = shake(&mut host, &mut target);
        assert!(matches!(of_host, Err(TlsError::Alert(51))), "{of_host:?}");
        assert!(matches!(of_target, Err(TlsError::Key(_))), "{of_target:?}");
    }
}

/// One end, and the bare socket of a peer that says anything.
fn with_bare_peer() -> (TcpStream, Stream) {
    let (host, target) = pair();
    let mut target = stream(target);
    target.accept_tls(&acceptor(&[psk("a key", Hash::Sha256, 7)])).unwrap();
    host.set_read_timeout(Some(TIMEOUT)).unwrap();
    (host, target)
}

/// What a host sends first.
fn client_hello() -> Vec<u8> {
    let (mut recorder, socket) = pair();
    let mut host = stream(socket);
    host.connect_tls(&TlsConnector::new(&[psk("a key", Hash::Sha256, 7)]).unwrap()).unwrap();
    assert!(host.handshake().unwrap().is_none());
    let mut hello = vec![0; 4096];
    let len = recorder.read(&mut hello).unwrap();
    hello.truncate(len);
    hello
}

/// The ServerHello that answers a ClientHello: the first record of the answer.
fn server_hello(client_hello: &[u8]) -> Vec<u8> {
    let (mut peer, mut target) = with_bare_peer();
    peer.write_all(client_hello).unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut answer = [0; 4096];
    wait(|| {
        assert!(target.handshake().unwrap().is_none());
        peer.peek(&mut answer).ok().filter(|&len| len > 5)
    });
    let len = 5 + usize::from(u16::from_be_bytes([answer[3], answer[4]]));
    answer[..len].to_vec()
}

/// Sends the same record again and again, more than any handshake has, while nobody refuses it.
fn flood(mut peer: TcpStream, record: &[u8]) -> std::thread::JoinHandle<()> {
    let records = record.repeat(1000);
    std::thread::spawn(move || {
        for _ in 0..500 {
            if peer.write_all(&records).is_err() {
                return;
            }
        }
    })
}

#[test]
fn records_without_end_end_a_handshake_on_either_side() {
    // ChangeCipherSpec and a warning that asks for nothing: neither takes the handshake further.
    for record in [&[20, 3, 3, 0, 1, 1][..], &[21, 3, 3, 0, 2, 1, 90]] {
        let (mut peer, mut target) = with_bare_peer();
        peer.write_all(&client_hello()).unwrap();
        let flood_of_host = flood(peer, record);
        let of_target = wait(|| target.handshake().err()).to_string();

        let (host, mut peer) = pair();
        let mut host = stream(host);
        host.connect_tls(&TlsConnector::new(&[psk("a key", Hash::Sha256, 7)]).unwrap()).unwrap();
        assert!(host.handshake().unwrap().is_none());
        let mut hello = vec![0; 4096];
        let len = peer.read(&mut hello).unwrap();
        peer.write_all(&server_hello(&hello[..len])).unwrap();
        let flood_of_target = flood(peer, record);
        let of_host = wait(|| host.handshake().err()).to_string();

        // Neither has taken what was sent, so closing them ends both floods.
        drop((host, target));
        flood_of_host.join().unwrap();
        flood_of_target.join().unwrap();
        for text in [of_target, of_host] {
            assert!(text.contains("the handshake has more than 32 records"), "{text}");
        }
    }
}

#[test]
fn handshake_message_without_end_ends_the_handshake() {
    let (mut peer, mut target) = with_bare_peer();
    // The beginning of the longest ClientHello that the library takes, in few records.
    let mut record = [22, 3, 1, 0x3f, 0xff].to_vec();
    record.extend([&[1, 0, 0xff, 0xff][..], &[0; 0x3fff - 4]].concat());
    peer.write_all(&record).unwrap();
    let flood = flood(peer, &[&[22, 3, 1, 0x3f, 0xff][..], &[0; 0x3fff]].concat());
    let error = wait(|| target.handshake().err()).to_string();
    drop(target);
    flood.join().unwrap();
    assert!(error.contains("32768 bytes"), "{error}");
}

#[test]
fn handshake_waits_for_every_byte_without_blocking() {
    let hello = client_hello();
    let (mut peer, mut target) = with_bare_peer();
    for byte in &hello {
        assert!(target.handshake().unwrap().is_none());
        peer.write_all(&[*byte]).unwrap();
    }
    // The answer begins with a ServerHello.
    peer.set_nonblocking(true).unwrap();
    let mut answer = [0; 6];
    wait(|| {
        assert!(target.handshake().unwrap().is_none());
        peer.peek(&mut answer).ok().filter(|&len| len == 6)
    });
    assert_eq!((answer[0], answer[5]), (22, 2));
    drop(peer);
    let error = wait(|| target.handshake().err());
    assert!(matches!(error, TlsError::Closed | TlsError::Io(_)), "{error:?}");
}

#[test]
fn what_is_no_handshake_is_refused() {
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        &[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[22, 3, 1, 0, 5, 1, 0, 0, 1, 0],
        &[22, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff],
        &[21, 3, 3, 0, 2, 2, 40],
    ] {
        let (mut peer, mut target) = with_bare_peer();
        peer.write_all(bytes).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let error = wait(|| target.handshake().err());
        assert!(matches!(error, TlsError::Closed | TlsError::Protocol(_) | TlsError::Alert(40)), "{error:?}");
    }
}

#[test]
fn damaged_record_ends_the_connection() {
    let (mut host, mut target) = secured(Hash::Sha256);
    transfer(&mut host, &mut target, b"before");
    let bare = TcpStream::from(std::os::fd::AsFd::as_fd(&host).try_clone_to_owned().unwrap());
    (&bare).write_all(&[&[23, 3, 3, 0, 40][..], &[9; 40]].concat()).unwrap();
    let mut staging = [0; 32 * 1024];
    let error = wait(|| target.receive(None, &mut staging).err());
    let error = error.downcast::<TlsError>().expect("TLS is to blame");
    assert!(matches!(error, TlsError::Protocol(_)), "{error:?}");
}
