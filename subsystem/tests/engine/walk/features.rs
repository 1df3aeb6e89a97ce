//! Features: what Get Features says of each is what Set Features does.

use super::*;
use nvme_proto::admin::features::{GetFeatures, Select, capability};

const NOT_SAVEABLE: Code = (1, 0x0d);
const NOT_CHANGEABLE: Code = (1, 0x0e);
const NOT_OF_A_NAMESPACE: Code = (1, 0x0f);
const SEQUENCE_ERROR: Code = (0, 0x0c);

/// Save and Select (ONCS bit 4).
pub(super) fn select_works(fixture: &mut Fixture, on: bool) {
    let select = |select| GetFeatures { select, ..GetFeatures::new(FeatureId::ARBITRATION) }.emit();
    for value in [Select::DEFAULT, Select::SAVED, Select::SUPPORTED_CAPABILITIES] {
        assert_supported(status_of(&mut fixture.admin, &select(value)), on, INVALID_FIELD);
    }
}

/// A value that the feature takes: the one that it has.
fn set(fixture: &mut Fixture, fid: FeatureId, nsid: Nsid, save: bool) -> Code {
    // DW0 of features whose value is data, or of this queue's controller, is no value.
    let word = match fid {
        FeatureId::NUMBER_OF_QUEUES
        | FeatureId::TIMESTAMP
        | FeatureId::HOST_BEHAVIOR_SUPPORT
        | FeatureId::HOST_ID => 0,
        _ => capsule_dword(fixture, &GetFeatures { nsid, ..GetFeatures::new(fid) }.emit()),
    };
    let sqe = SetFeatures { save, nsid, ..SetFeatures::new(fid, word) }.emit();
    status_of(&mut fixture.admin, &keyed(sqe, 512))
}

fn capsule_dword(fixture: &mut Fixture, sqe: &Sqe) -> u32 {
    match capsule(&mut fixture.admin, &keyed(*sqe, 512), 0) {
        Step::Respond(response) => Cqe::read_from_bytes(&response.cqe).unwrap().dw0.get(),
        Step::Execute { ticket, .. } => {
            ticket.abandon();
            0
        }
        step => panic!("{step:?}"),
    }
}

#[test]
fn every_capability_of_a_feature_is_true() {
    check(&Options::default());
    check(&Options { write_protection: true, ..Options::default() });
}

fn check(options: &Options) {
    let new = || Fixture::with(options.clone());
    let sqe = GetLogPage::new(LogPageId::FEATURES_SUPPORTED_AND_EFFECTS, Nsid::ALL, 0, 1024).emit();
    let listed = read(&mut new().admin, &sqe, 1024).unwrap();
    for (fid, word) in (0..=u8::MAX).map(FeatureId).zip(listed.chunks(4)) {
        let fixture = &mut new();
        let get =
            GetFeatures { select: Select::SUPPORTED_CAPABILITIES, nsid: Nsid(1), ..GetFeatures::new(fid) };
        let answer = ask(&mut fixture.admin, &get.emit());
        if word[0] & 1 == 0 {
            assert_eq!(code(&answer), INVALID_FIELD, "{fid:?} is not listed");
            assert_eq!(feature(fixture, fid.0), INVALID_FIELD, "{fid:?} is not listed");
            continue;
        }
        assert_eq!(code(&answer), OK, "{fid:?}");
        let can = |bit: u32| answer.dw0.get() & bit != 0;
        let namespace = can(capability::NAMESPACE_SPECIFIC);
        // FSP: bit 20 of a namespace, bit 21 of the controller.
        let scope = u32::from_le_bytes(word.try_into().unwrap()) >> 20;
        assert_eq!(scope, if namespace { 1 } else { 2 }, "{fid:?}");
        let nsid = Nsid(namespace.into());
        let refusals = [NOT_CHANGEABLE, SEQUENCE_ERROR];
        let changed = set(fixture, fid, nsid, false);
        match fid {
            // It may be changed while there is no I/O queue.
            FeatureId::NUMBER_OF_QUEUES => assert_eq!(changed, SEQUENCE_ERROR),
            _ if can(capability::CHANGEABLE) => assert_eq!(changed, OK, "{fid:?}"),
            _ => assert!(refusals.contains(&changed), "{fid:?}: {changed:?}"),
        }
        let saved = set(&mut new(), fid, nsid, true);
        match can(capability::SAVEABLE) {
            true => assert_eq!(saved, OK, "{fid:?}"),
            false => assert_eq!(saved, NOT_SAVEABLE, "{fid:?}"),
        }
        if !namespace {
            assert_eq!(set(&mut new(), fid, Nsid(1), false), NOT_OF_A_NAMESPACE, "{fid:?}");
        }
    }
}
