//! Another disk under the NSID of the one that was opened: nothing may reach it.

use super::super::{DriverConfig, DriverEvent, NamespaceState};
use super::rig::{BLOCK, BLOCKS, Rig, SECOND, buffer, config, read};
use super::target::{Disk, Target};
use crate::ConnectionState;
use nvme_proto::admin::identify::{Cns, Identify};
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange, Tag};
use nvmf_host::{AssociationConfig, Mismatch, NamespaceIdentity};

type Change = fn(&mut Target);

/// What an operator, or an accident, may put in the place of the disk that was opened.
const OTHERS: [(&str, Change); 4] = [
    ("another disk", |target| drop(target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS)))),
    ("another block size", |target| drop(target.disks.insert(1, Disk::new(1, 4096, BLOCKS)))),
    ("a smaller disk", |target| drop(target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS / 2)))),
    ("a write cache", |target| target.write_cache = true),
];

fn all_operations(rig: &Rig) -> [BlockOp; 6] {
    let range = BlockRange::new(8, 8);
    [
        rig.write(8, 8, 0xaa),
        read(8, 8),
        BlockOp::Flush,
        BlockOp::WriteZeroes { range, deallocate: false, fua: false },
        BlockOp::Deallocate { range },
        BlockOp::Compare { range, with: buffer(8) },
    ]
}

#[test]
fn another_disk_after_reconnect_gets_no_command() {
    for (name, change) in OTHERS {
        let mut rig = Rig::ready_with(config(), |target| target.write_cache = false);
        rig.submit(0, read(0, 1));
        rig.run();
        assert_eq!(rig.result(0), Some(Ok(())));
        rig.target.seen.clear();
        rig.target.disconnect();
        change(&mut rig.target);
        for (tag, op) in (1..).zip(all_operations(&rig)) {
            rig.submit(tag, op);
        }
        rig.pass(20 * SECOND);
        assert_eq!(rig.target.seen, [], "{name}");
        assert_eq!(rig.ended.len(), 1, "{name}: the rest waits: {:?}", rig.ended);
        rig.pass(100 * SECOND);
        assert_eq!(rig.target.seen, [], "{name}");
        for tag in 1..=6 {
            assert_eq!(rig.result(tag), Some(Err(BlockError::Gone)), "{name}: at the loss timeout");
        }
    }
}

#[test]
fn namespaces_that_are_shown_no_more_are_forgotten_but_for_those_in_use() {
    let mut rig = Rig::ready();
    rig.submit(1, read(0, 1));
    rig.run();
    let ours = rig.target.disks.remove(&1).expect("it is there");
    for look in 1..=100 {
        rig.target.disks = (0..8).map(|number| (8 * look + number, Disk::new(2, BLOCK, BLOCKS))).collect();
        rig.target.announce();
        rig.pass(2 * SECOND);
        assert_eq!(rig.driver.heads.nsids().count(), 8 + 1, "look {look}");
    }
    rig.target.disks.insert(1, ours);
    rig.target.announce();
    rig.pass(2 * SECOND);
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!(rig.result(2), Some(Ok(())));
}

#[test]
fn another_disk_after_change_gets_no_command() {
    for (name, change) in &OTHERS[..3] {
        let mut rig = Rig::ready_with(config(), |target| target.write_cache = false);
        rig.submit(0, read(0, 1));
        rig.run();
        rig.target.seen.clear();
        change(&mut rig.target);
        rig.target.announce();
        rig.run();
        for (tag, op) in (1..).zip(all_operations(&rig)) {
            rig.submit(tag, op);
        }
        rig.pass(20 * SECOND);
        // What is the same disk by its identifiers may get its shape back; another disk took its place for good.
        let ended = if rig.target.disks[&1].uuid == [1; 16] { 1 } else { 7 };
        assert_eq!((rig.target.seen.len(), rig.ended.len()), (0, ended), "{name}");
        let gone = |tag| rig.result(tag) == Some(Err(BlockError::Gone));
        assert!(ended == 1 || (1..=6).all(gone), "{name}: {:?}", rig.ended);
        assert_eq!(rig.driver.state(), ConnectionState::Foreign);
        rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
        rig.target.announce();
        rig.run();
        assert_eq!(rig.driver.state(), ConnectionState::Live);
        assert!((1..=6).all(|tag| rig.result(tag).is_some()), "{name}: {:?}", rig.ended);
    }
}

#[test]
fn nothing_is_issued_while_a_change_is_looked_into() {
    let mut rig = Rig::ready();
    rig.target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
    rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
    rig.target.announce();
    rig.run();
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.run();
    assert_eq!(rig.target.seen, [], "the event said that something changed, and not yet what");
    rig.target.hold_admin = None;
    rig.target.release();
    rig.run();
    assert_eq!((rig.target.seen.len(), rig.driver.state()), (0, ConnectionState::Foreign));
}

#[test]
fn right_disk_again_lets_waiting_operations_go_on() {
    let mut rig = Rig::ready();
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.disconnect();
    rig.target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
    rig.submit(1, rig.write(3, 2, 0xaa));
    rig.pass(10 * SECOND);
    assert_eq!((rig.result(1), rig.driver.state()), (None, ConnectionState::Foreign));
    let mismatch = Mismatch::Uuid { opened: [1; 16], now: [2; 16] };
    assert_eq!(rig.driver.foreign().collect::<Vec<_>>(), [(Nsid(1), mismatch)]);
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Foreign(Nsid(1), _))));
    rig.target.disconnect();
    rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    rig.pass(10 * SECOND);
    assert_eq!((rig.result(1), rig.driver.state()), (Some(Ok(())), ConnectionState::Live));
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Restored(Nsid(1)))));
    assert_eq!(rig.target.disks[&1].bytes[3 * BLOCK..5 * BLOCK], [0xaa; 2 * BLOCK]);
    assert_eq!(rig.driver.foreign().count(), 0);
}

#[test]
fn disk_that_comes_back_after_the_loss_timeout_is_used_again() {
    let mut rig = Rig::ready();
    rig.submit(0, rig.write(0, 1, 1));
    rig.run();
    rig.target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
    rig.target.announce();
    rig.pass(61 * SECOND);
    rig.submit(1, read(0, 1));
    rig.run();
    assert_eq!(rig.result(1), Some(Err(BlockError::Gone)), "no more waiting");
    rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    rig.target.announce();
    rig.run();
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!(rig.result(2), Some(Ok(())));
}

#[test]
fn who_does_not_wait_for_a_disk_is_told_at_once_that_another_is_in_its_place() {
    let mut rig = Rig::ready_with(DriverConfig { wait_for_disk: false, ..config() }, |_| {});
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.seen.clear();
    rig.target.disconnect();
    rig.target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
    rig.submit(1, rig.write(0, 1, 1));
    rig.pass(10 * SECOND);
    assert_eq!((rig.target.seen.len(), rig.result(1)), (0, Some(Err(BlockError::Gone))));
}

#[test]
fn rest_of_an_operation_is_not_issued_to_another_disk() {
    // One command at a time, of 16 blocks.
    let association = AssociationConfig { io_queue_entries: 2, ..config().association };
    let mut rig =
        Rig::ready_with(DriverConfig { association, ..config() }, |target| target.transfer_pages = 1);
    rig.target.hold = true;
    rig.submit(1, rig.write(0, 48, 0xaa));
    rig.run();
    assert_eq!(rig.target.held.len(), 1);
    rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS / 2));
    rig.target.announce();
    rig.run();
    rig.target.hold = false;
    rig.target.answer(0, Status::SUCCESS);
    rig.run();
    assert_eq!((rig.target.seen.len(), rig.result(1)), (1, None));
    rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    rig.target.announce();
    rig.run();
    assert_eq!(rig.result(1), Some(Ok(())));
    assert_eq!(rig.target.disks[&1].bytes[..48 * BLOCK], [0xaa; 48 * BLOCK], "begun anew, from its start");
}

#[test]
fn grown_disk_is_used_in_full() {
    let mut rig = Rig::ready();
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.disks.insert(1, Disk::new(1, BLOCK, 2 * BLOCKS));
    rig.target.announce();
    rig.run();
    rig.submit(1, read(BLOCKS as u64, 8));
    rig.run();
    assert_eq!((rig.result(1), rig.driver.state()), (Some(Ok(())), ConnectionState::Live));
}

#[test]
fn disk_without_identifiers_is_known_by_its_size_only() {
    let mut rig =
        Rig::ready_with(config(), |target| drop(target.disks.insert(1, Disk::new(0, BLOCK, BLOCKS))));
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.announce();
    rig.run();
    assert_eq!(rig.driver.state(), ConnectionState::Live);
    rig.target.disks.insert(1, Disk::new(0, BLOCK, BLOCKS - 1));
    rig.target.announce();
    rig.run();
    assert_eq!(rig.driver.state(), ConnectionState::Foreign);
}

#[test]
fn other_namespaces_are_served_and_an_unused_one_is_not_reported() {
    let mut rig =
        Rig::ready_with(config(), |target| drop(target.disks.insert(2, Disk::new(2, BLOCK, BLOCKS))));
    rig.submit(0, read(0, 1));
    rig.run();
    rig.target.disks.insert(2, Disk::new(3, BLOCK, BLOCKS));
    rig.target.announce();
    rig.run();
    let path = |rig: &Rig| rig.driver.paths()[0].state;
    let states = (rig.driver.state(), path(&rig));
    assert_eq!(states, (ConnectionState::Live, ConnectionState::Live), "nobody uses namespace 2");
    rig.driver.submit(Tag(1), Nsid(2), read(0, 1)).unwrap();
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!((rig.result(1), rig.result(2)), (Some(Err(BlockError::Gone)), Some(Ok(()))));
    assert_eq!((rig.driver.state(), path(&rig)), (ConnectionState::Foreign, ConnectionState::Foreign));
    assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Foreign(Nsid(2), _))));
}

#[test]
fn namespace_that_cannot_be_identified_now_waits() {
    let mut rig = Rig::ready();
    rig.submit(0, rig.write(0, 1, 1));
    rig.run();
    rig.target.seen.clear();
    rig.target.refuse = |capsule, io| {
        let identify = !io && capsule.sqe.opcode == AdminOpcode::IDENTIFY.0;
        let namespace = identify && Identify::parse(&capsule.sqe).cns == Cns::NAMESPACE;
        namespace.then_some(Status::INTERNAL_ERROR)
    };
    rig.target.disconnect();
    rig.submit(1, rig.write(0, 1, 2));
    rig.pass(10 * SECOND);
    assert_eq!((rig.target.seen.len(), rig.result(1)), (0, None));
    rig.target.refuse = |_, _| None;
    rig.pass(2 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
    assert_eq!(rig.target.seen, [(NvmOpcode::WRITE, 1, 0, false)]);
}

/// A target that was started again opens its disks one by one.
#[test]
fn namespace_missing_after_reconnect_waits_until_it_comes() {
    let mut rig = Rig::ready();
    rig.submit(0, rig.write(0, 1, 1));
    rig.run();
    rig.target.seen.clear();
    let disk = rig.target.disks.remove(&1).unwrap();
    rig.target.disconnect();
    rig.submit(1, rig.write(0, 1, 2));
    rig.pass(10 * SECOND);
    assert_eq!((rig.target.seen.len(), rig.result(1)), (0, None));
    rig.target.disks.insert(1, disk);
    rig.target.announce();
    rig.pass(2 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
}

/// It is told as removed when the wait is over, and is used again when it comes after that.
#[test]
fn namespace_that_does_not_come_after_reconnect_counts_as_removed_in_the_end() {
    let mut rig = Rig::ready();
    rig.submit(0, read(0, 1));
    rig.run();
    let disk = rig.target.disks.remove(&1).unwrap();
    rig.target.disconnect();
    rig.submit(1, read(0, 1));
    rig.pass(50 * SECOND);
    let state = |rig: &Rig| rig.driver.namespace_state(Nsid(1));
    assert_eq!((rig.result(1), state(&rig)), (None, Some(NamespaceState::NotListed)));
    rig.events.clear();
    rig.pass(20 * SECOND);
    assert_eq!((rig.result(1), state(&rig)), (Some(Err(BlockError::Gone)), Some(NamespaceState::Removed)));
    assert!(matches!(rig.events[..], [DriverEvent::NamespacesChanged]), "it is told: {:?}", rig.events);
    rig.target.disks.insert(1, disk);
    rig.target.announce();
    rig.run();
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!((rig.result(2), state(&rig)), (Some(Ok(())), Some(NamespaceState::Live)));
}

#[test]
fn namespace_that_was_taken_away_is_not_waited_for_after_a_reconnect_either() {
    let gone = Some(Err(BlockError::Gone));
    // In its place there is nothing, or another disk.
    for other in [None, Some(Disk::new(2, BLOCK, BLOCKS))] {
        let mut rig = Rig::ready();
        rig.submit(0, read(0, 1));
        rig.run();
        let disk = rig.target.disks.remove(&1).unwrap();
        rig.target.announce();
        rig.run();
        rig.submit(1, read(0, 1));
        rig.run();
        assert_eq!(rig.result(1), gone, "it was taken away");
        rig.target.disks.extend(other.map(|other| (1, other)));
        let state = match rig.target.disks.get(&1) {
            None => NamespaceState::Removed,
            Some(_) => NamespaceState::Foreign(Mismatch::Uuid { opened: [1; 16], now: [2; 16] }),
        };
        for tag in [2, 3] {
            rig.target.disconnect();
            rig.submit(tag, read(0, 1));
            rig.pass(10 * SECOND);
            assert_eq!((rig.result(tag), rig.driver.namespace_state(Nsid(1))), (gone, Some(state)));
        }
        rig.target.disks.insert(1, disk);
        rig.target.announce();
        rig.run();
        rig.submit(4, read(0, 1));
        rig.run();
        assert_eq!(rig.result(4), Some(Ok(())), "it was given back");
    }
}

#[test]
fn operation_in_flight_outlasts_the_wait_for_its_disk() {
    let mut rig = Rig::ready_with(DriverConfig { io_timeout: 1000 * SECOND, ..config() }, |_| {});
    rig.target.hold = true;
    rig.submit(1, read(0, 1));
    rig.run();
    rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS / 2));
    rig.target.announce();
    rig.run();
    rig.submit(2, read(0, 1));
    rig.pass(100 * SECOND);
    assert_eq!(rig.result(2), Some(Err(BlockError::Gone)), "at the loss timeout");
    assert_eq!(rig.result(1), None, "the controller can write into its memory");
    rig.target.release();
    rig.run();
    assert!(rig.result(1).is_some());
}

/// The commands that came since this was asked last.
fn opcodes(rig: &mut Rig) -> Vec<NvmOpcode> {
    rig.target.seen.drain(..).map(|seen| seen.0).collect()
}

#[test]
fn cache_that_appears_is_flushed_by_who_said_so_and_goes_on_being_flushed() {
    let mut rig = Rig::ready_with(config(), |target| target.write_cache = false);
    let now = rig.now;
    let association = rig.driver.association().unwrap();
    let seen = NamespaceIdentity::new(association.controller(), association.namespace(Nsid(1)).unwrap());
    rig.driver.open(now, NamespaceIdentity { is_flushed: true, ..seen });
    let cached = |rig: &Rig| rig.driver.geometry(Nsid(1)).unwrap().volatile_write_cache;
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.submit(2, BlockOp::Flush);
    rig.run();
    assert_eq!((opcodes(&mut rig), cached(&rig)), (vec![NvmOpcode::WRITE], false), "durable without one");
    // With it, and without it again: what was written in between may still be in it.
    for (tag, write_cache) in [(3, true), (5, false)] {
        rig.target.write_cache = write_cache;
        rig.target.disconnect();
        rig.pass(10 * SECOND);
        assert_eq!((rig.driver.state(), cached(&rig)), (ConnectionState::Live, write_cache));
        rig.submit(tag, rig.write(0, 1, 0xbb));
        rig.run();
        rig.submit(tag + 1, BlockOp::Flush);
        rig.run();
        assert_eq!(opcodes(&mut rig), [NvmOpcode::WRITE, NvmOpcode::FLUSH], "cache: {write_cache}");
        assert_eq!((rig.result(tag), rig.result(tag + 1)), (Some(Ok(())), Some(Ok(()))));
    }
}

#[test]
fn disk_that_turns_read_only_takes_no_write_until_it_can_be_written_again() {
    let mut rig = Rig::ready();
    for (tag, read_only) in [(1, true), (3, false)] {
        rig.target.read_only = read_only;
        rig.target.announce();
        rig.run();
        assert_eq!(rig.driver.geometry(Nsid(1)).unwrap().read_only, read_only);
        rig.submit(tag, rig.write(0, 1, 0xaa));
        rig.submit(tag + 1, read(0, 1));
        rig.run();
        let written = if read_only { Err(BlockError::ReadOnly) } else { Ok(()) };
        assert_eq!((rig.result(tag), rig.result(tag + 1)), (Some(written), Some(Ok(()))));
    }
}

#[test]
fn operation_on_a_disk_that_is_coming_back_waits_for_the_look() {
    let mut rig = Rig::ready();
    rig.submit(0, read(0, 1));
    rig.run();
    let disk = rig.target.disks.remove(&1).expect("it is there");
    rig.target.announce();
    rig.run();
    rig.submit(1, read(0, 1));
    rig.run();
    assert_eq!(rig.result(1), Some(Err(BlockError::Gone)));
    rig.target.disks.insert(1, disk);
    rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
    rig.target.announce();
    rig.run();
    rig.submit(2, read(0, 1));
    rig.run();
    assert_eq!(rig.result(2), None);
    rig.target.hold_admin = None;
    rig.target.release();
    rig.run();
    assert_eq!(rig.result(2), Some(Ok(())));
}
