//! RDMA WRITE and READ that are not allowed: they touch no memory, end their own connection, and no other.

use super::Pair;
use super::rig::{LEFT, Link, RIGHT, Rig, message, pattern};
use crate::{
    Access, Opcode, Payload, Provider, QueuePairState, RemoteKey, RemoteMemory, SendOperation, WcStatus,
};

const LEN: usize = 256;
/// Where the exposed part of the page begins and how long it is: there is forbidden memory on both sides.
const AT: usize = 1024;

/// What `RIGHT` tries on the memory of `LEFT`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Attempt {
    Write,
    Read,
}

impl Attempt {
    fn right(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
        }
    }
}

/// The stage of one attempt.
struct Stage<'a, P> {
    rig: &'a mut Rig<P>,
    link: Link,
    bystander: Link,
    attempt: Attempt,
    victim: &'a super::rig::Buffer,
}

impl<P: Provider> Stage<'_, P> {
    fn expose(&mut self, link: Link, access: Access) -> RemoteMemory {
        let range = self.victim.sge(AT, LEN as u32);
        self.rig.sides[LEFT].provider.expose(link[LEFT], range, access).expect("a key for one command")
    }

    /// A key for the very thing that is attempted.
    fn key(&mut self) -> RemoteMemory {
        let link = self.link;
        self.expose(link, self.attempt.right())
    }
}

/// Tries what `forge` names, as WRITE and as READ, and sees that nothing comes of it.
fn attempts<P: Provider>(pair: Pair<P>, forge: impl Fn(&mut Stage<'_, P>) -> RemoteMemory) {
    let rig = &mut Rig::new(pair);
    if !rig.sides[LEFT].provider.capabilities().per_command_keys {
        return;
    }
    for attempt in [Attempt::Write, Attempt::Read] {
        let [link, bystander] = [rig.link(8), rig.link(8)];
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let victim = rig.sides[LEFT].buffer(4096, access);
        let before = pattern(1, 4096);
        victim.memory.write(0, &before);
        let remote = forge(&mut Stage { rig, link, bystander, attempt, victim: &victim });

        let source = rig.sides[RIGHT].source(&[0xee; LEN]);
        let sink = rig.sides[RIGHT].sink(LEN);
        match attempt {
            Attempt::Write => rig.sides[RIGHT].write(link[RIGHT], 1, &[source.sge(0, LEN as u32)], remote),
            Attempt::Read => rig.sides[RIGHT].read(link[RIGHT], 1, sink.sge(0, LEN as u32), remote),
        }
        let status = rig.completion(RIGHT, 1).status;
        // Where a completion is no acknowledgement, the write was done as far as its sender can know.
        let handed_over = attempt == Attempt::Write
            && status == WcStatus::Success
            && !rig.sides[RIGHT].provider.capabilities().completion_is_ack;
        let refused =
            matches!(status, WcStatus::RemoteAccess | WcStatus::RemoteOperation | WcStatus::Flushed);
        assert!(handed_over || refused, "{attempt:?} completed with {status}");
        ended(rig, link);
        assert!(victim.bytes(0, 4096) == before, "{attempt:?} touched memory that was not open to it");
        assert_eq!(sink.bytes(0, LEN), [0; LEN], "forbidden bytes were read");
        rig.works(bystander);
    }
}

fn ended<P: Provider>(rig: &mut Rig<P>, link: Link) {
    for side in [RIGHT, LEFT] {
        rig.disconnected(side, link[side]);
        assert_eq!(rig.sides[side].provider.state(link[side]), QueuePairState::Error);
    }
}

pub(super) fn wrong_key<P: Provider>(pair: Pair<P>) {
    attempts(pair, |stage| {
        let right = stage.key();
        RemoteMemory { key: RemoteKey(right.key.0 ^ 0x5555_0000), ..right }
    });
}

pub(super) fn key_of_another_queue_pair<P: Provider>(pair: Pair<P>) {
    attempts(pair, |stage| {
        let (link, right) = (stage.bystander, stage.attempt.right());
        stage.expose(link, right)
    });
}

pub(super) fn one_byte_too_far<P: Provider>(pair: Pair<P>) {
    if !pair.left.capabilities().strict_keys {
        return;
    }
    attempts(pair, |stage| {
        let right = stage.key();
        RemoteMemory { address: right.address + 1, ..right }
    });
}

pub(super) fn one_byte_too_early<P: Provider>(pair: Pair<P>) {
    if !pair.left.capabilities().strict_keys {
        return;
    }
    attempts(pair, |stage| {
        let right = stage.key();
        RemoteMemory { address: right.address.wrapping_sub(1), ..right }
    });
}

pub(super) fn an_address_that_wraps<P: Provider>(pair: Pair<P>) {
    attempts(pair, |stage| {
        let right = stage.key();
        RemoteMemory { address: u64::MAX, ..right }
    });
}

pub(super) fn wrong_right<P: Provider>(pair: Pair<P>) {
    attempts(pair, |stage| {
        let other = match stage.attempt {
            Attempt::Write => Access::REMOTE_READ,
            Attempt::Read => Access::REMOTE_WRITE,
        };
        let link = stage.link;
        stage.expose(link, other)
    });
}

pub(super) fn after_remote_invalidation<P: Provider>(pair: Pair<P>) {
    if !pair.left.capabilities().per_command_keys || !pair.right.capabilities().sends_invalidate {
        return;
    }
    attempts(pair, |stage| {
        let (key, link) = (stage.key(), stage.link);
        stage.rig.says(LEFT, link);
        let sink = stage.rig.sides[LEFT].sink(64);
        stage.rig.sides[LEFT].receive(link[LEFT], 10, sink.sge(0, 64));
        let payload = Payload::Inline(b"yours again");
        let operation = SendOperation::Send { payload, invalidate: Some(key.key), solicited: false };
        stage.rig.sides[RIGHT].post(link[RIGHT], 11, operation);
        assert_eq!(stage.rig.success(LEFT, 10, Opcode::Receive).invalidated, Some(key.key));
        stage.rig.success(RIGHT, 11, Opcode::Send);
        key
    });
}

pub(super) fn after_local_invalidation<P: Provider>(pair: Pair<P>) {
    attempts(pair, |stage| {
        let (key, link) = (stage.key(), stage.link);
        let operation = SendOperation::LocalInvalidate { key: key.key };
        stage.rig.sides[LEFT].post(link[LEFT], 10, operation);
        stage.rig.success(LEFT, 10, Opcode::LocalInvalidate);
        key
    });
}

pub(super) fn after_deregistration<P: Provider>(pair: Pair<P>) {
    // The region's own key becomes invalid, and so do the keys that were made of it.
    let at_part = |stage: &mut Stage<'_, P>| stage.key();
    let at_region = |stage: &mut Stage<'_, P>| stage.victim.region.remote.expect("a region's key");
    attempts(pair, |stage| {
        let remote = if stage.attempt == Attempt::Write { at_part(stage) } else { at_region(stage) };
        stage.rig.sides[LEFT].provider.deregister(stage.victim.region.local_key);
        remote
    });
}

pub(super) fn after_destruction<P: Provider>(pair: Pair<P>) {
    attempts(pair, |stage| {
        let doomed = stage.rig.link(4);
        let right = stage.attempt.right();
        let remote = stage.expose(doomed, right);
        stage.rig.sides[LEFT].provider.destroy_queue_pair(doomed[LEFT]);
        stage.rig.disconnected(RIGHT, doomed[RIGHT]);
        remote
    });
}

/// A SEND with invalidate of a key that its sender was not given: the key stays valid, the connection ends.
fn invalidates<P: Provider>(pair: Pair<P>, foreign: bool) {
    let rig = &mut Rig::new(pair);
    let capabilities = rig.sides[LEFT].provider.capabilities();
    if !capabilities.per_command_keys || !rig.sides[RIGHT].provider.capabilities().sends_invalidate {
        return;
    }
    if foreign && !capabilities.strict_keys {
        return;
    }
    let [link, bystander] = [rig.link(8), rig.link(8)];
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let buffer = rig.sides[LEFT].buffer(4096, access);
    buffer.memory.write(0, &pattern(4, 4096));
    let range = buffer.sge(0, 4096);
    let remote = if foreign {
        rig.sides[LEFT].provider.expose(bystander[LEFT], range, Access::REMOTE_READ).unwrap()
    } else {
        buffer.region.remote.expect("a region's key")
    };
    let sink = rig.sides[LEFT].sink(64);
    rig.sides[LEFT].receive(link[LEFT], 10, sink.sge(0, 64));
    let payload = Payload::Inline(b"not yours");
    let operation = SendOperation::Send { payload, invalidate: Some(remote.key), solicited: false };
    rig.sides[RIGHT].post(link[RIGHT], 11, operation);
    ended(rig, link);
    assert!(!rig.completion(LEFT, 10).status.is_success(), "a message with a foreign key was delivered");
    let data = rig.sides[RIGHT].sink(4096);
    rig.sides[RIGHT].read(bystander[RIGHT], 1, data.sge(0, 4096), remote);
    rig.success(RIGHT, 1, Opcode::Read);
    assert!(data.bytes(0, 4096) == pattern(4, 4096));
    rig.sides[RIGHT].post(bystander[RIGHT], 2, message(Payload::Inline(b"x")));
    rig.sides[LEFT].receive(bystander[LEFT], 3, sink.sge(0, 64));
    rig.success(LEFT, 3, Opcode::Receive);
}

pub(super) fn invalidation_of_a_foreign_key<P: Provider>(pair: Pair<P>) {
    invalidates(pair, true);
}

pub(super) fn invalidation_of_a_region<P: Provider>(pair: Pair<P>) {
    invalidates(pair, false);
}
