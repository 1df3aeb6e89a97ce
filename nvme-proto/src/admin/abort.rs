//! Abort (NVMe Base, "Abort command").

use crate::ident::{Cid, Qid};
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

/// Abort: names the command to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The submission queue that it was sent on.
    pub sqid: Qid,
    /// Its identifier.
    pub cid: Cid,
}

/// DW0 of the response: the command was not aborted; it has completed, or will.
pub const NOT_ABORTED: u32 = 1;

impl Abort {
    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, ..] = sqe.dwords();
        Self { sqid: Qid(cdw10 as u16), cid: Cid((cdw10 >> 16) as u16) }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let cdw10 = u32::from(self.sqid.0) | u32::from(self.cid.0) << 16;
        Sqe::new(AdminOpcode::ABORT.0).with_dwords([cdw10, 0, 0, 0, 0, 0])
    }
}

/// Whether DW0 of the response says that the command was aborted.
#[must_use]
pub fn aborted(dw0: u32) -> bool {
    dw0 & NOT_ABORTED == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bit_0_means_not_aborted() {
        assert!(aborted(0) && !aborted(NOT_ABORTED));
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(cdw: [u32; 6]) {
            let command = Abort::parse(&Sqe::new(0).with_dwords(cdw));
            prop_assert_eq!(Abort::parse(&command.emit()), command);
            prop_assert_eq!(command.emit().dwords()[0], cdw[0]);
        }
    }
}
