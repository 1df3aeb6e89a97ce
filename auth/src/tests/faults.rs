//! What a peer can do wrong: the bugs of other implementations, one test each.

use super::*;
use proptest::prelude::*;

/// A controller that waits for the reply, and the reply that it waits for.
fn before_reply(hash: Hash, group: Group) -> (Rig, Vec<u8>) {
    let mut rig = Rig::new(hash, group);
    let (mut host, Next::Send(negotiate)) = Host::start(names(), rig.terms, 1) else { panic!("no message") };
    rig.send(&negotiate);
    let _ = host.on_sent();
    let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
    let Ok(Next::Send(reply)) = host.on_computed(task.run(&rig.secrets, &mut random())) else {
        panic!("no reply")
    };
    (rig, reply)
}

fn negotiate_of(terms: Terms) -> Vec<u8> {
    let (_, Next::Send(message)) = Host::start(names(), terms, 1) else { panic!("no message") };
    message
}

/// Rows 1 and 4.
#[test]
fn message_that_ends_early_is_an_incorrect_payload() {
    let (_, reply) = before_reply(Hash::Sha512, Group::Null);
    for len in 0..reply.len() {
        let (mut rig, _) = before_reply(Hash::Sha512, Group::Null);
        rig.send(&reply[..len]);
        assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD, "{len} bytes of a reply");
    }
    let negotiate = negotiate_of(Terms::default());
    assert_eq!(negotiate.len(), 72);
    for len in 0..negotiate.len() {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        rig.send(&negotiate[..len]);
        assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD, "{len} bytes of a negotiation");
    }
}

/// Row 1.
#[test]
fn reply_with_other_lengths_is_an_incorrect_payload() {
    let (_, good) = before_reply(Hash::Sha256, Group::Null);
    let with = |at: usize, value: u8| {
        let (mut rig, mut reply) = before_reply(Hash::Sha256, Group::Null);
        reply[at] = value;
        rig.send(&reply);
        rig.failure()
    };
    for hl in (0..=255).filter(|&hl| hl != 32) {
        assert_eq!(with(6, hl), Explanation::INCORRECT_PAYLOAD, "HL {hl}");
    }
    for (at, value) in [(8, 2), (8, 255), (10, 1), (10, 4), (10, 255), (11, 1), (11, 255)] {
        assert_eq!(with(at, value), Explanation::INCORRECT_PAYLOAD, "byte {at} is {value}");
    }
    let (mut rig, _) = before_reply(Hash::Sha256, Group::Null);
    rig.send(&[&good[..], &[0]].concat());
    assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD, "one byte more");
}

/// Row 3.
#[test]
fn negotiation_with_impossible_counts_is_refused() {
    let good = negotiate_of(Terms::default());
    let with = |at: usize, value: u8| {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        let mut message = good.clone();
        message[at] = value;
        rig.send(&message);
        rig.failure()
    };
    for (at, value, explanation) in [
        (7, 0, Explanation::INCORRECT_PAYLOAD),
        (7, 2, Explanation::INCORRECT_PAYLOAD),
        (7, 255, Explanation::INCORRECT_PAYLOAD),
        (10, 0, Explanation::HASH_NOT_USABLE),
        (10, 31, Explanation::INCORRECT_PAYLOAD),
        (10, 255, Explanation::INCORRECT_PAYLOAD),
        (11, 0, Explanation::DH_GROUP_NOT_USABLE),
        (11, 31, Explanation::INCORRECT_PAYLOAD),
        (11, 255, Explanation::INCORRECT_PAYLOAD),
        (8, 2, Explanation::AUTHENTICATION_PROTOCOL_NOT_USABLE),
        (6, 1, Explanation::CONCATENATION_MISMATCH),
        (6, 2, Explanation::CONCATENATION_MISMATCH),
    ] {
        assert_eq!(with(at, value), explanation, "byte {at} is {value}");
    }
    // No protocol at all, and thirty of each, of which we know few.
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    rig.send(&[0, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(rig.failure(), Explanation::AUTHENTICATION_PROTOCOL_NOT_USABLE);
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    let mut message = good.clone();
    (message[10], message[11]) = (30, 30);
    rig.send(&message);
    assert!(matches!(Message::parse(&rig.receive()), Ok(Message::Challenge(_))));
    // Ours is the second protocol.
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    let mut message = [&good[..8], &[7; 64][..], &good[8..]].concat();
    message[7] = 2;
    rig.send(&message);
    assert!(matches!(Message::parse(&rig.receive()), Ok(Message::Challenge(_))));
}

/// Row 6.
#[test]
fn failing_random_numbers_fail_the_authentication_only() {
    for good_calls in 0..3 {
        let mut controller = Controller::new(names(), Terms::default());
        let task = controller
            .on_message(&negotiate_of(Terms::new(&Hash::ALL, &[Group::Ffdhe2048]).unwrap()))
            .unwrap();
        let mut calls = 0;
        let computed = task.run(None, &mut |bytes| {
            calls += 1;
            bytes.fill(1);
            if calls > good_calls { Err(NoRandom) } else { Ok(()) }
        });
        controller.on_computed(computed);
        assert_eq!(controller.fault(), Some(Fault::Random(NoRandom)));
    }
}

/// Row 9: exponents whose public value, or shared secret, begins with a zero byte.
#[test]
fn values_with_leading_zero_bytes_keep_their_length() {
    let pair = |n: u32| KeyPair::of_exponent(Group::Ffdhe2048, Zeroizing::new(n.to_be_bytes().to_vec()));
    // 2 ^ 2040 has 256 bytes; 2 ^ 1 has one. Both sides write 256.
    let (small, other) = (pair(3), pair(5));
    assert_eq!(small.public().len(), 256);
    assert_eq!(small.public()[..255], [0; 255]);
    let shared = small.agree(other.public()).unwrap();
    assert_eq!((shared.len(), &shared[..254], &shared[254..]), (256, &[0; 254][..], &[0x80, 0][..]));
    assert_eq!(other.agree(small.public()).unwrap(), shared);
    // Random ones: about one of 256 has such a value.
    let (mut zeroes, mut n) = (0, 1 << 16);
    while zeroes < 2 {
        n += 1;
        let found = pair(n);
        if found.public()[0] == 0 {
            zeroes += 1;
            assert_eq!(found.agree(other.public()).unwrap(), other.agree(found.public()).unwrap());
        }
    }
}

/// Row 13.
#[test]
fn values_that_are_none_of_the_group_are_refused_by_both_sides() {
    let group = Group::Ffdhe2048;
    let prime = group.modulus();
    let mut less = prime.clone();
    *less.last_mut().unwrap() -= 1;
    let mut more = prime.clone();
    for byte in more.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    let mut one = vec![0; 256];
    let zero = one.clone();
    one[255] = 1;
    let (good, _) = (negotiate_of(Terms::new(&[Hash::Sha256], &[group]).unwrap()), ());
    for value in [zero, one, less, prime, more, vec![0xff; 256]] {
        let (mut rig, mut reply) = before_reply(Hash::Sha256, group);
        let at = reply.len() - 256;
        reply[at..].copy_from_slice(&value);
        rig.send(&reply);
        assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD);
        assert_eq!(rig.controller.fault(), Some(Fault::Value));
        // And as the controller's.
        let mut rig = Rig::new(Hash::Sha256, group);
        rig.send(&good);
        let mut challenge = rig.receive();
        challenge[16 + 32..16 + 32 + 256].copy_from_slice(&value);
        let (mut host, _) = Host::start(names(), rig.terms, 1);
        let _ = host.on_sent();
        let Ok(Next::Compute(task)) = host.on_received(&challenge) else { panic!("no task") };
        assert!(matches!(host.on_computed(task.run(&rig.secrets, &mut random())), Ok(Next::Send(_))));
        assert_eq!(host.on_sent().unwrap_err(), HostError::Value);
    }
}

/// Row 14: a reply again, when it was accepted, and to a new challenge.
#[test]
fn replayed_reply_is_refused() {
    let (mut rig, reply) = before_reply(Hash::Sha256, Group::Null);
    rig.send(&reply);
    rig.receive();
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::INCORRECT_MESSAGE);

    let (mut rig, reply) = before_reply(Hash::Sha256, Group::Null);
    rig.send(&reply);
    rig.receive();
    rig.send(&[1, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(rig.controller.is_authenticated());
    let negotiate = negotiate_of(rig.terms);
    let task = rig.controller.on_message(&negotiate).unwrap();
    let mut other = |bytes: &mut [u8]| {
        bytes.fill(9);
        Ok(())
    };
    rig.controller.on_computed(task.run(None, &mut other));
    rig.receive();
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::AUTHENTICATION_AUTHENTICATION_FAILURE);
    assert!(!rig.controller.is_authenticated());
}

/// Row 14: messages out of order, and requests for one that is not there.
#[test]
fn message_out_of_order_is_refused() {
    let success2 = [1, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (_, reply) = before_reply(Hash::Sha256, Group::Null);
    let challenge = {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        rig.send(&negotiate_of(rig.terms));
        rig.controller.message().to_vec()
    };
    for message in [&success2[..], &reply, &challenge, &[1, 3, 0, 0, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        rig.send(message);
        assert_eq!(rig.failure(), Explanation::INCORRECT_MESSAGE);
    }
    // A reply before the challenge was received.
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    rig.send(&negotiate_of(rig.terms));
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::INCORRECT_MESSAGE);
    // A request before anything was sent, and after everything was.
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    assert_eq!(rig.failure(), Explanation::INCORRECT_MESSAGE);
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    assert_eq!(rig.authenticate(), Ok(()));
    assert_eq!(rig.failure(), Explanation::INCORRECT_MESSAGE);
    // While a task is out.
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    let task = rig.controller.on_message(&negotiate_of(rig.terms)).unwrap();
    assert!(rig.controller.on_message(&negotiate_of(rig.terms)).is_none());
    rig.controller.on_computed(task.run(None, &mut random()));
    assert_eq!(rig.failure(), Explanation::INCORRECT_MESSAGE);
}

/// Row 14: the first challenge is worth nothing after a second negotiation.
#[test]
fn second_negotiation_makes_the_first_challenge_worthless() {
    let (mut rig, reply) = before_reply(Hash::Sha256, Group::Null);
    let task = rig.controller.on_message(&negotiate_of(rig.terms)).unwrap();
    let mut other = |bytes: &mut [u8]| {
        bytes.fill(9);
        Ok(())
    };
    rig.controller.on_computed(task.run(None, &mut other));
    assert!(matches!(Message::parse(&rig.receive()), Ok(Message::Challenge(_))));
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::AUTHENTICATION_AUTHENTICATION_FAILURE);
}

#[test]
fn reply_of_another_transaction_is_an_incorrect_payload() {
    let (mut rig, mut reply) = before_reply(Hash::Sha256, Group::Null);
    reply[4] ^= 1;
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD);
}

/// Row 11: as a host with concatenation sends it. It would prove nothing of the controller.
#[test]
fn challenge_without_a_sequence_number_is_an_incorrect_payload() {
    let (mut rig, mut reply) = before_reply(Hash::Sha256, Group::Null);
    assert_eq!(reply[8], 1);
    reply[12..16].fill(0);
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD);
}

/// Row 7: what was under way is forgotten; who is authenticated stays so.
#[test]
fn run_that_is_given_up_leaves_an_authenticated_host_authenticated() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    assert_eq!(rig.authenticate(), Ok(()));
    rig.send(&negotiate_of(rig.terms));
    rig.receive();
    rig.controller.give_up();
    assert!(rig.controller.is_authenticated() && !rig.controller.is_under_way());
    assert_eq!(rig.authenticate(), Ok(()));
}

/// A machine that mirrors the challenge to another of our controllers and back learns nothing.
#[test]
fn response_of_one_side_is_none_of_the_other() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    // The same key for both sides.
    rig.secrets.controller = Some(secret(0, None));
    rig.keys.as_mut().unwrap().controller = Some(secret(0, None));
    let (mut host, Next::Send(negotiate)) = Host::start(names(), rig.terms, 1) else { panic!("no message") };
    rig.send(&negotiate);
    let _ = host.on_sent();
    let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
    let Ok(Next::Send(reply)) = host.on_computed(task.run(&rig.secrets, &mut random())) else {
        panic!("no reply")
    };
    let _ = host.on_sent();
    // The host's own response as the controller's.
    let mut success1 = vec![1, 3, 0, 0, 1, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    success1.extend_from_slice(&reply[16..48]);
    assert!(matches!(host.on_received(&success1), Ok(Next::Send(_))));
    assert_eq!(host.on_sent().unwrap_err(), HostError::WrongController);
}

proptest! {
    #[test]
    fn any_messages_are_answered(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6)) {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        let (mut host, _) = Host::start(names(), rig.terms, 1);
        for message in messages {
            rig.send(&message);
            prop_assert!(!rig.receive().is_empty());
            prop_assert!(!rig.controller.is_authenticated());
            let done = matches!(host.on_received(&message), Ok(Next::Done));
            prop_assert!(!done);
        }
    }
}
