//! A block operation as a future.

use crate::mailbox::Request;
use crate::shared_driver::SharedDriver;
use crate::slot::{Ended, Waiting};
use crate::{Buffer, caller};
use core::pin::Pin;
use nvme_proto::Nsid;
use nvmf_block::BlockOp;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Submits the operation at its first poll, on the thread that polls. When it is dropped after that, the operation goes on.
pub(crate) struct Operation<'a> {
    shared_driver: &'a Arc<SharedDriver>,
    step: Step,
}

enum Step {
    Begin { nsid: Nsid, op: BlockOp, buffer: Option<Buffer> },
    Wait(Waiting),
}

impl<'a> Operation<'a> {
    pub(crate) fn new(
        shared_driver: &'a Arc<SharedDriver>,
        nsid: Nsid,
        op: BlockOp,
        buffer: Option<Buffer>,
    ) -> Self {
        Self { shared_driver, step: Step::Begin { nsid, op, buffer } }
    }
}

impl Future for Operation<'_> {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let this = &mut *self;
        // Before anything is submitted, so that the connection's thread knows that somebody will drive.
        caller::wait_for(this.shared_driver);
        if let Step::Begin { nsid, op, buffer } = &mut this.step {
            let (reply, waiting) = this.shared_driver.slots().take();
            let request = Request { nsid: *nsid, op: *op, buffer: buffer.take(), reply };
            this.step = Step::Wait(waiting);
            this.shared_driver.submit(request);
        }
        let Step::Wait(waiting) = &mut this.step else { unreachable!("it was begun above") };
        waiting.poll(context, this.shared_driver.slots())
    }
}
