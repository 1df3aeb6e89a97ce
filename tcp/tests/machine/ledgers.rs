//! What the ledgers of both sides take and refuse.

use nvme_proto::tcp::{C2hData, Digests, FatalError, FatalErrorStatus, H2cData, IcReq, IcResp, R2t};
use nvme_proto::{Cid, Cqe, Status};
use nvmf_tcp::controller::{Arrival, Placement, Transfers};
use nvmf_tcp::host::{self, Commands, Completion, DataFault, Transfer};
use proptest::prelude::*;

const CID: Cid = Cid(0x4003);
const MAXH2CDATA: u32 = 8192;

fn fatal<T>(fes: u16, fei: u32) -> Result<T, FatalError> {
    Err(FatalError { status: FatalErrorStatus(fes), information: fei })
}

/// A queue of 20 slots of which slot 3 waits for 12 KiB from offset 4096 on, and the first H2CData that is right.
fn asked() -> (Transfers, H2cData) {
    let mut transfers = Transfers::new(20, MAXH2CDATA);
    let r2t = transfers.begin(3, CID, 4096, 12288).unwrap();
    assert_eq!((r2t.cid, r2t.offset, r2t.len), (CID, 4096, 12288));
    let first = H2cData { cid: CID, ttag: r2t.ttag, offset: 4096, len: 4096, last: false };
    (transfers, first)
}

#[test]
fn transfer_is_placed_piece_by_piece() {
    let (mut transfers, first) = asked();
    let placement = Placement { slot: 3, offset: 4096, len: 4096, last: false, discard: false };
    assert_eq!(transfers.on_data(&first), Ok(placement));
    let arrival = Arrival { slot: 3, last: false, intact: true, discard: false };
    assert_eq!(transfers.on_data_end(true), Some(arrival));
    let second = H2cData { offset: 8192, len: 8192, last: true, ..first };
    assert_eq!(
        transfers.on_data(&second),
        Ok(Placement { offset: 8192, len: 8192, last: true, ..placement })
    );
    // The slot is in use until the bytes are there.
    assert!(transfers.is_outstanding(3) && transfers.begin(3, CID, 16384, 4).is_none());
    assert_eq!(transfers.on_data_end(true), Some(Arrival { last: true, ..arrival }));
    assert!(!transfers.is_outstanding(3));
    let next = transfers.begin(3, CID, 16384, 4).unwrap();
    assert_ne!(next.ttag, first.ttag);
}

#[test]
fn in_capsule_data_end_is_no_arrival() {
    let (mut transfers, first) = asked();
    assert_eq!(transfers.on_data_end(true), None);
    transfers.on_data(&first).unwrap();
    assert!(transfers.on_data_end(true).is_some());
    assert_eq!(transfers.on_data_end(false), None);
}

#[test]
fn begin_refuses_what_no_r2t_can_say() {
    let mut transfers = Transfers::new(1, MAXH2CDATA);
    for (offset, len) in [(0, 0), (0, 3), (2, 4), (u32::MAX - 3, 4), (4, u32::MAX - 3)] {
        assert_eq!(transfers.begin(0, CID, offset, len), None, "{len} at {offset}");
        assert!(!transfers.is_outstanding(0));
    }
    assert!(transfers.begin(0, CID, 0, 4).is_some());
    assert_eq!(transfers.begin(0, CID, 0, 4), None);
}

#[test]
fn more_than_maxh2cdata_is_status_5() {
    let (mut transfers, first) = asked();
    assert_eq!(transfers.on_data(&H2cData { len: 8196, ..first }), fatal(5, 0));
    assert!(transfers.on_data(&H2cData { len: 8192, ..first }).is_ok());
}

#[test]
fn unknown_or_stale_ttag_is_field_10() {
    let (mut transfers, first) = asked();
    for ttag in [first.ttag ^ 1, first.ttag ^ 1 << 10, 20, 31, 0, u16::MAX] {
        assert_eq!(transfers.on_data(&H2cData { ttag, ..first }), fatal(1, 10), "TTAG {ttag:#x}");
    }
    transfers.on_data(&H2cData { len: 8192, ..first }).unwrap();
    transfers.on_data_end(true);
    transfers.on_data(&H2cData { offset: 12288, last: true, ..first }).unwrap();
    transfers.on_data_end(true);
    assert_eq!(transfers.on_data(&first), fatal(1, 10), "answered in full");
    transfers.begin(3, CID, 4096, 12288).unwrap();
    assert_eq!(transfers.on_data(&first), fatal(1, 10), "of an older generation");
}

#[test]
fn wrong_command_is_field_8() {
    let (mut transfers, first) = asked();
    assert_eq!(transfers.on_data(&H2cData { cid: Cid(0x4004), ..first }), fatal(1, 8));
}

#[test]
fn data_outside_the_r2t_are_status_4() {
    let (mut transfers, first) = asked();
    for (offset, len) in [(0, 4096), (4092, 4), (16384, 4), (12288, 8192), (u32::MAX - 3, 4)] {
        let data = H2cData { offset, len, ..first };
        assert_eq!(transfers.on_data(&data), fatal(4, 0), "{len} at {offset}");
    }
}

#[test]
fn data_out_of_order_are_status_2() {
    let (mut transfers, first) = asked();
    assert_eq!(transfers.on_data(&H2cData { offset: 4100, ..first }), fatal(2, 0), "a gap");
    transfers.on_data(&first).unwrap();
    transfers.on_data_end(true);
    assert_eq!(transfers.on_data(&first), fatal(2, 0), "twice");
    assert_eq!(transfers.on_data(&H2cData { offset: 8188, ..first }), fatal(2, 0), "an overlap");
}

#[test]
fn last_pdu_missing_or_early_is_status_2() {
    let (mut transfers, first) = asked();
    assert_eq!(transfers.on_data(&H2cData { last: true, ..first }), fatal(2, 0));
    transfers.on_data(&first).unwrap();
    transfers.on_data_end(true);
    let rest = H2cData { offset: 8192, len: 8192, last: false, ..first };
    assert_eq!(transfers.on_data(&rest), fatal(2, 0));
}

#[test]
fn data_of_length_0_are_status_2() {
    let (mut transfers, first) = asked();
    assert_eq!(transfers.on_data(&H2cData { len: 0, ..first }), fatal(2, 0));
}

#[test]
fn ended_command_still_takes_its_data_and_says_discard() {
    let (mut transfers, first) = asked();
    transfers.on_data(&first).unwrap();
    transfers.end(3);
    // The PDU under way too.
    let arrival = Arrival { slot: 3, last: false, intact: true, discard: true };
    assert_eq!(transfers.on_data_end(true), Some(arrival));
    assert!(transfers.is_outstanding(3) && transfers.begin(3, Cid(9), 0, 4).is_none());
    let rest = H2cData { offset: 8192, len: 8192, last: true, ..first };
    assert!(transfers.on_data(&rest).unwrap().discard);
    assert_eq!(transfers.on_data_end(true), Some(Arrival { last: true, ..arrival }));

    // The next command of the slot keeps its data; ending one that waits for none changes nothing.
    transfers.end(3);
    let r2t = transfers.begin(3, Cid(9), 0, 4).unwrap();
    let data = H2cData { cid: Cid(9), ttag: r2t.ttag, offset: 0, len: 4, last: true };
    assert!(!transfers.on_data(&data).unwrap().discard);
}

#[test]
fn ttags_differ_between_generations_and_slots() {
    for slots in [1, 2, 3, 128, 1028, 4096] {
        let mut transfers = Transfers::new(slots, MAXH2CDATA);
        let last = (slots - 1) as u16;
        let mut seen = Vec::new();
        for _ in 0..16 {
            let r2t = transfers.begin(last, CID, 0, 4).unwrap();
            assert!(!seen.contains(&r2t.ttag), "{slots} slots: TTAG {:#x} again", r2t.ttag);
            seen.push(r2t.ttag);
            let data = H2cData { cid: CID, ttag: r2t.ttag, offset: 0, len: 4, last: true };
            assert_eq!(transfers.on_data(&data).unwrap().slot, last);
            transfers.on_data_end(true);
        }
    }
}

#[test]
fn digests_must_be_as_asked() {
    for (asked, used) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
        let digests = |bits: u8| Digests { header: bits & 1 != 0, data: bits & 2 != 0 };
        let request = IcReq { alignment: Default::default(), digests: digests(asked), maxr2t: 1 };
        let response = IcResp { alignment: Default::default(), digests: digests(used), maxh2cdata: 4096 };
        let expected = match used {
            _ if used == asked => Ok(digests(asked)),
            _ if used & !asked != 0 => fatal(1, 11),
            _ => fatal(6, 11),
        };
        assert_eq!(host::agreed(&request, &response), expected);
    }
}

/// A queue of 20 commands with one under way.
fn commands(transfer: Transfer) -> Commands {
    let mut commands = Commands::new(20, MAXH2CDATA);
    commands.begin(CID, transfer);
    commands
}

fn r2t(offset: u32, len: u32) -> R2t {
    R2t { cid: CID, ttag: 77, offset, len }
}

fn c2h(offset: u32, len: u32, last: bool) -> C2hData {
    C2hData { cid: CID, offset, len, last, success: false }
}

fn success() -> Cqe {
    Cqe { sqhd: 3.into(), ..Cqe::new(CID, Status::SUCCESS, 0x55) }
}

#[test]
fn r2t_is_answered_in_pieces_of_maxh2cdata() {
    let mut commands = commands(Transfer::ToController(20480));
    assert_eq!(commands.next_h2c_data(CID), None);
    commands.on_r2t(&r2t(0, 20480)).unwrap();
    let piece = H2cData { cid: CID, ttag: 77, offset: 0, len: 8192, last: false };
    assert_eq!(commands.next_h2c_data(CID), Some(piece));
    assert_eq!(commands.next_h2c_data(CID), Some(H2cData { offset: 8192, ..piece }));
    let last = H2cData { offset: 16384, len: 4096, last: true, ..piece };
    assert_eq!(commands.next_h2c_data(CID), Some(last));
    assert_eq!(commands.next_h2c_data(CID), None);
    let completion = commands.on_response(&success()).unwrap();
    assert_eq!(completion, Completion { cqe: success(), fault: None });
    assert!(!commands.contains(CID));
}

#[test]
fn r2ts_one_after_the_other() {
    let mut commands = commands(Transfer::ToController(8192));
    for offset in [0, 4096] {
        commands.on_r2t(&r2t(offset, 4096)).unwrap();
        assert!(commands.next_h2c_data(CID).unwrap().last);
    }
    assert_eq!(commands.on_r2t(&r2t(8192, 4)), fatal(4, 0));
}

#[test]
fn r2t_for_no_command_or_one_that_sends_nothing_is_field_8() {
    for transfer in [Transfer::None, Transfer::ToHost(4096)] {
        assert_eq!(commands(transfer).on_r2t(&r2t(0, 4096)), fatal(1, 8));
    }
    let mut commands = commands(Transfer::ToController(4096));
    for cid in [Cid(3), Cid(0x4004), Cid(0x401f), Cid(u16::MAX)] {
        assert_eq!(commands.on_r2t(&R2t { cid, ..r2t(0, 4096) }), fatal(1, 8));
    }
    commands.on_response(&Cqe::new(CID, Status::INTERNAL_ERROR, 0)).unwrap();
    assert_eq!(commands.on_r2t(&r2t(0, 4096)), fatal(1, 8));
}

#[test]
fn second_r2t_while_one_is_outstanding_is_status_5() {
    let mut commands = commands(Transfer::ToController(32768));
    commands.on_r2t(&r2t(0, 16384)).unwrap();
    assert!(!commands.next_h2c_data(CID).unwrap().last);
    assert_eq!(commands.on_r2t(&r2t(16384, 16384)), fatal(5, 0));
}

#[test]
fn r2t_before_or_after_what_was_asked_for_is_status_2_and_beyond_the_end_4() {
    let mut commands = commands(Transfer::ToController(16384));
    commands.on_r2t(&r2t(0, 4096)).unwrap();
    commands.next_h2c_data(CID).unwrap();
    for (offset, len, fes) in
        [(0, 4096, 2), (4092, 4, 2), (4100, 4, 2), (4096, 12292, 4), (16384, 4, 4), (4, u32::MAX, 4)]
    {
        assert_eq!(commands.on_r2t(&r2t(offset, len)), fatal(fes, 0), "{len} at {offset}");
    }
}

#[test]
fn read_is_placed_piece_by_piece() {
    let mut commands = commands(Transfer::ToHost(8192));
    let placement = host::Placement { cid: CID, offset: 0, len: 4096 };
    assert_eq!(commands.on_data(&c2h(0, 4096, false)), Ok(placement));
    assert_eq!(commands.on_data_end(true), None);
    assert_eq!(commands.on_data(&c2h(4096, 4096, true)), Ok(host::Placement { offset: 4096, ..placement }));
    assert_eq!(commands.on_data_end(true), None);
    assert_eq!(commands.on_response(&success()), Ok(Completion { cqe: success(), fault: None }));
}

#[test]
fn success_flag_completes_when_the_data_are_there() {
    let mut commands = commands(Transfer::ToHost(4096));
    commands.on_data(&C2hData { success: true, ..c2h(0, 4096, true) }).unwrap();
    assert!(commands.contains(CID));
    let cqe = Cqe::new(CID, Status::SUCCESS, 0);
    assert_eq!(commands.on_data_end(true), Some(Completion { cqe, fault: None }));
    assert!(!commands.contains(CID));
    assert_eq!(commands.on_response(&success()), fatal(1, 20));
}

#[test]
fn c2h_data_for_no_command_or_one_that_reads_nothing_are_field_8() {
    for transfer in [Transfer::None, Transfer::ToController(4096)] {
        assert_eq!(commands(transfer).on_data(&c2h(0, 4096, true)), fatal(1, 8));
    }
    let mut commands = commands(Transfer::ToHost(4096));
    for cid in [Cid(3), Cid(0x4004), Cid(0x401f)] {
        assert_eq!(commands.on_data(&C2hData { cid, ..c2h(0, 4096, true) }), fatal(1, 8));
    }
}

#[test]
fn c2h_data_beyond_the_transfer_are_status_4_and_out_of_order_2() {
    let mut commands = commands(Transfer::ToHost(8192));
    commands.on_data(&c2h(0, 4096, false)).unwrap();
    commands.on_data_end(true);
    for (offset, len, fes) in
        [(4096, 4100, 4), (8192, 4, 4), (u32::MAX, 8, 4), (0, 4096, 2), (4092, 4, 2), (4100, 4, 2)]
    {
        assert_eq!(commands.on_data(&c2h(offset, len, false)), fatal(fes, 0), "{len} at {offset}");
    }
    assert_eq!(commands.on_data(&c2h(4096, 4096, false)), fatal(2, 0), "LAST_PDU missing");
    commands.on_data(&c2h(4096, 8, true)).unwrap();
    commands.on_data_end(true);
    assert_eq!(commands.on_data(&c2h(4104, 8, false)), fatal(2, 0), "after LAST_PDU");
}

#[test]
fn short_transfer_is_no_success() {
    let short = |moved| {
        let mut cqe = success();
        cqe.status = Status::DATA_TRANSFER_ERROR.to_field().into();
        Ok(Completion { cqe, fault: Some(DataFault::Short(moved)) })
    };
    let mut read = commands(Transfer::ToHost(8192));
    read.on_data(&c2h(0, 4096, true)).unwrap();
    read.on_data_end(true);
    assert_eq!(read.on_response(&success()), short(4096));
    assert_eq!(commands(Transfer::ToHost(8192)).on_response(&success()), short(0));
    assert_eq!(commands(Transfer::ToController(8192)).on_response(&success()), short(0));

    let mut read = commands(Transfer::ToHost(8192));
    read.on_data(&C2hData { success: true, ..c2h(0, 4096, true) }).unwrap();
    let completion = read.on_data_end(true).unwrap();
    assert_eq!(completion.fault, Some(DataFault::Short(4096)));
    assert_eq!(completion.cqe.status(), Status::DATA_TRANSFER_ERROR);
}

#[test]
fn short_read_with_an_error_keeps_its_status() {
    let mut commands = commands(Transfer::ToHost(8192));
    commands.on_data(&c2h(0, 4096, true)).unwrap();
    commands.on_data_end(false);
    let cqe = Cqe::new(CID, Status::INTERNAL_ERROR, 0);
    assert_eq!(commands.on_response(&cqe), Ok(Completion { cqe, fault: None }));
}

#[test]
fn damaged_data_are_no_success() {
    for in_response in [false, true] {
        for damaged in 0..2 {
            let mut commands = commands(Transfer::ToHost(8192));
            commands.on_data(&c2h(0, 4096, false)).unwrap();
            commands.on_data_end(damaged != 0);
            commands.on_data(&C2hData { success: !in_response, ..c2h(4096, 4096, true) }).unwrap();
            let end = commands.on_data_end(damaged != 1);
            let completion =
                if in_response { commands.on_response(&success()).unwrap() } else { end.unwrap() };
            assert_eq!(completion.fault, Some(DataFault::Damaged));
            assert_eq!(completion.cqe.status(), Status::TRANSIENT_TRANSPORT_ERROR);
            assert_eq!(completion.cqe.cid(), CID);
        }
    }
}

#[test]
fn response_for_no_command_is_field_20() {
    let mut commands = commands(Transfer::None);
    for cid in [Cid(3), Cid(0x4004), Cid(0x401f)] {
        assert_eq!(commands.on_response(&Cqe::new(cid, Status::SUCCESS, 0)), fatal(1, 20));
    }
    commands.on_response(&success()).unwrap();
    assert_eq!(commands.on_response(&success()), fatal(1, 20), "twice");
}

#[test]
fn success_before_the_data_asked_for_were_sent_is_status_2() {
    let mut commands = commands(Transfer::ToController(16384));
    commands.on_r2t(&r2t(0, 16384)).unwrap();
    commands.next_h2c_data(CID).unwrap();
    assert_eq!(commands.on_response(&success()), fatal(2, 0));
}

#[test]
fn error_before_the_data_asked_for_were_sent_stops_sending() {
    let mut commands = commands(Transfer::ToController(16384));
    commands.on_r2t(&r2t(0, 16384)).unwrap();
    commands.next_h2c_data(CID).unwrap();
    let cqe = Cqe::new(CID, Status::INTERNAL_ERROR, 0);
    assert_eq!(commands.on_response(&cqe), Ok(Completion { cqe, fault: None }));
    assert_eq!(commands.next_h2c_data(CID), None);
    commands.begin(CID, Transfer::ToController(4));
    assert_eq!(commands.next_h2c_data(CID), None);
}

proptest! {
    #[test]
    fn what_the_host_sends_the_controller_takes(
        dwords in 1u32..100_000,
        chunk in 1u32..40_000,
        max in 1024u32..5000,
        slot in 0u16..64,
    ) {
        let (len, maxh2cdata) = (dwords * 4, max * 4);
        let cid = Cid(slot | 0x1c0);
        let mut commands = Commands::new(64, maxh2cdata);
        let mut transfers = Transfers::new(64, maxh2cdata);
        commands.begin(cid, Transfer::ToController(len));
        let mut at = 0;
        while at < len {
            let asked = transfers.begin(slot, cid, at, (chunk * 4).min(len - at)).unwrap();
            commands.on_r2t(&asked).unwrap();
            let mut last = false;
            while let Some(data) = commands.next_h2c_data(cid) {
                prop_assert!(!last && data.len <= maxh2cdata);
                let placement = transfers.on_data(&data).unwrap();
                prop_assert_eq!((placement.slot, placement.offset), (slot, at));
                last = transfers.on_data_end(true).unwrap().last;
                at += data.len;
            }
            prop_assert!(last && !transfers.is_outstanding(slot));
        }
        let completion = commands.on_response(&Cqe::new(cid, Status::SUCCESS, 0)).unwrap();
        prop_assert_eq!(completion.fault, None);
    }
}
