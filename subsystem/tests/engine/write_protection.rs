//! Write protection that a host sets: the feature Namespace Write Protection Config.

use crate::host::*;
use nvme_proto::admin::features::{FeatureId, GetFeatures, Select, SetFeatures};
use nvme_proto::admin::identify::{Cns, Identify};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::{BlockError, Geometry};
use nvmf_subsystem::*;

const OK: (u8, u8) = (0, 0);
const INVALID_FIELD: (u8, u8) = (0, 0x02);
const PROTECTED: (u8, u8) = (0, 0x20);
const NOT_CHANGEABLE: (u8, u8) = (1, 0x0e);
const FID: FeatureId = FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG;

fn fixture() -> Fixture {
    Fixture::with(Options { write_protection: true, ..Options::default() })
}

fn command(nsid: u32, state: u32) -> nvme_proto::Sqe {
    SetFeatures { nsid: Nsid(nsid), ..SetFeatures::new(FID, state) }.emit()
}

/// Sets a state, which is stored and in force at once; the device is flushed with this result.
fn set(fixture: &mut Fixture, nsid: u32, state: u32, flush: Result<(), BlockError>) -> (u8, u8) {
    let (ticket, question) = match capsule(&mut fixture.admin, &command(nsid, state), 0) {
        Step::Ask { ticket, question } => (ticket, question),
        step => return code(&responded(step)),
    };
    let Question::WriteProtection(question) = *question else { panic!("another question") };
    let done = fixture.registry.set_write_protection(&question).map(|_| ());
    fixture.deliver();
    match fixture.admin.on_answer(NOW, ticket, Answer::Reservation(done)) {
        Step::Execute {
            ticket,
            work: Work::Block { device, op: BlockWork::Flush },
            transfer: Transfer::None,
        } => {
            assert_eq!(device.0, nsid + 100);
            assert_eq!(write(fixture, nsid), PROTECTED, "it is in force before it is durable");
            code(&responded(fixture.admin.on_done(NOW, ticket, flush)))
        }
        step => code(&responded(step)),
    }
}

fn get(fixture: &mut Fixture, nsid: u32, select: Select) -> Result<u32, (u8, u8)> {
    let cqe =
        ask(&mut fixture.admin, &GetFeatures { nsid: Nsid(nsid), select, ..GetFeatures::new(FID) }.emit());
    if code(&cqe) == OK { Ok(cqe.dw0.get()) } else { Err(code(&cqe)) }
}

fn write(fixture: &mut Fixture, nsid: u32) -> (u8, u8) {
    let sqe = with_cid(keyed(ReadWrite::new(0, 1).emit(NvmOpcode::WRITE, Nsid(nsid)), 512), 77);
    match capsule(&mut fixture.io, &sqe, 0) {
        Step::Execute { ticket, .. } => code(&responded(fixture.io.on_done(NOW, ticket, Ok(())))),
        step => code(&responded(step)),
    }
}

fn attributes(fixture: &mut Fixture, nsid: u32) -> u8 {
    read(&mut fixture.admin, &Identify::new(Cns::NAMESPACE, Nsid(nsid)).emit(), 4096).unwrap()[99]
}

#[test]
fn protected_namespace_refuses_writes_until_it_is_released() {
    let mut fixture = fixture();
    assert_eq!((get(&mut fixture, 1, Select::CURRENT), attributes(&mut fixture, 1)), (Ok(0), 0));
    assert_eq!(set(&mut fixture, 1, 1, Ok(())), OK);
    assert_eq!((get(&mut fixture, 1, Select::CURRENT), attributes(&mut fixture, 1)), (Ok(1), 1));
    assert_eq!((get(&mut fixture, 1, Select::SAVED), get(&mut fixture, 1, Select::DEFAULT)), (Ok(1), Ok(0)));
    assert_eq!(write(&mut fixture, 1), PROTECTED);
    assert_eq!(set(&mut fixture, 1, 1, Ok(())), OK, "it is");
    assert_eq!(set(&mut fixture, 1, 0, Ok(())), OK);
    assert_eq!((get(&mut fixture, 1, Select::CURRENT), write(&mut fixture, 1)), (Ok(0), OK));
}

#[test]
fn protection_until_a_power_cycle_cannot_be_changed() {
    let mut fixture = fixture();
    assert_eq!(set(&mut fixture, 1, 1, Ok(())), OK);
    assert_eq!(set(&mut fixture, 1, 2, Ok(())), OK);
    for state in [0, 1] {
        assert_eq!(set(&mut fixture, 1, state, Ok(())), NOT_CHANGEABLE);
    }
    assert_eq!((get(&mut fixture, 1, Select::CURRENT), write(&mut fixture, 1)), (Ok(2), PROTECTED));
}

#[test]
fn configured_protection_is_the_operators() {
    let mut fixture = fixture();
    assert_eq!(get(&mut fixture, 3, Select::CURRENT), Ok(1));
    assert_eq!(set(&mut fixture, 3, 0, Ok(())), NOT_CHANGEABLE);
}

#[test]
fn what_cannot_be_set_is_refused() {
    let mut fixture = fixture();
    for state in 3..8 {
        assert_eq!(set(&mut fixture, 1, state, Ok(())), INVALID_FIELD, "{state}");
    }
    for nsid in [0, 2, 5000, u32::MAX] {
        assert_eq!(set(&mut fixture, nsid, 1, Ok(())), (0, 0x0b), "{nsid:#x}");
        assert_eq!(get(&mut fixture, nsid, Select::CURRENT), Err((0, 0x0b)));
    }
    let saved = SetFeatures { save: true, nsid: Nsid(1), ..SetFeatures::new(FID, 1) };
    assert_eq!(code(&ask(&mut fixture.admin, &saved.emit())), (1, 0x0d));
    let mut without = Fixture::new();
    assert_eq!(set(&mut without, 1, 1, Ok(())), INVALID_FIELD, "there is no place to keep it");
}

#[test]
fn flush_that_fails_fails_the_command_and_leaves_the_namespace_protected() {
    let mut fixture = fixture();
    for _ in 0..2 {
        assert_eq!(set(&mut fixture, 1, 1, Err(BlockError::CacheLost)), (0, 0x06), "as often as it is tried");
        assert_eq!(write(&mut fixture, 1), PROTECTED);
    }
    assert_eq!(set(&mut fixture, 1, 1, Ok(())), OK);
}

#[test]
fn protection_stays_with_the_disk_and_is_a_change_that_hosts_hear_of() {
    let mut fixture = fixture();
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 8).emit();
    assert_eq!(code(&ask(&mut fixture.admin, &config)), OK);
    assert!(matches!(capsule(&mut fixture.admin, &with_cid(nvme_proto::Sqe::new(0x0c), 50), 0), Step::Held));
    assert_eq!(set(&mut fixture, 1, 1, Ok(())), OK);
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::Respond(_))));
    // Longer, and configured anew.
    let longer = namespace(1, Geometry { blocks: 2000, ..disk() });
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![longer]).unwrap();
    fixture.deliver();
    assert_eq!(write(&mut fixture, 1), PROTECTED);
    // Another disk.
    let other = NamespaceDefinition { uuid: [99; 16], ..namespace(1, disk()) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![other]).unwrap();
    fixture.deliver();
    assert_eq!(write(&mut fixture, 1), OK);
}
