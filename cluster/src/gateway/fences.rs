//! Where a fence does not reach: one that ends too early, and a process that has writes of before its fence when that has ended.

use super::requests::Request;
use super::{Gateway, Purpose};
use crate::map::State;
use crate::{Action, Address, GroupId, Handle, OpId, Reply};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// A client that has nothing under way has ended after so long.
const END_TIME: Duration = Duration::from_secs(10);

impl Gateway {
    /// Why this process has to end at once, if it has to: an owner before has operations at the store still, or may have
    /// some, and the fence that keeps them out ends one day. No call takes them back, and the end of the process does.
    ///
    /// It is asked first of all whenever the caller's thread gets to run: after a long sleep, the store's client goes on at
    /// the same moment.
    #[must_use]
    pub fn overdue(&mut self, now: Duration) -> Option<String> {
        let slept = now.saturating_sub(core::mem::replace(&mut self.turned, now));
        let limit = self.timing.overdue;
        // What is given up long after it counted no more is asked to end first, unless a fence may be over before that.
        let since = self.operations.values().filter_map(|purpose| match *purpose {
            Purpose::Shutdown { handle, since: Some(since), at, is_out }
                if now.saturating_sub(at) >= END_TIME || now.saturating_sub(since) >= limit * 2 =>
            {
                (!is_out || self.stores(handle)).then_some(since)
            }
            _ => None,
        });
        if let Some(since) = since.min().filter(|since| now.saturating_sub(*since) >= limit) {
            let age = now.saturating_sub(since).as_secs();
            return Some(format!(
                "a client of the storage cluster that counts no more since {age} s has not ended, and may have operations under way"
            ));
        }
        let has_any = self.groups.values().any(|group| group.handle.is_some() && group.carries_commands());
        (slept >= limit && has_any).then(|| {
            format!(
                "it did not run for {} s, and may have operations of before under way at the storage cluster",
                slept.as_secs()
            )
        })
    }

    /// Hosts have no command at an image any more through a client that does not end: a fence may be over before it has. What was to
    /// be stored of their reservations through it counts until there is a reply.
    pub fn on_out(&mut self, op: OpId) {
        if let Some(Purpose::Shutdown { is_out, .. }) = self.operations.get_mut(&op) {
            *is_out = true;
        }
    }

    /// Whether something of a host's is being stored through a client, as far as is known.
    fn stores(&self, through: Handle) -> bool {
        self.operations.values().any(|purpose| {
            matches!(purpose, Purpose::Request(Request::Reservation { handle, .. }) if *handle == through)
        })
    }

    /// Whom the group's owner fences is fenced until then only. As the monitors keep that end, he is fenced again after it.
    pub(super) fn note_short_fence(&mut self, id: GroupId, until: Duration) {
        if let Some(State::Taking { fence: Some(address), .. }) =
            self.groups[&id].entry().map(|entry| &entry.state)
        {
            self.short_fences.insert(address.clone(), until);
        }
    }

    /// Fences again whose fence has ended too early, through any client that there is.
    pub(super) fn fence_again(&mut self, now: Duration) {
        let mut ready = self.groups.values().filter(|group| group.address.is_some());
        let Some(handle) = ready.find_map(|group| group.handle) else { return };
        let due = self.short_fences.extract_if(.., |_, until| *until <= now);
        for address in due.map(|(address, _)| address).collect::<Vec<_>>() {
            let op = self.begin(Purpose::Fence(address.clone()));
            let duration = self.timing.blocklist;
            self.actions.push_back(Action::Blocklist { op, handle, address, duration });
        }
        if let Some(until) = self.short_fences.values().min().copied() {
            self.wake_at(until);
        }
    }

    pub(super) fn on_fence(&mut self, now: Duration, address: Address, reply: &Reply) {
        let again = match reply {
            Reply::Done => return,
            // Where it has ended, the monitors keep it a little longer than they say, or their clock is behind this one. It holds
            // as long as they do.
            Reply::FencedUntil(until) => (*until).max(now + self.timing.retry),
            _ => now + self.timing.retry_unfenced,
        };
        self.short_fences.insert(address, again);
    }
}
