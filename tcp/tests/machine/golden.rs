//! Each PDU's bytes, digests computed by an independent program.

use crate::driver::{ALL, BOTH, NONE, alignment, to_controller, to_host};
use nvme_proto::tcp::{
    C2hData, Digests, FatalError, FatalErrorStatus, H2cData, IcReq, IcResp, R2t, Receiver,
};
use nvme_proto::{Cid, Cqe, Sqe, Status};
use nvmf_tcp::head::{HEAD_LEN_MAX, TERMINATION_LEN_MAX, termination};
use nvmf_tcp::{Crc32c, ToController, ToHost};

const CID: Cid = Cid(0x1234);

fn hex(text: &str) -> Vec<u8> {
    let text: String = text.split_whitespace().collect();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn ic_req_and_ic_resp_have_no_digest() {
    let request = IcReq { alignment: alignment(0), digests: BOTH, maxr2t: 1 };
    let mut bytes = hex("00 00 80 00 80000000 0000 00 03 00000000");
    bytes.resize(128, 0);
    assert_eq!(ToController::ic_req(&request).as_bytes(), bytes);

    let response = IcResp {
        alignment: alignment(0),
        digests: Digests { header: true, data: false },
        maxh2cdata: 0x0040_0000,
    };
    let mut bytes = hex("01 00 80 00 80000000 0000 00 01 00004000");
    bytes.resize(128, 0);
    assert_eq!(ToHost::ic_resp(&response).as_bytes(), bytes);
}

#[test]
fn command_with_in_capsule_data() {
    let mut header = hex("04 03 48 4c 50020000 0140");
    header.resize(72, 0);
    let digest = hex("a3183fe9");
    let head = to_controller(BOTH).command(Sqe::new(1), 512).unwrap();
    assert_eq!(head.as_bytes(), [header.clone(), digest].concat());

    header[..8].copy_from_slice(&hex("04 00 48 48 48020000"));
    assert_eq!(to_controller(NONE).command(Sqe::new(1), 512).unwrap().as_bytes(), header);
}

#[test]
fn command_without_data_has_no_offset_and_no_data_digest() {
    let mut bytes = hex("04 01 48 00 4c000000 0140");
    bytes.resize(72, 0);
    bytes.extend(hex("293c0544"));
    assert_eq!(to_controller(BOTH).command(Sqe::new(1), 0).unwrap().as_bytes(), bytes);
}

#[test]
fn response() {
    let cqe = Cqe { sqhd: 7.into(), ..Cqe::new(CID, Status::SUCCESS, 0x1122_3344) };
    let bytes = hex("05 01 18 00 1c000000 44332211 00000000 0700 0000 3412 0000 13f2eaad");
    assert_eq!(to_host(BOTH).response(cqe).as_bytes(), bytes);
    let bytes = hex("05 00 18 00 18000000 44332211 00000000 0700 0000 3412 0000");
    assert_eq!(to_host(NONE).response(cqe).as_bytes(), bytes);
}

#[test]
fn h2c_data() {
    let data = H2cData { cid: CID, ttag: 0x0807, offset: 0x2000, len: 4096, last: true };
    let bytes = hex("06 07 18 1c 20100000 3412 0708 00200000 00100000 00000000 4645eff3");
    assert_eq!(to_controller(BOTH).h2c_data(&data).unwrap().as_bytes(), bytes);
    let bytes = hex("06 00 18 18 18100000 3412 0708 00200000 00100000 00000000");
    let data = H2cData { last: false, ..data };
    assert_eq!(to_controller(NONE).h2c_data(&data).unwrap().as_bytes(), bytes);
}

#[test]
fn c2h_data_and_success_set_later() {
    let data = C2hData { cid: CID, offset: 0x200, len: 512, last: true, success: false };
    let plain = hex("07 07 18 1c 20020000 3412 0000 00020000 00020000 00000000 71a32f7a");
    let success = hex("07 0f 18 1c 20020000 3412 0000 00020000 00020000 00000000 a2b984da");
    let mut head = to_host(BOTH).c2h_data(&data).unwrap();
    assert_eq!(head.as_bytes(), plain);
    assert!(head.set_success());
    assert_eq!(head.as_bytes(), success);
    let built = to_host(BOTH).c2h_data(&C2hData { success: true, ..data }).unwrap();
    assert_eq!(head, built);

    let mut head = to_host(NONE).c2h_data(&data).unwrap();
    assert!(head.set_success());
    assert_eq!(head, to_host(NONE).c2h_data(&C2hData { success: true, ..data }).unwrap());
}

#[test]
fn success_is_only_for_the_last_data() {
    let data = C2hData { cid: CID, offset: 0, len: 512, last: false, success: false };
    let mut head = to_host(BOTH).c2h_data(&data).unwrap();
    let before = head;
    assert!(!head.set_success());
    assert_eq!(head, before);
    assert_eq!(to_host(BOTH).c2h_data(&C2hData { success: true, ..data }), None);
    let mut response = to_host(BOTH).response(Cqe::new(CID, Status::SUCCESS, 0));
    assert!(!response.set_success());
}

#[test]
fn data_are_aligned_as_the_host_asks() {
    let data = C2hData { cid: CID, offset: 0x200, len: 512, last: true, success: false };
    let to_host = ToHost::new(BOTH, alignment(31));
    let mut bytes = hex("07 07 18 80 84020000 3412 0000 00020000 00020000 00000000 a227d698");
    bytes.resize(128, 0);
    assert_eq!(to_host.c2h_data(&data).unwrap().as_bytes(), bytes);
}

#[test]
fn every_alignment_fits_a_head() {
    let mut longest = 0;
    for (alignment, digests) in (0..32).flat_map(|z| ALL.map(|digests| (alignment(z), digests))) {
        let command = ToController::new(digests, alignment).command(Sqe::new(1), 512).unwrap();
        let data = C2hData { cid: CID, offset: 0, len: 512, last: true, success: true };
        let data = ToHost::new(digests, alignment).c2h_data(&data).unwrap();
        for bytes in [command.as_bytes(), data.as_bytes()] {
            assert_eq!(usize::from(bytes[3]), bytes.len(), "PDO");
            assert!(bytes.len().is_multiple_of(usize::from(alignment.bytes())));
            longest = longest.max(bytes.len());
        }
    }
    assert_eq!(longest, HEAD_LEN_MAX);
}

#[test]
fn r2t() {
    let r2t = R2t { cid: CID, ttag: 0x0807, offset: 0x2000, len: 4096 };
    let bytes = hex("09 01 18 00 1c000000 3412 0708 00200000 00100000 00000000 946ccdf1");
    assert_eq!(to_host(BOTH).r2t(&r2t).unwrap().as_bytes(), bytes);
}

#[test]
fn termination_requests_carry_the_header_and_no_digest() {
    let error = FatalError { status: FatalErrorStatus::HEADER_DIGEST_ERROR, information: 0x1122_3344 };
    let mut bytes = hex("03 00 18 00 20000000 0300 44332211 00000000000000000000");
    bytes.extend([4, 1, 72, 0, 76, 0, 0, 0]);
    let request = termination(Receiver::Controller, error, &[4, 1, 72, 0, 76, 0, 0, 0]);
    assert_eq!(request.as_bytes(), bytes);
    bytes[0] = 2;
    assert_eq!(termination(Receiver::Host, error, &bytes[24..]).as_bytes(), bytes);
    let longest = termination(Receiver::Host, error, &[1; 400]);
    assert_eq!((longest.as_bytes().len(), longest.as_bytes()[4]), (TERMINATION_LEN_MAX, 152));
}

#[test]
fn data_digest() {
    assert_eq!(Crc32c::of(&[0x5a; 512]).to_le_bytes()[..], hex("2a6ac010"));
}
