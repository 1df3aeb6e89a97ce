extern crate std;

use super::*;
use crate::Cntlid;
use proptest::prelude::*;
use std::vec::Vec;
use zerocopy::IntoBytes;

#[test]
fn dwords_as_nvme_cli_sends_them() {
    let register = Register {
        action: RegisterAction::REPLACE,
        ignore_key: true,
        persist: PersistChange::PERSIST,
        dispersed: false,
    };
    assert_eq!(register.cdw10(), 0xc000_000a);
    assert_eq!(Register { dispersed: true, ..register }.cdw10(), 0xc000_001a);
    let acquire = Acquire {
        action: AcquireAction::PREEMPT,
        ignore_key: true,
        kind: ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
        dispersed: false,
    };
    assert_eq!(acquire.cdw10(), 0x0609);
    let release = Release {
        action: ReleaseAction::CLEAR,
        ignore_key: false,
        kind: ReservationType::WRITE_EXCLUSIVE,
        dispersed: false,
    };
    assert_eq!(release.cdw10(), 0x0101);
    let report = Report { len: 4096, extended: true, dispersed: false };
    assert_eq!((report.cdw10(), report.cdw11()), (1023, 1));
    assert_eq!(
        std::format!("{:?} {:?}", acquire.kind, ReservationType(7)),
        "EXCLUSIVE_ACCESS_ALL_REGISTRANTS ReservationType(0x7)"
    );
}

#[test]
fn structures_as_on_the_wire() {
    let data = RegisterData { crkey: 1.into(), nrkey: 0x0203.into() };
    assert_eq!(data.as_bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0]);
    let status = ReservationStatus::new(7, ReservationType::EXCLUSIVE_ACCESS, 0x0102, true);
    assert_eq!(status.as_bytes()[..12], [7, 0, 0, 0, 2, 2, 1, 0, 0, 1, 0, 0]);
    let registrant = Registrant::new(Cntlid(3), true, [9; 8], 5);
    assert_eq!(registrant.as_bytes()[..4], [3, 0, 1, 0]);
    assert_eq!(registrant.as_bytes()[8..18], [9, 9, 9, 9, 9, 9, 9, 9, 5, 0]);
    let registrant = ExtendedRegistrant::new(Cntlid(3), true, [9; 16], 5);
    assert_eq!(registrant.as_bytes()[..10], [3, 0, 1, 0, 0, 0, 0, 0, 5, 0]);
    assert_eq!(registrant.as_bytes()[16..34], [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0]);
    assert!(registrant.holds());
}

#[test]
fn a_truncated_report_has_the_registrants_that_fit() {
    let status = ReservationStatus::new(1, ReservationType::WRITE_EXCLUSIVE, 3, false);
    let mut report: Vec<u8> = status.as_bytes().into();
    report.resize(ReservationStatus::EXTENDED_LEN, 0);
    for key in 0..3 {
        report.extend_from_slice(ExtendedRegistrant::new(Cntlid(1), key == 0, [1; 16], key).as_bytes());
    }
    assert_eq!((report.len(), status.report_len(false)), (status.report_len(true), 96));
    for (len, registrants) in [(64, 0), (127, 0), (128, 1), (255, 2), (256, 3)] {
        let (head, list) = ReservationStatus::parse_extended(&report[..len]).unwrap();
        assert_eq!((*head, list.len()), (status, registrants));
        assert!(list.iter().zip(0..).all(|(registrant, key)| registrant.key.get() == key));
    }
    assert_eq!(ReservationStatus::parse_extended(&report[..63]), None);
}

proptest! {
    #[test]
    fn any_dwords_are_commands(cdw10: u32, cdw11: u32) {
        // Every defined bit is kept.
        prop_assert_eq!(Register::parse(cdw10).cdw10(), cdw10 & 0xc000_001f);
        prop_assert_eq!(Acquire::parse(cdw10).cdw10(), cdw10 & 0xff1f);
        prop_assert_eq!(Release::parse(cdw10).cdw10(), cdw10 & 0xff1f);
        prop_assert_eq!(Report::parse(cdw10, cdw11).cdw11(), cdw11 & 3);
        let register = Register::parse(cdw10);
        prop_assert_eq!(Register::parse(register.cdw10()), register);
        let acquire = Acquire::parse(cdw10);
        prop_assert_eq!(Acquire::parse(acquire.cdw10()), acquire);
        let release = Release::parse(cdw10);
        prop_assert_eq!(Release::parse(release.cdw10()), release);
        let report = Report::parse(cdw10, cdw11);
        prop_assert_eq!(report.cdw10(), cdw10);
        prop_assert_eq!(Report::parse(report.cdw10(), report.cdw11()), report);
    }

    #[test]
    fn any_bytes_are_a_report_or_none(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        match ReservationStatus::parse_extended(&bytes) {
            Some((status, list)) => prop_assert!(
                list.len() <= usize::from(status.registrants.get()) && 64 + list.len() * 64 <= bytes.len()
            ),
            None => prop_assert!(bytes.len() < 64),
        }
    }
}
