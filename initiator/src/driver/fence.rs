//! Fences: what a controller that was lost may still carry out.
//!
//! A command that changes a disk and was in flight when its controller was lost may take effect at any time until the
//! controller is known to have dropped it. Issued again before, on any path, the late copy could land on top of what
//! was written since. So the blocks that it names are fenced: nothing that changes one of them is issued. A fence falls
//! when the controller was reset through another one (Cross-Controller Reset), or when it must have noticed the loss and
//! had its time to drop what it had begun.

use super::Driver;
use super::operation::Wait;
use super::path::Lost;
use super::policy::PathSet;
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvmf_block::BlockRange;

#[derive(Debug)]
struct Fence {
    /// That of the controller.
    path: usize,
    /// What Cross-Controller Reset knows the controller by; `None` where it has none.
    impacted: Option<ControllerInstance>,
    /// When it needs no reset any more.
    until: Duration,
    ranges: Vec<(Nsid, BlockRange)>,
    /// A command of the user's was in flight, which may change anything.
    everything: bool,
    /// The path through which it is being reset.
    resetting: Option<usize>,
    /// The paths that could not reset it.
    tried: PathSet,
}

/// All fences: mostly none.
#[derive(Debug, Default)]
pub(super) struct Fences(Vec<Fence>);

impl Fences {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a change of these blocks has to wait.
    pub(super) fn holds(&self, nsid: Nsid, range: BlockRange) -> bool {
        let overlaps = |&(other, fenced): &(Nsid, BlockRange)| {
            let end = |range: BlockRange| range.start.saturating_add(range.blocks);
            other == nsid && fenced.start < end(range) && range.start < end(fenced)
        };
        self.0.iter().any(|fence| fence.everything || fence.ranges.iter().any(overlaps))
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.0.iter().map(|fence| fence.until).min()
    }

    /// A path has another association than before, or none: what it could not do it may be able to do now.
    pub(super) fn on_path_lost(&mut self, path: usize) {
        for fence in &mut self.0 {
            fence.resetting.take_if(|resetting| *resetting == path);
            fence.tried.remove(path);
        }
    }
}

impl<T: Transport> Driver<T> {
    /// A controller was lost, and its connections are closed.
    pub(super) fn fence(&mut self, now: Duration, path: usize, lost: &Lost) {
        self.fences.on_path_lost(path);
        let ranges = self.operations.changes_in_flight(path);
        if (lost.admin || !ranges.is_empty()) && lost.until > now {
            self.fences.0.push(Fence {
                path,
                impacted: lost.instance,
                until: lost.until,
                ranges,
                everything: lost.admin,
                resetting: None,
                tried: PathSet::default(),
            });
        }
    }

    /// Has fenced controllers reset through paths that are ready, each through one after the other until one can.
    pub(super) fn reset_fenced(&mut self, now: Duration) {
        let before = self.fences.0.len();
        // The controller is there again, in another life: it has been reset since. On another path the same number may be that of
        // another target's controller.
        self.fences.0.retain(|fence| {
            let path = Some(&self.paths[fence.path]).filter(|path| path.is_ready());
            let own = path.and_then(|path| path.association.as_ref()?.controller().instance);
            let again = |own: ControllerInstance| {
                fence.impacted.is_some_and(|impacted| impacted != own && impacted.cntlid == own.cntlid)
            };
            !own.is_some_and(again)
        });
        if self.fences.0.len() < before {
            self.operations.resume(Wait::Fence);
        }
        for fence in self.fences.0.iter_mut().filter(|fence| fence.resetting.is_none()) {
            let Some(impacted) = fence.impacted else { continue };
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
            self.fences.0.retain(|fence| fence.impacted != Some(impacted));
            return self.operations.resume(Wait::Fence);
        }
        for fence in self.fences.0.iter_mut().filter(|fence| fence.impacted == Some(impacted)) {
            fence.resetting = None;
            fence.tried.insert(path);
        }
    }

    pub(super) fn on_fence_timeout(&mut self, now: Duration) {
        self.fences.0.retain(|fence| fence.until > now);
        self.operations.resume(Wait::Fence);
    }
}
