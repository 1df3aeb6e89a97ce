//! However the stream is cut, the same events come of it.

use crate::driver::{ALL, BOTH, Driver, alignment, conversation, to_controller};
use nvme_proto::Sqe;
use nvme_proto::tcp::Receiver;
use nvmf_memory::Memory;
use nvmf_tcp::{Crc32c, Event};
use proptest::prelude::*;

const ROLES: [Receiver; 2] = [Receiver::Controller, Receiver::Host];

#[test]
fn every_pdu_in_one_buffer() {
    for receiver in ROLES {
        for digests in ALL {
            for alignment in [0, 1, 7, 31].map(alignment) {
                let (bytes, expected) = conversation(receiver, digests, alignment);
                let mut driver = Driver::new(receiver, digests, alignment);
                driver.feed(&bytes).unwrap();
                assert_eq!(driver.seen, expected, "{receiver:?} {digests:?} {alignment:?}");
            }
        }
    }
}

#[test]
fn every_pdu_byte_by_byte() {
    for receiver in ROLES {
        for digests in ALL {
            for alignment in [0, 7].map(alignment) {
                let (bytes, expected) = conversation(receiver, digests, alignment);
                let mut driver = Driver::new(receiver, digests, alignment);
                for byte in bytes {
                    driver.feed(&[byte]).unwrap();
                    assert_eq!(driver.receiver.on_bytes(&[]), Ok((0, None)));
                }
                assert_eq!(driver.seen, expected, "{receiver:?} {digests:?}");
            }
        }
    }
}

#[test]
fn every_two_way_split() {
    for receiver in ROLES {
        for digests in ALL {
            let (bytes, expected) = conversation(receiver, digests, alignment(3));
            for at in 0..bytes.len() {
                let mut driver = Driver::new(receiver, digests, alignment(3));
                driver.feed(&bytes[..at]).unwrap();
                driver.feed(&bytes[at..]).unwrap();
                assert_eq!(driver.seen, expected, "{receiver:?} {digests:?} split at {at}");
            }
        }
    }
}

#[test]
fn between_pdus_is_only_between_pdus() {
    for digests in ALL {
        let head = to_controller(digests).command(Sqe::new(1), 8).unwrap();
        let pdu = crate::driver::with_data(head, &[1; 8], digests);
        let mut driver = Driver::ready(Receiver::Controller, digests);
        assert!(driver.receiver.is_between_pdus());
        for (at, byte) in pdu.iter().enumerate() {
            driver.feed(&[*byte]).unwrap();
            assert_eq!(driver.receiver.is_between_pdus(), at + 1 == pdu.len(), "after byte {at}");
        }
    }
}

#[test]
fn data_are_not_taken_as_a_header() {
    let head = to_controller(BOTH).command(Sqe::new(1), 8).unwrap();
    let mut driver = Driver::ready(Receiver::Controller, BOTH);
    let (used, event) = driver.receiver.on_bytes(&[head.as_bytes(), &[0; 20]].concat()).unwrap();
    assert_eq!((used, event), (76, Some(Event::Command { sqe: Sqe::new(1), data_len: 8 })));
    assert_eq!(driver.receiver.on_bytes(&[0; 20]), Ok((0, None)));
    assert_eq!((driver.receiver.data_left(), driver.receiver.wants_data_bytes()), (8, true));
}

#[test]
fn data_received_into_memory_have_the_same_digest() {
    let memory = Memory::alloc(nvmf_memory::PAGE).unwrap();
    let data = crate::driver::pattern(512, 9);
    memory.write(100, &data);
    let head = to_controller(BOTH).command(Sqe::new(1), 512).unwrap();
    let pdu = crate::driver::with_data(head, &data, BOTH);
    for (shown, intact) in [(true, true), (false, false)] {
        let mut driver = Driver::ready(Receiver::Controller, BOTH);
        driver.feed(&pdu[..76]).unwrap();
        assert_eq!(driver.receiver.on_memory(&memory, 100, 12), None);
        assert_eq!(driver.receiver.data_left(), 500);
        let rest = match shown {
            true => driver.receiver.on_memory(&memory, 112, 500),
            false => driver.receiver.on_placed(500),
        };
        assert_eq!((rest, driver.receiver.data_left()), (None, 0));
        driver.seen.clear();
        driver.feed(&pdu[588..]).unwrap();
        assert_eq!(driver.events(), [Event::DataEnd { intact }]);
    }
}

#[test]
fn data_that_the_digest_did_not_see_are_damaged_whatever_it_says() {
    let head = to_controller(BOTH).command(Sqe::new(1), 512).unwrap();
    // The digest of nothing, and of the part that was shown.
    for shown in [0, 100] {
        let data = crate::driver::pattern(shown, 1);
        let mut driver = Driver::ready(Receiver::Controller, BOTH);
        driver.feed(head.as_bytes()).unwrap();
        assert_eq!(driver.receiver.on_data(&data), None);
        assert_eq!(driver.receiver.on_placed(512 - shown), None);
        driver.seen.clear();
        driver.feed(&Crc32c::of(&data).to_le_bytes()).unwrap();
        assert_eq!(driver.events(), [Event::DataEnd { intact: false }]);
    }
}

#[test]
fn data_without_a_digest_end_with_their_last_byte() {
    let mut driver = Driver::ready(Receiver::Controller, crate::driver::NONE);
    let head = to_controller(crate::driver::NONE).command(Sqe::new(1), 512).unwrap();
    driver.feed(head.as_bytes()).unwrap();
    assert!(!driver.receiver.wants_data_bytes());
    assert_eq!(driver.receiver.on_placed(0), None);
    assert_eq!(driver.receiver.on_placed(511), None);
    assert_eq!(driver.receiver.on_placed(1), Some(Event::DataEnd { intact: true }));
    assert!(driver.receiver.is_between_pdus());
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_events(
        host: bool,
        digests in 0usize..4,
        z in 0u8..32,
        lens in prop::collection::vec(1usize..200, 1..40),
    ) {
        let receiver = ROLES[usize::from(host)];
        let (bytes, expected) = conversation(receiver, ALL[digests], alignment(z));
        let mut driver = Driver::new(receiver, ALL[digests], alignment(z));
        let mut rest = &bytes[..];
        for len in lens.into_iter().cycle() {
            let (piece, others) = rest.split_at(len.min(rest.len()));
            driver.feed(piece).unwrap();
            rest = others;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(driver.seen, expected);
    }

    #[test]
    fn any_bytes_do_no_harm(
        host: bool,
        digests in 0usize..4,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let receiver = ROLES[usize::from(host)];
        let (mut bytes, _) = conversation(receiver, ALL[digests], alignment(0));
        for (at, value) in changes {
            *at.get_mut(&mut bytes) = value;
        }
        bytes.extend(tail);
        let mut driver = Driver::new(receiver, ALL[digests], alignment(0));
        if driver.feed(&bytes).is_err() {
            prop_assert!(driver.receiver.is_over());
        }
    }

    #[test]
    fn the_same_error_whatever_the_cut(host: bool, digests in 0usize..4, at: prop::sample::Index, value: u8) {
        let receiver = ROLES[usize::from(host)];
        let (mut bytes, _) = conversation(receiver, ALL[digests], alignment(0));
        *at.get_mut(&mut bytes) = value;
        let mut whole = Driver::new(receiver, ALL[digests], alignment(0));
        let end = whole.feed(&bytes);
        let mut bytewise = Driver::new(receiver, ALL[digests], alignment(0));
        let bytewise_end = bytes.iter().try_for_each(|byte| bytewise.feed(&[*byte]));
        prop_assert_eq!(end, bytewise_end);
        prop_assert_eq!(&whole.seen, &bytewise.seen);
        if let Err(nvmf_tcp::End::Fatal(error)) = end {
            prop_assert_eq!(whole.receiver.terminate(error), bytewise.receiver.terminate(error));
        }
    }
}
