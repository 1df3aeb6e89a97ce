//! A gateway whose client of the store may not what its user may by now, or whose store writes nothing.

use nvmf_cluster::{
    Action, Address, AnaState, BootId, Gateway, GatewayName, Handle, Identity, Object, Process, Reply,
    Snapshot, Timing,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A store that does all that it is asked for, and what the gateway has there.
#[derive(Default)]
struct Store {
    objects: BTreeMap<Object, (u64, BTreeMap<String, Vec<u8>>)>,
    /// The control plane's client may not write.
    is_outdated: bool,
    /// Nobody may write, and so often somebody would.
    is_full: bool,
    refused: usize,
    /// Clients of ANA groups, and what hosts are shown.
    handles: BTreeSet<Handle>,
    optimized: BTreeSet<u32>,
}

impl Store {
    fn reply(&mut self, action: Action) -> Reply {
        match action {
            Action::Read { object, unless, .. } => {
                let (version, keys) = self.objects.entry(object).or_default();
                match unless == Some(*version) {
                    true => Reply::Unchanged,
                    false => Reply::Snapshot(Snapshot { version: *version, keys: keys.clone() }),
                }
            }
            Action::CompareAndSet { .. } if self.is_outdated || self.is_full => {
                self.refused += 1;
                Reply::Failed("it may not write".into())
            }
            Action::CompareAndSet { object, compare, set, .. } => {
                let (version, keys) = self.objects.entry(object).or_default();
                if compare.iter().any(|(key, value)| keys.get(key) != value.as_ref()) {
                    return Reply::Conflict;
                }
                for (key, value) in set {
                    match value {
                        Some(value) => drop(keys.insert(key, value)),
                        None => drop(keys.remove(&key)),
                    }
                }
                *version += 1;
                Reply::Done
            }
            Action::Lock { .. } if self.is_outdated => Reply::Outdated("it may not lock".into()),
            Action::ListLockers { .. } => Reply::Free,
            Action::Connect { handle, .. } => {
                self.handles.insert(handle);
                Reply::Connected(Address(format!("10.0.0.1:0/{}", handle.0)))
            }
            Action::Shutdown { handle, .. } => {
                self.handles.remove(&handle);
                Reply::Done
            }
            Action::Converge { .. } => Reply::Converged(Vec::new()),
            Action::ReconnectControl { .. } => {
                self.is_outdated = false;
                Reply::Done
            }
            Action::SetAna { group, state } => {
                match state {
                    AnaState::OPTIMIZED => self.optimized.insert(group.0),
                    _ => self.optimized.remove(&group.0),
                };
                Reply::Done
            }
            _ => Reply::Done,
        }
    }

    /// What the gateway asks for now; then a tenth of a second. Whether it is as it is waited for.
    fn turn(
        &mut self,
        gateway: &mut Gateway,
        now: &mut Duration,
        until: &mut impl FnMut(&Self, &Gateway) -> bool,
    ) -> bool {
        for _ in 0..50 {
            let Some(action) = gateway.poll_action() else { break };
            let op = action.op();
            let reply = self.reply(action);
            op.into_iter().for_each(|op| gateway.on_reply(*now, op, reply.clone()));
            if until(self, gateway) {
                return true;
            }
        }
        *now += Duration::from_millis(100);
        gateway.on_timeout(*now);
        false
    }

    fn run(
        &mut self,
        gateway: &mut Gateway,
        now: &mut Duration,
        mut until: impl FnMut(&Self, &Gateway) -> bool,
    ) {
        let is_so = (0..400).any(|_| self.turn(gateway, now, &mut until));
        assert!(is_so, "it does not come about: {:?}", gateway.status(*now));
    }
}

/// A gateway that serves two ANA groups.
fn serving(store: &mut Store, now: &mut Duration) -> Gateway {
    let process = Process { gateway: GatewayName::new("a").unwrap(), boot: BootId("1".into()) };
    let addresses = vec!["192.0.2.1:4420".to_owned()];
    let identity = Identity { process, addresses, software: "1".into(), ana_groups: 2 };
    let mut gateway = Gateway::new(identity, Timing::DEFAULT, *now);
    store.run(&mut gateway, now, |store, _| store.optimized.len() == 2);
    gateway
}

#[test]
fn groups_are_served_by_new_clients_where_that_of_the_lease_is_outdated() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
    let mut gateway = serving(&mut store, &mut now);
    let old = store.handles.clone();
    store.is_outdated = true;
    store.run(&mut gateway, &mut now, |store, _| !store.is_outdated);
    assert_eq!(store.optimized, [].into(), "they are taken from hosts before the client is made anew");
    assert_eq!(gateway.status(now).state, "joining");
    store.run(&mut gateway, &mut now, |store, _| store.optimized.len() == 2);
    assert!(store.handles.is_disjoint(&old), "{:?} of {old:?}", store.handles);
}

#[test]
fn gateway_that_stops_gives_its_groups_away_by_a_new_client() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
    let mut gateway = serving(&mut store, &mut now);
    store.is_outdated = true;
    gateway.stop(now);
    store.run(&mut gateway, &mut now, |_, gateway| gateway.status(Duration::ZERO).state == "stopped");
    assert!(!store.is_outdated && store.handles.is_empty());
    let (_, map) = &store.objects[&Object::Map];
    let entries = map.values().map(|value| String::from_utf8_lossy(value).into_owned());
    let owned: Vec<_> = entries.filter(|entry| entry.contains("\"owned\"")).collect();
    assert!(owned.is_empty(), "{owned:?}");
}

#[test]
fn store_that_writes_nothing_is_not_asked_again_and_again() {
    for stops in [false, true] {
        let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
        let mut gateway = serving(&mut store, &mut now);
        store.is_full = true;
        match stops {
            true => gateway.stop(now),
            false => gateway.set_addresses(now, vec!["192.0.2.2:4420".to_owned()]),
        }
        let until = now + Duration::from_secs(20);
        while now < until {
            store.turn(&mut gateway, &mut now, &mut |_, _| false);
        }
        // The record, and the entries of two ANA groups.
        assert!((1..=60).contains(&store.refused), "{} writes in 20 s (it stops: {stops})", store.refused);
    }
}
