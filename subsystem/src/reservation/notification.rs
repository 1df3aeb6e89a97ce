//! Reservation notifications: what a registrant is told of what others did.

use crate::limits::RESERVATION_NOTIFICATIONS_MAX;
use crate::{Nsid, Page};
use alloc::collections::{BTreeMap, VecDeque};
use nvme_proto::admin::log_page::ReservationNotification;
use zerocopy::{FromZeros, IntoBytes};

/// What happened (RNLPT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationNotice {
    /// The host's registration was preempted.
    RegistrationPreempted = 1,
    /// The reservation was released.
    ReservationReleased = 2,
    /// The reservation was preempted, or cleared.
    ReservationPreempted = 3,
}

/// The notifications of one controller: those that its host has not read, and those that it does not want.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    /// How many there were (LPC); the last of those that wait has this number.
    count: u64,
    waiting: VecDeque<(u64, ReservationNotice, Nsid)>,
    /// The Reservation Notification Mask feature, by namespace; a bit that is set masks [`ReservationNotice`] of its
    /// number.
    masks: BTreeMap<Nsid, u32>,
}

/// The bits of the mask that mean something.
const MASK_BITS: u32 = 0b1110;

impl Notifications {
    /// Takes one up; `false` if the host does not want it. The oldest makes way if there are too many: the host sees by
    /// the count that it missed one.
    pub(crate) fn add(&mut self, nsid: Nsid, notice: ReservationNotice) -> bool {
        if self.mask(nsid) >> notice as u8 & 1 == 1 {
            return false;
        }
        self.count += 1;
        if self.waiting.len() == RESERVATION_NOTIFICATIONS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.count, notice, nsid));
        true
    }

    /// The log page: the oldest that waits.
    pub(crate) fn page(&self) -> (Page, u64) {
        let mut log = ReservationNotification::new_zeroed();
        if let Some(&(count, notice, nsid)) = self.waiting.front() {
            log.lpc = count.into();
            log.rnlpt = notice as u8;
            log.nalp = u8::try_from(self.waiting.len() - 1).unwrap_or(u8::MAX);
            log.nsid = nsid.0.into();
        }
        let len = size_of::<ReservationNotification>();
        (Page::sized(len, |out| out.copy_from_slice(log.as_bytes())), len as u64)
    }

    /// The host has read it; says whether more wait.
    pub(crate) fn pop(&mut self) -> bool {
        self.waiting.pop_front();
        !self.waiting.is_empty()
    }

    pub(crate) fn mask(&self, nsid: Nsid) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or(0)
    }

    pub(crate) fn set_mask(&mut self, nsid: Nsid, mask: u32) {
        match mask & MASK_BITS {
            0 => self.masks.remove(&nsid),
            mask => self.masks.insert(nsid, mask),
        };
    }
}
