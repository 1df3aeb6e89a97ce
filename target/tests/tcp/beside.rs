//! A host that does nothing wrong, beside queues that do.

use crate::host::{Ask, Host, Pdu};
use crate::world::World;
use nvme_proto::{Cntlid, Sqe, Status};

/// A host that does nothing wrong, and room beside it for queues that do.
pub(crate) struct Beside {
    pub(crate) world: World,
    pub(crate) ask: Ask,
    pub(crate) cntlid: Cntlid,
    pub(crate) admin: Host,
    pub(crate) good: Host,
    rounds: u32,
}

impl Beside {
    pub(crate) fn new(ask: Ask) -> Self {
        let mut world = World::new();
        let (admin, cntlid) = Host::admin(&mut world, 1, ask);
        let good = Host::io(&mut world, 1, ask, 1, cntlid);
        Self { world, ask, cntlid, admin, good, rounds: 0 }
    }

    pub(crate) fn io(&mut self) -> Host {
        Host::io(&mut self.world, 1, self.ask, 2, self.cntlid)
    }

    /// A queue that ends with this FES and FEI by what it does, alone.
    pub(crate) fn ends(&mut self, what: &str, fatal: (u16, u32), act: impl FnOnce(&mut World, &mut Host)) {
        let mut io = self.io();
        act(&mut self.world, &mut io);
        let found = io.pdu(&mut self.world);
        assert!(matches!(found, Pdu::Term { .. }), "{what}: {found:?}");
        assert_eq!(found.fatal(), fatal, "{what}");
        assert_eq!(io.pdu(&mut self.world), Pdu::End, "{what}");
        self.alone(what);
    }

    /// The other queue is over; nothing of it is left, and the host that does nothing wrong goes on.
    pub(crate) fn alone(&mut self, what: &str) {
        self.world.until_queues(2);
        assert_eq!((self.world.buffers_out(), self.world.slots_out()), (0, 0), "{what}");
        self.rounds += 1;
        self.good.check(&mut self.world, self.rounds);
    }

    pub(crate) fn end(mut self) {
        assert_eq!(self.admin.run(&mut self.world, &Sqe::new(0x18), &[]).0, Status::SUCCESS, "Keep Alive");
        // Wrong data digests count, too.
        let errors = if self.ask.data { 0 } else { self.world.count("transport_errors") };
        assert_eq!(errors, 0, "the transport was asked for what it does not do");
        drop((self.admin, self.good));
        self.world.until_clean();
    }
}
