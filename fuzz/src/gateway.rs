//! A gateway of a group, the objects that it finds in the store, and what the store replies.

use crate::input::Input;
use core::time::Duration;
use nvmf_cluster::configuration::Change;
use nvmf_cluster::{
    Action, Address, AnaState, BootId, Gateway, GatewayName, GroupId, Handle, Identity, Lack, Locker, Object,
    OpId, Process, Reply, Snapshot, Timing, Via,
};
use std::collections::{BTreeMap, BTreeSet};

/// Beyond so many, an input says nothing new.
const STEPS_MAX: usize = 512;

/// Objects as a store has them, damaged by the input.
#[derive(Default)]
struct Store {
    objects: BTreeMap<Object, Snapshot>,
    addresses: BTreeMap<Handle, Address>,
    /// Handles whose address was stored, through which I/O may go.
    recorded: BTreeSet<Handle>,
    opened: BTreeSet<(GroupId, Handle)>,
}

impl Store {
    fn compare_and_set(&mut self, object: &Object, compare: &[Pair], set: &[Pair]) -> Reply {
        let Snapshot { version, keys } = self.objects.entry(object.clone()).or_default();
        if compare.iter().any(|(key, value)| keys.get(key) != value.as_ref()) {
            return Reply::Conflict;
        }
        for (key, value) in set {
            match value {
                Some(value) => keys.insert(key.clone(), value.clone()),
                None => keys.remove(key),
            };
        }
        *version += 1;
        if *object == Object::Map {
            let texts = set.iter().filter_map(|(_, value)| Some(String::from_utf8_lossy(value.as_ref()?)));
            let texts: Vec<_> = texts.collect();
            let is_stored = |address: &Address| texts.iter().any(|text| text.contains(&*address.0));
            let stored = self.addresses.iter().filter(|(_, address)| is_stored(address));
            self.recorded.extend(stored.map(|(handle, _)| handle));
        }
        Reply::Done
    }

    /// What an honest store replies, after it has done it. `None`: the action has no reply.
    fn reply(&mut self, action: &Action) -> Option<(OpId, Reply)> {
        let op = action.op()?;
        let reply = match action {
            Action::Read { object, unless, .. } => {
                let snapshot = self.objects.get(object).cloned().unwrap_or_default();
                let is_known = *unless == Some(snapshot.version);
                if is_known { Reply::Unchanged } else { Reply::Snapshot(snapshot) }
            }
            Action::CompareAndSet { object, compare, set, .. } => self.compare_and_set(object, compare, set),
            Action::ListLockers { .. } => Reply::Free,
            Action::Connect { handle, .. } => {
                let address = Address(format!("10.0.0.1:0/{}", 100 + handle.0));
                self.addresses.insert(*handle, address.clone());
                Reply::Connected(address)
            }
            Action::Converge { .. } => Reply::Converged(Vec::new()),
            Action::OpenImages { handle, group, .. } => {
                self.opened.insert((*group, *handle));
                Reply::Done
            }
            _ => Reply::Done,
        };
        Some((op, reply))
    }

    /// What must be so before the gateway asks for that: first connected, then in the entry, then images, then optimized.
    fn check(&self, action: &Action) {
        match action {
            Action::CompareAndSet { via: Via::Handle(handle), .. } => {
                assert!(
                    self.addresses.contains_key(handle),
                    "{action:?} through a client that is not connected"
                );
            }
            Action::OpenImages { handle, .. } => {
                assert!(
                    self.recorded.contains(handle),
                    "images through {handle}, whose address nobody stored"
                );
            }
            Action::SetAna { group, state: AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED } => {
                let is_open = self.opened.iter().any(|(of, _)| of == group);
                assert!(is_open, "ANA group {group} can be used before its images were opened");
            }
            _ => {}
        }
    }

    /// Puts the input's bytes in the place of a value, or of a part of it.
    fn damage(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.u8());
        let values = self.objects.values_mut().flat_map(|object| {
            object.version += 1;
            object.keys.values_mut()
        });
        let mut values: Vec<_> = values.collect();
        let count = values.len().max(1);
        let Some(value) = values.get_mut(at % count) else { return };
        let (from, until) = (usize::from(input.u8()), usize::from(input.u8()));
        let (from, until) = (from.min(value.len()), until.min(value.len()));
        let len = usize::from(input.u8() % 24);
        value.splice(from.min(until)..from.max(until), input.take(len).iter().copied());
    }
}

type Pair = (String, Option<Vec<u8>>);

/// What a broken or foreign store may say.
fn wrong(which: u8) -> Reply {
    let locker = Locker { cookie: BootId("2".into()), address: Address("10.0.0.1:0/9".into()) };
    match which % 8 {
        0 => Reply::Conflict,
        1 => Reply::Blocklisted,
        2 => Reply::Failed("it failed".into()),
        3 => Reply::Held(locker),
        4 => Reply::Connected(Address("10.0.0.1:0/0".into())),
        5 => Reply::Unchanged,
        6 => Reply::Unopened(vec![Lack {
            namespace: "namespace".into(),
            reason: "it cannot be opened".into(),
            is_gone: false,
        }]),
        _ => Reply::Converged(vec![("item".into(), "it is broken".into())]),
    }
}

/// Lets a gateway live with a store that is damaged and lies as the input says. It does not panic, asks for no I/O out of
/// the order that the group's contract demands, and has a lease to renew as long as it has not stopped.
pub fn gateway(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let name = |name: &str| GatewayName::new(name).expect("a name");
    let process = Process { gateway: name("a"), boot: BootId("1".into()) };
    let identity = Identity { process, addresses: Vec::new(), software: "1".into(), ana_groups: 2 };
    let mut now = Duration::from_secs(1);
    let mut gateway = Gateway::new(identity, Timing::DEFAULT, now);
    let mut store = Store::default();
    let mut waiting: Vec<(OpId, Reply)> = Vec::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        while let Some(action) = gateway.poll_action() {
            store.check(&action);
            waiting.extend(store.reply(&action));
        }
        let which = input.u8();
        match which {
            // Most often the store is honest, in any order of replies.
            0..128 if !waiting.is_empty() => {
                let (op, reply) = waiting.remove(usize::from(which) % waiting.len());
                gateway.on_reply(now, op, reply);
            }
            0..144 => {
                now = gateway.poll_timeout().map_or(now, |at| at.max(now)) + Duration::from_millis(1);
                gateway.on_timeout(now);
            }
            144..160 => now += Duration::from_millis(u64::from(which - 143) * 700),
            160..184 => store.damage(&mut input),
            184..208 if !waiting.is_empty() => {
                let (op, _) = waiting.remove(usize::from(input.u8()) % waiting.len());
                gateway.on_reply(now, op, wrong(which));
            }
            208..216 => gateway.on_notified(now, &Object::Map),
            216..224 => gateway.on_notified(now, &Object::Configuration),
            224..232 => {
                let key = String::from_utf8_lossy(input.take(usize::from(which - 223))).into_owned();
                gateway.edit(now, vec![Change { key, value: None, expect: None }]);
            }
            232..240 => {
                gateway.move_group(now, GroupId(u32::from(which - 232)), &name("b"));
            }
            240..248 => {
                gateway.remove_gateway(now, &name(if which.is_multiple_of(2) { "a" } else { "b" }));
            }
            248..252 => gateway.on_fenced(now, Handle(u64::from(which - 247))),
            252 => gateway.stop(now),
            _ => gateway.on_timeout(now),
        }
        let _ = gateway.status(now);
    }
    let has_stopped = gateway.status(now).state == "stopped";
    let has_more = gateway.poll_timeout().is_some() || gateway.poll_action().is_some() || !waiting.is_empty();
    assert!(has_stopped || has_more, "a gateway that waits for nothing");
}
