//! Identify Controller, of the controller and of its command set; the commands supported and effects log.

use super::*;
use crate::reset;
use nvme_proto::admin::log_page::{AnaState, CommandsSupportedLog, effects};
use nvme_proto::fabrics::property::Property;

const CONTROLLER: &[Row] = &[
    Row(0, 4, "VID, SSVID", Zero),
    Row(4, 20, "SN", Value(|f, _| assert!(text(f, 4, 20) == "S1"))),
    Row(24, 40, "MN", Value(|f, _| assert!(text(f, 24, 40) == "disk"))),
    Row(
        64,
        8,
        "FR",
        Value(|f, _| assert_eq!(log(f, LogPageId::FIRMWARE_SLOT).unwrap()[8..16], page(f)[64..72])),
    ),
    Row(72, 4, "RAB, IEEE", Zero),
    Row(76, 1, "CMIC", Bits(&[(0, several_ports), (1, several_controllers), (3, ana)])),
    Row(
        77,
        1,
        "MDTS",
        Value(|f, mdts| {
            let most = (4096 << mdts) / 512;
            f.registry
                .set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, nvmf_block::Geometry::new(512, 1 << 20))])
                .unwrap();
            f.deliver();
            assert_eq!(blocks(f, NvmOpcode::READ, 1, 0, most), OK);
            assert_eq!(blocks(f, NvmOpcode::READ, 1, 0, most + 1), INVALID_FIELD);
        }),
    ),
    Row(78, 2, "CNTLID", Value(|f, id| assert_eq!(id, f.association().key().cntlid.0.into()))),
    Row(80, 4, "VER", Value(|f, version| assert_eq!(get(&mut f.admin, Property::VS, 0), Ok(version)))),
    Row(84, 8, "RTD3R, RTD3E", Zero),
    Row(
        92,
        4,
        "OAES",
        Bits(&[
            (8, namespace_events),
            (9, no_event::<9>),
            (10, no_event::<10>),
            (11, ana_events),
            (12, no_event::<12>),
            (13, no_event::<13>),
            (14, no_event::<14>),
            (20, reset_events),
            (31, no_event::<31>),
        ]),
    ),
    Row(96, 4, "CTRATT", Bits(&[(0, host_id_of_128_bits), (6, traffic_keeps_alive)])),
    Row(100, 11, "RRLS to PLSI", Zero),
    Row(111, 1, "CNTRLTYPE", Value(|_, kind| assert_eq!(kind, 1))),
    Row(112, 16, "FGUID", Zero),
    Row(128, 2, "CRDT1", Value(|_, delay| assert!(delay > 0))),
    Row(130, 5, "CRDT2, CRDT3, CRCAP", Zero),
    Row(135, 1, "CIU", Value(|f, ciu| assert_supported(reset_of_others(f), ciu != 0, INVALID_OPCODE))),
    Row(136, 8, "CIRN", Value(|f, cirn| assert_eq!(cirn != 0, page(f)[135] != 0, "both, or none"))),
    Row(144, 112, "reserved, NVMSR, VWCI, MEC", Zero),
    Row(
        256,
        2,
        "OACS",
        Bits(&[
            (0, |f, on| assert_supported(admin(f, AdminOpcode::SECURITY_RECEIVE), on, INVALID_OPCODE)),
            (1, |f, on| assert_supported(admin(f, AdminOpcode::FORMAT_NVM), on, INVALID_OPCODE)),
            (2, |f, on| assert_supported(admin(f, AdminOpcode::FIRMWARE_COMMIT), on, INVALID_OPCODE)),
            (3, |f, on| assert_supported(admin(f, AdminOpcode::NAMESPACE_MANAGEMENT), on, INVALID_OPCODE)),
            (4, |f, on| assert_supported(admin(f, AdminOpcode::DEVICE_SELF_TEST), on, INVALID_OPCODE)),
            (5, |f, on| assert_supported(admin(f, AdminOpcode::DIRECTIVE_SEND), on, INVALID_OPCODE)),
            (6, |f, on| assert_supported(admin(f, AdminOpcode(0x1d)), on, INVALID_OPCODE)),
            (7, |f, on| assert_supported(admin(f, AdminOpcode(0x1c)), on, INVALID_OPCODE)),
            (8, |f, on| assert_supported(admin(f, AdminOpcode(0x7c)), on, INVALID_OPCODE)),
            (9, |f, on| assert_supported(admin(f, AdminOpcode(0x86)), on, INVALID_OPCODE)),
            (10, |f, on| assert_supported(admin(f, AdminOpcode(0x24)), on, INVALID_OPCODE)),
        ]),
    ),
    Row(258, 1, "ACL", Value(|f, _| assert_eq!(admin(f, AdminOpcode::ABORT), OK))),
    Row(
        259,
        1,
        "AERL",
        Value(|f, most| {
            for _ in 0..=most {
                assert_eq!(event_request(f), OK);
            }
            assert_eq!(event_request(f), (1, 0x05));
        }),
    ),
    Row(
        260,
        1,
        "FRMW",
        Value(|f, frmw| {
            assert_eq!(frmw, 0b11, "one slot, which is read-only");
            assert_eq!(log(f, LogPageId::FIRMWARE_SLOT).unwrap()[0], 1);
        }),
    ),
    Row(
        261,
        1,
        "LPA",
        Bits(&[
            (0, |f, on| {
                let sqe = GetLogPage::new(LogPageId::SMART, Nsid(1), 0, 512).emit();
                assert_supported(read(&mut f.admin, &sqe, 512).err().unwrap_or(OK), on, INVALID_FIELD);
            }),
            (1, |f, on| assert_log(f, 0x05, on)),
            (2, |f, on| {
                let sqe = GetLogPage::new(LogPageId::SMART, Nsid::ALL, 8, 504).emit();
                assert_eq!(read(&mut f.admin, &sqe, 504).is_ok(), on);
            }),
            (3, |f, on| [0x07, 0x08].into_iter().for_each(|lid| assert_log(f, lid, on))),
            (4, |f, on| assert_log(f, 0x0d, on)),
            (5, |f, on| [0x00, 0x12, 0x13].into_iter().for_each(|lid| assert_log(f, lid, on))),
        ]),
    ),
    Row(
        262,
        1,
        "ELPE",
        Value(|f, most| {
            for _ in 0..most + 5 {
                assert_eq!(admin(f, AdminOpcode(0x7e)), INVALID_OPCODE);
            }
            let len = (most as u32 + 2) * 64;
            let sqe = GetLogPage::new(LogPageId::ERROR, Nsid::ALL, 0, len.into()).emit();
            let entries = read(&mut f.admin, &sqe, len).unwrap();
            let filled = entries.chunks(64).filter(|entry| entry[..8] != [0; 8]).count();
            assert_eq!(filled as u64, most + 1);
        }),
    ),
    Row(
        263,
        1,
        "NPSS",
        Value(|f, states| {
            assert_eq!(states, 0);
            let second = SetFeatures::new(FeatureId::POWER_MANAGEMENT, 1).emit();
            assert_eq!(status_of(&mut f.admin, &second), INVALID_FIELD);
        }),
    ),
    Row(264, 1, "AVSCC", Zero),
    Row(265, 1, "APSTA", Bits(&[(0, |f, on| assert_supported(feature(f, 0x0c), on, INVALID_FIELD))])),
    Row(266, 6, "WCTEMP, CCTEMP, MTFA", Zero),
    Row(
        272,
        8,
        "HMPRE, HMMIN",
        Value(|f, size| assert_supported(feature(f, 0x0d), size != 0, INVALID_FIELD)),
    ),
    Row(
        280,
        16,
        "TNVMCAP",
        Value(|f, bytes| {
            let of = |nsid| u64::from_le_bytes(identify(f, Cns::NAMESPACE, nsid)[48..56].try_into().unwrap());
            assert_eq!(bytes, [1, 3].map(of).iter().sum::<u64>(), "of all namespaces that the host sees");
        }),
    ),
    Row(296, 16, "UNVMCAP", Zero),
    Row(312, 4, "RPMBS", Zero),
    Row(316, 4, "EDSTT, DSTO, FWUG", Zero),
    Row(320, 2, "KAS", Value(|f, _| assert_eq!(admin(f, AdminOpcode::KEEP_ALIVE), OK))),
    Row(
        322,
        6,
        "HCTMA, MNTMT, MXTMT",
        Value(|f, on| assert_supported(feature(f, 0x10), on != 0, INVALID_FIELD)),
    ),
    Row(
        328,
        4,
        "SANICAP",
        Value(|f, on| assert_supported(admin(f, AdminOpcode::SANITIZE), on != 0, INVALID_OPCODE)),
    ),
    Row(332, 10, "HMMINDS to ENDGIDMAX", Zero),
    Row(342, 1, "ANATT", Value(|_, seconds| assert!(seconds > 0))),
    Row(
        343,
        1,
        "ANACAP",
        Bits(&[
            (0, |f, on| ana_state(f, AnaState::OPTIMIZED, on, OK)),
            (1, |f, on| ana_state(f, AnaState::NON_OPTIMIZED, on, OK)),
            (2, |f, on| ana_state(f, AnaState::INACCESSIBLE, on, (3, 2))),
            (3, |f, on| ana_state(f, AnaState::PERSISTENT_LOSS, on, (3, 1))),
            (4, |f, on| ana_state(f, AnaState::CHANGE, on, (3, 3))),
        ]),
    ),
    Row(
        344,
        4,
        "ANAGRPMAX",
        Value(|f, most| {
            let in_group = |group| {
                let access = NamespaceAccess { ana_group: group, ..Default::default() };
                vec![NamespaceDefinition { access, ..namespace(1, disk()) }]
            };
            f.registry.set_namespaces(&nqn(SUBSYSTEM), in_group(most as u32)).unwrap();
            assert!(f.registry.set_namespaces(&nqn(SUBSYSTEM), in_group(most as u32 + 1)).is_err());
        }),
    ),
    Row(
        348,
        4,
        "NANAGRPID",
        Value(|f, groups| {
            let most =
                u64::from_le_bytes([page(f)[344], page(f)[345], page(f)[346], page(f)[347], 0, 0, 0, 0]);
            assert!(groups > 0 && groups <= most);
        }),
    ),
    Row(352, 34, "PELS to TMPTHHA", Zero),
    // Any time may be the true one.
    Row(386, 2, "CQT", Value(|_, _| ())),
    Row(388, 124, "CDPA to MSMT", Zero),
    Row(512, 1, "SQES", Value(|_, sizes| assert_eq!(sizes, 0x66))),
    Row(513, 1, "CQES", Value(|_, sizes| assert_eq!(sizes, 0x44))),
    Row(
        514,
        2,
        "MAXCMD",
        Value(|f, most| {
            let entries = get(&mut f.admin, Property::CAP, 1).unwrap() & 0xffff;
            assert_eq!(most, entries + 1);
        }),
    ),
    Row(
        516,
        4,
        "NN",
        Value(|f, nn| {
            assert_eq!(identify(f, Cns::NAMESPACE, nn as u32), [0; 4096], "it can be, and is not");
            let behind = Identify::new(Cns::NAMESPACE, Nsid(nn as u32 + 1)).emit();
            assert_eq!(read(&mut f.admin, &behind, 4096), Err(INVALID_NAMESPACE));
        }),
    ),
    Row(
        520,
        2,
        "ONCS",
        Bits(&[
            (0, |f, on| assert_supported(blocks(f, NvmOpcode::COMPARE, 1, 0, 1), on, INVALID_OPCODE)),
            (1, |f, on| {
                assert_supported(blocks(f, NvmOpcode::WRITE_UNCORRECTABLE, 1, 0, 1), on, INVALID_OPCODE)
            }),
            (2, |f, on| {
                let sqe = with_data(NvmOpcode::DATASET_MANAGEMENT, [0, 1 << 2, 0], 16);
                assert_supported(status_of(&mut f.io, &sqe), on, INVALID_OPCODE);
            }),
            (3, |f, on| assert_supported(blocks(f, NvmOpcode::WRITE_ZEROES, 1, 0, 1), on, INVALID_OPCODE)),
            (4, super::features::select_works),
            (5, |f, on| {
                for opcode in [
                    NvmOpcode::RESERVATION_REGISTER,
                    NvmOpcode::RESERVATION_ACQUIRE,
                    NvmOpcode::RESERVATION_RELEASE,
                ] {
                    assert_supported(
                        status_of(&mut f.io, &with_data(opcode, [0; 3], 16)),
                        on,
                        INVALID_OPCODE,
                    );
                }
                let report = with_data(NvmOpcode::RESERVATION_REPORT, [15, 1, 0], 64);
                assert_supported(status_of(&mut f.io, &report), on, INVALID_OPCODE);
            }),
            (6, |f, on| {
                let sqe = keyed(SetFeatures::new(FeatureId::TIMESTAMP, 0).emit(), 8);
                assert_supported(status_of(&mut f.admin, &sqe), on, INVALID_FIELD);
            }),
            (7, |f, on| assert_supported(blocks(f, NvmOpcode::VERIFY, 1, 0, 1), on, INVALID_OPCODE)),
            (8, |f, on| assert_supported(copy(f, 0, 32), on, INVALID_OPCODE)),
        ]),
    ),
    Row(522, 2, "FUSES", Bits(&[(0, compare_and_write)])),
    Row(524, 1, "FNA", Zero),
    Row(
        525,
        1,
        "VWC",
        Bits(&[
            (0, |f, on| {
                let flush = Sqe::new(NvmOpcode::FLUSH.0).with_nsid(Nsid(1));
                assert!(on, "namespace 1 has a cache");
                let Step::Execute { ticket, work: Work::Block { op: BlockWork::Flush, .. }, .. } =
                    capsule(&mut f.io, &flush, 0)
                else {
                    panic!("the device is flushed")
                };
                ticket.abandon();
                assert_eq!(feature(f, 0x06), OK);
            }),
            (1, |f, on| {
                let flush = Sqe::new(NvmOpcode::FLUSH.0).with_nsid(Nsid::ALL);
                assert_supported(status_of(&mut f.io, &flush), on, INVALID_NAMESPACE);
            }),
            (2, |_, on| assert!(on, "bits 2:1 say that bit 1 is valid")),
        ]),
    ),
    // One block, which no device tears.
    Row(526, 4, "AWUN, AWUPF", Zero),
    Row(530, 1, "ICSVSCC", Zero),
    Row(531, 1, "NWPC", Bits(&[(0, protects::<1>), (1, protects::<2>), (2, protects::<3>)])),
    Row(
        532,
        2,
        "ACWU",
        Value(|f, most| {
            assert_eq!(fused(f, most as u32 + 1), OK);
            assert_eq!(fused(f, most as u32 + 2), (0, 0x14), "Atomic Write Unit Exceeded");
        }),
    ),
    Row(
        534,
        2,
        "CDFS",
        Bits(&[
            (0, |f, on| assert_supported(copy(f, 0, 32), on, INVALID_FIELD)),
            (1, |f, on| assert_supported(copy(f, 1, 40), on, INVALID_FIELD)),
            (2, |f, on| assert_supported(copy(f, 2, 32), on, INVALID_FIELD)),
            (3, |f, on| assert_supported(copy(f, 3, 40), on, INVALID_FIELD)),
            (4, |f, on| assert_supported(copy(f, 4, 32), on, INVALID_FIELD)),
        ]),
    ),
    Row(
        536,
        4,
        "SGLS",
        Bits(&[
            (0, |f, on| assert_supported(blocks(f, NvmOpcode::READ, 1, 0, 1), on, INVALID_FIELD)),
            (2, |f, on| assert_supported(blocks(f, NvmOpcode::READ, 1, 0, 1), on, INVALID_FIELD)),
            (16, |f, on| {
                let mut sqe = ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1));
                let bit_bucket = [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0x10];
                sqe.sgl = nvme_proto::SglDescriptor::read_from_bytes(&bit_bucket).unwrap();
                assert_supported(status_of(&mut f.io, &sqe), on, (0, 0x11));
            }),
            (20, |f, on| {
                let mut sqe = ReadWrite::new(0, 1).emit(NvmOpcode::WRITE, Nsid(1));
                sqe.sgl = nvme_proto::SglDescriptor::in_capsule(0, 512);
                match capsule(&mut f.io, &sqe, 512) {
                    Step::Execute { ticket, .. } => {
                        ticket.abandon();
                        assert!(on)
                    }
                    _ => assert!(!on),
                }
            }),
        ]),
    ),
    Row(
        540,
        4,
        "MNAN",
        Value(|f, most| {
            let options = Options::default();
            assert!(most as usize == options.namespaces_max() && most > 0);
            assert!(most <= u64::from(u32::from_le_bytes(page(f)[516..520].try_into().unwrap())));
        }),
    ),
    Row(544, 224, "MAXDNA to reserved", Zero),
    Row(768, 256, "SUBNQN", Value(|f, _| assert_eq!(page(f)[768..1024], nqn(SUBSYSTEM).to_field()))),
    Row(1024, 768, "reserved", Zero),
    Row(
        1792,
        4,
        "IOCCSZ",
        Value(|f, size| {
            let data = size as usize * 16 - 64;
            let mut sqe = ReadWrite::new(0, (data / 512) as u32).emit(NvmOpcode::WRITE, Nsid(1));
            sqe.sgl = nvme_proto::SglDescriptor::in_capsule(0, data as u32);
            let Step::Execute { ticket, .. } = capsule(&mut f.io, &sqe, data) else {
                panic!("{data} bytes in a capsule")
            };
            ticket.abandon();
        }),
    ),
    Row(1796, 4, "IORCSZ", Value(|_, size| assert_eq!(size, 1))),
    Row(1800, 3, "ICDOFF, FCATT", Zero),
    Row(1803, 1, "MSDBD", Value(|_, descriptors| assert_eq!(descriptors, 1))),
    Row(
        1804,
        2,
        "OFCS",
        Bits(&[(0, |f, on| {
            let disconnect = nvme_proto::fabrics::disconnect();
            assert_supported(status_of(&mut f.io, &disconnect), on, INVALID_OPCODE);
        })]),
    ),
    Row(1806, 1, "DCTYPE", Zero),
    Row(1807, 1, "CCRL", Value(|f, most| assert_supported(reset_of_others(f), most != 0, INVALID_OPCODE))),
    // Power state 0 says nothing of its power; no others, nothing of a vendor's.
    Row(1808, 2288, "reserved, PSD, VS", Zero),
];

const NVM_CONTROLLER: &[Row] = &[
    Row(0, 1, "VSL", Value(|f, size| most_blocks(f, NvmOpcode::VERIFY, size))),
    Row(1, 1, "WZSL", Value(|f, size| most_blocks(f, NvmOpcode::WRITE_ZEROES, size))),
    Row(2, 1, "WUSL", Zero),
    Row(
        3,
        1,
        "DMRL",
        Value(|f, most| {
            let ranges: Vec<_> = (0..256).map(|at| (1, at)).collect();
            assert_eq!(deallocated(f, &ranges).len() as u64, most, "what is beyond is not processed");
        }),
    ),
    Row(
        4,
        4,
        "DMRSL",
        Value(|f, most| {
            assert_eq!(deallocated(f, &[(most as u32 + 1, 0)]), [most]);
        }),
    ),
    Row(
        8,
        8,
        "DMSL",
        Value(|f, most| {
            let half = most as u32 / 2 + 1;
            assert_eq!(deallocated(f, &[(half, 0), (half, half.into())]).iter().sum::<u64>(), most);
        }),
    ),
    Row(16, 4080, "reserved", Zero),
];

#[test]
fn every_bit_of_identify_controller_works_or_is_refused() {
    walk(&identify(&mut Fixture::new(), Cns::CONTROLLER, 0), CONTROLLER, Fixture::new);
}

#[test]
fn write_protection_is_advertised_where_it_can_be_kept() {
    let fixture = || Fixture::with(Options { write_protection: true, ..Options::default() });
    walk(&identify(&mut fixture(), Cns::CONTROLLER, 0), CONTROLLER, fixture);
}

#[test]
fn every_limit_of_the_command_set_is_held() {
    let page = identify(&mut Fixture::new(), Cns::COMMAND_SET_CONTROLLER, 0);
    walk(&page, NVM_CONTROLLER, large);
}

#[test]
fn every_effect_of_a_command_is_true() {
    let mut fixture = Fixture::new();
    let sqe = GetLogPage::new(LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, Nsid::ALL, 0, 4096).emit();
    let page = read(&mut fixture.admin, &sqe, 4096).unwrap();
    let log = CommandsSupportedLog::read_from_bytes(&page).unwrap();
    for (opcode, word) in (0..=u8::MAX).zip(&log.io) {
        let writes =
            [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT, NvmOpcode::COPY];
        let effect = if writes.contains(&NvmOpcode(opcode)) { effects::LOGICAL_BLOCK_CHANGE } else { 0 };
        assert!(word.get() == 0 || word.get() == effects::SUPPORTED | effect, "{opcode:#x}: {word:?}");
    }
    // Only a change of write protection changes a namespace, and no command a controller's capabilities.
    for (opcode, word) in log.admin.iter().enumerate() {
        assert!(word.get() & !effects::SUPPORTED == 0, "{opcode:#x}: {word:?}");
    }
}

/// A namespace that every limit fits on.
fn large() -> Fixture {
    let mut fixture = Fixture::new();
    let geometry = nvmf_block::Geometry { deallocate: true, ..nvmf_block::Geometry::new(4096, 1 << 32) };
    fixture.registry.set_namespaces(&nqn(SUBSYSTEM), vec![namespace(1, geometry)]).unwrap();
    fixture.deliver();
    fixture
}

fn page(fixture: &mut Fixture) -> Vec<u8> {
    identify(fixture, Cns::CONTROLLER, 0)
}

fn text(fixture: &mut Fixture, at: usize, len: usize) -> String {
    String::from_utf8(page(fixture)[at..at + len].to_vec()).unwrap().trim_end().to_owned()
}

fn assert_log(fixture: &mut Fixture, lid: u8, on: bool) {
    assert_supported(log(fixture, LogPageId(lid)).err().unwrap_or(OK), on, INVALID_LOG_PAGE);
}

fn several_ports(fixture: &mut Fixture, on: bool) {
    fixture.registry.set_ports(vec![port(), Port { id: 2, ..port() }]).unwrap();
    let mut hello = Hello::admin();
    hello.link.port = 2;
    assert_eq!(code(&hello.connect(&mut fixture.registry).1) == OK, on);
}

fn several_controllers(fixture: &mut Fixture, on: bool) {
    assert_eq!(code(&Hello::admin().connect(&mut fixture.registry).1) == OK, on);
}

fn ana(fixture: &mut Fixture, on: bool) {
    assert_log(fixture, LogPageId::ANA.0, on);
}

fn ana_state(fixture: &mut Fixture, state: AnaState, on: bool, of_reads: Code) {
    assert!(on, "each state is reported");
    fixture.registry.set_ana_state(PORT, 1, state).unwrap();
    fixture.deliver();
    assert_eq!(log(fixture, LogPageId::ANA).unwrap()[16 + 16], state.0);
    assert_eq!(blocks(fixture, NvmOpcode::READ, 1, 0, 1), of_reads);
}

fn event_request(fixture: &mut Fixture) -> Code {
    admin(fixture, AdminOpcode::ASYNC_EVENT_REQUEST)
}

/// The event that a change causes, once the host has asked for those of a bit.
fn event_of(fixture: &mut Fixture, bit: u32, change: fn(&mut Registry)) -> Option<u32> {
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << bit).emit();
    assert_eq!(status_of(&mut fixture.admin, &config), OK);
    assert_eq!(event_request(fixture), OK);
    change(&mut fixture.registry);
    event(fixture)
}

fn namespace_events(fixture: &mut Fixture, on: bool) {
    assert!(on);
    let change = |registry: &mut Registry| registry.remove_namespace(&nqn(SUBSYSTEM), Nsid(3)).unwrap();
    assert_eq!(event_of(fixture, 8, change), Some(0x0004_0002));
}

fn ana_events(fixture: &mut Fixture, on: bool) {
    assert!(on);
    let change = |registry: &mut Registry| registry.set_ana_state(PORT, 1, AnaState::INACCESSIBLE).unwrap();
    assert_eq!(event_of(fixture, 11, change), Some(0x000c_0302));
}

/// The end of a Cross-Controller Reset that was not over when its command was answered.
fn reset_events(fixture: &mut Fixture, on: bool) {
    assert!(on);
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << 20).emit();
    assert_eq!(status_of(&mut fixture.admin, &config), OK);
    assert_eq!(event_request(fixture), OK);
    let mut other = reset::second(fixture, &Hello::admin());
    let impacted = reset::instance(&mut other);
    let (ticket, question) = reset::command(&mut fixture.admin, impacted, 99).unwrap();
    let _ = responded(fixture.admin.on_answer(NOW, ticket, Answer::Reset(Ok(false))));
    fixture.registry.on_reset_over(&question, true);
    assert_eq!(event(fixture), Some(0x001e_f402));
}

fn no_event<const BIT: u32>(fixture: &mut Fixture, on: bool) {
    assert!(!on, "event {BIT} is announced, and has no row");
    let config = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, 1 << BIT).emit();
    assert_eq!(status_of(&mut fixture.admin, &config), INVALID_FIELD);
}

fn host_id_of_128_bits(fixture: &mut Fixture, on: bool) {
    assert!(on);
    let mut sqe = nvme_proto::admin::features::GetFeatures::new(FeatureId::HOST_ID);
    sqe.cdw11 = 1;
    assert_eq!(read(&mut fixture.admin, &sqe.emit(), 16), Ok(HOST_ID.0.to_vec()));
}

fn traffic_keeps_alive(fixture: &mut Fixture, on: bool) {
    let later = NOW + core::time::Duration::from_secs(3);
    let sqe = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)), 512);
    match fixture.io.on_capsule(later, zerocopy::IntoBytes::as_bytes(&sqe).try_into().unwrap(), 0) {
        Step::Execute { ticket, .. } => ticket.abandon(),
        step => panic!("{step:?}"),
    }
    assert_eq!(fixture.association().last_activity() == later, on);
}

fn reset_of_others(fixture: &mut Fixture) -> Code {
    match admin(fixture, AdminOpcode::CROSS_CONTROLLER_RESET) {
        INVALID_OPCODE => INVALID_OPCODE,
        // Of no controller: but there is such a command.
        _ => OK,
    }
}

fn copy(fixture: &mut Fixture, format: u32, len: u32) -> Code {
    // The host says that it knows every format.
    let mut data = [0; 512];
    data[4] = 0b1_1111;
    let sqe = keyed(SetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT, 0).emit(), 512);
    let (ticket, _) = parameters(capsule(&mut fixture.admin, &sqe, 0));
    assert_eq!(code(&responded(fixture.admin.on_parameters(NOW, ticket, &data))), OK);
    status_of(&mut fixture.io, &with_data(NvmOpcode::COPY, [0, 0, format << 8], len))
}

/// The status of a Compare and Write of so many blocks, whose data are right.
fn fused(fixture: &mut Fixture, blocks: u32) -> Code {
    let half = |cid, flags, opcode| {
        let mut sqe = keyed(ReadWrite::new(0, blocks).emit(opcode, Nsid(1)), blocks * 512);
        sqe.flags = flags;
        with_cid(sqe, cid)
    };
    let mut steps = vec![
        capsule(&mut fixture.io, &half(1, 0x41, NvmOpcode::COMPARE), 0),
        capsule(&mut fixture.io, &half(2, 0x42, NvmOpcode::WRITE), 0),
    ];
    let (mut first, mut device) = (None, false);
    while let Some(step) = steps.pop() {
        match step {
            Step::Respond(response) => {
                let cqe = Cqe::read_from_bytes(&response.cqe).unwrap();
                first = first.or((cqe.cid.get() == 1).then(|| code(&cqe)));
            }
            Step::Execute { ticket, work: Work::Parameters, transfer: Transfer::FromHost { len, .. } } => {
                steps.push(fixture.io.on_parameters(NOW, ticket, &vec![0; len as usize]));
            }
            Step::Execute { ticket, work, .. } => {
                device |= matches!(work, Work::Block { op: BlockWork::CompareAndWrite(_), .. });
                steps.push(fixture.io.on_done(NOW, ticket, Ok(())));
            }
            _ => {}
        }
        if steps.is_empty() {
            steps.extend(fixture.io.poll_step(NOW));
        }
    }
    let first = first.expect("the first is answered");
    assert_eq!(first == OK, device, "the device carries it out");
    first
}

fn compare_and_write(fixture: &mut Fixture, on: bool) {
    assert_eq!(fused(fixture, 1) == OK, on);
}

fn protects<const STATE: u32>(fixture: &mut Fixture, on: bool) {
    let command = SetFeatures {
        nsid: Nsid(1),
        ..SetFeatures::new(FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG, STATE)
    };
    assert_supported(status_of(&mut fixture.admin, &command.emit()), on, INVALID_FIELD);
}

/// A command without data covers 2^size pages, and no more.
fn most_blocks(fixture: &mut Fixture, opcode: NvmOpcode, size: u64) {
    let most = 1 << size;
    assert_eq!(blocks(fixture, opcode, 1, 0, most), OK);
    assert_eq!(blocks(fixture, opcode, 1, 0, most + 1), INVALID_FIELD);
}

/// What a Dataset Management command with these ranges (blocks, SLBA) has the device deallocate, in blocks of each.
fn deallocated(fixture: &mut Fixture, ranges: &[(u32, u64)]) -> Vec<u64> {
    let mut data = Vec::new();
    for (blocks, slba) in ranges {
        data.extend([0; 4]);
        data.extend(blocks.to_le_bytes());
        data.extend(slba.to_le_bytes());
    }
    let sqe =
        with_data(NvmOpcode::DATASET_MANAGEMENT, [ranges.len() as u32 - 1, 1 << 2, 0], data.len() as u32);
    let (ticket, _) = parameters(capsule(&mut fixture.io, &sqe, 0));
    match fixture.io.on_parameters(NOW, ticket, &data) {
        Step::Execute { ticket, work: Work::Block { op: BlockWork::Deallocate(ranges), .. }, .. } => {
            ticket.abandon();
            ranges.iter().map(|range| range.blocks).collect()
        }
        step => panic!("{step:?}"),
    }
}
