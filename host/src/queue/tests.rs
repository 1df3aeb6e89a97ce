use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn cqe(cid: Cid, sqhd: u16) -> Vec<u8> {
    let mut cqe = Cqe::new(cid, Status::SUCCESS, 7);
    cqe.sqhd = sqhd.into();
    cqe.as_bytes().to_vec()
}

#[test]
fn stale_completion_is_a_violation() {
    let mut queue = Queue::new(Qid(1), 4, FlowControl::Sqhd);
    let first = queue.submit("first", None).unwrap();
    let (owner, outcome) = queue.on_completion(&cqe(first, 1)).unwrap();
    assert_eq!((owner, outcome.dw0), ("first", 7));
    let stale = Violation::StaleCompletion { qid: Qid(1), cid: first };
    assert_eq!(queue.on_completion(&cqe(first, 1)), Err(stale));
    let again = queue.submit("second", None).unwrap();
    assert_ne!(again, first, "the same slot under another CID");
    assert_eq!(queue.on_completion(&cqe(first, 1)), Err(stale));
    assert_eq!(queue.get(again), Some(&"second"));
    assert_eq!(queue.on_completion(&[0; 15]), Err(Violation::ResponseLength { qid: Qid(1), len: 15 }));
}

#[test]
fn flow_control_keeps_one_entry_free() {
    let mut queue = Queue::new(Qid(1), 4, FlowControl::Sqhd);
    let cids: Vec<Cid> = (0..3).map(|owner| queue.submit(owner, None).unwrap()).collect();
    assert_eq!(queue.submit(3, None), Err(Full(3)));
    queue.agree(4, FlowControl::Sqhd);
    assert_eq!((queue.room(), queue.get(cids[0])), (3, None));
    let mut queue = Queue::new(Qid(1), 4, FlowControl::Disabled);
    assert_eq!((0..9).filter(|&owner| queue.submit(owner, None).is_ok()).count(), 4);
}

#[test]
fn unread_entries_take_room() {
    let mut queue = Queue::new(Qid(1), 8, FlowControl::Sqhd);
    let soon = Some(Duration::from_secs(1));
    let cids: Vec<Cid> = (0..7).map(|owner| queue.submit(owner, soon).unwrap()).collect();
    queue.on_completion(&cqe(cids[0], 0)).unwrap();
    assert_eq!(queue.room(), 0, "completed, but its head has not moved");
    queue.on_completion(&cqe(cids[1], 5)).unwrap();
    assert_eq!(queue.room(), 2, "five read, five in flight");
    queue.on_completion(&cqe(cids[2], 0xffff)).unwrap();
    assert_eq!(queue.room(), 3, "a head that cannot be says nothing");
}

#[test]
fn expired_command_is_named_once() {
    let second = Duration::from_secs(1);
    let mut queue = Queue::new(Qid(1), 8, FlowControl::Sqhd);
    let late = queue.submit("late", Some(2 * second)).unwrap();
    let cid = queue.submit("soon", Some(second)).unwrap();
    assert_eq!(queue.poll_timeout(), Some(second));
    assert_eq!(queue.pop_expired(second / 2), None);
    assert_eq!(queue.pop_expired(second), Some(cid));
    assert_eq!(queue.pop_expired(second), None);
    assert_eq!((queue.len(), queue.poll_timeout()), (2, Some(2 * second)));
    queue.on_completion(&cqe(late, 2)).unwrap();
    let mut left: Vec<&str> = queue.drain().collect();
    left.sort_unstable();
    assert_eq!(left, ["soon"]);
    assert_eq!((queue.len(), queue.poll_timeout(), queue.room()), (0, None, 7));
}

#[test]
fn cancelled_command_leaves_no_trace() {
    let mut queue = Queue::new(Qid(1), 2, FlowControl::Sqhd);
    for owner in 0..10 {
        let cid = queue.submit(owner, None).unwrap();
        assert_eq!(queue.room(), 0);
        assert_eq!(queue.cancel(cid), Some(owner));
        assert_eq!((queue.cancel(cid), queue.room()), (None, 1));
    }
}

#[test]
fn completion_leaves_the_deadlines_of_others() {
    let second = Duration::from_secs(1);
    let mut queue = Queue::new(Qid(1), 8, FlowControl::Sqhd);
    let done = queue.submit("done", Some(2 * second)).unwrap();
    let lost = queue.submit("lost", Some(3 * second)).unwrap();
    queue.on_completion(&cqe(done, 1)).unwrap();
    assert!(queue.poll_timeout().is_some_and(|at| at <= 3 * second));
    assert_eq!(queue.pop_expired(2 * second), None);
    assert_eq!(queue.poll_timeout(), Some(3 * second));
    assert_eq!(queue.pop_expired(3 * second), Some(lost));
}

#[test]
fn cancelled_command_takes_its_entry_back() {
    let mut queue = Queue::new(Qid(1), 8, FlowControl::Sqhd);
    let sent = queue.submit(0, None).unwrap();
    let cancelled = queue.submit(1, None).unwrap();
    queue.cancel(cancelled);
    // The controller has read one entry, which is all that was sent.
    queue.on_completion(&cqe(sent, 1)).unwrap();
    assert_eq!(queue.room(), 7);
    let cids: Vec<Cid> = (0..7).map(|owner| queue.submit(owner, None).unwrap()).collect();
    for (cid, head) in cids.into_iter().zip(2..=5) {
        assert_eq!(queue.get_mut(cid).copied(), Some(usize::from(head) - 2));
        queue.on_completion(&cqe(cid, head)).unwrap();
    }
    assert_eq!(queue.room(), 4, "three commands in flight, three entries unread");
}

#[test]
fn head_that_stands_still_takes_no_room_from_later_commands() {
    let soon = Some(Duration::from_secs(1));
    for stuck in [0, 1, 5] {
        let mut queue = Queue::new(Qid(1), 8, FlowControl::Sqhd);
        // As an event request: the controller answers it when there is an event.
        queue.submit(0, None).unwrap();
        for owner in 1..100 {
            let first = queue.submit(owner, soon).unwrap_or_else(|_| panic!("no room for command {owner}"));
            let second = queue.submit(owner, soon).unwrap();
            assert!(queue.pop_expired(Duration::from_secs(1)).is_some());
            queue.on_completion(&cqe(first, stuck)).unwrap();
            queue.on_completion(&cqe(second, stuck)).unwrap();
            assert_eq!(queue.room(), 6, "one command is in flight");
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_completions_lose_no_owner(
        entries in 2u16..64,
        disabled: bool,
        steps in prop::collection::vec((any::<bool>(), any::<u16>(), any::<u16>()), 0..400),
    ) {
        let flow_control = if disabled { FlowControl::Disabled } else { FlowControl::Sqhd };
        let mut queue = Queue::new(Qid(1), entries, flow_control);
        let mut flying: Vec<(Cid, usize)> = Vec::new();
        for (owner, (submit, cid, sqhd)) in steps.into_iter().enumerate() {
            if submit {
                if let Ok(cid) = queue.submit(owner, Some(Duration::from_secs(u64::from(sqhd)))) {
                    prop_assert!(flying.iter().all(|(other, _)| *other != cid));
                    flying.push((cid, owner));
                }
            } else {
                let guess = flying.get(usize::from(cid) % 80).map_or(Cid(cid), |(cid, _)| *cid);
                let at = flying.iter().position(|(cid, _)| *cid == guess);
                let completed = queue.on_completion(&cqe(guess, sqhd)).ok().map(|(owner, _)| owner);
                prop_assert_eq!(completed, at.map(|at| flying.swap_remove(at).1));
            }
            prop_assert_eq!(queue.len(), flying.len());
            prop_assert!(queue.len() <= queue.capacity());
            let _ = queue.pop_expired(Duration::from_secs(u64::from(cid)));
        }
        prop_assert_eq!(queue.drain().count(), flying.len());
    }
}
