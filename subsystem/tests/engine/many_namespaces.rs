//! More namespaces than one list holds.

use crate::host::*;
use nvme_proto::admin::async_event::notice;
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::admin::identify::{Cns, IdList, Identify, IdentifyController};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvmf_block::Geometry;
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const COUNT: u32 = 3000;

fn numbered(nsid: u32) -> NamespaceDefinition {
    let mut uuid = [1; 16];
    uuid[..4].copy_from_slice(&nsid.to_le_bytes());
    let access = NamespaceAccess { ana_group: 1 + nsid % 3, ..Default::default() };
    NamespaceDefinition { nsid: Nsid(nsid), uuid, access, ..namespace(1, disk()) }
}

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), (1..=COUNT).map(numbered).collect()).unwrap();
    fixture.deliver();
    fixture
}

fn list_after(admin: &mut Queue, nsid: u32) -> Vec<u32> {
    let page = read(admin, &Identify::new(Cns::ACTIVE_NAMESPACES, Nsid(nsid)).emit(), 4096).unwrap();
    IdList::read_from_bytes(&page).unwrap().iter().collect()
}

#[test]
fn active_list_is_read_in_pages() {
    let mut fixture = fixture();
    let mut nsids = Vec::new();
    loop {
        let list = list_after(&mut fixture.admin, nsids.last().copied().unwrap_or(0));
        if list.is_empty() {
            break;
        }
        nsids.extend(list);
    }
    assert_eq!(nsids, (1..=COUNT).collect::<Vec<_>>());
}

#[test]
fn changed_list_that_overflows_names_no_namespace() {
    let mut fixture = fixture();
    let changed = |admin: &mut Queue| {
        let sqe = GetLogPage::new(LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST, Nsid::ALL, 0, 4096).emit();
        let page = read(admin, &sqe, 4096).unwrap();
        IdList::read_from_bytes(&page).unwrap().iter().collect::<Vec<_>>()
    };
    assert_eq!(changed(&mut fixture.admin), [0xffff_ffff], "3000 came");
    assert_eq!(changed(&mut fixture.admin), [0; 0], "the list is read");
    for (resized, listed) in [(1024, (1..=1024).collect()), (1025, vec![0xffff_ffff])] {
        let geometry = |nsid| Geometry { blocks: if nsid <= resized { 500 } else { 1000 }, ..disk() };
        let namespaces =
            (1..=COUNT).map(|nsid| NamespaceDefinition { geometry: geometry(nsid), ..numbered(nsid) });
        fixture.registry.set_namespaces(&nqn(SUBSYSTEM), namespaces.collect()).unwrap();
        fixture.deliver();
        assert_eq!(changed(&mut fixture.admin), listed);
        let namespaces = (1..=COUNT).map(numbered).collect();
        fixture.registry.set_namespaces(&nqn(SUBSYSTEM), namespaces).unwrap();
        fixture.deliver();
        let _ = changed(&mut fixture.admin);
    }
}

#[test]
fn ana_log_is_the_same_whole_and_in_pieces() {
    let mut fixture = fixture();
    let admin = &mut fixture.admin;
    let len = 16 + 3 * 32 + COUNT * 4;
    let part = |admin: &mut Queue, offset: u32, len: u32| {
        let sqe = GetLogPage::new(LogPageId::ANA, Nsid::ALL, offset.into(), len.into()).emit();
        read(admin, &sqe, len).unwrap()
    };
    let whole = part(admin, 0, len);
    let pieces: Vec<u8> =
        (0..len).step_by(4096).flat_map(|offset| part(admin, offset, 4096.min(len - offset))).collect();
    assert!(whole == pieces);
    let word = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap());
    assert_eq!((whole[8], word(16), word(20)), (3, 1, 1000), "groups; the first, and its namespaces");
    assert_eq!((word(48), word(52), word(48 + 999 * 4)), (3, 6, 3000), "by rising NSID");
}

#[test]
fn most_namespaces_are_those_whose_ana_log_fits_a_transfer() {
    for (transfer_len_max, expected) in [(8192, 1028), (16384, 3076), (1 << 20, 4096)] {
        let options = Options { transfer_len_max, ..Options::default() };
        assert_eq!(options.namespaces_max(), expected);
        let mut fixture = Fixture::with(options);
        let page = read(&mut fixture.admin, &Identify::new(Cns::CONTROLLER, Nsid(0)).emit(), 4096).unwrap();
        let id = IdentifyController::read_from_bytes(&page).unwrap();
        assert_eq!((id.nn.get(), id.mnan.get() as usize), (4096, expected));
        assert!(16 + 32 * id.nanagrpid.get() + 4 * id.mnan.get() <= transfer_len_max);
        let with = |count: u32| (1..=count).map(numbered).collect();
        let last = u32::try_from(expected).unwrap();
        fixture.registry.set_namespaces(&nqn(SUBSYSTEM), with(last)).unwrap();
        let more = fixture.registry.set_namespaces(&nqn(SUBSYSTEM), with(last + 1));
        assert!(matches!(more, Err(DefinitionError::TooMany { .. })), "{more:?}");
    }
}

#[test]
fn event_of_many_changes_is_one() {
    let mut fixture = fixture();
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, notice::ATTACHED_NAMESPACE_ATTRIBUTE);
    assert_eq!(code(&ask(&mut fixture.admin, &config.emit())), (0, 0));
    for cid in [1, 2] {
        let sqe = with_cid(nvme_proto::Sqe::new(0x0c), cid);
        assert!(matches!(capsule(&mut fixture.admin, &sqe, 0), Step::Held));
    }
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::Respond(_))));
    assert!(fixture.admin.poll_step(NOW).is_none());
}
