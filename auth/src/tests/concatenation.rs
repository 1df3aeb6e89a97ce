//! Secure channel concatenation: both sides make the same key, and who may ask for one.

use super::*;

const NEW: Concatenation = Concatenation::New { required: false };

fn rig(concatenation: Concatenation, wanted: SecureChannel) -> Rig {
    let mut rig = Rig::new(Hash::Sha256, Group::Ffdhe2048);
    rig.controller = Controller::new(names(), Terms::default()).with_concatenation(concatenation);
    rig.secure_channel = wanted;
    rig
}

fn refused(rig: &mut Rig, explanation: Explanation) {
    assert_eq!(rig.authenticate(), Err(HostError::Refused(explanation)));
    assert!(rig.made[0].is_none() && rig.controller.is_over());
}

#[test]
fn both_sides_make_the_same_key_which_does_not_unlock_the_queue() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for both_ways in [true, false] {
            let mut rig = rig(NEW, SecureChannel::NEW_TLS_PSK);
            rig.terms = Terms::new(&[hash], &[Group::Ffdhe2048]).unwrap();
            if !both_ways {
                rig.secrets.controller = None;
                rig.keys.as_mut().unwrap().controller = None;
            }
            assert_eq!(rig.authenticate(), Ok(()), "{hash} {both_ways}");
            let [Some(of_controller), Some(of_host)] = &rig.made else { panic!("{:?}", rig.made) };
            assert_eq!((of_controller.hash(), of_controller.bytes().len()), (hash, hash.len()));
            assert!(of_controller.bytes() == of_host.bytes() && of_host.hash() == hash);
            assert!(rig.controller.is_concatenated() && !rig.controller.is_authenticated());
        }
    }
}

#[test]
fn key_that_replaces_another_names_it_and_the_queue_stays_usable() {
    let mut rig = rig(Concatenation::Replace { key: 7 }, SecureChannel::REPLACE_TLS_PSK);
    assert!(rig.controller.is_authenticated(), "the channel's key proves the host");
    let (mut host, Next::Send(negotiate)) =
        Host::start_with(names(), rig.terms, 1, SecureChannel::REPLACE_TLS_PSK)
    else {
        panic!("no message")
    };
    rig.send(&negotiate);
    let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
    let Ok(Next::Send(reply)) = host.on_computed(task.run(&rig.secrets, &mut random())) else {
        panic!("no reply")
    };
    let computed = rig.controller.on_message(&reply).unwrap().run(rig.keys.as_ref(), &mut random());
    assert_eq!(computed.generated().map(|generated| generated.replaces), Some(Some(7)));
    rig.controller.on_computed(computed);
    assert!(rig.controller.is_authenticated() && !rig.controller.is_concatenated());
}

/// What is asked for where it may not be, and the reverse, is a mismatch (3).
#[test]
fn wrong_channel_is_a_mismatch() {
    let replace = Concatenation::Replace { key: 1 };
    let required = Concatenation::New { required: true };
    for (concatenation, wanted) in [
        (Concatenation::No, SecureChannel::NEW_TLS_PSK),
        (Concatenation::No, SecureChannel::REPLACE_TLS_PSK),
        (Concatenation::No, SecureChannel::TLS),
        (NEW, SecureChannel::REPLACE_TLS_PSK),
        (NEW, SecureChannel::TLS),
        (NEW, SecureChannel(4)),
        (required, SecureChannel::NONE),
        (replace, SecureChannel::NEW_TLS_PSK),
        (replace, SecureChannel::TLS),
        (replace, SecureChannel(255)),
    ] {
        let mut rig = rig(concatenation, wanted);
        refused(&mut rig, Explanation::CONCATENATION_MISMATCH);
        let fault = rig.controller.fault().unwrap();
        assert_eq!(fault == Fault::NoConcatenation, wanted == SecureChannel::NONE, "{fault}");
    }
    for concatenation in [NEW, replace, Concatenation::No] {
        assert_eq!(rig(concatenation, SecureChannel::NONE).authenticate(), Ok(()));
    }
}

#[test]
fn hash_and_group_that_make_no_key_are_not_usable() {
    for (hash, group, explanation) in [
        (Hash::Sha512, Group::Ffdhe2048, Explanation::HASH_NOT_USABLE),
        (Hash::Sha256, Group::Null, Explanation::DH_GROUP_NOT_USABLE),
    ] {
        let mut rig = rig(NEW, SecureChannel::NEW_TLS_PSK);
        rig.terms = Terms::new(&[hash], &[group]).unwrap();
        assert_eq!(rig.terms.for_concatenation(), None);
        refused(&mut rig, explanation);
    }
    // Of all, the strongest that do.
    let mut rig = rig(NEW, SecureChannel::NEW_TLS_PSK);
    rig.terms = Terms::new(&Hash::ALL, &[Group::Null, Group::Ffdhe2048]).unwrap();
    assert_eq!(rig.authenticate(), Ok(()));
    assert_eq!(rig.made[0].as_ref().map(GeneratedKey::hash), Some(Hash::Sha384));
}

#[test]
fn wrong_secret_makes_no_key() {
    let mut rig = rig(NEW, SecureChannel::NEW_TLS_PSK);
    rig.secrets.host = secret(9, None);
    refused(&mut rig, Explanation::AUTHENTICATION_AUTHENTICATION_FAILURE);
}

/// Without the host's challenge there is nothing to make a key of (CVALID 0).
#[test]
fn reply_without_a_challenge_is_an_incorrect_payload() {
    let mut rig = rig(NEW, SecureChannel::NEW_TLS_PSK);
    let (mut host, Next::Send(negotiate)) =
        Host::start_with(names(), rig.terms, 1, SecureChannel::NEW_TLS_PSK)
    else {
        panic!("no message")
    };
    rig.send(&negotiate);
    let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
    let Ok(Next::Send(mut reply)) = host.on_computed(task.run(&rig.secrets, &mut random())) else {
        panic!("no reply")
    };
    reply[8] = 0;
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::INCORRECT_PAYLOAD);
}

/// What the host asks for is part of its proof: nobody on the way can change it.
#[test]
fn channel_that_is_changed_on_the_way_is_a_wrong_response() {
    let mut rig = rig(NEW, SecureChannel::NEW_TLS_PSK);
    let (mut host, Next::Send(mut negotiate)) =
        Host::start_with(names(), rig.terms, 1, SecureChannel::NEW_TLS_PSK)
    else {
        panic!("no message")
    };
    negotiate[6] = SecureChannel::NONE.0;
    rig.send(&negotiate);
    let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
    let secrets = Secrets { controller: Some(secret(32, None)), ..rig.secrets.clone() };
    let Ok(Next::Send(reply)) = host.on_computed(task.run(&secrets, &mut random())) else {
        panic!("no reply")
    };
    rig.send(&reply);
    assert_eq!(rig.failure(), Explanation::AUTHENTICATION_AUTHENTICATION_FAILURE);
    assert_eq!(rig.controller.fault(), Some(Fault::WrongResponse));
}
