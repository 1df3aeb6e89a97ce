//! ICReq and ICResp.

use crate::site::{BOTH, ENTRIES, NONE, Site, ic_resp};
use core::time::Duration;
use nvme_proto::tcp::{Digests, IcReq};
use nvme_proto::{Nqn, Qid};
use nvmf_host::association::State;
use nvmf_host::{AssociationError, QueueFailure};
use nvmf_initiator::transport::{Event, OpenQueue, Tcp, Transport};
use nvmf_initiator::{
    Connection, Error, HostIdentity, Options, TcpOptions, TlsOptions, TransportOptions, block_on,
};
use nvmf_stream::{FindKey, Stream, StreamConfig, TlsAcceptor};
use nvmf_tcp::ToHost;
use nvmf_tls::{Key, Keys};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

#[test]
fn request_asks_for_the_digests_and_nothing_else() {
    for digests in [NONE, BOTH, Digests { header: true, data: false }, Digests { header: false, data: true }]
    {
        let site = Site::asking(Qid(0), digests);
        let plain = IcReq { digests, ..site.asked() };
        assert_eq!((site.asked(), site.asked().maxr2t, site.asked().alignment.bytes()), (plain, 1, 4));
        let mut expected = [0; 128];
        (expected[2], expected[4]) = (128, 128);
        expected[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
        assert_eq!(site.request, expected);
    }
}

#[test]
fn bad_response_is_refused() {
    let bytes = |digests| -> [u8; 128] { ToHost::ic_resp(&ic_resp(digests)).as_bytes().try_into().unwrap() };
    type Spoil = fn(&mut [u8; 128]);
    let spoiled: [(&str, Digests, Spoil); 13] = [
        ("another type", NONE, |pdu| pdu[0] = 3),
        ("a type of the host's", NONE, |pdu| pdu[0] = 0),
        ("flags", NONE, |pdu| pdu[1] = 1),
        ("HLEN", NONE, |pdu| pdu[2] = 24),
        ("PLEN", NONE, |pdu| pdu[4] = 132),
        ("PFV", NONE, |pdu| pdu[8] = 1),
        ("CPDA", NONE, |pdu| pdu[10] = 32),
        ("a header digest that was not asked for", NONE, |pdu| pdu[11] = 1),
        ("a data digest that was not asked for", NONE, |pdu| pdu[11] = 2),
        ("no header digest", BOTH, |pdu| pdu[11] = 2),
        ("no data digest", BOTH, |pdu| pdu[11] = 1),
        ("MAXH2CDATA below 4096", NONE, |pdu| pdu[12..16].copy_from_slice(&4092_u32.to_le_bytes())),
        ("MAXH2CDATA in bytes", NONE, |pdu| pdu[12..16].copy_from_slice(&4098_u32.to_le_bytes())),
    ];
    for (what, digests, spoil) in spoiled {
        let mut site = Site::asking(Qid(0), digests);
        let mut response = bytes(digests);
        spoil(&mut response);
        site.write(&response);
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let cause = site.ending();
        let expected = if what.contains("digest") {
            "digests are not those"
        } else {
            "before ICResp; is it an NVMe/TCP target?"
        };
        assert!(cause.contains(expected), "{what}: {cause}");
    }
}

#[test]
fn other_protocols_are_refused() {
    let others: [&[u8]; 4] = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"MPA ID Rep Frame\0\x01\0\0",
        &[0xff; 256],
    ];
    for other in others {
        let mut site = Site::asking(Qid(0), NONE);
        site.write(other);
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let cause = site.ending();
        assert!(cause.contains("is it an NVMe/TCP target"), "{cause}");
    }
}

#[test]
fn alert_of_tls_names_the_option() {
    for and_closes in [false, true] {
        let mut site = Site::asking(Qid(0), NONE);
        // handshake_failure
        site.write(&[21, 3, 3, 0, 2, 2, 40]);
        if and_closes {
            site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let cause = site.ending();
        assert!(cause.contains("connect with --tls"), "{cause}");
    }
}

#[test]
fn hang_up_names_what_it_may_be() {
    let mut site = Site::asking(Qid(0), NONE);
    site.peer.shutdown(std::net::Shutdown::Both).unwrap();
    let cause = site.ending();
    assert!(cause.contains("before ICResp") && cause.contains("-t rdma"), "{cause}");
    assert!(cause.contains("room for one more connection"), "{cause}");
}

#[test]
fn second_response_ends_the_connection() {
    let mut site = Site::ready(NONE);
    site.write(ToHost::ic_resp(&ic_resp(NONE)).as_bytes());
    assert_eq!(site.rest_after_end()[..12], [2, 0, 24, 0, 24 + 8, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn controller_that_says_nothing_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tcp = Tcp::new(&TcpOptions::default(), &Nqn::from_uuid([1; 16]), &Nqn::DISCOVERY).unwrap();
    let timeout = Duration::from_secs(10);
    let address = listener.local_addr().unwrap();
    let queue =
        OpenQueue { qid: Qid(0), entries: ENTRIES, address, source: None, private_data: &[0; 32], timeout };
    tcp.open(Duration::from_secs(1), &queue).unwrap();
    assert_eq!(tcp.poll_timeout(), Some(Duration::from_secs(11)));
    assert!(tcp.poll_event(Duration::from_millis(10_999)).is_none());
    let event = tcp.poll_event(Duration::from_secs(11));
    assert!(matches!(event, Some(Event::Failed(Qid(0), QueueFailure::TimedOut))), "{event:?}");
    assert_eq!(tcp.poll_timeout(), None);
}

/// Answers as a controller does, up to Identify: that many commands. Then it says nothing.
fn controller_that_answers(listener: &TcpListener, commands: Option<u16>) {
    let Ok((mut peer, _)) = listener.accept() else { return };
    let mut header = [0; 128];
    let Some(commands) = commands.filter(|_| peer.read_exact(&mut header).is_ok()) else {
        // Until the host has had enough.
        return drop(peer.read_to_end(&mut Vec::new()));
    };
    peer.write_all(ToHost::ic_resp(&ic_resp(NONE)).as_bytes()).unwrap();
    for number in 0..=u16::MAX {
        let mut capsule = [0; 72];
        if peer.read_exact(&mut capsule).is_err() {
            return;
        }
        let len = u32::from_le_bytes(capsule[4..8].try_into().unwrap()) as usize;
        peer.read_exact(&mut vec![0; len - capsule.len()]).unwrap();
        if number >= commands {
            continue;
        }
        let sqe = &capsule[8..];
        // Connect: the controller's number; Property Get: CAP (queues of 128 entries, ready in 10 s, NVM), VS 2.0, CSTS.RDY.
        let dw0_1: u64 = match (sqe[4], sqe[44]) {
            (1, _) => 1,
            (4, 0) => 127 | 20 << 24 | 1 << 37,
            (4, 8) => 2 << 16,
            (4, 0x1c) => 1,
            _ => 0,
        };
        let mut response = [0; 24];
        (response[0], response[2], response[4]) = (5, 24, 24);
        response[8..16].copy_from_slice(&dw0_1.to_le_bytes());
        response[16..18].copy_from_slice(&(number + 1).to_le_bytes());
        response[20..22].copy_from_slice(&sqe[2..4]);
        peer.write_all(&response).unwrap();
    }
}

/// In the time that the user gave it, and not in a minute for each question.
#[test]
fn connection_to_a_controller_that_answers_half_is_given_up_in_time() {
    let connecting = State::Connecting(Qid(0));
    let waits = [
        (None, connecting),
        (Some(0), connecting),
        (Some(1), State::Enabling),
        (Some(5), State::Identifying),
    ];
    let quarter = Some(Duration::from_millis(250));
    for (commands, state) in waits {
        for (connect_timeout, open_timeout) in [(quarter, None), (None, quarter)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let controller = std::thread::spawn(move || controller_that_answers(&listener, commands));
            let host = HostIdentity::generate().unwrap();
            let mut options = Options::with_host(address, Nqn::from_uuid([1; 16]), host);
            options.transport = TransportOptions::Tcp(TcpOptions::default());
            (options.connect_timeout, options.open_timeout) = (connect_timeout, open_timeout);
            let start = Instant::now();
            let error = block_on(Connection::connect(options)).unwrap_err();
            assert!(start.elapsed() < Duration::from_secs(9), "{commands:?}: {error}");
            let Error::Association { source, .. } = error else { panic!("{commands:?}: {error}") };
            match &*source {
                AssociationError::TimedOut { state: given_up } => assert_eq!(*given_up, state),
                // The transport's own clock may be the first.
                AssociationError::Queue { failure: QueueFailure::TimedOut, .. } if commands.is_none() => {}
                error => panic!("{commands:?}: {error}"),
            }
            controller.join().unwrap();
        }
    }
}

#[test]
fn nobody_listens_is_unreachable() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut tcp = Tcp::new(&TcpOptions::default(), &Nqn::from_uuid([1; 16]), &Nqn::DISCOVERY).unwrap();
    let timeout = Duration::from_secs(10);
    let queue =
        OpenQueue { qid: Qid(0), entries: ENTRIES, address, source: None, private_data: &[0; 32], timeout };
    let failure = match tcp.open(Duration::ZERO, &queue) {
        Err(failure) => failure,
        Ok(()) => loop {
            tcp.poll();
            if let Some(Event::Failed(_, failure)) = tcp.poll_event(Duration::ZERO) {
                break failure;
            }
        },
    };
    assert!(matches!(failure, QueueFailure::Unreachable(_)), "{failure}");
}

/// How long the queue that [`opened_with_tls`] opens may take.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// A queue over TLS that is being opened, with this key, and the socket of its peer.
fn opened_with_tls(key: &Key) -> (Tcp, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = TcpOptions::default().with_tls(TlsOptions::new(key.clone()));
    let mut tcp = Tcp::new(&options, &Nqn::from_uuid([1; 16]), &Nqn::DISCOVERY).unwrap();
    let address = listener.local_addr().unwrap();
    let (qid, timeout) = (Qid(0), SET_UP_TIMEOUT);
    let queue = OpenQueue { qid, entries: ENTRIES, address, source: None, private_data: &[0; 32], timeout };
    tcp.open(Duration::ZERO, &queue).unwrap();
    let (peer, _) = listener.accept().unwrap();
    peer.set_nonblocking(true).unwrap();
    (tcp, peer)
}

/// The failure of that queue, once `act` has made the peer do what leads to it.
fn failure_after(tcp: &mut Tcp, mut act: impl FnMut()) -> QueueFailure {
    let begun = Instant::now();
    loop {
        tcp.poll();
        tcp.flush();
        act();
        if let Some(Event::Failed(_, failure)) = tcp.poll_event(Duration::ZERO) {
            return failure;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no failure comes");
        std::thread::yield_now();
    }
}

/// The failure of a queue over TLS whose peer says `answer`, and then closes if it is to.
fn tls_failure(answer: &[u8], closes: bool) -> QueueFailure {
    let (mut tcp, mut peer) = opened_with_tls(&Key::new(&[7; 32], None).unwrap());
    let mut hello = [0; 4096];
    let begun = Instant::now();
    let mut answered = false;
    loop {
        tcp.poll();
        tcp.flush();
        if !answered && let Ok(len) = peer.read(&mut hello) {
            assert!(len > 100 && hello[0] == 22, "a ClientHello, and no ICReq before it");
            peer.write_all(answer).unwrap();
            answered = true;
        }
        if answered && closes {
            let _ = peer.shutdown(std::net::Shutdown::Both);
        }
        // Who says nothing has ten seconds of the clock.
        let now = if answered && !closes && answer.is_empty() { SET_UP_TIMEOUT } else { Duration::ZERO };
        if let Some(Event::Failed(_, failure)) = tcp.poll_event(now) {
            return failure;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no failure comes");
        std::thread::yield_now();
    }
}

#[test]
fn tls_that_cannot_be_had_says_what_to_do() {
    let text = |answer: &[u8], closes| tls_failure(answer, closes).to_string();
    let refused = text(&[21, 3, 3, 0, 2, 2, 115], false);
    assert!(refused.contains("unknown_psk_identity") && refused.contains("same key"), "{refused}");
    let closed = text(&[], true);
    assert!(closed.contains("is it a port with TLS"), "{closed}");
    // A target without TLS takes the ClientHello for a broken ICReq: it says so, and closes.
    let plain = text(&[3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], true);
    assert!(plain.contains("TLS"), "{plain}");
    assert!(matches!(tls_failure(&[], false), QueueFailure::TimedOut));
}

#[test]
fn reset_in_the_tls_handshake_says_what_it_may_be() {
    let (mut tcp, peer) = opened_with_tls(&Key::new(&[7; 32], None).unwrap());
    let mut peer = Some(peer);
    let failure = failure_after(&mut tcp, || {
        // To close a socket with unread bytes resets the connection.
        if peer.as_ref().is_some_and(|peer| peer.peek(&mut [0]).is_ok()) {
            peer = None;
        }
    });
    let text = failure.to_string();
    assert!(text.contains("TLS handshake: ") && text.contains("is it a port with TLS"), "{text}");
}

#[test]
fn answer_that_breaks_tls_says_what_it_may_be() {
    // A Finished where a ServerHello is due.
    let text = tls_failure(&[22, 3, 3, 0, 5, 20, 0, 0, 1, 0], false).to_string();
    assert!(text.contains("is it an NVMe/TCP port with TLS"), "{text}");
}

#[test]
fn end_behind_the_tls_handshake_does_not_advise_tls() {
    let key = Key::new(&[7; 32], None).unwrap();
    let (mut tcp, peer) = opened_with_tls(&key);
    let mut keys = Keys::default();
    keys.insert(Nqn::from_uuid([1; 16]), Some(key));
    let find: Arc<FindKey> = Arc::new(move |identity| keys.find(identity).map_err(|error| error.to_string()));
    let mut target = Stream::take_over(&StreamConfig::default(), peer).unwrap();
    target.accept_tls(&TlsAcceptor::new(find).unwrap()).unwrap();
    let mut target = Some(target);
    let failure = failure_after(&mut tcp, || {
        if target.as_mut().is_some_and(|target| target.handshake().unwrap().is_some()) {
            target = None;
        }
    });
    let text = failure.to_string();
    assert!(text.contains("before ICResp, behind the TLS handshake"), "{text}");
    assert!(text.contains("room for one more connection"), "{text}");
    assert!(!text.contains("--tls") && !text.contains("-t rdma"), "{text}");
}
