//! The discovery controller, and the log of what a host may find.

use crate::host::*;
use nvme_proto::Sqe;
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::admin::identify::{Cns, Identify, IdentifyController};
use nvme_proto::admin::keep_alive::keep_alive;
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::fabrics::discovery::{DiscoveryEntry, DiscoveryHeader, SubsystemType};
use nvme_proto::opcode::AdminOpcode;
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const OK: (u8, u8) = (0, 0);

pub(crate) fn discovery(registry: &mut Registry, hello: &Hello) -> Queue {
    let (mut queue, cqe, _) = hello.connect(registry);
    assert_eq!(code(&cqe), OK);
    enable(&mut queue);
    queue
}

pub(crate) fn log(queue: &mut Queue, retain_event: bool) -> (u64, Vec<DiscoveryEntry>) {
    let sqe =
        GetLogPage { retain_event, ..GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 0, 16 * 1024) }.emit();
    let bytes = read(queue, &sqe, 16 * 1024).unwrap();
    let (header, rest) = bytes.split_at(1024);
    let header = DiscoveryHeader::read_from_bytes(header).unwrap();
    let count = usize::try_from(header.numrec.get()).unwrap();
    assert_eq!(header.recfmt.get(), 0);
    assert!(rest[count * 1024..].iter().all(|&byte| byte == 0));
    let entries = rest.chunks(1024).take(count).map(|entry| DiscoveryEntry::read_from_bytes(entry).unwrap());
    (header.genctr.get(), entries.collect())
}

fn found(queue: &mut Queue) -> Vec<(String, u16)> {
    let name = |entry: &DiscoveryEntry| (entry.subnqn().unwrap().to_string(), entry.portid.get());
    log(queue, false).1.iter().map(name).collect()
}

#[test]
fn discovery_log_lists_what_the_host_may_use_on_every_port() {
    let mut registry = registry(Options::default());
    let open = "nqn.2026-11.com.example:open";
    registry.add_subsystem(definition(open, HostAccess::Any, vec![])).unwrap();
    let only = PortSubsystems::Only([nqn(SUBSYSTEM)].into());
    let second = Port::rdma(2, "[2001:db8::1]:4421".parse().unwrap(), RdmaProviderType::IWARP);
    registry.set_ports(vec![port(), Port { subsystems: only, ..second }]).unwrap();
    let mut friend = discovery(&mut registry, &Hello::discovery());
    let expected = [(SUBSYSTEM.into(), 1), (open.into(), 1), (SUBSYSTEM.into(), 2)];
    assert_eq!(found(&mut friend), expected);
    let hostnqn = nqn("nqn.2026-11.com.example:stranger").to_field();
    let mut stranger = discovery(&mut registry, &Hello { hostnqn, ..Hello::discovery() });
    assert_eq!(found(&mut stranger), [(open.into(), 1)]);
    let entry = &log(&mut friend, false).1[2];
    assert_eq!(
        (entry.trtype, entry.adrfam, entry.subtype),
        (TransportType::RDMA, AddressFamily::IPV6, SubsystemType::NVM_SUBSYSTEM)
    );
    assert_eq!((entry.cntlid.get(), entry.asqsz.get()), (0xffff, 32));
    assert_eq!((entry.traddr(), entry.trsvcid()), ("2001:db8::1", "4421"));
    assert_eq!(entry.tsas[..3], [1, 5, 1]);
}

/// Where a host is told to go that came through this address of ours.
fn addresses(registry: &mut Registry, local: &str) -> Vec<String> {
    let hello = Hello::discovery();
    let link = Link { local: local.parse().unwrap(), ..hello.link };
    let mut queue = discovery(registry, &Hello { link, ..hello });
    log(&mut queue, false).1.iter().map(|entry| entry.traddr().to_string()).collect()
}

#[test]
fn wildcard_is_listed_as_the_address_that_the_host_came_through() {
    let mut registry = registry(Options::default());
    let ports = ["0.0.0.0:4420", "[::]:4420", "192.0.2.9:4421"].map(|address| address.parse().unwrap());
    let port = |(id, address)| Port::rdma(id, address, RdmaProviderType::IWARP);
    registry.set_ports((PORT..).zip(ports).map(port).collect()).unwrap();
    assert_eq!(addresses(&mut registry, "192.0.2.1"), ["192.0.2.1", "192.0.2.9"]);
    assert_eq!(addresses(&mut registry, "198.51.100.1"), ["198.51.100.1", "192.0.2.9"]);
    assert_eq!(addresses(&mut registry, "2001:db8::1"), ["2001:db8::1", "192.0.2.9"]);
    assert_eq!(addresses(&mut registry, "127.0.0.1"), ["127.0.0.1", "192.0.2.9"]);
    // The same after a change, in a controller that was there before.
    let mut queue = discovery(&mut registry, &Hello::discovery());
    registry.set_ports(vec![Port::tcp(2, "0.0.0.0:8009".parse().unwrap())]).unwrap();
    registry.take_notices().iter().for_each(|notice| queue.on_notice(NOW, notice));
    assert_eq!(log(&mut queue, false).1[0].traddr(), LOCAL.to_string());
}

#[test]
fn loopback_is_listed_to_hosts_of_this_machine_only() {
    let mut registry = registry(Options::default());
    let ports = ["127.0.0.1:4420", "[::1]:4420", "192.0.2.1:4420"].map(|address| address.parse().unwrap());
    registry.set_ports((PORT..).zip(ports).map(|(id, address)| Port::tcp(id, address)).collect()).unwrap();
    assert_eq!(addresses(&mut registry, "192.0.2.1"), ["192.0.2.1"]);
    assert_eq!(addresses(&mut registry, "127.0.0.2"), ["127.0.0.1", "::1", "192.0.2.1"]);
}

#[test]
fn subsystem_not_on_the_port_refuses_connect() {
    let mut registry = registry(Options::default());
    let nothing = PortSubsystems::Only([].into());
    registry.set_ports(vec![Port { subsystems: nothing, ..port() }]).unwrap();
    let (_, cqe, _) = Hello::admin().connect(&mut registry);
    assert_eq!((code(&cqe), cqe.dw0.get()), ((1, 0x82), 1 << 16 | 256));
    assert!(found(&mut discovery(&mut registry, &Hello::discovery())).is_empty());
}

#[test]
fn discovery_log_in_pieces_and_its_generation() {
    let mut registry = registry(Options::default());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let (generation, entries) = log(&mut queue, false);
    assert_eq!(entries.len(), 1);
    let piece = GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 1024 + 256, 64).emit();
    assert_eq!(&read(&mut queue, &piece, 64).unwrap()[..SUBSYSTEM.len()], SUBSYSTEM.as_bytes());
    let behind = GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 3 * 1024, 64).emit();
    assert_eq!(read(&mut queue, &behind, 64), Err((0, 0x02)));
    registry.set_ports(vec![Port { service: "4421".into(), ..port() }]).unwrap();
    for notice in registry.take_notices() {
        queue.on_notice(NOW, &notice);
    }
    assert_ne!(log(&mut queue, false).0, generation);
    registry.set_ports(vec![Port { service: "4421".into(), ..port() }]).unwrap();
    assert!(registry.take_notices().is_empty(), "the same again is no change");
}

#[test]
fn discovery_event_only_for_visible_changes() {
    let mut registry = registry(Options::default());
    let mut queue = discovery(&mut registry, &Hello { kato_ms: 30_000, ..Hello::discovery() });
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 31).emit();
    assert_eq!(code(&ask(&mut queue, &config)), OK);
    let request = with_cid(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), 5);
    assert!(matches!(capsule(&mut queue, &request, 0), Step::Held));
    let hidden = definition("nqn.2026-11.com.example:hidden", HostAccess::default(), vec![]);
    registry.add_subsystem(hidden).unwrap();
    let deliver = |registry: &mut Registry, queue: &mut Queue| {
        for notice in registry.take_notices() {
            queue.on_notice(NOW, &notice);
        }
        queue.poll_step(NOW).map(responded)
    };
    assert!(deliver(&mut registry, &mut queue).is_none(), "a subsystem that it cannot see causes no event");
    registry.add_subsystem(definition("nqn.2026-11.com.example:new", HostAccess::Any, vec![])).unwrap();
    let cqe = deliver(&mut registry, &mut queue).unwrap();
    assert_eq!((code(&cqe), cqe.cid.get(), cqe.dw0.get()), (OK, 5, 0x0070_f002));
    assert!(matches!(capsule(&mut queue, &request, 0), Step::Held));
    registry.remove_subsystem(&nqn("nqn.2026-11.com.example:new")).unwrap();
    assert!(deliver(&mut registry, &mut queue).is_none(), "told already");
    let _ = log(&mut queue, false);
    registry.remove_subsystem(&nqn(SUBSYSTEM)).unwrap();
    assert_eq!(deliver(&mut registry, &mut queue).unwrap().cid.get(), 5);
}

#[test]
fn discovery_log_pages_are_those_that_are_mandatory() {
    let mut registry = registry(Options::default());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let mut page = |lid| read(&mut queue, &GetLogPage::new(LogPageId(lid), Nsid(0), 0, 1024).emit(), 1024);
    let words = |bytes: Vec<u8>| {
        let words = bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.enumerate().filter(|(_, word)| word & 1 == 1).map(|(at, _)| at).collect::<Vec<_>>()
    };
    assert_eq!(words(page(0x00).unwrap()), [0x00, 0x05, 0x12, 0x13, 0x70]);
    // Get Log Page, Identify, Set and Get Features, Asynchronous Event Request, Keep Alive: no Abort.
    assert_eq!(words(page(0x05).unwrap()), [0x02, 0x06, 0x09, 0x0a, 0x0c, 0x18]);
    assert_eq!(words(page(0x12).unwrap()), [0x0b, 0x0f]);
    assert_eq!(page(0x13), Ok(vec![0; 1024]));
    let commands = GetLogPage::new(LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, Nsid(0), 1024, 1024).emit();
    assert_eq!(read(&mut queue, &commands, 1024), Ok(vec![0; 1024]), "no I/O commands");
}

#[test]
fn discovery_controller_has_no_ready_timeouts() {
    use nvme_proto::fabrics::property::Property;
    let mut registry = registry(Options::default());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    assert_eq!(get(&mut queue, Property::CRTO, 0), Ok(0));
    assert_eq!(get(&mut queue, Property::CAP, 1).unwrap() >> 59 & 0b11, 0, "CRMS");
}

#[test]
fn discovery_keep_alive_cannot_be_switched_off() {
    let mut registry = registry(Options::default());
    let mut queue = discovery(&mut registry, &Hello { kato_ms: 30_000, ..Hello::discovery() });
    assert_eq!(code(&ask(&mut queue, &SetFeatures::new(FeatureId::KEEP_ALIVE_TIMER, 0).emit())), OK);
    assert!(queue.poll_timeout().is_some());
}

#[test]
fn discovery_controller_refuses_commands_of_io_controllers() {
    let mut registry = registry(Options::default());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let bytes = read(&mut queue, &Identify::new(Cns::CONTROLLER, Nsid(0)).emit(), 4096).unwrap();
    let id = IdentifyController::read_from_bytes(&bytes).unwrap();
    assert_eq!((id.cntrltype, id.oaes.get(), id.nn.get()), (2, 1 << 31, 0));
    assert!(id.subnqn.starts_with(b"nqn.2014-08.org.nvmexpress.discovery\0"));
    assert_eq!(queue.association().unwrap().controller_type(), ControllerType::Discovery);
    assert_eq!((id.lpa, id.elpe_z), (1 << 1 | 1 << 2 | 1 << 5, 0));
    let silence = core::time::Duration::from_millis(limits::KEEP_ALIVE_DEFAULT_MS.into());
    assert_eq!(queue.poll_timeout(), Some(NOW + silence * 2), "a host that named no timeout");
    assert_eq!(code(&ask(&mut queue, &keep_alive())), OK);
    let refused = [
        (keyed(Identify::new(Cns::ACTIVE_NAMESPACES, Nsid(0)).emit(), 4096), (0, 0x02)),
        (keyed(GetLogPage::new(LogPageId::SMART, Nsid::ALL, 0, 512).emit(), 512), (1, 0x09)),
        (Sqe::new(AdminOpcode::ABORT.0), (0, 0x01)),
        (SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, 0).emit(), (0, 0x02)),
        (SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 8).emit(), (0, 0x02)),
    ];
    for (sqe, status) in refused {
        assert_eq!(code(&ask(&mut queue, &sqe)), status, "{sqe:?}");
    }
    let mut fixture = Fixture::new();
    let log = keyed(GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 0, 1024).emit(), 1024);
    assert_eq!(code(&ask(&mut fixture.admin, &log)), (1, 0x09), "an I/O controller has no discovery log");
}
