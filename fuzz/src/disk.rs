//! The initial state of the stateful targets: a registry with one subsystem, and valid Connects to it.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::{SglDescriptor, Sqe};
use nvmf_block::{DeviceId, Geometry};
use nvmf_subsystem::{
    Cntlid, HostAccess, HostId, Link, NamespaceDefinition, Nqn, Nsid, Options, Port, Qid, Queue,
    RdmaProviderType, Registry, Source, Step, SubsystemDefinition, Transfer, TransportType, Work,
};
use zerocopy::IntoBytes;

pub(crate) const START: Duration = Duration::from_secs(1000);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const LINK: Link = Link {
    transport: TransportType::RDMA,
    port: 1,
    local: IpAddr::V4(Ipv4Addr::LOCALHOST),
    peer: PEER,
    machine: PEER,
    qid: None,
    cntlid: None,
    secure_channel: None,
    entries: 128,
};
/// MDTS in bytes; small, so that transfers exceed it.
pub(crate) const TRANSFER_LEN_MAX: u32 = 64 * 1024;
pub(crate) const BLOCK_SIZE: u32 = 512;
pub(crate) const HOST_ID: HostId = HostId([7; 16]);

pub(crate) fn subsystem_nqn() -> Nqn {
    "nqn.2026-11.com.example:disk".parse().expect("a valid NQN")
}

pub(crate) fn host_nqn() -> Nqn {
    "nqn.2026-11.com.example:host".parse().expect("a valid NQN")
}

pub(crate) fn geometry(blocks: u64) -> Geometry {
    Geometry { volatile_write_cache: true, deallocate: true, ..Geometry::new(BLOCK_SIZE, blocks) }
}

pub(crate) fn namespace(nsid: u32, blocks: u64, read_only: bool) -> NamespaceDefinition {
    NamespaceDefinition {
        nsid: Nsid(nsid),
        device: DeviceId(nsid),
        geometry: geometry(blocks),
        uuid: [u8::try_from(nsid).expect("a small NSID"); 16],
        nguid: [0; 16],
        eui64: [0; 8],
        read_only,
        access: Default::default(),
    }
}

/// Namespaces 1 (a disk of 1000 blocks) and 3 (the same, read-only), for one host, on one port.
pub(crate) fn registry() -> Registry {
    let options = Options { transfer_len_max: TRANSFER_LEN_MAX, controllers_max: 8, ..Options::default() };
    let mut registry = Registry::new(options).expect("good options");
    let subsystem = SubsystemDefinition {
        nqn: subsystem_nqn(),
        serial: "S1".into(),
        model: "disk".into(),
        hosts: HostAccess::Only([host_nqn()].into()),
        namespaces: vec![namespace(1, 1000, false), namespace(3, 1000, true)],
    };
    registry.add_subsystem(subsystem).expect("a valid subsystem");
    let port = Port::rdma(LINK.port, SocketAddr::from(([192, 0, 2, 1], 4420)), RdmaProviderType::IWARP);
    registry.set_ports(vec![port]).expect("a valid port");
    let _ = registry.take_notices();
    registry
}

/// A Connect command with a keyed SGL for its data.
pub(crate) fn connect_command(qid: u16) -> Sqe {
    let kato_ms = if qid == 0 { 5000 } else { 0 };
    let attributes = ConnectAttributes::default();
    let mut sqe = Connect { recfmt: 0, qid: Qid(qid), sqsize_z: 31, attributes, kato_ms }.emit();
    sqe.sgl = SglDescriptor::keyed(0x1000, 1024, 7, false);
    sqe
}

pub(crate) fn connect_data(cntlid: Cntlid) -> ConnectData {
    ConnectData::new(HOST_ID, cntlid, &subsystem_nqn(), &host_nqn())
}

/// Connects a queue; `None` if the registry refuses.
pub(crate) fn connect(registry: &mut Registry, now: Duration, qid: u16, cntlid: Cntlid) -> Option<Queue> {
    let mut queue = Queue::new(now, LINK);
    let step = queue.on_capsule(now, &zerocopy::transmute!(connect_command(qid)), 0);
    let Step::Execute { ticket, work: Work::Parameters, transfer } = step else {
        panic!("Connect must request its data, not {step:?}")
    };
    assert!(matches!(transfer, Transfer::FromHost { len: 1024, source: Source::Remote(_) }));
    let step = queue.on_parameters(now, ticket, connect_data(cntlid).as_bytes());
    let Step::Connect(request) = step else {
        panic!("a Connect must be passed to the registry, not {step:?}")
    };
    let admission = registry.connect(now, &request, true);
    let answer = queue.on_admission(now, request, admission);
    assert!(matches!(answer, Step::Respond(_)));
    queue.association().is_some().then_some(queue)
}

/// Sets CC.EN.
pub(crate) fn enable(admin: &mut Queue, now: Duration) {
    let set = PropertySet { size: 0, property: Property::CC, value: Configuration::ENABLE.0.into() };
    let step = admin.on_capsule(now, &zerocopy::transmute!(set.emit()), 0);
    assert!(matches!(step, Step::Respond(_)));
}
