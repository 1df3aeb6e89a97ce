//! A block operation as a future.

use crate::driver::Op;
use crate::mailbox::{Message, Request};
use crate::shared_driver::SharedDriver;
use crate::slot::{Ended, Waiting};
use crate::{Buffer, caller};
use core::pin::Pin;
use core::time::Duration;
use nvme_proto::Nsid;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Submits the operation at its first poll. When it is dropped after that, what of the operation is in flight goes on, and nothing more
/// of it is sent.
pub(crate) struct Operation<'a> {
    shared_driver: &'a Arc<SharedDriver>,
    step: Step,
}

enum Step {
    Begin { nsid: Nsid, op: Op, buffer: Option<Buffer>, timeout: Option<Duration> },
    Wait(Waiting),
}

impl<'a> Operation<'a> {
    pub(crate) fn new(
        shared_driver: &'a Arc<SharedDriver>,
        nsid: Nsid,
        op: Op,
        buffer: Option<Buffer>,
        timeout: Option<Duration>,
    ) -> Self {
        Self { shared_driver, step: Step::Begin { nsid, op, buffer, timeout } }
    }

    /// Submits it, if that was not done yet.
    pub(crate) fn begin(&mut self) {
        // Before anything is submitted, so that the connection's thread knows that somebody will drive.
        let drives = caller::wait_for(self.shared_driver);
        if let Step::Begin { nsid, op, buffer, timeout } = &mut self.step {
            let (reply, waiting) = self.shared_driver.slots().take();
            let until = timeout.map(|timeout| self.shared_driver.now().saturating_add(timeout));
            let request = Request { nsid: *nsid, op: *op, buffer: buffer.take(), reply, until };
            self.step = Step::Wait(waiting);
            self.shared_driver.submit(request, drives);
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if let Step::Wait(waiting) = &mut self.step
            && let Some(slot) = waiting.abandon()
        {
            self.shared_driver.send(Message::Withdraw(slot));
        }
    }
}

impl Future for Operation<'_> {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let this = &mut *self;
        this.begin();
        // Those that ended together with this one run next.
        this.shared_driver.wakes().wake_all();
        let Step::Wait(waiting) = &mut this.step else { unreachable!("it was begun above") };
        waiting.poll(context, this.shared_driver.slots())
    }
}
