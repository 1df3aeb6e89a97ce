//! Asynchronous events: Asynchronous Event Requests that wait for an event, and events that wait for a request.

use crate::health::warning;
use crate::limits::ASYNC_EVENT_REQUESTS_MAX;
use crate::ticket::{Outcome, Reply};
use crate::{Cid, status};
use nvme_proto::Status;
use nvme_proto::admin::async_event::{AsyncEvent, notice};

/// An event that a host is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notification {
    NamespaceAttributes,
    Ana,
    Reservation,
    CrossControllerReset,
    DiscoveryLog,
    Reliability,
    Temperature,
    Spare,
}

/// The state of one kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Quiet,
    /// It occurred, and is not reported yet.
    Pending,
    /// It is reported, and the host has not read its log page yet: it is not reported again until then.
    Reported,
}

/// The Asynchronous Event Requests and the events of a controller.
#[derive(Debug, Default)]
pub(crate) struct Events {
    requests: [Option<Cid>; ASYNC_EVENT_REQUESTS_MAX],
    aborted: [Option<Cid>; ASYNC_EVENT_REQUESTS_MAX],
    /// By [`Notification::ALL`].
    states: [State; Notification::ALL.len()],
}

impl Notification {
    const ALL: [Self; 8] = [
        Self::NamespaceAttributes,
        Self::Ana,
        Self::Reservation,
        Self::CrossControllerReset,
        Self::DiscoveryLog,
        Self::Reliability,
        Self::Temperature,
        Self::Spare,
    ];
    /// Those of the SMART / Health log, with the critical warnings that each is of.
    pub(crate) const HEALTH: [(Self, u8); 3] = [
        (Self::Reliability, warning::RELIABILITY),
        (Self::Temperature, warning::TEMPERATURE),
        (Self::Spare, warning::SPARE),
    ];

    fn event(self) -> AsyncEvent {
        match self {
            Self::NamespaceAttributes => AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED,
            Self::Ana => AsyncEvent::ANA_CHANGE,
            Self::Reservation => AsyncEvent::RESERVATION_LOG_AVAILABLE,
            Self::CrossControllerReset => AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED,
            Self::DiscoveryLog => AsyncEvent::DISCOVERY_LOG_CHANGED,
            Self::Reliability => AsyncEvent::NVM_SUBSYSTEM_RELIABILITY,
            Self::Temperature => AsyncEvent::TEMPERATURE,
            Self::Spare => AsyncEvent::SPARE_BELOW_THRESHOLD,
        }
    }

    /// Whether the host wants it. (Reservation notifications have a mask of their own.)
    fn is_enabled(self, config: u32) -> bool {
        let bit = match self {
            Self::Reservation => return true,
            Self::NamespaceAttributes => notice::ATTACHED_NAMESPACE_ATTRIBUTE,
            Self::Ana => notice::ANA_CHANGE,
            Self::CrossControllerReset => notice::CROSS_CONTROLLER_RESET,
            Self::DiscoveryLog => notice::DISCOVERY_LOG_CHANGE,
            Self::Reliability => warning::RELIABILITY.into(),
            Self::Temperature => warning::TEMPERATURE.into(),
            Self::Spare => warning::SPARE.into(),
        };
        config & bit != 0
    }
}

impl Events {
    /// An Asynchronous Event Request: it waits.
    pub(crate) fn on_request(&mut self, cid: Cid) -> Outcome {
        // Requests that are about to be completed as aborted still count: the host has not seen them end.
        let free = self.requests.iter().zip(&self.aborted).position(|pair| pair == (&None, &None));
        let slot = free.ok_or(status::ASYNC_EVENT_LIMIT_EXCEEDED)?;
        self.requests[slot] = Some(cid);
        Ok(Reply::Held)
    }

    /// Aborts a request that waits; `false` when there is none of that ID.
    pub(crate) fn abort(&mut self, cid: Cid) -> bool {
        let Some(slot) = self.requests.iter().position(|&request| request == Some(cid)) else { return false };
        self.aborted[slot] = self.requests[slot].take();
        true
    }

    /// A controller level reset: every request is aborted, and no event is pending.
    pub(crate) fn reset(&mut self) {
        for (request, aborted) in self.requests.iter_mut().zip(&mut self.aborted) {
            *aborted = request.take().or(*aborted);
        }
        self.states = Default::default();
    }

    /// The event occurred.
    pub(crate) fn raise(&mut self, notification: Notification) {
        let state = self.state(notification);
        if *state == State::Quiet {
            *state = State::Pending;
        }
    }

    /// The host read the log page of the event.
    pub(crate) fn clear(&mut self, notification: Notification) {
        *self.state(notification) = State::Quiet;
    }

    fn state(&mut self, notification: Notification) -> &mut State {
        &mut self.states[notification as usize]
    }

    /// The next request that is over, its status, and DW0. `enabled` is the Asynchronous Event Configuration.
    pub(crate) fn poll(&mut self, enabled: u32) -> Option<(Cid, Status, u32)> {
        if let Some(cid) = self.aborted.iter_mut().find_map(Option::take) {
            return Some((cid, Status::ABORTED_BY_REQUEST, 0));
        }
        for notification in Notification::ALL {
            if *self.state(notification) != State::Pending || !notification.is_enabled(enabled) {
                continue;
            }
            let cid = self.requests.iter_mut().find_map(Option::take)?;
            *self.state(notification) = State::Reported;
            return Some((cid, Status::SUCCESS, notification.event().emit()));
        }
        None
    }
}
