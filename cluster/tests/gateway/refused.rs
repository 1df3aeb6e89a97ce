//! A gateway whose client of the store may not what its user may by now, or whose store writes nothing.

use crate::objects::Objects;
use nvmf_cluster::{
    Action, Address, AnaState, BootId, Gateway, GatewayName, Handle, Identity, Locker, Object, Process,
    Reply, Timing,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// A store that does all that it is asked for, and what the gateway has there.
#[derive(Default)]
struct Store {
    objects: Objects,
    /// The control plane's client may not write.
    is_outdated: bool,
    /// The control plane's client is blocklisted, and each one that is made after it.
    is_fenced: bool,
    fences_all: bool,
    /// Nobody may write, and so often somebody would.
    is_full: bool,
    refused: usize,
    /// The next write of a record fails.
    fails_once: bool,
    /// Who has the lease: a run, and its client. Whether it stands for longer than a test.
    leases_stand: bool,
    leased: Option<(BootId, u64)>,
    client: u64,
    /// Clients of ANA groups, and what hosts are shown.
    handles: BTreeSet<Handle>,
    optimized: BTreeSet<u32>,
}

impl Store {
    fn reply(&mut self, action: Action) -> Reply {
        match action {
            Action::CompareAndSet { .. } | Action::Read { .. } | Action::Lock { .. } if self.is_fenced => {
                self.refused += 1;
                Reply::Blocklisted
            }
            Action::Read { object, unless, .. } => self.objects.read(&object, unless),
            Action::CompareAndSet { .. } if self.is_outdated || self.is_full => {
                self.refused += 1;
                Reply::Failed("it may not write".into())
            }
            Action::CompareAndSet { object: Object::Gateways, .. }
                if core::mem::take(&mut self.fails_once) =>
            {
                Reply::Failed("timed out".into())
            }
            Action::CompareAndSet { object, compare, set, .. } => {
                match self.objects.compare_and_set(&object, &compare, &set) {
                    true => Reply::Done,
                    false => Reply::Conflict,
                }
            }
            Action::Lock { .. } if self.is_outdated => Reply::Outdated("it may not lock".into()),
            Action::Lock { cookie, .. } => match &self.leased {
                Some((boot, client)) if self.leases_stand && *client != self.client => Reply::Held(Locker {
                    cookie: boot.clone(),
                    address: Address(format!("10.0.0.1:0/{client}")),
                }),
                _ => {
                    self.leased = Some((cookie, self.client));
                    Reply::Done
                }
            },
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
                (self.is_outdated, self.is_fenced) = (false, self.fences_all);
                self.client += 1;
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

    fn turns(&mut self, gateway: &mut Gateway, now: &mut Duration, count: usize) {
        for _ in 0..count {
            self.turn(gateway, now, &mut |_, _| false);
        }
    }

    /// The entries of ANA groups that somebody has.
    fn owned(&self) -> Vec<String> {
        let entries = self.objects.keys(&Object::Map);
        let entries = entries.values().map(|value| String::from_utf8_lossy(value).into_owned());
        entries.filter(|entry| entry.contains("\"owned\"")).collect()
    }

    /// Whether the record says that the gateway leaves.
    fn is_told(&self) -> bool {
        String::from_utf8_lossy(&self.objects.keys(&Object::Gateways)["gateway/a"])
            .contains("\"leaving\":true")
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

fn is_stopped(gateway: &Gateway) -> bool {
    gateway.status(Duration::ZERO).state == "stopped"
}

/// A gateway that joins a group which is new.
fn starting(now: Duration) -> Gateway {
    let process = Process { gateway: GatewayName::new("a").unwrap(), boot: BootId("1".into()) };
    let addresses = vec!["192.0.2.1:4420".to_owned()];
    let identity = Identity { process, addresses, software: "1".into(), ana_groups: 2 };
    Gateway::new(identity, Timing::DEFAULT, now)
}

/// A gateway that serves two ANA groups.
fn serving(store: &mut Store, now: &mut Duration) -> Gateway {
    let mut gateway = starting(*now);
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
    for (is_outdated, leases_stand) in [(true, false), (true, true), (false, false), (false, true)] {
        let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
        let mut gateway = serving(&mut store, &mut now);
        // The client before has the lease, which the new one does not get.
        store.leases_stand = leases_stand;
        (store.is_outdated, store.is_fenced) = (is_outdated, !is_outdated);
        gateway.stop(now);
        let begun = now;
        store.run(&mut gateway, &mut now, |_, gateway| is_stopped(gateway));
        assert!(!store.is_outdated && !store.is_fenced && store.handles.is_empty());
        assert_eq!((store.owned(), store.is_told()), (vec![], true), "{is_outdated} {leases_stand}");
        assert!(now - begun < Duration::from_secs(4), "{:?}", now - begun);
    }
}

#[test]
fn gateway_that_stops_and_whose_every_client_is_blocklisted_stops() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
    let mut gateway = serving(&mut store, &mut now);
    (store.is_fenced, store.fences_all) = (true, true);
    gateway.stop(now);
    store.run(&mut gateway, &mut now, |_, gateway| is_stopped(gateway));
    // Others take them after a fence.
    assert_eq!(store.owned().len(), 2);
    assert!((1..=40).contains(&store.refused), "{} requests", store.refused);
}

#[test]
fn others_are_told_that_a_gateway_stops_when_its_record_failed_once() {
    for turns in 0..50 {
        let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
        let mut gateway = serving(&mut store, &mut now);
        store.turns(&mut gateway, &mut now, 50 + turns);
        store.fails_once = true;
        gateway.stop(now);
        store.run(&mut gateway, &mut now, |_, gateway| is_stopped(gateway));
        assert!(!store.fails_once && store.is_told(), "{turns}");
    }
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
        store.turns(&mut gateway, &mut now, 200);
        // The record, and the entries of two ANA groups.
        assert!((1..=60).contains(&store.refused), "{} writes in 20 s (it stops: {stops})", store.refused);
    }
}

#[test]
fn new_group_on_a_store_that_writes_nothing_is_tried_again_after_a_pause() {
    let (mut store, mut now) = (Store { is_full: true, ..Store::default() }, Duration::from_secs(1));
    let mut gateway = starting(now);
    store.turns(&mut gateway, &mut now, 200);
    // The record, and the configuration.
    assert!((20..=60).contains(&store.refused), "{} writes in 20 s", store.refused);
    let (state, reason) = gateway.state();
    assert_eq!((state, reason.as_deref()), ("joining", Some("writes its record: it may not write")));
    store.is_full = false;
    let freed = now;
    store.run(&mut gateway, &mut now, |store, _| store.optimized.len() == 2);
    assert!(now - freed < Duration::from_secs(8), "{:?}", now - freed);
}

#[test]
fn wish_that_cannot_be_written_is_tried_again_after_a_pause() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1));
    let mut gateway = serving(&mut store, &mut now);
    // Of balance, for a gateway that is not there: its owner takes it back.
    let wish = br#"{"format":1,"to":"b","balance":true}"#.to_vec();
    assert!(store.objects.compare_and_set(&Object::Map, &[], &[("move/1".into(), Some(wish))]));
    store.is_full = true;
    store.turns(&mut gateway, &mut now, 200);
    assert!((2..=60).contains(&store.refused), "{} writes in 20 s", store.refused);
    store.is_full = false;
    store.turns(&mut gateway, &mut now, 10);
    assert!(!store.objects.keys(&Object::Map).contains_key("move/1"));
}
