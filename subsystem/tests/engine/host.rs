//! A scripted host against a registry with one subsystem: what the tests drive the engine with.

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::fabrics::property::{Configuration, Property, PropertyGet, PropertySet};
use nvme_proto::{Cqe, SglDescriptor, Sqe};
use nvmf_block::{DeviceId, Geometry};
use nvmf_subsystem::*;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const NOW: Duration = Duration::from_secs(1000);
pub(crate) const PORT: u16 = 1;
pub(crate) const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.com.example:disk";
pub(crate) const HOST: &str = "nqn.2026-11.com.example:host";
pub(crate) const HOST_ID: HostId = HostId([7; 16]);
/// Where the data of every command of the tests are, unless they say otherwise.
pub(crate) const ADDRESS: u64 = 0x1000;
pub(crate) const KEY: u32 = 0x77;

pub(crate) fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

/// 1000 blocks of 512 bytes with a volatile write cache.
pub(crate) fn disk() -> Geometry {
    Geometry { volatile_write_cache: true, deallocate: true, ..Geometry::new(512, 1000) }
}

pub(crate) fn namespace(nsid: u32, geometry: Geometry) -> NamespaceDefinition {
    let id = u8::try_from(nsid).unwrap();
    NamespaceDefinition {
        nsid: Nsid(nsid),
        device: DeviceId(nsid + 100),
        geometry,
        uuid: [id; 16],
        nguid: [0; 16],
        eui64: [0; 8],
        read_only: false,
        access: Default::default(),
    }
}

pub(crate) fn port() -> Port {
    Port::rdma(PORT, "192.0.2.1:4420".parse().unwrap(), RdmaProviderType::IWARP)
}

pub(crate) fn definition(
    name: &str,
    hosts: HostAccess,
    namespaces: Vec<NamespaceDefinition>,
) -> SubsystemDefinition {
    SubsystemDefinition { nqn: nqn(name), serial: "S1".into(), model: "disk".into(), hosts, namespaces }
}

/// Namespace 1 is a disk, namespace 3 the same but read-only.
pub(crate) fn registry(options: Options) -> Registry {
    let mut registry = Registry::new(options).unwrap();
    let read_only = NamespaceDefinition { read_only: true, ..namespace(3, disk()) };
    let hosts = HostAccess::Only([nqn(HOST)].into());
    let namespaces = vec![read_only, namespace(1, disk())];
    registry.add_subsystem(definition(SUBSYSTEM, hosts, namespaces)).unwrap();
    registry.set_ports(vec![port()]).unwrap();
    let _ = registry.take_notices();
    registry
}

/// A Connect as a test wants it; the defaults are good.
#[derive(Clone)]
pub(crate) struct Hello {
    pub(crate) recfmt: u16,
    pub(crate) qid: u16,
    pub(crate) sqsize_z: u16,
    pub(crate) attributes: u8,
    pub(crate) kato_ms: u32,
    pub(crate) host_id: HostId,
    pub(crate) cntlid: u16,
    pub(crate) subnqn: [u8; 256],
    pub(crate) hostnqn: [u8; 256],
    pub(crate) link: Link,
}

impl Hello {
    pub(crate) fn admin() -> Self {
        Self {
            recfmt: 0,
            qid: 0,
            sqsize_z: 31,
            attributes: 0,
            kato_ms: 5000,
            host_id: HOST_ID,
            cntlid: 0xffff,
            subnqn: nqn(SUBSYSTEM).to_field(),
            hostnqn: nqn(HOST).to_field(),
            link: Link {
                transport: TransportType::RDMA,
                port: PORT,
                local: LOCAL,
                peer: PEER,
                machine: PEER,
                qid: None,
                cntlid: None,
                secure_channel: None,
                entries: 128,
            },
        }
    }

    pub(crate) fn io(qid: u16, cntlid: u16) -> Self {
        Self { qid, cntlid, ..Self::admin() }
    }

    pub(crate) fn discovery() -> Self {
        Self { subnqn: Nqn::DISCOVERY.to_field(), kato_ms: 0, ..Self::admin() }
    }

    pub(crate) fn command(&self) -> Sqe {
        let attributes = ConnectAttributes(self.attributes);
        let Self { recfmt, sqsize_z, kato_ms, .. } = *self;
        let connect = Connect { recfmt, qid: Qid(self.qid), sqsize_z, attributes, kato_ms };
        keyed(connect.emit(), 1024)
    }

    pub(crate) fn data(&self) -> ConnectData {
        let mut data = ConnectData::new(self.host_id, Cntlid(self.cntlid), &nqn(SUBSYSTEM), &nqn(HOST));
        (data.subnqn, data.hostnqn) = (self.subnqn, self.hostnqn);
        data
    }

    /// Connects; returns the queue, the completion, and what the registry said beside it.
    pub(crate) fn connect(&self, registry: &mut Registry) -> (Queue, Cqe, Option<DuplicateHost>) {
        self.connect_at(NOW, registry)
    }

    /// The same at another time.
    pub(crate) fn connect_at(
        &self,
        now: Duration,
        registry: &mut Registry,
    ) -> (Queue, Cqe, Option<DuplicateHost>) {
        let mut queue = Queue::new(now, self.link);
        let (ticket, transfer) = parameters(capsule(&mut queue, &self.command(), 0));
        assert_eq!(transfer, Transfer::FromHost { len: 1024, source: Source::Remote(SINK) });
        let Step::Connect(request) = queue.on_parameters(now, ticket, self.data().as_bytes()) else {
            panic!("a Connect goes to the registry");
        };
        let admission = registry.connect(now, &request, true);
        let duplicate = admission.duplicate_host_id.clone();
        let cqe = responded(queue.on_admission(now, request, admission));
        (queue, cqe, duplicate)
    }
}

pub(crate) const SINK: Remote = Remote::Keyed(Keyed { address: ADDRESS, key: KEY });

/// The command with a keyed SGL for so many bytes.
pub(crate) fn keyed(mut sqe: Sqe, len: u32) -> Sqe {
    sqe.sgl = SglDescriptor::keyed(ADDRESS, len, KEY, false);
    sqe
}

pub(crate) fn with_cid(mut sqe: Sqe, cid: u16) -> Sqe {
    sqe.cid = cid.into();
    sqe
}

pub(crate) fn capsule(queue: &mut Queue, sqe: &Sqe, in_capsule_len: usize) -> Step {
    queue.on_capsule(NOW, sqe.as_bytes().try_into().unwrap(), in_capsule_len)
}

pub(crate) fn parameters(step: Step) -> (Ticket, Transfer) {
    match step {
        Step::Execute { ticket, work: Work::Parameters, transfer } => (ticket, transfer),
        step => panic!("the engine wants parameters, not {step:?}"),
    }
}

pub(crate) fn response(step: Step) -> Response {
    match step {
        Step::Respond(response) => response,
        Step::Execute { ticket, work, transfer } => {
            ticket.abandon();
            panic!("a response, not {work:?} with {transfer:?}");
        }
        step => panic!("a response, not {step:?}"),
    }
}

pub(crate) fn responded(step: Step) -> Cqe {
    Cqe::read_from_bytes(&response(step).cqe).unwrap()
}

/// Sends a command that ends at once.
pub(crate) fn ask(queue: &mut Queue, sqe: &Sqe) -> Cqe {
    responded(capsule(queue, sqe, 0))
}

/// Type and code of the status.
pub(crate) fn code(cqe: &Cqe) -> (u8, u8) {
    (cqe.status().sct(), cqe.status().sc())
}

/// Sends a command that asks for `len` bytes; returns them, or the status.
pub(crate) fn read(queue: &mut Queue, sqe: &Sqe, len: u32) -> Result<Vec<u8>, (u8, u8)> {
    match capsule(queue, &keyed(*sqe, len), 0) {
        Step::Execute { ticket, work: Work::Page(page), transfer } => {
            assert_eq!(transfer, Transfer::ToHost { len, sink: SINK });
            let mut bytes = vec![0xaa; len as usize];
            for (index, piece) in bytes.chunks_mut(100).enumerate() {
                page.fill(u32::try_from(index * 100).unwrap(), piece);
            }
            assert_eq!(code(&responded(queue.on_done(NOW, ticket, Ok(())))), (0, 0));
            Ok(bytes)
        }
        step => Err(code(&responded(step))),
    }
}

pub(crate) fn set(queue: &mut Queue, property: Property, size: u8, value: u64) -> (u8, u8) {
    code(&ask(queue, &PropertySet { size, property, value }.emit()))
}

pub(crate) fn get(queue: &mut Queue, property: Property, size: u8) -> Result<u64, (u8, u8)> {
    let cqe = ask(queue, &PropertyGet { size, property }.emit());
    if cqe.status().is_success() { Ok(cqe.result()) } else { Err(code(&cqe)) }
}

pub(crate) fn enable(queue: &mut Queue) {
    assert_eq!(set(queue, Property::CC, 0, Configuration::ENABLE.0.into()), (0, 0));
}

/// A registry, a controller that is enabled, and one I/O queue.
pub(crate) struct Fixture {
    pub(crate) registry: Registry,
    pub(crate) admin: Queue,
    pub(crate) io: Queue,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        Self::at(options, port())
    }

    pub(crate) fn at(options: Options, port: Port) -> Self {
        let mut registry = registry(options);
        registry.set_ports(vec![port]).unwrap();
        let _ = registry.take_notices();
        let (mut admin, ..) = Hello::admin().connect(&mut registry);
        enable(&mut admin);
        let cntlid = admin.association().unwrap().key().cntlid.0;
        let (io, cqe, _) = Hello::io(1, cntlid).connect(&mut registry);
        assert_eq!(code(&cqe), (0, 0));
        Self { registry, admin, io }
    }

    pub(crate) fn association(&self) -> Arc<Association> {
        Arc::clone(self.admin.association().unwrap())
    }

    /// Passes the registry's notices to every queue.
    pub(crate) fn deliver(&mut self) {
        for notice in self.registry.take_notices() {
            self.admin.on_notice(NOW, &notice);
            self.io.on_notice(NOW, &notice);
        }
    }
}
