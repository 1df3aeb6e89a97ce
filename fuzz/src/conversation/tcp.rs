//! Target: a host's conversation over NVMe/TCP with a worker.

use super::EVENTS_MAX;
use super::command;
use super::neighbour::Neighbour;
use super::target::{Target, settings};
use super::tcp_host::TcpHost;
use crate::disk;
use crate::input::Input;
use nvme_proto::Cntlid;
use nvme_proto::tcp::{DataAlignment, Digests, IcReq};
use nvmf_stream::StreamConfig;
use nvmf_subsystem::Port;
use nvmf_target::settings::Settings;
use nvmf_target::transport::tcp::{Tcp, TcpOptions};
use zerocopy::IntoBytes;

/// Connections of the hostile host at a time.
const CONNECTIONS: usize = 4;

struct Conversation {
    target: Target<Tcp>,
    hosts: [Option<TcpHost>; CONNECTIONS],
    neighbour: Neighbour<TcpHost>,
    /// The controller that the hostile host connected last.
    cntlid: Cntlid,
}

/// A host opens connections, sends commands, data and anything else over them, in pieces, and leaves when it likes, while
/// time passes and namespaces change. The target sends valid PDUs only, answers each command once, and asks and sends no
/// more data than a command has. A host beside it reads back what it wrote. When all have gone, nothing is left of them.
///
/// # Panics
/// When an invariant is violated.
pub fn conversation_tcp(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let mut conversation = Conversation::new(choice);
    for _ in 0..EVENTS_MAX {
        if input.is_empty() {
            break;
        }
        conversation.event(&mut input);
        conversation.poll();
    }
    conversation.end(choice & 2 == 0);
}

impl Conversation {
    fn new(choice: u8) -> Self {
        // Sockets that take little at once: the target's responses wait for the host.
        let send_buffer = (choice & 1 != 0).then_some(4096);
        let stream = StreamConfig { send_buffer, ..StreamConfig::default() };
        let options = TcpOptions { stream, ..TcpOptions::default() };
        let address = "127.0.0.1:0".parse().expect("an address");
        let port = Port::tcp(disk::LINK.port, address);
        let mut target = Target::new(
            |backend, settings| Tcp::new(backend, settings, options).expect("a transport"),
            &Settings { io_receives: 24, ..settings() },
            address,
            port,
        );
        let neighbour = Neighbour::new(&mut target, &());
        Self { target, hosts: Default::default(), neighbour, cntlid: Cntlid::DYNAMIC }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let event = input.u8();
        let (slot, kind) = (usize::from(event >> 6), event & 63);
        match kind % 24 {
            0 => return self.begin(input, slot),
            1 => return self.open(input, slot),
            2 => return self.settle(usize::from(input.u8()) + 1),
            3 => return self.target.pass(command::time(input)),
            4 => return self.neighbour.check(&mut self.target),
            5 => return self.target.change_namespace(input.u16().into()),
            6 => {
                let Some(host) = self.hosts[slot].take() else { return };
                return host.close(input.u8() & 1 == 0);
            }
            _ => {}
        }
        let (target, cntlid) = (&mut self.target, self.cntlid);
        let Some(host) = &mut self.hosts[slot] else { return };
        match kind % 24 {
            7 => host.initialize(target, ic_req(input)),
            8 => {
                let cntlid = if slot == 0 { Cntlid::DYNAMIC } else { cntlid };
                let connecting = command::strange_connect(input, slot as u16, cntlid);
                let made = command::Made { sqe: connecting.sqe, len: 1024 };
                host.send_connect(target, input, made, connecting.data.as_bytes());
            }
            9 | 10 => {
                let made = command::strange(input);
                host.send_made(target, input, made);
            }
            11 | 12 => {
                let made = command::admin(input, |nth| host.ledger.outstanding(nth));
                host.send_made(target, input, made);
            }
            13..=15 => {
                let made = command::fitting(input);
                host.send_made(target, input, made);
            }
            16 | 17 => host.answer_r2ts(target, event),
            18 => host.answer_wrongly(target, input),
            19 => {
                let len = input.u8();
                host.send_raw(target, input.take(len.into()));
            }
            20 => {
                let mut request = [0; 24];
                (request[0], request[2], request[4], request[8]) = (2, 24, 24, 1 + input.u8() % 6);
                host.send_raw(target, &request);
            }
            21 => host.close_half(),
            22 => host.reading = input.u8() & 1 == 0,
            _ => {
                let [choice, at, flip] = input.array();
                match choice & 3 {
                    0 => host.spoil.piece = at.into(),
                    1 => host.spoil.cut = at.into(),
                    _ => host.spoil.flip = Some((at, flip)),
                }
            }
        }
    }

    /// A connection that begins as it should: the Admin queue on the first, I/O queues on the others.
    fn begin(&mut self, input: &mut Input<'_>, slot: usize) {
        let request = ic_req(input);
        let mut host = TcpHost::open(self.target.address, 1);
        let (qid, cntlid) = (slot as u16, if slot == 0 { Cntlid::DYNAMIC } else { self.cntlid });
        let connecting = command::connect(&disk::host_nqn(), &disk::subsystem_nqn(), qid, cntlid);
        let _ = host.begin(&mut self.target, request, &connecting);
        self.put(slot, host);
    }

    fn open(&mut self, input: &mut Input<'_>, slot: usize) {
        let host = TcpHost::open(self.target.address, 1 + input.u8() % 3);
        self.put(slot, host);
    }

    fn put(&mut self, slot: usize, host: TcpHost) {
        if let Some(host) = self.hosts[slot].replace(host) {
            host.close(true);
        }
    }

    /// Turns, and takes what comes with each.
    fn settle(&mut self, turns: usize) {
        for _ in 0..turns {
            self.target.tick();
            self.poll();
        }
    }

    fn poll(&mut self) {
        for host in self.hosts.iter_mut().flatten() {
            host.poll();
            self.cntlid = host.ledger.take_cntlid().unwrap_or(self.cntlid);
        }
    }

    fn end(mut self, reset: bool) {
        self.neighbour.check(&mut self.target);
        for host in self.hosts.into_iter().flatten() {
            host.close(reset);
        }
        self.target.ticks(100);
        self.neighbour.check(&mut self.target);
        self.neighbour.leave(|host| host.close(true));
        self.target.check_clean();
        assert_eq!(self.target.transport().slots_out(), 0, "a capsule's slot was lost");
    }
}

fn ic_req(input: &mut Input<'_>) -> IcReq {
    let choice = input.u8();
    let alignment = DataAlignment::from_dwords_z(choice >> 2 & 31).expect("less than 32");
    let digests = Digests { header: choice & 1 != 0, data: choice & 2 != 0 };
    IcReq { alignment, digests, maxr2t: if choice & 0x80 == 0 { 1 } else { 1 << 32 } }
}
