//! Data: in order and whole, whatever the order in which devices, sockets and hosts get on.

use crate::host::{Ask, Host, LAST, Pdu, Queue, R2t, SUCCESS, pattern, read, write};
use crate::world::{BLOCKS, World, narrow, settings};
use nvme_proto::nvm::rw::flush;
use nvme_proto::{Nsid, SglDescriptor, Sqe, Status};
use nvmf_target::limits::LARGE_BUFFER_LEN;
use std::collections::HashMap;

/// A command under way.
struct Under {
    /// What is written, or must be read.
    data: Vec<u8>,
    reads: bool,
    found: Vec<u8>,
    last: bool,
}

/// Commands of one queue under way, of which PDUs come in any order.
#[derive(Default)]
struct Many {
    commands: HashMap<u16, Under>,
    /// R2Ts with bytes that are still to be sent.
    asked: Vec<R2t>,
}

impl Many {
    fn start(&mut self, world: &mut World, io: &mut Host, lba: u64, data: Vec<u8>, reads: bool) {
        let sqe = match reads {
            true => read(lba, data.len()),
            false => write(lba, SglDescriptor::transport(data.len() as u32), data.len()),
        };
        let cid = io.start(world, &sqe, &[]);
        self.commands.insert(cid, Under { data, reads, found: Vec::new(), last: false });
    }

    fn end(&mut self, cid: u16, status: Status) {
        let command = self.commands.remove(&cid).expect("a command under way");
        assert_eq!(status, Status::SUCCESS);
        if command.reads {
            assert!(command.last && command.found == command.data, "a read of {} bytes", command.data.len());
        }
    }

    fn on_pdu(&mut self, pdu: Pdu) {
        match pdu {
            Pdu::Response(cqe) => self.end(cqe.cid().0, cqe.status()),
            Pdu::Data { cid, offset, data, flags } => {
                let command = self.commands.get_mut(&cid).expect("a command under way");
                assert_eq!(offset as usize, command.found.len(), "C2HData in order, without a gap");
                command.found.extend(data);
                command.last = flags & LAST != 0;
                assert_eq!(command.last, command.found.len() == command.data.len(), "LAST_PDU");
                if flags & SUCCESS != 0 {
                    self.end(cid, Status::SUCCESS);
                }
            }
            Pdu::R2t { cid, ttag, offset, len } => self.asked.push(R2t { cid, ttag, offset, len }),
            other => panic!("{other:?}"),
        }
    }

    /// Until all are done. H2CData of all R2Ts take turns, in pieces of so many bytes.
    fn run(&mut self, world: &mut World, io: &mut Host, piece: u32) {
        let mut starts: HashMap<u16, u32> = HashMap::new();
        while !self.commands.is_empty() {
            let mut bytes = Vec::new();
            let mut at = 0;
            while at < self.asked.len() {
                let r2t = self.asked[at];
                let from = starts.remove(&r2t.ttag).unwrap_or(r2t.offset);
                let to = (r2t.offset + r2t.len).min(from + piece);
                let last = to == r2t.offset + r2t.len;
                let data = &self.commands[&r2t.cid].data[from as usize..to as usize];
                bytes.extend(io.h2c_data(r2t, from, data, last));
                if last {
                    self.asked.swap_remove(at);
                } else {
                    starts.insert(r2t.ttag, to);
                    at += 1;
                }
            }
            if !bytes.is_empty() {
                io.send(world, &bytes);
            }
            if self.asked.is_empty() || io.waiting() >= 24 {
                let pdu = io.pdu(world);
                self.on_pdu(pdu);
            }
        }
    }
}

#[test]
fn large_transfers_arrive_in_order() {
    for (round, flow_control) in [true, false].into_iter().enumerate() {
        let mut world = World::new();
        for ask in Ask::DIGESTS {
            let (admin, cntlid) = Host::admin(&mut world, 1, ask);
            let queue = Queue { qid: 1, cntlid, flow_control, ..Queue::ADMIN };
            let mut io = Host::io_with(&mut world, 1, ask, &queue);
            // The disk reorders the chunks of each.
            for (at, piece) in [4096, 10_000, 65536, io.maxh2cdata].into_iter().enumerate() {
                let mut many = Many::default();
                let data: Vec<_> =
                    (0..6).map(|seed| pattern(seed + at as u32 + round as u32, 1 << 20)).collect();
                for (at, data) in data.iter().enumerate() {
                    many.start(&mut world, &mut io, at as u64 * 2048, data.clone(), false);
                }
                many.run(&mut world, &mut io, piece);
                for (at, data) in data.into_iter().enumerate() {
                    assert!(world.on_disk(at as u64 * 2048, 1 << 20) == data);
                    many.start(&mut world, &mut io, at as u64 * 2048, data, true);
                }
                many.run(&mut world, &mut io, piece);
            }
            drop((admin, io));
            world.until_clean();
        }
    }
}

/// Borrowed bytes are overwritten when their turn is over (by the simulated devices): a socket that takes a part of a
/// PDU shows whether the rest was kept.
#[test]
fn slow_reader_gets_what_was_read() {
    for ask in [Ask::default(), Ask::BOTH] {
        let mut world = World::with(1, &settings(), &narrow());
        let (admin, cntlid) = Host::admin(&mut world, 1, ask);
        let mut io = Host::tcp_with(&world, 1, Some(2048));
        io.initialize(&mut world, ask);
        let queue = Queue { qid: 1, cntlid, flow_control: false, ..Queue::ADMIN };
        io.connect(&mut world, 1, &queue).unwrap();
        let data = pattern(1, 1 << 20);
        assert_eq!(io.write_r2t(&mut world, 0, &data), Status::SUCCESS);
        for len in [512usize, 4096, 8192, 16384, 65536] {
            let mut many = Many::default();
            for at in 0..16 {
                let lba = at * 2048 / 16;
                let from = lba as usize * 512;
                many.start(&mut world, &mut io, lba, data[from..from + len].to_vec(), true);
            }
            // Nothing is read for a while.
            world.ticks(100);
            many.run(&mut world, &mut io, 0);
        }
        assert!(io.successes > 0);
        drop((admin, io));
        world.until_clean();
    }
}

#[test]
fn read_with_a_failed_chunk_is_no_success() {
    let mut world = World::new();
    for flow_control in [true, false] {
        let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
        let queue = Queue { qid: 1, cntlid, flow_control, ..Queue::ADMIN };
        let mut io = Host::io_with(&mut world, 1, Ask::default(), &queue);
        let whole = 1 << 20;
        for good in [0, LARGE_BUFFER_LEN, 3 * LARGE_BUFFER_LEN, 5 * LARGE_BUFFER_LEN, whole - 512] {
            let data = pattern(good as u32, good);
            let lba = BLOCKS - good as u64 / 512;
            for (at, block) in data.chunks(512).enumerate() {
                world.disk.borrow_mut().preset(lba + at as u64, block.into());
            }
            let cid = io.start(&mut world, &read(lba, whole), &[]);
            let (cqe, found) = io.finish(&mut world, cid, &[]);
            let status = cqe.expect("a failure is never said by SUCCESS").status();
            assert!(!status.is_success(), "{good} bytes are there: {status}");
            assert!(found.len() <= good && found == data[..found.len()]);
            io.check(&mut world, 1);
        }
        drop((_admin, io));
        world.until_clean();
    }
}

/// The disk has read what comes behind the failed chunk, before it or after it.
#[test]
fn read_with_a_failed_chunk_in_its_middle_is_answered() {
    let mut world = World::new();
    for flow_control in [true, false] {
        let (admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
        let queue = Queue { qid: 1, cntlid, flow_control, ..Queue::ADMIN };
        let mut io = Host::io_with(&mut world, 1, Ask::default(), &queue);
        for chunk in (0..8).cycle().take(64) {
            let good = chunk * LARGE_BUFFER_LEN;
            world.disk.borrow_mut().set_unreadable(Some(good as u64 / 512 + 3));
            let cid = io.start(&mut world, &read(0, 1 << 20), &[]);
            let (cqe, found) = io.finish(&mut world, cid, &[]);
            let status = cqe.expect("a failure is never said by SUCCESS").status();
            assert!(!status.is_success() && found.len() <= good, "chunk {chunk}: {status}");
            world.disk.borrow_mut().set_unreadable(None);
            io.check(&mut world, 1);
        }
        drop((admin, io));
        world.until_clean();
    }
}

#[test]
fn success_only_without_flow_control_and_with_nothing_else_to_say() {
    let mut world = World::new();
    for flow_control in [true, false] {
        let queue = Queue { flow_control, ..Queue::ADMIN };
        let (mut admin, cntlid) = Host::admin_with(&mut world, 1, Ask::default(), &queue);
        let mut io = Host::io_with(&mut world, 1, Ask::default(), &Queue { qid: 1, cntlid, ..queue });
        let begin = |host: &Host| (host.successes, host.responses);
        // With data: SUCCESS, or a response.
        let before = begin(&io);
        for len in [512, 4096, 131_072, 1 << 20] {
            assert_eq!(io.read(&mut world, 0, len).len(), len);
        }
        let with_data = if flow_control { (0, 4) } else { (4, 0) };
        assert_eq!((io.successes - before.0, io.responses - before.1), with_data);
        let before = begin(&admin);
        let identify = Sqe { sgl: SglDescriptor::transport(4096), cdw10: 1.into(), ..Sqe::new(6) };
        assert_eq!(admin.run(&mut world, &identify, &[]).1.len(), 4096);
        let with_data = if flow_control { (0, 1) } else { (1, 0) };
        assert_eq!((admin.successes - before.0, admin.responses - before.1), with_data);
        // Without data, with a result, with an error: a response.
        let before = begin(&io);
        assert_eq!(io.run(&mut world, &flush(Nsid(1)), &[]).0, Status::SUCCESS);
        assert_eq!(io.write(&mut world, 0, &[1; 512]), Status::SUCCESS);
        assert_eq!(io.write_r2t(&mut world, 0, &[1; 512]), Status::SUCCESS);
        assert!(!io.run(&mut world, &read(BLOCKS, 4096), &[]).0.is_success());
        assert_eq!((io.successes - before.0, io.responses - before.1), (0, 4));
        let queues = Sqe { cdw10: 7.into(), ..Sqe::new(0x0a) };
        let cid = admin.start(&mut world, &queues, &[]);
        let cqe = admin.finish(&mut world, cid, &[]).0.expect("it has a result");
        assert_ne!(cqe.dw0.get(), 0);
        assert_eq!(cqe.sqhd.get() == 0xffff, !flow_control, "SQHD");
        drop((admin, io));
        world.until_clean();
    }
}

/// Reads, and commands without data behind them, all at once: SUCCESS belongs to the command of its own data.
#[test]
fn success_is_of_its_own_command() {
    let mut world = World::new();
    let (_admin, cntlid) = Host::admin(&mut world, 1, Ask::default());
    let queue = Queue { qid: 1, cntlid, flow_control: false, ..Queue::ADMIN };
    let mut io = Host::io_with(&mut world, 1, Ask::default(), &queue);
    let data = pattern(1, 1 << 20);
    assert_eq!(io.write_r2t(&mut world, 0, &data), Status::SUCCESS);
    for round in 0..40u64 {
        let mut reads = HashMap::new();
        let mut others = Vec::new();
        let mut bytes = Vec::new();
        for at in 0..28u64 {
            let cid = io.cid();
            let (len, lba) = ([512usize, 4096, 16384][(at % 3) as usize], at * 64 + round);
            let sqe = match at % 7 {
                0 => flush(Nsid(1)),
                1 => read(BLOCKS, 4096),
                2 => Sqe { nsid: 9.into(), ..read(0, 4096) },
                _ => read(lba, len),
            };
            if at % 7 > 2 {
                reads.insert(cid, (lba as usize * 512, len));
            } else {
                others.push((cid, at % 7 == 0));
            }
            bytes.extend(io.capsule(&Sqe { cid: cid.into(), ..sqe }, &[]));
        }
        io.send(&mut world, &bytes);
        while !reads.is_empty() || !others.is_empty() {
            match io.pdu(&mut world) {
                Pdu::Data { cid, offset: 0, data: found, flags } => {
                    let (at, len) = reads.remove(&cid).expect("one PDU for each read");
                    assert_eq!(flags, LAST | SUCCESS);
                    assert!(found == data[at..at + len]);
                }
                Pdu::Response(cqe) => {
                    let at = others
                        .iter()
                        .position(|&(cid, _)| cid == cqe.cid().0)
                        .expect("a response of its own");
                    assert_eq!(others.swap_remove(at).1, cqe.status().is_success());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Two hosts, their queues on two workers: both work, and each may leave.
#[test]
fn queues_of_two_hosts_on_two_workers() {
    let mut world = World::with(2, &settings(), &Default::default());
    for _ in 0..3 {
        let mut hosts = Vec::new();
        for host in 1..=2 {
            let (admin, cntlid) = Host::admin(&mut world, host, Ask::BOTH);
            let ios: Vec<_> = (1..=3).map(|qid| Host::io(&mut world, host, Ask::BOTH, qid, cntlid)).collect();
            hosts.push((admin, ios));
        }
        assert!(world.workers.iter().all(|worker| worker.queues() == 4), "queues are spread");
        for (seed, (admin, ios)) in hosts.iter_mut().enumerate() {
            for (at, io) in ios.iter_mut().enumerate() {
                let data = pattern((seed * 3 + at) as u32, 1 << 20);
                assert_eq!(io.write_r2t(&mut world, at as u64 * 2048, &data), Status::SUCCESS);
                assert!(io.read(&mut world, at as u64 * 2048, 1 << 20) == data);
            }
            assert_eq!(admin.run(&mut world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
        }
        // The Admin queue of one goes: its I/O queues on both workers end.
        let (admin, mut ios) = hosts.remove(0);
        admin.reset();
        for io in &mut ios {
            assert_eq!(io.pdu(&mut world), Pdu::End);
        }
        world.until_queues(4);
        hosts[0].1[0].check(&mut world, 1);
        drop(hosts);
        world.until_clean();
    }
}
