//! An honest host, whose connections and data nothing that another does may harm.

use super::command;
use super::target::Target;
use crate::disk::{self, BLOCK_SIZE};
use nvme_proto::fabrics::connect::Connected;
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cntlid, Cqe, Sqe};
use nvmf_block::DeviceId;
use nvmf_subsystem::{HostAccess, NamespaceDefinition, Nqn, Nsid, SubsystemDefinition};
use nvmf_target::exec::transport::Transport;
use zerocopy::IntoBytes;

fn host_nqn() -> Nqn {
    "nqn.2026-11.org.example.beside:an-honest-host".parse().expect("a valid NQN")
}

fn subsystem_nqn() -> Nqn {
    "nqn.2026-11.org.example.beside:data-of-the-honest-host".parse().expect("a valid NQN")
}

/// The subsystem that only it may use.
pub(super) fn subsystem(blocks: u64) -> SubsystemDefinition {
    let definition = disk::namespace(1, blocks, false);
    SubsystemDefinition {
        nqn: subsystem_nqn(),
        serial: "S2".into(),
        model: "disk".into(),
        hosts: HostAccess::Only([host_nqn()].into()),
        namespaces: vec![NamespaceDefinition { device: DeviceId(0), uuid: [9; 16], ..definition }],
    }
}

/// The data of a command, and which way they go.
#[derive(Clone, Copy)]
pub(super) enum Data<'a> {
    None,
    InCapsule(&'a [u8]),
    ToTarget(&'a [u8]),
    ToHost(u32),
}

/// A connection that sends one command at a time.
pub(super) trait HonestQueue<T: Transport>: Sized {
    /// Where it connects.
    type Network;

    /// How the data of a Connect go.
    fn connect_data(data: &[u8]) -> Data<'_>;

    /// One that has sent no Connect yet.
    fn open(target: &mut Target<T>, network: &Self::Network, qid: u16, cntlid: Cntlid) -> Self;

    /// Runs a command: its response, and the data that came.
    fn run(&mut self, target: &mut Target<T>, sqe: &Sqe, data: Data<'_>) -> (Cqe, Vec<u8>);
}

/// The host.
pub(super) struct Neighbour<Q> {
    admin: Q,
    io: Q,
    rounds: u8,
}

impl<Q> Neighbour<Q> {
    pub(super) fn new<T: Transport>(target: &mut Target<T>, network: &Q::Network) -> Self
    where
        Q: HonestQueue<T>,
    {
        let (mut admin, cntlid) = Self::connect(target, network, 0, Cntlid::DYNAMIC);
        let (cqe, _) = admin.run(target, &command::enable(), Data::None);
        assert!(cqe.status().is_success(), "{}", cqe.status());
        let (io, _) = Self::connect(target, network, 1, cntlid);
        Self { admin, io, rounds: 0 }
    }

    fn connect<T: Transport>(
        target: &mut Target<T>,
        network: &Q::Network,
        qid: u16,
        cntlid: Cntlid,
    ) -> (Q, Cntlid)
    where
        Q: HonestQueue<T>,
    {
        let mut queue = Q::open(target, network, qid, cntlid);
        let mut connecting = command::connect(&host_nqn(), &subsystem_nqn(), qid, cntlid);
        connecting.data.hostid = [9; 16];
        let (cqe, _) = queue.run(target, &connecting.sqe, Q::connect_data(connecting.data.as_bytes()));
        assert!(cqe.status().is_success(), "Connect of an honest host: {}", cqe.status());
        (queue, Connected::parse(cqe.dw0.get()).cntlid)
    }

    /// It goes.
    pub(super) fn leave(self, close: impl Fn(Q)) {
        [self.io, self.admin].into_iter().for_each(close);
    }

    /// It writes and reads back.
    pub(super) fn check<T: Transport>(&mut self, target: &mut Target<T>)
    where
        Q: HonestQueue<T>,
    {
        self.rounds = self.rounds.wrapping_add(1);
        let data: Vec<u8> = (0..4096u32).map(|at| (at / 512 * 31) as u8 ^ at as u8 ^ self.rounds).collect();
        let of = |opcode| {
            ReadWrite::new(u64::from(self.rounds) % 64 * 8, data.len() as u32 / BLOCK_SIZE)
                .emit(opcode, Nsid(1))
        };
        let way = if self.rounds & 1 == 0 { Data::InCapsule(&data) } else { Data::ToTarget(&data) };
        let (written, _) = self.io.run(target, &of(NvmOpcode::WRITE), way);
        assert!(written.status().is_success(), "a write of the honest host: {}", written.status());
        let (read, found) = self.io.run(target, &of(NvmOpcode::READ), Data::ToHost(data.len() as u32));
        assert!(read.status().is_success(), "a read of the honest host: {}", read.status());
        assert!(found == data, "the honest host reads what it has not written");
    }
}
