extern crate std;

use super::*;
use crate::ReservationCommand as Command;
use nvme_proto::Status;
use nvme_proto::nvm::reservation::PersistChange;
use nvme_proto::opcode::NvmOpcode;
use proptest::prelude::*;
use std::vec;

const A: HostId = HostId([1; 16]);
const B: HostId = HostId([2; 16]);
const C: HostId = HostId([3; 16]);

const WE: ReservationType = ReservationType::WRITE_EXCLUSIVE;
const EA: ReservationType = ReservationType::EXCLUSIVE_ACCESS;
const WE_RO: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
const EA_RO: ReservationType = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY;
const WE_AR: ReservationType = ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS;
const EA_AR: ReservationType = ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS;
const TYPES: [ReservationType; 6] = [WE, EA, WE_RO, EA_RO, WE_AR, EA_AR];

/// A namespace that commands are given to.
#[derive(Default)]
struct Namespace(Reservation);

impl Namespace {
    fn run(&mut self, host: HostId, command: Command) -> Result<Vec<(HostId, ReservationNotice)>, Status> {
        let change = self.0.apply(host, &command, true)?;
        self.0 = change.reservation;
        Ok(change.notices)
    }

    fn register(mut self, hosts: &[(HostId, u64)]) -> Self {
        for &(host, new) in hosts {
            self.run(host, register(new)).unwrap();
        }
        self
    }

    fn acquire(mut self, host: HostId, key: u64, kind: ReservationType) -> Self {
        self.run(host, Command::Acquire { key, kind }).unwrap();
        self
    }

    fn hosts(&self) -> Vec<HostId> {
        self.0.registrants().map(|(host, _)| host).collect()
    }
}

fn register(new: u64) -> Command {
    Command::Register { new, ignore_key: false, persist: PersistChange::NONE }
}

fn unregister(current: Option<u64>) -> Command {
    Command::Unregister { current, persist: PersistChange::NONE }
}

fn preempt(key: u64, preempted: u64, kind: ReservationType) -> Command {
    Command::Preempt { key, kind, preempted, abort: false }
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();

#[test]
fn every_opcode_of_every_host_under_every_type_is_allowed_or_not_as_the_standard_says() {
    // Who may read, who may write: nobody but the holder, registrants, everybody.
    #[derive(PartialEq, PartialOrd)]
    enum Who {
        Holder,
        Registrant,
        Anyone,
    }
    use Who::{Anyone, Holder, Registrant};
    let reads = [0x02, 0x05, 0x0c];
    let free = [0x0d, 0x0e, 0x11, 0x15];
    let copy = 0x19;
    assert_eq!(Need::of(NvmOpcode(copy)), Need::Write, "a Copy writes; its sources are checked as reads");
    for (kind, read, write) in [
        (WE, Anyone, Holder),
        (EA, Holder, Holder),
        (WE_RO, Anyone, Registrant),
        (EA_RO, Registrant, Registrant),
        (WE_AR, Anyone, Registrant),
        (EA_AR, Registrant, Registrant),
    ] {
        let namespace = Namespace::default().register(&[(A, 1), (B, 2)]).acquire(A, 1, kind);
        for opcode in 0..=u8::MAX {
            let needed = match opcode {
                _ if free.contains(&opcode) => &Anyone,
                _ if reads.contains(&opcode) => &read,
                _ => &write,
            };
            for (host, who) in [(A, Holder), (B, Registrant), (C, Anyone)] {
                let allowed = namespace.0.allows(host, Need::of(NvmOpcode(opcode)));
                assert_eq!(allowed, who <= *needed, "{kind:?}, opcode {opcode:#x}, {host}");
            }
        }
    }
    // Without a reservation everybody may do everything.
    let namespace = Namespace::default().register(&[(A, 1)]);
    assert!([Need::Read, Need::Write].into_iter().all(|need| namespace.0.allows(C, need)));
}

#[test]
fn sequence_of_blktests_054() {
    let mut namespace = Namespace::default();
    let seen = |namespace: &Namespace| {
        let held = namespace.0.held().map_or(0, |(kind, _)| kind.0);
        (namespace.0.generation(), held, namespace.0.registrants().map(|(_, key)| key).collect::<Vec<_>>())
    };
    let persist = PersistChange::NONE;
    for (command, expected) in [
        (register(4), (1, 0, vec![4])),
        (Command::Replace { current: Some(4), new: 5, persist }, (2, 0, vec![5])),
        (unregister(Some(5)), (3, 0, vec![])),
        (register(4), (4, 0, vec![4])),
        (Command::Acquire { key: 4, kind: WE }, (4, 1, vec![4])),
        (preempt(4, 0, EA), (5, 2, vec![4])),
        (Command::Release { key: 4, kind: EA }, (5, 0, vec![4])),
        (Command::Acquire { key: 4, kind: WE }, (5, 1, vec![4])),
        (Command::Clear { key: 4 }, (6, 0, vec![])),
    ] {
        namespace.run(A, command).unwrap();
        assert_eq!(seen(&namespace), expected, "{command:?}");
    }
}

#[test]
fn register_takes_another_key_only_when_keys_are_ignored() {
    let mut namespace = Namespace::default().register(&[(A, 1)]);
    assert_eq!(namespace.run(A, register(1)), Ok(vec![]));
    assert_eq!(namespace.0.generation(), 1, "the same key again is no change");
    assert_eq!(namespace.run(A, register(2)), Err(CONFLICT));
    let persist = PersistChange::NONE;
    namespace.run(A, Command::Register { new: 2, ignore_key: true, persist }).unwrap();
    assert_eq!(namespace.run(A, Command::Replace { current: Some(1), new: 3, persist }), Err(CONFLICT));
    assert_eq!(namespace.run(B, Command::Replace { current: Some(1), new: 3, persist }), Err(CONFLICT));
    namespace.run(B, Command::Replace { current: None, new: 3, persist }).unwrap();
    assert_eq!(namespace.0.registrants().collect::<Vec<_>>(), [(A, 2), (B, 3)]);
    assert_eq!(namespace.run(A, unregister(Some(3))), Err(CONFLICT));
    assert_eq!(namespace.run(C, unregister(Some(3))), Err(CONFLICT));
    let generation = namespace.0.generation();
    assert_eq!(namespace.run(C, unregister(None)), Ok(vec![]));
    assert_eq!(namespace.0.generation(), generation, "nothing was unregistered");
}

#[test]
fn acquire_is_for_registrants_and_conflicts_with_what_is_held() {
    for kind in TYPES {
        let mut namespace = Namespace::default().register(&[(A, 1), (B, 2)]);
        assert_eq!(namespace.run(C, Command::Acquire { key: 1, kind }), Err(CONFLICT));
        assert_eq!(namespace.run(A, Command::Acquire { key: 2, kind }), Err(CONFLICT));
        let mut namespace = namespace.acquire(A, 1, kind).acquire(A, 1, kind);
        let other = if kind == WE { EA } else { WE };
        assert_eq!(namespace.run(A, Command::Acquire { key: 1, kind: other }), Err(CONFLICT));
        let by_other = namespace.run(B, Command::Acquire { key: 2, kind });
        assert_eq!(by_other.is_ok(), is_for_all(kind), "a registrant is a holder only of {kind:?}");
    }
}

#[test]
fn unregistering_the_holder_releases_what_is_not_for_all_registrants() {
    use ReservationNotice::ReservationReleased;
    for (kind, left, notices) in [
        (WE, None, vec![]),
        (EA, None, vec![]),
        (WE_RO, None, vec![(B, ReservationReleased)]),
        (EA_RO, None, vec![(B, ReservationReleased)]),
        (WE_AR, Some((WE_AR, B)), vec![]),
        (EA_AR, Some((EA_AR, B)), vec![]),
    ] {
        let mut namespace = Namespace::default().register(&[(A, 1), (B, 2)]).acquire(A, 1, kind);
        assert_eq!(namespace.run(A, unregister(Some(1))), Ok(notices), "{kind:?}");
        assert_eq!(namespace.0.held(), left, "{kind:?}");
        namespace.run(B, unregister(Some(2))).unwrap();
        assert_eq!(namespace.0.held(), None, "the last holder is gone");
    }
}

#[test]
fn release_needs_the_type_and_is_nothing_to_others() {
    use ReservationNotice::ReservationReleased;
    for kind in TYPES {
        let mut namespace = Namespace::default().register(&[(A, 1), (B, 2)]).acquire(A, 1, kind);
        let other = if kind == WE { EA } else { WE };
        assert_eq!(namespace.run(A, Command::Release { key: 1, kind: other }), Err(CONFLICT));
        assert_eq!(namespace.run(C, Command::Release { key: 1, kind }), Err(CONFLICT));
        if !is_for_all(kind) {
            assert_eq!(namespace.run(B, Command::Release { key: 2, kind }), Ok(vec![]));
            assert!(namespace.0.held().is_some());
        }
        let told = if is_for_one(kind) { vec![] } else { vec![(B, ReservationReleased)] };
        assert_eq!(namespace.run(A, Command::Release { key: 1, kind }), Ok(told));
        assert_eq!(namespace.0.held(), None);
        assert_eq!(namespace.run(A, Command::Release { key: 1, kind }), Ok(vec![]), "none is held");
    }
}

#[test]
fn preempt_without_a_reservation_unregisters_and_creates_none() {
    use ReservationNotice::RegistrationPreempted;
    let mut namespace = Namespace::default().register(&[(A, 1), (B, 2), (C, 2)]);
    assert_eq!(namespace.run(A, preempt(1, 9, WE)), Err(CONFLICT), "nobody has the key");
    let told = vec![(B, RegistrationPreempted), (C, RegistrationPreempted)];
    assert_eq!(namespace.run(A, preempt(1, 2, WE)), Ok(told));
    assert_eq!((namespace.hosts(), namespace.0.held()), (vec![A], None));
}

#[test]
fn preempt_of_the_holders_key_takes_the_reservation() {
    use ReservationNotice::{RegistrationPreempted, ReservationPreempted};
    for kind in [WE, EA, WE_RO, EA_RO] {
        let mut namespace = Namespace::default().register(&[(A, 1), (B, 2), (C, 3)]).acquire(B, 2, kind);
        let told = vec![(C, ReservationPreempted), (B, RegistrationPreempted)];
        assert_eq!(namespace.run(A, preempt(1, 2, EA_RO)), Ok(told));
        assert_eq!((namespace.hosts(), namespace.0.held()), (vec![A, C], Some((EA_RO, A))));
    }
}

#[test]
fn preempt_of_another_key_leaves_the_reservation() {
    for (kind, holder) in [(WE, B), (EA_RO, B), (WE_RO, A), (WE, A)] {
        let key = if holder == A { 1 } else { 2 };
        let mut namespace =
            Namespace::default().register(&[(A, 1), (B, 2), (C, 3)]).acquire(holder, key, kind);
        namespace.run(A, preempt(1, 3, EA)).unwrap();
        assert_eq!((namespace.hosts(), namespace.0.held()), (vec![A, B], Some((kind, holder))));
        assert_eq!(namespace.run(A, preempt(1, 9, EA)), Err(CONFLICT), "nobody has the key");
    }
    let mut namespace = Namespace::default().register(&[(A, 1), (B, 2)]).acquire(B, 2, WE);
    assert_eq!(namespace.run(A, preempt(1, 0, EA)), Err(Status::INVALID_FIELD.with_dnr()));
}

#[test]
fn holder_that_preempts_itself_changes_the_type() {
    use ReservationNotice::ReservationReleased;
    for preempted in [0, 1] {
        let mut namespace = Namespace::default().register(&[(A, 1), (B, 2)]).acquire(A, 1, WE);
        assert_eq!(namespace.run(A, preempt(1, preempted, WE)), Ok(vec![]), "the same type");
        assert_eq!(namespace.run(A, preempt(1, preempted, EA_RO)), Ok(vec![(B, ReservationReleased)]));
        assert_eq!((namespace.hosts(), namespace.0.held()), (vec![A, B], Some((EA_RO, A))));
    }
}

#[test]
fn preempt_where_all_registrants_hold() {
    for kind in [WE_AR, EA_AR] {
        let three = || Namespace::default().register(&[(A, 1), (B, 2), (C, 3)]).acquire(B, 2, kind);
        let mut namespace = three();
        namespace.run(A, preempt(1, 2, WE)).unwrap();
        assert_eq!((namespace.hosts(), namespace.0.held()), (vec![A, C], Some((kind, A))));
        assert_eq!(namespace.run(A, preempt(1, 9, WE)), Err(CONFLICT));
        let mut namespace = three();
        namespace.run(A, preempt(1, 0, WE)).unwrap();
        assert_eq!((namespace.hosts(), namespace.0.held()), (vec![A], Some((WE, A))));
    }
}

#[test]
fn preempt_and_abort_names_whose_commands_must_be_over() {
    let namespace = Namespace::default().register(&[(A, 1), (B, 2), (C, 2)]).acquire(B, 2, WE);
    let command = Command::Preempt { key: 1, kind: EA, preempted: 2, abort: true };
    let change = namespace.0.apply(A, &command, true).unwrap();
    assert_eq!(change.aborted, [B, C].into());
    let change = namespace.0.apply(A, &preempt(1, 2, EA), true).unwrap();
    assert!(change.aborted.is_empty());
}

#[test]
fn clear_unregisters_everyone() {
    use ReservationNotice::ReservationPreempted;
    let mut namespace = Namespace::default().register(&[(A, 1), (B, 2), (C, 3)]).acquire(B, 2, WE);
    assert_eq!(namespace.run(A, Command::Clear { key: 2 }), Err(CONFLICT));
    let told = vec![(B, ReservationPreempted), (C, ReservationPreempted)];
    assert_eq!(namespace.run(A, Command::Clear { key: 1 }), Ok(told));
    assert_eq!((namespace.hosts(), namespace.0.held()), (vec![], None));
}

#[test]
fn persistence_follows_cptpl_where_there_is_a_place_for_it() {
    let with = |persist| Command::Register { new: 1, ignore_key: false, persist };
    let mut namespace = Namespace::default();
    namespace.run(A, with(PersistChange::PERSIST)).unwrap();
    assert!(namespace.0.persists());
    namespace.run(A, with(PersistChange::NONE)).unwrap();
    assert!(namespace.0.persists());
    namespace.run(A, with(PersistChange::CLEAR)).unwrap();
    assert!(!namespace.0.persists());
    // Linux always asks for it: it must not fail.
    let change = namespace.0.apply(A, &with(PersistChange::PERSIST), false).unwrap();
    assert!(!change.reservation.persists());
    let refused = namespace.0.apply(A, &Command::SetPersistence { persists: true }, false);
    assert_eq!(refused, Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr()));
}

#[test]
fn report_byte_for_byte() {
    let host = HostId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    let key = 0x1122_3344_5566_7788;
    let reservation = Reservation::restored(5, Some((WE, host)), [(host, key)]).unwrap();
    let mut expected = vec![0; 128];
    expected[..10].copy_from_slice(&[5, 0, 0, 0, 1, 1, 0, 0, 0, 1]);
    expected[64..67].copy_from_slice(&[0xff, 0xff, 1]);
    expected[72..80].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    expected[80..96].copy_from_slice(&host.0);
    assert_eq!(reservation.report(), expected);
}

#[test]
fn what_no_commands_lead_to_is_not_restored() {
    let none = HostId([0; 16]);
    for (held, registrants) in [
        (None, vec![(A, 1), (A, 2)]),
        (None, vec![(A, 0)]),
        (None, vec![(none, 1)]),
        (Some((WE, B)), vec![(A, 1)]),
        (Some((ReservationType::NONE, A)), vec![(A, 1)]),
        (Some((ReservationType(7), A)), vec![(A, 1)]),
    ] {
        assert!(Reservation::restored(1, held, registrants).is_err());
    }
    let many = (0..=REGISTRANTS_MAX as u128).map(|host| (HostId((host + 1).to_be_bytes()), 1));
    assert_eq!(Reservation::restored(1, None, many), Err(RestoreError::TooMany(REGISTRANTS_MAX + 1)));
}

fn any_command() -> impl Strategy<Value = Command> {
    let key = || 1..4u64;
    let persist =
        || prop_oneof![Just(PersistChange::NONE), Just(PersistChange::PERSIST), Just(PersistChange::CLEAR)];
    let kind = || (1..7u8).prop_map(ReservationType);
    prop_oneof![
        (key(), any::<bool>(), persist()).prop_map(|(new, ignore_key, persist)| Command::Register {
            new,
            ignore_key,
            persist
        }),
        (prop::option::of(key()), persist())
            .prop_map(|(current, persist)| Command::Unregister { current, persist }),
        (prop::option::of(key()), key(), persist()).prop_map(|(current, new, persist)| Command::Replace {
            current,
            new,
            persist
        }),
        (key(), kind()).prop_map(|(key, kind)| Command::Acquire { key, kind }),
        (key(), kind(), 0..4u64, any::<bool>()).prop_map(|(key, kind, preempted, abort)| Command::Preempt {
            key,
            kind,
            preempted,
            abort
        }),
        (key(), kind()).prop_map(|(key, kind)| Command::Release { key, kind }),
        key().prop_map(|key| Command::Clear { key }),
    ]
}

proptest! {
    #[test]
    fn any_commands_lead_to_what_can_be_restored(
        commands in prop::collection::vec((1..4u8, any_command()), 0..40),
    ) {
        let mut namespace = Namespace::default();
        for (host, command) in commands {
            let host = HostId([host; 16]);
            let before = namespace.0.clone();
            let Ok(change) = namespace.0.apply(host, &command, true) else { continue };
            prop_assert!(change.notices.iter().all(|(told, _)| *told != host), "nobody is told of what it did");
            prop_assert!(!change.aborted.contains(&host));
            prop_assert!(change.aborted.iter().all(|gone| change.reservation.key(*gone).is_none()));
            let now = change.reservation;
            let restored = Reservation::restored(now.generation(), now.held(), now.registrants()).unwrap();
            prop_assert_eq!(Reservation { persists: now.persists, ..restored }, now.clone());
            // Whoever loses its registration to others is told.
            for (gone, _) in before.registrants().filter(|(it, _)| *it != host && now.key(*it).is_none()) {
                prop_assert!(change.notices.iter().any(|(told, _)| *told == gone));
            }
            namespace.0 = now;
        }
    }
}
