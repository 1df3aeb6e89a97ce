//! Get Log Page.

use crate::host::*;
use nvme_proto::Sqe;
use nvme_proto::admin::log_page::{
    CommandsSupportedLog, ErrorEntry, FirmwareSlotLog, GetLogPage, LogPageId, SmartLog, SupportedLogPages,
};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvmf_block::BlockError;
use nvmf_subsystem::*;
use zerocopy::FromBytes;

const INVALID_FIELD: (u8, u8) = (0, 0x02);

fn log(lid: LogPageId, offset: u64, len: u64) -> Sqe {
    GetLogPage::new(lid, Nsid::ALL, offset, len).emit()
}

fn page(admin: &mut Queue, lid: LogPageId, len: u32) -> Vec<u8> {
    read(admin, &log(lid, 0, len.into()), len).unwrap()
}

#[test]
fn every_page_that_is_listed_can_be_read_and_no_other() {
    let mut fixture = Fixture::new();
    let bytes = page(&mut fixture.admin, LogPageId::SUPPORTED_LOG_PAGES, 1024);
    let supported = SupportedLogPages::read_from_bytes(&bytes).unwrap();
    for lid in 0..=u8::MAX {
        let result = read(&mut fixture.admin, &log(LogPageId(lid), 0, 4), 4);
        if supported.pages[usize::from(lid)].get() & 1 == 1 {
            assert!(result.is_ok(), "{lid:#x}");
        } else {
            assert_eq!(result, Err((1, 0x09)), "{lid:#x}");
        }
    }
}

#[test]
fn offset_and_length_are_checked() {
    let mut fixture = Fixture::with(Options { transfer_len_max: 8192, ..Options::default() });
    let admin = &mut fixture.admin;
    let firmware = LogPageId::FIRMWARE_SLOT;
    let whole = page(admin, firmware, 512);
    assert_eq!(read(admin, &log(firmware, 8, 16), 16).unwrap(), whole[8..24]);
    let behind = read(admin, &log(firmware, 508, 8), 8).unwrap();
    assert_eq!(behind[4..], [0; 4], "zeroes behind the end");
    assert_eq!(read(admin, &log(firmware, 512, 8), 8), Ok(vec![0; 8]));
    for sqe in [
        log(firmware, 516, 8),
        log(firmware, u64::MAX - 3, 8),
        log(firmware, 2, 8),
        log(firmware, 0, 8196),
        log(firmware, 0, 1 << 34),
        GetLogPage { offset_is_index: true, ..GetLogPage::new(firmware, Nsid::ALL, 0, 8) }.emit(),
        GetLogPage::new(LogPageId::SMART, Nsid(1), 0, 512).emit(),
    ] {
        assert_eq!(read(admin, &sqe, 8192), Err(INVALID_FIELD), "{:?}", GetLogPage::parse(&sqe));
    }
    assert_eq!(read(admin, &log(firmware, 0, 512), 508), Err((0, 0x0f)));
}

#[test]
fn failed_admin_commands_are_in_the_error_log_newest_first() {
    let mut fixture = Fixture::new();
    let error = |admin: &mut Queue, count: usize| {
        let bytes = page(admin, LogPageId::ERROR, 1024);
        let entries: Vec<_> =
            bytes.chunks(64).map(|entry| ErrorEntry::read_from_bytes(entry).unwrap()).collect();
        assert!(entries[count..].iter().all(|entry| entry.error_count.get() == 0));
        entries
    };
    error(&mut fixture.admin, 0);
    for cid in 0..20 {
        let _ = ask(&mut fixture.admin, &with_cid(Sqe::new(0x7e), cid));
        let count = usize::from(cid) + 1;
        let entries = error(&mut fixture.admin, count.min(16));
        let newest = &entries[0];
        assert_eq!((newest.error_count.get(), newest.cid.get()), (count as u64, cid));
        assert_eq!((newest.opcode, newest.status.get()), (0x7e, 0x8002));
    }
    let smart = SmartLog::read_from_bytes(&page(&mut fixture.admin, LogPageId::SMART, 512)).unwrap();
    assert_eq!(u128::from_le_bytes(smart.error_log_entries), 20);
}

#[test]
fn failed_io_commands_are_in_the_error_log_with_namespace_and_block() {
    let mut fixture = Fixture::new();
    let read = |cid, slba, blocks| {
        with_cid(keyed(ReadWrite::new(slba, blocks).emit(NvmOpcode::READ, Nsid(1)), blocks * 512), cid)
    };
    let beyond = ask(&mut fixture.io, &read(5, 1000, 1));
    let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &read(6, 40, 8), 0) else { panic!("a read") };
    let medium = responded(fixture.io.on_done(NOW, ticket, Err(BlockError::Medium)));
    // A difference is what Compare is for.
    let compare = with_cid(keyed(ReadWrite::new(1, 1).emit(NvmOpcode::COMPARE, Nsid(1)), 512), 7);
    let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &compare, 0) else { panic!("a compare") };
    let _ = responded(fixture.io.on_done(NOW, ticket, Err(BlockError::CompareFailed)));
    let bytes = page(&mut fixture.admin, LogPageId::ERROR, 192);
    let entries: Vec<_> = bytes.chunks(64).map(|entry| ErrorEntry::read_from_bytes(entry).unwrap()).collect();
    for (entry, count, cqe, cid, lba) in [(&entries[0], 2, medium, 6, 40), (&entries[1], 1, beyond, 5, 1000)]
    {
        assert_eq!((entry.error_count.get(), entry.sqid.get(), entry.cid.get()), (count, 1, cid));
        assert_eq!((entry.nsid.get(), entry.lba.get(), entry.opcode), (1, lba, NvmOpcode::READ.0));
        assert_eq!(entry.status.get(), cqe.status().to_field());
    }
    assert_eq!(entries[2].error_count.get(), 0);
}

#[test]
fn error_log_has_no_entry_of_a_failed_connect() {
    let mut fixture = Fixture::new();
    assert_eq!(code(&ask(&mut fixture.admin, &Hello::admin().command())), (0, 0x0c));
    let bytes = page(&mut fixture.admin, LogPageId::ERROR, 64);
    assert_eq!(bytes, [0; 64]);
    let _ = ask(&mut fixture.admin, &Sqe::new(0x7e));
    let entry = ErrorEntry::read_from_bytes(&page(&mut fixture.admin, LogPageId::ERROR, 64)).unwrap();
    assert_eq!((entry.opcode, entry.lpver), (0x7e, 1), "the opcode counts with LPVER 1 only");
}

#[test]
fn smart_log_counts_what_an_idle_queue_did() {
    let mut fixture = Fixture::new();
    for (opcode, blocks, result) in [
        (NvmOpcode::READ, 1000, Ok(())),
        (NvmOpcode::READ, 500, Ok(())),
        (NvmOpcode::WRITE, 1000, Ok(())),
        (NvmOpcode::WRITE, 1000, Ok(())),
        (NvmOpcode::READ, 1000, Err(BlockError::Medium)),
    ] {
        let sqe = keyed(ReadWrite::new(0, blocks).emit(opcode, Nsid(1)), blocks * 512);
        let Step::Execute { ticket, .. } = capsule(&mut fixture.io, &sqe, 0) else { panic!("{opcode:?}") };
        let _ = responded(fixture.io.on_done(NOW, ticket, result));
    }
    // The queue goes on living, and nothing more comes.
    let due = fixture.io.poll_timeout().expect("counts that are to be added");
    assert!(due <= NOW + std::time::Duration::from_secs(1));
    fixture.io.on_timeout(due);
    assert_eq!(fixture.io.poll_timeout(), None);
    let smart = SmartLog::read_from_bytes(&page(&mut fixture.admin, LogPageId::SMART, 512)).unwrap();
    let counts = [
        smart.host_read_commands,
        smart.host_write_commands,
        smart.data_units_read,
        smart.data_units_written,
        smart.media_errors,
    ];
    assert_eq!(counts.map(u128::from_le_bytes), [2, 2, 2, 2, 1]);
}

#[test]
fn supported_commands_are_those_that_are_not_invalid_opcodes() {
    let mut fixture = Fixture::new();
    let bytes = page(&mut fixture.admin, LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, 4096);
    let supported = CommandsSupportedLog::read_from_bytes(&bytes).unwrap();
    for opcode in 0..=u8::MAX {
        if opcode == AdminOpcode::FABRICS.0 {
            continue;
        }
        for (queue, listed) in [
            (&mut fixture.admin, supported.admin[usize::from(opcode)].get()),
            (&mut fixture.io, supported.io[usize::from(opcode)].get()),
        ] {
            let invalid = match capsule(queue, &with_cid(Sqe::new(opcode), opcode.into()), 0) {
                Step::Respond(response) => nvme_proto::Cqe::read_from_bytes(&response.cqe)
                    .unwrap()
                    .status()
                    .is(Status::INVALID_OPCODE),
                Step::Execute { ticket, .. } | Step::Ask { ticket, .. } => {
                    ticket.abandon();
                    false
                }
                _ => false,
            };
            assert_eq!(listed & 1 == 0, invalid, "{opcode:#x}");
        }
    }
}

#[test]
fn a_command_set_that_is_not_there_has_no_commands() {
    let mut fixture = Fixture::new();
    let mut listed = |csi| {
        let command = GetLogPage {
            csi,
            ..GetLogPage::new(LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, Nsid(0), 0, 4096)
        };
        let bytes = read(&mut fixture.admin, &command.emit(), 4096).unwrap();
        CommandsSupportedLog::read_from_bytes(&bytes[..]).unwrap()
    };
    let (nvm, zoned) = (listed(0), listed(2));
    assert_eq!(zoned.admin, nvm.admin);
    assert!(zoned.io.iter().all(|word| word.get() == 0) && nvm.io.iter().any(|word| word.get() != 0));
}

#[test]
fn the_firmware_slot_and_the_features_log() {
    let mut fixture = Fixture::with(Options { firmware: *b"9.9     ", ..Options::default() });
    let slots =
        FirmwareSlotLog::read_from_bytes(&page(&mut fixture.admin, LogPageId::FIRMWARE_SLOT, 512)).unwrap();
    assert_eq!((slots.afi, &slots.revisions[0]), (1, b"9.9     "));
    let features = page(&mut fixture.admin, LogPageId::FEATURES_SUPPORTED_AND_EFFECTS, 1024);
    let supported: Vec<_> = (0..256).filter(|fid| features[fid * 4] & 1 == 1).collect();
    assert_eq!(supported, [1, 2, 4, 5, 6, 7, 0xa, 0xb, 0xe, 0xf, 0x16, 0x19, 0x81, 0x82, 0x83]);
}
