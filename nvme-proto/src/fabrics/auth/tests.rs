extern crate std;

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn emit(message: &Message<'_>) -> Vec<u8> {
    let mut out = vec![0xaa; message.wire_len()];
    assert_eq!(message.emit(&mut out), Ok(out.len()));
    out
}

#[test]
fn the_commands_dwords() {
    let command = Authentication::new(0x0102);
    assert_eq!((command.cdw10().to_le_bytes(), command.cdw11()), ([0, 1, 1, 0xe9], 0x0102));
    assert!(command.is_nvme());
    assert!(!Authentication { spsp0: 0, ..command }.is_nvme());
}

#[test]
fn a_negotiation_as_a_linux_host_sends_it() {
    let hashes = [HashId::SHA256, HashId::SHA384, HashId::SHA512];
    let groups = [DhGroup::NULL, DhGroup::FFDHE2048, DhGroup::FFDHE3072];
    let descriptors = [ProtocolDescriptor::dh_hmac_chap(&hashes, &groups).unwrap()];
    let message = Message::Negotiate(Negotiate {
        transaction: 0x0102,
        secure_channel: SecureChannel::NONE,
        descriptors: &descriptors,
    });
    let mut golden = [0; 72];
    golden[..15].copy_from_slice(&[0, 0, 0, 0, 2, 1, 0, 1, 1, 0, 3, 3, 1, 2, 3]);
    golden[42..45].copy_from_slice(&[0, 1, 2]);
    assert_eq!(emit(&message), golden);
    let Ok(Message::Negotiate(read)) = Message::parse(&golden) else { panic!("a negotiation") };
    assert_eq!((read.descriptors[0].hashes(), read.descriptors[0].groups()), (&hashes[..], &groups[..]));
    golden[10] = 31;
    assert_eq!(Message::parse(&golden), Err(FailureExplanation::INCORRECT_PAYLOAD));
    // Of a protocol that we do not know, the counts mean nothing.
    golden[8] = 2;
    assert!(Message::parse(&golden).is_ok());
    assert_eq!(ProtocolDescriptor::dh_hmac_chap(&[HashId::SHA256; 31], &groups), None);
}

#[test]
fn the_other_messages_bytes() {
    let challenge = Message::Challenge(Challenge {
        transaction: 1,
        hash: HashId::SHA384,
        group: DhGroup::FFDHE2048,
        sequence: 0x0403_0201,
        challenge: &[7, 8],
        dh_value: &[9, 10, 11],
    });
    let golden = [1, 1, 0, 0, 1, 0, 2, 0, 2, 1, 3, 0, 1, 2, 3, 4, 7, 8, 9, 10, 11];
    assert_eq!(emit(&challenge), golden);

    let reply =
        Reply { transaction: 1, sequence: 5, response: &[7, 8], challenge: Some(&[5, 6]), dh_value: &[9] };
    let golden = [1, 2, 0, 0, 1, 0, 2, 0, 1, 0, 1, 0, 5, 0, 0, 0, 7, 8, 5, 6, 9];
    assert_eq!(emit(&Message::Reply(reply)), golden);
    let golden = [1, 2, 0, 0, 1, 0, 2, 0, 0, 0, 1, 0, 5, 0, 0, 0, 7, 8, 0, 0, 9];
    assert_eq!(emit(&Message::Reply(Reply { challenge: None, ..reply })), golden);

    let success = Success1 { transaction: 1, hash_len: 2, response: Some(&[7, 8]) };
    let golden = [1, 3, 0, 0, 1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 8];
    assert_eq!(emit(&Message::Success1(success)), golden);
    let golden = [1, 3, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(emit(&Message::Success1(Success1 { response: None, ..success })), golden);
    let golden = [1, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(emit(&Message::Success2 { transaction: 1 }), golden);

    let failure = Failure {
        transaction: 1,
        reason: FailureReason::AUTHENTICATION_FAILURE,
        explanation: FailureExplanation::HASH_NOT_USABLE,
    };
    assert_eq!(emit(&Message::Failure1(failure)), [0, 0xf1, 0, 0, 1, 0, 1, 4]);
    assert_eq!(emit(&Message::Failure2(failure)), [0, 0xf0, 0, 0, 1, 0, 1, 4]);
}

#[test]
fn success1_without_a_response_parses_with_and_without_its_place() {
    let mut bytes = vec![1, 3, 0, 0, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let success = Message::Success1(Success1 { transaction: 1, hash_len: 32, response: None });
    assert_eq!(Message::parse(&bytes), Ok(success));
    bytes.resize(48, 0);
    assert_eq!(Message::parse(&bytes), Ok(success));
}

#[test]
fn truncated_message_is_an_incorrect_payload() {
    let reply =
        Reply { transaction: 1, sequence: 5, response: &[7, 8], challenge: None, dh_value: &[9, 9, 9] };
    let bytes = emit(&Message::Reply(reply));
    for len in 0..bytes.len() {
        assert_eq!(Message::parse(&bytes[..len]), Err(FailureExplanation::INCORRECT_PAYLOAD), "{len} bytes");
    }
    assert_eq!(Message::parse(&[1, 5, 0, 0, 0, 0, 0, 0]), Err(FailureExplanation::INCORRECT_MESSAGE));
}

#[test]
fn emit_refuses_lengths_that_cannot_be_sent() {
    let reply = Reply { transaction: 1, sequence: 5, response: &[7, 8], challenge: None, dh_value: &[] };
    let mut out = [0xaa; 64];
    assert_eq!(Message::Reply(reply).emit(&mut out[..19]), Err(EmitError::NoRoom { need: 20, room: 19 }));
    let long = vec![0; 1 << 16];
    let unsayable = [
        Message::Reply(Reply { challenge: Some(&[1]), ..reply }),
        Message::Reply(Reply { response: &long[..256], ..reply }),
        Message::Reply(Reply { dh_value: &long, ..reply }),
        Message::Success1(Success1 { transaction: 1, hash_len: 3, response: Some(&[1]) }),
    ];
    for message in unsayable {
        assert_eq!(message.emit(&mut out), Err(EmitError::ValueLength));
    }
    assert_eq!(out, [0xaa; 64]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_a_failure(mut bytes in prop::collection::vec(any::<u8>(), 0..700), pick in 0usize..8, short: bool) {
        let ids = [[0, 0], [1, 1], [1, 2], [1, 3], [1, 4], [0, 0xf0], [0, 0xf1]];
        if let (Some(id), Some(head)) = (ids.get(pick), bytes.get_mut(..12)) {
            head[..2].copy_from_slice(id);
            if short {
                // Lengths that random bytes would seldom satisfy.
                (head[6], head[7], head[11]) = (head[6] & 63, head[7] & 7, 0);
            }
        }
        if let Ok(message) = Message::parse(&bytes) {
            // Success1 without a response may leave the response's place out.
            let short = matches!(message, Message::Success1(Success1 { response: None, .. }));
            prop_assert!(short || message.wire_len() <= bytes.len());
            prop_assert_eq!(transaction_of(&bytes), Some(message.transaction()));
            let again = emit(&message);
            prop_assert_eq!(Message::parse(&again), Ok(message));
        }
    }

    #[test]
    fn messages_survive_the_wire(transaction: u16, sequence: u32, ids: (u8, u8), c1 in prop::collection::vec(any::<u8>(), 0..=255), c2: bool, dh in prop::collection::vec(any::<u8>(), 0..1100)) {
        let (hash, group) = (HashId(ids.0), DhGroup(ids.1));
        let messages = [
            Message::Challenge(Challenge { transaction, hash, group, sequence, challenge: &c1, dh_value: &dh }),
            Message::Reply(Reply { transaction, sequence, response: &c1, challenge: c2.then_some(&c1[..]), dh_value: &dh }),
            Message::Success1(Success1 { transaction, hash_len: c1.len() as u8, response: c2.then_some(&c1[..]) }),
        ];
        for message in messages {
            let mut bytes = emit(&message);
            bytes.extend_from_slice(&[0; 32]);
            prop_assert_eq!(Message::parse(&bytes), Ok(message));
            prop_assert_eq!(message.transaction(), transaction);
        }
    }

    #[test]
    fn any_dwords_are_a_command(cdw10: u32, cdw11: u32) {
        let command = Authentication::parse(cdw10, cdw11);
        prop_assert_eq!((command.cdw10(), command.cdw11()), (cdw10 & !0xff, cdw11));
    }
}
