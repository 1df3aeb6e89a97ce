//! Benchmarks of the protocol engines alone, in nanoseconds per command: the target's from capsule to response, the
//! host's from operation to completion.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use criterion::{Criterion, criterion_group, criterion_main};
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cid, Cntlid, Cqe, HostId, Nqn, Nsid, Qid, SglDescriptor, Status};
use nvmf_block::{BlockRange, DeviceId, Geometry};
use nvmf_host::io::CommandLimits;
use nvmf_host::{DataPointer, FlowControl, Namespace, Operation};
use nvmf_subsystem::{
    HostAccess, Link, NamespaceDefinition, Options, Port, Queue, RdmaProviderType, Registry, Step,
    SubsystemDefinition, TransportType,
};
use std::hint::black_box;
use zerocopy::IntoBytes;

const NOW: Duration = Duration::from_secs(1000);
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn nqn() -> Nqn {
    "nqn.2026-11.com.example:bench".parse().expect("an NQN")
}

fn geometry() -> Geometry {
    Geometry::new(512, 1 << 20)
}

fn registry() -> Registry {
    let mut registry = Registry::new(Options::default()).expect("valid options");
    let namespace = NamespaceDefinition {
        nsid: Nsid(1),
        device: DeviceId(0),
        geometry: geometry(),
        uuid: [1; 16],
        nguid: [1; 16],
        eui64: [0; 8],
        read_only: false,
        access: Default::default(),
    };
    let definition = SubsystemDefinition {
        nqn: nqn(),
        serial: "BENCH".into(),
        model: "bench".into(),
        hosts: HostAccess::Any,
        namespaces: vec![namespace],
    };
    registry.add_subsystem(definition).expect("a valid subsystem");
    let port = Port::rdma(1, SocketAddr::from(([192, 0, 2, 1], 4420)), RdmaProviderType::IWARP);
    registry.set_ports(vec![port]).expect("a valid port");
    registry.take_notices();
    registry
}

/// A connected queue of the target's engine.
fn connected(registry: &mut Registry, qid: u16, cntlid: Cntlid) -> Queue {
    let mut queue = Queue::new(
        NOW,
        Link {
            transport: TransportType::RDMA,
            port: 1,
            local: [192, 0, 2, 1].into(),
            peer: PEER,
            machine: PEER,
            qid: None,
            cntlid: None,
            secure_channel: None,
            entries: 128,
        },
    );
    let kato_ms = if qid == 0 { 5000 } else { 0 };
    let attributes = ConnectAttributes::default();
    let mut sqe = Connect { recfmt: 0, qid: Qid(qid), sqsize_z: 31, attributes, kato_ms }.emit();
    sqe.sgl = SglDescriptor::keyed(0x1000, 1024, 7, false);
    let Step::Execute { ticket, .. } = queue.on_capsule(NOW, &zerocopy::transmute!(sqe), 0) else {
        panic!("Connect requests its data")
    };
    let host = Nqn::from_uuid([2; 16]);
    let data = ConnectData::new(HostId([2; 16]), cntlid, &nqn(), &host);
    let Step::Connect(request) = queue.on_parameters(NOW, ticket, data.as_bytes()) else {
        panic!("a Connect is passed to the registry")
    };
    let admission = registry.connect(NOW, &request, true);
    assert!(matches!(queue.on_admission(NOW, request, admission), Step::Respond(_)));
    assert!(queue.association().is_some(), "the Connect is accepted");
    queue
}

fn subsystem(c: &mut Criterion) {
    let mut registry = registry();
    let mut admin = connected(&mut registry, 0, Cntlid::DYNAMIC);
    let enable = PropertySet { size: 0, property: Property::CC, value: Configuration::ENABLE.0.into() };
    let enabled = admin.on_capsule(NOW, &zerocopy::transmute!(enable.emit()), 0);
    assert!(matches!(enabled, Step::Respond(_)), "the controller is enabled");
    let cntlid = admin.association().expect("connected").key().cntlid;
    let mut io = connected(&mut registry, 1, cntlid);
    let mut group = c.benchmark_group("subsystem: capsule to response");
    let keyed = SglDescriptor::keyed(0x1000, 4096, 7, true);
    let in_capsule = SglDescriptor::in_capsule(0, 4096);
    for (name, opcode, sgl, data) in
        [("read", NvmOpcode::READ, keyed, 0), ("write in the capsule", NvmOpcode::WRITE, in_capsule, 4096)]
    {
        let mut sqe = ReadWrite::new(100, 8).emit(opcode, Nsid(1));
        sqe.sgl = sgl;
        let capsule: [u8; 64] = zerocopy::transmute!(sqe);
        group.bench_function(name, |b| {
            b.iter(|| {
                let Step::Execute { ticket, work, transfer } =
                    io.on_capsule(NOW, black_box(&capsule), black_box(data))
                else {
                    panic!("a valid command")
                };
                black_box((work, transfer));
                let step = io.on_done(NOW, ticket, Ok(()));
                assert!(io.poll_step(NOW).is_none());
                step
            });
        });
    }
    group.finish();
}

fn namespace() -> Namespace {
    let limits = CommandLimits {
        transfer_blocks: 2048,
        write_zeroes_blocks: 2048,
        write_zeroes_deallocate: true,
        verify_blocks: 2048,
        deallocate_blocks: 2048,
        deallocate_command_blocks: u64::MAX,
        deallocate_ranges: 1,
        compare: true,
        compare_and_write_blocks: 1,
        copy_blocks: 100,
        in_capsule_bytes: 4096,
    };
    let mut namespace = Namespace::new(Nsid(1), geometry(), limits);
    namespace.uuid = [1; 16];
    namespace
}

fn host(c: &mut Criterion) {
    let namespace = namespace();
    let mut queue = nvmf_host::Queue::new(Qid(1), 128, FlowControl::Sqhd);
    let deadline = Some(NOW + Duration::from_secs(30));
    c.bench_function("host: operation to completion/read", |b| {
        let mut sqhd = 0_u16;
        b.iter(|| {
            let range = BlockRange::new(black_box(100), 8);
            let mut parts = namespace.split(Operation::Read { range }).expect("a valid read");
            let part = parts.next().expect("one part");
            let cid = queue.submit(7_u32, deadline).expect("the queue has a free entry");
            let pointer = DataPointer::Keyed { address: 0x1000, len: 4096, key: 7, invalidate: true };
            black_box(part.command.encode(cid, pointer));
            sqhd = (sqhd + 1) % 128;
            let mut cqe = Cqe::new(cid, Status::SUCCESS, 0);
            cqe.sqhd = sqhd.into();
            queue.on_completion(black_box(cqe.as_bytes())).expect("it is in flight")
        });
    });
    let mut queue = nvmf_host::Queue::new(Qid(1), 128, FlowControl::Disabled);
    c.bench_function("host: queue only/submit and complete", |b| {
        b.iter(|| {
            let cid: Cid = queue.submit(7_u32, deadline).expect("the queue has a free entry");
            let cqe = Cqe::new(cid, Status::SUCCESS, 0);
            queue.on_completion(black_box(cqe.as_bytes())).expect("it is in flight")
        });
    });
}

criterion_group!(benches, subsystem, host);
criterion_main!(benches);
