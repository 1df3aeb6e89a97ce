//! A client without a socket: bytes in, bytes out.

use super::super::requests::Requests;
use super::super::session::Session;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Gives the bytes to a session in pieces, and returns what it answers.
fn answers(bytes: &[u8], mut pieces: impl Iterator<Item = usize>) -> Vec<u8> {
    let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, Some(512), false).unwrap();
    let mut backend = devices(&disk);
    let mut requests = Requests::new(DiskInfo { bytes: 1 << 20, ..INFO }, DEVICE);
    let mut session = Session::new(0);
    let (mut rest, mut output, mut completions) = (bytes, Vec::new(), Vec::with_capacity(64));
    let mut idle = 0;
    while idle < 3 {
        idle += 1;
        if session.wants_bytes() && !rest.is_empty() {
            let (place, staging) = session.room(&requests);
            let piece = pieces.next().unwrap_or(1).max(1).min(rest.len());
            let now = &rest[..piece];
            let direct = place.map_or(0, |(memory, offset, len)| {
                let len = len.min(now.len());
                memory.write(offset, &now[..len]);
                len
            });
            let staged = (now.len() - direct).min(staging.len());
            staging[..staged].copy_from_slice(&now[direct..direct + staged]);
            session.on_received(direct, staged);
            session.release_input();
            rest = &rest[direct + staged..];
            idle = 0;
        }
        let _ = session.advance(&mut requests, &mut backend);
        requests.flush(&mut backend);
        backend.poll(&mut completions);
        for completion in completions.drain(..) {
            requests.on_completion(completion, &mut backend);
        }
        requests.flush(&mut backend);
        while let Some(index) = requests.next(&mut backend) {
            session.on_begun(&requests, index);
        }
        while let Some(index) = requests.next_ended() {
            session.reply(&mut requests, index);
            idle = 0;
        }
        while session.has_replies() {
            let chunks = session.chunks();
            chunks.append_to(&mut output);
            let len = chunks.len_bytes();
            drop(chunks);
            session.on_sent(&mut requests, len);
        }
    }
    output
}

/// The negotiation.
fn negotiation() -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 3];
    bytes.extend(option_bytes(3, &[]));
    bytes.extend(option_bytes(7, &[0; 6]));
    bytes
}

/// The number of the request in the conversation that reads, and how much.
const READS: (u64, usize) = (4, 99_010);

fn conversation() -> Vec<u8> {
    let data: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    let requests = [
        bytes_of(WRITE, 1024, 512, &data[..512]),
        bytes_of(WRITE, 100, 99_000, &data[..99_000]),
        bytes_of(WRITE, u64::MAX, 1000, &data[..1000]),
        bytes_of(WRITE_ZEROES, 700, 50, &[]),
        bytes_of(READ, 90, READS.1 as u32, &[]),
        bytes_of(9, 0, 0, &[]),
        bytes_of(DISCONNECT, 0, 0, &[]),
    ];
    let mut bytes = negotiation();
    for (number, mut request) in (0_u64..).zip(requests) {
        request[8..16].copy_from_slice(&number.to_be_bytes());
        bytes.extend(request);
    }
    bytes
}

/// What the negotiation is answered; the replies to requests, which come in any order.
fn split(output: &[u8]) -> (&[u8], BTreeMap<u64, &[u8]>) {
    let (negotiated, mut rest) = output.split_at(answers(&negotiation(), core::iter::repeat(1)).len());
    let mut replies = BTreeMap::new();
    while !rest.is_empty() {
        let number = u64::from_be_bytes(rest[8..16].try_into().unwrap());
        let (reply, behind) = rest.split_at(16 + if number == READS.0 { READS.1 } else { 0 });
        assert_eq!(replies.insert(number, reply), None);
        rest = behind;
    }
    (negotiated, replies)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn answers_do_not_depend_on_how_bytes_arrive(pieces in prop::collection::vec(1_usize..40_000, 1..40)) {
        let bytes = conversation();
        let whole = answers(&bytes, core::iter::repeat(usize::MAX));
        let in_pieces = answers(&bytes, pieces.into_iter().cycle());
        prop_assert!(split(&in_pieces) == split(&whole));
    }

    #[test]
    fn no_bytes_of_a_client_lead_to_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        negotiated: bool,
        command in 0_u16..8,
        flags in 0_u16..4,
        offset in 0_u64..(1 << 20) + 600,
        len in 0_u32..200_000,
    ) {
        let mut all = conversation();
        all.truncate(all.len() - 28);
        if !negotiated {
            all.truncate(4);
        }
        all.extend(flagged(flags, command, offset, len, &[]));
        all.extend(&bytes);
        answers(&all, core::iter::repeat(usize::MAX));
    }
}

#[test]
fn answers_are_the_same_byte_by_byte() {
    let bytes = conversation();
    let (by_byte, whole) =
        (answers(&bytes, core::iter::repeat(1)), answers(&bytes, core::iter::repeat(usize::MAX)));
    let (by_byte, whole) = (split(&by_byte), split(&whole));
    assert_eq!(whole.1.len(), 6);
    assert!(by_byte == whole);
    let errno = |number: u64| whole.1[&number][7];
    assert_eq!([0, 1, 2, 3, 4, 5].map(errno), [0, 0, 28, 0, 0, 22]);
}
