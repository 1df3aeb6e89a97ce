//! Asymmetric namespace access, and namespaces that exist for some hosts only.

use super::host::*;
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::admin::identify::{Cns, Identify};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Cqe, Sqe};
use nvmf_block::Geometry;
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const OTHER: &str = "nqn.2026-11.com.example:other";

fn in_group(nsid: u32, group: u32) -> NamespaceDefinition {
    let access = NamespaceAccess { ana_group: group, ..NamespaceAccess::default() };
    NamespaceDefinition { access, ..namespace(nsid, disk()) }
}

fn only_for(nsid: u32, host: &str) -> NamespaceDefinition {
    let access =
        NamespaceAccess { hosts: HostAccess::Only([nqn(host)].into()), ..NamespaceAccess::default() };
    NamespaceDefinition { access, ..namespace(nsid, disk()) }
}

/// A fixture with these namespaces, their change delivered, and no event left.
fn fixture(namespaces: Vec<NamespaceDefinition>) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), namespaces).unwrap();
    fixture.deliver();
    for lid in [LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST, LogPageId::ANA] {
        read(&mut fixture.admin, &GetLogPage::new(lid, Nsid(0), 0, 4096).emit(), 4096).unwrap();
    }
    fixture
}

fn log(queue: &mut Queue, offset: u64, len: u32, groups_only: bool) -> Vec<u8> {
    let mut command = GetLogPage::new(LogPageId::ANA, Nsid(0), offset, len.into());
    command.lsp = groups_only.into();
    read(queue, &command.emit(), len).unwrap()
}

fn block(opcode: NvmOpcode, nsid: u32) -> Sqe {
    keyed(ReadWrite::new(0, 1).emit(opcode, Nsid(nsid)), 512)
}

/// The status of a command that is refused; `None` when it goes to the device.
fn refused(queue: &mut Queue, sqe: &Sqe) -> Option<Status> {
    match capsule(queue, sqe, 0) {
        Step::Execute { ticket, .. } => {
            let _ = queue.on_done(NOW, ticket, Ok(()));
            None
        }
        step => Some(responded(step).status()),
    }
}

#[test]
fn ana_log_has_the_bytes_of_the_standard() {
    let mut fixture = fixture(vec![in_group(1, 1), in_group(2, 2), in_group(3, 1)]);
    let before = u64::from_le_bytes(log(&mut fixture.admin, 0, 8, false).try_into().unwrap());
    fixture.registry.set_ana_state(PORT, 2, AnaState::INACCESSIBLE).unwrap();
    fixture.deliver();
    let changes = before + 1;
    let header = [changes, 2].map(u64::to_le_bytes).concat();
    let descriptor = |words: [u32; 2], changes: u64, state: u8, nsids: &[u32]| {
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        let state = [&changes.to_le_bytes()[..], &[state], &[0; 15]].concat();
        words.chain(state).chain(nsids.iter().flat_map(|nsid| nsid.to_le_bytes())).collect::<Vec<u8>>()
    };
    let (first, second) = (descriptor([1, 2], 0, 1, &[1, 3]), descriptor([2, 1], changes, 3, &[2]));
    let expected = [header, first, second].concat();
    assert_eq!(expected.len(), 92);
    assert_eq!(log(&mut fixture.admin, 0, 92, false), expected);
    // In pieces.
    let pieces: Vec<u8> = (0..23).flat_map(|at| log(&mut fixture.admin, at * 4, 4, false)).collect();
    assert_eq!(pieces, expected);
    // Groups only.
    let groups = log(&mut fixture.admin, 0, 80, true);
    assert_eq!((groups[8], groups[16], groups[20], groups[32]), (2, 1, 0, 1));
    assert_eq!((groups[48], groups[52], groups[64]), (2, 0, 3));
    let past = GetLogPage::new(LogPageId::ANA, Nsid(0), 96, 4).emit();
    assert_eq!(read(&mut fixture.admin, &past, 4), Err((0, 0x02)));
}

#[test]
fn only_what_the_host_can_see_is_counted() {
    let mut fixture =
        fixture(vec![in_group(1, 1), in_group(2, 2), only_for(3, "nqn.2026-11.com.example:other")]);
    let counts = |fixture: &mut Fixture| {
        fixture.deliver();
        let log = log(&mut fixture.admin, 0, 88, false);
        [0, 24, 24 + 36].map(|at| u64::from_le_bytes(log[at..at + 8].try_into().unwrap()))
    };
    let [all, first, second] = counts(&mut fixture);
    let set = |fixture: &mut Fixture, port, group| {
        fixture.registry.set_ana_state(port, group, AnaState::NON_OPTIMIZED).unwrap();
    };
    set(&mut fixture, PORT + 1, 1);
    set(&mut fixture, PORT, 7);
    let others = vec![in_group(1, 1), in_group(2, 2)];
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), others).unwrap();
    assert_eq!(
        counts(&mut fixture),
        [all, first, second],
        "another port, another group, another's namespace"
    );
    set(&mut fixture, PORT, 2);
    assert_eq!(counts(&mut fixture), [all + 1, first, second + 1]);
    let resized = NamespaceDefinition { geometry: Geometry::new(512, 7), ..in_group(1, 1) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![resized, in_group(2, 2)]).unwrap();
    assert_eq!(counts(&mut fixture), [all + 1, first, second + 1], "a size is not in the log");
}

#[test]
fn identify_says_what_linux_checks() {
    let mut fixture = fixture(vec![in_group(2, 9)]);
    let id = read(&mut fixture.admin, &Identify::new(Cns::CONTROLLER, Nsid(0)).emit(), 4096).unwrap();
    let word = |at: usize| u32::from_le_bytes(id[at..at + 4].try_into().unwrap());
    assert_eq!((id[76] & 8, word(92) & 1 << 11, id[342], id[343]), (8, 1 << 11, 10, 0x1f));
    assert_eq!((word(344), word(348)), (127, 127));
    assert!(word(540) > 0 && word(540) <= word(516), "0 < MNAN <= NN");
    let log = 16 + 32 * word(348) + 4 * word(540);
    assert!(log <= 4096 << id[77], "the log of {log} bytes is read in one transfer");
    let of_namespace =
        read(&mut fixture.admin, &Identify::new(Cns::NAMESPACE, Nsid(2)).emit(), 4096).unwrap();
    assert_eq!((of_namespace[92], of_namespace[30]), (9, 1));
    let cns = Cns::INDEPENDENT_NAMESPACE;
    let independent = read(&mut fixture.admin, &Identify::new(cns, Nsid(2)).emit(), 4096).unwrap();
    assert_eq!((independent[4], independent[1]), (9, 1));
}

#[test]
fn commands_of_a_group_end_with_the_status_of_its_state_and_may_be_tried_elsewhere() {
    let mut fixture = fixture(vec![in_group(1, 1), in_group(2, 2)]);
    for (state, code) in [
        (AnaState::NON_OPTIMIZED, None),
        (AnaState::INACCESSIBLE, Some((3, 0x02))),
        (AnaState::PERSISTENT_LOSS, Some((3, 0x01))),
        (AnaState::CHANGE, Some((3, 0x03))),
        (AnaState::OPTIMIZED, None),
    ] {
        fixture.registry.set_ana_state(PORT, 2, state).unwrap();
        fixture.deliver();
        let flush = Sqe::new(NvmOpcode::FLUSH.0).with_nsid(Nsid(2));
        for sqe in [block(NvmOpcode::READ, 2), block(NvmOpcode::WRITE, 2), flush] {
            let status = refused(&mut fixture.io, &sqe);
            assert_eq!(status.map(|status| (status.sct(), status.sc())), code, "{state:?}");
            assert!(!status.is_some_and(|status| status.dnr()), "hosts would not try another path");
        }
        assert_eq!(refused(&mut fixture.io, &block(NvmOpcode::WRITE, 1)), None, "another group");
    }
}

#[test]
fn namespace_whose_disk_cannot_be_reached_is_there_and_its_commands_go_elsewhere() {
    let out_of_reach = |nsid| {
        let access = NamespaceAccess { is_accessible: false, ..NamespaceAccess::default() };
        NamespaceDefinition { access, ..namespace(nsid, disk()) }
    };
    let mut fixture = fixture(vec![in_group(1, 1), out_of_reach(2)]);
    assert_eq!(active(&mut fixture.admin), [1, 2]);
    for opcode in [NvmOpcode::READ, NvmOpcode::WRITE] {
        assert_eq!(refused(&mut fixture.io, &block(opcode, 1)), None);
        assert_eq!(
            refused(&mut fixture.io, &block(opcode, 2)),
            Some(Status::ANA_INACCESSIBLE),
            "to be retried"
        );
    }
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![in_group(1, 1), in_group(2, 1)]).unwrap();
    fixture.deliver();
    assert_eq!(refused(&mut fixture.io, &block(NvmOpcode::READ, 2)), None, "it is reached again");
}

#[test]
fn state_of_another_port_is_nothing_to_this_one() {
    let mut fixture = fixture(vec![in_group(1, 1)]);
    fixture.registry.set_ana_state(PORT + 1, 1, AnaState::INACCESSIBLE).unwrap();
    fixture.deliver();
    assert_eq!(refused(&mut fixture.io, &block(NvmOpcode::WRITE, 1)), None);
    assert_eq!(log(&mut fixture.admin, 0, 56, false)[32], 1);
}

#[test]
fn unreachable_namespace_does_not_say_what_it_uses() {
    let mut fixture = fixture(vec![in_group(1, 1)]);
    for (state, known) in [
        (AnaState::INACCESSIBLE, false),
        (AnaState::PERSISTENT_LOSS, false),
        (AnaState::CHANGE, true),
        (AnaState::NON_OPTIMIZED, true),
    ] {
        fixture.registry.set_ana_state(PORT, 1, state).unwrap();
        fixture.deliver();
        let id = read(&mut fixture.admin, &Identify::new(Cns::NAMESPACE, Nsid(1)).emit(), 4096).unwrap();
        assert_eq!((id[0] != 0, id[16] != 0 || id[17] != 0, id[49] != 0), (true, known, known), "{state:?}");
    }
}

/// The next event, if the request that waits gets one.
fn event(fixture: &mut Fixture) -> Option<u32> {
    match fixture.admin.poll_step(NOW) {
        Some(Step::Respond(response)) => Some(Cqe::read_from_bytes(&response.cqe).unwrap().result() as u32),
        Some(step) => panic!("{step:?}"),
        None => None,
    }
}

fn await_event(fixture: &mut Fixture, cid: u16) {
    let request = with_cid(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), cid);
    assert!(matches!(capsule(&mut fixture.admin, &request, 0), Step::Held));
}

fn enable_events(fixture: &mut Fixture) {
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 8 | 1 << 11).emit();
    assert_eq!(code(&ask(&mut fixture.admin, &config)), (0, 0));
}

#[test]
fn changed_state_is_an_event_until_the_log_is_read() {
    let mut fixture = fixture(vec![in_group(1, 1)]);
    enable_events(&mut fixture);
    await_event(&mut fixture, 100);
    fixture.registry.set_ana_state(PORT, 1, AnaState::CHANGE).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), Some(0x000c_0302));
    await_event(&mut fixture, 101);
    fixture.registry.set_ana_state(PORT, 1, AnaState::INACCESSIBLE).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), None, "the log was not read since");
    log(&mut fixture.admin, 0, 56, false);
    fixture.registry.set_ana_state(PORT, 1, AnaState::INACCESSIBLE).unwrap();
    fixture.registry.set_ana_state(PORT, 5, AnaState::INACCESSIBLE).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), None, "nothing of this controller changed");
    fixture.registry.set_ana_state(PORT, 1, AnaState::OPTIMIZED).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), Some(0x000c_0302));
}

#[test]
fn namespace_that_moves_to_another_group_is_both_events() {
    let mut fixture = fixture(vec![in_group(1, 1)]);
    enable_events(&mut fixture);
    let before = log(&mut fixture.admin, 0, 8, false);
    await_event(&mut fixture, 100);
    await_event(&mut fixture, 101);
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![in_group(1, 2)]).unwrap();
    fixture.deliver();
    assert_eq!((event(&mut fixture), event(&mut fixture)), (Some(0x0004_0002), Some(0x000c_0302)));
    assert_ne!(log(&mut fixture.admin, 0, 8, false), before, "the change is counted");
}

#[test]
fn group_or_state_that_does_not_exist_is_refused() {
    let mut fixture = Fixture::new();
    for group in [0, 128, u32::MAX] {
        let refused = fixture.registry.set_ana_state(PORT, group, AnaState::OPTIMIZED);
        assert_eq!(refused, Err(DefinitionError::AnaGroup(group)));
        let refused = fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![in_group(1, group)]);
        assert_eq!(refused, Err(DefinitionError::AnaGroup(group)));
    }
    for state in [0, 5, 0x1f] {
        let refused = fixture.registry.set_ana_state(PORT, 1, AnaState(state));
        assert_eq!(refused, Err(DefinitionError::AnaState(state)));
    }
    assert!(fixture.registry.take_notices().is_empty());
}

fn active(queue: &mut Queue) -> Vec<u32> {
    let list = read(queue, &Identify::new(Cns::ACTIVE_NAMESPACES, Nsid(0)).emit(), 4096).unwrap();
    let nsids = list.chunks_exact(4).map(|nsid| u32::from_le_bytes(nsid.try_into().unwrap()));
    nsids.take_while(|&nsid| nsid != 0).collect()
}

#[test]
fn namespace_of_others_does_not_exist() {
    let mut fixture = fixture(vec![namespace(1, disk()), only_for(2, OTHER), only_for(3, HOST)]);
    assert_eq!(active(&mut fixture.admin), [1, 3]);
    let log = log(&mut fixture.admin, 0, 56, false);
    assert_eq!((log[8], log[20], log[48], log[52]), (1, 2, 1, 3));
    for cns in [Cns::NAMESPACE_DESCRIPTORS, Cns::INDEPENDENT_NAMESPACE] {
        assert_eq!(read(&mut fixture.admin, &Identify::new(cns, Nsid(2)).emit(), 4096), Err((0, 0x0b)));
    }
    let zeroes = read(&mut fixture.admin, &Identify::new(Cns::NAMESPACE, Nsid(2)).emit(), 4096).unwrap();
    assert!(zeroes.iter().all(|&byte| byte == 0));
    let status = refused(&mut fixture.io, &block(NvmOpcode::READ, 2)).unwrap();
    assert_eq!((status.sct(), status.sc(), status.dnr()), (0, 0x0b, true));
    assert_eq!(refused(&mut fixture.io, &block(NvmOpcode::READ, 3)), None);
}

#[test]
fn changes_of_a_hidden_namespace_are_no_event_and_becoming_visible_is() {
    let mut fixture = fixture(vec![namespace(1, disk()), only_for(2, OTHER)]);
    enable_events(&mut fixture);
    await_event(&mut fixture, 100);
    let resized = nvmf_block::Geometry { blocks: 500, ..disk() };
    let hidden = NamespaceDefinition { geometry: resized, ..only_for(2, OTHER) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, disk()), hidden]).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), None);
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, disk()), only_for(2, HOST)]).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), Some(0x0004_0002));
    assert_eq!(active(&mut fixture.admin), [1, 2]);
    assert_eq!(refused(&mut fixture.io, &block(NvmOpcode::WRITE, 2)), None);
    // Which other hosts see it is nothing to this one.
    let changed = LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST;
    read(&mut fixture.admin, &GetLogPage::new(changed, Nsid(0), 0, 4096).emit(), 4096).unwrap();
    await_event(&mut fixture, 101);
    fixture
        .registry
        .set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, disk()), namespace(2, disk())])
        .unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture), None);
}

#[test]
fn controller_ids_are_of_the_nodes_range() {
    let options = Options { cntlids: 100..=102, ..Options::default() };
    let mut registry = registry(options);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (queue, cqe, _) = Hello::admin().connect(&mut registry);
        assert_eq!(code(&cqe), (0, 0));
        ids.push(queue.association().unwrap().key().cntlid.0);
    }
    assert_eq!(ids, [100, 101, 102]);
    let (_, cqe, _) = Hello::admin().connect(&mut registry);
    assert_eq!(code(&cqe), (1, 0x81), "Controller Busy");
    for (first, last) in [(0, 5), (5, 4), (1, 0xfff0)] {
        assert!(Registry::new(Options { cntlids: first..=last, ..Options::default() }).is_err());
    }
}
