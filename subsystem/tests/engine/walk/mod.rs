//! Identify, walked bit by bit: what is advertised works, and what is not is refused. A bit that is set without a row
//! here fails.

mod controller;
mod features;
mod namespace;

use crate::host::*;
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::admin::identify::{Cns, Identify};
use nvme_proto::admin::log_page::{GetLogPage, LogPageId};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Cqe, Sqe};
use nvmf_subsystem::*;
use zerocopy::FromBytes;

type Code = (u8, u8);
const OK: Code = (0, 0);
const INVALID_OPCODE: Code = (0, 0x01);
const INVALID_FIELD: Code = (0, 0x02);
const INVALID_NAMESPACE: Code = (0, 0x0b);
const INVALID_LOG_PAGE: Code = (1, 0x09);

/// Asserts that what a bit stands for works if the bit is set, and is refused if it is not.
type Exercise = fn(&mut Fixture, bool);

/// A field: its first byte, its bytes, its name.
struct Row(usize, usize, &'static str, What);

enum What {
    /// Nothing of it is supported, or it is reserved.
    Zero,
    /// Whatever it is, it is asserted to be true.
    Value(fn(&mut Fixture, u64)),
    /// Bits; one without a row is not set.
    Bits(&'static [(u32, Exercise)]),
}
use What::{Bits, Value, Zero};

/// Walks a structure of 4096 bytes, of which every byte has a row.
fn walk(page: &[u8], rows: &[Row], fixture: impl Fn() -> Fixture) {
    let mut end = 0;
    for Row(at, len, name, what) in rows {
        assert_eq!(*at, end, "{name} begins where the row before it ends");
        end += len;
        let bytes = &page[*at..end];
        let value = bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        match what {
            Zero => assert!(
                bytes.iter().all(|byte| *byte == 0),
                "{name} is advertised, and has no row: {bytes:x?}"
            ),
            Value(check) => check(&mut fixture(), value),
            Bits(bits) => {
                let known = bits.iter().fold(0, |known, (bit, _)| known | 1_u64 << bit);
                assert_eq!(value & !known, 0, "{name} has a bit without a row");
                for (bit, exercise) in *bits {
                    exercise(&mut fixture(), value >> bit & 1 == 1);
                }
            }
        }
    }
    assert_eq!(end, page.len());
}

fn identify(fixture: &mut Fixture, cns: Cns, nsid: u32) -> Vec<u8> {
    read(&mut fixture.admin, &Identify::new(cns, Nsid(nsid)).emit(), 4096).unwrap()
}

/// The status of a command; one that has work for the device, or wants its data, is accepted and dropped.
fn status_of(queue: &mut Queue, sqe: &Sqe) -> Code {
    // What is dropped stays in flight.
    let sqe = with_cid(*sqe, 1000 + queue.in_flight());
    match capsule(queue, &sqe, 0) {
        Step::Execute { ticket, .. } | Step::Ask { ticket, .. } => {
            ticket.abandon();
            OK
        }
        Step::Held => OK,
        step => code(&responded(step)),
    }
}

/// The status of a read or write of blocks, or of a command like it.
fn blocks(fixture: &mut Fixture, opcode: NvmOpcode, nsid: u32, slba: u64, count: u32) -> Code {
    let moves = matches!(opcode, NvmOpcode::READ | NvmOpcode::WRITE | NvmOpcode::COMPARE);
    let sqe = ReadWrite::new(slba, count).emit(opcode, Nsid(nsid));
    status_of(&mut fixture.io, &if moves { keyed(sqe, count * 512) } else { sqe })
}

fn with_data(opcode: NvmOpcode, dwords: [u32; 3], len: u32) -> Sqe {
    let [cdw10, cdw11, cdw12] = dwords;
    keyed(Sqe::new(opcode.0).with_nsid(Nsid(1)).with_dwords([cdw10, cdw11, cdw12, 0, 0, 0]), len)
}

/// What a command with a bit, or without it, is to be answered.
fn assert_supported(actual: Code, on: bool, refusal: Code) {
    assert_eq!(actual, if on { OK } else { refusal });
}

fn admin(fixture: &mut Fixture, opcode: AdminOpcode) -> Code {
    status_of(&mut fixture.admin, &Sqe::new(opcode.0))
}

fn log(fixture: &mut Fixture, lid: LogPageId) -> Result<Vec<u8>, Code> {
    read(&mut fixture.admin, &GetLogPage::new(lid, Nsid::ALL, 0, 512).emit(), 512)
}

fn feature(fixture: &mut Fixture, fid: u8) -> Code {
    status_of(&mut fixture.admin, &SetFeatures::new(FeatureId(fid), 0).emit())
}

/// DW0 of the event that the queue reports, if any.
fn event(fixture: &mut Fixture) -> Option<u32> {
    fixture.deliver();
    let Some(Step::Respond(response)) = fixture.admin.poll_step(NOW) else { return None };
    Some(Cqe::read_from_bytes(&response.cqe).unwrap().dw0.get())
}
