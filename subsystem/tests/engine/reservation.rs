//! Reservation commands as a host sends them: what is asked of the control plane, and what is refused.

use super::host::*;
use nvme_proto::admin::features::{FeatureId, GetFeatures, SetFeatures};
use nvme_proto::admin::identify::{Cns, Identify};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::nvm::reservation::{PersistChange, ReservationType};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Cqe, Sqe};
use nvmf_subsystem::*;
use zerocopy::FromBytes;

fn command(opcode: NvmOpcode, cdw10: u32) -> Sqe {
    Sqe::new(opcode.0).with_nsid(Nsid(1)).with_dwords([cdw10, 0, 0, 0, 0, 0])
}

/// Sends a command with these two keys; returns the ticket and the question, or the status.
fn ask_with(queue: &mut Queue, sqe: &Sqe, keys: [u64; 2]) -> Result<(Ticket, ReservationQuestion), Status> {
    let data = keys.map(u64::to_le_bytes).concat();
    let step = capsule(queue, &keyed(*sqe, 16), 0);
    let Step::Execute { ticket, work: Work::Parameters, transfer: Transfer::FromHost { len, .. } } = step
    else {
        return Err(responded(step).status());
    };
    match queue.on_parameters(NOW, ticket, &data[..len as usize]) {
        Step::Ask { ticket, question } => {
            let Question::Reservation(question) = *question else { panic!("another question") };
            Ok((ticket, question))
        }
        step => Err(responded(step).status()),
    }
}

/// The same, carried out at once.
fn reserve(fixture: &mut Fixture, sqe: &Sqe, keys: [u64; 2]) -> Status {
    let (ticket, question) = match ask_with(&mut fixture.io, sqe, keys) {
        Ok(asked) => asked,
        Err(status) => return status,
    };
    let planned = fixture.registry.plan_reservation(&question);
    let done = planned.and_then(|change| fixture.registry.set_reservation(&question, change));
    fixture.deliver();
    responded(fixture.io.on_answer(NOW, ticket, Answer::Reservation(done))).status()
}

/// What a host with another identifier does behind the back of the fixture's.
fn by_other(fixture: &mut Fixture, command: ReservationCommand) {
    let hello = Hello { host_id: HostId([9; 16]), ..Hello::admin() };
    let (queue, cqe, _) = hello.connect(&mut fixture.registry);
    assert_eq!(code(&cqe), (0, 0));
    let association = queue.association().unwrap().clone();
    let question = ReservationQuestion { association, nsid: Nsid(1), uuid: [1; 16], command };
    let change = fixture.registry.plan_reservation(&question).unwrap();
    fixture.registry.set_reservation(&question, change).unwrap();
    fixture.deliver();
}

fn register_other(fixture: &mut Fixture, new: u64) {
    let persist = PersistChange::NONE;
    by_other(fixture, ReservationCommand::Register { new, ignore_key: true, persist });
}

#[test]
fn what_linux_sends_is_understood() {
    let mut fixture = Fixture::new();
    let register = command(NvmOpcode::RESERVATION_REGISTER, 0xc000_0000);
    let (ticket, question) = ask_with(&mut fixture.io, &register, [0, 0xabcd]).unwrap();
    let persist = PersistChange::PERSIST;
    let expected = ReservationCommand::Register { new: 0xabcd, ignore_key: false, persist };
    assert_eq!((question.nsid, question.uuid, question.command), (Nsid(1), [1; 16], expected));
    assert_eq!(code(&responded(fixture.io.on_answer(NOW, ticket, Answer::Reservation(Ok(()))))), (0, 0));
    let preempt = command(NvmOpcode::RESERVATION_ACQUIRE, 0x0202);
    let (ticket, question) = ask_with(&mut fixture.io, &preempt, [1, 2]).unwrap();
    let kind = ReservationType::EXCLUSIVE_ACCESS;
    let expected = ReservationCommand::Preempt { key: 1, kind, preempted: 2, abort: true };
    assert_eq!(question.command, expected);
    let refused = Answer::Reservation(Err(Status::RESERVATION_CONFLICT.with_dnr()));
    let status = responded(fixture.io.on_answer(NOW, ticket, refused)).status();
    assert_eq!((status.sct(), status.sc(), status.dnr()), (0, 0x83, true));
}

#[test]
fn what_the_standard_does_not_have_is_an_invalid_field() {
    let mut fixture = Fixture::new();
    for (opcode, cdw10, keys) in [
        (NvmOpcode::RESERVATION_REGISTER, 0, [0, 0]),
        (NvmOpcode::RESERVATION_REGISTER, 2, [1, 0]),
        (NvmOpcode::RESERVATION_REGISTER, 3, [1, 1]),
        (NvmOpcode::RESERVATION_REGISTER, 0x4000_0000, [0, 1]),
        (NvmOpcode::RESERVATION_ACQUIRE, 0, [1, 0]),
        (NvmOpcode::RESERVATION_ACQUIRE, 0x0700, [1, 0]),
        (NvmOpcode::RESERVATION_ACQUIRE, 0x0103, [1, 0]),
        (NvmOpcode::RESERVATION_ACQUIRE, 0x0108, [1, 0]),
        (NvmOpcode::RESERVATION_RELEASE, 0x0109, [1, 0]),
        (NvmOpcode::RESERVATION_RELEASE, 2, [1, 0]),
    ] {
        let status = ask_with(&mut fixture.io, &command(opcode, cdw10), keys).unwrap_err();
        assert_eq!((status.sct(), status.sc(), status.dnr()), (0, 2, true), "{opcode:?} {cdw10:#x}");
    }
    let mut unknown = command(NvmOpcode::RESERVATION_REGISTER, 0);
    unknown.nsid = 77.into();
    assert_eq!(ask_with(&mut fixture.io, &unknown, [0, 1]).unwrap_err().sc(), 0x0b);
}

fn report(queue: &mut Queue, cdw10: u32, cdw11: u32) -> Result<Vec<u8>, (u8, u8)> {
    let sqe = command(NvmOpcode::RESERVATION_REPORT, 0).with_dwords([cdw10, cdw11, 0, 0, 0, 0]);
    read(queue, &sqe, (cdw10 + 1) * 4)
}

#[test]
fn report_is_cut_to_what_the_host_asks_for() {
    let mut fixture = Fixture::new();
    let register = command(NvmOpcode::RESERVATION_REGISTER, 0);
    assert!(reserve(&mut fixture, &register, [0, 5]).is_success());
    let whole = report(&mut fixture.io, 31, 1).unwrap();
    assert_eq!((whole[0], whole[5], whole[9]), (1, 1, 0));
    assert_eq!((&whole[64..66], whole[72], &whole[80..96]), (&[0xff, 0xff][..], 5, &HOST_ID.0[..]));
    assert_eq!(report(&mut fixture.io, 5, 1).unwrap(), whole[..24]);
    assert_eq!(report(&mut fixture.io, 0, 1).unwrap(), whole[..4]);
    let large = report(&mut fixture.io, 1023, 1).unwrap();
    assert!(large.len() == 4096 && large[..128] == whole && large[128..].iter().all(|&byte| byte == 0));
    assert_eq!(report(&mut fixture.io, 31, 0), Err((0, 0x18)), "host identifiers have 128 bits");
    // More than a transfer may have, up to what overflows 32 bits: nothing is allocated for it.
    for cdw10 in [0x4_0000, 0x3fff_fffe, u32::MAX] {
        let sqe = command(NvmOpcode::RESERVATION_REPORT, 0).with_dwords([cdw10, 1, 0, 0, 0, 0]);
        assert_eq!(read(&mut fixture.io, &sqe, 4096), Err((0, 2)));
    }
}

#[test]
fn reservation_of_another_host_is_a_conflict_without_a_retry() {
    let mut fixture = Fixture::new();
    let block = |opcode: NvmOpcode| keyed(ReadWrite::new(0, 1).emit(opcode, Nsid(1)), 512);
    register_other(&mut fixture, 7);
    let kind = ReservationType::WRITE_EXCLUSIVE;
    by_other(&mut fixture, ReservationCommand::Acquire { key: 7, kind });
    let refused = |fixture: &mut Fixture, sqe: &Sqe| match capsule(&mut fixture.io, sqe, 0) {
        Step::Execute { ticket, .. } => {
            let _ = fixture.io.on_done(NOW, ticket, Ok(()));
            None
        }
        step => Some(responded(step).status()),
    };
    let status = refused(&mut fixture, &block(NvmOpcode::WRITE)).unwrap();
    assert_eq!((status.sct(), status.sc(), status.dnr()), (0, 0x83, true));
    assert_eq!(refused(&mut fixture, &block(NvmOpcode::READ)), None);
    assert_eq!(refused(&mut fixture, &block(NvmOpcode::COMPARE)), None);
    let flush = Sqe::new(NvmOpcode::FLUSH.0).with_nsid(Nsid(1));
    assert_eq!(refused(&mut fixture, &flush).map(|status| status.sc()), Some(0x83));
    let acquire = command(NvmOpcode::RESERVATION_ACQUIRE, 0x0100);
    assert_eq!(reserve(&mut fixture, &acquire, [7, 0]).sc(), 0x83, "not a registrant");
    // The reservation stays with the disk when something else about it changes.
    let larger = nvmf_block::Geometry { blocks: 2000, ..disk() };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, larger)]).unwrap();
    fixture.deliver();
    assert!(refused(&mut fixture, &block(NvmOpcode::WRITE)).is_some());
    let other_disk = NamespaceDefinition { uuid: [8; 16], ..namespace(1, disk()) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![other_disk]).unwrap();
    fixture.deliver();
    assert_eq!(refused(&mut fixture, &block(NvmOpcode::WRITE)), None, "another disk has none");
}

#[test]
fn command_for_a_disk_that_was_replaced_meanwhile_changes_nothing() {
    let mut fixture = Fixture::new();
    let register = command(NvmOpcode::RESERVATION_REGISTER, 0);
    let (ticket, question) = ask_with(&mut fixture.io, &register, [0, 5]).unwrap();
    let other_disk = NamespaceDefinition { uuid: [8; 16], ..namespace(1, disk()) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![other_disk]).unwrap();
    let status = fixture.registry.plan_reservation(&question).unwrap_err();
    assert_eq!((status.sct(), status.sc()), (0, 0x0b));
    let _ = fixture.io.on_answer(NOW, ticket, Answer::Reservation(Err(status)));
}

fn notification(fixture: &mut Fixture, retain: bool) -> Vec<u8> {
    let mut command = GetLogPage::new(LogPageId::RESERVATION_NOTIFICATION, Nsid(0), 0, 64);
    command.retain_event = retain;
    read(&mut fixture.admin, &command.emit(), 64).unwrap()
}

fn event(fixture: &mut Fixture) -> Option<u32> {
    fixture
        .admin
        .poll_step(NOW)
        .map(|step| Cqe::read_from_bytes(&response(step).cqe).unwrap().result() as u32)
}

#[test]
fn notifications_are_an_event_and_a_log_that_is_read_one_by_one() {
    let mut fixture = Fixture::new();
    let register = command(NvmOpcode::RESERVATION_REGISTER, 0);
    assert!(reserve(&mut fixture, &register, [0, 5]).is_success());
    for cid in [100, 101] {
        let request = with_cid(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), cid);
        assert!(matches!(capsule(&mut fixture.admin, &request, 0), Step::Held));
    }
    assert_eq!(notification(&mut fixture, false), [0; 64]);
    assert_eq!(event(&mut fixture), None);
    register_other(&mut fixture, 7);
    let kind = ReservationType::WRITE_EXCLUSIVE;
    let preempt = ReservationCommand::Preempt { key: 7, kind, preempted: 5, abort: false };
    by_other(&mut fixture, preempt);
    assert_eq!(event(&mut fixture), Some(0x0080_0006));
    assert!(reserve(&mut fixture, &register, [0, 5]).is_success());
    by_other(&mut fixture, preempt);
    let first = notification(&mut fixture, false);
    let mut expected = [0; 64];
    (expected[0], expected[8], expected[9], expected[12]) = (1, 1, 1, 1);
    assert_eq!(first, expected);
    assert_eq!(event(&mut fixture), Some(0x0080_0006), "another one waits");
    assert_eq!(notification(&mut fixture, false)[..10], [2, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(notification(&mut fixture, false), [0; 64]);
    assert_eq!(event(&mut fixture), None);
}

#[test]
fn masked_notification_is_not_given() {
    let mut fixture = Fixture::new();
    let register = command(NvmOpcode::RESERVATION_REGISTER, 0);
    assert!(reserve(&mut fixture, &register, [0, 5]).is_success());
    register_other(&mut fixture, 7);
    let fid = FeatureId::RESERVATION_NOTIFICATION_MASK;
    for (nsid, mask) in [(Nsid(1), 0b10), (Nsid::ALL, 0b1010)] {
        let set = SetFeatures { nsid, ..SetFeatures::new(fid, mask) };
        assert_eq!(code(&ask(&mut fixture.admin, &set.emit())), (0, 0));
        let get = GetFeatures { nsid: Nsid(1), ..GetFeatures::new(fid) };
        assert_eq!(ask(&mut fixture.admin, &get.emit()).result(), mask.into());
    }
    by_other(&mut fixture, ReservationCommand::Clear { key: 7 });
    assert_eq!(notification(&mut fixture, false), [0; 64]);
    let unknown = SetFeatures { nsid: Nsid(77), ..SetFeatures::new(fid, 2) };
    assert_eq!(code(&ask(&mut fixture.admin, &unknown.emit())), (0, 0x0b));
}

#[test]
fn persistence_is_advertised_where_there_is_a_place_for_it() {
    let mut fixture = Fixture::new();
    let access = NamespaceAccess { reservation_persists: true, ..NamespaceAccess::default() };
    let lasting = NamespaceDefinition { access, ..namespace(1, disk()) };
    let namespaces = vec![lasting, namespace(2, disk())];
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), namespaces).unwrap();
    fixture.deliver();
    for (nsid, rescap) in [(1, 0xff), (2, 0xfe)] {
        let id = read(&mut fixture.admin, &Identify::new(Cns::NAMESPACE, Nsid(nsid)).emit(), 4096).unwrap();
        let cns = Cns::INDEPENDENT_NAMESPACE;
        let independent = read(&mut fixture.admin, &Identify::new(cns, Nsid(nsid)).emit(), 4096).unwrap();
        assert_eq!((id[31], independent[2]), (rescap, rescap));
    }
    let register = command(NvmOpcode::RESERVATION_REGISTER, 0xc000_0000);
    assert!(reserve(&mut fixture, &register, [0, 5]).is_success());
    let fid = FeatureId::RESERVATION_PERSISTENCE;
    let get = GetFeatures { nsid: Nsid(1), ..GetFeatures::new(fid) };
    assert_eq!(ask(&mut fixture.admin, &get.emit()).result(), 1);
    let off = SetFeatures { nsid: Nsid(1), save: true, ..SetFeatures::new(fid, 0) };
    let Step::Ask { ticket, question } = capsule(&mut fixture.admin, &off.emit(), 0) else {
        panic!("the control plane stores it");
    };
    let Question::Reservation(question) = *question else { panic!("another question") };
    assert_eq!(question.command, ReservationCommand::SetPersistence { persists: false });
    let change = fixture.registry.plan_reservation(&question).unwrap();
    fixture.registry.set_reservation(&question, change).unwrap();
    fixture.deliver();
    assert_eq!(code(&responded(fixture.admin.on_answer(NOW, ticket, Answer::Reservation(Ok(()))))), (0, 0));
    assert_eq!(ask(&mut fixture.admin, &get.emit()).result(), 0);
}

#[test]
fn restored_reservation_is_in_force() {
    let mut registry = registry(Options::default());
    let other = HostId([9; 16]);
    let held = Some((ReservationType::EXCLUSIVE_ACCESS, other));
    let reservation = Reservation::restored(3, held, [(other, 7)]).unwrap();
    registry.restore_reservation(&nqn(SUBSYSTEM), Nsid(1), [1; 16], reservation.clone()).unwrap();
    let unknown = registry.restore_reservation(&nqn(SUBSYSTEM), Nsid(1), [2; 16], reservation);
    assert!(matches!(unknown, Err(DefinitionError::Nsid { .. })));
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    enable(&mut admin);
    let (mut io, ..) = Hello::io(1, admin.association().unwrap().key().cntlid.0).connect(&mut registry);
    let sqe = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)), 512);
    assert_eq!(code(&ask(&mut io, &sqe)), (0, 0x83));
}

#[test]
fn namespace_that_comes_back_has_its_reservation_and_write_protection() {
    let mut registry = registry(Options::default());
    let name = nqn(SUBSYSTEM);
    let other = HostId([9; 16]);
    let held = Some((ReservationType::EXCLUSIVE_ACCESS, other));
    let reservation = Reservation::restored(3, held, [(other, 7)]).unwrap();
    registry.restore_reservation(&name, Nsid(1), [1; 16], reservation.clone()).unwrap();
    let definition = registry.namespaces(&name).unwrap().get(Nsid(1)).unwrap().clone();
    registry.remove_namespace(&name, Nsid(1)).unwrap();
    registry.add_namespace(&name, definition.clone()).unwrap();
    assert_eq!(**registry.namespaces(&name).unwrap().reservation(Nsid(1)).unwrap(), reservation);

    // Another disk under that NSID has none.
    registry.remove_namespace(&name, Nsid(1)).unwrap();
    let mut another = definition.clone();
    another.uuid = [0xee; 16];
    registry.add_namespace(&name, another).unwrap();
    assert_eq!(**registry.namespaces(&name).unwrap().reservation(Nsid(1)).unwrap(), Reservation::default());

    registry.remove_namespace(&name, Nsid(1)).unwrap();
    let mut protected = definition.clone();
    protected.access.write_protection = nvmf_subsystem::WriteProtection::UntilPowerCycle;
    registry.add_namespace(&name, protected).unwrap();
    registry.remove_namespace(&name, Nsid(1)).unwrap();
    registry.add_namespace(&name, definition).unwrap();
    let table = registry.namespaces(&name).unwrap();
    assert!(table.get(Nsid(1)).unwrap().is_read_only());
    assert_eq!(**table.reservation(Nsid(1)).unwrap(), reservation);
}
