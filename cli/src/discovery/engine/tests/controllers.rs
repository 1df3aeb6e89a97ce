//! Which discovery controllers are followed.

use super::*;

#[test]
fn referrals_are_followed_once_each_also_in_circles() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("a")], Vec::new());
    assert_eq!(actions(&mut engine), [Action::Follow(controller("a"))]);
    engine.on_log(NOW, &controller("a"), vec![Entry::Referral(place("b")), Entry::Referral(place("b"))]);
    assert_eq!(actions(&mut engine), [Action::Follow(controller("b"))]);
    engine.on_log(NOW, &controller("b"), vec![Entry::Referral(place("a")), Entry::Referral(place("b"))]);
    assert!(actions(&mut engine).is_empty());
    // It is referred to no more.
    engine.on_log(NOW, &controller("a"), Vec::new());
    assert_eq!(actions(&mut engine), [Action::Leave(controller("b"))]);
    // What it says afterwards is nobody's.
    engine.on_log(NOW, &controller("b"), vec![subsystem("x", "t")]);
    assert!(actions(&mut engine).is_empty());
}

#[test]
fn referrals_beyond_the_limits_are_counted() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("0")], Vec::new());
    let many = (1..=300).map(|number| Entry::Referral(place(&number.to_string()))).collect();
    engine.on_log(NOW, &controller("0"), many);
    assert_eq!((engine.counts().0, engine.beyond().referrals), (256, 45));
    // And those behind too many others.
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("0")], Vec::new());
    for number in 0..=8 {
        let next = Entry::Referral(place(&(number + 1).to_string()));
        engine.on_log(NOW, &controller(&number.to_string()), vec![next]);
    }
    assert_eq!((engine.counts().0, engine.beyond().referrals), (9, 1));
}

fn referrals(from: u32, to: u32) -> Vec<Entry> {
    (from..to).map(|number| Entry::Referral(place(&number.to_string()))).collect()
}

/// Whoever fills a log with referrals takes the place of no other's, nor of what is followed already.
#[test]
fn referrals_of_one_take_no_place_from_others() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("H"), controller("L")], Vec::new());
    engine.on_log(NOW, &controller("L"), vec![Entry::Referral(place("R"))]);
    actions(&mut engine);
    engine.on_log(NOW, &controller("H"), referrals(0, 300));
    let left =
        |engine: &mut Engine| actions(engine).into_iter().any(|action| matches!(action, Action::Leave(_)));
    assert!(!left(&mut engine));
    assert_eq!((engine.counts().0, engine.beyond().referrals), (256, 47));
    // Others with as many that come first stay out.
    engine.on_log(NOW, &controller("H"), [referrals(500, 800), referrals(0, 300)].concat());
    assert!(!left(&mut engine));
    // One that is referred to later has a place of the share of the one that refers there.
    engine.on_log(NOW, &controller("L"), vec![Entry::Referral(place("R")), Entry::Referral(place("R2"))]);
    let follows = |action: &Action| matches!(action, Action::Follow(it) if *it == controller("R2"));
    assert!(actions(&mut engine).iter().any(follows));
    assert_eq!(engine.counts().0, 256);
}

#[test]
fn announced_controllers_are_followed_where_the_named_ones_leave_room() {
    let mut engine = Engine::new(Policy::default());
    let announced = || (0..100).map(|number| controller(&format!("m{number}")));
    engine.on_announced(NOW, announced());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    assert_eq!((engine.counts().0, engine.beyond().referrals), (1 + 64, 36));
    engine.on_log(NOW, &controller("d"), referrals(0, 250));
    assert_eq!((engine.counts().0, engine.beyond().referrals), (256, 95));
}

/// So many are named beside `d` that there is room for nobody whom they or it refer to.
fn name_others(engine: &mut Engine) {
    let others: Vec<_> = (0..255).map(|number| controller(&format!("e{number}"))).collect();
    engine.on_configured(NOW, others.iter().cloned().chain([controller("d")]), Vec::new());
    for it in &others {
        engine.on_log(NOW, it, Vec::new());
    }
}

#[test]
fn disk_is_not_gone_while_there_is_no_room_for_the_discovery_controller_that_listed_it() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), [vec![Entry::Referral(place("R"))], referrals(0, 200)].concat());
    for number in 0..200 {
        engine.on_log(NOW, &controller(&number.to_string()), Vec::new());
    }
    engine.on_log(NOW, &controller("R"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    engine.on_attached(NOW, &disk("a", 1), true);
    actions(&mut engine);
    // Others are named, and have their share.
    name_others(&mut engine);
    assert!(engine.beyond().referrals == 201 && engine.counts().0 == 256);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    // It is referred to no more.
    engine.on_log(NOW + LONG, &controller("d"), Vec::new());
    assert_eq!(until(&mut engine, NOW + LONG * 2), ["-a/1"]);
}

#[test]
fn disk_is_not_gone_while_there_is_no_room_for_one_on_the_way_to_who_listed_it() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), vec![Entry::Referral(place("R"))]);
    engine.on_log(NOW, &controller("R"), vec![Entry::Referral(place("S"))]);
    engine.on_log(NOW, &controller("S"), vec![subsystem("a", "t")]);
    engine.on_first_namespaces(NOW, &seen("a"), [1]);
    engine.on_attached(NOW, &disk("a", 1), true);
    actions(&mut engine);
    name_others(&mut engine);
    // What happens besides makes no difference.
    engine.on_log(NOW, &controller("d"), vec![Entry::Referral(place("R"))]);
    assert_eq!(until(&mut engine, NOW + LONG), Vec::<String>::new());
    engine.on_log(NOW + LONG, &controller("d"), Vec::new());
    assert_eq!(until(&mut engine, NOW + LONG * 2), ["-a/1"]);
}

/// As many entries as are read of one root.
fn long_log(name: &str) -> Vec<Entry> {
    (0..4096).map(|number| subsystem(&format!("{name}-{number}"), "t")).collect()
}

#[test]
fn controller_that_is_followed_keeps_its_place_when_the_logs_of_others_get_long() {
    let left =
        |engine: &mut Engine| actions(engine).into_iter().filter(|it| matches!(it, Action::Leave(_))).count();
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("d")], Vec::new());
    engine.on_log(NOW, &controller("d"), referrals(0, 6));
    engine.on_log(NOW, &controller("5"), vec![subsystem("a", "t")]);
    for number in 0..4 {
        engine.on_log(NOW, &controller(&number.to_string()), long_log(&number.to_string()));
    }
    // One has said nothing yet, and is not waited for.
    assert_eq!((left(&mut engine), engine.counts().0, engine.beyond().referrals), (1, 6, 1));
    // There is room for a few more, and for many more there is none.
    engine.on_log(NOW, &controller("5"), vec![subsystem("a", "t"), subsystem("b", "t")]);
    assert_eq!((left(&mut engine), engine.counts().0), (0, 6));
    engine.on_log(NOW, &controller("5"), long_log("5"));
    assert_eq!((left(&mut engine), engine.counts().0, engine.beyond().referrals), (1, 5, 2));
    // The same of those that are announced.
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [], Vec::new());
    engine.on_announced(NOW, ["0", "1", "2", "3", "z"].map(controller));
    engine.on_log(NOW, &controller("z"), vec![subsystem("a", "t")]);
    for number in 0..4 {
        engine.on_log(NOW, &controller(&number.to_string()), long_log(&number.to_string()));
    }
    assert_eq!((left(&mut engine), engine.counts().0), (0, 5));
}

/// What logs take in memory others say.
#[test]
fn one_that_leads_to_many_long_logs_has_few_of_them_read() {
    let mut engine = Engine::new(Policy::default());
    engine.on_configured(NOW, [controller("H"), controller("L")], Vec::new());
    engine.on_log(NOW, &controller("H"), referrals(0, 200));
    assert_eq!(engine.counts().0, 202);
    for number in 0..200 {
        engine.on_log(NOW, &controller(&number.to_string()), long_log(&number.to_string()));
    }
    let entries: usize = engine.controllers.values().flat_map(|it| &it.log).map(Vec::len).sum();
    assert!(entries <= 5 * 4096, "{entries}");
    assert_eq!((engine.counts().0, engine.beyond().referrals), (2 + 4, 196));
    // Others are followed as before, and those again for which there is room.
    engine.on_log(NOW, &controller("L"), vec![Entry::Referral(place("R"))]);
    assert_eq!(engine.counts().0, 2 + 4 + 1);
    actions(&mut engine);
    engine.on_log(NOW, &controller("H"), referrals(0, 3));
    assert_eq!((engine.counts().0, engine.beyond().referrals), (2 + 3 + 1, 0));
}
