//! A controller's life: properties, enable, reset, shutdown, keep alive, and the end.

use crate::host::*;
use core::time::Duration;
use nvme_proto::fabrics::property::{Capabilities, Configuration, ControllerStatus, Property, PropertySet};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme_proto::{Sqe, admin::keep_alive::keep_alive};
use nvmf_block::BlockError;
use nvmf_subsystem::*;

const OK: (u8, u8) = (0, 0);
const INVALID_FIELD: (u8, u8) = (0, 0x02);
const SEQUENCE: (u8, u8) = (0, 0x0c);

fn csts(admin: &mut Queue) -> ControllerStatus {
    ControllerStatus(u32::try_from(get(admin, Property::CSTS, 0).unwrap()).unwrap())
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn properties_have_their_values_and_sizes() {
    let mut registry = registry(Options { queue_entries_max: 64, ..Options::default() });
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    let cap = Capabilities(get(&mut admin, Property::CAP, 1).unwrap());
    assert_eq!((cap.queue_entries(), cap.page_size_min()), (64, 0));
    assert!(cap.nvm_command_set() && cap.all_command_sets() && cap.0 >> 16 & 1 == 1);
    assert!(
        cap.timeout_500ms() > 0
            && u64::from(cap.timeout_500ms()) == get(&mut admin, Property::CRTO, 0).unwrap()
    );
    assert_eq!(get(&mut admin, Property::VS, 0), Ok(0x0002_0000));
    assert_eq!(get(&mut admin, Property::CC, 0), Ok(0));
    assert_eq!(get(&mut admin, Property::CSTS, 0), Ok(0));
    for (property, size) in [
        (Property::CAP, 0),
        (Property::VS, 1),
        (Property::CC, 1),
        (Property::CSTS, 1),
        (Property::CSTS, 7),
        (Property::NSSR, 0),
        (Property(0x0c), 0),
        (Property(u32::MAX), 1),
    ] {
        assert_eq!(get(&mut admin, property, size), Err(INVALID_FIELD), "{property:?} {size}");
    }
}

#[test]
fn only_cc_can_be_set_and_only_to_what_is_supported() {
    let mut registry = registry(Options::default());
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    let enable = u64::from(Configuration::ENABLE.0);
    for (property, size, value) in [
        (Property::CAP, 1, 0),
        (Property::CSTS, 0, 1),
        (Property::NSSR, 0, 0x4e56_4d65),
        (Property::CC, 1, enable),
        (Property::CC, 0, 1),
        (Property::CC, 0, enable | 1 << 7),
        (Property::CC, 0, enable | 1 << 11),
        (Property::CC, 0, enable | 1 << 4),
        (Property::CC, 0, enable & !(6 << 16)),
    ] {
        assert_eq!(set(&mut admin, property, size, value), INVALID_FIELD, "{property:?} {value:#x}");
    }
    assert_eq!(get(&mut admin, Property::CC, 0), Ok(0), "what is refused changes nothing");
    assert_eq!(set(&mut admin, Property::CC, 0, enable | 0b110 << 4), OK, "all supported command sets");
    assert!(csts(&mut admin).ready());
}

#[test]
fn admin_commands_wait_for_the_controller_to_be_enabled() {
    let mut registry = registry(Options::default());
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    for opcode in [AdminOpcode::IDENTIFY, AdminOpcode::KEEP_ALIVE, AdminOpcode::ASYNC_EVENT_REQUEST] {
        assert_eq!(code(&ask(&mut admin, &Sqe::new(opcode.0))), SEQUENCE);
    }
    enable(&mut admin);
    assert_eq!(code(&ask(&mut admin, &keep_alive())), OK);
    assert_eq!(code(&ask(&mut admin, &Hello::admin().command())), SEQUENCE, "connected already");
    assert_eq!(code(&ask(&mut admin, &Sqe::new(0x7e))), (0, 0x01));
    let fabrics = |fctype| nvme_proto::fabrics::command(FabricsType(fctype));
    for (fctype, status) in
        [(0x02, INVALID_FIELD), (0x05, (0, 0x01)), (0x06, (0, 0x01)), (0xff, INVALID_FIELD)]
    {
        assert_eq!(code(&ask(&mut admin, &fabrics(fctype))), status, "FCTYPE {fctype:#x}");
    }
}

#[test]
fn a_reset_ends_the_io_queues_and_is_done_when_they_are_gone() {
    let mut fixture = Fixture::new();
    assert_eq!(set(&mut fixture.admin, Property::CC, 0, 0), OK);
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::CloseIoQueues)));
    assert!(fixture.admin.poll_step(NOW).is_none());
    assert!(csts(&mut fixture.admin).ready(), "not before the I/O queue is gone");
    let read = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)), 512);
    assert_eq!(code(&ask(&mut fixture.io, &read)), SEQUENCE);
    assert!(matches!(fixture.io.poll_step(NOW), Some(Step::CloseQueue)));
    let association = fixture.association();
    assert!(fixture.registry.close_queue(&association, Qid(1)).is_empty());
    assert!(!csts(&mut fixture.admin).ready());
    enable(&mut fixture.admin);
    assert_eq!(code(&Hello::io(1, 1).connect(&mut fixture.registry).1), OK, "the association lives on");
}

/// Sets CC, and lets the flushes that it takes end like this. Returns their devices, and the status.
fn set_cc(
    admin: &mut Queue,
    configuration: Configuration,
    result: Result<(), BlockError>,
) -> (Vec<u32>, (u8, u8)) {
    let value = configuration.0.into();
    let mut step = capsule(admin, &PropertySet { size: 0, property: Property::CC, value }.emit(), 0);
    let mut flushed = Vec::new();
    while let Step::Execute { ticket, work, transfer } = step {
        assert_eq!(transfer, Transfer::None);
        let Work::Block { device, op: BlockWork::Flush } = work else { panic!("{work:?}") };
        flushed.push(device.0);
        step = admin.on_done(NOW, ticket, result);
    }
    (flushed, code(&responded(step)))
}

#[test]
fn normal_shutdown_flushes_every_namespace_with_a_write_cache() {
    let mut fixture = Fixture::new();
    let without = namespace(2, nvmf_block::Geometry::new(512, 10));
    fixture.registry.add_namespace(&nqn(SUBSYSTEM), without).unwrap();
    fixture.registry.add_namespace(&nqn(SUBSYSTEM), namespace(7, disk())).unwrap();
    // Nothing was ever written to this one. Namespace 3 may have become read-only since something was.
    let opened_for_reading = nvmf_block::Geometry { read_only: true, ..disk() };
    fixture.registry.add_namespace(&nqn(SUBSYSTEM), namespace(8, opened_for_reading)).unwrap();
    fixture.deliver();
    let shutdown = Configuration::ENABLE.with_normal_shutdown();
    let failed = set_cc(&mut fixture.admin, shutdown, Err(BlockError::Medium));
    assert_eq!(failed, (vec![101], (2, 0x80)), "what is not durable is not shut down");
    assert_eq!(csts(&mut fixture.admin).0 >> 2 & 0b11, 0, "SHST: normal operation");
    assert!(fixture.admin.poll_step(NOW).is_none());
    assert_eq!(set_cc(&mut fixture.admin, shutdown, Ok(())), (vec![101, 103, 107], OK));
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::CloseIoQueues)));
}

#[test]
fn namespace_that_became_read_only_is_flushed_at_a_normal_shutdown() {
    let mut fixture = Fixture::new();
    let read_only = NamespaceDefinition { read_only: true, ..namespace(1, disk()) };
    let access = NamespaceAccess { write_protection: WriteProtection::On, ..NamespaceAccess::default() };
    let protected = NamespaceDefinition { access, ..namespace(5, disk()) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![read_only, protected]).unwrap();
    fixture.deliver();
    let shutdown = Configuration::ENABLE.with_normal_shutdown();
    let failed = set_cc(&mut fixture.admin, shutdown, Err(BlockError::Medium));
    assert_eq!(failed, (vec![101], (2, 0x80)));
    assert_eq!(set_cc(&mut fixture.admin, shutdown, Ok(())), (vec![101, 105], OK));
}

#[test]
fn reset_while_a_shutdown_flushes_stands() {
    let mut fixture = Fixture::new();
    let value = Configuration::ENABLE.with_normal_shutdown().0.into();
    let sqe = PropertySet { size: 0, property: Property::CC, value }.emit();
    let Step::Execute { ticket, .. } = capsule(&mut fixture.admin, &with_cid(sqe, 3), 0) else {
        panic!("a flush")
    };
    assert_eq!(set(&mut fixture.admin, Property::CC, 0, 0), OK);
    let Step::Execute { ticket, .. } = fixture.admin.on_done(NOW, ticket, Ok(())) else {
        panic!("another flush")
    };
    assert_eq!(code(&responded(fixture.admin.on_done(NOW, ticket, Ok(())))), OK);
    assert_eq!(get(&mut fixture.admin, Property::CC, 0), Ok(0), "the later value is the one that counts");
}

#[test]
fn abrupt_shutdown_flushes_nothing() {
    let mut fixture = Fixture::new();
    let abrupt = Configuration(Configuration::ENABLE.0 | 0b10 << 14);
    assert_eq!(set_cc(&mut fixture.admin, abrupt, Ok(())), (vec![], OK));
}

#[test]
fn a_shutdown_is_complete_when_the_io_queues_are_gone() {
    let mut fixture = Fixture::new();
    let shutdown = Configuration::ENABLE.with_normal_shutdown();
    assert_eq!(set_cc(&mut fixture.admin, shutdown, Ok(())), (vec![101, 103], OK));
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::CloseIoQueues)));
    assert!(!csts(&mut fixture.admin).shutdown_complete());
    let association = fixture.association();
    fixture.registry.close_queue(&association, Qid(1));
    assert!(csts(&mut fixture.admin).shutdown_complete());
    assert_eq!(set(&mut fixture.admin, Property::CC, 0, 0), OK);
    enable(&mut fixture.admin);
    assert!(csts(&mut fixture.admin).ready() && !csts(&mut fixture.admin).shutdown_complete());
}

fn read_at(io: &mut Queue, now: Duration) {
    let read = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(2)), 512);
    let _ = responded(io.on_capsule(now, zerocopy::IntoBytes::as_bytes(&read).try_into().unwrap(), 0));
}

#[test]
fn keep_alive_expires_two_timeouts_after_the_last_command_of_any_queue() {
    let mut fixture = Fixture::new();
    // 5 s were asked for at NOW.
    assert_eq!(fixture.admin.poll_timeout(), Some(NOW + ms(10_000)));
    read_at(&mut fixture.io, NOW + ms(3000));
    assert_eq!(fixture.admin.poll_timeout(), Some(NOW + ms(13_000)), "I/O traffic counts");
    fixture.admin.on_timeout(NOW + ms(10_000));
    assert!(fixture.admin.poll_step(NOW + ms(10_000)).is_none(), "too early does no harm");
    fixture.admin.on_timeout(NOW + ms(13_000));
    let Some(Step::CloseAssociation(violation)) = fixture.admin.poll_step(NOW + ms(13_000)) else {
        panic!("the association ends");
    };
    assert_eq!(violation, Violation::KeepAliveExpired { silent: ms(10_000), timeout: ms(5000) });
    assert!(fixture.admin.poll_step(NOW + ms(13_000)).is_none() && fixture.admin.poll_timeout().is_none());
}

/// With traffic based keep alive a host that saw a completion shortly before it looks sends its next command almost two
/// halves of the timeout later, and that command takes a moment to arrive.
#[test]
fn keep_alive_spares_a_host_whose_commands_come_a_timeout_apart() {
    let mut fixture = Fixture::new();
    let mut now = NOW;
    for gap in [1, 4990, 5040, 5100, 5500, 5001] {
        let next = now + ms(gap);
        while let Some(due) = fixture.admin.poll_timeout().filter(|&due| due <= next) {
            fixture.admin.on_timeout(due);
            assert!(fixture.admin.poll_step(due).is_none(), "{gap} ms");
        }
        read_at(&mut fixture.io, next);
        now = next;
    }
}

/// After a stall of the target itself the commands of that time are still unread.
#[test]
fn keep_alive_that_is_looked_at_too_late_starts_again() {
    let mut fixture = Fixture::new();
    let late = fixture.admin.poll_timeout().unwrap() + ms(20_000);
    fixture.admin.on_timeout(late);
    assert!(fixture.admin.poll_step(late).is_none());
    assert_eq!(fixture.admin.poll_timeout(), Some(late + ms(5000)));
    fixture.admin.on_timeout(late + ms(5000));
    assert!(fixture.admin.poll_step(late + ms(5000)).is_some());
}

#[test]
fn keep_alive_is_rounded_up_to_its_granularity_and_zero_is_off() {
    for (kato_ms, timeout) in [(0, None), (1, Some(1000)), (1000, Some(1000)), (1001, Some(2000))] {
        let mut registry = registry(Options::default());
        let (mut admin, ..) = Hello { kato_ms, ..Hello::admin() }.connect(&mut registry);
        enable(&mut admin);
        assert_eq!(admin.poll_timeout(), timeout.map(|timeout| NOW + ms(2 * timeout)), "{kato_ms}");
    }
    let mut registry = registry(Options::default());
    let (mut admin, ..) = Hello { kato_ms: u32::MAX, ..Hello::admin() }.connect(&mut registry);
    enable(&mut admin);
    assert_eq!(admin.poll_timeout(), Some(NOW + ms(2 * u64::from(u32::MAX))));
}

#[test]
fn controller_not_enabled_in_time_ends_without_keep_alive() {
    let mut registry = registry(Options::default());
    let (mut admin, ..) = Hello { kato_ms: 0, ..Hello::admin() }.connect(&mut registry);
    let _ = get(&mut admin, Property::CSTS, 0);
    assert_eq!(admin.poll_timeout(), Some(NOW + ms(30_000)));
    admin.on_timeout(NOW + ms(29_999));
    assert!(admin.poll_step(NOW + ms(29_999)).is_none());
    admin.on_timeout(NOW + ms(30_000));
    let step = admin.poll_step(NOW + ms(30_000));
    assert!(matches!(step, Some(Step::CloseAssociation(Violation::EnableTimeout(_)))));

    let (mut admin, ..) = Hello { kato_ms: 0, ..Hello::admin() }.connect(&mut registry);
    enable(&mut admin);
    assert_eq!(admin.poll_timeout(), None, "one that was enabled in time stays");
}

#[test]
fn admin_queue_end_closes_the_association() {
    let mut fixture = Fixture::new();
    let (mut second, ..) = Hello::io(7, 1).connect(&mut fixture.registry);
    let association = fixture.association();
    assert_eq!(fixture.registry.close_queue(&association, Qid(0)), [Qid(1), Qid(7)]);
    for io in [&mut fixture.io, &mut second] {
        assert!(matches!(io.poll_step(NOW), Some(Step::CloseQueue)));
    }
    assert_eq!(
        code(&Hello::io(2, 1).connect(&mut fixture.registry).1),
        (1, 0x82),
        "nothing joins an association that ends"
    );
    assert_eq!(fixture.registry.associations().count(), 1);
    assert!(fixture.registry.close_queue(&association, Qid(1)).is_empty());
    assert!(fixture.registry.close_queue(&association, Qid(7)).is_empty());
    assert_eq!(fixture.registry.associations().count(), 0);
    assert!(fixture.registry.close_queue(&association, Qid(7)).is_empty(), "twice does no harm");
}

/// Its host may be writing over another controller by now.
#[test]
fn command_that_comes_after_the_end_of_the_admin_queue_is_aborted() {
    let mut fixture = Fixture::new();
    let association = fixture.association();
    fixture.registry.close_queue(&association, Qid(0));
    let write = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::WRITE, Nsid(1)), 512);
    match capsule(&mut fixture.io, &write, 0) {
        Step::Respond(response) => {
            let cqe = responded(Step::Respond(response));
            assert_eq!(code(&cqe), (0, 0x08), "aborted: the submission queue is deleted");
        }
        Step::Execute { ticket, .. } => {
            ticket.abandon();
            panic!("it is carried out");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_removed_subsystem_and_a_revoked_host_lose_their_associations() {
    type Change = fn(&mut Registry);
    let changes: [Change; 2] = [
        |registry| registry.remove_subsystem(&nqn(SUBSYSTEM)).unwrap(),
        |registry| registry.set_hosts(&nqn(SUBSYSTEM), HostAccess::default()).unwrap(),
    ];
    for change in changes {
        let mut fixture = Fixture::new();
        change(&mut fixture.registry);
        let notices = fixture.registry.take_notices();
        assert!(notices.iter().any(|notice| matches!(notice, Notice::Closing(_))), "{notices:?}");
        assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::CloseQueue)));
        assert!(matches!(fixture.io.poll_step(NOW), Some(Step::CloseQueue)));
        let association = fixture.association();
        assert_eq!(fixture.registry.close_queue(&association, Qid(0)), [Qid(1)]);
        fixture.registry.close_queue(&association, Qid(1));
        assert_eq!(fixture.registry.associations().count(), 0);
        assert_ne!(code(&Hello::admin().connect(&mut fixture.registry).1), OK);
    }
}

#[test]
fn change_subsystem_with_one_bad_part_changes_nothing() {
    let name = nqn(SUBSYSTEM);
    let many = || (0..=limits::HOSTS_MAX).map(|at| nqn(&format!("nqn.2026-11.com.example:{at}"))).collect();
    let twice = || vec![namespace(1, disk()), namespace(1, disk())];
    let cases = [
        SubsystemChange { hosts: Some(HostAccess::Only(many())), namespaces: Some(vec![]) },
        SubsystemChange { hosts: Some(HostAccess::default()), namespaces: Some(twice()) },
    ];
    for change in cases {
        let mut registry = registry(Options::default());
        let (mut admin, ..) = Hello::admin().connect(&mut registry);
        assert!(registry.change_subsystem(&name, change).is_err());
        assert!(registry.take_notices().is_empty());
        assert!(admin.poll_step(NOW).is_none());
        assert_eq!(registry.namespaces(&name).unwrap().iter().count(), 2);
        assert_eq!(code(&Hello::admin().connect(&mut registry).1), OK, "the host may still connect");
    }
    let mut fixture = Fixture::new();
    let both = SubsystemChange { hosts: Some(HostAccess::default()), namespaces: Some(vec![]) };
    fixture.registry.change_subsystem(&name, both).unwrap();
    assert_eq!(fixture.registry.namespaces(&name).unwrap().iter().count(), 0);
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::CloseQueue)));
    assert!(fixture.registry.change_subsystem(&nqn("nqn.2026-11.x:y"), SubsystemChange::default()).is_err());
}

#[test]
fn add_subsystem_up_to_the_bound() {
    let mut registry = Registry::new(Options::default()).unwrap();
    let numbered = |at| definition(&format!("nqn.2026-11.com.example:{at}"), HostAccess::Any, vec![]);
    for at in 0..limits::SUBSYSTEMS_MAX {
        registry.add_subsystem(numbered(at)).unwrap();
    }
    let one_more = registry.add_subsystem(numbered(limits::SUBSYSTEMS_MAX));
    let (count, max) = (limits::SUBSYSTEMS_MAX + 1, limits::SUBSYSTEMS_MAX);
    assert_eq!(one_more, Err(DefinitionError::TooMany { what: "subsystems", count, max }));
}

#[test]
fn invalid_definitions_are_refused() {
    let name = nqn(SUBSYSTEM);
    let mut registry = registry(Options::default());
    let with = |namespaces| definition("nqn.2026-11.com.example:b", HostAccess::Any, namespaces);
    let nil = NamespaceDefinition { uuid: [0; 16], ..namespace(1, disk()) };
    let twin = NamespaceDefinition { nsid: Nsid(2), ..namespace(1, disk()) };
    let mut serial = with(vec![]);
    serial.serial = "x".repeat(21);
    let nsid = |nsid| NamespaceDefinition { nsid: Nsid(nsid), ..namespace(1, disk()) };
    for bad in [
        definition(SUBSYSTEM, HostAccess::Any, vec![]),
        SubsystemDefinition { nqn: Nqn::DISCOVERY, ..with(vec![]) },
        serial,
        with(vec![nil]),
        with(vec![namespace(1, disk()), twin]),
        with(vec![namespace(1, disk()), namespace(1, disk())]),
        with(vec![nsid(0)]),
        with(vec![nsid(limits::NSID_MAX + 1)]),
    ] {
        assert!(registry.add_subsystem(bad.clone()).is_err(), "{bad:?}");
    }
    assert!(registry.add_namespace(&name, namespace(1, disk())).is_err());
    assert!(registry.remove_namespace(&name, Nsid(9)).is_err());
    assert!(registry.set_ports(vec![port(), port()]).is_err());
    assert!(registry.set_ports(vec![Port { address: String::new(), ..port() }]).is_err());
    assert!(registry.set_ports(vec![Port { in_capsule_len: 4097, ..port() }]).is_err());
    assert!(registry.take_notices().is_empty(), "what is refused changes nothing");
    assert!(Registry::new(Options { transfer_len_max: 5000, ..Options::default() }).is_err());
    assert!(Registry::new(Options { io_queues_max: 0, ..Options::default() }).is_err());
}

#[test]
fn step_and_ticket_sizes_are_bounded() {
    assert!(size_of::<Step>() <= 128, "{}", size_of::<Step>());
    assert!(size_of::<Ticket>() <= 128, "{}", size_of::<Ticket>());
}
