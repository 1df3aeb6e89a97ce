//! The two sides against each other.

use super::*;

#[test]
fn both_sides_authenticate_over_every_hash_and_group() {
    for hash in Hash::ALL {
        for group in [Group::Null, Group::Ffdhe2048] {
            let mut rig = Rig::new(hash, group);
            assert_eq!(rig.authenticate(), Ok(()), "{hash} {group}");
            assert!(rig.controller.is_authenticated());
            rig.secrets.controller = None;
            assert_eq!(rig.authenticate(), Ok(()), "one way, {hash} {group}");
        }
    }
    for group in [Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192] {
        assert_eq!(Rig::new(Hash::Sha256, group).authenticate(), Ok(()), "{group}");
    }
}

#[test]
fn secrets_with_any_transform_and_length_authenticate() {
    for len in [32, 48, 64] {
        for transform in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
            let mut rig = Rig::new(Hash::Sha384, Group::Null);
            let secret = Secret::generate(len, transform, &mut random()).unwrap();
            rig.secrets.host = secret.clone();
            rig.keys.as_mut().unwrap().host = Some(secret);
            assert_eq!(rig.authenticate(), Ok(()));
        }
    }
}

#[test]
fn strongest_common_hash_and_group_are_chosen() {
    let offered = Terms::new(&[Hash::Sha256, Hash::Sha384], &[Group::Null, Group::Ffdhe3072]).unwrap();
    let descriptor = offered.descriptor();
    let all = Terms::default();
    assert_eq!(all.choose_hash(descriptor.hashes()), Some(Hash::Sha384));
    assert_eq!(all.choose_group(descriptor.groups()), Some(Group::Ffdhe3072));
    let floor = Terms::new(&[Hash::Sha512], &[Group::Ffdhe4096, Group::Ffdhe8192]).unwrap();
    assert_eq!(floor.choose_hash(descriptor.hashes()), None);
    assert_eq!(floor.choose_group(descriptor.groups()), None);
    assert_eq!(Terms::new(&[], &Group::ALL), None);
}

/// Table row 14.
#[test]
fn wrong_key_is_refused_and_nothing_follows() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let mut rig = Rig::new(Hash::Sha256, group);
        rig.secrets.host = secret(1, None);
        let refused = HostError::Refused(Explanation::AUTHENTICATION_AUTHENTICATION_FAILURE);
        assert_eq!(rig.authenticate(), Err(refused));
        assert_eq!(rig.controller.fault(), Some(Fault::WrongResponse));
        assert!(rig.controller.is_over());
        // The right key comes too late.
        rig.secrets.host = secret(0, None);
        assert_eq!(rig.authenticate(), Err(refused));
    }
}

/// Table row 14: a key with the same bytes is another one for another host, where it is transformed.
#[test]
fn key_of_another_host_is_refused() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    rig.keys.as_mut().unwrap().host = Some(secret(0, Some(Hash::Sha256)));
    rig.secrets.host = secret(0, Some(Hash::Sha256));
    assert_eq!(rig.authenticate(), Ok(()));
    let other = Names { host: "nqn.2024-01.example:other".parse().unwrap(), ..names() };
    rig.controller = Controller::new(other, Terms::default());
    assert!(rig.authenticate().is_err());
    assert_eq!(rig.controller.fault(), Some(Fault::WrongResponse));
}

/// Table row 14: a key that is removed.
#[test]
fn authenticated_host_without_its_key_fails_to_authenticate_again() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    assert_eq!(rig.authenticate(), Ok(()));
    rig.keys = None;
    assert!(rig.authenticate().is_err());
    assert_eq!(rig.controller.fault(), Some(Fault::NoKey));
    assert!(!rig.controller.is_authenticated());
}

#[test]
fn controller_with_the_wrong_key_is_refused_by_the_host() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let mut rig = Rig::new(Hash::Sha512, group);
        rig.keys.as_mut().unwrap().controller = Some(secret(7, None));
        assert_eq!(rig.authenticate(), Err(HostError::WrongController));
        assert_eq!(rig.controller.fault(), Some(Fault::Refused(1)));
        assert!(rig.controller.is_over() && !rig.controller.is_authenticated());
    }
}

#[test]
fn controller_without_a_key_refuses_to_prove_itself() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    rig.keys.as_mut().unwrap().controller = None;
    let refused = HostError::Refused(Explanation::AUTHENTICATION_AUTHENTICATION_FAILURE);
    assert_eq!(rig.authenticate(), Err(refused));
    assert_eq!(rig.controller.fault(), Some(Fault::NoControllerKey));
}

#[test]
fn nothing_in_common_has_its_own_explanation() {
    let terms = |hash, group| Terms::new(&[hash], &[group]).unwrap();
    for (ours, theirs, explanation) in [
        (terms(Hash::Sha512, Group::Null), terms(Hash::Sha256, Group::Null), Explanation::HASH_NOT_USABLE),
        (
            terms(Hash::Sha256, Group::Ffdhe4096),
            terms(Hash::Sha256, Group::Null),
            Explanation::DH_GROUP_NOT_USABLE,
        ),
    ] {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        rig.controller = Controller::new(names(), ours);
        rig.terms = theirs;
        assert_eq!(rig.authenticate(), Err(HostError::Refused(explanation)));
    }
}

/// Table rows 6 and 8: nothing of an earlier run is left.
#[test]
fn hundred_authentications_follow_each_other_over_changing_groups_and_keys() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    let groups = [Group::Null, Group::Ffdhe2048, Group::Null, Group::Ffdhe2048, Group::Ffdhe3072];
    for run in 0..100u8 {
        let hash = Hash::ALL[usize::from(run) % 3];
        // The large groups take long in a test build.
        let group = if run < 10 { groups[usize::from(run) % 5] } else { Group::Null };
        rig.terms = Terms::new(&[hash], &[group]).unwrap();
        rig.secrets = Secrets { host: secret(run, None), controller: Some(secret(run / 2, None)) };
        rig.keys =
            Some(controller::Keys { host: Some(secret(run, None)), controller: Some(secret(run / 2, None)) });
        assert_eq!(rig.authenticate(), Ok(()), "run {run}");
        assert!(rig.controller.is_authenticated() && !rig.controller.is_under_way());
    }
}

/// Table row 5: what was not offered is not chosen, and the host takes nothing else.
#[test]
fn host_refuses_what_it_did_not_offer() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    let start = |terms| match Host::start(names(), terms, 1) {
        (host, Next::Send(message)) => (host, message),
        (_, next) => panic!("{next:?}"),
    };
    let (_, negotiate) = start(Terms::new(&[Hash::Sha256], &[Group::Null]).unwrap());
    rig.send(&negotiate);
    let challenge = rig.receive();
    for (terms, error) in [
        (Terms::new(&[Hash::Sha256], &[Group::Ffdhe3072]).unwrap(), HostError::Group(0)),
        (Terms::new(&[Hash::Sha384], &[Group::Null]).unwrap(), HostError::Hash(1)),
    ] {
        let (mut host, _) = start(terms);
        let _ = host.on_sent();
        let Ok(Next::Send(failure2)) = host.on_received(&challenge) else { panic!("it accepts") };
        assert!(matches!(Message::parse(&failure2), Ok(Message::Failure2(_))));
        assert_eq!(host.on_sent().unwrap_err(), error);
    }
}

/// Table row 10.
#[test]
fn reply_has_a_sequence_number_even_one_way() {
    let mut rig = Rig::new(Hash::Sha256, Group::Null);
    let (mut host, Next::Send(negotiate)) = Host::start(names(), rig.terms, 1) else { panic!("no message") };
    rig.send(&negotiate);
    let _ = host.on_sent();
    let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
    let secrets = Secrets { controller: None, ..rig.secrets.clone() };
    let mut zeroes = |bytes: &mut [u8]| {
        bytes.fill(0);
        Ok(())
    };
    let Ok(Next::Send(reply)) = host.on_computed(task.run(&secrets, &mut zeroes)) else { panic!("no reply") };
    let Ok(Message::Reply(reply)) = Message::parse(&reply) else { panic!("no reply") };
    assert!(reply.sequence != 0 && reply.challenge.is_none());
}

#[test]
fn host_does_without_a_response_only_if_it_asked_for_none() {
    for asked in [false, true] {
        let mut rig = Rig::new(Hash::Sha256, Group::Null);
        if !asked {
            rig.secrets.controller = None;
        }
        let (mut host, Next::Send(negotiate)) = Host::start(names(), rig.terms, 1) else {
            panic!("no message")
        };
        rig.send(&negotiate);
        let _ = host.on_sent();
        let Ok(Next::Compute(task)) = host.on_received(&rig.receive()) else { panic!("no task") };
        let _ = host.on_computed(task.run(&rig.secrets, &mut random()));
        let _ = host.on_sent();
        // HL is there without a response; another length is refused.
        let success1 = |hl: u8| [&[1, 3, 0, 0, 1, 0, hl, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &[0; 64]].concat();
        let next = host.on_received(&success1(32));
        if asked {
            assert!(matches!(next, Ok(Next::Send(_))));
            assert_eq!(host.on_sent().unwrap_err(), HostError::NoResponse);
        } else {
            assert!(matches!(next, Ok(Next::Done)));
        }
    }
}

#[test]
fn nothing_shows_a_secret() {
    let mut rig = Rig::new(Hash::Sha256, Group::Ffdhe2048);
    let text = secret(0, None).to_interchange();
    assert_eq!(rig.authenticate(), Ok(()));
    let shown = format!("{:?} {:?} {:?}", rig.controller, rig.keys, rig.secrets);
    assert!(!shown.contains(&text[12..30]) && !shown.contains("0, 1, 2, 3"), "{shown}");
    assert!(!shown.contains("exponent"));
}
