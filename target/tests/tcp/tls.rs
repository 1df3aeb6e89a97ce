//! TLS: who gets in and who does not, and what breaks it later. Nobody else suffers.

use crate::host::{Ask, Host, Pdu, Queue};
use crate::pdu::h2c_term_req;
use crate::world::{SUBSYSTEM, World, settings};
use nvme_proto::{Nqn, Status};
use nvmf_config::Tls;
use nvmf_stream::TlsError;
use nvmf_target::transport::tcp::{TcpOptions, TlsPorts};
use nvmf_tls::{Hash, Key, Keys, Psk, Version};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// The key of the host with this number.
fn key(host: u8, len: usize) -> Key {
    Key::new(&vec![host; len], Hash::of_len(len)).unwrap()
}

fn nqn(host: u8) -> Nqn {
    let mut uuid = [0; 16];
    uuid[15] = host;
    Nqn::from_uuid(uuid)
}

/// What that host offers.
fn offer(host: u8, len: usize, version: Version) -> Vec<Psk> {
    vec![key(host, len).psk(version, &nqn(host), &SUBSYSTEM.parse().unwrap()).unwrap()]
}

/// A target that knows the keys of hosts 1 (SHA-256), 2 (SHA-384) and 9.
fn world(mode: Tls) -> World {
    world_and_keys(mode).0
}

/// The same, and where its keys are.
fn world_and_keys(mode: Tls) -> (World, Arc<TlsPorts>) {
    let mut keys = Keys::default();
    for (host, len) in [(1, 32), (2, 48), (9, 32)] {
        keys.insert(nqn(host), Some(key(host, len)));
    }
    let ports = Arc::new(TlsPorts::new([(1, mode)], keys, None).unwrap());
    let options = TcpOptions { tls: Some(Arc::clone(&ports)), ..TcpOptions::default() };
    (World::with(1, &settings(), &options), ports)
}

/// The key of TLS of a key that an authentication of host 1 has made.
fn generated(byte: u8, len: usize) -> Psk {
    Psk::generated(&vec![byte; len], &nqn(1), &SUBSYSTEM.parse().unwrap()).unwrap()
}

/// Secure channel concatenation: the second connection.
#[test]
fn host_with_a_generated_key_uses_the_disk() {
    for (len, mode) in [(32, Tls::Concat), (48, Tls::Required)] {
        let (mut world, keys) = world_and_keys(mode);
        let psk = generated(7, len);
        keys.insert_generated(nqn(1), SUBSYSTEM.parse().unwrap(), psk.clone(), None);
        let (_admin, cntlid) = Host::secure_admin(&mut world, 1, std::slice::from_ref(&psk));
        let queue = Queue { qid: 1, cntlid, ..Queue::ADMIN };
        let mut io = Host::tls(&world, 1, &[psk]);
        io.secure(&mut world).unwrap();
        io.initialize(&mut world, Ask::default());
        io.connect(&mut world, 1, &queue).unwrap();
        io.check(&mut world, 1);
        // A queue with the configured key is not of this controller.
        let mut other = Host::tls(&world, 1, &offer(1, 32, Version::V1));
        other.secure(&mut world).unwrap();
        other.initialize(&mut world, Ask::default());
        let refusal = other.connect(&mut world, 1, &Queue { qid: 2, ..queue }).unwrap_err();
        assert!(refusal.status().is(Status::CONNECT_INVALID_PARAMETERS), "{}", refusal.status());
        io.check(&mut world, 2);
    }
}

/// One that was never made, one that was replaced, one whose host is not trusted any more; the name of one that is known
/// with another key; and one that another host states.
#[test]
fn generated_key_that_is_not_known_is_refused() {
    let (mut world, keys) = world_and_keys(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    let subsystem: Nqn = SUBSYSTEM.parse().unwrap();
    let [first, second, third] = [1, 2, 3].map(|byte| generated(byte, 32));
    for psk in [&first, &second] {
        keys.insert_generated(nqn(1), subsystem, psk.clone(), None);
    }
    // Keys are numbered from 1 on.
    keys.insert_generated(nqn(1), subsystem, third.clone(), Some(1));
    let forged = Psk { secret: first.secret.clone(), ..second };
    for (at, (psk, alert)) in [(generated(9, 32), 115), (first, 115), (forged, 51)].into_iter().enumerate() {
        let error = Host::tls(&world, 1, &[psk]).secure(&mut world).unwrap_err();
        assert!(matches!(error, TlsError::Alert(of) if of == alert), "{at}: {error:?}");
        world.until_counted("tls_refused", at as u64 + 1);
    }
    let mut thief = Host::tls(&world, 1, std::slice::from_ref(&third));
    thief.secure(&mut world).unwrap();
    thief.initialize(&mut world, Ask::default());
    let refusal = thief.connect(&mut world, 2, &Queue::ADMIN).unwrap_err();
    assert!(refusal.status().is(Status::CONNECT_INVALID_HOST), "{}", refusal.status());
    keys.retain_generated(|host| *host != nqn(1));
    assert!(Host::tls(&world, 1, &[third]).secure(&mut world).is_err());
    world.until_counted("tls_refused", 4);
    good.check(&mut world, 1);
}

/// A host that must not suffer.
fn good(world: &mut World) -> (Host, Host) {
    let keys = offer(9, 32, Version::V1);
    let (admin, cntlid) = Host::secure_admin(world, 9, &keys);
    let mut io = Host::tls(world, 9, &keys);
    io.secure(world).unwrap();
    io.initialize(world, Ask::default());
    io.connect(world, 9, &Queue { qid: 1, cntlid, ..Queue::ADMIN }).unwrap();
    (admin, io)
}

#[test]
fn host_with_its_key_uses_the_disk() {
    for mode in [Tls::Required, Tls::Allowed] {
        let mut world = world(mode);
        for (host, len) in [(1, 32), (2, 48)] {
            for version in [Version::V0, Version::V1] {
                let keys = offer(host, len, version);
                let (admin, cntlid) = Host::secure_admin(&mut world, host, &keys);
                let mut io = Host::tls(&world, host, &keys);
                assert_eq!(io.secure(&mut world).unwrap().identity, keys[0].identity.as_bytes());
                let ask = Ask { header: true, data: true, ..Ask::default() };
                io.initialize(&mut world, ask);
                io.connect(&mut world, host, &Queue { qid: 1, cntlid, ..Queue::ADMIN }).unwrap();
                io.check(&mut world, 1);
                let data = crate::host::pattern(7, 300_032);
                assert_eq!(io.write_r2t(&mut world, 0, &data), Status::SUCCESS);
                assert!(io.read(&mut world, 0, data.len()) == data);
                drop((admin, io));
                world.until_clean();
            }
        }
        assert_eq!((world.count("tls_accepted"), world.count("tls_refused")), (8, 0));
    }
}

#[test]
fn port_without_the_right_tls_refuses_and_counts() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    let mut plain = Host::tcp(&world, 1);
    plain.send(&mut world, &Ask::default().ic_req());
    assert_eq!(plain.pdu(&mut world), Pdu::End);
    world.until_counted("tls_refused", 1);
    // Unknown hosts, another key in both versions, a key of the other length.
    let stranger = vec![key(5, 32).psk(Version::V1, &nqn(5), &Nqn::DISCOVERY).unwrap()];
    let other = |version| vec![key(3, 32).psk(version, &nqn(1), &Nqn::DISCOVERY).unwrap()];
    let longer = vec![key(1, 48).psk(Version::V0, &nqn(1), &Nqn::DISCOVERY).unwrap()];
    let foreign = vec![Psk { identity: "somebody".into(), ..stranger[0].clone() }];
    let wrong =
        [(stranger, 115), (other(Version::V1), 115), (other(Version::V0), 51), (longer, 115), (foreign, 115)];
    for (at, (keys, alert)) in wrong.into_iter().enumerate() {
        let mut host = Host::tls(&world, 1, &keys);
        let error = host.secure(&mut world).unwrap_err();
        assert!(matches!(error, TlsError::Alert(of) if of == alert), "{}: {error:?}", keys[0].identity);
        world.until_counted("tls_refused", at as u64 + 2);
        good.check(&mut world, at as u32);
    }
    assert_eq!(world.queues(), 2);
}

#[test]
fn client_hello_on_a_plain_port_is_refused_and_counted() {
    for mut world in [World::new(), world(Tls::Off)] {
        let mut host = Host::tls(&world, 1, &offer(1, 32, Version::V1));
        let error = host.secure(&mut world).unwrap_err();
        assert!(matches!(error, TlsError::Closed | TlsError::Io(_)), "{error:?}");
        world.until_counted("tls_refused", 1);
    }
}

#[test]
fn port_that_allows_tls_takes_plain_hosts() {
    let mut world = world(Tls::Allowed);
    let (_admin, mut good) = good(&mut world);
    let (_plain_admin, cntlid) = Host::admin(&mut world, 5, Ask::default());
    let mut plain = Host::io(&mut world, 5, Ask::default(), 1, cntlid);
    plain.check(&mut world, 1);
    good.check(&mut world, 2);
}

/// Between the handshake and ICReq.
#[test]
fn connection_that_ends_behind_its_handshake_is_counted() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    let secured = |world: &mut World| {
        let mut host = Host::tls(world, 1, &offer(1, 32, Version::V1));
        host.secure(world).unwrap();
        host
    };
    let damaged = [&[23, 3, 3, 0, 32][..], &[7; 32]].concat();
    let breaks = [damaged, Ask::default().ic_req().to_vec(), vec![21, 3, 3, 0, 2, 2, 80]];
    for (at, bytes) in breaks.into_iter().enumerate() {
        let host = secured(&mut world);
        (&host.socket).write_all(&bytes).unwrap();
        world.until_counted("tls_refused", at as u64 + 1);
    }
    secured(&mut world).stream().shutdown_write();
    world.until_counted("tls_refused", 4);
    let mut host = secured(&mut world);
    host.send(&mut world, &h2c_term_req());
    world.until_counted("tls_refused", 5);
    good.check(&mut world, 1);
}

/// Whoever knows the names of a host with TLS, which are no secret, and has its address.
#[test]
fn plain_io_queue_of_a_controller_with_tls_is_refused() {
    let mut world = world(Tls::Allowed);
    let (mut admin, cntlid) = Host::secure_admin(&mut world, 1, &offer(1, 32, Version::V1));
    let queue = Queue { qid: 1, cntlid, ..Queue::ADMIN };
    let mut plain = Host::open(&mut world, 1, Ask::default());
    let refusal = plain.connect(&mut world, 1, &queue).expect_err("it has no key");
    assert!(refusal.status().is(Status::CONNECT_INVALID_PARAMETERS), "{}", refusal.status());
    assert_eq!(world.count("connects_refused"), 1);
    let mut io = Host::tls(&world, 1, &offer(1, 32, Version::V1));
    io.secure(&mut world).unwrap();
    io.initialize(&mut world, Ask::default());
    io.connect(&mut world, 1, &queue).unwrap();
    io.check(&mut world, 1);
    assert_eq!(admin.run(&mut world, &nvme_proto::Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
}

#[test]
fn host_with_the_key_of_another_is_refused() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    let discovery = Queue { subsystem: crate::host::DISCOVERY, ..Queue::ADMIN };
    for (at, (host, queue)) in [(2, Queue::ADMIN), (1, discovery)].into_iter().enumerate() {
        let mut thief = Host::tls(&world, 1, &offer(1, 32, Version::V1));
        thief.secure(&mut world).unwrap();
        thief.initialize(&mut world, Ask::default());
        let refusal = thief.connect(&mut world, host, &queue).unwrap_err();
        assert!(refusal.status().is(Status::CONNECT_INVALID_HOST), "{}", refusal.status());
        assert_eq!(world.count("connects_refused"), at as u64 + 1);
        good.check(&mut world, at as u32);
    }
}

/// Row 34: a handshake that does not come to its end.
#[test]
fn handshake_that_does_not_end_is_given_up_in_time() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    // A record of 200 bytes is announced.
    let mut slow = Host::tcp(&world, 1);
    slow.send(&mut world, &[22, 3, 1, 0, 200]);
    let mut silent = Host::tls(&world, 1, &offer(1, 32, Version::V1));
    assert!(silent.stream().peek(&mut [0]).unwrap().is_none());
    for _ in 0..12 {
        world.pass(Duration::from_secs(1));
        slow.send(&mut world, &[1]);
    }
    world.until_counted("tls_refused", 1);
    assert_eq!(slow.pdu(&mut world), Pdu::End);
    // It has said nothing, so nobody knows that it wanted TLS.
    assert!(silent.secure(&mut world).is_err());
    assert_eq!(world.count("rejected_parameters"), 1);
    good.check(&mut world, 1);
    assert_eq!(world.queues(), 2);
}

#[test]
fn first_bytes_that_are_no_handshake_are_refused() {
    let mut world = world(Tls::Allowed);
    let (_admin, mut good) = good(&mut world);
    let hello: Vec<u8> = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].into_iter().chain([0x5a; 506]).collect();
    for (at, bytes) in
        [&hello[..], &[22; 4096], &[22, 3, 3, 0, 0], &[22, 3, 1, 0, 4, 2, 0, 0, 0]].into_iter().enumerate()
    {
        let mut peer = Host::tcp(&world, 1);
        peer.send(&mut world, bytes);
        peer.socket.shutdown(std::net::Shutdown::Write).unwrap();
        world.until_counted("tls_refused", at as u64 + 1);
        good.check(&mut world, at as u32);
    }
}

/// What is no host of NVMe/TCP has not forgotten TLS.
#[test]
fn stranger_at_a_port_that_requires_tls_is_named() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    for (at, bytes) in
        [&b"MPA ID Req Frame\x40\x01\x00\x00"[..], b"GET / HTTP/1.1\r\n\r\n"].iter().enumerate()
    {
        let mut stranger = Host::tcp(&world, 1);
        stranger.send(&mut world, bytes);
        world.until_counted("rejected_parameters", at as u64 + 1);
        assert_eq!(world.count("tls_refused"), 0);
        good.check(&mut world, at as u32);
    }
    let mut plain = Host::tcp(&world, 1);
    plain.send(&mut world, &Ask::default().ic_req());
    world.until_counted("tls_refused", 1);
}

/// No host sends anything behind ICReq before ICResp.
#[test]
fn bytes_behind_icreq_in_its_record_are_refused() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    let mut hasty = Host::tls(&world, 1, &offer(1, 32, Version::V1));
    hasty.secure(&mut world).unwrap();
    hasty.send(&mut world, &[&Ask::default().ic_req()[..], &[4; 72]].concat());
    world.until_counted("rejected_parameters", 1);
    good.check(&mut world, 1);
}

/// Row 33.
#[test]
fn row_33_what_breaks_tls_ends_its_connection_only() {
    let mut world = world(Tls::Required);
    let (_admin, mut good) = good(&mut world);
    let breaks: [(&str, &[u8]); 4] = [
        (
            "a damaged record",
            &[
                23, 3, 3, 0, 32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5,
                6, 7, 8, 9, 0, 1, 2,
            ],
        ),
        ("data in clear text", &[23, 3, 3, 0, 4, 1, 2, 3, 4]),
        ("an alert in clear text", &[21, 3, 3, 0, 2, 2, 80]),
        ("another ClientHello", &[22, 3, 3, 0, 5, 1, 0, 0, 1, 0]),
    ];
    for (at, (what, bytes)) in breaks.into_iter().enumerate() {
        let (host, _) = Host::secure_admin(&mut world, 1, &offer(1, 32, Version::V0));
        (&host.socket).write_all(bytes).unwrap();
        world.until_counted("violations", at as u64 + 1);
        world.until_queues(2);
        good.check(&mut world, at as u32);
        drop(host);
        assert_eq!(world.count("violations"), at as u64 + 1, "{what}");
    }
    // An orderly end is none of these.
    let (host, _) = Host::secure_admin(&mut world, 1, &offer(1, 32, Version::V0));
    host.stream().shutdown_write();
    world.until_queues(2);
    assert_eq!(world.count("violations"), 4);
    good.check(&mut world, 9);
}
