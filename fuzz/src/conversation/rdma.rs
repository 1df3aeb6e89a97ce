//! Target: a host's conversation over NVMe/RDMA with a worker.

use super::EVENTS_MAX;
use super::command;
use super::neighbour::Neighbour;
use super::rdma_host::{IN_CAPSULE_LEN, RdmaHost};
use super::target::{Target, settings};
use crate::disk;
use crate::input::Input;
use core::time::Duration;
use nvme_proto::Cntlid;
use nvmf_rdma::loopback::{Fabric, FabricOptions, Loopback};
use nvmf_rdma::{PrivateData, RemoteKey};
use nvmf_subsystem::{Port, RdmaProviderType};
use nvmf_target::settings::Settings;
use nvmf_target::transport::rdma::Rdma;

/// Queue pairs of the hostile host at a time.
const CONNECTIONS: usize = 4;

struct Conversation {
    fabric: Fabric,
    target: Target<Rdma<Loopback>>,
    hosts: [Option<RdmaHost>; CONNECTIONS],
    neighbour: Neighbour<RdmaHost>,
    /// The controller that the hostile host connected last.
    cntlid: Cntlid,
}

/// A host asks for connections, sends capsules of all kinds over them, exposes memory and takes it back, breaks off and
/// falls silent, while time passes and namespaces change. The target answers each command once, and invalidates no key
/// but the command's. A host beside it reads back what it wrote. When all have gone, nothing is left of them.
///
/// # Panics
/// When an invariant is violated.
pub fn conversation_rdma(data: &[u8]) {
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
    conversation.end();
}

impl Conversation {
    fn new(choice: u8) -> Self {
        let slowest = Duration::from_micros(if choice & 1 == 0 { 0 } else { 60 });
        let fabric = Fabric::with_options(FabricOptions {
            latency: Duration::ZERO..=slowest,
            seed: (choice >> 2).into(),
            spill: (choice & 2 == 0).then_some(64),
            descriptor: false,
        });
        let settings = Settings { in_capsule_data: IN_CAPSULE_LEN, io_receives: 6 * 36, ..settings() };
        let address = "192.0.2.1:4420".parse().expect("an address");
        let port = Port::rdma(disk::LINK.port, address, RdmaProviderType::IWARP);
        let provider = fabric.provider();
        let mut target = Target::new(
            |backend, settings| Rdma::new(provider, backend, settings).expect("a transport"),
            &settings,
            address,
            port,
        );
        let neighbour = Neighbour::new(&mut target, &fabric);
        Self { fabric, target, hosts: Default::default(), neighbour, cntlid: Cntlid::DYNAMIC }
    }

    fn event(&mut self, input: &mut Input<'_>) {
        let event = input.u8();
        let (slot, kind) = (usize::from(event >> 6), event & 63);
        match kind % 22 {
            0 => return self.begin(slot),
            1 => return self.open(input, slot),
            2 => return self.settle(usize::from(input.u8()) + 1),
            3 => return self.target.pass(command::time(input)),
            4 => return self.neighbour.check(&mut self.target),
            5 => return self.target.change_namespace(input.u16().into()),
            6 => return drop(self.hosts[slot].take()),
            _ => {}
        }
        let cntlid = self.cntlid;
        let Some(host) = &mut self.hosts[slot] else { return };
        match kind % 22 {
            7 | 8 => {
                let cntlid = if slot == 0 { Cntlid::DYNAMIC } else { cntlid };
                let connecting = command::strange_connect(input, slot as u16, cntlid);
                host.send_connect(input, &connecting);
            }
            9 | 10 => {
                let made = command::strange(input);
                host.send_made(input, made);
            }
            11 | 12 => {
                let made = command::admin(input, |nth| host.ledger.outstanding(nth));
                host.send_made(input, made);
            }
            13..=15 => {
                let made = command::fitting(input);
                host.send_made(input, made);
            }
            16 => {
                let [len, key] = input.array();
                let invalidate = (key > 0).then_some(RemoteKey(key.into()));
                host.send_bytes(input.take(len.into()), invalidate);
            }
            17 => host.meddle(input),
            18 => host.register_again(),
            19 => host.disconnect(),
            20 => host.receives = input.u8() & 1 == 0,
            _ => {
                let [choice, late, notice] = input.array();
                let [late, notice] = [late, notice].map(|time| Duration::from_millis(u64::from(time) * 16));
                if choice & 1 == 0 {
                    self.fabric.break_half_open(host.queue_pair(), late.min(notice), notice);
                } else {
                    self.fabric.stop_taking(host.queue_pair());
                }
            }
        }
    }

    /// A queue pair that begins as it should: the Admin queue on the first, I/O queues on the others.
    fn begin(&mut self, slot: usize) {
        let (qid, cntlid) = (slot as u16, if slot == 0 { Cntlid::DYNAMIC } else { self.cntlid });
        let private_data = RdmaHost::request(qid, cntlid);
        let mut host = RdmaHost::open(&self.fabric, &self.target, 1, private_data, (4, 0));
        let connecting = command::connect(&disk::host_nqn(), &disk::subsystem_nqn(), qid, cntlid);
        let _ = host.begin(&mut self.target, &connecting);
        self.hosts[slot] = Some(host);
    }

    /// One whose private data and depths the input says.
    fn open(&mut self, input: &mut Input<'_>, slot: usize) {
        let [choice, at, flip, depths] = input.array();
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(RdmaHost::request(slot as u16, self.cntlid).as_bytes());
        bytes[usize::from(at & 63)] ^= flip;
        let len = if choice & 4 == 0 { 32 } else { usize::from(choice >> 3) * 2 };
        let private_data = PrivateData::new(&bytes[..len]).expect("it is short");
        let depths = (u16::from(depths & 15), u16::from(depths >> 4));
        self.hosts[slot] =
            Some(RdmaHost::open(&self.fabric, &self.target, 1 + choice % 3, private_data, depths));
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
            host.poll(self.target.now);
            self.cntlid = host.ledger.take_cntlid().unwrap_or(self.cntlid);
        }
    }

    fn end(mut self) {
        self.neighbour.check(&mut self.target);
        drop(self.hosts);
        self.target.ticks(100);
        self.neighbour.check(&mut self.target);
        self.neighbour.leave(drop);
        self.target.check_clean();
        let transport = self.target.transport();
        assert_eq!(transport.slots_out(), 0, "a receive was lost");
        assert_eq!(transport.provider.remote_keys(), 0, "memory of the target is open to hosts");
    }
}
