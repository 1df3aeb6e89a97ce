//! The host engine against the subsystem engine, with virtual time and without a provider.

mod disk;
mod io;
mod rig;

use disk::BLOCK;
use nvmf_block::{BlockError, BlockRange, DeviceId, Geometry};
use nvmf_host::association::State;
use nvmf_host::{AssociationConfig, AssociationError, Cntlid, FlowControl, Operation, Status};
use nvmf_subsystem::{
    DuplicateHostId, HostAccess, HostId, NamespaceDefinition, Nqn, Nsid, Options, Port, RdmaProviderType,
    Registry, SubsystemDefinition, Violation,
};
use rig::{HostEvent, PORT, Pair};
use std::time::Duration;

const SUBSYSTEM: &str = "nqn.2026-11.com.example:disk";
const HOST: &str = "nqn.2026-11.com.example:host";
const BLOCKS: u64 = 4096;
const SECOND: Duration = Duration::from_secs(1);

fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

fn namespace(nsid: u8, read_only: bool) -> NamespaceDefinition {
    let geometry = Geometry {
        volatile_write_cache: true,
        deallocate: true,
        zero_after_deallocate: true,
        ..Geometry::new(BLOCK as u32, BLOCKS)
    };
    let (nsid, id) = (Nsid(nsid.into()), nsid);
    NamespaceDefinition {
        nsid,
        device: DeviceId(101),
        geometry,
        uuid: [id; 16],
        nguid: [id; 16],
        eui64: [0; 8],
        read_only,
        access: Default::default(),
    }
}

fn subsystem(name: &str, hosts: HostAccess) -> SubsystemDefinition {
    let namespaces = vec![namespace(1, false), namespace(3, true)];
    SubsystemDefinition { nqn: nqn(name), serial: "S1".into(), model: "A Disk".into(), hosts, namespaces }
}

/// Small limits, so that small operations reach them.
fn options() -> Options {
    Options { io_queues_max: 4, queue_entries_max: 16, transfer_len_max: 16 * 1024, ..Options::default() }
}

fn registry(options: Options) -> Registry {
    let mut registry = Registry::new(options).unwrap();
    registry.add_subsystem(subsystem(SUBSYSTEM, HostAccess::Only([nqn(HOST)].into()))).unwrap();
    let port = Port::rdma(PORT, "192.0.2.1:4420".parse().unwrap(), RdmaProviderType::IWARP);
    registry.set_ports(vec![port]).unwrap();
    registry.take_notices();
    registry
}

fn config() -> AssociationConfig {
    let config = AssociationConfig::new(nqn(SUBSYSTEM), nqn(HOST), HostId([1; 16]));
    AssociationConfig { io_queues: 3, io_queue_entries: 8, ..config }
}

fn pattern(seed: u64, blocks: u64) -> Vec<u8> {
    (0..blocks * BLOCK as u64).map(|at| (at ^ (at >> 8) ^ (seed * 37)) as u8 | 1).collect()
}

#[test]
fn connected_host_knows_controller_and_namespaces() {
    let pair = Pair::ready(registry(options()), config());
    let controller = pair.host.controller();
    assert_eq!((controller.serial.as_str(), controller.model.as_str()), ("S1", "A Disk"));
    assert_eq!(controller.subsystem_nqn, SUBSYSTEM);
    assert_eq!((controller.io_queues, controller.io_queue_entries), (3, 8));
    assert_eq!((controller.transfer_bytes_max, controller.in_capsule_bytes), (16 * 1024, 4096));
    let association = pair.registry.associations().next().expect("one association");
    assert_eq!((association.key().cntlid, association.io_queues()), (controller.cntlid, 3));
    assert!(association.is_enabled());
    let namespaces: Vec<_> =
        pair.host.namespaces().iter().map(|n| (n.nsid, n.geometry.read_only, n.uuid)).collect();
    assert_eq!(namespaces, [(Nsid(1), false, [1; 16]), (Nsid(3), true, [3; 16])]);
    let geometry = pair.host.namespaces()[0].geometry;
    assert_eq!((geometry.block_size, geometry.blocks), (BLOCK as u32, BLOCKS));
    assert!(geometry.volatile_write_cache && geometry.deallocate && geometry.zero_after_deallocate);
}

#[test]
fn queue_requests_are_limited_by_target() {
    let config = AssociationConfig { io_queues: 100, io_queue_entries: 1024, ..config() };
    let mut pair = Pair::ready(registry(options()), config);
    assert_eq!((pair.host.controller().io_queues, pair.host.controller().io_queue_entries), (4, 16));
    let range = BlockRange::new(0, BLOCKS);
    assert_eq!(pair.io(1, Operation::Write { range, fua: false }, &mut pattern(1, BLOCKS)), Ok(()));
    assert!(pair.disk.read(range) == pattern(1, BLOCKS));
}

#[test]
fn large_operations_are_split_and_reassembled() {
    for disable_flow_control in [false, true] {
        let mut pair =
            Pair::ready(registry(options()), AssociationConfig { disable_flow_control, ..config() });
        let agreed = pair.host.controller().flow_control;
        assert_eq!(agreed == FlowControl::Disabled, disable_flow_control);
        // 100 KiB and a block: seven commands of up to 16 KiB, in any order.
        for (start, blocks, commands) in
            [(0, 1, 1), (5, 8, 1), (13, 9, 1), (7, 32, 1), (7, 33, 2), (900, 201, 7)]
        {
            let range = BlockRange::new(start, blocks);
            let data = pattern(start, blocks);
            let before = pair.io_commands;
            assert_eq!(pair.io(1, Operation::Write { range, fua: false }, &mut data.clone()), Ok(()));
            assert_eq!(pair.io_commands - before, commands, "{range:?}");
            assert!(pair.disk.read(range) == data, "{range:?} was written");
            let mut back = vec![0; data.len()];
            assert_eq!(pair.io(1, Operation::Read { range }, &mut back), Ok(()));
            assert!(back == data, "{range:?} was read");
            assert_eq!(pair.io(1, Operation::Compare { range }, &mut back), Ok(()));
            *back.last_mut().unwrap() ^= 0x80;
            assert_eq!(pair.io(1, Operation::Compare { range }, &mut back), Err(BlockError::CompareFailed));
            assert_eq!(pair.io(1, Operation::Verify { range }, &mut []), Ok(()));
        }
    }
}

#[test]
fn write_zeroes_deallocate_flush_and_fua_reach_disk() {
    let mut pair = Pair::ready(registry(options()), config());
    let whole = BlockRange::new(0, 300);
    let write = Operation::Write { range: whole, fua: true };
    assert_eq!(pair.io(1, write, &mut pattern(3, 300)), Ok(()));
    assert_eq!(pair.disk.forced, 10, "FUA is in every part: 300 blocks are ten commands");
    let mut expected = pattern(3, 300);
    let zero = Operation::WriteZeroes { range: BlockRange::new(10, 100), deallocate: true, fua: false };
    assert_eq!(pair.io(1, zero, &mut []), Ok(()));
    expected[10 * BLOCK..110 * BLOCK].fill(0);
    assert_eq!(pair.io(1, Operation::Deallocate { range: BlockRange::new(200, 50) }, &mut []), Ok(()));
    expected[200 * BLOCK..250 * BLOCK].fill(0);
    assert!(pair.disk.read(whole) == expected);
    let before = pair.disk.flushes;
    assert_eq!(pair.io(1, Operation::Flush, &mut []), Ok(()));
    assert_eq!(pair.disk.flushes - before, 1);
}

#[test]
fn random_operations_match_model() {
    let mut pair = Pair::ready(registry(options()), config());
    let mut model = vec![0; 512 * BLOCK];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for round in 0..1000 {
        let start = below(512);
        let range = BlockRange::new(start, 1 + below((512 - start).min(80)));
        let bytes = start as usize * BLOCK..(start + range.blocks) as usize * BLOCK;
        match below(6) {
            0..2 => {
                let mut data = pattern(round, range.blocks);
                assert_eq!(pair.io(1, Operation::Write { range, fua: round % 3 == 0 }, &mut data), Ok(()));
                model[bytes].copy_from_slice(&data);
            }
            2 => {
                let deallocate = round % 2 == 0;
                let operation = Operation::WriteZeroes { range, deallocate, fua: false };
                assert_eq!(pair.io(1, operation, &mut []), Ok(()));
                model[bytes].fill(0);
            }
            3 => {
                assert_eq!(pair.io(1, Operation::Deallocate { range }, &mut []), Ok(()));
                model[bytes].fill(0);
            }
            _ => {
                let mut data = vec![0; bytes.len()];
                assert_eq!(pair.io(1, Operation::Read { range }, &mut data), Ok(()));
                assert!(data == model[bytes], "round {round}: {range:?}");
            }
        }
    }
}

#[test]
fn disallowed_operations_change_nothing() {
    let mut pair = Pair::ready(registry(options()), config());
    let range = BlockRange::new(0, 4);
    let write = Operation::Write { range, fua: false };
    assert_eq!(pair.io(3, write, &mut pattern(1, 4)), Err(BlockError::ReadOnly));
    let beyond = Operation::Read { range: BlockRange::new(BLOCKS - 1, 2) };
    assert_eq!(pair.io(1, beyond, &mut vec![0; 1024]), Err(BlockError::OutOfRange));
    assert_eq!(pair.io(2, Operation::Read { range }, &mut vec![0; 2048]), Err(BlockError::Gone));
    assert!(pair.disk.read(range).iter().all(|&byte| byte == 0));
    assert_eq!(pair.io(3, Operation::Read { range }, &mut vec![0; 2048]), Ok(()));
}

/// Connects, which must fail and leak nothing.
fn refused(registry: Registry, config: AssociationConfig) -> AssociationError {
    let mut pair = Pair::connect(registry, config);
    let events = pair.take_events();
    let [HostEvent::Failed(error), HostEvent::Closed] = &events[..] else { panic!("{events:?}") };
    pair.assert_clean();
    error.clone()
}

#[test]
fn refused_connect_names_wrong_parameter() {
    let stranger = nqn("nqn.2026-11.com.example:stranger");
    let cases = [
        (
            AssociationConfig { subsystem_nqn: nqn("nqn.2026-11.com.example:other"), ..config() },
            Status::CONNECT_INVALID_PARAMETERS,
            Some("SUBNQN"),
        ),
        (AssociationConfig { host_nqn: stranger, ..config() }, Status::CONNECT_INVALID_HOST, None),
        (
            AssociationConfig { controller: Some(Cntlid(7)), ..config() },
            Status::CONNECT_INVALID_PARAMETERS,
            Some("CNTLID"),
        ),
    ];
    for (config, expected, field) in cases {
        let error = refused(registry(options()), config);
        let AssociationError::Connect { qid, status, parameter } = &error else { panic!("{error}") };
        assert!(qid.0 == 0 && status.is(expected), "{error}");
        assert_eq!(parameter.and_then(|parameter| parameter.field()), field, "{error}");
        assert!(error.is_permanent(), "a retry would be refused too: {error}");
    }
}

#[test]
fn full_subsystem_refusal_is_not_permanent() {
    let options = Options { controllers_max: 1, ..options() };
    let first = Pair::ready(registry(options), config());
    let mut second = Pair::connect(first.registry, config());
    let events = second.take_events();
    let [HostEvent::Failed(error), HostEvent::Closed] = &events[..] else { panic!("{events:?}") };
    assert!(matches!(error, AssociationError::Connect { .. }) && !error.is_permanent(), "{error}");
}

#[test]
fn host_nqn_with_two_host_ids_follows_policy() {
    for (policy, welcome) in [(DuplicateHostId::Report, true), (DuplicateHostId::Refuse, false)] {
        let first = Pair::ready(registry(Options { duplicate_host_id: policy, ..options() }), config());
        let twin = AssociationConfig { host_id: HostId([2; 16]), ..config() };
        let mut second = Pair::connect(first.registry, twin);
        assert_eq!(second.take_events() == [HostEvent::Ready], welcome, "{policy:?}");
    }
}

#[test]
fn idle_association_survives_by_keep_alive() {
    let mut pair = Pair::ready(registry(options()), config());
    pair.pass(600 * SECOND);
    assert_eq!((pair.take_events(), pair.violations.len()), (vec![], 0));
    assert_eq!(pair.host.state(), State::Ready);
}

#[test]
fn silent_host_loses_association_and_reconnects() {
    let mut pair = Pair::ready(registry(options()), config());
    pair.frozen = true;
    pair.pass(4 * SECOND);
    assert_eq!(pair.take_events(), []);
    pair.pass(10 * SECOND);
    assert!(matches!(pair.violations[..], [Violation::KeepAliveExpired { .. }]), "{:?}", pair.violations);
    let events = pair.take_events();
    let [HostEvent::Failed(error @ AssociationError::Disconnected { .. }), HostEvent::Closed] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(!error.is_permanent());
    pair.assert_clean();
    let mut again = pair.again();
    assert_eq!(again.take_events(), [HostEvent::Ready]);
}

#[test]
fn host_whose_capsules_are_lost_fails() {
    let mut pair = Pair::ready(registry(options()), config());
    pair.mute = true;
    pair.pass(60 * SECOND);
    let events = pair.take_events();
    assert!(matches!(events[..], [HostEvent::Failed(_), HostEvent::Closed]), "{events:?}");
    pair.assert_clean();
}

#[test]
fn shutdown_closes_association_cleanly() {
    let mut pair = Pair::ready(registry(options()), config());
    let range = BlockRange::new(0, 8);
    assert_eq!(pair.io(1, Operation::Write { range, fua: false }, &mut pattern(1, 8)), Ok(()));
    pair.shut_down();
    pair.pass(SECOND);
    assert_eq!(pair.take_events(), [HostEvent::Closed], "no failure");
    assert_eq!(pair.violations, []);
    pair.assert_clean();
}

#[test]
fn host_reconnects_after_operator_disconnect() {
    let mut pair = Pair::ready(registry(options()), config());
    pair.registry.associations().for_each(|association| association.close());
    pair.deliver();
    let events = pair.take_events();
    assert!(
        matches!(events[..], [HostEvent::Failed(AssociationError::Disconnected { .. }), HostEvent::Closed]),
        "{events:?}"
    );
    pair.assert_clean();
    assert_eq!(pair.again().take_events(), [HostEvent::Ready]);
}

#[test]
fn removed_subsystem_disconnects_hosts_permanently() {
    let mut pair = Pair::ready(registry(options()), config());
    pair.registry.remove_subsystem(&nqn(SUBSYSTEM)).unwrap();
    pair.deliver();
    assert!(matches!(pair.take_events()[..], [HostEvent::Failed(_), HostEvent::Closed]));
    pair.assert_clean();
    let events = pair.again().take_events();
    let [HostEvent::Failed(error), HostEvent::Closed] = &events[..] else { panic!("{events:?}") };
    assert!(error.is_permanent(), "{error}");
}

#[test]
fn connected_host_sees_namespace_changes() {
    let mut pair = Pair::ready(registry(options()), config());
    pair.registry.add_namespace(&nqn(SUBSYSTEM), namespace(2, false)).unwrap();
    pair.deliver();
    assert_eq!(pair.take_events(), [HostEvent::NamespacesChanged]);
    let range = BlockRange::new(0, 4);
    assert_eq!(pair.io(2, Operation::Write { range, fua: false }, &mut pattern(1, 4)), Ok(()));
    pair.registry.remove_namespace(&nqn(SUBSYSTEM), Nsid(1)).unwrap();
    pair.deliver();
    assert_eq!(pair.take_events(), [HostEvent::NamespacesChanged]);
    let nsids: Vec<_> = pair.host.namespaces().iter().map(|namespace| namespace.nsid.0).collect();
    assert_eq!(nsids, [2, 3]);
}

#[test]
fn discovery_lists_only_allowed_subsystems() {
    let others = HostAccess::Only([nqn("nqn.2026-11.com.example:stranger")].into());
    let mut registry = registry(options());
    registry.add_subsystem(subsystem("nqn.2026-11.com.example:closed", others)).unwrap();
    registry.take_notices();
    let mut pair = Pair::ready(registry, AssociationConfig::discovery(nqn(HOST), HostId([1; 16]), false));
    let found = |pair: &Pair| -> Vec<String> {
        let entries = &pair.host.discovery_log().entries;
        entries.iter().map(|entry| entry.subnqn().unwrap().to_string()).collect()
    };
    let names = found(&pair);
    assert!(names.iter().any(|name| name == SUBSYSTEM), "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with(":closed")), "{names:?}");
    let entry =
        pair.host.discovery_log().entries.iter().find(|e| e.subnqn().unwrap() == nqn(SUBSYSTEM)).unwrap();
    assert_eq!((entry.traddr(), entry.trsvcid()), ("192.0.2.1", "4420"));
    pair.shut_down();
    pair.pass(SECOND);
    assert_eq!(pair.take_events(), [HostEvent::Closed]);
    pair.assert_clean();
}

#[test]
fn persistent_discovery_reports_new_subsystems() {
    let config = AssociationConfig::discovery(nqn(HOST), HostId([1; 16]), true);
    let mut pair = Pair::ready(registry(options()), config);
    let generation = pair.host.discovery_log().generation;
    pair.registry.add_subsystem(subsystem("nqn.2026-11.com.example:new", HostAccess::Any)).unwrap();
    pair.deliver();
    assert_eq!(pair.take_events(), [HostEvent::LogChanged]);
    let log = pair.host.discovery_log();
    assert!(log.generation > generation);
    assert!(log.entries.iter().any(|entry| entry.subnqn().unwrap() == nqn("nqn.2026-11.com.example:new")));
    pair.pass(600 * SECOND);
    assert_eq!(pair.take_events(), [], "it stays connected");
}
