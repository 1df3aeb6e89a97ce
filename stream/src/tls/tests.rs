//! Records that no well-behaved peer sends at that place, sealed here with the keys of a real handshake.

use super::session::Traffic;
use super::{FindKey, Session, TlsAcceptor, TlsConnector, TlsError};
use crate::{Chunk, Received, Stream, StreamConfig};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use nix::poll::{PollFd, PollFlags, poll};
use nvmf_tls::{Hash, Psk};
use socket2::Socket;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

const TIMEOUT: Duration = Duration::from_secs(20);
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// One end of a connection as a stream, the other as a bare socket and the keys to seal records with.
struct Site {
    stream: Stream,
    /// The kernel handles the stream's records.
    by_kernel: bool,
    peer: TcpStream,
    hash: Hash,
    secret: Zeroizing<Vec<u8>>,
    sequence: u64,
}

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

impl Site {
    /// A handshake, after which the stream is the side that has connected or the one that has accepted.
    fn new(hash: Hash, stream_connects: bool) -> Self {
        let psk = Psk { identity: "key".into(), hash, secret: Zeroizing::new(vec![7; hash.len()]) };
        let connector = TlsConnector::new(std::slice::from_ref(&psk)).unwrap();
        let find: Arc<FindKey> = Arc::new(move |_| Ok(psk.clone()));
        let acceptor = TlsAcceptor::new(find).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ours = listener.accept().unwrap().0;
        let mut stream = Stream::take_over(&StreamConfig::default(), ours).unwrap();
        let socket = Socket::from(peer.try_clone().unwrap());
        socket.set_nonblocking(true).unwrap();
        let mut session = if stream_connects {
            stream.connect_tls(&connector).unwrap();
            Session::accept(&acceptor, &socket).unwrap()
        } else {
            stream.accept_tls(&acceptor).unwrap();
            Session::connect(&connector, &socket).unwrap()
        };
        let (mut of_stream, mut of_session) = (None, false);
        let secured = wait(|| {
            of_stream = of_stream.take().or_else(|| stream.handshake().unwrap());
            of_session = of_session || session.handshake(&socket).unwrap().is_some();
            if of_session { of_stream.take() } else { None }
        });
        let Traffic { send, send_sequence, .. } = session.into_traffic(hash).unwrap();
        Self { stream, by_kernel: secured.by_kernel, peer, hash, secret: send, sequence: send_sequence }
    }

    /// A record of this type.
    fn seal(&mut self, kind: u8, bytes: &[u8]) -> Vec<u8> {
        let (algorithm, key_len) = match self.hash {
            Hash::Sha256 => (&AES_128_GCM, 16),
            Hash::Sha384 => (&AES_256_GCM, 32),
        };
        let key = self.hash.expand_label(&self.secret, "key", &[], key_len);
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&self.hash.expand_label(&self.secret, "iv", &[], 12));
        nonce.iter_mut().skip(4).zip(self.sequence.to_be_bytes()).for_each(|(byte, of)| *byte ^= of);
        self.sequence += 1;
        let mut inner = [bytes, &[kind]].concat();
        let len = ((inner.len() + 16) as u16).to_be_bytes();
        let head = [23, 3, 3, len[0], len[1]];
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &key).unwrap());
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(head), &mut inner).unwrap();
        [&head[..], &inner].concat()
    }

    fn send(&mut self, kind: u8, bytes: &[u8]) {
        let record = self.seal(kind, bytes);
        self.peer.write_all(&record).unwrap();
    }

    fn change_keys(&mut self, request: u8) {
        self.send(HANDSHAKE, &[24, 0, 0, 1, request]);
        self.secret = self.hash.expand_label(&self.secret, "traffic upd", &[], self.hash.len());
        self.sequence = 0;
    }

    /// What comes, once something does.
    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut staging = vec![0; 64 * 1024];
        wait(|| match self.stream.receive(None, &mut staging) {
            Ok(Received::Nothing) => None,
            Ok(Received::End | Received::Cut) => Some(Ok(Vec::new())),
            Ok(Received::Bytes { staged, .. }) => Some(Ok(staging[..staged].to_vec())),
            Err(error) => Some(Err(error)),
        })
    }

    fn error(&self) -> TlsError {
        self.receive().unwrap_err().downcast().expect("TLS is to blame")
    }
}

/// A ticket of one byte.
const TICKET: [u8; 4 + 15] = [4, 0, 0, 15, 0, 0, 0, 9, 1, 2, 3, 4, 1, 0, 0, 1, 5, 0, 0];

#[test]
fn key_update_and_empty_records_are_no_data() {
    for (hash, stream_connects) in [(Hash::Sha256, false), (Hash::Sha256, true), (Hash::Sha384, false)] {
        let mut site = Site::new(hash, stream_connects);
        for request in [0, 1, 0] {
            site.send(DATA, b"before");
            assert_eq!(site.receive().unwrap(), b"before");
            site.send(DATA, b"");
            if stream_connects {
                site.send(HANDSHAKE, &TICKET);
            }
            site.change_keys(request);
            site.send(DATA, b"");
            site.send(DATA, b"behind");
            match site.receive() {
                Ok(bytes) => assert_eq!(bytes, b"behind"),
                // A kernel that handles the records and is older than 6.14.
                Err(error) if is_old_kernel(&error) => break,
                Err(error) => panic!("{error}"),
            }
            // The answer to a request leaves with the next data.
            assert_eq!(site.stream.try_send(&[Chunk::Bytes(b"answer")]).unwrap(), 6);
        }
    }
}

/// What sends a record, or several, without data.
type SendEmpty = fn(&mut Site);

/// Whether the error is that of a kernel before 6.14, which cannot follow a change of keys.
fn is_old_kernel(error: &io::Error) -> bool {
    error.to_string().contains("this kernel cannot follow")
}

#[test]
fn records_without_data_and_without_end_end_the_connection() {
    let kinds: [SendEmpty; 3] = [
        |site| site.send(DATA, b""),
        |site| site.change_keys(0),
        |site| {
            site.change_keys(1);
            site.send(DATA, b"1");
        },
    ];
    for (kind, send_empty) in kinds.into_iter().enumerate() {
        let mut site = Site::new(Hash::Sha256, false);
        if site.by_kernel && kind == 0 {
            // The kernel reads empty records off, and says nothing of them.
            continue;
        }
        (0..200).for_each(|_| send_empty(&mut site));
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut len = 0;
        let error = loop {
            match site.receive() {
                Ok(bytes) if bytes.is_empty() => panic!("all was taken: {len} bytes of data"),
                Ok(bytes) => len += bytes.len(),
                Err(error) => break error,
            }
        };
        let is_refused = error.to_string().contains("more than 32 records without data");
        assert!(is_refused || is_old_kernel(&error), "{error}");
    }
}

#[test]
fn one_record_full_of_key_updates_is_the_last() {
    let mut site = Site::new(Hash::Sha256, false);
    let updates = [24, 0, 0, 1, 0].repeat(3000);
    site.send(HANDSHAKE, &updates);
    for _ in 0..3000 {
        site.secret = site.hash.expand_label(&site.secret, "traffic upd", &[], site.hash.len());
    }
    site.sequence = 0;
    site.send(DATA, b"data");
    let error = site.receive().unwrap_err().to_string();
    assert!(error.contains("records without data") || error.contains("an unexpected handshake"), "{error}");
}

#[test]
fn change_of_keys_is_answered_once_the_socket_has_room() {
    let mut site = Site::new(Hash::Sha256, false);
    let data = vec![7; 64 * 1024];
    while site.stream.try_send(&[Chunk::Bytes(&data)]).unwrap() > 0 {}
    site.change_keys(1);
    site.send(DATA, b"behind");
    match site.receive() {
        Ok(bytes) => assert_eq!(bytes, b"behind"),
        Err(error) if is_old_kernel(&error) => return,
        Err(error) => panic!("{error}"),
    }
    site.peer.set_nonblocking(true).unwrap();
    let mut thrown_away = vec![0; 64 * 1024];
    wait(|| {
        while (&site.peer).read(&mut thrown_away).is_ok_and(|len| len > 0) {}
        (site.stream.try_send(&[Chunk::Bytes(b"answer")]).unwrap() > 0).then_some(())
    });
}

#[test]
fn data_allow_for_more_records_without_them() {
    let mut site = Site::new(Hash::Sha256, false);
    let data = [7; 4096];
    for _ in 0..100 {
        site.send(DATA, b"");
        site.change_keys(0);
        let mut left = 2 * data.len();
        site.send(DATA, &data);
        site.send(DATA, &data);
        while left > 0 {
            match site.receive() {
                Ok(bytes) => left -= bytes.len(),
                Err(error) if is_old_kernel(&error) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn small_records_are_charged_for_more_than_their_data() {
    let mut site = Site::new(Hash::Sha256, false);
    let records: Vec<u8> = (0..4000).flat_map(|_| site.seal(DATA, b"1")).collect();
    let mut peer = site.peer.try_clone().unwrap();
    let sender = std::thread::spawn(move || peer.write_all(&records).unwrap());
    let mut staging = vec![0; 64 * 1024];
    let (mut received, mut charged) = (0, 0);
    wait(|| {
        if let Received::Bytes { staged, cost, .. } = site.stream.receive(None, &mut staging).unwrap() {
            (received, charged) = (received + staged, charged + cost);
            assert!(staged <= 17 * 1024 / 23 || site.by_kernel, "{staged} records at once");
        }
        (received == 4000).then_some(())
    });
    assert!(charged >= 4000 * 2048 || site.by_kernel, "{charged}");
    sender.join().unwrap();
}

#[test]
fn what_a_poller_reports_once_is_received_as_a_whole() {
    // With the first record, more than there is staging for.
    const SHORT: usize = 62;
    let mut site = Site::new(Hash::Sha256, false);
    if site.by_kernel {
        // The kernel keeps nothing back that it has decrypted.
        return;
    }
    let long = site.seal(DATA, &[7; 16 * 1024]);
    let short: Vec<u8> = (0..SHORT).flat_map(|_| site.seal(DATA, &[8; 1024])).collect();
    // The library has the beginning of a record when the rest comes.
    let (beginning, rest) = long.split_at(long.len() - 1);
    let rest = [rest, &short].concat();
    let len = (16 + SHORT) * 1024;
    let mut staging = vec![0; 64 * 1024];
    site.peer.write_all(beginning).unwrap();
    wait(|| site.stream.has_bytes().then_some(()));
    while site.stream.has_bytes() {
        assert_eq!(site.stream.receive(None, &mut staging).unwrap(), Received::Nothing);
    }
    site.peer.write_all(&rest).unwrap();
    let mut received = 0;
    while received < len {
        let mut asked = [PollFd::new(site.stream.as_fd(), PollFlags::POLLIN)];
        assert_eq!(
            poll(&mut asked, 2_000_u16).unwrap(),
            1,
            "only {received} bytes were received, and nobody is told"
        );
        if let Received::Bytes { staged, .. } = site.stream.receive(None, &mut staging).unwrap() {
            received += staged;
        }
    }
}

#[test]
fn end_without_close_notify_is_a_cut() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let site = Site::new(hash, true);
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut staging = vec![0; 64 * 1024];
        let end = wait(|| match site.stream.receive(None, &mut staging).unwrap() {
            Received::Nothing => None,
            end => Some(end),
        });
        assert_eq!(end, Received::Cut);
    }
}

#[test]
fn alert_ends_the_stream_behind_the_data_before_it() {
    for (alert, words) in [(20, "bad_record_mac"), (80, "internal_error"), (200, "200")] {
        let mut site = Site::new(Hash::Sha256, false);
        let bytes = [site.seal(DATA, b"last"), site.seal(ALERT, &[2, alert])].concat();
        site.peer.write_all(&bytes).unwrap();
        assert_eq!(site.receive().unwrap(), b"last");
        let error = site.error();
        assert!(matches!(error, TlsError::Alert(of) if of == alert), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let mut site = Site::new(Hash::Sha256, true);
    site.send(ALERT, &[1, 0]);
    assert_eq!(site.receive().unwrap(), b"", "close_notify is an end");
}

#[test]
fn record_that_is_not_allowed_ends_the_connection() {
    type Make = fn(&mut Site) -> Vec<u8>;
    let wrong: [(&str, Make); 7] = [
        ("damaged", |site| {
            let mut record = site.seal(DATA, b"data");
            record[9] ^= 1;
            record
        }),
        ("twice", |site| site.seal(DATA, b"data").repeat(2)),
        ("in clear text", |_| vec![23, 3, 3, 0, 4, 1, 2, 3, 4]),
        ("too long", |_| vec![23, 3, 3, 0xff, 0xff]),
        ("another handshake", |site| site.seal(HANDSHAKE, &[1, 0, 0, 4, 3, 3, 0, 0])),
        ("a malformed alert", |site| site.seal(ALERT, &[])),
        ("no TLS", |_| b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    for (what, make) in wrong {
        let mut site = Site::new(Hash::Sha384, false);
        site.send(DATA, b"before");
        assert_eq!(site.receive().unwrap(), b"before");
        let bytes = make(&mut site);
        site.peer.write_all(&bytes).unwrap();
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        if what == "twice" {
            assert_eq!(site.receive().unwrap(), b"data");
        }
        let outcome = site.receive();
        match (what, &outcome) {
            // The rest of what it announces does not come.
            ("too long" | "no TLS", Ok(bytes)) => assert!(bytes.is_empty()),
            (_, Err(_)) => {}
            _ => panic!("{what}: {outcome:?}"),
        }
    }
}
