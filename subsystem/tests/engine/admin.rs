//! Identify, asynchronous events, Abort.

use crate::host::*;
use nvme_proto::admin::abort::Abort;
use nvme_proto::admin::identify::{
    Cns, Descriptors, IdList, Identify, IdentifyController, IdentifyNamespace, IndependentNamespace,
    NamespaceIdType, NvmController,
};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::fabrics::property::Property;
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Cqe, Sqe};
use nvmf_block::{Geometry, Preferred};
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const OK: (u8, u8) = (0, 0);
const INVALID_FIELD: (u8, u8) = (0, 0x02);
const INVALID_NAMESPACE: (u8, u8) = (0, 0x0b);

fn identify(admin: &mut Queue, cns: Cns, nsid: u32) -> Result<Vec<u8>, (u8, u8)> {
    read(admin, &Identify::new(cns, Nsid(nsid)).emit(), 4096)
}

fn controller(admin: &mut Queue) -> IdentifyController {
    IdentifyController::read_from_bytes(&identify(admin, Cns::CONTROLLER, 0).unwrap()).unwrap()
}

#[test]
fn a_linux_host_accepts_the_controller() {
    let mut fixture = Fixture::new();
    let id = controller(&mut fixture.admin);
    // The gates of a Linux host, in its order.
    assert_eq!(id.cntlid.get(), fixture.association().key().cntlid.0);
    assert_eq!(id.kas.get(), 10);
    assert!(id.ioccsz.get() >= 4 && id.iorcsz.get() == 1);
    assert_eq!(id.maxcmd.get(), 128);
    assert_eq!(id.icdoff.get(), 0);
    assert_eq!(id.sgls.get(), 1 | 1 << 2 | 1 << 20);
    assert_eq!(id.cmic, 1 << 3 | 0b11, "asymmetric access, several ports and controllers");
    assert!(id.mnan.get() != 0 && id.mnan.get() <= id.nn.get());
    assert_eq!(&id.subnqn[..SUBSYSTEM.len() + 1], format!("{SUBSYSTEM}\0").as_bytes());
    assert_eq!(IdentifyController::text(&id.sn), "S1");
    assert_eq!(IdentifyController::text(&id.mn), "disk");
}

#[test]
fn identify_controller_follows_the_options() {
    let options = Options { queue_entries_max: 32, transfer_len_max: 128 * 1024, ..Options::default() };
    let mut fixture = Fixture::at(options.clone(), Port { in_capsule_len: 0, ..port() });
    assert_eq!(controller(&mut fixture.admin).ioccsz.get(), 4);
    let mut fixture = Fixture::at(options, Port { in_capsule_len: 8192, ..port() });
    let id = controller(&mut fixture.admin);
    assert_eq!((id.mdts, id.ioccsz.get(), id.msdbd, id.maxcmd.get()), (5, (64 + 8192) / 16, 1, 32));
    assert_eq!((id.cntrltype, id.sqes, id.cqes, id.ver.get()), (1, 0x66, 0x44, 0x0002_0000));
    assert_eq!((id.acl_z, id.aerl_z, id.elpe_z, id.fuses.get(), id.ofcs.get()), (3, 3, 15, 1, 1));
    assert_eq!(
        (id.oncs.get(), id.oacs.get(), id.oaes.get(), id.ctratt.get()),
        (0x1fd, 0, 1 << 8 | 1 << 11 | 1 << 20, 1 | 1 << 6)
    );
    assert_eq!((id.cqt.get(), id.ccrl), (5000, 4));
    assert!(id.ciu != 0 && id.cirn.get() != 0);
    // Hosts read VWC once, and a disk with a cache may come later.
    assert_eq!(id.vwc, 0b101);
    let plain = namespace(1, Geometry::new(512, 10));
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![plain]).unwrap();
    fixture.deliver();
    assert_eq!(controller(&mut fixture.admin).vwc, 0b101);
}

#[test]
fn vwc_is_present_and_vwcnp_says_which_namespace_has_no_cache() {
    let mut fixture = Fixture::new();
    let without = namespace(2, Geometry::new(512, 10));
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, disk()), without]).unwrap();
    fixture.deliver();
    let mut nsfeat = |nsid| {
        let page = identify(&mut fixture.admin, Cns::INDEPENDENT_NAMESPACE, nsid).unwrap();
        IndependentNamespace::read_from_bytes(&page).unwrap().nsfeat
    };
    assert_eq!((nsfeat(1), nsfeat(2)), (0, 1 << 5));
    // The write cache comes with the disk; the controller said so from the beginning.
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![]).unwrap();
    let (mut admin, ..) = Hello::admin().connect(&mut fixture.registry);
    enable(&mut admin);
    assert_eq!(controller(&mut admin).vwc & 1, 1);
}

#[test]
fn limits_of_commands_without_data_are_advertised() {
    let mut fixture = Fixture::new();
    let page = identify(&mut fixture.admin, Cns::COMMAND_SET_CONTROLLER, 0).unwrap();
    let limits = NvmController::read_from_bytes(&page[..]).unwrap();
    assert_eq!((limits.vsl, limits.wzsl, limits.wusl), (13, 13, 0));
    assert_eq!(4096 << limits.wzsl, limits::BLOCKS_LEN_MAX);
    let dsm = (usize::from(limits.dmrl), limits.dmrsl.get(), limits.dmsl.get());
    assert_eq!(dsm, (limits::DSM_RANGES_MAX - 1, limits::DSM_BLOCKS_MAX, limits::DSM_BLOCKS_MAX.into()));
}

#[test]
fn namespaces_are_described_by_their_geometry() {
    let mut fixture = Fixture::new();
    let geometry = Geometry {
        preferred: Preferred {
            write: 8,
            write_alignment: 4,
            stripe: 64,
            deallocate: 16,
            deallocate_alignment: 2,
            boundary: 256,
        },
        zero_after_deallocate: true,
        deallocate: true,
        ..Geometry::new(4096, 77)
    };
    let full =
        NamespaceDefinition { nguid: [2; 16], eui64: [3; 8], read_only: true, ..namespace(5, geometry) };
    fixture.registry.add_namespace(&nqn(SUBSYSTEM), full).unwrap();
    fixture.deliver();
    let admin = &mut fixture.admin;
    let id = IdentifyNamespace::read_from_bytes(&identify(admin, Cns::NAMESPACE, 5).unwrap()).unwrap();
    assert_eq!((id.nsze.get(), id.ncap.get(), id.nuse.get()), (77, 77, 77));
    assert_eq!(u128::from_le_bytes(id.nvmcap), 77 * 4096);
    assert_eq!((id.format().unwrap().lbads, id.nmic, id.nsattr, id.dlfeat), (12, 1, 1, 0b1001));
    assert_eq!((id.nsfeat, id.npwg_z.get(), id.npwa_z.get(), id.nows_z.get()), (1 << 4, 7, 3, 63));
    assert_eq!((id.npdg_z.get(), id.npda_z.get(), id.noiob.get()), (15, 1, 256));
    assert_eq!((id.nawun.get(), id.nawupf.get(), id.nacwu.get()), (0, 0, 0), "one block");
    assert_eq!((id.nguid, id.eui64), ([2; 16], [3; 8]));
    let id = IdentifyNamespace::read_from_bytes(&identify(admin, Cns::NAMESPACE, 1).unwrap()).unwrap();
    assert_eq!((id.nsze.get(), id.nsattr, id.nsfeat, id.format().unwrap().lbads), (1000, 0, 0, 9));
    assert_eq!(id.dlfeat, 0b1000, "WZDS is the same for every namespace");
    let page = identify(admin, Cns::NAMESPACE_DESCRIPTORS, 5).unwrap();
    let kinds: Vec<_> =
        Descriptors::new(&page).map(|descriptor| (descriptor.kind, descriptor.id.to_vec())).collect();
    let expected = [
        (NamespaceIdType::EUI64, vec![3; 8]),
        (NamespaceIdType::NGUID, vec![2; 16]),
        (NamespaceIdType::UUID, vec![5; 16]),
        (NamespaceIdType::CSI, vec![0]),
    ];
    assert_eq!(kinds, expected);
    let page = identify(admin, Cns::INDEPENDENT_NAMESPACE, 5).unwrap();
    let id = IndependentNamespace::read_from_bytes(&page).unwrap();
    assert_eq!((id.nmic, id.nsattr, id.nstat), (1, 1, 1));
}

#[test]
fn lists_and_absent_namespaces() {
    let mut fixture = Fixture::new();
    let admin = &mut fixture.admin;
    for cns in [Cns::ACTIVE_NAMESPACES, Cns::COMMAND_SET_ACTIVE_NAMESPACES] {
        for (above, ids) in [(0, vec![1, 3]), (1, vec![3]), (2, vec![3]), (3, vec![])] {
            let list = IdList::read_from_bytes(&identify(admin, cns, above).unwrap()).unwrap();
            assert_eq!(list.iter().collect::<Vec<_>>(), ids);
        }
        assert_eq!(identify(admin, cns, 0xffff_fffe), Err(INVALID_NAMESPACE));
    }
    assert_eq!(identify(admin, Cns::NAMESPACE, 2), Ok(vec![0; 4096]), "inactive");
    for (cns, nsid) in [
        (Cns::NAMESPACE, 0),
        (Cns::NAMESPACE, limits::NSID_MAX + 1),
        (Cns::NAMESPACE, u32::MAX),
        (Cns::NAMESPACE_DESCRIPTORS, 2),
        (Cns::INDEPENDENT_NAMESPACE, 2),
        (Cns::COMMAND_SET_NAMESPACE, 0),
        (Cns::COMMAND_SET_NAMESPACE, limits::NSID_MAX + 1),
    ] {
        assert_eq!(identify(admin, cns, nsid), Err(INVALID_NAMESPACE), "{cns:?} {nsid}");
    }
    for nsid in [1, 2] {
        assert_eq!(identify(admin, Cns::COMMAND_SET_NAMESPACE, nsid), Ok(vec![0; 4096]), "{nsid}");
    }
    assert_eq!(identify(admin, Cns::COMMAND_SETS, 0).unwrap()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    for cns in [
        Cns::ALLOCATED_NAMESPACES,
        Cns::NAMESPACE_CONTROLLERS,
        Cns::SUBSYSTEM_CONTROLLERS,
        Cns::PRIMARY_CONTROLLER,
        Cns::SECONDARY_CONTROLLERS,
        Cns::UUIDS,
        Cns(0xff),
    ] {
        assert_eq!(identify(admin, cns, 1), Err(INVALID_FIELD), "{cns:?}");
    }
    let zoned = Identify { csi: 2, ..Identify::new(Cns::COMMAND_SET_CONTROLLER, Nsid(0)) };
    assert_eq!(read(admin, &zoned.emit(), 4096), Err(INVALID_FIELD));
    let whole = Identify::new(Cns::CONTROLLER, Nsid(0)).emit();
    assert_eq!(read(admin, &whole, 4095), Err((0, 0x0f)));
}

fn request(admin: &mut Queue, cid: u16) -> Step {
    capsule(admin, &with_cid(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), cid), 0)
}

fn event(admin: &mut Queue) -> Option<Cqe> {
    admin.poll_step(NOW).map(responded)
}

/// Asynchronous Event Configuration: namespace attribute notices.
fn ask_for_notices(admin: &mut Queue) {
    use nvme_proto::admin::features::{FeatureId, SetFeatures};
    let sqe = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 8).emit();
    assert_eq!(code(&ask(admin, &sqe)), OK);
}

#[test]
fn event_requests_wait_up_to_their_limit() {
    let mut fixture = Fixture::new();
    for cid in 0..4 {
        assert!(matches!(request(&mut fixture.admin, cid), Step::Held));
    }
    assert_eq!(code(&responded(request(&mut fixture.admin, 4))), (1, 0x05));
    assert_eq!(fixture.admin.in_flight(), 4);
    assert!(event(&mut fixture.admin).is_none());
}

#[test]
fn namespace_event_comes_once_until_its_log_is_read() {
    let mut fixture = Fixture::new();
    ask_for_notices(&mut fixture.admin);
    for cid in [10, 11] {
        assert!(matches!(request(&mut fixture.admin, cid), Step::Held));
    }
    let name = nqn(SUBSYSTEM);
    fixture.registry.add_namespace(&name, namespace(2, disk())).unwrap();
    fixture.deliver();
    let cqe = event(&mut fixture.admin).unwrap();
    assert_eq!((code(&cqe), cqe.cid.get(), cqe.dw0.get()), (OK, 10, 0x0004_0002));
    fixture.registry.set_namespaces(&name, vec![namespace(1, Geometry { blocks: 5, ..disk() })]).unwrap();
    fixture.deliver();
    assert!(event(&mut fixture.admin).is_none(), "not again before the log is read");
    let log = |retain_event| GetLogPage {
        retain_event,
        ..GetLogPage::new(LogPageId::CHANGED_ATTACHED_NAMESPACE_LIST, Nsid::ALL, 0, 4096)
    };
    let ids = |bytes: Vec<u8>| IdList::read_from_bytes(&bytes).unwrap().iter().collect::<Vec<_>>();
    assert_eq!(ids(read(&mut fixture.admin, &log(true).emit(), 4096).unwrap()), [1, 2, 3]);
    fixture.registry.add_namespace(&name, namespace(7, disk())).unwrap();
    fixture.deliver();
    assert!(event(&mut fixture.admin).is_none(), "read, but the event was retained");
    assert_eq!(ids(read(&mut fixture.admin, &log(false).emit(), 4096).unwrap()), [1, 2, 3, 7]);
    assert_eq!(ids(read(&mut fixture.admin, &log(false).emit(), 4096).unwrap()), [0; 0]);
    fixture.registry.remove_namespace(&name, Nsid(7)).unwrap();
    fixture.deliver();
    assert_eq!(event(&mut fixture.admin).unwrap().cid.get(), 11);
}

#[test]
fn event_waits_for_a_request_and_for_its_configuration() {
    let mut fixture = Fixture::new();
    fixture.registry.remove_namespace(&nqn(SUBSYSTEM), Nsid(3)).unwrap();
    fixture.deliver();
    assert!(event(&mut fixture.admin).is_none());
    assert!(matches!(request(&mut fixture.admin, 1), Step::Held));
    assert!(event(&mut fixture.admin).is_none(), "the host did not ask for notices");
    ask_for_notices(&mut fixture.admin);
    assert_eq!(event(&mut fixture.admin).unwrap().dw0.get(), 0x0004_0002);
    // The same namespaces again are no change.
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, disk())]).unwrap();
    assert!(fixture.registry.take_notices().is_empty());
}

#[test]
fn abort_ends_event_requests_and_nothing_else() {
    let mut fixture = Fixture::new();
    assert!(matches!(request(&mut fixture.admin, 20), Step::Held));
    let abort = |sqid, cid| Abort { sqid: Qid(sqid), cid: Cid(cid) }.emit();
    for sqe in [abort(0, 21), abort(1, 20), abort(9, 1)] {
        let cqe = ask(&mut fixture.admin, &sqe);
        assert_eq!((code(&cqe), cqe.dw0.get()), (OK, 1), "not aborted");
    }
    let cqe = ask(&mut fixture.admin, &abort(0, 20));
    assert_eq!((code(&cqe), cqe.dw0.get()), (OK, 0));
    let cqe = event(&mut fixture.admin).unwrap();
    assert_eq!((code(&cqe), cqe.cid.get()), ((0, 0x07), 20));
    assert_eq!(fixture.admin.in_flight(), 0);
}

#[test]
fn reset_aborts_event_requests_and_clears_the_configuration() {
    let mut fixture = Fixture::new();
    ask_for_notices(&mut fixture.admin);
    for cid in [30, 31] {
        assert!(matches!(request(&mut fixture.admin, cid), Step::Held));
    }
    assert_eq!(set(&mut fixture.admin, Property::CC, 0, 0), OK);
    let mut cids = Vec::new();
    while let Some(step) = fixture.admin.poll_step(NOW) {
        match step {
            Step::CloseIoQueues => {}
            step => {
                let cqe = responded(step);
                assert_eq!(code(&cqe), (0, 0x07));
                cids.push(cqe.cid.get());
            }
        }
    }
    assert_eq!((cids, fixture.admin.in_flight()), (vec![30, 31], 0));
    enable(&mut fixture.admin);
    assert!(matches!(request(&mut fixture.admin, 1), Step::Held));
    fixture.registry.remove_namespace(&nqn(SUBSYSTEM), Nsid(3)).unwrap();
    fixture.deliver();
    assert!(event(&mut fixture.admin).is_none(), "notices are to be asked for anew");
}
