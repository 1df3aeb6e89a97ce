//! Two gateways, and an ANA group whose operations at an image do not end: its placement group is inactive.

use crate::objects::Objects;
use nvmf_cluster::{
    Action, Address, BootId, Gateway, GatewayName, GroupId, Handle, Identity, Listens, Locker, Object, OpId,
    Process, Reply, Timing,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const T: Timing = Timing::DEFAULT;
/// After so long a daemon says that a disk is slow.
const SLOW: Duration = Duration::from_secs(5);

/// So long it takes to look at the images of an ANA group.
const LOOK: Duration = Duration::from_secs(3);

/// The storage cluster.
#[derive(Default)]
struct Store {
    objects: Objects,
    leases: BTreeMap<Object, (BootId, Duration)>,
    clients: u64,
}

/// A gateway's process, and what it has open.
struct Running {
    gateway: Gateway,
    groups: BTreeMap<Handle, GroupId>,
    /// The ANA group with that image, if there is one.
    hangs: Option<GroupId>,
    /// Hosts' operations at the hung image go through it.
    hung: BTreeSet<Handle>,
    /// Since when they do, as long as the group is served; what was told of that.
    since: Option<Duration>,
    slow: BTreeSet<GroupId>,
    /// Looks at images, and when they are over.
    looks: Vec<(OpId, Duration)>,
}

impl Running {
    fn new(name: &str, boot: usize, hangs: Option<GroupId>, now: Duration) -> Self {
        let process = Process { gateway: GatewayName::new(name).unwrap(), boot: BootId(boot.to_string()) };
        let addresses = vec![format!("{name}.example:4420")];
        let identity = Identity { process, addresses, software: "1".into(), ana_groups: 2 };
        let mut gateway = Gateway::new(identity, T, now);
        gateway.set_listens(now, Listens::Yes);
        let (groups, hung, slow, looks) = Default::default();
        Self { gateway, groups, hangs, hung, since: None, slow, looks }
    }

    fn turn(&mut self, store: &mut Store, now: Duration) {
        let is_slow = self.since.is_some_and(|since| now >= since + SLOW);
        let slow: BTreeSet<GroupId> = self.hangs.filter(|_| is_slow).into_iter().collect();
        if self.slow != slow {
            self.slow.clone_from(&slow);
            self.gateway.set_slow(now, slow);
        }
        self.act(store, now);
    }

    fn act(&mut self, store: &mut Store, now: Duration) {
        for (op, _) in self.looks.extract_if(.., |(_, until)| *until <= now).collect::<Vec<_>>() {
            self.gateway.on_reply(now, op, Reply::Done);
        }
        self.gateway.on_timeout(now);
        for _ in 0..200 {
            let Some(action) = self.gateway.poll_action() else { break };
            let op = action.op();
            let reply = self.reply(store, now, action);
            op.zip(reply)
                .into_iter()
                .for_each(|(op, reply): (OpId, _)| self.gateway.on_reply(now, op, reply));
        }
    }

    fn reply(&mut self, store: &mut Store, now: Duration, action: Action) -> Option<Reply> {
        let held = |object: &Object| {
            let (boot, _) = store.leases.get(object).filter(|(_, until)| *until > now)?;
            Some(Locker { cookie: boot.clone(), address: Address("192.0.2.9:0/1".into()) })
        };
        Some(match action {
            Action::Read { object, unless, .. } => store.objects.read(&object, unless),
            Action::CompareAndSet { object, compare, set, .. } => {
                match store.objects.compare_and_set(&object, &compare, &set) {
                    true => Reply::Done,
                    false => Reply::Conflict,
                }
            }
            Action::Lock { object, cookie, duration, .. } => {
                match held(&object).filter(|by| by.cookie != cookie) {
                    Some(by) => Reply::Held(by),
                    None => {
                        store.leases.insert(object, (cookie, now + duration));
                        Reply::Done
                    }
                }
            }
            Action::ListLockers { object, .. } => held(&object).map_or(Reply::Free, Reply::Held),
            Action::Connect { handle, group, .. } => {
                store.clients += 1;
                self.groups.insert(handle, group);
                Reply::Connected(Address(format!("192.0.2.1:0/{}", store.clients)))
            }
            Action::LookAtImages { op, .. } => {
                self.looks.push((op, now + LOOK));
                return None;
            }
            Action::OpenImages { handle, .. } => {
                if Some(self.groups[&handle]) == self.hangs {
                    self.since = Some(now);
                    self.hung.insert(handle);
                }
                Reply::Done
            }
            Action::Drain { group, .. } if self.hangs == Some(group) => return None,
            Action::Shutdown { handle, .. } if self.hung.contains(&handle) => {
                self.since = None;
                return None;
            }
            Action::Converge { .. } => Reply::Converged(Vec::new()),
            _ => Reply::Done,
        })
    }
}

/// What came of it.
#[derive(Debug, Default)]
struct Outcome {
    /// Processes that ended, as something was under way for too long.
    ends: usize,
    /// Who has the ANA groups in the end.
    owners: Vec<String>,
}

/// Four hours. After two minutes one gateway is killed once, and comes back, so that the other one has both ANA groups.
fn run(hangs: Option<GroupId>) -> Outcome {
    let (mut store, mut outcome, mut boots) = (Store::default(), Outcome::default(), 2);
    let start = Duration::from_secs(1000);
    let names = ["a", "b"];
    let mut gateways = [0, 1].map(|at| Some(Running::new(names[at], at, hangs, start)));
    let mut back = [start; 2];
    let mut now = start;
    while now < start + Duration::from_secs(4 * 3600) {
        now += Duration::from_millis(250);
        for at in 0..2 {
            let Some(running) = &mut gateways[at] else {
                if now >= back[at] {
                    boots += 1;
                    gateways[at] = Some(Running::new(names[at], boots, hangs, now));
                }
                continue;
            };
            let is_killed = at == 1 && now == start + Duration::from_secs(120);
            let is_over = running.gateway.overdue(now).is_some();
            if is_killed || is_over {
                outcome.ends += usize::from(is_over);
                (gateways[at], back[at]) = (None, now + Duration::from_secs(if is_killed { 60 } else { 10 }));
                continue;
            }
            running.turn(&mut store, now);
        }
    }
    let status = gateways[0].as_ref().expect("it runs").gateway.status(now);
    let owner = |group| status.groups[&GroupId(group)].gateway.as_ref().map_or("", |name| name.as_str());
    outcome.owners = [1, 2].map(|group| owner(group).to_owned()).into();
    outcome
}

#[test]
fn group_that_would_not_drain_is_left_by_balance() {
    for hangs in [None, Some(GroupId(1)), Some(GroupId(2))] {
        let outcome = run(hangs);
        assert_eq!(outcome.ends, 0, "{hangs:?}: {outcome:?}");
        assert_ne!(outcome.owners[0], outcome.owners[1], "one of two is moved: {hangs:?}");
    }
}

/// Balance does not ask for what it takes back again, each time at the cost of another client.
#[test]
fn group_that_is_slow_now_and_then_is_seldom_asked_for() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    let start = now;
    let mut gateways = ["a", "b"].map(|name| Running::new(name, 1, None, start));
    // The first has both ANA groups, as the other one comes later.
    while now < start + Duration::from_secs(3600) {
        now += Duration::from_millis(250);
        let age = (now - start).as_secs();
        let slow = if age % 4 < 2 { [1, 2].map(GroupId).into() } else { BTreeSet::new() };
        for running in gateways.iter_mut().take(if age < 30 { 1 } else { 2 }) {
            if running.slow != slow {
                running.slow.clone_from(&slow);
                running.gateway.set_slow(now, slow.clone());
            }
            running.act(&mut store, now);
        }
    }
    assert!(store.clients < 10, "{} clients", store.clients);
    // A minute after it is well, one is moved.
    let well = now;
    while now < well + T.quiet + Duration::from_secs(30) {
        now += Duration::from_millis(250);
        for running in &mut gateways {
            running.gateway.set_slow(now, BTreeSet::new());
            running.act(&mut store, now);
        }
    }
    let status = gateways[0].gateway.status(now);
    let owners = status.groups.values().map(|group| group.gateway.clone()).collect::<BTreeSet<_>>();
    assert_eq!(owners.len(), 2, "{status:?}");
}
