//! Peers that are no hosts, or mean no good: bounded time and memory, a line each, and nobody else suffers.

use crate::host::{Ask, DISCOVERY, Host, Pdu, Queue};
use crate::world::{World, narrow, settings};
use nvme_proto::{Cntlid, SglDescriptor, Sqe, Status};
use nvmf_stream::HalfOpenLimits;
use nvmf_target::settings::Settings;
use nvmf_target::transport::tcp::TcpOptions;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Row 34: other protocols, noise, and a PLEN of 4 GiB.
#[test]
fn row_34_other_protocols_are_refused_and_counted() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 9, Ask::default());
    let mut good = Host::io(&mut world, 9, Ask::default(), 1, cntlid);
    let mut huge = Ask::default().ic_req().to_vec();
    huge[4..8].fill(0xff);
    let others: [(&str, &[u8]); 6] = [
        ("HTTP", b"GET / HTTP/1.1\r\nHost: target\r\n\r\n"),
        ("MPA", b"MPA ID Req Frame\x40\x01\x00\x20"),
        ("4 GiB", &huge),
        ("ones", &[0xff; 4096]),
        ("SSH", b"SSH-2.0-OpenSSH_10.0\r\n"),
        ("iSCSI", &[0x43; 48]),
    ];
    for (at, (what, bytes)) in others.into_iter().enumerate() {
        let mut peer = Host::tcp(&world, 1);
        peer.send(&mut world, bytes);
        // What it is told fits into one packet, and it may be lost when the peer sends on.
        if let Pdu::Term { fes, .. } = peer.pdu(&mut world) {
            assert_eq!(fes, 1, "{what}");
        }
        world.until_counted("rejected_parameters", at as u64 + 1);
        good.check(&mut world, at as u32);
    }
    // Zeros are an ICReq whose HLEN is 0.
    let mut peer = Host::tcp(&world, 1);
    peer.send(&mut world, &[0; 4096]);
    world.until_counted("rejected_parameters", 7);
    assert_eq!(world.queues(), 2);
}

/// Row 34: a connection without a Connect ends in time, whatever comes of it byte by byte.
#[test]
fn row_34_connect_that_does_not_come_ends_its_queue() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 9, Ask::default());
    let mut good = Host::io(&mut world, 9, Ask::default(), 1, cntlid);
    let connect = Queue::ADMIN.command(SglDescriptor::in_capsule(0, 1024));
    let mut peers: Vec<(usize, Host)> =
        [0, 1, 7, 8, 40, 72, 500].map(|cut| (cut, Host::open(&mut world, 1, Ask::default()))).into();
    let capsule = peers[0].1.capsule(&connect, Queue::ADMIN.data(1).as_bytes());
    for (cut, peer) in &mut peers {
        peer.send(&mut world, &capsule[..*cut]);
    }
    for second in 0..40 {
        world.pass(Duration::from_secs(1));
        for (cut, peer) in &mut peers {
            if *cut > 0 && second % 2 == 0 {
                peer.send(&mut world, &capsule[*cut + second / 2..=*cut + second / 2]);
            }
        }
    }
    assert_eq!(world.queues(), 2, "40 s have passed");
    for (cut, peer) in &mut peers {
        assert_eq!(peer.pdu(&mut world), Pdu::End, "after {cut} bytes");
    }
    assert_eq!(world.count("violations"), 7, "each is counted");
    assert_eq!((world.slots_out(), world.buffers_out()), (0, 0));
    good.check(&mut world, 1);
}

/// Hosts set up all I/O connections before the first Connect: over a long way that takes its time.
#[test]
fn connect_of_an_io_queue_may_come_late() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut ios: Vec<Host> = (0..4).map(|_| Host::open(&mut world, 1, Ask::default())).collect();
    world.pass(Duration::from_secs(20));
    for (at, io) in ios.iter_mut().enumerate() {
        io.connect(&mut world, 1, &Queue { qid: at as u16 + 1, cntlid, ..Queue::ADMIN }).unwrap();
        io.check(&mut world, at as u32);
    }
}

/// Many more machines than there are connections, one after the other.
#[test]
fn machines_come_and_go() {
    let mut world = World::new();
    for machine in 1..=50 {
        let (admin, cntlid) = Host::admin(&mut world, machine, Ask::default());
        Host::io(&mut world, machine, Ask::default(), 1, cntlid).check(&mut world, machine.into());
        drop(admin);
        if machine % 4 == 0 {
            world.until_clean();
        }
    }
}

/// No I/O queues are granted for which there are no connections; hosts open all of them before the first Connect.
#[test]
fn io_queues_that_are_granted_can_be_connected() {
    for workers in [1, 2] {
        let settings = Settings { connections: 4, ..settings() };
        let mut world = World::with(workers, &settings, &Default::default());
        let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
        let cid =
            admin.start(&mut world, &Sqe { cdw10: 7.into(), cdw11: 0x000f_000f.into(), ..Sqe::new(9) }, &[]);
        let cqe = admin.finish(&mut world, cid, &[]).0.unwrap();
        let granted = (cqe.dw0.get() as u16 + 1).min((cqe.dw0.get() >> 16) as u16 + 1);
        assert_eq!(usize::from(granted), 4 * workers - 1);
        let mut ios: Vec<Host> = (0..granted).map(|_| Host::open(&mut world, 1, Ask::default())).collect();
        world.pass(Duration::from_secs(3));
        for (io, qid) in ios.iter_mut().zip(1..) {
            io.connect(&mut world, 1, &Queue { qid, cntlid, ..Queue::ADMIN }).unwrap();
        }
        ios.iter_mut().for_each(|io| io.check(&mut world, 1));
        drop((admin, ios));
        world.until_clean();
    }
}

/// Row 11: where there is no room, the connection closes; the host tries again, and gets in when there is.
#[test]
fn row_11_connection_without_room_is_closed_and_counted() {
    let settings = Settings { connections: 3, ..settings() };
    let mut world = World::with(1, &settings, &Default::default());
    let (admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut ios: Vec<Host> =
        (1..=2).map(|qid| Host::io(&mut world, 1, Ask::default(), qid, cntlid)).collect();
    for round in 0..5 {
        let mut late = Host::tcp(&world, 2);
        late.send(&mut world, &Ask::default().ic_req());
        assert_eq!(late.pdu(&mut world), Pdu::End);
        assert_eq!(world.count("rejected_resources"), round + 1);
        ios[0].check(&mut world, round as u32);
    }
    drop(ios.pop());
    world.until_queues(2);
    let mut late = Host::open(&mut world, 2, Ask::default());
    assert!(late.connect(&mut world, 2, &Queue::ADMIN).is_ok());
    drop((admin, ios, late));
    world.until_clean();
}

/// Silent connections of one machine, many more than there are places: another machine gets in at once.
#[test]
fn silent_connections_keep_nobody_out() {
    let half_open = HalfOpenLimits { max: 32, per_machine: 4 };
    let options = TcpOptions { half_open, ..TcpOptions::default() };
    let mut world = World::with(1, &settings(), &options);
    let mut silent = Vec::new();
    let mut hosts = Vec::new();
    for round in 0..200 {
        let mut peer = Host::tcp(&world, 1);
        match round % 3 {
            0 => peer.send(&mut world, &Ask::default().ic_req()),
            1 => peer.send(&mut world, &Ask::default().ic_req()[..100]),
            _ => {}
        }
        silent.push(peer);
        world.ticks(2);
        if round % 50 == 49 {
            hosts.push(Host::admin(&mut world, 2, Ask::default()));
        }
    }
    for (admin, cntlid) in &mut hosts {
        assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
        let mut io = Host::io(&mut world, 2, Ask::default(), 1, *cntlid);
        io.check(&mut world, 1);
    }
    assert!(world.comes_to_rest(), "silent connections let the worker sleep: {:?}", world.last);
    assert!(!world.is_woken());
    drop((silent, hosts));
    world.until_clean();
}

/// NQN, Host Identifier and controller ID are no secret.
#[test]
fn io_queue_of_another_address_is_refused() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let queue = Queue { qid: 1, cntlid, ..Queue::ADMIN };
    let mut other = Host::open(&mut world, 8, Ask::default());
    let refused = other.connect(&mut world, 1, &queue).expect_err("the controller is not this machine's");
    assert!(refused.status().is(Status::CONNECT_INVALID_PARAMETERS), "{}", refused.status());
    Host::io(&mut world, 1, Ask::default(), 1, cntlid).check(&mut world, 1);
}

/// Names cost nothing: controllers of one machine under many names, without Keep Alive.
#[test]
fn machine_with_its_share_of_the_connections_is_told_to_come_back() {
    let settings = Settings { connections: 256, ..settings() };
    let mut world = World::with(1, &settings, &Default::default());
    let connect = |world: &mut World, machine: u8, host: u8| {
        let mut queue = Host::open(world, machine, Ask::default());
        let connected = queue.connect(world, host, &Queue { kato_ms: 0, ..Queue::ADMIN });
        (queue, connected)
    };
    let mut held = Vec::new();
    let refused = loop {
        let (queue, connected) = connect(&mut world, 9, 100 + held.len() as u8);
        match connected {
            Ok(_) => held.push(queue),
            Err(refused) => break refused,
        }
    };
    assert_eq!(held.len(), 128, "half of the places");
    assert_eq!(refused.status(), Status::CONNECT_CONTROLLER_BUSY, "and no Do Not Retry");
    assert_eq!(world.count("connects_refused"), 1);
    // Another one has room, and the first again when it has less.
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    for qid in 1..=8 {
        Host::io(&mut world, 1, Ask::default(), qid, cntlid).check(&mut world, qid.into());
    }
    held.truncate(16);
    world.until("they are gone", |world| (world.queues() < 32).then_some(()));
    assert!(connect(&mut world, 9, 99).1.is_ok());
}

/// The host that is granted the most leaves some for the next.
#[test]
fn io_queues_are_granted_so_that_others_have_some() {
    let settings = Settings { connections: 160, ..settings() };
    let mut world = World::with(1, &settings, &Default::default());
    let mut held = Vec::new();
    let grant = |world: &mut World, machine: u8| {
        let (mut admin, cntlid) = Host::admin(world, machine, Ask::default());
        let wish = Sqe { cdw10: 7.into(), cdw11: 0x0007_0007.into(), ..Sqe::new(9) };
        let cid = admin.start(world, &wish, &[]);
        let granted = admin.finish(world, cid, &[]).0.unwrap().dw0.get() as u16 + 1;
        let ios: Vec<Host> =
            (1..=granted).map(|qid| Host::io(world, machine, Ask::default(), qid, cntlid)).collect();
        (granted, admin, ios)
    };
    let granted: Vec<u16> = [9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 2]
        .into_iter()
        .map(|machine| {
            let (granted, admin, ios) = grant(&mut world, machine);
            held.push((admin, ios));
            granted
        })
        .collect();
    assert_eq!(granted, [8, 8, 8, 8, 8, 8, 8, 8, 7, 8, 8]);
}

/// Connections that broke the protocol and do not close: the table of those that linger fills, and nobody is kept out.
#[test]
fn broken_connections_that_never_close_keep_nobody_out() {
    let mut world = World::new();
    let mut stuck = Vec::new();
    for at in 0..400 {
        let mut peer = Host::tcp(&world, 1);
        let mut bytes = Ask::default().ic_req();
        bytes[8] = 1;
        peer.send(&mut world, &bytes);
        // Some go on sending.
        if at % 2 == 0 {
            peer.send(&mut world, &[0; 512]);
        }
        stuck.push(peer);
        if at % 100 == 99 {
            let (admin, cntlid) = Host::admin(&mut world, 2, Ask::default());
            Host::io(&mut world, 2, Ask::default(), 1, cntlid).check(&mut world, at);
            drop(admin);
        }
    }
    world.until_counted("rejected_parameters", 400);
    world.pass(Duration::from_secs(2));
    for peer in &mut stuck {
        while peer.pdu_or_end(&mut world) != Pdu::End {}
    }
    world.until_clean();
}

/// Row 30: discovery controllers that come and go while their sockets are full.
#[test]
fn row_30_discovery_storms_on_full_sockets() {
    let mut world = World::with(1, &settings(), &narrow());
    let (_admin, cntlid) = Host::admin(&mut world, 9, Ask::default());
    let mut good = Host::io(&mut world, 9, Ask::default(), 1, cntlid);
    let queue = Queue { subsystem: DISCOVERY, cntlid: Cntlid::DYNAMIC, ..Queue::ADMIN };
    let page = Sqe { sgl: SglDescriptor::transport(8192), ..Sqe::new(2) };
    let page = Sqe { cdw10: (0x70 | 2047 << 16).into(), ..page };
    for round in 0..40 {
        let mut host = Host::tcp_with(&world, 1, Some(2048));
        host.initialize(&mut world, Ask::default());
        host.connect(&mut world, 1, &queue).unwrap();
        host.enable(&mut world);
        for _ in 0..30 {
            host.start(&mut world, &page, &[]);
        }
        world.ticks(round % 7);
        if round % 2 == 0 {
            host.reset()
        } else {
            drop(host)
        }
        good.check(&mut world, round as u32);
    }
    world.until_queues(2);
    world.ticks(10);
    assert_eq!((world.buffers_out(), world.controllers()), (0, 1));
}

/// An idle host costs no turns: connected queues, a full one, one within a PDU.
#[test]
fn idle_connections_let_the_worker_sleep() {
    let mut world = World::new();
    assert!(world.comes_to_rest() && !world.is_woken(), "without connections");
    let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    admin.start(&mut world, &Sqe::new(0x0c), &[]);
    io.check(&mut world, 1);
    assert!(world.comes_to_rest() && !world.is_woken(), "connected: {:?}", world.last);
    let capsule = io.capsule(&crate::host::write(0, SglDescriptor::in_capsule(0, 4096), 4096), &[0; 4096]);
    for cut in [4, 40, 72, 100] {
        let mut io = Host::io(&mut world, 1, Ask::default(), 2, cntlid);
        io.send(&mut world, &capsule[..cut]);
        assert!(world.comes_to_rest() && !world.is_woken(), "within a PDU: {:?}", world.last);
        drop(io);
        world.until_queues(2);
    }
    let mut silent = Host::tcp(&world, 1);
    silent.send(&mut world, &[0; 3]);
    assert!(world.comes_to_rest() && !world.is_woken(), "within ICReq: {:?}", world.last);
}

/// A target that stood still counts no time against its hosts that they did not have: what came meanwhile is read
/// first.
#[test]
fn what_came_during_a_stall_is_in_time() {
    let mut world = World::new();
    let (mut admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let mut io = Host::io(&mut world, 1, Ask::default(), 1, cntlid);
    let mut late = Host::tcp(&world, 1);
    late.send(&mut world, &Ask::default().ic_req()[..64]);
    let capsule = io.capsule(&crate::host::write(0, SglDescriptor::in_capsule(0, 4096), 4096), &[1; 4096]);
    io.send(&mut world, &capsule[..2000]);
    // Long enough to be noticed.
    world.pass(Duration::from_secs(9));
    io.send(&mut world, &capsule[2000..]);
    late.send(&mut world, &Ask::default().ic_req()[64..]);
    world.now += Duration::from_secs(60);
    assert!(matches!(io.pdu(&mut world), Pdu::Response(cqe) if cqe.status() == Status::SUCCESS));
    assert_eq!(late.take(&mut world, 128).expect("ICResp")[0], 1);
    assert!(late.connect(&mut world, 2, &Queue::ADMIN).is_ok());
    assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
    io.check(&mut world, 1);
}
