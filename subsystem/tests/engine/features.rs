//! Get Features and Set Features.

use crate::host::*;
use core::time::Duration;
use nvme_proto::admin::feature_values::TimestampData;
use nvme_proto::admin::features::{FeatureId, GetFeatures, Select, SetFeatures};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::{BlockError, DeviceId, Geometry};
use nvmf_subsystem::*;
use zerocopy::{FromBytes, IntoBytes};

const OK: (u8, u8) = (0, 0);
const INVALID_FIELD: (u8, u8) = (0, 0x02);
const SEQUENCE: (u8, u8) = (0, 0x0c);

fn get(admin: &mut Queue, fid: FeatureId, select: Select, cdw11: u32) -> Result<u32, (u8, u8)> {
    let cqe = ask(admin, &GetFeatures { select, cdw11, ..GetFeatures::new(fid) }.emit());
    if code(&cqe) == OK { Ok(cqe.dw0.get()) } else { Err(code(&cqe)) }
}

fn current(admin: &mut Queue, fid: FeatureId) -> Result<u32, (u8, u8)> {
    get(admin, fid, Select::CURRENT, 0)
}

fn set(admin: &mut Queue, fid: FeatureId, word: u32) -> (u8, u8) {
    code(&ask(admin, &SetFeatures::new(fid, word).emit()))
}

#[test]
fn features_have_a_default_and_take_values() {
    let mut fixture = Fixture::new();
    let admin = &mut fixture.admin;
    for (fid, default, new) in [
        (FeatureId::ARBITRATION, 7, 0x0102_0303),
        (FeatureId::POWER_MANAGEMENT, 0, 0x20),
        (FeatureId::TEMPERATURE_THRESHOLD, 0xffff, 0x0157),
        (FeatureId::ERROR_RECOVERY, 0, 0x0005),
        (FeatureId::VOLATILE_WRITE_CACHE, 1, 0),
        (FeatureId::WRITE_ATOMICITY, 0, 1),
        (FeatureId::ASYNC_EVENT_CONFIG, 0, 0x1ff),
        (FeatureId::IO_COMMAND_SET_PROFILE, 0, 0),
    ] {
        for select in [Select::CURRENT, Select::DEFAULT, Select::SAVED] {
            assert_eq!(get(admin, fid, select, 0), Ok(default), "{fid:?} {select:?}");
        }
        assert_eq!(get(admin, fid, Select::SUPPORTED_CAPABILITIES, 0), Ok(0b100), "{fid:?}");
        assert_eq!(get(admin, fid, Select(4), 0), Err(INVALID_FIELD));
        let mut step = capsule(admin, &SetFeatures::new(fid, new).emit(), 0);
        while let Step::Execute { ticket, work: Work::Block { op: BlockWork::Flush, .. }, .. } = step {
            assert_eq!(fid, FeatureId::VOLATILE_WRITE_CACHE);
            step = admin.on_done(NOW, ticket, Ok(()));
        }
        assert_eq!(code(&responded(step)), OK, "{fid:?}");
        assert_eq!(current(admin, fid), Ok(new), "{fid:?}");
        assert_eq!(get(admin, fid, Select::DEFAULT, 0), Ok(default), "{fid:?}");
    }
    assert_eq!(crate::host::set(admin, nvme_proto::fabrics::property::Property::CC, 0, 0), OK);
    enable(admin);
    assert_eq!(current(admin, FeatureId::ARBITRATION), Ok(7), "a reset forgets");
    assert_eq!(current(admin, FeatureId::VOLATILE_WRITE_CACHE), Ok(1), "a reset forgets");
}

#[test]
fn set_features_refuses_what_is_not_supported() {
    let mut fixture = Fixture::new();
    let admin = &mut fixture.admin;
    for (fid, word, status) in [
        (FeatureId::POWER_MANAGEMENT, 1, INVALID_FIELD),
        (FeatureId::TEMPERATURE_THRESHOLD, 1 << 16, INVALID_FIELD),
        (FeatureId::TEMPERATURE_THRESHOLD, 2 << 20, INVALID_FIELD),
        (FeatureId::ERROR_RECOVERY, 1 << 16, INVALID_FIELD),
        (FeatureId::ASYNC_EVENT_CONFIG, 1 << 31, INVALID_FIELD),
        (FeatureId::IO_COMMAND_SET_PROFILE, 1, (1, 0x2b)),
        (FeatureId::HOST_ID, 1, SEQUENCE),
        (FeatureId::INTERRUPT_COALESCING, 0, INVALID_FIELD),
        (FeatureId::INTERRUPT_VECTOR, 0, INVALID_FIELD),
        (FeatureId::RESERVATION_NOTIFICATION_MASK, 0, (0, 0x0b)),
        (FeatureId::RESERVATION_PERSISTENCE, 0, (0, 0x0b)),
        (FeatureId(0xff), 0, INVALID_FIELD),
    ] {
        assert_eq!(set(admin, fid, word), status, "{fid:?} {word:#x}");
    }
    let saved = SetFeatures { save: true, ..SetFeatures::new(FeatureId::ARBITRATION, 0) };
    assert_eq!(code(&ask(admin, &saved.emit())), (1, 0x0d));
    let of_one = SetFeatures { nsid: Nsid(1), ..SetFeatures::new(FeatureId::ARBITRATION, 0) };
    assert_eq!(code(&ask(admin, &of_one.emit())), (1, 0x0f));
    let of_all = SetFeatures { nsid: Nsid::ALL, ..SetFeatures::new(FeatureId::ARBITRATION, 0) };
    assert_eq!(code(&ask(admin, &of_all.emit())), OK);
    assert_eq!(current(admin, FeatureId::INTERRUPT_VECTOR), Err(INVALID_FIELD));
}

#[test]
fn number_of_queues_is_bounded_and_set_before_the_first_connects() {
    let mut registry = registry(Options { io_queues_max: 8, ..Options::default() });
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    enable(&mut admin);
    assert_eq!(current(&mut admin, FeatureId::NUMBER_OF_QUEUES), Ok(0x0007_0007));
    let grant = |admin: &mut Queue, word| {
        let cqe = ask(admin, &SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, word).emit());
        (code(&cqe), cqe.dw0.get())
    };
    assert_eq!(grant(&mut admin, 0x00ff_00ff), (OK, 0x0007_0007));
    assert_eq!(grant(&mut admin, 0x0001_0001), (OK, 0x0001_0001));
    assert_eq!(grant(&mut admin, 0xffff_0000).0, INVALID_FIELD);
    assert_eq!(grant(&mut admin, 0x0000_ffff).0, INVALID_FIELD);
    assert_eq!(code(&Hello::io(2, 1).connect(&mut registry).1), OK);
    let (_, cqe, _) = Hello::io(3, 1).connect(&mut registry);
    assert_eq!((code(&cqe), cqe.dw0.get()), ((1, 0x82), 42), "more than was granted");
    assert_eq!(grant(&mut admin, 0).0, SEQUENCE);
}

#[test]
fn number_of_queues_is_granted_as_far_as_the_transport_has_room() {
    let mut registry = registry(Options::default());
    let mut admin = Hello::admin().connect(&mut registry).0;
    enable(&mut admin);
    let grant = |admin: &mut Queue, served: u16, queues: u32| {
        admin.association().unwrap().limit_io_queues(served);
        let word = (queues - 1) << 16 | (queues - 1);
        u32::from(ask(admin, &SetFeatures::new(FeatureId::NUMBER_OF_QUEUES, word).emit()).dw0.get() as u16)
            + 1
    };
    assert_eq!(grant(&mut admin, 40, 128), 40);
    assert_eq!(grant(&mut admin, 40, 24), 24, "the host asks again");
    assert_eq!(grant(&mut admin, 0, 8), 1, "less cannot be granted");
}

#[test]
fn write_cache_feature_off_makes_every_write_go_through() {
    let mut fixture = Fixture::new();
    let off = SetFeatures::new(FeatureId::VOLATILE_WRITE_CACHE, 0).emit();
    for (results, status, value) in
        [(&[Err(BlockError::Medium)][..], (2, 0x80), 1), (&[Ok(()), Ok(())][..], OK, 0)]
    {
        // What is in the caches goes to the disks first: namespace 3 may have become read-only since it was written to.
        let mut step = capsule(&mut fixture.admin, &off, 0);
        for (result, device) in results.iter().zip([101, 103]) {
            let Step::Execute { ticket, work, .. } = step else { panic!("a flush") };
            assert_eq!(work, Work::Block { device: DeviceId(device), op: BlockWork::Flush });
            step = fixture.admin.on_done(NOW, ticket, *result);
        }
        assert_eq!(code(&responded(step)), status);
        assert_eq!(current(&mut fixture.admin, FeatureId::VOLATILE_WRITE_CACHE), Ok(value));
    }
    let write = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::WRITE, Nsid(1)), 512);
    let Step::Execute { ticket, work: Work::Block { op, .. }, .. } = capsule(&mut fixture.io, &write, 0)
    else {
        panic!("a write");
    };
    assert!(matches!(op, BlockWork::Write { fua: true, .. }));
    ticket.abandon();
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, Geometry::new(512, 10))]).unwrap();
    fixture.deliver();
    assert_eq!(
        current(&mut fixture.admin, FeatureId::VOLATILE_WRITE_CACHE),
        Ok(0),
        "a disk with one may come"
    );
}

#[test]
fn keep_alive_default_is_two_minutes() {
    let mut fixture = Fixture::new();
    for select in [Select::DEFAULT, Select::SAVED] {
        assert_eq!(get(&mut fixture.admin, FeatureId::KEEP_ALIVE_TIMER, select, 0), Ok(120_000));
    }
}

#[test]
fn keep_alive_can_be_changed() {
    let mut fixture = Fixture::new();
    assert_eq!(current(&mut fixture.admin, FeatureId::KEEP_ALIVE_TIMER), Ok(5000));
    assert_eq!(set(&mut fixture.admin, FeatureId::KEEP_ALIVE_TIMER, 1500), OK);
    assert_eq!(current(&mut fixture.admin, FeatureId::KEEP_ALIVE_TIMER), Ok(2000));
    assert_eq!(fixture.admin.poll_timeout(), Some(NOW + Duration::from_secs(4)));
    assert_eq!(set(&mut fixture.admin, FeatureId::KEEP_ALIVE_TIMER, 0), OK);
    assert_eq!(fixture.admin.poll_timeout(), None);
}

#[test]
fn the_host_identifier_is_that_of_connect_and_has_128_bits() {
    let mut fixture = Fixture::new();
    let with = |cdw11| GetFeatures { cdw11, ..GetFeatures::new(FeatureId::HOST_ID) }.emit();
    assert_eq!(read(&mut fixture.admin, &with(1), 16), Ok(HOST_ID.0.to_vec()));
    assert_eq!(read(&mut fixture.admin, &with(0), 16), Err(INVALID_FIELD));
    assert_eq!(read(&mut fixture.admin, &with(1), 8), Err((0, 0x0f)));
    assert_eq!(get(&mut fixture.admin, FeatureId::HOST_ID, Select::SUPPORTED_CAPABILITIES, 0), Ok(0));
}

#[test]
fn timestamp_counts_from_the_value_set() {
    let mut fixture = Fixture::new();
    let admin = &mut fixture.admin;
    let timestamp = GetFeatures::new(FeatureId::TIMESTAMP).emit();
    let bytes = read(admin, &timestamp, 8).unwrap();
    let data = TimestampData::read_from_bytes(&bytes).unwrap();
    assert_eq!((data.millis(), data.set_by_host()), (0, false));
    let sqe = keyed(SetFeatures::new(FeatureId::TIMESTAMP, 0).emit(), 8);
    let (ticket, transfer) = parameters(capsule(admin, &sqe, 0));
    assert_eq!(transfer, Transfer::FromHost { len: 8, source: Source::Remote(SINK) });
    let earlier = NOW.checked_sub(Duration::from_millis(250)).unwrap();
    let step = admin.on_parameters(earlier, ticket, TimestampData::new(1_000_000, false).as_bytes());
    assert_eq!(code(&responded(step)), OK);
    let bytes = read(admin, &timestamp, 8).unwrap();
    let data = TimestampData::read_from_bytes(&bytes).unwrap();
    assert_eq!((data.millis(), data.set_by_host()), (1_000_250, true));
}

#[test]
fn host_behavior_is_kept_and_checked() {
    let mut fixture = Fixture::new();
    let admin = &mut fixture.admin;
    let sqe = keyed(SetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT, 0).emit(), 512);
    for (acre, status) in [(2, INVALID_FIELD), (1, OK)] {
        let (ticket, _) = parameters(capsule(admin, &sqe, 0));
        let mut data = [0; 512];
        (data[0], data[4]) = (acre, 0x1f);
        assert_eq!(code(&responded(admin.on_parameters(NOW, ticket, &data))), status);
    }
    let bytes = read(admin, &GetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT).emit(), 512).unwrap();
    assert_eq!(bytes[..7], [1, 0, 0, 0, 0x1f, 0, 0], "CDFE is kept as well");
}
