//! Whatever is stored, and whatever the store replies, a gateway does not panic and goes on.

use nvmf_cluster::configuration::Change;
use nvmf_cluster::{
    Action, Address, BootId, Gateway, GatewayName, Identity, Locker, Object, Process, Reply, Snapshot, Timing,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn gateway() -> Gateway {
    let process = Process { gateway: GatewayName::new("a").expect("a name"), boot: BootId("1".into()) };
    let identity = Identity { process, addresses: Vec::new(), software: "1".into(), ana_groups: 2 };
    Gateway::new(identity, Timing::DEFAULT, Duration::from_secs(1))
}

/// What keys may be, and what may be in them: what is right, what is nearly right, and what is not.
fn key() -> impl Strategy<Value = String> {
    let known = [
        "group/1",
        "group/2",
        "group/0",
        "group/4294967295",
        "move/1",
        "gateway/a",
        "gateway/b",
        "gateway//",
    ];
    let more = ["controller_ids", "version", "item/x", "reservation/1", "reservation/", ""];
    prop::sample::select(known.into_iter().chain(more).map(String::from).collect::<Vec<_>>())
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        r#"{"format":1,"generation":18446744073709551615,"state":"owned","by":{"gateway":"a","boot":"1"},"address":""}"#,
        r#"{"format":1,"generation":1,"state":"owned","by":{"gateway":"b","boot":"1"},"address":"10.0.0.1:0/7"}"#,
        r#"{"format":1,"generation":2,"state":"taking","by":{"gateway":"a","boot":"0"},"fence":"10.0.0.1:0/7"}"#,
        r#"{"format":1,"generation":3,"state":"free","to":"b"}"#,
        r#"{"format":1,"generation":3,"state":"surrendered","address":"10.0.0.1:0/7","to":"a"}"#,
        r#"{"format":1,"to":"a"}"#,
        r#"{"format":1,"to":"/"}"#,
        r#"{"format":1,"gateway":"a","boot":"1","addresses":[],"software":"1","groups":0}"#,
        r#"{"format":1,"gateway":"b","boot":"9","addresses":[],"software":"1","groups":0}"#,
        r#"{"format":1,"first":{"a":65535}}"#,
        r#"{"format":1,"first":{"a":1,"b":2049}}"#,
        r#"{"format":1,"version":1,"ana_groups":2}"#,
        r#"{"format":1,"version":18446744073709551615,"ana_groups":2}"#,
        r#"{"format":1,"version":1,"ana_groups":4294967295}"#,
        r#"{"format":1,"version":18446744073709551615,"value":7}"#,
        r#"{"format":9}"#,
        "[]",
        "",
    ];
    let known = prop::sample::select(known.to_vec()).prop_map(|text| text.as_bytes().to_vec());
    prop_oneof![9 => known, 1 => prop::collection::vec(any::<u8>(), 0..20)]
}

/// The reply that makes sense, with these contents.
fn right(action: &Action, keys: &BTreeMap<String, Vec<u8>>, version: u64) -> Reply {
    match action {
        Action::Read { .. } => Reply::Snapshot(Snapshot { version, keys: keys.clone() }),
        Action::ListLockers { .. } => Reply::Free,
        Action::Connect { handle, .. } => Reply::Connected(Address(format!("10.0.0.1:0/{}", 100 + handle.0))),
        Action::Converge { .. } => Reply::Converged(Vec::new()),
        _ => Reply::Done,
    }
}

fn wrong(which: u8) -> Reply {
    let locker = Locker { cookie: BootId("2".into()), address: Address("10.0.0.1:0/9".into()) };
    match which {
        0 => Reply::Conflict,
        1 => Reply::Blocklisted,
        2 => Reply::Failed("it failed".into()),
        3 => Reply::Held(locker),
        4 => Reply::Connected(Address("10.0.0.1:0/0".into())),
        5 => Reply::Unchanged,
        6 => Reply::Outdated("it may not".into()),
        _ => Reply::Done,
    }
}

proptest! {
    #[test]
    fn gateway_goes_on_whatever_is_stored_or_replied(
        contents in prop::collection::vec(prop::collection::btree_map(key(), value(), 0..8), 1..6),
        replies in prop::collection::vec(0_u8..40, 1..60),
    ) {
        let mut gateway = gateway();
        let mut now = Duration::from_secs(1);
        let mut replies = replies.into_iter().cycle();
        for turn in 0..120 {
            if turn == 50 {
                let change = Change { key: "x".into(), value: None, expect: None };
                gateway.edit(now, vec![change]);
                gateway.on_notified(now, &Object::Map);
            }
            if turn == 100 {
                gateway.stop(now);
            }
            for _ in 0..20 {
                let Some(action) = gateway.poll_action() else { break };
                let Some(op) = action.op() else { continue };
                let which = replies.next().unwrap_or_default();
                let reply = if which < 8 { wrong(which) } else { right(&action, &contents[turn % contents.len()], turn as u64) };
                now += Duration::from_millis(3);
                gateway.on_reply(now, op, reply);
            }
            now += Duration::from_millis(700);
            gateway.on_timeout(now);
            let _ = gateway.status(now);
        }
        // It renews its lease, or has stopped.
        let stopped = gateway.status(now).state == "stopped";
        prop_assert!(stopped || gateway.poll_timeout().is_some() || gateway.poll_action().is_some());
    }
}
