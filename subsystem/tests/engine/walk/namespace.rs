//! Identify Namespace, of the NVM command set and independent of it.

use super::*;
use nvme_proto::nvm::reservation::ReservationType;
use nvmf_block::{Geometry, Preferred};

const NAMESPACE: &[Row] = &[
    Row(
        0,
        8,
        "NSZE",
        Value(|f, size| {
            assert_eq!(blocks(f, NvmOpcode::READ, 1, size - 1, 1), OK);
            assert_eq!(blocks(f, NvmOpcode::READ, 1, size, 1), (0, 0x80), "LBA Out of Range");
        }),
    ),
    Row(8, 8, "NCAP", Value(|f, size| assert_eq!(size, number(f, 0, 8), "not thinly provisioned"))),
    Row(16, 8, "NUSE", Value(|f, size| assert_eq!(size, number(f, 0, 8)))),
    Row(
        24,
        1,
        "NSFEAT",
        Bits(&[(4, |f, on| {
            assert_eq!(on, PREFERRED.any());
            assert_eq!(number(f, 64, 2) + 1, u64::from(PREFERRED.write));
        })]),
    ),
    Row(25, 5, "NLBAF, FLBAS, MC, DPC, DPS", Zero),
    Row(30, 1, "NMIC", Bits(&[(0, shared)])),
    Row(
        31,
        1,
        "RESCAP",
        Bits(&[
            (0, |f, on| {
                assert_eq!(
                    on,
                    f.registry
                        .namespaces(&nqn(SUBSYSTEM))
                        .unwrap()
                        .get(Nsid(1))
                        .unwrap()
                        .access
                        .reservation_persists
                )
            }),
            (1, |f, on| reserves(f, ReservationType(1), on)),
            (2, |f, on| reserves(f, ReservationType(2), on)),
            (3, |f, on| reserves(f, ReservationType(3), on)),
            (4, |f, on| reserves(f, ReservationType(4), on)),
            (5, |f, on| reserves(f, ReservationType(5), on)),
            (6, |f, on| reserves(f, ReservationType(6), on)),
            (7, |f, on| {
                let ignoring = asks(f, NvmOpcode::RESERVATION_REGISTER, 1 << 3);
                assert_supported(ignoring, on, INVALID_FIELD);
            }),
        ]),
    ),
    Row(32, 1, "FPI", Zero),
    Row(
        33,
        1,
        "DLFEAT",
        Bits(&[
            (0, |_, on| assert!(on, "the device reads zeroes")),
            (3, |f, on| {
                let mut sqe = ReadWrite::new(0, 1).emit(NvmOpcode::WRITE_ZEROES, Nsid(1));
                sqe.cdw12 = (1 << 25).into();
                let Step::Execute { ticket, work, .. } = capsule(&mut f.io, &sqe, 0) else {
                    panic!("it is carried out")
                };
                ticket.abandon();
                let deallocates =
                    matches!(work, Work::Block { op: BlockWork::WriteZeroes { deallocate: true, .. }, .. });
                assert_eq!(deallocates, on);
            }),
        ]),
    ),
    // One block each, as the controller has it; no boundaries of atomicity.
    Row(34, 12, "NAWUN to NABSPF", Zero),
    Row(46, 2, "NOIOB", Value(|_, blocks| assert_eq!(blocks, PREFERRED.boundary.into()))),
    Row(48, 16, "NVMCAP", Value(|f, bytes| assert_eq!(bytes, number(f, 0, 8) * 512))),
    Row(64, 2, "NPWG", Value(|_, z| assert_eq!(z + 1, PREFERRED.write.into()))),
    Row(66, 2, "NPWA", Value(|_, z| assert_eq!(z + 1, PREFERRED.write_alignment.into()))),
    Row(68, 2, "NPDG", Value(|_, z| assert_eq!(z + 1, PREFERRED.deallocate.into()))),
    Row(70, 2, "NPDA", Value(|_, z| assert_eq!(z + 1, PREFERRED.deallocate_alignment.into()))),
    Row(72, 2, "NOWS", Value(|_, z| assert_eq!(z + 1, PREFERRED.stripe.into()))),
    Row(
        74,
        2,
        "MSSRL",
        Value(|f, most| {
            assert_eq!(copies(f, &[most]), OK);
            assert!(most == 0xffff || copies(f, &[most + 1]) == LIMIT);
        }),
    ),
    Row(
        76,
        4,
        "MCL",
        Value(|f, most| {
            assert_eq!(copies(f, &[most - most / 2, most / 2]), OK);
            assert_eq!(copies(f, &[most - most / 2, most / 2 + 1]), LIMIT);
        }),
    ),
    Row(
        80,
        1,
        "MSRC",
        Value(|f, most_z| {
            assert_eq!(copies(f, &vec![1; most_z as usize + 1]), OK);
            assert_eq!(copies(f, &vec![1; most_z as usize + 2]), LIMIT);
        }),
    ),
    Row(81, 11, "KPIOS to KPIODAAG", Zero),
    Row(
        92,
        4,
        "ANAGRPID",
        Value(|f, group| {
            let log = log(f, LogPageId::ANA).unwrap();
            assert_eq!(group, u32::from_le_bytes(log[16..20].try_into().unwrap()).into());
        }),
    ),
    Row(96, 3, "reserved", Zero),
    Row(
        99,
        1,
        "NSATTR",
        Bits(&[(0, |f, on| {
            assert_supported(blocks(f, NvmOpcode::WRITE, 1, 0, 1), !on, (0, 0x20));
        })]),
    ),
    Row(100, 4, "NVMSETID, ENDGID", Zero),
    Row(104, 24, "NGUID, EUI64", Zero),
    Row(128, 4, "LBAF0", Value(|_, format| assert_eq!(format, 9 << 16, "512 bytes, no metadata"))),
    Row(132, 3964, "other formats, VS", Zero),
];

const INDEPENDENT: &[Row] = &[
    Row(
        0,
        1,
        "NSFEAT",
        Bits(&[(5, |f, on| {
            let flush = Sqe::new(NvmOpcode::FLUSH.0).with_nsid(Nsid(1));
            let at_once = matches!(capsule(&mut f.io, &flush, 0), Step::Respond(_));
            assert_eq!(at_once, on, "there is no cache to flush");
        })]),
    ),
    Row(1, 1, "NMIC", Bits(&[(0, shared)])),
    Row(2, 1, "RESCAP", Value(|f, types| assert_eq!(types, number(f, 31, 1)))),
    Row(3, 1, "FPI", Zero),
    Row(4, 4, "ANAGRPID", Value(|f, group| assert_eq!(group, number(f, 92, 4)))),
    Row(8, 1, "NSATTR", Value(|f, attributes| assert_eq!(attributes, number(f, 99, 1)))),
    Row(9, 5, "NVMSETID, ENDGID", Zero),
    Row(
        14,
        1,
        "NSTAT",
        Bits(&[(0, |f, on| {
            assert_eq!(blocks(f, NvmOpcode::READ, 1, 0, 1) == OK, on);
        })]),
    ),
    Row(15, 4081, "reserved", Zero),
];

/// No protection information, no extended formats.
const OF_COMMAND_SET: &[Row] = &[Row(0, 4096, "LBSTM to reserved", Zero)];

/// Command Size Limit Exceeded.
const LIMIT: Code = (1, 0x83);
const PREFERRED: Preferred = Preferred {
    write: 8,
    write_alignment: 4,
    stripe: 64,
    deallocate: 16,
    deallocate_alignment: 2,
    boundary: 256,
};

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    let geometry = Geometry {
        preferred: PREFERRED,
        deallocate: true,
        zero_after_deallocate: true,
        ..Geometry::new(512, 1 << 24)
    };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, geometry)]).unwrap();
    fixture.deliver();
    fixture
}

fn protected() -> Fixture {
    let mut fixture = fixture();
    let of = |it: &NamespaceDefinition| NamespaceDefinition { read_only: true, ..it.clone() };
    let namespaces = fixture.registry.namespaces(&nqn(SUBSYSTEM)).unwrap().iter().map(of).collect();
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), namespaces).unwrap();
    fixture.deliver();
    fixture
}

#[test]
fn every_bit_of_identify_namespace_works_or_is_refused() {
    walk(&identify(&mut fixture(), Cns::NAMESPACE, 1), NAMESPACE, fixture);
    walk(&identify(&mut fixture(), Cns::INDEPENDENT_NAMESPACE, 1), INDEPENDENT, fixture);
    walk(&identify(&mut fixture(), Cns::COMMAND_SET_NAMESPACE, 1), OF_COMMAND_SET, fixture);
}

#[test]
fn protected_namespace_says_so_and_takes_no_writes() {
    let attributes = |page: Vec<u8>, at: usize| page[at];
    assert_eq!(attributes(identify(&mut protected(), Cns::NAMESPACE, 1), 99), 1);
    assert_eq!(attributes(identify(&mut protected(), Cns::INDEPENDENT_NAMESPACE, 1), 8), 1);
    for opcode in [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES] {
        assert_eq!(blocks(&mut protected(), opcode, 1, 0, 1), (0, 0x20), "{opcode:?}");
    }
    let deallocate = with_data(NvmOpcode::DATASET_MANAGEMENT, [0, 1 << 2, 0], 16);
    assert_eq!(status_of(&mut protected().io, &deallocate), (0, 0x20));
    assert_eq!(copies(&mut protected(), &[1]), (0, 0x20));
    assert_eq!(blocks(&mut protected(), NvmOpcode::READ, 1, 0, 1), OK);
}

/// A field of Identify Namespace.
fn number(fixture: &mut Fixture, at: usize, len: usize) -> u64 {
    let page = identify(fixture, Cns::NAMESPACE, 1);
    page[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn shared(fixture: &mut Fixture, on: bool) {
    let (mut admin, ..) = Hello::admin().connect(&mut fixture.registry);
    enable(&mut admin);
    let page = read(&mut admin, &Identify::new(Cns::NAMESPACE, Nsid(1)).emit(), 4096).unwrap();
    assert_eq!(page != [0; 4096], on, "a second controller has it as well");
}

/// The status of a reservation command with keys of zeroes, once its data are there; asked is success.
fn asks(fixture: &mut Fixture, opcode: NvmOpcode, cdw10: u32) -> Code {
    let (ticket, _) = parameters(capsule(&mut fixture.io, &with_data(opcode, [cdw10, 0, 0], 16), 0));
    let mut keys = [0; 16];
    keys[8] = 1;
    match fixture.io.on_parameters(NOW, ticket, &keys) {
        Step::Ask { ticket, .. } => {
            ticket.abandon();
            OK
        }
        step => code(&responded(step)),
    }
}

fn reserves(fixture: &mut Fixture, kind: ReservationType, on: bool) {
    let acquired = asks(fixture, NvmOpcode::RESERVATION_ACQUIRE, u32::from(kind.0) << 8);
    assert_supported(acquired, on, INVALID_FIELD);
}

/// The status of a Copy of ranges of so many blocks from the beginning, to behind them.
fn copies(fixture: &mut Fixture, ranges: &[u64]) -> Code {
    let mut data = Vec::new();
    let mut slba = 0_u64;
    for blocks in ranges {
        let mut range = [0; 32];
        range[8..16].copy_from_slice(&slba.to_le_bytes());
        range[16..18].copy_from_slice(&((blocks - 1) as u16).to_le_bytes());
        data.extend(range);
        slba += blocks;
    }
    let mut sqe =
        with_data(NvmOpcode::COPY, [1 << 23, 0, (ranges.len() as u32 - 1) & 0xff], data.len() as u32);
    sqe.cdw10 = (1 << 23).into();
    let sqe = with_cid(sqe, 1000 + fixture.io.in_flight());
    match capsule(&mut fixture.io, &sqe, 0) {
        Step::Execute { ticket, work: Work::Parameters, .. } => {
            match fixture.io.on_parameters(NOW, ticket, &data) {
                Step::Execute { ticket, .. } => {
                    ticket.abandon();
                    OK
                }
                step => code(&responded(step)),
            }
        }
        step => code(&responded(step)),
    }
}
