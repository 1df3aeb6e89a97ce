//! Faults that other implementations had, each against both parts of ours: the receiver and the ledgers.

use crate::driver::{
    ALL, BOTH, Driver, MAXH2CDATA, NONE, alignment, fatal, initialize, pattern, refused, to_controller,
    to_host, with_data,
};
use nvme_proto::tcp::{C2hData, Digests, H2cData, IcResp, R2t, Receiver};
use nvme_proto::{Cid, Cqe, Sqe, Status};
use nvmf_tcp::controller::Transfers;
use nvmf_tcp::head::termination;
use nvmf_tcp::host::{Commands, DataFault, Transfer};
use nvmf_tcp::{End, Event, ToHost};

const CID: Cid = Cid(5);

/// A controller with a ledger of 128 slots, fed with H2CData.
struct Controller {
    driver: Driver,
    transfers: Transfers,
    digests: Digests,
    /// The data of each request, as they were placed.
    memory: Vec<u8>,
}

impl Controller {
    fn new(digests: Digests) -> Self {
        let driver = Driver::ready(Receiver::Controller, digests);
        let transfers = Transfers::new(128, MAXH2CDATA);
        Self { driver, transfers, digests, memory: vec![0; 1 << 16] }
    }

    fn ask(&mut self, slot: u16, offset: u32, len: u32) -> R2t {
        self.transfers.begin(slot, CID, offset, len).unwrap()
    }

    /// One PDU with data. Returns whether its data and all before them for this R2T are intact, and the last.
    fn pdu(&mut self, data: H2cData, damage: bool) -> Result<(bool, bool), End> {
        let bytes = pattern(data.len as usize, data.offset as u8);
        let head = to_controller(self.digests).h2c_data(&data).unwrap();
        let mut pdu = with_data(head, &bytes, self.digests);
        if damage {
            *pdu.last_mut().unwrap() ^= 1;
        }
        self.driver.seen.clear();
        let (header, rest) = pdu.split_at(head.as_bytes().len());
        self.driver.feed(header)?;
        let Event::H2cData(data) = self.driver.events()[0] else { panic!("{:?}", self.driver.seen) };
        // Nothing is placed before the ledger has agreed.
        let placement = self.transfers.on_data(&data)?;
        self.driver.feed(rest)?;
        let at = placement.offset as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
        let Some(Event::DataEnd { intact }) = self.driver.events().last().copied() else {
            panic!("{:?}", self.driver.seen)
        };
        assert_eq!(intact, !damage);
        let arrival = self.transfers.on_data_end(intact).unwrap();
        Ok((arrival.intact, arrival.last))
    }
}

/// Row 2: H2CData whose DATAL does not fit its PLEN or what was asked for.
#[test]
fn row_02_h2c_data_that_do_not_fit() {
    for digests in ALL {
        let never_used = H2cData { cid: CID, ttag: 0, offset: 0, len: 8, last: true };
        assert_eq!(Controller::new(digests).pdu(never_used, false), Err(fatal(1, 10)));

        // A read has no R2T: its slot is as one that was never used. A finished slot, and the same PDU twice.
        let mut controller = Controller::new(digests);
        let r2t = controller.ask(7, 0, 8);
        let data = H2cData { ttag: r2t.ttag, ..never_used };
        assert_eq!(controller.pdu(data, false), Ok((true, true)));
        assert_eq!(controller.pdu(data, false), Err(fatal(1, 10)));

        for (len, error) in [(12, fatal(4, 0)), (MAXH2CDATA + 4, fatal(5, 0))] {
            let mut controller = Controller::new(digests);
            let r2t = controller.ask(7, 0, 8);
            assert_eq!(controller.pdu(H2cData { ttag: r2t.ttag, len, ..never_used }, false), Err(error));
            assert!(controller.memory.iter().all(|byte| *byte == 0));
        }

        // DATAL against PLEN.
        for (datal, plen) in [(0, 0), (8, 1), (8, -1), (8, 4), (8, -4), (9, 0), (7, 0), (12, 0), (4, 0)] {
            let mut pdu = with_data(to_controller(digests).h2c_data(&never_used).unwrap(), &[0; 8], digests);
            pdu[16] = datal;
            pdu[4] = pdu[4].wrapping_add_signed(plen);
            if digests.header {
                crate::driver::renew_digest(&mut pdu, 24);
            }
            let end = refused(Receiver::Controller, digests, &pdu);
            let expected = [fatal(1, 16), fatal(1, 4)];
            assert!(expected.contains(&end), "DATAL {datal}, PLEN {plen:+}: {end}");
        }
    }
}

/// Row 4: the TTAG is no index before it was checked.
#[test]
fn row_04_every_ttag() {
    let data = |ttag| H2cData { cid: CID, ttag, offset: 0, len: 4, last: true };
    for slots in [1, 3, 128, 1028] {
        let mut idle = Transfers::new(slots, MAXH2CDATA);
        let mut busy = Transfers::new(slots, MAXH2CDATA);
        let ttags: Vec<u16> =
            (0..slots as u16).map(|slot| busy.begin(slot, CID, 0, 4).unwrap().ttag).collect();
        let mut taken = 0;
        for ttag in 0..=u16::MAX {
            assert_eq!(idle.on_data(&data(ttag)).map_err(End::Fatal), Err(fatal(1, 10)));
            match busy.on_data(&data(ttag)) {
                Ok(placement) => {
                    assert_eq!(ttags[usize::from(placement.slot)], ttag);
                    taken += 1;
                }
                Err(error) => assert_eq!(End::Fatal(error), fatal(1, 10)),
            }
        }
        assert_eq!(taken, slots);
    }
}

/// Row 5: H2CData as the first PDU, right after Connect, and for a command without data.
#[test]
fn row_05_h2c_data_that_nobody_asked_for() {
    for digests in ALL {
        for ttag in [0, 1, 127, 128, u16::MAX] {
            let mut controller = Controller::new(digests);
            let connect =
                with_data(to_controller(digests).command(Sqe::new(0x7f), 1024).unwrap(), &[0; 1024], digests);
            let data = H2cData { cid: CID, ttag, offset: 0, len: 4, last: true };
            assert_eq!(controller.pdu(data, false), Err(fatal(1, 10)));

            let mut controller = Controller::new(digests);
            controller.driver.feed(&connect).unwrap();
            assert_eq!(controller.transfers.on_data_end(true), None);
            assert_eq!(controller.pdu(data, false), Err(fatal(1, 10)));
        }
    }
}

/// Row 6: many small H2CData that sum to more than the transfer; an error stops the receiver at once.
#[test]
fn row_06_small_h2c_data_beyond_the_transfer() {
    for digests in ALL {
        let mut controller = Controller::new(digests);
        let r2t = controller.ask(1, 0, 64);
        for offset in (0..60).step_by(4) {
            let data = H2cData { cid: CID, ttag: r2t.ttag, offset, len: 4, last: false };
            assert_eq!(controller.pdu(data, false), Ok((true, false)));
        }
        let beyond = H2cData { cid: CID, ttag: r2t.ttag, offset: 60, len: 8, last: true };
        let Err(End::Fatal(error)) = controller.pdu(beyond, false) else {
            panic!("8 bytes where 4 were left")
        };
        assert_eq!(End::Fatal(error), fatal(4, 0));
        controller.driver.receiver.terminate(error);
        controller.driver.seen.clear();
        let right = to_controller(digests).h2c_data(&H2cData { len: 4, ..beyond }).unwrap();
        controller.driver.feed(&with_data(right, &[9; 4], digests)).unwrap();
        assert!(controller.driver.seen.is_empty());
        assert!(controller.memory[60..].iter().all(|byte| *byte == 0));
    }
}

/// Row 8: a wrong data digest on the capsule of a refused command, and on the first, a middle or the last H2CData.
#[test]
fn row_08_wrong_data_digest_fails_one_command_once() {
    for digests in [BOTH, Digests { header: false, data: true }] {
        for damaged in 0..4 {
            let mut controller = Controller::new(digests);
            let r2t = controller.ask(1, 0, 16);
            for (index, offset) in (0..16).step_by(4).enumerate() {
                let data = H2cData { cid: CID, ttag: r2t.ttag, offset, len: 4, last: index == 3 };
                let expected = (index < damaged, index == 3);
                assert_eq!(controller.pdu(data, index == damaged), Ok(expected));
            }
            // The slot's next R2T starts afresh.
            let r2t = controller.ask(1, 16, 4);
            let data = H2cData { cid: CID, ttag: r2t.ttag, offset: 16, len: 4, last: true };
            assert_eq!(controller.pdu(data, false), Ok((true, true)));
        }
        // The command was refused before its data were there.
        let mut controller = Controller::new(digests);
        let r2t = controller.ask(1, 0, 8);
        controller.transfers.end(1);
        let data = H2cData { cid: CID, ttag: r2t.ttag, offset: 0, len: 4, last: false };
        assert_eq!(controller.pdu(data, true), Ok((false, false)));
        assert_eq!(controller.pdu(H2cData { offset: 4, last: true, ..data }, false), Ok((false, true)));
    }
}

/// Row 13: every reserved byte of every PDU is 0.
#[test]
fn row_13_reserved_bytes_are_zero() {
    let (ones, z) = (!3_u32, alignment(31));
    let cid = Cid(u16::MAX);
    for digests in ALL {
        let c2h = C2hData { cid, offset: ones - 512, len: 512, last: true, success: true };
        let c2h = ToHost::new(digests, z).c2h_data(&c2h).unwrap();
        assert_eq!(c2h.as_bytes()[10..12], [0; 2]);
        assert_eq!(c2h.as_bytes()[20..24], [0; 4]);
        let pad = if digests.header { 28 } else { 24 };
        assert!(c2h.as_bytes()[pad..].iter().all(|byte| *byte == 0));
        let r2t = to_host(digests).r2t(&R2t { cid, ttag: u16::MAX, offset: ones, len: ones }).unwrap();
        assert_eq!((r2t.as_bytes()[3], &r2t.as_bytes()[20..24]), (0, &[0; 4][..]));
        let h2c = H2cData { cid, ttag: u16::MAX, offset: ones - 512, len: 512, last: true };
        assert_eq!(to_controller(digests).h2c_data(&h2c).unwrap().as_bytes()[20..24], [0; 4]);
        let response = to_host(digests).response(Cqe::new(cid, Status::SUCCESS, 0));
        assert_eq!((response.as_bytes()[3], &response.as_bytes()[8..20]), (0, &[0; 12][..]));
    }
    for receiver in [Receiver::Controller, Receiver::Host] {
        let ic = initialize(receiver, BOTH, z);
        assert!(ic.as_bytes()[16..].iter().all(|byte| *byte == 0));
        let error = nvme_proto::tcp::FatalError::invalid_field(u32::MAX as usize);
        assert_eq!(termination(receiver, error, &[0xff; 8]).as_bytes()[14..24], [0; 10]);
    }
}

/// Rows 17 and 28: MAXH2CDATA counts bytes, and both sides obey it.
#[test]
fn row_17_and_28_maxh2cdata_is_obeyed() {
    let response = IcResp { alignment: alignment(0), digests: NONE, maxh2cdata: 4096 };
    let mut driver = Driver::new(Receiver::Host, NONE, alignment(0));
    driver.feed(ToHost::ic_resp(&response).as_bytes()).unwrap();
    let Event::IcResp(response) = driver.events()[0] else { panic!("{:?}", driver.seen) };
    let mut commands = Commands::new(128, response.maxh2cdata);
    commands.begin(CID, Transfer::ToController(10_000));
    commands.on_r2t(&R2t { cid: CID, ttag: 1, offset: 0, len: 10_000 }).unwrap();
    let pieces: Vec<_> = std::iter::from_fn(|| commands.next_h2c_data(CID)).collect();
    let expected = [(0, 4096, false), (4096, 4096, false), (8192, 1808, true)];
    assert_eq!(pieces.iter().map(|data| (data.offset, data.len, data.last)).collect::<Vec<_>>(), expected);

    let mut controller = Controller::new(NONE);
    let r2t = controller.ask(0, 0, 8192);
    let data = H2cData { cid: CID, ttag: r2t.ttag, offset: 0, len: 8192, last: true };
    assert_eq!(controller.pdu(data, false), Err(fatal(5, 0)));
}

/// Row 18: a data digest covers the data of its PDU, not those of the whole command.
#[test]
fn row_18_data_digest_is_per_pdu() {
    for digests in ALL {
        let mut controller = Controller::new(digests);
        let r2t = controller.ask(1, 0, 16384);
        for offset in (0..16384).step_by(4096) {
            let last = offset == 12288;
            let data = H2cData { cid: CID, ttag: r2t.ttag, offset, len: 4096, last };
            assert_eq!(controller.pdu(data, false), Ok((true, last)));
        }
    }
}

/// Row 20: in-capsule data of a command that fails are never read as a header.
#[test]
fn row_20_in_capsule_data_are_no_header() {
    for digests in ALL {
        for len in [0, 1, 8192] {
            // Data that would be a PDU themselves.
            let mut data = vec![4, 0, 72, 0, 72, 0, 0, 0];
            data.resize(8192, 0);
            data.truncate(len);
            let to = to_controller(digests);
            let refused = with_data(to.command(Sqe::new(0xff), len as u32).unwrap(), &data, digests);
            let good = to.command(Sqe::new(2), 0).unwrap();
            let mut driver = Driver::ready(Receiver::Controller, digests);
            driver.feed(&[&refused[..], good.as_bytes()].concat()).unwrap();
            let events = driver.events();
            assert_eq!(events[0], Event::Command { sqe: Sqe::new(0xff), data_len: len as u32 });
            assert_eq!(events.last(), Some(&Event::Command { sqe: Sqe::new(2), data_len: 0 }));
            assert_eq!(events.len(), if len > 0 { 3 } else { 2 });
        }
    }
}

/// Row 22: HLEN 0 to 255 of every type, towards our host.
#[test]
fn row_22_every_hlen_towards_the_host() {
    for digests in ALL {
        for kind in 0..=255u8 {
            for hlen in 0..=255u8 {
                let mut driver = Driver::ready(Receiver::Host, digests);
                let mut bytes = vec![kind, u8::from(digests.header), hlen, hlen, hlen, 0, 0, 0];
                bytes.extend([0xa5; 400]);
                match driver.feed(&bytes) {
                    Err(End::Fatal(error)) => {
                        assert!(driver.receiver.terminate(error).as_bytes().len() <= 152);
                    }
                    Err(End::Close) => assert!(matches!(kind, 2 | 3)),
                    Ok(()) => assert_eq!((kind, hlen), (3, 24)),
                }
            }
        }
    }
}

/// Row 27: R2T with length 0, before or after what was sent, beyond the end, for a read, for no command.
#[test]
fn row_27_r2ts_that_ask_wrongly() {
    let ask = |transfer, r2t: R2t| {
        let mut commands = Commands::new(128, MAXH2CDATA);
        commands.begin(CID, transfer);
        if transfer == Transfer::ToController(16384) {
            commands.on_r2t(&R2t { cid: CID, ttag: 0, offset: 0, len: 4096 }).unwrap();
            commands.next_h2c_data(CID).unwrap();
        }
        let result = commands.on_r2t(&r2t).map_err(End::Fatal);
        assert!(result.is_ok() || commands.next_h2c_data(CID).is_none(), "data for {r2t:?}");
        result
    };
    let (write, r2t) = (Transfer::ToController(16384), R2t { cid: CID, ttag: 1, offset: 4096, len: 4096 });
    assert_eq!(ask(write, r2t), Ok(()));
    assert_eq!(ask(write, R2t { offset: 0, ..r2t }), Err(fatal(2, 0)));
    assert_eq!(ask(write, R2t { offset: 8192, ..r2t }), Err(fatal(2, 0)));
    assert_eq!(ask(write, R2t { len: 12292, ..r2t }), Err(fatal(4, 0)));
    assert_eq!(ask(write, R2t { len: u32::MAX - 3, ..r2t }), Err(fatal(4, 0)));
    assert_eq!(ask(write, R2t { cid: Cid(6), ..r2t }), Err(fatal(1, 8)));
    assert_eq!(ask(Transfer::ToHost(16384), r2t), Err(fatal(1, 8)));
    assert_eq!(ask(Transfer::None, r2t), Err(fatal(1, 8)));

    let mut zero = to_host(NONE).r2t(&r2t).unwrap().as_bytes().to_vec();
    zero[16..20].fill(0);
    assert_eq!(refused(Receiver::Host, NONE, &zero), fatal(1, 16));
}

/// Row 29: TTAG 0 is no slot before the first, and the sum of DATAO and DATAL does not wrap.
#[test]
fn row_29_ttag_0_and_a_sum_that_wraps() {
    let data = H2cData { cid: CID, ttag: 0, offset: 4096, len: 0xffff_fff0, last: true };
    let mut unbounded = Transfers::new(128, u32::MAX);
    assert_eq!(unbounded.on_data(&data).map_err(End::Fatal), Err(fatal(1, 10)));
    let r2t = unbounded.begin(0, CID, 4096, 4096).unwrap();
    let data = H2cData { ttag: r2t.ttag, ..data };
    assert_eq!(unbounded.on_data(&data).map_err(End::Fatal), Err(fatal(4, 0)));
    assert!(unbounded.is_outstanding(0));

    let mut commands = Commands::new(128, MAXH2CDATA);
    commands.begin(CID, Transfer::ToHost(8192));
    let data = C2hData { cid: CID, offset: 4096, len: 0xffff_fff0, last: true, success: true };
    assert_eq!(commands.on_data(&data).map_err(End::Fatal), Err(fatal(4, 0)));

    // On the wire such a sum, or a DATAL that no PLEN can say, is refused before.
    let small = H2cData { cid: CID, ttag: 0, offset: 4096, len: 4, last: true };
    let mut pdu = with_data(to_controller(NONE).h2c_data(&small).unwrap(), &[0; 4], NONE);
    pdu[16..20].copy_from_slice(&0xffff_fff0_u32.to_le_bytes());
    assert_eq!(refused(Receiver::Controller, NONE, &pdu), fatal(1, 16));
}

/// Row 32: the answer to an R2T is taken before the R2T was seen to be sent.
#[test]
fn row_32_r2t_answered_at_once() {
    for digests in ALL {
        let mut controller = Controller::new(digests);
        let r2t = controller.ask(9, 0, 8);
        let data = H2cData { cid: CID, ttag: r2t.ttag, offset: 0, len: 8, last: true };
        // No call between `begin` and the data.
        assert_eq!(controller.pdu(data, false), Ok((true, true)));
    }
}

/// Row 36: DDGSTF without data digests in use, reserved flags, SUCCESS without LAST_PDU.
#[test]
fn row_36_flags() {
    let c2h = C2hData { cid: CID, offset: 0, len: 8, last: false, success: false };
    let c2h = with_data(to_host(NONE).c2h_data(&c2h).unwrap(), &[0; 8], NONE);
    let h2c = H2cData { cid: CID, ttag: 0, offset: 0, len: 8, last: false };
    let h2c = with_data(to_controller(NONE).h2c_data(&h2c).unwrap(), &[0; 8], NONE);
    for (receiver, pdu, flags) in [
        (Receiver::Host, &c2h, &[1, 2, 8, 0x10, 0x20, 0x40, 0x80][..]),
        (Receiver::Controller, &h2c, &[1, 2, 8, 0x10, 0x20, 0x40, 0x80]),
    ] {
        for flag in flags {
            let mut pdu = pdu.clone();
            pdu[1] |= flag;
            assert_eq!(refused(receiver, NONE, &pdu), fatal(1, 1), "flag {flag:#x}");
        }
    }
}

/// A success whose data did not arrive intact is no success, whichever way the controller says it.
#[test]
fn row_23_digest_error_completes_once() {
    let mut commands = Commands::new(128, MAXH2CDATA);
    commands.begin(CID, Transfer::ToHost(8));
    let mut driver = Driver::ready(Receiver::Host, BOTH);
    let data = C2hData { cid: CID, offset: 0, len: 8, last: true, success: true };
    let mut pdu = with_data(to_host(BOTH).c2h_data(&data).unwrap(), &[1; 8], BOTH);
    *pdu.last_mut().unwrap() ^= 1;
    driver.feed(&pdu).unwrap();
    commands.on_data(&data).unwrap();
    assert_eq!(driver.events()[1], Event::DataEnd { intact: false });
    assert_eq!(commands.on_data_end(false).unwrap().fault, Some(DataFault::Damaged));
    assert_eq!(commands.on_data_end(false), None);
    assert!(commands.on_response(&Cqe::new(CID, Status::SUCCESS, 0)).is_err());
}
