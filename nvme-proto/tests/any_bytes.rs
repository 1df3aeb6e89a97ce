//! Whatever a peer sends, reading it neither panics nor changes what is emitted again.

use nvme_proto::admin::async_event::AsyncEvent;
use nvme_proto::admin::identify::{
    Descriptors, IdList, IdentifyController, IdentifyNamespace, IndependentNamespace, LEN, LbaFormat,
    NvmController, NvmNamespace,
};
use nvme_proto::admin::log_page::{
    AnaState, CommandsSupportedLog, ErrorEntry, FirmwareSlotLog, ReservationNotification, SmartLog,
    SupportedLogPages,
};
use nvme_proto::fabrics::connect::ConnectData;
use nvme_proto::fabrics::discovery::DiscoveryHeader;
use nvme_proto::fabrics::property::{Capabilities, Configuration, ControllerStatus};
use nvme_proto::nqn::{FIELD_LEN, Nqn};
use nvme_proto::nvm::{DatasetManagement, DsmRange};
use nvme_proto::{Cid, Cqe, Nsid, Sqe, Status};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

fn same<T: FromBytes + IntoBytes + zerocopy::Immutable>(bytes: &[u8]) -> T {
    let (value, _) = T::read_from_prefix(bytes).expect("a page is longer than any structure");
    assert_eq!(value.as_bytes(), &bytes[..size_of::<T>()]);
    value
}

proptest! {
    #[test]
    fn a_page_of_any_bytes_is_a_value(page in prop::collection::vec(any::<u8>(), LEN)) {
        let controller: IdentifyController = same(&page);
        for field in [&controller.sn[..], &controller.mn[..], &controller.fr[..]] {
            prop_assert!(IdentifyController::text(field).len() <= field.len());
        }
        let namespace: IdentifyNamespace = same(&page);
        prop_assert!(namespace.format().is_none_or(|f| (9..=16).contains(&f.lbads)));
        let _ = namespace.reads_zeroes_when_deallocated();
        same::<IndependentNamespace>(&page);
        same::<NvmController>(&page);
        same::<NvmNamespace>(&page);
        prop_assert!(same::<IdList>(&page).iter().count() <= IdList::COUNT_MAX);
        prop_assert!(Descriptors::new(&page).all(|d| !d.id.is_empty()));
        same::<SupportedLogPages>(&page);
        same::<ErrorEntry>(&page);
        same::<SmartLog>(&page);
        same::<FirmwareSlotLog>(&page);
        same::<CommandsSupportedLog>(&page);
        same::<ReservationNotification>(&page);
        same::<DiscoveryHeader>(&page);
        let data: ConnectData = same(&page);
        let _ = (data.hostid(), data.cntlid(), Nqn::from_field(&data.subnqn), Nqn::from_field(&data.hostnqn));
        let range: DsmRange = same(&page);
        let _ = (range.slba, range.blocks);
    }

    #[test]
    fn entries_of_any_bytes_are_values(a: [u8; 32], b: [u8; 32]) {
        let bytes = [a, b].concat();
        let sqe: Sqe = same(&bytes);
        prop_assert_eq!(sqe.with_dwords(sqe.dwords()).with_nsid(sqe.nsid()), sqe);
        let dsm = DatasetManagement::parse(&sqe);
        prop_assert_eq!(DatasetManagement::parse(&dsm.emit(Nsid(1))), dsm);
        let cqe: Cqe = same(&bytes);
        prop_assert_eq!(cqe.with_result(cqe.result()), cqe);
        let again = Cqe::new(cqe.cid(), cqe.status(), 0);
        prop_assert_eq!((again.cid(), again.status()), (cqe.cid(), cqe.status()));
    }

    #[test]
    fn a_status_is_its_field_without_the_phase(field: u16, crd in 0u8..4) {
        let status = Status::from_field(field);
        prop_assert_eq!(status.to_field(), field & !1);
        prop_assert_eq!(Status::new(status.sct(), status.sc()), Status::from_field(field & 0x0fff));
        let marked = status.with_crd(crd).with_more().with_dnr();
        prop_assert_eq!((marked.crd(), marked.more(), marked.dnr()), (crd, true, true));
        let text = format!("{status}");
        prop_assert!(marked.is(status) && text.contains("SCT"));
    }

    #[test]
    fn any_event_and_property_is_a_value(word: u32, cap: u64) {
        let event = AsyncEvent::parse(word);
        prop_assert_eq!(AsyncEvent::parse(event.emit()), event);
        let cap = Capabilities(cap);
        prop_assert!((1..=65536).contains(&cap.queue_entries()) && cap.page_size_min() < 16);
        prop_assert!(cap.with_all_command_sets().all_command_sets());
        let (cc, csts) = (Configuration(word), ControllerStatus(word));
        prop_assert!(cc.command_set() < 8 && cc.page_size() < 16 && cc.arbitration() < 8 && cc.shutdown() < 4);
        prop_assert_eq!(csts.shutdown_complete(), word >> 2 & 3 == 2);
    }

    #[test]
    fn any_field_is_a_name_or_none(field in prop::collection::vec(any::<u8>(), FIELD_LEN), text in "nqn\\.\\PC{1,50}") {
        let mut bytes: [u8; FIELD_LEN] = field.try_into().expect("as long as a field");
        let _ = Nqn::from_field(&bytes);
        bytes[..4].copy_from_slice(b"nqn.");
        let _ = Nqn::from_field(&bytes);
        if let Ok(name) = text.parse::<Nqn>() {
            prop_assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
            prop_assert_eq!(name.to_string(), text);
        }
    }
}

#[test]
fn the_format_in_use_may_have_an_index_above_15() {
    let mut namespace = IdentifyNamespace::new_zeroed();
    namespace.lbaf[17] = LbaFormat { ms: 0.into(), lbads: 12, rp: 0 };
    namespace.flbas = 0x21;
    assert_eq!(namespace.format(), None, "NLBAF says that there is only one");
    namespace.nlbaf_z = 17;
    assert_eq!(namespace.format().map(|f| f.lbads), Some(12));
}

#[test]
fn golden_bytes() {
    let mut cqe = Cqe::new(Cid(0x1234), Status::INVALID_FIELD.with_dnr(), 0x0001_0100);
    cqe.sqhd = 5.into();
    assert_eq!(cqe.as_bytes(), [0, 1, 1, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0x34, 0x12, 0x04, 0x80]);
    assert_eq!(AsyncEvent::RESERVATION_LOG_AVAILABLE.emit(), 0x0080_0006);
    assert_eq!(AsyncEvent::ANA_CHANGE.emit(), 0x000c_0302);
    assert_eq!(format!("{:?} {:?}", AnaState::OPTIMIZED, AnaState(9)), "OPTIMIZED AnaState(0x9)");
    assert_eq!(Status::CONNECT_INVALID_HOST.with_crd(2).to_field(), 0x184 << 1 | 2 << 12);
}
