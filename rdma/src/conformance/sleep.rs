//! Sleeping, and what ends it.

use super::Pair;
use super::memory_access::open;
use super::rig::{LEFT, RIGHT, Rig, message};
use crate::{Access, Opcode, Payload, Provider, WakeOn};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};

/// `RIGHT`, asleep or not.
struct Sleeper {
    fd: OwnedFd,
}

impl Sleeper {
    /// `None` for a provider that nobody sleeps on.
    fn new<P: Provider>(rig: &Rig<P>) -> Option<Self> {
        let fd = rig.sides[RIGHT].provider.fd()?.try_clone_to_owned().expect("a descriptor more");
        Some(Self { fd })
    }

    fn is_readable(&self, milliseconds: u16) -> bool {
        let mut polled = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::from(milliseconds)).expect("poll works") > 0
    }

    /// Leftovers of earlier work may refuse a first arm, or end a first sleep, not many.
    fn sleep<P: Provider>(&self, rig: &mut Rig<P>, wake_on: WakeOn) {
        rig.until("an arm that holds", |rig| {
            rig.sides[RIGHT].provider.arm(wake_on).then_some(()).filter(|()| !self.is_readable(0))
        });
    }

    /// Waits for the end of the sleep; only the other side moves.
    fn is_woken<P: Provider>(&self, rig: &mut Rig<P>) {
        rig.until("a wake-up", |rig| {
            rig.settle_one(LEFT);
            self.is_readable(20).then_some(())
        });
    }
}

pub(super) fn a_sleeper_is_woken<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let Some(sleeper) = Sleeper::new(rig) else { return };
    let sink = rig.sides[RIGHT].sink(64);
    let wakes = [WakeOn::Completions, WakeOn::Receives, WakeOn::Receives, WakeOn::Completions];
    for (id, wake_on) in (0..).zip(wakes) {
        rig.sides[RIGHT].receive(link[RIGHT], id, sink.sge(0, 64));
        sleeper.sleep(rig, wake_on);
        rig.sides[LEFT].post(link[LEFT], id, message(Payload::Inline(b"wake up")));
        sleeper.is_woken(rig);
        rig.success(RIGHT, id, Opcode::Receive);
    }
    sleeper.sleep(rig, WakeOn::Receives);
    rig.sides[LEFT].provider.disconnect(link[LEFT]);
    sleeper.is_woken(rig);
    rig.disconnected(RIGHT, link[RIGHT]);
}

pub(super) fn a_sleeper_is_woken_by_what_it_read<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let Some(sleeper) = Sleeper::new(rig) else { return };
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let (from, into) = (rig.sides[LEFT].buffer(4096, access), rig.sides[RIGHT].sink(4096));
    let remote = open(rig, LEFT, link, &from, from.sge(0, 4096), Access::REMOTE_READ);
    for id in 0..3 {
        rig.sides[RIGHT].read(link[RIGHT], id, into.sge(0, 4096), remote);
        if rig.sides[RIGHT].provider.arm(WakeOn::Completions) {
            sleeper.is_woken(rig);
        }
        rig.success(RIGHT, id, Opcode::Read);
    }
}
