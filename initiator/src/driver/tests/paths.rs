//! Two paths to one disk: what goes where, and what becomes of it when one of them is lost.

use super::super::{
    DriverConfig, DriverEvent, NamespaceState, PathPolicy, QueueKind, Recipient, Route, address_of_loss,
};
use super::rig::{BLOCK, BLOCKS, Rig, SECOND, config, other_route, read};
use super::target::{Disk, Target};
use crate::{AddressSource, ConnectionState};
use core::time::Duration;
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Cntlid, Nsid, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AdminData, AssociationConfig, Command, NamespaceIdentity, RecoveryPolicy};
use nvmf_rdma::fault::FaultOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The Keep Alive Timeout of the rig's driver, and its controllers' granularity.
const KATO: Duration = Duration::from_secs(5);
const KAS: Duration = Duration::from_secs(1);

/// I/O commands that the path was sent.
fn seen(rig: &mut Rig, path: usize) -> usize {
    rig.target_of(path).seen.len()
}

fn with(policy: PathPolicy) -> DriverConfig {
    DriverConfig { policy, ..config() }
}

/// Both paths with commands in flight: reads and a write of block 4 + path.
fn loaded(prepare: impl Fn(usize, &mut Target)) -> Rig {
    let mut rig = Rig::pair(with(PathPolicy::RoundRobin), prepare);
    for path in [0, 1] {
        rig.target_of(path).hold = true;
    }
    for path in 0..2 {
        rig.submit(path, read(path, 1));
    }
    rig.run();
    for path in 0..2 {
        rig.submit(10 + path, rig.write(4 + path, 1, 0xaa));
    }
    rig.run();
    for path in [0, 1] {
        assert_eq!(seen(&mut rig, path), 2);
        rig.target_of(path).hold = false;
    }
    rig
}

/// The path that has the write of block 4.
fn path_of_write(rig: &mut Rig) -> usize {
    usize::from(rig.target.seen.iter().all(|&(.., block, _)| block != 4))
}

fn passes(rig: &mut Rig, most: Duration, mut until: impl FnMut(&mut Rig) -> bool) -> Duration {
    let start = rig.now;
    while !until(rig) {
        assert!(rig.now - start < most, "not after {most:?}: {:?}", rig.events);
        rig.pass(SECOND / 20);
    }
    rig.now - start
}

#[test]
fn first_connection_succeeds_with_one_path_and_the_other_is_tried_on() {
    for late in [0, 1] {
        let mut rig = Rig::start_pair(config(), |path, target| target.closed = path == late);
        rig.run();
        assert_eq!(rig.driver.state(), ConnectionState::Live);
        assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { after: None })));
        rig.submit(1, rig.write(0, 1, 0xaa));
        rig.pass(600 * SECOND);
        assert_eq!(rig.result(1), Some(Ok(())));
        assert!(!rig.events.iter().any(|event| matches!(event, DriverEvent::GaveUp)));
        assert!(rig.driver.paths()[late].lost.is_some());
        rig.target_of(late).closed = false;
        rig.events.clear();
        passes(&mut rig, 15 * SECOND, |rig| {
            rig.events.iter().any(|event| matches!(event, DriverEvent::PathReady(path, _) if *path == late))
        });
        assert!(
            rig.driver.paths().iter().all(|path| path.state == ConnectionState::Live && path.lost.is_none())
        );
    }
}

#[test]
fn path_whose_address_is_not_known_is_tried_on_until_it_is() {
    let is_known = Arc::new(AtomicBool::new(false));
    let (known, place) = (Arc::clone(&is_known), other_route().address);
    let source = AddressSource::new(move || known.load(Ordering::Relaxed).then_some(place));
    let nowhere = ([0, 0, 0, 0], place.port()).into();
    let route = Route { address: nowhere, address_source: Some(source), ..other_route() };
    let mut rig = Rig::start_pair_over(config(), route, |_, _| {});
    rig.run();
    rig.pass(60 * SECOND);
    assert_eq!(rig.driver.state(), ConnectionState::Live);
    let path = &rig.driver.paths()[1];
    assert_eq!((path.address, path.state), (nowhere, ConnectionState::Connecting));
    assert!(path.lost.as_ref().is_some_and(|lost| lost.to_string().contains("its name has no address")));
    is_known.store(true, Ordering::Relaxed);
    passes(&mut rig, 15 * SECOND, |rig| rig.driver.paths()[1].state == ConnectionState::Live);
    assert_eq!(rig.driver.paths()[1].address, place);
}

#[test]
fn raw_command_goes_to_the_path_that_leads_to_its_namespace() {
    for inaccessible in [0, 1] {
        let mut rig = Rig::pair(config(), |path, target| {
            if path == inaccessible {
                target.set_access(AnaState::INACCESSIBLE);
            }
        });
        let flush = nvme_proto::Sqe::new(0).with_nsid(Nsid(1));
        let command = AdminCommand { command: Command::new(flush), data: AdminData::None };
        rig.driver.submit_command(1, QueueKind::Io, Recipient::Controller, command);
        rig.run();
        assert_eq!((seen(&mut rig, inaccessible), seen(&mut rig, 1 - inaccessible)), (0, 1));
    }
}

#[test]
fn nothing_is_ready_while_what_was_lost_is_being_connected_anew() {
    let mut rig = Rig::pair(config(), |_, _| {});
    assert!(rig.driver.ready_association().is_some_and(|it| !it.namespaces().is_empty()));
    for path in 0..2 {
        rig.target_of(path).hold_admin = Some(AdminOpcode::IDENTIFY);
        rig.with_target(path, Target::disconnect);
    }
    rig.run();
    let begun = |rig: &mut Rig| rig.driver.association().is_some_and(|it| it.namespaces().is_empty());
    passes(&mut rig, 15 * SECOND, |rig| begun(rig));
    assert!(rig.driver.ready_association().is_none(), "what it has not said yet is not that it has nothing");
}

#[test]
fn first_connection_fails_when_no_path_can_be_connected() {
    let mut rig = Rig::start_pair(config(), |_, target| target.closed = true);
    rig.run();
    assert!(matches!(rig.events.last(), Some(DriverEvent::GaveUp)), "{:?}", rig.events);
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::AttemptFailed(_))));
    assert_eq!(rig.driver.state(), ConnectionState::Lost);
}

#[test]
fn reason_of_a_failed_connection_is_told_with_the_address_of_its_path() {
    let places = [config().address, other_route().address];
    for closed in [0, 1] {
        let mut rig = Rig::start_pair(config(), |path, target| {
            target.closed = path == closed;
            target.refuse = |_, _| Some(Status::INVALID_FIELD.with_dnr());
        });
        rig.run();
        assert!(matches!(rig.events.last(), Some(DriverEvent::GaveUp)), "{:?}", rig.events);
        let paths = rig.driver.paths();
        let mut told = Vec::new();
        for event in &rig.events {
            let DriverEvent::AttemptFailed(error) = event else { continue };
            let is_answer = !matches!(error, nvmf_host::AssociationError::Queue { .. });
            told.push((address_of_loss(&paths, error), is_answer));
        }
        told.sort();
        let expected = [0, 1].map(|path| (Some(places[path]), path != closed));
        assert_eq!(told, expected, "{:?}", rig.events);
    }
}

#[test]
fn operations_go_over_both_paths() {
    for policy in [PathPolicy::RoundRobin, PathPolicy::QueueDepth, PathPolicy::Latency] {
        let mut rig = Rig::pair(with(policy), |_, _| {});
        for tag in 0..32 {
            rig.submit(tag, read(tag, 1));
        }
        rig.run();
        assert!((0..32).all(|tag| rig.result(tag) == Some(Ok(()))));
        for path in [0, 1] {
            assert!(seen(&mut rig, path) >= 8, "{policy:?}: path {path} got {}", seen(&mut rig, path));
        }
        assert!(rig.driver.paths().iter().all(|path| path.operations == 0));
    }
}

#[test]
fn reads_of_a_lost_path_go_on_at_once_and_its_writes_when_it_was_reset() {
    for resets in [false, true] {
        let mut rig = loaded(|_, target| (target.resets, target.late) = (resets, true));
        let lost = path_of_write(&mut rig);
        let before = rig.now;
        rig.target_of(1 - lost).held.clear();
        rig.target_of(lost).closed = true;
        rig.target_of(lost).disconnect_io();
        // Whether the controller ended all queues is looked at for a moment.
        rig.pass(SECOND / 10);
        let lost_event =
            |event: &DriverEvent| matches!(event, DriverEvent::PathLost(path, _) if *path == lost);
        assert!(rig.events.iter().any(lost_event), "{:?}", rig.events);
        assert_eq!(rig.driver.state(), ConnectionState::Live);
        // One read was answered by nobody: it was dropped at the other path, and is not of this one.
        let read_of_lost = (0..2).filter(|tag| rig.result(*tag) == Some(Ok(()))).count();
        assert_eq!(read_of_lost, 1);
        // What does not touch its blocks goes on, and what does waits.
        rig.submit(20, rig.write(100, 1, 0xaa));
        rig.submit(21, rig.write(4, 1, 0xbb));
        rig.submit(22, read(4, 1));
        rig.submit(23, BlockOp::Flush);
        rig.submit(24, read(100, 1));
        rig.run();
        for tag in [20, 23, 24] {
            assert_eq!(rig.result(tag), Some(Ok(())), "{tag}");
        }
        let wait = [10, 21, 22];
        for tag in wait {
            assert_eq!(rig.result(tag).is_some(), resets, "{tag}");
        }
        passes(&mut rig, 2 * (KATO + KAS), |rig| wait.iter().all(|tag| rig.result(*tag).is_some()));
        assert!(wait.iter().all(|tag| rig.result(*tag) == Some(Ok(()))));
        if !resets {
            assert!(rig.now - before >= KATO + KAS, "{:?}", rig.now - before);
        }
    }
}

#[test]
fn late_write_of_a_lost_path_overwrites_nothing() {
    for resets in [false, true] {
        let mut rig = loaded(|_, target| (target.resets, target.late) = (resets, true));
        let lost = path_of_write(&mut rig);
        rig.target_of(1 - lost).held.clear();
        rig.target_of(lost).closed = true;
        rig.target_of(lost).disconnect_io();
        let gone = rig.now;
        let mut carried_out = false;
        // It is written anew as soon as that can be.
        passes(&mut rig, 2 * (KATO + KAS), |rig| {
            // As late as the controller may carry it out.
            if !carried_out && rig.now - gone > KATO {
                carried_out = true;
                rig.with_target(lost, Target::carry_out_late);
            }
            rig.result(10).is_some()
        });
        rig.submit(30, rig.write(4, 1, 0xbb));
        rig.run();
        assert_eq!(rig.result(30), Some(Ok(())));
        rig.with_target(lost, Target::carry_out_late);
        assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xbb);
    }
}

/// An attached disk's log says it, where its I/O stops without a loss.
#[test]
fn end_of_access_over_every_path_is_told_and_so_is_its_return() {
    let told = |rig: &Rig| -> Vec<bool> {
        let access = |event: &DriverEvent| match event {
            DriverEvent::NoAccess(Nsid(1)) => Some(false),
            DriverEvent::AccessAgain(Nsid(1)) => Some(true),
            _ => None,
        };
        rig.events.iter().filter_map(access).collect()
    };
    let mut rig = Rig::pair(config(), |_, target| target.set_access(AnaState::OPTIMIZED));
    rig.submit(1, read(0, 1));
    rig.run();
    let set = |rig: &mut Rig, path, access| {
        rig.with_target(path, |target| target.set_access(access));
        rig.run();
    };
    set(&mut rig, 0, AnaState::INACCESSIBLE);
    assert_eq!((told(&rig), rig.driver.without_access()), (vec![], None));
    set(&mut rig, 1, AnaState::PERSISTENT_LOSS);
    assert_eq!((told(&rig), rig.driver.without_access()), (vec![false], Some(Nsid(1))));
    set(&mut rig, 1, AnaState::NON_OPTIMIZED);
    assert_eq!((told(&rig), rig.driver.without_access()), (vec![false, true], None));
    // The one that is left gives none: when the loss is heard of, that is known.
    rig.target_of(1).closed = true;
    rig.target_of(1).disconnect_io();
    rig.pass(SECOND / 10);
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::PathLost(1, _))), "{:?}", rig.events);
    assert_eq!((told(&rig), rig.driver.without_access()), (vec![false, true, false], Some(Nsid(1))));
    // It is taken away, which gives nobody access.
    rig.target_of(0).disks.remove(&1).expect("it is there");
    rig.target_of(0).announce();
    rig.run();
    assert_eq!(told(&rig), [false, true, false]);
}

/// The fence of a lost path alone may take longer than operations wait where no path is left.
#[test]
fn second_loss_behind_a_fence_fails_nothing_while_a_path_is_there() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(5 * SECOND), ..config().recovery };
    let mut rig = Rig::pair(DriverConfig { recovery, ..config() }, |_, target| target.hold = true);
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    for loss in 1..=3 {
        let path = usize::from(rig.target.held.is_empty());
        assert_eq!(rig.target_of(path).held.len(), 1, "loss {loss}");
        let before = rig.now;
        rig.target_of(path).held.clear();
        rig.target_of(path).disconnect_io();
        passes(&mut rig, 2 * (KATO + KAS), |rig| (0..2).any(|path| !rig.target_of(path).held.is_empty()));
        assert!(rig.now - before >= KATO, "it was fenced");
        assert_eq!(rig.result(1), None, "loss {loss}");
    }
    for path in [0, 1] {
        rig.target_of(path).hold = false;
        while !rig.target_of(path).held.is_empty() {
            rig.with_target(path, Target::release);
        }
    }
    rig.run();
    assert_eq!(rig.result(1), Some(Ok(())));
}

#[test]
fn silent_path_is_found_out_in_keep_alive_time_under_load() {
    for policy in [PathPolicy::RoundRobin, PathPolicy::QueueDepth] {
        let mut rig = Rig::pair(with(policy), |_, target| target.traffic_based_keep_alive = true);
        rig.silent = Some(1);
        let start = rig.now;
        let mut tag = 0;
        while !rig.events.iter().any(|event| matches!(event, DriverEvent::PathLost(1, _))) {
            assert!(rig.now - start < 2 * KATO, "not found out");
            if rig.driver.paths()[1].operations < 16 {
                rig.submit(tag, read(tag % 64, 1));
                tag += 1;
            }
            rig.pass(SECOND / 5);
        }
        rig.run();
        assert!((0..tag).all(|tag| rig.result(tag) == Some(Ok(()))), "every read went on");
    }
}

#[test]
fn path_to_another_disk_gets_no_io() {
    let mut rig = Rig::start_pair(config(), |path, target| {
        if path == 1 {
            target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
        }
    });
    rig.run();
    for tag in 0..32 {
        rig.submit(tag, rig.write(tag, 1, 0xaa));
    }
    rig.run();
    assert!((0..32).all(|tag| rig.result(tag) == Some(Ok(()))));
    // Whichever was seen first is the disk.
    let (one, other) = (seen(&mut rig, 0), seen(&mut rig, 1));
    assert!(one.min(other) == 0 && one.max(other) == 32, "{one}, {other}");
    let foreign = rig.driver.paths().iter().filter(|path| path.state == ConnectionState::Foreign).count();
    assert_eq!((foreign, rig.driver.state()), (1, ConnectionState::Live));
}

#[test]
fn namespace_is_told_as_the_path_shows_it_that_has_the_disk_that_was_opened() {
    for path in [1, 0] {
        let mut rig = Rig::start_pair(config(), |path, target| {
            if path == 1 {
                target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
            }
        });
        rig.run();
        let association = rig.driver.paths[path].association.as_ref().unwrap();
        let identity = NamespaceIdentity::new(association.controller(), &association.namespaces()[0]);
        rig.driver.open(rig.now, identity.clone());
        let told = rig.driver.namespaces();
        assert_eq!((told.len(), told[0].uuid), (1, identity.uuid), "the disk of path {path} was opened");
    }
}

#[test]
fn only_the_best_paths_get_io() {
    let mut rig = Rig::pair(config(), |path, target| {
        target.access = Some(if path == 0 { AnaState::OPTIMIZED } else { AnaState::NON_OPTIMIZED });
    });
    let mut tag = 0;
    let mut all_on = |rig: &mut Rig, path: usize| {
        let before = [seen(rig, 0), seen(rig, 1)];
        for _ in 0..8 {
            rig.submit(tag, read(tag, 1));
            tag += 1;
        }
        rig.run();
        assert_eq!(seen(rig, path) - before[path], 8);
        assert_eq!(seen(rig, 1 - path), before[1 - path]);
        assert!((0..tag).all(|tag| rig.result(tag) == Some(Ok(()))));
    };
    all_on(&mut rig, 0);
    rig.target.set_access(AnaState::INACCESSIBLE);
    rig.run();
    all_on(&mut rig, 1);
    rig.with_target(1, |other| other.set_access(AnaState::OPTIMIZED));
    rig.target.set_access(AnaState::NON_OPTIMIZED);
    rig.run();
    all_on(&mut rig, 1);
    // Nobody gives access: it waits, and goes on.
    rig.target.set_access(AnaState::CHANGE);
    rig.with_target(1, |other| other.set_access(AnaState::PERSISTENT_LOSS));
    rig.run();
    rig.submit(1000, read(0, 1));
    rig.pass(5 * SECOND);
    assert_eq!(rig.result(1000), None);
    rig.target.set_access(AnaState::OPTIMIZED);
    rig.run();
    assert_eq!(rig.result(1000), Some(Ok(())));
}

#[test]
fn operation_that_a_path_gives_no_access_for_goes_to_another_at_once() {
    let mut rig =
        Rig::pair(with(PathPolicy::RoundRobin), |_, target| target.access = Some(AnaState::OPTIMIZED));
    rig.target.refuse = |_, io| io.then_some(Status::ANA_INACCESSIBLE);
    for tag in 0..8 {
        rig.submit(tag, rig.write(tag, 1, 0xaa));
    }
    rig.run();
    assert!((0..8).all(|tag| rig.result(tag) == Some(Ok(()))));
    assert!(seen(&mut rig, 0) <= 4, "it is not asked again and again");
    // It says that it can be reached, and cannot: it is asked some times a second.
    rig.target.seen.clear();
    for tag in 10..20 {
        rig.submit(tag, read(tag, 1));
        rig.pass(SECOND / 10);
        assert_eq!(rig.result(tag), Some(Ok(())));
    }
    assert!(seen(&mut rig, 0) <= 12, "{}", seen(&mut rig, 0));
}

/// What it has waited for before takes none of its ways from it, and has it wait no longer.
#[test]
fn operation_that_has_waited_goes_to_another_path_at_once() {
    let mut rig =
        Rig::pair(with(PathPolicy::RoundRobin), |_, target| target.access = Some(AnaState::OPTIMIZED));
    for path in [0, 1] {
        rig.target_of(path).refuse = |_, io| io.then_some(Status::NAMESPACE_NOT_READY);
    }
    for tag in 0..4 {
        rig.submit(tag, read(tag, 1));
    }
    rig.pass(5 * SECOND);
    rig.target_of(0).refuse = |_, io| io.then_some(Status::ANA_PERSISTENT_LOSS);
    rig.target_of(1).refuse = |_, _| None;
    rig.pass(20 * SECOND);
    assert!((0..4).all(|tag| rig.result(tag) == Some(Ok(()))), "{:?}", rig.ended);
}

#[test]
fn operations_wait_for_the_last_lost_path_as_long_as_for_the_only_one() {
    let recovery = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..config().recovery };
    let mut rig = Rig::pair(DriverConfig { recovery, ..config() }, |_, _| {});
    (rig.target.closed, rig.target_of(1).closed) = (true, true);
    rig.target.disconnect();
    rig.pass(100 * SECOND);
    rig.submit(1, read(0, 1));
    rig.run();
    assert_eq!(rig.result(1), Some(Ok(())), "one path is there");
    rig.target_of(1).disconnect();
    rig.run();
    rig.submit(2, read(0, 1));
    let zeroes = BlockOp::WriteZeroes { range: BlockRange::new(0, 1), deallocate: false, fua: false };
    rig.submit(3, zeroes);
    rig.pass(59 * SECOND);
    assert_eq!((rig.result(2), rig.result(3)), (None, None));
    rig.target.closed = false;
    passes(&mut rig, 15 * SECOND, |rig| rig.result(2).is_some());
    if rig.result(2) == Some(Ok(())) {
        assert_eq!(rig.result(3), Some(Ok(())));
    } else {
        assert_eq!(rig.result(2), Some(Err(BlockError::Gone)));
    }
}

/// Also where a queue turns out to be connected when it was given up with the others.
#[test]
fn shutdown_ends_both_paths_in_every_step_of_their_set_up() {
    let late = FaultOptions { hold_event: 1_000_000, hold_polls_max: 64, ..FaultOptions::default() };
    let steps = |count: usize| {
        let mut rig = Rig::start_pair(config(), |_, _| {});
        (0..2).for_each(|path| rig.driver.transport_mut(path).provider_mut().set_options(late));
        (0..count).for_each(|_| rig.step());
        rig
    };
    let all = (0..).find(|&count| steps(count).events.len() == 2).expect("both are ready");
    for count in 0..all {
        let mut rig = steps(count);
        rig.driver.shutdown(rig.now);
        rig.pass(5 * SECOND);
        let is_closed = rig.events.iter().any(|event| matches!(event, DriverEvent::Closed));
        assert!(is_closed, "after {count} of {all} steps: {:?}", rig.events);
    }
}

#[test]
fn shutdown_ends_both_paths() {
    let mut rig = Rig::pair(config(), |_, _| {});
    rig.driver.shutdown(rig.now);
    rig.pass(10 * SECOND);
    let closed = rig.events.iter().filter(|event| matches!(event, DriverEvent::Closed)).count();
    assert_eq!((closed, rig.driver.state()), (1, ConnectionState::Lost), "{:?}", rig.events);
}

#[test]
fn disk_has_grown_when_every_path_shows_it_and_must_not_shrink_again() {
    let mut rig = Rig::start_pair(config(), |path, target| {
        if path == 1 {
            target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
        }
    });
    rig.run();
    rig.submit(0, read(0, 1));
    rig.run();
    let bytes = |rig: &Rig| rig.driver.geometry(Nsid(1)).map(|it| it.bytes() as usize);
    for (path, shown) in [(0, BLOCKS), (1, 2 * BLOCKS)] {
        let target = rig.target_of(path);
        target.disks.insert(1, Disk::new(1, BLOCK, 2 * BLOCKS));
        target.announce();
        rig.run();
        assert_eq!(bytes(&rig), Some(shown * BLOCK), "path {path}");
        assert!(rig.driver.paths().iter().all(|path| path.state == ConnectionState::Live));
    }
    let target = rig.target_of(1);
    target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    target.announce();
    rig.run();
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::PathForeign(1, ..))));
    assert_eq!(bytes(&rig), Some(2 * BLOCKS * BLOCK));
    assert_eq!(rig.driver.paths()[1].state, ConnectionState::Foreign);
    rig.submit(1, read(2 * BLOCKS as u64 - 8, 8));
    rig.run();
    assert_eq!((rig.driver.state(), rig.result(1)), (ConnectionState::Live, Some(Ok(()))));
}

/// Path 0 is the only one that gives access, and is lost with a write that it was sent.
fn owner_is_lost() -> Rig {
    let mut rig = Rig::pair(config(), |path, target| {
        target.access = Some(if path == 0 { AnaState::OPTIMIZED } else { AnaState::INACCESSIBLE });
    });
    rig.target.hold = true;
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.run();
    assert_eq!((seen(&mut rig, 0), rig.result(1)), (1, None));
    rig.silent = Some(0);
    rig
}

/// What path 1 has in place of the disk that was opened: nothing, or another disk.
fn put_in_its_place(rig: &mut Rig, nsid: u32) {
    let target = rig.target_of(1);
    target.disks.insert(nsid, Disk::new(2, BLOCK, BLOCKS));
    target.announce();
}

#[test]
fn disk_that_is_taken_away_while_its_only_path_is_lost_fails_its_operations() {
    // (the NSID of the other disk, whether the path is lost before)
    for (nsid, is_lost) in [(1, false), (1, true), (5, false), (5, true)] {
        let mut rig = owner_is_lost();
        if is_lost {
            rig.pass(3 * KATO);
            assert_eq!(rig.result(1), None, "its path may come back");
        }
        put_in_its_place(&mut rig, nsid);
        rig.submit(2, read(8, 1));
        passes(&mut rig, 3 * KATO, |rig| rig.result(1).is_some() && rig.result(2).is_some());
        let gone = Some(Err(BlockError::Gone));
        assert_eq!((rig.result(1), rig.result(2)), (gone, gone), "{nsid} {is_lost}");
        // The lost one comes back, and has it no more either.
        (rig.silent, rig.target.hold) = (None, false);
        let disk = rig.target_of(1).disks.remove(&nsid).expect("it is there");
        rig.target.disks = [(nsid, disk)].into();
        rig.target_of(1).disks.insert(nsid, Disk::new(2, BLOCK, BLOCKS));
        rig.target.seen.clear();
        rig.pass(10 * SECOND);
        assert_eq!(rig.driver.paths()[0].lost, None, "it is connected again");
        rig.submit(3, rig.write(0, 1, 0xbb));
        rig.run();
        assert_eq!(rig.result(3), gone, "{nsid} {is_lost}");
        let written = [0, 1].map(|path| seen(&mut rig, path));
        assert_eq!(written, [0, 0], "the other disk was sent something");
    }
}

/// Another path may show another disk.
#[test]
fn path_that_is_named_first_says_which_disk_is_opened() {
    let cntlid = |rig: &Rig| rig.driver.association().map(|association| association.controller().cntlid);
    let is_told = |rig: &Rig| rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { .. }));
    for (time, is_over, last) in [(2, false, 0x100), (4, true, 0x200)] {
        let mut rig = Rig::start_pair(config(), |_, _| {});
        rig.silent = Some(0);
        rig.pass(SECOND);
        // What it shows is looked at meanwhile.
        rig.target_of(1).read_only = true;
        rig.with_target(1, Target::announce);
        rig.pass((time - 1) * SECOND);
        assert_eq!(is_told(&rig), is_over, "{:?}", rig.events);
        assert_eq!(cntlid(&rig), Some(Cntlid(0x200)));
        if !is_over {
            rig.silent = None;
            rig.run();
            assert!(is_told(&rig), "{:?}", rig.events);
        }
        assert_eq!(cntlid(&rig), Some(Cntlid(last)));
    }
    // One that is lost meanwhile is not waited for any longer, and nobody spins.
    let mut rig = Rig::start_pair(config(), |_, _| {});
    rig.silent = Some(0);
    rig.pass(SECOND);
    rig.target_of(1).closed = true;
    rig.target_of(1).disconnect();
    rig.pass(4 * SECOND);
    assert!(!is_told(&rig) && rig.driver.poll_timeout().is_none_or(|at| at > rig.now), "{:?}", rig.events);
    // One that cannot be connected is not waited for.
    let mut rig = Rig::start_pair(config(), |number, target| target.closed = number == 0);
    rig.run();
    assert!(is_told(&rig), "{:?}", rig.events);
}

/// The machine was told that it is read-only; the other path has not heard of it yet.
#[test]
fn disk_that_one_path_shows_read_only_is_written_over_none() {
    let mut rig = Rig::pair(with(PathPolicy::RoundRobin), |_, _| {});
    rig.target_of(1).read_only = true;
    rig.with_target(1, Target::announce);
    rig.run();
    for tag in 0..4 {
        rig.submit(tag, rig.write(tag, 1, 0xaa));
    }
    rig.submit(4, read(0, 1));
    rig.run();
    assert!((0..4).all(|tag| rig.result(tag) == Some(Err(BlockError::ReadOnly))), "{:?}", rig.ended);
    assert_eq!(rig.result(4), Some(Ok(())));
}

/// What was given to the path before it is looked into, too.
#[test]
fn operations_go_another_way_while_a_path_is_looked_into() {
    for second in [AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED] {
        let mut rig = Rig::pair(config(), |path, target| {
            target.access = Some(if path == 0 { AnaState::OPTIMIZED } else { second });
        });
        rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
        rig.target.announce();
        // Before anybody has heard of the change.
        (0..8).for_each(|tag| rig.submit(tag, read(tag, 1)));
        rig.run();
        (8..16).for_each(|tag| rig.submit(tag, read(tag, 1)));
        rig.run();
        assert_eq!(rig.ended.len(), 16, "{second:?}: at once");
        assert!(rig.ended.iter().all(|(_, result)| result.is_ok()), "{:?}", rig.ended);
        assert!(rig.target.seen.iter().all(|seen| seen.2 < 8), "{second:?}: {:?}", rig.target.seen);
        rig.target.hold_admin = None;
        while !rig.target.held.is_empty() {
            rig.target.release();
            rig.run();
        }
        rig.target.seen.clear();
        (20..28).for_each(|tag| rig.submit(tag, read(tag, 1)));
        rig.run();
        assert_eq!(rig.ended.len(), 24);
        assert!(!rig.target.seen.is_empty(), "{second:?}: the path is used again");
    }
}

#[test]
fn operations_wait_for_a_look_at_their_only_path_no_longer_than_for_a_connection() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(8 * SECOND), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.seen.clear();
    rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
    rig.target.announce();
    rig.run();
    rig.submit(1, read(0, 1));
    rig.pass(7 * SECOND);
    assert_eq!((rig.result(1), rig.driver.namespace_state(Nsid(1))), (None, Some(NamespaceState::Live)));
    rig.pass(2 * SECOND);
    assert_eq!(rig.result(1), Some(Err(BlockError::Gone)));
    rig.target.hold_admin = None;
    rig.target.release();
    rig.run();
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!((rig.result(2), rig.target.seen.len()), (Some(Ok(())), 1), "it answers again");
}

/// Moving is no failure: it could be lost as often as any other operation.
#[test]
fn operation_that_goes_elsewhere_at_each_look_has_all_its_tries_left() {
    let association = AssociationConfig { io_queue_entries: 4, ..config().association };
    let mut rig = Rig::pair(DriverConfig { association, ..config() }, |_, target| {
        (target.transfer_pages, target.hold) = (1, true);
    });
    rig.submit(1, read(0, 128));
    rig.run();
    let mut path = usize::from(rig.target.seen.is_empty());
    for _ in 0..4 {
        rig.target_of(path).hold_admin = Some(AdminOpcode::IDENTIFY);
        rig.target_of(path).announce();
        rig.run();
        rig.target_of(path).hold_admin = None;
        rig.target_of(1 - path).seen.clear();
        // What is in flight there, then the look.
        while !rig.target_of(path).held.is_empty() {
            rig.with_target(path, Target::release);
            rig.run();
        }
        path = 1 - path;
        assert_eq!((seen(&mut rig, path), rig.result(1)), (3, None), "it begins anew on the other path");
    }
    for each in [0, 1] {
        rig.target_of(each).hold = false;
    }
    rig.target_of(path).disconnect();
    rig.pass(20 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
}

#[test]
fn loss_during_a_look_is_waited_for_as_long_as_any_other() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(8 * SECOND), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
    rig.target.announce();
    rig.run();
    rig.submit(1, read(0, 1));
    rig.pass(7 * SECOND);
    (rig.target.closed, rig.target.hold_admin) = (true, None);
    rig.target.disconnect();
    rig.pass(3 * SECOND);
    assert_eq!(rig.result(1), None, "the time of the look is none of the loss");
    rig.target.closed = false;
    rig.pass(5 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
}

/// The other controller never had it: nobody has taken it away.
#[test]
fn loss_of_the_only_path_that_shows_a_disk_is_waited_for_beside_a_controller_that_never_showed_it() {
    let mut rig = Rig::pair(config(), |path, target| {
        if path == 1 {
            target.disks.insert(2, Disk::new(9, BLOCK, BLOCKS));
        }
    });
    rig.submit(0, read(0, 1));
    rig.run();
    assert_eq!(rig.result(0), Some(Ok(())));
    rig.target.closed = true;
    rig.target.disconnect();
    rig.run();
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.pass(5 * SECOND);
    assert_eq!(rig.result(1), None, "it is reconnected");
    rig.target.closed = false;
    rig.pass(20 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
}

/// As a gateway of a group does: it lists what another one has.
#[test]
fn namespace_that_a_controller_lists_without_access_was_not_taken_away() {
    let mut rig = Rig::pair(config(), |path, target| {
        target.access = Some(if path == 0 { AnaState::OPTIMIZED } else { AnaState::INACCESSIBLE });
        target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    });
    rig.submit(0, read(0, 1));
    rig.run();
    let disk = rig.target.disks.remove(&1).expect("it is there");
    rig.target.announce();
    for connects in [false, true] {
        if connects {
            [0, 1].iter().for_each(|&path| rig.target_of(path).disconnect());
        }
        rig.submit(1 + u64::from(connects), read(0, 1));
        rig.pass(20 * SECOND);
        let state = rig.driver.namespace_state(Nsid(1));
        assert_eq!((rig.ended.len(), state), (1, Some(NamespaceState::Inaccessible)), "{connects}");
    }
    rig.target.disks.insert(1, disk);
    rig.target.announce();
    rig.run();
    assert_eq!((rig.result(1), rig.result(2)), (Some(Ok(())), Some(Ok(()))));
}
