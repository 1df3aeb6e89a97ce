//! How commands and connections end: keys, late completions, time-outs, errors of parts.

use super::super::{DriverConfig, DriverEvent, QueueKind, Recipient, Unanswered};
use super::rig::{BLOCK, Rig, SECOND, config, read};
use super::target::Invalidate;
use crate::transport::{Arrival, Rdma, Transport};
use core::time::Duration;
use nvme_proto::admin::log_page::LogPageId;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, Qid, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange};
use nvmf_host::{AssociationConfig, AssociationError, RecoveryPolicy, Violation, admin};
use nvmf_memory::Memory;
use nvmf_rdma::fault::FaultOptions;
use nvmf_rdma::{Completion, Opcode, WcStatus, WorkRequestId};

fn lost(rig: &Rig) -> Option<&AssociationError> {
    rig.events.iter().find_map(|event| if let DriverEvent::Lost(error) = event { Some(error) } else { None })
}

/// The queue pairs that the driver has.
fn queue_pairs(rig: &Rig) -> usize {
    rig.driver.paths[0].queues.iter().flatten().count()
}

#[test]
fn key_is_dead_before_the_operation_ends() {
    for invalidate in [Invalidate::Own, Invalidate::None] {
        let mut rig = Rig::ready_with(config(), |target| target.invalidate = invalidate);
        rig.target.hold = true;
        rig.submit(1, read(0, 1));
        rig.run();
        let capsule = rig.target.held[0].clone();
        rig.target.release();
        rig.run();
        assert_eq!(rig.result(1), Some(Ok(())));
        assert!(!rig.driver.transport(0).holds_keys());
        rig.memory.fill(0, BLOCK, 0);
        assert_ne!(rig.target.write_late(&capsule), WcStatus::Success);
        let mut bytes = [0xff; BLOCK];
        rig.memory.read(0, &mut bytes);
        assert_eq!(bytes, [0; BLOCK]);
    }
}

#[test]
fn key_of_a_command_that_could_not_be_sent_is_ended() {
    let mut rig = Rig::ready();
    let keys = |rig: &mut Rig| rig.driver.transport_mut(0).provider_mut().inner().remote_keys();
    let refuse = |rig: &mut Rig, refuse_post| {
        let options = FaultOptions { refuse_post, ..FaultOptions::default() };
        rig.driver.transport_mut(0).provider_mut().set_options(options);
    };
    refuse(&mut rig, 1_000_000);
    rig.submit(1, read(0, 1));
    rig.submit(2, read(1, 1));
    rig.driver.flush(rig.now);
    assert_eq!(keys(&mut rig), 2, "one command is under way, and one found no room");
    rig.run();
    refuse(&mut rig, 0);
    rig.run();
    assert_eq!((rig.result(1), rig.result(2)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(keys(&mut rig), 0);
}

/// A response may overtake the completion of its command's SEND, whose bytes are in use until then.
#[test]
fn memory_is_released_after_the_send_though_the_response_is_there() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.driver.flush(rig.now);
    assert_eq!(rig.driver.transport_mut(0).complete(Qid(1), 0, None), Ok(false));
    rig.target.turn(rig.now);
    let transport = rig.driver.transport_mut(0);
    transport.poll();
    let released = core::iter::from_fn(|| transport.next_arrival())
        .any(|arrival| matches!(arrival, Arrival::Released(Qid(1), 0)));
    assert!(released, "its SEND is done");
}

/// A write in the capsule exposes no key: a response that invalidates one is not its own, and may come before its SEND completes.
#[test]
fn foreign_key_before_the_send_completes_releases_nothing() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.driver.flush(rig.now);
    let refused = rig.driver.transport_mut(0).complete(Qid(1), 0, Some(7));
    assert_eq!(refused, Err(Violation::ForeignKey { qid: Qid(1), key: 7 }));
    rig.target.turn(rig.now);
    let transport = rig.driver.transport_mut(0);
    transport.poll();
    let released = core::iter::from_fn(|| transport.next_arrival())
        .any(|arrival| matches!(arrival, Arrival::Released(Qid(1), 0)));
    assert!(!released, "its connection ends");
}

#[test]
fn response_with_a_foreign_key_ends_the_association() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, read(0, 1));
    rig.submit(2, read(1, 1));
    rig.run();
    rig.target.invalidate = Invalidate::OfHeld;
    rig.target.release();
    rig.run();
    let violation = lost(&rig);
    assert!(
        matches!(violation, Some(AssociationError::Violation(Violation::ForeignKey { qid: Qid(1), .. }))),
        "{violation:?}"
    );
    (rig.target.hold, rig.target.invalidate) = (false, Invalidate::Own);
    rig.pass(10 * SECOND);
    assert_eq!((rig.result(1), rig.result(2)), (Some(Ok(())), Some(Ok(()))));
}

#[test]
fn operation_ends_after_all_its_parts_and_with_the_error_of_any() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for failing in 0..3 {
            let mut rig = Rig::ready_with(config(), |target| target.transfer_pages = 1);
            rig.target.hold = true;
            rig.submit(1, rig.write(0, 48, 0xaa));
            rig.run();
            assert_eq!(rig.target.held.len(), 3);
            let mut left = vec![0, 1, 2];
            for part in order {
                assert_eq!(rig.result(1), None, "{order:?}");
                let at = left.iter().position(|left| *left == part).unwrap();
                left.remove(at);
                let failed = if part == failing { Status::WRITE_FAULT } else { Status::SUCCESS };
                rig.target.answer(at, failed);
                rig.run();
            }
            assert_eq!(rig.result(1), Some(Err(BlockError::Medium)), "{order:?}, {failing}");
        }
    }
}

#[test]
fn command_in_flight_at_a_loss_is_issued_again() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect();
    rig.run();
    assert_eq!((rig.result(1), rig.target.disks[&1].bytes[4 * BLOCK]), (None, 1));
    rig.target.hold = false;
    rig.pass(10 * SECOND);
    assert_eq!((rig.result(1), rig.target.disks[&1].bytes[4 * BLOCK]), (Some(Ok(())), 0xaa));
}

#[test]
fn fua_is_in_every_command_of_a_write_and_of_zeroes() {
    let mut rig = Rig::ready_with(config(), |target| target.transfer_pages = 1);
    let range = BlockRange::new(0, 48);
    let BlockOp::Write { from, .. } = rig.write(0, 48, 1) else { unreachable!() };
    rig.submit(1, BlockOp::Write { range, from, fua: true });
    rig.submit(2, BlockOp::WriteZeroes { range, deallocate: false, fua: true });
    rig.run();
    assert_eq!(rig.target.seen.len(), 6);
    assert!(rig.target.seen.iter().all(|(_, _, _, fua)| *fua), "{:?}", rig.target.seen);
}

#[test]
fn reads_do_not_wait_behind_writes_where_they_have_queues_of_their_own() {
    for (write_queues, io_queues) in [(0, 2), (1, 2), (2, 3), (2, 2)] {
        let association = AssociationConfig { io_queues, ..config().association };
        let mut rig = Rig::ready_with(DriverConfig { write_queues, association, ..config() }, |_| {});
        rig.target.hold = true;
        (0..50).for_each(|tag| rig.submit(tag, rig.write(tag, 1, 1)));
        rig.run();
        rig.submit(50, read(0, 1));
        rig.run();
        let of = |opcode| rig.target.seen.iter().filter(|(seen, ..)| *seen == opcode).count();
        // Where all queues would be for the others, all are alike.
        let apart = write_queues > 0 && write_queues < io_queues;
        let takes = if apart { write_queues } else { io_queues };
        // A queue of 16 entries takes 15 commands.
        assert_eq!(of(NvmOpcode::WRITE), 50.min(15 * usize::from(takes)), "{write_queues} of {io_queues}");
        assert_eq!(of(NvmOpcode::READ), usize::from(apart), "{write_queues} of {io_queues}");
        while !rig.target.held.is_empty() {
            rig.target.release();
            rig.run();
        }
        assert!(rig.ended.len() == 51 && rig.ended.iter().all(|(_, result)| result.is_ok()));
    }
}

#[test]
fn completion_of_a_replaced_queue_pair_changes_nothing() {
    let mut rig = Rig::ready();
    let old = rig.driver.transport(0).queue_pair(Qid(1)).unwrap();
    rig.target.disconnect();
    rig.pass(10 * SECOND);
    rig.events.clear();
    rig.target.hold = true;
    rig.submit(1, read(0, 1));
    rig.run();
    assert_ne!(rig.driver.transport(0).queue_pair(Qid(1)).unwrap(), old);
    let late = Completion {
        id: WorkRequestId(1 << 32 | 1 << 16),
        queue_pair: old,
        opcode: Opcode::Receive,
        status: WcStatus::Success,
        byte_len: 16,
        invalidated: None,
    };
    let arrival = rig.driver.transport_mut(0).on_completion(&late);
    assert!(arrival.is_none(), "{arrival:?}");
    rig.run();
    assert!(rig.events.is_empty() && rig.result(1).is_none(), "{:?}", rig.events);
    rig.target.release();
    rig.run();
    assert_eq!(rig.result(1), Some(Ok(())));
}

#[test]
fn hanging_close_destroys_the_queue_pairs_first() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, read(0, 1));
    rig.run();
    // From now on no event of a connection's is seen.
    let hold = FaultOptions { hold_event: 1_000_000, hold_polls_max: u32::MAX, ..FaultOptions::default() };
    rig.driver.transport_mut(0).provider_mut().set_options(hold);
    rig.pass(31 * SECOND);
    assert!(matches!(lost(&rig), Some(AssociationError::CommandTimedOut { qid: Qid(1) })));
    rig.pass(80 * SECOND);
    assert_eq!((queue_pairs(&rig), rig.ended.len()), (2, 0), "the connections have their time to close");
    // The loss timeout is over by then: the operation is given back.
    rig.pass(20 * SECOND);
    assert_eq!((queue_pairs(&rig), rig.result(1)), (0, Some(Err(BlockError::Gone))));
}

#[test]
fn operation_in_flight_outlasts_a_fast_failure_until_the_queue_pairs_are_gone() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(5 * SECOND), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.target.hold = true;
    rig.submit(1, read(0, 1));
    rig.run();
    // From now on no event of a connection's is seen.
    let hold = FaultOptions { hold_event: 1_000_000, hold_polls_max: u32::MAX, ..FaultOptions::default() };
    rig.driver.transport_mut(0).provider_mut().set_options(hold);
    rig.pass(31 * SECOND);
    rig.submit(2, read(1, 1));
    rig.pass(10 * SECOND);
    assert_eq!(rig.result(2), Some(Err(BlockError::Gone)), "it was never sent");
    assert_eq!((queue_pairs(&rig), rig.result(1)), (2, None), "the controller can write into its memory");
    rig.pass(100 * SECOND);
    assert_eq!((queue_pairs(&rig), rig.result(1)), (0, Some(Err(BlockError::Gone))));
}

#[test]
fn keep_alive_is_sent_while_long_commands_end() {
    let mut rig = Rig::ready_with(config(), |target| target.traffic_based_keep_alive = true);
    rig.target.hold = true;
    for tag in 0..15 {
        rig.submit(tag, read(0, 1));
    }
    rig.run();
    assert_eq!(rig.target.held.len(), 15);
    let mut silence = Duration::ZERO;
    for _ in 0..15 {
        let before = rig.target.keep_alives;
        rig.target.answer(0, Status::SUCCESS);
        rig.pass(SECOND);
        silence = if rig.target.keep_alives > before { Duration::ZERO } else { silence + SECOND };
        assert!(silence < 5 * SECOND, "the controller has heard no command for {silence:?}");
    }
}

#[test]
fn admin_command_that_is_not_answered_ends_the_association() {
    let mut rig = Rig::ready();
    rig.target.hold_admin = Some(AdminOpcode::GET_LOG_PAGE);
    let command = admin::get_log_page(LogPageId::SMART, Nsid::ALL, 0, 512);
    rig.driver.submit_command(3, QueueKind::Admin, Recipient::Controller, command);
    rig.pass(59 * SECOND);
    assert!(rig.events.is_empty(), "{:?}", rig.events);
    rig.pass(2 * SECOND);
    assert!(matches!(lost(&rig), Some(AssociationError::CommandTimedOut { qid: Qid(0) })));
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Admin(3, Err(Unanswered::Lost)))));
}

#[test]
fn path_statuses_are_retried_with_pauses_until_the_path_is_back() {
    let mut rig = Rig::ready();
    rig.target.refuse = |_, io| io.then_some(Status::ANA_INACCESSIBLE);
    rig.submit(1, read(0, 1));
    rig.pass(SECOND);
    assert!((2..=5).contains(&rig.target.seen.len()), "{}", rig.target.seen.len());
    rig.pass(30 * SECOND);
    assert_eq!(rig.result(1), None);
    rig.target.refuse = |_, _| None;
    rig.pass(11 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
    rig.target.refuse = |_, io| io.then_some(Status::NAMESPACE_NOT_READY);
    rig.submit(2, read(0, 1));
    rig.pass(75 * SECOND);
    assert!(matches!(rig.result(2), Some(Err(_))), "as long as a lost connection is waited for");
}

#[test]
fn refused_command_of_a_namespace_that_is_gone_says_so() {
    let mut rig = Rig::ready();
    rig.target.refuse = |_, io| io.then_some(Status::INVALID_FIELD.with_dnr());
    rig.submit(1, read(0, 1));
    rig.run();
    assert_eq!(rig.result(1), Some(Err(BlockError::Unsupported)), "it is there");
    assert_eq!(rig.target.seen.len(), 2);
    rig.pass(2 * SECOND);
    rig.target.disks.clear();
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!(rig.result(2), Some(Err(BlockError::Gone)));
}

#[test]
fn provider_without_keys_ends_the_association_with_the_reason() {
    let mut rig = Rig::ready();
    let no_keys = FaultOptions { refuse_register: 1_000_000, ..FaultOptions::default() };
    rig.driver.transport_mut(0).provider_mut().set_options(no_keys);
    rig.submit(1, read(0, 1));
    rig.pass(SECOND / 2);
    assert!(rig.events.is_empty(), "it may be a moment's shortage");
    rig.pass(SECOND);
    let error = lost(&rig).expect("the association is lost");
    assert!(matches!(error, AssociationError::NoKey { qid: Qid(1), .. }), "{error}");
    assert!(error.to_string().contains("memory windows"), "{error}");
}

#[test]
fn operation_that_waited_for_a_key_has_all_its_tries_left() {
    let mut rig = Rig::ready();
    let set_keys = |rig: &mut Rig, refuse_register| {
        let options = FaultOptions { refuse_register, ..FaultOptions::default() };
        rig.driver.transport_mut(0).provider_mut().set_options(options);
    };
    set_keys(&mut rig, 1_000_000);
    rig.submit(1, read(0, 1));
    rig.pass(SECOND / 2);
    assert!(rig.target.seen.is_empty(), "it was never sent");
    rig.target.refuse = |_, io| io.then_some(Status::INTERNAL_ERROR);
    set_keys(&mut rig, 0);
    rig.pass(SECOND / 4);
    assert!(rig.target.seen.len() >= 2, "the first pauses are short");
    assert_eq!(rig.result(1), None);
    rig.target.refuse = |_, _| None;
    rig.pass(SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
}

#[test]
fn provider_is_made_anew_after_its_device_was_lost() {
    let mut rig = Rig::ready();
    let (fabric, memory) = (rig.fabric.clone(), Memory::alloc(4096).unwrap());
    rig.driver.register(nvmf_block::RegionId(5), &memory).unwrap();
    rig.driver.set_factory(Box::new(move || Ok(Rdma::new(super::rig::provider(&fabric)))));
    // The device is gone: queues cannot be made any more.
    let gone = FaultOptions { refuse_register: 1_000_000, ..FaultOptions::default() };
    rig.driver.transport_mut(0).provider_mut().set_options(gone);
    rig.target.disconnect();
    rig.submit(1, rig.write(0, 8, 0xaa));
    rig.pass(20 * SECOND);
    assert_eq!((rig.driver.replaced(), rig.result(1)), (1, Some(Ok(()))));
    let buffer = nvmf_block::Buffer { region: nvmf_block::RegionId(5), offset: 0, len: BLOCK };
    rig.submit(2, BlockOp::Read { range: BlockRange::new(0, 1), into: buffer });
    rig.run();
    let mut bytes = [0; BLOCK];
    memory.read(0, &mut bytes);
    assert_eq!((rig.result(2), bytes), (Some(Ok(())), [0xaa; BLOCK]));
}

#[test]
fn reconnect_says_how_long_the_controller_was_away() {
    let mut rig = Rig::ready();
    rig.target.closed = true;
    rig.target.disconnect();
    rig.pass(5 * SECOND);
    assert!(matches!(rig.events[0], DriverEvent::Lost(_)), "{:?}", rig.events);
    let waits = |event: &DriverEvent| matches!(event, DriverEvent::PathWaits(0));
    assert!(waits(&rig.events[1]), "{:?}", rig.events);
    assert!(matches!(rig.events[2], DriverEvent::AttemptFailed(_)), "{:?}", rig.events);
    rig.target.closed = false;
    rig.pass(10 * SECOND);
    let Some(DriverEvent::Ready { after: Some(after) }) = rig.events.last() else {
        panic!("{:?}", rig.events)
    };
    assert!((5 * SECOND..15 * SECOND).contains(after), "{after:?}");
}

/// What bounds the answers of the first attempt is for whoever waits for it: an attempt to connect again takes its time.
#[test]
fn attempt_to_connect_again_waits_for_answers_longer_than_the_first_one() {
    let association = AssociationConfig {
        setup_command_timeout: SECOND,
        setup_timeout: Some(SECOND),
        ..config().association
    };
    let mut rig = Rig::ready_with(DriverConfig { association, ..config() }, |_| {});
    rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
    rig.target.disconnect();
    rig.pass(15 * SECOND);
    assert!(rig.driver.ready_association().is_none() && rig.target.held.len() == 1, "one attempt");
    rig.target.hold_admin = None;
    rig.target.release();
    rig.run();
    assert!(rig.driver.ready_association().is_some());
    assert!(!rig.events.iter().any(|it| matches!(it, DriverEvent::AttemptFailed(_))), "{:?}", rig.events);
}

#[test]
fn first_attempt_that_takes_too_long_is_given_up_with_the_step_that_it_was_at() {
    let hasty = || {
        let mut config = config();
        config.recovery.attempt_timeout = 2 * SECOND;
        config
    };
    // In every step of it.
    let mut steps = std::collections::BTreeSet::new();
    for count in 0.. {
        let mut rig = Rig::start(hasty(), |_| {});
        (0..count).for_each(|_| rig.step());
        rig.silent = Some(0);
        rig.pass(5 * SECOND);
        if matches!(rig.events[..], [DriverEvent::Ready { .. }, ..]) {
            // All that it needs had come.
            break;
        }
        let [DriverEvent::AttemptFailed(AssociationError::TimedOut { state }), DriverEvent::GaveUp] =
            rig.events[..]
        else {
            panic!("after {count} steps: {:?}", rig.events);
        };
        steps.insert(state.to_string());
    }
    let expected = ["connecting queue 0", "enabling the controller", "identifying the controller"];
    assert!(expected.iter().all(|step| steps.contains(*step)), "{steps:?}");
}
