//! The discovery subsystem itself: its own NQN, its generation counter, referrals, and where it is served.

use crate::discovery::{discovery, log};
use crate::host::*;
use nvme_proto::admin::identify::{Cns, Identify, IdentifyController};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::fabrics::discovery::{DiscoveryEntry, DiscoveryHeader, SubsystemType};
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const OWN: &str = "nqn.2026-11.com.example:discovery";
/// EFLAGS.
const SAME_EVERYWHERE: u16 = 1;
const PERSISTENT: u16 = 2;
/// LSP of the discovery log page.
const PORT_LOCAL: u8 = 2;

fn own() -> DiscoveryDefinition {
    DiscoveryDefinition { nqn: nqn(OWN), ..DiscoveryDefinition::default() }
}

fn referral() -> Referral {
    let address = "[2001:db8::9]:8009".parse().unwrap();
    Referral { transport: TransportType::TCP, address, nqn: nqn("nqn.2026-11.com.example:other") }
}

fn with_discovery(definition: DiscoveryDefinition) -> Registry {
    let mut registry = registry(Options::default());
    registry.set_discovery(definition).unwrap();
    let _ = registry.take_notices();
    registry
}

fn hello(name: &str) -> Hello {
    Hello { subnqn: nqn(name).to_field(), ..Hello::discovery() }
}

/// A host that came through this address of ours.
fn through(local: &str) -> Hello {
    let hello = Hello::discovery();
    Hello { link: Link { local: local.parse().unwrap(), ..hello.link }, ..hello }
}

fn identify(queue: &mut Queue) -> IdentifyController {
    let bytes = read(queue, &Identify::new(Cns::CONTROLLER, Nsid(0)).emit(), 4096).unwrap();
    IdentifyController::read_from_bytes(&bytes).unwrap()
}

/// Subtype, port and EFLAGS of each entry.
fn kinds(entries: &[DiscoveryEntry]) -> Vec<(SubsystemType, u16, u16)> {
    entries.iter().map(|entry| (entry.subtype, entry.portid.get(), entry.eflags.get())).collect()
}

fn tell(registry: &mut Registry, queue: &mut Queue) {
    registry.take_notices().iter().for_each(|notice| queue.on_notice(NOW, notice));
}

#[test]
fn discovery_is_found_by_its_own_name_and_by_the_well_known_one() {
    let mut registry = with_discovery(own());
    for name in [OWN, Nqn::DISCOVERY.as_str()] {
        let mut queue = discovery(&mut registry, &hello(name));
        let id = identify(&mut queue);
        assert_eq!((&id.subnqn[..OWN.len()], id.cntrltype, id.dctype), (OWN.as_bytes(), 2, 0), "{name}");
        let (_, entries) = log(&mut queue, false);
        let expected = [
            (SubsystemType::NVM_SUBSYSTEM, PORT, 0),
            (SubsystemType::CURRENT_DISCOVERY, PORT, PERSISTENT | SAME_EVERYWHERE),
        ];
        assert_eq!(kinds(&entries), expected);
        assert_eq!(entries[1].subnqn().unwrap(), nqn(OWN));
    }
    let (_, cqe, _) = Hello { qid: 1, cntlid: 1, ..hello(OWN) }.connect(&mut registry);
    assert_eq!(code(&cqe), (1, 0x82), "it has no I/O queues");
    let taken = registry.add_subsystem(definition(OWN, HostAccess::Any, vec![]));
    assert_eq!(taken, Err(DefinitionError::Duplicate(nqn(OWN))));
    let of_disk = DiscoveryDefinition { nqn: nqn(SUBSYSTEM), ..own() };
    assert_eq!(registry.set_discovery(of_disk), Err(DefinitionError::Duplicate(nqn(SUBSYSTEM))));
}

#[test]
fn discovery_over_tls_is_identified_by_the_name_of_the_key() {
    let mut registry = with_discovery(own());
    let hello = hello(Nqn::DISCOVERY.as_str());
    let channel = SecureChannel { host_nqn: nqn(HOST), subsystem_nqn: Nqn::DISCOVERY, generated: None };
    let link = Link { secure_channel: Some(channel), ..hello.link };
    let id = identify(&mut discovery(&mut registry, &Hello { link, ..hello }));
    assert_eq!(&id.subnqn[..Nqn::DISCOVERY.as_str().len()], Nqn::DISCOVERY.as_str().as_bytes());
}

#[test]
fn discovery_entry_says_whether_other_ports_return_the_same() {
    let mut registry = with_discovery(own());
    let ports = ["0.0.0.0:4420", "192.0.2.9:4421"].map(|address| address.parse().unwrap());
    registry.set_ports((PORT..).zip(ports).map(|(id, address)| Port::tcp(id, address)).collect()).unwrap();
    let current = |registry: &mut Registry, local: &str| {
        let entries = log(&mut discovery(registry, &through(local)), false).1;
        let current = entries.iter().filter(|entry| entry.subtype == SubsystemType::CURRENT_DISCOVERY);
        current.map(|entry| (entry.traddr().to_owned(), entry.eflags.get())).collect::<Vec<_>>()
    };
    // Through the second, a host finds the first at another address.
    let expected = [("192.0.2.1".into(), PERSISTENT | SAME_EVERYWHERE), ("192.0.2.9".into(), PERSISTENT)];
    assert_eq!(current(&mut registry, "192.0.2.1"), expected);
}

#[test]
fn generation_grows_with_every_change_and_over_a_restart() {
    let mut registry = with_discovery(own());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let mut last = log(&mut queue, false).0;
    for service in ["4421", "4420", "4421"] {
        registry.set_ports(vec![Port { service: service.into(), ..port() }]).unwrap();
        tell(&mut registry, &mut queue);
        let next = log(&mut queue, false).0;
        assert!(next > last, "also where it is again what it was before");
        assert_eq!(log(&mut discovery(&mut registry, &Hello::discovery()), false).0, next);
        last = next;
    }
    let options = Options { discovery_generation: 1000, ..Options::default() };
    let mut restarted = Registry::new(options).unwrap();
    restarted.set_ports(vec![port()]).unwrap();
    assert!(log(&mut discovery(&mut restarted, &Hello::discovery()), false).0 > 1000);
}

#[test]
fn generation_of_a_host_does_not_move_with_what_it_cannot_see() {
    let mut registry = with_discovery(own());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let first = log(&mut queue, false).0;
    let hidden = definition("nqn.2026-11.com.example:hidden", HostAccess::default(), vec![]);
    registry.add_subsystem(hidden).unwrap();
    tell(&mut registry, &mut queue);
    assert_eq!(log(&mut queue, false).0, first);
}

#[test]
fn log_that_changes_while_it_is_read_has_another_generation_at_the_end() {
    let mut registry = with_discovery(own());
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let header = |queue: &mut Queue| {
        let piece = GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 0, 1024).emit();
        let header = DiscoveryHeader::read_from_bytes(&read(queue, &piece, 1024).unwrap()).unwrap();
        (header.genctr.get(), header.numrec.get())
    };
    let (before, entries) = header(&mut queue);
    assert_eq!(entries, 2);
    registry.remove_subsystem(&nqn(SUBSYSTEM)).unwrap();
    tell(&mut registry, &mut queue);
    let last = GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 3 * 1024, 64).emit();
    assert_eq!(read(&mut queue, &last, 64), Err((0, 0x02)), "that part of it is gone");
    let (after, entries) = header(&mut queue);
    assert_eq!(entries, 1);
    assert_ne!(before, after);
}

#[test]
fn referrals_are_listed_and_changes_of_them_are_reported() {
    use nvme_proto::admin::features::{FeatureId, SetFeatures};
    let mut registry = with_discovery(DiscoveryDefinition::default());
    let mut queue = discovery(&mut registry, &Hello { kato_ms: 30_000, ..Hello::discovery() });
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 31).emit();
    assert_eq!(code(&ask(&mut queue, &config)), (0, 0));
    let request = nvme_proto::Sqe::new(nvme_proto::opcode::AdminOpcode::ASYNC_EVENT_REQUEST.0);
    assert!(matches!(capsule(&mut queue, &with_cid(request, 9), 0), Step::Held));
    registry.set_discovery(DiscoveryDefinition { referrals: vec![referral()], ..own() }).unwrap();
    tell(&mut registry, &mut queue);
    assert_eq!(responded(queue.poll_step(NOW).unwrap()).dw0.get(), 0x0070_f002);
    let entries = log(&mut queue, false).1;
    let expected = [
        (SubsystemType::NVM_SUBSYSTEM, PORT, 0),
        (SubsystemType::CURRENT_DISCOVERY, PORT, PERSISTENT | SAME_EVERYWHERE),
        (SubsystemType::REFERRAL, 0, 0),
    ];
    assert_eq!(kinds(&entries), expected);
    let entry = &entries[2];
    assert_eq!((entry.trtype, entry.adrfam), (TransportType::TCP, AddressFamily::IPV6));
    assert_eq!((entry.traddr(), entry.trsvcid(), entry.treq), ("2001:db8::9", "8009", 0));
    assert_eq!(entry.subnqn().unwrap(), referral().nqn);
    let many = DiscoveryDefinition { referrals: vec![referral(); limits::REFERRALS_MAX + 1], ..own() };
    assert!(matches!(registry.set_discovery(many), Err(DefinitionError::TooMany { .. })));
}

#[test]
fn port_local_entries_are_those_of_the_port_and_referrals() {
    let mut registry = with_discovery(DiscoveryDefinition { referrals: vec![referral()], ..own() });
    let second = Port::tcp(2, "192.0.2.1:4421".parse().unwrap());
    registry.set_ports(vec![second, port()]).unwrap();
    let mut queue = discovery(&mut registry, &Hello::discovery());
    let supported = GetLogPage::new(LogPageId::SUPPORTED_LOG_PAGES, Nsid(0), 0x70 * 4, 4).emit();
    assert_eq!(read(&mut queue, &supported, 4).unwrap(), [1, 0, PORT_LOCAL, 0], "LSUPP, PLEOS");
    let page = |lsp, len| GetLogPage { lsp, ..GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 0, len) }.emit();
    let ports = |bytes: &[u8]| {
        let header = DiscoveryHeader::read_from_prefix(bytes).unwrap().0;
        let entries = bytes[1024..].chunks(1024).take(header.numrec.get().try_into().unwrap());
        entries.map(|entry| DiscoveryEntry::read_from_bytes(entry).unwrap().portid.get()).collect::<Vec<_>>()
    };
    let all = read(&mut queue, &page(0, 8192), 8192).unwrap();
    assert_eq!(ports(&all), [PORT, PORT, 0, 2, 2]);
    let local = read(&mut queue, &page(PORT_LOCAL, 8192), 8192).unwrap();
    assert_eq!(ports(&local), [PORT, PORT, 0]);
    assert!(local[4 * 1024..].iter().all(|&byte| byte == 0));
}

#[test]
fn listener_without_discovery_refuses_and_does_not_list_it() {
    let mut registry = with_discovery(own());
    let silent = Port { discovery: false, ..port() };
    registry.set_ports(vec![silent, Port::tcp(2, "192.0.2.1:8009".parse().unwrap())]).unwrap();
    for name in [OWN, Nqn::DISCOVERY.as_str()] {
        let (_, cqe, _) = hello(name).connect(&mut registry);
        assert_eq!((code(&cqe), cqe.dw0.get()), ((1, 0x82), 1 << 16 | 256), "{name}: SUBNQN is invalid");
        assert!(cqe.status().dnr());
    }
    assert_eq!(code(&Hello::admin().connect(&mut registry).1), (0, 0), "its disks are served");
    let asks = |port| Hello { link: Link { port, ..Hello::discovery().link }, ..Hello::discovery() };
    let entries = log(&mut discovery(&mut registry, &asks(2)), false).1;
    let expected = [
        (SubsystemType::NVM_SUBSYSTEM, 2, 0),
        (SubsystemType::CURRENT_DISCOVERY, 2, PERSISTENT | SAME_EVERYWHERE),
        (SubsystemType::NVM_SUBSYSTEM, PORT, 0),
    ];
    assert_eq!(kinds(&entries), expected);
}
