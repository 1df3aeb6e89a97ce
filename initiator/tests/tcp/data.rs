//! Commands and their data.

use crate::site::{BOTH, MEMORY, NONE, START, Site, ic_resp};
use nvme_proto::tcp::{C2hData, DataAlignment, Digests, IcResp, R2t};
use nvme_proto::{Cid, Cqe, Qid, Sqe, Status};
use nvmf_host::Command;
use nvmf_initiator::transport::{Arrival, Data, Payload, Transport};
use nvmf_memory::{Crc32c, Memory};
use nvmf_tcp::ToHost;

/// The opcodes of Write and Read.
const WRITE: u8 = 1;

/// A controller's sender.
fn to_host(digests: Digests) -> ToHost {
    ToHost::new(digests, DataAlignment::default())
}

/// A C2HData with so many bytes of this value, and its digest.
fn c2h_data(digests: Digests, data: &C2hData, byte: u8) -> Vec<u8> {
    let bytes = vec![byte; data.len as usize];
    let digest = if digests.data { Crc32c::of(&bytes).to_le_bytes().to_vec() } else { Vec::new() };
    [to_host(digests).c2h_data(data).unwrap().as_bytes(), &bytes, &digest].concat()
}

fn response(digests: Digests, cid: u16, status: Status) -> Vec<u8> {
    to_host(digests).response(Cqe::new(Cid(cid), status, 0)).as_bytes().to_vec()
}

fn r2t(cid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
    to_host(NONE).r2t(&R2t { cid: Cid(cid), ttag, offset, len }).unwrap().as_bytes().to_vec()
}

fn u32_at(pdu: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(pdu[at..at + 4].try_into().unwrap())
}

#[test]
fn read_lands_in_its_place_however_it_is_cut() {
    for digests in [NONE, BOTH] {
        for len in [512, 4096, 64 << 10, 1 << 20] {
            for cut in [1_usize, 7, 4096, usize::MAX] {
                if cut < 4096 && len > 4096 {
                    continue;
                }
                let mut site = Site::ready(digests);
                let capsule = site.read(3, 0x17, len);
                assert_eq!(capsule[8 + 24..8 + 40][8..12], len.to_le_bytes());
                assert_eq!((capsule[8 + 2], capsule[8 + 39]), (0x17, 0x5a));
                let half = (len / 2) & !3;
                let data = |offset, len, last| C2hData { cid: Cid(0x17), offset, len, last, success: false };
                let bytes = [
                    c2h_data(digests, &data(0, half, false), 1),
                    c2h_data(digests, &data(half, len - half, true), 2),
                    response(digests, 0x17, Status::SUCCESS),
                ]
                .concat();
                for part in bytes.chunks(cut.min(bytes.len())) {
                    site.write(part);
                    site.turn();
                }
                assert_eq!(site.response(), (Cid(0x17), Status::SUCCESS), "{len} in {cut}");
                assert_eq!(site.tcp.complete(Qid(1), 3, None), Ok(true));
                let mut got = vec![0; len as usize];
                site.memory.read(START, &mut got);
                assert!(got[..half as usize].iter().all(|&byte| byte == 1));
                assert!(got[half as usize..].iter().all(|&byte| byte == 2));
                assert!(site.is_untouched_but(len as usize));
            }
        }
    }
}

#[test]
fn success_in_the_last_data_is_the_response() {
    let mut site = Site::ready(NONE);
    site.read(0, 5, 4096);
    let data = C2hData { cid: Cid(5), offset: 0, len: 4096, last: true, success: true };
    site.write(&c2h_data(NONE, &data, 9));
    assert_eq!(site.response(), (Cid(5), Status::SUCCESS));
}

#[test]
fn short_read_is_a_data_transfer_error() {
    let mut site = Site::ready(NONE);
    site.read(0, 5, 4096);
    let data = C2hData { cid: Cid(5), offset: 0, len: 2048, last: true, success: false };
    site.write(&[c2h_data(NONE, &data, 9), response(NONE, 5, Status::SUCCESS)].concat());
    assert_eq!(site.response(), (Cid(5), Status::DATA_TRANSFER_ERROR));
}

#[test]
fn write_goes_with_the_capsule_or_as_the_controller_asks() {
    for digests in [NONE, BOTH] {
        let mut site = Site::ready(digests);
        let (head, tail) = if digests.data { (4, 4) } else { (0, 0) };
        site.memory.fill(START, 4096, 0x3c);
        site.user(0, 1, 4096, Payload::InCapsule, WRITE);
        let pdu = site.receive(72 + head + 4096 + tail);
        assert_eq!((pdu[3], u32_at(&pdu, 4) as usize), (72 + head as u8, pdu.len()));
        assert_eq!((u32_at(&pdu, 8 + 32), pdu[8 + 39]), (4096, 1));
        assert_eq!(pdu[72 + head..72 + head + 4096], [0x3c; 4096]);
        if digests.data {
            assert_eq!(u32_at(&pdu, 72 + head + 4096), Crc32c::of(&[0x3c; 4096]));
        }
        site.user(1, 2, 4096, Payload::ToController, WRITE);
        let pdu = site.receive(72 + head);
        assert_eq!((u32_at(&pdu, 8 + 32), pdu[8 + 39]), (4096, 0x5a));
    }
}

#[test]
fn command_without_data_has_a_transport_descriptor_of_none() {
    let mut site = Site::ready(NONE);
    site.send(0, 1, 0, Data::None);
    let pdu = site.receive(72);
    assert_eq!(pdu[8 + 24..8 + 40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x5a]);
}

/// Force unit access is one of the bits.
#[test]
fn command_is_sent_with_all_its_bits() {
    let mut sqe = Sqe { mptr: u64::MAX.into(), nsid: 0x0102_0304.into(), ..Sqe::new(WRITE) };
    (sqe.cdw2, sqe.cdw3) = (5.into(), 6.into());
    sqe = sqe.with_dwords([u32::MAX; 6]);
    let mut site = Site::ready(NONE);
    let memory = site.memory.share();
    let user = |payload| Data::User { region: &memory, offset: START, len: 512, payload };
    let all =
        [user(Payload::FromController), user(Payload::ToController), user(Payload::InCapsule), Data::None];
    for (slot, data) in (0..).zip(all) {
        site.tcp.send(Qid(1), slot, Cid(slot), &Command::new(sqe), data).unwrap();
        let pdu = site.receive(if slot == 2 { 72 + 512 } else { 72 });
        let expected: [u8; 64] = zerocopy::transmute!(sqe);
        assert_eq!((pdu[8], &pdu[12..32], &pdu[48..72]), (WRITE, &expected[4..24], &expected[40..]));
    }
}

#[test]
fn admin_data_are_always_in_the_capsule() {
    let mut site = Site::ready_with(Qid(0), &ic_resp(NONE));
    let bytes = [7; 4096];
    site.send(0, 1, 0x7f, Data::Bytes { bytes: &bytes, in_capsule: false });
    let pdu = site.receive(72 + 4096);
    assert_eq!((pdu[8 + 39], &pdu[72..]), (1, &bytes[..]));
    site.send(1, 2, 6, Data::IntoSlot { len: 4096 });
    site.receive(72);
    let data = C2hData { cid: Cid(2), offset: 0, len: 4096, last: true, success: true };
    site.write(&c2h_data(NONE, &data, 8));
    assert_eq!(site.response(), (Cid(2), Status::SUCCESS));
    // Also when the connection ends with it.
    site.tcp.disconnect(Qid(0), false);
    let mut got = [0; 4096];
    site.tcp.slot_data(Qid(0), 1, &mut got);
    assert_eq!(got, [8; 4096]);
}

/// What the host answers an R2T with: the header of each H2CData, and all data.
fn h2c_data(site: &mut Site, total: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let (mut heads, mut data) = (Vec::new(), Vec::new());
    while data.len() < total {
        let head = site.receive(24);
        let pad = usize::from(head[3]) - 24;
        site.receive(pad);
        data.extend(site.receive(u32_at(&head, 16) as usize));
        heads.push(head);
    }
    (heads, data)
}

#[test]
fn maxh2cdata_splits_and_cpda_aligns() {
    for (maxh2cdata, dwords_z) in [(4096, 0), (8192, 31), (1 << 20, 1)] {
        let alignment = DataAlignment::from_dwords_z(dwords_z).unwrap();
        let response = IcResp { alignment, maxh2cdata, ..ic_resp(NONE) };
        let mut site = Site::ready_with(Qid(1), &response);
        for at in 0..64 {
            site.memory.fill(START + at * 1024, 1024, at as u8);
        }
        site.user(2, 9, 64 << 10, Payload::ToController, WRITE);
        site.receive(72);
        // In two R2Ts.
        for (ttag, offset, len) in [(0xabcd, 0, 40_960), (7, 40_960, 24_576)] {
            site.write(&r2t(9, ttag, offset, len));
            let (heads, data) = h2c_data(&mut site, len as usize);
            assert_eq!(heads.len(), (len as usize).div_ceil(maxh2cdata as usize));
            let mut next = offset;
            for (index, head) in heads.iter().enumerate() {
                let last = index + 1 == heads.len();
                assert_eq!((head[0], head[1]), (6, u8::from(last) << 2), "LAST_PDU in the last of the R2T");
                assert_eq!(usize::from(head[3]), 24_usize.next_multiple_of(usize::from(alignment.bytes())));
                assert_eq!(
                    (head[8..10].to_vec(), head[10..12].to_vec()),
                    (vec![9, 0], u16::to_le_bytes(ttag).to_vec())
                );
                assert_eq!(u32_at(head, 12), next);
                assert!(u32_at(head, 16) <= maxh2cdata);
                next += u32_at(head, 16);
            }
            let expected: Vec<u8> = (offset..offset + len).map(|at| (at / 1024) as u8).collect();
            assert!(data == expected);
        }
        site.write(&self::response(NONE, 9, Status::SUCCESS));
        assert_eq!(site.response(), (Cid(9), Status::SUCCESS));
        assert_eq!(site.tcp.complete(Qid(1), 2, None), Ok(true));
    }
}

#[test]
fn memory_is_held_until_the_last_data_left_though_the_response_is_there() {
    let mut site = Site::ready(NONE);
    // More than the sockets hold.
    let len: u32 = 64 << 20;
    site.memory = Memory::alloc(START + len as usize).unwrap();
    site.user(4, 3, len, Payload::ToController, WRITE);
    site.receive(72);
    // The controller asks for all, reads nothing, and refuses the command once the sockets are full.
    site.write(&r2t(3, 1, 0, len));
    for _ in 0..100 {
        site.turn();
    }
    site.write(&response(NONE, 3, Status::INTERNAL_ERROR));
    assert_eq!(site.response(), (Cid(3), Status::INTERNAL_ERROR));
    assert_eq!(site.tcp.complete(Qid(1), 4, None), Ok(false), "PDUs of it wait for the socket");
    // Those are sent, and nothing more of it.
    let mut sent = 0;
    site.peer.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let index = site.until("the release", |site| {
        sent += std::io::Read::read(&mut site.peer, &mut bytes).unwrap_or(0);
        match site.arrivals.pop() {
            Some(Arrival::Released(Qid(1), index)) => Some(index),
            Some(arrival) => panic!("{arrival:?}"),
            None => None,
        }
    });
    assert_eq!(index, 4);
    assert!(sent < len as usize, "what was not handed to the socket is not sent");
}

#[test]
fn bytes_of_a_destroyed_queue_never_leave() {
    let mut site = Site::ready(NONE);
    let len = (MEMORY - START) as u32;
    site.user(4, 3, len, Payload::ToController, WRITE);
    site.receive(72);
    site.write(&r2t(3, 1, 0, len));
    // The controller reads nothing until the host has gone.
    for _ in 0..100 {
        site.turn();
    }
    site.tcp.destroy(Qid(1));
    let mut bytes = Vec::new();
    let ended = std::io::Read::read_to_end(&mut site.peer, &mut bytes);
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "{} bytes", bytes.len());
}

#[test]
fn wrong_data_digest_fails_the_command_and_no_other() {
    let mut site = Site::ready(BOTH);
    site.read(0, 1, 4096);
    site.read(1, 2, 4096);
    let data = |cid| C2hData { cid: Cid(cid), offset: 0, len: 4096, last: true, success: true };
    let mut damaged = c2h_data(BOTH, &data(1), 1);
    *damaged.last_mut().unwrap() ^= 1;
    site.write(&[damaged, c2h_data(BOTH, &data(2), 2)].concat());
    assert_eq!(site.response(), (Cid(1), Status::TRANSIENT_TRANSPORT_ERROR));
    assert_eq!(site.response(), (Cid(2), Status::SUCCESS));
    // Each ends once, though the connection ends then.
    assert_eq!(site.tcp.complete(Qid(1), 0, None), Ok(true));
    assert_eq!(site.tcp.complete(Qid(1), 1, None), Ok(true));
    site.peer.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(site.ending(), "the controller closed it");
    assert!(site.arrivals.is_empty());
}

#[test]
fn wrong_header_digest_ends_the_connection() {
    let mut site = Site::ready(BOTH);
    site.read(0, 1, 4096);
    let mut bytes = response(BOTH, 1, Status::SUCCESS);
    bytes[24] ^= 1;
    let received = u32_at(&bytes, 24);
    site.write(&bytes);
    let last = site.rest_after_end();
    assert_eq!((last[0], &last[8..10], u32_at(&last, 10)), (2, &[3, 0][..], received));
    assert!(site.arrivals.is_empty());
}
