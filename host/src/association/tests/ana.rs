//! Asymmetric Namespace Access: the log page, its changes, and what statuses tell of them.

use super::*;
use nvme_proto::admin::ana::AnaWriter;
use nvme_proto::admin::async_event::{AsyncEvent, notice};
use nvme_proto::admin::identify::{cmic, lpa};
use nvme_proto::admin::log_page::AnaState;

/// A page of groups, each with its namespaces.
fn page(groups: &[(u32, AnaState, &[u32])]) -> Vec<u8> {
    let mut page = vec![0; 64 << 10];
    let mut writer = AnaWriter::new(&mut page, 1).unwrap();
    for &(group, state, nsids) in groups {
        writer.push(group, 1, state, nsids.iter().copied().map(Nsid)).unwrap();
    }
    let len = writer.len();
    page.truncate(len);
    page
}

fn controller(groups: &[(u32, AnaState, &[u32])]) -> Controller {
    let mut controller = Controller::new();
    controller.identify.cmic = cmic::ANARS;
    controller.identify.anatt = 10;
    controller.identify.oaes = (notice::ANA_CHANGE | notice::ATTACHED_NAMESPACE_ATTRIBUTE).into();
    controller.access = page(groups);
    controller
}

fn access(association: &Association) -> [AnaState; 2] {
    [1, 5].map(|nsid| association.access(Nsid(nsid)))
}

#[test]
fn states_are_known_when_ready_and_after_each_change() {
    let (optimized, inaccessible) = (AnaState::OPTIMIZED, AnaState::INACCESSIBLE);
    let mut controller = controller(&[(1, optimized, &[1]), (2, inaccessible, &[5])]);
    let mut association = ready(&mut controller, config());
    assert_eq!(access(&association), [optimized, inaccessible]);
    controller.access = page(&[(1, AnaState::NON_OPTIMIZED, &[1])]);
    controller.announce(&mut association, SECOND, AsyncEvent::ANA_CHANGE.emit());
    assert!(!association.is_scanning(), "I/O goes on: what cannot be reached is refused");
    assert_eq!(controller.serve(&mut association, SECOND), [Told::AccessChanged]);
    assert_eq!(access(&association), [AnaState::NON_OPTIMIZED, inaccessible], "one is not named");
    controller.announce(&mut association, SECOND, AsyncEvent::ANA_CHANGE.emit());
    assert_eq!(controller.serve(&mut association, SECOND), [], "nothing changed");
}

/// The look that is owed comes when the other question is answered.
#[test]
fn look_that_was_refused_is_made_again_after_a_change_of_access() {
    let mut controller = controller(&[(1, AnaState::OPTIMIZED, &[1, 5])]);
    let mut association = ready(&mut controller, config());
    controller.refuse.insert("active", Status::INTERNAL_ERROR);
    controller.silent = Some("changed list");
    controller.announce(&mut association, SECOND, AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit());
    controller.announce(&mut association, SECOND, AsyncEvent::ANA_CHANGE.emit());
    assert_eq!(controller.serve(&mut association, SECOND), []);
    controller.silent = None;
    let id = controller.unanswered.remove(0);
    let outcome = Outcome { dw0: 0, dw1: 0, sqhd: 0, status: Status::INVALID_LOG_PAGE };
    association.on_completion(SECOND, id, Reply { outcome, data: &[] });
    assert_eq!(controller.serve(&mut association, SECOND), []);
    assert_eq!(controller.seen[controller.seen.len() - 2..], ["active", "access"]);
    assert!(association.is_scanning());
    controller.refuse.clear();
    pass(&mut controller, &mut association, &mut SECOND.clone(), 3 * SECOND);
    assert!(!association.is_scanning());
}

#[test]
fn changes_without_end_leave_pauses_for_io() {
    for (event, look) in [
        (AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED, "changed list"),
        (AsyncEvent::ANA_CHANGE, "access"),
    ] {
        let mut controller = controller(&[(1, AnaState::OPTIMIZED, &[1, 5])]);
        let mut association = ready(&mut controller, config());
        let looks = |controller: &Controller| controller.seen.iter().filter(|name| **name == look).count();
        let before = looks(&controller);
        for _ in 0..1000 {
            controller.announce(&mut association, SECOND, event.emit());
            controller.serve(&mut association, SECOND);
        }
        let in_a_row = looks(&controller) - before;
        assert!((1..100).contains(&in_a_row), "{in_a_row} looks of 1000 announcements: {look}");
        assert!(!association.is_scanning(), "I/O goes on");
        pass(&mut controller, &mut association, &mut SECOND.clone(), 3 * SECOND);
        assert_eq!(
            looks(&controller) - before,
            in_a_row + 1,
            "the last announcement is not forgotten: {look}"
        );
    }
}

/// A script that makes namespaces is no controller that announces without end.
#[test]
fn changes_between_which_io_goes_on_are_all_looked_into_at_once() {
    let mut controller = controller(&[(1, AnaState::OPTIMIZED, &[1, 5])]);
    let mut association = ready(&mut controller, config());
    let looks = |controller: &Controller| controller.seen.iter().filter(|it| **it == "changed list").count();
    let (before, apart) = (looks(&controller), SECOND / 50);
    for change in 1..=200 {
        let now = SECOND + change * apart;
        controller.announce(&mut association, now, AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit());
        assert!(association.is_scanning(), "nothing is sent before it is looked into: {change}");
        controller.serve(&mut association, now);
        assert_eq!(looks(&controller) - before, change as usize);
    }
}

/// Which disk a namespace is now is seen before anything is sent to it, however slowly the controller answers, and whatever else it
/// announces.
#[test]
fn change_of_namespaces_during_a_slow_look_is_looked_into_before_io_goes_on() {
    let mut controller = controller(&[(1, AnaState::OPTIMIZED, &[1, 5])]);
    let mut association = ready(&mut controller, config());
    let mut now = SECOND;
    for _ in 0..200 {
        controller.announce(&mut association, now, AsyncEvent::ANA_CHANGE.emit());
        controller.serve(&mut association, now);
    }
    controller.silent = Some("changed list");
    controller.announce(&mut association, now, AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit());
    controller.serve(&mut association, now);
    for _ in 0..20 {
        assert!(association.is_scanning(), "I/O goes on, {now:?}");
        controller.announce(&mut association, now, AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit());
        now += 3 * SECOND;
        let late = controller.unanswered.remove(0);
        let outcome = Outcome { dw0: 0, dw1: 0, sqhd: 0, status: Status::SUCCESS };
        association.on_completion(now, late, Reply { outcome, data: &[0; 4096] });
        association.on_timeout(now);
        controller.serve(&mut association, now);
    }
}

#[test]
fn long_page_is_read_in_pieces() {
    let many: Vec<u32> = (1..5000).collect();
    let mut controller = controller(&[(1, AnaState::INACCESSIBLE, &many), (9, AnaState::OPTIMIZED, &[5000])]);
    controller.identify.lpa = lpa::EXTENDED_DATA;
    let association = ready(&mut controller, config());
    assert_eq!(association.access(Nsid(4999)), AnaState::INACCESSIBLE);
    assert_eq!(association.access(Nsid(5000)), AnaState::OPTIMIZED);
    assert_eq!(association.access(Nsid(5001)), AnaState::INACCESSIBLE);
}

#[test]
fn without_the_page_every_namespace_is_optimized() {
    let mut controller = controller(&[]);
    controller.refuse.insert("access", Status::INVALID_FIELD.with_dnr());
    let association = ready(&mut controller, config());
    assert_eq!(access(&association), [AnaState::OPTIMIZED; 2]);
}

#[test]
fn status_marks_its_group_and_has_the_page_read_but_not_without_end() {
    let optimized = AnaState::OPTIMIZED;
    let mut controller = controller(&[(1, optimized, &[1, 5])]);
    let mut association = ready(&mut controller, config());
    controller.seen.clear();
    let mut now = SECOND;
    for _ in 0..100 {
        association.on_ana_status(now, Nsid(1), Status::ANA_TRANSITION);
        assert_eq!(access(&association), [AnaState::CHANGE; 2]);
        let told = pass(&mut controller, &mut association, &mut now.clone(), now);
        if !told.is_empty() {
            assert_eq!((told, access(&association)), (vec![Told::AccessChanged], [optimized; 2]));
        }
        now += SECOND / 100;
    }
    let reads = controller.seen.iter().filter(|&&name| name == "access").count();
    assert!((5..=12).contains(&reads), "{reads} in a second");
}

#[test]
fn change_that_does_not_end_fails_the_association() {
    let mut controller = controller(&[(1, AnaState::CHANGE, &[1, 5])]);
    let mut association = ready(&mut controller, config());
    let mut now = Duration::ZERO;
    assert_eq!(pass(&mut controller, &mut association, &mut now, 19 * SECOND), []);
    let told = pass(&mut controller, &mut association, &mut now, 22 * SECOND);
    assert!(matches!(told[0], Told::Failed(AssociationError::AnaChange { .. })), "{told:?}");
}
