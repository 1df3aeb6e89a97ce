//! Fences that end too early, and what a gateway has under way when they have ended.

use crate::objects::Objects;
use nvmf_cluster::{
    Action, Address, AnaState, BootId, Gateway, GatewayName, GroupId, Handle, Identity, Object, OpId,
    Process, Reply, Timing,
};
use std::time::Duration;

const T: Timing = Timing::DEFAULT;

/// A store that does what it is asked for, as long as it can be reached.
#[derive(Default)]
struct Store {
    objects: Objects,
    is_cut_off: bool,
    /// What it was asked for then, and answers when it can be reached again.
    delayed: Vec<(OpId, Action)>,
    /// The map takes no writes, and nobody is told.
    is_map_stuck: bool,
    /// What is stored of hosts' reservations is not answered.
    are_reservations_stuck: bool,
    stuck: Vec<OpId>,
    /// What was asked for, and is not answered.
    ends: Vec<(OpId, Handle)>,
    /// The fence that there is of whoever is fenced.
    fenced_until: Option<Duration>,
    /// It stays when it has ended.
    is_fence_kept: bool,
    fenced: Vec<(Duration, Address)>,
    is_optimized: bool,
}

impl Store {
    fn reply(&mut self, now: Duration, action: Action) -> Option<Reply> {
        match action {
            Action::Shutdown { op, handle } => {
                self.ends.push((op, handle));
                None
            }
            Action::SetAna { state, .. } => {
                self.is_optimized = state == AnaState::OPTIMIZED;
                None
            }
            Action::Converge { .. } => Some(Reply::Converged(Vec::new())),
            action if self.is_cut_off => {
                self.delayed.extend(action.op().map(|op| (op, action)));
                None
            }
            Action::CompareAndSet { object: Object::Map, .. } if self.is_map_stuck => None,
            Action::CompareAndSet { op, object: Object::Reservations(_), .. }
                if self.are_reservations_stuck =>
            {
                self.stuck.push(op);
                None
            }
            action => Some(self.answer(now, action)),
        }
    }

    fn answer(&mut self, now: Duration, action: Action) -> Reply {
        match action {
            Action::Read { object, .. } => self.objects.read(&object, None),
            Action::CompareAndSet { object, compare, set, .. } => {
                match self.objects.compare_and_set(&object, &compare, &set) {
                    true => Reply::Done,
                    false => Reply::Conflict,
                }
            }
            Action::ListLockers { .. } => Reply::Free,
            Action::Connect { handle, .. } => Reply::Connected(Address(format!("10.0.0.1:0/{}", handle.0))),
            Action::Blocklist { address, .. } => {
                self.fenced.push((now, address));
                match self.fenced_until.take_if(|until| *until <= now && !self.is_fence_kept) {
                    Some(_) => Reply::Done,
                    None => self.fenced_until.map_or(Reply::Done, Reply::FencedUntil),
                }
            }
            _ => Reply::Done,
        }
    }

    fn turn(&mut self, gateway: &mut Gateway, now: Duration) {
        gateway.on_timeout(now);
        for _ in 0..50 {
            let Some(action) = gateway.poll_action() else { break };
            let op = action.op();
            if let (Some(reply), Some(op)) = (self.reply(now, action), op) {
                gateway.on_reply(now, op, reply);
            }
        }
    }

    /// It can be reached again.
    fn be_back(&mut self, gateway: &mut Gateway, now: Duration) {
        self.is_cut_off = false;
        for (op, action) in std::mem::take(&mut self.delayed) {
            if let Some(reply) = self.reply(now, action) {
                gateway.on_reply(now, op, reply);
            }
        }
    }

    /// Runs, unless that is to end. Gives why it ended.
    fn run(&mut self, gateway: &mut Gateway, now: &mut Duration, time: Duration) -> Option<String> {
        let until = *now + time;
        while *now < until {
            *now += Duration::from_millis(500);
            if let Some(why) = gateway.overdue(*now) {
                return Some(why);
            }
            self.turn(gateway, *now);
        }
        None
    }
}

fn gateway(boot: &str, now: Duration) -> Gateway {
    let process = Process { gateway: GatewayName::new("a").unwrap(), boot: BootId(boot.into()) };
    let addresses = vec!["192.0.2.1:4420".to_owned()];
    Gateway::new(Identity { process, addresses, software: "1".into(), ana_groups: 1 }, T, now)
}

/// One that serves the ANA group.
fn serving(store: &mut Store, now: &mut Duration) -> Gateway {
    let mut gateway = gateway("1", *now);
    assert_eq!(store.run(&mut gateway, now, Duration::from_secs(20)), None);
    assert!(store.is_optimized);
    gateway
}

#[test]
fn gateway_ends_with_what_a_lost_client_has_under_way_before_any_fence_does() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    let mut gateway = serving(&mut store, &mut now);
    store.is_cut_off = true;
    store.run(&mut gateway, &mut now, Duration::from_secs(10));
    let lost = now;
    // Hosts have commands at it.
    gateway.on_fenced(now, Handle(1));
    let why = store.run(&mut gateway, &mut now, Duration::from_secs(3600));
    assert!(why.as_ref().is_some_and(|why| why.contains("under way")), "{why:?}");
    let after = now - lost;
    assert!(after <= T.overdue && after + T.self_fence + Duration::from_secs(10) > T.overdue, "{after:?}");
}

#[test]
fn gateway_whose_lost_client_has_ended_or_had_nothing_goes_on() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    let mut gateway = serving(&mut store, &mut now);
    gateway.on_fenced(now, Handle(1));
    store.turn(&mut gateway, now);
    let (op, handle) = store.ends.pop().unwrap();
    assert_eq!(handle, Handle(1));
    gateway.on_reply(now, op, Reply::Done);
    assert_eq!(store.run(&mut gateway, &mut now, 2 * T.overdue), None);
    // It has another one now, and nothing is under way there.
    assert!(store.is_optimized);
    store.is_cut_off = true;
    assert_eq!(store.run(&mut gateway, &mut now, 2 * T.overdue), None);
    assert!(!store.is_optimized);
}

/// An image that is being opened hangs: its client cannot end.
#[test]
fn client_at_which_nothing_of_hosts_is_under_way_may_take_its_time_to_end() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    let mut gateway = serving(&mut store, &mut now);
    gateway.on_fenced(now, Handle(1));
    store.turn(&mut gateway, now);
    let (op, _) = store.ends.pop().unwrap();
    gateway.on_out(op);
    assert_eq!(store.run(&mut gateway, &mut now, 2 * T.overdue), None);
    assert!(store.is_optimized);
}

/// What a host asked of its reservation may be stored when the fence has ended.
#[test]
fn client_through_which_a_reservation_is_being_stored_is_not_without_anything_of_hosts() {
    for is_stored in [true, false] {
        let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
        let mut gateway = serving(&mut store, &mut now);
        store.are_reservations_stuck = true;
        gateway.store_reservation(now, GroupId(1), "a", Some(&"held".into()));
        store.turn(&mut gateway, now);
        gateway.on_fenced(now, Handle(1));
        store.turn(&mut gateway, now);
        let (op, _) = store.ends.pop().unwrap();
        gateway.on_out(op);
        let stuck = store.stuck.pop().unwrap();
        if is_stored {
            gateway.on_reply(now, stuck, Reply::Blocklisted);
        }
        assert_eq!(store.run(&mut gateway, &mut now, 2 * T.overdue).is_none(), is_stored);
    }
}

/// It is given up long after it counted no more, and has nothing under way.
#[test]
fn client_that_is_lost_after_a_long_outage_is_asked_to_end_first() {
    for ends in [true, false] {
        let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
        let mut gateway = serving(&mut store, &mut now);
        store.is_cut_off = true;
        assert_eq!(store.run(&mut gateway, &mut now, T.overdue + Duration::from_secs(300)), None);
        gateway.on_fenced(now, Handle(1));
        assert_eq!(gateway.overdue(now), None);
        store.turn(&mut gateway, now);
        let (op, _) = store.ends.pop().unwrap();
        if ends {
            gateway.on_reply(now, op, Reply::Done);
        }
        assert_eq!(store.run(&mut gateway, &mut now, Duration::from_secs(3600)).is_none(), ends);
    }
}

#[test]
fn client_that_is_lost_while_its_group_is_affirmed_may_have_operations_under_way() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    let mut gateway = serving(&mut store, &mut now);
    store.is_cut_off = true;
    store.run(&mut gateway, &mut now, Duration::from_secs(6));
    assert!(!store.is_optimized);
    // The lease is renewed, and that it is the owner still cannot be written.
    store.is_map_stuck = true;
    store.be_back(&mut gateway, now);
    store.run(&mut gateway, &mut now, Duration::from_millis(1500));
    assert!(!store.is_optimized);
    let why = gateway.overdue(now + T.overdue);
    assert!(why.is_some_and(|why| why.contains("did not run")), "it may have slept since");
    store.is_cut_off = true;
    gateway.on_fenced(now, Handle(1));
    let why = store.run(&mut gateway, &mut now, Duration::from_secs(3600));
    assert!(why.is_some_and(|why| why.contains("under way")));
}

/// The monitors' clock is behind this one. What they keep holds; it is made again as soon as they do not.
#[test]
fn fence_that_has_ended_for_this_clock_only_is_looked_at_until_it_is_gone() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    drop(serving(&mut store, &mut now));
    store.fenced_until = Some(now + Duration::from_secs(60));
    let mut next = gateway("2", now);
    store.run(&mut next, &mut now, Duration::from_secs(59));
    store.is_fence_kept = true;
    store.run(&mut next, &mut now, Duration::from_secs(600));
    let asked = store.fenced.len();
    assert!((500..=602).contains(&asked), "{asked} times in ten minutes");
    store.is_fence_kept = false;
    let gone = now;
    store.run(&mut next, &mut now, Duration::from_secs(600));
    let made = store.fenced[asked..].iter().map(|(at, _)| *at - gone).collect::<Vec<_>>();
    assert!(made.len() == 1 && made[0] <= Duration::from_secs(1), "{made:?}");
}

#[test]
fn gateway_that_slept_too_long_ends_before_anything_else() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    assert_eq!(gateway("0", now).overdue(now + 2 * T.overdue), None, "it has no client yet");
    let mut gateway = serving(&mut store, &mut now);
    now += T.overdue - Duration::from_secs(1);
    assert_eq!(gateway.overdue(now), None);
    assert_eq!(store.run(&mut gateway, &mut now, Duration::from_secs(20)), None);
    let why = gateway.overdue(now + T.overdue);
    assert!(why.as_ref().is_some_and(|why| why.contains("did not run for 1200 s")), "{why:?}");
}

#[test]
fn fence_that_ends_too_early_is_made_again_when_it_has_ended() {
    let (mut store, mut now) = (Store::default(), Duration::from_secs(1000));
    drop(serving(&mut store, &mut now));
    let until = now + Duration::from_secs(3600);
    store.fenced_until = Some(until);
    let mut next = gateway("2", now);
    assert_eq!(store.run(&mut next, &mut now, Duration::from_secs(60)), None);
    assert!(store.is_optimized);
    let former = Address("10.0.0.1:0/1".into());
    assert_eq!(store.fenced.iter().map(|(_, address)| address).collect::<Vec<_>>(), [&former]);
    assert_eq!(store.run(&mut next, &mut now, 3 * Duration::from_secs(3600)), None);
    let again: Vec<_> = store.fenced.iter().skip(1).collect();
    assert_eq!(again.len(), 1, "{again:?}");
    let (at, address) = again[0];
    assert!(*address == former && *at >= until && *at <= until + T.retry, "{again:?}");
}
