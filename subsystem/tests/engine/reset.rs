//! Cross-Controller Reset: who may reset what, and how the host learns of its end.

use super::host::*;
use nvme_proto::admin::cross_controller_reset::{ControllerInstance, CrossControllerReset, REMOVE_COMPLETED};
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::admin::identify::{Cns, Identify, IdentifyController};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::fabrics::property::Property;
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Cqe, Sqe};
use nvmf_block::{BlockOp, DeviceId};
use nvmf_subsystem::*;
use zerocopy::FromBytes;

fn identify(queue: &mut Queue) -> IdentifyController {
    let data = read(queue, &Identify::new(Cns::CONTROLLER, Nsid(0)).emit(), 4096).unwrap();
    IdentifyController::read_from_bytes(&data).unwrap()
}

pub(super) fn instance(queue: &mut Queue) -> ControllerInstance {
    let id = identify(queue);
    let (cntlid, random) = (Cntlid(id.cntlid.get()), id.cirn.get());
    ControllerInstance { cntlid, uniquifier: id.ciu, random }
}

/// A second controller of the fixture's host, or of another.
pub(super) fn second(fixture: &mut Fixture, hello: &Hello) -> Queue {
    let (mut queue, cqe, _) = hello.connect(&mut fixture.registry);
    assert_eq!(code(&cqe), (0, 0));
    enable(&mut queue);
    queue
}

/// Sends the command; returns the ticket and what is asked of the control plane, or the response.
pub(super) fn command(
    queue: &mut Queue,
    impacted: ControllerInstance,
    cid: u16,
) -> Result<(Ticket, ResetQuestion), Cqe> {
    match capsule(queue, &with_cid(CrossControllerReset { impacted }.emit(), cid), 0) {
        Step::Ask { ticket, question } => {
            let Question::Reset(question) = *question else { panic!("another question") };
            Ok((ticket, question))
        }
        step => Err(responded(step)),
    }
}

/// Sends the command, and has the registry decide. What may not be reset is refused.
fn reset(
    fixture: &mut Fixture,
    through: &mut Queue,
    impacted: ControllerInstance,
) -> Result<Option<AssociationKey>, (u8, u8)> {
    let (ticket, question) = command(through, impacted, 1).unwrap();
    let outcome = fixture.registry.reset(&question);
    let answer = Answer::Reset(outcome.map(|_| true));
    let cqe = responded(through.on_answer(NOW, ticket, answer));
    outcome.inspect(|_| assert_eq!((code(&cqe), cqe.result()), ((0, 0), 1))).map_err(|_| code(&cqe))
}

#[test]
fn reset_ends_the_impacted_association_and_no_other() {
    let mut fixture = Fixture::new();
    let mut other = second(&mut fixture, &Hello::admin());
    let impacted = instance(&mut fixture.admin);
    let key = fixture.association().key();
    assert_eq!(fixture.io.check_again(Nsid(1), DeviceId(101), &BlockOp::Flush), Ok(()));
    assert_eq!(reset(&mut fixture, &mut other, impacted), Ok(Some(key)));
    fixture.deliver();
    // What waits for its data is not begun any more.
    let late = fixture.io.check_again(Nsid(1), DeviceId(101), &BlockOp::Flush);
    assert_eq!(late, Err(Status::ABORTED_SQ_DELETION));
    assert!(matches!(fixture.io.poll_step(NOW), Some(Step::CloseQueue)));
    assert!(matches!(fixture.admin.poll_step(NOW), Some(Step::CloseQueue)));
    assert!(other.poll_step(NOW).is_none());
    // Its last operation is over: it is gone, and with it all that it was sent.
    fixture.registry.close_queue(&fixture.association(), Qid(1));
    fixture.registry.close_queue(&fixture.association(), Qid(0));
    assert_eq!(reset(&mut fixture, &mut other, impacted), Ok(None));
}

#[test]
fn what_may_not_be_reset_is_refused() {
    let mut fixture = Fixture::with(Options { cntlids: 1..=9, ..Options::default() });
    let mut other = second(&mut fixture, &Hello::admin());
    let impacted = instance(&mut fixture.admin);
    let own = instance(&mut other);
    let mut clone = second(&mut fixture, &Hello { host_id: HostId([8; 16]), ..Hello::admin() });
    for (what, by_clone, impacted) in [
        ("itself", false, own),
        ("another life of it", false, ControllerInstance { random: impacted.random ^ 1, ..impacted }),
        ("a wrong uniquifier", false, ControllerInstance { uniquifier: 0, ..impacted }),
        ("one of another target", false, ControllerInstance { cntlid: Cntlid(10), ..impacted }),
        ("one of another host", true, impacted),
    ] {
        let through = if by_clone { &mut clone } else { &mut other };
        assert_eq!(reset(&mut fixture, through, impacted), Err((0, 2)), "{what}");
    }
    // Another one that had its Controller ID is over.
    let before = ControllerInstance { random: !impacted.random, ..impacted };
    assert_eq!(reset(&mut fixture, &mut other, before), Ok(None));
    assert!(!fixture.association().is_closing());
}

#[test]
fn controller_that_was_reset_has_another_instance() {
    let mut fixture = Fixture::new();
    let before = instance(&mut fixture.admin);
    assert_eq!(set(&mut fixture.admin, Property::CC, 0, 0), (0, 0));
    enable(&mut fixture.admin);
    let after = instance(&mut fixture.admin);
    assert_eq!(after.cntlid, before.cntlid);
    assert!(after.uniquifier != before.uniquifier && after.uniquifier != 0 && after.random != before.random);
}

#[test]
fn reset_that_takes_its_time_is_in_the_log_and_an_event() {
    let mut fixture = Fixture::new();
    let mut other = second(&mut fixture, &Hello::admin());
    let impacted = instance(&mut fixture.admin);
    let acid = other.association().unwrap().key().cntlid;
    let events = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 20).emit();
    assert_eq!(code(&ask(&mut other, &events)), (0, 0));
    let request = with_cid(Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0), 9);
    assert!(matches!(capsule(&mut other, &request, 0), Step::Held));
    let (ticket, question) = command(&mut other, impacted, 1).unwrap();
    let cqe = responded(other.on_answer(NOW, ticket, Answer::Reset(Ok(false))));
    assert_eq!((code(&cqe), cqe.result()), ((0, 0), 0));
    let log = |queue: &mut Queue, lsp| {
        let page = GetLogPage { lsp, ..GetLogPage::new(LogPageId::CROSS_CONTROLLER_RESET, Nsid(0), 0, 16) };
        read(queue, &page.emit(), 16).unwrap()
    };
    let entry = |status| {
        let [low, high] = impacted.cntlid.0.to_le_bytes();
        let [acid_low, acid_high] = acid.0.to_le_bytes();
        [1, 0, 0, 0, 0, 0, 0, 0, low, high, impacted.uniquifier, 0, acid_low, acid_high, status, 3]
    };
    assert_eq!(log(&mut other, REMOVE_COMPLETED), entry(0));
    fixture.registry.on_reset_over(&question, true);
    for notice in fixture.registry.take_notices() {
        other.on_notice(NOW, &notice);
    }
    let Some(Step::Respond(event)) = other.poll_step(NOW) else { panic!("no event") };
    assert_eq!(Cqe::read_from_bytes(&event.cqe).unwrap().result(), 0x001e_f402);
    assert_eq!(log(&mut other, REMOVE_COMPLETED), entry(1));
    assert_eq!(log(&mut other, 0), [0; 16]);
}

#[test]
fn resets_at_once_are_limited() {
    let mut fixture = Fixture::new();
    let mut other = second(&mut fixture, &Hello::admin());
    let limit = identify(&mut other).ccrl;
    let impacted = instance(&mut fixture.admin);
    let mut asked: Vec<_> =
        (0..limit).map(|cid| command(&mut other, impacted, cid.into()).unwrap()).collect();
    let refused = command(&mut other, impacted, 100).unwrap_err();
    assert_eq!(code(&refused), (1, 0x41));
    let (ticket, _) = asked.pop().unwrap();
    let in_progress = Answer::Reset(Err(Status::CONTROLLER_RESET_IN_PROGRESS));
    assert_eq!(code(&responded(other.on_answer(NOW, ticket, in_progress))), (1, 0x3f));
    asked.push(command(&mut other, impacted, 101).unwrap());
    asked.into_iter().for_each(|(ticket, _)| ticket.abandon());
}

#[test]
fn discovery_controller_has_no_reset() {
    let mut fixture = Fixture::new();
    let ports = vec![Port { discovery: true, ..port() }];
    fixture.registry.set_ports(ports).unwrap();
    let mut discovery = second(&mut fixture, &Hello::discovery());
    let id = identify(&mut discovery);
    assert_eq!((id.ciu, id.cirn.get(), id.ccrl), (0, 0, 0));
    let impacted = instance(&mut fixture.admin);
    assert_eq!(code(&command(&mut discovery, impacted, 1).unwrap_err()), (0, 1));
}
