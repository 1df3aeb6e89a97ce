//! Compare and Write: the statuses of both commands, and which of them the device sees.

use crate::host::*;
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cqe, SglDescriptor, Sqe};
use nvmf_block::{BlockError, BlockRange};
use nvmf_subsystem::*;
use zerocopy::FromBytes;

type Code = (u8, u8);
const OK: Code = (0, 0);
const INVALID_OPCODE: Code = (0, 0x01);
const INVALID_FIELD: Code = (0, 0x02);
const FAILED: Code = (0, 0x09);
const MISSING: Code = (0, 0x0a);
const UNIT_EXCEEDED: Code = (0, 0x14);
const PROTECTED: Code = (0, 0x20);

const FIRST: u8 = 0x41;
const SECOND: u8 = 0x42;
const NORMAL: u8 = 0x40;

fn command(cid: u16, flags: u8, opcode: NvmOpcode, nsid: u32, lba: u64, blocks: u32) -> Sqe {
    let mut sqe = keyed(ReadWrite::new(lba, blocks).emit(opcode, Nsid(nsid)), 512 * blocks);
    sqe.flags = flags;
    with_cid(sqe, cid)
}

fn compare() -> Sqe {
    command(1, FIRST, NvmOpcode::COMPARE, 1, 8, 1)
}

fn write() -> Sqe {
    command(2, SECOND, NvmOpcode::WRITE, 1, 8, 1)
}

/// Everything that a queue answers, in its order; what it asks for has `bytes` for data. Work for the device is done
/// with this result, and kept.
#[derive(Default)]
struct Seen {
    answers: Vec<(u16, Code)>,
    work: Vec<BlockWork>,
}

impl Seen {
    fn take(&mut self, queue: &mut Queue, step: Step, result: Result<(), BlockError>) {
        let mut next = Some(step);
        while let Some(step) = next.take() {
            next = match step {
                Step::Respond(response) => {
                    let cqe = Cqe::read_from_bytes(&response.cqe).unwrap();
                    self.answers.push((cqe.cid.get(), code(&cqe)));
                    None
                }
                Step::Execute { ticket, work: Work::Parameters, transfer } => {
                    let Transfer::FromHost { len, .. } = transfer else { panic!("{transfer:?}") };
                    let bytes = vec![ticket.cid().0 as u8; len as usize];
                    Some(queue.on_parameters(NOW, ticket, &bytes))
                }
                Step::Execute { ticket, work: Work::Block { op, .. }, .. } => {
                    self.work.push(op);
                    Some(queue.on_done(NOW, ticket, result))
                }
                Step::Held => None,
                step => panic!("{step:?}"),
            };
        }
        self.drain(queue);
    }

    fn drain(&mut self, queue: &mut Queue) {
        while let Some(step) = queue.poll_step(NOW) {
            match step {
                Step::Respond(response) => {
                    let cqe = Cqe::read_from_bytes(&response.cqe).unwrap();
                    self.answers.push((cqe.cid.get(), code(&cqe)));
                }
                step => panic!("{step:?}"),
            }
        }
    }
}

fn send(queue: &mut Queue, commands: &[Sqe], result: Result<(), BlockError>) -> Seen {
    let mut seen = Seen::default();
    for sqe in commands {
        let step = capsule(queue, sqe, 0);
        seen.take(queue, step, result);
    }
    seen
}

#[test]
fn pair_is_one_operation_and_its_result_has_two_statuses() {
    for (result, of_first, of_second) in [
        (Ok(()), OK, OK),
        (Err(BlockError::CompareFailed), (2, 0x85), FAILED),
        (Err(BlockError::NotCompared), (2, 0x81), FAILED),
        (Err(BlockError::Gone), (0, 0x0b), FAILED),
        (Err(BlockError::NoSpace), OK, (0, 0x81)),
        (Err(BlockError::Medium), OK, (2, 0x80)),
    ] {
        let mut fixture = Fixture::new();
        let seen = send(&mut fixture.io, &[compare(), write()], result);
        assert_eq!(seen.answers, [(1, of_first), (2, of_second)], "{result:?}");
        let data = [[1; 512], [2; 512]].concat().into_boxed_slice();
        let op = BlockWork::CompareAndWrite(Box::new(CompareAndWriteWork {
            range: BlockRange::new(8, 1),
            data,
            fua: false,
        }));
        assert_eq!(seen.work, [op]);
        assert_eq!(fixture.io.in_flight(), 0);
    }
}

#[test]
fn commands_that_are_no_pair_have_their_statuses() {
    let read = |cid, flags| command(cid, flags, NvmOpcode::READ, 1, 8, 1);
    for (name, commands, answers, works) in [
        ("second alone", vec![write()], vec![(2, MISSING)], 0),
        ("first, then another", vec![compare(), read(3, NORMAL)], vec![(3, OK), (1, MISSING)], 1),
        (
            "first, then another, then second",
            vec![compare(), read(3, NORMAL), write()],
            vec![(3, OK), (1, MISSING), (2, MISSING)],
            1,
        ),
        (
            "first, then first",
            vec![compare(), with_cid(compare(), 3), write()],
            vec![(1, MISSING), (3, OK), (2, OK)],
            1,
        ),
        ("first is no compare", vec![read(1, FIRST), write()], vec![(1, INVALID_OPCODE), (2, MISSING)], 0),
        (
            "compare, then first that is no compare",
            vec![with_cid(compare(), 3), read(1, FIRST)],
            vec![(1, INVALID_OPCODE), (3, MISSING)],
            0,
        ),
        ("second is no write", vec![compare(), read(2, SECOND)], vec![(1, MISSING), (2, INVALID_OPCODE)], 0),
        (
            "other block",
            vec![compare(), command(2, SECOND, NvmOpcode::WRITE, 1, 9, 1)],
            vec![(1, INVALID_FIELD), (2, INVALID_FIELD)],
            0,
        ),
        (
            "other namespace",
            vec![compare(), command(2, SECOND, NvmOpcode::WRITE, 3, 8, 1)],
            vec![(1, INVALID_FIELD), (2, INVALID_FIELD)],
            0,
        ),
        (
            "more than ACWU",
            vec![
                command(1, FIRST, NvmOpcode::COMPARE, 1, 8, 2),
                command(2, SECOND, NvmOpcode::WRITE, 1, 8, 2),
            ],
            vec![(1, UNIT_EXCEEDED), (2, FAILED)],
            0,
        ),
        (
            "beyond the end",
            vec![
                command(1, FIRST, NvmOpcode::COMPARE, 1, 1000, 1),
                command(2, SECOND, NvmOpcode::WRITE, 1, 1000, 1),
            ],
            vec![(1, (0, 0x80)), (2, FAILED)],
            0,
        ),
        (
            "write-protected",
            vec![
                command(1, FIRST, NvmOpcode::COMPARE, 3, 8, 1),
                command(2, SECOND, NvmOpcode::WRITE, 3, 8, 1),
            ],
            vec![(1, FAILED), (2, PROTECTED)],
            0,
        ),
        (
            "reserved",
            vec![compare(), command(3, 0x43, NvmOpcode::WRITE, 1, 8, 1)],
            vec![(3, INVALID_FIELD), (1, MISSING)],
            0,
        ),
        (
            "first, then one without an SGL",
            vec![compare(), command(3, 0x00, NvmOpcode::WRITE, 1, 8, 1)],
            vec![(3, INVALID_FIELD), (1, MISSING)],
            0,
        ),
    ] {
        let mut fixture = Fixture::new();
        let seen = send(&mut fixture.io, &commands, Ok(()));
        assert_eq!(seen.answers, answers, "{name}");
        assert_eq!(seen.work.len(), works, "{name}: {:?}", seen.work);
        assert_eq!(fixture.io.in_flight(), 0, "{name}");
    }
}

#[test]
fn first_waits_for_however_long_and_disconnect_ends_it() {
    let mut fixture = Fixture::new();
    let seen = send(&mut fixture.io, &[compare()], Ok(()));
    assert_eq!((seen.answers, fixture.io.in_flight()), (vec![], 1));
    assert_eq!(fixture.io.poll_timeout(), None, "no time ends it");
    let step = capsule(&mut fixture.io, &with_cid(nvme_proto::fabrics::disconnect(), 9), 0);
    assert!(matches!(step, Step::Held));
    let mut steps = core::iter::from_fn(|| fixture.io.poll_step(NOW));
    let mut answer = || responded(steps.next().unwrap());
    let (first, disconnect) = (answer(), answer());
    assert_eq!((first.cid.get(), code(&first)), (1, MISSING));
    assert_eq!((disconnect.cid.get(), code(&disconnect)), (9, OK));
    assert!(matches!(steps.next(), Some(Step::CloseQueue)));
}

/// The data of the Compare are slow: its Write, and what refuses the pair, wait for them.
#[test]
fn command_that_cannot_begin_ends_no_first_that_waits() {
    let mut fixture = Fixture::new();
    let mut seen = Seen::default();
    let held = capsule(&mut fixture.io, &with_cid(command(9, NORMAL, NvmOpcode::READ, 1, 0, 1), 9), 0);
    let Step::Execute { ticket, .. } = held else { panic!("{held:?}") };
    let first = capsule(&mut fixture.io, &compare(), 0);
    seen.take(&mut fixture.io, first, Ok(()));
    let again = ask(&mut fixture.io, &command(9, NORMAL, NvmOpcode::READ, 1, 0, 1));
    assert_eq!(code(&again), (0, 0x03), "Command ID Conflict");
    seen.drain(&mut fixture.io);
    assert_eq!(seen.answers, [], "the first still waits");
    let second = capsule(&mut fixture.io, &write(), 0);
    seen.take(&mut fixture.io, second, Ok(()));
    seen.drain(&mut fixture.io);
    assert_eq!(seen.answers, [(1, OK), (2, OK)]);
    ticket.abandon();
}

#[test]
fn pair_whose_data_come_late_is_answered_in_order() {
    let mut fixture = Fixture::new();
    let (first, _) = parameters(capsule(&mut fixture.io, &compare(), 0));
    let (second, _) = parameters(capsule(&mut fixture.io, &write(), 0));
    let mut seen = Seen::default();
    let step = fixture.io.on_parameters(NOW, second, &[2; 512]);
    seen.take(&mut fixture.io, step, Ok(()));
    assert_eq!(seen.answers, []);
    let step = fixture.io.on_parameters(NOW, first, &[1; 512]);
    seen.take(&mut fixture.io, step, Ok(()));
    assert_eq!(seen.answers, [(1, OK), (2, OK)]);

    let (first, _) = parameters(capsule(&mut fixture.io, &compare(), 0));
    let mut seen = send(&mut fixture.io, &[command(2, SECOND, NvmOpcode::WRITE, 1, 9, 1)], Ok(()));
    assert_eq!(seen.answers, [], "the first one's data are still on their way");
    let step = fixture.io.on_parameters(NOW, first, &[1; 512]);
    seen.take(&mut fixture.io, step, Ok(()));
    assert_eq!(seen.answers, [(1, INVALID_FIELD), (2, INVALID_FIELD)]);
    assert_eq!(fixture.io.in_flight(), 0);
}

#[test]
fn damaged_data_fail_both_commands() {
    const DAMAGED: Code = (0, 0x22);
    let mut fixture = Fixture::new();
    let (first, _) = parameters(capsule(&mut fixture.io, &compare(), 0));
    let step = fixture.io.on_transfer_failed(first);
    let mut seen = Seen::default();
    seen.take(&mut fixture.io, step, Ok(()));
    let step = capsule(&mut fixture.io, &write(), 0);
    seen.take(&mut fixture.io, step, Ok(()));
    assert_eq!(seen.answers, [(1, DAMAGED), (2, FAILED)]);

    let (first, _) = parameters(capsule(&mut fixture.io, &compare(), 0));
    let (second, _) = parameters(capsule(&mut fixture.io, &write(), 0));
    let step = fixture.io.on_transfer_failed(second);
    let mut seen = Seen::default();
    seen.take(&mut fixture.io, step, Ok(()));
    assert_eq!(seen.answers, []);
    let step = fixture.io.on_parameters(NOW, first, &[1; 512]);
    seen.take(&mut fixture.io, step, Ok(()));
    assert_eq!(seen.answers, [(1, FAILED), (2, DAMAGED)]);
    assert_eq!(fixture.io.in_flight(), 0);
}

#[test]
fn namespace_that_changes_before_the_pair_is_whole_is_looked_at_again() {
    let mut fixture = Fixture::new();
    let (first, _) = parameters(capsule(&mut fixture.io, &compare(), 0));
    let (second, _) = parameters(capsule(&mut fixture.io, &write(), 0));
    let read_only = NamespaceDefinition { read_only: true, ..namespace(1, disk()) };
    let change = SubsystemChange { namespaces: Some(vec![read_only]), ..SubsystemChange::default() };
    fixture.registry.change_subsystem(&nqn(SUBSYSTEM), change).unwrap();
    fixture.deliver();
    let mut seen = Seen::default();
    for (ticket, byte) in [(first, 1), (second, 2)] {
        let step = fixture.io.on_parameters(NOW, ticket, &[byte; 512]);
        seen.take(&mut fixture.io, step, Ok(()));
    }
    assert_eq!(seen.answers, [(1, FAILED), (2, PROTECTED)]);
    assert_eq!(seen.work, []);
}

#[test]
fn data_of_a_pair_may_be_in_their_capsules() {
    let mut fixture = Fixture::new();
    for sqe in [compare(), write()] {
        let sqe = Sqe { sgl: SglDescriptor::in_capsule(0, 512), ..sqe };
        let (ticket, transfer) = parameters(capsule(&mut fixture.io, &sqe, 512));
        assert_eq!(transfer, Transfer::FromHost { len: 512, source: Source::InCapsule { offset: 0 } });
        let step = fixture.io.on_parameters(NOW, ticket, &[1; 512]);
        Seen::default().take(&mut fixture.io, step, Ok(()));
    }
    assert_eq!(fixture.io.in_flight(), 0);
}
