//! Fences: what a controller that was lost may still carry out.
//!
//! A command that changes a disk and was in flight when its controller was lost may take effect at any time until the
//! controller is known to have dropped it. Issued again before, on any path, the late copy could land on top of what
//! was written since. So the blocks that it names are fenced: nothing that changes one of them is issued, and nothing that
//! reads one. (Who was told of an end without a result reads to learn what became of it, for good.) A fence falls
//! when the controller was reset through another one (Cross-Controller Reset), or when it must have noticed the loss and
//! had its time to drop what it had begun.
//!
//! What is in flight of operations that nobody waits for any longer is held in the same way until it has ended.
//!
//! Drivers that serve one disk together ([`SharedFences`]) hold back for each other's fences as for their own: each resets
//! the controllers that it has lost itself, and publishes what is fenced before anybody hears of an operation's end.

use super::Driver;
use super::operation::Wait;
use super::path::Lost;
use super::policy::PathSet;
use super::shared_fences::{Held, Share, SharedFences};
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_block::BlockRange;
use std::net::SocketAddr;

/// A controller that was lost, with commands of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impacted {
    /// Where it was, and what Cross-Controller Reset knows it by; `None` where it has none, or nobody knows which it is.
    pub controller: Option<(SocketAddr, ControllerInstance)>,
    /// When it needs no reset any more.
    pub until: Duration,
    /// Somebody may have been told that nobody knows what became of a command: reads wait, too, where the blocks are not known. Who
    /// takes over from a process that sent raw commands sets it.
    pub reads: bool,
}

impl Impacted {
    fn instance(&self) -> Option<ControllerInstance> {
        self.controller.map(|(_, instance)| instance)
    }
}

#[derive(Debug)]
struct Fence {
    impacted: Impacted,
    held: Held,
    /// The path through which it is being reset.
    resetting: Option<usize>,
    /// The paths that could not reset it.
    tried: PathSet,
}

impl Fence {
    fn new(impacted: Impacted, ranges: Vec<(Nsid, BlockRange)>, everything: bool) -> Self {
        let held = Held { ranges, everything, reads: impacted.reads };
        Self { impacted, held, resetting: None, tried: PathSet::default() }
    }
}

/// All fences: mostly none.
#[derive(Debug, Default)]
pub(super) struct Fences {
    own: Vec<Fence>,
    /// What is in flight of operations that were withdrawn.
    withdrawn: Option<Held>,
    share: Option<Share>,
}

impl Fences {
    fn others(&self) -> &[Held] {
        self.share.as_ref().map_or(&[], |share| &share.others)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.withdrawn.is_none() && self.others().is_empty()
    }

    /// What this driver holds up.
    fn held(&self) -> impl Iterator<Item = &Held> {
        self.own.iter().map(|fence| &fence.held).chain(&self.withdrawn)
    }

    /// Whether a change of these blocks, or a read, has to wait.
    pub(super) fn holds(&self, nsid: Nsid, range: BlockRange, changes: bool) -> bool {
        let mut held = self.held().chain(self.others());
        // Of whatever driver the operations were that have failed.
        let waits = changes || self.share.as_ref().is_some_and(|share| share.failed);
        held.any(|held| held.holds(nsid, range, waits))
    }

    /// Tells the others what is fenced from now on: before anybody can hear of an end without a result.
    fn publish(&self) {
        if let Some(share) = &self.share {
            share.publish(self.held().cloned().collect());
        }
    }

    /// Holds these blocks, which withdrawn operations in flight change, and no others of such.
    pub(super) fn hold(&mut self, ranges: Vec<(Nsid, BlockRange)>) {
        let held = Held { ranges, everything: false, reads: false };
        self.withdrawn = (!held.ranges.is_empty()).then_some(held);
        self.publish();
    }

    fn retain(&mut self, stays: impl FnMut(&mut Fence) -> bool) {
        let before = self.own.len();
        self.own.retain_mut(stays);
        if self.own.len() < before {
            self.publish();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let own = self.own.iter().map(|fence| fence.impacted.until).min();
        own.into_iter().chain(self.share.as_ref().and_then(|share| share.next_look)).min()
    }

    /// What another process had sent to these controllers is not known here.
    pub(super) fn resume(&mut self, now: Duration, impacted: &[Impacted]) {
        let lasting = impacted.iter().filter(|impacted| impacted.until > now);
        self.own.extend(lasting.map(|&impacted| Fence::new(impacted, Vec::new(), true)));
        self.publish();
    }

    /// Operations have failed that waited. What another process had sent of them is not over.
    pub(super) fn on_operations_failed(&mut self) {
        self.own.iter_mut().for_each(|fence| fence.held.reads |= fence.held.everything);
        if let Some(share) = &mut self.share {
            share.on_operations_failed();
        }
    }

    /// A connection of this disk has heard of its volatile write cache: all of them flush from now on.
    pub(super) fn on_cache(&self) {
        if let Some(share) = &self.share {
            share.on_cache();
        }
    }

    /// Whether another connection of the same disk has heard of a volatile write cache.
    pub(super) fn has_cache(&self) -> bool {
        self.share.as_ref().is_some_and(Share::has_cache)
    }

    /// A path has another association than before, or none: what it could not do it may be able to do now.
    pub(super) fn on_path_lost(&mut self, path: usize) {
        for fence in &mut self.own {
            fence.resetting.take_if(|resetting| *resetting == path);
            fence.tried.remove(path);
        }
    }
}

impl<T: Transport> Driver<T> {
    /// What may still be carried out if nothing more reaches the controllers from now on, or from any later time until something
    /// happens to a path. `unknown`: for how long, of a controller that was never connected.
    #[must_use]
    pub fn impacted(&self, now: Duration, unknown: Duration) -> Vec<Impacted> {
        let paths = self.paths.iter().map(|path| path.impacted(now, unknown));
        // Who comes next does not know which blocks are fenced, and may read one that its user could not tell the contents of.
        let fenced = self.fences.own.iter().map(|fence| Impacted { reads: true, ..fence.impacted });
        fenced.chain(paths).collect()
    }

    /// A controller that was lost may still carry something out.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        !self.fences.own.is_empty()
    }

    /// Shares fences with the other drivers of the same disk from now on: before anything is submitted.
    pub fn share_fences(&mut self, with: &SharedFences) {
        self.fences.share = Some(Share::join(with));
        self.fences.publish();
        if self.heads.is_any_cached() {
            self.fences.on_cache();
        }
    }

    /// Looks at what withdrawn operations and the fences of others hold up, before anything is issued.
    pub(super) fn look_at_fences(&mut self, now: Duration) {
        self.hold_withdrawn();
        if self.fences.share.as_mut().is_some_and(|share| share.look(now)) {
            self.operations.resume(Wait::Fence);
        }
    }

    /// A controller was lost, and its connections are closed.
    pub(super) fn fence(&mut self, now: Duration, path: usize, lost: &Lost) {
        self.fences.on_path_lost(path);
        let ranges = self.operations.changes_in_flight(path);
        if (lost.admin || !ranges.is_empty()) && lost.impacted.until > now {
            self.fences.own.push(Fence::new(lost.impacted, ranges, lost.admin));
            self.fences.publish();
        }
    }

    /// Has fenced controllers reset through paths that are ready, each through one after the other until one can.
    pub(super) fn reset_fenced(&mut self, now: Duration) {
        let before = self.fences.own.len();
        // The controller is there again, in another life: it has been reset since. Elsewhere the same number may be that of another
        // target's controller.
        self.fences.retain(|fence| {
            let Some((address, impacted)) = fence.impacted.controller else { return true };
            let ready = self.paths.iter().filter(|path| path.is_ready() && path.config.address == address);
            let mut own = ready.filter_map(|path| path.association.as_ref()?.controller().instance);
            !own.any(|own| impacted != own && impacted.cntlid == own.cntlid)
        });
        if self.fences.own.len() < before {
            self.operations.resume(Wait::Fence);
        }
        for fence in self.fences.own.iter_mut().filter(|fence| fence.resetting.is_none()) {
            let Some(impacted) = fence.impacted.instance() else { continue };
            for (number, path) in self.paths.iter_mut().enumerate() {
                if !fence.tried.contains(number) && path.reset(now, impacted) {
                    fence.resetting = Some(number);
                    break;
                }
            }
        }
    }

    pub(super) fn on_reset_ended(&mut self, path: usize, impacted: ControllerInstance, successful: bool) {
        if successful {
            self.fences.retain(|fence| fence.impacted.instance() != Some(impacted));
            return self.operations.resume(Wait::Fence);
        }
        let of_it = |fence: &&mut Fence| fence.impacted.instance() == Some(impacted);
        for fence in self.fences.own.iter_mut().filter(of_it) {
            fence.resetting = None;
            fence.tried.insert(path);
        }
    }

    pub(super) fn on_fence_timeout(&mut self, now: Duration) {
        self.fences.retain(|fence| fence.impacted.until > now);
        self.operations.resume(Wait::Fence);
    }
}
